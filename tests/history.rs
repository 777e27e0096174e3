//! Recorded runs under faults: servers that are full, damaged, replaced, or whose clock is set; what is left behind; and a
//! nightly job on ten hosts.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::clock::Clock;
use crate::support::turns::{Turn, acquire, is_free, lock_status, release};
use crate::support::{
    Authority, Cluster, Done, Fate, Five, Local, Nxlock, Proxy, Redis, Sentinels, Terminal, answered, eventually,
    eventually_some, lasts, now, record, state_of, wall,
};

const RUNS: &str = "{lock:job}:runs";
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Returns the outcomes of the recorded runs of `job`, the last first.
#[track_caller]
fn outcomes(authority: &impl Authority) -> Vec<String> {
    let document = authority.nxlock(["status", "--history", "--json", "job"]).run().exits(0).json();
    let runs = document[0]["history"].as_array().unwrap();
    runs.iter().map(|run| run["outcome"].as_str().unwrap().to_owned()).collect()
}

/// Runs `echo ran` under `job` with these options, and asserts whether it ran.
#[track_caller]
fn runs(authority: &impl Authority, options: &[&str], ran: bool) {
    let done = authority.nxlock([&["run", "job"], options, &["--", "echo", "ran"]].concat()).run();
    if ran {
        done.exits(0).prints("ran\n")
    } else {
        done.exits(75).prints("").says("nothing to do: done in ")
    };
}

#[test]
fn a_full_server_releases_the_lock_and_records_the_end() {
    let redis = Redis::start();
    for options in [&["--record"][..], &["--record", "--slots", "2"]] {
        let holder = Turn::had(&redis, options);
        redis.runs_out_of_memory();
        holder.leaves();
        redis.has_memory_again();
        assert!(is_free(&redis));
    }
    assert_eq!(outcomes(&redis), ["done", "done"]);
    runs(&redis, &["--unless-done", "1h"], false);
    // While it is full, nobody begins.
    redis.runs_out_of_memory();
    let words = ["run", "job", "--record", "-n", "--server-timeout", "1s", "--", "echo", "ran"];
    answered(|| redis.nxlock(words)).exits(69).prints("").says("out of memory");
    redis.has_memory_again();
    assert_eq!(outcomes(&redis), ["done", "done"]);
}

