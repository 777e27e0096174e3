//! The waiting loop: requests the lock until it is granted or refused, the user gives up, or time runs out.
//!
//! Decides how long to retry after each kind of error, and releases a claim that it gives up, so that nothing is left
//! behind. Knows nothing of how a store is asked.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::clock::{Moment, wall};
use crate::error::{Error, ErrorKind};
use crate::lock::{
    Asker, Claim, HolderId, Lease, Lifetime, LockState, Sharing, StateKind, Supersedes, Told, Ttl, words,
};
use crate::output::progress::Waiting;
use crate::report::{Refusal, Refused};
use crate::retry::Backoff;
use crate::signals::Signals;
use crate::store::{AcquireMode, Acquired, Asking, LockStatus, Look, QueuePlace, Store};
use crate::wait::{Limit, Woken};
use crate::{log, notify};

/// Time-out of asking a holder to give up: meanwhile a waiter could not claim the lock.
const ASKING: Duration = Duration::from_millis(250);

/// Time-out of taking such a request back, once a signal has ended the wait: the rest of a second is for the release.
const LEAVING: Duration = Duration::from_millis(700);

/// For how long a waiter prepares nothing once the store has woken it and then not granted the lock: whoever wakes it
/// without end costs it no more than its requests.
const UNPREPARED: Duration = Duration::from_secs(1);

/// Steps of a first request that each have the server timeout of their own, by which the store bounds them: to connect,
/// to get the lock, and with several servers to raise its fence. Each of several locks has as many: to get it, to wait
/// until it is on disk, and to confirm it when the last one is granted.
const STEPS: u32 = 3;

/// For how long to want a lock, and how long to wait for it, and for a server.
#[derive(Clone, Copy)]
pub struct WaitOptions {
    pub lifetime: Lifetime,
    pub wait: Wait,
    pub queue: Queueing,
    /// Time-out for the first contact with the server.
    pub server_timeout: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    Not,
    AtMost(Duration),
    ForEver,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Queueing {
    InLine,
    /// Compete with plain `SET NX` clients as an equal.
    Not,
}

pub enum Waited {
    /// For this ttl.
    Granted(Lease, Ttl),
    Busy(Box<Refused>),
    /// Of several locks, one was lost while another was waited for.
    Lost(LockState),
    Interrupted(Signal),
}

/// What a requester prepares while the store decides, so that a grant finds it done.
pub trait Preparation {
    /// Begins; it takes a moment, and waits for nothing. May be called again.
    fn begin(&self);
    /// The lock was not granted: leaves nothing.
    fn undo(&self);
}

/// The requester prepares nothing.
pub struct Unprepared;

impl Preparation for Unprepared {
    fn begin(&self) {}
    fn undo(&self) {}
}

/// A wait in progress.
struct Attempt<'a> {
    store: &'a mut dyn Store,
    claim: &'a mut Claim,
    options: WaitOptions,
    mode: AcquireMode,
    began: Moment,
    /// Whether the server has ever replied: nxlock waits for one that goes away later.
    met: bool,
    backoff: Backoff,
    /// Since when every reply was a grant that came too late to be of use.
    slow_since: Option<Moment>,
    /// Length of the queue when the lock was last free and not granted.
    free_behind: Option<usize>,
    /// A request was not answered: it may still be granted.
    in_doubt: bool,
    /// The last reply, if it was that the lock is not granted, and why.
    held: Option<(LockState, QueuePlace, Refusal)>,
    /// The request to a holder to give up, and whether it is known to have arrived.
    asked: Option<(Asker, bool)>,
    /// The holder of which was reported that nobody is left to hear a request.
    orphaned: Option<HolderId>,
    /// The error of the last attempt.
    before: Option<Error>,
    /// The next request is the first, or the store has woken this waiter for it: the requester prepares for a grant. One
    /// that does not wait prepares nothing, so that a refusal costs only the request.
    may_be_granted: bool,
    /// When the store last woke this waiter and then did not grant the lock.
    refused_at: Option<Moment>,
}

