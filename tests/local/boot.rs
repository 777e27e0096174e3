//! After a reboot nothing is held, and nobody waits.

use std::fs;

use nix::sys::signal::Signal;

use crate::support::line::{Turn, acquire, is_free, queue, release, standing};
use crate::support::record::{field, with};
use crate::support::{Authority, Local, eventually};

/// The id of some other boot.
const ANOTHER: &str = "01234567-89ab-4cde-8f01-23456789abcd";

/// Leaves the files of a lock as they were in another boot, when it was held and two stood in line.
fn left_by_another_boot(local: &Local, values: &[(&str, &str)]) -> String {
    let token = acquire(local, "1h");
    let waiters = [Turn::queued(local, &[]), Turn::queued(local, &[])];
    let files = [local.file("lock"), local.file("line")];
    let [record, line] = files.each_ref().map(|file| fs::read(file).unwrap());
    for mut waiter in waiters {
        waiter.running.signal(Signal::SIGKILL);
        eventually("it is dead", || waiter.running.has_ended());
    }
    release(local, &token);
    let values: Vec<_> = [("boot", ANOTHER)].iter().chain(values).copied().collect();
    fs::write(&files[0], with(&record, &values)).unwrap();
    fs::write(&files[1], line).unwrap();
    token
}

#[test]
fn what_was_held_is_free_and_who_waited_is_forgotten() {
    let local = Local::start();
    let token = left_by_another_boot(&local, &[]);
    assert!(is_free(&local) && queue(&local).is_empty());
    assert_eq!(local.nxlock(["--json", "status", "job"]).run().exits(1).json()[0]["state"], "free");
    for verb in [&["renew", "job", &token, "--ttl", "1h"][..], &["release", "job", &token]] {
        local.nxlock(verb.iter().copied()).run().exits(76);
    }
    local.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
    assert_ne!(field(&fs::read(local.file("lock")).unwrap(), "boot"), ANOTHER);
}

#[test]
fn who_comes_to_wait_does_not_wait_for_those_of_another_boot() {
    let local = Local::start();
    left_by_another_boot(&local, &[]);
    let holder = Turn::had(&local, &[]);
    let waiter = Turn::queued(&local, &[]);
    assert_eq!(queue(&local), [waiter.pid()]);
    holder.leaves();
    waiter.leaves();
}

#[test]
fn the_fence_rises_above_that_of_another_boot() {
    let local = Local::start();
    // Later than the clock, as after a step back.
    left_by_another_boot(&local, &[("fence", "9000000000000000")]);
    let fence = local.nxlock(["run", "job", "-c", "echo $NXLOCK_FENCE"]).run().exits(0).text();
    assert_eq!(fence, "9000000000000001\n");
}

#[test]
fn neither_a_process_nor_a_promise_of_another_boot_is_found_again() {
    // The process may have the number of one that runs now, and started as long after boot.
    let local = Local::start();
    let mut other = Turn::had(&local, &["--prefix", "other:"]);
    let process = field(&fs::read(local.locks().join("other:job.lock")).unwrap(), "process");
    left_by_another_boot(&local, &[("process", &process)]);
    assert!(is_free(&local));
    left_by_another_boot(&local, &[("process", &process), ("until_us", "18000000000000000000")]);
    assert!(is_free(&local));
    // Put aside for a waiter of then.
    left_by_another_boot(&local, &[("reserved_for", "1")]);
    assert_eq!(standing(&local)["state"], "free");
    local.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
    other.is_told();
    other.leaves();
}
