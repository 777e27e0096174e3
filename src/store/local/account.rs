//! What a visit to a lock tells of it: nothing is changed by asking.

use std::time::{Duration, SystemTime};

use super::fault::Fault;
use super::record;
use super::visit::Visit;
use crate::lock::{Fence, Holder, Occupancy, State, Token};
use crate::store::{Place, Standing, Waiter};

impl Visit<'_> {
    /// Who has it, and who waits. Changes nothing.
    pub fn inspect(&mut self) -> Result<Standing, Fault> {
        self.settle()?;
        let mut waiters = Vec::new();
        for waiter in self.line.waiters() {
            if self.may_be_next(waiter)? {
                waiters.push(waiter);
            }
        }
        waiters.sort_by_key(|waiter| waiter.ticket);
        let told = waiters.iter().filter_map(|waiter| Some((Token::read(waiter.token.as_str().as_bytes())?, waiter)));
        let queue = told.enumerate().map(|(at, (told, waiter))| Waiter {
            position: at + 1,
            id: told.id,
            owner: told.owner,
            waiting: Duration::from_micros(self.now.saturating_sub(waiter.ticket)),
            reason: told.reason,
        });
        Ok(Standing { queue: queue.collect(), occupancy: self.occupancy() })
    }

    /// Where a waiter stands in line.
    pub fn place_of(&self, token: &Token) -> Place {
        let ours = self.waiting().find(|waiter| waiter.token == *token);
        Place { position: ours.map_or(0, |ours| self.position(ours.ticket)), length: self.waiting().count() }
    }

    /// The position of a ticket, from 1.
    pub fn position(&self, ticket: u64) -> usize {
        self.waiting().filter(|waiter| waiter.ticket < ticket).count() + 1
    }

    /// All in line but who has the lock already, as far as was found.
    fn waiting(&self) -> impl Iterator<Item = &record::Waiter> {
        self.line.waiters().filter(|waiter| self.holder() != Some(&waiter.token))
    }

    /// Who has it, as it was found or is now.
    pub fn occupancy(&self) -> Occupancy {
        let fence = Some(Fence(self.record.fence)).filter(|fence| fence.0 > 0);
        let Some(claim) = &self.record.claim else { return Occupancy::free(fence) };
        let held = Duration::from_micros(self.now.saturating_sub(claim.granted));
        let holder = Token::read(claim.token.as_str().as_bytes()).map(|told| Holder {
            id: told.id,
            owner: told.owner,
            since: SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(claim.since)).unwrap_or(told.born),
            held,
            reason: told.reason,
        });
        let state = match (claim.reserved, &holder) {
            (Some(_), _) => State::Reserved,
            (None, Some(_)) => State::Held,
            (None, None) => State::Foreign,
        };
        let ttl = Some(Duration::from_micros(claim.until.saturating_sub(self.now)));
        Occupancy { state, holder, ttl, fence, legacy: None }
    }
}
