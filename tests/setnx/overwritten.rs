//! What a loser's `GETSET` does to a lock of nxlock, and what nxlock undoes of it.

use super::{KEY, WAITERS, beside, had, is_ours, is_put_back, lock_status, queued, stamp, turn};
use crate::support::{Redis, eventually, eventually_some};

/// Overwrites the key like a client that saw an expired time before; returns the time that it wrote.
fn loser(redis: &Redis, later: i64) -> String {
    let time = stamp(redis, later);
    let old: String = redis.ask(&["GETSET", KEY, &time]);
    assert!(is_ours(Some(&old)), "{old}");
    time
}

fn acquire(redis: &Redis, ttl: &str) -> String {
    redis.nxlock(beside("acquire", &["--ttl", ttl])).run().exits(0).text().trim().to_owned()
}

#[test]
fn a_run_puts_its_value_and_expiry_back_and_counts_it() {
    let redis = Redis::start();
    let mut turn = had(&redis, &["-t", "30s"]);
    let ours = redis.value(KEY);
    for _ in 0..3 {
        loser(&redis, 10);
        is_put_back(&redis);
        assert_eq!(redis.value(KEY), ours);
    }
    turn.running.says("put back (3 times by now)");
    turn.leaves();
    assert_eq!(redis.value(KEY), None);
}

#[test]
fn a_run_within_a_run_whose_value_is_put_back_finds_itself_in_it() {
    let redis = Redis::start();
    for options in ["", "--slots 2", "--setnx-compat"] {
        let script = format!("echo up; read x; nxlock run --key lock.foo {options} -w 1h -- echo ran");
        let (stdin, told) = std::io::pipe().unwrap();
        let call = redis.nxlock(beside("run", &["-t", "6s", "-c", &script])).stdin_from(stdin);
        let mut outer = call.start();
        outer.line("up");
        loser(&redis, 10);
        drop(told);
        outer.finish().exits(75).prints("up\n").says("already held by this script");
        assert_eq!(redis.ask::<Vec<String>>(&["KEYS", "*"]), ["{lock.foo}:fence"]);
    }
}

#[test]
fn a_renewal_puts_it_back_once() {
    let redis = Redis::start();
    let token = acquire(&redis, "10m");
    loser(&redis, 10);
    let call = || redis.nxlock(["renew", "--key", KEY, "--ttl", "20m"]).env("NXLOCK_TOKEN", &token).run().exits(0);
    call().says("put back");
    assert_eq!(redis.value(KEY).as_deref(), Some(token.as_str()));
    assert!(redis.pttl(KEY) > 600_000 && redis.pttl(WAITERS) > 600_000);
    call().says_nothing();
    redis.nxlock(["release", "--key", KEY, &token]).run().exits(0);
    assert!(!redis.exists(WAITERS));
}

#[test]
fn a_full_server_lets_it_be_put_back() {
    let redis = Redis::start();
    let token = acquire(&redis, "10m");
    loser(&redis, 10);
    redis.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    redis.nxlock(["renew", "--key", KEY, &token, "--ttl", "10m"]).run().exits(0).says("put back");
    redis.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    redis.nxlock(["release", "--key", KEY, &token]).run().exits(0);
}

#[test]
fn after_the_lease_has_ended_it_is_a_loss_like_any_other() {
    let redis = Redis::start();
    let token = acquire(&redis, "10m");
    let time = loser(&redis, 100);
    // nxlock's record of the lease ends with this key.
    redis.ask::<()>(&["PEXPIRE", WAITERS, "100"]);
    eventually("the lease has ended", || !redis.exists(WAITERS));
    redis.nxlock(["renew", "--key", KEY, &token, "--ttl", "10m"]).run().exits(76).says("old SETNX client");
    assert_eq!((redis.value(KEY), redis.pttl(KEY)), (Some(time), -1));
    redis.delete(KEY);
}

#[test]
fn what_is_deleted_or_is_no_time_is_a_loss_at_the_next_renewal() {
    let redis = Redis::start();
    let mut turn = had(&redis, &["-t", "30s"]);
    redis.delete(KEY);
    turn.running.says("\"lock.foo\" is lost: it had expired or was deleted");
    turn.running.finish().exits(76);
    assert!(!redis.exists(WAITERS));
    let mut turn = had(&redis, &["-t", "30s"]);
    redis.put(KEY, b"another program", Some(60_000));
    turn.running.says("\"lock.foo\" is lost");
    turn.running.finish().exits(76);
    assert_eq!(redis.value(KEY).as_deref(), Some("another program"));
    redis.delete(KEY);
}

#[test]
fn giving_back_compares_as_ever() {
    let redis = Redis::start();
    let token = acquire(&redis, "10m");
    let time = loser(&redis, 100);
    redis.nxlock(["release", "--key", KEY, &token]).run().exits(76);
    assert_eq!(redis.value(KEY), Some(time));
    assert!(!redis.exists(WAITERS), "who left says so");
    redis.delete(KEY);
}

/// The loser's clock was slow: by any other clock its time has already passed.
#[test]
fn what_stands_over_a_lease_of_ours_is_not_taken_over_while_that_is_valid() {
    let redis = Redis::start();
    let token = acquire(&redis, "10m");
    let time = loser(&redis, -600);
    for options in [&[][..], &["--no-queue"], &["--setnx-margin", "0s"]] {
        redis.nxlock(beside("run", &[options, &["-n", "--", "echo", "ran"]].concat())).run().exits(75).prints("");
    }
    assert_eq!(redis.value(KEY), Some(time));
    let waiter = queued(&redis, &[]);
    redis.nxlock(["renew", "--key", KEY, &token, "--ttl", "10m"]).run().exits(0);
    assert_eq!(lock_status(&redis)["holder"]["id"], token[..8]);
    assert!(!waiter.is_up());
    redis.nxlock(["release", "--key", KEY, &token]).run().exits(0);
    let mut waiter = waiter;
    waiter.up();
    waiter.leaves();
}

#[test]
fn a_holder_that_nobody_renews_and_was_written_over_is_followed_by_the_next() {
    let redis = Redis::start();
    // On a busy machine, its lease may have ended before it is written over, and before anybody waits.
    let ends = eventually_some("it is written over while it is valid", || {
        acquire(&redis, "3s");
        let old: Option<String> = redis.ask(&["GETSET", KEY, &stamp(&redis, -600)]);
        let owner: Option<String> = redis.ask(&["HGET", WAITERS, "owner"]);
        old.filter(|old| is_ours(Some(old)))?;
        owner?.split_once('|')?.0.parse::<u64>().ok()
    });
    let mut next = turn(&redis, &[]);
    let fence: u64 = next.up().parse().unwrap();
    assert!(fence >= ends * 1000, "granted at {fence} us, and the lease ended at {ends} ms");
    assert!(is_ours(redis.value(KEY).as_deref()));
    next.leaves();
}
