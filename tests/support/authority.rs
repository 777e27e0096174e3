//! Whoever keeps the locks, a server or a directory, asked through nxlock and nothing else: what is told in
//! these words holds for every kind of them.

use std::ffi::OsString;
use std::path::PathBuf;

use tempfile::TempDir;

use super::{Nxlock, Redis, eventually};

/// Whoever drops one sees to it that nothing was left behind in it.
pub trait Authority {
    /// As NXLOCK_SERVER has it.
    fn url(&self) -> String;

    /// A place for the files of a test.
    fn directory(&self) -> PathBuf;

    /// How many can come at once and be served in good time.
    fn crowd(&self) -> usize {
        200
    }

    /// Lets a call find it, by its environment.
    fn lead(&self, call: Nxlock) -> Nxlock {
        call.env("NXLOCK_SERVER", self.url())
    }

    fn nxlock<I: IntoIterator<Item: Into<OsString>>>(&self, args: I) -> Nxlock {
        self.lead(Nxlock::new(args))
    }

    /// A script that calls nxlock, and what it finds in `$1` and so on.
    fn sh<'a>(&self, script: &'a str, args: &[&'a str]) -> Nxlock {
        self.lead(Nxlock::by("sh", ["-c", script, "sh"].iter().chain(args).copied()))
    }
}

/// A directory of this machine, which is not there before the first who needs it.
pub struct Local(TempDir);

impl Local {
    pub fn start() -> Local {
        Local(tempfile::Builder::new().prefix("nx").tempdir().expect("a directory"))
    }

    /// Where the locks lie.
    pub fn locks(&self) -> PathBuf {
        self.0.path().join("locks")
    }

    /// A file of the lock `job`: its `lock` or its `line`.
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
            // Under no prefix there are all, but for those whose name and prefix are too long for a name.
            for prefix in ["", "lock:"] {
                let left = || self.nxlock(["--json", "--prefix", prefix, "status"]).run().exits(0).json();
                // Of somebody who was killed something may still seem to be there: any process that is just
                // now in an execve(2).
                eventually("nothing is left behind", || left() == serde_json::json!([]));
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
}

/// A redis-server that is reached over the network, though the test itself has its socket.
pub struct OverTcp(Redis);

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
}

/// Five servers that know nothing of each other.
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

    /// What the key of `job` holds, in each of them.
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
}
