//! Asking until the lock is granted, refused, no longer wanted, or out of time.
//!
//! Decides how long each kind of trouble is put up with, and sees to it that a claim that is given
//! up leaves nothing behind. Knows nothing of how a store is asked.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::clock::Moment;
use crate::limit::{Limit, Woken};
use crate::lock::{Hold, Lease, Occupancy, Ttl};
use crate::say::{self, Waiting};
use crate::signals::Signals;
use crate::store::{Acquired, Kind, Store, Trouble};

/// How long we are willing to wait for a lock, and for a server.
#[derive(Clone, Copy)]
pub struct Patience {
    pub wait: Wait,
    /// Bound on finding out anything at first contact.
    pub server_timeout: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    Not,
    Until(Moment),
    ForEver,
}

pub enum Waited {
    Granted(Lease),
    Busy { occupancy: Occupancy, waited: Duration },
    Interrupted(Signal),
}

/// A wait under way.
struct Attempt<'a> {
    store: &'a mut dyn Store,
    hold: &'a Hold,
    patience: Patience,
    began: Moment,
    /// Whether the server has ever answered: one that goes away later is waited for.
    met: bool,
    backoff: Backoff,
    /// The trouble of the last try.
    before: Option<Trouble>,
}

/// Asks `store` for a lock until there is an outcome.
///
/// # Errors
/// When the truth could not be found out in time, or never will be.
pub fn for_grant(
    store: &mut dyn Store,
    hold: &Hold,
    ttl: Ttl,
    patience: Patience,
    signals: &mut Signals,
    waiting: &mut Waiting,
) -> Result<Waited, Trouble> {
    let mut attempt =
        Attempt { store, hold, patience, began: Moment::now(), met: false, backoff: Backoff::new(), before: None };
    loop {
        let limit = Limit { until: attempt.answer_by(), bells: signals.fds() };
        let pause = match attempt.store.acquire(hold, ttl, limit) {
            Ok(Acquired::Granted(lease)) if lease.until.remaining() >= ttl.get() / 2 => {
                return Ok(Waited::Granted(lease));
            }
            // Granted, but the answer took too long to be of use: ask again, and it counts from now.
            Ok(Acquired::Granted(_)) => match attempt.too_slow() {
                Some(trouble) => return attempt.fail(trouble),
                None => Duration::ZERO,
            },
            Ok(Acquired::Held(occupancy)) => {
                attempt.met = true;
                attempt.before = None;
                attempt.backoff = Backoff::new();
                if attempt.out_of_patience() {
                    return Ok(Waited::Busy { occupancy, waited: attempt.began.elapsed() });
                }
                attempt.begin_waiting(signals);
                waiting.held(&occupancy);
                attempt.store.pause(&occupancy)
            }
            Err(trouble) => {
                if let Some(signal) = signals.stop_requested() {
                    return Ok(attempt.interrupted(signal));
                }
                if !trouble.may_pass() {
                    return attempt.fail(trouble);
                }
                if attempt.put_up_with(&trouble).passed() {
                    // A last try that time ran out on tells less than the one before it.
                    let telling = attempt.before.take().unwrap_or(trouble);
                    return attempt.fail(telling);
                }
                say::trace(format_args!("{trouble}"));
                attempt.begin_waiting(signals);
                waiting.trouble(&trouble);
                let left = attempt.put_up_with(&trouble).remaining();
                attempt.before = Some(trouble);
                attempt.backoff.next().min(left)
            }
        };
        let until = Moment::now() + waiting.until_redraw(pause);
        let limit = Limit { until, bells: signals.fds() }.no_later_than(attempt.wait_ends());
        if limit.wait_for(None).is_ok_and(|woken| woken == Woken::Bell)
            && let Some(signal) = signals.stop_requested()
        {
            return Ok(attempt.interrupted(signal));
        }
    }
}

