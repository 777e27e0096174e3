//! The real binary against real servers, one crate. What belongs where:

#![expect(clippy::unwrap_used, reason = "in a test, what should be there and is not is the failure")]

/// Acquire, renew, release, status: what each promises, whose lock it is, fences, tokens.
mod contract;
/// No two at once, however many try.
mod exclusion;
/// The lock goes while the command runs: deleted, taken, or the server is gone.
mod loss;
/// What is printed: documents, tables, quoting, hostile text, usage.
mod output;
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
/// Stopping a command: limits of time, and what is left behind.
mod stopping;
mod support;
/// At a terminal: Ctrl-C, Ctrl-Z, reading, resizing.
mod terminal;
/// Waiting for a lock, being refused, and being told to leave.
mod waiting;
