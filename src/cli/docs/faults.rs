//! nxlock(7): the promises under each fault, in the form that `prose.rs` describes.

use super::prose::Section;

const ABOUT: &str = "\
nxlock(1) promises that nobody is granted a lock that somebody else holds, and that nxlock stops the command under a \
lock before the lock can be granted to the next claim. This page says what happens to these promises when something \
fails, how long recovery takes, and when a resource must protect itself: see FENCING.

The bounds follow from the design; ttl is the value of --ttl (run: 30s). Measured figures come from one run on a \
small virtual machine with a server on the same machine: take them for an order of magnitude.";

const HOLDER: &str = "\
The command ends.  The next waiter holds the lock within one round trip to the server.
nxlock is told to stop.  By TERM, INT, QUIT or HUP, or by --time-limit. It stops the whole tree of the command, \
by KILL after --kill-after if necessary, and releases the lock only when the last process of the tree is gone. No \
overlap.
nxlock is killed (SIGKILL, out of memory, KILL to its process group).  Its guard kills the command and everything it \
started, waits until the last of them is gone, and releases the lock. The guard is a process of nxlock named \
nxlock-guard, in a session of its own and with all signals blocked. No overlap, except with a process that the guard \
may not kill because another user runs it.
The guard is killed.  The kernel kills the command with it, and nxlock kills the rest, releases the lock, and exits \
with 70.
Both are killed in the same instant, or the guard is killed while nxlock is stopped.  The kernel kills the command; \
processes that the command had started run on, and so does a command that has changed its user. With `local:` the \
lock is free at once, on a server when its lease ends: from then on, two may run.
nxlock cannot renew (server away, network cut, hanging).  It tells the command to stop a fifth of the ttl before the \
lease ends, or --kill-after plus 100ms before if that is more, but never more than a third; it kills what is left a \
hundredth of the ttl before the end, at least 250ms. No overlap.
A script that holds the lock by `acquire --while-pid` is killed.  The keeper releases the lock at once. Processes \
that the script had started run on.
Its keeper is killed.  The lock expires when its lease ends, and nobody tells the script: from then on, two may run. \
If its keeper is stopped, the same happens, except that the keeper tells the script when it continues.
nxlock is stopped (SIGSTOP) while the command runs on.  Nothing renews the lock, and the guard kills the command and \
everything it started before the lease ends, a hundredth of the ttl before, at least 250ms. No overlap. If the guard \
is stopped too, two may run from the end of the lease on; the guard continues as soon as nxlock is killed.
Ctrl-Z at the terminal.  Everything that the command started is stopped before nxlock is, and continued after \
nxlock; if the lease is about to end before that, the guard kills all of it.
The machine is so busy that nxlock is not run.  Every step is delayed by the time that nxlock waits for a CPU. With \
the default ttl, a command that ends on TERM has six seconds to spare, and a command that must be killed has 0.3 s; \
with a ttl of half a second this is less than 0.1 s, and a machine with ten times as many runnable processes as CPUs \
may use that up. A longer ttl helps, and so does a fence.
nxlock and its command are stopped together, or the machine sleeps.  When they continue, the clock has advanced, and \
the command is killed before it is let go on. No overlap, except if a virtual machine is paused as a whole: its \
processes all run again at once, and only a fence helps.";

const WAITER: &str = "\
A waiter is killed or gives up.  Nobody notices. Three waiters killed at the head of the queue cost the next one \
about 15 ms.
A waiter is stopped, or its host disappears without notice.  When its turn comes, the lock is reserved for it for a \
grace period of 1s (longer if its round trips are long), and then goes to the next waiter. If it comes back, it has \
its old place. With `local:`, the next waiter may take up to 2s more to notice.
The holder and the first waiter are killed together.  The second waiter holds the lock about 30 ms after the lease \
has ended.
A reply is lost.  nxlock repeats the request with the same token, for the same claim. When it gives up a claim, it \
releases a lock that the claim was granted.";

