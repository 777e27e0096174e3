//! Removes the files of locks that nobody has used for a day, as a server expires fences.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::commands;
use super::directory::{OpenDirectory, Part};
use super::flock::Locked;
use super::ofd_lock;
use super::record::{Grant, Share, State, Superseder};
use super::recording;
use super::shares::Shares;
use super::superseding::Superseders;
use super::transaction::{self, Machine};
use super::waiters::Waiters;
use crate::clock::{Moment, wall};

/// How long a server keeps a fence.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of files examined per sweep, from a random start. A process that creates one file thus removes as
/// many as may have come meanwhile, and never examines all of a large directory.
const AT_MOST: usize = 64;

/// Removes some leftover files from a directory. A file that cannot be removed stays, and does no harm.
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

/// Removes the files of a lock that has no holder and no waiters, under its flock. A process that waits for the flock
/// then sees that its open file no longer has that name.
fn forget(directory: &OpenDirectory, machine: &Machine, path: &Path) -> Option<()> {
    let file = directory.open_file(path).ok()??;
    file.try_lock().ok()?;
    let file = Locked(file.into());
    let record = transaction::record(&file.0, path).ok()?.ok()?;
    let part = |part| directory.file(&record.key, part);
    let other_boot = machine.boot.is_other_than(record.boot.as_deref());
    let is_taken = |byte| ofd_lock::is_taken(&file.0, byte).unwrap_or(true);
    // What a run has left behind keeps its byte, but not a lock that was released.
    let commands = directory.open_file(&part(Part::Commands)).ok()?;
    let is_in_use = |byte| commands::is_kept(commands.as_ref(), &part(Part::Commands), byte).unwrap_or(true);
    let kept = is_taken(record.fence) || record.grant().is_some() && is_in_use(commands::byte_of_fence(record.fence));
    let runs = |grant: &Grant| !other_boot && grant.lasts_until() > machine.boot.micros(Moment::now());
    let held = record.grant().is_some_and(runs);
    let is_kept = |shares: &Shares, share: &Share| {
        shares.is_kept(share.number).unwrap_or(true) || is_in_use(commands::byte_of_share(share.number))
    };
    let counts = |share: &Share| record.state == State::Shared(share.generation) && runs(&share.grant);
    let has = |shares: &Shares| shares.all().any(|share| counts(share) || is_kept(shares, share));
    let shared = Shares::read(directory, part(Part::Shares)).map_or(true, |shares| has(&shares));
    let waits = |waiters: &Waiters| waiters.all().any(|waiter| waiters.lives(waiter.ticket).unwrap_or(true));
    // One that was dismissed, and does not know it yet, waits too.
    let dismissed = || Superseders::read(directory, part(Part::Superseded));
    let waits_in_vain = |waiters: &Waiters| {
        let lives = |entry: &Superseder| waiters.lives(entry.ticket).unwrap_or(true);
        dismissed().map_or(true, |entries| entries.all().any(lives))
    };
    let waited_for = Waiters::read(directory, part(Part::Waiters))
        .map_or(true, |waiters| waits(&waiters) || waits_in_vain(&waiters));
    let recorded = recording::recorded(directory, &record.key).map_or(true, |runs| runs.all().next().is_some());
    if recorded || kept || held || shared || waited_for || part(Part::Record) != path || !directory.is_at(&file.0, path)
    {
        return None;
    }
    // The record last: without it, nobody would find the rest again.
    let mut removed = Ok(());
    for each in Part::ALL {
        removed = fs::remove_file(part(each));
    }
    removed.ok()
}
