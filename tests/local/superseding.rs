//! Waiters of which only the newest stays, in a directory.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::takes_less_than;
use crate::support::record::{lines, state};
use crate::support::turns::{Turn, queue, queue_is, turn};
use crate::support::{Authority, Local, eventually, now, text_of};

const NEWEST: [&str; 1] = ["--supersede"];

#[test]
fn the_dead_are_forgotten_by_the_next_that_comes() {
    let local = Local::start();
    let holder = Turn::had(&local, &[]);
    let frozen = Turn::queued(&local, &NEWEST);
    frozen.freeze();
    let newest = Turn::of(local.nxlock(turn(&NEWEST)));
    queue_is(&local, &[newest.pid()]);
    let entries = || {
        let state = state(&local.file("lock"));
        lines(&state, "newest").chain(lines(&state, "noted")).count()
    };
    assert_eq!(entries(), 2);
    for mut dead in [frozen, newest] {
        dead.running.signal(Signal::SIGKILL);
        eventually("it is dead", || dead.running.has_ended());
    }
    let mut next = Turn::of(local.nxlock(turn(&NEWEST)));
    eventually("it waits", || queue(&local) == [next.pid()]);
    assert_eq!(entries(), 1);
    holder.leaves();
    next.up();
    next.leaves();
    assert_eq!(entries(), 0);
}

#[test]
fn whoever_waits_behind_a_dismissed_one_that_is_stopped_keeps_its_turn() {
    takes_less_than(Duration::from_secs(2), "it is its turn", || {
        let local = Local::start();
        let log = local.directory().join("log");
        let logged =
            |options: &[&str], who: &str| Turn::of(local.nxlock(turn(options)).env("LOG", &log).env("WHO", who));
        let holder = Turn::had(&local, &[]);
        // So far back that a waiter asks by itself only every few seconds.
        let ahead: Vec<Turn> = (0..6).map(|_| logged(&[], "ahead").once_queued(&local)).collect();
        let stopped = logged(&NEWEST, "stopped").once_queued(&local);
        let mut next = logged(&[], "next").once_queued(&local);
        stopped.freeze();
        let mut newest = logged(&NEWEST, "newest").once_queued(&local);
        holder.leaves();
        for mut turn in ahead {
            turn.up();
            turn.leaves();
        }
        let began = now();
        next.up();
        let took = began.elapsed();
        next.leaves();
        newest.up();
        newest.leaves();
        stopped.goes_on();
        stopped.finish().exits(75);
        let order: Vec<String> =
            text_of(&log).lines().skip(6).map(|line| line.split(' ').next().unwrap().into()).collect();
        assert_eq!(order, ["next", "newest"]);
        took
    });
}
