//! Keys shared with old clients, which lock with `SETNX` and the time at which the lock expires.

/// An old client, step by step.
mod client;
/// Many old clients and many runs of nxlock, killed at random, checked by their log.
mod crowd;
/// An exact key in place of a name.
mod key;
/// What a loser's `GETSET` does to a lock of nxlock.
mod overwritten;
/// The known race of five clients, one step at a time.
mod race;
/// Locks that old clients have left, and who may take them over.
mod stale;
/// A token that is a bare number, wherever a token can be used.
mod token;

use serde_json::Value;

use crate::support::turns::Turn;
use crate::support::{Redis, eventually};

const KEY: &str = "lock.foo";
/// Has the record of the holder.
const WAITERS: &str = "{lock.foo}:waiters";

/// Returns the arguments of a verb that shares the key with old clients.
fn beside<'a>(verb: &'a str, options: &[&'a str]) -> Vec<&'a str> {
    [verb, "--setnx-compat", "--key", KEY].iter().chain(options).copied().collect()
}

/// Starts a run that shares the key.
fn turn(redis: &Redis, options: &[&str]) -> Turn {
    let script = r#"echo "up ${NXLOCK_FENCE-none}"; read x; exit 0"#;
    let words = beside("run", &[options, &["-c", script]].concat());
    Turn::of(redis.nxlock(words.iter().map(|&word| word.to_owned())))
}

fn had(redis: &Redis, options: &[&str]) -> Turn {
    let mut turn = turn(redis, options);
    turn.up();
    turn
}

fn queued(redis: &Redis, options: &[&str]) -> Turn {
    let turn = turn(redis, options);
    let pid = i64::from(turn.pid());
    eventually("it is in the queue", || {
        lock_status(redis)["queue"].as_array().unwrap().iter().any(|waiter| waiter["pid"] == pid)
    });
    turn
}

fn lock_status(redis: &Redis) -> Value {
    redis.nxlock(["--json", "status", "--key", KEY]).run().json()[0].take()
}

/// Returns the server's time in seconds, plus `later`, which may be negative.
fn stamp(redis: &Redis, later: i64) -> String {
    let (seconds, _): (i64, i64) = redis.ask(&["TIME"]);
    (seconds + later).to_string()
}

fn is_ours(value: Option<&str>) -> bool {
    let far = |text: &str| text.len() == 19 && matches!(text.as_bytes()[0], b'4'..=b'8');
    value.is_some_and(|text| far(text) && text.parse::<i64>().is_ok())
}

/// Waits until the key holds a number of nxlock's, with an expiry.
#[track_caller]
fn is_put_back(redis: &Redis) {
    eventually("our value is put back", || is_ours(redis.value(KEY).as_deref()) && redis.pttl(KEY) > 0);
}
