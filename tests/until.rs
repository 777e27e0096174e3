//! `acquire --until`: a lock that is held until an instant.

use std::time::{Duration, SystemTime};

use crate::support::turns::{Turn, acquire, is_free, is_queued, lease_left, lock_status};
use crate::support::{Done, Nxlock, Redis, answered, eventually, eventually_some, wall};

/// Returns an instant some time from now, in UTC.
fn from_now(seconds: u64) -> String {
    let until = wall() + Duration::from_secs(seconds);
    humantime::format_rfc3339_seconds(until).to_string()
}

fn until<'a>(instant: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["acquire", "job", "--until", instant], more].concat()
}

#[test]
fn a_lock_is_held_until_the_instant_and_everybody_who_is_refused_sees_why() {
    let redis = Redis::start();
    let instant = from_now(7200);
    let token = redis.nxlock(until(&instant, &["--reason", "freeze until Monday"])).run().exits(0).token();
    let left = lease_left(&redis);
    assert!(left > Duration::from_secs(7100) && left <= Duration::from_secs(7200), "{left:?}");
    let refused = redis.nxlock(["run", "job", "-n", "--", "true"]).run().exits(75);
    refused.says("freeze until Monday").says("lease   1h 59m left");
    redis.nxlock(["release", "job", &token]).run().exits(0);
}

#[test]
fn the_time_that_was_waited_is_not_added() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let instant = from_now(3600);
    let waits = redis.nxlock(until(&instant, &["--json"])).start();
    is_queued(&redis, waits.pid());
    let began = wall();
    eventually("it has waited", || {
        wall().duration_since(began).is_ok_and(|waited| waited > Duration::from_millis(1500))
    });
    holder.leaves();
    let document = waits.finish().exits(0).json();
    let granted = document["ttl_ms"].as_u64().unwrap();
    assert!(granted < 3_599_000, "{document}");
    let wanted: SystemTime = humantime::parse_rfc3339(&instant).unwrap();
    // It ends so long after a moment between the two.
    let (before, left, after) = (wall(), lease_left(&redis), wall());
    let apart = Duration::from_secs(2);
    assert!(before + left < wanted + apart, "{left:?} is too much at {before:?}");
    assert!(after + left > wanted - apart, "{left:?} is too little at {after:?}");
    redis.nxlock(["release", "job", document["token"].as_str().unwrap()]).run().exits(0);
}

/// Asks for the lock until an instant so soon that, on a busy machine, it may have passed when nxlock asks for the
/// first time, and nxlock then says that: another one is tried.
#[track_caller]
fn waited_until_soon(redis: &Redis, options: &[&str]) -> Done {
    eventually_some("it asks before the instant", || {
        let done = answered(|| redis.nxlock(until(&from_now(3), options)));
        Some(done).filter(|done| !done.both().contains("has passed"))
    })
}

#[test]
fn an_instant_that_passes_while_waiting_ends_the_wait_with_75() {
    let redis = Redis::start();
    // Its end would end the wait too, and later than this test waits.
    let token = acquire(&redis, "10m");
    waited_until_soon(&redis, &[]).exits(75).prints("").says("\"job\" is held by somebody else");
    assert!(lock_status(&redis)["queue"].as_array().unwrap().is_empty());
    waited_until_soon(&redis, &["-E", "9"]).exits(9);
    redis.nxlock(["release", "job", &token]).run().exits(0);
    assert!(is_free(&redis));
}

#[test]
fn local_time_is_that_of_the_callers_zone() {
    let redis = Redis::start();
    // A zone without rules of its own needs no files.
    for (zone, hours) in [("EST5", 5), ("XYZ-3", 3), ("", 0)] {
        let hours = Duration::from_secs(3600 * hours);
        let there = wall() + Duration::from_secs(3600);
        let there = if zone == "EST5" { there - hours } else { there + hours };
        let shown = humantime::format_rfc3339_seconds(there).to_string();
        let (date, time) = shown.trim_end_matches('Z').split_once('T').unwrap();
        for typed in [format!("{date} {time}"), time.to_owned()] {
            let token = redis.nxlock(until(&typed, &[])).env("TZ", zone).run().exits(0).token();
            let left = lease_left(&redis);
            assert!(left > Duration::from_secs(3500) && left <= Duration::from_secs(3600), "{zone} {typed}: {left:?}");
            redis.nxlock(["release", "job", &token]).run().exits(0);
        }
    }
}

#[test]
fn an_instant_that_cannot_be_is_refused_with_what_to_write() {
    let redis = Redis::start();
    let call = |words: Vec<&str>| redis.nxlock(words).run().exits(64).prints("");
    call(until("2020-01-01T00:00Z", &[])).says("--until").says("has passed");
    call(until("2020-01-01 00:00", &[])).says("has passed");
    call(until("27-01-01 00:00", &[])).says("that has passed");
    call(until("9000-01-01T00:00Z", &[])).says("ten years");
    for bad in ["tomorrow", "10m", "2026-11-30", "2026-13-01T00:00Z", ""] {
        call(until(bad, &[])).says("--until").says("08:00");
    }
    let later = from_now(60);
    call(until(&later, &["--ttl", "1m"])).says("--ttl");
    call(until(&later, &["--while-pid", "1"])).says("--while-pid");
    let nowhere =
        Nxlock::new(["acquire", "job", "--until", "08:00"]).env("NXLOCK_SERVER", redis.url()).env("TZ", "No/Where");
    nowhere.run().exits(64).prints("").says("local time is not known");
    assert!(is_free(&redis));
}
