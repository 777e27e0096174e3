//! Asking until the lock is granted, refused, no longer wanted, or out of time.
//!
//! Decides how long each kind of trouble is put up with, and sees to it that a claim that is given
//! up leaves nothing behind. Knows nothing of how a store is asked.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::clock::Moment;
use crate::events;
use crate::inbox::{Fds, NONE};
use crate::limit::{Limit, Woken};
use crate::lock::{Hold, Lease, Occupancy, State, Token, Ttl};
use crate::say::{self, Waiting};
use crate::signals::Signals;
use crate::store::{Acquired, Kind, Manner, Place, Released, Store, Trouble};

/// How long we are willing to wait for a lock, and for a server.
#[derive(Clone, Copy)]
pub struct Patience {
    pub wait: Wait,
    pub queue: Queueing,
    /// Bound on finding out anything at first contact.
    pub server_timeout: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    Not,
    Until(Moment),
    ForEver,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Queueing {
    InLine,
    /// On an equal footing with plain `SET NX` clients.
    Not,
}

pub enum Waited {
    Granted(Lease),
    Busy(Refused),
    Interrupted(Signal),
}

/// Somebody else has the lock, and we do not wait any longer.
pub struct Refused {
    pub occupancy: Occupancy,
    pub place: Place,
    pub waited: Duration,
    /// The holder is a run that we are a part of.
    pub nested: bool,
}

/// A wait under way.
struct Attempt<'a> {
    store: &'a mut dyn Store,
    hold: &'a mut Hold,
    patience: Patience,
    manner: Manner,
    began: Moment,
    /// Whether the server has ever answered: one that goes away later is waited for.
    met: bool,
    backoff: Backoff,
    /// Since when every answer was a grant that came too late to be of use.
    slow_since: Option<Moment>,
    /// How many were in line when the lock was last free and not granted.
    free_behind: Option<usize>,
    /// A request was not answered: it may still be granted.
    in_doubt: bool,
    /// The trouble of the last try.
    before: Option<Trouble>,
}

/// Asks `store` for a lock until there is an outcome: if it is granted, then with the token that `hold` has then.
/// `enclosing` are the claims that we run under.
///
/// # Errors
/// When the truth could not be found out in time, or never will be.
pub fn for_grant(
    store: &mut dyn Store,
    hold: &mut Hold,
    ttl: Ttl,
    patience: Patience,
    enclosing: &[Token],
    signals: &mut Signals,
    waiting: &mut Waiting,
) -> Result<Waited, Trouble> {
    let mut attempt = Attempt::new(store, hold, patience);
    loop {
        let limit = Limit { until: attempt.answer_by(), bells: signals.fds() };
        match attempt.store.acquire(attempt.hold, ttl, attempt.manner, limit) {
            Ok(Acquired::Granted(lease)) if lease.until.remaining() >= ttl.get() / 2 => {
                return Ok(Waited::Granted(lease));
            }
            // Granted, but the answer took too long to be of use: ask again, and it counts from now.
            Ok(Acquired::Granted(_)) => {
                if let Some(trouble) = attempt.too_slow() {
                    return attempt.fail(trouble);
                }
            }
            // The dead in line are more than one request removes.
            Ok(Acquired::Held(occupancy, place)) if occupancy.state == State::Free && attempt.clears(place) => {}
            Ok(Acquired::Held(occupancy, _)) if occupancy.state == State::Free => {
                let trouble = attempt.not_granted();
                if let Some(waited) = attempt.endure(trouble, signals, waiting)? {
                    return Ok(waited);
                }
            }
            Ok(Acquired::Held(occupancy, place)) => {
                attempt.met();
                let nested = enclosing.iter().any(|token| occupancy.is_held_with(token));
                if nested || attempt.out_of_patience() {
                    return Ok(attempt.refused(occupancy, place, nested));
                }
                attempt.begin_waiting(signals);
                // The first time we only asked; nobody has to hear of a lock that is free at once.
                if attempt.manner == Manner::Once {
                    attempt.manner = Manner::Queue;
                    continue;
                }
                waiting.held(&occupancy, place);
                events::waiting(&occupancy, place);
                if let Some(signal) = attempt.rest(signals, waiting) {
                    return Ok(attempt.interrupted(signal, signals));
                }
            }
            Err(trouble) => {
                attempt.in_doubt |= trouble.kind == Kind::Unanswered;
                attempt.slow_since = None;
                if let Some(waited) = attempt.endure(trouble, signals, waiting)? {
                    return Ok(waited);
                }
            }
        }
    }
}

