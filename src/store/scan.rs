//! Iteration over all locks, a page at a time: the state between two pages.

use super::redis::endpoint::Endpoint;
use super::{LockName, LockStatus};

/// Some of the locks, and the status of each if that is listed too.
pub type Page = Vec<(LockName, Option<LockStatus>)>;

/// Progress of a scan over all locks. After an error, the caller requests the same page again.
#[derive(Default)]
pub struct ScanCursor {
    /// Whether the scan has begun: the shards, or all names, are known.
    pub(super) has_begun: bool,
    /// Names found and not inspected yet, next one last.
    pub(super) names: Vec<LockName>,
    /// Names to be inspected one by one, next one last: another server may have to be asked.
    pub(super) strays: Vec<LockName>,
    /// Shards left to scan, current last; `None` stands for the only server.
    pub(super) shards: Vec<Option<Endpoint>>,
    /// SCAN cursor in the current shard; `None` at its end.
    pub(super) cursor: Option<String>,
    /// The number of the connection that the cursor came by: at another server it means nothing.
    pub(super) connection: Option<u64>,
    pub(super) pages: Pages,
}

/// Watches that the cursors of one scan come to an end: a server that returns one again would return them for ever.
#[derive(Default)]
pub(super) struct Pages {
    seen: u64,
    /// How often the scan began anew.
    begun: u32,
    /// One of the cursors, and up to which page it is kept: it meets any circle of cursors after twice as many pages at
    /// the latest (Brent's algorithm).
    kept: String,
    keep_until: u64,
}

/// More pages than any server has.
const MOST_PAGES: u64 = 1 << 24;
/// More connections than end during one scan.
const MOST_CONNECTIONS: u32 = 16;

impl Pages {
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// Notes that the scan begins anew by another connection. Returns whether it can still come to an end.
    pub(super) fn begin_anew(&mut self) -> bool {
        *self = Pages { begun: self.begun + 1, ..Pages::default() };
        self.begun < MOST_CONNECTIONS
    }

    /// Notes the next cursor. Returns whether the scan can still come to an end.
    pub(super) fn go_on(&mut self, cursor: &str) -> bool {
        self.seen += 1;
        if self.seen > MOST_PAGES || self.kept == cursor {
            return false;
        }
        if self.seen > self.keep_until {
            self.kept = cursor.to_owned();
            self.keep_until = self.seen * 2;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns after how many pages a scan with these cursors is given up, if it is.
    fn given_up(cursors: impl Iterator<Item = u64>) -> Option<usize> {
        let mut pages = Pages::default();
        cursors.map(|cursor| cursor.to_string()).position(|cursor| !pages.go_on(&cursor))
    }

    #[test]
    fn a_scan_that_goes_in_a_circle_is_given_up() {
        for (before, around) in [(0, 1), (0, 2), (5, 3), (1000, 1), (1, 1000), (777, 777)] {
            let circle = (1..=before).chain((1..=around).map(|place| before + place).cycle());
            let after = given_up(circle).expect("it ends");
            assert!(after <= usize::try_from(4 * (before + around) + 4).unwrap(), "{before}, {around}: {after}");
        }
    }

    #[test]
    fn a_scan_of_many_pages_goes_on() {
        assert_eq!(given_up(1..=100_000), None);
    }
}
