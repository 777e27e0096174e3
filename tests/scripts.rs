//! How a server is told what to run: by the hash of the script, and by its text where it does not have that yet.

use std::collections::BTreeMap;

use crate::support::turns::{Turn, acquire, queue_is, release};
use crate::support::{Fate, Nxlock, Proxy, Redis, eventually};

/// Returns how often each command of a client was executed, by its name.
fn calls(redis: &Redis) -> BTreeMap<String, u64> {
    let stats: String = redis.ask(&["INFO", "commandstats"]);
    let call = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    stats.lines().filter_map(call).collect()
}

#[test]
fn a_server_is_sent_the_script_once() {
    let redis = Redis::start();
    let token = acquire(&redis, "1m");
    release(&redis, &token);
    assert_eq!((calls(&redis)["eval"], calls(&redis)["evalsha"]), (1, 3), "refused, loaded, and two requests");
    redis.nxlock(["run", "job", "--slots", "2", "--record", "--", "true"]).run().exits(0);
    redis.nxlock(["run", "job", "--shared", "--", "true"]).run().exits(0);
    redis.nxlock(["status", "job", "--history"]).run().exits(0);
    assert_eq!(calls(&redis)["eval"], 1);
}

#[test]
fn a_server_that_forgets_the_script_at_any_time_is_sent_it_again() {
    let redis = Redis::start();
    let forgets = || redis.ask::<()>(&["SCRIPT", "FLUSH"]);
    let holder = Turn::had(&redis, &[]);
    forgets();
    let mut waiter = Turn::queued(&redis, &[]);
    forgets();
    redis.renews_soon("lock:job");
    forgets();
    queue_is(&redis, &[waiter.pid()]);
    forgets();
    holder.leaves();
    waiter.up();
    forgets();
    waiter.leaves();
    redis.has_only_a_fence();
}

#[test]
fn a_server_that_forgets_the_script_at_once_is_sent_it_with_the_request() {
    let redis = Redis::start();
    let proxy = Proxy::by_command(&redis, |_, words| match words.starts_with("EVALSHA") {
        true => Fate::Answered("-NOSCRIPT No matching script. Please use EVAL.\r\n"),
        false => Fate::Delivered,
    });
    proxy.nxlock(["run", "job", "--slots", "2", "--", "true"]).run().exits(0).says_nothing();
    proxy.nxlock(["status", "job"]).run().exits(1).says_nothing();
    redis.has_only_a_fence();
}

#[test]
fn a_list_is_complete_though_the_server_does_not_have_the_script() {
    let redis = Redis::start();
    for number in 0..150 {
        redis.put(&format!("lock:job-{number:03}"), b"x", Some(60_000));
    }
    let rows = redis.nxlock(["--json", "status"]).run().exits(0).json();
    assert_eq!(rows.as_array().unwrap().len(), 150);
    for number in 0..150 {
        redis.delete(&format!("lock:job-{number:03}"));
    }
}

/// Where the server does not let a user run scripts by their hashes, or the whole command is missing.
#[test]
fn without_hashes_everything_is_as_with_them() {
    let (denied, renamed) = (Redis::start(), Redis::with(&["--rename-command", "EVALSHA", ""]));
    denied.ask::<()>(&["ACL", "SETUSER", "default", "-evalsha"]);
    for redis in [denied, renamed] {
        let holder = Turn::had(&redis, &[]);
        let mut waiter = Turn::queued(&redis, &[]);
        redis.renews_soon("lock:job");
        queue_is(&redis, &[waiter.pid()]);
        holder.leaves();
        assert!(waiter.up().parse::<u64>().is_ok(), "it has a fence");
        waiter.leaves();
        redis.has_only_a_fence();
        let before = calls(&redis)["eval"];
        let token = acquire(&redis, "1m");
        release(&redis, &token);
        assert_eq!(calls(&redis)["eval"] - before, 2);
    }
}

#[test]
fn by_hashes_alone_the_script_cannot_be_sent() {
    let redis = Redis::start();
    redis.ask::<()>(&["ACL", "SETUSER", "default", "-eval"]);
    let acquired = redis.nxlock(["--json", "acquire", "job", "--ttl", "1m"]).run().exits(0).json();
    assert!(acquired["fence"].is_null(), "without scripts: {acquired}");
    redis.nxlock(["release", "job", acquired["token"].as_str().unwrap()]).run().exits(0);
    redis.nxlock(["run", "job", "--shared", "--", "true"]).run().exits(78).says("sharing needs them");
}

#[test]
fn a_request_that_the_server_could_not_read_yet_leaves_nothing_behind() {
    let redis = Redis::start();
    for fate in [Fate::Cut, Fate::ReplySwallowed, Fate::Blackholed] {
        let proxy = Proxy::by_command(&redis, move |_, words| match words.trim_end() {
            "EVAL" => fate,
            _ => Fate::Delivered,
        });
        // On a busy machine nxlock may have no time to load the script, or to release what the server may have granted.
        eventually("nxlock loads the script, and releases the lock last", || {
            redis.ask::<()>(&["FLUSHALL"]);
            redis.ask::<()>(&["SCRIPT", "FLUSH"]);
            let before = proxy.commands().len();
            let call = proxy.nxlock(["run", "job", "-n", "--server-timeout", "300ms", "--", "true"]).run();
            assert!([0, 69].contains(&call.status.code().unwrap()), "{}", call.both());
            proxy.has_carried_all();
            let sent = proxy.commands().split_off(before);
            let loads = |words: &String| words.trim_end() == "EVAL";
            sent.iter().any(loads) && sent.last().is_some_and(|last| last.starts_with("EVALSHA release "))
        });
        assert!(!redis.exists("lock:job"), "it is free");
    }
}

#[test]
fn who_may_only_read_may_do_so_by_hash_or_by_text() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    for verb in ["+evalsha_ro", "+eval_ro", "+eval_ro +evalsha_ro"] {
        let rules = "%R~lock:* %R~{lock:*}:* resetchannels +get +time +pttl +zrange +zcount +hget +pubsub|numsub";
        let words = ["ACL", "SETUSER", "reader", "reset", "on", ">pw"].into_iter();
        redis.ask::<()>(&words.chain(rules.split(' ')).chain(verb.split(' ')).collect::<Vec<_>>());
        let url = format!("{}?user=reader&pass=pw", redis.url());
        let seen = Nxlock::new(["status", "job"]).env("NXLOCK_SERVER", url).run();
        // The script is there already: a holder has sent it.
        assert!(seen.exits(0).text().contains(&holder.pid().to_string()), "{verb}");
    }
    holder.leaves();
}
