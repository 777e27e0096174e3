//! The command and everything it started.
//!
//! We are the subreaper of all of it (prctl(2), PR_SET_CHILD_SUBREAPER): a process that loses its
//! parent becomes our child, whatever session or group it has moved to. So what descends from us is
//! the command's tree, and when we have no child left it is gone.

use std::collections::HashMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::child::Terminal;
use crate::proc::{self, Stat};

pub struct Tree {
    command: Pid,
    terminal: Terminal,
    command_reaped: bool,
}

pub enum Reaped {
    /// The command itself.
    Command(ExitStatus),
    /// Something it started, which had become our child; or one that asked to be traced, and has stopped.
    Other,
    /// Nothing has ended, and something is left.
    NoneYet,
    NoneLeft,
}

impl Tree {
    pub fn of(command: &Child, terminal: Terminal) -> Tree {
        Tree { command: Pid::from_raw(command.id().cast_signed()), terminal, command_reaped: false }
    }

    /// Collects one process that has ended, without waiting.
    pub fn reap(&mut self) -> Reaped {
        let mut status = 0;
        // SAFETY: waitpid(2) writes to `status` only. nix's does not know real-time signals.
        match unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) } {
            0 => Reaped::NoneYet,
            // Stops are told unasked of who called ptrace(2) with PTRACE_TRACEME; it has not ended.
            pid if pid > 0 && libc::WIFSTOPPED(status) => Reaped::Other,
            pid if pid == self.command.as_raw() => {
                self.command_reaped = true;
                Reaped::Command(ExitStatus::from_raw(status))
            }
            pid if pid > 0 => Reaped::Other,
            _ => Reaped::NoneLeft,
        }
    }

    /// Signals the command alone, as if the signal had been sent to it.
    pub fn signal_command(&self, signal: Signal) {
        if !self.command_reaped {
            let _ = kill(self.command, signal);
        }
    }

    /// Signals the command and everything it started. Tells whether any of it is out of reach:
    /// running as another user.
    pub fn signal_all(&self, signal: Signal) -> bool {
        let out_of_reach = |pid: &&Pid| kill(**pid, signal) == Err(Errno::EPERM);
        if !proc::is_ours() {
            return self.signal_group(signal);
        }
        // Those that are found at once first: on a busy machine it takes long to look at all processes.
        let near = children_of_all();
        let refused = near.iter().filter(out_of_reach).count();
        let Some(all) = descendants() else { return self.signal_group(signal) };
        let rest: Vec<Pid> = all.into_iter().filter(|pid| !near.contains(pid)).collect();
        refused + rest.iter().filter(out_of_reach).count() > 0
    }

    /// What there is to do without /proc, or with one that has other numbers than kill(2) for the same
    /// processes.
    fn signal_group(&self, signal: Signal) -> bool {
        if self.terminal == Terminal::Absent {
            return killpg(self.command, signal) == Err(Errno::EPERM);
        }
        self.signal_command(signal);
        false
    }
}

/// Descendants as the kernel lists them by parent, proc_pid_children(5). That is quick, and may miss some
/// that come or go meanwhile; and not every kernel has it.
fn children_of_all() -> Vec<Pid> {
    let mut found = vec![std::process::id().cast_signed()];
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        let children: Vec<i32> = lists.flat_map(|list| pids_in(&list)).collect();
        found.extend(children);
        next += 1;
    }
    found.into_iter().skip(1).map(Pid::from_raw).collect()
}

fn pids_in(list: &str) -> Vec<i32> {
    list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Every process that descends from this one, parents before children; none of them is another's,
/// since pids are not given out again within the time it takes to signal them. Nothing without /proc.
fn descendants() -> Option<Vec<Pid>> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for pid in proc::pids()? {
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
        assert!(descendants().unwrap().contains(&pid));
        assert!(children_of_all().contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
