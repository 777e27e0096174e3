//! Processes that outlive a command which ended by itself: left, waited for, or stopped.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::turns::{Turn, break_it, is_free};
use crate::support::{Authority, Local, Redis, Running, Terminal, children_of, eventually, is_alive, name_of, send};

/// Leaves an orphan in a session of its own behind, and exits with 3. The orphan runs until there is a file `$STOP`,
/// and ignores TERM, HUP and INT if `$DEAF` is set.
const LEAVES: &str = r#"( setsid sh -c '[ -z "$DEAF" ] || trap "" TERM HUP INT
    echo left $$; : > "$STOP.up"; while [ ! -e "$STOP" ]; do sleep 0.02; done; echo gone' & )
    while [ ! -e "$STOP.up" ]; do sleep 0.02; done; exit 3"#;

struct Left<'a, A: Authority> {
    authority: &'a A,
    running: Running,
    pid: i32,
}

fn left_by<'a, A: Authority>(authority: &'a A, options: &[&str], deaf: &str) -> Left<'a, A> {
    let _ = std::fs::remove_file(authority.directory().join("stop.up"));
    let args = ["run", "job", "--ttl", "6s"].iter().chain(options).chain(&["-c", LEAVES]).copied();
    let call = authority.nxlock(args).env("STOP", authority.directory().join("stop")).env("DEAF", deaf);
    let mut running = call.start();
    let pid = running.line("left ").parse().unwrap();
    Left { authority, running, pid }
}

impl<A: Authority> Left<'_, A> {
    fn is_let_go(&self) {
        std::fs::write(self.authority.directory().join("stop"), "").unwrap();
    }

    /// Asserts that the process outlives the lease, and that nxlock keeps the lock.
    fn is_waited_for(&mut self) {
        let held = || !is_free(self.authority);
        let lasted = crate::support::now();
        eventually("more than a lease goes by", || {
            assert!(held() && is_alive(self.pid), "the lock was not kept");
            lasted.elapsed() > Duration::from_millis(6500)
        });
        assert!(!self.running.has_ended());
    }

    /// Waits until nxlock knows that the command has ended, and returns the guard.
    fn outlives_the_command(&self) -> i32 {
        let is_guard = |pid: &i32| name_of(*pid) == "nx-guard";
        let guard = children_of(self.running.pid()).into_iter().find(is_guard).expect("it has a guard");
        // The guard reaps the command once nxlock knows how it has ended.
        eventually("the command has ended", || children_of(guard) == [self.pid]);
        guard
    }
}

#[test]
fn by_default_it_is_left_and_the_lock_goes_at_once() {
    for options in [&[][..], &["--descendants", "leave"]] {
        let redis = Redis::start();
        let mut left = left_by(&redis, options, "");
        eventually("the command has ended", || left.running.has_ended());
        assert!(is_free(&redis) && is_alive(left.pid));
        left.running.finish().exits(3).says_nothing();
    }
}

fn a_lock_is_kept_until_the_last_has_gone(authority: &impl Authority) {
    let mut left = left_by(authority, &["--descendants", "wait"], "");
    left.is_waited_for();
    left.is_let_go();
    left.running.finish().exits(3).says_nothing();
    assert!(is_free(authority) && !is_alive(left.pid));
}

#[test]
fn waited_for_it_keeps_the_lock_which_is_renewed() {
    // At the same time: each takes longer than a lease.
    std::thread::scope(|scope| {
        scope.spawn(|| a_lock_is_kept_until_the_last_has_gone(&Redis::start()));
        scope.spawn(|| a_lock_is_kept_until_the_last_has_gone(&Local::start()));
    });
}

/// Kills the guard of a run that waits for what its command has left, or stops it.
fn its_guard_is_killed<A: Authority>(left: &Left<'_, A>) {
    send(left.outlives_the_command(), Signal::SIGKILL);
}

fn unguarded_it_is_killed_before_the_next_starts(authority: &impl Authority) {
    for options in [&["--descendants", "wait"][..], &["--descendants", "stop", "--kill-after", "1h"]] {
        let left = left_by(authority, &[options, &["--record"]].concat(), "1");
        its_guard_is_killed(&left);
        let next = Turn::had(authority, &[]);
        assert!(!is_alive(left.pid), "the next one runs beside what was left");
        next.leaves();
        left.running.finish().exits(70).says("its guard (process ").says("killing what the command has left");
        let history = authority.nxlock(["status", "job", "--history", "--json"]).run().json();
        assert_eq!(history[0]["history"][0]["signal"], 9, "{history}");
    }
}

#[test]
fn what_is_waited_for_or_being_stopped_is_killed_if_the_guard_is() {
    unguarded_it_is_killed_before_the_next_starts(&Redis::start());
    unguarded_it_is_killed_before_the_next_starts(&Local::start());
}

#[test]
fn nothing_is_waited_for_where_nothing_is_left() {
    let redis = Redis::start();
    for what in ["wait", "stop"] {
        redis.nxlock(["run", "job", "--descendants", what, "-c", "sleep 0 & exit 4"]).run().exits(4).says_nothing();
    }
}

#[test]
fn stopped_it_is_gone_before_the_next_starts_and_the_status_is_the_commands_own() {
    let redis = Redis::start();
    let left = left_by(&redis, &["--descendants", "stop"], "");
    left.running.finish().exits(3).says_nothing();
    assert!(is_free(&redis) && !is_alive(left.pid));
}

#[test]
fn what_is_deaf_to_term_is_killed() {
    let redis = Redis::start();
    let left = left_by(&redis, &["--descendants", "stop", "--kill-after", "200ms"], "1");
    left.running.finish().exits(3);
    assert!(is_free(&redis) && !is_alive(left.pid));
}

#[test]
fn a_time_limit_is_for_what_is_waited_for_too() {
    let redis = Redis::start();
    let left = left_by(&redis, &["--descendants", "wait", "--time-limit", "2s"], "");
    left.running.finish().exits(124).says("time limit");
    assert!(is_free(&redis) && !is_alive(left.pid));
}

#[test]
fn told_to_stop_while_it_waits_it_stops_what_is_left() {
    let stops = |signal: Signal| {
        let redis = Redis::start();
        let mut left = left_by(&redis, &["--descendants", "wait"], "1");
        left.is_waited_for();
        left.running.signal(signal);
        left.running.finish().exits(3);
        assert!(is_free(&redis) && !is_alive(left.pid), "{signal}");
    };
    // At the same time: each takes longer than a lease.
    std::thread::scope(|scope| {
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            scope.spawn(move || stops(signal));
        }
    });
}

#[test]
fn a_lock_that_is_lost_meanwhile_stops_it() {
    let redis = Redis::start();
    let left = left_by(&redis, &["--descendants", "wait"], "1");
    left.outlives_the_command();
    break_it(&redis);
    left.running.finish().exits(76).says("lost");
    assert!(!is_alive(left.pid));
}

#[test]
fn at_a_terminal_ctrl_c_ends_the_wait() {
    let redis = Redis::start();
    // Without job control a shell starts background processes with INT ignored.
    let script = "sleep 300 & echo left $!; exit 3";
    let call = redis.nxlock(["run", "job", "--descendants", "wait", "-v", "-c", script]);
    let mut terminal = Terminal::start(call);
    terminal.shows("waiting for what it has left behind");
    terminal.types("\x03");
    terminal.exits(3);
    assert!(is_free(&redis));
}
