//! Acquire, renew, release, status: whose lock it is, fences, tokens.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::{Nxlock, Redis, eventually, now};

#[test]
fn a_lock_is_taken_renewed_shown_and_given_back() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "job", "--ttl", "20s"]).run().exits(0).says_nothing().token();
    assert_eq!(redis.value("lock:job").as_deref(), Some(token.as_str()), "the value is the token");
    assert!((1..=20_000).contains(&redis.pttl("lock:job")));
    redis.nxlock(["status", "job"]).run().exits(0).says_nothing();
    redis.nxlock(["renew", "job", &token, "--ttl", "10m"]).run().exits(0).says_nothing().prints("");
    assert!((20_001..=600_000).contains(&redis.pttl("lock:job")), "a renewal puts the expiry a full ttl from now");
    redis.nxlock(["release", "job", &token]).run().exits(0).says_nothing().prints("");
    redis.nxlock(["status", "job"]).run().exits(1);
    assert!(!redis.exists("lock:job"));
}

#[test]
fn a_renewal_may_also_shorten_what_is_left() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "job", "--ttl", "10m"]).run().token();
    redis.nxlock(["renew", "job", &token, "--ttl", "5s"]).run().exits(0);
    assert!(redis.pttl("lock:job") <= 5_000);
    redis.delete("lock:job");
}

#[test]
fn a_token_is_an_argument_or_in_the_environment_or_on_stdin() {
    let redis = Redis::start();
    let acquire = || redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().token();
    let token = acquire();
    redis.nxlock(["renew", "job", "--ttl", "1m"]).env("NXLOCK_TOKEN", &token).run().exits(0);
    redis.nxlock(["release", "job"]).env("NXLOCK_TOKEN", &token).run().exits(0);
    let token = acquire();
    redis.nxlock(["renew", "job", "-", "--ttl", "1m"]).stdin(token.as_bytes()).run().exits(0);
    redis.nxlock(["release", "job", "-"]).stdin(format!("{token}\n").as_bytes()).run().exits(0);
    let token = acquire();
    // What was typed goes before what the environment says.
    redis.nxlock(["release", "job", &token]).env("NXLOCK_TOKEN", "nx1:somebody:elses").run().exits(0);
}

#[test]
fn without_a_token_nothing_is_released_or_renewed() {
    let redis = Redis::start();
    redis.nxlock(["release", "job"]).run().exits(64).says("NXLOCK_TOKEN").says("`-`");
    redis.nxlock(["renew", "job", "--ttl", "1m"]).run().exits(64).says("TOKEN");
    redis.nxlock(["release", "job", ""]).run().exits(64);
    redis.nxlock(["release", "job", "-"]).stdin(b"").run().exits(64);
}

#[test]
fn a_lock_of_somebody_else_is_not_touched() {
    let redis = Redis::start();
    let mine = redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().token();
    redis.delete("lock:job");
    let theirs = redis.nxlock(["acquire", "job", "--ttl", "1m", "--reason", "their turn"]).run().token();
    let fence = redis.value("{lock:job}:fence");
    redis.nxlock(["renew", "job", &mine, "--ttl", "1h"]).run().exits(76).says("with this token").says("pid");
    redis.nxlock(["release", "job", &mine]).run().exits(76).says("with this token").never_says(&theirs);
    assert_eq!(redis.value("lock:job"), Some(theirs.clone()));
    assert!(redis.pttl("lock:job") <= 60_000);
    assert_eq!(redis.value("{lock:job}:fence"), fence);
    redis.nxlock(["release", "job", &theirs]).run().exits(0);
}

#[test]
fn a_lock_that_has_expired_is_said_to_have() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "job", "--ttl", "100ms"]).run().token();
    eventually("the lock ends by itself", || !redis.exists("lock:job"));
    redis.nxlock(["renew", "job", &token, "--ttl", "1m"]).run().exits(76).says("expired");
    redis.nxlock(["release", "job", &token]).run().exits(76).says("expired");
    assert!(!redis.exists("lock:job"), "a renewal does not bring a lock back");
}

#[test]
fn releasing_twice_is_not_success_twice() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().token();
    redis.nxlock(["release", "job", &token]).run().exits(0);
    redis.nxlock(["release", "job", &token]).run().exits(76);
}

/// The id that `status` shows.
fn id_of(redis: &Redis, name: &str) -> String {
    let rows = redis.nxlock(["status", "--json", name]).run().json();
    rows[0]["holder"]["id"].as_str().expect("somebody holds it").to_owned()
}

#[test]
fn a_lock_is_broken_by_the_id_that_status_shows() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().token();
    let id = id_of(&redis, "job");
    redis.nxlock(["release", "job", "--break", &id]).run().exits(0);
    assert!(!redis.exists("lock:job"));
    redis.nxlock(["release", "job", "--break", &id]).run().exits(76).says("free");
    redis.nxlock(["release", "job", &token]).run().exits(76);
}

#[test]
fn nobody_breaks_a_lock_whose_holder_has_changed() {
    let redis = Redis::start();
    redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0);
    let seen = id_of(&redis, "job");
    redis.delete("lock:job");
    let token = redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().token();
    redis.nxlock(["release", "job", "--break", &seen]).run().exits(76).says("has changed");
    redis.nxlock(["release", "job", "--break", "aaaaaaaa"]).run().exits(76);
    assert_eq!(redis.value("lock:job"), Some(token));
    redis.delete("lock:job");
}

