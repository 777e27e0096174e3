//! Errors of the local store: what is wrong with the files of a lock, and the remedy. The caller adds what it was
//! trying to do.

use std::io;
use std::path::Path;

use nix::libc;

use crate::error::ErrorKind;
use crate::text;

pub struct LocalError {
    pub kind: ErrorKind,
    pub cause: String,
    pub hint: String,
}

/// Why a text is not a record that this nxlock writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Not a record of nxlock.
    Foreign,
    /// A newer version of the format.
    Newer,
    /// A version from before the first release.
    Older,
    Damaged,
}

impl LocalError {
    pub fn new(kind: ErrorKind, cause: impl Into<String>, hint: impl Into<String>) -> LocalError {
        LocalError { kind, cause: cause.into(), hint: hint.into() }
    }

    /// Describes a system call that failed on `path`.
    pub fn of(path: &Path, error: &io::Error) -> LocalError {
        let (kind, hint) = match error.kind() {
            io::ErrorKind::PermissionDenied => (ErrorKind::Refused, "see who may write there"),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => (ErrorKind::Unavailable, "make room there"),
            _ if error.raw_os_error() == Some(libc::ELOOP) => {
                (ErrorKind::Misconfigured, "no symbolic link is followed there: remove it")
            }
            // Not a regular file: open(2) returns these for directories and sockets.
            _ if matches!(error.raw_os_error(), Some(libc::EISDIR | libc::ENXIO)) => {
                (ErrorKind::Misconfigured, "remove it, or use another NAME")
            }
            // The limit of this process does not pass.
            _ if error.raw_os_error() == Some(libc::EMFILE) => {
                (ErrorKind::Internal, "see how many files this process may open (ulimit -n)")
            }
            _ if error.raw_os_error() == Some(libc::EFBIG) => {
                (ErrorKind::Internal, "see how long the files of this process may be (ulimit -f)")
            }
            _ if matches!(error.raw_os_error(), Some(libc::ENFILE | libc::EAGAIN | libc::ENOMEM)) => {
                (ErrorKind::Unavailable, "see the limits of processes and files (ulimit -a)")
            }
            io::ErrorKind::NotFound
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::AlreadyExists
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::InvalidFilename => {
                (ErrorKind::Misconfigured, "name a directory that can be written to: local:/path")
            }
            _ => (ErrorKind::Internal, ""),
        };
        LocalError::new(kind, format!("{}: {}", text::path(path), text::plain(error)), hint)
    }

    /// Describes a failure to lock a byte of a file, as [`super::ofd_lock`] does.
    pub fn unlockable(path: &Path, error: &io::Error) -> LocalError {
        match error.raw_os_error() {
            Some(libc::EINVAL | libc::ENOLCK | libc::EOPNOTSUPP | libc::ENOSYS) => LocalError::new(
                ErrorKind::Misconfigured,
                format!("{}: its file system keeps no locks of open files ({})", text::path(path), text::plain(error)),
                "name a directory on another file system: local:/path",
            ),
            _ => LocalError::of(path, error),
        }
    }

    /// Describes a failure to read the boot: without /proc, nxlock does not know which clock this process reads.
    pub fn no_boot(error: &io::Error) -> LocalError {
        LocalError {
            hint: "mount /proc: mount -t proc proc /proc".into(),
            ..LocalError::of("/proc/self".as_ref(), error)
        }
    }

    /// Describes a file with unexpected content; nxlock leaves it unchanged.
    pub fn flawed(path: &Path, flaw: Flaw) -> LocalError {
        let path = text::path(path);
        let (cause, hint) = match flaw {
            Flaw::Foreign => (
                format!("{path} is not a record of nxlock, and is left as it is"),
                "use another NAME or directory, or move that file away".to_owned(),
            ),
            Flaw::Newer => (
                format!("{path} was written by a newer nxlock, and is left as it is"),
                "use that version here too".to_owned(),
            ),
            Flaw::Older => (
                format!(
                    "{path} was written by an older nxlock, and is left as it is: nobody can tell who has the lock"
                ),
                "remove it when nothing runs under this lock any more".to_owned(),
            ),
            Flaw::Damaged => (
                format!("{path} is damaged, and is left as it is: nobody can tell who has the lock"),
                "remove it when nothing runs under this lock any more".to_owned(),
            ),
        };
        LocalError::new(ErrorKind::Misconfigured, cause, hint)
    }
}
