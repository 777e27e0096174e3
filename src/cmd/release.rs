//! Gives a lock back, or asks or forces a known holder to.

use std::time::{Duration, SystemTime};

use super::{Wants, left_claim, lock_of, named, no_token, open, open_for, token};
use crate::asking::Outcome;
use crate::cli::{GlobalArgs, Release};
use crate::clock::{Moment, wall};
use crate::error::{Error, ErrorKind};
use crate::lock::{Asker, Holder, HolderId, LockName, LockState, Owner, StateKind, Token, words};
use crate::report::{Answer, Asked, NotYours, Released, Report, Wanted};
use crate::retry::{self, Backoff, ReleaseAnswer};
use crate::store::{Asking, LockStatus, Look, Store};
use crate::wait::Limit;
use crate::{asking, keeper, log};

pub fn release(global: &GlobalArgs, asked: &Release) -> anyhow::Result<Report> {
    if let Some(id) = &asked.ask {
        return ask(global, asked, id);
    }
    let (lock, prefix) = named(global, &asked.lock)?;
    let timeout = global.server_timeout;
    let never = Moment::NEVER;
    // The store and the ID of a claim that the caller has, or had.
    let mut own = None;
    let (wanted, given_back) = match (&asked.break_id, &asked.token) {
        (Some(id), _) => {
            let mut store = open(global, prefix.clone(), Wants::default())?;
            let breaker = asker(asked, id)?;
            let taken = retry::release(timeout, never, None, |limit| store.break_lock(&lock.name, &breaker, limit));
            (Wanted::Break, taken)
        }
        (None, Some(given)) => {
            let claim = left_claim(&lock, token(given)?);
            let mut store = open_for(global, &prefix, &claim)?;
            if keeper::ask_to_leave(&lock.key, &claim.token, timeout) {
                log::trace(format_args!("its keeper leaves \"{}\" to us", lock.name));
            }
            let released = retry::release(timeout, never, None, |limit| store.release(&claim, limit));
            own = claim.token.id().map(|id| (store, id));
            (Wanted::Release, released)
        }
        (None, None) => {
            let otherwise = "; for a lock of somebody else, write --ask ID or, as the last resort, --break ID, with the ID \
                             that `nxlock status NAME` shows";
            return Err(no_token("release", otherwise).into());
        }
    };
    let broken = wanted == Wanted::Break;
    let given_back = given_back.map_err(|error| match error.kind {
        ErrorKind::Unanswered => {
            let done = if broken { "broken" } else { "released" };
            let cause = format!("{}; it may have been {done} all the same", error.cause);
            Error { cause, ..error }
        }
        _ => error,
    });
    Ok(match given_back? {
        ReleaseAnswer::Done => Report::Released(Released { lock, broken }),
        ReleaseAnswer::InDoubt => {
            log::warn(format_args!(
                "an answer was lost, so \"{}\" may have been released only now, or have ended before",
                lock.name
            ));
            Report::Released(Released { lock, broken })
        }
        ReleaseAnswer::NotYours(state) => {
            let own = own.filter(|_| state.kind == StateKind::Free);
            let ended = own.and_then(|(mut store, id)| ended(&mut *store, &lock.name, &id, timeout));
            let lock = lock_of(&state, lock, &prefix);
            Report::NotYours(NotYours { lock, wanted, state: *state, ended })
        }
    })
}

/// Returns when the recorded run of the holder that was known as `id` ended, if the record tells.
fn ended(store: &mut dyn Store, name: &LockName, id: &HolderId, within: Duration) -> Option<SystemTime> {
    let recorded = store.history(name, Limit::until(Moment::now() + within)).ok()?;
    recorded.over.iter().find(|run| run.by.id == *id)?.ended
}

/// Returns who wants the lock that this holder has, and why.
fn asker(asked: &Release, id: &HolderId) -> anyhow::Result<Asker> {
    let by = Token::mint(&Owner::this_process_as(asked.known_as.as_ref()), asked.reason.as_deref(), wall())?;
    Ok(Asker { of: id.clone(), by })
}

/// How often a request is repeated while nxlock waits: the server may have lost it.
const REPEATED: Duration = Duration::from_secs(20);

/// Asks a holder to give up and, if the user wants to wait, waits until it has.
fn ask(global: &GlobalArgs, asked: &Release, id: &HolderId) -> anyhow::Result<Report> {
    let (lock, prefix) = named(global, &asked.lock)?;
    let mut store = open(global, prefix, Wants { asks: true, ..Wants::default() })?;
    let timeout = global.server_timeout;
    let began = Moment::now();
    let asker = asker(asked, id)?;
    // A request that may not have arrived is repeated at once.
    let mut repeat_at = Moment::now();
    let (holder, answer) = match asking::ask(&mut *store, &lock.name, &asker, timeout)? {
        Outcome::NotTheHolder(state) => {
            return Ok(Report::NotYours(NotYours { lock, wanted: Wanted::Ask, state, ended: None }));
        }
        Outcome::Refuses(holder) => (holder, Answer::Refuses),
        Outcome::Yes(holder) => {
            repeat_at = Moment::now() + REPEATED;
            (holder, Answer::Asked)
        }
        Outcome::InDoubt(holder, error) if asked.wait.is_some() => {
            log::warn(format_args!("{error}: the holder may have been asked or not"));
            (holder, Answer::Asked)
        }
        Outcome::InDoubt(_, error) => {
            let cause = format!("{}; the holder may have been asked all the same", error.cause);
            return Err(Error { cause, ..error }.into());
        }
    };
    let report = |holder: &Holder, answer| {
        Ok(Report::Asked(Asked { lock: lock.clone(), holder: holder.clone(), answer, waited: began.elapsed() }))
    };
    let Some(wait) = asked.wait.filter(|_| answer == Answer::Asked) else { return report(&holder, answer) };
    log::trace(format_args!("asked {}, to give up \"{}\": waiting", words::who(&holder), lock.name));
    let until = began + wait;
    let mut backoff = Backoff::new();
    loop {
        // Only waits: nobody tells when the holder has given up.
        let _ = Limit::until(until.min(Moment::now() + backoff.next())).wait_for(&[]);
        let seen = retry::insist(timeout, |limit| store.look(&lock.name, Look::Holder(id), limit));
        match seen {
            Ok(LockStatus { state, .. }) if is_over(&state, id) => {
                // The holder has done so, unless it ended before it was to renew the lock.
                if let Err(error) = store.ask(&lock.name, &asker, Asking::NoMore, Limit::until(Moment::now() + timeout))
                {
                    log::trace(format_args!("{error}"));
                }
                return match state.held_by(id) {
                    Some((orphaned, _)) => report(orphaned, Answer::Refuses),
                    None => report(&holder, Answer::NoLongerHolds),
                };
            }
            Ok(_) if until.passed() => return report(&holder, Answer::StillHeld),
            Ok(_) if repeat_at.passed() => {
                match store.ask(&lock.name, &asker, Asking::ToGiveUp, Limit::until(Moment::now() + timeout)) {
                    Ok(()) => repeat_at = Moment::now() + REPEATED,
                    Err(error) => log::trace(format_args!("{error}")),
                }
            }
            Err(error) if until.passed() || !error.is_retryable() => return Err(error.into()),
            Ok(_) | Err(_) => {}
        }
    }
}

/// Returns whether it is known that the holder with this ID holds the lock no more, or that nobody is left to hear a
/// request to it.
fn is_over(state: &LockState, id: &HolderId) -> bool {
    match state.held_by(id) {
        Some((holder, _)) => holder.orphaned.is_some(),
        None => state.tells_holders(),
    }
}
