//! Signals that coincide with the grant, with another signal, or with a resume from suspend.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::turns::{Turn, acquire, is_free, is_queued};
use crate::support::{Authority, Local, Redis, Running, eventually, is_alive, lasts, state_of};

/// Signals a waiter at about the time of its grant, a little later in each round.
fn signalled_with_the_grant(
    authority: &impl Authority,
    (signal, ttl): (Signal, &str),
    rounds: u64,
    check: impl Fn(Running),
) {
    for round in 0..rounds {
        let token = acquire(authority, "10m");
        let waiter = authority.nxlock(["run", "job", "-t", ttl, "-c", "exec sleep 300"]).start();
        is_queued(authority, waiter.pid());
        let release = authority.nxlock(["release", "job", &token]).start();
        // The timing itself is under test.
        lasts(Duration::from_micros(6_000 * round / rounds));
        waiter.signal(signal);
        release.finish().exits(0);
        check(waiter);
    }
}

fn nothing_is_started_or_what_was_is_stopped(authority: &impl Authority, rounds: u64) {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signalled_with_the_grant(authority, (signal, "10m"), rounds, |mut waiter| {
            eventually(&format!("{signal} ends it"), || waiter.has_ended());
            assert_eq!(waiter.descendants(), [0; 0], "{signal}");
            let done = waiter.finish();
            let by_signal = std::os::unix::process::ExitStatusExt::signal(&done.status) == Some(signal as i32);
            assert!(by_signal || done.status.code() == Some(128 + signal as i32), "{signal}: {}", done.both());
            assert!(is_free(authority), "{signal}");
        });
    }
}

#[test]
fn a_signal_that_comes_with_the_grant_is_not_lost() {
    nothing_is_started_or_what_was_is_stopped(&Redis::start(), 12);
}

#[test]
fn a_signal_that_comes_with_the_grant_of_a_local_lock_is_not_lost() {
    nothing_is_started_or_what_was_is_stopped(&Local::start(), 24);
}

#[test]
fn a_kill_that_comes_with_the_grant_leaves_no_command_behind() {
    fn try_it(authority: &impl Authority, rounds: u64) {
        signalled_with_the_grant(authority, (Signal::SIGKILL, "1s"), rounds, |mut waiter| {
            eventually("it is killed", || waiter.has_ended());
            eventually("nothing of it runs", || waiter.descendants().is_empty());
            eventually("the lock is free", || is_free(authority));
        });
    }
    try_it(&Local::start(), 16);
    let redis = Redis::start();
    try_it(&redis, 4);
    // What the server stores about a killed waiter expires, but later than this test ends.
    redis.leave_as_it_is();
}

#[test]
fn of_two_signals_that_come_at_once_neither_is_in_the_way_of_the_other() {
    let local = Local::start();
    for pair in [
        [Signal::SIGTERM, Signal::SIGINT],
        [Signal::SIGHUP, Signal::SIGTERM],
        [Signal::SIGINT, Signal::SIGQUIT],
        [Signal::SIGTSTP, Signal::SIGTERM],
        [Signal::SIGUSR1, Signal::SIGTERM],
    ] {
        let script = "ulimit -c 0; trap 'echo usr' USR1; sleep 300 & echo up; wait; wait";
        let mut running = local.nxlock(["run", "job", "-c", script]).start();
        running.line("up");
        // Both signals are pending before nxlock can read either.
        running.signal(Signal::SIGSTOP);
        eventually("it is stopped", || state_of(running.pid()) == Some('T'));
        pair.iter().for_each(|signal| running.signal(*signal));
        running.signal(Signal::SIGCONT);
        eventually("it suspends itself again, or ends", || {
            if state_of(running.pid()) == Some('T') {
                running.signal(Signal::SIGCONT);
            }
            running.has_ended()
        });
        assert_eq!(running.descendants(), [0; 0], "{pair:?}");
        let done = running.finish();
        let statuses = pair.map(|signal| 128 + signal as i32);
        assert!(done.status.code().is_some_and(|status| statuses.contains(&status)), "{pair:?}: {:?}", done.status);
        assert!(is_free(&local), "{pair:?}");
    }
}

#[test]
fn a_kill_on_top_of_a_term_leaves_no_command_behind() {
    let local = Local::start();
    let script = "trap 'echo told' TERM; echo pid $$; while :; do sleep 300 & wait; done";
    let mut running = local.nxlock(["run", "job", "-c", script]).start();
    let pid: i32 = running.line("pid ").parse().unwrap();
    running.signal(Signal::SIGTERM);
    running.line("told");
    running.signal(Signal::SIGKILL);
    eventually("the command is gone", || !is_alive(pid));
    // A local lock is held while any process that the command started exists.
    eventually("the lock is free", || is_free(&local));
    running.finish().dies_of(Signal::SIGKILL);
}

#[test]
fn what_wakes_us_for_a_deadline_counts_the_machines_sleep() {
    let redis = Redis::start();
    let mut holder = Turn::had(&redis, &["-v"]);
    let timers = |pid: i32| -> Vec<String> {
        let entries = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten();
        let told = entries.map(|entry| std::fs::read_to_string(entry.path()).unwrap_or_default());
        let clocks = told.filter_map(|info| Some(info.lines().find_map(|line| line.strip_prefix("clockid: "))?.into()));
        clocks.collect()
    };
    // Every timer uses CLOCK_BOOTTIME, before the first renewal and after it. That comes a tenth of a second after the
    // grant, and may have come by now.
    let before = timers(holder.pid());
    assert!(!before.is_empty() && before.iter().all(|clock| clock == "7"), "{before:?}");
    holder.running.says("renewed for");
    let later = timers(holder.pid());
    assert!(later.len() > 1 && later.iter().all(|clock| clock == "7"), "{later:?}");
    holder.leaves();
}

#[test]
fn in_a_time_namespace_a_lease_ends_when_it_does_elsewhere() {
    let redis = Redis::start();
    // The boot clock is eleven days ahead of every other clock: no deadline may be computed on one clock and waited for
    // on another. Where a namespace is not permitted, the clocks agree.
    let script = r#"for how in --fork --map-root-user; do
            if unshare "$how" --fork --time --boottime 1000000 true 2>/dev/null; then
                exec unshare "$how" --fork --time --boottime 1000000 sh -c "$1"
            fi
        done
        exec sh -c "$1""#;
    let inside = "exec nxlock -v run job -t 3s -c 'echo up; exec sleep 300'";
    let mut running = redis.sh(script, &[inside]).start();
    running.line("up");
    running.says("renewed for");
    redis.hang();
    running.says("could not be renewed in time");
    redis.resume();
    running.finish().exits(76);
    eventually("the server has heard all that was said", || redis.others_connected() == 0);
    eventually("the lease has ended", || !redis.exists("lock:job"));
}

#[test]
fn a_waiter_frozen_beyond_its_grant_starts_nothing() {
    let local = Local::start();
    let holder = Turn::had(&local, &[]);
    let waiter = Turn::queued(&local, &["-t", "200ms"]);
    waiter.freeze();
    waiter.running.signal(Signal::SIGINT);
    waiter.running.signal(Signal::SIGTERM);
    holder.leaves();
    waiter.goes_on();
    // The second signal skips the cleanup, so the waiter may die of either.
    let done = waiter.running.finish().prints("");
    assert!(done.status.code().is_none(), "{:?}", done.status);
    eventually("the lock is free", || is_free(&local));
}
