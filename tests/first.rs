//! Waiters that go first, in a Redis server: a queue that is lost, and what looks like a term and is none.

use crate::support::turns::{Turn, each_is_served, pids, queue_is};
use crate::support::{Authority, Five, Redis};

const FIRST: [&str; 1] = ["--first"];

#[test]
fn a_waiter_that_goes_first_has_its_place_again_in_a_queue_that_was_lost() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let one = Turn::queued(&redis, &[]);
    let first = Turn::queued(&redis, &FIRST);
    redis.delete("{lock:job}:queue");
    redis.delete("{lock:job}:waiters");
    queue_is(&redis, &pids([&first, &one]));
    holder.leaves();
    each_is_served([first, one]);
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
    queue_is(&redis, &pids([&one, &other, &last]));
    holder.leaves();
    each_is_served([one, other, last]);
    let document = redis.nxlock(["status", "--history", "--json", "job"]).run().exits(0).json();
    assert_eq!(document[0]["history"].as_array().unwrap().len(), 2, "{document}");
}
