//! Waiters that give up, on a signal or after a time-out.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::turns::{Turn, each_is_served, holder_id, is_queued, lock_status, queue, queue_is};
use crate::support::{Authority, eventually, now};

const LEAVE: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

pub fn a_waiter_that_is_told_to_leave_leaves_by_that_signal(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    let id = holder_id(authority);
    for call in [&["run", "job", "--", "echo", "ran"][..], &["acquire", "job", "--ttl", "1m"]] {
        for signal in LEAVE {
            let waiter = authority.nxlock(call.iter().copied()).start();
            is_queued(authority, waiter.pid());
            let told = now();
            waiter.signal(signal);
            // Only death by the signal, not an exit status, ends a calling shell's loop.
            waiter.finish().dies_of(signal).prints("");
            // The contract allows one second.
            assert!(told.elapsed() < Duration::from_secs(3), "{signal}: {:?}", told.elapsed());
            assert!(queue(authority).is_empty(), "{signal}");
        }
    }
    for signal in LEAVE {
        let mut waiter = authority.nxlock(["run", "job", "--no-queue", "--", "echo", "ran"]).start();
        waiter.says("waiting");
        waiter.signal(signal);
        waiter.finish().dies_of(signal).prints("");
    }
    assert_eq!(holder_id(authority), id, "the holder is not touched");
    holder.leaves();
}

pub fn who_gives_up_leaves_the_line_at_once_and_the_others_move_up(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    let mut line: Vec<Turn> = (0..5).map(|_| Turn::queued(authority, &[])).collect();
    // At the head, in the middle, at the end.
    for (at, signal) in [0, 1, 2].into_iter().zip(LEAVE) {
        let gone = line.remove(at);
        gone.running.signal(signal);
        gone.running.finish().dies_of(signal).prints("");
        // At once, so without polling.
        assert_eq!(queue(authority), line.iter().map(Turn::pid).collect::<Vec<_>>(), "{signal}");
        let lock_status = lock_status(authority);
        let positions =
            lock_status["queue"].as_array().unwrap().iter().map(|waiter| waiter["position"].as_u64().unwrap());
        assert!(positions.eq(1..=line.len() as u64), "{lock_status}");
    }
    holder.leaves();
    each_is_served(line);
}

pub fn who_has_waited_long_enough_leaves_the_line(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    // Its wait may be over before `status` shows it in the queue.
    let mut waiter = Turn::waiting(authority, &["-w", "3s"]);
    let behind = Turn::queued(authority, &[]);
    eventually("it has given up", || waiter.running.has_ended());
    assert_eq!(queue(authority), [behind.pid()]);
    waiter.running.finish().exits(75).prints("");
    // The waiter behind is the head now, and is woken.
    holder.leaves();
    let mut behind = behind;
    behind.up();
    queue_is(authority, &[]);
    behind.leaves();
}

pub fn one_told_to_leave_while_the_lock_is_put_aside_for_it_passes_it_on(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    let frozen = Turn::queued(authority, &[]);
    let mut next = Turn::queued(authority, &[]);
    frozen.freeze();
    holder.leaves();
    frozen.running.signal(Signal::SIGTERM);
    frozen.goes_on();
    // When continued, it finds a reservation and a signal; the signal takes precedence.
    frozen.running.finish().dies_of(Signal::SIGTERM).prints("");
    next.up();
    next.leaves();
}
