//! Which of the locks are shown, and in what order.

use std::cmp::Reverse;
use std::time::Duration;

use crate::lock::words;
use crate::report::Row;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// In the order asked for.
    AsNamed,
    Name,
    /// Who has held longest comes first.
    Held,
    /// Whose lease ends soonest.
    Lease,
    /// For whom most wait.
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

/// The places of those that have `filter` in them, sorted.
pub fn order(rows: &[Row], sort: Sort, filter: &str) -> Vec<usize> {
    let wanted = filter.to_lowercase();
    let mut shown: Vec<usize> = (0..rows.len()).filter(|row| fits(&rows[*row], &wanted)).collect();
    let status = |row: &usize| &rows[*row].status;
    match sort {
        Sort::AsNamed => {}
        Sort::Name => shown.sort_by(|a, b| rows[*a].lock.name.cmp(&rows[*b].lock.name)),
        Sort::Held => {
            shown.sort_by_key(|row| Reverse(status(row).state.holder.as_ref().map(|holder| holder.held)));
        }
        // Without end comes last.
        Sort::Lease => shown.sort_by_key(|row| status(row).state.ttl.unwrap_or(Duration::MAX)),
        Sort::Waiting => shown.sort_by_key(|row| Reverse(status(row).queue.len())),
    }
    shown
}

/// Whether it has these words in its name, its holder or the reason. They are in small letters.
fn fits(row: &Row, wanted: &str) -> bool {
    let holder = row.status.state.holder.as_ref();
    let has = |text: &str| text.to_lowercase().contains(wanted);
    wanted.is_empty()
        || has(row.lock.name.as_str())
        || holder.is_some_and(|holder| {
            has(&words::process(&holder.owner)) || holder.reason.as_ref().is_some_and(|reason| has(reason.raw()))
        })
}
