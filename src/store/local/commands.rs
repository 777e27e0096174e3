//! The bytes that the processes of commands keep locked: they keep a claim whose nxlock and guard are gone.
//!
//! A command inherits a descriptor of a file that has no content, is open for reading only, and whose flock(2) means
//! nothing. A process that the command leaves behind may belong to another user by then: it can neither change a lock
//! by this descriptor, nor read a token, nor lock others out of the record.

use std::fs::File;
use std::io;
use std::path::Path;

use super::directory::OpenDirectory;
use super::fault::LocalError;
use super::ofd_lock;
use crate::descriptors::{CommandFile, moved_up};

/// The bytes of shares are from here on. The numbers of claims are times in microseconds, far below it.
const SHARES: u64 = 1 << 62;

/// Returns the byte of a claim of the record, which has this fence.
pub fn byte_of_fence(fence: u64) -> u64 {
    fence % SHARES
}

/// Returns the byte of a share.
pub fn byte_of_share(number: u64) -> u64 {
    SHARES + number % (SHARES - 1)
}

/// Opens the file for a command to inherit. The command's process locks the byte, which all processes that inherit its open
/// file keep; nxlock and the guard must not: if they are stopped, their lease ends.
pub fn inheritable(directory: &OpenDirectory, path: &Path, byte: u64) -> Result<CommandFile, LocalError> {
    let file = match directory.open_to_read(path)? {
        Some(file) => file,
        None => {
            directory.create_file(path, b"")?;
            let gone = || LocalError::of(path, &io::Error::from(io::ErrorKind::NotFound));
            directory.open_to_read(path)?.ok_or_else(gone)?
        }
    };
    let file = moved_up(file).map_err(|error| LocalError::of(path, &error))?;
    Ok(CommandFile { file, lock: ofd_lock::keeping(byte) })
}

/// Returns whether a process keeps the byte. No file has been inherited if there is none.
pub fn is_kept(file: Option<&File>, path: &Path, byte: u64) -> Result<bool, LocalError> {
    let kept = file.map_or(Ok(false), |file| ofd_lock::is_kept(file, byte));
    kept.map_err(|error| LocalError::unlockable(path, &error))
}
