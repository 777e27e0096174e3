//! Removes the files of locks that nobody has used for a day, as a server expires fences.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::claim_file::ClaimFiles;
use super::directory::{OpenDirectory, Part};
use super::files;
use super::flock::Locked;
use super::world::{Host, Present};
use crate::clock::wall;

/// How long a server keeps a fence.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of files examined per sweep, from a random start. A process that creates one file thus removes as
/// many as may have come meanwhile, and never examines all of a large directory.
const AT_MOST: usize = 64;

/// Removes some leftover files from a directory. A file that cannot be removed stays, and does no harm.
pub fn sweep(directory: &OpenDirectory, host: &Host) {
    let files = directory.files().unwrap_or_default();
    let begin = getrandom::u32().map_or(0, |random| random as usize % files.len().max(1));
    for path in files.iter().cycle().skip(begin).take(AT_MOST.min(files.len())) {
        if is_old(path) && directory.is_unfinished(path) {
            let _ = fs::remove_file(path);
        } else if is_old(path) && directory.is_record(path) {
            let _ = forget(directory, host, path);
        }
    }
}

fn is_old(path: &Path) -> bool {
    let written = fs::symlink_metadata(path).and_then(|file| file.modified());
    written.is_ok_and(|written| wall().duration_since(written).is_ok_and(|age| age > KEPT))
}

/// Removes the files of a lock that has no holder and no waiters, under its flock. A process that waits for the flock
/// then sees that its open file no longer has that name.
fn forget(directory: &OpenDirectory, host: &Host, path: &Path) -> Option<()> {
    let file = directory.open_file(path).ok()??;
    file.try_lock().ok()?;
    let file = Locked(file.into());
    let now = host.now_us();
    let (_, mut state) = files::load(&file.0, path, &host.boot, now / 1000).ok()?.ok()?;
    let mut present = Present::new(host, ClaimFiles::new(directory, &state.key, &file.0), now);
    present.look(&mut state, None).ok()?;
    let is_held = !state.lock.seen(&present).holders.is_empty();
    // A holder that has lost the lock, and one that was dismissed and does not know it yet, have a byte too. What a run has
    // left behind keeps none but its own.
    let parts = [Part::Record, Part::Shares, Part::Line];
    let is_anybodys = parts.iter().any(|part| present.files.is_anybodys(*part).unwrap_or(true));
    let is_it = directory.file(&state.key, Part::Record) == path && directory.is_at(&file.0, path);
    if is_held || is_anybodys || state.has_runs() || !is_it {
        return None;
    }
    let mut removed = Ok(());
    for part in Part::ALL {
        removed = fs::remove_file(directory.file(&state.key, part));
    }
    removed.ok()
}
