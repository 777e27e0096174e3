//! Waiters of which only the newest stays, in a Redis server: the keys, and what faults do to who was dismissed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nix::sys::signal::Signal;
use redis::Value;

use crate::support::turns::{Turn, lock_status, queue, queue_is, turn};
use crate::support::{Authority, Cluster, Done, Fate, Five, Nxlock, Proxy, Redis, eventually, eventually_some};

const NEWEST_OF_ALL: &str = "{lock:job}:newest";
const NEWEST: [&str; 1] = ["--supersede"];

#[track_caller]
fn is_superseded(waiter: Turn) {
    waiter.finish().exits(75).prints("").says("superseded by");
}

/// Starts a turn, and waits until it alone is in the queue.
#[track_caller]
fn alone_in_the_queue(redis: &Redis) -> Turn {
    let newest = Turn::of(redis.nxlock(turn(&NEWEST)));
    queue_is(redis, &[newest.pid()]);
    newest
}

/// Returns a holder, a waiter that was frozen and then dismissed, and the one that dismissed it.
fn with_a_frozen_one(redis: &Redis) -> (Turn, Turn, Turn) {
    let holder = Turn::had(redis, &[]);
    let frozen = Turn::queued(redis, &NEWEST);
    frozen.freeze();
    let newest = alone_in_the_queue(redis);
    (holder, frozen, newest)
}

#[test]
fn who_was_dismissed_is_forgotten_once_it_knows_and_after_a_day_otherwise() {
    let redis = Redis::start();
    let (holder, frozen, newest) = with_a_frozen_one(&redis);
    let day = 86_400_000;
    assert!((day - 60_000..=day).contains(&redis.pttl(NEWEST_OF_ALL)), "{}", redis.pttl(NEWEST_OF_ALL));
    holder.leaves();
    let mut newest = newest;
    newest.up();
    let noted = || {
        let fields = redis.ask::<Vec<String>>(&["HKEYS", NEWEST_OF_ALL]);
        fields.into_iter().filter(|field| field.starts_with("nx1:")).count()
    };
    assert_eq!(noted(), 1, "who was dismissed");
    frozen.goes_on();
    is_superseded(frozen);
    assert_eq!(noted(), 0);
    newest.leaves();
    redis.has_only_a_fence();
}

#[test]
fn one_that_was_silent_for_longer_than_the_queue_knows_it_is_dismissed_as_well() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let frozen = Turn::queued(&redis, &NEWEST);
    frozen.freeze();
    let day = 86_400_000;
    assert!((day - 60_000..=day).contains(&redis.pttl(NEWEST_OF_ALL)), "{}", redis.pttl(NEWEST_OF_ALL));
    // As after 24 s of silence.
    redis.delete("{lock:job}:queue");
    redis.delete("{lock:job}:waiters");
    holder.leaves();
    redis.nxlock(["run", "job", "--supersede", "-n", "true"]).run().exits(0);
    frozen.goes_on();
    is_superseded(frozen);
    redis.has_only_a_fence();
}

#[test]
fn a_newcomer_that_may_not_join_dismisses_nobody() {
    for missing in ["zadd", "zrem", "hdel", "hset", "pexpire", "zrank", "publish", "pttl"] {
        let redis = Redis::start();
        let holder = Turn::had(&redis, &[]);
        let mut older = Turn::queued(&redis, &NEWEST);
        let rules = "~lock:* ~{lock:*}:* resetchannels &lock:* +eval +evalsha +get +set +del +time +pttl +pexpire \
                     +zadd +zrem +zrange +zrank +zscore +zcard +zcount +hget +hmget +hset +hdel +hlen +publish \
                     +pubsub|numsub +subscribe";
        let denied = format!("-{missing}");
        let words =
            ["ACL", "SETUSER", "less", "on", ">pw"].into_iter().chain(rules.split_whitespace()).chain([&denied[..]]);
        redis.ask::<()>(&words.collect::<Vec<_>>());
        let url = format!("{}?user=less&pass=pw", redis.url());
        let newer = Nxlock::new(["run", "job", "--supersede", "true"]).env("NXLOCK_SERVER", url).start();
        if missing != "publish" {
            newer.finish().exits(77);
            holder.leaves();
            older.up();
            older.leaves();
        } else {
            // It may do all that counts.
            is_superseded(older);
            newer.signal(Signal::SIGTERM);
            newer.finish().dies_of(Signal::SIGTERM);
            holder.leaves();
        }
        let keys: Vec<String> = redis.ask(&["KEYS", "{*"]);
        keys.iter().filter(|key| !key.ends_with("fence")).for_each(|key| redis.delete(key));
    }
}

