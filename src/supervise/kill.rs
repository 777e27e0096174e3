//! Kills a process tree until nothing of it is left.

use std::collections::HashSet;
use std::time::Duration;

use nix::unistd::Pid;

use super::tree::Killed;
use crate::clock::Moment;

/// Pause before the next round, which finds the processes that were forked during the last one.
const SOON: Duration = Duration::from_millis(10);
/// Maximum pause, for processes that do not end: another user runs them, or their disk hangs.
const AT_MOST: Duration = Duration::from_secs(1);

/// Maximum readings of a tree in one round.
const READINGS: u32 = 1000;

/// Rounds of SIGKILL.
pub struct Killing {
    next: Moment,
    pause: Duration,
    /// Processes that the last round found.
    found: HashSet<Pid>,
}

impl Killing {
    pub fn begin() -> Killing {
        Killing { next: Moment::now(), pause: SOON, found: HashSet::new() }
    }

    /// Returns when the next round is due.
    pub fn next(&self) -> Moment {
        self.next
    }

    /// Kills every process of the tree, if a round is due: calls `kill`, which reads the tree once, until that finds no
    /// more processes that it may kill. `kill` also reaps what has ended, if that is for its caller to do: a process that
    /// forks and exits, as fast as it can, leaves a dead process for each that the next reading has to tell from the live
    /// one. Returns whether the kernel denied permission for one of them.
    pub fn round(&mut self, mut kill: impl FnMut() -> Vec<Killed>) -> bool {
        if !self.next.passed() {
            return false;
        }
        let mut refused = false;
        let mut last = HashSet::new();
        for _ in 0..READINGS {
            let found = kill();
            refused |= found.iter().any(|killed| killed.is_refused);
            let is_new = found.iter().any(|killed| !killed.is_refused && !last.contains(&killed.pid));
            last = found.into_iter().map(|killed| killed.pid).collect();
            if !is_new {
                break;
            }
        }
        self.rest(last);
        refused
    }

    /// Schedules the next round. The pause doubles while no new process is found.
    fn rest(&mut self, found: HashSet<Pid>) {
        let is_new = !found.is_subset(&self.found);
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
        let pids = |pids: &[i32]| pids.iter().copied().map(Pid::from_raw).collect();
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
