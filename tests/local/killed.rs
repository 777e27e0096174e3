//! Holders and waiters that are killed: the kernel tells of it at once, whatever their lease.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::{is_killed, pid_is_killed, refused_to_run, takes_less_than};
use crate::support::line::{Turn, acquire, break_it, is_free, line_is, queue, release, standing, turn};
use crate::support::{Authority, Local, Running, eventually, is_alive, now, text_of};

/// Long after the limit of every wait here.
const LONG: [&str; 2] = ["--ttl", "1h"];

#[test]
fn the_lock_of_a_run_is_free_when_it_is_killed() {
    let local = Local::start();
    let mut holder = Turn::had(&local, &LONG);
    is_killed(&mut holder.running);
    eventually("it is free", || is_free(&local));
    local.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
}

#[test]
fn who_waits_is_woken_when_the_holder_is_killed() {
    let local = Local::start();
    takes_less_than(Duration::from_secs(1), "the next one has it", || {
        let mut holder = Turn::had(&local, &LONG);
        let mut next = Turn::queued(&local, &LONG);
        let mut last = Turn::queued(&local, &LONG);
        let told = now();
        is_killed(&mut holder.running);
        next.up();
        is_killed(&mut next.running);
        last.up();
        let took = told.elapsed();
        last.leaves();
        took
    });
}

#[test]
fn who_does_not_stand_in_line_sees_it_too() {
    let local = Local::start();
    let mut holder = Turn::had(&local, &LONG);
    let mut outsider = Turn::of(local.nxlock(turn(&["--no-queue"])));
    outsider.running.says("waiting for \"job\"");
    is_killed(&mut holder.running);
    outsider.up();
    outsider.leaves();
}

#[test]
fn a_token_outlives_whoever_asked_for_it() {
    let local = Local::start();
    local.sh("nxlock acquire job --ttl 1h; kill -9 $$", &[]).run().dies_of(Signal::SIGKILL);
    local.nxlock(refused_to_run(&["-n"])).run().exits(75).prints("");
    let waiter = Turn::queued(&local, &[]);
    break_it(&local);
    waiter.leaves();
}

#[test]
fn a_name_that_stays_locked_for_a_while_does_so_without_a_process() {
    let local = Local::start();
    local.nxlock(["run", "job", "--at-least", "1h", "--", "true"]).run().exits(0);
    let mut waiter = Turn::queued(&local, &[]);
    local.nxlock(refused_to_run(&["-n"])).run().exits(75).prints("");
    assert_eq!(standing(&local)["state"], "held");
    assert!(!waiter.is_up());
    break_it(&local);
    waiter.up();
    waiter.leaves();
}

/// A command that leaves two behind in sessions of their own, and waits for its end. They read no stdin,
/// and say who they are.
const LEAVES: &str = r#"
    for i in 1 2; do ( setsid sh -c 'echo left $$; exec sleep 600' & ); done
    exec sleep 600"#;

/// A run that was killed, and the two that its command has left behind.
fn killed_with_two_left(local: &Local) -> (Running, Vec<i32>) {
    let mut holder = local.nxlock(["run", "job", "--ttl", "1h", "-c", LEAVES]).start();
    let mut left = Vec::new();
    eventually("both are there", || {
        let text = holder.stdout();
        left = text.lines().filter_map(|line| line.strip_prefix("left ")?.parse().ok()).collect();
        left.len() == 2
    });
    is_killed(&mut holder);
    (holder, left)
}

#[test]
fn what_a_killed_run_has_left_behind_keeps_its_lock() {
    let local = Local::start();
    takes_less_than(Duration::from_secs(1), "the next one has it", || {
        let (_holder, left) = killed_with_two_left(&local);
        let mut next = Turn::queued(&local, &[]);
        local.nxlock(refused_to_run(&["-n"])).run().exits(75).prints("");
        local.nxlock(refused_to_run(&["-n", "--no-queue"])).run().exits(75).prints("");
        assert_eq!((standing(&local)["state"].as_str(), queue(&local)), (Some("held"), vec![next.pid()]));
        pid_is_killed(left[0]);
        // Those who look see the other, and so does the waiter, which was woken.
        local.nxlock(refused_to_run(&["-n"])).run().exits(75).prints("");
        line_is(&local, &[next.pid()]);
        assert!(is_alive(left[1]) && !next.is_up());
        let told = now();
        pid_is_killed(left[1]);
        next.up();
        let took = told.elapsed();
        next.leaves();
        took
    });
}

#[test]
fn a_lock_may_be_taken_from_what_was_left_behind() {
    let local = Local::start();
    let (_holder, left) = killed_with_two_left(&local);
    break_it(&local);
    local.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
    assert!(left.into_iter().all(is_alive));
}

/// Waits until the lock is put aside for this one.
fn is_put_aside_for(local: &Local, turn: &Turn) {
    eventually("it is put aside for it", || {
        let standing = standing(local);
        standing["state"] == "reserved" && standing["holder"]["pid"] == turn.pid()
    });
}

#[test]
fn one_that_is_killed_while_the_lock_is_put_aside_for_it_costs_no_grace() {
    let local = Local::start();
    // The grace is a second; on a machine that is too slow to see who it is put aside for, it is over.
    takes_less_than(Duration::from_millis(950), "the one behind has it", || {
        let holder = Turn::had(&local, &[]);
        let mut called = Turn::queued(&local, &[]);
        let mut next = Turn::queued(&local, &[]);
        called.freeze();
        let told = now();
        holder.leaves();
        is_put_aside_for(&local, &called);
        is_killed(&mut called.running);
        next.up();
        let took = told.elapsed();
        next.leaves();
        took
    });
}

#[test]
fn a_waiter_that_is_killed_leaves_nothing_in_the_line() {
    let local = Local::start();
    let token = acquire(&local, "1h");
    let mut waiters: Vec<Turn> = (0..5).map(|_| Turn::queued(&local, &[])).collect();
    for at in [1, 2, 0] {
        is_killed(&mut waiters.remove(at.min(waiters.len() - 1)).running);
    }
    let pids: Vec<i32> = waiters.iter().map(Turn::pid).collect();
    line_is(&local, &pids);
    release(&local, &token);
    for mut waiter in waiters {
        waiter.up();
        waiter.leaves();
    }
    assert_eq!(text_of(&local.file("line")).trim(), "", "somebody stands in it");
}