#[test]
fn a_key_of_another_type_is_named_and_keeps_no_lock_from_its_release() {
    let redis = Redis::start();
    let mut holder = Turn::had(&redis, &["--record"]);
    redis.delete(RUNS);
    redis.ask::<i64>(&["LPUSH", RUNS, "another's"]);
    holder.is_told();
    holder.finish().exits(0).says("the end of the run under \"job\" is not recorded").says("WRONGTYPE");
    assert!(is_free(&redis));
    let refused = redis.nxlock(["run", "job", "--record", "-n", "--", "echo", "ran"]).run().exits(78).prints("");
    refused.says(RUNS).says("delete it");
    redis.nxlock(["status", "--history", "job"]).run().exits(78).says(RUNS);
    redis.nxlock(["status", "job"]).run().exits(1);
    redis.nxlock(["run", "job", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
    let unknown = redis.nxlock(["status", "job", "--max-age", "1h"]).run().exits(3).says_nothing().text();
    assert!(unknown.starts_with("UNKNOWN: job may not have succeeded: ") && unknown.contains(RUNS), "{unknown}");
    redis.delete(RUNS);
}

#[test]
fn what_is_no_record_is_passed_over() {
    let redis = Redis::start();
    runs(&redis, &["--record"], true);
    let others = ["no record", "1|2|3", "|||||||", "\u{1b}[2J|0|0|0|done|0||nx1:x"];
    for (number, line) in others.into_iter().enumerate() {
        redis.ask::<i64>(&["HSET", RUNS, &format!("line:{}", 100 + number), line, "run:who", "what", "more", "x"]);
    }
    assert_eq!(outcomes(&redis), ["done"]);
    runs(&redis, &["--record"], true);
    assert_eq!(outcomes(&redis), ["done", "done"]);
    redis.ask::<i64>(&["HSET", RUNS, "done", "no record"]);
    runs(&redis, &["--unless-done", "1h"], true);
    runs(&redis, &["--unless-done", "1h"], false);
}

#[test]
fn nothing_but_the_record_and_the_fence_stays_and_both_expire() {
    let redis = Redis::start();
    let keys = || {
        let mut keys: Vec<String> = redis.ask(&["KEYS", "*"]);
        keys.sort();
        keys
    };
    let holder = Turn::had(&redis, &[]);
    // Neither who waits in vain nor who is refused leaves a record.
    let waits = Turn::queued(&redis, &["--unless-done", "1h"]);
    redis.nxlock(["run", "job", "--record", "-n", "--", "true"]).run().exits(75);
    waits.running.signal(Signal::SIGTERM);
    waits.finish().dies_of(Signal::SIGTERM);
    holder.leaves();
    redis.has_only_a_fence();
    runs(&redis, &["--record"], true);
    assert_eq!(keys(), ["{lock:job}:fence", RUNS]);
    let days = |days: i64| days * 24 * 3600 * 1000;
    assert!((days(30) - 60_000..=days(30)).contains(&redis.pttl(RUNS)), "{}", redis.pttl(RUNS));
    runs(&redis, &["--unless-done", "1ms"], true);
    // A longer --unless-done keeps it for longer.
    let done = redis.nxlock(["run", "other", "--unless-done", "60d", "--", "true"]).run();
    done.exits(0);
    assert!(redis.pttl("{lock:other}:runs") > days(59));
}

#[test]
fn a_record_that_this_version_cannot_read_is_named() {
    let redis = Redis::start();
    runs(&redis, &["--record"], true);
    let done: String = redis.ask(&["HGET", RUNS, "done"]);
    redis.ask::<i64>(&["HSET", RUNS, "done", &done.replace("nx1:", "nx2:")]);
    let words = ["run", "job", "--unless-done", "1h", "--", "echo", "ran"];
    redis.nxlock(words).run().exits(78).prints("").says(RUNS).says("update nxlock, or delete that key");
    redis.delete(RUNS);
    runs(&redis, &["--unless-done", "1h"], true);
}

#[test]
fn a_replica_does_not_say_what_was_done() {
    let redis = Redis::start();
    runs(&redis, &["--record"], true);
    redis.becomes_read_only();
    let words = ["run", "job", "--unless-done", "1h", "-n", "--server-timeout", "1s", "--", "echo", "ran"];
    answered(|| redis.nxlock(words)).exits(69).prints("").says("this is a replica");
    redis.is_writable_again();
    runs(&redis, &["--unless-done", "1h"], false);
}

#[test]
fn a_user_who_may_no_longer_run_scripts_is_told_what_is_not_recorded_and_keeps_its_promise() {
    let redis = Redis::start();
    for at_least in [&[][..], &["--at-least", "1h"]] {
        let mut holder = Turn::had(&redis, &[&["--record", "-t", "1m"], at_least].concat());
        redis.ask::<()>(&["ACL", "SETUSER", "default", "-eval", "-evalsha", "-eval_ro"]);
        holder.is_told();
        holder.finish().exits(0).says("the end of the run under \"job\" is not recorded");
        redis.ask::<()>(&["ACL", "SETUSER", "default", "+eval", "+evalsha"]);
        let left = redis.pttl("lock:job");
        assert_eq!(left > 3_500_000, !at_least.is_empty(), "{left} ms");
        redis.ask::<i64>(&["DEL", "lock:job"]);
    }
    assert_eq!(outcomes(&redis), ["vanished", "vanished"]);
}

#[test]
fn a_user_who_may_not_look_at_the_runs_records_them() {
    let redis = Redis::start();
    redis.ask::<()>(&["ACL", "SETUSER", "plain", "on", ">pw", "~*", "&*", "+@all", "-hgetall", "-hlen"]);
    let url = format!("{}?user=plain&pass=pw", redis.url());
    for options in [&["--record"][..], &["--record", "--slots", "2"], &["--record", "--supersede"]] {
        let words = [&["run", "job"], options, &["--", "true"]].concat();
        Nxlock::new(words).env("NXLOCK_SERVER", &url).run().exits(0).says_nothing();
    }
    assert_eq!(outcomes(&redis), ["done", "done", "done"]);
    let denied = Nxlock::new(["status", "--history", "job"]).env("NXLOCK_SERVER", &url).run().exits(77);
    denied.says("PERMISSIONS");
    // They see who holds it all the same, and not that it is fine.
    let call = |words: &[&str]| Nxlock::new(words).env("NXLOCK_SERVER", &url).run();
    assert_eq!(call(&["--json", "status", "job"]).exits(1).json()[0]["last_success"], Value::Null);
    let unknown = call(&["status", "job", "--max-age", "1h"]).exits(3).says_nothing().text();
    assert!(unknown.contains("may not have succeeded"), "{unknown}");
}

#[test]
fn a_first_run_under_way_has_not_ended() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &["--record"]);
    let table = redis.nxlock(["status", "--history"]).run().exits(0).says("no run that is recorded has ended").text();
    assert!(table.lines().count() == 2 && table.contains("running"), "{table}");
    let document = redis.nxlock(["status", "--history", "--json"]).run().exits(0).says_nothing().json();
    assert_eq!(document[0]["history"], serde_json::json!([]));
    redis.nxlock(["status", "job", "--max-age", "1h"]).run().exits(3).says_nothing();
    holder.leaves();
    assert!(redis.nxlock(["status", "--history"]).run().exits(0).text().contains("done"));
}

