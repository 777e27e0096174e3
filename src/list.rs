//! One look at the locks that are asked about: those that are named, or all that there are.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::Error;
use crate::lock::{LockName, Prefix};
use crate::report::{Named, Row};
use crate::retry;
use crate::store::{LockStatus, ScanCursor, Store};

/// What is asked about.
pub struct Subject {
    /// In the order asked for; none for all that exist.
    pub named: Option<Vec<Named>>,
    pub prefix: Prefix,
    /// Bound on finding out about one of them, or about one page of all.
    pub timeout: Duration,
}

impl Subject {
    /// How they stand: in the order asked for, or in that of their names. `found` is told how many there are so far.
    ///
    /// # Errors
    /// If it cannot be found out about any of them.
    pub fn look(&self, store: &mut dyn Store, found: &mut dyn FnMut(usize)) -> Result<Vec<Row>, Error> {
        let Some(named) = &self.named else { return self.list_page(store, found) };
        let row = |lock: &Named| {
            let status = retry::insist(self.timeout, |limit| store.inspect(&lock.name, limit))?;
            Ok(Row { lock: lock.clone(), status })
        };
        named.iter().map(row).collect()
    }

    fn list_page(&self, store: &mut dyn Store, found: &mut dyn FnMut(usize)) -> Result<Vec<Row>, Error> {
        let mut list_page = ScanCursor::default();
        let mut all: BTreeMap<LockName, LockStatus> = BTreeMap::new();
        while let Some(page) = retry::insist(self.timeout, |limit| store.list_page(&mut list_page, limit))? {
            for (name, status) in page {
                // One that went free since it was listed is no longer of the list.
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
