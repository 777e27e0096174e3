//! The rules of a lock, searched exhaustively, and the script that a server runs, compared with them.

#![expect(clippy::unwrap_used, reason = "what a scene needs is there, or the test has failed")]

/// Every order in which the messages of two clients that vote can arrive, searched exhaustively.
mod ballots;
/// The work of one script: no more than in proportion to what the keys hold.
mod bounds;
/// Random numbers from a seed.
mod dice;
/// Every order of events that a few clients can go through, searched exhaustively.
mod explore;
/// Scenes with an impaired server or waiter.
mod faults;
/// Fences: one of its own for each grant, which outlives the lease.
mod fences;
/// Random histories, executed by the rules and by the script on a server: both must agree.
mod histories;
/// What a server adds to the rules: keys that expire and are lost.
mod keys;
/// The rules as nxlock has them, not a copy.
#[path = "../../src/lock/machine.rs"]
#[allow(dead_code, reason = "the tests need less of it than the local store does")]
mod machine;
/// Releases of recorded runs that come again, and a thousand nights of a job that ten hosts try.
mod runs;
/// lock.lua as the tests call it.
#[path = "../chaos/script.rs"]
mod script;
/// A redis-server for one test, and the calls of the script.
mod server;
/// Scenes of shares.
mod sharing;
/// Scenes of waiters of which only the newest stays in the queue.
mod superseding;
/// The tokens of these tests.
mod token;
