//! Opens the store that a URL names.

use std::time::Duration;

use super::Store;
use super::local::Local;
use super::quorum::Quorum;
use super::redis::Server;
use super::url::Target;
use crate::lock::Prefix;

/// Sends nothing yet.
///
/// A grant counts only once so many replicas of a server have it.
pub fn open(target: Target, prefix: Prefix, timeout: Duration, min_replicas: u32) -> Box<dyn Store> {
    match target {
        Target::Redis(topology) => Box::new(Server::new(topology, prefix, timeout, min_replicas)),
        Target::Quorum(endpoints) => Box::new(Quorum::new(endpoints, prefix, timeout)),
        Target::Local(directory) => Box::new(Local::new(directory, prefix, timeout)),
    }
}
