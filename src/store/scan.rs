//! Iteration over all locks, a page at a time: the state between two pages.

use super::redis::endpoint::Endpoint;
use super::{LockName, LockStatus};

/// Some of the locks, and the status of each.
pub type Page = Vec<(LockName, LockStatus)>;

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
}
