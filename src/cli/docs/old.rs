//! The manual on old locks: exact keys, and the `SETNX` clients that use them. In the form that `prose.rs` describes.

pub const OLD_LOCKS: &str = "\
The oldest lock in Redis has no expiry: `SETNX lock.foo TIME`, where TIME is when it ends. A client that finds a \
TIME in the past writes a new one by GETSET, and owns the lock if the value that it replaced was still in the past; \
the owner deletes the key if its own time has not come. Such old clients go by their own clocks, overwrite each \
other's values, and may delete a lock that is no longer theirs. nxlock can share a key with them while you replace \
them.

--key KEY  The exact key, without prefix, such as `lock.foo`, in place of NAME in `run`, `acquire`, `renew`, \
`release` and `status`. nxlock also shows it as the lock's name. The word after it is the one that otherwise follows \
NAME: `nxlock run --key lock.foo -- ./deploy.sh`. A key with braces, such as `{user}.lock`, has its queue and fence \
in the same hash slot of a cluster, under `{user}.lock:nxlock:`; nxlock refuses a key for which this is impossible, \
such as `x{}y` or `a}b`.
--setnx-compat  On `run` and `acquire`. nxlock takes over a lock whose TIME passed more than --setnx-margin (5s) \
ago. Its token is a number of 19 digits: in seconds or in milliseconds, to a strict parser or a lenient one, a time \
long after all clocks, so that no old client believes that it has passed. The lock ends by the expiry of its key.

Whatever the options, a key that exists is held, whatever its value, and only --setnx-compat takes over a lock that \
another program has left. `status` shows a plain number without an expiry as `legacy`, with the time until which it \
is valid or since when it is stale: seconds of the server's clock, with decimals or without, or milliseconds. A \
waiter for such a key polls about every tenth of a second. nxlock takes over only a value with 10 digits (seconds) \
or 13 (milliseconds) before any decimals: a `1` or a process ID does not say when the lock ended.

With --setnx-compat, nxlock promises:

A valid lock is never taken over.  The server's clock decides, in one script that compares and replaces the value; \
neither this machine's clock nor that of the client which wrote the value matters. An abandoned lock is taken over \
once, and by one claim.
A value that somebody writes over nxlock's lock is not taken over.  While a lease of nxlock is valid by the server's \
clock, no other nxlock treats the key as abandoned, whatever its value.
nxlock and an old client never hold the lock at once.  This is true as long as the old clients follow the rules \
above and their clocks differ from the server's by less than --setnx-margin and by less than half the time for which \
they lock.
A loser does no harm.  An old client that saw an old TIME before nxlock took over may still write its own by GETSET; \
it gets the number, and knows that it has lost. `run` checks every half second, puts its number and expiry back, and \
says so in a warning. With `acquire`, only a renewal does so, by `renew` or by a keeper. If it happens after the \
lease has ended, the lock is lost like any other.

nxlock does not promise the following, since only the old clients could:

A clock that is slow by more than the margin.  Its owner believes in a lock that has ended for everybody else, works \
on beside nxlock, and deletes nxlock's key at the end. This is a loss, which `run` finds within half a second: 76. A \
larger --setnx-margin helps.
A DEL without a check, or long after it.  The same. If another old client has taken the freed key by SETNX before \
`run` checks, `run` cannot tell this from a loser's GETSET: it puts its own value back and continues beside that \
client.
A clock that is far from the others'.  The TIME that a loser wrote may have passed for a client with a fast clock \
before nxlock has put its value back.
Old clients among themselves.  They lock no better than before.
32 bits.  A client that reads the number into 32 bits may read any time from it.
A lock that ended in between.  If a command ends before nxlock has put back the value that was written over its \
lock, the written value stays, as it may be somebody's lock, and the status is 76.
nxlock without --setnx-compat.  It waits for old clients as for any holder, but a lenient parser reads its token as \
0, a time long past, and takes the lock: on a key with such clients, every call needs the option, including calls \
that only wait in the queue. A plain `SET NX` client is safe beside nxlock, but not beside old clients.

A separate key names the holder of such a lock (see KEYS); the number does not. Without that record, `status` shows \
`foreign`. The number is the token for `renew`, `release`, NXLOCK_TOKEN and NXLOCK_HELD, and its first eight digits \
are the ID for --break. Scripts are required: a server that does not run them is an error (78). So is `local:`, \
which has no old locks (64).

To move a team from such locks, step by step:

1.  See what there is: `nxlock status --key lock.foo`. Set the clocks by NTP.
2.  Change one script after the other to call `nxlock run --setnx-compat --key lock.foo -- COMMAND`. The others stay \
as they are.
3.  When `CLIENT LIST` and the logs show no SETNX client any more (no more `put back`, no `took over`), drop \
--setnx-compat everywhere. Meanwhile, waiters with tokens of both kinds may stand in one queue.
4.  To replace the key itself, stop everything that uses it, and start it again with a NAME.";
