//! Who holds the lock together, as the server has it and as the clients believe, and what that must be.

use super::{Client, FOREIGN, Phase, Server, Setting, State, World};
use crate::token::Token;

/// Nobody has a higher limit here.
const SLOTS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub token: Token,
    pub fence: u64,
    pub slot: Option<u16>,
}

/// Returns who has the lock, or a share of it whose lease runs, or for whom it is reserved.
pub(super) fn holders(server: &Server) -> Vec<Held> {
    holders_after(server, server.now())
}

/// Returns who has the lock, or a share of it that ends later than at this instant, or for whom it is reserved.
pub(super) fn holders_after(server: &Server, now: u64) -> Vec<Held> {
    let is_shared = server.lock.generation.is_some();
    let runs = |end: Option<u64>| !is_shared || end.is_none_or(|end| end > now);
    let ours = server.lock.holders.iter().filter(|(token, holder)| token.is_ours() && runs(holder.end));
    // The number of the slot is no news for an exclusive holder.
    let slot = |token: &Token, slot: Option<u16>| slot.filter(|_| token.limit != 1);
    ours.map(|(token, holder)| Held { token: *token, fence: holder.fence, slot: slot(token, holder.slot) }).collect()
}

pub(super) fn holds(server: &Server, token: Token) -> bool {
    holders(server).iter().any(|held| held.token == token)
}

/// Returns how many may hold the lock while all of these do.
fn least(tokens: impl Iterator<Item = Token>) -> usize {
    tokens.map(|token| token.limit).filter(|limit| *limit > 0).min().map_or(usize::MAX, usize::from)
}

/// The highest fences that holders have had.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Fences {
    pub any: u64,
    pub exclusive: u64,
    pub slots: [u64; SLOTS],
}

impl Fences {
    /// An exclusive holder's fence is above all, that of a slot above those who had the slot, and all are above those of
    /// exclusive holders before.
    pub(super) fn rise(&mut self, held: &Held) -> Result<(), String> {
        let Held { token, fence, slot } = *held;
        let before = match (token.limit, slot) {
            (1, _) => std::mem::replace(&mut self.exclusive, fence).max(self.any),
            (_, Some(slot)) => {
                std::mem::replace(&mut self.slots[usize::from(slot).min(SLOTS - 1)], fence).max(self.exclusive)
            }
            (_, None) => self.exclusive,
        };
        if fence <= before {
            return Err(format!("{token:?} owns the lock with a fence that did not rise"));
        }
        self.any = self.any.max(fence);
        Ok(())
    }
}

impl World {
    /// No more believe that they hold the lock than the least of their limits, and no two have one slot. An outsider is
    /// exclusive.
    pub(super) fn keep_the_rule(&self) -> Result<(), String> {
        let now = self.server.now();
        let believes = |c: &&Client| c.phase == Phase::Holding && now < c.deadline && !c.voided;
        let believers = || self.clients.iter().filter(believes);
        let outsider = self.server.lock.holders.contains_key(&FOREIGN).then_some(FOREIGN);
        let count = believers().count() + usize::from(outsider.is_some());
        match least(believers().map(|c| c.token).chain(outsider)) {
            1 if count > 1 => return Err("two hold the lock".to_string()),
            least if count > least => return Err(format!("{count} hold the lock, which {least} may")),
            _ => {}
        }
        let is_twice = |slot| believers().filter(|c| c.slot == Some(slot)).count() > 1;
        match believers().filter_map(|c| c.slot).find(|slot| is_twice(*slot)) {
            Some(slot) => Err(format!("two have slot {slot}")),
            None => Ok(()),
        }
    }

    /// A grant says what the server has, and with a limit there is a slot below it.
    pub(super) fn is_granted(&self, token: Token, fence: u64, slot: Option<u16>) -> Result<(), String> {
        let is_known = !self.server.unknown.contains(&token);
        let held = self.server.lock.holders.get(&token);
        if !held.is_some_and(|held| held.fence == fence && held.slot == slot) {
            return Err(format!("{token:?} was granted with a fence or slot that is not the lock's"));
        }
        let is_one = slot.is_some() == (token.limit > 0) && slot.is_none_or(|slot| slot < token.limit);
        if is_known && !is_one {
            return Err(format!("{token:?} was granted the slot {slot:?} of {}", token.limit));
        }
        Ok(())
    }

    /// A refusal says how many hold the lock together, and the least of their limits.
    pub(super) fn refusal_says(&self, token: Token, state: &State<Token>, setting: &Setting) -> Result<(), String> {
        let held = holders(&self.server);
        let least = match least(held.iter().map(|held| held.token)) {
            usize::MAX => 0,
            least => least,
        };
        // A script that drops only some of what has expired counts the rest.
        let is_known = setting.batch.is_none() && self.knows_its_shares();
        if is_known && (state.count, usize::from(state.least)) != (held.len(), least) {
            return Err(format!("{token:?} was told of {state:?}, and {held:?} hold it"));
        }
        Ok(())
    }

    /// The lock is shared, and nothing of that was lost.
    fn knows_its_shares(&self) -> bool {
        let lock = &self.server.lock;
        let lost = lock.holders.values().any(|holder| holder.limit == 1);
        lock.generation.is_some() && !lost
    }

    /// Somebody runs and waits, and could hold the lock: it is free, or the first in line fits those who hold it. If
    /// those behind it watch, one who crashed is not the first.
    pub fn keeps_waiting(&self, setting: &Setting) -> bool {
        let runs = |c: &&Client| c.phase == Phase::Waiting && !c.frozen;
        let lock = &self.server.lock;
        if lock.holders.is_empty() {
            return self.clients.iter().any(|c| runs(&c));
        }
        if !self.knows_its_shares() {
            return false;
        }
        let leased = lock.queue.iter().filter(|waiter| waiter.is_leased(self.server.now()));
        let mut waiters = leased.filter_map(|w| self.clients.iter().find(|c| c.token == w.token));
        let first = waiters.find(|c| c.phase != Phase::Crashed || setting.watchers == 1);
        first.filter(runs).is_some_and(|c| {
            let held = holders(&self.server);
            c.token.limit != 1 && held.len() < least(held.iter().map(|held| held.token).chain([c.token]))
        })
    }
}
