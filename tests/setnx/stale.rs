//! Locks that old clients have left, and who may take them over.

use super::client::Client;
use super::{KEY, beside, is_ours, lock_status, queued, stamp};
use crate::support::{Redis, eventually};

fn asks(redis: &Redis, options: &[&str]) -> i32 {
    let words = beside("run", &[options, &["-n", "--", "true"]].concat());
    redis.nxlock(words.iter().map(|&word| word.to_owned())).run().status.code().unwrap()
}

#[test]
fn what_has_ended_by_the_servers_clock_is_taken_over_and_nothing_else() {
    let redis = Redis::start();
    let at = |later: i64| stamp(&redis, later);
    let stale = [at(-8), at(-100_000), at(-8) + ".75", at(-8) + "000", at(-8) + "123.5", "1000000000".into()];
    for value in &stale {
        redis.put(KEY, value.as_bytes(), None);
        assert_eq!(asks(&redis, &[]), 0, "{value}");
        assert_eq!(redis.value(KEY), None);
    }
    // Still valid, within the margin, or not recognizable as a time.
    let is_left = |value: &str| {
        redis.put(KEY, value.as_bytes(), None);
        assert_eq!(asks(&redis, &[]), 75, "{value}");
        assert_eq!(redis.value(KEY).as_deref(), Some(value));
    };
    // Each time by the clock of that moment.
    for (later, rest) in [(60, ""), (60, "000"), (60, ".5"), (100_000_000, "")] {
        is_left(&(at(later) + rest));
    }
    for rest in ["", "000"] {
        eventually("it is asked for within the margin of five seconds", || {
            let time = at(-2);
            let value = time.clone() + rest;
            redis.put(KEY, value.as_bytes(), None);
            let asked = (asks(&redis, &[]), redis.value(KEY));
            let in_time = stamp(&redis, -4).parse::<i64>().unwrap() <= time.parse::<i64>().unwrap();
            assert!(!in_time || asked == (75, Some(value)), "{asked:?}");
            in_time
        });
    }
    for value in ["1", "0", "4711", "", "x", "0000000001", "123456789012", "1e9", "-1", "1000000000x", "nx1:1000000000"]
    {
        is_left(value);
    }
    is_left(&"4".repeat(19));
    // nxlock does not take over a key with an expiry: it expires by itself.
    redis.put(KEY, at(-100).as_bytes(), Some(600_000));
    assert_eq!(asks(&redis, &[]), 75);
    redis.delete(KEY);
    redis.ask::<()>(&["LPUSH", KEY, "x"]);
    assert_eq!(asks(&redis, &[]), 78);
    redis.delete(KEY);
}

#[test]
fn without_being_told_to_nothing_is_taken_over() {
    let redis = Redis::start();
    redis.put(KEY, stamp(&redis, -100_000).as_bytes(), None);
    redis.nxlock(["run", "--key", KEY, "-n", "--", "true"]).run().exits(75).says("stale since");
    redis.nxlock(["run", "--key", KEY, "-n", "--no-queue", "--", "true"]).run().exits(75);
    redis.delete(KEY);
}

#[test]
fn the_margin_is_what_it_is_said_to_be() {
    let redis = Redis::start();
    redis.put(KEY, stamp(&redis, -100).as_bytes(), None);
    assert_eq!(asks(&redis, &["--setnx-margin", "1h"]), 75);
    assert_eq!(asks(&redis, &["--setnx-margin", "30s"]), 0);
    redis.put(KEY, stamp(&redis, -2).as_bytes(), None);
    assert_eq!(asks(&redis, &["--setnx-margin", "0s"]), 0);
}

#[test]
fn a_clock_that_is_wrong_makes_nobody_take_what_is_valid_by_the_servers() {
    let redis = Redis::start();
    for ahead in [-60_000, 60_000] {
        let mut theirs = Client::of(&redis, 90, ahead);
        assert!(theirs.setnx());
        for options in [&[][..], &["--no-queue"], &["--setnx-margin", "0s"]] {
            assert_eq!(asks(&redis, options), 75, "{ahead}");
        }
        assert_eq!(lock_status(&redis)["legacy"]["stale"], false);
        assert!(theirs.releases());
    }
    // Nor does a wrong clock of this machine: nxlock does not use it.
    redis.put(KEY, stamp(&redis, 30).as_bytes(), None);
    assert_eq!(asks(&redis, &["--setnx-margin", "0s"]), 75);
    redis.delete(KEY);
}

#[test]
fn who_waits_takes_it_over_when_its_time_has_passed() {
    let redis = Redis::start();
    for options in [&["--setnx-margin", "1s"][..], &["--setnx-margin", "1s", "--no-queue"]] {
        let time = stamp(&redis, 1);
        redis.put(KEY, time.as_bytes(), None);
        let mut waiter = super::turn(&redis, options);
        let fence: f64 = waiter.up().parse().unwrap();
        assert!(fence / 1e6 >= time.parse::<f64>().unwrap() + 1.0, "{fence} {time}");
        waiter.leaves();
    }
}

#[test]
fn those_who_wait_are_served_in_their_order_whoever_finds_it_stale() {
    let redis = Redis::start();
    redis.put(KEY, stamp(&redis, 600).as_bytes(), None);
    let mut first = queued(&redis, &[]);
    let mut second = queued(&redis, &[]);
    // The frozen waiters do not claim the lock by themselves. It stays reserved for the first for a second only.
    first.freeze();
    second.freeze();
    redis.put(KEY, stamp(&redis, -600).as_bytes(), None);
    assert_eq!(asks(&redis, &[]), 75, "it yields to those who wait");
    first.goes_on();
    first.up();
    second.goes_on();
    assert!(is_ours(redis.value(KEY).as_deref()) && !second.is_up());
    first.leaves();
    second.up();
    second.leaves();
}

#[test]
fn status_says_what_an_old_lock_says() {
    let redis = Redis::start();
    for (value, stale, instant, word) in [
        ("1893456000", false, "2030-01-01T00:00:00.000Z", "valid until 2030-01-01T00:00:00.000Z"),
        ("1893456000250", false, "2030-01-01T00:00:00.250Z", "valid until 2030-01-01T00:00:00.250Z"),
        ("1577836800.5", true, "2020-01-01T00:00:00.500Z", "stale since 2020-01-01T00:00:00.500Z"),
    ] {
        redis.put(KEY, value.as_bytes(), None);
        let seen = lock_status(&redis);
        assert_eq!((seen["state"].as_str(), seen["ttl_ms"].is_null()), (Some("legacy"), true), "{seen}");
        assert_eq!(seen["legacy"]["valid_until"], instant);
        assert_eq!(seen["legacy"]["stale"], stale);
        let table = redis.nxlock(["status", "--key", KEY]).run().exits(0).text();
        assert!(table.contains("legacy") && table.contains(word), "{table}");
        redis.nxlock(["run", "--key", KEY, "-n", "--", "true"]).run().exits(75).says(word);
    }
    redis.put(KEY, "7".repeat(19).as_bytes(), None);
    assert!(redis.nxlock(["status", "--key", KEY]).run().exits(0).text().contains("valid for ever"));
    redis.delete(KEY);
}