#[test]
fn an_id_that_cannot_be_one_is_a_usage_error() {
    let redis = Redis::start();
    redis.nxlock(["release", "job", "--break", ""]).run().exits(64).says("--break");
    redis.nxlock(["release", "job", "--break", "nx1:whole:token"]).run().exits(64).says("--break");
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
    // A server whose clock was ahead: the last fence still counts.
    redis.put("{lock:job}:fence", b"4102444800000000", Some(60_000));
    fences.push(fence(&redis));
    fences.push(fence(&redis));
    // A break and an expiry are grants' ends like any other.
    redis.nxlock(["acquire", "job", "--ttl", "100ms"]).run().exits(0);
    eventually("the lock ends by itself", || !redis.exists("lock:job"));
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
fn an_export_is_safe_to_evaluate_whatever_the_name() {
    let redis = Redis::start();
    for name in ["plain", "two words", "it's", "$(touch x) `y` \"z\" \\", "*?[a]", "naïve 日本", "a;b&c|d", "~"] {
        let script = r#"
            eval "$(nxlock acquire "$1" --ttl 1m --export)" || exit
            printf '%s\n' "$NXLOCK_NAME" "$NXLOCK_FENCE"
            env | grep -c '^NXLOCK_[NTF][AOE]'
            nxlock release "$NXLOCK_NAME""#;
        let call = Nxlock::by("sh", ["-c", script, "sh", name]).env("NXLOCK_SERVER", redis.url());
        let done = call.run().exits(0).says_nothing();
        let text = done.text();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some(name));
        assert!(lines.next().is_some_and(|fence| fence.parse::<u64>().is_ok()), "{text}");
        assert_eq!(lines.next(), Some("3"), "all three are exported:\n{text}");
    }
}

#[test]
fn a_lock_whose_token_cannot_be_printed_is_given_back() {
    let redis = Redis::start();
    for options in [&[][..], &["--json"], &["--export"]] {
        let mut args = vec!["acquire", "job", "--ttl", "1m"];
        args.extend(options);
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        redis.nxlock(args.clone()).stdout_to(full).run().exits(70).says("given back");
        assert!(!redis.exists("lock:job"), "{options:?}: /dev/full");

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        redis.nxlock(args.clone()).stdout_to(writer).run().exits(70).says("given back");
        assert!(!redis.exists("lock:job"), "{options:?}: a closed pipe");
    }
    let closed = Nxlock::by("sh", ["-c", "exec nxlock acquire job --ttl 1m >&-"]).env("NXLOCK_SERVER", redis.url());
    closed.run().exits(70);
    assert!(!redis.exists("lock:job"), "no stdout at all");
}

#[test]
fn a_closed_pipe_ends_status_quietly() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().token();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut status = redis.nxlock(["status"]).stdout_to(writer).start();
    eventually("it ends", || status.has_ended());
    assert_eq!(status.stderr(), "");
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
fn locks_of_different_names_do_not_meet() {
    let redis = Redis::start();
    let one = redis.nxlock(["acquire", "one", "--ttl", "1m", "-n"]).run().exits(0).token();
    let two = redis.nxlock(["acquire", "two", "--ttl", "1m", "-n"]).run().exits(0).token();
    redis.nxlock(["release", "two", &one]).run().exits(76);
    redis.nxlock(["release", "one", &one]).run().exits(0);
    redis.nxlock(["release", "two", &two]).run().exits(0);
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
    // Any that is free makes it 1, whichever it is.
    redis.nxlock(["status", "nobody", "held"]).run().exits(1);
    redis.nxlock(["status", "held", "nobody"]).run().exits(1);
    for key in ["lock:foreign", "lock:legacy", "lock:endless", "lock:list"] {
        redis.delete(key);
    }
    redis.nxlock(["release", "held", &held]).run().exits(0);
    redis.nxlock(["status"]).run().exits(0).prints("");
}

#[test]
fn a_lock_taken_by_acquire_ends_by_itself_and_not_before() {
    let redis = Redis::start();
    let began = now();
    redis.nxlock(["acquire", "job", "--ttl", "1s"]).run().exits(0);
    redis.nxlock(["acquire", "job", "--ttl", "100ms"]).run().exits(0);
    assert!(began.elapsed() >= Duration::from_millis(990), "granted again after {:?}", began.elapsed());
    eventually("the second ends", || !redis.exists("lock:job"));
}

#[test]
fn an_interrupted_caller_of_acquire_takes_its_shell_loop_with_it() {
    // The signal itself, not a status of 130, is what a shell's loop looks at.
    let redis = Redis::start();
    redis.put("lock:job", b"somebody", None);
    let mut waiter = redis.nxlock(["acquire", "job", "--ttl", "1m"]).start();
    waiter.says("waiting");
    waiter.signal(Signal::SIGINT);
    waiter.finish().dies_of(Signal::SIGINT).prints("");
    redis.delete("lock:job");
}

#[test]
fn it_is_found_under_any_name() {
    let output = Command::new(crate::support::program()).arg0("lock").arg("--version").stdin(Stdio::null()).output();
    assert!(String::from_utf8(output.unwrap().stdout).unwrap().contains(env!("CARGO_PKG_VERSION")));
}
