//! Kills a process tree until nothing of it is left.

use std::time::Duration;

use nix::libc;
use nix::unistd::Pid;

use super::tree::{Reach, Tree};
use crate::clock::Moment;

/// Pause before the next round, which finds the processes that were forked during the last one.
const SOON: Duration = Duration::from_millis(10);
/// Maximum pause, for processes that do not end: another user runs them, or their disk hangs.
const AT_MOST: Duration = Duration::from_secs(1);

/// Rounds of SIGKILL.
pub struct Killing {
    next: Moment,
    pause: Duration,
    /// Processes that the last round found.
    found: Vec<Pid>,
}

impl Killing {
    pub fn begin() -> Killing {
        Killing { next: Moment::now(), pause: SOON, found: Vec::new() }
    }

    /// Returns when the next round is due.
    pub fn next(&self) -> Moment {
        self.next
    }

    /// Kills every process of the tree, if a round is due. Returns whether the kernel denied permission for one of
    /// them.
    pub fn round(&mut self, tree: &Tree) -> bool {
        if !self.next.passed() {
            return false;
        }
        let refused = tree.signal_all(&[libc::SIGKILL], Reach::All);
        self.rest(tree.all().unwrap_or_default());
        refused
    }

    /// Schedules the next round. The pause doubles while no new process is found.
    fn rest(&mut self, found: Vec<Pid>) {
        let is_new = found.iter().any(|pid| !self.found.contains(pid));
        self.pause = if is_new { SOON } else { (self.pause * 2).min(AT_MOST) };
        self.found = found;
        self.next = Moment::now() + self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_end_is_killed_ever_more_rarely_and_what_is_new_soon() {
        let pids = |pids: &[i32]| pids.iter().copied().map(Pid::from_raw).collect::<Vec<_>>();
        let mut killing = Killing::begin();
        let mut pause = |found: &[i32]| {
            killing.rest(pids(found));
            killing.pause.as_millis()
        };
        assert_eq!(pause(&[7, 8]), 10);
        let pauses: Vec<_> = (0..8).map(|_| pause(&[7])).collect();
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert_eq!(pause(&[7, 9]), 10);
    }
}
