//! The process that a claim is kept for, `acquire --while-pid`: which one it is, and whether it still runs.
//!
//! To say wrongly that it has ended would let two have a lock. So whatever cannot be seen for certain is
//! [`Presence::Unseen`], and then the lease decides.

use std::fmt;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;

use nix::poll::PollFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::clock::Boot;
use crate::proc::{self, Stat};
use crate::wait::is_ready;

/// A process, told from every other of this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pid: i32,
    started: u64,
    /// The namespace in which the pid means what it says, pid_namespaces(7).
    pids: u64,
}

#[derive(Debug)]
pub enum Presence {
    /// And a descriptor that is readable when it has ended, pidfd_open(2).
    Runs(OwnedFd),
    Ended,
    Unseen,
}

/// What this process can see of others: those of its pid namespace, where /proc is that of its pids, and
/// where it counts time as they do.
#[derive(Clone, Copy)]
pub struct PidView {
    pids: Option<u64>,
}

impl PidView {
    pub fn new(boot: &Boot) -> PidView {
        let pids = || Some(fs::metadata("/proc/self/ns/pid").ok()?.ino());
        PidView { pids: pids().filter(|_| proc::is_ours() && boot.is_told_by_our_clock()) }
    }

    /// Nothing for a process that has ended, or that we cannot see.
    pub fn process(&self, pid: u32) -> Option<Process> {
        let (pid, pids) = (pid.cast_signed(), self.pids?);
        Some(Process { pid, started: Stat::of(pid)?.started, pids })
    }

    pub fn presence(&self, process: &Process) -> Presence {
        if self.pids != Some(process.pids) {
            return Presence::Unseen;
        }
        let Some(pid) = Pid::from_raw(process.pid) else { return Presence::Unseen };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => Presence::Ended,
            Err(_) => Presence::Unseen,
            // Opened before it is looked at: if this is the process, so is that.
            Ok(opened) => match Stat::of(process.pid) {
                Some(stat) if stat.started != process.started => Presence::Ended,
                // Not before the last of its threads has ended.
                _ if is_ready(opened.as_fd(), PollFlags::POLLIN) => Presence::Ended,
                Some(_) => Presence::Runs(opened),
                None => Presence::Unseen,
            },
        }
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.pid, self.started, self.pids)
    }
}

impl FromStr for Process {
    type Err = ();

    fn from_str(text: &str) -> Result<Process, ()> {
        let mut numbers = text.split('.');
        let mut next = || numbers.next().ok_or(());
        let process = Process {
            pid: next()?.parse().map_err(|_| ())?,
            started: next()?.parse().map_err(|_| ())?,
            pids: next()?.parse().map_err(|_| ())?,
        };
        if process.pid > 0 && next().is_err() { Ok(process) } else { Err(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_known_until_it_ends() {
        let pid_view = PidView::new(&Boot::this().unwrap());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = pid_view.process(child.id()).unwrap();
        assert_eq!(process.to_string().parse(), Ok(process));
        let Presence::Runs(ended) = pid_view.presence(&process) else { panic!("it runs") };
        let other = Process { started: process.started - 1, ..process };
        assert!(matches!(pid_view.presence(&other), Presence::Ended), "a later one has its pid");
        child.kill().unwrap();
        // Not yet waited for, it is there and has ended.
        while !is_ready(ended.as_fd(), PollFlags::POLLIN) {
            std::thread::yield_now();
        }
        assert!(matches!(pid_view.presence(&process), Presence::Ended));
        child.wait().unwrap();
        assert!(matches!(pid_view.presence(&process), Presence::Ended));
    }

    #[test]
    fn a_process_of_another_namespace_is_not_seen() {
        let pid_view = PidView::new(&Boot::this().unwrap());
        let process = pid_view.process(std::process::id()).unwrap();
        let elsewhere = Process { pids: process.pids + 1, ..process };
        assert!(matches!(pid_view.presence(&elsewhere), Presence::Unseen));
        assert!(matches!(PidView { pids: None }.presence(&process), Presence::Unseen));
    }
}
