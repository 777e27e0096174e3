//! nxlock(7): what is promised under which fault, in the form that `prose.rs` describes.

use super::prose::Section;

const ABOUT: &str = "\
nxlock(1) promises that nobody is granted a lock that somebody else has, and that what runs under a lock is stopped before \
the lock can be granted to the next. This page says what becomes of that when something fails, how long it takes \
until things are in order again, and when a resource has to look after itself: see FENCING.

The bounds are those that follow from how it works, with ttl for what --ttl gives (run: 30s). Where a figure was \
measured, it is of one run on a small virtual machine with a server on the same machine: take it for an order of magnitude.";

const HOLDER: &str = "\
The command ends.  The lock is in the hands of the next waiter within a round trip to the server.
nxlock is told to stop.  By TERM, INT, QUIT or HUP, or --time-limit. The whole tree of the command is stopped, if need be by \
KILL after --kill-after, and the lock is given back only when the last of it has gone. No overlap.
nxlock is killed (SIGKILL, out of memory, KILL to its process group).  Its guard kills the command and everything it started, waits \
until the last of them is gone, and gives the lock back. The guard is a process of nxlock named nxlock-guard, in a session of its own and \
with all signals blocked. No overlap, but for a process that the guard may not kill, since another user runs it.
The guard is killed.  The kernel kills the command with it, and nxlock kills the rest, gives the lock back, and exits with 70.
Both are killed in the same instant, or the guard is killed while nxlock is stopped.  The kernel kills the command; what the command had started lives on, and so does a command that has changed its \
user. With `local:` the lock is free at once, on a server at the end of its lease: from then on two may run.
Nobody renews (server away, network cut, hanging).  The command is told to stop a fifth of the ttl before the lease ends, or --kill-after and \
100ms if that is more, though never more than a third; what is left is killed a hundredth of the ttl before the end, at least 250ms. No overlap.
A script that holds the lock by `acquire --while-pid` is killed.  The keeper gives the lock back at once. What the script had started lives on.
Its keeper is killed.  The lock ends at the end of its lease, and nobody tells the script: from then on two may run. Its keeper stopped is the same, but that it tells the \
script when it continues.
nxlock is stopped (SIGSTOP) while the command runs on.  Nothing is renewed, and the guard kills the command and everything it started before the lease \
ends, a hundredth of the ttl before, at least 250ms. No overlap. If the guard is stopped too, two may run from the end of the lease on; it goes on as soon as nxlock is killed.
Ctrl-Z at the terminal.  Everything that the command started is stopped before nxlock is, and continued after it; if the lease is about to end before \
that, the guard kills all of it.
The machine is so busy that nxlock is not run.  Every step comes as much later as it has to wait for a processor. A command that ends at TERM has \
six seconds to spare with the default ttl, and one that has to be killed 0.3 s; with a ttl of half a second it is less than 0.1 s, which a machine with ten \
times as much to run as processors may take. A longer ttl helps, and a fence.
nxlock and its command are stopped together, or the machine sleeps.  When they continue, the clock has gone on, and what runs is killed before it \
is let go on. No overlap, but for a virtual machine that is paused as a whole: its processes run again all at once: only a fence helps.";

const WAITER: &str = "\
A waiter is killed or gives up.  Nobody notices. Three killed at the head cost the next about 15 ms.
A waiter is stopped, or its host has gone silently.  When it is its turn, the lock is put aside for it for a grace of 1s (longer where its \
round trips are long), then goes to the next. If it comes back it has its old place. With `local:` the next may take up to 2s more to notice.
The holder and the first waiter are killed together.  The second has the lock about 30 ms after the lease has ended.
A reply is lost.  The question is asked again with the same token, and means the same claim. A claim that is given up \
is given back.";

const SERVER: &str = "\
It cannot be reached, is loading, read-only, or out of memory.  Waiters try again as long as --wait lasts. A holder goes on until its lease \
has to be left, and a release that could not be confirmed leaves the lock to its lease. No overlap.
It forgets the lock (restart without persistence, failover to a replica that had not heard of it, FLUSHALL, eviction, DEL by somebody).  Others may be \
granted the lock at once. The holder finds out when its connection ends, and else at its next renewal, after a third of the ttl and at most 10s; then its \
command is stopped, in --kill-after at most. So long two may run. In ten minutes of random forgetting, with leases of 0.1 to 5s and a \
stop of up to 0.3s, the longest overlap was 0.5s. A shorter --ttl makes it shorter, a fence harmless.
Its clock is set forward.  Leases end early, as if it had forgotten them.
Its clock is set back.  The lease of a holder that died lasts so much longer; a living one sets its own right at the next renewal.
Its clock is fast or slow.  1 % and 2ms are allowed for.
Several hosts think that they are the server.  That is what a failover of a divided network may come to: two locks of one name. Only a fence helps.";

const FENCING: &str = "\
Where a moment of two at once costs no more than work done twice, none of this matters. Where it destroys something, the resource itself has to refuse whoever \
is late, since it alone can tell. Each grant has a number, NXLOCK_FENCE, that is higher than that of every grant before it, \
also across restarts, FLUSHALL and failovers, as long as the server's clock is not set back while it forgets. With several servers the number is written to a majority of them \
before it is given, and rises as long as no majority forgets. The holder gives it with every change, and the resource keeps \
the highest that it has seen and refuses a lower one.

