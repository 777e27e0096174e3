//! Runs that are recorded: what is known of them afterwards, and what is not done again.

use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::turns::{Turn, break_it, is_free, lock_status, process, queue_is, turn};
use crate::support::{Authority, Done, eventually, is_alive};

/// Returns the recorded runs of `job`, as JSON, the last first.
#[track_caller]
fn history(authority: &impl Authority) -> Vec<Value> {
    let document = authority.nxlock(["status", "--history", "--json", "job"]).run().exits(0).json();
    let [of_job] = document.as_array().unwrap().as_slice() else { panic!("{document}") };
    assert_eq!(of_job["name"], "job", "{document}");
    assert!(of_job["key"].as_str().unwrap().ends_with("job"), "{document}");
    of_job["history"].as_array().unwrap().clone()
}

/// Returns the outcomes of the recorded runs, the last first.
#[track_caller]
fn outcomes(authority: &impl Authority) -> Vec<String> {
    history(authority).iter().map(|run| run["outcome"].as_str().unwrap().to_owned()).collect()
}

/// Runs a script under `job`, with these options.
#[track_caller]
fn run(authority: &impl Authority, options: &[&str], script: &str) -> Done {
    authority.nxlock([&["run", "job"], options, &["-c", script]].concat()).run()
}

/// Kills a holder and everything that it started.
#[track_caller]
fn is_killed_with_its_guard(holder: Turn) {
    let all = holder.running.descendants();
    // Stopped first: nxlock would record that its guard was killed.
    holder.running.signal(Signal::SIGSTOP);
    for pid in &all {
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
    holder.running.signal(Signal::SIGKILL);
    holder.finish().dies_of(Signal::SIGKILL);
    eventually("they are gone, and what they had open", || !all.iter().any(|pid| is_alive(*pid)));
}

pub fn a_recorded_run_is_told_with_who_when_and_how_it_ended(authority: &impl Authority) {
    let mut holder = Turn::had(authority, &["--record", "--reason", "release 4.3", "--as", "run 17"]);
    let waits = Turn::queued(authority, &["--record"]);
    let (first, second) = (holder.pid(), waits.pid());
    let document = authority.nxlock(["status", "--history", "--json", "job"]).run().exits(0).json();
    assert_eq!(document[0]["history"], serde_json::json!([]), "it has not ended");
    assert_eq!(document[0]["warnings"], serde_json::json!(["no run that is recorded has ended"]));
    let running = &document[0]["running"][0];
    assert_eq!((&running["pid"], &running["reason"]), (&first.into(), &"release 4.3".into()), "{document}");
    assert!(running["granted"].is_string() && running["held_ms"].is_u64() && running["fence"].is_u64(), "{running}");
    let fence = lock_status(authority)["fence"].clone();
    holder.is_told();
    holder.finish().exits(0).says_nothing();
    waits.leaves();
    let runs = history(authority);
    let [later, earlier] = runs.as_slice() else { panic!("{runs:?}") };
    assert_eq!((&earlier["pid"], &later["pid"]), (&first.into(), &second.into()), "{runs:?}");
    assert_eq!((&earlier["reason"], &later["reason"]), (&"release 4.3".into(), &Value::Null), "{runs:?}");
    assert_eq!((&earlier["as"], &later["as"]), (&"run 17".into(), &Value::Null), "{runs:?}");
    assert_eq!(earlier["fence"], fence, "{earlier}");
    assert!(later["fence"].as_u64() > earlier["fence"].as_u64(), "{runs:?}");
    let waited = later["waited_ms"].as_u64().unwrap();
    assert!(waited > 0 && later["held_ms"].is_u64(), "{later}");
    for run in &runs {
        assert_eq!((&run["outcome"], &run["status"], &run["signal"]), (&"done".into(), &0.into(), &Value::Null));
        assert!(run["host"].is_string() && run["user"].is_string() && run["id"].as_str().unwrap().len() == 8, "{run}");
        let times: Vec<&str> = ["asked", "granted", "ended"].iter().map(|time| run[time].as_str().unwrap()).collect();
        assert!(times.is_sorted() && times.iter().all(|time| time.ends_with('Z')), "{run}");
    }
    assert!(earlier["granted"].as_str() <= later["granted"].as_str(), "{runs:?}");
    assert!(earlier["ended"].as_str() <= later["granted"].as_str(), "{runs:?}");
}

pub fn every_way_to_end_has_its_outcome(authority: &impl Authority) {
    run(authority, &["--record"], "exit 3").exits(3);
    run(authority, &["--record"], "kill -9 $$").exits(137);
    run(authority, &["--record", "--time-limit", "100ms"], "sleep 60").exits(124);
    authority.nxlock(["run", "job", "--record", "--", "/nonexistent"]).run().exits(127);
    run(authority, &["--record"], "exit 0").exits(0);
    // Not recorded.
    run(authority, &[], "exit 4").exits(4);
    let told: Vec<(String, Value, Value)> = history(authority)
        .into_iter()
        .map(|run| (run["outcome"].as_str().unwrap().to_owned(), run["status"].clone(), run["signal"].clone()))
        .collect();
    let run = |outcome: &str, status: Value, signal: Value| (outcome.to_owned(), status, signal);
    let expected = [
        run("done", 0.into(), Value::Null),
        run("failed", 127.into(), Value::Null),
        run("time_limit", Value::Null, 15.into()),
        run("signal", Value::Null, 9.into()),
        run("failed", 3.into(), Value::Null),
    ];
    assert_eq!(told, expected);
    let table = authority.nxlock(["status", "--history", "job"]).run().exits(0).text();
    for told in ["NAME ", "done", "failed (127)", "time limit", "died of KILL", "failed (3)"] {
        assert!(table.contains(told), "{told}:\n{table}");
    }
    assert_eq!(table.lines().count(), 6, "{table}");
}

pub fn a_run_that_lost_its_lock_is_recorded_as_that(authority: &impl Authority) {
    let script = "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done";
    let mut holder = authority.nxlock(["run", "job", "--record", "-t", "12s", "-c", script]).start();
    holder.line("up");
    let id = lock_status(authority)["holder"]["id"].as_str().unwrap().to_owned();
    authority.nxlock(["release", "job", "--break", &id]).run().exits(0);
    // Nobody knows how it ends, and the next one finds that.
    eventually("it does not hold the lock", || outcomes(authority) == ["vanished"] || holder.has_ended());
    holder.finish().exits(76);
    let runs = history(authority);
    assert_eq!((&runs[0]["outcome"], runs.len()), (&"lost".into(), 1), "{runs:?}");
}

pub fn the_last_runs_are_kept_and_no_more(authority: &impl Authority) {
    for status in 0..7 {
        run(authority, &["--record=3"], &format!("exit {status}")).exits(status);
    }
    let kept: Vec<u64> = history(authority).iter().map(|run| run["status"].as_u64().unwrap()).collect();
    assert_eq!(kept, [6, 5, 4]);
    run(authority, &["--record"], "exit 9").exits(9);
    assert_eq!(history(authority).len(), 4);
    // The success is still known.
    run(authority, &["--unless-done", "1h"], "echo ran").exits(75).prints("");
    let seen = lock_status(authority);
    let [success, failure] = ["last_success", "last_failure"].map(|run| (&seen[run]["outcome"], &seen[run]["status"]));
    assert_eq!((success, failure), ((&"done".into(), &0.into()), (&"failed".into(), &9.into())), "{seen}");
    let of_history = authority.nxlock(["status", "--history", "--json", "job"]).run().exits(0).json();
    assert_eq!(of_history[0]["last_success"], seen["last_success"]);
    assert_eq!(of_history[0]["last_failure"], seen["last_failure"]);
    authority.nxlock(["status", "job", "--max-age", "1h"]).run().exits(0).says_nothing();
    let two = authority.nxlock(["status", "--history", "--limit", "2", "--json", "job"]).run().exits(0).json();
    let two: Vec<&Value> = two[0]["history"].as_array().unwrap().iter().map(|run| &run["status"]).collect();
    assert_eq!(two, [9, 6]);
}

pub fn a_run_that_is_killed_with_its_guard_never_ended(authority: &impl Authority) {
    let holder = Turn::had(authority, &["--record", "-t", "3s"]);
    is_killed_with_its_guard(holder);
    eventually("its lease is over", || is_free(authority));
    let seen = history(authority);
    assert_eq!(outcomes(authority), ["vanished"]);
    assert_eq!((&seen[0]["ended"], &seen[0]["held_ms"]), (&Value::Null, &Value::Null), "{seen:?}");
    run(authority, &["--record"], "true").exits(0);
    let runs = history(authority);
    assert_eq!(runs[1], seen[0], "{runs:?}");
    assert_eq!((&runs[0]["outcome"], runs.len()), (&"done".into(), 2), "{runs:?}");
    assert!(authority.nxlock(["status", "--history", "job"]).run().exits(0).text().contains("vanished"));
}

pub fn the_guard_records_the_end_if_only_nxlock_is_killed(authority: &impl Authority) {
    for (before, options) in [&["--record"][..], &["--record", "--at-least", "1s"]].into_iter().enumerate() {
        let holder = Turn::had(authority, options);
        holder.running.signal(Signal::SIGKILL);
        eventually("its end is recorded", || outcomes(authority).len() > before);
        let runs = history(authority);
        assert_eq!((&runs[0]["outcome"], &runs[0]["signal"]), (&"signal".into(), &9.into()), "{runs:?}");
        assert!(runs[0]["ended"].is_string(), "{runs:?}");
        eventually("it is free", || is_free(authority));
        holder.finish().dies_of(Signal::SIGKILL);
    }
}

pub fn what_is_done_is_not_done_again(authority: &impl Authority) {
    let nightly = ["--unless-done", "20h", "--reason", "by cron"];
    // When it fails on one host, the next does it.
    run(authority, &nightly, "exit 3").exits(3);
    let first = run(authority, &nightly, "echo ran; echo $PPID").exits(0).text();
    let pid = first.lines().nth(1).unwrap().to_owned();
    assert!(first.starts_with("ran\n"), "{first}");
    let refused = run(authority, &nightly, "echo ran").exits(75).prints("");
    let line = refused.stderr.lines().next().unwrap();
    assert!(line.starts_with("nxlock: \"job\": nothing to do: done in "), "{line}");
    assert!(line.ends_with(": by cron") && line.contains(" by ") && refused.stderr.lines().count() == 1, "{line}");
    run(authority, &["--unless-done", "20h", "-q"], "echo ran").exits(75).prints("").says_nothing();
    run(authority, &["--unless-done", "20h", "-E", "0"], "echo ran").exits(0).prints("");
    let document = authority.nxlock(["--json", "run", "job", "--unless-done", "1h", "--", "true"]).run().exits(75);
    let document: Value = serde_json::from_str(document.stderr.trim()).unwrap();
    assert_eq!((&document["outcome"], &document["state"]), (&"already_done".into(), &"free".into()), "{document}");
    assert_eq!((&document["done"]["outcome"], &document["done"]["reason"]), (&"done".into(), &"by cron".into()));
    assert!(!pid.is_empty() && document["done"]["granted"].is_string(), "{document}");
    // Long enough ago; and whoever does not ask runs it.
    run(authority, &["--unless-done", "1ms"], "echo ran").exits(0).prints("ran\n");
    run(authority, &["--record"], "echo ran").exits(0).prints("ran\n");
    assert_eq!(outcomes(authority), ["done", "done", "done", "failed"], "refusals are no runs");
    assert!(is_free(authority), "{}", lock_status(authority));
}

pub fn who_waits_leaves_when_it_is_done(authority: &impl Authority) {
    let holder = Turn::had(authority, &["--record"]);
    let waits = Turn::queued(authority, &["--unless-done", "1h"]);
    let behind = Turn::queued(authority, &["--unless-done", "1h"]);
    let mut other = Turn::queued(authority, &[]);
    holder.leaves();
    waits.finish().exits(75).prints("").says("\"job\": nothing to do: done in ");
    behind.finish().exits(75).prints("").says("nothing to do");
    // A waiter without the option has its turn.
    other.up();
    queue_is(authority, &[]);
    // Held or not, there is nothing to wait for.
    run(authority, &["--unless-done", "1h"], "echo ran").exits(75).prints("").says("nothing to do");
    other.leaves();
    assert_eq!(outcomes(authority), ["done"]);
}

pub fn who_waits_for_one_that_fails_does_it(authority: &impl Authority) {
    let script = "echo up; read x; exit 1";
    let (reader, writer) = std::io::pipe().unwrap();
    let failing = authority.nxlock(["run", "job", "--unless-done", "1h", "-c", script]).stdin_from(reader);
    let mut failing = failing.start();
    failing.line("up");
    let mut next = Turn::queued(authority, &["--unless-done", "1h"]);
    drop(writer);
    failing.finish().exits(1);
    next.up();
    next.leaves();
    assert_eq!(outcomes(authority), ["done", "failed"]);
}

pub fn of_ten_that_come_at_once_one_does_it(authority: &impl Authority) {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let script = format!("echo $$ >> '{}'; sleep 0.05", log.display());
    for round in 0..3 {
        // A new name for each night.
        let name = format!("night-{round}");
        let hosts = (0..10).map(|_| authority.nxlock(["run", &name, "--unless-done", "1h", "-c", &script]).start());
        let hosts: Vec<_> = hosts.collect();
        let statuses: Vec<Option<i32>> = hosts.into_iter().map(|host| host.finish().status.code()).collect();
        assert_eq!(statuses.iter().filter(|status| **status == Some(0)).count(), 1, "{statuses:?}");
        assert_eq!(statuses.iter().filter(|status| **status == Some(75)).count(), 9, "{statuses:?}");
        assert_eq!(lines(&log), round + 1);
    }
}

fn lines(log: &Path) -> usize {
    std::fs::read_to_string(log).unwrap().lines().count()
}

pub fn a_name_that_stays_locked_is_recorded_when_its_command_ends(authority: &impl Authority) {
    run(authority, &["--record", "--at-least", "1h", "-t", "12s"], "exit 5").exits(5);
    let runs = history(authority);
    assert_eq!((&runs[0]["outcome"], &runs[0]["status"]), (&"failed".into(), &5.into()), "{runs:?}");
    assert!(runs[0]["held_ms"].as_u64().unwrap() < 60_000, "{runs:?}");
    assert!(!is_free(authority));
    break_it(authority);
}

pub fn each_of_several_holders_has_its_record(authority: &impl Authority) {
    let slots = ["--slots", "3", "--record"];
    let all: Vec<Turn> = (0..3).map(|_| Turn::had(authority, &slots)).collect();
    assert_eq!(outcomes(authority), Vec::<String>::new());
    let pids: Vec<i32> = all.iter().map(Turn::pid).collect();
    let mut all = all.into_iter();
    all.next().unwrap().leaves();
    assert_eq!(outcomes(authority), ["done"]);
    let dead = all.next().unwrap();
    dead.running.signal(Signal::SIGKILL);
    eventually("its guard has recorded that", || history(authority).len() == 2);
    dead.finish().dies_of(Signal::SIGKILL);
    all.next().unwrap().leaves();
    let mut told: Vec<i64> = history(authority).iter().map(|run| run["pid"].as_i64().unwrap()).collect();
    let mut pids: Vec<i64> = pids.into_iter().map(i64::from).collect();
    told.sort_unstable();
    pids.sort_unstable();
    assert_eq!(told, pids);
}

pub fn the_histories_of_all_locks_are_listed(authority: &impl Authority) {
    for name in ["b", "a", "no record"] {
        let options: &[&str] = if name == "no record" { &[] } else { &["--record"] };
        authority.nxlock([&["run", name], options, &["--", "true"]].concat()).run().exits(0);
    }
    let document = authority.nxlock(["status", "--history", "--json"]).run().exits(0).json();
    let names: Vec<&str> = document.as_array().unwrap().iter().map(|lock| lock["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b"]);
    let named = authority.nxlock(["status", "--history", "b", "no record", "a"]).run().exits(0);
    let listed = named.says("\"no record\": no run is recorded").text();
    let told: Vec<&str> = listed.lines().skip(1).map(|line| &line[..1]).collect();
    assert_eq!(told, ["b", "a"]);
    // What is free and recorded is listed, and nothing else that is free.
    let listed = authority.nxlock(["status", "--json"]).run().exits(0).json();
    let rows = listed.as_array().unwrap().iter();
    let rows: Vec<_> = rows.map(|row| (row["name"].as_str().unwrap(), row["state"].as_str().unwrap())).collect();
    assert_eq!(rows, [("a", "free"), ("b", "free")]);
    let table = authority.nxlock(["status"]).run().exits(0).text();
    assert!(table.lines().next().unwrap().contains("LAST RUN") && table.matches("done 2").count() == 2, "{table}");
}

pub fn a_run_under_way_is_the_first_line_of_a_history(authority: &impl Authority) {
    run(authority, &["--record"], "exit 3").exits(3);
    let holder = Turn::had(authority, &["--record"]);
    let table = authority.nxlock(["status", "--history", "job"]).run().exits(0).text();
    let outcomes: Vec<bool> = table.lines().map(|line| line.contains("running")).collect();
    assert_eq!(outcomes, [false, true, false], "{table}");
    assert!(table.contains("failed (3)"), "{table}");
    holder.leaves();
    assert!(!authority.nxlock(["status", "--history", "job"]).run().exits(0).text().contains("running"));
}

pub fn what_is_wrong_has_a_status_and_a_line_of_its_own(authority: &impl Authority) {
    let alarm = |words: &[&str]| authority.nxlock([&["status"], words].concat()).run().says_nothing();
    let says = |words: &[&str], status: i32, begin: &str| {
        let done = alarm(words).exits(status);
        let line = done.text();
        assert!(line.starts_with(begin) && line.ends_with('\n') && line.lines().count() == 1, "{begin}:\n{line}");
    };
    let (age, late) = (["job", "--max-age", "1h"], ["job", "--max-age", "1ms"]);
    says(&age, 3, "UNKNOWN: job has no recorded run: it is misspelt, or not run with --record | 'job age'=U;;3600;0");
    says(&["--max-age", "1h"], 3, "UNKNOWN: no run of any lock is recorded");
    says(&["job", "--max-held", "1h", "--max-waiting", "0"], 0, "OK: job is free; job has no waiters |");
    run(authority, &["--record"], "exit 3").exits(3);
    says(&age, 2, "CRITICAL: job has never succeeded: the last run failed (3) ");
    run(authority, &["--record"], "exit 0").exits(0);
    says(&age, 0, "OK: job succeeded ");
    says(&["--max-age", "1h"], 0, "OK: job succeeded ");
    eventually("it is a millisecond ago", || alarm(&late).status.code() == Some(2));
    says(&late, 2, "CRITICAL: job has not succeeded for ");
    let holder = Turn::had(authority, &[]);
    let waits = Turn::queued(authority, &[]);
    says(&["job", "--max-held", "1h", "--max-waiting", "1"], 0, "OK: job is held for ");
    says(&["job", "--max-waiting", "0"], 2, "CRITICAL: job has 1 waiter | 'job waiting'=1;;0;0");
    eventually("it is held for a millisecond", || alarm(&["job", "--max-held", "1ms"]).status.code() == Some(2));
    says(&["--max-held", "1ms"], 2, "CRITICAL: job has been held for ");
    assert!(alarm(&["--max-held", "1ms"]).text().contains(&process(holder.pid())));
    alarm(&["-q", "job", "--max-waiting", "0"]).exits(2).prints("");
    let document = alarm(&["--json", "job", "other", "--max-age", "1h", "--max-waiting", "0"]).exits(2).json();
    assert_eq!(document["outcome"], "critical", "{document}");
    let checks: Vec<_> = document["checks"].as_array().unwrap().iter().map(|check| &check["outcome"]).collect();
    assert_eq!(checks, ["ok", "critical", "unknown", "ok"], "{document}");
    assert_eq!((&document["checks"][1]["waiting"], &document["checks"][1]["max_waiting"]), (&1.into(), &0.into()));
    assert!(document["checks"][0]["age_ms"].is_u64() && document["checks"][2]["age_ms"].is_null(), "{document}");
    holder.leaves();
    waits.leaves();
}

pub fn a_run_that_goes_on_without_its_lock_has_not_done_it(authority: &impl Authority) {
    let script = "echo up; read x; exit 0";
    for options in [&["--on-lost", "continue"][..], &["--at-least", "1h", "--on-lost", "continue"]] {
        let options = [&["run", "job", "--record", "-t", "1h"], options, &["-c", script]].concat();
        let (reader, writer) = std::io::pipe().unwrap();
        let mut holder = authority.nxlock(options).stdin_from(reader).start();
        holder.line("up");
        break_it(authority);
        drop(writer);
        holder.finish().exits(76);
    }
    assert_eq!(outcomes(authority), ["lost", "lost"]);
    run(authority, &["--unless-done", "1h"], "echo ran").exits(0).prints("ran\n");
}

pub fn a_share_that_was_lost_has_not_done_it(authority: &impl Authority) {
    let script = "echo up; read x; exit 0";
    let options = ["--slots", "2", "--record", "--at-least", "1h", "-t", "1h", "-c", script];
    let (reader, writer) = std::io::pipe().unwrap();
    let mut holder = authority.nxlock([&["run", "job"][..], &options].concat()).stdin_from(reader).start();
    holder.line("up");
    let seen = lock_status(authority);
    let id = seen["holders"][0]["id"].as_str().unwrap();
    authority.nxlock(["release", "job", "--break", id]).run().exits(0);
    drop(writer);
    holder.finish().exits(76);
    assert_eq!(outcomes(authority), ["lost"]);
}

pub fn a_command_that_was_told_to_stop_and_says_that_it_succeeded_has(authority: &impl Authority) {
    let script = "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done";
    let mut holder = authority.nxlock(["run", "job", "--record", "-c", script]).start();
    holder.line("up");
    holder.signal(Signal::SIGTERM);
    holder.finish().exits(0);
    assert_eq!(outcomes(authority), ["done"]);
}

pub fn runs_that_always_vanish_are_not_kept_for_ever(authority: &impl Authority) {
    for _ in 0..4 {
        let holder = Turn::had(authority, &["--record=2", "-t", "1h"]);
        is_killed_with_its_guard(holder);
        if !is_free(authority) {
            break_it(authority);
        }
    }
    // Two that were found to have vanished, and the last, which is still to be found.
    assert!(history(authority).len() <= 3, "{:?}", history(authority));
    run(authority, &["--record=2"], "exit 3").exits(3);
    run(authority, &["--record=2"], "exit 4").exits(4);
    run(authority, &["--record=2"], "exit 5").exits(5);
    assert_eq!(outcomes(authority), ["failed", "failed"]);
}

pub fn who_is_interrupted_before_its_command_has_no_record(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    let waits = Turn::of(authority.nxlock(turn(&["--record"]))).once_queued(authority);
    waits.running.signal(Signal::SIGTERM);
    waits.finish().dies_of(Signal::SIGTERM);
    authority.nxlock(["run", "job", "--record", "-n", "--", "true"]).run().exits(75);
    holder.leaves();
    assert_eq!(outcomes(authority), Vec::<String>::new());
}
