//! Opens the store that a URL names.

use std::time::Duration;

use super::local::Local;
use super::quorum::Quorum;
use super::redis::Server;
use super::url::Target;
use super::{Durability, Store};
use crate::lock::Prefix;

/// Creates the store for a target. Sends nothing yet.
///
/// A grant counts only once it has that durability.
pub fn open(target: Target, prefix: Prefix, timeout: Duration, durability: Durability) -> Box<dyn Store> {
    match target {
        Target::Redis(topology) => Box::new(Server::new(topology, prefix, timeout, durability)),
        Target::Quorum(endpoints) => Box::new(Quorum::new(endpoints, prefix, timeout)),
        Target::Local(directory) => Box::new(Local::new(directory, prefix, timeout, durability)),
    }
}
