//! What the manual pages say beyond options, exit statuses and examples.
//!
//! A term, two spaces and a text are an item of a list; what is set in by four spaces stands as it
//! is; the rest is paragraphs.

use super::events::{self, EVENTS};
use super::keeper::KEEPER;
use super::old::OLD_LOCKS;
use super::places::{CONFIGURATION, FILES, KEYS, LOCAL, PERMISSIONS, REACHING, SERVERS, SEVERAL};
use super::status::{SHOWN, WATCHED};

/// A section's heading and its text.
pub type Section = (&'static str, &'static str);

const GUARANTEES: &str = "\
One at a time.  A lock has one key, and the key has one value. It is set only where it is absent, and \
extended or deleted only by a script that compares the whole token first.
The command does not outlive its lease.  The lease is counted on this machine, from before the request \
that obtained it was sent, on a clock that goes on while the machine sleeps, and 1 % and 2 ms are taken off for \
clocks that differ. If it could not be renewed in time, the command and everything that descends from it is \
stopped before that moment, whether or not the server answers.
What is stopped is gone before the lock is given back.  So the next holder does not meet the last one's \
leftovers. What a command that ends by itself leaves \
running is let go, unless --descendants says that it is to be waited for or stopped.
Nothing is guessed.  Busy, lost, unreachable, refused and misconfigured are five outcomes with five exit \
statuses. What could not be found out is never taken for `free`, `held` or success. A request whose reply was lost \
is asked again with the same token, and is granted to the same claim.
First come, first served.  Waiters stand in line. Who gives the lock back puts it into the hands of the next that lives, so it \
is never free in between; a waiter that was killed is passed over, and one that does not answer costs a short grace. The first in line \
takes over at the end of the lease of a holder that died. -n yields to those who wait. Only with several servers there is no line.
The command cannot tell.  Arguments, stdin, stdout, stderr, terminal, directory, umask and exit status are \
its own. nxlock adds a few variables to its environment and writes to stderr alone.
Nothing is left behind.  Once a lock is free, only its fence counter stays, and that ends by itself.

A program that uses plain SET NX has no place in the line: it gets the lock when nobody waits, or when a lease ended by itself and it \
asks first. With --no-queue nxlock is such a program.";

const LIMITS: &str = "\
No lock that is kept in Redis can promise more than this, whoever wrote its client. Of what follows, a server and its clock \
do not concern local locks; the rest does.

A machine that is not running stops nothing.  If the whole virtual machine is paused, or nxlock \
and its guard are both stopped, the lease may end meanwhile and somebody else be granted the lock. nxlock stops its command as \
the first thing when it runs again, but the command may get there sooner. Where that matters, have the resource itself refuse \
an older fence: NXLOCK_FENCE rises with every grant.
A server may forget.  Redis replicates after it has answered, so a failover can lose a lock that was granted \
just before. So can a restart without persistence, FLUSHALL, eviction, and anybody with DEL. nxlock asks at once when its \
connection ends, and otherwise finds out at the next renewal, which is every third of the ttl and at least every \
10s; until then two may run.
Several servers need to be apart.  What SEVERAL SERVERS asks of them is not checked.
The server's clock counts.  Redis ends keys by its wall clock: a step forward ends leases early, and the \
allowance above does not cover a step.
nxlock and its guard may be killed in the same instant.  If nxlock is killed, its guard kills the command and everything it started, and gives the lock \
back; if the guard is, nxlock does. If both are, the kernel kills the command and nothing else: what the command had \
started runs on, and so does a command that has changed its user, such as sudo(8). The lock ends after its ttl. (A local lock: LOCAL LOCKS.)
/proc has to show nxlock.  By it nxlock and its guard find what the command has started; without it no command is run (78). What moves into another \
pid namespace, as nsenter(1) does, and loses its parent there, is not found any more.
A keeper does not stop what it keeps the lock for.  `acquire --while-pid` sends one signal to one process: see KEEPER in nxlock-acquire(1).
Another user's processes.  What the command started as another user cannot be signalled. nxlock says so and \
waits for it to end.";

const SIGNALS: &str = "\
While nxlock waits for the lock, INT, TERM and HUP give up the claim, start nothing, and end nxlock by that \
same signal, so that the loop of a calling shell ends too. A second signal skips the clean-up.

While the command runs:

TERM  The command and everything it started gets TERM and CONT, and after --kill-after KILL. The lock is given back when all of \
it is gone.
INT, QUIT, HUP  From the terminal: the command has had it too, nothing is forwarded. From a process: passed on to the \
command and everything it started. What is left when the command has ended is stopped as by TERM; after a typed INT or QUIT, if \
the command died of it.
TSTP, CONT  Stop and continue nxlock and everything that the command started, as job control does. Before nxlock stops, SIGSTOP stops \
what does not stop by itself; a program that catches TSTP has half a second for it. Nothing is renewed while nxlock is stopped: if \
its lease is about to end, everything is killed. If the command of a job stops by itself, or is stopped because it uses the \
terminal from the background, nxlock stops too.
others  Passed on to the command, real-time signals with their values. KILL and STOP cannot be; SEGV, BUS, FPE and ILL \
are a failure of nxlock itself; PIPE and XFSZ are about what nxlock itself writes.

