//! The state of a lock in words: for messages, tables and JSON.

use std::fmt;
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;

use super::{Expiry, Holder, Legacy, LockState, Lost, Owner, RunEnd, RunOutcome, Shares, Sharing, StateKind, Told};
use crate::duration::span;
use crate::text::instant;

/// `alice@web-3:4711`, or `release 17 (alice@web-3:4711)` if it is known as that.
pub fn process(owner: &Owner) -> String {
    known_as(owner, format!("{}@{}:{}", owner.user, owner.host, owner.pid))
}

/// `alice@web-3, pid 4711`
pub fn who(holder: &Holder) -> String {
    owner(&holder.owner)
}

/// The same of somebody who is no holder.
pub fn owner(owner: &Owner) -> String {
    known_as(owner, format!("{}@{}, pid {}", owner.user, owner.host, owner.pid))
}

fn known_as(owner: &Owner, process: String) -> String {
    match &owner.known_as {
        Some(name) => format!("{name} ({process})"),
        None => process,
    }
}

/// `alice@web-3, pid 4711: release 4.3`
pub fn who_and_why(told: &Told) -> String {
    let reason = told.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    owner(&told.owner) + &reason
}

/// Returns how a run ended: `done`, `failed (3)`, `died of TERM`.
pub fn run_end(end: &RunEnd) -> String {
    match (end.outcome, end.status, end.signal) {
        (RunOutcome::Done, ..) => "done".to_owned(),
        (RunOutcome::Failed, Some(status), _) => format!("failed ({status})"),
        (RunOutcome::Failed, None, _) => "failed".to_owned(),
        (RunOutcome::Signal, _, Some(number)) => format!("died of {}", signal(number)),
        (RunOutcome::Signal, _, None) => "died of a signal".to_owned(),
        (RunOutcome::Lost, ..) => "lost the lock".to_owned(),
        (RunOutcome::TimeLimit, ..) => "time limit".to_owned(),
        (RunOutcome::Vanished, ..) => "vanished".to_owned(),
    }
}

/// Returns a signal's name: `TERM`.
pub fn signal(number: i32) -> String {
    match Signal::try_from(number) {
        Ok(signal) => signal.as_str().trim_start_matches("SIG").to_owned(),
        Err(_) => format!("signal {number}"),
    }
}

/// Returns who holds it, for the middle of a sentence.
pub fn held_by(state: &LockState) -> String {
    held_by_after(state, Duration::ZERO)
}

/// The same, `since` after the state was read.
pub fn held_by_after(state: &LockState, since: Duration) -> String {
    match (&state.holder, &state.kind) {
        (Some(holder), StateKind::Contested) => {
            format!("contested: {} has votes, but no majority of the servers", who(holder))
        }
        (Some(holder), StateKind::Unknown) => {
            format!("unknown, since too few servers answer; {} has votes", who(holder))
        }
        (Some(holder), _) => format!("held by {} for {}", who(holder), span(holder.held + since)),
        (None, StateKind::Free) => "free".to_owned(),
        (None, StateKind::Shared) => shared_by(state.shares.as_ref()),
        (None, StateKind::Damaged) => "held, by whom is not known".to_owned(),
        (None, StateKind::Legacy) => "held by an old SETNX client, without expiry".to_owned(),
        (None, StateKind::NoExpiry) => "held by another program, without expiry".to_owned(),
        (None, StateKind::WrongType(_)) => "taken by a key of another type".to_owned(),
        (None, StateKind::Contested) => "contested: no holder has a majority of the servers".to_owned(),
        (None, StateKind::Unknown) => "unknown, since too few servers answer".to_owned(),
        (None, _) => "held by another program".to_owned(),
    }
}

/// Why a holder cannot be asked whose nxlock and guard are gone.
pub const ORPHANED: &str = "its nxlock is gone, and processes of its command keep the lock until they end";

