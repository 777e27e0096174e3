//! An exact key in place of a name.

use super::KEY;
use crate::support::{Authority, Local, Redis};

#[test]
fn every_verb_takes_the_key_in_the_place_of_the_name() {
    let redis = Redis::start();
    let script = "echo $NXLOCK_NAME $NXLOCK_KEY $#";
    let done = redis.nxlock(["run", "--key", KEY, "--", "sh", "-c", script, "sh", "-n"]).run().exits(0);
    done.prints("lock.foo lock.foo 1\n");
    redis.nxlock(["run", "-n", "--key=lock.foo", "echo", "-n", "--key", "x"]).run().exits(0).prints("--key x");
    let token = redis.nxlock(["acquire", "--key", KEY, "--ttl", "1m"]).run().exits(0).token();
    assert_eq!(redis.value(KEY).as_deref(), Some(token.as_str()));
    redis.nxlock(["renew", "--key", KEY, &token, "--ttl", "10m"]).run().exits(0);
    assert!(redis.pttl(KEY) > 60_000);
    assert!(redis.nxlock(["status", "--key", KEY]).run().exits(0).text().contains("lock.foo "));
    let refused = redis.nxlock(["run", "--key", KEY, "-n", "--", "true"]).run().exits(75);
    refused.says("\"lock.foo\" is held").says("release --key=lock.foo --break ");
    redis.nxlock(["release", "--key", KEY, &token]).run().exits(0);
    redis.nxlock(["status", "--key", KEY]).run().exits(1);
    assert!(redis.pttl("{lock.foo}:fence") > 0);
}

#[test]
fn a_holder_beside_setnx_clients_is_asked_by_its_key() {
    let redis = Redis::start();
    let words = ["run", "--setnx-compat", "--key", KEY, "-t", "1m", "-c", "echo up; sleep 600"];
    let mut holder = redis.nxlock(words).start();
    holder.line("up");
    let refused = redis.nxlock(["run", "--key", KEY, "-n", "--", "true"]).run().exits(75);
    let told =
        refused.stderr.lines().find_map(|line| line.trim_start().strip_prefix("ask ")).unwrap().trim().to_owned();
    assert!(told.starts_with("nxlock -s ") && told.contains(" release --key=lock.foo --ask "), "{told}");
    redis.sh(&format!("{told} --wait 20s"), &[]).run().exits(0);
    holder.finish().exits(143).says("asked to give up \"lock.foo\"");
    let mut refuses = redis.nxlock(["run", "--no-ask"].iter().chain(&words[1..]).copied()).start();
    refuses.line("up");
    let seen = redis.nxlock(["--json", "status", "--key", KEY]).run().json();
    assert_eq!(seen[0]["holder"]["may_be_asked"], false, "{seen}");
    refuses.signal(nix::sys::signal::Signal::SIGTERM);
    refuses.finish().exits(143);
}

#[test]
fn the_prefix_is_not_asked() {
    let redis = Redis::start();
    for options in [&["--prefix", "team:"][..], &[]] {
        let words: Vec<_> = options.iter().chain(&["acquire", "--key", KEY, "--ttl", "1m"]).copied().collect();
        let call = redis.nxlock(words.iter().map(|&word| word.to_owned()));
        let token = call.env("NXLOCK_PREFIX", "other:").run().exits(0).token();
        assert_eq!(redis.value(KEY).as_deref(), Some(token.as_str()));
        redis.nxlock(["release", "--prefix", "", KEY, &token]).run().exits(0);
    }
}

#[test]
fn a_name_and_a_key_are_one_too_many() {
    let redis = Redis::start();
    redis.nxlock(["run", "job", "--key", KEY, "--", "true"]).run().exits(64).says("--key");
    redis.nxlock(["acquire", "job", "--key", KEY, "--ttl", "1m"]).run().exits(64).says("--key");
    redis.nxlock(["status", "job", "--key", KEY]).run().exits(64).says("--key");
    redis.nxlock(["run", "--key", KEY]).run().exits(64).says("COMMAND");
    redis.nxlock(["run", "--key", "", "--", "true"]).run().exits(64).says("--key");
    // Options of the command are its own.
    redis.nxlock(["run", "job", "echo", "--key", "x"]).run().exits(0).prints("--key x\n");
    redis.nxlock(["run", "job", "--", "echo", "--key=x"]).run().exits(0).prints("--key=x\n");
}

#[test]
fn what_belongs_to_a_key_with_braces_lies_in_its_slot() {
    let redis = Redis::start();
    for key in ["{user}.lock", "a{b}c{d}", "{lock.foo}"] {
        let token = redis.nxlock(["acquire", "--key", key, "--ttl", "1m"]).run().exits(0).token();
        assert_eq!(redis.value(key).as_deref(), Some(token.as_str()));
        assert!(redis.pttl(&format!("{key}:nxlock:fence")) > 0);
        redis.nxlock(["run", "--key", key, "-n", "--", "true"]).run().exits(75).says("--key=");
        redis.nxlock(["release", "--key", key, &token]).run().exits(0);
        redis.delete(&format!("{key}:nxlock:fence"));
    }
    for key in ["x{}y", "a}b", "{}"] {
        redis.nxlock(["acquire", "--key", key, "--ttl", "1m"]).run().exits(64).says("slot");
    }
}

#[test]
fn a_directory_takes_a_key_too() {
    let local = Local::start();
    local.nxlock(["run", "--key", "{a}/b", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
    let token = local.nxlock(["acquire", "--key", KEY, "--ttl", "1m"]).run().exits(0).token();
    local.nxlock(["status", "--key", KEY]).run().exits(0);
    local.nxlock(["release", "--key", KEY, &token]).run().exits(0);
}
