//! A token that is a bare number, wherever a token can be used.

use super::client::Client;
use super::{KEY, WAITERS, beside, had, is_ours, lock_status, queued, turn};
use crate::support::turns::{Turn, process};
use crate::support::{Local, Nxlock, Redis, eventually, eventually_some, is_alive, text_of};

#[test]
fn it_reads_as_a_time_that_never_comes() {
    let redis = Redis::start();
    let token = redis.nxlock(beside("acquire", &["--ttl", "10m"])).run().exits(0).text();
    let token = token.strip_suffix('\n').unwrap();
    assert!(is_ours(Some(token)));
    assert_eq!(redis.value(KEY).as_deref(), Some(token));
    assert!((1..=600_000).contains(&redis.pttl(KEY)));
    for ahead in [-60_000, 0, 60_000, 4_000_000_000_000] {
        let mut theirs = Client::of(&redis, 10, ahead);
        assert!(!theirs.tries(), "{ahead}");
    }
    assert_eq!(redis.value(KEY).as_deref(), Some(token));
    redis.nxlock(["release", "--key", KEY, token]).run().exits(0);
    assert!(Client::of(&redis, 10, 0).tries());
    redis.delete(KEY);
}

#[test]
fn it_renews_and_releases_and_says_who_holds_it() {
    let redis = Redis::start();
    let granted = redis.nxlock(beside("acquire", &["--ttl", "1m", "--reason", "why: 50 %", "--json"])).run().exits(0);
    let token = granted.json()["token"].as_str().unwrap().to_owned();
    assert!(granted.json()["fence"].as_u64().is_some());
    let seen = lock_status(&redis);
    assert_eq!((&seen["state"], &seen["name"], &seen["key"]), (&"held".into(), &KEY.into(), &KEY.into()));
    assert_eq!(seen["holder"]["reason"], "why: 50 %");
    assert_eq!(seen["holder"]["id"], token[..8]);
    assert!(!seen.to_string().contains(&token));
    let refused = redis.nxlock(["run", "--key", KEY, "-n", "--", "true"]).run().exits(75);
    let hint = format!("release --key=lock.foo --break {}", &token[..8]);
    refused.says("why: 50 %").says(&hint).never_says(&token);
    redis.nxlock(["renew", "--key", KEY, "--ttl", "10m"]).env("NXLOCK_TOKEN", &token).run().exits(0);
    assert!(redis.pttl(KEY) > 60_000 && redis.pttl(WAITERS) > 60_000);
    assert_eq!(lock_status(&redis)["holder"]["reason"], "why: 50 %");
    redis.nxlock(["release", "--key", KEY, "-"]).stdin(token.as_bytes()).run().exits(0);
    redis
        .nxlock(["release", "--key", KEY, &token])
        .run()
        .exits(76)
        .says("is not held: it was released before, has expired, or was deleted");
    redis.nxlock(["renew", "--key", KEY, &token, "--ttl", "1m"]).run().exits(76);
}

#[test]
fn a_record_that_names_another_value_tells_nothing() {
    let redis = Redis::start();
    let token = redis.nxlock(beside("acquire", &["--ttl", "1m"])).run().exits(0).text();
    redis.put(KEY, "4".repeat(19).as_bytes(), Some(60_000));
    let seen = lock_status(&redis);
    assert!(seen["state"] == "foreign" && seen["holder"].is_null(), "{seen}");
    redis.nxlock(["release", "--key", KEY, token.trim()]).run().exits(76);
    redis.delete(KEY);
}

#[test]
fn it_is_broken_by_the_id_that_status_shows() {
    let redis = Redis::start();
    let token = redis.nxlock(beside("acquire", &["--ttl", "1m"])).run().exits(0).text();
    redis.nxlock(["release", "--key", KEY, "--break", "41414141"]).run().exits(76);
    redis.nxlock(["release", "--key", KEY, "--break", &token[..8]]).run().exits(0).says("broke");
    assert!(!redis.exists(KEY) && !redis.exists(WAITERS));
}

#[test]
fn a_run_within_a_run_is_refused_at_once() {
    let redis = Redis::start();
    for inner in ["--key lock.foo", "--setnx-compat --key lock.foo", "--prefix '' lock.foo"] {
        let script = format!("[ \"$NXLOCK_HELD\" = \"$NXLOCK_TOKEN\" ] && nxlock run {inner} -- echo ran");
        let done = redis.nxlock(beside("run", &["-c", &script])).run().exits(75);
        done.prints("").says("already held by this script");
    }
}

