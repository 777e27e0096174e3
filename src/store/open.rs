//! Opens the store that a URL names.

use super::local::Local;
use super::quorum::Quorum;
use super::redis::Server;
use super::url::Target;
use super::{Store, StoreOptions};

/// Creates the store for a target. Sends nothing yet.
pub fn open(target: Target, options: StoreOptions) -> Box<dyn Store> {
    match target {
        Target::Redis(topology) => Box::new(Server::new(topology, options)),
        Target::Quorum(endpoints) => Box::new(Quorum::new(endpoints, options)),
        Target::Local(directory) => Box::new(Local::new(directory, options)),
    }
}
