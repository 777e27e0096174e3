//! No two at once, however many try.

use crate::support::{Redis, Running, eventually, text_of};

#[test]
fn two_hundred_at_once_lose_no_update() {
    let redis = Redis::start();
    let counter = redis.directory().join("counter");
    std::fs::write(&counter, "0\n").unwrap();
    let script = "read n < \"$COUNTER\"; echo $((n + 1)) > \"$COUNTER\"";
    let start = |_| redis.nxlock(["-q", "run", "counter", "-c", script]).env("COUNTER", &counter).start();
    let callers: Vec<Running> = (0..200).map(start).collect();
    // As long as somebody gets on, all is well: the machine may be slow.
    let count = || text_of(&counter).trim().parse().unwrap_or(0);
    let mut seen = 0;
    while seen < callers.len() {
        eventually("another one has had its turn", || count() > seen);
        seen = count();
    }
    for caller in callers {
        caller.finish().exits(0).says_nothing();
    }
    assert_eq!(text_of(&counter), "200\n");
}

#[test]
fn jobs_longer_than_their_lease_never_overlap() {
    let redis = Redis::start();
    let log = redis.directory().join("log");
    let script = "echo in >> \"$LOG\"; sleep 1; echo out >> \"$LOG\"";
    let start = |_| redis.nxlock(["-q", "run", "job", "-t", "400ms", "-c", script]).env("LOG", &log).start();
    let contenders: Vec<Running> = (0..3).map(start).collect();
    for contender in contenders {
        contender.finish().exits(0).says_nothing();
    }
    assert_eq!(text_of(&log), "in\nout\n".repeat(3));
}

#[test]
fn fences_rise_in_the_order_of_the_grants() {
    let redis = Redis::start();
    let log = redis.directory().join("log");
    let start = |_| redis.nxlock(["-q", "run", "job", "-c", "echo $NXLOCK_FENCE >> \"$LOG\""]).env("LOG", &log).start();
    let callers: Vec<Running> = (0..30).map(start).collect();
    for caller in callers {
        caller.finish().exits(0);
    }
    let fences: Vec<u64> = text_of(&log).lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(fences.len(), 30);
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}
