//! Opens the store that a URL names.

use std::time::Duration;

use super::Store;
use super::local::Local;
use super::quorum::Quorum;
use super::redis::Server;
use super::url::Target;
use crate::lock::Prefix;

/// Creates the store for a target. Sends nothing yet.
///
/// A server's grant counts only once `min_replicas` replicas have it.
pub fn open(target: Target, prefix: Prefix, timeout: Duration, min_replicas: u32) -> Box<dyn Store> {
    match target {
        Target::Redis(topology) => Box::new(Server::new(topology, prefix, timeout, min_replicas)),
        Target::Quorum(endpoints) => Box::new(Quorum::new(endpoints, prefix, timeout)),
        Target::Local(directory) => Box::new(Local::new(directory, prefix, timeout)),
    }
}