A file, replaced by a program that all use to write it (`store FILE < new`):

    #!/bin/sh
    # Replaces FILE by stdin, unless somebody who was granted the lock later has been here.
    exec 9>> \"$1.fence\" && flock 9 || exit
    newest=$(tail -n 1 \"$1.fence\")
    if [ \"$NXLOCK_FENCE\" -lt \"${newest:-0}\" ]; then
        echo \"fence $NXLOCK_FENCE is late: $newest was here\" >&2
        exit 1
    fi
    echo \"$NXLOCK_FENCE\" >> \"$1.fence\" && cat > \"$1.new\" && mv \"$1.new\" \"$1\"

A row of a database, with the fence in a column of its own. In the transaction that changes anything under the lock, first:

    UPDATE guard SET fence = :fence WHERE name = 'nightly' AND fence <= :fence

If no row was changed, somebody newer has been there: roll back, and end. The row stays locked until the transaction ends, so \
that nobody newer comes between. A resource that can only compare for equality, such as an object store with preconditions, \
keeps the fence beside the object and changes both in one conditional write.

Without scripts (see PERMISSIONS in nxlock(1)) a server gives no fence, and NXLOCK_FENCE is not set: then `[ -n \"$NXLOCK_FENCE\" ]` \
should come before anything else.";

const TESTED: &str = "\
The states of the protocol are searched to the end for small numbers of clients, and random histories are compared with a real server's. \
A test called chaos lets contenders loose on servers that hang, restart, forget and lie about the time, kills and freezes everything, and \
proves from what all of them wrote down that there was no overlap but those that this page tells of. Ten copies of nxlock that are broken \
on purpose are found out by it.";

const SEVERAL: &str = "\
Of what befalls one server, most is nothing where three or more vote (see SEVERAL SERVERS in nxlock(1)).

A minority is down, hangs, or is cut off.  Nothing. Who was asked and hangs is told to forget it, behind the request that it has not answered; whenever that is carried out, \
no later attempt is touched, since each has a token of its own.
A majority is.  No lock is granted (69), and a holder is stopped before its lease ends. No overlap.
One restarts empty while a lock is held.  It is told again at the next renewal, at most 10s later, and does not count as a vote in that round. Until then one server more that fails \
or forgets may be one too many: with three servers the loss of two within that time lets two run, and the first is stopped at its next renewal.
A majority restarts empty at once.  As with one server that forgets: two may run until the next renewal. `appendfsync always`, or staying away for as long as the longest ttl, \
excludes it.
A replica takes over from one of them.  As a restart without what the replica had not heard of.
A clock jumps forward.  That server's vote ends early, as if it had forgotten.
Two clients each reach a minority.  Neither is granted the lock, and both try again at random moments.";

pub const NXLOCK_7: [Section; 7] = [
    ("DESCRIPTION", ABOUT),
    ("WHAT BEFALLS A HOLDER", HOLDER),
    ("WHAT BEFALLS A WAITER", WAITER),
    ("WHAT BEFALLS A SERVER", SERVER),
    ("WHAT BEFALLS SEVERAL SERVERS", SEVERAL),
    ("FENCING", FENCING),
    ("HOW IT IS TESTED", TESTED),
];

/// The program that the page shows for a file.
fn example() -> String {
    let shown =
        FENCING.lines().skip_while(|line| !line.starts_with("    #!")).take_while(|line| line.starts_with("    "));
    shown.map(|line| line.trim_start_matches("    ").to_owned() + "\n").collect()
}

#[test]
fn the_file_that_the_manual_fences_refuses_who_is_late() {
    let directory = tempfile::tempdir().unwrap();
    let (program, file) = (directory.path().join("store"), directory.path().join("file"));
    std::fs::write(&program, example()).unwrap();
    let store = |fence: &str, text: &str| {
        let mut call = std::process::Command::new("sh");
        call.arg(&program).arg(&file).env("NXLOCK_FENCE", fence).stdin(std::process::Stdio::piped());
        let mut running = call.stderr(std::process::Stdio::piped()).spawn().unwrap();
        // One that is refused does not read it.
        let _ = std::io::Write::write_all(&mut running.stdin.take().unwrap(), text.as_bytes());
        let done = running.wait_with_output().unwrap();
        (done.status.code(), String::from_utf8(done.stderr).unwrap(), std::fs::read_to_string(&file).unwrap())
    };
    let newest = "1795268515007882";
    assert_eq!(store("1795268515007881", "first"), (Some(0), String::new(), "first".into()));
    assert_eq!(store(newest, "second"), (Some(0), String::new(), "second".into()));
    assert_eq!(store(newest, "third"), (Some(0), String::new(), "third".into()));
    let (status, said, kept) = store("1795268515007881", "late");
    assert_eq!((status, kept.as_str()), (Some(1), "third"));
    assert!(said.contains("is late"), "{said}");
}
