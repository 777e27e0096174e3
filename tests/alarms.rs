//! `status --max-age` and its kin, where something is wrong that is not a lock; and `status --metrics`.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::turns::Turn;
use crate::support::{Authority, Fate, Five, Local, Nxlock, Proxy, Redis, eventually};

const ALARM: [&str; 4] = ["status", "job", "--max-held", "1h"];

#[test]
fn whatever_goes_wrong_is_unknown_and_neither_fine_nor_a_free_lock() {
    let directory = tempfile::tempdir().unwrap();
    let configuration = directory.path().join("config.toml");
    std::fs::write(&configuration, "prefix = 7\n").unwrap();
    let redis = Redis::with_password("secret");
    let without_password = format!("unix://{}", redis.socket().display());
    let refused = |variables: &[(&str, &str)]| {
        let call = variables.iter().fold(Nxlock::new(ALARM), |call, (name, value)| call.env(name, value));
        let done = call.run().exits(3).says_nothing();
        let line = done.text();
        assert!(line.starts_with("UNKNOWN: ") && line.lines().count() == 1, "{line}");
        line
    };
    assert!(refused(&[]).contains("no lock server is named"));
    assert!(refused(&[("NXLOCK_SERVER", "redis://127.0.0.1:1")]).contains("connection refused"));
    assert!(refused(&[("NXLOCK_SERVER", "nonsense")]).contains("it is not a URL"));
    assert!(refused(&[("NXLOCK_SERVER", &without_password)]).contains("password"));
    let file = configuration.to_str().unwrap();
    assert!(refused(&[("NXLOCK_SERVER", "local:"), ("NXLOCK_CONFIG", file)]).contains("config.toml:1"));
    let call = Nxlock::new([&["--json"], &ALARM[..]].concat()).env("NXLOCK_SERVER", "redis://127.0.0.1:1");
    let document = call.run().exits(3).says_nothing().json();
    assert_eq!((&document["outcome"], &document["checks"]), (&"unknown".into(), &serde_json::json!([])));
    Nxlock::new([&["-q"], &ALARM[..]].concat()).run().exits(3).prints("").says_nothing();
}

#[test]
fn a_line_that_nobody_can_read_is_unknown() {
    let local = Local::start();
    let closed =
        Nxlock::by("sh", ["-c", "exec nxlock \"$@\" >&-", "sh"].iter().chain(&ALARM).copied().collect::<Vec<_>>());
    closed.env("NXLOCK_SERVER", local.url()).run().exits(3).says("UNKNOWN: cannot write to stdout");
}

#[test]
fn an_alarm_that_makes_no_sense_is_a_slip_of_usage() {
    let redis = Redis::start();
    for words in [
        &["job", "--max-age", "1h", "--watch"][..],
        &["job", "--max-age", "1h", "--history"],
        &["job", "--max-age", "1h", "--metrics"],
        &["--key", "lock:job", "--max-waiting", "3"],
        &["job", "--max-age", "26"],
        &["job", "--max-held", "0s"],
        &["job", "--max-waiting", "500"],
        &["job", "--limit", "3"],
        &["--metrics", "--json"],
    ] {
        redis.nxlock([&["status"], words].concat()).run().exits(64).prints("");
    }
    let five = Five::start();
    for words in [&["job", "--max-age", "1h"][..], &["job", "--max-waiting", "3"], &["--metrics"]] {
        five.nxlock([&["status"], words].concat()).run().exits(64).prints("").says("several servers");
    }
    five.nxlock(["status", "job", "--max-held", "1h"]).run().exits(0);
}

/// Makes a user who may not run scripts, whose records do not come with the status. Returns who that is, in a URL.
fn without_scripts(redis: &Redis) -> &'static str {
    let scripts = ["-eval", "-evalsha", "-eval_ro", "-evalsha_ro"];
    redis.ask::<()>(&[&["ACL", "SETUSER", "plain", "on", ">pw", "~*", "&*", "+@all"], &scripts[..]].concat());
    "?user=plain&pass=pw"
}

#[test]
fn a_holder_that_nobody_can_date_and_waiters_that_nobody_counts_are_unknown() {
    let redis = Redis::start();
    redis.ask::<()>(&["SET", "lock:job", "another program's", "PX", "60000"]);
    let done = redis.nxlock(["status", "job", "--max-held", "1h"]).run().exits(3);
    done.prints("UNKNOWN: job is held by another program: since when is not known | 'job held'=U;;3600;0\n");
    redis.delete("lock:job");
    let url = format!("{}{}", redis.url(), without_scripts(&redis));
    let call = |words: &[&str]| Nxlock::new(words).env("NXLOCK_SERVER", &url).run();
    call(&["status", "job", "--max-held", "1h"]).exits(0);
    assert!(call(&["status", "job", "--max-waiting", "3"]).exits(3).text().contains("who waits is not known"));
    redis.put("lock:other", b"another program's", Some(60_000));
    let said = call(&["status", "--max-age", "1h"]).exits(3).text();
    redis.delete("lock:other");
    assert!(said.contains("does not run scripts for us"), "{said}");
}

