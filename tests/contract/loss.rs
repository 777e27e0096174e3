//! The lock is lost while the command runs: a user broke it, or nxlock was stopped for too long.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::turns::{acquire, break_it, is_free, lock_status, release};
use crate::support::{Authority, Job, Running, eventually, eventually_some, state_of, wall};

/// A child, and a daemon in a session of its own that refuses to end.
const TREE: &str = r#"
    sleep 300 &
    ( setsid sh -c 'trap "" TERM HUP INT; echo up; while :; do sleep 0.02; done' & )
    wait"#;

pub fn a_lock_that_is_taken_away_stops_the_whole_tree_before_the_lease_could_have_ended(authority: &impl Authority) {
    let mut job = Job::start(authority, &["-t", "12s", "--kill-after", "500ms"]);
    break_it(authority);
    // The holder may have renewed the lease until now.
    let end = wall() + Duration::from_secs(12);
    let new_owners = acquire(authority, "10m");
    let before = lock_status(authority);
    eventually("it ends", || job.running.has_ended());
    job.is_gone_before(end);
    job.running.finish().exits(76).says("lost").never_says(&new_owners);
    let after = lock_status(authority);
    assert_eq!((&after["holder"]["id"], &after["fence"]), (&before["holder"]["id"], &before["fence"]));
    assert!(after["ttl_ms"].as_u64() > Some(500_000), "its expiry is untouched too: {after}");
    release(authority, &new_owners);
}

pub fn a_command_told_to_stop_may_clean_up_and_still_it_is_76(authority: &impl Authority) {
    let script = "trap 'echo cleaned; exit 0' TERM; echo up; while :; do sleep 300 & wait; done";
    let mut running = authority.nxlock(["run", "job", "-t", "12s", "-c", script]).start();
    running.line("up");
    break_it(authority);
    running.finish().exits(76).prints("up\ncleaned\n");
}

pub fn a_loss_may_be_put_up_with(authority: &impl Authority) {
    let (reader, writer) = std::io::pipe().unwrap();
    let script = "trap 'echo disturbed' TERM; echo up; read x; exit 5";
    let options = ["run", "job", "-t", "12s", "--on-lost", "continue", "-c", script];
    let mut running = authority.nxlock(options).stdin_from(reader).start();
    running.line("up");
    break_it(authority);
    let new_owners = acquire(authority, "10m");
    running.says("runs on");
    drop(writer);
    // Regardless of the command's status: it did not run under the lock.
    let done = running.finish().exits(76).prints("up\n");
    assert_eq!(done.stderr.matches("runs on").count(), 1, "{}", done.stderr);
    release(authority, &new_owners);
}

pub fn a_loss_found_only_at_the_end_is_a_loss(authority: &impl Authority) {
    let (reader, writer) = std::io::pipe().unwrap();
    let call = authority.nxlock(["run", "job", "-t", "10m", "-c", "echo up; read x; exit 0"]);
    let mut running = call.stdin_from(reader).start();
    running.line("up");
    break_it(authority);
    let new_owners = acquire(authority, "10m");
    drop(writer);
    running.finish().exits(76).says("lost");
    release(authority, &new_owners);
}

/// Starts a run with a lease of a second, and stops it by a signal while its command is up. If the machine delays
/// nxlock for half of such a lease, nxlock stops the command, or does not start it, and rightly so: then another is
/// started.
#[track_caller]
fn stopped(authority: &impl Authority, script: &str, signal: Signal) -> Running {
    eventually_some("it is stopped while its command runs", || {
        let call = authority.nxlock(["run", "job", "-t", "1s", "--kill-after", "50ms", "-c", script]);
        let mut running = call.start();
        eventually("its command runs, or it has ended", || running.stdout() == "up\n" || running.has_ended());
        if running.has_ended() {
            return None;
        }
        running.signal(signal);
        eventually("it is stopped, or has ended", || state_of(running.pid()) == Some('T') || running.has_ended());
        (!running.has_ended()).then_some(running)
    })
}

pub fn the_lock_of_the_next_one_survives_our_late_release(authority: &impl Authority) {
    // A holds the lock; its lease expires while A is stopped; B acquires the lock; A continues and ends.
    let a = stopped(authority, "echo up; exec sleep 300", Signal::SIGSTOP);
    let b = acquire(authority, "10m");
    a.signal(Signal::SIGCONT);
    a.finish().exits(76).says("lost");
    release(authority, &b);
}

pub fn nothing_of_the_tree_runs_on_when_we_wake_up_after_the_lease(authority: &impl Authority) {
    // Ctrl-Z and a long lunch: the whole tree is stopped with nxlock, and continued only to end.
    let mut running = stopped(authority, TREE, Signal::SIGTSTP);
    eventually("the lease has ended", || is_free(authority));
    running.signal(Signal::SIGCONT);
    eventually("it ends", || running.has_ended());
    assert_eq!(running.descendants(), [0; 0]);
    running.finish().exits(76);
}
