//! Requests a lock by script, in each mode; a waiter subscribes to its wake-ups before it joins the queue.

use std::time::Duration;

use redis::Value;

use super::queue::{self, QueueEntry, ServerClock};
use super::recording;
use super::reply::{self, Operation};
use super::scripts::{Form, Script};
use super::{AcquireMode, Acquired, Server, needs_scripts, shares};
use crate::clock::Moment;
use crate::error::Error;
use crate::lock::{Claim, Fence, Lease, LockState, Prefix, Token, Ttl};
use crate::store::QueuePlace;
use crate::wait::Limit;

/// Maximum attempts to join a queue that moves from one server to another.
const MAX_REDIRECTS: usize = 3;

impl Server {
    pub fn acquire_by_script(
        &mut self,
        operation: &Operation<'_>,
        claim: &Claim,
        ttl: Ttl,
        mode: AcquireMode,
        limit: Limit<'_>,
    ) -> Result<Acquired, Error> {
        let grace = self.grace(ttl);
        let millis = |duration: Duration| duration.as_millis().to_string();
        let (ttl_ms, lease_ms, grace_ms) = (millis(ttl.get()), millis(queue::LEASE), millis(grace));
        let shared = claim.beside_setnx.as_ref().map(|beside| (millis(beside.margin), &beside.record));
        let kind = if self.client.is_of_a_cluster() { "cluster" } else { "" };
        let enclosing = claim.enclosing.iter().map(Token::as_str).collect::<Vec<_>>().join(" ");
        let mut redirects = 0;
        let (asked, answer) = loop {
            let (word, channel, ticket) = match mode {
                AcquireMode::Once => ("once", String::new(), String::new()),
                AcquireMode::Plain => ("plain", String::new(), String::new()),
                AcquireMode::Queue => {
                    self.has_queued = true;
                    let (channel, ticket) = self.listen(operation, claim, limit)?;
                    ("queue", channel, ticket)
                }
            };
            let mut args =
                vec![claim.token.as_str(), &ttl_ms, word, &lease_ms, &grace_ms, &channel, &ticket, kind, &enclosing];
            args.extend(shared.iter().flat_map(|(margin_ms, record)| [margin_ms.as_str(), record.as_str()]));
            let recording = recording::acquire_args(claim);
            args.extend(recording.iter().map(String::as_str));
            // Taken before the request is sent: the server starts to count later than nxlock.
            let asked = Moment::now();
            let script = Script::Acquire(Form { enclosed: !claim.enclosing.is_empty(), ..Form::of(claim) });
            // One script changes all keys of such a lock, or nothing does.
            let answer = match needs_scripts(claim) {
                true => Some(self.script(operation, script, &args, limit)?),
                false => self.script_unless_moving(operation, script, &args, limit)?,
            };
            let answer = match answer {
                Some(answer) if claim.recording.is_some() => Some(self.noted(operation, answer)?),
                answer => answer,
            };
            let Some(answer) = answer.filter(|answer| !is_grant(answer) || !self.may_be_unfenced(&claim.token)) else {
                return self.acquire_moving(operation, claim, ttl, limit);
            };
            // Each attempt drops more of the dead, so this comes to an end. A waiter in the queue rests between them.
            if mode != AcquireMode::Queue && claim.token.is_share() && is_unfinished(&answer) && !limit.until.passed() {
                continue;
            }
            redirects += 1;
            // Another server replied than the one with the subscription: it could not wake this waiter.
            if mode != AcquireMode::Queue || self.is_within_earshot() || is_grant(&answer) || redirects == MAX_REDIRECTS
            {
                break (asked, answer);
            }
        };
        self.round_trip = asked.elapsed();
        if let [Value::Int(2), by, length, seen @ ..] = answer.as_slice() {
            let by = reply::bytes(by).and_then(Token::read);
            let length = reply::integer(length).and_then(|length| usize::try_from(length).ok());
            let (Some(by), Some(length)) = (by, length) else { return Err(self.senseless(operation)) };
            let place = QueuePlace { position: 0, length };
            self.knows_of_its_dismissal(operation, claim, limit);
            return Ok(Acquired::Superseded(Box::new(by), self.state(operation, seen, limit)?, place));
        }
        if let [Value::Int(3), line, length, seen @ ..] = answer.as_slice() {
            let (run, state, place) = self.already_done(operation, (line, length, seen), limit)?;
            return Ok(Acquired::Done(run, state, place));
        }
        if claim.token.is_share() {
            return self.share_acquired(operation, claim, &answer, (ttl, grace, asked), limit);
        }
        match answer.as_slice() {
            [Value::Int(1), fence, stale @ ..] => {
                let lease = self.granted(reply::fence(fence), ttl, asked);
                Ok(Acquired::Granted(Lease { taken_over: stale.first().and_then(reply::stale), ..lease }))
            }
            [Value::Int(refusal), value, pttl, queued @ .., fence, now] => {
                let seen = [value.clone(), pttl.clone(), fence.clone(), now.clone()];
                let state = self.state(operation, &seen, limit)?;
                let queued = reply::queued(queued).ok_or_else(|| self.senseless(operation))?;
                self.first_ticket.clone_from(&queued.ticket);
                if let Some(entry) = self.entry.as_mut().filter(|_| mode == AcquireMode::Queue) {
                    entry.stands(&queued, &state, (state.expiry.left(), clock(asked, now)), grace);
                }
                refused(*refusal, state, queued.place).ok_or_else(|| self.senseless(operation))
            }
            _ => Err(self.senseless(operation)),
        }
    }

