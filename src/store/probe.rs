//! The result of probing a store: findings about each server, and the trial of a scratch lock. Each kind of store
//! checks what it alone knows.

use std::fmt::Display;
use std::time::Duration;

use super::{AcquireMode, Acquired, Look, Released, Renewed, Store};
use crate::clock::{Moment, wall};
use crate::duration::span;
use crate::error::{Error, ErrorKind};
use crate::lock::{Claim, Fence, LockName, Owner, Token, Ttl};
use crate::wait::{Limit, Woken};

/// All findings, by server.
pub struct Probed {
    pub servers: Vec<ProbedServer>,
}

/// One server and its findings.
pub struct ProbedServer {
    pub url: String,
    pub findings: Vec<Finding>,
}

pub struct Finding {
    pub topic: &'static str,
    pub found: String,
    pub verdict: Verdict,
}

pub enum Verdict {
    Fine,
    /// A risk to locks, or to what nxlock reports about them; and the remedy.
    Warning(String),
    /// No lock can be acquired here; the kind of error, and the remedy.
    Obstacle(ErrorKind, String),
}

impl Probed {
    pub fn of(url: &impl Display, findings: Vec<Finding>) -> Probed {
        Probed { servers: vec![ProbedServer { url: url.to_string(), findings }] }
    }
}

impl Finding {
    pub fn fine(topic: &'static str, found: impl Into<String>) -> Finding {
        Finding { topic, found: found.into(), verdict: Verdict::Fine }
    }

    pub fn warning(topic: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Finding {
        Finding { topic, found: found.into(), verdict: Verdict::Warning(hint.into()) }
    }

    pub fn obstacle(
        topic: &'static str,
        kind: ErrorKind,
        found: impl Into<String>,
        hint: impl Into<String>,
    ) -> Finding {
        Finding { topic, found: found.into(), verdict: Verdict::Obstacle(kind, hint.into()) }
    }

    /// Converts an error into an obstacle.
    pub fn of_error(topic: &'static str, error: &Error) -> Finding {
        Finding::obstacle(topic, error.kind, error.to_string(), error.hint.clone())
    }
}

/// The result of trying a lock.
pub struct Trial {
    pub fence: Option<Fence>,
    /// Whether the store has a queue.
    pub queued: bool,
    /// Whether the store could wake the waiter.
    pub heard: bool,
    /// Time from the release until the waiter had the lock.
    pub handed_over: Duration,
}

/// Long enough for any usable server; if nxlock is killed, the lock expires.
const TTL: Duration = Duration::from_secs(30);

/// Returns a lock name that nobody uses.
pub fn scratch_name() -> Result<LockName, Error> {
    let random = getrandom::u64().map_err(|error| Error::internal("cannot make up a name", &error))?;
    format!("nxlock-check-{random:016x}")
        .parse()
        .map_err(|error: String| Error::internal("cannot make up a name", &error))
}

/// Acquires a lock, renews it and looks at it if the user may, lets a second client wait for it, and hands the lock over to that client.
///
/// # Errors
/// The first step that failed. The locks taken so far are released as far as possible.
pub fn try_lock(
    [first, second]: [&mut dyn Store; 2],
    name: &LockName,
    limit: impl Fn() -> Limit<'static>,
    may_look: bool,
) -> Result<Trial, Error> {
    let claim = || {
        let token = Token::mint(&Owner::this_process(), Some("nxlock check"), wall());
        let token = token.map_err(|error| Error::internal("cannot make a token", &error))?;
        Ok::<_, Error>(Claim::of(name.clone(), token))
    };
    let (mut ours, mut others) = (claim()?, claim()?);
    let trial = go_through([&mut *first, &mut *second], [&mut ours, &mut others], &limit, may_look);
    if trial.is_err() {
        // A release may be the one thing that is not permitted: the claims then expire.
        let _ = second.release(&others, limit());
        let _ = first.release(&ours, limit());
    }
    trial
}

fn go_through(
    [first, second]: [&mut dyn Store; 2],
    [ours, others]: [&mut Claim; 2],
    limit: &impl Fn() -> Limit<'static>,
    may_look: bool,
) -> Result<Trial, Error> {
    let ttl = Ttl::at_least(TTL);
    let name = ours.name.clone();
    let wrong = |cause: &str| Error {
        kind: ErrorKind::Internal,
        action: format!("cannot try the lock \"{name}\""),
        cause: cause.into(),
        hint: "see whether it is one of the servers that nxlock(1) names".into(),
    };
    let Acquired::Granted(lease) = first.acquire(ours, ttl, AcquireMode::Once, limit())? else {
        return Err(wrong("a name that is nobody's is held by somebody"));
    };
    let Renewed::Kept(_) = first.renew(ours, ttl, limit())? else { return Err(wrong("it was lost at once")) };
    if may_look && !first.look(&name, Look::All, limit())?.state.is_held_with(&ours.token) {
        return Err(wrong("it was lost at once"));
    }
    let Acquired::Held(_, place) = second.acquire(others, ttl, AcquireMode::Queue, limit())? else {
        return Err(wrong("it was granted to two"));
    };
    let heard = second.watch().hears;
    let Released::Done = first.release(ours, limit())? else {
        return Err(wrong("it was lost before it was released"));
    };
    let given_back = Moment::now();
    let turn = limit();
    while let Acquired::Held(..) = second.acquire(others, ttl, AcquireMode::Queue, limit())? {
        if turn.until.passed() || second.pause(turn) != Woken::Ready {
            return Err(wrong("it was released, and did not come to the one who waited for it"));
        }
    }
    let handed_over = given_back.elapsed();
    let Released::Done = second.release(others, limit())? else {
        return Err(wrong("it was lost before it was released"));
    };
    Ok(Trial { fence: lease.fence, queued: place.position > 0, heard, handed_over })
}

/// Formats a duration to a tenth of a millisecond, rounded up, if it is below 10 ms.
pub fn finely(duration: Duration) -> String {
    let tenths = duration.as_micros().div_ceil(100).max(1);
    match tenths {
        0..100 => format!("{}.{}ms", tenths / 10, tenths % 10),
        _ => span(duration),
    }
}