/// Requests a lock from `store` until there is an outcome. On a grant, `claim` has the token that was granted.
///
/// # Errors
/// If nxlock could not determine in time who has the lock, or never can.
pub fn for_grant(
    store: &mut dyn Store,
    claim: &mut Claim,
    options: WaitOptions,
    signals: &mut Signals,
    waiting: &mut Waiting,
    preparation: &dyn Preparation,
) -> Result<Waited, Error> {
    let mut attempt = Attempt::new(store, claim, options);
    let prepare = || preparation.begin();
    loop {
        let Some(ttl) = options.lifetime.ttl(wall()) else { return attempt.comes_too_late() };
        let may_be_granted = std::mem::take(&mut attempt.may_be_granted);
        let meanwhile = may_be_granted.then_some(&prepare as &dyn Fn());
        let limit = Limit { until: attempt.answer_by(), cancel: &signals.fds(), meanwhile };
        let acquired = attempt.store.acquire(attempt.claim, ttl, attempt.mode, limit);
        if !matches!(acquired, Ok(Acquired::Granted(_))) {
            preparation.undo();
            if may_be_granted && attempt.mode == AcquireMode::Queue {
                attempt.refused_at = Some(Moment::now());
            }
        }
        match acquired {
            Ok(Acquired::Granted(lease)) if lease.until.remaining() >= ttl.get() / 2 => {
                // The lease runs, and the holder that was asked has gone.
                attempt.ask_no_more(Limit::until(Moment::now() + attempt.options.server_timeout.min(ASKING)));
                return Ok(Waited::Granted(lease, ttl));
            }
            // Granted, but the reply took too long to be of use: ask again for a full lease.
            Ok(Acquired::Granted(_) | Acquired::TooLate) => {
                if let Some(error) = attempt.too_slow() {
                    return attempt.fail(error);
                }
            }
            // There are more dead waiters than one request removes.
            Ok(Acquired::Held(state, place)) if state.kind == StateKind::Free && attempt.clears(place) => {}
            Ok(Acquired::Held(state, _)) if state.kind == StateKind::Free => {
                let error = attempt.not_granted(&state);
                if let Some(waited) = attempt.pause_before_retry(error, signals, waiting)? {
                    return Ok(waited);
                }
            }
            Ok(Acquired::Held(state, place)) => {
                if let Some(waited) = attempt.wait(state, place, Refusal::Held, signals, waiting) {
                    return Ok(waited);
                }
            }
            Ok(Acquired::Nested(state, place)) => return Ok(attempt.refused(state, place, Refusal::Nested)),
            Ok(Acquired::Undecided(state, error)) => {
                let (place, why) = (QueuePlace::default(), Refusal::Undecided(error));
                if let Some(waited) = attempt.wait(state, place, why, signals, waiting) {
                    return Ok(waited);
                }
            }
            Ok(Acquired::Superseded(by, state, place)) => return Ok(attempt.superseded(by, state, place)),
            Ok(Acquired::Done(run, state, place)) => return Ok(attempt.refused(state, place, Refusal::Done(run))),
            Ok(Acquired::Lost(state)) => {
                attempt.give_up(&[]);
                return Ok(Waited::Lost(state));
            }
            Ok(Acquired::Asked(by, name)) => {
                notify::asked(&by, Some(&name), "nothing is started");
                attempt.give_up(&[]);
                // As its command would, if it ran.
                return Ok(Waited::Interrupted(Signal::SIGTERM));
            }
            Err(error) => {
                attempt.in_doubt |= error.kind == ErrorKind::Unanswered;
                attempt.slow_since = None;
                if let Some(waited) = attempt.pause_before_retry(error, signals, waiting)? {
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
            asked: None,
            orphaned: None,
            before: None,
            may_be_granted: options.wait != Wait::Not,
            refused_at: None,
        }
    }

    /// Waits until it is worth asking again for a lock that is not granted; returns the outcome if the wait is over.
    fn wait(
        &mut self,
        state: LockState,
        place: QueuePlace,
        why: Refusal,
        signals: &mut Signals,
        waiting: &mut Waiting,
    ) -> Option<Waited> {
        // A server that is late may tell whose it is: an answer that is not known is no answer yet.
        let is_silent = state.kind == StateKind::Unknown && self.options.wait == Wait::Not;
        if is_silent && !self.gives_up_at().passed() {
            self.held = Some((state, place, why));
            self.begin_waiting(signals);
            return self.rest(signals, waiting).map(|signal| self.interrupted(signal, signals));
        }
        self.met();
        if self.out_of_patience() {
            return Some(self.refused(state, place, why));
        }
        self.begin_waiting(signals);
        // The first request only asks: a lock that is free at once needs no queue and no report.
        if self.mode == AcquireMode::Once {
            self.mode = AcquireMode::Queue;
            self.held = Some((state, place, why));
            return None;
        }
        self.ask_to_give_up(&state);
        waiting.held(&state, place);
        notify::waiting(&state, place);
        self.held = Some((state, place, why));
        self.rest(signals, waiting).map(|signal| self.interrupted(signal, signals))
    }

    fn met(&mut self) {
        self.met = true;
        self.before = None;
        self.backoff = Backoff::new();
        (self.slow_since, self.free_behind) = (None, None);
    }

    /// Returns whether requests shorten the queue for a free lock.
    fn clears(&mut self, place: QueuePlace) -> bool {
        let before = self.free_behind.replace(place.length);
        before.is_none_or(|before| place.length < before)
    }

    fn not_granted(&self, state: &LockState) -> Error {
        Error {
            kind: ErrorKind::Unavailable,
            action: format!("cannot acquire \"{}\"", self.claim.part_of(state).name),
            cause: "it is free, and still not granted".into(),
            hint: "try again soon".into(),
        }
    }

    /// Pauses before a retry; returns the outcome if the wait is over.
    fn pause_before_retry(
        &mut self,
        error: Error,
        signals: &mut Signals,
        waiting: &mut Waiting,
    ) -> Result<Option<Waited>, Error> {
        if let Some(signal) = signals.stop_requested() {
            return Ok(Some(self.interrupted(signal, signals)));
        }
        // A last attempt that timed out tells less than the reply before it.
        if error.is_retryable()
            && self.before.is_none()
            && self.gives_up_at().passed()
            && let Some((state, place, why)) = self.held.take()
        {
            return Ok(Some(self.refused(state, place, why)));
        }
        self.held = None;
        let pause = match self.retry_in(error, waiting) {
            Ok(pause) => pause,
            Err(error) => return self.fail(error).map(Some),
        };
        self.begin_waiting(signals);
        // Of several locks, those that are held are renewed meanwhile, unless that is what has failed.
        let renews_at = self.store.watch().renews_at.filter(|due| !due.passed()).unwrap_or(Moment::NEVER);
        let limit = Limit { until: renews_at.min(Moment::now() + pause), cancel: &signals.fds(), ..Limit::NONE };
        if limit.wait_for(&[]).is_ok_and(|woken| woken == Woken::Cancelled)
            && let Some(signal) = signals.stop_requested()
        {
            return Ok(Some(self.interrupted(signal, signals)));
        }
        Ok(None)
    }

    /// Waits until it is worth asking again; returns the signal that ended the wait, if one did.
    fn rest(&mut self, signals: &mut Signals, waiting: &mut Waiting) -> Option<Signal> {
        loop {
            let wake_at = waiting.redraw_at().min(waiting.asks_at()).min(self.gives_up_at());
            let limit = Limit { until: wake_at, cancel: &signals.fds(), ..Limit::NONE };
            match self.store.pause(limit) {
                Woken::Ready => {
                    let has_rested = self.refused_at.is_none_or(|last| last.elapsed() >= UNPREPARED);
                    self.may_be_granted = has_rested && !self.is_woken_with_others() && self.store.watch().was_called;
                    return None;
                }
                Woken::Cancelled => {
                    if let Some(signal) = signals.stop_requested() {
                        return Some(signal);
                    }
                }
                Woken::TimeUp if self.gives_up_at().passed() || waiting.asks_at().passed() => return None,
                Woken::TimeUp => waiting.redraw(),
            }
        }
    }

    /// Returns how long to pause before a retry, or the error to fail with.
    fn retry_in(&mut self, error: Error, waiting: &mut Waiting) -> Result<Duration, Error> {
        if !error.is_retryable() {
            return Err(error);
        }
        // A "not now" is a reply too: the server is there.
        self.met |= error.kind == ErrorKind::Unavailable && self.options.wait != Wait::Not;
        let until = self.retries_until(&error);
        if until.passed() {
            // A last attempt that timed out tells less than the error before it.
            return Err(self.before.take().unwrap_or(error));
        }
        log::trace(format_args!("{error}"));
        waiting.error(&error);
        notify::error(&error);
        self.before = Some(error);
        Ok(self.backoff.next().min(until.remaining()))
    }

    /// Asks a holder to give up that gives way to a newer claim such as this one.
    fn ask_to_give_up(&mut self, state: &LockState) {
        let token = &self.claim.part_of(state).token;
        let is_newer = token.told().is_some_and(|by| by.terms.supersedes == Supersedes::Running);
        let Some(holder) = state.holder.as_ref().filter(|holder| is_newer && holder.terms.gives_way()) else { return };
        if holder.orphaned.is_some() {
            if self.orphaned.replace(holder.id.clone()).as_ref() != Some(&holder.id) {
                log::note(format_args!(
                    "{}, cannot be asked to give up \"{}\": {}",
                    words::who(holder),
                    self.claim.name,
                    words::ORPHANED
                ));
            }
            return;
        }
        let asked = self.asked.take().filter(|(asker, _)| asker.of == holder.id);
        // Not the claim's own token, which proves the claim.
        let new = || self.claim.token.alias().map(|by| (Asker { of: holder.id.clone(), by }, false));
        let (asker, mut has_arrived) = match asked.map_or_else(new, Ok) {
            Ok(asked) => asked,
            Err(error) => return log::trace(format_args!("{error:#}")),
        };
        let limit = Limit::until(Moment::now() + self.options.server_timeout.min(ASKING));
        // Again with each heartbeat: the server may have lost the request.
        match self.store.ask(&self.claim.name, &asker, Asking::ToGiveUp, limit) {
            Ok(()) if !std::mem::replace(&mut has_arrived, true) => {
                log::note(format_args!("asked {}, to give up \"{}\"", words::who(holder), self.claim.name));
            }
            Ok(()) => {}
            Err(error) => log::trace(format_args!("{error}")),
        }
        self.asked = Some((asker, has_arrived));
    }

    /// Takes back the request to a holder, if it has not been found yet.
    fn ask_no_more(&mut self, limit: Limit<'_>) {
        if let Some((asker, _)) = self.asked.take()
            && let Err(error) = self.store.ask(&self.claim.name, &asker, Asking::NoMore, limit)
        {
            log::trace(format_args!("{error}"));
        }
    }

    /// Adds the holders of a shared lock, for people: a refusal tells only how many there are. They stay unknown if the
    /// store does not answer soon.
    fn with_holders(&mut self, state: LockState) -> LockState {
        let are_known = state.shares.as_ref().is_some_and(|shares| !shares.held.is_empty());
        if are_known || state.kind != StateKind::Shared {
            return state;
        }
        let limit = Limit::until(Moment::now() + self.parting());
        match self.store.look(&self.claim.part_of(&state).name, Look::Holders, limit) {
            Ok(LockStatus { state: seen, .. }) if seen.kind == StateKind::Shared => {
                LockState { name: state.name, ..seen }
            }
            _ => state,
        }
    }

    /// The instant has passed until which the lock was wanted.
    fn comes_too_late(&mut self) -> Result<Waited, Error> {
        match (self.held.take(), self.before.take()) {
            (Some((state, place, why)), _) => Ok(self.refused(state, place, why)),
            (None, Some(error)) => self.fail(error),
            (None, None) => self.fail(Error {
                kind: ErrorKind::Usage,
                action: format!("cannot hold \"{}\" until then", self.claim.name),
                cause: "that time has passed".into(),
                hint: "give a later one".into(),
            }),
        }
    }

    fn refused(&mut self, state: LockState, place: QueuePlace, why: Refusal) -> Waited {
        let state = self.with_holders(state);
        if self.mode == AcquireMode::Queue || self.in_doubt || self.slow_since.is_some() || self.has_several() {
            self.give_up(&[]);
        }
        self.busy(state, place, why)
    }

    fn superseded(&mut self, by: Box<Told>, state: LockState, place: QueuePlace) -> Waited {
        // The newer one may leave the holder alone; if not, its request has replaced this one.
        self.ask_no_more(Limit::until(Moment::now() + self.options.server_timeout));
        if self.has_several() {
            self.give_up(&[]);
        }
        self.busy(state, place, Refusal::Superseded(by))
    }

    fn busy(&self, state: LockState, place: QueuePlace, why: Refusal) -> Waited {
        let (waited, sharing) = (self.began.elapsed(), self.claim.part_of(&state).token.sharing());
        Waited::Busy(Box::new(Refused { state, place, waited, sharing, why }))
    }

    /// If this fails, a second Ctrl-C has to wait for the clean-up, which is short.
    fn begin_waiting(&self, signals: &mut Signals) {
        if let Err(error) = signals.begin_waiting() {
            log::warn(format_args!("{error:#}"));
        }
    }

    /// Returns the deadline that the user set for the wait. The instant until which the lock is wanted is one too.
    fn wait_ends(&self) -> Moment {
        let in_time = self.options.lifetime.open_for(wall()).map_or(Moment::NEVER, |left| Moment::now() + left);
        match self.options.wait {
            Wait::Not | Wait::ForEver => in_time,
            Wait::AtMost(wait) => in_time.min(self.began + wait),
        }
    }

    /// Returns until when to ask for an answer: without a wait for the lock, as long as for a server.
    fn gives_up_at(&self) -> Moment {
        if self.options.wait == Wait::Not { self.first_contact() } else { self.wait_ends() }
    }

    fn out_of_patience(&self) -> bool {
        self.options.wait == Wait::Not || self.wait_ends().passed()
    }

    /// Returns until when to try to reach the server for the first time.
    fn first_contact(&self) -> Moment {
        (self.began + self.options.server_timeout).min(self.wait_ends())
    }

    /// Returns the deadline for the next reply. A request sent just before the end of a wait still gets time for its
    /// reply: it decides between busy and unreachable.
    fn answer_by(&self) -> Moment {
        match self.met {
            true => self.wait_ends().max(Moment::now() + self.parting()),
            false => (self.began + self.options.server_timeout * STEPS * self.locks()).min(self.wait_ends()),
        }
    }

    /// Returns until when to retry after this kind of error.
    fn retries_until(&self, error: &Error) -> Moment {
        match (error.kind, self.options.wait) {
            (_, Wait::Not) => self.began + self.options.server_timeout,
            (ErrorKind::Unreachable | ErrorKind::Unanswered, _) if !self.met => self.first_contact(),
            (_, Wait::AtMost(_) | Wait::ForEver) => self.wait_ends(),
        }
    }

    /// Returns an error if all replies have been slow for too long; a single one is bad luck.
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
        self.give_up(&[]);
        Err(error)
    }

    /// Cleans up; a second signal cuts that short.
    fn interrupted(&mut self, signal: Signal, signals: &Signals) -> Waited {
        self.give_up(&signals.fds());
        Waited::Interrupted(signal)
    }

    /// Releases the claim: a request whose reply was lost may have been granted. If the release fails too, the lease
    /// expires by itself.
    fn give_up(&mut self, cancel: &[Option<BorrowedFd<'_>>]) {
        let limit = if cancel.is_empty() { self.options.server_timeout } else { LEAVING };
        self.ask_no_more(Limit {
            until: Moment::now() + limit.min(self.options.server_timeout),
            cancel,
            ..Limit::NONE
        });
        let until = Moment::now() + self.parting();
        let _ = self.store.release(self.claim, Limit { until, cancel, ..Limit::NONE });
    }

    /// Returns whether a release wakes many like this waiter at once: what all of them made ready at that moment would
    /// hold up the first.
    fn is_woken_with_others(&self) -> bool {
        self.claim.token.sharing() == Sharing::Shared
    }

    fn locks(&self) -> u32 {
        u32::try_from(self.claim.parts().count()).unwrap_or(u32::MAX)
    }

    /// Returns whether locks may be held while another is not.
    fn has_several(&self) -> bool {
        !self.claim.also.is_empty()
    }

    /// Returns how long to wait for the last replies; of several locks, each has one.
    fn parting(&self) -> Duration {
        let parting = if self.has_several() { LEAVING } else { Duration::from_millis(250) };
        parting.min(self.options.server_timeout / 4)
    }
}
