//! A process that keeps a record locked, such as one stopped at the wrong instruction. The test itself is that process.

use std::fs::{self, File};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{is_renewed_when_called, refused_to_run, takes_less_than};
use crate::support::turns::{Turn, acquire, release};
use crate::support::{Authority, Job, Local, eventually, wall};

/// Returns the record of `job`, locked until this is dropped.
fn locked(local: &Local) -> File {
    let record = File::options().read(true).write(true).open(local.file("lock")).unwrap();
    record.lock().unwrap();
    record
}

fn threads(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

#[test]
fn who_asks_is_told_in_time_that_nobody_answers() {
    let local = Local::start();
    let token = acquire(&local, "1h");
    let stuck = locked(&local);
    let verbs = [
        &refused_to_run(&["-n"])[..],
        &refused_to_run(&[]),
        &["run", "job", "--no-queue", "--", "echo", "ran"],
        &["acquire", "job", "--ttl", "1m"],
        &["renew", "job", &token, "--ttl", "1m"],
        &["release", "job", &token],
        &["status", "job"],
        &["status"],
    ];
    for verb in verbs {
        let words = ["--server-timeout", "300ms"].iter().chain(verb).copied();
        takes_less_than(Duration::from_secs(3), "it is told", || {
            let done = local.nxlock(words.clone()).run().exits(69).never_says("ran\n");
            done.says(&local.file("lock").display().to_string()).says("keeps").says("lslocks").took
        });
    }
    // Locks of other names are not delayed.
    local.nxlock(["run", "other", "-n", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
    drop(stuck);
    release(&local, &token);
}

#[test]
fn who_asks_is_answered_if_it_is_let_go_of_in_time() {
    let local = Local::start();
    let token = acquire(&local, "1h");
    let stuck = locked(&local);
    let mut asked = local.nxlock(["--server-timeout", "1m", "status", "job"]).start();
    // A second thread waits for the file lock.
    eventually("it waits", || threads(asked.pid()) > 1);
    assert!(!asked.has_ended());
    drop(stuck);
    asked.finish().exits(0);
    release(&local, &token);
}

#[test]
fn who_waits_goes_on_waiting_and_is_served() {
    let local = Local::start();
    let holder = Turn::had(&local, &["--ttl", "1h", "--server-timeout", "1m"]);
    // Each look at the queue would keep the record from the waiter, which has little time for its first request.
    let mut waiter = Turn::waiting(&local, &["-v", "--server-timeout", "200ms"]);
    let before = threads(waiter.pid());
    let stuck = locked(&local);
    let mut most = before;
    eventually("it has tried many times", || {
        most = most.max(threads(waiter.pid()));
        waiter.running.stderr().matches("keeps").count() > 4
    });
    assert!(most <= before + 2, "{most} threads, and {before} before");
    assert!(!waiter.running.has_ended() && !waiter.is_up());
    drop(stuck);
    holder.leaves();
    waiter.up();
    waiter.leaves();
}

#[test]
fn who_waits_can_be_told_to_leave() {
    let local = Local::start();
    let holder = Turn::had(&local, &["--ttl", "1h", "--server-timeout", "1m"]);
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut waiter = Turn::queued(&local, &["-v", "--server-timeout", "1m"]);
        let before = threads(waiter.pid());
        let stuck = locked(&local);
        eventually("it waits for the record", || threads(waiter.pid()) > before);
        waiter.running.signal(signal);
        eventually("it leaves", || waiter.running.has_ended());
        drop(stuck);
        waiter.running.finish().dies_of(signal);
    }
    holder.leaves();
}

#[test]
fn who_holds_it_is_stopped_before_its_lease_ends() {
    let local = Local::start();
    let mut job = Job::start(&local, &["--ttl", "4s", "--server-timeout", "500ms", "--kill-after", "200ms"]);
    is_renewed_when_called(&local.file("lock"));
    let stuck = locked(&local);
    let end = wall() + Duration::from_secs(4);
    eventually("it ends", || job.running.has_ended());
    job.is_gone_before(end);
    drop(stuck);
    job.running.finish().exits(76).says("could not be renewed in time").says("keeps");
    eventually("its lease ends", || crate::support::turns::is_free(&local));
}

#[test]
fn a_short_while_disturbs_nobody() {
    let local = Local::start();
    let mut holder = Turn::listening(&local, &["--ttl", "1m", "--server-timeout", "200ms"]);
    let renewals = |holder: &Turn| holder.running.stderr().matches("renewed for").count();
    let before = renewals(&holder);
    let stuck = locked(&local);
    // The record rings, and the holder renews its lease.
    stuck.set_modified(wall()).unwrap();
    // One renewal has timed out.
    holder.running.says("keeps");
    drop(stuck);
    eventually("the lease is renewed", || renewals(&holder) > before);
    holder.leaves();
}
