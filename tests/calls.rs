//! How the verbs are called: required arguments, and where their answers go.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::support::{Nxlock, Redis, eventually};

#[test]
fn without_a_token_nothing_is_released_or_renewed() {
    let redis = Redis::start();
    redis.nxlock(["release", "job"]).run().exits(64).says("NXLOCK_TOKEN").says("`-`");
    redis.nxlock(["renew", "job", "--ttl", "1m"]).run().exits(64).says("give TOKEN, set NXLOCK_TOKEN, or write `-`");
    redis.nxlock(["release", "job", ""]).run().exits(64);
    redis.nxlock(["release", "job", "-"]).stdin(b"").run().exits(64);
}

#[test]
fn an_id_that_cannot_be_one_is_a_usage_error() {
    let redis = Redis::start();
    redis.nxlock(["release", "job", "--break", ""]).run().exits(64).says("--break");
    redis.nxlock(["release", "job", "--break", "nx1:whole:token"]).run().exits(64).says("--break");
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
fn it_is_found_under_any_name() {
    let output = Command::new(crate::support::program()).arg0("lock").arg("--version").stdin(Stdio::null()).output();
    assert!(String::from_utf8(output.unwrap().stdout).unwrap().contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_status_for_busy_is_a_number_and_for_nothing_else() {
    let redis = Redis::start();
    redis.nxlock(["run", "job", "-E", "256", "--", "true"]).run().exits(64).says("--conflict-exit-code").says("255");
    // -E changes the status for busy, not the status for an unreachable server.
    let nowhere = Nxlock::new(["run", "job", "-n", "-E", "3", "-s", "unix:///no/such/socket", "--", "true"]);
    nowhere.env("NXLOCK_SERVER_TIMEOUT", "100ms").run().exits(69);
}

#[test]
fn a_habit_from_elsewhere_runs_nothing_and_is_told_what_to_write() {
    let redis = Redis::start();
    for (words, tip) in [
        (&["deploy", "--", "echo", "ran"][..], "`nxlock run deploy -- COMMAND`"),
        (&["lock", "deploy"], "`nxlock acquire NAME --ttl D`"),
        (&["-x", "deploy", "echo", "ran"], "exclusive"),
        (&["-s", "deploy", "echo", "ran"], "--shared"),
        (&["run", "deploy"], "`nxlock run NAME -- COMMAND`"),
        (&["run", "deploy", "-E", "-1", "echo", "ran"], "0..=255"),
        (&["renew", "deploy", "--ttl", "1m"], "NXLOCK_TOKEN"),
    ] {
        redis.nxlock(words.iter().copied()).run().exits(64).prints("").says(tip);
    }
    Nxlock::new(["run", "deploy", "echo", "ran"]).run().exits(78).prints("").says("four ways").says("config.toml");
}
