//! Locks by plain commands, for servers that run no scripts or users who may not.
//!
//! Uses the same key and the same comparisons, without queue and fence. Compares by WATCH and MULTI, never by GET and
//! then DEL.

use std::io;
use std::time::Duration;

use redis::{Cmd, Value, cmd};

use super::client::Client;
use super::fault::{Fault, NoReply};
use super::reply::{self, Unexpected};
use crate::clock::{Moment, wall};
use crate::lock::{Claim, Lease, LockState, Ttl};
use crate::store::{Acquired, Kept, LockStatus, QueuePlace, Renewed};
use crate::wait::Limit;

/// The reason for a missing result.
pub enum ScriptlessError {
    NoReply(NoReply),
    Unexpected(Unexpected),
}

impl From<NoReply> for ScriptlessError {
    fn from(no_reply: NoReply) -> ScriptlessError {
        ScriptlessError::NoReply(no_reply)
    }
}

/// The change to a key whose value is the claim's token.
#[derive(Clone, Copy)]
enum Change {
    Renew(Ttl),
    /// Renew, but never move the expiry nearer.
    Prolong(Ttl),
    Release,
}

/// The result of a change.
enum Done {
    Ours,
    /// Ours, with an expiry later than requested: unchanged.
    Longer(Duration),
    NotOurs(LockState),
}

/// Maximum attempts at a transaction while other clients touch the key.
const ROUNDS: usize = 8;

/// Requests the lock, as any plain client does.
pub fn acquire(
    client: &mut Client,
    key: &str,
    claim: &Claim,
    ttl: Ttl,
    limit: Limit<'_>,
) -> Result<Acquired, ScriptlessError> {
    let token = claim.token.as_str();
    let mut set = cmd("SET");
    set.arg(key).arg(token).arg("NX").arg("PX").arg(ttl.millis());
    let asked = Moment::now();
    let granted = || {
        let until = ttl.believed_until(asked);
        Acquired::Granted(Lease { fence: None, asked, granted: Moment::now(), until, taken_over: None, slot: None })
    };
    let [set, get, pttl] = three(client.ask_all(&[set, get(key), pttl(key)], limit)?)?;
    if let Value::Okay = refuse_error(set)? {
        return Ok(granted());
    }
    let value = refuse_error(get)?;
    // Ours already, by a request whose reply was lost. The time of that grant is unknown, so the ttl starts anew.
    if is(&value, claim) && matches!(transact(client, key, claim, Change::Renew(ttl), limit)?, Done::Ours) {
        return Ok(granted());
    }
    let (state, place) = (seen(&value, &refuse_error(pttl)?), QueuePlace { position: 0, length: 0 });
    Ok(match reply::bytes(&value).is_some_and(|value| claim.is_enclosed_by(value)) {
        true => Acquired::Nested(state, place),
        false => Acquired::Held(state, place),
    })
}

/// Sets the expiry to a full ttl from now, if the token holds the lock.
pub fn renew(
    client: &mut Client,
    key: &str,
    claim: &Claim,
    ttl: Ttl,
    limit: Limit<'_>,
) -> Result<Renewed, ScriptlessError> {
    let asked = Moment::now();
    let change = if claim.may_shorten() { Change::Renew(ttl) } else { Change::Prolong(ttl) };
    Ok(match transact(client, key, claim, change, limit)? {
        Done::Ours => Renewed::Kept(Kept::until(ttl.believed_until(asked))),
        Done::Longer(left) => Renewed::Longer(left),
        Done::NotOurs(state) => Renewed::NotYours(state),
    })
}

/// Releases the lock. Returns its state if the token did not hold it.
pub fn release(
    client: &mut Client,
    key: &str,
    claim: &Claim,
    limit: Limit<'_>,
) -> Result<Option<LockState>, ScriptlessError> {
    Ok(match transact(client, key, claim, Change::Release, limit)? {
        Done::Ours | Done::Longer(_) => None,
        Done::NotOurs(state) => Some(state),
    })
}

/// Returns the status of a lock, and its value if that is text.
pub fn look(client: &mut Client, key: &str, limit: Limit<'_>) -> Result<(LockStatus, Option<String>), ScriptlessError> {
    let mut kind = cmd("TYPE");
    kind.arg(key);
    let question = [kind, get(key), pttl(key)];
    let mut rounds = 0..ROUNDS;
    let [kind, get, pttl] = loop {
        let replies = three(client.ask_all(&question, limit).map_err(NoReply::of_read)?)?;
        // A cluster may move the key to another node between two of the requests, and the client follows a redirect in
        // the first reply only.
        let has_moved =
            client.is_of_a_cluster() && replies.iter().any(|reply| reply::redirects(&reply::unexpected(reply)));
        if !has_moved || rounds.next().is_none() {
            break replies;
        }
    };
    let (state, value) = match reply::text(&refuse_error(kind)?) {
        Some(kind) if matches!(kind.raw(), "string" | "none") => {
            let value = refuse_error(get)?;
            (seen(&value, &refuse_error(pttl)?), reply::text(&value).map(|value| value.raw().to_owned()))
        }
        Some(other) => (reply::wrong_type(other.raw()), None),
        None => return Err(ScriptlessError::Unexpected(Unexpected::Shape)),
    };
    Ok((LockStatus { state, queue: Vec::new() }, value))
}

