//! The manual on the keeper, which `acquire --while-pid` leaves behind, in the form that `prose.rs` describes.

pub const KEEPER: &str = "\
With --while-pid, nxlock leaves a process behind after it has printed the token: the keeper, whose pid `status` \
shows as that of the holder. It runs in the background, in a session of its own, with /dev/null for its streams and \
no other descriptor that it was started with, so that `$(nxlock acquire ...)` returns. It renews the lock every \
third of the ttl, at least every 10s, and ends:

with PID  The keeper releases the lock at once, whatever ended PID, SIGKILL included. PID is the process and not its \
number, which another process may get later; a process that becomes another program by `exec` is still the same. \
Processes that PID has started and left behind do not count.
with `release`  On the same machine, called with the token by the keeper's user or the superuser. The keeper does \
not signal PID.
with the lock  If somebody else holds the lock or it is gone, or if the keeper could not renew it until a fifth of \
the ttl before its lease ends (at least 200ms, at most 10s): the keeper sends --lost-signal to PID, once. If the \
server is only away, the keeper tries to renew the lock until the lease has ended.
by TERM, INT or HUP  The keeper sends --lost-signal to PID and releases the lock. If HUP was ignored when the keeper \
was started, the keeper ignores it.

Only PID receives the signal. A shell that does not trap it ends, and the command it was running goes on; a shell \
that traps it runs the trap when that command has ended. If a command must be stopped with the lock, use `nxlock \
run`. With `--lost-signal none`, only a later `release` reports a loss, by its exit status 76. The keeper can wait \
for another user's process, but cannot signal it.

A `release` on another machine, or in another network namespace (another container), does not find the keeper. The \
keeper then finds the lock gone at its next renewal and treats that as a loss.

If the keeper is killed (SIGKILL), nobody is told: the lock stays for the rest of its lease, and then is free \
although PID runs. If PID is killed too, it stays as long; but a local lock is free at once when PID ends, for \
processes in the pid namespace in which the keeper was.

While nxlock waits for the lock, it is two processes already: the future keeper stands in the queue. If PID ends \
meanwhile, the keeper leaves the queue, and the exit status is 64. PID is a number in the pid namespace of nxlock: \
$$ in a container is not $$ outside. nxlock refuses `bash -c 'nxlock acquire ... --while-pid $$'` with nothing after \
it: there bash becomes nxlock itself.

`eval \"$(...)\"` of a command that failed does nothing, and the script would go on without a lock: `|| echo exit \
$?` inside it ends the script with the same status.";
