//! Locking without scripts, for servers that do not run them or users who may not.
//!
//! The same key and the same comparisons, but no queue and no fence. Compares by `SET ... IFEQ`
//! (Redis 8.4, Valkey 8.1), `DELIFEQ` (Valkey 9.0) or `DELEX` (Redis 8.4) where the server has them,
//! and by WATCH and MULTI elsewhere; never by GET and then DEL.

use std::io;
use std::time::Duration;

use redis::{Cmd, Value, cmd};

use super::connect::{Fault, NoReply};
use super::reply::{self, Unexpected};
use super::wire::Wire;
use super::{Acquired, Place, Standing};
use crate::clock::{Moment, wall};
use crate::limit::Limit;
use crate::lock::{Hold, Lease, Occupancy, Ttl};

/// What this server compares by, as far as we have found out.
#[derive(Default)]
pub struct Ladder {
    no_set_ifeq: bool,
    no_delifeq: bool,
    no_delex: bool,
}

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
    Release,
}

/// How often a transaction is begun anew because the key was touched in between.
const ROUNDS: usize = 8;

impl Ladder {
    /// Asks for the lock, as any plain client does.
    pub fn acquire(
        &mut self,
        wire: &mut Wire,
        key: &str,
        hold: &Hold,
        ttl: Ttl,
        limit: Limit<'_>,
    ) -> Result<Acquired, Obstacle> {
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
        if is(&value, hold) && self.renew(wire, key, hold, ttl, limit)?.is_none() {
            return Ok(granted());
        }
        Ok(Acquired::Held(seen(&value, &refuse_error(pttl)?), Place { position: 0, length: 0 }))
    }

    /// Whose the lock is, if it was not ours to renew.
    pub fn renew(
        &mut self,
        wire: &mut Wire,
        key: &str,
        hold: &Hold,
        ttl: Ttl,
        limit: Limit<'_>,
    ) -> Result<Option<Occupancy>, Obstacle> {
        if !self.no_set_ifeq {
            let token = hold.token.as_str();
            let mut set = cmd("SET");
            set.arg(key).arg(token).arg("IFEQ").arg(token).arg("PX").arg(ttl.millis());
            match compared(wire.ask(&set, limit)?)? {
                Some(Value::Okay) => return Ok(None),
                Some(_) => return whose(wire, key, limit),
                None => self.no_set_ifeq = true,
            }
        }
        transact(wire, key, hold, Deed::Renew(ttl), limit)
    }

    /// Whose the lock is, if it was not ours to give back.
    pub fn release(
        &mut self,
        wire: &mut Wire,
        key: &str,
        hold: &Hold,
        limit: Limit<'_>,
    ) -> Result<Option<Occupancy>, Obstacle> {
        let token = hold.token.as_str();
        let mut delifeq = cmd("DELIFEQ");
        delifeq.arg(key).arg(token);
        let mut delex = cmd("DELEX");
        delex.arg(key).arg("IFEQ").arg(token);
        for (missing, delete) in [(&mut self.no_delifeq, delifeq), (&mut self.no_delex, delex)] {
            if *missing {
                continue;
            }
            match compared(wire.ask(&delete, limit)?)? {
                Some(Value::Int(1)) => return Ok(None),
                Some(_) => return whose(wire, key, limit),
                None => *missing = true,
            }
        }
        transact(wire, key, hold, Deed::Release, limit)
    }
}

/// How a lock stands, and its value where it is text.
pub fn look(wire: &mut Wire, key: &str, limit: Limit<'_>) -> Result<(Standing, Option<String>), Obstacle> {
    let mut kind = cmd("TYPE");
    kind.arg(key);
    let [kind, get, pttl] = three(wire.ask_all(&[kind, get(key), pttl(key)], limit).map_err(NoReply::of_a_read)?)?;
    let (occupancy, value) = match reply::text(&refuse_error(kind)?) {
        Some("string" | "none") => {
            let value = refuse_error(get)?;
            (seen(&value, &refuse_error(pttl)?), reply::text(&value).map(str::to_owned))
        }
        Some(other) => (reply::wrong_type(other), None),
        None => return Err(Obstacle::Unexpected(Unexpected::Shape)),
    };
    Ok((Standing { occupancy, queue: Vec::new() }, value))
}

/// Whose it is, after it turned out not to be ours.
fn whose(wire: &mut Wire, key: &str, limit: Limit<'_>) -> Result<Option<Occupancy>, Obstacle> {
    Ok(Some(look(wire, key, limit)?.0.occupancy))
}

fn is(value: &Value, hold: &Hold) -> bool {
    reply::bytes(value) == Some(hold.token.as_str().as_bytes())
}

/// Compares and acts in one step: EXEC does nothing if the key was touched since WATCH.
fn transact(
    wire: &mut Wire,
    key: &str,
    hold: &Hold,
    deed: Deed,
    limit: Limit<'_>,
) -> Result<Option<Occupancy>, Obstacle> {
    for _ in 0..ROUNDS {
        let mut watch = cmd("WATCH");
        watch.arg(key);
        let seen = wire.ask_all(&[watch, get(key), pttl(key)], limit).map_err(NoReply::of_a_read)?;
        let [watched, get, pttl] = three(seen)?;
        refuse_error(watched)?;
        let value = refuse_error(get)?;
        if !is(&value, hold) {
            return Ok(Some(self::seen(&value, &refuse_error(pttl)?)));
        }
        let mut act = match deed {
            Deed::Renew(_) => cmd("PEXPIRE"),
            Deed::Release => cmd("DEL"),
        };
        act.arg(key);
        if let Deed::Renew(ttl) = deed {
            act.arg(ttl.millis());
        }
        let [begun, queued, done] = three(wire.ask_on(&[cmd("MULTI"), act, cmd("EXEC")], limit)?)?;
        refuse_error(begun)?;
        refuse_error(queued)?;
        match refuse_error(done)? {
            Value::Array(results) => {
                let result = results.into_iter().next().unwrap_or(Value::Nil);
                if let Value::Int(1) = refuse_error(result)? {
                    return Ok(None);
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

/// A reply to a command that compares; none if the server does not have it, or not for us. Asked for
/// outright: a version number says nothing about a fork.
fn compared(reply: Value) -> Result<Option<Value>, Obstacle> {
    match refuse_error(reply) {
        Err(Obstacle::Unexpected(Unexpected::Error { code, text }))
            if code == "NOPERM" || text.contains("syntax error") || text.contains("unknown command") =>
        {
            Ok(None)
        }
        other => other.map(Some),
    }
}
