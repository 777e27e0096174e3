//! The text of the manual pages, except for options, exit statuses and examples.
//!
//! A term, two spaces and a text are an item of a list; lines indented by four spaces are verbatim; the rest is
//! paragraphs.

use super::events::{self, EVENTS};
use super::keeper::KEEPER;
use super::old::OLD_LOCKS;
use super::places::{CONFIGURATION, FILES, KEYS, LOCAL, PERMISSIONS, REACHING, SERVERS, SEVERAL};
use super::status::{SHOWN, WATCHED};

/// A section's heading and its text.
pub type Section = (&'static str, &'static str);

const GUARANTEES: &str = "\
One at a time.  A lock is one key, and the key has one value. nxlock sets it only if it does not exist, and extends \
or deletes it only by a script that first compares the whole token.
The command does not outlive its lease.  nxlock counts the lease on its own machine, from before it sent the request \
that obtained the lease, on a clock that keeps running while the machine sleeps, and subtracts 1 % and 2 ms for \
clocks that differ. If it cannot renew the lease in time, it stops the command and all descendants of the command \
before that moment, whether or not the server answers.
nxlock releases the lock only after everything that it stopped is gone.  So the next holder does not meet leftovers \
of the last one. If a command ends by itself, processes that it leaves running are left alone, unless --descendants \
tells nxlock to wait for them or to stop them.
nxlock does not guess.  Busy, lost, unreachable, refused and misconfigured are five outcomes with five exit \
statuses. nxlock never reports an unknown state as `free`, `held` or success. If a reply is lost, nxlock repeats the \
request with the same token, and the server grants it to the same claim.
First come, first served.  Waiters queue. A release hands the lock to the next live waiter, so that the lock is \
never free in between; it skips a waiter that was killed, and a waiter that does not answer costs a short grace \
period. If a holder died, the first waiter in the queue takes over when the lease ends. A request with -n yields to \
the waiters. Only with several servers there is no queue.
nxlock is transparent to the command.  Arguments, stdin, stdout, stderr, terminal, directory, umask and exit status \
are the command's own. nxlock adds a few variables to its environment and writes only to stderr.
Nothing is left behind.  Once a lock is free, only its fence counter remains, and that expires by itself.

A program that uses plain SET NX has no place in the queue: it gets the lock if nobody waits, or if a lease expired \
and it asks first. With --no-queue, nxlock behaves like such a program.";

const LIMITS: &str = "\
No lock in Redis can promise more than this, whatever its client. Of the limits below, those that concern a server \
and its clock do not apply to local locks; the others do.

A machine that does not run stops nothing.  If the whole virtual machine is paused, or nxlock and its guard are both \
stopped, the lease may end meanwhile and the lock be granted to somebody else. When nxlock runs again, it stops its \
command before it does anything else, but the command may be faster. Where that matters, let the resource itself \
refuse an older fence: NXLOCK_FENCE rises with every grant.
A server may forget.  Redis replicates after it has answered, so a failover can lose a lock that was granted just \
before. So can a restart without persistence, FLUSHALL, eviction, and anybody with permission for DEL. nxlock checks \
its lock at once when its connection ends, and otherwise finds out at the next renewal, which is every third of the \
ttl and at least every 10s; until then, two may run.
Several servers must be independent.  nxlock does not check the conditions in SEVERAL SERVERS.
The server's clock counts.  Redis expires keys by its wall clock: a step forward ends leases early, and the \
allowance above does not cover a step.
nxlock and its guard may be killed in the same instant.  If nxlock is killed, its guard kills the command and \
everything it started, and releases the lock; if the guard is killed, nxlock does. If both are killed, the kernel \
kills the command and nothing else: processes that the command had started run on, and so does a command that has \
changed its user, such as sudo(8). The lock ends after its ttl. (For a local lock, see LOCAL LOCKS.)
/proc must show nxlock.  nxlock and its guard use /proc to find the processes that the command has started; without \
it, nxlock runs no command (78). They no longer find a process that moves into another pid namespace, as nsenter(1) \
does, and loses its parent there.
A keeper does not stop the process it keeps the lock for.  `acquire --while-pid` sends one signal to one process: \
see KEEPER in nxlock-acquire(1).
Another user's processes.  nxlock cannot signal a process that the command started as another user. It says so and \
waits for the process to end.";

const SIGNALS: &str = "\
While nxlock waits for the lock, INT, TERM and HUP make it give up the claim, start nothing, and die of the same \
signal, so that a loop of the calling shell ends too. A second signal skips the clean-up.

While the command runs:

