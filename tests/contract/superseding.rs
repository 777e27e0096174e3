//! Waiters of which only the newest stays in the queue.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::turns::{Turn, each_is_served, is_free, lock_status, process, queue, queue_is, turn};
use crate::support::{Authority, Done, eventually, eventually_some, now};

/// Longer than a wake-up takes, and shorter than the pause between two heartbeats.
const AT_ONCE: Duration = Duration::from_millis(1500);

const NEWEST: [&str; 3] = ["--supersede", "--reason", "release 4.3"];

/// Waits for the end of a waiter that another has dismissed.
#[track_caller]
fn is_dismissed_by(waiter: Turn, newer: &Turn) {
    let by = format!("superseded by {}: release 4.3", process(newer.pid()));
    waiter.finish().exits(75).prints("").says(&by);
}

pub fn the_newest_dismisses_older_ones_of_its_kind_and_nobody_else(authority: &impl Authority) {
    let holder = Turn::had(authority, &NEWEST);
    let first = Turn::queued(authority, &[]);
    let older = Turn::queued(authority, &NEWEST);
    let other = Turn::queued(authority, &[]);
    let mut newest = Turn::queued(authority, &NEWEST);
    is_dismissed_by(older, &newest);
    queue_is(authority, &[first.pid(), other.pid(), newest.pid()]);
    each_is_served([holder, first, other]);
    newest.up();
    newest.leaves();
    assert!(is_free(authority), "{}", lock_status(authority));
}

pub fn who_waits_behind_a_dismissed_one_moves_up(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    let older = Turn::queued(authority, &NEWEST);
    let mut next = Turn::queued(authority, &[]);
    let newest = Turn::queued(authority, &NEWEST);
    is_dismissed_by(older, &newest);
    holder.leaves();
    next.up();
    newest.running.signal(Signal::SIGTERM);
    newest.finish().dies_of(Signal::SIGTERM);
    next.leaves();
}

pub fn a_dismissal_is_a_document_and_its_status_can_be_chosen(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    let acquires = ["--json", "acquire", "job", "--ttl", "1m", "--supersede", "-E", "9"];
    let acquires = authority.nxlock(acquires).start();
    eventually("it is in the queue", || queue(authority) == [acquires.pid()]);
    let runs = Turn::queued(authority, &["--json", "--supersede", "-E", "8"]);
    let told = acquires.finish().exits(9).json();
    assert_eq!((&told["outcome"], &told["superseded_by"]["pid"]), (&"superseded".into(), &runs.pid().into()));
    assert_eq!((&told["superseded_by"]["reason"], &told["state"]), (&Value::Null, &"held".into()), "{told}");
    assert_eq!((&told["holder"]["pid"], &told["queue_length"]), (&holder.pid().into(), &1.into()), "{told}");
    let newest = Turn::queued(authority, &NEWEST);
    let refused: Value = serde_json::from_str(runs.finish().exits(8).stderr.lines().last().unwrap()).unwrap();
    assert_eq!(refused["superseded_by"]["reason"], "release 4.3", "{refused}");
    assert_eq!(refused["superseded_by"]["pid"], newest.pid(), "{refused}");
    newest.running.signal(Signal::SIGTERM);
    newest.finish().dies_of(Signal::SIGTERM);
    holder.leaves();
}

pub fn one_that_does_not_wait_dismisses_nobody(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    let mut waiter = Turn::queued(authority, &NEWEST);
    let refused = authority.nxlock(["run", "job", "-n", "--supersede", "--", "echo", "ran"]).run();
    refused.exits(75).prints("").says("held by").never_says("superseded");
    queue_is(authority, &[waiter.pid()]);
    holder.leaves();
    waiter.up();
    waiter.leaves();
}

pub fn a_frozen_one_is_dismissed_however_late_it_asks(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    let older = Turn::queued(authority, &NEWEST);
    older.freeze();
    let mut newest = Turn::of(authority.nxlock(turn(&NEWEST)));
    eventually("the newest waits alone", || queue(authority) == [newest.pid()]);
    holder.leaves();
    newest.up();
    let pid = newest.pid();
    newest.leaves();
    assert!(is_free(authority), "{}", lock_status(authority));
    older.goes_on();
    // The lock is free, and yet it is not granted to what came before the one that has run.
    let by = format!("superseded by {}: release 4.3", process(pid));
    older.finish().exits(75).prints("").says(&by);
    assert!(is_free(authority), "{}", lock_status(authority));
}