A signal that a process sends to nxlock's whole process group, as `kill -INT %1` does in a shell, has come to those of the command's \
processes that are in this group, and is passed on to the others alone. A nested nxlock passes on to its own command what comes to it.

The command is the child of nxlock's guard, a process named nxlock-guard, and $PPID in a shell is the guard. What is sent to the guard is for nxlock. If \
nxlock dies, the guard kills the command and everything it started, waits for the last of them, and gives the lock back; if nxlock does not run, since \
it was stopped by SIGSTOP, the guard kills them before the lease ends. If the guard dies, nxlock kills them and exits with 70.

If there is a controlling terminal, the command stays in nxlock's process group, so that it can read the terminal and Ctrl-C, \
Ctrl-Z and `fg` reach it. Otherwise it leads a group of its own. A signal that was ignored when nxlock was started, as by \
nohup(1), stays ignored. If a command dies of an INT or QUIT that was typed at the terminal, so does nxlock.";

const LEASE: &str = "\
A lease that cannot be renewed is tried again, each time on a new connection, until the command must be stopped: a fifth of \
the ttl before the lease ends (at least 200ms, at most 10s), or --kill-after and 100ms before, but no more than a quarter of the ttl; \
whichever is earlier, and never more than a third. What is left of the command is killed a hundredth of the ttl before the end (at least 250ms, at \
most half of that time). With the defaults, `--ttl 30s` and `--kill-after 5s`, the command gets TERM 6 s before its lease ends and KILL 0.3 s before.";

const ENV_SERVER: &str = "\
NXLOCK_SERVER  Where the locks live, if --server is not given; several URLs are parted by white space or commas.
REDIS_URL  The same, if NXLOCK_SERVER is not set or is empty.
NXLOCK_CONFIG  What --config gives.
NXLOCK_PREFIX  What --prefix gives.
NXLOCK_SERVER_TIMEOUT  What --server-timeout gives.
NXLOCK_PASSWORD_FILE  What --password-file gives.
REDISCLI_AUTH  The server's password itself, if there is none by --password-file or in the URL.
NXLOCK_TLS_CA, NXLOCK_TLS_CERT, NXLOCK_TLS_KEY  What --tls-ca, --tls-cert and --tls-key give.
XDG_CONFIG_HOME, HOME  Where the user's configuration is: see CONFIGURATION in nxlock(1).
NO_COLOR, CLICOLOR_FORCE  Never, or always, colour messages, if --color is `auto`.";

const ENV_TOKEN: &str = "\
NXLOCK_TOKEN  `renew`, `release`: the token, if TOKEN is not given.";

const ENV_COMMAND: &str = "\
The command's environment is nxlock's own, and these:

NXLOCK_NAME  The lock's name.
NXLOCK_KEY  Its key in the server.
NXLOCK_TOKEN  Its token. Releasing the lock with it, from inside, is losing it.
NXLOCK_FENCE  The fence: a number that rises with every grant of this lock. Not set where the server gives none.
NXLOCK_TTL_MS  The ttl in milliseconds.
NXLOCK_HELD  The tokens of this run and of those that it is a part of. Who asks for a lock that one of them holds would wait for \
itself, and is refused at once with exit status 75.

A password in NXLOCK_SERVER, REDIS_URL or REDISCLI_AUTH is thus inherited as well; a command that is not to see it can be \
run through `env -u NXLOCK_SERVER`, or the password kept in a file: --password-file.";

const JSON_COMMON: &str = "\
With --json the answer is one document on one line. Names stay as they are; there may be more of them in a later version. What \
ends in `_ms` is an integer of milliseconds, an instant is RFC 3339 with milliseconds, and what does not apply is null. The exit \
status is the same as without --json. A mistake in the command line is told in words, not in JSON.";

pub const JSON_FAILED: &str = "\
If it fails, the document is:

outcome  `unreachable` (exit status 69), `refused` (77), `misconfigured` (78), `usage` (64) or `broken` (70).
message  What was tried, where, and what came back.
remedy  What to do about it; may be empty.";

const JSON_HOLDER: &str = "\
A holder is an object, or null where the value is not a token of nxlock:

id  The first eight characters of the token's random part.
host, user, pid  Who holds it, as they told it themselves. `pid` is an integer.
since  When the lock was granted, by the server's clock.
held_ms  For how long it has been held.
reason  What --reason gave, or null.";

const JSON_STATE: &str = "\
state  `free`; `held`; `reserved`, put aside for the next in line, who has not taken it yet; `foreign`, a value that is not nxlock's; `legacy`, a bare number without expiry; `no_expiry`, a value \
without expiry; `wrong_type`, a key that is not a string; \
of several servers, `contested`, where no majority agrees, and `unknown`, where those that do not answer could decide. `unknown` is also \
a lock whose queue or waiters key is of another type; `warnings` says so.
holder  See below.
ttl_ms  How long the lease still runs; null where the key has no expiry.
fence  An integer, or null.";

const JSON_BUSY: &str = "\
queue_length  How many others wait.
waited_ms  For how long it was waited for.
nested  Whether the holder is a run that this is a part of.";

