//! The files by whose bytes the kernel tells who lives, and the descriptors that keep them.
//!
//! A holder locks a byte of the lock's own file, or of the file of shares, a waiter that of its ticket in the file of the
//! line, and the processes of a command one of a file of their own.
//!
//! Holders of shares open their file only for reading. When the last process that has it open closes it, however it ends,
//! the kernel reports IN_CLOSE_NOWRITE to the waiter at the front: one descriptor tells the end of any number of holders.
//! Everybody else opens the file for writing too, so that a look at it wakes nobody.
//!
//! A command inherits a descriptor of a file that has no content, is open for reading only, and whose flock(2) means
//! nothing. A process that the command leaves behind may belong to another user by then: it can neither change a lock
//! by this descriptor, nor read a token, nor lock others out of the record.

use std::cell::OnceCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, futimens};

use super::directory::{OpenDirectory, Part};
use super::fault::LocalError;
use super::ofd_lock;
use crate::descriptors::{CommandFile, moved_up};
use crate::error::ErrorKind;
use crate::lock::Token;
use crate::{log, text};

/// The bytes of shares that commands keep are from here on. The numbers of exclusive claims are times in microseconds, far
/// below it.
const SHARES: u64 = 1 << 62;
/// How many numbers are tried for a share. Those of processes that had one are in the past, but for a few microseconds.
const TRIED: u64 = 64;

/// The byte of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Byte {
    /// The fence of one that has the lock for itself.
    Alone(u64),
    Share(u64),
}

impl Byte {
    pub fn of(token: &Token, number: u64) -> Byte {
        if token.is_share() { Byte::Share(number) } else { Byte::Alone(number) }
    }

    pub fn number(self) -> u64 {
        match self {
            Byte::Alone(number) | Byte::Share(number) => number,
        }
    }

    /// Returns the byte that processes of its command keep.
    pub fn of_command(self) -> u64 {
        match self {
            Byte::Alone(fence) => fence % SHARES,
            Byte::Share(number) => SHARES + number % (SHARES - 1),
        }
    }
}

/// The files of one lock, opened when they are first needed.
pub struct ClaimFiles<'a> {
    directory: &'a OpenDirectory,
    key: String,
    record: &'a File,
    line: OnceCell<Option<File>>,
    shares: OnceCell<Option<File>>,
    commands: OnceCell<Option<File>>,
}

