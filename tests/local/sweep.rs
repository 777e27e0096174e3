//! Files of locks that nobody uses any more are removed when other locks are created.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::record::with;
use crate::support::turns::{Turn, is_free};
use crate::support::{Authority, Local, wall};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Makes a file look unmodified for `age`.
fn untouched_for(path: &Path, age: Duration) {
    File::options().write(true).open(path).unwrap().set_modified(wall() - age).unwrap();
}

fn record(local: &Local, name: &str) -> PathBuf {
    local.locks().join(format!("lock:{name}.lock"))
}

/// Creates a lock, and releases it. Returns its record file.
fn used(local: &Local, name: &str) -> PathBuf {
    local.nxlock(["run", name, "-n", "--", "true"]).run().exits(0);
    record(local, name)
}

#[test]
fn what_nobody_has_used_for_a_day_is_removed_when_another_lock_is_made() {
    let local = Local::start();
    // A lock that had a waiter has a waiters file too.
    let holder = Turn::had(&local, &[]);
    let waiter = Turn::queued(&local, &[]);
    holder.leaves();
    waiter.leaves();
    let (job, line, recent) = (local.file("lock"), local.file("line"), used(&local, "recent"));
    let unfinished = local.locks().join("~new-0123456789abcdef");
    fs::write(&unfinished, "").unwrap();
    for path in [&job, &line, &unfinished] {
        untouched_for(path, DAY + Duration::from_secs(60));
    }
    untouched_for(&recent, DAY - Duration::from_secs(600));
    // Neither `status` nor the use of an existing lock creates a file, so neither removes any.
    used(&local, "recent");
    local.nxlock(["status"]).run();
    assert!(job.exists() && line.exists() && unfinished.exists());
    untouched_for(&recent, DAY - Duration::from_secs(600));
    let new = used(&local, "new");
    assert!(!job.exists() && !line.exists() && !unfinished.exists());
    assert!(recent.exists() && new.exists());
    // The next caller starts with a new record.
    assert!(is_free(&local));
    used(&local, "job");
}

#[test]
fn what_somebody_has_or_waits_for_is_left() {
    let local = Local::start();
    let token = local.nxlock(["acquire", "long", "--ttl", "7d"]).run().exits(0).token();
    let holder = Turn::had(&local, &["--ttl", "1h"]);
    let waiter = Turn::queued(&local, &[]);
    let two_days = 2 * DAY;
    for path in [record(&local, "long"), local.file("lock"), local.file("line")] {
        untouched_for(&path, two_days);
    }
    used(&local, "new");
    assert!(record(&local, "long").exists() && local.file("lock").exists() && local.file("line").exists());
    local.nxlock(["run", "long", "-n", "--", "true"]).run().exits(75);
    local.nxlock(["release", "long", &token]).run().exits(0);
    holder.leaves();
    waiter.leaves();
}

#[test]
fn what_is_not_ours_to_remove_is_left() {
    let local = Local::start();
    let good = fs::read(used(&local, "good")).unwrap();
    let at = |name: &str| local.locks().join(name);
    let others = [("hosts.lock", &b"127.0.0.1 localhost\n"[..]), ("lock:half.lock", &good[..100]), ("notes", b"")];
    for (name, content) in others {
        fs::write(at(name), content).unwrap();
    }
    // A copy under another lock's name is not that lock's record.
    fs::write(at("lock:copy.lock"), &good).unwrap();
    let names = ["hosts.lock", "lock:half.lock", "notes", "lock:copy.lock"];
    names.iter().for_each(|name| untouched_for(&at(name), 9 * DAY));
    used(&local, "new");
    assert!(names.iter().all(|name| at(name).exists()));
    fs::remove_file(at("lock:half.lock")).unwrap();
}

#[test]
fn of_another_boot_nobody_has_anything() {
    let local = Local::start();
    let token = local.nxlock(["acquire", "long", "--ttl", "7d"]).run().exits(0).token();
    let path = record(&local, "long");
    let ours = fs::read(&path).unwrap();
    local.nxlock(["release", "long", &token]).run().exits(0);
    fs::write(&path, with(&ours, &[("lock", "boot", "01234567-89ab-4cde-8f01-23456789abcd")])).unwrap();
    untouched_for(&path, 2 * DAY);
    used(&local, "new");
    assert!(!path.exists());
}

#[test]
fn a_large_directory_is_cleared_away_little_by_little() {
    let local = Local::start();
    let good = fs::read(used(&local, "0")).unwrap();
    for n in 0..200 {
        let path = record(&local, &n.to_string());
        fs::write(&path, with(&good, &[("lock", "key", &format!("lock:{n}"))])).unwrap();
        untouched_for(&path, 2 * DAY);
    }
    let old = || (0..200).filter(|n| record(&local, &n.to_string()).exists()).count();
    let mut made = 0;
    while old() > 0 {
        made += 1;
        assert!(made < 100, "{} are left", old());
        used(&local, &format!("new {made}"));
    }
    assert!(made > 1, "nobody has to look at all of them");
}