#[test]
fn if_the_key_is_lost_the_newest_still_wins() {
    // In one step: in between, the lock would be free, and somebody be granted it.
    let all_but_the_lock = "redis.call('FLUSHALL') redis.call('SET', 'lock:job', ARGV[1], 'PX', 3600000)";
    for is_all_lost in [false, true] {
        let redis = Redis::start();
        let holder = redis.nxlock(["acquire", "job", "--ttl", "1h"]).run().exits(0).token();
        let frozen = Turn::queued(&redis, &NEWEST);
        frozen.freeze();
        let mut newest = alone_in_the_queue(&redis);
        match is_all_lost {
            true => redis.ask::<()>(&["EVAL", all_but_the_lock, "0", &holder]),
            false => redis.delete(NEWEST_OF_ALL),
        }
        frozen.goes_on();
        is_superseded(frozen);
        queue_is(&redis, &[newest.pid()]);
        redis.nxlock(["release", "job", &holder]).run().exits(0);
        newest.up();
        newest.leaves();
        eventually("only its fence is left", || redis.ask::<i64>(&["DBSIZE"]) == 1);
    }
}

#[test]
fn a_key_of_another_type_is_named_and_in_nobody_elses_way() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    redis.put(NEWEST_OF_ALL, b"another's", None);
    let refused = redis.nxlock(["run", "job", "--supersede", "true"]).run().exits(78);
    refused.says("{lock:job}:newest is a key of another type").says("delete it");
    let mut waiter = Turn::queued(&redis, &[]);
    holder.leaves();
    waiter.up();
    waiter.leaves();
    assert_eq!(redis.value(NEWEST_OF_ALL).as_deref(), Some("another's"));
    redis.delete(NEWEST_OF_ALL);
    // It came in between: the holder gives its lock back all the same.
    let mut holder = Turn::had(&redis, &NEWEST);
    redis.put(NEWEST_OF_ALL, b"another's", None);
    holder.is_told();
    holder.finish().exits(0).says_nothing();
    redis.delete(NEWEST_OF_ALL);
    redis.has_only_a_fence();
}

#[test]
fn without_channels_a_dismissed_one_learns_of_it_when_it_polls() {
    let redis = Redis::start();
    let rules = "~lock:* ~{lock:* resetchannels +eval +evalsha +get +set +del +pexpire +pttl +time +zadd +zrem \
                 +zrange +zscore +zrank +zcard +zcount +hget +hmget +hset +hdel +hlen +type +scan";
    let words = ["ACL", "SETUSER", "deaf", "on", ">pw"].into_iter().chain(rules.split_whitespace());
    redis.ask::<()>(&words.collect::<Vec<_>>());
    let url = format!("{}?user=deaf&pass=pw", redis.url());
    let holder = Turn::had(&redis, &[]);
    let deaf = Turn::of(Nxlock::new(turn(&NEWEST)).env("NXLOCK_SERVER", url)).once_queued(&redis);
    let mut newest = Turn::of(redis.nxlock(turn(&NEWEST)));
    is_superseded(deaf);
    holder.leaves();
    newest.up();
    newest.leaves();
    redis.has_only_a_fence();
}