impl Attempt<'_> {
    /// Without it a second Ctrl-C has to wait for the clean-up, which is short.
    fn begin_waiting(&self, signals: &mut Signals) {
        if let Err(error) = signals.begin_waiting() {
            say::warn(format_args!("{error:#}"));
        }
    }

    /// When the wait is over, by what was asked for.
    fn wait_ends(&self) -> Moment {
        match self.patience.wait {
            Wait::Not | Wait::ForEver => Moment::NEVER,
            Wait::Until(moment) => moment,
        }
    }

    fn out_of_patience(&self) -> bool {
        self.patience.wait == Wait::Not || self.wait_ends().passed()
    }

    /// A server that has not answered yet has this long to.
    fn first_contact(&self) -> Moment {
        (self.began + self.patience.server_timeout).min(self.wait_ends())
    }

    /// The latest moment at which the next answer is of use.
    fn answer_by(&self) -> Moment {
        if self.met && !self.out_of_patience() {
            self.wait_ends()
        } else {
            self.first_contact().max(Moment::now() + self.grace())
        }
    }

    /// At the very end of a wait there is still one quick look.
    fn grace(&self) -> Duration {
        if self.met { self.parting() } else { Duration::ZERO }
    }

    /// Until when this kind of trouble is put up with.
    fn put_up_with(&self, trouble: &Trouble) -> Moment {
        match (trouble.kind, self.patience.wait) {
            (_, Wait::Not) => self.began + self.patience.server_timeout,
            (Kind::Unreachable, _) if !self.met => self.first_contact(),
            (_, Wait::Until(_) | Wait::ForEver) => self.wait_ends(),
        }
    }

    fn too_slow(&self) -> Option<Trouble> {
        self.first_contact().passed().then(|| Trouble {
            kind: Kind::Unreachable,
            tried: format!("cannot use the lock \"{}\"", self.hold.name),
            came: "it is granted, but each answer takes more than half of its ttl".into(),
            remedy: "use a longer --ttl".into(),
        })
    }

    fn fail(&mut self, trouble: Trouble) -> Result<Waited, Trouble> {
        self.give_up();
        Err(trouble)
    }

    fn interrupted(&mut self, signal: Signal) -> Waited {
        self.give_up();
        Waited::Interrupted(signal)
    }

    /// A request whose answer was lost may have been granted: what we no longer want is given back.
    /// Where that fails too, the lease ends by itself.
    fn give_up(&mut self) {
        let until = Moment::now() + self.parting();
        let _ = self.store.release(self.hold, Limit::until(until));
    }

    fn parting(&self) -> Duration {
        Duration::from_millis(250).min(self.patience.server_timeout / 4)
    }
}

/// What came of asking until there was an answer.
pub struct Insisted<T> {
    pub answer: Result<T, Trouble>,
    /// A try before went unanswered: it may have been carried out.
    pub in_doubt: bool,
}

/// Asks once, and again while trouble may pass, for no longer than `within`.
pub fn insist<T>(within: Duration, mut ask: impl FnMut(Limit<'_>) -> Result<T, Trouble>) -> Insisted<T> {
    let give_up = Limit::until(Moment::now() + within);
    let mut backoff = Backoff::new();
    let mut before: Option<Trouble> = None;
    let mut in_doubt = false;
    loop {
        match ask(give_up) {
            Err(trouble) if trouble.may_pass() && !give_up.until.passed() => {
                in_doubt |= trouble.kind == Kind::Unreachable;
                before = Some(trouble);
            }
            // A last try that time ran out on tells less than the one before it.
            Err(trouble) if trouble.may_pass() => return Insisted { answer: Err(before.unwrap_or(trouble)), in_doubt },
            answer => return Insisted { answer, in_doubt },
        }
        // Nothing to wait for but time; it ends early only if poll(2) fails, and then we ask again.
        let _ = give_up.no_later_than(Moment::now() + backoff.next()).wait_for(None);
    }
}

/// Ever longer pauses after trouble: from 50 ms, doubled up to 1 s, and jittered by half so that
/// clients do not come back in step.
struct Backoff(Duration);

impl Backoff {
    fn new() -> Backoff {
        Backoff(Duration::from_millis(50))
    }

    fn next(&mut self) -> Duration {
        let pause = jittered(self.0);
        self.0 = (self.0 * 2).min(Duration::from_secs(1));
        pause
    }
}

/// Between half and one and a half of `about`.
pub fn jittered(about: Duration) -> Duration {
    // Without random bits there is no jitter, and no harm.
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    about / 2 + about.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_second_and_are_jittered_by_half() {
        let mut backoff = Backoff::new();
        let pauses: Vec<_> = (0..12).map(|_| backoff.next()).collect();
        assert!((25..=75).contains(&pauses[0].as_millis()), "{pauses:?}");
        assert!(pauses.iter().all(|pause| pause.as_millis() <= 1500), "{pauses:?}");
        assert!(pauses[8..].iter().all(|pause| pause.as_millis() >= 500), "{pauses:?}");
    }
}
