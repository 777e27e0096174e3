//! Waiters that go first: ahead of all others, in order among themselves.

use crate::support::Authority;
use crate::support::turns::{Turn, each_is_served, lock_status, pids, queue, queue_is};

const FIRST: [&str; 1] = ["--first"];

pub fn one_that_goes_first_is_served_before_those_who_came_before_it(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    let (one, other) = (Turn::queued(authority, &[]), Turn::queued(authority, &[]));
    let first = Turn::queued(authority, &["--first", "--reason", "hotfix"]);
    queue_is(authority, &pids([&first, &one, &other]));
    let second = Turn::queued(authority, &FIRST);
    queue_is(authority, &pids([&first, &second, &one, &other]));
    let last = Turn::queued(authority, &[]);
    let seen = lock_status(authority);
    let goes_first: Vec<bool> =
        seen["queue"].as_array().unwrap().iter().map(|waiter| waiter["first"].as_bool().unwrap()).collect();
    assert_eq!(goes_first, [true, true, false, false, false], "{seen}");
    let since: Vec<u64> =
        seen["queue"].as_array().unwrap().iter().map(|waiter| waiter["waiting_ms"].as_u64().unwrap()).collect();
    assert!(since.iter().all(|ms| *ms < 600_000), "{seen}");
    let table = authority.nxlock(["status", "job"]).run().exits(0).text();
    assert!(table.lines().any(|line| line.contains("(first) hotfix") && line.trim().starts_with("1.")), "{table}");
    assert_eq!(seen["holder"]["pid"], holder.pid(), "the holder is left alone");
    holder.leaves();
    each_is_served([first, second, one, other, last]);
    assert!(queue(authority).is_empty());
}

pub fn a_reader_that_goes_first_passes_a_writer_that_waits_and_another_does_not(authority: &impl Authority) {
    let reader = Turn::had(authority, &["--shared"]);
    let mut writer = Turn::queued(authority, &[]);
    let late = Turn::queued(authority, &["--shared"]);
    let passes = Turn::had(authority, &["--shared", "--first"]);
    let at_once = authority.nxlock(["run", "job", "--shared", "--first", "-n", "--", "echo", "ran"]).run().exits(0);
    at_once.prints("ran\n");
    authority.nxlock(["run", "job", "--shared", "-n", "--", "echo", "ran"]).run().exits(75).prints("");
    queue_is(authority, &pids([&writer, &late]));
    reader.leaves();
    passes.leaves();
    writer.up();
    writer.leaves();
    each_is_served([late]);
}

pub fn the_first_slot_that_is_free_is_for_those_that_go_first(authority: &impl Authority) {
    let slots = ["--slots", "2"];
    let (one, two) = (Turn::had(authority, &slots), Turn::had(authority, &slots));
    let mut waits = Turn::queued(authority, &slots);
    let mut first = Turn::queued(authority, &["--slots", "2", "--first"]);
    queue_is(authority, &pids([&first, &waits]));
    one.leaves();
    first.up();
    assert!(!waits.is_up());
    two.leaves();
    waits.up();
    first.leaves();
    waits.leaves();
}

pub fn a_newer_one_dismisses_one_that_went_first_whoever_is_ahead(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    let older = Turn::queued(authority, &["--supersede", "--first"]);
    let newer = Turn::queued(authority, &["--supersede"]);
    older.finish().exits(75).prints("").says("superseded by");
    queue_is(authority, &pids([&newer]));
    holder.leaves();
    each_is_served([newer]);
}

pub fn one_that_goes_first_and_is_killed_keeps_nobody_waiting(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    let one = Turn::queued(authority, &[]);
    let first = Turn::queued(authority, &FIRST);
    queue_is(authority, &pids([&first, &one]));
    drop(first);
    queue_is(authority, &pids([&one]));
    holder.leaves();
    each_is_served([one]);
}
