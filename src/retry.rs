//! Retries requests with growing pauses, and interprets a reply that comes after a lost one.

use std::time::Duration;

use crate::clock::Moment;
use crate::duration::jittered;
use crate::error::{Error, ErrorKind};
use crate::lock::{Fence, LockState, StateKind, Ttl};
use crate::log;
use crate::store::{Released, Renewed};
use crate::wait::Limit;

/// The result of a release, or of a request to let a lock end.
pub enum ReleaseAnswer {
    Done,
    /// nxlock does not hold the lock, but an earlier request, whose reply was lost, may have ended it.
    InDoubt,
    NotYours(Box<LockState>),
}

/// Releases a lock, with retries as in [`insist`]. `held_until` is how long nxlock is known to hold the lock unless
/// somebody breaks it; a caller that does not know passes [`Moment::NEVER`]. It counts when the first request is sent: if
/// that may have released the lock, it does not matter how late the replies come. `fence` is that of its grant, if the
/// next grant is somebody else's.
///
/// # Errors
/// The error of the last attempt.
pub fn release(
    within: Duration,
    held_until: Moment,
    fence: Option<Fence>,
    ask: impl FnMut(Limit<'_>) -> Result<Released, Error>,
) -> Result<ReleaseAnswer, Error> {
    let began = Moment::now();
    let (answer, in_doubt) = ask_again(within, ask);
    Ok(match answer? {
        Released::Done => ReleaseAnswer::Done,
        Released::NotYours(state) if in_doubt && began < held_until && !was_granted_before(&state, fence, began) => {
            ReleaseAnswer::InDoubt
        }
        Released::NotYours(state) | Released::Lost(state) => ReleaseAnswer::NotYours(Box::new(state)),
    })
}

/// Lets a lock end after `rest`, with retries as in [`insist`]; `fence` is as for [`release`]. One that is gone before it
/// could have ended so was lost.
///
/// # Errors
/// The error of the last attempt.
pub fn let_end(
    within: Duration,
    rest: Ttl,
    fence: Option<Fence>,
    ask: impl FnMut(Limit<'_>) -> Result<Renewed, Error>,
) -> Result<ReleaseAnswer, Error> {
    let ends = rest.believed_until(Moment::now());
    let (answer, in_doubt) = ask_again(within, ask);
    Ok(match answer? {
        Renewed::Kept(_) | Renewed::Longer(_) => ReleaseAnswer::Done,
        Renewed::NotYours(state) if in_doubt && ends.passed() && !was_granted_before(&state, fence, ends) => {
            ReleaseAnswer::InDoubt
        }
        Renewed::NotYours(state) => ReleaseAnswer::NotYours(Box::new(state)),
    })
}

/// Returns whether the lock was granted to somebody else before a moment, for certain: only then was it lost, and not
/// released by a request of after that moment. Both clocks may differ by one percent.
fn was_granted_before(state: &LockState, ours: Option<Fence>, moment: Moment) -> bool {
    let is_anothers = match state.kind {
        StateKind::Held => true,
        // The other one has released it meanwhile.
        StateKind::Free => ours.is_some_and(|ours| state.fence > Some(ours)),
        _ => false,
    };
    let elapsed = moment.elapsed();
    let since = elapsed + elapsed / 100 + Duration::from_millis(2);
    is_anothers && state.since_grant.is_some_and(|granted| granted > since)
}

/// Asks once, and again after errors that may pass, for no longer than `within`.
///
/// # Errors
/// The error of the last attempt.
pub fn insist<T>(within: Duration, ask: impl FnMut(Limit<'_>) -> Result<T, Error>) -> Result<T, Error> {
    ask_again(within, ask).0
}

/// Does the same, and returns whether a request before the last one may have been carried out. If any may have been,
/// the error is that of an unanswered request, whatever the last attempt met.
fn ask_again<T>(within: Duration, mut ask: impl FnMut(Limit<'_>) -> Result<T, Error>) -> (Result<T, Error>, bool) {
    let give_up = Limit::until(Moment::now() + within);
    let mut backoff = Backoff::new();
    let mut before: Option<Error> = None;
    let mut in_doubt = false;
    loop {
        let error = match ask(give_up) {
            Ok(answer) => return (Ok(answer), in_doubt),
            Err(error) => error,
        };
        in_doubt |= error.kind == ErrorKind::Unanswered;
        let of_all = |error: Error| Error { kind: if in_doubt { ErrorKind::Unanswered } else { error.kind }, ..error };
        if !error.is_retryable() || give_up.until.passed() {
            // A last attempt that timed out tells less than the error before it.
            let error = if error.is_retryable() { before.unwrap_or(error) } else { error };
            return (Err(of_all(error)), in_doubt);
        }
        log::trace(format_args!("{error}"));
        // This only sleeps; if poll(2) fails, the retry comes early.
        let _ = give_up.no_later_than(Moment::now() + backoff.next()).wait_for(&[]);
        if give_up.until.passed() {
            // The server could execute another request, and nobody would hear of it.
            return (Err(of_all(error)), in_doubt);
        }
        before = Some(error);
    }
}

/// Growing pauses between retries: from 50 ms, doubled up to 1 s, and jittered by half so that clients do not retry in
/// step.
pub struct Backoff(Duration);

impl Backoff {
    pub fn new() -> Backoff {
        Backoff(Duration::from_millis(50))
    }

    pub fn next(&mut self) -> Duration {
        let pause = jittered(self.0);
        self.0 = (self.0 * 2).min(Duration::from_secs(1));
        pause
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::lock::{Owner, Token};

    const OURS: Fence = Fence(7);

    /// The state of a lock that somebody was granted this long ago, and has released.
    fn free_after(fence: Fence, granted: Duration) -> LockState {
        LockState { since_grant: Some(granted), ..LockState::free(Some(fence)) }
    }

    /// The state of a lock that somebody else was granted this long ago.
    fn held_for(held: Duration) -> LockState {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let granted = now.duration_since(SystemTime::UNIX_EPOCH).unwrap() - held;
        let fence = Fence(u64::try_from(granted.as_micros()).unwrap());
        let owner = Owner { user: "u".into(), host: "h".into(), pid: 1, known_as: None };
        let token = Token::mint(&owner, None, now).unwrap();
        LockState::of_value(token.as_str().as_bytes(), Some(Duration::from_secs(9)), Some(fence), now)
    }

    fn release_of_which_a_reply_was_lost(state: &LockState) -> ReleaseAnswer {
        let mut asked = 0;
        let within = Duration::from_secs(60);
        let ask = |_: Limit<'_>| {
            asked += 1;
            let lost = Error { kind: ErrorKind::Unanswered, ..Error::internal("release", &"lost") };
            if asked == 1 { Err(lost) } else { Ok(Released::NotYours(state.clone())) }
        };
        release(within, Moment::now() + within, Some(OURS), ask).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_lock_that_somebody_had_before_it_was_released_was_lost_and_else_nobody_knows() {
        let (before, later) = (Duration::from_secs(50), Fence(8));
        for state in [held_for(before), free_after(later, before)] {
            assert!(matches!(release_of_which_a_reply_was_lost(&state), ReleaseAnswer::NotYours(_)));
        }
        let after = [held_for(Duration::ZERO), free_after(later, Duration::ZERO), free_after(OURS, before)];
        for state in after.into_iter().chain([LockState::free(Some(later)), LockState::free(None)]) {
            assert!(matches!(release_of_which_a_reply_was_lost(&state), ReleaseAnswer::InDoubt));
        }
    }

    fn error(kind: ErrorKind) -> Error {
        Error { kind, ..Error::internal("release", &"no") }
    }

    #[test]
    fn an_error_after_a_request_that_may_have_been_carried_out_leaves_that_open() {
        let mut errors = [ErrorKind::Unanswered, ErrorKind::Unreachable, ErrorKind::Refused].into_iter();
        let ask = |_: Limit<'_>| -> Result<(), Error> { Err(error(errors.next().unwrap())) };
        assert_eq!(insist(Duration::from_secs(60), ask).unwrap_err().kind, ErrorKind::Unanswered);
        let mut errors = [ErrorKind::Unreachable, ErrorKind::Refused].into_iter();
        let ask = |_: Limit<'_>| -> Result<(), Error> { Err(error(errors.next().unwrap())) };
        assert_eq!(insist(Duration::from_secs(60), ask).unwrap_err().kind, ErrorKind::Refused);
    }

    #[test]
    fn nothing_is_asked_when_nobody_would_hear_of_it() {
        let ask = |limit: Limit<'_>| -> Result<(), Error> {
            Err(error(if limit.until.passed() { ErrorKind::Unanswered } else { ErrorKind::Unavailable }))
        };
        assert_eq!(insist(Duration::from_millis(100), ask).unwrap_err().kind, ErrorKind::Unavailable);
    }

    #[test]
    fn a_last_attempt_that_may_have_been_carried_out_leaves_that_open() {
        // On a busy machine the time may be up with the first attempt: then there was no other.
        loop {
            let mut asked = 0;
            let ask = |limit: Limit<'_>| -> Result<(), Error> {
                asked += 1;
                if asked == 1 {
                    return Err(error(ErrorKind::Unreachable));
                }
                limit.wait_for(&[]).unwrap();
                Err(error(ErrorKind::Unanswered))
            };
            let failed = insist(Duration::from_millis(200), ask).unwrap_err();
            if asked > 1 {
                assert_eq!(failed.kind, ErrorKind::Unanswered);
                return;
            }
        }
    }

    #[test]
    fn pauses_grow_to_a_second_and_are_jittered_by_half() {
        let mut backoff = Backoff::new();
        let pauses: Vec<_> = (0..12).map(|_| backoff.next()).collect();
        assert!((25..=75).contains(&pauses[0].as_millis()), "{pauses:?}");
        assert!(pauses.iter().all(|pause| pause.as_millis() <= 1500), "{pauses:?}");
        assert!(pauses[8..].iter().all(|pause| pause.as_millis() >= 500), "{pauses:?}");
    }
}
