//! What the manual says of the process that `acquire --while-pid` leaves behind, in the form that `prose.rs` describes.

pub const KEEPER: &str = "\
With --while-pid, nxlock leaves a process behind when it has printed the token: the keeper, whose pid is that of the holder in `status`. It \
is in the background, in a session of its own, with /dev/null for its streams and nothing else that it was started with, so that \
`$(nxlock acquire ...)` returns. It renews the lock every third of the ttl, at least every 10s, and ends:

with PID  Whatever ended it, SIGKILL included: the lock is given back at once. PID is the process and not its number, which may be \
somebody else's later; a process that becomes another program by `exec` is still the same. What PID has started and left behind does not count.
with `release`  On the same machine, by whoever has the token: the user of the keeper, or the superuser. PID is told nothing.
with the lock  When it turns out to be somebody else's or gone, or could not be renewed until a fifth of the ttl before its lease ends (at least 200ms, at most 10s): \
PID is sent --lost-signal, once. If the server is only away, renewing is tried until the lease has ended.
by TERM, INT or HUP  PID is sent --lost-signal, and the lock is given back. HUP is not heard by a keeper that was started ignoring it.

The signal reaches PID alone. A shell that does not trap it ends, and what it was running goes on; one that traps it gets to its trap when what it is running \
has ended. Where a command must be stopped with the lock, use `nxlock run`. With `--lost-signal none` only a later `release`, by its exit status 76, tells of a \
loss. A process of another user can be waited for, but not be told.

A release on another machine, or in another network namespace (another container), does not find the keeper, which then finds the lock \
gone at its next renewal and takes that for a loss.

Nobody is told of the end of a keeper that is killed (SIGKILL): the lock stays for the rest of its lease, and then is free though PID runs. With PID \
killed too, it stays as long; but a local lock is free at once when PID ends, for those who are in the same pid namespace as the keeper was.

While the lock is waited for, nxlock is two processes already: the keeper-to-be stands in line. If PID ends meanwhile, it leaves, \
and the exit status is 64. PID is a number in the pid namespace of nxlock: $$ in a container is not $$ outside. `bash -c 'nxlock acquire ... --while-pid $$'`, with nothing \
behind it, is refused: bash becomes nxlock itself then.

`eval \"$(...)\"` of a command that failed does nothing, and the script would go on without a lock: `|| echo exit $?` within it ends the script with the same status.";
