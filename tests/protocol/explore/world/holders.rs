//! Who holds the lock together, as the server has it and as the clients believe, and what that must be.

use super::{Client, FOREIGN, Phase, Setting, World};
use crate::model::{Model, Token};
use crate::setnx::STALE;
use crate::shares::{SHARED, Taken, limit};

/// Nobody has a higher limit here.
const SLOTS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub token: Token,
    pub fence: u64,
    pub slot: Option<usize>,
}

/// Returns who has the lock, or a share of it whose lease runs, or for whom it is reserved.
pub(super) fn holders(server: &Model) -> Vec<Held> {
    holders_after(server, server.now())
}

/// Returns who has the lock, or a share of it that ends later than at this instant, or for whom it is reserved.
pub(super) fn holders_after(server: &Model, now: u64) -> Vec<Held> {
    let shares = &server.shares;
    match server.value() {
        None | Some(FOREIGN | STALE) => Vec::new(),
        Some(SHARED) => {
            let running = shares.ends.is.iter().filter(|(_, end)| **end > now);
            let held = running.map(|(token, _)| {
                let terms = shares.terms.is.get(token);
                let fence = terms.map_or(shares.generation, |terms| terms.fence);
                Held { token: *token, fence, slot: terms.and_then(|terms| terms.slot) }
            });
            held.collect()
        }
        Some(token) => vec![Held { token, fence: server.fence(), slot: None }],
    }
}

pub(super) fn holds(server: &Model, token: Token) -> bool {
    match server.value() {
        Some(SHARED) => server.shares.ends.is.get(&token).is_some_and(|end| *end > server.now()),
        value => value == Some(token),
    }
}

/// Returns how many may hold the lock while all of these do.
fn least(tokens: impl Iterator<Item = Token>) -> usize {
    let limits = tokens.map(|token| limit(token).unwrap_or(1));
    limits.filter(|limit| *limit > 0).min().unwrap_or(usize::MAX)
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
        let before = match (limit(token), slot) {
            (None, _) => std::mem::replace(&mut self.exclusive, fence).max(self.any),
            (Some(_), Some(slot)) => std::mem::replace(&mut self.slots[slot.min(SLOTS - 1)], fence).max(self.exclusive),
            (Some(_), None) => self.exclusive,
        };
        if fence <= before {
            return Err(format!("{token} owns the lock with a fence that did not rise"));
        }
        self.any = self.any.max(fence);
        Ok(())
    }
}

impl World {
    /// No more believe that they hold the lock than the least of their limits, and no two have one slot. An outsider is
    /// exclusive.
    pub(super) fn keep_the_rule(&self) -> Result<(), String> {
        let now = self.model.now();
        let believes = |c: &&Client| c.phase == Phase::Holding && now < c.deadline && !c.voided;
        let believers = || self.clients.iter().filter(believes);
        let outsider = self.model.value().filter(|value| *value == FOREIGN);
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

    /// A grant tells what the server has, and with a limit there is a slot below it.
    pub(super) fn is_granted(&self, token: Token, fence: u64, slot: Option<usize>) -> Result<(), String> {
        if !holders(&self.model).contains(&Held { token, fence, slot }) {
            return Err(format!("{token} was granted with a fence or slot that is not the lock's"));
        }
        let slots = limit(token).unwrap_or(0);
        if slot.is_some() != (slots > 0) || slot.is_some_and(|slot| slot >= slots) {
            return Err(format!("{token} was granted the slot {slot:?} of {slots}"));
        }
        Ok(())
    }

    /// A refusal tells how many hold the lock together, and the least of their limits.
    pub(super) fn is_told(&self, token: Token, taken: Taken, setting: &Setting) -> Result<(), String> {
        let held = holders(&self.model);
        let least = match least(held.iter().map(|held| held.token)) {
            usize::MAX => 0,
            least => least,
        };
        // A script that drops only some of what has expired counts the rest.
        if setting.batch.is_none() && self.knows_its_shares() && (taken.count, taken.least) != (held.len(), least) {
            return Err(format!("{token} was told of {taken:?}, and {held:?} hold it"));
        }
        Ok(())
    }

    /// The lock is shared, and nothing of that was lost.
    fn knows_its_shares(&self) -> bool {
        let shares = &self.model.shares;
        self.model.value() == Some(SHARED) && !shares.ends.is.is_empty() && shares.state.is_some()
    }

    /// Somebody runs and waits, and could hold the lock: it is free, or the first in line fits those who hold it. If
    /// those behind it watch, one who crashed is not the first.
    pub fn keeps_waiting(&self, setting: &Setting) -> bool {
        let runs = |c: &&Client| c.phase == Phase::Waiting && !c.frozen;
        if self.model.value().is_none() {
            return self.clients.iter().any(|c| runs(&c));
        }
        if !self.knows_its_shares() {
            return false;
        }
        let leased = self.model.queue.is.iter().filter(|w| self.model.leased(w.1).is_some());
        let mut waiters = leased.filter_map(|w| self.clients.iter().find(|c| c.token == w.1));
        let first = waiters.find(|c| c.phase != Phase::Crashed || setting.watchers == 1);
        first.filter(runs).is_some_and(|c| {
            let held = holders(&self.model);
            limit(c.token).is_some() && held.len() < least(held.iter().map(|held| held.token).chain([c.token]))
        })
    }
}