#[test]
fn an_enclosed_run_carries_the_tokens_of_both_kinds() {
    let redis = Redis::start();
    let script = "nxlock run other -c 'nxlock run --key lock.foo -n -- echo ran'";
    redis.nxlock(beside("run", &["-c", script])).run().exits(75).prints("").says("already held by this script");
}

#[test]
fn a_share_is_told_whose_the_lock_is() {
    let redis = Redis::start();
    let holder = had(&redis, &["--reason", "release 4.3"]);
    let id = lock_status(&redis)["holder"]["id"].as_str().unwrap().to_owned();
    for options in [&["--slots", "2"][..], &["--shared"]] {
        let call = redis.nxlock([&["run", "--key", KEY, "-n"], options, &["--", "echo", "ran"]].concat());
        let refused = call.run().exits(75).prints("").says(&format!("pid {}", holder.pid())).says("release 4.3");
        refused.says(&format!("--break {id}")).never_says("another program").never_says("redis-cli");
    }
    let mut waiter = redis.nxlock(["run", "--key", KEY, "--slots", "2", "--", "echo", "ran"]).start();
    waiter.says(&format!("held by {}", process(holder.pid())));
    holder.leaves();
    waiter.finish().exits(0).prints("ran\n");
}

#[test]
fn waiters_of_both_kinds_stand_in_one_line() {
    let redis = Redis::start();
    let plain = |redis: &Redis| {
        let script = r#"echo "up $NXLOCK_FENCE"; read x; exit 0"#;
        let turn = Turn::of(redis.nxlock(["run", "--key", KEY, "-c", script]));
        let pid = i64::from(turn.pid());
        eventually("it is in the queue", || {
            lock_status(redis)["queue"].as_array().unwrap().iter().any(|waiter| waiter["pid"] == pid)
        });
        turn
    };
    let holder = had(&redis, &[]);
    let mut line = vec![queued(&redis, &["--reason", "second"]), plain(&redis), queued(&redis, &[]), plain(&redis)];
    let seen = lock_status(&redis);
    let pids: Vec<_> = seen["queue"].as_array().unwrap().iter().map(|waiter| waiter["pid"].clone()).collect();
    assert_eq!(pids, line.iter().map(|turn| turn.pid().into()).collect::<Vec<serde_json::Value>>());
    assert_eq!(seen["queue"][0]["reason"], "second");
    let mut fences = vec![0];
    let mut next = holder;
    while !line.is_empty() {
        next.leaves();
        next = line.remove(0);
        fences.push(next.up().parse::<u64>().unwrap());
        assert!(line.iter().all(|turn| !turn.is_up()));
        // status shows the holder for either kind.
        assert_eq!(lock_status(&redis)["holder"]["pid"], next.pid());
    }
    next.leaves();
    assert!(fences.is_sorted_by(|before, after| before < after), "{fences:?}");
    assert!(!redis.exists(WAITERS));
}

#[test]
fn a_waiter_for_whom_it_is_reserved_is_named() {
    let redis = Redis::start();
    let (mut next, id) = eventually_some("it is still reserved when that is prolonged", || {
        let holder = had(&redis, &[]);
        let mut next = queued(&redis, &["--reason", "second"]);
        let id = lock_status(&redis)["queue"][0]["id"].clone();
        next.freeze();
        holder.leaves();
        // A reservation lasts a second, less than two calls may take on a busy machine.
        if redis.ask::<bool>(&["PEXPIRE", KEY, "60000"]) {
            return Some((next, id));
        }
        next.goes_on();
        next.up();
        next.leaves();
        None
    });
    let seen = lock_status(&redis);
    assert_eq!((&seen["state"], &seen["holder"]["id"]), (&"reserved".into(), &id), "{seen}");
    assert_eq!((&seen["holder"]["pid"], &seen["holder"]["reason"]), (&next.pid().into(), &"second".into()), "{seen}");
    let refused = redis.nxlock(["run", "--key", KEY, "-n", "--", "true"]).run().exits(75);
    refused.says(&format!("pid {}", next.pid())).never_says("another program");
    next.goes_on();
    next.up();
    next.leaves();
    assert!(!redis.exists(WAITERS));
}

#[test]
fn a_waiter_that_was_killed_is_passed_over_and_a_killed_holder_followed() {
    let redis = Redis::start();
    let holder = had(&redis, &["-t", "12s"]);
    let dead = queued(&redis, &[]);
    let mut next = queued(&redis, &[]);
    dead.running.signal(nix::sys::signal::Signal::SIGKILL);
    eventually("it is gone", || !is_alive(dead.pid()));
    holder.running.signal(nix::sys::signal::Signal::SIGKILL);
    next.up();
    assert_eq!(lock_status(&redis)["holder"]["pid"], next.pid());
    next.leaves();
}

