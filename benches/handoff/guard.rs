//! The contestants, which make a command wait, and how each is called.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::within;
use crate::rig::{Server, command, measured};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    Flock,
    NxlockTcp,
    NxlockUnix,
    NxlockLocal,
    /// One of this many slots, by TCP.
    Slots(usize),
    /// One of this many slots of a local lock.
    LocalSlots(usize),
    Poller,
}

impl Guard {
    pub fn name(self) -> String {
        match self {
            Guard::Flock => "flock".into(),
            Guard::NxlockTcp => "nxlock, TCP".into(),
            Guard::NxlockUnix => "nxlock, Unix socket".into(),
            Guard::NxlockLocal => "nxlock, local".into(),
            Guard::Slots(slots) => format!("{slots} slots, TCP"),
            Guard::LocalSlots(slots) => format!("{slots} slots, local"),
            Guard::Poller => "SET NX every 100 ms, TCP".into(),
        }
    }

    /// Returns whether it sends requests to a server.
    pub fn asks(self) -> bool {
        !matches!(self, Guard::Flock | Guard::NxlockLocal | Guard::LocalSlots(_))
    }

    /// Returns how many may hold the lock at once.
    pub fn slots(self) -> usize {
        match self {
            Guard::Slots(slots) | Guard::LocalSlots(slots) => slots,
            _ => 1,
        }
    }

    fn url(self, server: &Server) -> String {
        match self {
            Guard::NxlockUnix => server.unix(),
            Guard::NxlockLocal | Guard::LocalSlots(_) => server.local(),
            _ => server.tcp(),
        }
    }

    /// Acquires one share that nobody renews.
    pub fn acquire(self, server: &Server, name: &str, ttl: &str) {
        let mut call = command(measured());
        call.args(["--server", &self.url(server), "--quiet", "acquire", "--ttl", ttl, name]);
        call.args(self.sharing());
        let granted = call.stdout(Stdio::null()).status().expect("it starts");
        assert!(granted.success(), "{granted}");
    }

    fn sharing(self) -> Option<String> {
        (self.slots() > 1).then(|| format!("--slots={}", self.slots()))
    }

    /// Returns a call that runs `words` under the lock `name`.
    pub fn call(self, server: &Server, name: &str, words: &[OsString]) -> Command {
        self.call_with(self.sharing().as_deref(), server, name, words)
    }

    /// Returns a call that runs `words` under the lock `name` with other readers.
    pub fn read(self, server: &Server, name: &str, words: &[OsString]) -> Command {
        self.call_with(Some("--shared"), server, name, words)
    }

    fn call_with(self, sharing: Option<&str>, server: &Server, name: &str, words: &[OsString]) -> Command {
        let mut call = match self {
            Guard::Flock => {
                let mut call = command("flock");
                call.args(sharing).arg(file(server, name));
                call
            }
            Guard::Poller => {
                let mut call = command(within::program());
                call.args([within::POLL, &server.port().to_string(), name]);
                call
            }
            _ => {
                let mut call = command(measured());
                call.args(["--server", &self.url(server), "--quiet", "run", "--wait", "2m"]);
                call.args(sharing).args([name, "--"]);
                call
            }
        };
        call.args(words);
        call
    }

    /// Returns the number of waiters, if it can be known.
    pub fn waiting(self, server: &Server, name: &str) -> Option<usize> {
        match self {
            Guard::Flock => Some(blocked(&file(server, name))),
            Guard::NxlockTcp | Guard::NxlockUnix | Guard::Slots(_) => {
                Some(server.ask(&["ZCARD", &format!("{{lock:{name}}}:queue")]))
            }
            Guard::NxlockLocal | Guard::LocalSlots(_) => Some(queued(&server.local(), name)),
            Guard::Poller => None,
        }
    }
}

/// Returns the number of waiters that `status` shows.
fn queued(server: &str, name: &str) -> usize {
    let status = command(measured()).args(["--server", server, "--json", "status", name]).output().expect("it starts");
    String::from_utf8_lossy(&status.stdout).matches("\"position\"").count()
}

fn file(server: &Server, name: &str) -> PathBuf {
    server.directory().join(name)
}

/// Returns the number of processes blocked by a lock on the file: proc_locks(5) has a line with an arrow for each.
fn blocked(file: &Path) -> usize {
    let Ok(inode) = fs::metadata(file).map(|metadata| metadata.ino()) else { return 0 };
    let locks = fs::read_to_string("/proc/locks").expect("proc(5) is there");
    let inode = format!(":{inode} ");
    locks.lines().filter(|line| line.contains("->") && line.contains(&inode)).count()
}
