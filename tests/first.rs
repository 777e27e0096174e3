//! Waiters that go first: ahead of all others, in order among themselves.

use crate::support::turns::{Turn, lock_status, queue, queue_is, turn};
use crate::support::{Authority, Cluster, Five, Nxlock, Redis, Sentinels, eventually};

const FIRST: [&str; 1] = ["--first"];

#[track_caller]
fn pids(turns: &[&Turn]) -> Vec<i32> {
    turns.iter().map(|turn| turn.pid()).collect()
}

/// Lets each of these hold the lock after the other.
#[track_caller]
fn are_served_in_this_order(turns: Vec<Turn>) {
    for mut turn in turns {
        turn.up();
        turn.leaves();
    }
}

fn one_that_goes_first_is_served_before_those_who_came_before_it(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    let (one, other) = (Turn::queued(authority, &[]), Turn::queued(authority, &[]));
    let first = Turn::queued(authority, &["--first", "--reason", "hotfix"]);
    queue_is(authority, &pids(&[&first, &one, &other]));
    let second = Turn::queued(authority, &FIRST);
    queue_is(authority, &pids(&[&first, &second, &one, &other]));
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
    are_served_in_this_order(vec![first, second, one, other, last]);
    assert!(queue(authority).is_empty());
}

#[test]
fn one_that_goes_first_is_served_before_the_others_by_one_server_a_sentinels_master_and_a_cluster() {
    one_that_goes_first_is_served_before_those_who_came_before_it(&Redis::start());
    one_that_goes_first_is_served_before_those_who_came_before_it(&Sentinels::of_one());
    one_that_goes_first_is_served_before_those_who_came_before_it(&Cluster::of_masters());
}

#[test]
fn a_waiter_that_goes_first_has_its_place_again_in_a_queue_that_was_lost() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let one = Turn::queued(&redis, &[]);
    let first = Turn::queued(&redis, &FIRST);
    redis.delete("{lock:job}:queue");
    redis.delete("{lock:job}:waiters");
    queue_is(&redis, &pids(&[&first, &one]));
    holder.leaves();
    are_served_in_this_order(vec![first, one]);
}

#[test]
fn a_reader_that_goes_first_passes_a_writer_that_waits_and_another_does_not() {
    let redis = Redis::start();
    let reader = Turn::had(&redis, &["--shared"]);
    let mut writer = Turn::queued(&redis, &[]);
    let late = Turn::queued(&redis, &["--shared"]);
    let passes = Turn::had(&redis, &["--shared", "--first"]);
    let at_once = redis.nxlock(["run", "job", "--shared", "--first", "-n", "--", "echo", "ran"]).run().exits(0);
    at_once.prints("ran\n");
    redis.nxlock(["run", "job", "--shared", "-n", "--", "echo", "ran"]).run().exits(75).prints("");
    queue_is(&redis, &pids(&[&writer, &late]));
    reader.leaves();
    passes.leaves();
    writer.up();
    writer.leaves();
    are_served_in_this_order(vec![late]);
}

#[test]
fn the_first_slot_that_is_free_is_for_those_that_go_first() {
    let redis = Redis::start();
    let slots = ["--slots", "2"];
    let (one, two) = (Turn::had(&redis, &slots), Turn::had(&redis, &slots));
    let mut waits = Turn::queued(&redis, &slots);
    let mut first = Turn::queued(&redis, &["--slots", "2", "--first"]);
    queue_is(&redis, &pids(&[&first, &waits]));
    one.leaves();
    first.up();
    assert!(!waits.is_up());
    two.leaves();
    waits.up();
    first.leaves();
    waits.leaves();
}

#[test]
fn a_newer_one_dismisses_one_that_went_first_whoever_is_ahead() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let older = Turn::queued(&redis, &["--supersede", "--first"]);
    let newer = Turn::queued(&redis, &["--supersede"]);
    older.finish().exits(75).prints("").says("superseded by");
    queue_is(&redis, &pids(&[&newer]));
    holder.leaves();
    are_served_in_this_order(vec![newer]);
}

#[test]
fn nobody_goes_first_where_there_is_no_queue() {
    let words = ["run", "job", "--first", "--", "echo", "ran"];
    Five::start().nxlock(words).run().exits(64).prints("").says("--first");
    let redis = Redis::start();
    let done = redis.nxlock(["run", "job", "--first", "--no-queue", "--", "echo", "ran"]).run().exits(64).prints("");
    done.says("--first").says("--no-queue");
}

/// Terms are what follows the reason.
#[test]
fn a_reason_that_looks_like_a_term_is_none() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &["--reason", "first"]);
    let one = Turn::queued(&redis, &["--record", "--reason", "newest"]);
    let other = Turn::queued(&redis, &["--record", "--reason", "newest"]);
    let last = Turn::queued(&redis, &["--reason", "first"]);
    queue_is(&redis, &pids(&[&one, &other, &last]));
    holder.leaves();
    are_served_in_this_order(vec![one, other, last]);
    let document = redis.nxlock(["status", "--history", "--json", "job"]).run().exits(0).json();
    assert_eq!(document[0]["history"].as_array().unwrap().len(), 2, "{document}");
}

#[test]
fn one_that_goes_first_and_is_killed_keeps_nobody_waiting() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let one = Turn::queued(&redis, &[]);
    let first = Turn::of(Nxlock::new(turn(&FIRST)).env("NXLOCK_SERVER", redis.url())).once_queued(&redis);
    queue_is(&redis, &pids(&[&first, &one]));
    drop(first);
    eventually("it has left no place", || queue(&redis) == pids(&[&one]));
    holder.leaves();
    are_served_in_this_order(vec![one]);
}
