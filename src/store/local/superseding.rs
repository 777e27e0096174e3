//! The waiters of which only the newest stays in the queue: a file of those that wait, with the one that dismissed each.
//!
//! Each of them watches the file. An entry stays until its waiter has asked and leaves, or is dead: a waiter that was
//! dismissed never joins the queue again, however late it asks.

use super::directory::Part;
use super::fault::LocalError;
use super::lines::Lines;
use super::record::Superseder;
use super::transaction::{Request, Response, Transaction};
use crate::lock::Token;

pub type Superseders = Lines<Superseder>;

impl Transaction<'_> {
    /// Forgets a waiter that learns of its dismissal.
    pub(super) fn knows_of_its_dismissal(&mut self, ask: &mut Request<'_>, by: Token) -> Result<Response, LocalError> {
        // Before anything is forgotten: it is told who has the lock, and asks again after an error.
        self.settle()?;
        self.no_longer_waits(ask.token)?;
        *ask.waiting = None;
        Ok(Response::Superseded(by))
    }

    /// Returns the token that has dismissed a waiter.
    pub(super) fn dismissed_by(&self, token: &Token) -> Result<Option<Token>, LocalError> {
        if !token.supersedes() {
            return Ok(None);
        }
        Ok(self.superseders()?.find(token).and_then(|entry| entry.by.clone()))
    }

    /// Dismisses the older waiters of this kind. If there is a newer one, returns its token instead: it dismisses this
    /// one. `ticket` is the waiter's, none if it is granted the lock without having waited.
    pub(super) fn supersede(&mut self, token: &Token, ticket: Option<u64>) -> Result<Option<Token>, LocalError> {
        if !token.supersedes() {
            return Ok(None);
        }
        let mut all = self.superseders()?;
        let others: Vec<Superseder> = all.all().filter(|entry| entry.token != *token).cloned().collect();
        let mut older = Vec::new();
        let mut newer = None;
        for other in others {
            match ticket {
                _ if !self.waiters.lives(other.ticket)? => all.remove(&other.token)?,
                _ if other.by.is_some() => {}
                Some(ticket) if ticket < other.ticket => newer = Some(other.token),
                _ => older.push(other),
            }
        }
        // Before the others are dismissed: the disk may be full.
        if let Some(ticket) = ticket
            && all.find(token).is_none_or(|entry| entry.by != newer)
        {
            all.put(self.directory, Superseder { ticket, token: token.clone(), by: newer.clone() })?;
        }
        for other in older {
            self.waiters.remove(&other.token)?;
            all.put(self.directory, Superseder { by: Some(token.clone()), ..other })?;
        }
        Ok(newer)
    }

    /// Removes a waiter that has the lock now, or has left.
    pub(super) fn no_longer_waits(&self, token: &Token) -> Result<(), LocalError> {
        if token.supersedes() { self.superseders()?.remove(token) } else { Ok(()) }
    }

    pub(super) fn superseders(&self) -> Result<Superseders, LocalError> {
        Superseders::read(self.directory, self.directory.file(&self.record.key, Part::Superseded))
    }
}