/// Returns how a lock ends that is not free, as the end of a sentence, `since` after the state was read; nothing if that
/// is not known.
pub fn ends_after(state: &LockState, since: Duration) -> String {
    match state.expiry {
        Expiry::In(left) => format!(", lease {}", span(left.saturating_sub(since))),
        Expiry::WithCommand if state.orphaned().is_some() => {
            ", kept by processes of a command whose nxlock is gone".to_owned()
        }
        Expiry::WithCommand => ", kept by processes of its command after its lease".to_owned(),
        Expiry::Never => ", lease without end".to_owned(),
        Expiry::Unknown => String::new(),
    }
}

/// Returns how many share a lock.
fn shared_by(shares: Option<&Shares>) -> String {
    match shares.map(|shares| (shares.taken, shares.slots)) {
        // The server does not tell an exclusive asker how many there are.
        None | Some((0, _)) => "shared by others".to_owned(),
        Some((taken, Some(slots))) if taken >= usize::from(slots.get()) => {
            format!("full: {taken} of {} slots are taken", slots.get())
        }
        Some((1, Some(slots))) => format!("shared: 1 of {} slots is taken", slots.get()),
        Some((taken, Some(slots))) => format!("shared: {taken} of {} slots are taken", slots.get()),
        Some((1, None)) => "shared by one holder".to_owned(),
        Some((taken, None)) => format!("shared by {taken} holders"),
    }
}

/// Returns how a share or a waiter's request is shared: `slots 4`.
pub fn sharing(sharing: Sharing) -> String {
    match sharing {
        Sharing::Exclusive => "exclusive".to_owned(),
        Sharing::Shared => "shared".to_owned(),
        Sharing::Slots(count) => format!("slots {}", count.get()),
    }
}

/// Returns a state's name in JSON.
pub fn state_name(kind: &StateKind) -> &'static str {
    match kind {
        StateKind::Free => "free",
        StateKind::Held => "held",
        StateKind::Reserved => "reserved",
        StateKind::Shared => "shared",
        StateKind::Foreign => "foreign",
        StateKind::Legacy => "legacy",
        StateKind::NoExpiry => "no_expiry",
        StateKind::WrongType(_) => "wrong_type",
        StateKind::Contested => "contested",
        StateKind::Unknown | StateKind::Damaged => "unknown",
    }
}

/// Returns what an old `SETNX` lock says of its end, compared by the server's clock.
pub fn validity(legacy: &Legacy, show: impl Fn(SystemTime) -> String) -> String {
    match (show(legacy.valid_until), legacy.stale) {
        _ if instant(legacy.valid_until).is_empty() => "valid for ever".to_owned(),
        (since, true) => format!("stale since {since}"),
        (until, false) => format!("valid until {until}"),
    }
}

/// Describes a held name to a waiter that was refused.
pub fn describe(state: &LockState) -> String {
    match &state.kind {
        StateKind::WrongType(kind) => format!("a key of type {kind}"),
        StateKind::Contested | StateKind::Unknown => held_by(state),
        _ if state.holder.is_some() => "held by somebody else".to_owned(),
        _ => held_by(state),
    }
}

/// Returns who holds it now, after a claim turned out to be another's, or to have ended.
pub fn now_whose(state: &LockState) -> String {
    whose(state, "")
}

/// The same; `but` follows whose it is.
fn whose(state: &LockState, but: &str) -> String {
    let broken = state.broken_by.as_ref().map(|by| format!("broken by {}", who_and_why(by)));
    match (state.kind == StateKind::Free, broken) {
        (true, None) => "it had expired or was deleted".to_owned(),
        (true, Some(broken)) => format!("it was {broken}"),
        (false, None) => format!("it is now {}{but}", held_by(state)),
        (false, Some(broken)) => format!("it is now {}{but}, after it was {broken}", held_by(state)),
    }
}

/// Returns who holds it now, after the caller's own claim turned out to be lost.
pub fn lost_to(state: &LockState) -> String {
    whose(state, if state.kind == StateKind::Shared { ", without us" } else { "" })
}

/// Formats how the lock was lost.
impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lost::Taken(state) => f.write_str(&lost_to(state)),
            Lost::Unconfirmed(None) => f.write_str("it could not be renewed in time"),
            Lost::Unconfirmed(Some(error)) => write!(f, "it could not be renewed in time: {error}"),
        }
    }
}
