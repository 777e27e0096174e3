//! The real binary against real servers, one crate. What belongs where:

#![expect(clippy::unwrap_used, reason = "in a test, what should be there and is not is the failure")]

/// What a verb says when some of its requests never reached the server.
mod answers;
/// Which module of the program may import which.
mod architecture;
/// How the verbs are called: what has to be given to them, and where their answers go.
mod calls;
/// `check`: what endangers locks is found, each thing on a server that has it.
mod check;
/// A cluster: who has a slot, who has it next, and what becomes of those who hold and wait in between.
mod cluster;
/// Shells complete the names of locks.
mod completions;
/// Configuration files: what counts before what, and what is said of mistakes.
mod config;
/// What is promised of a lock, held against every kind of authority that keeps locks.
mod contract;
/// What outlives a command that has ended by itself.
mod descendants;
/// How a waiter listens for its turn, and what it does where it cannot.
mod ears;
/// `--events`: what is told, where it goes, and that nobody waits for it.
mod events;
/// What a network and an ailing server do to a lock, one fault at a time.
mod faults;
/// The guard between nxlock and its command: whatever is killed, frozen or typed, nothing outlives the lock.
mod guard;
/// A lock that is kept in the background while a process runs: `acquire --while-pid`.
mod keeper;
/// What stands in a Redis server: the key and its value, the fence, and what others have put there.
mod keys;
/// Many locks: how a server is asked for them, and how they are shown.
mod listing;
/// What is promised of a directory alone: its files, its users, and what the kernel tells of processes.
mod local;
/// The lock goes while the command runs: deleted, overwritten, or the server is gone.
mod loss;
/// A reply that gets lost after the server has done what was asked.
mod lost_replies;
/// What is printed: documents, tables, quoting, hostile text, usage.
mod output;
/// Users who may not do everything: no channels, no scripts.
mod permissions;
/// Plain `SET NX` clients on the same key, and ourselves as one of them.
mod plain_setnx;
/// The line that a waiter shows, at a terminal and in a log.
mod progress;
/// What the queue is in a Redis server: what it costs, and what is kept of a waiter.
mod queue;
/// Several servers of which a majority decides.
mod quorum;
/// The README's examples do what it says.
mod readme;
/// The recipes of the manual do what it says.
mod recipes;
/// A server that says no, or not now, or nothing: each its own status and message.
mod refusals;
/// A grant that counts only once replicas have it.
mod replicas;
/// The command cannot tell that we are there.
mod run;
/// Masters that sentinels name: asking them, and going on when they name another.
mod sentinel;
/// Naming a server, logging in, and keeping the password to ourselves.
mod servers;
/// Keys that are shared with old `SETNX` clients.
mod setnx;
/// Signals to us while a command runs, without a terminal.
mod signals;
/// Stopping a command: limits of time, and what is left behind.
mod stopping;
/// Supervision of odd commands, for odd callers, at odd moments.
mod supervision;
mod support;
/// At a terminal: Ctrl-C, Ctrl-Z, reading, resizing.
mod terminal;
/// Over TLS: whose certificate is believed, and what is said of one that is not.
mod tls;
/// What happens to a server while many wait: scripts or everything forgotten, a restart.
mod transient_errors;
/// Waiting while the server hangs or is away, and what is said of a wait.
mod waiting;
/// `status --watch`: a screen with keys, or a text for each change.
mod watch;
