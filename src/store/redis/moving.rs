//! A lock whose slot is moving from one node of a cluster to another, key by key.
//!
//! Meanwhile the cluster refuses requests about several keys of which some are at one node and some at the other, or
//! nowhere: TRYAGAIN. It serves one key at a time, at the old node if the key is there, and else at the new one (ASK).
//! MIGRATE moves a key in one step, and the old node creates no keys any more: the lock's own key still decides who
//! holds it. A key that the new node creates after the slot has come back to the old one is no lock: a grant of the new
//! node counts once the old one, asked afterwards, sends nxlock there again. The queue is not served meanwhile: a waiter
//! polls, and keeps its ticket.

use redis::{Cmd, Value, cmd};

use super::endpoint::Endpoint;
use super::means::ScriptError;
use super::reply::{self, Answer, Operation};
use super::request::{QUEUE, WAITERS, call_of_one, how};
use super::{Acquired, LockStatus, Renewed, Server, asking, with_tokens};
use crate::clock::{Moment, wall};
use crate::error::{Error, ErrorKind};
use crate::lock::{Claim, Fence, LockState, SHARED_VALUE, StateKind, Token, Ttl, companion_key};
use crate::store::{Kept, QueuePlace};
use crate::text::Tainted;
use crate::wait::Limit;

/// Maximum attempts at a grant with a fence that belongs to it.
const ROUNDS: usize = 4;

