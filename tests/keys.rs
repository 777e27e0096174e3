//! The keys in a Redis server: the lock and its token, the fence beside it, and keys of other programs.

use crate::support::Redis;

#[test]
fn the_key_holds_the_token_for_as_long_as_the_lock_is_held() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "job", "--ttl", "20s"]).run().exits(0).token();
    assert_eq!(redis.value("lock:job").as_deref(), Some(token.as_str()));
    assert!((1..=20_000).contains(&redis.pttl("lock:job")));
    redis.nxlock(["renew", "job", &token, "--ttl", "10m"]).run().exits(0);
    assert!((20_001..=600_000).contains(&redis.pttl("lock:job")));
    redis.nxlock(["release", "job", &token]).run().exits(0);
    assert!(!redis.exists("lock:job"));
}

#[test]
fn a_value_of_another_program_is_not_broken_by_an_id() {
    let redis = Redis::start();
    redis.put("lock:job", b"their own token", Some(60_000));
    redis.nxlock(["release", "job", "--break", "aaaaaaaa"]).run().exits(76);
    redis.nxlock(["release", "job", "their own token"]).run().exits(0);
}

fn fence(redis: &Redis) -> u64 {
    let granted = redis.nxlock(["acquire", "job", "--ttl", "1m", "--json"]).run().exits(0).json();
    redis.nxlock(["release", "job", granted["token"].as_str().unwrap()]).run().exits(0);
    granted["fence"].as_u64().unwrap()
}

#[test]
fn fences_rise_over_many_grants_a_flush_and_an_empty_restart() {
    let mut redis = Redis::start();
    let mut fences: Vec<u64> = (0..20).map(|_| fence(&redis)).collect();
    redis.ask::<()>(&["FLUSHALL"]);
    fences.push(fence(&redis));
    redis.restart();
    fences.push(fence(&redis));
    // As if the server's clock had been ahead: the last fence still counts.
    redis.put("{lock:job}:fence", b"4102444800000000", Some(60_000));
    fences.push(fence(&redis));
    fences.push(fence(&redis));
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    let ttl = redis.pttl("{lock:job}:fence");
    assert!(ttl > 0, "a fence ends by itself");
}

#[test]
fn the_fence_outlives_a_long_lease() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "job", "--ttl", "30d"]).run().token();
    assert!(redis.pttl("{lock:job}:fence") > redis.pttl("lock:job"));
    redis.nxlock(["release", "job", &token]).run().exits(0);
    assert!(redis.pttl("{lock:job}:fence") > 86_000_000);
}

#[test]
fn any_program_that_uses_set_nx_excludes_us_and_is_excluded_by_us() {
    let redis = Redis::start();
    redis.put("lock:job", b"a shell script", Some(60_000));
    redis.nxlock(["acquire", "job", "--ttl", "1m", "-n"]).run().exits(75).says("another program");
    redis.delete("lock:job");
    let token = redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().token();
    let set: Option<String> = redis.ask(&["SET", "lock:job", "theirs", "NX", "PX", "1000"]);
    assert_eq!(set, None);
    redis.nxlock(["release", "job", &token]).run().exits(0);
}

#[test]
fn the_prefix_is_part_of_the_key_and_may_be_empty() {
    let redis = Redis::start();
    for (options, key) in [
        (&["--prefix", "team a:"][..], "team a:job"),
        (&["--prefix", ""], "job"),
        (&["--prefix=*?["], "*?[job"),
        (&[], "lock:job"),
    ] {
        let call = |words: &[&str]| redis.nxlock(words.iter().chain(options).copied());
        let token = call(&["acquire", "job", "--ttl", "1m"]).run().token();
        assert_eq!(redis.value(key), Some(token.clone()));
        assert!(redis.pttl(&format!("{{{key}}}:fence")) > 0);
        let rows = call(&["status", "--json"]).run().exits(0).json();
        assert_eq!(rows.as_array().unwrap().len(), 1, "the fence is not listed as a lock: {rows}");
        assert_eq!(rows[0]["name"], "job");
        call(&["release", "job", &token]).run().exits(0);
    }
    let by_environment = redis.nxlock(["acquire", "job", "--ttl", "1m"]).env("NXLOCK_PREFIX", "p/").run().token();
    assert_eq!(redis.value("p/job"), Some(by_environment));
    redis.delete("p/job");
    redis.nxlock(["status", "--prefix", "a{b}"]).run().exits(64).says("--prefix");
}

#[test]
fn status_names_each_state() {
    let redis = Redis::start();
    let held = redis.nxlock(["acquire", "held", "--ttl", "1m"]).run().token();
    redis.put("lock:foreign", b"somebody", Some(60_000));
    redis.put("lock:legacy", b"1893456000", None);
    redis.put("lock:endless", b"somebody", None);
    redis.ask::<()>(&["LPUSH", "lock:list", "x"]);
    let call = redis.nxlock(["status", "--json", "held", "foreign", "legacy", "endless", "list"]).run().exits(0);
    let rows = call.json();
    let states: Vec<&str> = rows.as_array().unwrap().iter().map(|row| row["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["held", "foreign", "legacy", "no_expiry", "wrong_type"], "in the order asked for");
    let listed = redis.nxlock(["status", "--json"]).run().exits(0).json();
    assert_eq!(listed.as_array().unwrap().len(), 5);
    for key in ["lock:foreign", "lock:legacy", "lock:endless", "lock:list"] {
        redis.delete(key);
    }
    redis.nxlock(["release", "held", &held]).run().exits(0);
    redis.nxlock(["status"]).run().exits(0).prints("");
}
