//! The state of a lock and its queue, as a transaction found them. Writes nothing.

use std::cmp::Reverse;
use std::time::{Duration, SystemTime};

use super::commands;
use super::directory::Part;
use super::fault::LocalError;
use super::record::{self, Grant, State};
use super::transaction::{InUse, Transaction};
use crate::lock::{Expiry, Fence, Holder, HolderId, LockState, Share, Shares, StateKind, Token};
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
        let told = waiters.iter().filter_map(|waiter| Some((waiter.token.told()?, waiter)));
        let queue = told.enumerate().map(|(at, (told, waiter))| Waiter {
            position: at + 1,
            id: told.id,
            owner: told.owner,
            waiting: Duration::from_micros(self.now.saturating_sub(waiter.ticket)),
            reason: told.reason,
            terms: told.terms,
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
        self.waiters.all().filter(|waiter| !self.is_holder(&waiter.token))
    }

    /// Returns the state, as it was read or as this transaction changed it.
    pub fn state(&self) -> LockState {
        let fence = Some(Fence(self.record.fence)).filter(|fence| fence.0 > 0);
        let grant = match &self.record.state {
            State::Free => return LockState::free(fence),
            State::Held(grant) => grant,
            State::Shared(_) => return self.shared(fence),
        };
        let byte = commands::byte_of_fence(self.record.fence);
        let holder = self.by(grant, byte);
        let state = match (grant.reserved, &holder) {
            (Some(_), _) => StateKind::Reserved,
            (None, Some(_)) => StateKind::Held,
            (None, None) => StateKind::Foreign,
        };
        LockState { kind: state, holder, expiry: self.expiry(grant, byte), ..LockState::free(fence) }
    }

    fn shared(&self, fence: Option<Fence>) -> LockState {
        let share = |share: &record::Share| {
            let byte = commands::byte_of_share(share.number);
            Some(Share {
                holder: self.by(&share.grant, byte)?,
                expiry: self.expiry(&share.grant, byte),
                fence: Some(Fence(share.fence)),
                slot: share.slot,
                is_claimed: share.grant.reserved.is_none(),
            })
        };
        let mut held: Vec<Share> = self.shares().filter_map(share).collect();
        held.sort_by_key(|share| (share.slot, Reverse(share.holder.held)));
        let shares = Shares { held, ..self.occupancy() };
        let is_in_use = |share: &record::Share| self.in_use(commands::byte_of_share(share.number)).is_some();
        let expiry = match self.shares().map(|share| self.left(&share.grant)).max() {
            Some(_) if self.shares().any(is_in_use) => Expiry::WithCommand,
            Some(last) => Expiry::In(last),
            None => Expiry::Unknown,
        };
        LockState { kind: StateKind::Shared, expiry, shares: Some(shares), ..LockState::free(fence) }
    }

    /// Returns who has a claim. `byte` is the one that processes of its command keep.
    fn by(&self, grant: &Grant, byte: u64) -> Option<Holder> {
        let is_orphaned = self.in_use(byte).is_some_and(|claim| claim.is_orphaned);
        grant.token.told().map(|told| {
            let since = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(grant.since)).unwrap_or(told.born);
            let held = Duration::from_micros(self.now.saturating_sub(grant.granted));
            let orphaned = is_orphaned.then(|| self.file_of(Part::Commands));
            Holder { orphaned, ..Holder::of(told, since, held) }
        })
    }

    /// Returns the claim with this byte, if only processes of its command keep it.
    fn in_use(&self, byte: u64) -> Option<&InUse> {
        self.in_use.iter().find(|claim| claim.byte == byte)
    }

    /// Returns when a claim ends.
    fn expiry(&self, grant: &Grant, byte: u64) -> Expiry {
        self.in_use(byte).map_or_else(|| Expiry::In(self.left(grant)), |_| Expiry::WithCommand)
    }

    fn left(&self, grant: &Grant) -> Duration {
        Duration::from_micros(grant.until.saturating_sub(self.now))
    }

    /// Returns how long the claim of this token still runs.
    pub fn left_of(&self, token: &Token) -> Option<Duration> {
        let own = self.record.grant().filter(|grant| grant.token == *token);
        own.or(self.share_of(token).map(|share| &share.grant)).map(|grant| self.left(grant))
    }

    /// Returns the token of the holder with this id.
    pub fn token_of(&self, id: &HolderId) -> Option<Token> {
        let grants = self.record.grant().into_iter().chain(self.shares().map(|share| &share.grant));
        grants.map(|grant| &grant.token).find(|token| token.id().as_ref() == Some(id)).cloned()
    }
}
