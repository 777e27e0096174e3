//! A lock whose slot is moving from one node of a cluster to another, key by key.
//!
//! Meanwhile the cluster refuses requests about several keys of which some are at one node and some at the other, or
//! nowhere: TRYAGAIN. It serves one key at a time, at the old node if the key is there, and else at the new one (ASK).
//! MIGRATE moves a key in one step, and the old node creates no keys any more, so a key is never at both: the lock's
//! own key still decides who holds it. The queue is not served meanwhile: a waiter polls, and keeps its ticket.

use redis::{Cmd, Value, cmd};

use super::endpoint::Endpoint;
use super::reply::{self, Operation};
use super::scriptless::ScriptlessError;
use super::scripts::Script;
use super::{Acquired, LockStatus, Renewed, Server, call, how, scriptless};
use crate::clock::{Moment, wall};
use crate::error::{Error, ErrorKind};
use crate::lock::{Claim, Fence, LockState, SHARED_VALUE, StateKind, Token, Ttl, companion_key};
use crate::log;
use crate::store::QueuePlace;
use crate::wait::Limit;

/// Maximum attempts at a grant with a fence that belongs to it.
const ROUNDS: usize = 4;

impl Server {
    /// Returns a script's reply; none if it did not run because some of its keys are moving. ACQUIRE and INSPECT may be
    /// repeated whatever they have done, so for these an abort in the middle counts too.
    pub(super) fn script_unless_moving(
        &mut self,
        operation: &Operation<'_>,
        script: Script,
        args: &[&str],
        limit: Limit<'_>,
    ) -> Result<Option<Vec<Value>>, Error> {
        match self.answer(operation, script, args, limit)? {
            Err(unexpected)
                if reply::is_parted(&unexpected)
                    || (matches!(script, Script::Acquire(_) | Script::Inspect) && reply::is_cut_short(&unexpected)) =>
            {
                log::trace(format_args!("{} is moving the lock: asking for one key at a time", self.client));
                Ok(None)
            }
            answer => answer.map(Some).map_err(|unexpected| operation.misunderstood(&self.client, unexpected)),
        }
    }

    /// Returns whether a grant may have no fence yet: it was requested one key at a time, and the sequence did not
    /// complete.
    pub(super) fn may_be_unfenced(&self, token: &Token) -> bool {
        self.unfenced.as_ref() == Some(token)
    }

    /// Requests the lock, then its fence, then the lock once more. While this token holds the lock nobody else is given
    /// a fence, so its fence is higher than all before it and lower than all after it. The second request also shows
    /// that the first grant was no mistake: the old node, asked after the new one had granted the lock, still does not
    /// have the key.
    pub(super) fn acquire_moving(
        &mut self,
        operation: &Operation<'_>,
        claim: &Claim,
        ttl: Ttl,
        limit: Limit<'_>,
    ) -> Result<Acquired, Error> {
        let ttl_ms = ttl.millis().to_string();
        let mut fenced: Option<(Fence, Moment)> = None;
        let mut granted_there: Option<Endpoint> = None;
        for _ in 0..ROUNDS {
            self.unfenced = Some(claim.token.clone());
            let asked = Moment::now();
            let key = self.key(operation);
            let args = [claim.token.as_str(), &ttl_ms];
            let answer = self.script_of_one(operation, Script::AcquireMoving, &key, &args, limit)?;
            self.round_trip = asked.elapsed();
            match answer.as_slice() {
                [Value::Int(1), had] => match fenced {
                    Some((fence, until)) if reply::integer(had) == Some(1) && !until.passed() => {
                        self.unfenced = None;
                        return Ok(Acquired::Granted(self.granted(Some(fence), ttl, asked)));
                    }
                    _ => {
                        granted_there = self.client.sent_there().cloned();
                        let fence = companion_key(&key, "fence");
                        let answer = self.script_of_one(operation, Script::FenceMoving, &fence, &[&ttl_ms], limit)?;
                        let fence = answer.first().and_then(reply::fence).ok_or_else(|| self.senseless(operation))?;
                        fenced = Some((fence, ttl.believed_until(asked)));
                        self.leave_moving_queue(&key, &claim.token, limit);
                    }
                },
                [Value::Int(0), seen @ ..] => {
                    self.unfenced = None;
                    // The cluster cancelled the move before the new node granted the lock: the key there is no lock.
                    if let Some(node) = granted_there {
                        let release = call_of_one(Script::ReleaseMoving, &key, &[claim.token.as_str()]);
                        let _ = self.client.ask_there(&node, &[release], limit);
                    }
                    let (state, place) = (self.state(operation, seen, limit)?, QueuePlace { position: 0, length: 0 });
                    if self.is_nested_moving(operation, claim, seen, limit)? {
                        return Ok(Acquired::Nested(state, place));
                    }
                    if let Some(entry) = &mut self.entry {
                        entry.polls(&state);
                    }
                    return Ok(Acquired::Held(state, place));
                }
                _ => return Err(self.senseless(operation)),
            }
        }
        Err(Error {
            kind: ErrorKind::Unavailable,
            action: operation.action(&self.client),
            cause: "it was granted, and each time its lease had ended before it had a fence".into(),
            hint: "try again soon".into(),
        })
    }

