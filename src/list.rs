//! Polls the locks asked about: those named, or all that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::error::Error;
use crate::lock::{LockName, Prefix};
use crate::report::{History, Named, Row};
use crate::store::{Listed, LockStatus, Look, ScanCursor, Store};
use crate::{log, retry};

/// The locks asked about.
pub struct Subject {
    /// In the order of the command line; none for all that exist.
    pub named: Option<Vec<Named>>,
    pub prefix: Prefix,
    /// Bound on inspecting one lock, or on listing one page of all.
    pub timeout: Duration,
}

/// The status of the locks asked about.
pub struct Seen {
    /// In the order of the command line, or by name.
    pub rows: Vec<Row>,
    /// Warnings about all of them: that a replica shows them, or that something of them is not known.
    pub doubts: Vec<String>,
}

impl Subject {
    /// Returns the status of the locks. Calls `found` with the number of locks so far.
    ///
    /// # Errors
    /// If the status of any lock cannot be determined.
    pub fn look(&self, store: &mut dyn Store, found: &mut dyn FnMut(usize)) -> Result<Seen, Error> {
        let rows = self.rows(store, found)?;
        if self.doubts(store)?.is_empty() {
            return Ok(Seen { rows, doubts: Vec::new() });
        }
        // A replica may have shown rows of any age before it said that it hears from its master.
        let rows = self.rows(store, found)?;
        Ok(Seen { rows, doubts: self.doubts(store)? })
    }

    /// Returns the store's doubts, with retries.
    fn doubts(&self, store: &mut dyn Store) -> Result<Vec<String>, Error> {
        retry::insist(self.timeout, |limit| store.doubts(limit))
    }

    fn rows(&self, store: &mut dyn Store, found: &mut dyn FnMut(usize)) -> Result<Vec<Row>, Error> {
        let Some(named) = &self.named else { return self.list_page(store, found) };
        let row = |lock: &Named| {
            let status = retry::insist(self.timeout, |limit| store.look(&lock.name, Look::All, limit))?;
            Ok(Row { lock: lock.clone(), status })
        };
        named.iter().map(row).collect()
    }

    /// Returns the recorded runs of a lock.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn history(&self, store: &mut dyn Store, lock: &Named) -> Result<History, Error> {
        let recorded = retry::insist(self.timeout, |limit| store.history(&lock.name, limit))?;
        Ok(History { lock: lock.clone(), recorded })
    }

    /// Returns those of the locks asked about, in the same order, and warnings about all of them; of all locks, the
    /// histories of those that have any.
    ///
    /// # Errors
    /// If none can be read, or one that was named.
    pub fn histories(&self, store: &mut dyn Store) -> Result<(Vec<History>, Vec<String>), Error> {
        self.doubts(store)?;
        let histories = match &self.named {
            Some(named) => named.iter().map(|lock| self.history(store, lock)).collect::<Result<_, _>>()?,
            None => self.all_histories(store)?,
        };
        Ok((histories, self.doubts(store)?))
    }

    fn all_histories(&self, store: &mut dyn Store) -> Result<Vec<History>, Error> {
        let (mut cursor, mut names) = (ScanCursor::default(), BTreeSet::new());
        while let Some(page) = retry::insist(self.timeout, |limit| store.page(Listed::Histories, &mut cursor, limit))? {
            names.extend(page.into_iter().map(|(name, _)| name));
        }
        let mut names: Vec<LockName> = names.into_iter().collect();
        names.sort_by(LockName::compare);
        let (mut histories, mut unread) = (Vec::new(), Vec::new());
        for name in &names {
            match self.history(store, &Named::new(name, &self.prefix)) {
                // All of them have been forgotten since.
                Ok(history) if history.recorded.is_empty() => {}
                Ok(history) => histories.push(history),
                // One that is damaged does not hide the others.
                Err(error) if !error.is_retryable() => unread.push(error),
                Err(error) => return Err(error),
            }
        }
        if histories.is_empty() && !unread.is_empty() {
            return Err(unread.swap_remove(0));
        }
        for error in unread {
            log::warn(format_args!("{error}; {}", error.hint));
        }
        Ok(histories)
    }

    fn list_page(&self, store: &mut dyn Store, found: &mut dyn FnMut(usize)) -> Result<Vec<Row>, Error> {
        let mut cursor = ScanCursor::default();
        let mut all: BTreeMap<LockName, LockStatus> = BTreeMap::new();
        while let Some(page) = retry::insist(self.timeout, |limit| store.page(Listed::Locks, &mut cursor, limit))? {
            for (name, status) in page {
                // A lock released since it was listed leaves the list, unless there is more to say of it.
                match status.filter(|status| !status.is_free() || status.has_record()) {
                    None => all.remove(&name),
                    Some(status) => all.insert(name, status),
                };
            }
            found(all.len());
        }
        let row = |(name, status)| Row { lock: Named::new(&name, &self.prefix), status };
        let mut rows: Vec<Row> = all.into_iter().map(row).collect();
        rows.sort_by(|a, b| a.lock.name.compare(&b.lock.name));
        Ok(rows)
    }
}
