//! Permissions of a server's user: `check` names each missing one, with the command that grants it.

use serde_json::Value;

use super::{SAFE, check, finding, finds, keys};
use crate::support::{Done, Nxlock, Redis};

const ENOUGH: &str = "~lock:* ~{lock:*}:* resetchannels &lock:* +eval +evalsha +get +set +del +time +pttl +pexpire \
                      +type +scan +zadd +zrem +zrange +zrank +zscore +zcard +zcount +hget +hmget +hset +hdel +hgetall \
                      +hlen +publish +pubsub|numsub +subscribe +client|tracking +info +config|get +ping";

fn user(redis: &Redis, rules: &str) -> Done {
    let words = ["ACL", "SETUSER", "bob", "reset", "on", ">pw"].into_iter().chain(rules.split_whitespace());
    redis.ask::<()>(&words.collect::<Vec<_>>());
    Nxlock::new(["--json", "check"]).env("NXLOCK_SERVER", format!("{}?user=bob&pass=pw", redis.url())).run()
}

#[test]
fn what_a_user_needs_and_nothing_more_is_enough() {
    let redis = Redis::with(&SAFE);
    let done = user(&redis, ENOUGH).exits(0);
    assert_eq!(done.json()["outcome"], "fit");
    let denied = redis.ask::<Vec<redis::Value>>(&["ACL", "LOG"]);
    assert!(denied.is_empty(), "{denied:?}");
    assert_eq!(keys(&redis), Vec::<String>::new());
}

#[test]
fn each_permission_that_is_missing_is_named_with_the_line_that_mends_it() {
    let redis = Redis::with(&SAFE);
    let vital = "get set del time pttl pexpire zadd zrem zrange zrank zscore zcard zcount hget hmget hlen hset hdel";
    for command in vital.split(' ') {
        let done = user(&redis, &format!("{ENOUGH} -{command}")).exits(77);
        finds(
            &done,
            "permissions",
            "obstacle",
            &format!("missing: +{command}"),
            &format!("ACL SETUSER bob +{command}"),
        );
        assert_eq!(keys(&redis), Vec::<String>::new(), "{command}");
    }
    let done = user(&redis, &ENOUGH.replace("~{lock:*}:* ", "").replace("+time", "")).exits(77);
    finds(&done, "permissions", "obstacle", "missing: ~{lock:*}:* +time", "ACL SETUSER bob ~{lock:*}:* +time");
    let done = user(&redis, &ENOUGH.replace("~lock:* ", "")).exits(77);
    finds(&done, "permissions", "obstacle", "missing: ~lock:*", "ACL SETUSER bob ~lock:*");
    for command in ["type", "scan", "hgetall"] {
        let done = user(&redis, &format!("{ENOUGH} -{command}")).exits(1);
        finds(&done, "permissions", "warning", &format!("+{command}"), &format!("ACL SETUSER bob +{command}"));
        finds(&done, "locks", "fine", "handed over", "");
    }
}

#[test]
fn who_follows_what_it_says_gets_there() {
    let redis = Redis::with(&SAFE);
    let mut done = user(&redis, "resetchannels").exits(77);
    for _ in 0..5 {
        let document = done.json();
        let findings = document["servers"][0]["findings"].as_array().unwrap().clone();
        for remedy in findings.iter().filter_map(|finding| finding["remedy"].as_str()) {
            let rules = remedy.strip_prefix("ACL SETUSER bob ").unwrap_or_else(|| panic!("{remedy}"));
            let words = ["ACL", "SETUSER", "bob"].into_iter().chain(rules.split_whitespace());
            redis.ask::<()>(&words.collect::<Vec<_>>());
        }
        let url = format!("{}?user=bob&pass=pw", redis.url());
        done = Nxlock::new(["--json", "check"]).env("NXLOCK_SERVER", url).run();
    }
    assert_eq!(done.exits(0).json()["outcome"], "fit");
}

#[test]
fn without_tracking_a_deleted_lock_is_noticed_later_which_is_a_warning() {
    let redis = Redis::with(&SAFE);
    let done = user(&redis, &ENOUGH.replace("+client|tracking ", "")).exits(1);
    finds(&done, "holders", "warning", "noticed at the next renewal", "ACL SETUSER bob +client|tracking");
    finds(&done, "locks", "fine", "handed over", "");
}