#[test]
fn a_lock_that_is_broken_while_its_slot_moves_was_lost() {
    let cluster = Cluster::of_masters();
    let mut holder = Turn::had(&cluster, &["--record", "--on-lost", "continue", "-t", "1h"]);
    let slot = cluster.begins_to_move("lock:job");
    slot.carries(&["{lock:job}:fence"]);
    slot.ask::<i64>(&["DEL", "lock:job"]);
    holder.is_told();
    holder.finish().exits(76);
    slot.carries_its_keys();
    slot.ends();
    assert_eq!(outcomes(&cluster), ["lost"]);
}

#[test]
fn a_local_record_whose_time_passes_while_a_run_is_under_way_is_as_it_ended() {
    let local = Local::start();
    runs(&local, &["--record"], true);
    let holder = Turn::had(&local, &["--record"]);
    // As if the clock had been set forward by years, and back.
    let file = fs::read(local.file("lock")).unwrap();
    fs::write(local.file("lock"), record::with(&file, &[("runs", "kept_until_us", "1")])).unwrap();
    assert_eq!(outcomes(&local), Vec::<String>::new());
    holder.leaves();
    assert_eq!(outcomes(&local), ["done"]);
    runs(&local, &["--unless-done", "1h"], false);
    runs(&local, &["--record"], true);
    assert_eq!(outcomes(&local), ["done", "done"]);
}

#[test]
fn a_local_clock_that_is_set_back_counts_from_now() {
    let local = Local::start();
    runs(&local, &["--record"], true);
    let file = fs::read(local.file("lock")).unwrap();
    let later = (wall() + 300 * DAY).duration_since(std::time::UNIX_EPOCH).unwrap().as_micros().to_string();
    fs::write(local.file("lock"), record::with(&file, &[("done", "granted_us", &later)])).unwrap();
    runs(&local, &["--unless-done", "1h"], false);
    let granted: u128 = record::field(&fs::read(local.file("lock")).unwrap(), "done", "granted_us").parse().unwrap();
    assert!(granted < later.parse().unwrap());
    runs(&local, &["--unless-done", "1ms"], true);
}

const RELEASES: &str = "EVALSHA release ";
const RECORDS: &str = "EVALSHA record ";

#[test]
fn a_success_is_not_lost_if_nxlock_is_killed_while_it_releases() {
    let redis = Redis::start();
    let words = ["run", "job", "--unless-done", "1h", "-t", "1m", "--", "true"];
    // The release does not arrive, and that of its guard does.
    let proxy = Proxy::of_first(&redis, RELEASES, Fate::Blackholed);
    let holder = proxy.nxlock(words).start();
    eventually("it releases the lock", || proxy.commands().iter().any(|words| words.starts_with(RELEASES)));
    holder.signal(Signal::SIGKILL);
    eventually("its guard has recorded that it was done", || outcomes(&redis) == ["done"]);
    eventually("and released the lock", || is_free(&redis));
    drop(holder);
    runs(&redis, &["--unless-done", "1h"], false);
}

#[test]
fn a_run_that_ended_in_time_is_done_though_nxlock_hears_of_it_only_later() {
    let (redis, holder) = eventually_some("the command ends in time", || {
        let redis = Redis::start();
        let (reader, writer) = std::io::pipe().unwrap();
        let words = ["run", "job", "-t", "1h", "--record", "--time-limit", "4s", "-c", "echo pid $$; read x; exit 0"];
        let began = now();
        let mut holder = redis.nxlock(words).stdin_from(reader).start();
        let command: i32 = holder.line("pid ").parse().unwrap();
        holder.signal(Signal::SIGSTOP);
        drop(writer);
        eventually("the command has ended", || state_of(command).is_none_or(|state| state == 'Z'));
        (began.elapsed() < Duration::from_secs(3)).then_some((redis, holder))
    });
    // The time limit is over then.
    lasts(Duration::from_millis(4_200));
    holder.signal(Signal::SIGCONT);
    holder.finish().exits(0).says_nothing();
    assert_eq!(outcomes(&redis), ["done"]);
}

