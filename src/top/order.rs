//! Filters and sorts the locks shown.

use std::cmp::Reverse;
use std::time::Duration;

use crate::lock::words;
use crate::report::Row;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// In the order of the command line.
    AsNamed,
    Name,
    /// Longest held first.
    Held,
    /// Lease that ends soonest first.
    Lease,
    /// Most waiters first.
    Waiting,
}

impl Sort {
    pub fn next(self, named: bool) -> Sort {
        match self {
            Sort::Name => Sort::Held,
            Sort::Held => Sort::Lease,
            Sort::Lease => Sort::Waiting,
            Sort::Waiting if named => Sort::AsNamed,
            Sort::Waiting | Sort::AsNamed => Sort::Name,
        }
    }
}

/// Returns the indices of the rows that contain `filter`, sorted.
pub fn order(rows: &[Row], sort: Sort, filter: &str) -> Vec<usize> {
    let wanted = filter.to_lowercase();
    let mut shown: Vec<usize> = (0..rows.len()).filter(|row| fits(&rows[*row], &wanted)).collect();
    let status = |row: &usize| &rows[*row].status;
    match sort {
        Sort::AsNamed => {}
        Sort::Name => shown.sort_by(|a, b| rows[*a].lock.name.compare(&rows[*b].lock.name)),
        Sort::Held => {
            shown.sort_by_key(|row| Reverse(status(row).state.holders().map(|holder| holder.held).max()));
        }
        // A lock that does not end, or is not known to, comes last.
        Sort::Lease => shown.sort_by_key(|row| status(row).state.expiry.left().unwrap_or(Duration::MAX)),
        Sort::Waiting => shown.sort_by_key(|row| Reverse(status(row).queue.len())),
    }
    shown
}

/// Returns whether the name, the holder or the reason contains `wanted`, which is in lower case.
fn fits(row: &Row, wanted: &str) -> bool {
    let has = |text: &str| text.to_lowercase().contains(wanted);
    wanted.is_empty()
        || has(row.lock.name.as_str())
        || row.status.state.holders().any(|holder| {
            has(&words::process(&holder.owner)) || holder.reason.as_ref().is_some_and(|reason| has(reason.raw()))
        })
}
