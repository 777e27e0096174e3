//! The shares of a lock in a transaction: who joins those that hold it together, and who leaves them.
//!
//! Each write may be the last before a kill. The order of the writes therefore never makes more of what was granted:
//!
//! - begin: the share, of a generation that the record does not name yet; then the record, which names it.
//! - join: the record with a higher fence, for a slot; then the share.
//! - leave: the blank line; then the record, if that was the last share.
//!
//! A shared record without living shares is that of a free lock.

use super::commands;
use super::directory::Part;
use super::fault::LocalError;
use super::record::{Grant, Life, Share, State};
use super::shares::Shares;
use super::transaction::{End, Granted, HolderFile, InUse, Request, Transaction};
use crate::lock::{Fence, Shares as Occupancy, Sharing, Slot, Token};

/// Maximum number of watched processes that a waiter waits for; beyond that, it polls.
const WATCHED: usize = 64;

impl Transaction<'_> {
    /// Reads the shares, and forgets those that have ended, without writing.
    pub(super) fn read_shares(&mut self) -> Result<(), LocalError> {
        let mut shares = Shares::read(self.directory, self.directory.file(&self.record.key, Part::Shares))?;
        let (mut over, mut lasting): (Vec<Token>, Vec<(Token, u64)>) = Default::default();
        for share in shares.all() {
            let token = &share.grant.token;
            if self.record.state != State::Shared(share.generation) {
                over.push(token.clone());
                continue;
            }
            match self.end(
                &share.grant,
                || shares.is_kept(share.number),
                || self.is_in_use(commands::byte_of_share(share.number)),
            )? {
                End::Come => {
                    if share.grant.reserved.is_some() && share.grant.until <= self.now {
                        self.late.push(token.clone());
                    }
                    over.push(token.clone());
                }
                End::Lasts(until) => lasting.push((token.clone(), until)),
                End::Awaited(process) => self.awaited.extend(process.filter(|_| self.awaited.len() < WATCHED)),
                End::InUse { is_orphaned } => {
                    self.in_use.push(InUse { byte: commands::byte_of_share(share.number), is_orphaned });
                }
            }
        }
        shares.forget(|share| over.contains(&share.grant.token));
        for share in shares.lines.iter_mut().flatten() {
            if let Some((_, until)) = lasting.iter().find(|(token, _)| *token == share.grant.token) {
                share.grant.becomes_lease(*until);
            }
        }
        if shares.is_empty() && matches!(self.record.state, State::Shared(_)) {
            self.record.state = State::Free;
        }
        self.shares = Some(shares);
        Ok(())
    }

    pub(super) fn shares(&self) -> impl Iterator<Item = &Share> {
        self.shares.iter().flat_map(Shares::all)
    }

    pub(super) fn share_of(&self, token: &Token) -> Option<&Share> {
        self.shares.as_ref()?.find(token)
    }

    /// Returns how many hold the lock together, and the least limit of them.
    pub(super) fn occupancy(&self) -> Occupancy {
        self.shares.as_ref().map(Shares::occupancy).unwrap_or_default()
    }

    /// Returns when enough of the shares may have expired for a waiter: one, or all for an exclusive lock. Those whose
    /// leases have ended are kept by processes.
    pub(super) fn shares_until(&self, sharing: Sharing) -> Option<u64> {
        let ends = self.shares().map(|share| share.grant.until).filter(|until| *until > self.now);
        if sharing == Sharing::Exclusive { ends.max() } else { ends.min() }
    }

    /// Adds the requester to those who hold the lock together, or begins a generation with it.
    pub(super) fn join(&mut self, ask: &mut Request<'_>) -> Result<Granted, LocalError> {
        let grant = self.grant_to(ask);
        let keep = |transaction: &Self, number| transaction.keep_share(ask, number);
        let share = match self.record.state {
            State::Shared(generation) => self.add_share(generation, grant, keep)?,
            // The reservation has a fence of its own.
            State::Held(_) => self.begin_generation(self.record.fence, grant, keep)?,
            State::Free => self.begin_generation(self.next_fence(), grant, keep)?,
        };
        self.waiters.remove(&share.grant.token)?;
        Ok(granted(&share))
    }

    /// Claims a share that this token already has, or that is reserved for it.
    pub(super) fn claim_share(&mut self, ask: &mut Request<'_>) -> Result<Granted, LocalError> {
        let Some(mut share) = self.share_of(ask.token).cloned() else { return self.join(ask) };
        self.keep_share(ask, share.number)?;
        share.grant.is_claimed(&self.grant_to(ask));
        self.put_share(share.clone())?;
        self.waiters.remove(ask.token)?;
        Ok(granted(&share))
    }

    /// Blanks the shares that have ended.
    pub(super) fn blank_ended_shares(&mut self) -> Result<(), LocalError> {
        self.shares.as_mut().map_or(Ok(()), Shares::blank_forgotten)
    }

    /// Changes the share of a token.
    pub(super) fn change_share(&mut self, token: &Token, change: impl FnOnce(&mut Grant)) -> Result<(), LocalError> {
        let Some(mut share) = self.share_of(token).cloned() else { return Ok(()) };
        change(&mut share.grant);
        self.put_share(share)
    }

    /// Removes the share of a token. The record is still to be written if that was the last one.
    pub(super) fn remove_share(&mut self, token: &Token) -> Result<(), LocalError> {
        if let Some(shares) = &mut self.shares {
            shares.remove(token)?;
            if shares.is_empty() {
                self.record.state = State::Free;
            }
        }
        Ok(())
    }

    /// Writes the first share of a new generation. `keep` binds it to a process before the file says that it is.
    fn begin_generation(
        &mut self,
        fence: u64,
        grant: Grant,
        keep: impl FnOnce(&Self, u64) -> Result<(), LocalError>,
    ) -> Result<Share, LocalError> {
        if self.shares.is_none() {
            self.read_shares()?;
        }
        let share = self.new_share((fence, fence), grant)?;
        keep(self, share.number)?;
        self.put_share(share.clone())?;
        self.change_hands(fence, State::Shared(fence))?;
        Ok(share)
    }

    /// Adds a share to those of a generation.
    pub(super) fn add_share(
        &mut self,
        generation: u64,
        grant: Grant,
        keep: impl FnOnce(&Self, u64) -> Result<(), LocalError>,
    ) -> Result<Share, LocalError> {
        let mut fence = generation;
        // Above that of whoever had the slot before. Shares without a slot do not refuse each other.
        if grant.token.sharing() != Sharing::Shared {
            fence = self.next_fence();
            self.change_hands(fence, State::Shared(generation))?;
        }
        let share = self.new_share((generation, fence), grant)?;
        keep(self, share.number)?;
        self.put_share(share.clone())?;
        Ok(share)
    }

    fn new_share(&mut self, (generation, fence): (u64, u64), grant: Grant) -> Result<Share, LocalError> {
        let (directory, now) = (self.directory, self.now);
        let Some(shares) = &mut self.shares else { return Err(LocalError::unread()) };
        shares.file(directory)?;
        shares.blank_forgotten()?;
        let slot = match grant.token.sharing() {
            Sharing::Slots(_) => Some(shares.free_slot()),
            Sharing::Shared | Sharing::Exclusive => None,
        };
        let Some(shares) = &self.shares else { return Err(LocalError::unread()) };
        let number = shares.free_number(now, |number| self.is_in_use(commands::byte_of_share(number)))?;
        Ok(Share { generation, number, fence, slot, grant })
    }

    fn put_share(&mut self, share: Share) -> Result<(), LocalError> {
        match &mut self.shares {
            Some(shares) => shares.put(self.directory, share),
            None => Err(LocalError::unread()),
        }
    }

    /// Binds a share to the process that asks for it.
    fn keep_share(&self, ask: &mut Request<'_>, number: u64) -> Result<(), LocalError> {
        let is_kept = ask.held.as_ref().is_some_and(|held| held.byte == number);
        if is_kept || ask.life == Life::Lease {
            return Ok(());
        }
        let Some(shares) = &self.shares else { return Err(LocalError::unread()) };
        let (commands, command_byte) = (self.file_of(Part::Commands), commands::byte_of_share(number));
        let file = shares.keep(self.directory, number)?;
        *ask.held = Some(HolderFile { file, byte: number, commands, command_byte });
        Ok(())
    }
}

fn granted(share: &Share) -> Granted {
    let slot = match share.sharing() {
        Sharing::Slots(of) => share.slot.map(|number| Slot { number, of }),
        Sharing::Shared | Sharing::Exclusive => None,
    };
    Granted { fence: Fence(share.fence), slot }
}
