//! Requests a lock by script, in each mode; a waiter subscribes to its wake-ups before it joins the queue.

use std::time::Duration;

use super::means::{ScriptError, needs_scripts};
use super::queue::{Place, QueueEntry, ServerClock};
use super::reply::{Answer, Operation};
use super::request::{Attempt, Request};
use super::wake::Channels;
use super::{AcquireMode, Acquired, Server};
use crate::clock::Moment;
use crate::error::Error;
use crate::lock::{Claim, Fence, Lease, Ttl};
use crate::store::QueuePlace;
use crate::wait::Limit;

/// Maximum attempts to join a queue that moves from one server to another.
const MAX_REDIRECTS: usize = 3;

impl Server {
    /// Runs ACQUIRE. Also returns when the server granted the lock to a run that is recorded, in µs of its clock.
    pub fn acquire_by_script(
        &mut self,
        operation: &Operation<'_>,
        claim: &Claim,
        ttl: Ttl,
        mode: AcquireMode,
        limit: Limit<'_>,
    ) -> Result<(Acquired, Option<u64>), ScriptError> {
        let grace = self.grace(ttl);
        let in_cluster = self.client.is_of_a_cluster();
        let mut redirects = 0;
        let (asked, answer) = loop {
            let place = match mode {
                AcquireMode::Once | AcquireMode::Plain => Place::default(),
                AcquireMode::Queue => self.listen(operation, claim, limit)?,
            };
            let attempt = Attempt { ttl, mode, grace, place: &place, in_cluster };
            let request = Request::acquire(claim, &attempt);
            // Taken before the request is sent: the server starts to count later than nxlock.
            let asked = Moment::now();
            // One script changes all keys of such a lock, or nothing does.
            let answer = match needs_scripts(claim) {
                Some(_) => Some(self.script(operation, &request, limit)?),
                None => self.script_unless_moving(operation, &request, limit)?,
            };
            let Some(answer) = answer.filter(|answer| !is_grant(answer) || !self.may_be_unfenced(&claim.token)) else {
                return Ok((self.acquire_moving(operation, claim, ttl, limit)?, None));
            };
            // There were more of the dead to drop than one script does. Each attempt drops more, so this comes to an end. A
            // waiter in the queue rests between them.
            if mode != AcquireMode::Queue && answer.says("again") && !limit.until.passed() {
                continue;
            }
            redirects += 1;
            // Another server replied than the one with the subscription: it could not wake this waiter.
            if mode != AcquireMode::Queue
                || self.entry.as_ref().is_none_or(|entry| entry.hears_of(&self.client))
                || is_grant(&answer)
                || redirects == MAX_REDIRECTS
            {
                break (asked, answer);
            }
        };
        self.round_trip = asked.elapsed();
        match self.acquired(claim, &answer, (ttl, mode, grace), asked) {
            Some(acquired @ Acquired::Superseded(..)) => {
                self.forget_dismissal(operation, claim, limit);
                Ok((acquired, None))
            }
            Some(acquired) => Ok((acquired, answer.number("noted"))),
            None if answer.verdict() == "done" && answer.run().is_none() => Err(self.unreadable(operation).into()),
            None => Err(self.senseless(operation).into()),
        }
    }

    /// Interprets an answer of ACQUIRE.
    fn acquired(
        &mut self,
        claim: &Claim,
        answer: &Answer,
        (ttl, mode, grace): (Ttl, AcquireMode, Duration),
        asked: Moment,
    ) -> Option<Acquired> {
        let unqueued = || Some(QueuePlace { position: 0, length: answer.number("length")? });
        match answer.verdict() {
            "granted" => {
                let slot = answer.slot(claim.token.sharing())?;
                let lease = self.granted(answer.fence(), ttl, asked);
                Some(Acquired::Granted(Lease { slot, taken_over: answer.stale(), ..lease }))
            }
            "waiting" => {
                let state = if claim.token.is_share() { answer.state_of_shares() } else { answer.state() }?;
                let queued = answer.queued()?;
                self.first_ticket.clone_from(&queued.ticket);
                if let Some(entry) = self.entry.as_mut().filter(|_| mode == AcquireMode::Queue) {
                    let clock = answer.now().map(|time| ServerClock { asked, time });
                    let look = if answer.says("again") { Some(Duration::ZERO) } else { answer.look_in() };
                    entry.not_granted(&mut self.client, &queued, &state, (look, clock), grace);
                }
                Some(match answer.text("nested") {
                    "" => Acquired::Held(state, queued.place),
                    _ => Acquired::Nested(state, queued.place),
                })
            }
            "superseded" => Some(Acquired::Superseded(Box::new(answer.who("by")?), answer.state()?, unqueued()?)),
            "done" => {
                let place = QueuePlace { position: 0, length: answer.number("others")? };
                Some(Acquired::Done(Box::new(answer.run()?), answer.state()?, place))
            }
            _ => None,
        }
    }

    /// Lets the server forget that this waiter was dismissed. If an earlier request is outstanding, only behind that: it
    /// would join the queue again.
    fn forget_dismissal(&mut self, operation: &Operation<'_>, claim: &Claim, limit: Limit<'_>) {
        self.entry = None;
        if !self.undo_outstanding(claim, limit) {
            // If this fails, the server forgets it in a day.
            let _ = self.release_by_script(operation, claim, limit);
        }
    }

    /// Subscribes at the server that the next request goes to.
    fn listen(&mut self, operation: &Operation<'_>, claim: &Claim, limit: Limit<'_>) -> Result<Place, Error> {
        self.turn_to(operation);
        let node = self.client.reach(limit).map_err(|fault| self.unanswered(operation, fault))?;
        let entry = self.entry.get_or_insert_with(|| {
            let of_all = format!("{}:wake", self.options.prefix.key(&claim.name));
            let own = format!("{of_all}:{}", claim.token.random_part());
            QueueEntry::new(Channels { own, of_all }, std::mem::take(&mut self.first_ticket))
        });
        // Until this returns, nxlock cannot claim a lock that is reserved for it.
        let patience = (self.client.timeout / 4).max(self.round_trip * 8);
        let listening = entry.listen(&mut self.client, &node, patience, limit);
        let place = entry.place();
        listening.map_err(|fault| self.unanswered(operation, fault))?;
        Ok(place)
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

fn is_grant(answer: &Answer) -> bool {
    answer.verdict() == "granted"
}