    /// Returns whether a run that the claimant is part of holds the lock, whose value, expiry and fence an ACQUIRE of one
    /// key has seen, and the server's time. Asks for each share by itself.
    fn is_nested_moving(
        &mut self,
        operation: &Operation<'_>,
        claim: &Claim,
        seen: &[Value],
        limit: Limit<'_>,
    ) -> Result<bool, Error> {
        let [value, _, _, now] = seen else { return Err(self.senseless(operation)) };
        let (Some(value), Some(now)) = (reply::bytes(value), reply::instant(now)) else {
            return Err(self.senseless(operation));
        };
        if claim.is_enclosed_by(value) {
            return Ok(true);
        }
        if !value.starts_with(SHARED_VALUE.as_bytes()) {
            return Ok(false);
        }
        let shares = companion_key(&self.key(operation), "shares");
        for token in claim.enclosing.iter().filter(|token| token.is_share()) {
            let ends = self.client.ask(cmd("ZSCORE").arg(&shares).arg(token.as_str()), limit);
            match ends.map_err(|no_reply| self.unanswered(operation, no_reply).of_read())? {
                Value::Nil => {}
                ends => {
                    let unexpected =
                        || self.obstructed(operation, ScriptlessError::Unexpected(reply::unexpected(&ends)));
                    let ms = reply::integer(&ends).and_then(|ms| u64::try_from(ms).ok()).ok_or_else(unexpected)?;
                    if reply::instant_of_millis(ms).is_some_and(|ends| ends > now) {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    pub(super) fn renew_moving(
        &mut self,
        operation: &Operation<'_>,
        token: &Token,
        ttl: Ttl,
        how: &str,
        limit: Limit<'_>,
    ) -> Result<Renewed, Error> {
        let key = self.key(operation);
        let asked = Moment::now();
        let args = [token.as_str(), &ttl.millis().to_string(), how];
        let answer = self.script_of_one(operation, Script::RenewMoving, &key, &args, limit)?;
        let renewed = self.renewed(operation, &answer, ttl.believed_until(asked), limit)?;
        if let Renewed::Until(_) = renewed {
            // The grant made the fence last a day, so one attempt that fails does no harm.
            let lasts = ttl.millis().saturating_mul(10).max(86_400_000);
            let _ = self.client.ask(cmd("PEXPIRE").arg(companion_key(&key, "fence")).arg(lasts), limit);
        }
        Ok(renewed)
    }

    /// Does the same for a key shared with old `SETNX` clients. What one of them has written over it is put back only
    /// when the slot has arrived: until then the renewal is in doubt.
    pub(super) fn renew_moving_beside_setnx(
        &mut self,
        operation: &Operation<'_>,
        token: &Token,
        ttl: Ttl,
        may_shorten: bool,
        limit: Limit<'_>,
    ) -> Result<Renewed, Error> {
        match self.renew_moving(operation, token, ttl, how(may_shorten), limit)? {
            Renewed::NotYours(LockState { kind: StateKind::Legacy, .. }) => Err(Error {
                kind: ErrorKind::Unavailable,
                action: operation.action(&self.client),
                cause: "an old client has written over it while the cluster is moving it".into(),
                hint: "try again soon".into(),
            }),
            renewed @ Renewed::Until(_) => {
                // The record expires a little before the lock, never after it.
                let lasts = ttl.millis().saturating_sub(2).max(1);
                let _ = self
                    .client
                    .ask(cmd("PEXPIRE").arg(companion_key(&self.key(operation), "holder")).arg(lasts), limit);
                Ok(renewed)
            }
            renewed => Ok(renewed),
        }
    }

    /// Releases the lock. Returns its state if the token did not hold it.
    pub(super) fn release_moving(
        &mut self,
        operation: &Operation<'_>,
        token: &Token,
        limit: Limit<'_>,
    ) -> Result<Option<LockState>, Error> {
        let key = self.key(operation);
        let answer = self.script_of_one(operation, Script::ReleaseMoving, &key, &[token.as_str()], limit)?;
        let whose = match answer.as_slice() {
            [Value::Int(1)] => None,
            [Value::Int(0), seen @ ..] => Some(self.state(operation, seen, limit)?),
            _ => return Err(self.senseless(operation)),
        };
        if token.is_beside_setnx() {
            let record = companion_key(&key, "holder");
            let _ = self.script_of_one(operation, Script::ReleaseMoving, &record, &[token.as_str()], limit);
        }
        self.leave_moving_queue(&key, token, limit);
        Ok(whose)
    }

    /// Removes a token from the queue, and the mark of a reservation. If that fails, what is left expires, and delays
    /// the next waiter a moment until then.
    fn leave_moving_queue(&mut self, key: &str, token: &Token, limit: Limit<'_>) {
        let _ = self.client.ask(cmd("ZREM").arg(companion_key(key, "queue")).arg(token.as_str()), limit);
        let _ =
            self.client.ask(cmd("HDEL").arg(companion_key(key, "waiters")).arg(token.as_str()).arg("reserved"), limit);
    }

    /// Returns the requests that undo a grant at a node that is importing the slot, for a caller that does not wait for
    /// the replies.
    pub(super) fn release_moving_there(&self, claim: &Claim) -> [Cmd; 2] {
        let key = self.prefix.key(&claim.name);
        [cmd("ASKING"), call_of_one(Script::ReleaseMoving, &key, &[claim.token.as_str()])]
    }

    /// Returns the state of the lock, and its value if that is text; its waiters and its fence are unknown meanwhile.
    pub(super) fn look_moving(
        &mut self,
        operation: &Operation<'_>,
        limit: Limit<'_>,
    ) -> Result<(LockStatus, Option<String>), Error> {
        let key = self.key(operation);
        self.turn_to(operation);
        let seen = scriptless::look(&mut self.client, &key, limit);
        let (mut status, value) = seen.map_err(|failed| self.obstructed(operation, failed))?;
        if let Some(number) = value.as_ref().filter(|value| Token::is_number(value.as_bytes())) {
            let told = self.told(operation, &Value::BulkString(number.as_bytes().to_vec()), limit);
            if let Some(told) = reply::bytes(&told) {
                status.state = LockState::of_value(told, status.state.expiry.left(), None, wall());
            }
        }
        Ok((status, value))
    }

    fn key(&self, operation: &Operation<'_>) -> String {
        operation.name.map(|name| self.prefix.key(name)).unwrap_or_default()
    }

    pub(super) fn script_of_one(
        &mut self,
        operation: &Operation<'_>,
        script: Script,
        key: &str,
        args: &[&str],
        limit: Limit<'_>,
    ) -> Result<Vec<Value>, Error> {
        let answer = self.answer_to(operation, script, &call_of_one(script, key, args), limit)?;
        answer.map_err(|unexpected| operation.misunderstood(&self.client, unexpected))
    }
}

pub(super) fn call_of_one(script: Script, key: &str, args: &[&str]) -> Cmd {
    call("EVAL", script, &[key.to_owned()], args)
}
