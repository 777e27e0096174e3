//! Ctrl-Z: nxlock stops the command's tree before itself, since a stopped nxlock renews nothing.

use std::time::Duration;

use nix::libc::{self, c_int};
use nix::unistd::Pid;

use super::tree::{self, GUARD, Reach, Tree, is_in_our_group};
use crate::clock::Moment;
use crate::proc::{self, Job, JobState};

/// Time for a program to take the signal: on a busy machine, it waits for the processor.
const TAKING: Duration = Duration::from_secs(5);
/// Time for a program that has caught TSTP: an editor restores the terminal before it stops itself.
const GRACE: Duration = Duration::from_millis(500);
/// Time for the rest of the tree to stop after that.
const REST: Duration = Duration::from_millis(500);
/// Interval at which nxlock polls the tree.
const LOOK: Duration = Duration::from_millis(5);

/// A tree that is being stopped.
pub struct Suspension {
    /// The signal that then suspends nxlock.
    signal: c_int,
    /// The processes to which nxlock has sent the signal. None if it came from the terminal, or the command has stopped by
    /// itself.
    sent_to: Option<Reach>,
    began: Moment,
    /// When a program that catches the signal was last seen not to have taken it yet.
    untaken_at: Moment,
    next: Moment,
    stopped: Vec<Pid>,
}

impl Suspension {
    /// Starts to stop a tree. `signal` stopped the command, or is to stop it.
    pub fn begin(signal: c_int) -> Suspension {
        let now = Moment::now();
        Suspension { signal, sent_to: None, began: now, untaken_at: now, next: now, stopped: Vec::new() }
    }

    /// Notes the processes to which nxlock has sent a signal that stops them.
    pub fn was_sent_to(&mut self, reach: Option<Reach>) {
        self.sent_to = self.sent_to.max(reach);
    }

    /// Returns when to poll the tree again.
    pub fn next(&self) -> Moment {
        self.next
    }

    pub fn signal(&self) -> c_int {
        self.signal
    }

    /// Sends SIGSTOP to the processes that do not stop by themselves. Returns whether the whole tree is stopped, or the
    /// time for that is up.
    pub fn advance(&mut self, tree: &Tree) -> bool {
        if !self.next.passed() {
            return false;
        }
        let listed = tree.without_nested().zip(tree.all()).filter(|_| proc::is_ours());
        let Some((own, all)) = listed else {
            tree.signal_all(&[libc::SIGSTOP], Reach::All);
            return true;
        };
        self.next = Moment::now() + LOOK;
        // While a program prepares to stop, nxlock stops nothing, since the program may need what it has started;
        // nxlock goes on renewing. A nested nxlock stops its own command before itself.
        let gets_ready =
            |(pid, job): &(Pid, Job)| job.catches(self.signal) && (self.sent_to.is_some() || is_in_our_group(*pid));
        let getting_ready: Vec<_> = running(own).filter(gets_ready).collect();
        if getting_ready.iter().any(|(_, job)| job.is_to_take(self.signal)) && !(self.began + TAKING).passed() {
            self.untaken_at = Moment::now();
        }
        let grace_ends = self.untaken_at + GRACE;
        if !getting_ready.is_empty() && !grace_ends.passed() {
            return false;
        }
        let mut running: Vec<_> = running(all).filter(|(pid, _)| proc::name(pid.as_raw()) != GUARD).collect();
        for (pid, _) in &running {
            if !self.stopped.contains(pid) {
                let _ = tree::send(*pid, libc::SIGSTOP);
                self.stopped.push(*pid);
            }
        }
        // /proc does not tell whether a process without a main thread has stopped.
        running.retain(|(_, job)| job.state == JobState::Runs);
        running.is_empty() || (grace_ends + REST).passed()
    }

    /// Ends this for a SIGCONT that nxlock read before it stopped itself. Passes the SIGCONT on to `reach`, and to those to
    /// whom nxlock sent the TSTP: they may have had the SIGCONT before that. A SIGCONT to nxlock's group makes the kernel
    /// discard the TSTP that shows nxlock that the group had it, and nxlock then sends the group another.
    pub fn call_off(self, tree: &Tree, reach: Reach) {
        tree.signal_all(&[libc::SIGCONT], self.sent_to.map_or(reach, |sent_to| sent_to.max(reach)));
        self.undo(tree, false);
    }

    /// Continues the processes that this has stopped, and no others. If a SIGCONT was sent to them after they had
    /// stopped, those that it has reached get no second one.
    pub fn undo(self, tree: &Tree, was_sent: bool) {
        let Some(all) = tree.all().filter(|_| proc::is_ours()) else {
            tree.signal_all(&[libc::SIGCONT], Reach::All);
            return;
        };
        let runs = |pid: &Pid| Job::of(pid.as_raw()).is_some_and(|job| job.state == JobState::Runs);
        for pid in self.stopped.into_iter().filter(|pid| all.contains(pid) && !(was_sent && runs(pid))) {
            let _ = tree::send(pid, libc::SIGCONT);
        }
    }
}

/// Returns the processes that run, and how they handle signals.
fn running(pids: Vec<Pid>) -> impl Iterator<Item = (Pid, Job)> {
    let jobs = pids.into_iter().filter_map(|pid| Some((pid, Job::of(pid.as_raw())?)));
    jobs.filter(|(_, job)| !matches!(job.state, JobState::Stopped | JobState::Ended))
}
