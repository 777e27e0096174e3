//! Polls the locks asked about: those named, or all that exist.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::Error;
use crate::lock::{LockName, Prefix};
use crate::report::{Named, Row};
use crate::retry;
use crate::store::{LockStatus, ScanCursor, Store};

/// The locks asked about.
pub struct Subject {
    /// In the order of the command line; none for all that exist.
    pub named: Option<Vec<Named>>,
    pub prefix: Prefix,
    /// Bound on inspecting one lock, or on listing one page of all.
    pub timeout: Duration,
}

impl Subject {
    /// Returns the status of the locks, in the order of the command line or by name. Calls `found` with the number of
    /// locks so far.
    ///
    /// # Errors
    /// If the status of any lock cannot be determined.
    pub fn look(&self, store: &mut dyn Store, found: &mut dyn FnMut(usize)) -> Result<Vec<Row>, Error> {
        let Some(named) = &self.named else { return self.list_page(store, found) };
        let row = |lock: &Named| {
            let status = retry::insist(self.timeout, |limit| store.inspect(&lock.name, limit))?;
            Ok(Row { lock: lock.clone(), status })
        };
        named.iter().map(row).collect()
    }

    fn list_page(&self, store: &mut dyn Store, found: &mut dyn FnMut(usize)) -> Result<Vec<Row>, Error> {
        let mut cursor = ScanCursor::default();
        let mut all: BTreeMap<LockName, LockStatus> = BTreeMap::new();
        while let Some(page) = retry::insist(self.timeout, |limit| store.list_page(&mut cursor, limit))? {
            for (name, status) in page {
                // A lock released since it was listed leaves the list.
                match status.is_free() {
                    true => all.remove(&name),
                    false => all.insert(name, status),
                };
            }
            found(all.len());
        }
        let row = |(name, status)| Row { lock: Named::new(&name, &self.prefix), status };
        Ok(all.into_iter().map(row).collect())
    }
}
