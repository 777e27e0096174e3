//! Stopping a command: time limits, and processes left behind.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::{Redis, eventually, is_alive, now, send, text_of};

/// Ignores TERM, HUP and INT, in all of its processes.
const DEAF: &str = r#"trap "" TERM HUP INT; echo up; while :; do echo beat >> "$LOG"; sleep 0.02; done"#;

#[test]
fn a_command_that_takes_too_long_is_stopped_with_124() {
    let redis = Redis::start();
    let options = ["run", "job", "-t", "1h", "--time-limit", "300ms", "--kill-after", "1h"];
    let done = redis.nxlock(options.iter().chain(&["-c", "sleep 300; exit 0"]).copied()).run().exits(124);
    assert!(done.took >= Duration::from_millis(300));
    // Nothing but the limit wakes nxlock between the first tenth of a second and the tenth second, and nothing but TERM
    // ends the command.
    done.says("time limit").within(Duration::from_secs(3));
}

#[test]
fn a_command_that_ends_in_time_knows_of_no_limit() {
    let redis = Redis::start();
    redis.nxlock(["run", "job", "--time-limit", "1m", "-c", "exit 9"]).run().exits(9).says_nothing();
}

#[test]
fn a_limit_that_took_kill_is_124_too() {
    let redis = Redis::start();
    let log = redis.directory().join("log");
    let options = ["run", "job", "--time-limit", "300ms", "--kill-after", "300ms", "-c", DEAF];
    let mut running = redis.nxlock(options).env("LOG", &log).start();
    running.says("the time limit is reached");
    let told = now();
    eventually("it ends", || running.has_ended());
    let took = told.elapsed();
    // By default, KILL comes five seconds after TERM.
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!(running.descendants(), [0; 0]);
    running.finish().exits(124);
}

#[test]
fn a_command_that_returns_something_at_its_limit_is_124_all_the_same() {
    let redis = Redis::start();
    let script = "trap 'exit 0' TERM; while :; do sleep 300 & wait; done";
    redis.nxlock(["run", "job", "--time-limit", "300ms", "-c", script]).run().exits(124);
}

#[test]
fn kill_comes_as_long_after_term_as_was_asked_for() {
    let redis = Redis::start();
    let log = redis.directory().join("log");
    let mut running = redis.nxlock(["run", "job", "--kill-after", "1s", "-c", DEAF]).env("LOG", &log).start();
    running.line("up");
    let told = now();
    running.signal(Signal::SIGTERM);
    running.finish().exits(137);
    let took = told.elapsed();
    // By default, it comes after five seconds.
    assert!((Duration::from_secs(1)..Duration::from_secs(5)).contains(&took), "{took:?}");
}

/// On a busy machine there are many other processes, and a scan of them all takes a while.
#[test]
fn what_a_command_starts_to_clean_up_is_not_told_to_stop() {
    let redis = Redis::start();
    let crowd = redis.nxlock(["run", "crowd", "-c", "for n in $(seq 300); do sleep 300 & done; echo up; wait"]);
    let mut crowd = crowd.start();
    crowd.line("up");
    let tidy = "sh -c 'trap \"echo told\" TERM; sleep 0.2; sleep 0.2; echo tidy'";
    let script = "trap \"$TIDY; exit 3\" TERM; echo up; while :; do sleep 0.01; done";
    for _ in 0..10 {
        let call = redis.nxlock(["run", "job", "--kill-after", "1m", "-c", script]);
        let mut running = call.env("TIDY", tidy).start();
        running.line("up");
        running.signal(Signal::SIGTERM);
        running.finish().exits(3).prints("up\ntidy\n");
    }
    crowd.signal(Signal::SIGTERM);
    crowd.finish().exits(143);
}

#[test]
fn kill_after_nothing_is_kill_at_once() {
    let redis = Redis::start();
    let log = redis.directory().join("log");
    let mut running = redis.nxlock(["run", "job", "--kill-after", "0s", "-c", DEAF]).env("LOG", &log).start();
    running.line("up");
    let told = now();
    running.signal(Signal::SIGTERM);
    running.finish().exits(137);
    // By default, it comes after five seconds.
    assert!(told.elapsed() < Duration::from_secs(5), "{:?}", told.elapsed());
}

