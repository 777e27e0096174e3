//! First come, first served: which waiter is next, which are skipped, and which callers must not overtake.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::turns::{
    Turn, acquire, fences_rise, grants, is_queued, lock_status, next_holder, queue, queue_is, release, turn,
};
use crate::support::{Authority, Running, eventually};

pub fn a_second_caller_waits_and_gets_it(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    let mut second = authority.nxlock(["run", "job", "--", "echo", "ran"]).start();
    second.says("waiting for \"job\": held by");
    assert_eq!(second.stdout(), "");
    holder.leaves();
    second.finish().exits(0).prints("ran\n").says("got \"job\" after");
}

/// Starts `n` waiters, queued in order, that log their turns.
fn in_order(authority: &impl Authority, n: usize) -> Vec<Running> {
    let start = |who: usize| {
        let call = authority.nxlock(["-q", "run", "job", "-c", "echo \"$WHO $NXLOCK_FENCE\" >> \"$LOG\""]);
        let waiter = call.env("LOG", authority.directory().join("log")).env("WHO", who.to_string()).start();
        is_queued(authority, waiter.pid());
        waiter
    };
    (1..=n).map(start).collect()
}

fn pids(line: &[Running]) -> Vec<i32> {
    line.iter().map(Running::pid).collect()
}

/// Waits until the waiters have ended, and asserts the order of their turns.
#[track_caller]
fn were_served(authority: &impl Authority, line: Vec<Running>, order: &[usize]) {
    for waiter in line {
        waiter.finish().exits(0);
    }
    let log = authority.directory().join("log");
    assert_eq!(grants(&log).iter().map(|grant| grant.0).collect::<Vec<_>>(), order);
    fences_rise(&log);
}

fn is_killed(mut waiter: Running) {
    waiter.signal(Signal::SIGKILL);
    eventually("it is dead", || waiter.has_ended());
}

pub fn twenty_are_served_in_the_order_of_their_coming(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    let line = in_order(authority, 20);
    assert_eq!(queue(authority), pids(&line));
    holder.leaves();
    were_served(authority, line, &(1..=20).collect::<Vec<_>>());
}

pub fn the_dead_in_line_cost_nothing_and_the_rest_keep_their_order(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    let mut line = in_order(authority, 12);
    let mut dead = Vec::new();
    // Two in the middle, and the first three.
    for at in [8, 6, 2, 1, 0] {
        let waiter = line.remove(at);
        dead.push(waiter.pid());
        is_killed(waiter);
    }
    queue_is(authority, &pids(&line));
    holder.leaves();
    for waiter in &mut line {
        eventually("it has had its turn", || {
            // The grace of each dead waiter would cost a second, in which it would be shown.
            let seen = lock_status(authority);
            assert!(!dead.iter().any(|pid| seen["holder"]["pid"] == *pid), "{seen}");
            waiter.has_ended()
        });
    }
    were_served(authority, line, &[4, 5, 6, 8, 10, 11, 12]);
}

pub fn the_dead_in_line_keep_nobody_out(authority: &impl Authority) {
    let token = acquire(authority, "1m");
    for waiter in [Turn::queued(authority, &[]), Turn::queued(authority, &[])] {
        is_killed(waiter.running);
    }
    release(authority, &token);
    authority.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
}

pub fn a_frozen_head_costs_its_grace_and_is_served_when_it_goes_on(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    // Its grace is a second or, after slow answers, a few: its lease would be longer than this test waits.
    let mut frozen = Turn::queued(authority, &["-t", "10m"]);
    let mut next = Turn::queued(authority, &[]);
    frozen.freeze();
    holder.leaves();
    next.up();
    assert!(!frozen.is_up());
    frozen.goes_on();
    queue_is(authority, &[frozen.pid()]);
    next.leaves();
    frozen.up();
    frozen.leaves();
}

