//! The queue's protocol, held to a model of it. What belongs where:

#![expect(clippy::unwrap_used, reason = "what a scene needs is there, or the test has failed")]

/// Every order of events that a few clients can live through, searched to the end in the model.
mod ballots;
mod explore;
/// Scenes in which the server or a waiter is not at its best.
mod faults;
/// Random histories, told to the model and to a server that runs the scripts: both must agree.
mod histories;
/// What a server does for one lock, as a pure value.
mod model;
/// The scripts as the program sends them, not a copy.
#[path = "../../src/store/redis/scripts.rs"]
mod scripts;
/// A redis-server of one's own, and how the scripts are called.
mod server;
/// What the scripts do beside SETNX clients.
mod setnx;
