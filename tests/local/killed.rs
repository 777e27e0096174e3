//! Holders and waiters that are killed: the kernel reports it at once, whatever their ttl.

use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{granted_after, is_killed, pid_is_killed, refused_to_run, takes_less_than};
use crate::support::record::{field, state};
use crate::support::turns::{Turn, acquire, break_it, is_free, lock_status, queue_is, release, turn};
use crate::support::{Authority, Local, Running, eventually, eventually_some, is_alive, name_of, parent_of, wall};

/// Longer than any time-out in these tests.
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
        let since = wall();
        is_killed(&mut holder.running);
        let first = granted_after(since, &mut next);
        let since = wall();
        is_killed(&mut next.running);
        let second = granted_after(since, &mut last);
        last.leaves();
        first + second
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
    assert_eq!(lock_status(&local)["state"], "held");
    assert!(!waiter.is_up());
    break_it(&local);
    waiter.up();
    waiter.leaves();
}

/// A command that leaves two processes in sessions of their own, and sleeps. They read no stdin, and print their pids.
const LEAVES: &str = r#"
    for i in 1 2; do ( setsid sh -c 'echo left $$; exec sleep 600' & ); done
    exec sleep 600"#;

/// Starts a run. Returns it with the two processes that its command started in sessions of their own.
fn started_two(local: &Local) -> (Running, Vec<i32>) {
    let holder = local.nxlock(["run", "job", "--ttl", "1h", "-c", LEAVES]).start();
    let mut left = Vec::new();
    eventually("both are there", || {
        let text = holder.stdout();
        left = text.lines().filter_map(|line| line.strip_prefix("left ")?.parse().ok()).collect();
        left.len() == 2
    });
    (holder, left)
}

#[test]
fn what_a_killed_run_has_started_is_gone_before_the_next_has_its_lock() {
    let local = Local::start();
    for kill_the_guard in [false, true] {
        let (mut holder, left) = started_two(&local);
        let mut next = Turn::queued(&local, &[]);
        if kill_the_guard {
            pid_is_killed(parent_of(command_of(&holder)));
        } else {
            is_killed(&mut holder);
        }
        next.up();
        assert!(!left.iter().any(|pid| is_alive(*pid)), "the guard was killed: {kill_the_guard}");
        next.leaves();
    }
}

/// Returns the command of a run: among the processes that have its environment, the guard's child.
fn command_of(holder: &Running) -> i32 {
    let descendants = holder.descendants();
    let is_command = |pid: &i32| name_of(parent_of(*pid)) == "nx-guard";
    descendants.into_iter().find(|pid| is_alive(*pid) && is_command(pid)).expect("a guard's child")
}

#[test]
fn one_that_is_killed_while_the_lock_is_put_aside_for_it_costs_no_grace() {
    let local = Local::start();
    // Returns whose the lock is, or for whom it is put aside, and since when, in µs: the fence is that time.
    let grant = || {
        let record = fs::read(local.file("lock")).unwrap();
        let pid: i32 = field(&record, "holder", "token").split(':').nth(3).unwrap().parse().unwrap();
        (pid, field(&record, "holder", "fence").parse::<u64>().unwrap())
    };
    // The grace is one second. On a machine too slow to observe the reservation, it has passed.
    takes_less_than(Duration::from_millis(950), "the one behind has it", || {
        let mut holder = Turn::had(&local, &[]);
        let mut called = Turn::queued(&local, &[]);
        let mut next = Turn::queued(&local, &[]);
        called.freeze();
        holder.is_told();
        let reserved = eventually_some("it is reserved, or has been", || match grant() {
            (pid, since) if pid == called.pid() => Some(Some(since)),
            (pid, _) if pid == next.pid() => Some(None),
            _ => None,
        });
        is_killed(&mut called.running);
        let granted: u64 = next.up().parse().unwrap();
        holder.leaves();
        next.leaves();
        reserved.map_or(Duration::MAX, |since| Duration::from_micros(granted - since))
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
    queue_is(&local, &pids);
    release(&local, &token);
    for mut waiter in waiters {
        waiter.up();
        waiter.leaves();
    }
    assert!(!state(&local.file("lock")).contains("waiter"), "somebody stands in it");
}
