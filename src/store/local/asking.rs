//! How a holder is asked to give up: a file of those that ask, each with the ID of the holder. The holder reads it when
//! it renews the lock.

use super::directory::Part;
use super::fault::LocalError;
use super::lines::Lines;
use super::record::Asker;
use super::transaction::Transaction;
use crate::lock::{HolderId, Token, Told};

pub type Askers = Lines<Asker>;

impl Transaction<'_> {
    /// Notes who asks a holder, in place of an earlier one, and forgets whoever asked a holder of the past.
    pub fn put_asker(&mut self, id: &HolderId, by: &Token) -> Result<(), LocalError> {
        let mut askers = self.askers()?;
        let is_over = |asker: &&Asker| asker.of == *id || self.token_of(&asker.of).is_none();
        let over = askers.all().filter(is_over).map(|asker| asker.by.clone()).filter(|other| other != by);
        let over: Vec<Token> = over.collect();
        askers.put(self.directory, Asker { of: id.clone(), by: by.clone() })?;
        over.iter().try_for_each(|by| askers.remove(by))
    }

    /// Returns who asks this holder, and forgets it, and whoever asked a holder of the past.
    pub fn take_asker(&mut self, id: &HolderId) -> Result<Option<Told>, LocalError> {
        let mut askers = self.askers()?;
        let is_over = |asker: &&Asker| asker.of == *id || self.token_of(&asker.of).is_none();
        let over: Vec<Asker> = askers.all().filter(is_over).cloned().collect();
        over.iter().try_for_each(|asker| askers.remove(&asker.by))?;
        let by = over.iter().find(|asker| asker.of == *id);
        Ok(by.and_then(|asker| Token::read(asker.by.as_str().as_bytes())))
    }

    pub fn remove_asker(&mut self, by: &Token) -> Result<(), LocalError> {
        self.askers()?.remove(by)
    }

    fn askers(&self) -> Result<Askers, LocalError> {
        Askers::read(self.directory, self.directory.file(&self.record.key, Part::Askers))
    }
}
