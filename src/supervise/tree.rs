//! The command and everything it started, as the kernel lists it.
//!
//! nxlock and its guard are both subreapers, PR_SET_CHILD_SUBREAPER(2const): a process that loses its parent becomes a
//! child of the nearest of the two, whatever session or group it has moved to. So the descendants of either are the
//! command's tree, and the tree is gone when a subreaper has no child left. Both nxlock and the guard use this module.

use std::cell::LazyCell;
use std::collections::HashMap;
use std::fs;

use nix::errno::Errno;
use nix::libc::{self, c_int};
use nix::unistd::{Pid, getpgid, getpgrp};

use super::spawn::Terminal;
use crate::proc::{self, Stat};

/// The name of a guard in ps(1) and pgrep(1). It does not contain nxlock's: `pkill nxlock` must not kill both.
pub const GUARD: &str = "nx-guard";

/// All descendants of this process except its helpers.
pub struct Tree {
    helpers: Vec<Pid>,
    /// Set until the command's parent has reaped it: before that no other process can have its pid.
    pub command: Option<Pid>,
    terminal: Terminal,
}

/// A process of the tree that was sent SIGKILL, unless the kernel denied permission: another user runs it.
pub struct Killed {
    pub pid: Pid,
    pub is_refused: bool,
}

/// The processes of a tree that a signal goes to, ordered from fewer to more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// The others have the signal already, since it was sent to nxlock's process group.
    OutsideOurGroup,
    All,
}

impl Tree {
    pub fn new(helpers: Vec<Pid>, terminal: Terminal) -> Tree {
        Tree { helpers, command: None, terminal }
    }

    pub fn terminal(&self) -> Terminal {
        self.terminal
    }

    /// Signals the command alone, with the value that came with the signal, sigqueue(3).
    pub fn signal_command(&self, number: c_int, value: Option<u64>, reach: Reach) {
        match (self.command.filter(|command| reaches(*command, reach)), value) {
            (Some(command), Some(value)) => queue(command, number, value),
            (Some(command), None) => _ = send(command, number),
            (None, _) => {}
        }
    }

    /// Sends these signals, in order, to each process of the tree, but not to processes started in reaction, as from a
    /// shell's trap. Returns whether the kernel denied permission for a process, since another user runs it.
    pub fn signal_all(&self, numbers: &[c_int], reach: Reach) -> bool {
        // A nested nxlock forwards a signal to its own command, which must not get it twice; only KILL and STOP cannot
        // be forwarded.
        let to_all = numbers.iter().all(|number| matches!(*number, libc::SIGKILL | libc::SIGSTOP));
        let Some(all) = (if to_all { self.all() } else { self.without_nested() }) else {
            return self.signal_group(numbers);
        };
        let all: Vec<Pid> = all.into_iter().filter(|pid| reaches(*pid, reach)).collect();
        let mut refused = false;
        for number in numbers {
            for pid in &all {
                refused |= send(*pid, *number) == Err(Errno::EPERM);
            }
        }
        refused
    }

    /// Reads the tree once, and kills each process as soon as it is listed: one that forks and exits is gone soon after.
    /// Returns the processes, and of those that had ended before only such as have not been reaped.
    pub fn kill(&self) -> Vec<Killed> {
        let mut killed = Vec::new();
        let pid_of = pids_by_number();
        let mut kill = |shown: i32| {
            if let Some(pid) = pid_of(shown).filter(|pid| !self.helpers.contains(pid)) {
                let is_refused = send(pid, libc::SIGKILL) == Err(Errno::EPERM);
                killed.push(Killed { pid, is_refused });
            }
        };
        let is_read = proc::own_number().is_some_and(|own| {
            let listed = once_by_children(own, &mut |shown| {
                kill(shown);
                true
            });
            let all = || by_parents(own, &|_| false).inspect(|all| all.iter().copied().for_each(&mut kill));
            listed.or_else(all).is_some()
        });
        if !is_read {
            let is_refused = self.signal_group(&[libc::SIGKILL]);
            killed.extend(self.command.map(|pid| Killed { pid, is_refused }));
        }
        killed
    }