impl Attempt<'_> {
    fn new<'a>(store: &'a mut dyn Store, hold: &'a mut Hold, patience: Patience) -> Attempt<'a> {
        let manner = match patience.queue {
            Queueing::InLine => Manner::Once,
            Queueing::Not => Manner::Plain,
        };
        let (began, backoff) = (Moment::now(), Backoff::new());
        Attempt {
            store,
            hold,
            patience,
            manner,
            began,
            met: false,
            backoff,
            slow_since: None,
            free_behind: None,
            in_doubt: false,
            before: None,
        }
    }

    fn met(&mut self) {
        self.met = true;
        self.before = None;
        self.backoff = Backoff::new();
        (self.slow_since, self.free_behind) = (None, None);
    }

    /// Whether the line in front of a free lock gets shorter by our asking.
    fn clears(&mut self, place: Place) -> bool {
        let before = self.free_behind.replace(place.length);
        before.is_none_or(|before| place.length < before)
    }

    fn not_granted(&self) -> Trouble {
        Trouble {
            kind: Kind::Unwilling,
            tried: format!("cannot acquire \"{}\"", self.hold.name),
            came: "it is free, and still not granted".into(),
            remedy: "try again soon".into(),
        }
    }

    /// Pauses after trouble that is put up with; the outcome, if a signal ends the wait.
    fn endure(
        &mut self,
        trouble: Trouble,
        signals: &mut Signals,
        waiting: &mut Waiting,
    ) -> Result<Option<Waited>, Trouble> {
        if let Some(signal) = signals.stop_requested() {
            return Ok(Some(self.interrupted(signal, signals)));
        }
        let pause = match self.bear(trouble, waiting) {
            Ok(pause) => pause,
            Err(trouble) => return self.fail(trouble).map(Some),
        };
        self.begin_waiting(signals);
        let limit = Limit { until: Moment::now() + pause, bells: signals.fds() };
        if limit.wait_for(&[]).is_ok_and(|woken| woken == Woken::Bell)
            && let Some(signal) = signals.stop_requested()
        {
            return Ok(Some(self.interrupted(signal, signals)));
        }
        Ok(None)
    }

    /// Waits until it is worth asking again; the signal that ended the wait, if one did.
    fn rest(&mut self, signals: &mut Signals, waiting: &mut Waiting) -> Option<Signal> {
        loop {
            let limit = Limit { until: waiting.redraw_at().min(self.wait_ends()), bells: signals.fds() };
            match self.store.pause(limit) {
                Woken::Ready => return None,
                Woken::Bell => {
                    if let Some(signal) = signals.stop_requested() {
                        return Some(signal);
                    }
                }
                Woken::TimeUp if self.wait_ends().passed() => return None,
                Woken::TimeUp => waiting.redraw(),
            }
        }
    }

    /// Puts up with trouble for a while: how long to pause, or the trouble to fail with.
    fn bear(&mut self, trouble: Trouble, waiting: &mut Waiting) -> Result<Duration, Trouble> {
        if !trouble.may_pass() {
            return Err(trouble);
        }
        // A "not now" is an answer too: who says it is there.
        self.met |= trouble.kind == Kind::Unwilling && self.patience.wait != Wait::Not;
        let until = self.put_up_with(&trouble);
        if until.passed() {
            // A last try that time ran out on tells less than the one before it.
            return Err(self.before.take().unwrap_or(trouble));
        }
        say::trace(format_args!("{trouble}"));
        waiting.trouble(&trouble);
        events::trouble(&trouble);
        self.before = Some(trouble);
        Ok(self.backoff.next().min(until.remaining()))
    }

    fn refused(&mut self, occupancy: Occupancy, place: Place, nested: bool) -> Waited {
        if self.manner == Manner::Queue || self.in_doubt {
            self.give_up(NONE);
        }
        Waited::Busy(Refused { occupancy, place, waited: self.began.elapsed(), nested })
    }

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

    /// The latest moment at which the next answer is of use. One that is asked for just before the
    /// end of a wait is still given time to come: it decides between busy and unreachable.
    fn answer_by(&self) -> Moment {
        if self.met { self.wait_ends().max(Moment::now() + self.parting()) } else { self.first_contact() }
    }

    /// Until when this kind of trouble is put up with.
    fn put_up_with(&self, trouble: &Trouble) -> Moment {
        match (trouble.kind, self.patience.wait) {
            (_, Wait::Not) => self.began + self.patience.server_timeout,
            (Kind::Unreachable | Kind::Unanswered, _) if !self.met => self.first_contact(),
            (_, Wait::Until(_) | Wait::ForEver) => self.wait_ends(),
        }
    }

    /// One slow answer is bad luck; nothing but slow ones for so long is trouble.
    fn too_slow(&mut self) -> Option<Trouble> {
        let since = *self.slow_since.get_or_insert_with(Moment::now);
        (since.elapsed() >= self.patience.server_timeout).then(|| Trouble {
            kind: Kind::Unreachable,
            tried: format!("cannot use the lock \"{}\"", self.hold.name),
            came: "it is granted, but each answer takes more than half of its ttl".into(),
            remedy: "use a longer --ttl".into(),
        })
    }

    fn fail(&mut self, trouble: Trouble) -> Result<Waited, Trouble> {
        self.give_up(NONE);
        Err(trouble)
    }

    /// A second signal cuts the clean-up short.
    fn interrupted(&mut self, signal: Signal, signals: &Signals) -> Waited {
        self.give_up(signals.fds());
        Waited::Interrupted(signal)
    }

    /// A request whose answer was lost may have been granted: what we no longer want is given back.
    /// Where that fails too, the lease ends by itself.
    fn give_up(&mut self, bells: Fds<'_>) {
        let until = Moment::now() + self.parting();
        let _ = self.store.release(self.hold, Limit { until, bells });
    }

    fn parting(&self) -> Duration {
        Duration::from_millis(250).min(self.patience.server_timeout / 4)
    }
}

