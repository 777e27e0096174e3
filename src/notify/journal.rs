//! The destination of events. Writes a line whole, or not at all.
//!
//! Several processes may append to one file or pipe: each line is one write(2), which O_APPEND and PIPE_BUF keep in one
//! piece. Must not know what the lines say.

use std::ffi::OsString;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::libc;
use nix::poll::PollFlags;

use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::text;
use crate::wait::Limit;

/// Maximum length of a line. A write of up to PIPE_BUF bytes to a pipe is atomic, pipe(7); one byte is for the newline
/// that ends a torn line before it.
pub const LONGEST: usize = libc::PIPE_BUF - 1;

/// The destination of events, as given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A descriptor that the caller of nxlock opened.
    Inherited(RawFd),
    /// A file to append to.
    File(PathBuf),
    /// An empty word: no events, even if a configuration file names a destination.
    Nowhere,
}

impl Destination {
    /// # Errors
    /// If the word is `-`, which is stdin or stdout in other programs.
    pub fn read(word: OsString) -> Result<Destination, String> {
        let bytes = word.as_bytes();
        let number = || word.to_str()?.parse().ok();
        Ok(match bytes {
            b"" => Destination::Nowhere,
            b"-" => return Err("write 1 for stdout, 2 for stderr, or ./- for a file of that name".into()),
            _ if bytes.iter().all(u8::is_ascii_digit) => Destination::Inherited(number().unwrap_or(RawFd::MAX)),
            _ => Destination::File(word.into()),
        })
    }

    /// Returns the number of a descriptor that the caller opened.
    pub fn inherited(&self) -> Option<RawFd> {
        match self {
            Destination::Inherited(number) => Some(*number),
            Destination::File(_) | Destination::Nowhere => None,
        }
    }
}

/// Formats the destination for the middle of a sentence.
impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Inherited(number) => write!(f, "descriptor {number}"),
            Destination::File(path) => f.write_str(&text::path(path)),
            Destination::Nowhere => f.write_str("nowhere"),
        }
    }
}

/// An open destination.
pub struct Journal {
    file: File,
    /// The file ends with part of a line.
    torn: bool,
}

/// Why the destination cannot be opened.
pub enum Unopened {
    /// A permanent error: the destination is wrong.
    Wrong(Error),
    /// A transient error: a full disk, a pipe without a reader.
    Unavailable(io::Error),
}

