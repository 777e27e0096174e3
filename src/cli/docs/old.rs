//! What the manual says of old locks: keys that were fixed long ago, and the `SETNX` clients on them. In the
//! form that `prose.rs` describes.

pub const OLD_LOCKS: &str = "\
The oldest lock of Redis has no expiry: `SETNX lock.foo TIME`, where TIME is when it ends. Who finds a TIME in the past writes a new one by \
GETSET, and owns the lock if the one that it replaced was still in the past; the owner deletes the key if its own time has not come. \
Such clients go by their own clocks, overwrite each other's values, and may delete a lock that is no longer theirs. nxlock can share a key with them \
while they are being replaced.

--key KEY  The exact key, without prefix, such as `lock.foo`, in place of NAME in `run`, `acquire`, `renew`, `release` and `status`. It is also the \
name that is shown. The word after it is what follows NAME otherwise: `nxlock run --key lock.foo -- ./deploy.sh`. A key with braces, such as \
`{user}.lock`, has its queue and fence in the same slot of a cluster, under `{user}.lock:nxlock:`; one where that cannot be, `x{}y` or `a}b`, is refused.
--setnx-compat  On `run` and `acquire`. A lock whose TIME has passed by more than --setnx-margin (5s) is taken over. The token is a number \
of 19 digits: in seconds or in milliseconds, to a strict parser or a lenient one, a time long after all clocks, so that \
no such client believes it to have passed. Its expiry ends it.

Whatever options are given, a key that exists is held, whatever is in it, and nothing but --setnx-compat takes over what another program has left. \
`status` shows a plain number without an expiry as `legacy`, with the time until which it is valid or since when it is stale: seconds of the server's clock, with decimals \
or without, or milliseconds. What waits for such a key looks again about every tenth of a second. Taken over is only what has 10 digits (seconds) or 13 (milliseconds) before \
any decimals: a `1` or the number of a process says of no time when it ended.

With --setnx-compat it is promised:

A valid lock is never taken.  The server's clock decides, in one script that compares and replaces the value, not this machine's clock and \
not that of the client which wrote it. An abandoned lock is taken over once, and by one.
What somebody writes over nxlock's lock is not taken over.  While a lease of nxlock is valid by the server's clock, no other nxlock takes the key for \
one that was left, whatever it holds.
Never one of nxlock beside one of the others.  As long as these keep to the rules above and the clocks they go by differ from the server's by less than --setnx-margin and \
by less than half the time for which they lock.
A loser does no harm.  One of the others that saw an old TIME before nxlock took over may still write its own by GETSET, gets the number, and knows that it has \
lost. `run` looks every half second, puts its number and expiry back, and says so in a warning. With `acquire` only `renew` does. If it happens after the lease has ended, the lock is lost like any other.

And this is not promised, since nobody but the others could:

A clock that is slow by more than the margin.  Its owner believes in a lock that has ended for everybody else, works on beside \
nxlock, and deletes nxlock's key at the end. That is a loss, which `run` finds within half a second: 76. A larger --setnx-margin helps.
A DEL without looking, or long after it.  The same. If another one of them has taken the freed key by SETNX before `run` looks, that cannot be told from a loser's GETSET: \
`run` puts its own value back and goes on beside it.
A clock that is far from the others'.  The TIME that a loser wrote may have passed for one whose clock is fast before nxlock has put its value back.
What they do to one another.  They lock no better than before.
32 bits.  A client that reads the number into 32 bits may read any time from it.
A lock that ended in between.  If a command ends before what was written over its lock is put back, that stays, as it may be \
somebody's lock, and the status is 76.
nxlock without --setnx-compat.  It waits for the others as for any holder, but a lenient parser reads its token as 0, a time long past, and takes the lock: \
on a key with such clients all calls need the option, those that wait in line with them included. A plain `SET NX` client is safe beside nxlock, \
and not beside these.

Who holds such a lock stands in a key of its own (see KEYS), not in the number; without that record, `status` shows `foreign`. The number is the token for `renew`, `release`, NXLOCK_TOKEN and NXLOCK_HELD, \
and its first eight digits are the ID for --break. Scripts are needed: a server that does not run them is an error (78). So is `local:`, where nothing is old (64).

To move a team from such locks, step by step:

1.  See what there is: `nxlock status --key lock.foo`. Set the clocks by NTP.
2.  Let each script that is touched call `nxlock run --setnx-compat --key lock.foo -- COMMAND` instead. The others stay as they are.
3.  When `CLIENT LIST` and the logs show no SETNX client any more (no more `put back`, no `took over`), leave --setnx-compat out everywhere. Tokens of both kinds may \
stand in one line meanwhile.
4.  If the key itself is to go, stop all who use it, and let them start again with a NAME.";