    /// Interprets a reply of ACQUIRE for a share.
    fn share_acquired(
        &mut self,
        operation: &Operation<'_>,
        claim: &Claim,
        answer: &[Value],
        (ttl, grace, asked): (Ttl, Duration, Moment),
        limit: Limit<'_>,
    ) -> Result<Acquired, Error> {
        match answer {
            [Value::Int(1), fence, slot, _count] => {
                let slot = shares::slot(slot, claim.token.sharing()).ok_or_else(|| self.senseless(operation))?;
                let lease = self.granted(reply::fence(fence), ttl, asked);
                Ok(Acquired::Granted(Lease { slot, ..lease }))
            }
            [Value::Int(refusal), value, pttl, queued @ .., fence, now, look, taken, least] => {
                let seen = [value.clone(), pttl.clone(), fence.clone(), now.clone()];
                let state = shares::with_count(self.state(operation, &seen, limit)?, taken, least);
                let (Some(state), Some(queued)) = (state, reply::queued(queued)) else {
                    return Err(self.senseless(operation));
                };
                self.first_ticket.clone_from(&queued.ticket);
                // Negative if nothing ends by itself.
                let look = reply::integer(look).and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
                if let Some(entry) = &mut self.entry {
                    entry.stands(&queued, &state, (look, clock(asked, now)), grace);
                }
                refused(*refusal, state, queued.place).ok_or_else(|| self.senseless(operation))
            }
            _ => Err(self.senseless(operation)),
        }
    }

    /// Lets the server forget that this waiter was dismissed. If an earlier request is outstanding, only behind that: it
    /// would join the queue again.
    fn knows_of_its_dismissal(&mut self, operation: &Operation<'_>, claim: &Claim, limit: Limit<'_>) {
        self.entry = None;
        if !self.undo_outstanding(claim, limit) {
            // If this fails, the server forgets it in a day.
            let _ = self.ours(operation, claim, limit);
        }
    }

    /// Subscribes at the server that the next request goes to. Returns the channel and the waiter's ticket there.
    fn listen(
        &mut self,
        operation: &Operation<'_>,
        claim: &Claim,
        limit: Limit<'_>,
    ) -> Result<(String, String), Error> {
        self.turn_to(operation);
        let node = self.client.reach(limit).map_err(|fault| self.unanswered(operation, fault))?;
        let entry = self.entry.get_or_insert_with(|| {
            QueueEntry::new(channel_of(&self.prefix, claim), std::mem::take(&mut self.first_ticket))
        });
        // Until this returns, nxlock cannot claim a lock that is reserved for it.
        let patience = (self.client.timeout / 4).max(self.round_trip * 8);
        let listening = entry.listen(&node, self.client.within(limit).no_later_than(Moment::now() + patience));
        let subscribed = (entry.channel().to_owned(), entry.ticket().to_owned());
        listening.map_err(|fault| self.unanswered(operation, fault))?;
        Ok(subscribed)
    }

    /// Returns whether the server that replied last is the one with the subscription, if there is one.
    fn is_within_earshot(&self) -> bool {
        let ear = self.entry.as_ref().and_then(QueueEntry::listens_to);
        ear.zip(self.client.answered()).is_none_or(|(ear, answered)| ear.address == answered.address)
    }

    pub(super) fn granted(&mut self, fence: Option<Fence>, ttl: Ttl, asked: Moment) -> Lease {
        self.entry = None;
        Lease { fence, asked, granted: Moment::now(), until: ttl.believed_until(asked), taken_over: None, slot: None }
    }

    /// Returns how long a lock stays reserved for this waiter: time enough to claim it.
    fn grace(&self, ttl: Ttl) -> Duration {
        let enough = self.round_trip * 4 + Duration::from_millis(500);
        enough.max(Duration::from_secs(1)).min(ttl.get())
    }
}

/// Reads the server's clock from a reply, in microseconds, to a request that nxlock sent at `asked`.
fn clock(asked: Moment, now: &Value) -> Option<ServerClock> {
    Some(ServerClock { asked, told: reply::instant(now)? })
}

/// Returns the result of an ACQUIRE that granted nothing, by the first word of its reply.
fn refused(word: i64, state: LockState, place: QueuePlace) -> Option<Acquired> {
    match word {
        0 => Some(Acquired::Held(state, place)),
        4 => Some(Acquired::Nested(state, place)),
        _ => None,
    }
}

/// Returns whether an ACQUIRE for a share had more of the dead to drop than one script does.
fn is_unfinished(answer: &[Value]) -> bool {
    matches!(answer, [Value::Int(0 | 4), .., look, _count, _least] if reply::integer(look) == Some(0))
}

fn is_grant(answer: &[Value]) -> bool {
    matches!(answer.first(), Some(Value::Int(1)))
}

/// Returns the channel that wakes a waiter: no other client subscribes to it.
fn channel_of(prefix: &Prefix, claim: &Claim) -> String {
    format!("{}:wake:{}", prefix.key(&claim.name), claim.token.random_part())
}
