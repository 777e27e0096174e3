//! Asking until the lock is granted, refused, no longer wanted, or out of time.
//!
//! Decides how long each kind of trouble is put up with, and sees to it that a claim that is given
//! up leaves nothing behind. Knows nothing of how a store is asked.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::lock::{Claim, Lease, LockState, StateKind, Token, Ttl};
use crate::mailbox::{Fds, NONE};
use crate::output::progress::Waiting;
use crate::report::Refused;
use crate::retry::Backoff;
use crate::signals::Signals;
use crate::store::{AcquireMode, Acquired, QueuePlace, Store};
use crate::wait::{Limit, Woken};
use crate::{log, notify};

/// How long we are willing to wait for a lock, and for a server.
#[derive(Clone, Copy)]
pub struct WaitOptions {
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

/// A wait under way.
struct Attempt<'a> {
    store: &'a mut dyn Store,
    claim: &'a mut Claim,
    options: WaitOptions,
    mode: AcquireMode,
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
    /// The last answer, if it was that somebody else has the lock.
    held: Option<(LockState, QueuePlace)>,
    /// The trouble of the last try.
    before: Option<Error>,
}

/// Asks `store` for a lock until there is an outcome: if it is granted, then with the token that `hold` has then.
/// `enclosing` are the claims that we run under.
///
/// # Errors
/// When the truth could not be found out in time, or never will be.
pub fn for_grant(
    store: &mut dyn Store,
    claim: &mut Claim,
    ttl: Ttl,
    options: WaitOptions,
    enclosing: &[Token],
    signals: &mut Signals,
    waiting: &mut Waiting,
) -> Result<Waited, Error> {
    let mut attempt = Attempt::new(store, claim, options);
    loop {
        let limit = Limit { until: attempt.answer_by(), cancel: signals.fds() };
        match attempt.store.acquire(attempt.claim, ttl, attempt.mode, limit) {
            Ok(Acquired::Granted(lease)) if lease.until.remaining() >= ttl.get() / 2 => {
                return Ok(Waited::Granted(lease));
            }
            // Granted, but the answer took too long to be of use: ask again, and it counts from now.
            Ok(Acquired::Granted(_)) => {
                if let Some(error) = attempt.too_slow() {
                    return attempt.fail(error);
                }
            }
            // The dead in line are more than one request removes.
            Ok(Acquired::Held(state, place)) if state.kind == StateKind::Free && attempt.clears(place) => {}
            Ok(Acquired::Held(state, _)) if state.kind == StateKind::Free => {
                let error = attempt.not_granted();
                if let Some(waited) = attempt.endure(error, signals, waiting)? {
                    return Ok(waited);
                }
            }
            Ok(Acquired::Held(state, place)) => {
                attempt.met();
                let nested = enclosing.iter().any(|token| state.is_held_with(token));
                if nested || attempt.out_of_patience() {
                    return Ok(attempt.refused(state, place, nested));
                }
                attempt.begin_waiting(signals);
                // The first time we only asked; nobody has to hear of a lock that is free at once.
                if attempt.mode == AcquireMode::Once {
                    attempt.mode = AcquireMode::Queue;
                    continue;
                }
                attempt.held = Some((state.clone(), place));
                waiting.held(&state, place);
                notify::waiting(&state, place);
                if let Some(signal) = attempt.rest(signals, waiting) {
                    return Ok(attempt.interrupted(signal, signals));
                }
            }
            Err(error) => {
                attempt.in_doubt |= error.kind == ErrorKind::Unanswered;
                attempt.slow_since = None;
                if let Some(waited) = attempt.endure(error, signals, waiting)? {
                    return Ok(waited);
                }
            }
        }
    }
}