#[test]
fn a_run_that_was_stopped_for_its_time_limit_stays_that_if_nxlock_is_killed_then() {
    let redis = Redis::start();
    let script = "trap 'echo told; sleep 0.3; exit 0' TERM; while :; do sleep 0.05; done";
    let mut holder = redis.nxlock(["run", "job", "--record", "--time-limit", "2s", "-c", script]).start();
    holder.line("told");
    holder.signal(Signal::SIGSTOP);
    holder.signal(Signal::SIGKILL);
    eventually("its guard has recorded that", || outcomes(&redis) == ["time_limit"]);
    drop(holder);
}

#[test]
fn a_run_that_waits_for_its_descendants_is_not_done_when_they_are_killed() {
    let redis = Redis::start();
    let script = "sleep 600 & echo up; exit 0";
    let options = ["run", "job", "--record", "--descendants", "wait", "-v", "-c", script];
    let mut holder = redis.nxlock(options).start();
    holder.says("waiting for what it has left behind");
    holder.signal(Signal::SIGKILL);
    eventually("its guard has recorded that", || outcomes(&redis) == ["signal"]);
    drop(holder);
}

#[test]
fn a_lost_reply_about_the_record_does_not_end_a_lock_that_is_to_stay() {
    let redis = Redis::start();
    // The record, before the renewal.
    let proxy = Proxy::of_first(&redis, RECORDS, Fate::ReplySwallowed);
    let words = ["run", "job", "--record", "--at-least", "1h", "-t", "1m", "--", "true"];
    proxy.nxlock(words).run().exits(0).says_nothing();
    assert!(redis.pttl("lock:job") > 3_500_000, "{} ms", redis.pttl("lock:job"));
    assert_eq!(outcomes(&redis), ["done"]);
    redis.delete("lock:job");
}

#[test]
fn a_slow_line_does_not_keep_the_end_of_a_run_from_its_record() {
    let redis = Redis::start();
    for options in [&[][..], &["--shared"], &["--slots", "2"], &["--supersede"], &["--setnx-compat"]] {
        // Slow once the lock is granted, and three replies take longer than one may.
        let is_granted = Arc::new(AtomicBool::new(false));
        let slow = Arc::clone(&is_granted);
        let proxy = Proxy::to(&redis, move |_| match slow.load(Ordering::SeqCst) {
            true => Fate::Slow(Duration::from_millis(1500)),
            false => Fate::Delivered,
        });
        let (reader, writer) = std::io::pipe().unwrap();
        let words = [
            &["run", "job"][..],
            &["--server-timeout", "4s", "--record", "--at-least", "2h", "-t", "1h"],
            options,
            &["-c", "echo up; read x; exit 0"],
        ]
        .concat();
        let mut holder = proxy.nxlock(words).stdin_from(reader).start();
        holder.line("up");
        is_granted.store(true, Ordering::SeqCst);
        drop(writer);
        holder.finish().exits(0).says_nothing();
        assert!(redis.pttl("lock:job") > 3_700_000, "{options:?}: {} ms", redis.pttl("lock:job"));
        assert_eq!(outcomes(&redis)[0], "done", "{options:?}");
        redis.ask::<i64>(&[
            "DEL",
            "lock:job",
            "{lock:job}:shares",
            "{lock:job}:waiters",
            "{lock:job}:terms",
            "{lock:job}:newest",
        ]);
    }
}

#[test]
fn an_end_that_may_be_recorded_is_not_said_to_be_lost() {
    let redis = Redis::start();
    // It is recorded; neither that nor the renewal is ever answered.
    let proxy = Proxy::to(&redis, |request| if request == 1 { Fate::Delivered } else { Fate::ReplySwallowed });
    let words = ["run", "job", "--record", "--at-least", "1h", "--server-timeout", "3s", "--", "true"];
    proxy.nxlock(words).run().exits(0).says("may not be recorded").never_says("is not recorded");
    assert_eq!(outcomes(&redis), ["done"]);
    redis.delete("lock:job");
    // Its reply comes, and no connection is accepted for the renewal.
    let proxy = Proxy::to(&redis, |request| if request <= 2 { Fate::Last } else { Fate::Cut });
    let words = ["run", "job", "--record", "--at-least", "1h", "--server-timeout", "3s", "--", "true"];
    proxy.nxlock(words).run().exits(0).says("may not be recorded").never_says("is not recorded");
    redis.delete("lock:job");
    // The lock is renewed, and only the record is not answered.
    let is_record = |words: &str| words.starts_with(RECORDS);
    let proxy = Proxy::by_command(&redis, move |_, words| match is_record(words) {
        true => Fate::ReplySwallowed,
        false => Fate::Delivered,
    });
    let words = ["run", "job", "--record", "--at-least", "2h", "--server-timeout", "3s", "--", "true"];
    let done = proxy.nxlock(words).run().exits(0).never_says("is not recorded");
    done.says("the end of the run under \"job\" may not be recorded");
    assert!(redis.pttl("lock:job") > 3_700_000, "{} ms", redis.pttl("lock:job"));
    redis.delete("lock:job");
}

