//! Locking without scripts, for servers that do not run them or users who may not.
//!
//! The same key and the same comparisons, but no queue and no fence. Compares by WATCH and MULTI, never by GET
//! and then DEL.

use std::io;
use std::time::Duration;

use redis::{Cmd, Value, cmd};

use super::connect::{Fault, NoReply};
use super::reply::{self, Unexpected};
use super::wire::Wire;
use super::{Acquired, Place, Renewed, Standing};
use crate::clock::{Moment, wall};
use crate::limit::Limit;
use crate::lock::{Hold, Lease, Occupancy, Ttl};

/// Why there is no answer.
pub enum Obstacle {
    NoReply(NoReply),
    Unexpected(Unexpected),
}

impl From<NoReply> for Obstacle {
    fn from(no_reply: NoReply) -> Obstacle {
        Obstacle::NoReply(no_reply)
    }
}

/// What to do with a key whose value is our token.
#[derive(Clone, Copy)]
enum Deed {
    Renew(Ttl),
    /// The same, but never move the expiry nearer.
    Prolong(Ttl),
    Release,
}

/// What came of it.
enum Done {
    Ours,
    /// Ours, and the expiry was further away than asked for: left as it was.
    Longer(Duration),
    NotOurs(Occupancy),
}

/// How often a transaction is begun anew because the key was touched in between.
const ROUNDS: usize = 8;

/// Asks for the lock, as any plain client does.
pub fn acquire(wire: &mut Wire, key: &str, hold: &Hold, ttl: Ttl, limit: Limit<'_>) -> Result<Acquired, Obstacle> {
    let token = hold.token.as_str();
    let mut set = cmd("SET");
    set.arg(key).arg(token).arg("NX").arg("PX").arg(ttl.millis());
    let asked = Moment::now();
    let granted = || {
        let until = ttl.believed_until(asked);
        Acquired::Granted(Lease { fence: None, asked, granted: Moment::now(), until, taken_over: None })
    };
    let [set, get, pttl] = three(wire.ask_all(&[set, get(key), pttl(key)], limit)?)?;
    if let Value::Okay = refuse_error(set)? {
        return Ok(granted());
    }
    let value = refuse_error(get)?;
    // Ours already, by a request whose reply was lost: since when is not known, so it counts anew.
    if is(&value, hold) && matches!(transact(wire, key, hold, Deed::Renew(ttl), limit)?, Done::Ours) {
        return Ok(granted());
    }
    Ok(Acquired::Held(seen(&value, &refuse_error(pttl)?), Place { position: 0, length: 0 }))
}

/// Puts the expiry a full ttl from now, if the lock is ours.
pub fn renew(wire: &mut Wire, key: &str, hold: &Hold, ttl: Ttl, limit: Limit<'_>) -> Result<Renewed, Obstacle> {
    let asked = Moment::now();
    let deed = if hold.may_shorten() { Deed::Renew(ttl) } else { Deed::Prolong(ttl) };
    Ok(match transact(wire, key, hold, deed, limit)? {
        Done::Ours => Renewed::Until(ttl.believed_until(asked)),
        Done::Longer(left) => Renewed::Longer(left),
        Done::NotOurs(occupancy) => Renewed::NotYours(occupancy),
    })
}

/// Whose the lock is, if it was not ours to give back.
pub fn release(wire: &mut Wire, key: &str, hold: &Hold, limit: Limit<'_>) -> Result<Option<Occupancy>, Obstacle> {
    Ok(match transact(wire, key, hold, Deed::Release, limit)? {
        Done::Ours | Done::Longer(_) => None,
        Done::NotOurs(occupancy) => Some(occupancy),
    })
}

/// How a lock stands, and its value where it is text.
pub fn look(wire: &mut Wire, key: &str, limit: Limit<'_>) -> Result<(Standing, Option<String>), Obstacle> {
    let mut kind = cmd("TYPE");
    kind.arg(key);
    let [kind, get, pttl] = three(wire.ask_all(&[kind, get(key), pttl(key)], limit).map_err(NoReply::of_a_read)?)?;
    let (occupancy, value) = match reply::text(&refuse_error(kind)?) {
        Some(kind) if matches!(kind.raw(), "string" | "none") => {
            let value = refuse_error(get)?;
            (seen(&value, &refuse_error(pttl)?), reply::text(&value).map(|value| value.raw().to_owned()))
        }
        Some(other) => (reply::wrong_type(other.raw()), None),
        None => return Err(Obstacle::Unexpected(Unexpected::Shape)),
    };
    Ok((Standing { occupancy, queue: Vec::new() }, value))
}

fn is(value: &Value, hold: &Hold) -> bool {
    reply::bytes(value) == Some(hold.token.as_str().as_bytes())
}

/// Compares and acts in one step: EXEC does nothing if the key was touched since WATCH.
fn transact(wire: &mut Wire, key: &str, hold: &Hold, deed: Deed, limit: Limit<'_>) -> Result<Done, Obstacle> {
    for _ in 0..ROUNDS {
        let mut watch = cmd("WATCH");
        watch.arg(key);
        let replies = wire.ask_all(&[watch, get(key), pttl(key)], limit).map_err(NoReply::of_a_read)?;
        let [watched, get, pttl] = three(replies)?;
        refuse_error(watched)?;
        let value = refuse_error(get)?;
        let seen = self::seen(&value, &refuse_error(pttl)?);
        if !is(&value, hold) {
            return Ok(Done::NotOurs(seen));
        }
        let mut act = match deed {
            Deed::Renew(_) | Deed::Prolong(_) => cmd("PEXPIRE"),
            Deed::Release => cmd("DEL"),
        };
        act.arg(key);
        match (deed, seen.ttl) {
            (Deed::Prolong(ttl), Some(left)) if left > ttl.get() => return Ok(Done::Longer(left)),
            (Deed::Renew(ttl) | Deed::Prolong(ttl), _) => drop(act.arg(ttl.millis())),
            (Deed::Release, _) => {}
        }
        let [begun, queued, done] = three(wire.exec_on(&[act], limit)?)?;
        refuse_error(begun)?;
        // It has moved to another server since WATCH, so nothing was done.
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
            // Touched in between: perhaps it has just expired, so look again.
            Value::Nil => {}
            _ => return Err(Obstacle::Unexpected(Unexpected::Shape)),
        }
    }
    let busy = "the key was changed again and again while it was compared";
    Err(Obstacle::NoReply(Fault::Ended(io::Error::other(busy)).into()))
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

fn seen(value: &Value, pttl: &Value) -> Occupancy {
    match reply::bytes(value) {
        None => Occupancy::free(None),
        Some(value) => {
            let ttl = reply::integer(pttl).and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
            Occupancy::of_value(value, ttl, None, wall())
        }
    }
}

fn three(replies: Vec<Value>) -> Result<[Value; 3], Obstacle> {
    replies.try_into().map_err(|_| Obstacle::Unexpected(Unexpected::Shape))
}

fn refuse_error(reply: Value) -> Result<Value, Obstacle> {
    match reply {
        Value::ServerError(_) => Err(Obstacle::Unexpected(reply::unexpected(&reply))),
        other => Ok(other),
    }
}
