//! Ctrl-Z: nxlock stops its command's tree before it stops itself, since it renews nothing while it is stopped.

use std::time::Duration;

use nix::libc::{self, c_int};
use nix::unistd::Pid;

use super::tree::{self, GUARD, Reach, Tree, is_in_our_group};
use crate::clock::Moment;
use crate::proc::{self, Job, JobState};

/// How long a program may take that catches TSTP: an editor gives the terminal back before it stops itself.
const GRACE: Duration = Duration::from_millis(500);
/// How long the rest may take to stop after that.
const REST: Duration = Duration::from_millis(500);
/// The pause between two looks at the tree.
const LOOK: Duration = Duration::from_millis(5);

/// A tree that is being stopped.
pub struct Suspension {
    /// What nxlock is to be suspended by.
    signal: c_int,
    /// Which processes have had the signal.
    had_by: HadBy,
    /// How often nxlock had been continued when this began.
    continued: u64,
    began: Moment,
    next: Moment,
    stopped: Vec<Pid>,
}

/// Which processes of the tree have had a signal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum HadBy {
    /// nxlock has sent it to them.
    All,
    /// The terminal has, or another process.
    OurGroup,
}

impl Suspension {
    /// `signal` is the one by which the command was stopped, or is to be; `continued` is how often nxlock was
    /// continued until now.
    pub fn begin(signal: c_int, had_by: HadBy, continued: u64) -> Suspension {
        let now = Moment::now();
        Suspension { signal, had_by, continued, began: now, next: now, stopped: Vec::new() }
    }

    /// When to look again.
    pub fn next(&self) -> Moment {
        self.next
    }

    pub fn signal(&self) -> c_int {
        self.signal
    }

    pub fn continued(&self) -> u64 {
        self.continued
    }

    /// Stops by SIGSTOP what does not stop by itself. Whether all of the tree is stopped, or will not be.
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
        // While a program gets ready, nothing is stopped, since that may be what it has started for it; nxlock goes on
        // renewing. A nested nxlock stops its own command before itself.
        let gets_ready =
            |(pid, job): &(Pid, Job)| job.catches(self.signal) && (self.had_by == HadBy::All || is_in_our_group(*pid));
        if running(own).any(|job| gets_ready(&job)) && !(self.began + GRACE).passed() {
            return false;
        }
        let mut running: Vec<_> = running(all).filter(|(pid, _)| proc::name(pid.as_raw()) != GUARD).collect();
        for (pid, _) in &running {
            if !self.stopped.contains(pid) {
                let _ = tree::send(*pid, libc::SIGSTOP);
                self.stopped.push(*pid);
            }
        }
        // Of one without a main thread nothing tells whether the others have stopped.
        running.retain(|(_, job)| job.state == JobState::Runs);
        running.is_empty() || (self.began + GRACE + REST).passed()
    }

    /// Continues the processes that this has stopped, and no others. If nxlock passes on a SIGCONT, it continues only
    /// those that do not get that one.
    pub fn undo(self, tree: &Tree, is_passed_on: bool) {
        let Some((own, all)) = tree.without_nested().zip(tree.all()) else {
            tree.signal_all(&[libc::SIGCONT], Reach::All);
            return;
        };
        let stopped = self.stopped.into_iter().filter(|pid| all.contains(pid));
        for pid in stopped.filter(|pid| !is_passed_on || !own.contains(pid)) {
            let _ = tree::send(pid, libc::SIGCONT);
        }
    }
}

/// Those that run, and how they take signals.
fn running(pids: Vec<Pid>) -> impl Iterator<Item = (Pid, Job)> {
    let jobs = pids.into_iter().filter_map(|pid| Some((pid, Job::of(pid.as_raw())?)));
    jobs.filter(|(_, job)| !matches!(job.state, JobState::Stopped | JobState::Ended))
}
