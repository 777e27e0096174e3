//! Several locks at once: all are held, or none, and nobody waits in a circle.

use nix::sys::signal::Signal;

use crate::support::turns::Turn;
use crate::support::{Authority, Running, answered, eventually, text_of};

/// Returns the state of each of these locks.
fn states(authority: &impl Authority, names: &[&str]) -> Vec<String> {
    let document = authority.nxlock(["status", "--json"].iter().chain(names)).run().json();
    let state = |status: &serde_json::Value| status["state"].as_str().unwrap().to_owned();
    document.as_array().unwrap().iter().map(state).collect()
}

fn are_free(authority: &impl Authority, names: &[&str]) -> bool {
    states(authority, names).iter().all(|state| state == "free")
}

fn id_of(authority: &impl Authority, name: &str) -> String {
    let document = authority.nxlock(["status", "--json", name]).run().json();
    document[0]["holder"]["id"].as_str().unwrap_or_else(|| panic!("{document}")).to_owned()
}

/// Takes a lock away from its holder.
fn breaks(authority: &impl Authority, name: &str) {
    authority.nxlock(["release", name, "--break", &id_of(authority, name)]).run().exits(0);
}

/// Starts a run that holds these locks, `job` first, and waits until its command runs.
fn holding(authority: &impl Authority, words: &[&str]) -> Running {
    let script = ["-c", "echo up; sleep 600"];
    let mut running = authority.nxlock(["run", "job"].iter().chain(words).chain(&script)).start();
    running.line("up");
    running
}

