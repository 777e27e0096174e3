//! A run within a run that holds the lock, where who holds it is hard to see: it is refused, and never waits for itself.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use crate::support::turns::{Turn, acquire, queue, release};
use crate::support::{Fate, Nxlock, Proxy, Redis};

const KEY: &str = "lock:job";
const SHARES: &str = "{lock:job}:shares";
const TERMS: &str = "{lock:job}:terms";
const HELD: &str = "\"job\" is already held by this script";

/// Runs that could only wait for a script that has a share.
const ALONE: [&str; 4] = [
    "nxlock run job -- echo ran",
    "nxlock run job -w 1h -- echo ran",
    "nxlock run job --no-queue -- echo ran",
    "nxlock acquire job --ttl 1m",
];

/// Adds readers that are held to have joined, whose leases end before the longest of all.
fn readers_join(redis: &Redis, readers: usize) {
    let (seconds, _): (u64, u64) = redis.ask(&["TIME"]);
    let ends = ((seconds + 60) * 1000).to_string();
    for reader in 0..readers {
        let token = format!("nx1:{}:u@h:1:1::0", letters(reader));
        redis.ask::<()>(&["ZADD", SHARES, &ends, &token]);
        redis.ask::<()>(&["HSET", TERMS, &token, "-|1|1|"]);
    }
}

/// Returns the random part of a token, another for each number.
fn letters(number: usize) -> String {
    format!("{number:026}").bytes().map(|digit| char::from(digit - b'0' + b'a')).collect()
}

#[test]
fn a_share_among_many_is_found_whatever_their_number() {
    let redis = Redis::start();
    for alone in ALONE.iter().chain(&["nxlock run job --slots 2 -- echo ran"]) {
        // The lease of the script's own share ends last.
        let script = format!("echo up; read x; {alone}");
        let (stdin, told) = std::io::pipe().unwrap();
        let mut outer = redis.nxlock(["run", "job", "--shared", "-t", "1h", "-c", &script]).stdin_from(stdin).start();
        outer.line("up");
        readers_join(&redis, 600);
        drop(told);
        outer.finish().exits(75).prints("up\n").says(HELD).says("release that share first");
        assert!(queue(&redis).is_empty(), "nobody has waited");
        [KEY, SHARES, TERMS].iter().for_each(|key| redis.delete(key));
    }
}

#[test]
fn a_share_is_found_however_slow_the_answers_are() {
    let redis = Redis::start();
    let slow = Proxy::to(&redis, |_| Fate::Slow(Duration::from_millis(300)));
    for options in [&["--shared"][..], &["--slots", "2"]] {
        for alone in ALONE {
            let script = format!("NXLOCK_SERVER='{}' {alone}", slow.url());
            let call = redis.nxlock([&["run", "job"], options, &["-c", &script]].concat());
            call.run().exits(75).prints("").says(HELD).says("release that share first");
        }
    }
    redis.has_only_a_fence();
}

#[test]
fn without_an_answer_nothing_is_known_and_nobody_waits() {
    let redis = Redis::start();
    let mute = Proxy::to(&redis, |_| Fate::ReplySwallowed);
    let script = format!("nxlock -s '{}' --server-timeout 300ms run job -- echo ran", mute.url());
    redis.nxlock(["run", "job", "--shared", "-c", &script]).run().exits(69).prints("").never_says("waiting for");
    redis.has_only_a_fence();
}

#[test]
fn a_run_that_keeps_old_clients_out_holds_the_lock_for_runs_that_would_share_it() {
    let redis = Redis::start();
    for options in ["--slots 2", "--shared", "--slots 2 -w 1h", "--shared --no-queue", "", "--setnx-compat"] {
        let script = format!("nxlock run {options} job -- echo ran");
        let done = redis.nxlock(["run", "--setnx-compat", "job", "-c", &script]).run();
        done.exits(75).prints("").says(HELD).never_says("another program");
    }
    // And the other way round.
    for options in ["--slots 2", "--shared"] {
        let script = format!(
            "nxlock run --setnx-compat job -w 1h -- echo ran; nxlock run {options} other -c \
                              'nxlock run --setnx-compat job -- echo ran'"
        );
        let outer = ["run"].into_iter().chain(options.split(' ')).chain(["job", "-c", &script]);
        redis.nxlock(outer).run().exits(75).prints("").says(HELD);
    }
    redis.delete("{lock:other}:fence");
    redis.has_only_a_fence();
}

#[test]
fn a_share_that_has_ended_holds_nothing() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "job", "--shared", "--ttl", "1h"]).run().exits(0).token();
    let reader = Turn::had(&redis, &["--shared", "-t", "1h"]);
    let refused = |says: &str, never: &str| {
        let call = redis.nxlock(["run", "job", "-n", "--", "echo", "ran"]).env("NXLOCK_HELD", &token);
        call.run().exits(75).prints("").says(says).never_says(never);
    };
    refused(HELD, "shared by");
    redis.ask::<()>(&["ZADD", SHARES, "1", &token]);
    refused("\"job\" is shared by one holder", HELD);
    redis.ask::<()>(&["ZREM", SHARES, &token]);
    refused("\"job\" is shared by one holder", HELD);
    reader.leaves();
    redis.has_only_a_fence();
}

#[test]
fn a_shares_key_of_another_type_leaves_unknown_whether_the_script_has_one() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "job", "--shared", "--ttl", "1h"]).run().exits(0).token();
    redis.put(SHARES, b"another's", Some(60_000));
    for options in [&["-n"][..], &["-w", "1h"], &["--slots", "2"], &["--setnx-compat"]] {
        let call = redis.nxlock([&["run", "job"], options, &["--", "echo", "ran"]].concat());
        call.env("NXLOCK_HELD", &token).run().exits(78).prints("").never_says("waiting for");
    }
    [KEY, SHARES, TERMS].iter().for_each(|key| redis.delete(key));
}

#[test]
fn every_token_of_the_variable_is_looked_for_or_none() {
    let redis = Redis::start();
    let token = acquire(&redis, "1m");
    let other = |number| format!("nx1:{}:u@h:1:1::0", letters(number));
    let with = |others: usize| {
        let held = std::iter::once(token.clone()).chain((1..=others).map(other)).collect::<Vec<_>>().join(" ");
        redis.nxlock(["run", "job", "--", "echo", "ran"]).env("NXLOCK_HELD", held).run().prints("")
    };
    with(255).exits(75).says(HELD);
    with(256).exits(64).says("NXLOCK_HELD").says("257 tokens");
    // What is no text hides no token.
    let held = OsString::from_vec([b"\xff ", token.as_bytes()].concat());
    let call: Nxlock = redis.nxlock(["run", "job", "--", "echo", "ran"]).env("NXLOCK_HELD", held);
    call.run().exits(75).prints("").says(HELD);
    release(&redis, &token);
}

#[test]
fn it_is_refused_by_one_script_for_the_answer_and_one_for_the_names() {
    let redis = Redis::start();
    redis.knows_the_script();
    for (shared, scripts) in [(&[][..], 1), (&["--shared"], 2)] {
        let held = redis.nxlock([&["acquire", "job", "--ttl", "1m"], shared].concat()).run().exits(0).token();
        let before = redis.scripts_run();
        redis.nxlock(["run", "job", "--", "true"]).env("NXLOCK_HELD", &held).run().exits(75).says(HELD);
        assert_eq!(redis.scripts_run() - before, scripts);
        release(&redis, &held);
    }
}