#[test]
fn a_server_that_goes_while_records_are_read_is_not_waited_for_once_for_each_name() {
    let redis = Redis::start();
    let proxy = Proxy::by_command(&redis, |_, request| match request.split_whitespace().nth(1) {
        Some("history") => Fate::Blackholed,
        _ => Fate::Delivered,
    });
    let url = format!("{}{}", proxy.url(), without_scripts(&redis));
    let names: Vec<String> = (0..20).map(|n| format!("job-{n}")).collect();
    // A busy machine may take a third of it to read a status.
    let options = ["--server-timeout", "4s", "status", "--max-age", "1h"];
    let words = options.into_iter().chain(names.iter().map(String::as_str)).collect::<Vec<_>>();
    let status = Nxlock::new(words).env("NXLOCK_SERVER", &url).start();
    let asked = || proxy.commands().into_iter().filter(|command| command.contains("history")).count();
    // Each of these waits for four seconds, so that to wait for the end alone may take longer than a test waits.
    eventually("it has asked three times", || asked() >= 3);
    let line = status.finish().exits(3).text();
    assert!(line.starts_with("UNKNOWN: ") && line.contains("job-3 may not have succeeded: it is not read"), "{line}");
    // Each name has its finding.
    assert_eq!(line.matches("age'=U").count(), names.len(), "{line}");
    assert!((3..10).contains(&asked()), "{}: {line}", asked());
}

/// Returns the value of a series.
#[track_caller]
fn series(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}:\n{text}")).parse().unwrap()
}

#[test]
fn metrics_tell_of_holders_waiters_and_recorded_runs() {
    let mut redis = Redis::start();
    redis.nxlock(["run", "job", "--record", "--", "false"]).run().exits(1);
    redis.nxlock(["run", "job", "--record", "--", "true"]).run().exits(0);
    let holder = Turn::had(&redis, &["--record", "-t", "1h"]);
    let waits = Turn::queued(&redis, &[]);
    let text = redis.nxlock(["status", "--metrics"]).run().exits(0).says_nothing().text();
    is_open_metrics(&text);
    let of_job = |name: &str| series(&text, &format!("{name}{{name=\"job\",prefix=\"lock:\"}}"));
    assert_eq!((of_job("nxlock_holders"), of_job("nxlock_waiters")), (1.0, 1.0));
    assert_eq!(of_job("nxlock_runs_under_way"), 1.0);
    assert!((3500.0..=3600.0).contains(&of_job("nxlock_lease_seconds")), "{text}");
    assert!(of_job("nxlock_held_seconds") < 3600.0 && of_job("nxlock_last_success_duration_seconds") < 3600.0);
    let (success, failure) =
        (of_job("nxlock_last_success_timestamp_seconds"), of_job("nxlock_last_failure_timestamp_seconds"));
    assert!(failure > 1.7e9 && success >= failure, "{text}");
    for (outcome, count) in [("done", 1.0), ("failed", 1.0), ("lost", 0.0), ("vanished", 0.0)] {
        let name = format!("nxlock_recorded_runs{{name=\"job\",prefix=\"lock:\",outcome=\"{outcome}\"}}");
        assert_eq!(series(&text, &name), count, "{outcome}");
    }
    holder.leaves();
    waits.leaves();
    // A free lock without a record is shown if it is named, and then nothing more is known of it.
    let text = redis.nxlock(["status", "--metrics", "other"]).run().exits(0).text();
    is_open_metrics(&text);
    assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), 2, "{text}");
    let odd = redis.nxlock(["status", "--metrics", "a \"b\" \\c", "--prefix", "p\"\\"]).run().exits(0).text();
    assert!(odd.contains(r#"nxlock_holders{name="a \"b\" \\c",prefix="p\"\\"} 0"#), "{odd}");
    is_open_metrics(&odd);
    redis.kill();
    redis.nxlock(["status", "--metrics"]).run().exits(69).prints("");
}

/// Asserts that a text is what OpenMetrics and Prometheus read: each metric described before its series, which are
/// together; labels quoted; a number; and an end. promtool(1), where it is installed, has the last word.
#[track_caller]
pub fn is_open_metrics(text: &str) {
    let body = text.strip_suffix("# EOF\n").unwrap_or_else(|| panic!("no end:\n{text}"));
    let (mut described, mut current): (Vec<&str>, &str) = (Vec::new(), "");
    for line in body.lines() {
        if let Some(name) = line.strip_prefix("# HELP ").and_then(|rest| rest.split(' ').next()) {
            assert!(!described.contains(&name), "{name} is described twice");
            described.push(name);
            current = name;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert_eq!(rest, format!("{current} gauge"));
        } else if let Some(rest) = line.strip_prefix("# UNIT ") {
            assert_eq!(rest, format!("{current} seconds"));
            assert!(current.ends_with("_seconds"));
        } else {
            let (labels, value) = line.strip_prefix(current).unwrap().rsplit_once(' ').unwrap();
            assert!(labels.starts_with("{name=\"") && labels.ends_with("\"}"), "{line}");
            assert!(value.parse::<f64>().is_ok_and(|value| value >= 0.0), "{line}");
        }
    }
    promtool(&["check", "metrics"], text);
}

/// Runs promtool(1), of Debian's package prometheus, where it is installed: `tests/run` installs it where it may.
#[track_caller]
pub fn promtool(words: &[&str], stdin: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = match promtool.spawn() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
        started => started.unwrap(),
    };
    promtool.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    let done = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}\n{stdin}");
}
