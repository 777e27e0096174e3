//! What the manual says of `--events`, in the form that `prose.rs` describes.

pub const EVENTS: &str = "\
With --events there is a line for everything that happens to the lock and to the command, as it happens: a JSON object, for a history of runs or for \
metrics. Names stay as they are; there may be more events and more fields in a later version. What ends in `_ms` is an integer of milliseconds, and what \
does not apply is null.

    nxlock run nightly --events /var/log/nxlock.events -- ./nightly.sh

Each has these fields:

time  When it happened, by this machine's clock: RFC 3339, UTC, with milliseconds.
event  Which it is; see below.
name, key  The lock, and its key in the server.
id  The ID of this claim, as `status` shows it: it tells runs apart.
fence  The fence, once the lock is granted.

The events, and what each has beside that:

waiting  Somebody else has the lock, and it is waited for. Told once. `state` and `holder` as in JSON below; `position`, from 1, in the line, or null where there is none.
granted  `waited_ms`, for how long it was asked for; and `ttl_ms`, the lease.
started  The command is under way: `pid`. If it turns out that it cannot be executed, `not_run` follows.
renewed  The lease runs anew: `ttl_ms`.
trouble  The server does not answer as it should, and is asked again: `message`. The same is not told twice in a row.
lost  The lock went before it was given back: `how`, `message` and `then`, as in JSON below.
ended  The command has ended, and what of it is waited for or stopped is gone: `status`, or else `signal`, a number; `time_limit`, whether it was stopped for that; and `ran_ms`, for how long it ran.
released  The lock was given back: `held_ms`, for how long it was held. With --at-least `ends_in_ms` is for how long it still stands; else null.
unreleased  The lock could not be given back: `message`, and `ends_in_ms`, when it ends by itself.
refused  Somebody else has the lock, and it is not waited for any longer: `state`, `holder`, `waited_ms` and `nested`, as in JSON below.
interrupted  Told to stop before the command was started: `signal`, a number.
not_run  The command could not be started: `message`.
failed  `kind`, which is an `outcome` of JSON below, and `message`.

A number is a descriptor that nxlock's caller has open for writing, as `3>>FILE`; it is 64 if it is not. The command does not get it, except for 0, 1 and 2, \
which are its own as well. Anything else is a file, that is appended to, and made if it is missing; write `./3` for one whose name is a number. A file that \
cannot be had is an error (78) before the lock is asked for. In a configuration file it is always a file. An empty word is none.

A line is one write(2) of at most 4096 bytes, so that those of several processes do not mix; a `message`, `holder` or `key` that does not fit is null. \
Nobody waits for lines to be written: neither the command nor the lock is kept waiting by a disk that is full, a pipe that nobody reads or a reader that is slow, \
and no run fails for it. What \
does not get written, within a second after everything else is done, is counted in one warning at the end.";

pub const ELSEWHERE: &str = "\
What --events writes is described in nxlock-run(1). Of `acquire` there are `waiting`, `trouble`, `granted`, `refused`, `interrupted` and `failed`; and `released` \
or `unreleased`, if the token could not be printed. With --while-pid the keeper writes on: `renewed`, `trouble`, `lost`, and `released` or `unreleased`.";
