//! flock(2), with an end to waiting.

use std::fs::{File, TryLockError};
use std::io;
use std::sync::Arc;

use nix::poll::PollFlags;

use super::background::Background;
use crate::wait::{Limit, Woken};

/// Waits for files to be unlocked by others.
#[derive(Default)]
pub struct FileLock {
    /// A wait that was given up and goes on: there is never more than one.
    stuck: Option<Background>,
}

impl FileLock {
    /// Locks a file for ourselves alone, if nobody else has it locked.
    ///
    /// # Errors
    /// As flock(2).
    pub fn try_lock(&self, file: &File) -> io::Result<bool> {
        // Of a wait that goes on, only its end tells whose the file is.
        if self.stuck.is_some() {
            return Ok(false);
        }
        match file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Locks a file for ourselves alone, if that comes before the limit. Given up, the file must not be
    /// kept: the lock may still come, and goes with the last that has the file open.
    ///
    /// # Errors
    /// As flock(2).
    pub fn lock(&mut self, file: &Arc<File>, limit: Limit<'_>) -> io::Result<Woken> {
        if let Some(stuck) = &self.stuck {
            let woken = limit.wait_for(&[(stuck.fd(), PollFlags::POLLIN)])?;
            if woken != Woken::Ready {
                return Ok(woken);
            }
            self.stuck = None;
        }
        if self.try_lock(file)? {
            return Ok(Woken::Ready);
        }
        let theirs = Arc::clone(file);
        // Whether it failed shows below: then the file is still not ours.
        let waiting = Background::begin(move || _ = theirs.lock())?;
        match limit.wait_for(&[(waiting.fd(), PollFlags::POLLIN)])? {
            // To lock again what is locked through the same open file changes nothing.
            Woken::Ready => file.try_lock().map(|()| Woken::Ready).map_err(io::Error::from),
            woken => {
                self.stuck = Some(waiting);
                Ok(woken)
            }
        }
    }
}

/// A locked file, unlocked when it is dropped.
pub struct Locked(pub Arc<File>);

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}
