use std::time::Duration;

use serde_json::{Value, json};

use crate::quorum::{OTHERS, unreachable_for};
use crate::support::turns::{acquire, lock_status, release};
use crate::support::{Authority, Done, Five, Nxlock, Redis, eventually, eventually_some, now};

const MINUTE: u64 = 60_000;

/// Returns the tokens of two holders that have released the lock.
fn tokens(five: &Five) -> [String; 2] {
    [(); 2].map(|()| {
        let token = acquire(five, "1m");
        release(five, &token);
        token
    })
}

/// Puts on each server what it is to hold: a token and the minutes left, or nothing.
fn put(five: &Five, held: [Option<(&str, u64)>; 5]) {
    for (redis, value) in five.each().iter().zip(held) {
        redis.ask::<i64>(&["DEL", "lock:job"]);
        if let Some((token, minutes)) = value {
            redis.put("lock:job", token.as_bytes(), Some(minutes * MINUTE));
        }
    }
}

#[track_caller]
fn is_told(five: &Five, status: i32, state: &str) -> Value {
    // nxlock does not wait for servers that are down: what is known does not depend on them.
    five.nxlock(["--server-timeout", "20s", "status", "job"])
        .run()
        .exits(status)
        .says_nothing()
        .text()
        .find(state)
        .unwrap();
    let told = five.nxlock(["--server-timeout", "20s", "--json", "status", "job"]).run().exits(status).json()[0].take();
    assert_eq!(told["state"], state, "{told}");
    told
}

/// Returns the refusal that says so: of the servers that reply in time, which may be too few on a busy machine.
#[track_caller]
fn refused_with(five: &Five, words: &[&str], what: &str) -> Done {
    let mut refused = None;
    eventually(what, || {
        let done = five.nxlock(words.iter().copied()).run();
        // Of a majority that has not answered in time nothing is known.
        assert!(matches!(done.status.code(), Some(69 | 75)), "{:?}:\n{}", done.status, done.both());
        refused = Some(done).filter(|done| done.status.code() == Some(75) && done.stderr.contains(what));
        refused.is_some()
    });
    refused.expect("it was found")
}

#[test]
fn it_is_held_by_whom_a_majority_shows_for_as_long_as_a_majority_does() {
    let five = Five::start();
    let [one, other] = tokens(&five);
    put(&five, [Some((&one, 60)), Some((&other, 9)), Some((&one, 20)), Some((&one, 40)), None]);
    let told = is_told(&five, 0, "held");
    assert_eq!(told["holder"]["id"], one[4..12], "{told}");
    let left = told["ttl_ms"].as_u64().unwrap();
    assert!((19 * MINUTE..=20 * MINUTE).contains(&left), "{told}");
    assert_eq!(told["warnings"], Value::Array(vec![]));
    let call = ["--server-timeout", "20s", "run", "job", "-n", "--", "true"];
    refused_with(&five, &call, "held by somebody else").says(&one[4..12]);
    put(&five, [None; 5]);
}

#[test]
fn a_run_encloses_another_if_a_majority_voted_for_it_and_who_is_silent_may_decide() {
    let five = Five::start();
    let [one, other] = tokens(&five);
    let ours = Some((one.as_str(), 60));
    let within = |timeout: &str, wait: &[&str]| {
        let words = [&["--server-timeout", timeout, "run", "job"], wait, &["--", "echo", "ran"]].concat();
        five.nxlock(words).env("NXLOCK_HELD", format!("{other} {one}")).run().prints("")
    };
    let held = "\"job\" is already held by this script";
    put(&five, [ours, None, ours, ours, Some((std::str::from_utf8(OTHERS).unwrap(), 60))]);
    within("20s", &[]).exits(75).says(held);
    within("20s", &["-w", "1h"]).exits(75).says(held);
    five.each()[1].hang();
    within("20s", &["-w", "1h"]).exits(75).says(held);
    // The majority may be the script's own, or not.
    five.each()[0].hang();
    within("1s", &["-n"]).exits(69).never_says("held by");
    five.each()[1].resume();
    within("1s", &["-n"]).exits(69).never_says("held by");
    five.each()[0].resume();
    // Another holder has a majority.
    let theirs = Some((std::str::from_utf8(OTHERS).unwrap(), 60));
    put(&five, [ours, theirs, theirs, theirs, None]);
    within("20s", &["-n"]).exits(75).says("held by somebody else").never_says(held);
    put(&five, [None; 5]);
}

