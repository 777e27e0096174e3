//! The state of a lock and its queue, as a transaction found them. Writes nothing.

use std::time::{Duration, SystemTime};

use super::fault::LocalError;
use super::record;
use super::transaction::Transaction;
use crate::lock::{Fence, Holder, LockState, StateKind, Token};
use crate::store::{LockStatus, QueuePlace, Waiter};

impl Transaction<'_> {
    /// Returns the holder and the waiters. Writes nothing.
    pub fn inspect(&mut self) -> Result<LockStatus, LocalError> {
        self.settle()?;
        let mut waiters = Vec::new();
        for waiter in self.waiters.all() {
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
        Ok(LockStatus { queue: queue.collect(), state: self.state() })
    }

    /// Returns the place of a waiter in the queue.
    pub fn place_of(&self, token: &Token) -> QueuePlace {
        let ours = self.waiting().find(|waiter| waiter.token == *token);
        QueuePlace { position: ours.map_or(0, |ours| self.position(ours.ticket)), length: self.waiting().count() }
    }

    /// Returns the position of a ticket, from 1.
    pub fn position(&self, ticket: u64) -> usize {
        self.waiting().filter(|waiter| waiter.ticket < ticket).count() + 1
    }

    /// Returns the waiters without the holder. Some may be dead, if nobody has checked them.
    fn waiting(&self) -> impl Iterator<Item = &record::Waiter> {
        self.waiters.all().filter(|waiter| self.holder() != Some(&waiter.token))
    }

    /// Returns the state, as it was read or as this transaction changed it.
    pub fn state(&self) -> LockState {
        let fence = Some(Fence(self.record.fence)).filter(|fence| fence.0 > 0);
        let Some(grant) = &self.record.grant else { return LockState::free(fence) };
        let held = Duration::from_micros(self.now.saturating_sub(grant.granted));
        let holder = Token::read(grant.token.as_str().as_bytes()).map(|told| Holder {
            id: told.id,
            owner: told.owner,
            since: SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(grant.since)).unwrap_or(told.born),
            held,
            reason: told.reason,
        });
        let state = match (grant.reserved, &holder) {
            (Some(_), _) => StateKind::Reserved,
            (None, Some(_)) => StateKind::Held,
            (None, None) => StateKind::Foreign,
        };
        let ttl = Some(Duration::from_micros(grant.until.saturating_sub(self.now)));
        LockState { kind: state, holder, ttl, fence, legacy: None }
    }
}
