//! Plain `SET NX` clients on the same key, and nxlock as one of them.

use std::time::Duration;

use crate::support::turns::{Turn, each_is_served, is_queued, lock_status};
use crate::support::{Redis, eventually, now, text_of, wall};

/// Requests the lock as a plain client does; returns whether it got it.
fn plain(redis: &Redis, ttl_ms: u64) -> bool {
    let answer = redis.ask::<Option<String>>(&["SET", "lock:job", "plain", "NX", "PX", &ttl_ms.to_string()]);
    answer.is_some()
}

#[test]
fn a_plain_client_is_excluded_while_we_hold_and_excludes_us() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    assert!(!plain(&redis, 60_000));
    holder.leaves();
    assert!(plain(&redis, 60_000));
    let refused = redis.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(75).prints("");
    refused.says("held by another program").says(" DEL lock:job");
    let lock_status = lock_status(&redis);
    assert_eq!(lock_status["state"], "foreign");
    assert!(lock_status["holder"].is_null() && lock_status["queue"].as_array().unwrap().is_empty(), "{lock_status}");
    assert!((1..=60_000).contains(&lock_status["ttl_ms"].as_u64().unwrap()), "{lock_status}");
    let table = redis.nxlock(["status", "job"]).run().exits(0).text();
    assert!(table.lines().any(|line| line.starts_with("job ") && line.contains(" foreign ")), "{table}");
    redis.delete("lock:job");
}

#[test]
fn a_waiter_takes_over_soon_after_a_plain_client_gave_it_back() {
    let redis = Redis::start();
    assert!(plain(&redis, 60_000));
    let mut waiter = Turn::queued(&redis, &[]);
    waiter.running.says("held by another program");
    assert_eq!(lock_status(&redis)["state"], "foreign");
    // No client wakes the waiter: it polls every tenth of a second. One that is woken asks every two seconds.
    let (polls, began) = (redis.scripts_run(), now());
    eventually("it polls", || redis.scripts_run() >= polls + 6);
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    redis.delete("lock:job");
    waiter.up();
    waiter.leaves();
}

#[test]
fn a_waiter_takes_over_when_a_plain_clients_lock_ends_by_itself() {
    let redis = Redis::start();
    assert!(plain(&redis, 600_000));
    let mut waiter = Turn::queued(&redis, &[]);
    let at = now();
    redis.ask::<()>(&["PEXPIRE", "lock:job", "2000"]);
    // Long before the end that it had when the waiter came.
    waiter.up();
    let took = at.elapsed();
    assert!(took >= Duration::from_secs(2), "{took:?}");
    waiter.leaves();
}

#[test]
fn a_plain_client_without_expiry_is_waited_for_too() {
    let redis = Redis::start();
    redis.put("lock:job", b"plain", None);
    let mut line: Vec<Turn> = (0..2).map(|_| Turn::queued(&redis, &[])).collect();
    assert_eq!(lock_status(&redis)["state"], "no_expiry");
    redis.delete("lock:job");
    line[0].up();
    // Only the first waiter gets the lock.
    assert!(redis.value("lock:job").is_some_and(|value| value.starts_with("nx1:")));
    assert!(!line[1].is_up());
    each_is_served(line);
}

#[test]
fn a_plain_client_does_not_get_between_two_of_the_line() {
    let redis = Redis::start();
    let log = redis.directory().join("log");
    let comes_after_all = || {
        let holder = Turn::had(&redis, &[]);
        let start = |_| {
            let call = redis.nxlock(["-q", "run", "job", "-c", "echo ran >> \"$LOG\""]).env("LOG", &log);
            let waiter = call.start();
            is_queued(&redis, waiter.pid());
            waiter
        };
        let waiters: Vec<_> = (0..10).map(start).collect();
        let mut connection = redis.connection().unwrap();
        let mut set = redis::cmd("SET");
        set.arg(&["lock:job", "plain", "NX", "PX", "60000"]);
        let mut told = Some(holder);
        eventually("the plain client has it", || {
            if let Some(holder) = told.take() {
                holder.leaves();
            }
            // It tries as often as it can.
            (0..100).any(|_| set.query::<Option<String>>(&mut connection).unwrap().is_some())
        });
        let last = std::fs::metadata(&log).and_then(|log| log.modified()).unwrap();
        let (before, after) = (text_of(&log).lines().count(), wall().duration_since(last).unwrap_or_default());
        // Between any two the lock is reserved, for a second: a busy machine may not run the next one within that.
        assert!(before == 10 || after >= Duration::from_secs(1), "it came {after:?} after the {before}th of them");
        redis.delete("lock:job");
        for waiter in waiters {
            waiter.finish().exits(0);
        }
        std::fs::remove_file(&log).unwrap();
        before == 10
    };
    assert!((0..3).any(|_| comes_after_all()), "the machine was busy each time");
}

#[test]
fn without_the_queue_a_free_lock_is_taken_whoever_waits() {
    let redis = Redis::start();
    redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0);
    let mut frozen = Turn::queued(&redis, &[]);
    frozen.freeze();
    redis.delete("lock:job");
    let done = redis.nxlock(["run", "job", "--no-queue", "-n", "-c", "echo $NXLOCK_FENCE"]).run().exits(0);
    assert!(done.text().trim().parse::<u64>().is_ok(), "it has a fence: {}", done.both());
    frozen.goes_on();
    frozen.up();
    frozen.leaves();
}