pub fn one_that_gives_up_is_not_waited_for(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    // A busy machine may not let it join the queue within its second.
    let gave_up = eventually_some("it has waited", || {
        let done = Turn::of(authority.nxlock(turn(&["--supersede", "-w", "1s"]))).finish();
        done.stderr.contains("waiting for").then_some(done)
    });
    gave_up.exits(75).says("held by");
    let mut next = Turn::queued(authority, &NEWEST);
    holder.leaves();
    next.up();
    next.leaves();
}

pub fn of_those_who_share_a_lock_it_concerns_only_the_queue(authority: &impl Authority) {
    let holders = [(); 2].map(|()| Turn::had(authority, &["--slots", "2", "--supersede"]));
    let older = Turn::queued(authority, &[&["--slots", "2"], &NEWEST[..]].concat());
    let reader = Turn::queued(authority, &["--shared"]);
    let mut newest = Turn::queued(authority, &[&["--slots", "3"], &NEWEST[..]].concat());
    is_dismissed_by(older, &newest);
    queue_is(authority, &[reader.pid(), newest.pid()]);
    let mut reader = reader;
    let [one, other] = holders;
    one.leaves();
    reader.up();
    other.leaves();
    newest.up();
    newest.leaves();
    reader.leaves();
    assert!(is_free(authority), "{}", lock_status(authority));
}

pub fn of_a_crowd_exactly_the_newest_alive_follows(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    let crowd = authority.crowd().min(50);
    let log = authority.directory().join("log");
    let mut all: Vec<Turn> = Vec::new();
    // A server may take long to reply to so many first connections at once.
    let options = [&NEWEST[..], &["--server-timeout", "20s"]].concat();
    for number in 0..crowd {
        let call = authority.nxlock(turn(&options)).env("LOG", &log).env("WHO", number.to_string());
        all.push(Turn::of(call));
        // Some are killed while they start, some while they wait, some when they are dismissed already.
        if number % 5 == 3 {
            all[number - 2].running.signal(Signal::SIGKILL);
            all[number].running.signal(Signal::SIGKILL);
        }
    }
    // Those of the crowd come in any order, and all but the last of them are dismissed, or killed.
    eventually("all but one have left, and that one is in line", || {
        let left = all.iter_mut().filter_map(|turn| (!turn.running.has_ended()).then(|| turn.pid()));
        let left: Vec<i32> = left.collect();
        left.len() <= 1 && left.iter().all(|pid| queue(authority).contains(pid))
    });
    let mut newest = Turn::of(authority.nxlock(turn(&NEWEST)).env("LOG", &log).env("WHO", "newest"));
    let pid = newest.pid();
    eventually("the newest waits alone", || queue(authority) == [pid]);
    let mut dismissed = 0;
    for (number, waiter) in all.into_iter().enumerate() {
        let done: Done = waiter.finish();
        if number % 5 != 3 && number % 5 != 1 {
            dismissed += 1;
            done.exits(75).prints("").says("superseded by");
        }
    }
    assert!(dismissed >= crowd / 2);
    holder.leaves();
    newest.up();
    newest.leaves();
    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("newest "), "{text}");
    assert!(is_free(authority), "{}", lock_status(authority));
    authority.buries("{lock:job}:newest");
}

pub fn a_dismissed_one_leaves_at_once(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    let behind = [(); 5].map(|()| Turn::queued(authority, &[]));
    // Far back, where a waiter seldom asks by itself.
    let mut newest = Turn::queued(authority, &NEWEST);
    let rounds = (0..5).map(|_| {
        let began = now();
        let older = std::mem::replace(&mut newest, Turn::of(authority.nxlock(turn(&NEWEST))));
        older.finish().exits(75);
        began.elapsed()
    });
    // The others may have been held up by a busy machine.
    let fastest = rounds.min().expect("five rounds");
    assert!(fastest < AT_ONCE, "{fastest:?}");
    for waiter in behind.into_iter().chain([newest]) {
        waiter.running.signal(Signal::SIGTERM);
        waiter.finish();
    }
    holder.leaves();
}