impl Server {
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
    ) -> Result<Acquired, ScriptError> {
        let ttl_ms = ttl.millis().to_string();
        let mut fenced: Option<(Fence, Moment)> = None;
        let mut granted_there: Option<Endpoint> = None;
        for _ in 0..ROUNDS {
            self.unfenced = Some(claim.token.clone());
            let asked = Moment::now();
            let key = self.key(operation);
            let acquire = call_of_one("acquire", &key, &[("token", claim.token.as_str()), ("ttl", &ttl_ms)]);
            let answer = self.script_of_one(operation, &acquire, limit)?;
            self.round_trip = asked.elapsed();
            match answer.verdict() {
                "granted" => match fenced {
                    Some((fence, until)) if answer.says("had") && !until.passed() => {
                        self.unfenced = None;
                        return Ok(Acquired::Granted(self.granted(Some(fence), ttl, asked)));
                    }
                    _ => {
                        granted_there = self.client.sent_there().cloned();
                        let raise = call_of_one("fence", &companion_key(&key, "fence"), &[("ttl", &ttl_ms)]);
                        let answer = self.script_of_one(operation, &raise, limit)?;
                        let fence = answer.fence().ok_or_else(|| self.senseless(operation))?;
                        fenced = Some((fence, ttl.believed_until(asked)));
                        self.leave_moving_queue(&key, &claim.token, limit);
                    }
                },
                "not_yours" => {
                    self.unfenced = None;
                    // The cluster cancelled the move before the new node granted the lock: the key there is no lock.
                    if let Some(node) = granted_there {
                        let release = release_of_one(&key, &claim.token);
                        let _ = self.client.ask_there_aside(&node, &[release], limit);
                    }
                    let (state, place) =
                        (self.state_moving(operation, &answer, limit)?, QueuePlace { position: 0, length: 0 });
                    if self.is_nested_moving(operation, claim, &answer, limit)? {
                        return Ok(Acquired::Nested(state, place));
                    }
                    if let Some(entry) = &mut self.entry {
                        entry.polls(&state);
                    }
                    return Ok(Acquired::Held(state, place));
                }
                _ => return Err(self.senseless(operation).into()),
            }
        }
        let why = "it was granted, and each time its lease had ended before it had a fence";
        Err(self.until_it_has_arrived(operation, why).into())
    }

    /// Returns the state that a request for one key has seen; if the value is a bare number, with its identity.
    fn state_moving(
        &mut self,
        operation: &Operation<'_>,
        answer: &Answer,
        limit: Limit<'_>,
    ) -> Result<LockState, Error> {
        let state = self.state(operation, answer)?;
        Ok(self.with_owner(operation, state, answer.text("value"), limit))
    }

    /// Returns a state with the holder that the identity of a bare number names, if there is one. Without a reply the
    /// holder is unknown, as without an identity.
    fn with_owner(&mut self, operation: &Operation<'_>, state: LockState, value: &str, limit: Limit<'_>) -> LockState {
        if !Token::is_number(value.as_bytes()) {
            return state;
        }
        let waiters = companion_key(&self.key(operation), WAITERS);
        let reply = self.client.ask(cmd("HGET").arg(waiters).arg("owner"), limit).unwrap_or(Value::Nil);
        let owner = reply::text(&reply).map(Tainted::into_raw).unwrap_or_default();
        match owner.splitn(3, '|').collect::<Vec<_>>()[..] {
            [_, number, identity] if number == value && Token::read(identity.as_bytes()).is_some() => {
                LockState::of_value(identity.as_bytes(), state.expiry.left(), None, wall())
            }
            _ => state,
        }
    }

    /// Returns whether a run that the claimant is part of holds the lock that a request for one key has seen. Asks for each
    /// share by itself.
    fn is_nested_moving(
        &mut self,
        operation: &Operation<'_>,
        claim: &Claim,
        answer: &Answer,
        limit: Limit<'_>,
    ) -> Result<bool, Error> {
        let (value, now) = (answer.text("value").as_bytes(), answer.now());
        let now = now.ok_or_else(|| self.senseless(operation))?;
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
                    let unexpected = || self.unexpected(operation, reply::unexpected(&ends));
                    let ms = reply::integer(&ends).and_then(|ms| u64::try_from(ms).ok()).ok_or_else(unexpected)?;
                    if reply::instant_of_millis(ms).is_some_and(|ends| ends > now) {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Renews the lock, by a request that names its own key alone. What an old `SETNX` client has written over it is put back
    /// only when the slot has arrived: until then the renewal is in doubt.
    pub(super) fn renew_moving(
        &mut self,
        operation: &Operation<'_>,
        claim: &Claim,
        ttl: Ttl,
        may_shorten: bool,
        limit: Limit<'_>,
    ) -> Result<Renewed, ScriptError> {
        let (key, token, ttl_ms) = (self.key(operation), claim.token.as_str(), ttl.millis().to_string());
        let fields = [("token", token), ("ttl", &ttl_ms[..]), ("how", how(may_shorten))];
        let asked = Moment::now();
        let answer = self.script_of_holder(operation, &call_of_one("renew", &key, &fields), limit)?;
        if claim.token.is_beside_setnx()
            && answer.verdict() == "not_yours"
            && answer.state().is_some_and(|state| state.kind == StateKind::Legacy)
        {
            let why = "an old client has written over it while the cluster is moving it";
            return Err(self.until_it_has_arrived(operation, why).into());
        }
        Ok(match self.renewed(operation, claim, &answer, ttl.believed_until(asked))? {
            Renewed::NotYours(state) => {
                Renewed::NotYours(self.with_owner(operation, state, answer.text("value"), limit))
            }
            Renewed::Kept(kept) => {
                // Each of these keys may be at either node, so they cannot share a request; and a node that hangs must not
                // delay the renewal. The grant made the fence last a day, so an attempt that fails does no harm.
                let lasts = ttl.millis().saturating_mul(10).max(86_400_000);
                let soon = limit.no_later_than(Moment::now() + asking::REPLY);
                let _ = self.client.ask(cmd("PEXPIRE").arg(companion_key(&key, "fence")).arg(lasts), soon);
                self.own(operation, &claim.token, &ttl_ms, soon);
                Renewed::Kept(Kept { asked_by: self.asker(claim, limit), ..kept })
            }
            longer => longer,
        })
    }

    /// Releases the lock. Returns its state if the token did not hold it.
    pub(super) fn release_moving(
        &mut self,
        operation: &Operation<'_>,
        token: &Token,
        limit: Limit<'_>,
    ) -> Result<Option<LockState>, ScriptError> {
        let key = self.key(operation);
        let answer = match self.script_of_holder(operation, &release_of_one(&key, token), limit) {
            Err(ScriptError::Failed(error)) if error.kind == ErrorKind::WrongType => {
                return Ok(Some(reply::wrong_type("another type")));
            }
            answered => answered?,
        };
        let whose = match answer.verdict() {
            "released" => None,
            "not_yours" => Some(self.state_moving(operation, &answer, limit)?),
            _ => return Err(self.senseless(operation).into()),
        };
        self.own(operation, token, "0", limit);
        self.leave_moving_queue(&key, token, limit);
        Ok(whose)
    }

    /// Runs a holder's script of the lock's own key. That the new node does not have the lock counts only if the old one,
    /// asked once more, sends us there again: since it did, the slot may have come back, and be on its way once more.
    fn script_of_holder(
        &mut self,
        operation: &Operation<'_>,
        request: &Cmd,
        limit: Limit<'_>,
    ) -> Result<Answer, ScriptError> {
        let answer = self.script_of_one(operation, request, limit)?;
        match answer.verdict() == "not_yours" && self.client.sent_there().is_some() {
            true => self.script_of_one(operation, request, limit),
            false => Ok(answer),
        }
    }

    /// Lets the note of a holder beside `SETNX` clients count for so many milliseconds more, or deletes it: 0.
    fn own(&mut self, operation: &Operation<'_>, token: &Token, ttl_ms: &str, limit: Limit<'_>) {
        if token.is_beside_setnx() {
            let waiters = companion_key(&self.key(operation), WAITERS);
            let own = call_of_one("own", &waiters, &[("token", token.as_str()), ("ttl", ttl_ms)]);
            let _ = self.client.ask(&own, limit);
        }
    }

    /// Removes a token from the queue, and the mark of a reservation. If that fails, what is left expires, and delays
    /// the next waiter a moment until then.
    fn leave_moving_queue(&mut self, key: &str, token: &Token, limit: Limit<'_>) {
        let has_left = self.client.ask(cmd("ZREM").arg(companion_key(key, QUEUE)).arg(token.as_str()), limit).is_ok();
        let mut rest = cmd("HDEL");
        rest.arg(companion_key(key, WAITERS)).arg("reserved");
        // Scripts find a place by its entry.
        if has_left {
            rest.arg(token.as_str());
        }
        let _ = self.client.ask(&rest, limit);
    }

    /// Returns the state of the lock, and its holder's token; its waiters, its fence and those who share it are unknown
    /// meanwhile.
    pub(super) fn look_moving(
        &mut self,
        operation: &Operation<'_>,
        limit: Limit<'_>,
    ) -> Result<(LockStatus, Vec<Token>), Error> {
        let (mut status, value) = self.look_plainly(operation, limit)?;
        if let Some(value) = &value {
            status.state = self.with_owner(operation, status.state, value, limit);
        }
        Ok(with_tokens((status, value)))
    }

    /// Returns the error for an operation that needs all keys of the lock together.
    pub(super) fn on_its_way(&self, operation: &Operation<'_>) -> Error {
        self.until_it_has_arrived(operation, "the cluster is moving it")
    }

    fn until_it_has_arrived(&self, operation: &Operation<'_>, why: &str) -> Error {
        Error {
            kind: ErrorKind::Unavailable,
            action: operation.action(&self.client),
            cause: why.into(),
            hint: "try again soon".into(),
        }
    }
}

/// Returns the requests that undo a grant at a node that is importing the slot, for a caller that does not wait for the
/// replies.
pub fn release_there(key: &str, token: &Token) -> [Cmd; 2] {
    [cmd("ASKING"), release_of_one(key, token)]
}

fn release_of_one(key: &str, token: &Token) -> Cmd {
    call_of_one("release", key, &[("token", token.as_str())])
}
