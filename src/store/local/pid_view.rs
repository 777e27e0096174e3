//! The watched process of a claim, `acquire --while-pid`: its identity, and whether it still runs.
//!
//! Wrongly reporting its end would give a lock two holders. A process that nxlock cannot see for certain is therefore
//! [`Presence::Unseen`], and the lease decides.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;

use nix::poll::PollFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::clock::Boot;
use crate::proc::{self, Stat};
use crate::wait::is_ready;

/// A process, identified among all processes of this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pid: i32,
    started: u64,
    /// The namespace in which the pid is valid, pid_namespaces(7).
    pids: u64,
}

#[derive(Debug)]
pub enum Presence {
    /// With a descriptor that is readable when the process has ended, pidfd_open(2).
    Runs(OwnedFd),
    Ended,
    Unseen,
}

/// The processes that nxlock can see: those of its own pid namespace, if /proc belongs to that namespace and nxlock's
/// clock counts from the machine's boot.
#[derive(Clone, Copy)]
pub struct PidView {
    pids: Option<u64>,
}

impl PidView {
    /// # Errors
    /// As stat(2), open(2) and read(2): what nxlock sees is not known, unless there is no /proc.
    pub fn new(boot: &Boot) -> io::Result<PidView> {
        let pids = match fs::metadata("/proc/self/ns/pid") {
            Ok(namespace) => Some(namespace.ino()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let are_seen = proc::is_known_to_be_ours()? && boot.is_by_our_clock();
        Ok(PidView { pids: pids.filter(|_| are_seen) })
    }

    /// A view that shows no process.
    pub const fn none() -> PidView {
        PidView { pids: None }
    }

    /// Identifies a process; `None` if it has ended or nxlock cannot see it.
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
            // The pidfd was opened before stat is read: if stat is of this process, so is the pidfd.
            Ok(opened) => match Stat::of(process.pid) {
                Some(stat) if stat.started != process.started => Presence::Ended,
                // A pidfd is not readable before the last thread of its process has ended.
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
        let pid_view = PidView::new(&Boot::this().unwrap()).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = pid_view.process(child.id()).unwrap();
        assert_eq!(process.to_string().parse(), Ok(process));
        let Presence::Runs(ended) = pid_view.presence(&process) else { panic!("it runs") };
        let other = Process { started: process.started - 1, ..process };
        assert!(matches!(pid_view.presence(&other), Presence::Ended), "a later one has its pid");
        child.kill().unwrap();
        // Before wait(2), the process exists and has ended.
        while !is_ready(ended.as_fd(), PollFlags::POLLIN) {
            std::thread::yield_now();
        }
        assert!(matches!(pid_view.presence(&process), Presence::Ended));
        child.wait().unwrap();
        assert!(matches!(pid_view.presence(&process), Presence::Ended));
    }

    #[test]
    fn a_process_of_another_namespace_is_not_seen() {
        let pid_view = PidView::new(&Boot::this().unwrap()).unwrap();
        let process = pid_view.process(std::process::id()).unwrap();
        let elsewhere = Process { pids: process.pids + 1, ..process };
        assert!(matches!(pid_view.presence(&elsewhere), Presence::Unseen));
        assert!(matches!(PidView::none().presence(&process), Presence::Unseen));
    }
}
