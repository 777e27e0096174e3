//! Removes the files of locks that nobody has used for a day, as a server expires fences.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::directory::{OpenDirectory, Part};
use super::files;
use super::flock::Locked;
use super::transaction::Transaction;
use super::world::Host;
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

/// Removes the files of a lock that nobody needs, under its flock. A process that waits for the flock then sees that its
/// open file no longer has that name.
fn forget(directory: &OpenDirectory, host: &Host, path: &Path) -> Option<()> {
    let file = directory.open_file(path).ok()??;
    file.try_lock().ok()?;
    let file = Locked(file.into());
    let (_, state) = files::load(&file.0, path, &host.boot, host.now_us() / 1000).ok()?.ok()?;
    let key = state.map_or_else(|| directory.key_of(path), |state| Some(state.key))?;
    let is_it = directory.file(&key, Part::Record) == path && directory.is_at(&file.0, path);
    if !is_it || Transaction::begin(host, directory, &key, &file, None).ok()?.is_needed() {
        return None;
    }
    let mut removed = Ok(());
    for part in Part::ALL {
        removed = fs::remove_file(directory.file(&key, part));
    }
    removed.ok()
}
