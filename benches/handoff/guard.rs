//! The contestants, which make a command wait, and how each is called.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::within;
use crate::rig::{NXLOCK, Server, command};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    Flock,
    NxlockTcp,
    NxlockUnix,
    NxlockLocal,
    Poller,
}

impl Guard {
    pub const ALL: [Guard; 5] = [Guard::Flock, Guard::NxlockTcp, Guard::NxlockUnix, Guard::NxlockLocal, Guard::Poller];

    pub fn name(self) -> &'static str {
        match self {
            Guard::Flock => "flock",
            Guard::NxlockTcp => "nxlock, TCP",
            Guard::NxlockUnix => "nxlock, Unix socket",
            Guard::NxlockLocal => "nxlock, local",
            Guard::Poller => "SET NX every 100 ms, TCP",
        }
    }

    /// Returns whether it sends requests to a server.
    pub fn asks(self) -> bool {
        !matches!(self, Guard::Flock | Guard::NxlockLocal)
    }

    /// Returns a call that runs `words` under the lock `name`.
    pub fn call(self, server: &Server, name: &str, words: &[OsString]) -> Command {
        let nxlock = |url: String| {
            let mut call = command(NXLOCK);
            call.args(["--server", &url, "--quiet", "run", "--wait", "2m", name, "--"]);
            call
        };
        let mut call = match self {
            Guard::Flock => {
                let mut call = command("flock");
                call.arg(file(server, name));
                call
            }
            Guard::NxlockTcp => nxlock(server.tcp()),
            Guard::NxlockUnix => nxlock(server.unix()),
            Guard::NxlockLocal => nxlock(server.local()),
            Guard::Poller => {
                let mut call = command(within::program());
                call.args([within::POLL, &server.port().to_string(), name]);
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
            Guard::NxlockTcp | Guard::NxlockUnix => Some(server.ask(&["ZCARD", &format!("{{lock:{name}}}:queue")])),
            Guard::NxlockLocal => Some(queued(&server.local(), name)),
            Guard::Poller => None,
        }
    }
}

/// Returns the number of waiters that `status` shows.
fn queued(server: &str, name: &str) -> usize {
    let status = command(NXLOCK).args(["--server", server, "--json", "status", name]).output().expect("it starts");
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
