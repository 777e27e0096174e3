//! File systems that are full or read-only. Mounting one requires root: for other users these tests are skipped.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};

use super::{is_renewed_when_called, refused_to_run};
use crate::support::turns::{Turn, acquire, release, turn};
use crate::support::{Authority, Mounted, may_unshare, we_are_root};

fn may_mount() -> bool {
    we_are_root() && may_unshare(&["--mount"])
}

/// Writes until the file system is full.
fn fill(mounted: &Mounted) {
    let mut file = File::create(mounted.path().join("fill")).unwrap();
    let full = std::iter::repeat_with(|| file.write_all(&[b'x'; 512])).find_map(Result::err).unwrap();
    assert_eq!(full.kind(), ErrorKind::StorageFull);
}

#[test]
fn on_a_full_disk_who_waits_is_served_although_it_cannot_stand_in_line() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::start();
    let mut holder = Turn::had(&mounted, &["--ttl", "1h"]);
    fill(&mounted);
    // There is room for a few.
    let reason = "w".repeat(200);
    let mut waiters: Vec<Turn> = (0..3).map(|_| Turn::queued(&mounted, &["--reason", &reason])).collect();
    let mut waiter = Turn::of(mounted.nxlock(turn(&["-v", "--reason", &reason])));
    waiter.running.says("lock:job.lock: no space left on device");
    waiters.push(waiter);
    // A held lock is renewed, shown and released without more room.
    is_renewed_when_called(&mounted.path().join("lock:job.lock"));
    mounted.nxlock(refused_to_run(&["-n"])).run().exits(75).prints("");
    assert!(!waiters.iter().any(Turn::is_up));
    holder.is_told();
    for mut waiter in waiters {
        waiter.up();
        waiter.leaves();
    }
    holder.leaves();
    let token = acquire(&mounted, "1m");
    release(&mounted, &token);
}

#[test]
fn on_a_full_disk_a_new_lock_is_refused_until_there_is_room() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::start();
    fill(&mounted);
    let options = ["--server-timeout", "300ms"];
    let done = mounted.nxlock(options.iter().copied().chain(refused_to_run(&["-n"]))).run();
    done.exits(69).prints("").says("no space left on device").says("make room there");
    let mut waiting = mounted.nxlock(["-v", "run", "job", "--", "echo", "ran"]).start();
    waiting.says("no space left on device");
    fs::remove_file(mounted.path().join("fill")).unwrap();
    waiting.finish().exits(0).prints("ran\n");
    let mut left: Vec<_> = fs::read_dir(mounted.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["lock:job.commands", "lock:job.lock"], "nothing unfinished is left behind");
}

#[test]
fn what_cannot_be_written_to_is_refused() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::start();
    let token = acquire(&mounted, "1h");
    mounted.remount("ro");
    let verbs = [
        &refused_to_run(&["-n"])[..],
        &refused_to_run(&[]),
        &["run", "new", "-n", "--", "true"],
        &["acquire", "job", "--ttl", "1m"],
        &["renew", "job", &token, "--ttl", "1m"],
        &["release", "job", &token],
    ];
    for verb in verbs {
        let done = mounted.nxlock(verb.iter().copied()).run().exits(78).never_says("ran\n");
        done.says("read-only file system").says("a directory that can be written to");
    }
    mounted.remount("rw");
    release(&mounted, &token);
}

#[test]
fn on_a_full_disk_a_run_that_cannot_be_recorded_takes_no_lock() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::start();
    mounted.nxlock(["run", "job", "--", "true"]).run().exits(0);
    fill(&mounted);
    let reason = "w".repeat(200);
    let recorded = |wait| {
        let words = ["run", "job", "--record", "--reason", &reason, "-w", wait, "--", "echo", "ran"];
        mounted.nxlock(words)
    };
    // There is room for one.
    recorded("1m").run().exits(0).prints("ran\n");
    let mut waiting = recorded("1m").start();
    waiting.says("no space left on device");
    mounted.nxlock(["run", "job", "--", "echo", "plain"]).run().exits(0).prints("plain\n");
    fs::remove_file(mounted.path().join("fill")).unwrap();
    waiting.finish().exits(0).prints("ran\n");
    let history = mounted.nxlock(["status", "--history", "--json", "job"]).run().exits(0).json();
    assert_eq!(history[0]["history"].as_array().map(Vec::len), Some(2), "{history}");
}
