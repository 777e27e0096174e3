//! The real binary against real servers, in one crate. What belongs where:

#![expect(clippy::unwrap_used, reason = "in a test, what should be there and is not is the failure")]

/// `status` for monitoring: alarms and metrics.
mod alarms;
/// What verbs report when some of their requests never reached the server.
mod answers;
/// Which module of `src` may import which.
mod architecture;
/// A holder that is asked to give up, on a server and its key.
mod asking;
/// How the verbs are called: required arguments, and where their answers go.
mod calls;
/// `check` finds each danger to locks on a server that has it.
mod check;
/// Clusters: slots that move or fail over while their locks are held and waited for.
mod cluster;
/// Completion of lock names in shells.
mod completions;
/// Configuration files: precedence, and the error messages for mistakes.
mod config;
/// What nxlock promises of a lock, tested with every kind of authority.
mod contract;
/// Processes that outlive a command which ended by itself.
mod descendants;
/// `--durable`: grants that count only once they are on disk.
mod durable;
/// How a waiter subscribes for its wake-up, and what it does where it cannot.
mod ears;
/// `--events`: what nxlock reports, where it goes, and that nxlock does not wait for the reader.
mod events;
/// What faults of the network and of the server do to a lock, one fault at a time.
mod faults;
/// Waiters that go first, on a server and its keys.
mod first;
/// The guard between nxlock and its command: after any kill, stop or keystroke, no process outlives the lock.
mod guard;
/// Files that nxlock has read and its guard cannot read again.
mod handover;
/// A holder hears at once what happens to its lock.
mod hearing;
/// Recorded runs under faults, what they leave behind, and a nightly job on ten hosts.
mod history;
/// Servers that send what no server sends.
mod hostile;
/// A lock that a keeper in the background holds while a process runs: `acquire --while-pid`.
mod keeper;
/// The keys in a Redis server: the lock and its token, the fence, and keys of other programs.
mod keys;
/// Many locks: how nxlock asks a server for them, and how it shows them.
mod listing;
/// What nxlock promises of a directory only: its files, its users, and what the kernel reports of processes.
mod local;
/// The lock is lost while the command runs: its key is deleted or overwritten, or the server is gone.
mod loss;
/// Replies that are lost after the server has carried out the request.
mod lost_replies;
mod nested;
/// What somebody meets who uses nxlock for the first time.
mod newcomers;
/// Output: documents, tables, quoting, hostile text, usage.
mod output;
/// What others build from a release, and how they verify it.
mod packaging;
/// Users with restricted permissions: no channels, no scripts.
mod permissions;
/// What the repository has for pipelines: an action for GitHub, and a job for GitLab.
mod pipelines;
/// Plain `SET NX` clients on the same key, and nxlock as one of them.
mod plain_setnx;
/// The progress line of a waiter, at a terminal and in a log.
mod progress;
/// The queue in a Redis server: what it costs, and what it keeps of a waiter.
mod queue;
/// Several servers, of which a majority decides.
mod quorum;
/// The README's examples do what it says.
mod readme;
/// The recipes in the manual do what it says.
mod recipes;
/// Servers that refuse, are not ready, or do not reply: each case has its own status and message.
mod refusals;
/// `--min-replicas`: a grant counts only once replicas have it.
mod replicas;
/// Passwords and certificates that change while nxlock runs.
mod rotation;
/// A command cannot tell that it runs under nxlock.
mod run;
/// How a server is told what to run: by the hash of the script, and by its text.
mod scripts;
/// Masters that sentinels name: asking the sentinels, and following a failover.
mod sentinel;
/// Naming a server, logging in, and keeping the password secret.
mod servers;
/// Keys shared with old `SETNX` clients.
mod setnx;
/// Several locks at once in a Redis server: what they cost, and what faults do to them.
mod several;
/// Shared locks and slots in a Redis server: the keys, and what faults do to the shares.
mod sharing;
/// Signals to nxlock while a command runs, without a terminal.
mod signals;
/// Stopping a command: time limits, and processes left behind.
mod stopping;
/// Supervision of unusual commands, for unusual callers, at unusual moments.
mod superseding;
mod supervision;
mod support;
/// At a terminal: Ctrl-C, Ctrl-Z, reading, resizing.
mod terminal;
/// TLS: which certificates nxlock trusts, and the errors for others.
mod tls;
/// Server failures while many wait: scripts or all data lost, a restart.
mod transient_errors;
/// `acquire --until`: locks that are held until an instant.
mod until;
/// Waiting while the server hangs or is away, and what nxlock reports of a wait.
mod waiting;
/// `status --watch`: a screen with keys, or text for each change.
mod watch;
/// What nxlock-protocol(7) says of the keys, the script and the messages.
mod wire;
