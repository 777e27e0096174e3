//! One look at the locks that are asked about: those that are named, or all that there are.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::lock::{LockName, Prefix};
use crate::report::{Named, Row};
use crate::store::{Standing, Store, Survey, Trouble};
use crate::wait;

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
    pub fn look(&self, store: &mut dyn Store, found: &mut dyn FnMut(usize)) -> Result<Vec<Row>, Trouble> {
        let Some(named) = &self.named else { return self.survey(store, found) };
        let row = |lock: &Named| {
            let standing = wait::insist(self.timeout, |limit| store.inspect(&lock.name, limit))?;
            Ok(Row { lock: lock.clone(), standing })
        };
        named.iter().map(row).collect()
    }

    fn survey(&self, store: &mut dyn Store, found: &mut dyn FnMut(usize)) -> Result<Vec<Row>, Trouble> {
        let mut survey = Survey::default();
        let mut all: BTreeMap<LockName, Standing> = BTreeMap::new();
        while let Some(page) = wait::insist(self.timeout, |limit| store.survey(&mut survey, limit))? {
            for (name, standing) in page {
                // One that went free since it was listed is no longer of the list.
                match standing.is_free() {
                    true => all.remove(&name),
                    false => all.insert(name, standing),
                };
            }
            found(all.len());
        }
        let row = |(name, standing)| Row { lock: Named::new(&name, &self.prefix), standing };
        Ok(all.into_iter().map(row).collect())
    }
}