#[test]
fn without_the_queue_it_is_one_of_the_plain_clients() {
    let redis = Redis::start();
    let mut theirs = Client::of(&redis, 600, 0);
    assert!(theirs.tries());
    let mut ours = turn(&redis, &["--no-queue"]);
    ours.running.says("held by an old SETNX client");
    assert!(lock_status(&redis)["queue"].as_array().unwrap().is_empty());
    assert!(theirs.releases());
    ours.up();
    assert!(is_ours(redis.value(KEY).as_deref()));
    ours.leaves();
}

#[test]
fn where_scripts_are_not_run_it_is_refused_with_the_reason() {
    let redis = Redis::start();
    redis.ask::<()>(&["ACL", "SETUSER", "plain", "on", ">pw", "~*", "+@all", "-eval", "-evalsha"]);
    let url = format!("{}?user=plain&pass=pw", redis.url());
    let log = redis.directory().join("log");
    for value in [None, Some("1000000000")] {
        if let Some(value) = value {
            redis.put(KEY, value.as_bytes(), None);
        }
        let call = |words: &[&str]| Nxlock::new(words.iter().copied()).env("NXLOCK_SERVER", &url).env("LOG", &log);
        for verb in [beside("run", &["-c", "echo ran >> \"$LOG\""]), beside("acquire", &["--ttl", "1m"])] {
            call(&verb).run().exits(78).prints("").says("does not run scripts").says("--setnx-compat");
        }
        assert_eq!(redis.value(KEY).as_deref(), value);
    }
    redis.delete(KEY);
    let token = redis.nxlock(beside("acquire", &["--ttl", "1m"])).run().exits(0).text();
    let call = |words: &[&str]| Nxlock::new(words.iter().copied()).env("NXLOCK_SERVER", &url);
    call(&["renew", "--key", KEY, token.trim(), "--ttl", "1m"]).run().exits(78);
    call(&["release", "--key", KEY, token.trim()]).run().exits(0);
    redis.ask::<i64>(&["DEL", WAITERS]);
    assert_eq!(text_of(&log), "");
    let without = Redis::with(&["--rename-command", "EVAL", ""]);
    without.nxlock(beside("acquire", &["--ttl", "1m"])).run().exits(78).says("does not run scripts");
    assert_eq!(without.value(KEY), None);
}

#[test]
fn a_directory_has_nothing_old_to_share() {
    use crate::support::Authority;
    let local = Local::start();
    local.nxlock(beside("run", &["--", "true"])).run().exits(64).says("--setnx-compat").says("local:");
    local.nxlock(beside("acquire", &["--ttl", "1m"])).run().exits(64);
    local.nxlock(["run", "job", "--setnx-margin", "1s", "--", "true"]).run().exits(64).says("--setnx-compat");
}

#[test]
fn what_the_manual_lists_of_permissions_is_enough() {
    let redis = Redis::start();
    let rules = "~lock.* ~{lock.*}:* resetchannels &lock.* +eval +evalsha +get +set +del +time +pttl +pexpire +type \
                 +scan +zadd +zrem +zrange +zrank +zscore +zcard +zcount +hget +hgetall +hmget +hset +hdel +hlen +publish \
                 +pubsub|numsub +subscribe +client|tracking +info";
    let words = ["ACL", "SETUSER", "listed", "on", ">pw"].into_iter().chain(rules.split_whitespace());
    redis.ask::<()>(&words.collect::<Vec<_>>());
    let url = format!("{}?user=listed&pass=pw", redis.url());
    let call = |words: &[&str]| Nxlock::new(words.iter().copied()).env("NXLOCK_SERVER", &url);
    redis.put(KEY, b"1000000000", None);
    let token = call(&beside("acquire", &["--ttl", "1m"])).run().exits(0).says("took over").text();
    call(&beside("run", &["-n", "--", "true"])).run().exits(75).says("held by somebody else");
    redis.ask::<String>(&["GETSET", KEY, "1000000000"]);
    call(&["renew", "--key", KEY, token.trim(), "--ttl", "1m"]).run().exits(0).says("put back");
    call(&["status", "--key", KEY]).run().exits(0);
    call(&["release", "--key", KEY, token.trim()]).run().exits(0);
    let denied = redis.ask::<Vec<redis::Value>>(&["ACL", "LOG"]);
    assert!(denied.is_empty(), "{denied:?}");
}
