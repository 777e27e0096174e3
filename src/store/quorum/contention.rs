//! State of a waiter for a lock that another process holds: when it retries, and which server it asks first. A quorum
//! has no queue, and processes that came at the same moment must not return at the same moment.

use std::time::Duration;

use super::tally::{self, Votes};
use crate::clock::Moment;
use crate::error::Error;
use crate::lock::{Expiry, HolderId, LockState, StateKind};

const AT_LEAST: Duration = Duration::from_millis(50);
const AT_MOST: Duration = Duration::from_secs(1);
/// The pause as a multiple of a ballot's duration: it bounds a crowd's requests by what the servers and the clients'
/// machines can do.
const TIMES: u32 = 50;

pub struct Contention {
    within: Duration,
    pub at: Moment,
    /// Duration of the last ballot.
    pub took: Duration,
    /// The last verdict of all servers.
    verdict: LockState,
    /// Why that did not tell whether anybody has the lock, if it did not.
    pub undecided: Option<Error>,
    /// The holders seen last, and before that.
    seen: [Option<HolderId>; 2],
    /// The server that voted for the holder, and is asked before the others.
    gate: Option<usize>,
    /// When to ask all servers at once, without the gate: its vote may be one that its owner no longer needs.
    all_at: Moment,
}

impl Contention {
    pub fn new() -> Contention {
        let now = Moment::now();
        Contention {
            within: AT_LEAST,
            at: now,
            took: Duration::ZERO,
            verdict: LockState::free(None),
            undecided: None,
            seen: [None, None],
            gate: None,
            all_at: now,
        }
    }

    pub fn gate(&self) -> Option<usize> {
        self.gate.filter(|_| !self.all_at.passed())
    }

    /// Records a ballot among all servers. Waiters that see the same votes choose the same gate.
    pub fn seen(&mut self, votes: &Votes, state: &LockState, undecided: Option<&Error>) {
        self.verdict = state.clone();
        self.undecided = undecided.cloned();
        self.note(state);
        self.gate = tally::first_for_the_holder(votes, state);
        self.all_at = Moment::now() + AT_MOST;
    }

    /// Returns the state that the gate's vote shows: one vote alone does not make a holder. Where silent servers could
    /// have decided the last ballot, they still could.
    pub fn at_the_gate(&mut self, seen: &LockState) -> LockState {
        self.note(seen);
        let seen = tally::not_asked(seen.clone());
        match seen.holder_id() {
            // The gate's own fence may not be the one that the holder was given.
            holder @ Some(_) if self.verdict.kind == StateKind::Held && holder == self.verdict.holder_id() => {
                LockState { fence: self.verdict.fence, ..seen }
            }
            _ => {
                let kind = match self.verdict.kind {
                    StateKind::Unknown => StateKind::Unknown,
                    _ => StateKind::Contested,
                };
                LockState { kind, expiry: Expiry::Unknown, fence: None, legacy: None, ..seen }
            }
        }
    }

    fn note(&mut self, seen: &LockState) {
        self.seen.swap(0, 1);
        self.seen[0] = seen.holder_id().cloned();
    }

    /// Sets the moment of the next ballot: after a random pause that is long against the last ballot, and grows while
    /// the same holder is seen, but no later than a quorum can be free.
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

/// Returns a random duration: more than nothing, and no more than `longest`.
fn up_to(longest: Duration) -> Duration {
    // Without random bits there is no jitter, which does no harm.
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    longest.mul_f64((f64::from(random) + 1.0) / (f64::from(u32::MAX) + 1.0))
}