#[test]
fn a_release_that_comes_again_later_changes_no_record() {
    let redis = Redis::start();
    let (reader, writer) = std::io::pipe().unwrap();
    let proxy = Proxy::of_first(&redis, RELEASES, Fate::ReplySwallowed);
    let words = ["run", "job", "--record=1", "-t", "1m", "-c", "read x; exit 0"];
    let first = proxy.nxlock(words).stdin_from(reader).start();
    eventually("it has the lock", || redis.exists("lock:job"));
    drop(writer);
    eventually("its end is recorded", || outcomes(&redis) == ["done"]);
    redis.nxlock(["run", "job", "--record=1", "-c", "exit 5"]).run().exits(5);
    first.finish().exits(0);
    assert_eq!(outcomes(&redis), ["failed"]);
    runs(&redis, &["--unless-done", "1h"], false);
}

#[test]
fn a_lock_whose_key_became_another_was_lost() {
    let redis = Redis::start();
    let mut holder = Turn::had(&redis, &["--record", "--on-lost", "continue"]);
    redis.delete("lock:job");
    redis.ask::<i64>(&["RPUSH", "lock:job", "another's"]);
    holder.is_told();
    holder.finish().exits(76);
    redis.delete("lock:job");
    assert_eq!(outcomes(&redis), ["lost"]);
}

/// Holds the lock until the server no longer answers, and returns how that ends.
fn run_that_ends_without(redis: &mut Redis, goes: impl FnOnce(&mut Redis)) -> Done {
    let mut holder = Turn::had(redis, &["--record", "--server-timeout", "2s", "-t", "1h"]);
    goes(redis);
    holder.is_told();
    holder.finish().exits(0)
}

#[test]
fn a_run_whose_release_cannot_leave_says_that_its_end_is_not_recorded() {
    let mut redis = Redis::start();
    // Nobody listens any more, so no byte of the release leaves nxlock.
    run_that_ends_without(&mut redis, Redis::kill).says("and the end of the run is not recorded");
}

#[test]
fn a_run_whose_release_is_not_answered_says_that_its_end_may_not_be_recorded() {
    let mut redis = Redis::start();
    // The kernel takes the release, and a connection too, for a server that does not read it.
    let done = run_that_ends_without(&mut redis, |redis| redis.hang());
    done.says("and the end of the run may not be recorded").never_says("is not recorded");
    redis.resume();
    redis.ask::<i64>(&["DEL", "lock:job", "{lock:job}:queue", "{lock:job}:waiters"]);
}

#[test]
fn a_damaged_record_does_not_hide_the_others() {
    let redis = Redis::start();
    runs(&redis, &["--record"], true);
    redis.ask::<()>(&["SET", "{lock:bad}:runs", "x"]);
    let shown = redis.nxlock(["status", "--history"]).run().exits(0).says("{lock:bad}:runs");
    assert!(shown.text().contains("done"), "{}", shown.both());
    redis.delete("{lock:bad}:runs");
    let local = Local::start();
    runs(&local, &["--record"], true);
    local.nxlock(["run", "bad", "--record", "--", "true"]).run().exits(0);
    let bad = local.locks().join("lock:bad.lock");
    let good = fs::read(&bad).unwrap();
    fs::write(&bad, &good[..100]).unwrap();
    let shown = local.nxlock(["status", "--history"]).run().exits(0).says("lock:bad.lock");
    assert!(shown.text().contains("done"), "{}", shown.both());
    fs::remove_file(bad).unwrap();
}

#[test]
fn a_clock_that_is_set_back_keeps_nobody_from_the_job_for_longer_than_asked() {
    let redis = Redis::with_clock(0, &[]);
    let unless = ["--unless-done", "20h"];
    redis.clock().is_set_forward(300 * DAY);
    runs(&redis, &unless, true);
    redis.clock().is_set_back(300 * DAY);
    // It cannot have begun in the future; nobody knows when, so it counts from now.
    runs(&redis, &unless, false);
    redis.clock().is_set_forward(19 * HOUR);
    runs(&redis, &unless, false);
    redis.clock().is_set_forward(2 * HOUR);
    runs(&redis, &unless, true);
    runs(&redis, &unless, false);
}

