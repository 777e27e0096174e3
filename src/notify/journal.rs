//! Where events go, and how a line gets there: whole, or not at all.
//!
//! Lines of several processes meet in one file or pipe: each is one write(2), which O_APPEND and PIPE_BUF keep in
//! one piece. Knows nothing of what they say.

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

/// What is written at once to a pipe does not mix with what others write, pipe(7). A line may have an end of another
/// before it.
pub const LONGEST: usize = libc::PIPE_BUF - 1;

/// Where events are to go, as it is said on a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A descriptor that our caller has opened.
    Inherited(RawFd),
    /// A file, that is appended to.
    File(PathBuf),
    /// An empty word: to nowhere, whatever a configuration file says.
    Nowhere,
}

impl Destination {
    /// # Errors
    /// `-`, which would be stdin or stdout elsewhere.
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

    /// The number of a descriptor that our caller has opened.
    pub fn inherited(&self) -> Option<RawFd> {
        match self {
            Destination::Inherited(number) => Some(*number),
            Destination::File(_) | Destination::Nowhere => None,
        }
    }
}

/// In the middle of a sentence.
impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Inherited(number) => write!(f, "descriptor {number}"),
            Destination::File(path) => f.write_str(&text::clean(&path.to_string_lossy())),
            Destination::Nowhere => f.write_str("nowhere"),
        }
    }
}

/// Something that takes lines.
pub struct Journal {
    file: File,
    /// It ends with a part of a line.
    torn: bool,
}

/// Why nothing can be written.
pub enum Unopened {
    /// It never will be, by a mistake of whoever said where.
    Wrong(Error),
    /// Not just now: a full disk, a pipe that nobody reads.
    Unavailable(io::Error),
}

impl Journal {
    /// # Errors
    /// A descriptor that is not there, or a file that cannot be had.
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

    /// Writes a line, for as long as that takes.
    ///
    /// # Errors
    /// As write(2). Nothing of the line is left then, where that can be helped.
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

    /// Takes back what was written of a line that does not fit, if nobody has written behind it.
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

/// As `>>` of a shell opens it, but without waiting for whoever is to read a pipe, and for no terminal to become
/// ours.
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

/// A descriptor of our caller's, which is not passed on.
fn inherited(number: RawFd) -> Result<OwnedFd, &'static str> {
    // SAFETY: looked at only as long as nobody closes it, and fcntl(2) says if there is none.
    let status = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = fcntl(status, FcntlArg::F_GETFD).map_err(|_| "it is not open")?;
    // What is closed at exec is ours: nothing of the kind can have been inherited.
    if flags & FdFlag::FD_CLOEXEC.bits() != 0 {
        return Err("it is not open");
    }
    let mode = fcntl(status, FcntlArg::F_GETFL).map_err(|_| "it is not open")?;
    if OFlag::from_bits_retain(mode) & OFlag::O_ACCMODE == OFlag::O_RDONLY {
        return Err("it is open for reading alone");
    }
    if number <= libc::STDERR_FILENO {
        // The command has it as well.
        return status.try_clone_to_owned().map_err(|_| "there are no more descriptors to be had");
    }
    fcntl(status, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).map_err(|_: Errno| "it cannot be kept from the command")?;
    // SAFETY: it is open, and nothing else of ours knows of it.
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
        action: format!("cannot append events to {}", text::clean(&path.to_string_lossy())),
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
