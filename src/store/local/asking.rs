//! How a holder is asked to give up: a file of those that ask, each with the ID of the holder. The holder reads it when
//! it renews the lock.

use super::directory::Part;
use super::fault::LocalError;
use super::lines::Lines;
use super::transaction::Transaction;
use crate::lock::{Asker, HolderId, Token, Told};

pub type Askers = Lines<Asker>;

impl Transaction<'_> {
    /// Notes a request, in place of an earlier one to this holder, and forgets those to holders of the past.
    pub fn put_asker(&mut self, asker: &Asker) -> Result<(), LocalError> {
        let mut askers = self.askers()?;
        let over = self.over(&askers, &asker.of);
        askers.put(self.directory, asker.clone())?;
        over.iter().filter(|other| other.by != asker.by).try_for_each(|other| askers.remove(&other.by))
    }

    /// Returns who asks this holder, and forgets that request and those to holders of the past.
    pub fn take_asker(&mut self, id: &HolderId) -> Result<Option<Told>, LocalError> {
        let mut askers = self.askers()?;
        let over = self.over(&askers, id);
        over.iter().try_for_each(|asker| askers.remove(&asker.by))?;
        Ok(over.iter().find(|asker| asker.of == *id).and_then(|asker| asker.by.told()))
    }

    /// Returns the requests to this holder, and to holders of the past.
    fn over(&self, askers: &Askers, id: &HolderId) -> Vec<Asker> {
        let is_over = |asker: &&Asker| asker.of == *id || self.token_of(&asker.of).is_none();
        askers.all().filter(is_over).cloned().collect()
    }

    pub fn remove_asker(&mut self, by: &Token) -> Result<(), LocalError> {
        self.askers()?.remove(by)
    }

    fn askers(&self) -> Result<Askers, LocalError> {
        Askers::read(self.directory, self.directory.file(&self.record.key, Part::Askers))
    }
}