const SERVER: &str = "\
It cannot be reached, is loading, read-only, or out of memory.  Waiters retry as long as --wait lasts. A holder \
continues until it must leave its lease; if nxlock cannot confirm a release, the lock expires with its lease. No \
overlap.
It forgets the lock (restart without persistence, failover to a replica that did not have the lock yet, FLUSHALL, \
eviction, DEL by somebody).  The lock can be granted to others at once. The holder finds out when its connection \
ends, or else at its next renewal, after a third of the ttl and at most 10s; then nxlock stops its command, within \
--kill-after. Until then, two may run. In ten minutes of random forgetting, with leases of 0.1 to 5s and a stop of \
up to 0.3s, the longest overlap was 0.5s. A shorter --ttl makes it shorter, a fence harmless.
Its clock is set forward.  Leases end early, as if the server had forgotten them.
Its clock is set back.  The lease of a holder that died lasts longer by that step; a live holder corrects its lease \
at the next renewal.
Its clock is fast or slow.  nxlock allows for 1 % and 2ms.
Several hosts believe that they are the server.  A failover in a partitioned network can lead to this: two locks of \
one name. Only a fence helps.";

const FENCING: &str = "\
If two at once cost no more than work done twice, you need none of this. If they destroy something, the resource \
itself must refuse the late one, since only the resource can tell. Each grant has a number, NXLOCK_FENCE, that is \
higher than that of every earlier grant, also across restarts, FLUSHALL and failovers, as long as the server's clock \
is not set back while the server forgets. With several servers, nxlock writes the number to a majority of them \
before it hands it out; the number rises as long as no majority forgets. The holder sends it with every change; the \
resource keeps the highest number that it has seen and refuses a lower one.

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

A row of a database, with the fence in a column of its own. In each transaction that changes data under the lock, \
first execute:

    UPDATE guard SET fence = :fence WHERE name = 'nightly' AND fence <= :fence

If this changes no row, a newer holder has been there: roll back, and stop. The row stays locked until the \
transaction ends, so that no newer holder comes between. A resource that can only compare for equality, such as an \
object store with preconditions, keeps the fence beside the object and changes both in one conditional write.

A server without scripts (see PERMISSIONS in nxlock(1)) gives no fence, and NXLOCK_FENCE is not set: put `[ -n \
\"$NXLOCK_FENCE\" ]` before anything else.";

const TESTED: &str = "\
The tests search the states of the protocol exhaustively for small numbers of clients, and compare random histories \
with a real server's. A test named chaos runs contenders against servers that hang, restart, forget and report wrong \
times, kills and freezes everything, and proves from the records that all of them wrote that there was no overlap \
except those described on this page. It detects ten copies of nxlock that are broken on purpose.";

const SEVERAL: &str = "\
If three or more servers vote (see SEVERAL SERVERS in nxlock(1)), most faults of one server have no effect.

A minority is down, hangs, or is cut off.  No effect. nxlock tells a server that hangs to forget the request, behind \
the request that the server has not answered; whenever the server carries that out, it touches no later attempt, \
since each attempt has a token of its own.
A majority is down, hangs, or is cut off.  No lock is granted (69), and nxlock stops a holder's command before the \
lease ends. No overlap.
One restarts empty while a lock is held.  It gets the lock again at the next renewal, at most 10s later, and does \
not count as a vote in that round. Until then, the failure or forgetting of one more server may be one too many: \
with three servers, the loss of two within that time lets two run, and the first is stopped at its next renewal.
A majority restarts empty at once.  As with one server that forgets: two may run until the next renewal. \
`appendfsync always` prevents this, and so does keeping the servers away for as long as the longest ttl.
A replica takes over from one of them.  As a restart without the data that the replica did not have yet.
A clock jumps forward.  That server's vote ends early, as if the server had forgotten it.
Two clients each reach a minority.  Neither is granted the lock, and both retry at random intervals.";

pub const NXLOCK_7: [Section; 7] = [
    ("DESCRIPTION", ABOUT),
    ("HOLDER FAULTS", HOLDER),
    ("WAITER FAULTS", WAITER),
    ("SERVER FAULTS", SERVER),
    ("FAULTS WITH SEVERAL SERVERS", SEVERAL),
    ("FENCING", FENCING),
    ("TESTING", TESTED),
];

/// Returns the program that the page shows for a file.
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
        // A refused program does not read its stdin.
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