#[test]
fn without_channels_a_request_is_noticed_later_which_is_a_warning() {
    let redis = Redis::with(&SAFE);
    let told = user(&redis, ENOUGH).exits(0);
    finds(&told, "holders", "fine", "told at once of a lost lock, and of requests", "");
    finds(&told, "permissions", "fine", "all that every verb asks for", "");
    for (rules, missing) in [
        (ENOUGH.replace("&lock:* ", ""), "&lock:*"),
        (format!("{ENOUGH} -subscribe"), "+subscribe"),
        (format!("{ENOUGH} -publish"), "+publish"),
        (ENOUGH.replace("&lock:*", "&lock:*:wake*"), "&lock:*"),
    ] {
        let done = user(&redis, &rules).exits(1);
        finds(&done, "holders", "warning", "a request to give a lock up is noticed at the", &format!("bob {missing}"));
        finds(&done, "permissions", "fine", "enough for every verb", "");
    }
    let done = user(&redis, &format!("{ENOUGH} -pubsub|numsub")).exits(1);
    finds(&done, "holders", "fine", "told at once of a lost lock, and of requests", "");
    finds(&done, "permissions", "warning", "that a waiter is gone", "bob +pubsub|numsub");
    let done = user(&redis, &format!("{ENOUGH} -subscribe -client|tracking")).exits(1);
    finds(
        &done,
        "holders",
        "warning",
        "a deleted lock, and a request to give it up,",
        "bob +client|tracking +subscribe",
    );
}

#[test]
fn without_channels_waiters_poll_which_is_a_warning() {
    let redis = Redis::with(&SAFE);
    for (rules, missing) in [
        (ENOUGH.replace("&lock:* ", ""), "&lock:*"),
        (format!("{ENOUGH} -subscribe"), "+subscribe"),
        (format!("{ENOUGH} -publish"), "+publish"),
    ] {
        let done = user(&redis, &rules).exits(1);
        finds(&done, "waiters", "warning", "the first polls", &format!("ACL SETUSER bob {missing}"));
        finds(&done, "locks", "fine", "handed over", "");
    }
}

#[test]
fn without_scripts_there_is_neither_queue_nor_fence_which_is_a_warning() {
    let redis = Redis::with(&SAFE);
    let scriptless = "~lock:* +ping +info +config|get +get +set +del +pttl +pexpire +type +scan +watch +multi +exec";
    let done = user(&redis, scriptless).exits(1);
    finds(&done, "scripts", "warning", "no queue and no fence", "ACL SETUSER bob +eval ");
    finds(&done, "locks", "fine", "taken without a fence", "");
    assert_eq!(finding(&done, "waiters"), Value::Null);
    for command in ["watch", "multi", "exec"] {
        let done = user(&redis, &format!("{scriptless} -{command}")).exits(77);
        finds(&done, "permissions", "obstacle", &format!("missing: +{command}"), &format!("+{command}"));
    }
    let renamed = Redis::with(&["--appendonly", "yes", "--rename-command", "EVAL", ""]);
    finds(&check(&renamed).exits(1), "scripts", "warning", "no queue and no fence", "");
}

#[test]
fn without_hashes_scripts_are_sent_whole_which_is_a_warning() {
    let redis = Redis::with(&SAFE);
    let done = user(&redis, &format!("{ENOUGH} -evalsha")).exits(1);
    finds(&done, "scripts", "warning", "sent whole", "ACL SETUSER bob +evalsha");
    finds(&done, "locks", "fine", "handed over", "");
}

#[test]
fn what_may_not_be_looked_at_is_a_warning() {
    let redis = Redis::with(&SAFE);
    let done = user(&redis, &ENOUGH.replace("+info", "")).exits(1);
    finds(&done, "server", "warning", "not permitted to look", "ACL SETUSER bob +info");
    finds(&done, "locks", "fine", "", "");
    redis.ask::<()>(&["CONFIG", "SET", "appendonly", "no"]);
    let done = user(&redis, &ENOUGH.replace("+config|get", "")).exits(1);
    finds(&done, "persistence", "warning", "does not tell", "+config|get");
    user(&redis, &ENOUGH.replace("+ping", "")).exits(1);
}