TERM  nxlock sends TERM and CONT to the command and everything it started, and KILL after --kill-after. It releases \
the lock when all of them are gone.
INT, QUIT, HUP  From the terminal: the command has received the signal too, and nxlock forwards nothing. From a \
process: nxlock forwards it to the command and everything it started. When the command has ended, nxlock stops what \
is left as on TERM; after a typed INT or QUIT, only if the command died of it.
TSTP, CONT  Stop and continue nxlock and everything that the command started, as job control does. Before nxlock \
stops, it sends SIGSTOP to the processes that do not stop by themselves; a program that catches TSTP has half a \
second to stop. A stopped nxlock renews nothing: if its lease is about to end, everything is killed. If the command \
of a job stops by itself, or is stopped because it uses the terminal from the background, nxlock stops too.
others  nxlock forwards them to the command, real-time signals with their values. KILL and STOP cannot be forwarded; \
SEGV, BUS, FPE and ILL are a failure of nxlock itself; PIPE and XFSZ concern what nxlock itself writes.

If a process signals nxlock's whole process group, as `kill -INT %1` does in a shell, the command's processes in \
that group have received the signal already, and nxlock forwards it only to the others. A nested nxlock forwards the \
signals it receives to its own command.

The command is a child of nxlock's guard, a process named nxlock-guard: in a shell, $PPID is the guard. If the \
command or a process it started signals the guard, the guard forwards the signal to nxlock. If nxlock dies, the \
guard kills the command and everything it started, waits for the last of them to end, and releases the lock; if \
nxlock does not run because SIGSTOP stopped it, the guard kills them before the lease ends. If the guard dies, \
nxlock kills them and exits with 70.

If there is a controlling terminal, the command stays in nxlock's process group, so that it can read the terminal \
and Ctrl-C, Ctrl-Z and `fg` reach it. Otherwise it leads a process group of its own. A signal that was ignored when \
nxlock started, as by nohup(1), stays ignored. If the command dies of an INT or QUIT typed at the terminal, so does \
nxlock.";

const LEASE: &str = "\
If nxlock cannot renew a lease, it tries again, each time on a new connection, until it must stop the command: a \
fifth of the ttl before the lease ends (at least 200ms, at most 10s), or --kill-after plus 100ms before, but no more \
than a quarter of the ttl; whichever is earlier, and never more than a third of the ttl. nxlock kills what is left \
of the command a hundredth of the ttl before the lease ends (at least 250ms, at most half of that time). With the \
defaults, `--ttl 30s` and `--kill-after 5s`, the command gets TERM 6 s before its lease ends and KILL 0.3 s before.";

const ENV_SERVER: &str = "\
NXLOCK_SERVER  The server, if --server is not given. Separate several URLs by whitespace or commas.
REDIS_URL  The same, if NXLOCK_SERVER is unset or empty.
NXLOCK_CONFIG  As --config.
NXLOCK_PREFIX  As --prefix.
NXLOCK_SERVER_TIMEOUT  As --server-timeout.
NXLOCK_PASSWORD_FILE  As --password-file.
REDISCLI_AUTH  The server's password itself, if neither --password-file nor the URL has one.
NXLOCK_TLS_CA, NXLOCK_TLS_CERT, NXLOCK_TLS_KEY  As --tls-ca, --tls-cert and --tls-key.
XDG_CONFIG_HOME, HOME  Location of the user's configuration: see CONFIGURATION in nxlock(1).
NO_COLOR, CLICOLOR_FORCE  Never, or always, colour messages, if --color is `auto`.";

const ENV_TOKEN: &str = "\
NXLOCK_TOKEN  For `renew` and `release`: the token, if TOKEN is not given.";

const ENV_COMMAND: &str = "\
The command inherits nxlock's environment, and nxlock adds:

NXLOCK_NAME  The lock's name.
NXLOCK_KEY  Its key in the server.
NXLOCK_TOKEN  Its token. If the command releases the lock with it, the lock counts as lost.
NXLOCK_FENCE  The fence: a number that rises with every grant of this lock. Not set if the server gives none.
NXLOCK_TTL_MS  The ttl in milliseconds.
NXLOCK_HELD  The tokens of this run and of the runs that enclose it. A request for a lock that one of them holds \
would wait for itself; nxlock refuses it at once with exit status 75.

So the command also inherits a password in NXLOCK_SERVER, REDIS_URL or REDISCLI_AUTH. To hide it, run the command \
through `env -u NXLOCK_SERVER`, or keep the password in a file: --password-file.";

const JSON_COMMON: &str = "\
With --json, nxlock answers with one document on one line. Names do not change; later versions may add more. Fields \
that end in `_ms` are integers of milliseconds, times are RFC 3339 with milliseconds, and fields that do not apply \
are null. The exit status is the same as without --json. nxlock reports command-line errors as text, not as JSON.";

