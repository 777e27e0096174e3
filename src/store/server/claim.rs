//! Asking for a lock by script: once, as a plain client would, or standing in line where we can be called.

use std::time::Duration;

use redis::Value;

use super::super::line::{self, Line};
use super::super::reply::{self, What};
use super::super::script::Script;
use super::setnx::script_for;
use super::{Acquired, Manner, Server, Trouble};
use crate::clock::Moment;
use crate::limit::Limit;
use crate::lock::{Fence, Hold, Lease, Prefix, Ttl};

/// So often a queue is looked for that moves from one server to another.
const HOPS: usize = 3;

impl Server {
    pub fn acquire_by_script(
        &mut self,
        what: &What<'_>,
        hold: &Hold,
        ttl: Ttl,
        manner: Manner,
        limit: Limit<'_>,
    ) -> Result<Acquired, Trouble> {
        let grace = self.grace(ttl);
        let millis = |duration: Duration| duration.as_millis().to_string();
        let (ttl_ms, lease_ms, grace_ms) = (millis(ttl.get()), millis(line::LEASE), millis(grace));
        let shared = hold.beside_setnx.as_ref().map(|beside| (millis(beside.margin), &beside.record));
        let mut hops = 0;
        let (asked, answer) = loop {
            let (word, channel, ticket) = match manner {
                Manner::Once => ("once", String::new(), String::new()),
                Manner::Plain => ("plain", String::new(), String::new()),
                Manner::Queue => {
                    let (channel, ticket) = self.listen(what, hold, limit)?;
                    ("queue", channel, ticket)
                }
            };
            let mut args = vec![hold.token.as_str(), &ttl_ms, word, &lease_ms, &grace_ms, &channel, &ticket];
            args.extend(shared.iter().flat_map(|(margin_ms, record)| [margin_ms.as_str(), record.as_str()]));
            // Before the request leaves: the server's count begins later than ours.
            let asked = Moment::now();
            let script = script_for(Script::Acquire, &hold.token);
            // Beside SETNX clients a lock is compared and replaced together with what lies beside it, or not at all.
            let answer = match hold.token.is_beside_setnx() {
                true => Some(self.script(what, script, &args, limit)?),
                false => self.script_unless_moving(what, script, &args, limit)?,
            };
            let Some(answer) = answer.filter(|answer| !is_grant(answer) || !self.may_be_unfenced(&hold.token)) else {
                return self.acquire_moving(what, hold, ttl, limit);
            };
            hops += 1;
            // Answered by another server than the one that we listen to: it could not call us.
            if manner != Manner::Queue || self.is_within_earshot() || is_grant(&answer) || hops == HOPS {
                break (asked, answer);
            }
        };
        self.round_trip = asked.elapsed();
        match answer.as_slice() {
            [Value::Int(1), fence, stale @ ..] => {
                let lease = self.granted(reply::fence(fence), ttl, asked);
                Ok(Acquired::Granted(Lease { taken_over: stale.first().and_then(reply::stale), ..lease }))
            }
            [Value::Int(0), value, pttl, queued @ .., fence, now] => {
                let seen = [value.clone(), pttl.clone(), fence.clone(), now.clone()];
                let occupancy = self.occupancy(what, &seen, limit)?;
                let queued = reply::queued(queued).ok_or_else(|| self.senseless(what))?;
                if let Some(line) = self.line.as_mut().filter(|_| manner == Manner::Queue) {
                    line.stands(&queued, &occupancy, grace);
                }
                Ok(Acquired::Held(occupancy, queued.place))
            }
            _ => Err(self.senseless(what)),
        }
    }

    /// Sees to it that we can be called by the server that is about to be asked: on which channel, and our
    /// ticket there.
    fn listen(&mut self, what: &What<'_>, hold: &Hold, limit: Limit<'_>) -> Result<(String, String), Trouble> {
        self.turn_to(what);
        let node = self.wire.reach(limit).map_err(|fault| self.unanswered(what, fault))?;
        let line = self.line.get_or_insert_with(|| Line::new(channel_of(&self.prefix, hold)));
        // While it is tried, a lock that is put aside for us cannot be claimed.
        let patience = (self.wire.timeout / 4).max(self.round_trip * 8);
        let listening = line.listen(&node, self.wire.within(limit).no_later_than(Moment::now() + patience));
        let heard = (line.channel().to_owned(), line.ticket().to_owned());
        listening.map_err(|fault| self.unanswered(what, fault))?;
        Ok(heard)
    }

    /// Whether the server that has answered last is the one that we listen to, if to any.
    fn is_within_earshot(&self) -> bool {
        let ear = self.line.as_ref().and_then(Line::listens_to);
        ear.zip(self.wire.answered()).is_none_or(|(ear, answered)| ear.address == answered.address)
    }

    pub(super) fn granted(&mut self, fence: Option<Fence>, ttl: Ttl, asked: Moment) -> Lease {
        self.line = None;
        Lease { fence, asked, granted: Moment::now(), until: ttl.believed_until(asked), taken_over: None }
    }

    /// How long a lock is put aside for us: time enough to come and claim it.
    fn grace(&self, ttl: Ttl) -> Duration {
        let enough = self.round_trip * 4 + Duration::from_millis(500);
        enough.max(Duration::from_secs(1)).min(ttl.get())
    }
}

fn is_grant(answer: &[Value]) -> bool {
    matches!(answer.first(), Some(Value::Int(1)))
}

/// Where a waiter is called: nobody else listens there.
fn channel_of(prefix: &Prefix, hold: &Hold) -> String {
    format!("{}:wake:{}", prefix.key(&hold.name), hold.token.random_part())
}