/// What came of asking for a lock to be released.
pub enum GivenBack {
    Done,
    /// The lock is not ours, and an earlier request, whose reply was lost, may have released it.
    InDoubt,
    NotYours(Occupancy),
}

/// Releases a lock: asks as [`insist`] does. `held_until` is how long the lock is known to be ours if nobody
/// takes it away; a caller that does not know gives [`Moment::NEVER`].
///
/// # Errors
/// The trouble of the last try.
pub fn give_back(
    within: Duration,
    held_until: Moment,
    ask: impl FnMut(Limit<'_>) -> Result<Released, Trouble>,
) -> Result<GivenBack, Trouble> {
    let (answer, in_doubt) = ask_again(within, ask);
    Ok(match answer? {
        Released::Done => GivenBack::Done,
        Released::NotYours(_) if in_doubt && !held_until.passed() => GivenBack::InDoubt,
        Released::NotYours(occupancy) => GivenBack::NotYours(occupancy),
    })
}

/// Asks once, and again while trouble may pass, for no longer than `within`.
///
/// # Errors
/// The trouble of the last try.
pub fn insist<T>(within: Duration, ask: impl FnMut(Limit<'_>) -> Result<T, Trouble>) -> Result<T, Trouble> {
    ask_again(within, ask).0
}

/// Also tells whether a request before the last one may have been carried out.
fn ask_again<T>(within: Duration, mut ask: impl FnMut(Limit<'_>) -> Result<T, Trouble>) -> (Result<T, Trouble>, bool) {
    let give_up = Limit::until(Moment::now() + within);
    let mut backoff = Backoff::new();
    let mut before: Option<Trouble> = None;
    let mut in_doubt = false;
    loop {
        match ask(give_up) {
            Err(trouble) if trouble.may_pass() && !give_up.until.passed() => {
                say::trace(format_args!("{trouble}"));
                in_doubt |= trouble.kind == Kind::Unanswered;
                before = Some(trouble);
            }
            // A last try that time ran out on tells less than the one before it.
            Err(trouble) if trouble.may_pass() => return (Err(before.unwrap_or(trouble)), in_doubt),
            answer => return (answer, in_doubt),
        }
        // Nothing to wait for but time; it ends early only if poll(2) fails, and then we ask again.
        let _ = give_up.no_later_than(Moment::now() + backoff.next()).wait_for(&[]);
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
