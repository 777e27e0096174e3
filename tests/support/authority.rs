//! An authority keeps the locks: a server or a directory. Tests call it only through nxlock, so they hold for every
//! kind of authority.

use std::ffi::OsString;
use std::path::PathBuf;

use tempfile::TempDir;

use super::{Nxlock, Redis, eventually};

/// An implementation checks on drop that nothing was left behind in it.
pub trait Authority {
    /// Returns the value of NXLOCK_SERVER.
    fn url(&self) -> String;

    /// Returns a directory for the files of a test.
    fn directory(&self) -> PathBuf;

    /// Returns how many callers it can serve in good time if all come at once.
    fn crowd(&self) -> usize {
        200
    }

    /// Sets the environment by which a call finds it.
    fn lead(&self, call: Nxlock) -> Nxlock {
        call.env("NXLOCK_SERVER", self.url())
    }

    fn nxlock<I: IntoIterator<Item: Into<OsString>>>(&self, args: I) -> Nxlock {
        self.lead(Nxlock::new(args))
    }

    /// Deletes a key that a killed process may have left, and that expires too late to wait for.
    fn buries(&self, _key: &str) {}

    /// Returns whether any of several servers still has a vote for `job`. One may expire a little later than the
    /// majority that kept the lock.
    fn has_votes(&self) -> bool {
        false
    }

    /// Returns a call of a shell script that calls nxlock, with `args` as `$1` and so on.
    fn sh<'a>(&self, script: &'a str, args: &[&'a str]) -> Nxlock {
        self.lead(Nxlock::by("sh", ["-c", script, "sh"].iter().chain(args).copied()))
    }
}

/// A directory of this machine; the first call that needs it creates it.
pub struct Local(TempDir);

impl Local {
    pub fn start() -> Local {
        Local(tempfile::Builder::new().prefix("nx").tempdir().expect("a directory"))
    }

    /// Returns the directory of the locks.
    pub fn locks(&self) -> PathBuf {
        self.0.path().join("locks")
    }

    /// Returns the path of a file of the lock `job`: its `lock`, its `line` or its `shares`.
    pub fn file(&self, part: &str) -> PathBuf {
        self.locks().join(format!("lock:job.{part}"))
    }
}

impl Authority for Local {
    fn url(&self) -> String {
        format!("local:{}", self.locks().display())
    }

    fn directory(&self) -> PathBuf {
        self.0.path().to_owned()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // The empty prefix lists all locks, except those whose prefix and name together are too long for a name.
            for prefix in ["", "lock:"] {
                let left = || self.nxlock(["--json", "--prefix", prefix, "status"]).run().exits(0).json();
                // A killed process may still seem alive while one that inherited its descriptors is in execve(2). A
                // record of runs stays.
                let is_free = |lock: &serde_json::Value| lock["state"] == "free";
                eventually("nothing is left behind", || left().as_array().is_some_and(|all| all.iter().all(is_free)));
            }
        }
    }
}

impl Authority for Redis {
    fn url(&self) -> String {
        self.login()
    }

    fn directory(&self) -> PathBuf {
        Redis::directory(self)
    }

    fn buries(&self, key: &str) {
        self.ask::<()>(&["DEL", key]);
    }
}

/// A redis-server that nxlock reaches over TCP; the test itself uses its Unix socket.
pub struct OverTcp(pub Redis);

impl OverTcp {
    pub fn start() -> OverTcp {
        OverTcp(Redis::on_tcp(&[]))
    }
}

impl Authority for OverTcp {
    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.0.port())
    }

    fn directory(&self) -> PathBuf {
        self.0.directory()
    }

    fn buries(&self, key: &str) {
        self.0.ask::<()>(&["DEL", key]);
    }
}

/// Five independent servers.
pub struct Five([Redis; 5]);

impl Five {
    pub fn start() -> Five {
        Five(std::array::from_fn(|_| Redis::start()))
    }

    pub fn each(&self) -> &[Redis; 5] {
        &self.0
    }

    pub fn each_mut(&mut self) -> &mut [Redis; 5] {
        &mut self.0
    }

    /// Returns the value of the key of `job` on each server.
    pub fn values(&self) -> Vec<Option<String>> {
        self.0.iter().map(|redis| redis.value("lock:job")).collect()
    }
}

impl Authority for Five {
    fn url(&self) -> String {
        self.0.each_ref().map(Redis::url).join(" ")
    }

    fn directory(&self) -> PathBuf {
        Redis::directory(&self.0[0])
    }

    fn has_votes(&self) -> bool {
        self.values().iter().any(Option::is_some)
    }
}