pub fn while_a_lock_is_put_aside_for_a_waiter_nobody_else_gets_it(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    let options = ["--reason", "frozen", "-t", "10m"];
    let mut frozen: Vec<Turn> = (0..8).map(|_| Turn::queued(authority, &options)).collect();
    frozen.iter().for_each(Turn::freeze);
    holder.leaves();
    // Each reservation lasts one second, then the next waiter has it: long enough to be refused and to read the state.
    let mut aside = Value::Null;
    eventually("it is shown as put aside", || {
        authority.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(75).prints("");
        let table = authority.nxlock(["status", "job"]).run().text();
        aside = lock_status(authority);
        aside["state"] == "reserved"
            && table.lines().any(|line| line.starts_with("job ") && line.contains(" reserved "))
    });
    assert_eq!(aside["holder"]["reason"], "frozen");
    // Not with a lease: it lasts longer than a second only for a waiter that had slow answers.
    assert!(aside["ttl_ms"].as_u64().is_some_and(|ttl| ttl <= 20_000), "it ends by itself, and soon: {aside}");
    let mut ids = aside["queue"].as_array().unwrap().iter().map(|waiter| &waiter["id"]);
    assert!(!ids.any(|id| *id == aside["holder"]["id"]), "it is out of the line: {aside}");
    frozen.iter().for_each(Turn::goes_on);
    while !frozen.is_empty() {
        next_holder(&mut frozen).leaves();
    }
}

/// Starts a caller that retries without waiting until it is granted the lock, and logs its turn as number 0.
fn newcomer(authority: &impl Authority) -> Running {
    let script = r#"
        while nxlock -q --server-timeout 20s run job -n -c 'echo "0 $NXLOCK_FENCE" >> "$LOG"'; status=$?; [ $status = 75 ]; do
            echo refused
        done
        exit $status"#;
    let mut newcomer = authority.sh(script, &[]).env("LOG", authority.directory().join("log")).start();
    newcomer.line("refused");
    newcomer
}

pub fn a_newcomer_does_not_overtake_when_a_lock_is_handed_on(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    let mut line = in_order(authority, 8);
    line.extend([newcomer(authority), newcomer(authority)]);
    holder.leaves();
    were_served(authority, line, &[1, 2, 3, 4, 5, 6, 7, 8, 0, 0]);
}

pub fn a_newcomer_does_not_overtake_when_a_lease_ends(authority: &impl Authority) {
    let token = acquire(authority, "1m");
    let mut line = in_order(authority, 4);
    line.push(newcomer(authority));
    // No message announces that a lease has expired.
    authority.nxlock(["renew", "job", &token, "--ttl", "300ms"]).run().exits(0);
    were_served(authority, line, &[1, 2, 3, 4, 0]);
}

pub fn a_token_that_is_given_back_hands_the_lock_to_the_next(authority: &impl Authority) {
    let token = acquire(authority, "1m");
    let mut run = Turn::queued(authority, &[]);
    let waiter = authority.nxlock(["acquire", "job", "--ttl", "1m"]).start();
    queue_is(authority, &[run.pid(), waiter.pid()]);
    release(authority, &token);
    run.up();
    queue_is(authority, &[waiter.pid()]);
    run.leaves();
    let token = waiter.finish().exits(0).token();
    release(authority, &token);
}

pub fn without_the_queue_one_waits_and_is_not_in_line(authority: &impl Authority) {
    let mut holder = Turn::of(authority.nxlock(turn(&[])));
    let before: u64 = holder.up().parse().unwrap();
    let mut outsider = Turn::of(authority.nxlock(turn(&["--no-queue"])));
    outsider.running.says("waiting for \"job\": held by");
    let mut queued = Turn::queued(authority, &[]);
    assert_eq!(queue(authority), [queued.pid()]);
    authority.nxlock(["run", "job", "--no-queue", "-n", "--", "echo", "ran"]).run().exits(75).prints("");
    // The queue comes first: the lock is never free in between.
    holder.leaves();
    let between: u64 = queued.up().parse().unwrap();
    assert!(!outsider.is_up());
    queue_is(authority, &[]);
    queued.leaves();
    let after: u64 = outsider.up().parse().unwrap();
    assert!(before < between && between < after, "{before}, {between}, {after}");
    outsider.leaves();
}

pub fn without_the_queue_a_line_that_was_there_before_is_served_afterwards(authority: &impl Authority) {
    let holder = Turn::had(authority, &["--no-queue"]);
    assert_eq!(lock_status(authority)["state"], "held");
    assert!(lock_status(authority)["fence"].is_u64());
    let mut queued = Turn::queued(authority, &[]);
    holder.leaves();
    // A holder that did not queue wakes the next waiter too.
    queued.up();
    queued.leaves();
}
