//! A lock as a transaction finds it, for people to read. Writes nothing.

use std::cmp::Reverse;
use std::time::Duration;

use super::directory::Part;
use super::fault::LocalError;
use super::state::{instant, readable};
use super::transaction::Transaction;
use crate::clock::wall;
use crate::lock::machine::{self, Lock};
use crate::lock::{
    Expiry, Fence, Holder, LockState, Recorded, RunEnd, RunUnderWay, Share, Shares, SlotCount, StateKind, Token,
};
use crate::store::{LockStatus, Waiter};

impl Transaction<'_> {
    /// Returns the holders and the waiters that are alive.
    pub fn status(&mut self) -> Result<LockStatus, LocalError> {
        let seen = self.state.lock.seen(&self.world);
        self.world.failure()?;
        let told = seen.queue.iter().filter_map(|waiter| Some((waiter.token.told()?, waiter)));
        let queue = told.enumerate().map(|(at, (told, waiter))| Waiter {
            position: at + 1,
            id: told.id,
            owner: told.owner,
            waiting: Duration::from_micros(self.world.now.saturating_sub(waiter.ticket)),
            reason: told.reason,
            terms: told.terms,
        });
        let (state, recorded) = (self.state_of(&seen), Some(self.recorded()));
        Ok(LockStatus { queue: queue.collect(), state, knows_waiters: true, recorded })
    }

    pub fn recorded(&self) -> Recorded {
        let lock = &self.state.lock;
        let over = lock.history(&self.world).iter().filter_map(readable).collect();
        // Until there is an end, a note is as that of a run which vanished.
        let noted = lock.under_way(&self.world).into_iter();
        let noted = noted.map(|(who, begun)| machine::Run { who, begun, ended: None, end: RunEnd::VANISHED });
        let under_way = noted.filter_map(|run| readable(&run)).map(RunUnderWay::from).collect();
        Recorded::of(over, under_way, [lock.runs.done.as_ref().and_then(readable), None], wall())
    }

    /// Returns who holds the lock after a step.
    pub fn lock_state(&self) -> LockState {
        self.state_of(&self.state.lock)
    }

    fn state_of(&self, lock: &Lock<Token>) -> LockState {
        let fence = Some(Fence(lock.fence)).filter(|fence| fence.0 > 0);
        let Some((token, holder)) = lock.holders.iter().next() else { return LockState::free(fence) };
        if lock.generation.is_some() {
            return self.shared(lock, fence);
        }
        let by = self.by(token, holder);
        let kind = match (holder.reserved, &by) {
            (Some(_), _) => StateKind::Reserved,
            (None, Some(_)) => StateKind::Held,
            (None, None) => StateKind::Foreign,
        };
        LockState { kind, holder: by, expiry: self.expiry(token, holder), ..LockState::free(fence) }
    }

    fn shared(&self, lock: &Lock<Token>, fence: Option<Fence>) -> LockState {
        let share = |(token, holder): (&Token, &machine::Holder)| {
            Some(Share {
                holder: self.by(token, holder)?,
                expiry: self.expiry(token, holder),
                fence: Some(Fence(holder.fence)),
                slot: holder.slot,
                is_claimed: holder.reserved.is_none(),
            })
        };
        let mut held: Vec<Share> = lock.holders.iter().filter_map(share).collect();
        held.sort_by_key(|share| (share.slot, Reverse(share.holder.held)));
        let least = lock.holders.values().filter_map(|holder| SlotCount::of(holder.limit)).min();
        let shares = Shares { held, taken: lock.holders.len(), slots: least };
        let expiry = match lock.holders.values().map(|holder| self.left(holder)).max() {
            Some(_) if lock.holders.keys().any(|token| self.world.in_use.contains_key(token)) => Expiry::WithCommand,
            Some(last) => Expiry::In(last),
            None => Expiry::Unknown,
        };
        LockState { kind: StateKind::Shared, expiry, shares: Some(shares), ..LockState::free(fence) }
    }

    /// Returns who has a claim.
    fn by(&self, token: &Token, holder: &machine::Holder) -> Option<Holder> {
        let is_orphaned = self.world.in_use.get(token).is_some_and(|claim| claim.is_orphaned);
        token.told().map(|told| {
            let since = instant(holder.since).unwrap_or(told.born);
            let granted = self.state.bindings.get(token).map_or(self.world.now, |binding| binding.granted);
            let held = Duration::from_micros(self.world.now.saturating_sub(granted));
            let orphaned = is_orphaned.then(|| self.world.files.path(Part::Commands));
            Holder { orphaned, ..Holder::of(told, since, held) }
        })
    }

    /// Returns when a claim ends.
    fn expiry(&self, token: &Token, holder: &machine::Holder) -> Expiry {
        let in_use = self.world.in_use.get(token);
        in_use.map_or_else(|| Expiry::In(self.left(holder)), |_| Expiry::WithCommand)
    }

    fn left(&self, holder: &machine::Holder) -> Duration {
        let end = holder.end.unwrap_or(u64::MAX).saturating_mul(1000);
        Duration::from_micros(end.saturating_sub(self.world.now))
    }
}