/// Starts a waiter over a line that leaves some of its requests without an answer, and waits until it is in the queue.
/// On a busy machine, the first answer may take longer than the waiter waits for it: then starts another over a new
/// line.
#[track_caller]
fn queued_over(redis: &Redis, line: impl Fn() -> Proxy) -> (Proxy, Turn) {
    eventually_some("the server answers in time", || {
        let proxy = line();
        let mut waiter = Turn::of(proxy.nxlock(turn(&["--supersede", "--server-timeout", "1s"])));
        let pid = waiter.pid();
        eventually("it waits, or has ended", || waiter.running.has_ended() || queue(redis).contains(&pid));
        (!waiter.running.has_ended()).then_some((proxy, waiter))
    })
}

#[test]
fn a_dismissal_whose_reply_is_lost_is_told_again() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    for fate in [Fate::Cut, Fate::ReplySwallowed] {
        // With the first two calls of the script the waiter asks and joins; by the third it learns of its dismissal.
        let line = || {
            let calls = AtomicUsize::new(0);
            Proxy::by_command(&redis, move |_, words| {
                match words.starts_with("EVAL") && calls.fetch_add(1, Ordering::Relaxed) == 2 {
                    true => fate,
                    false => Fate::Delivered,
                }
            })
        };
        let (_proxy, older) = queued_over(&redis, line);
        let newest = Turn::queued(&redis, &NEWEST);
        is_superseded(older);
        newest.running.signal(Signal::SIGTERM);
        newest.finish();
    }
    holder.leaves();
    // Behind a request without a reply, what lets the server forget it is sent and not waited for.
    eventually("only its fence is left", || redis.ask::<i64>(&["DBSIZE"]) == 1);
}

/// Returns a proxy that holds back the first request to join the queue, and its waiter, which has joined by another.
fn with_a_late_request(redis: &Redis) -> (Proxy, Turn) {
    queued_over(redis, || {
        let is_over = AtomicBool::new(false);
        // The first call only asks, the second one joins the queue.
        Proxy::by_command(redis, move |number, words| {
            let joins = words.starts_with("EVAL") && number > 1 && !is_over.swap(true, Ordering::Relaxed);
            if joins { Fate::Held } else { Fate::Delivered }
        })
    })
}

/// Lets the server execute the late request, and what undoes it.
#[track_caller]
fn arrives(redis: &Redis, proxy: &Proxy) {
    let before = redis.scripts_run();
    proxy.lets_go();
    proxy.has_carried_all();
    assert!(redis.scripts_run() >= before + 2, "the late request is executed, and what undoes it");
}

#[test]
fn a_late_request_of_one_that_was_dismissed_dismisses_nobody() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let (proxy, older) = with_a_late_request(&redis);
    let mut newest = alone_in_the_queue(&redis);
    is_superseded(older);
    arrives(&redis, &proxy);
    queue_is(&redis, &[newest.pid()]);
    holder.leaves();
    newest.up();
    newest.leaves();
    redis.has_only_a_fence();
}

#[test]
fn a_late_request_of_one_that_has_run_dismisses_nobody() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let (proxy, mut older) = with_a_late_request(&redis);
    holder.leaves();
    older.up();
    older.leaves();
    let holder = Turn::had(&redis, &[]);
    let mut newest = alone_in_the_queue(&redis);
    arrives(&redis, &proxy);
    queue_is(&redis, &[newest.pid()]);
    holder.leaves();
    newest.up();
    newest.leaves();
    redis.has_only_a_fence();
}

#[test]
fn one_that_joins_late_does_not_come_after_a_newer_one_that_was_granted_the_lock_meanwhile() {
    for options in [["--supersede"], ["--supersede=running"]] {
        let redis = Redis::start();
        let first = Turn::had(&redis, &[]);
        let proxy = Proxy::by_command(&redis, |_, words| match words.starts_with("SUBSCRIBE") {
            true => Fate::Held,
            false => Fate::Delivered,
        });
        // A waiter joins the queue without a subscription after a quarter of this.
        let older = Turn::of(proxy.nxlock(turn(&[options[0], "--server-timeout", "1m"])));
        eventually("it subscribes", || proxy.commands().iter().any(|words| words.starts_with("SUBSCRIBE")));
        first.leaves();
        let newer = Turn::had(&redis, &options);
        proxy.lets_go();
        older.finish().exits(75).prints("").says(&format!("pid {}", newer.pid()));
        proxy.has_carried_all();
        newer.leaves();
        redis.has_only_a_fence();
    }
}

