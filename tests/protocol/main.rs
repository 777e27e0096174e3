//! The queue's protocol, checked against a model of it.

#![expect(clippy::unwrap_used, reason = "what a scene needs is there, or the test has failed")]

/// Every order in which the messages of two clients that vote can arrive, searched exhaustively.
mod ballots;
/// The work of one script: no more than in proportion to what the keys hold.
mod bounds;
/// Every order of events that a few clients can go through, searched exhaustively in the model.
mod explore;
/// Scenes with an impaired server or waiter.
mod faults;
/// Fences: one of its own for each grant, which outlives the lease.
mod fences;
/// Random histories, executed on the model and on a server that runs the scripts: both must agree.
mod histories;
/// The server's work for one lock, as a pure value.
mod model;
/// Random histories of recorded runs, and a thousand nights of a job that ten hosts try.
mod runs;
/// The scripts as nxlock sends them, not a copy.
#[path = "old/scripts.rs"]
mod scripts;
/// A search for a random history that breaks a rule, with or without a fault in the scripts.
mod search;
/// A redis-server for one test, and the calls of the scripts.
mod server;
/// The model of the scripts beside SETNX clients.
mod setnx;
/// The model of the scripts for shares.
mod shares;
/// Random histories of shares: what the server holds after each call keeps the rule, the order and the fences.
mod sharing;
/// Random histories of waiters of which only the newest stays in the queue.
mod superseding;
