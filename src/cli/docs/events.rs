//! The manual on `--events`, in the form that `prose.rs` describes.

pub const EVENTS: &str = "\
With --events, nxlock writes a line for everything that happens to the lock and to the command, as it happens: a \
JSON object, for a history of runs or for metrics. Names do not change; later versions may add events and fields. \
Fields that end in `_ms` are integers of milliseconds, and fields that do not apply are null.

    nxlock run nightly --events /var/log/nxlock.events -- ./nightly.sh

Each event has these fields:

time  Time of the event, by this machine's clock: RFC 3339, UTC, with milliseconds.
event  Its type; see below.
name, key  The lock, and its key in the server.
id  The ID of this claim, as `status` shows it: it tells runs apart.
fence  The fence, once the lock is granted.

The events, and the further fields of each:

waiting  Somebody else holds the lock, and nxlock waits for it. Reported once. `state` and `holder` as in JSON \
below; `position`, from 1, in the queue, or null if there is no queue.
granted  `waited_ms`, the time since nxlock asked for the lock; and `ttl_ms`, the lease.
started  The command is under way: `pid`. If it turns out that the command cannot be executed, `not_run` follows.
renewed  The lease starts anew: `ttl_ms`.
trouble  The server does not answer as it should, and nxlock retries: `message`. nxlock does not report the same \
trouble twice in a row.
lost  The lock was lost before nxlock released it: `how`, `message` and `then`, as in JSON below.
ended  The command has ended, and those of its descendants that nxlock waits for or stops are gone: `status`, or \
else `signal`, a number; `time_limit`, whether nxlock stopped it for --time-limit; and `ran_ms`, for how long it \
ran.
released  nxlock released the lock: `held_ms`, for how long it held the lock. With --at-least, `ends_in_ms` is the \
time for which the name stays locked; otherwise null.
unreleased  nxlock could not release the lock: `message`, and `ends_in_ms`, when the lock ends by itself.
refused  Somebody else holds the lock, and nxlock waits no longer: `state`, `holder`, `waited_ms` and `nested`, as \
in JSON below.
interrupted  nxlock was told to stop before the command was started: `signal`, a number.
not_run  nxlock could not start the command: `message`.
failed  `kind`, which is an `outcome` of JSON below, and `message`.

A number is a descriptor that nxlock's caller has open for writing, as by `3>>FILE`; otherwise the exit status is \
64. The command does not inherit it, except for 0, 1 and 2, which are its own as well. Anything else is a file: \
nxlock appends to it, and creates it if it is missing. Write `./3` for a file whose name is a number. If nxlock can \
never write to the file, it fails (78) before it asks for the lock. In a configuration file the value is always a \
file. An empty word means no events.

Each line is one write(2) of at most 4096 bytes, so that lines of several processes do not mix; a `message`, \
`holder` or `key` that does not fit is null. Neither the command nor the lock waits for lines to be written, even if \
a disk is full, nobody reads a pipe or a reader is slow, and no run fails for it. One warning at the end counts the \
lines that nxlock could not write within a second after everything else is done.";

pub const ELSEWHERE: &str = "\
nxlock-run(1) describes the output of --events. `acquire` writes `waiting`, `trouble`, `granted`, `refused`, \
`interrupted` and `failed`; and `released` or `unreleased`, if it could not print the token. With --while-pid, the \
keeper continues to write: `renewed`, `trouble`, `lost`, and `released` or `unreleased`.";