impl Journal {
    /// # Errors
    /// If the descriptor is not open, or the file cannot be opened.
    pub fn open(at: &Destination) -> Result<Option<Journal>, Unopened> {
        let file = match at {
            Destination::Nowhere => return Ok(None),
            Destination::Inherited(number) => {
                File::from(inherited(*number).map_err(|cause| Unopened::Wrong(not_open(*number, cause)))?)
            }
            Destination::File(path) => opened(path).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound
                | io::ErrorKind::PermissionDenied
                | io::ErrorKind::IsADirectory
                | io::ErrorKind::NotADirectory
                | io::ErrorKind::InvalidFilename
                | io::ErrorKind::InvalidInput => unusable(path, &error),
                _ if error.raw_os_error() == Some(libc::ELOOP) => unusable(path, &error),
                _ => Unopened::Unavailable(error),
            })?,
        };
        Ok(Some(Journal { file, torn: false }))
    }

    /// Writes a line, however long that takes.
    ///
    /// # Errors
    /// Those of write(2). Where possible, nothing of the line is left then.
    pub fn write(&mut self, line: &str) -> io::Result<()> {
        let whole = if self.torn { format!("\n{line}") } else { line.to_owned() };
        let mut rest = whole.as_bytes();
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(0) => return self.tear(whole.len() - rest.len(), io::ErrorKind::WriteZero.into()),
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let room = [(self.file.as_fd(), PollFlags::POLLOUT)];
                    if let Err(error) = Limit::until(Moment::NEVER).wait_for(&room) {
                        return self.tear(whole.len() - rest.len(), error);
                    }
                }
                Err(error) => return self.tear(whole.len() - rest.len(), error),
            }
        }
        self.torn = false;
        Ok(())
    }

    /// Removes the written part of an incomplete line, if nobody has appended to it.
    fn tear(&mut self, written: usize, error: io::Error) -> io::Result<()> {
        if written > 0 {
            self.torn |= self.take_back(written).is_err();
        }
        Err(error)
    }

    fn take_back(&mut self, written: usize) -> io::Result<()> {
        let (end, length) = (self.file.stream_position()?, self.file.metadata()?.len());
        let before = u64::try_from(written).ok().and_then(|written| end.checked_sub(written));
        match before {
            Some(before) if end == length => {
                self.file.set_len(before)?;
                self.file.seek(SeekFrom::Start(before)).map(drop)
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Opens a file as a shell's `>>` does, but does not wait for the reader of a pipe, and takes no controlling terminal.
fn opened(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    OpenOptions::new().append(true).create(true).mode(0o666).custom_flags(flags.bits()).open(path).map_err(|error| {
        let is_pipe = || path.metadata().is_ok_and(|found| found.file_type().is_fifo());
        match error.raw_os_error() {
            Some(libc::ENXIO) if is_pipe() => io::Error::other("nobody reads that pipe"),
            _ => error,
        }
    })
}

/// Takes over a descriptor of the caller, which the command does not inherit.
fn inherited(number: RawFd) -> Result<OwnedFd, &'static str> {
    // SAFETY: F_GETFD reads a flag of a descriptor, or fails if there is none.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags == -1 {
        return Err("it is not open");
    }
    // SAFETY: the descriptor is open, and nothing closes it during this function.
    let status = unsafe { BorrowedFd::borrow_raw(number) };
    // A close-on-exec descriptor is nxlock's own: it cannot have been inherited.
    if flags & FdFlag::FD_CLOEXEC.bits() != 0 {
        return Err("it is not open");
    }
    let mode = fcntl(status, FcntlArg::F_GETFL).map_err(|_| "it is not open")?;
    if OFlag::from_bits_retain(mode) & OFlag::O_ACCMODE == OFlag::O_RDONLY {
        return Err("it is open only for reading");
    }
    if number <= libc::STDERR_FILENO {
        // The command inherits this one too.
        return status.try_clone_to_owned().map_err(|_| "no descriptors are left");
    }
    fcntl(status, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).map_err(|_: Errno| "it cannot be kept from the command")?;
    // SAFETY: the descriptor is open, and nothing else in nxlock uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn not_open(number: RawFd, cause: &str) -> Error {
    Error {
        kind: ErrorKind::Usage,
        action: format!("cannot write events to descriptor {number}"),
        cause: cause.into(),
        hint: format!("open it for writing, as {number}>>FILE does, or name a file"),
    }
}

fn unusable(path: &Path, error: &io::Error) -> Unopened {
    Unopened::Wrong(Error {
        kind: ErrorKind::Misconfigured,
        action: format!("cannot append events to {}", text::path(path)),
        cause: text::plain(error),
        hint: "name a file that can be appended to, or a descriptor that is open for writing".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_descriptor_and_anything_else_a_file() {
        let read = |word: &str| Destination::read(word.into());
        assert_eq!(read("3"), Ok(Destination::Inherited(3)));
        assert_eq!(read("99999999999"), Ok(Destination::Inherited(RawFd::MAX)));
        assert_eq!(read("./3"), Ok(Destination::File("./3".into())));
        assert_eq!(read("-1"), Ok(Destination::File("-1".into())));
        assert_eq!(read(""), Ok(Destination::Nowhere));
        assert!(read("-").unwrap_err().contains("./-"));
    }

    #[test]
    fn what_was_written_of_a_line_that_does_not_fit_is_taken_back_unless_somebody_wrote_behind_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events");
        let Ok(Some(mut journal)) = Journal::open(&Destination::File(path.clone())) else { panic!("it opens") };
        journal.write("first\n").unwrap();
        journal.file.write_all(b"half of ").unwrap();
        assert!(journal.tear(8, io::ErrorKind::StorageFull.into()).is_err());
        journal.write("second\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "first\nsecond\n");

        journal.file.write_all(b"half of ").unwrap();
        File::options().append(true).open(&path).unwrap().write_all(b"another's\n").unwrap();
        assert!(journal.tear(8, io::ErrorKind::StorageFull.into()).is_err());
        journal.write("third\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "first\nsecond\nhalf of another's\n\nthird\n");
    }
}
