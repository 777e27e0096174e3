//! Waiters sleep until the kernel wakes them.

use std::collections::HashSet;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;

use super::{Patient, as_long_as_it_goes_on};
use crate::support::turns::{Turn, break_it, queue, queue_is, turn};
use crate::support::{Authority, Local, eventually, may_unshare, now, text_of};

const WAITERS: usize = 300;

/// Returns the CPU time that a process has had, with that of its threads that have ended: clock_getcpuclockid(3).
fn spent(pid: i32) -> Duration {
    let clock = clock_getcpuclockid(Pid::from_raw(pid)).and_then(ClockId::now);
    clock.expect("it runs").into()
}

#[test]
fn what_a_process_has_spent_is_not_forgotten_when_one_of_its_threads_ends() {
    let us = std::process::id().cast_signed();
    let (burnt, may_end) = (mpsc::channel(), mpsc::channel::<()>());
    let thread = thread::spawn(move || {
        let began = spent(us);
        while spent(us) < began + Duration::from_millis(50) {}
        burnt.0.send(()).unwrap();
        let _ = may_end.1.recv();
    });
    burnt.1.recv().unwrap();
    let before = spent(us);
    drop(may_end.0);
    thread.join().unwrap();
    assert!(spent(us) >= before);
}

#[test]
fn three_hundred_idle_waiters_cost_nothing_and_are_served_in_order() {
    let local = Patient(Local::start());
    let log = local.directory().join("log");
    let holder = Turn::had(&local, &["--ttl", "1h"]);
    let script = r#"
        n=0
        while [ $n -lt $WAITERS ]; do
            nxlock -q run job -c 'p=${NXLOCK_TOKEN#*:*:*:}; echo ${p%%:*} $NXLOCK_FENCE >> "$LOG"' ||
                echo "a run has ended with $?" &
            n=$((n + 1))
        done
        wait"#;
    let call = local.sh(script, &[]).env("LOG", &log).env("WAITERS", WAITERS.to_string());
    let mut waiters = call.start();
    let mut line = Vec::new();
    let mut length = 0;
    while length < WAITERS {
        eventually("another one has come", || {
            line = queue(&local);
            line.len() > length
        });
        length = line.len();
    }
    let total = || line.iter().map(|pid| spent(*pid)).sum::<Duration>();
    assert!(total() > Duration::ZERO, "what they spend can be told");
    // The while may be longer than it was to be.
    let measured = |over: Duration| {
        let (began, before) = (now(), total());
        eventually("a while goes by", || began.elapsed() > over);
        (total() - before, began.elapsed())
    };
    let is_little = |(cost, of): (Duration, Duration)| cost < of / 10;
    // The last waiters may not be asleep yet.
    eventually("all sleep", || is_little(measured(Duration::from_millis(200))));
    let measured = measured(Duration::from_secs(3));
    assert!(is_little(measured), "they had {:?} of a processor in {:?}", measured.0, measured.1);

    holder.leaves();
    as_long_as_it_goes_on(&log, || waiters.has_ended());
    waiters.finish().exits(0).prints("");
    are_in_order(&text_of(&log), line);
}

/// The grace: for how long the lock is put aside for a waiter, in µs.
const GRACE: u64 = 1_000_000;

/// Asserts that all were served in the order of the line. Each has logged its pid and its fence, the time of its grant.
/// One that the machine does not run for as long as the grace loses its turn, and has it again when it asks.
#[track_caller]
fn are_in_order(log: &str, mut line: Vec<i32>) {
    let mut late = HashSet::new();
    let mut last = 0;
    for served in log.lines() {
        let (pid, fence) = served.split_once(' ').unwrap();
        let (pid, fence): (i32, u64) = (pid.parse().unwrap(), fence.parse().unwrap());
        if !late.remove(&pid) {
            let at = line.iter().position(|other| *other == pid).expect("it was in the line, and not served before");
            assert!(at == 0 || fence - last >= GRACE, "{pid} comes before {:?}:\n{log}", &line[..at]);
            late.extend(line.drain(..=at).filter(|other| *other != pid));
        }
        last = fence;
    }
    assert!(line.is_empty() && late.is_empty(), "{line:?} and {late:?} were not served:\n{log}");
}

#[test]
fn one_that_has_moved_to_the_front_sleeps_until_its_turn() {
    for ahead in [&[][..], &["--supersede"]] {
        let local = Local::start();
        let holder = Turn::had(&local, &["--ttl", "1h"]);
        let ahead = Turn::queued(&local, ahead);
        let mut waiter = Turn::queued(&local, &[]);
        ahead.running.signal(Signal::SIGTERM);
        ahead.finish().dies_of(Signal::SIGTERM);
        queue_is(&local, &[waiter.pid()]);
        sleeps(&waiter);
        holder.leaves();
        waiter.up();
        waiter.leaves();
    }
}

#[track_caller]
fn sleeps(waiter: &Turn) {
    let pid = waiter.pid();
    let measured = || {
        let (before, began) = (spent(pid), now());
        eventually("a while goes by", || began.elapsed() > Duration::from_millis(300));
        spent(pid) - before
    };
    eventually("it sleeps", || measured() < Duration::from_millis(15));
}

#[test]
fn one_that_has_asked_a_holder_to_give_up_sleeps_until_its_turn() {
    let local = Local::start();
    let holder = Turn::had(&local, &["--ttl", "1h", "--supersede=running"]);
    holder.freeze();
    let mut waiter = Turn::queued(&local, &["--supersede=running"]);
    waiter.running.says("asked ");
    sleeps(&waiter);
    holder.goes_on();
    holder.finish().exits(143);
    waiter.up();
    waiter.leaves();
}

/// Skipped where user namespaces are not permitted: there the limit is the system's, or the whole of a user's.
#[test]
fn without_a_watch_of_the_kernels_waiters_are_served_as_well() {
    let options = ["--user", "--map-root-user"];
    if !may_unshare(&options) {
        return;
    }
    let local = Local::start();
    let none = r#"echo 0 > /proc/sys/user/max_inotify_instances && exec "$@""#;
    let words = [&["unshare"], &options[..], &["sh", "-c", none, "sh"]].concat();
    let without = |options| Turn::of(local.nxlock(turn(options)).under(words.iter().copied())).once_queued(&local);
    let mut holder = Turn::had(&local, &["--ttl", "1h"]);
    let mut first = without(&["-v"]);
    let mut second = without(&["-v"]);
    first.running.says("cannot watch the files of the lock");
    // First a release, then a break.
    holder.is_told();
    first.up();
    holder.leaves();
    second.running.says("cannot watch the files of the lock");
    break_it(&local);
    second.up();
    first.running.finish().exits(76);
    let older = without(&["--supersede"]);
    let newest = without(&["--supersede"]);
    older.finish().exits(75).says("superseded by");
    second.leaves();
    let mut newest = newest;
    newest.up();
    newest.leaves();
}
