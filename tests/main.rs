//! The real binary against real servers, one crate. What belongs where:

#![expect(clippy::unwrap_used, reason = "in a test, what should be there and is not is the failure")]

/// Acquire, renew, release, status: what each promises, whose lock it is, fences, tokens.
mod contract;
/// No two at once, however many try.
mod exclusion;
/// Without scripts, on servers that compare by commands of their own.
mod ladder;
/// The lock goes while the command runs: deleted, taken, or the server is gone.
mod loss;
/// Plain `SET NX` clients on the same key, and ourselves as one of them.
mod neighbours;
/// A run within a run of the same name.
mod nested;
/// What is printed: documents, tables, quoting, hostile text, usage.
mod output;
/// Users who may not do everything: no channels, no scripts.
mod permissions;
/// First come, first served: order, the dead and the frozen in line, who must not overtake.
mod queue;
/// The README's examples do what it says.
mod readme;
/// A server that says no, or not now, or nothing: each its own status and message.
mod refusals;
/// A reply that gets lost after the server has done what was asked.
mod replies;
/// The command cannot tell that we are there.
mod run;
/// Naming a server, logging in, and keeping the password to ourselves.
mod servers;
/// Signals to us while a command runs, without a terminal.
mod signals;
/// Who waits: `status`, and the line that a waiter shows.
mod standing;
/// Stopping a command: limits of time, and what is left behind.
mod stopping;
mod support;
/// At a terminal: Ctrl-C, Ctrl-Z, reading, resizing.
mod terminal;
/// Waiting for a lock, being refused, and being told to leave.
mod waiting;
/// What happens to a server while many wait: scripts or everything forgotten, a restart.
mod weather;