    /// Signals the command, or the process group that it leads: the fallback if /proc is missing or does not show this
    /// process.
    fn signal_group(&self, numbers: &[c_int]) -> bool {
        let Some(command) = self.command else { return false };
        let whom = if self.terminal == Terminal::Absent { Pid::from_raw(-command.as_raw()) } else { command };
        let results: Vec<_> = numbers.iter().map(|number| send(whom, *number)).collect();
        // The group is empty, or the command has not created it yet.
        if results.contains(&Err(Errno::ESRCH)) {
            numbers.iter().for_each(|number| _ = send(command, *number));
        }
        self.terminal == Terminal::Absent && results.contains(&Err(Errno::EPERM))
    }

    /// Returns every process of the tree, if /proc tells.
    pub fn all(&self) -> Option<Vec<Pid>> {
        self.listed(&|_| false)
    }

    /// Returns whether a process is one of the tree now. One that has ended is, until its parent has reaped it.
    pub fn has(&self, pid: Pid) -> bool {
        let own = std::process::id().cast_signed();
        // First: the process may end.
        let descends = pid.as_raw() > 0 && !self.helpers.contains(&pid) && descends(pid.as_raw(), own);
        if proc::is_ours() { descends } else { self.all().is_some_and(|all| all.contains(&pid)) }
    }

    /// Returns the same without the guards of nested runs and their descendants: their nxlock signals those.
    pub fn without_nested(&self) -> Option<Vec<Pid>> {
        self.listed(&|shown| proc::name(shown) == GUARD)
    }

    fn listed(&self, is_left_out: &dyn Fn(i32) -> bool) -> Option<Vec<Pid>> {
        let own = proc::own_number()?;
        let pid_of = pids_by_number();
        // Keep the guard, which is a helper, and the command, which has the guard's name until execve(2).
        let is_ours = |pid: Pid| self.helpers.contains(&pid) || self.command == Some(pid);
        let is_left_out = |shown: i32| is_left_out(shown) && !pid_of(shown).is_some_and(is_ours);
        let all = by_children(own, &is_left_out).or_else(|| by_parents(own, &is_left_out))?;
        Some(all.into_iter().filter_map(&pid_of).filter(|pid| !self.helpers.contains(pid)).collect())
    }
}

fn reaches(pid: Pid, reach: Reach) -> bool {
    reach == Reach::All || !is_in_our_group(pid)
}

pub fn is_in_our_group(pid: Pid) -> bool {
    getpgid(Some(pid)) == Ok(getpgrp())
}

/// Calls kill(2); accepts real-time signals, which nix's kill does not know.
pub fn send(pid: Pid, number: c_int) -> nix::Result<()> {
    // SAFETY: kill(2) takes two numbers.
    Errno::result(unsafe { libc::kill(pid.as_raw(), number) }).map(drop)
}

fn queue(pid: Pid, number: c_int, value: u64) {
    let value = libc::sigval { sival_ptr: std::ptr::without_provenance_mut(usize::try_from(value).unwrap_or(0)) };
    // SAFETY: sigqueue(3) takes two numbers and passes the value on without reading it.
    unsafe { libc::sigqueue(pid.as_raw(), number, value) };
}

/// Returns whether a process descends from another, which lives. A process that loses its parent meanwhile gets another:
/// then the search begins again.
fn descends(pid: i32, ancestor: i32) -> bool {
    let parent = |pid| Stat::of(pid).map(|stat| stat.parent);
    for _ in 0..=ROUNDS {
        let Some(mut at) = parent(pid) else { return false };
        while at != ancestor && at > 1 {
            let Some(next) = parent(at) else { break };
            at = next;
        }
        if at == ancestor || at <= 1 {
            return at == ancestor;
        }
    }
    false
}