fn is(value: &Value, claim: &Claim) -> bool {
    reply::bytes(value) == Some(claim.token.as_str().as_bytes())
}

/// Compares and acts in one step: EXEC does nothing if another client touched the key since WATCH.
fn transact(
    client: &mut Client,
    key: &str,
    claim: &Claim,
    change: Change,
    limit: Limit<'_>,
) -> Result<Done, ScriptlessError> {
    for _ in 0..ROUNDS {
        let mut watch = cmd("WATCH");
        watch.arg(key);
        let replies = client.ask_all(&[watch, get(key), pttl(key)], limit).map_err(NoReply::of_read)?;
        let [watched, get, pttl] = three(replies)?;
        refuse_error(watched)?;
        let value = refuse_error(get)?;
        let seen = self::seen(&value, &refuse_error(pttl)?);
        if !is(&value, claim) {
            return Ok(Done::NotOurs(seen));
        }
        let mut act = match change {
            Change::Renew(_) | Change::Prolong(_) => cmd("PEXPIRE"),
            Change::Release => cmd("DEL"),
        };
        act.arg(key);
        match (change, seen.expiry.left()) {
            (Change::Prolong(ttl), Some(left)) if left > ttl.get() => return Ok(Done::Longer(left)),
            (Change::Renew(ttl) | Change::Prolong(ttl), _) => drop(act.arg(ttl.millis())),
            (Change::Release, _) => {}
        }
        let [begun, queued, done] = three(client.exec_on(&[act], limit)?)?;
        refuse_error(begun)?;
        // The key has moved to another server since WATCH, so nothing was done.
        if [&queued, &done].into_iter().any(|reply| reply::redirects(&reply::unexpected(reply))) {
            continue;
        }
        refuse_error(queued)?;
        match refuse_error(done)? {
            Value::Array(results) => {
                let result = results.into_iter().next().unwrap_or(Value::Nil);
                if let Value::Int(1) = refuse_error(result)? {
                    return Ok(Done::Ours);
                }
            }
            // Touched in between: perhaps the key has just expired, so look again.
            Value::Nil => {}
            _ => return Err(ScriptlessError::Unexpected(Unexpected::Shape)),
        }
    }
    Err(busy())
}

fn busy() -> ScriptlessError {
    let busy = "the key was changed again and again while it was compared";
    ScriptlessError::NoReply(Fault::Ended(io::Error::other(busy)).into())
}

/// Deletes a field of a hash if it has this value: EXEC does nothing if another client touched the key since WATCH.
pub fn withdraw(
    client: &mut Client,
    key: &str,
    field: &str,
    value: &str,
    limit: Limit<'_>,
) -> Result<(), ScriptlessError> {
    for _ in 0..ROUNDS {
        let (mut watch, mut get, mut delete) = (cmd("WATCH"), cmd("HGET"), cmd("HDEL"));
        watch.arg(key);
        get.arg(key).arg(field);
        delete.arg(key).arg(field);
        let mut replies = client.ask_all(&[watch, get], limit)?.into_iter();
        refuse_error(replies.next().unwrap_or(Value::Nil))?;
        let found = refuse_error(replies.next().unwrap_or(Value::Nil))?;
        if reply::bytes(&found) != Some(value.as_bytes()) {
            return Ok(());
        }
        let [begun, queued, done] = three(client.exec_on(&[delete], limit)?)?;
        refuse_error(begun)?;
        refuse_error(queued)?;
        if let Value::Array(_) = refuse_error(done)? {
            return Ok(());
        }
    }
    Err(busy())
}

fn get(key: &str) -> Cmd {
    let mut get = cmd("GET");
    get.arg(key);
    get
}

fn pttl(key: &str) -> Cmd {
    let mut pttl = cmd("PTTL");
    pttl.arg(key);
    pttl
}

fn seen(value: &Value, pttl: &Value) -> LockState {
    match reply::bytes(value) {
        None => LockState::free(None),
        Some(value) => {
            let ttl = reply::integer(pttl).and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
            LockState::of_value(value, ttl, None, wall())
        }
    }
}

fn three(replies: Vec<Value>) -> Result<[Value; 3], ScriptlessError> {
    replies.try_into().map_err(|_| ScriptlessError::Unexpected(Unexpected::Shape))
}

pub fn refuse_error(reply: Value) -> Result<Value, ScriptlessError> {
    match reply {
        Value::ServerError(_) => Err(ScriptlessError::Unexpected(reply::unexpected(&reply))),
        other => Ok(other),
    }
}
