//! Clearing away what is left of locks that nobody has used for a day, as a server's fences end.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::directory::{OpenDirectory, Part};
use super::flock::Locked;
use super::ofd_lock;
use super::transaction::{self, Machine};
use super::waiters::Waiters;
use crate::clock::{Moment, wall};

/// As long as a server keeps a fence.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// So many files are looked at, beginning anywhere: whoever makes one file clears away as many as may
/// have come meanwhile, and never has to look at all of a large directory.
const AT_MOST: usize = 64;

/// Removes some of what is left in a directory. What cannot be removed stays: it is in nobody's way.
pub fn sweep(directory: &OpenDirectory, machine: &Machine) {
    let files = directory.files().unwrap_or_default();
    let begin = getrandom::u32().map_or(0, |random| random as usize % files.len().max(1));
    for path in files.iter().cycle().skip(begin).take(AT_MOST.min(files.len())) {
        if is_old(path) && directory.is_unfinished(path) {
            let _ = fs::remove_file(path);
        } else if is_old(path) && directory.is_record(path) {
            let _ = forget(directory, machine, path);
        }
    }
}

fn is_old(path: &Path) -> bool {
    let written = fs::symlink_metadata(path).and_then(|file| file.modified());
    written.is_ok_and(|written| wall().duration_since(written).is_ok_and(|age| age > KEPT))
}

/// Removes the files of a lock that nobody has and nobody waits for. They are removed under its flock, and
/// whoever waits for that sees that the file it has open is not the one with that name any more.
fn forget(directory: &OpenDirectory, machine: &Machine, path: &Path) -> Option<()> {
    let file = directory.open_file(path).ok()??;
    file.try_lock().ok()?;
    let file = Locked(file.into());
    let record = transaction::record(&file.0, path).ok()?.ok()?;
    let waiters = directory.file(&record.key, Part::Waiters);
    let other_boot = machine.boot.is_other_than(record.boot.as_deref());
    let kept = ofd_lock::is_taken(&file.0, record.fence).unwrap_or(true);
    let held = record.grant.is_some_and(|grant| grant.until > machine.boot.micros(Moment::now()));
    let waits = |waiters: &Waiters| waiters.all().any(|waiter| waiters.lives(waiter.ticket).unwrap_or(true));
    let waited_for = Waiters::read(directory, waiters.clone()).map_or(true, |waiters| waits(&waiters));
    if kept
        || (held && !other_boot)
        || waited_for
        || directory.file(&record.key, Part::Record) != path
        || !directory.is_at(&file.0, path)
    {
        return None;
    }
    let _ = fs::remove_file(waiters);
    fs::remove_file(path).ok()
}
