//! The manual on the table of `status` and on --watch, in the form that `prose.rs` describes.

pub const SHOWN: &str = "\
On a terminal the table fits its width: nxlock cuts or leaves out columns that have no room, first the reason, then \
the name, then the ID. If you name a single lock, nxlock shows everything it knows of the lock, with its queue. \
Elsewhere nothing is cut, and the queue of each named lock follows the lock in the table. Programs should read \
--json: the table may change.

NAME  The lock.
STATE  As under JSON. Green is held, cyan is about to be taken over, yellow needs attention.
HOLDER, ID  The holder: user, host and process; and the ID that `release --break` requires.
HELD  Time since the grant.
LEASE  Time until the lease ends, unless it is renewed; `no end` if the lock does not end by itself.
WAITING  Number of waiters.
REASON  The text of --reason. For an old SETNX lock, the time until which it is valid.

nxlock reads a list in many short requests, so that a server with thousands of locks serves others meanwhile. So the \
list is not a snapshot of one moment. On a terminal, nxlock shows the progress of a list that takes longer than a \
second.";

pub const WATCHED: &str = "\
With --watch on a terminal, the locks fill the screen, and these keys work:

up, down, k, j  Select the lock before or after. Page Up, Page Down, g and G go further.
Enter, Esc  Show one lock and its queue; return to all locks.
s  Sort by the next of name, time held, end of the lease, number of waiters.
/  Show only locks with a text in their name, holder or reason. Enter keeps the filter, Esc shows all locks again.
b  Break the lock. nxlock asks first, with the holder's name, and only `y` confirms; it does nothing if somebody \
else holds the lock by then.
?  Show the keys.
q, Ctrl-C  Quit.
Ctrl-Z  Suspend nxlock until `fg`.

nxlock restores the terminal, whatever ends the view except SIGKILL. The exit status is 0, as of top(1), whether or \
not the named locks are held; INT, QUIT, TERM or HUP ends nxlock by that signal. If the server cannot be reached, \
nxlock keeps the last view, with its age, and retries; but if it cannot be reached at first, the exit status is that \
of `status` without --watch.

If stdout is not a terminal, or TERM is not set or is `dumb`, or with --json, nxlock prints the whole status once, \
and again after each change: a table under the time, or a document on one line. A change is a different holder, \
state or queue, or a new or missing lock; the passing of time is not a change. nxlock does not see changes that come \
and go between two polls. It ends with status 0 when nobody reads its output any more.

If a poll takes long, nxlock polls less often than --watch says: it leaves half of the time to others.";