/// Returns the descendants by the kernel's lists of children, proc_pid_children(5). A deadline may be near, and this
/// reads only files of descendants, however many other processes run. A list may miss a process while others come and
/// go, so two readings must agree. `None` if the kernel has no such lists.
fn by_children(own: i32, is_left_out: &dyn Fn(i32) -> bool) -> Option<Vec<i32>> {
    let mut is_shown = |pid| !is_left_out(pid);
    let mut all = once_by_children(own, &mut is_shown)?;
    let mut last = all.clone();
    for _ in 0..ROUNDS {
        let found = once_by_children(own, &mut is_shown)?;
        if found == last {
            break;
        }
        all.extend(found.iter().filter(|pid| !last.contains(pid)));
        last = found;
    }
    Some(all)
}

/// Maximum further readings: the next round of signals catches processes that fork without end.
const ROUNDS: u32 = 4;

/// Does the same by one reading; `is_shown` is called with each process as soon as it is listed.
fn once_by_children(own: i32, is_shown: &mut dyn FnMut(i32) -> bool) -> Option<Vec<i32>> {
    let mut found = vec![own];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        let mut listed = false;
        // List all threads before reading their files: only one descriptor may be left.
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let lists: Vec<_> = threads.map(|thread| thread.path().join("children")).collect();
        for list in lists.iter().filter_map(|list| fs::read_to_string(list).ok()) {
            // The newest first: of a chain of processes that fork and exit, the others have ended.
            let shown: Vec<i32> = pids_in(&list).rev().filter(|pid| is_shown(*pid)).collect();
            found.extend(shown.into_iter().rev());
            listed = true;
        }
        if pid == own && !listed {
            return None;
        }
        next += 1;
    }
    Some(found.into_iter().skip(1).collect())
}

/// Returns the children of the calling thread, each with its number in /proc.
pub fn children() -> impl Iterator<Item = (i32, Pid)> {
    let list = fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    let shown: Vec<i32> = pids_in(&list).collect();
    let pid_of = pids_by_number();
    shown.into_iter().filter_map(move |shown| Some((shown, pid_of(shown)?)))
}

/// Returns the function that tells the pid of a process, in its own pid namespace, by its number in /proc.
fn pids_by_number() -> impl Fn(i32) -> Option<Pid> {
    let are_ours = LazyCell::new(proc::is_ours);
    move |shown| if *are_ours { Some(shown) } else { proc::inner_number(shown) }.map(Pid::from_raw)
}

fn pids_in(list: &str) -> impl DoubleEndedIterator<Item = i32> {
    list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok())
}

/// Returns the same by the parent of every process. Pids are not reused within the time it takes to signal them, so
/// none belongs to another process. `None` without /proc.
fn by_parents(own: i32, is_left_out: &dyn Fn(i32) -> bool) -> Option<Vec<i32>> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    let pids: Vec<i32> = proc::pids()?.collect();
    for pid in pids {
        // A process that ended meanwhile has no parent to report.
        if let Some(stat) = Stat::of(pid) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    let mut found = vec![own];
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        found.extend(children.remove(pid).unwrap_or_default().into_iter().filter(|pid| !is_left_out(*pid)));
        next += 1;
    }
    Some(found.into_iter().skip(1).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_ours_is_found_under_us() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        let own = std::process::id().cast_signed();
        assert!(by_parents(own, &|_| false).unwrap().contains(&pid.as_raw()));
        assert!(!by_parents(own, &|shown| shown == pid.as_raw()).unwrap().contains(&pid.as_raw()));
        assert!(Tree::new(vec![], Terminal::Absent).all().unwrap().contains(&pid));
        assert!(Tree::new(vec![], Terminal::Absent).has(pid));
        assert!(!Tree::new(vec![pid], Terminal::Absent).has(pid) && !descends(own, pid.as_raw()));
        assert!(!Tree::new(vec![pid], Terminal::Absent).all().unwrap().contains(&pid));
        assert!(by_children(own, &|_| false).is_none_or(|found| found.contains(&pid.as_raw())));
        child.kill().unwrap();
        // A zombie is still there.
        assert!(descends(pid.as_raw(), own));
        child.wait().unwrap();
        assert!(!descends(pid.as_raw(), own));
    }
}
