//! Going through all locks that exist, a page at a time: how far one has got.

use super::redis::endpoint::Endpoint;
use super::{LockName, LockStatus};

/// Some of the locks, and how each stands.
pub type Page = Vec<(LockName, LockStatus)>;

/// How far a look at all locks has got. A page that met with trouble is asked for again.
#[derive(Default)]
pub struct ScanCursor {
    /// Whether it is known who is to be asked for names.
    pub(super) has_begun: bool,
    /// Named and not looked at yet, the next one last.
    pub(super) names: Vec<LockName>,
    /// The same, for those that are to be looked at one by one: somebody else may have to be asked.
    pub(super) strays: Vec<LockName>,
    /// Who is still to be asked for names, the one being asked last; a server that is alone is none in particular.
    pub(super) shards: Vec<Option<Endpoint>>,
    /// Where that one goes on, Redis command SCAN; none at its end.
    pub(super) cursor: Option<String>,
}