#[test]
fn it_is_free_if_a_majority_shows_nothing() {
    let five = Five::start();
    let [one, other] = tokens(&five);
    put(&five, [Some((&one, 60)), None, None, Some((&other, 40)), None]);
    is_told(&five, 1, "free");
    // All three that are free have to answer before the ballot is given up, and it is held again for so long.
    five.nxlock(["--server-timeout", "20s", "run", "job", "-n", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
    put(&five, [None; 5]);
}

#[test]
fn it_is_contested_if_no_majority_agrees() {
    let five = Five::start();
    let [one, other] = tokens(&five);
    put(&five, [Some((&one, 60)), Some((&one, 60)), Some((&other, 20)), None, Some((&other, 30))]);
    let told = is_told(&five, 0, "contested");
    // The holder shown has the most votes, and can be broken.
    assert!(one.contains(told["holder"]["id"].as_str().unwrap()), "{told}");
    assert_eq!(told["warnings"].as_array().unwrap().len(), 1, "{told}");
    // The list shows it, too.
    let listed = five.nxlock(["--json", "--server-timeout", "20s", "status"]).run().exits(0).json();
    assert_eq!(listed[0]["state"], "contested");
    let words = ["--server-timeout", "2s", "acquire", "job", "--ttl", "1m", "-n"];
    let refused = refused_with(&five, &words, "contested");
    refused.never_says("redis-cli").never_says("does not end by itself");
    let undone = || eventually("what was granted there is given back", || five.values()[3].is_none());
    undone();
    // Of the servers that answer in time.
    eventually("the holder with the most votes is named", || {
        let done = five.nxlock(["--json"].iter().chain(&words).copied()).run();
        undone();
        // Of a majority that has not answered in time nothing is known.
        let (ended, refused) = (done.status.code(), done.json());
        let is_refused = ended == Some(75) && refused["state"] == "contested";
        is_refused && one.contains(refused["holder"]["id"].as_str().unwrap())
    });
    put(&five, [None; 5]);
}

#[test]
fn it_is_unknown_if_those_that_do_not_answer_could_decide() {
    let mut five = Five::start();
    let [one, other] = tokens(&five);
    put(&five, [Some((&one, 60)), Some((&one, 60)), Some((&other, 60)), None, None]);
    five.each_mut()[3].kill();
    five.each_mut()[4].kill();
    let told = is_told(&five, 69, "unknown");
    assert!(one.contains(told["holder"]["id"].as_str().unwrap()), "{told}");
    assert_eq!(told["ttl_ms"], Value::Null, "{told}");
    assert_eq!(told["warnings"].as_array().unwrap().len(), 1, "{told}");
    // No name was given: the list shows what nxlock could find out.
    five.nxlock(["status", "--server-timeout", "20s"]).run().exits(0);
    // And nobody can acquire it.
    let call = ["--server-timeout", "1s", "run", "job", "-n", "--", "echo", "ran"];
    // On a busy machine, one of the three that are up may not answer in time.
    let is_met = |done: &Done| done.status.code() != Some(69) || done.stderr.contains("3 of 5 servers answered");
    let refused = eventually_some("the three answer in time", || Some(five.nxlock(call).run()).filter(is_met));
    refused.exits(75).prints("").says("unknown, since too few servers answer");
    five.each()[..3].iter().for_each(|redis| redis.delete("lock:job"));
}

#[test]
fn a_claim_without_a_majority_can_be_broken_and_nothing_else_is_touched() {
    let mut five = Five::start();
    let [one, other] = tokens(&five);
    put(&five, [Some((&one, 60)), Some((&one, 60)), Some((&other, 60)), None, None]);
    let told: Nxlock = five.nxlock(["release", "job", "--break", &one[4..12]]);
    told.run().exits(0).says("broke \"job\"");
    assert_eq!(five.values(), [None, None, Some(other.clone()), None, None]);
    assert_eq!(lock_status(&five)["state"], "free");
    five.nxlock(["release", "job", "--break", &one[4..12]]).run().exits(76);
    // A holder's lock, with a minority down.
    put(&five, [Some((&other, 60)), Some((&other, 60)), Some((&other, 60)), None, None]);
    five.each_mut()[3].kill();
    five.each_mut()[4].kill();
    five.nxlock(["release", "job", "--break", &other[4..12]]).run().exits(0);
    assert!(five.each()[..3].iter().all(|redis| !redis.exists("lock:job")));
}

#[test]
fn a_wait_that_ends_asks_all_servers_once_more() {
    let five = Five::start();
    let four_are_free_in_time = || {
        five.each().iter().for_each(|redis| redis.put("lock:job", OTHERS, Some(600_000)));
        let began = now();
        let mut waiter = five.nxlock(["run", "job", "-w", "2s", "--", "echo", "ran"]).start();
        waiter.says("waiting for \"job\"");
        // The vote that is left is at the gate, the server that a waiter asks before the others.
        five.each()[1..].iter().for_each(|redis| redis.delete("lock:job"));
        // On a busy machine, its wait may have ended by now.
        let in_time = began.elapsed() < Duration::from_secs(1);
        let done = waiter.finish();
        if in_time || done.status.code() != Some(75) {
            done.exits(0).prints("ran\n");
        }
        five.each()[0].delete("lock:job");
        in_time
    };
    for _ in 0..4 {
        eventually("four are free in time", four_are_free_in_time);
    }
}

#[test]
fn somebody_elses_vote_is_told_though_a_server_is_down_that_could_decide() {
    let mut three = [Redis::start(), Redis::start(), Redis::start()];
    let servers = three.each_ref().map(Redis::url).join(" ");
    three[2].kill();
    three[0].put("lock:job", OTHERS, Some(600_000));
    let to = |args: &[&str]| Nxlock::new(args.iter().copied()).env("NXLOCK_SERVER", &servers);
    let call = |args: &[&str]| to(args).run();
    let within = ["--server-timeout", "2s"];
    for wait in [&["-n"][..], &["-w", "1s"]] {
        let words = [&within[..], &["run", "job"], wait, &["--", "echo", "ran"]].concat();
        let done = unreachable_for("2 of 3 servers answered", || to(&words)).prints("");
        done.says("too few servers answer; u@h, pid 1 has votes").says("release job --break bbbbbbbb");
    }
    let status = call(&["--json", "status", "job"]).exits(69).json()[0].take();
    assert_eq!((&status["state"], &status["holder"]["id"]), (&json!("unknown"), &json!("bbbbbbbb")));
    call(&["release", "job", "--break", "bbbbbbbb"]).exits(0);
    call(&["run", "job", "-n", "--", "echo", "ran"]).exits(0).prints("ran\n");
}

/// Three servers: one has somebody's vote, one may have another, and one hangs.
fn hanging(second: Option<&[u8]>) -> ([Redis; 3], String) {
    let three = [Redis::start(), Redis::start(), Redis::start()];
    three[0].put("lock:job", OTHERS, Some(600_000));
    second.iter().for_each(|value| three[1].put("lock:job", value, Some(600_000)));
    three[2].hang();
    let servers = three.each_ref().map(Redis::url).join(" ");
    (three, servers)
}

#[test]
fn a_lock_that_silent_servers_could_give_us_is_not_called_somebody_elses() {
    let (three, servers) = hanging(None);
    let call = |args: &[&str]| Nxlock::new(args.iter().copied()).env("NXLOCK_SERVER", &servers);
    let told_by_two = |args: &[&str]| unreachable_for("2 of 3 servers answered", || call(args));
    for verb in [&["run", "job"][..], &["acquire", "job", "--ttl", "1m"]] {
        for wait in [&["-n"][..], &["-w", "1s"], &["-n", "-E", "0"], &["-w", "1s", "-E", "0"]] {
            let command = if verb[0] == "run" { &["--", "echo", "ran"][..] } else { &[] };
            let options = [&["--server-timeout", "1s"], verb, wait].concat();
            let done = told_by_two(&[&options[..], command].concat()).prints("");
            // A holder without a majority can be broken: the message says how.
            done.says("too few servers answer; u@h, pid 1 has votes").says("release job --break bbbbbbbb");
            told_by_two(&[&["-q"], &options[..], command].concat()).says("too few servers answer");
            let done = told_by_two(&[&["--json"], &options[..], command].concat());
            let told = if verb[0] == "run" { done.stderr.clone() } else { done.text() };
            let told: Value = serde_json::from_str(&told).unwrap();
            assert_eq!((&told["outcome"], &told["state"]), (&json!("unreachable"), &json!("unknown")), "{told}");
            assert_eq!((&told["holder"]["id"], &told["ttl_ms"]), (&json!("bbbbbbbb"), &Value::Null), "{told}");
            assert!(told["message"].as_str().unwrap().contains("2 of 3 servers answered"), "{told}");
        }
    }
    let events = three[0].directory().join("events");
    let done = call(&["run", "job", "-n", "--server-timeout", "1s", "--events", &events.display().to_string(), "true"]);
    done.run().exits(69);
    let last = std::fs::read_to_string(&events).unwrap().lines().last().unwrap().to_owned();
    let last: Value = serde_json::from_str(&last).unwrap();
    assert_eq!((&last["event"], &last["kind"]), (&json!("failed"), &json!("unreachable")), "{last}");
    three[2].resume();
    eventually("nothing is left in the others", || !three[1].exists("lock:job") && !three[2].exists("lock:job"));
    call(&["run", "job", "-n", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
    three[0].delete("lock:job");
}

#[test]
fn votes_that_leave_too_few_for_a_majority_are_somebody_elses_whatever_silent_servers_say() {
    for second in [OTHERS, &b"another program's"[..]] {
        let (three, servers) = hanging(Some(second));
        for wait in [&["-n"][..], &["-w", "1s"]] {
            let words = [&["--server-timeout", "1s", "run", "job"], wait, &["--", "echo", "ran"]].concat();
            let call = || Nxlock::new(words.iter().copied()).env("NXLOCK_SERVER", &servers).run();
            // Of one of the two that does not answer in time, as on a busy machine, nothing is known.
            let is_known = |done: &Done| done.status.code() != Some(69);
            eventually_some("both answer in time", || Some(call()).filter(is_known)).exits(75).prints("");
        }
        three[2].resume();
        three[..2].iter().for_each(|redis| redis.delete("lock:job"));
    }
}

#[test]
fn a_lease_that_is_not_known_is_not_called_endless() {
    // Too few servers answer; then enough, and no majority agrees.
    let (three, servers) = hanging(None);
    let call = |args: &[&str]| Nxlock::new(args.iter().copied()).env("NXLOCK_SERVER", &servers);
    let waits = ["--server-timeout", "500ms", "run", "job", "-w", "3s", "--", "true"];
    let done = unreachable_for("waiting for \"job\": unknown", || call(&waits));
    done.never_says("without end").never_says("does not end by itself");
    call(&["status", "job", "--server-timeout", "500ms"]).run().exits(69).never_says("no end");
    three[2].resume();
    three[1].put("lock:job", b"nx1:cccccccccccccccccccccccccc:u@h:2:1800000000000:", Some(600_000));
    // Long enough to ask one server alone, the gate. Of one that does not answer in time, as on a busy machine, nothing is
    // known.
    let is_known = |done: &Done| done.status.code() != Some(69);
    let done = eventually_some("they answer in time", || Some(call(&waits).run()).filter(is_known)).exits(75);
    // Several servers have no place for a request to give it up.
    let done = done.never_says("--ask");
    done.says("contested").never_says("without end").never_says("does not end by itself");
    call(&["status", "job"]).run().exits(0).never_says("no end");
    three[..2].iter().for_each(|redis| redis.delete("lock:job"));
}

#[test]
fn a_lease_that_most_servers_keep_without_expiry_is_endless() {
    let five = Five::start();
    five.each().iter().for_each(|redis| redis.put("lock:job", b"job 7", None));
    five.nxlock(["run", "job", "-w", "3s", "--", "true"]).run().exits(75).says("lease without end");
    five.each().iter().for_each(|redis| redis.delete("lock:job"));
}