#[test]
fn the_time_counts_from_the_beginning_of_the_run() {
    let redis = Redis::with_clock(0, &[]);
    let holder = Turn::had(&redis, &["--record", "-t", "100h"]);
    redis.clock().is_set_forward(5 * HOUR);
    holder.leaves();
    runs(&redis, &["--unless-done", "4h"], true);
    let holder = Turn::had(&redis, &["--record", "-t", "100h"]);
    redis.clock().is_set_forward(5 * HOUR);
    holder.leaves();
    runs(&redis, &["--unless-done", "6h"], false);
}

#[test]
fn a_lost_reply_to_the_release_leaves_one_record() {
    let redis = Redis::start();
    let proxy = Proxy::of_first(&redis, RELEASES, Fate::Cut);
    proxy.nxlock(["run", "job", "--record", "--", "true"]).run().exits(0);
    assert_eq!(outcomes(&redis), ["done"]);
}

#[test]
fn a_server_without_scripts_and_several_servers_refuse_to_record() {
    let redis = Redis::start();
    redis.ask::<()>(&["ACL", "SETUSER", "default", "-eval", "-evalsha", "-eval_ro"]);
    let five = Five::start();
    for options in [&["--record"][..], &["--unless-done", "1h"]] {
        let words = [&["run", "job"], options, &["--", "echo", "ran"]].concat();
        let refused = redis.nxlock(words.clone()).run().exits(78).prints("");
        refused.says("a record of runs needs them").says("do without --record and --unless-done");
        five.nxlock(words).run().exits(64).prints("").says("no place for a record of runs").says(options[0]);
    }
    redis.nxlock(["status", "--history", "job"]).run().exits(78).says("do without --history");
    five.nxlock(["status", "--history", "job"]).run().exits(64).says("--history");
    assert_eq!(redis.ask::<i64>(&["DBSIZE"]), 0);
}

#[test]
fn what_makes_no_sense_is_a_usage_error() {
    for words in [
        &["run", "job", "--record=0", "--", "true"][..],
        &["run", "job", "--record=1001", "--", "true"],
        &["run", "job", "--record=x", "--", "true"],
        &["run", "job", "--unless-done", "0s", "--", "true"],
        &["run", "job", "--unless-done", "20", "--", "true"],
        &["acquire", "job", "--record", "--ttl", "1m"],
        &["status", "--history", "--watch"],
    ] {
        Nxlock::new(words.iter().copied()).env("NXLOCK_SERVER", "local:/nonexistent").run().exits(64).prints("");
    }
}

