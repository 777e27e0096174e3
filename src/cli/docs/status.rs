//! What the manual page of `status` says of its table and of watching it. Written as `prose.rs` is.

pub const SHOWN: &str = "\
On a terminal the table fits its width: what there is no room for is cut or left out, first the reason, then the name, then the \
ID. A single lock that is named is shown with all that is known of it, and with its queue. Elsewhere nothing is cut, and under each lock \
that is named its queue stands in the table. Programs should read --json: the table may change.

NAME  The lock.
STATE  As under JSON. Green is held, cyan is about to be taken over, yellow wants to be looked at.
HOLDER, ID  Who has it: user, host and process; and what `release --break` wants.
HELD  For how long.
LEASE  How long it still runs unless it is renewed; `no end` if it does not end by itself.
WAITING  How many stand in line.
REASON  What --reason gave. Of an old SETNX lock, until when it is valid.

A list is asked for in many short questions, so that a server with thousands of locks serves others meanwhile. It is thus not \
of one moment. On a terminal, one that takes longer than a second tells how far it has got.";

pub const WATCHED: &str = "\
With --watch on a terminal the locks fill the screen, and these keys are heard:

up, down, k, j  Select the lock before or after. Page Up, Page Down, g and G go further.
Enter, Esc  One lock and its queue; back to all.
s  Sort by the next of name, time held, end of the lease, number of waiters.
/  Show only those with a text in their name, holder or reason. Enter keeps it, Esc shows all again.
b  Take the lock from its holder. It is asked first, with the holder's name, and only `y` does it; nothing is done if somebody else \
has it by then.
?  What keys there are.
q, Ctrl-C  Leave.
Ctrl-Z  Leave until `fg`.

The terminal is given back as it was, whatever ends the view but SIGKILL. The exit status is 0, as of top(1), whether or not \
what was named is held; a signal INT, QUIT, TERM or HUP ends nxlock by that signal. If the server cannot be reached, the last \
picture stays, with its age, and it is tried again; but if it cannot be reached at first, the exit status is that of `status` without --watch.

Where stdout is no terminal, or TERM is not set or is `dumb`, or with --json, all is printed once, and again after each change: a \
table under the time, or a document on a line. A change is another holder, state or queue, or a lock more or less; that time runs is none. What comes \
and goes between two looks is not seen. It ends with status 0 when nobody reads any more.

A look that takes long is not taken as often as --watch says: half of the time is left to others.";
