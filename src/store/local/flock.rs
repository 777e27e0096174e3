//! flock(2) with a deadline and cancellation.

use std::fs::File;
use std::io;
use std::sync::Arc;

use nix::poll::PollFlags;

use super::background::Background;
use crate::wait::{Limit, Woken};

/// Locks files, waiting for other processes to unlock them.
#[derive(Default)]
pub struct FileLock {
    /// An abandoned wait that still runs: there is never more than one.
    stuck: Option<Background>,
}

impl FileLock {
    /// Takes an exclusive lock on a file, if no other process has it locked.
    ///
    /// # Errors
    /// As flock(2).
    pub fn try_lock(&self, file: &File) -> io::Result<bool> {
        // Until an abandoned wait ends, nxlock cannot tell who has the lock.
        if self.stuck.is_some() {
            return Ok(false);
        }
        match uninterrupted(|| file.try_lock().map_err(io::Error::from)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes an exclusive lock on a file within the limit. After a timeout the caller must close the file: the kernel
    /// may still grant the lock, which lasts until the last descriptor of the file is closed.
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
        // A failure shows below: the file is then still not locked.
        let waiting = Background::begin(move || _ = uninterrupted(|| theirs.lock()))?;
        match limit.wait_for(&[(waiting.fd(), PollFlags::POLLIN)])? {
            // Locking again through the same open file description changes nothing.
            Woken::Ready => uninterrupted(|| file.try_lock().map_err(io::Error::from)).map(|()| Woken::Ready),
            woken => {
                self.stuck = Some(waiting);
                Ok(woken)
            }
        }
    }
}

/// Makes a system call, and again if a signal has interrupted it.
pub fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// A locked file; dropping it unlocks it.
pub struct Locked(pub Arc<File>);

impl Drop for Locked {
    fn drop(&mut self) {
        // A file that stayed locked would keep everybody from the lock for as long as this process runs.
        let _ = uninterrupted(|| self.0.unlock());
    }
}