#[test]
fn a_run_beside_setnx_clients_is_recorded_with_its_owner() {
    let redis = Redis::start();
    let options = ["--key", "old.lock", "--setnx-compat", "--reason", "why", "--unless-done", "1h"];
    let words = |script: &'static str| [&["run"], &options[..], &["-c", script]].concat();
    redis.nxlock(words("exit 3")).run().exits(3);
    let (reader, _writer) = std::io::pipe().unwrap();
    let mut killed = redis.nxlock(words("echo up; read x")).stdin_from(reader).start();
    killed.line("up");
    killed.signal(Signal::SIGKILL);
    let history = || redis.nxlock(["status", "--history", "--json", "--key", "old.lock"]).run().exits(0).json();
    eventually("its guard has recorded its end", || history()[0]["history"].as_array().unwrap().len() == 2);
    drop(killed);
    redis.nxlock(words("echo ran")).run().exits(0).prints("ran\n");
    redis.nxlock(words("echo ran")).run().exits(75).prints("").says("nothing to do: done in ").says(": why");
    let seen = history();
    let runs = seen[0]["history"].as_array().unwrap();
    let outcomes: Vec<&str> = runs.iter().map(|run| run["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["done", "signal", "failed"]);
    assert!(runs.iter().all(|run| run["reason"] == "why" && run["pid"].is_u64()), "{seen}");
    redis.delete("{old.lock}:runs");
}

#[test]
fn the_history_is_there_after_a_failover() {
    let group = Sentinels::of_three();
    let holder = Turn::had(&group, &["--record", "-t", "15s"]);
    let after = Turn::queued(&group, &["--unless-done", "1h", "-t", "15s"]);
    group.master().has_told(2);
    group.fail_over();
    holder.leaves();
    after.finish().exits(75).prints("").says("nothing to do: done in ");
    assert_eq!(outcomes(&group), ["done"]);
    group.master().has_told(2);
    group.fail_over();
    assert_eq!(outcomes(&group), ["done"]);
    runs(&group, &["--unless-done", "1h"], false);
}

#[test]
fn a_run_that_ends_while_its_slot_moves_is_recorded() {
    let cluster = Cluster::of_masters();
    for options in [&["--record"][..], &["--record", "--at-least", "2s"]] {
        let holder = Turn::had(&cluster, options);
        let slot = cluster.begins_to_move("lock:job");
        slot.carries(&["{lock:job}:fence"]);
        holder.leaves();
        slot.carries_its_keys();
        slot.ends();
    }
    assert_eq!(outcomes(&cluster), ["done", "done"]);
    runs(&cluster, &["--unless-done", "1h"], false);
    eventually("it is free", || is_free(&cluster));
}

#[test]
fn while_its_slot_moves_nobody_is_told_what_is_not_known() {
    let cluster = Cluster::of_masters();
    runs(&cluster, &["--record"], true);
    let moving = cluster.begins_to_move("lock:job");
    moving.carries(&["{lock:job}:fence"]);
    let words = ["run", "job", "--unless-done", "1h", "-w", "1s", "--", "echo", "ran"];
    answered(|| cluster.nxlock(words)).exits(69).prints("").says("the cluster is moving");
    moving.carries_its_keys();
    moving.ends();
    runs(&cluster, &["--unless-done", "1h"], false);
}

#[test]
fn a_configuration_can_ask_for_it() {
    let redis = Redis::start();
    let file = redis.directory().join("config.toml");
    fs::write(&file, "record = 2\n").unwrap();
    let call = |words: &[&str]| redis.nxlock(words.iter().copied()).env("NXLOCK_CONFIG", &file);
    for status in 0..3 {
        call(&["run", "job", "-c", &format!("exit {status}")]).run().exits(status);
    }
    assert_eq!(outcomes(&redis), ["failed", "failed"]);
    fs::write(&file, "unless-done = \"1h\"\nrecord = 0\n").unwrap();
    call(&["run", "job", "--", "true"]).run().exits(78).says("config.toml:2").says("from 1 to 1000");
    fs::write(&file, "unless-done = \"1h\"\n").unwrap();
    // It was done, though the list does not go back that far.
    call(&["run", "job", "--", "echo", "ran"]).run().exits(75).prints("");
}

#[test]
fn a_terminal_shows_the_last_run_and_the_live_view_all_of_them_in_local_time() {
    let redis = Redis::start();
    for (status, reason) in [(0, "monthly"), (3, "weekly")] {
        let script = format!("exit {status}");
        redis.nxlock(["run", "job", "--record", "--reason", reason, "-c", &script]).run().exits(status);
    }
    let zone = |call: Nxlock| call.env("TZ", "XYZ-05:30");
    let mut terminal = Terminal::start(zone(redis.nxlock(["status", "job"])));
    let shown = terminal.shows(" +0530: weekly");
    assert!(shown.contains(" failed (3) ") && shown.contains(" ago after ") && shown.contains(", begun 20"), "{shown}");
    terminal.shows("success");
    terminal.shows(": monthly");
    terminal.exits(1);
    let wide = "stty columns 120 rows 24; exec nxlock status --history job";
    let mut terminal = Terminal::start(zone(Nxlock::by("sh", ["-c", wide]).env("NXLOCK_SERVER", redis.url())));
    let shown = terminal.shows("monthly");
    // A mark for each run, as high as it took long.
    assert_eq!(shown.chars().filter(|c| ('▁'..='█').contains(c)).count(), 2, "{shown}");
    assert!(shown.contains("+0530") && shown.contains("failed (3)") && shown.contains("done"), "{shown}");
    terminal.exits(0);
    let holder = Turn::had(&redis, &["-t", "1m"]);
    let mut terminal = Terminal::start(zone(redis.nxlock(["status", "job", "--watch"])));
    eventually("the view shows the runs", || {
        let screen = terminal.screen();
        ["nobody waits", "OUTCOME", "failed (3)", "done", "+0530"].iter().all(|text| screen.contains(text))
    });
    // As they come.
    holder.leaves();
    runs(&redis, &["--record", "--reason", "yearly"], true);
    eventually("it shows the next too", || terminal.screen().contains("yearly"));
    terminal.types("q");
    terminal.exits(0);
}

#[test]
fn who_is_asked_to_give_up_and_who_breaks_are_recorded() {
    let redis = Redis::start();
    let asked = Turn::listening(&redis, &["--record", "-t", "1m"]);
    let id = lock_status(&redis)["holder"]["id"].as_str().unwrap().to_owned();
    redis.nxlock(["release", "job", "--ask", &id, "--wait", "20s"]).run().exits(0);
    asked.finish().exits(143);
    assert_eq!(outcomes(&redis), ["signal"]);
    let token = acquire(&redis, "1m");
    assert_eq!(outcomes(&redis), ["signal"], "what is not run is not recorded");
    release(&redis, &token);
}

/// The fate of a host in one night of the nightly job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Night {
    Down,
    Succeeds,
    Fails,
    /// The host loses its power while the job runs.
    IsKilled,
}

#[test]
fn a_nightly_job_on_ten_hosts_is_done_once_a_night_whenever_a_host_could() {
    let nights: u64 = std::env::var("NIGHTS").ok().and_then(|nights| nights.parse().ok()).unwrap_or(20);
    let redis = Redis::with_clock(0, &[]);
    let done = redis.directory().join("done");
    let mut random = 88_172_645_463_325_252_u64;
    let mut below = |n: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % n
    };
    // Their clocks are up to an hour fast or slow. Nobody asks them.
    let clocks: Vec<Clock> = (0_u32..10)
        .map(|host| {
            let directory = redis.directory().join(format!("host-{host}"));
            fs::create_dir(&directory).unwrap();
            let clock = Clock::in_directory(&directory, 0);
            if host % 2 == 0 {
                clock.is_set_forward(HOUR / 10 * host);
            } else {
                clock.is_set_back(HOUR / 10 * host);
            }
            clock
        })
        .collect();
    let mut expected = 0;
    for night in 0..nights {
        let fates: Vec<Night> = (0..10)
            .map(|_| match below(16) {
                0..=3 => Night::Down,
                4 => Night::IsKilled,
                5..=12 => Night::Fails,
                _ => Night::Succeeds,
            })
            .collect();
        let mut hosts: Vec<Turn> = Vec::new();
        for (fate, clock) in fates.iter().zip(&clocks).filter(|(fate, _)| **fate != Night::Down) {
            let script = match fate {
                Night::Succeeds => "echo done >> \"$DONE\"",
                Night::IsKilled => "kill -9 $(cut -d' ' -f4 /proc/$PPID/stat) $PPID; sleep 60",
                _ => "exit 1",
            };
            // Some wait for the one before them, as their clocks are; some come when it is over. The lock of one that
            // is killed is free when its lease ends; the others keep theirs, also on a machine that runs none of them
            // for seconds.
            let ttl = if *fate == Night::IsKilled { "3s" } else { "30s" };
            let words = ["--server-timeout", "20s", "run", "job", "--unless-done", "20h", "-t", ttl, "-c", script];
            let host = redis.nxlock(words).env("DONE", &done);
            let host = clock.environment().into_iter().fold(host, |host, (name, value)| host.env(name, value));
            let mut host = Turn::of(host);
            if below(2) == 0 {
                eventually("it has ended", || host.running.has_ended());
            }
            hosts.push(host);
        }
        for host in hosts {
            host.finish();
        }
        expected += usize::from(fates.contains(&Night::Succeeds));
        assert_eq!(lines(&done), expected, "night {night}: {fates:?}");
        redis.clock().is_set_forward(DAY);
    }
    let history = redis.nxlock(["status", "--history", "--json", "job"]).run().exits(0).json();
    assert!(history[0]["history"].as_array().is_some_and(|runs| runs.len() <= 20 && !runs.is_empty()), "{history}");
    eventually("it is free", || is_free(&redis));
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

#[test]
fn events_tell_what_was_done() {
    let redis = Redis::start();
    runs(&redis, &["--record", "--reason", "why"], true);
    let log = redis.directory().join("events");
    let words = ["run", "job", "--unless-done", "1h", "--events", log.to_str().unwrap(), "--", "true"];
    redis.nxlock(words).run().exits(75);
    let told: Vec<Value> =
        fs::read_to_string(&log).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [refused] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!((&refused["event"], &refused["done"]["reason"]), (&"refused".into(), &"why".into()), "{refused}");
}

#[test]
fn a_local_record_outlives_its_lock_and_is_swept_at_its_own_time() {
    let local = Local::start();
    runs(&local, &["--record"], true);
    let old = |part: &str| {
        let file = fs::File::options().write(true).open(local.file(part)).unwrap();
        file.set_modified(wall() - 2 * DAY).unwrap();
    };
    old("lock");
    let new = |name: &str| _ = local.nxlock(["run", name, "--", "true"]).run().exits(0);
    new("a");
    assert_eq!(outcomes(&local), ["done"]);
    runs(&local, &["--unless-done", "1h"], false);
    // As if thirty days had gone by.
    let file = fs::read(local.file("lock")).unwrap();
    fs::write(local.file("lock"), record::with(&file, &[("runs", "kept_until_us", "1")])).unwrap();
    assert_eq!(outcomes(&local), Vec::<String>::new());
    old("lock");
    new("b");
    assert!(!local.file("lock").exists());
    runs(&local, &["--unless-done", "1h"], true);
}
