//! The command and everything it started.
//!
//! We are the subreaper of all of it (prctl(2), PR_SET_CHILD_SUBREAPER): a process that loses its
//! parent becomes our child, whatever session or group it has moved to. So what descends from us is
//! the command's tree, and when we have no child left it is gone.

use std::collections::HashMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::child::{Child, Terminal, Unborn};
use crate::proc::{self, Stat};

pub struct Tree {
    command: Child,
    command_reaped: bool,
}

pub enum Reaped {
    /// The command itself.
    Command(Result<ExitStatus, Unborn>),
    /// Something it started, which had become our child; or one that asked to be traced, and has stopped.
    Other,
    /// Nothing has ended, and something is left.
    NoneYet,
    NoneLeft,
}

impl Tree {
    pub fn of(command: Child) -> Tree {
        Tree { command, command_reaped: false }
    }

    pub fn terminal(&self) -> Terminal {
        self.command.terminal
    }

    /// Collects one process that has ended, without waiting.
    pub fn reap(&mut self) -> Reaped {
        let mut status = 0;
        // SAFETY: waitpid(2) writes to `status` only. nix's does not know real-time signals.
        match unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) } {
            0 => Reaped::NoneYet,
            // Stops are told unasked of who called ptrace(2) with PTRACE_TRACEME; it has not ended.
            pid if pid > 0 && libc::WIFSTOPPED(status) => Reaped::Other,
            pid if pid == self.command.pid.as_raw() => {
                self.command_reaped = true;
                Reaped::Command(self.command.unborn().map_or(Ok(ExitStatus::from_raw(status)), Err))
            }
            pid if pid > 0 => Reaped::Other,
            _ => Reaped::NoneLeft,
        }
    }

    /// Signals the command alone, as if the signal had been sent to it.
    pub fn signal_command(&self, signal: Signal) {
        if !self.command_reaped {
            let _ = kill(self.command.pid, signal);
        }
    }

    /// Sends the command and everything it started these signals, one after the other. What they start because of it,
    /// as a shell does in a trap, is not sent them. Tells whether any of it is out of reach: running as another user.
    pub fn signal_all(&self, signals: &[Signal]) -> bool {
        let all = self.all();
        let out_of_reach = |signal: &Signal| match &all {
            Some(all) => all.iter().filter(|pid| kill(**pid, *signal) == Err(Errno::EPERM)).count() > 0,
            None => self.signal_group(*signal),
        };
        signals.iter().filter(|signal| out_of_reach(signal)).count() > 0
    }

    /// What there is to do without /proc, or with one that has other numbers than kill(2) for the same
    /// processes.
    fn signal_group(&self, signal: Signal) -> bool {
        if self.terminal() == Terminal::Absent {
            return killpg(self.command.pid, signal) == Err(Errno::EPERM);
        }
        self.signal_command(signal);
        false
    }

    /// Every process that descends from us, if /proc tells.
    fn all(&self) -> Option<Vec<Pid>> {
        if !proc::is_ours() {
            return None;
        }
        by_children().or_else(by_parents)
    }
}

/// Descendants as the kernel lists them under their parents, proc_pid_children(5): as many files are read as there are
/// descendants, however many others run here, and a deadline may be near. A list may lack somebody while others
/// come and go, so it counts when it has been the same twice. Nothing where the kernel has no such lists.
fn by_children() -> Option<Vec<Pid>> {
    let mut all = once_by_children()?;
    let mut last = all.clone();
    for _ in 0..ROUNDS {
        let found = once_by_children()?;
        if found == last {
            break;
        }
        all.extend(found.iter().filter(|pid| !last.contains(pid)));
        last = found;
    }
    Some(all)
}

/// What forks without end is caught when it is signalled again.
const ROUNDS: u32 = 4;

fn once_by_children() -> Option<Vec<Pid>> {
    let own = std::process::id().cast_signed();
    let mut found = vec![own];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        let mut listed = false;
        // First all threads, then their lists: there may be but one descriptor left.
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let lists: Vec<_> = threads.map(|thread| thread.path().join("children")).collect();
        for list in lists.iter().filter_map(|list| fs::read_to_string(list).ok()) {
            found.extend(pids_in(&list));
            listed = true;
        }
        if pid == own && !listed {
            return None;
        }
        next += 1;
    }
    Some(found.into_iter().skip(1).map(Pid::from_raw).collect())
}

fn pids_in(list: &str) -> impl Iterator<Item = i32> {
    list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok())
}

/// The same by what every process tells of its parent. None of them is another's, since pids are not given out
/// again within the time it takes to signal them. Nothing without /proc.
fn by_parents() -> Option<Vec<Pid>> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    let pids: Vec<i32> = proc::pids()?.collect();
    for pid in pids {
        // One that ended meanwhile has no parent to tell any more.
        if let Some(stat) = Stat::of(pid) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    let mut found = vec![std::process::id().cast_signed()];
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        found.extend(children.remove(pid).unwrap_or_default());
        next += 1;
    }
    Some(found.into_iter().skip(1).map(Pid::from_raw).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_ours_is_found_under_us() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        assert!(by_parents().unwrap().contains(&pid));
        assert!(by_children().is_none_or(|found| found.contains(&pid)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