impl<'a> ClaimFiles<'a> {
    pub fn new(directory: &'a OpenDirectory, key: &str, record: &'a File) -> ClaimFiles<'a> {
        let (line, shares, commands) = Default::default();
        ClaimFiles { directory, key: key.to_owned(), record, line, shares, commands }
    }

    pub fn path(&self, part: Part) -> PathBuf {
        self.directory.file(&self.key, part)
    }

    /// Returns a file, if there is one.
    pub fn opened(&self, part: Part) -> Result<Option<&File>, LocalError> {
        let cell = match part {
            Part::Record => return Ok(Some(self.record)),
            Part::Line => &self.line,
            Part::Shares => &self.shares,
            Part::Commands => &self.commands,
        };
        if cell.get().is_none() {
            let file = self.directory.open_file(&self.path(part))?;
            return Ok(cell.get_or_init(|| file).as_ref());
        }
        Ok(cell.get().and_then(Option::as_ref))
    }

    /// Opens a file once more: locks through it are independent of all others. `None` if there is none.
    pub fn opened_anew(&self, part: Part) -> Result<Option<File>, LocalError> {
        self.directory.open_file(&self.path(part))
    }

    /// Asks about the bytes of a file; of a file that does not exist, none is locked.
    fn asks(&self, part: Part, of: impl FnOnce(&File) -> io::Result<bool>) -> Result<bool, LocalError> {
        let answer = self.opened(part)?.map_or(Ok(false), of);
        answer.map_err(|error| LocalError::unlockable(&self.path(part), &error))
    }

    /// Returns whether nxlock or its guard has a claim open.
    pub fn is_held_open(&self, byte: Byte) -> Result<bool, LocalError> {
        match byte {
            Byte::Alone(fence) => self.asks(Part::Record, |file| ofd_lock::is_taken(file, fence)),
            Byte::Share(number) => self.asks(Part::Shares, |file| ofd_lock::is_kept(file, number)),
        }
    }

    /// Returns whether a process of its command keeps a claim.
    pub fn is_in_use(&self, byte: Byte) -> Result<bool, LocalError> {
        self.asks(Part::Commands, |file| ofd_lock::is_kept(file, byte.of_command()))
    }

    /// Returns whether the waiter with this ticket is alive.
    pub fn waits(&self, ticket: u64) -> Result<bool, LocalError> {
        self.asks(Part::Line, |file| ofd_lock::is_taken(file, ticket))
    }

    /// Returns whether any process has locked a byte of a file.
    pub fn is_anybodys(&self, part: Part) -> Result<bool, LocalError> {
        self.asks(part, ofd_lock::is_any_kept)
    }

    /// Returns a number for a share: above these, not below `now`, and not that of a process that had one.
    ///
    /// # Errors
    /// If a process keeps all numbers that are tried: whoever may read the file can lock any number of bytes.
    pub fn free_number(&self, taken: impl Iterator<Item = u64>, now: u64) -> Result<u64, LocalError> {
        let first = taken.map(|number| number.saturating_add(1)).max().unwrap_or(0).max(now);
        for number in first..first.saturating_add(TRIED) {
            let byte = Byte::Share(number);
            if !self.is_held_open(byte)? && !self.is_in_use(byte)? {
                return Ok(number);
            }
        }
        let cause = format!("another program keeps bytes of {} locked", text::path(&self.path(Part::Shares)));
        Err(LocalError::new(ErrorKind::Unreachable, cause, "see which one does (lslocks)"))
    }

    /// Creates an empty file, if there is none.
    fn create(&self, part: Part) -> Result<(), LocalError> {
        if self.opened(part)?.is_some() {
            return Ok(());
        }
        self.directory.create_file(&self.path(part), b"")
    }

    fn gone(&self, part: Part) -> LocalError {
        LocalError::of(&self.path(part), &io::Error::from(io::ErrorKind::NotFound))
    }

    /// Binds a claim to this process, by its byte.
    pub fn hold(&self, byte: Byte) -> Result<HolderFile, LocalError> {
        let (part, file) = match byte {
            Byte::Alone(_) => (Part::Record, self.opened_anew(Part::Record)?),
            Byte::Share(_) => {
                self.create(Part::Shares)?;
                (Part::Shares, self.directory.open_to_read(&self.path(Part::Shares))?)
            }
        };
        let file = file.ok_or_else(|| self.gone(part))?;
        let locked = match byte {
            Byte::Alone(fence) => ofd_lock::take(&file, fence),
            Byte::Share(number) => ofd_lock::keep(&file, number),
        };
        locked.map_err(|error| LocalError::unlockable(&self.path(part), &error))?;
        Ok(HolderFile { file, byte, commands: self.path(Part::Commands) })
    }

    /// Takes a place in the line, by the byte of its ticket.
    pub fn stand(&self, ticket: u64) -> Result<TicketFile, LocalError> {
        self.create(Part::Line)?;
        let file = self.opened_anew(Part::Line)?.ok_or_else(|| self.gone(Part::Line))?;
        ofd_lock::take(&file, ticket).map_err(|error| LocalError::unlockable(&self.path(Part::Line), &error))?;
        Ok(TicketFile { file: Arc::new(file), ticket })
    }

    /// Returns whether a ticket is in the file that has the name now: it may have been removed, and created again.
    pub fn has(&self, ticket: &TicketFile) -> Result<bool, LocalError> {
        let inode = |file: &File| file.metadata().map(|found| found.ino());
        let is_it = |line: &File| Ok(inode(line)? == inode(&ticket.file)?);
        self.opened(Part::Line)?
            .map_or(Ok(false), is_it)
            .map_err(|error| LocalError::of(&self.path(Part::Line), &error))
    }

    /// Wakes those who watch a file.
    pub fn ring(&self, part: Part) {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        if let Ok(Some(file)) = self.opened(part)
            && let Err(error) = futimens(file, &times)
        {
            log::trace(format_args!("cannot wake the next one, who polls: {error}"));
        }
    }
}

/// A claim bound to this process and its guard: a file that was opened for this alone, with the byte of the claim locked.
pub struct HolderFile {
    file: File,
    byte: Byte,
    /// The file whose byte the processes of the command keep.
    commands: PathBuf,
}

impl HolderFile {
    pub fn byte(&self) -> Byte {
        self.byte
    }

    /// Returns the descriptor that holds the lock on the byte.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Opens a file for the command to inherit, by which its processes keep the claim even if nxlock and its guard are
    /// killed at once. The command's process locks the byte, which all processes that inherit its open file keep; nxlock
    /// and the guard must not: if they are stopped, their lease ends.
    pub fn for_the_command(&self, directory: &OpenDirectory) -> Result<CommandFile, LocalError> {
        let path = &self.commands;
        let file = match directory.open_to_read(path)? {
            Some(file) => file,
            None => {
                directory.create_file(path, b"")?;
                let gone = || LocalError::of(path, &io::Error::from(io::ErrorKind::NotFound));
                directory.open_to_read(path)?.ok_or_else(gone)?
            }
        };
        let file = moved_up(file).map_err(|error| LocalError::of(path, &error))?;
        Ok(CommandFile { file, lock: ofd_lock::keeping(self.byte.of_command()) })
    }

    /// Unlocks the byte for all processes that have the descriptor open.
    pub fn let_go(self) {
        ofd_lock::give_back(&self.file, self.byte.number());
    }
}

/// A place in the line: the file of the line, opened for this waiter alone, with the byte of its ticket locked.
pub struct TicketFile {
    pub file: Arc<File>,
    pub ticket: u64,
}

impl TicketFile {
    /// Lets the waiter behind move up.
    pub fn leave(&self) {
        ofd_lock::give_back(&self.file, self.ticket);
    }
}

impl Drop for TicketFile {
    fn drop(&mut self) {
        // Otherwise the ticket would stay locked until the last wait closes the file.
        self.leave();
    }
}