#[test]
fn a_full_server_refuses_newcomers_and_serves_the_newest() {
    let redis = Redis::start();
    let holder = Turn::listening(&redis, &["-t", "1m"]);
    let mut newest = Turn::queued(&redis, &NEWEST);
    redis.ask::<()>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    redis.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    // On a busy machine, the wait may be over before the server has refused the place in the queue.
    let refused = || Some(redis.nxlock(["run", "job", "--supersede", "-w", "500ms", "true"]).run());
    let is_known = |done: &Done| done.stderr.contains("out of memory");
    eventually_some("the server refuses in time", || refused().filter(is_known)).exits(69);
    redis.renews_soon("lock:job");
    redis.nxlock(["run", "other", "--supersede", "-n", "true"]).run().exits(69).says("out of memory");
    queue_is(&redis, &[newest.pid()]);
    holder.leaves();
    newest.up();
    newest.leaves();
    redis.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    redis.has_only_a_fence();
}

#[test]
fn a_server_without_scripts_and_several_servers_refuse_to_supersede() {
    let redis = Redis::start();
    redis.ask::<()>(&["ACL", "SETUSER", "default", "-eval", "-evalsha"]);
    let words = ["run", "job", "--supersede", "--", "echo", "ran"];
    redis.nxlock(words).run().exits(78).prints("").says("the queue needs them").says("do without --supersede");
    Five::start().nxlock(words).run().exits(64).prints("").says("several servers have no queue");
    assert_eq!(redis.ask::<i64>(&["DBSIZE"]), 0);
}

#[test]
fn what_the_manual_lists_is_enough_to_supersede() {
    let redis = Redis::start();
    let rules = "~lock:* ~{lock:*}:* resetchannels &lock:* +eval +evalsha +get +set +del +time +pttl +pexpire +zadd \
                 +zrem +zrange +zrank +zscore +zcard +zcount +hget +hmget +hset +hdel +hlen +publish +pubsub|numsub \
                 +subscribe +client|tracking";
    let words = ["ACL", "SETUSER", "all", "on", ">pw"].into_iter().chain(rules.split_whitespace());
    redis.ask::<()>(&words.collect::<Vec<_>>());
    let url = format!("{}?user=all&pass=pw", redis.url());
    let call = |options: &[&str]| Nxlock::new(turn(options)).env("NXLOCK_SERVER", &url);
    for shared in [&[][..], &["--slots", "2"]] {
        let options = [shared, &NEWEST].concat();
        let mut holders: Vec<Turn> = (0..1 + shared.len() / 2).map(|_| Turn::of(call(&options))).collect();
        holders.iter_mut().for_each(|holder| _ = holder.up());
        let older = Turn::of(call(&options)).once_queued(&redis);
        let mut newest = Turn::of(call(&options));
        is_superseded(older);
        holders.into_iter().for_each(Turn::leaves);
        newest.up();
        newest.leaves();
    }
    let denied = redis.ask::<Vec<Value>>(&["ACL", "LOG"]);
    assert!(denied.is_empty(), "{denied:?}");
    redis.has_only_a_fence();
}

#[test]
fn while_its_slot_moves_nobody_is_dismissed_and_afterwards_the_newest_wins() {
    let cluster = Cluster::of_masters();
    let holder = Turn::had(&cluster, &[]);
    let older = Turn::queued(&cluster, &NEWEST);
    let newest = {
        let moving = cluster.begins_to_move("lock:job");
        let newest = Turn::of(cluster.nxlock(turn(&NEWEST)));
        moving.ends();
        newest
    };
    is_superseded(older);
    holder.leaves();
    let mut newest = newest;
    newest.up();
    newest.leaves();
    assert_eq!(lock_status(&cluster)["state"], "free");
}
