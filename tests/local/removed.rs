//! Files that are removed while in use, as by a cleaner of /tmp.

use std::fs;
use std::time::Duration;

use super::is_renewed_when_called;
use crate::support::turns::{Turn, acquire, queue, release};
use crate::support::{Authority, Job, Local, eventually, wall};

#[test]
fn a_record_that_is_removed_is_a_loss_and_the_tree_is_stopped_in_time() {
    let local = Local::start();
    let mut job = Job::start(&local, &["--ttl", "12s", "--kill-after", "200ms"]);
    is_renewed_when_called(&local.file("lock"));
    fs::remove_file(local.file("lock")).unwrap();
    let end = wall() + Duration::from_secs(12);
    eventually("it ends", || job.running.has_ended());
    job.is_gone_before(end);
    job.running.finish().exits(76).says("lost");
}

#[test]
fn a_record_that_was_removed_and_made_anew_is_the_next_ones() {
    let local = Local::start();
    let holder = Turn::had(&local, &["--ttl", "1h"]);
    fs::remove_file(local.file("lock")).unwrap();
    let token = acquire(&local, "1h");
    holder.running.finish().exits(76).says("lost");
    release(&local, &token);
}

#[test]
fn a_token_of_a_record_that_was_removed_is_nobodys() {
    let local = Local::start();
    let token = acquire(&local, "1h");
    fs::remove_file(local.file("lock")).unwrap();
    for verb in [&["renew", "job", &token, "--ttl", "1h"][..], &["release", "job", &token]] {
        local.nxlock(verb.iter().copied()).run().exits(76);
    }
}

#[test]
fn who_waits_is_served_when_the_record_is_removed() {
    let local = Local::start();
    let holder = Turn::had(&local, &["--ttl", "1h"]);
    let mut waiter = Turn::queued(&local, &[]);
    fs::remove_file(local.file("lock")).unwrap();
    waiter.up();
    waiter.leaves();
    holder.running.finish().exits(76);
}

#[test]
fn who_stood_in_a_line_that_is_removed_stands_in_a_new_one() {
    let local = Local::start();
    let token = acquire(&local, "1h");
    let mut waiters = [Turn::queued(&local, &[]), Turn::queued(&local, &[])];
    fs::remove_file(local.file("line")).unwrap();
    eventually("both stand in line again", || queue(&local).len() == 2);
    release(&local, &token);
    // Their order is not specified.
    eventually("one of them has it", || waiters.iter().any(Turn::is_up));
    waiters.iter_mut().for_each(Turn::is_told);
    waiters.into_iter().for_each(Turn::leaves);
}

#[test]
fn who_waits_is_served_when_the_whole_directory_is_removed() {
    let local = Local::start();
    let holder = Turn::had(&local, &["--ttl", "1h"]);
    let mut waiters = [Turn::queued(&local, &[]), Turn::queued(&local, &[])];
    // At once: otherwise a waiter may get the lock meanwhile, in a file that is removed next.
    let removed = local.locks().with_extension("removed");
    fs::rename(local.locks(), &removed).unwrap();
    eventually("it is removed", || fs::remove_dir_all(&removed).is_ok());
    holder.running.finish().exits(76).says("lost");
    eventually("one of them has it", || waiters.iter().any(Turn::is_up));
    waiters.iter_mut().for_each(Turn::is_told);
    waiters.into_iter().for_each(Turn::leaves);
    local.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
}