pub fn several_locks_are_held_while_a_command_runs_and_no_longer(authority: &impl Authority) {
    let script = r#"echo "$NXLOCK_COUNT $NXLOCK_NAME $NXLOCK_NAME_2 $NXLOCK_NAME_3 $NXLOCK_KEY_2"
        [ "$NXLOCK_FENCE_2" -gt 0 ] && [ "$NXLOCK_FENCE_3" -gt 0 ] && echo fences
        nxlock status --json job b a; nxlock renew b "$NXLOCK_TOKEN_2" --ttl 1m && echo proven
        env | grep -c '^NXLOCK.*_4='"#;
    let done = authority.nxlock(["run", "job", "--also", "b", "--also", "a", "-c", script]).run();
    let text = done.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..2], ["3 job b a lock:b", "fences"], "{}", done.both());
    assert_eq!(lines[2].matches(r#""state":"held""#).count(), 3, "{text}");
    assert_eq!(lines[3..], ["proven", "0"], "{}", done.both());
    assert!(are_free(authority, &["job", "b", "a"]));
}

pub fn if_one_is_held_nothing_is_taken(authority: &impl Authority) {
    let token = authority.nxlock(["acquire", "b", "--ttl", "10m", "--reason", "freeze"]).run().exits(0).token();
    let words = ["run", "a", "--also", "job", "--also", "b"];
    let refused = authority.nxlock(words.iter().chain(&["-n", "--", "true"])).run().exits(75).prints("");
    refused.says("\"b\" is held").says("freeze").says("--break");
    assert!(are_free(authority, &["a", "job"]));
    let in_vain = ["--json"].iter().chain(&words).chain(&["-w", "300ms", "--", "true"]);
    let refused = answered(|| authority.nxlock(in_vain.clone())).exits(75);
    assert!(refused.stderr.contains(r#""name":"b""#), "{}", refused.both());
    assert!(are_free(authority, &["a", "job"]));
    authority.nxlock(["release", "b", &token]).run().exits(0);
}

pub fn the_earlier_ones_are_kept_while_a_later_one_is_waited_for(authority: &impl Authority) {
    let token = authority.nxlock(["acquire", "job", "--ttl", "10m"]).run().exits(0).token();
    let mut waits = authority.nxlock(["run", "job", "--also", "a", "--ttl", "6s", "--", "echo", "ran"]).start();
    waits.says("waiting for \"job\"");
    let id = id_of(authority, "a");
    let left = || authority.nxlock(["status", "--json", "a"]).run().json()[0]["ttl_ms"].as_u64().expect("it is held");
    let mut before = left();
    eventually("its lease is renewed", || {
        let left = left();
        std::mem::replace(&mut before, left) < left
    });
    assert_eq!(id_of(authority, "a"), id);
    authority.nxlock(["run", "a", "-n", "--", "true"]).run().exits(75);
    authority.nxlock(["release", "job", &token]).run().exits(0);
    waits.finish().exits(0).prints("ran\n");
    assert!(are_free(authority, &["a", "job"]));
}

pub fn a_waiter_for_several_that_is_told_to_leave_leaves_nothing(authority: &impl Authority) {
    let token = authority.nxlock(["acquire", "job", "--ttl", "10m"]).run().exits(0).token();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut waits = authority.nxlock(["run", "z", "--also", "job", "--also", "a", "--", "true"]).start();
        waits.says("waiting for \"job\"");
        assert_eq!(states(authority, &["a", "job", "z"]), ["held", "held", "free"]);
        waits.signal(signal);
        waits.finish().dies_of(signal);
        assert!(are_free(authority, &["a", "z"]));
    }
    authority.nxlock(["release", "job", &token]).run().exits(0);
    assert!(are_free(authority, &["job"]), "and nobody waits");
}

pub fn one_that_is_lost_while_another_is_waited_for_ends_the_wait(authority: &impl Authority) {
    let token = authority.nxlock(["acquire", "job", "--ttl", "10m"]).run().exits(0).token();
    let mut waits =
        authority.nxlock(["run", "job", "--also", "b", "--also", "a", "--ttl", "3s", "--", "echo", "ran"]).start();
    waits.says("waiting for \"job\"");
    breaks(authority, "b");
    waits.finish().exits(76).prints("").says("\"b\" was lost");
    assert!(are_free(authority, &["a", "b"]));
    authority.nxlock(["release", "job", &token]).run().exits(0);
}

pub fn the_loss_of_one_stops_the_command_and_gives_back_all(authority: &impl Authority) {
    for name in ["job", "a", "b"] {
        let running = holding(authority, &["--also", "b", "--also", "a", "--ttl", "12s"]);
        breaks(authority, name);
        running.finish().exits(76).says(&format!("\"{name}\" is lost")).says("stopping the command");
        assert!(are_free(authority, &["job", "a", "b"]));
    }
}

pub fn all_are_given_back_if_nxlock_is_killed(authority: &impl Authority) {
    let running = holding(authority, &["--also", "b", "--also", "a"]);
    running.signal(Signal::SIGKILL);
    eventually("the guard has given back all", || are_free(authority, &["job", "a", "b"]));
}

pub fn only_the_first_stays_locked_for_at_least_as_long_as_asked_for(authority: &impl Authority) {
    let words = ["run", "job", "--also", "a", "--at-least", "10m"];
    authority.nxlock(words.iter().chain(&["--", "true"])).run().exits(0);
    assert_eq!(states(authority, &["a", "job"]), ["free", "held"]);
    breaks(authority, "job");
    let mut killed = authority.nxlock(words.iter().chain(&["-c", "echo up; sleep 600"])).start();
    killed.line("up");
    killed.signal(Signal::SIGKILL);
    eventually("the guard has given back the other", || states(authority, &["a", "job"]) == ["free", "held"]);
    breaks(authority, "job");
}

pub fn a_script_holds_several_until_one_is_released(authority: &impl Authority) {
    let script = r#"eval "$(nxlock acquire job --while-pid $$ --also b --also a --export)"
        echo "$NXLOCK_COUNT $NXLOCK_NAME_2 $NXLOCK_NAME_3"; nxlock status --json job b a
        nxlock run b -n -- true; echo $?
        nxlock release b "$NXLOCK_TOKEN_2"; echo $?; nxlock status --json job b a; exit 0"#;
    let done = authority.sh(script, &[]).run().exits(0).says("already held by this script");
    let text = done.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "3 b a", "{}", done.both());
    assert_eq!(lines[1].matches(r#""state":"held""#).count(), 3, "{}", done.both());
    assert_eq!(lines[2..4], ["75", "0"], "{}", done.both());
    assert_eq!(lines[4].matches(r#""state":"free""#).count(), 3, "{}", done.both());
}

pub fn a_script_that_ends_frees_all(authority: &impl Authority) {
    let script = r#"nxlock acquire job --while-pid $$ --also b >"$OUT"; nxlock status --json job b"#;
    let out = authority.directory().join("out");
    let done = authority.sh(script, &[]).env("OUT", &out).run().exits(0);
    assert_eq!(done.text().matches(r#""state":"held""#).count(), 2, "{}", done.both());
    assert!(text_of(&out).starts_with("nx1:") && text_of(&out).lines().count() == 1);
    eventually("the keeper has given back all", || are_free(authority, &["job", "b"]));
}

pub fn a_script_is_told_of_the_loss_of_one_and_has_none_then(authority: &impl Authority) {
    let script = r#"trap 'echo told; nxlock status --json job b a; exit' TERM
        eval "$(nxlock acquire job --while-pid $$ --also b --also a --ttl 12s --export)"; echo up
        while :; do sleep 0.05; done"#;
    let mut running = authority.sh(script, &[]).start();
    running.line("up");
    breaks(authority, "b");
    running.line("told");
    running.finish().exits(0);
    eventually("all are free", || are_free(authority, &["job", "b", "a"]));
}

pub fn within_a_run_none_of_its_locks_is_waited_for(authority: &impl Authority) {
    let script = r#"nxlock run b -- true; echo $?; nxlock run c --also a -- true; echo $?
        nxlock run c -- sh -c 'echo "$NXLOCK_NAME ${NXLOCK_COUNT-none} ${NXLOCK_NAME_2-none} ${NXLOCK_TOKEN_3-none}"'"#;
    let done = authority.nxlock(["run", "job", "--also", "b", "--also", "a", "-c", script]).run().exits(0);
    assert_eq!(done.text(), "75\n75\nc none none none\n", "{}", done.both());
    done.says("\"b\" is already held by this script").says("\"a\" is already held by this script");
}

/// The holder of `a` waits for the run, and the run would wait for it.
pub fn within_a_run_nothing_is_waited_for_together_with_its_lock(authority: &impl Authority) {
    let token = authority.nxlock(["acquire", "a", "--ttl", "10m"]).run().exits(0).token();
    let script = "nxlock run a --also job -- true; echo $?; nxlock run b --also job --also a -- true; echo $?";
    let done = authority.nxlock(["run", "job", "-c", script]).run().exits(0).prints("75\n75\n");
    done.says("\"job\" is already held by this script");
    assert!(are_free(authority, &["b", "job"]));
    // A run that holds another lock is in nobody's way.
    let mut outer = authority.nxlock(["run", "outer", "-c", "nxlock run a --also job --ttl 12s -- echo ran"]).start();
    outer.says("waiting for \"a\"");
    authority.nxlock(["release", "a", &token]).run().exits(0);
    outer.finish().exits(0).prints("ran\n");
}

pub fn who_asks_in_another_order_waits_in_no_circle(authority: &impl Authority) {
    let script = r#"echo "$1 in" >> "$LOG"; sleep 0.05; echo "$1 out" >> "$LOG""#;
    let log = authority.directory().join("log");
    let orders = [["job", "b", "a"], ["b", "a", "job"], ["a", "job", "b"]];
    let run = |(who, [first, second, third]): (usize, [&str; 3])| {
        let words = ["run", first, "--also", second, "--also", third, "--", "sh", "-c", script, "sh"];
        authority.nxlock(words.iter().copied().chain([who.to_string().as_str()])).env("LOG", &log).start()
    };
    let running: Vec<Running> = (0..9).map(|who| run((who, orders[who % 3]))).collect();
    for one in running {
        one.finish().exits(0);
    }
    let text = text_of(&log);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 18, "{text}");
    let is_pair = |pair: &[&str]| pair[0].split_once(' ').unzip().0 == pair[1].split_once(' ').unzip().0;
    assert!(lines.chunks(2).all(is_pair), "two at once:\n{text}");
    assert!(are_free(authority, &["job", "a", "b"]));
}

pub fn deploys_share_what_a_freeze_holds_alone(authority: &impl Authority) {
    let mut api = Turn::had(authority, &["--also-shared", "prod"]);
    let web = ["run", "web", "--also-shared", "prod", "-n", "--", "echo", "ran"];
    authority.nxlock(web).run().exits(0).prints("ran\n");
    let freeze = ["acquire", "prod", "--ttl", "10m"];
    authority.nxlock(freeze.iter().chain(&["-n"])).run().exits(75);
    let waits = authority.nxlock(freeze).start();
    eventually("the freeze waits", || {
        let document = authority.nxlock(["status", "--json", "prod"]).run().json();
        document[0]["queue"].as_array().is_some_and(|queue| queue.len() == 1)
    });
    api.is_told();
    api.finish().exits(0);
    let token = waits.finish().exits(0).token();
    authority.nxlock(web).run().exits(75).says("\"prod\" is held");
    authority.nxlock(["release", "prod", &token]).run().exits(0);
    authority.nxlock(web).run().exits(0).prints("ran\n");
}

pub fn a_recorded_run_of_several_is_recorded_under_the_first(authority: &impl Authority) {
    authority.nxlock(["run", "job", "--also", "b", "--record", "--", "true"]).run().exits(0);
    let histories = authority.nxlock(["status", "--history", "--json", "job", "b"]).run().exits(0).json();
    let outcomes: Vec<usize> =
        histories.as_array().unwrap().iter().map(|lock| lock["history"].as_array().unwrap().len()).collect();
    assert_eq!(outcomes, [1, 0], "{histories}");
    let again = ["run", "job", "--also", "b", "--record", "--unless-done", "1h", "--", "echo", "ran"];
    authority.nxlock(again).run().exits(75).prints("");
    assert!(are_free(authority, &["job", "b"]));
}

pub fn asking_for_one_of_several_stops_the_command(authority: &impl Authority) {
    let running = holding(authority, &["--also", "b", "--ttl", "12s"]);
    let asked = authority.nxlock(["release", "b", "--ask", &id_of(authority, "b"), "--wait", "20s"]).run();
    asked.exits(0).says("no longer holds \"b\"");
    running.finish().exits(143).says("asked to give up \"b\"");
    assert!(are_free(authority, &["job", "b"]));
}

pub fn asking_for_one_that_is_not_in_use_yet_frees_all(authority: &impl Authority) {
    let token = authority.nxlock(["acquire", "job", "--ttl", "10m"]).run().exits(0).token();
    let mut waits = authority.nxlock(["run", "job", "--also", "b", "--also", "a", "--ttl", "3s", "--", "true"]).start();
    waits.says("waiting for \"job\"");
    let asked = authority.nxlock(["release", "b", "--ask", &id_of(authority, "b"), "--wait", "20s"]).run();
    asked.exits(0).says("no longer holds \"b\"");
    waits.finish().dies_of(Signal::SIGTERM).prints("").says("asked to give up \"b\"");
    assert!(are_free(authority, &["a", "b"]));
    authority.nxlock(["release", "job", &token]).run().exits(0);
}

pub fn a_newer_run_of_several_takes_over_from_an_older_one(authority: &impl Authority) {
    let running = ["--also", "z", "--supersede=running", "--ttl", "12s"];
    let older = holding(authority, &running);
    let words = ["run", "job"].iter().chain(&running).chain(&["--", "echo", "ran"]);
    let newer = authority.nxlock(words).run().exits(0).prints("ran\n");
    newer.says("asked").says("to give up \"job\"");
    older.finish().exits(143).says("\"job\": superseded by").says("stopping the command");
    assert!(are_free(authority, &["job", "z"]));
}

/// It has the one that the newer run wants, and would do what is out of date.
pub fn a_newer_run_takes_over_from_one_that_waits_for_another_lock(authority: &impl Authority) {
    let token = authority.nxlock(["acquire", "z", "--ttl", "10m"]).run().exits(0).token();
    let running = ["--supersede=running", "--ttl", "3s"];
    let words = ["run", "job", "--also", "z"].iter().chain(&running).chain(&["--", "echo", "late"]);
    let mut older = authority.nxlock(words).start();
    older.says("waiting for \"z\"");
    let words = ["run", "job"].iter().chain(&running).chain(&["--", "echo", "ran"]);
    authority.nxlock(words).run().exits(0).prints("ran\n");
    older.finish().dies_of(Signal::SIGTERM).prints("").says("\"job\": superseded by").says("nothing is started");
    authority.nxlock(["release", "z", &token]).run().exits(0);
    assert!(are_free(authority, &["job", "z"]));
}