pub const JSON_FAILED: &str = "\
If the verb fails, the document is:

outcome  `unreachable` (exit status 69), `refused` (77), `misconfigured` (78), `usage` (64) or `broken` (70).
message  What nxlock tried, where, and the error.
remedy  What to do about it; may be empty.";

const JSON_HOLDER: &str = "\
A holder is an object, or null if the value is not a token of nxlock:

id  The first eight characters of the token's random part.
host, user, pid  The holder, as it identified itself. `pid` is an integer.
since  Time of the grant, by the server's clock.
held_ms  Time since the grant.
reason  The text of --reason, or null.";

const JSON_STATE: &str = "\
state  `free`; `held`; `reserved`, set aside for the next waiter, which has not claimed it yet; `foreign`, a value \
that is not nxlock's; `legacy`, a bare number without expiry; `no_expiry`, a value without expiry; `wrong_type`, a \
key that is not a string; with several servers, `contested` if no majority agrees, and `unknown` if the servers that \
do not answer could decide. A lock whose queue or waiters key has another type is `unknown` too; `warnings` says so.
holder  See below.
ttl_ms  Remaining lease; null if the key has no expiry.
fence  An integer, or null.";

const JSON_BUSY: &str = "\
queue_length  Number of other waiters.
waited_ms  Time waited.
nested  Whether the holder is a run that encloses this one.";

pub const ELSEWHERE: &str = "\
nxlock(1) describes servers and their URLs, keys, guarantees and their limits, and the permissions that a server must \
grant.";

const NOTES: &str = "\
Write durations with a unit: `90s`, `1m30s`, `500ms`, `2h`.

Options of every verb may precede or follow the verb.

Every user of a machine can see a command line. Give a password by --password-file, REDISCLI_AUTH, or a URL in \
NXLOCK_SERVER or REDIS_URL, and a token by NXLOCK_TOKEN or on stdin. nxlock shows neither in any message, even if a \
server repeats it; at a terminal it warns of a password in --server, unless -q is given, which suppresses all \
warnings.

The completions for bash, zsh and fish offer the names of existing locks, up to a thousand, from the server that the \
line so far, the environment or the configuration names. They offer no names if that takes more than 300ms, or if \
the server does not permit `status` without a name. They run `nxlock complete-names WORD...` with the words of the \
line from `nxlock` on; the last word is the one being typed. It prints the possible completions, one per line, and \
never prints anything else.

nxlock runs only on Linux.";

pub const NXLOCK: [Section; 17] = [
    ("SERVERS", SERVERS),
    ("", REACHING),
    ("SEVERAL SERVERS", SEVERAL),
    ("LOCAL LOCKS", LOCAL),
    ("CONFIGURATION", CONFIGURATION),
    ("KEYS", KEYS),
    ("GUARANTEES", GUARANTEES),
    ("LIMITS", LIMITS),
    ("OLD LOCKS", OLD_LOCKS),
    ("ENVIRONMENT", ENV_SERVER),
    ("", ENV_TOKEN),
    ("", "nxlock-run(1) describes the environment of a command."),
    ("JSON", JSON_COMMON),
    ("", "The manual page of each verb describes its document."),
    ("PERMISSIONS", PERMISSIONS),
    ("FILES", FILES),
    ("NOTES", NOTES),
];

pub const RUN: [Section; 11] = [
    ("LEASE", LEASE),
    ("SIGNALS", SIGNALS),
    ("EVENTS", EVENTS),
    ("ENVIRONMENT", ENV_SERVER),
    ("", ENV_COMMAND),
    ("JSON", JSON_COMMON),
    (
        "",
        "\
stdout belongs to the command, so nxlock writes its documents to stderr, one per line. When the command has ended:

outcome  `ended`.
name, key  The lock, and its key in the server.
status  The command's exit status; null if a signal killed it.
signal  The number of that signal, or null.
time_limit  Whether nxlock stopped it for --time-limit.
lost  Null, or `{how, message}`: `how` is `expired`, `taken` (somebody else has it) or \
`unconfirmed` (nxlock could not renew it in time).
unreleased  Null, or an object if nxlock could not release the lock: `message` says why, and \
`ends_in_ms` when it ends by itself.

While the command runs, there may be documents with an `event`: `lost`, with a `message` and the consequence in `then`; \
and `warning`, `note` and, with --verbose, `trace`, each with a `message`.

If somebody else has the lock, `outcome` is `held`:

name, key  As above.",
    ),
    ("", JSON_STATE),
    ("", JSON_BUSY),
    ("", JSON_HOLDER),
    (
        "",
        "\
If nxlock could not start the command, `outcome` is `not_run`: `name` and `key` are as above, `command` is the command's \
name, and `message` says why.",
    ),
];

