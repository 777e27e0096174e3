//! Files whose word nxlock takes, as configuration, password or certificate: read only if nobody but this user and
//! root can have written them. Knows nothing of what is in them.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::geteuid;

/// Why a file is not read.
pub enum Unfit {
    Unreadable(io::Error),
    /// Another user could have written what is in it, or have put it there.
    Untrusted {
        came: String,
        remedy: &'static str,
    },
}

impl From<Errno> for Unfit {
    fn from(errno: Errno) -> Unfit {
        Unfit::Unreadable(errno.into())
    }
}

impl From<io::Error> for Unfit {
    fn from(error: io::Error) -> Unfit {
        Unfit::Unreadable(error)
    }
}

const WRITE_OF_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Opens a file. Its owner and mode are those of what was opened, whatever the path leads to by then. In a directory
/// where others may write, one of them could have put a link to a file that this user alone may read.
///
/// What nxlock's caller has opened is the caller's word, as an argument is: `/dev/stdin`, `/dev/fd/N`, `<(...)`.
///
/// # Errors
/// As open(2); and if another user may have chosen what would be read.
pub fn open(path: &Path) -> Result<File, Unfit> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name().filter(|_| !is_inherited(path))) else {
        return Ok(File::open(path)?);
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let directory = openat(AT_FDCWD, parent, flags, Mode::empty())?;
    let file = loop {
        // A named pipe may make us wait.
        match openat(directory.as_fd(), name, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()) {
            Err(Errno::EINTR) => {}
            opened => break File::from(opened?),
        }
    };
    let found = fstat(&file)?;
    is_ours(&found, "it")?;
    // To write to a device is not to change what it says: /dev/null.
    let is_device = kind(&found) == SFlag::S_IFCHR;
    if !is_device && found.st_mode & WRITE_OF_OTHERS != 0 {
        return Err(writable("others than its owner may write to it", &found, "chmod go-w it"));
    }
    let around = fstat(&directory)?;
    is_ours(&around, "its directory")?;
    if around.st_mode & WRITE_OF_OTHERS != 0 {
        if around.st_mode & STICKY == 0 {
            return Err(writable(
                "others than its owner may write to its directory",
                &around,
                "chmod go-w its directory, or keep the file in another",
            ));
        }
        // There each has what he has put there.
        let entry = fstatat(&directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        is_ours(&entry, "the link to it")?;
    }
    Ok(file)
}

/// The bytes of a file, as `open` opens it.
///
/// # Errors
/// As `open`, and read(2).
pub fn read(path: &Path) -> Result<Vec<u8>, Unfit> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether a path leads to a descriptor of ours, proc_pid_fd(5).
fn is_inherited(path: &Path) -> bool {
    path == Path::new("/dev/stdin") || path.starts_with("/dev/fd") || path.starts_with("/proc/self/fd")
}

fn kind(found: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(found.st_mode & SFlag::S_IFMT.bits())
}

fn is_ours(found: &FileStat, what: &str) -> Result<(), Unfit> {
    let us = geteuid().as_raw();
    if found.st_uid == us || found.st_uid == 0 {
        return Ok(());
    }
    let (us, remedy) = match us {
        0 => ("root".to_owned(), "chown it to root, or name another; under sudo, leave out -E"),
        us => (format!("user {us} or root"), "name one of your own"),
    };
    Err(Unfit::Untrusted { came: format!("{what} belongs to user {}, not to {us}", found.st_uid), remedy })
}

fn writable(came: &str, found: &FileStat, remedy: &'static str) -> Unfit {
    Unfit::Untrusted { came: format!("{came} (mode {:04o})", found.st_mode & 0o7777), remedy }
}