pub const ELSEWHERE: &str = "\
Servers and their URLs, keys, guarantees and their limits, and the permissions that a server must grant are described in \
nxlock(1).";

const NOTES: &str = "\
Durations are written with a unit: `90s`, `1m30s`, `500ms`, `2h`.

Options of every verb stand on either side of it.

A command line is visible to every user of a machine. Give a password by --password-file, REDISCLI_AUTH, or a URL in \
NXLOCK_SERVER or REDIS_URL, and a token by NXLOCK_TOKEN or on stdin. nxlock shows neither in any message, whatever a server repeats; at a terminal it warns of a password in --server, \
unless -q is given, which leaves out every warning.

The completions for bash, zsh and fish offer the names of locks that there are, up to a thousand, from the server that the line so far, the environment or the configuration names; where that takes more than 300ms, or `status` without a name may not be asked, none. They ask by `nxlock complete-names WORD...`, with the words of the line from `nxlock` on, the last of them the one that is being typed, which prints what it may be, one a line, and never says anything else.

nxlock runs on Linux alone.";

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
    ("", "What a command finds in its environment is in nxlock-run(1)."),
    ("JSON", JSON_COMMON),
    ("", "Each verb's document is in its manual page."),
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
stdout is the command's, so the documents go to stderr, one a line. Once the command has ended:

outcome  `ended`.
name, key  The lock, and its key in the server.
status  The command's exit status; null if a signal killed it.
signal  The number of that signal, or null.
time_limit  Whether it was stopped for --time-limit.
lost  Null, or `{how, message}`: how is `expired`, `taken` (somebody else has it) or `unconfirmed` (it could not be renewed in time).
unreleased  Null, or an object if the lock could not be given back: `message` says why, and `ends_in_ms` when it ends by itself.

While it runs there may be documents with an `event`: `lost`, with a `message` and what follows in `then`; and `warning`, \
`note` and, with --verbose, `trace`, each with a `message`.

If somebody else has the lock, `outcome` is `held`:

name, key  As above.",
    ),
    ("", JSON_STATE),
    ("", JSON_BUSY),
    ("", JSON_HOLDER),
    (
        "",
        "\
If the command could not be started, `outcome` is `not_run`: `name` and `key` are as above, `command` is its name and `message` \
why.",
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
ttl_ms  What --ttl gave.
keeper  The pid of the keeper that --while-pid leaves behind; null without.

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
ttl_ms  What --ttl gave; if the lock ends later than that, because its holder renews it, how long it still runs.

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
broken  Whether it was taken from somebody by --break.

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
The document is an array, of one object for each lock:

name, key  The lock, and its key in the server.",
    ),
    ("", JSON_STATE),
    (
        "",
        "\
queue  An array of one object for each of the first 500 that wait, in order: `position`, from 1; `id`, `host`, `user`, `pid` and `reason` as of a holder; \
and `waiting_ms`.
legacy  What a `legacy` value says: `{valid_until, stale}`, stale if that is past by the server's clock; else null.
warnings  An array of what somebody who looks after the lock should know; empty if there is nothing.",
    ),
    ("", JSON_HOLDER),
];

const CHECKED: &str = "\
The first table has the settings: the server, the prefix, --server-timeout, and whatever is not as it is built in, of every \
verb, with the option, variable, or file and line that it comes from. Secrets are not shown.

Then comes what was found at each server, with a verdict: `fine`; `warning`, something that endangers locks, and how to mend \
it; `obstacle`, something for want of which there are no locks. Of a Redis server:

server  Its kind and version.
round trip  How long a question takes.
role  Whether it is a master, and whether its replicas have heard of it lately.
persistence  What a restart or a crash forgets.
memory  Whether keys are evicted to make room.
clock  Whether the server's clock and this machine's are a second apart. Leases do not depend on it, but shown times do.
permissions, scripts  What an access control list lacks, with the line that mends it. Each refusal stands in ACL LOG there.
locks, waiters  A lock `nxlock-check-...` under the prefix, taken, renewed, waited for, handed over and given back, by \
the same means as always.

Of `local:`, the directory, the file system, the boot that leases are counted from, and a lock as above.

INFO and CONFIG GET are asked for as well; who may not use them is told less. A server that hangs or goes away meanwhile is told \
with what was found out before.";

pub const CHECK: [Section; 5] = [
    ("FINDINGS", CHECKED),
    ("ENVIRONMENT", ENV_SERVER),
    ("JSON", JSON_COMMON),
    (
        "",
        "\
outcome  `fit`, `fit_with_warnings` (exit status 1) or `unfit`.
settings  An array of one object for each: `name`; `value`, null where there is none or it is secret; `origin`, which is `flag`, \
`environment`, `file` or `default`; `variable`, `file` and `line`, null where they do not apply.
servers  An array of one object for each: `url`, null if none is named, and `findings`, each with `topic`, `found`, \
`verdict` (`fine`, `warning` or `obstacle`) and `remedy`, null where all is fine.",
    ),
    ("", "A configuration file that makes no sense is an error, before anything is looked at."),
];