pub const ACQUIRE: [Section; 8] = [
    ("KEEPER", KEEPER),
    ("EVENTS", events::ELSEWHERE),
    ("ENVIRONMENT", ENV_SERVER),
    ("JSON", JSON_COMMON),
    (
        "",
        "\
outcome  `acquired`.
name, key  The lock, and its key in the server.
token  The token.
fence  A number that rises with every grant of this lock.
ttl_ms  The value of --ttl.
keeper  The pid of the keeper that --while-pid leaves behind; null without --while-pid.

If somebody else has the lock, `outcome` is `held`:

name, key  As above.",
    ),
    ("", JSON_STATE),
    ("", JSON_BUSY),
    ("", JSON_HOLDER),
];

pub const RENEW: [Section; 6] = [
    ("ENVIRONMENT", ENV_SERVER),
    ("", ENV_TOKEN),
    ("JSON", JSON_COMMON),
    (
        "",
        "\
outcome  `renewed`.
name, key  The lock, and its key in the server.
ttl_ms  The value of --ttl; if the lock ends later than that because its holder renews it, the remaining lease.

If it is not your lock, `outcome` is `not_yours`:

name, key  As above.
wanted  `renew`.",
    ),
    ("", JSON_STATE),
    ("", JSON_HOLDER),
];

pub const RELEASE: [Section; 6] = [
    ("ENVIRONMENT", ENV_SERVER),
    ("", ENV_TOKEN),
    ("JSON", JSON_COMMON),
    (
        "",
        "\
outcome  `released`.
name, key  The lock, and its key in the server.
broken  Whether --break took the lock from its holder.

If it is not your lock, `outcome` is `not_yours`:

name, key  As above.
wanted  `release` or `break`.",
    ),
    ("", JSON_STATE),
    ("", JSON_HOLDER),
];

pub const STATUS: [Section; 8] = [
    ("TABLE", SHOWN),
    ("WATCHING", WATCHED),
    ("ENVIRONMENT", ENV_SERVER),
    ("JSON", JSON_COMMON),
    (
        "",
        "\
The document is an array of one object for each lock:

name, key  The lock, and its key in the server.",
    ),
    ("", JSON_STATE),
    (
        "",
        "\
queue  An array of one object for each of the first 500 waiters, in order: `position`, from 1; \
`id`, `host`, `user`, `pid` \
and `reason` as of a holder; and `waiting_ms`.
legacy  The meaning of a `legacy` value: `{valid_until, stale}`, stale if that time is past by the server's clock; \
otherwise null.
warnings  An array of warnings for the administrator of the lock; empty if there are none.",
    ),
    ("", JSON_HOLDER),
];

const CHECKED: &str = "\
The first table lists the settings: the server, the prefix, --server-timeout, and every setting of any verb that \
differs from its built-in default, with the option, variable, or file and line that sets it. nxlock does not show \
secrets.

The findings about each server follow, each with a verdict: `fine`; `warning`, something that endangers locks, and \
how to fix it; `obstacle`, something that makes locks impossible. For a Redis server:

server  Its kind and version.
round trip  Duration of one request and reply.
role  Whether it is a master, and whether its replicas have heard from it lately.
persistence  What a restart or a crash loses.
memory  Whether the server evicts keys to make room.
clock  Whether the server's clock and this machine's are a second apart. Leases do not depend on it, but displayed \
times do.
permissions, scripts  What an access control list lacks, with the line that adds it. Each refusal appears in the \
server's ACL LOG.
locks, waiters  A lock `nxlock-check-...` under the prefix, which nxlock acquires, renews, waits for, hands over and \
releases, by the same means as any other lock.

For `local:`, the findings are about the directory, the file system, the boot from which leases are counted, and a \
lock as above.

`check` also sends INFO and CONFIG GET; a user without permission for them gets fewer findings. If a server hangs or \
goes away during the check, nxlock reports that together with the findings so far.";

pub const CHECK: [Section; 5] = [
    ("FINDINGS", CHECKED),
    ("ENVIRONMENT", ENV_SERVER),
    ("JSON", JSON_COMMON),
    (
        "",
        "\
outcome  `fit`, `fit_with_warnings` (exit status 1) or `unfit`.
settings  An array of one object for each setting: `name`; `value`, null if it has none or is secret; `origin`, which is \
`flag`, `environment`, `file` or `default`; `variable`, `file` and `line`, null where they do not apply.
servers  An array of one object for each server: `url`, null if none is named, and `findings`, each with `topic`, `found`, \
`verdict` (`fine`, `warning` or `obstacle`) and `remedy`, null if all is fine.",
    ),
    ("", "If a configuration file is invalid, `check` fails before it examines anything."),
];
