//! The waiters of a lock, as a file keeps them: a slot for each, in no order; tickets define the order. The caller must
//! hold the flock of the lock's record to read and to write them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::directory::OpenDirectory;
use super::fault::{Flaw, LocalError};
use super::ofd_lock;
use super::record::{WAITER, Waiter};
use crate::error::ErrorKind;
use crate::lock::Token;

pub struct Waiters {
    path: PathBuf,
    /// `None` if there has never been a waiter.
    file: Option<File>,
    slots: Vec<Option<Waiter>>,
}

/// Slots per page.
const SHORT: usize = 4096 / WAITER;
/// More waiters than one machine can have.
const AT_MOST: usize = 1 << 16;

impl Waiters {
    pub fn read(directory: &OpenDirectory, path: PathBuf) -> Result<Waiters, LocalError> {
        let mut waiters = Waiters { file: None, slots: Vec::new(), path };
        if let Some(file) = directory.open_file(&waiters.path)? {
            let file = waiters.file.insert(file);
            let failed = |error| LocalError::of(&waiters.path, &error);
            let length = usize::try_from(file.metadata().map_err(failed)?.len()).unwrap_or(usize::MAX);
            if length > AT_MOST * WAITER {
                return Err(LocalError::flawed(&waiters.path, Flaw::Damaged));
            }
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, 0).map_err(failed)?;
            let slots = bytes.chunks(WAITER).map(slot).collect::<Result<_, _>>();
            waiters.slots = slots.map_err(|flaw| LocalError::flawed(&waiters.path, flaw))?;
        }
        Ok(waiters)
    }

    /// Returns the file, and creates it if there is none.
    pub fn file(&mut self, directory: &OpenDirectory) -> Result<&File, LocalError> {
        if self.file.is_none() {
            directory.create_file(&self.path, b"")?;
            self.file = directory.open_file(&self.path)?;
        }
        let gone = || LocalError::of(&self.path, &io::Error::from(io::ErrorKind::NotFound));
        self.file.as_ref().ok_or_else(gone)
    }

    /// Opens the file once more: the new open file description has locks of its own.
    pub fn opened_anew(&self, directory: &OpenDirectory) -> Result<File, LocalError> {
        let gone = || LocalError::of(&self.path, &io::Error::from(io::ErrorKind::NotFound));
        directory.open_file(&self.path)?.ok_or_else(gone)
    }

    /// Returns whether the waiter with this ticket is alive.
    pub fn lives(&self, ticket: u64) -> Result<bool, LocalError> {
        let taken = self.file.as_ref().map_or(Ok(false), |file| ofd_lock::is_taken(file, ticket));
        taken.map_err(|error| LocalError::unlockable(&self.path, &error))
    }

    pub fn all(&self) -> impl Iterator<Item = &Waiter> {
        self.slots.iter().flatten()
    }

    pub fn find(&self, token: &Token) -> Option<&Waiter> {
        self.all().find(|waiter| waiter.token == *token)
    }

    pub fn first(&self) -> Option<&Waiter> {
        self.all().min_by_key(|waiter| waiter.ticket)
    }

    /// Returns the waiter right before a ticket.
    pub fn ahead_of(&self, ticket: u64) -> Option<&Waiter> {
        self.all().filter(|waiter| waiter.ticket < ticket).max_by_key(|waiter| waiter.ticket)
    }

    /// Returns a ticket behind all others, and not before `now`.
    pub fn next_ticket(&self, now: u64) -> u64 {
        self.all().map(|waiter| waiter.ticket.saturating_add(1)).max().unwrap_or(0).max(now)
    }

    /// Adds a waiter to the queue, or rewrites it.
    pub fn put(&mut self, directory: &OpenDirectory, waiter: Waiter) -> Result<(), LocalError> {
        self.file(directory)?;
        let written = waiter
            .written()
            .ok_or_else(|| LocalError::new(ErrorKind::Internal, "the token is too long to wait with", ""))?;
        let own = |slot: &Option<Waiter>| slot.as_ref().is_some_and(|other| other.token == waiter.token);
        let at = self.slots.iter().position(own).or_else(|| self.slots.iter().position(Option::is_none));
        let at = at.unwrap_or(self.slots.len());
        self.write(at, &written)?;
        if at == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[at] = Some(waiter);
        Ok(())
    }

    pub fn remove(&mut self, token: &Token) -> Result<(), LocalError> {
        let own = |slot: &Option<Waiter>| slot.as_ref().is_some_and(|other| other.token == *token);
        let Some(at) = self.slots.iter().position(own) else { return Ok(()) };
        self.slots[at] = None;
        // A short file keeps its length: truncating it would cost more than reading it.
        let is_last = self.slots.len() > SHORT && self.slots.iter().all(Option::is_none);
        if is_last { self.clear() } else { self.write(at, &blank()) }
    }

    /// Removes all waiters.
    pub fn clear(&mut self) -> Result<(), LocalError> {
        if self.slots.is_empty() {
            return Ok(());
        }
        // Not to zero bytes: after that, ext4 flushes what is written when the file is closed, and the next process
        // would wait for the disk (ext4(5), auto_da_alloc).
        self.write(0, &blank())?;
        self.slots = vec![None];
        let length = u64::try_from(WAITER).unwrap_or(u64::MAX);
        let shortened = self.file.as_ref().map_or(Ok(()), |file| file.set_len(length));
        shortened.map_err(|error| LocalError::of(&self.path, &error))
    }

    fn write(&self, at: usize, bytes: &[u8]) -> Result<(), LocalError> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let offset = u64::try_from(at * WAITER).unwrap_or(u64::MAX);
        let written = self.file.as_ref().ok_or_else(gone).and_then(|file| file.write_all_at(bytes, offset));
        written.map_err(|error| LocalError::of(&self.path, &error))
    }
}

fn blank() -> Vec<u8> {
    let mut blank = vec![b' '; WAITER - 1];
    blank.push(b'\n');
    blank
}

fn slot(bytes: &[u8]) -> Result<Option<Waiter>, Flaw> {
    if bytes == blank() { Ok(None) } else { Waiter::read(bytes).map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behind_the_last_number_there_is_no_other() {
        let waiter = Waiter { ticket: u64::MAX, token: "t".parse().unwrap() };
        let waiters = Waiters { path: PathBuf::new(), file: None, slots: vec![None, Some(waiter)] };
        assert_eq!(waiters.next_ticket(1), u64::MAX);
    }
}
