//! When to ask again for a lock that somebody else has, and whom first: there is no queue over several servers, and who
//! came at the same moment is not to come again at the same moment.

use std::time::Duration;

use super::tally::{self, Votes};
use crate::clock::Moment;
use crate::lock::{HolderId, LockState, StateKind};

const AT_LEAST: Duration = Duration::from_millis(50);
const AT_MOST: Duration = Duration::from_secs(1);
/// So many times as long as a ballot takes: what a crowd asks is bounded by what the servers, and the machines of
/// those who ask, can do.
const TIMES: u32 = 50;

pub struct Backoff {
    within: Duration,
    pub at: Moment,
    /// What the last ballot took.
    pub took: Duration,
    /// What all said together, last.
    verdict: LockState,
    /// Who was seen to have votes, last and before that.
    seen: [Option<HolderId>; 2],
    /// Who has voted for the holder, and is asked before the others.
    gate: Option<usize>,
    /// When all are asked at once, whatever that one would say: its vote may be one that nobody needs any more.
    all_at: Moment,
}

impl Backoff {
    pub fn new() -> Backoff {
        let now = Moment::now();
        Backoff {
            within: AT_LEAST,
            at: now,
            took: Duration::ZERO,
            verdict: LockState::free(None),
            seen: [None, None],
            gate: None,
            all_at: now,
        }
    }

    pub fn gate(&self) -> Option<usize> {
        self.gate.filter(|_| !self.all_at.passed())
    }

    /// All were asked. Those who wait choose the same gate if they see the same.
    pub fn seen(&mut self, votes: &Votes, state: &LockState) {
        self.verdict = state.clone();
        self.note(state);
        self.gate = tally::first_for_the_holder(votes, state);
        self.all_at = Moment::now() + AT_MOST;
    }

    /// What the gate's vote for somebody tells: one vote alone does not make a holder.
    pub fn at_the_gate(&mut self, seen: &LockState) -> LockState {
        self.note(seen);
        match seen.holder_id() {
            // Its own fence is not the one that the holder was given.
            holder @ Some(_) if self.verdict.kind == StateKind::Held && holder == self.verdict.holder_id() => {
                LockState { fence: self.verdict.fence, ..seen.clone() }
            }
            _ => LockState { kind: StateKind::Contested, ttl: None, fence: None, legacy: None, ..seen.clone() },
        }
    }

    fn note(&mut self, seen: &LockState) {
        self.seen.swap(0, 1);
        self.seen[0] = seen.holder_id().cloned();
    }

    /// Within a time that is long against the last ballot's, and grows while the same holder is seen, but no later
    /// than a quorum can be free.
    pub fn after(&mut self, ttl: Option<Duration>, took: Duration) {
        self.took = took;
        let at_first = (took * TIMES).clamp(AT_LEAST, AT_MOST);
        self.within = match &self.seen {
            [Some(last), Some(before)] if last == before => (self.within * 2).clamp(at_first, AT_MOST),
            _ => at_first,
        };
        let pause = up_to(self.within);
        self.at = Moment::now() + ttl.map_or(pause, |ttl| pause.min(ttl + Duration::from_millis(1)));
    }
}

/// At random: more than nothing, and no more than this.
fn up_to(longest: Duration) -> Duration {
    // Without random bits there is no jitter, and no harm.
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    longest.mul_f64((f64::from(random) + 1.0) / (f64::from(u32::MAX) + 1.0))
}
