//! A run within a run of the same name would wait for itself.

use std::time::Duration;

use serde_json::Value;

use crate::support::line::queue;
use crate::support::{Done, Redis};

fn within_job(redis: &Redis, script: &str) -> Done {
    redis.nxlock(["run", "job", "-c", script]).run()
}

const HELD: &str = "\"job\" is already held by this script";

#[test]
fn asking_again_within_a_run_fails_at_once() {
    let redis = Redis::start();
    for again in [
        "nxlock run job -- echo ran",
        "nxlock run job -w 1h -- echo ran",
        "nxlock run job -n -- echo ran",
        "nxlock run job --no-queue -- echo ran",
        "nxlock acquire job --ttl 1m",
        "nxlock acquire job --ttl 1m -w 1h",
    ] {
        // The last command's status is the script's.
        let done = within_job(&redis, again).exits(75).prints("").says(HELD);
        done.within(Duration::from_secs(1));
        within_job(&redis, &format!("{again}; echo went on")).exits(0).prints("went on\n").says(HELD);
    }
}

#[test]
fn the_status_for_it_can_be_chosen_too() {
    let redis = Redis::start();
    within_job(&redis, "nxlock run job -E 9 -- echo ran").exits(9).prints("").says(HELD);
    within_job(&redis, "nxlock acquire job --ttl 1m -E 0").exits(0).prints("").says(HELD);
}

#[test]
fn another_name_within_a_run_works() {
    let redis = Redis::start();
    let script = "nxlock run other -c 'echo $NXLOCK_NAME' && nxlock acquire third --ttl 1m > token \
                  && nxlock release third - < token && rm token && echo $NXLOCK_NAME";
    let call = redis.nxlock(["run", "job", "-c", script]).in_directory(&redis.directory());
    call.run().exits(0).prints("other\njob\n").says_nothing();
}

#[test]
fn two_levels_down_both_names_are_known() {
    let redis = Redis::start();
    for again in ["job", "inner"] {
        let script = format!("nxlock run inner -c 'nxlock run {again} -- echo ran'");
        let done = within_job(&redis, &script).exits(75).prints("");
        done.says(&format!("\"{again}\" is already held by this script")).within(Duration::from_secs(1));
    }
    within_job(&redis, "nxlock run inner -c 'nxlock run third -- echo ran'").exits(0).prints("ran\n");
    // And when the inner one is over, the outer one still is.
    within_job(&redis, "nxlock run inner true; nxlock run job -- echo ran").exits(75).prints("").says(HELD);
}

#[test]
fn a_program_is_told_that_it_is_nested() {
    let redis = Redis::start();
    let done = within_job(&redis, "nxlock --json acquire job --ttl 1m").exits(75);
    let document = done.json();
    assert_eq!((&document["outcome"], &document["nested"]), (&Value::from("held"), &Value::from(true)), "{document}");
    let done = within_job(&redis, "nxlock --json run job -- echo ran").exits(75).prints("");
    let document: Value = serde_json::from_str(done.stderr.trim()).unwrap();
    assert_eq!(document["nested"], true, "{document}");
    let done = within_job(&redis, "nxlock run other -c 'nxlock --json run job -n true'").exits(75);
    let document: Value = serde_json::from_str(done.stderr.trim()).unwrap();
    assert_eq!(document["nested"], true, "{document}");
    // And where it is not, that too.
    redis.nxlock(["run", "other", "-c", "nxlock acquire job --ttl 1m >token"]).in_directory(&redis.directory()).run();
    let document = redis.nxlock(["--json", "acquire", "job", "--ttl", "1m", "-n"]).run().exits(75).json();
    assert_eq!(document["nested"], false, "{document}");
    let token = std::fs::read_to_string(redis.directory().join("token")).unwrap();
    redis.nxlock(["release", "job", token.trim()]).run().exits(0);
}

#[test]
fn what_stands_in_the_variable_is_believed_only_if_it_holds_the_lock() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().token();
    let old = redis.nxlock(["acquire", "other", "--ttl", "1m"]).run().token();
    redis.nxlock(["release", "other", &old]).run().exits(0);
    for held in ["", " ", "nonsense", &old, &format!("{old} \u{e9}")] {
        let call = redis.nxlock(["run", "job", "-w", "100ms", "--", "echo", "ran"]).env("NXLOCK_HELD", held);
        call.run().exits(75).prints("").never_says("already held by this script").says("held by somebody else");
    }
    // A script that took the lock by `acquire` may say so itself.
    let call = redis.nxlock(["run", "job", "--", "echo", "ran"]).env("NXLOCK_HELD", format!("{old} {token}"));
    call.run().exits(75).prints("").says(HELD);
    assert!(queue(&redis).is_empty(), "nobody stood in line for it");
    redis.nxlock(["release", "job", &token]).run().exits(0);
}
