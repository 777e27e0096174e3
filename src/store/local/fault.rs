//! What is wrong with the files of a lock, and what can be done about it. What was being tried is
//! the caller's to say.

use std::io;
use std::path::Path;

use nix::libc;

use crate::say;
use crate::store::Kind;

pub struct Fault {
    pub kind: Kind,
    pub came: String,
    pub remedy: String,
}

/// Why a text is not what we would have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Something else altogether.
    Foreign,
    /// Of a version that we do not know.
    Newer,
    Damaged,
}

impl Fault {
    pub fn new(kind: Kind, came: impl Into<String>, remedy: impl Into<String>) -> Fault {
        Fault { kind, came: came.into(), remedy: remedy.into() }
    }

    /// A system call that failed on `path`.
    pub fn of(path: &Path, error: &io::Error) -> Fault {
        let (kind, remedy) = match error.kind() {
            io::ErrorKind::PermissionDenied => (Kind::Refused, "see who may write there"),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => (Kind::Unwilling, "make room there"),
            _ if error.raw_os_error() == Some(libc::ELOOP) => {
                (Kind::Misconfigured, "no symbolic link is followed there: remove it")
            }
            // Not even a file: what open(2) says of directories and sockets.
            _ if matches!(error.raw_os_error(), Some(libc::EISDIR | libc::ENXIO)) => {
                (Kind::Misconfigured, "remove it, or use another NAME")
            }
            // The limit of this process alone does not pass.
            _ if error.raw_os_error() == Some(libc::EMFILE) => {
                (Kind::Broken, "see how many files this process may open (ulimit -n)")
            }
            _ if matches!(error.raw_os_error(), Some(libc::ENFILE | libc::EAGAIN | libc::ENOMEM)) => {
                (Kind::Unwilling, "see the limits of processes and files (ulimit -a)")
            }
            io::ErrorKind::NotFound
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::AlreadyExists
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::InvalidFilename => {
                (Kind::Misconfigured, "name a directory that can be written to: local:/path")
            }
            _ => (Kind::Broken, ""),
        };
        Fault::new(kind, format!("{}: {}", shown(path), say::plain(error)), remedy)
    }

    /// A byte of a file that cannot be locked, as [`super::ticket`] does.
    pub fn unlockable(path: &Path, error: &io::Error) -> Fault {
        match error.raw_os_error() {
            Some(libc::EINVAL | libc::ENOLCK | libc::EOPNOTSUPP | libc::ENOSYS) => Fault::new(
                Kind::Misconfigured,
                format!("{}: its file system keeps no locks of open files ({})", shown(path), say::plain(error)),
                "name a directory on another file system: local:/path",
            ),
            _ => Fault::of(path, error),
        }
    }

    /// Without /proc nobody knows by which clock this process counts.
    pub fn no_boot(error: &io::Error) -> Fault {
        Fault { remedy: "mount /proc: mount -t proc proc /proc".into(), ..Fault::of("/proc/self".as_ref(), error) }
    }

    /// A file with another text than ours; it is left as it is.
    pub fn flawed(path: &Path, flaw: Flaw) -> Fault {
        let path = shown(path);
        let (came, remedy) = match flaw {
            Flaw::Foreign => (
                format!("{path} is not a record of nxlock, and is left as it is"),
                "use another NAME or directory, or move that file away".to_owned(),
            ),
            Flaw::Newer => (
                format!("{path} was written by a newer nxlock, and is left as it is"),
                "use that version here too".to_owned(),
            ),
            Flaw::Damaged => (
                format!("{path} is damaged, and is left as it is: nobody can tell who has the lock"),
                "remove it when nothing runs under this lock any more".to_owned(),
            ),
        };
        Fault::new(Kind::Misconfigured, came, remedy)
    }
}

pub fn shown(path: &Path) -> String {
    say::clean(&path.to_string_lossy())
}