impl Attempt<'_> {
    fn new<'a>(store: &'a mut dyn Store, claim: &'a mut Claim, options: WaitOptions) -> Attempt<'a> {
        let mode = match options.queue {
            Queueing::InLine => AcquireMode::Once,
            Queueing::Not => AcquireMode::Plain,
        };
        let (began, backoff) = (Moment::now(), Backoff::new());
        Attempt {
            store,
            claim,
            options,
            mode,
            began,
            met: false,
            backoff,
            slow_since: None,
            free_behind: None,
            in_doubt: false,
            held: None,
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
    fn clears(&mut self, place: QueuePlace) -> bool {
        let before = self.free_behind.replace(place.length);
        before.is_none_or(|before| place.length < before)
    }

    fn not_granted(&self) -> Error {
        Error {
            kind: ErrorKind::Unavailable,
            action: format!("cannot acquire \"{}\"", self.claim.name),
            cause: "it is free, and still not granted".into(),
            hint: "try again soon".into(),
        }
    }

    /// Pauses after trouble that is put up with; the outcome, if a signal ends the wait.
    fn endure(&mut self, error: Error, signals: &mut Signals, waiting: &mut Waiting) -> Result<Option<Waited>, Error> {
        if let Some(signal) = signals.stop_requested() {
            return Ok(Some(self.interrupted(signal, signals)));
        }
        // A last try that time ran out on tells less than the answer before it.
        if error.is_retryable()
            && self.before.is_none()
            && self.wait_ends().passed()
            && let Some((state, place)) = self.held.take()
        {
            return Ok(Some(self.refused(state, place, false)));
        }
        self.held = None;
        let pause = match self.bear(error, waiting) {
            Ok(pause) => pause,
            Err(error) => return self.fail(error).map(Some),
        };
        self.begin_waiting(signals);
        let limit = Limit { until: Moment::now() + pause, cancel: signals.fds() };
        if limit.wait_for(&[]).is_ok_and(|woken| woken == Woken::Cancelled)
            && let Some(signal) = signals.stop_requested()
        {
            return Ok(Some(self.interrupted(signal, signals)));
        }
        Ok(None)
    }

    /// Waits until it is worth asking again; the signal that ended the wait, if one did.
    fn rest(&mut self, signals: &mut Signals, waiting: &mut Waiting) -> Option<Signal> {
        loop {
            let limit = Limit { until: waiting.redraw_at().min(self.wait_ends()), cancel: signals.fds() };
            match self.store.pause(limit) {
                Woken::Ready => return None,
                Woken::Cancelled => {
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
    fn bear(&mut self, error: Error, waiting: &mut Waiting) -> Result<Duration, Error> {
        if !error.is_retryable() {
            return Err(error);
        }
        // A "not now" is an answer too: who says it is there.
        self.met |= error.kind == ErrorKind::Unavailable && self.options.wait != Wait::Not;
        let until = self.put_up_with(&error);
        if until.passed() {
            // A last try that time ran out on tells less than the one before it.
            return Err(self.before.take().unwrap_or(error));
        }
        log::trace(format_args!("{error}"));
        waiting.error(&error);
        notify::error(&error);
        self.before = Some(error);
        Ok(self.backoff.next().min(until.remaining()))
    }

    fn refused(&mut self, state: LockState, place: QueuePlace, nested: bool) -> Waited {
        if self.mode == AcquireMode::Queue || self.in_doubt {
            self.give_up(NONE);
        }
        Waited::Busy(Refused { state, place, waited: self.began.elapsed(), nested })
    }

    /// Without it a second Ctrl-C has to wait for the clean-up, which is short.
    fn begin_waiting(&self, signals: &mut Signals) {
        if let Err(error) = signals.begin_waiting() {
            log::warn(format_args!("{error:#}"));
        }
    }

    /// When the wait is over, by what was asked for.
    fn wait_ends(&self) -> Moment {
        match self.options.wait {
            Wait::Not | Wait::ForEver => Moment::NEVER,
            Wait::Until(moment) => moment,
        }
    }

    fn out_of_patience(&self) -> bool {
        self.options.wait == Wait::Not || self.wait_ends().passed()
    }

    /// A server that has not answered yet has this long to.
    fn first_contact(&self) -> Moment {
        (self.began + self.options.server_timeout).min(self.wait_ends())
    }

    /// The latest moment at which the next answer is of use. One that is asked for just before the
    /// end of a wait is still given time to come: it decides between busy and unreachable.
    fn answer_by(&self) -> Moment {
        if self.met { self.wait_ends().max(Moment::now() + self.parting()) } else { self.first_contact() }
    }

    /// Until when this kind of trouble is put up with.
    fn put_up_with(&self, error: &Error) -> Moment {
        match (error.kind, self.options.wait) {
            (_, Wait::Not) => self.began + self.options.server_timeout,
            (ErrorKind::Unreachable | ErrorKind::Unanswered, _) if !self.met => self.first_contact(),
            (_, Wait::Until(_) | Wait::ForEver) => self.wait_ends(),
        }
    }

    /// One slow answer is bad luck; nothing but slow ones for so long is trouble.
    fn too_slow(&mut self) -> Option<Error> {
        let since = *self.slow_since.get_or_insert_with(Moment::now);
        (since.elapsed() >= self.options.server_timeout).then(|| Error {
            kind: ErrorKind::Unreachable,
            action: format!("cannot use the lock \"{}\"", self.claim.name),
            cause: "it is granted, but each answer takes more than half of its ttl".into(),
            hint: "use a longer --ttl".into(),
        })
    }

    fn fail(&mut self, error: Error) -> Result<Waited, Error> {
        self.give_up(NONE);
        Err(error)
    }

    /// A second signal cuts the clean-up short.
    fn interrupted(&mut self, signal: Signal, signals: &Signals) -> Waited {
        self.give_up(signals.fds());
        Waited::Interrupted(signal)
    }

    /// A request whose answer was lost may have been granted: what we no longer want is given back.
    /// Where that fails too, the lease ends by itself.
    fn give_up(&mut self, cancel: Fds<'_>) {
        let until = Moment::now() + self.parting();
        let _ = self.store.release(self.claim, Limit { until, cancel });
    }

    fn parting(&self) -> Duration {
        Duration::from_millis(250).min(self.options.server_timeout / 4)
    }
}
