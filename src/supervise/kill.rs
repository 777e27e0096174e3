//! Killing a tree until nothing of it is left.

use std::time::Duration;

use nix::libc;
use nix::unistd::Pid;

use super::tree::{Reach, Tree};
use crate::clock::Moment;

/// A process that was forked while its tree was killed is found in the next round.
const SOON: Duration = Duration::from_millis(10);
/// What does not end, since another user runs it or its disk hangs, is looked at no more often than this.
const AT_MOST: Duration = Duration::from_secs(1);

/// Rounds of SIGKILL.
pub struct Killing {
    next: Moment,
    pause: Duration,
    /// What the last round found.
    found: Vec<Pid>,
}

impl Killing {
    pub fn begin() -> Killing {
        Killing { next: Moment::now(), pause: SOON, found: Vec::new() }
    }

    /// When the next round is due.
    pub fn next(&self) -> Moment {
        self.next
    }

    /// Kills what there is, if a round is due. Whether the kernel does not permit that for a process of it.
    pub fn round(&mut self, tree: &Tree) -> bool {
        if !self.next.passed() {
            return false;
        }
        let refused = tree.signal_all(&[libc::SIGKILL], Reach::All);
        self.rest(tree.all().unwrap_or_default());
        refused
    }

    /// Longer each time for as long as nothing new is found.
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