/// Asserts that the next holder starts after the last process of a tree has ended: both write to one log.
fn next_holder_comes_last(redis: &Redis, stop: impl FnOnce(&crate::support::Running)) {
    let log = redis.directory().join("log");
    let tree = format!("( setsid sh -c '{DEAF}' & ) ; sleep 300");
    let mut running = redis.nxlock(["run", "job", "--kill-after", "400ms", "-c", &tree]).env("LOG", &log).start();
    running.line("up");
    let next = redis.nxlock(["run", "job", "-c", "echo next >> \"$LOG\""]).env("LOG", &log);
    let mut next = next.start();
    next.says("waiting");
    eventually("what is deaf writes", || text_of(&log).ends_with("beat\n"));
    stop(&running);
    next.finish().exits(0);
    let written = text_of(&log);
    assert!(written.ends_with("beat\nnext\n"), "something ran beside the next holder: ...{written:.60}");
    eventually("it ends", || running.has_ended());
    assert_eq!(running.descendants(), [0; 0]);
    running.finish().exits(143);
    // Nothing was written after it.
    assert!(text_of(&log).ends_with("next\n"));
}

#[test]
fn after_term_the_lock_goes_only_when_the_last_of_the_tree_is_gone() {
    next_holder_comes_last(&Redis::start(), |running| running.signal(Signal::SIGTERM));
}

#[test]
fn two_terms_are_no_more_than_one() {
    next_holder_comes_last(&Redis::start(), |running| {
        running.signal(Signal::SIGTERM);
        running.signal(Signal::SIGTERM);
        running.signal(Signal::SIGTERM);
    });
}

#[test]
fn the_command_does_not_survive_our_death() {
    let redis = Redis::start();
    let script = "echo pid $$; trap '' TERM HUP INT; exec sleep 300";
    let mut running = redis.nxlock(["run", "job", "-t", "1h", "-c", script]).start();
    let pid: i32 = running.line("pid ").parse().unwrap();
    running.signal(Signal::SIGKILL);
    eventually("the command is gone", || !is_alive(pid));
    // Granted long before the lease expires.
    redis.nxlock(["run", "job", "--", "true"]).run().exits(0);
}

#[test]
fn a_stopped_command_is_killed_all_the_same() {
    let redis = Redis::start();
    let mut running = redis.nxlock(["run", "job", "-c", "echo pid $$; kill -STOP $$; sleep 300"]).start();
    let pid: i32 = running.line("pid ").parse().unwrap();
    eventually("it has stopped itself", || crate::support::state_of(pid) == Some('T'));
    assert!(redis.exists("lock:job"), "it holds on to its lock");
    running.signal(Signal::SIGTERM);
    running.finish().exits(143);
}

#[test]
fn what_forks_while_it_is_killed_is_found_too() {
    let redis = Redis::start();
    // Only a few at a time, but always a new one.
    let script = r#"trap "" TERM; echo up
        hop() { setsid sh -c 'trap "" TERM; sleep 0.01; eval "$HOP"' & }
        HOP='[ -e "$STOP" ] || { setsid sh -c "trap \"\" TERM; sleep 0.01; eval \"\$HOP\"" & }'; export HOP
        hop; hop; sleep 300"#;
    let stop = redis.directory().join("stop");
    let mut running = redis.nxlock(["run", "job", "--kill-after", "100ms", "-c", script]).env("STOP", &stop).start();
    running.line("up");
    running.signal(Signal::SIGTERM);
    eventually("it ends", || running.has_ended());
    let left = running.descendants();
    std::fs::write(&stop, "").unwrap();
    assert_eq!(left, [0; 0]);
    running.finish().exits(137);
}

#[test]
fn a_tree_that_was_left_behind_is_not_ours_any_more() {
    let redis = Redis::start();
    let mut running = redis.nxlock(["run", "job", "-c", "sleep 300 >/dev/null 2>&1 & echo pid $!"]).start();
    let pid: i32 = running.line("pid ").parse().unwrap();
    eventually("it ends", || running.has_ended());
    assert!(is_alive(pid));
    send(pid, Signal::SIGTERM);
    eventually("it dies of what it is sent", || !is_alive(pid));
}
