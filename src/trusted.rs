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
        cause: String,
        hint: &'static str,
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

const WRITE_OF_GROUP: u32 = 0o020;
const WRITE_OF_ALL: u32 = 0o002;
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
    if !is_device && others_may_write(&found) {
        return Err(writable("others than its owner may write to it", &found, "chmod go-w it"));
    }
    let around = fstat(&directory)?;
    is_ours(&around, "its directory")?;
    if others_may_write(&around) {
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
    let (us, hint) = match us {
        0 => ("root".to_owned(), "chown it to root, or name another; under sudo, leave out -E"),
        us => (format!("user {us} or root"), "name one of your own"),
    };
    Err(Unfit::Untrusted { cause: format!("{what} belongs to user {}, not to {us}", found.st_uid), hint })
}

fn others_may_write(found: &FileStat) -> bool {
    let mode = found.st_mode;
    mode & WRITE_OF_ALL != 0 || (mode & WRITE_OF_GROUP != 0 && !has_private_group(found))
}

/// Whether the group of a file is its owner's alone: with one for each user goes a umask of 002. Where these files do
/// not tell, it is not.
fn has_private_group(found: &FileStat) -> bool {
    let text = |path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    is_private(found.st_gid, found.st_uid, &text("/etc/passwd"), &text("/etc/group"))
}

/// By passwd(5) and group(5): it is the owner's group and no other user's, and nobody else is in it.
fn is_private(gid: u32, owner: u32, passwd: &str, group: &str) -> bool {
    let (gid, owner) = (gid.to_string(), owner.to_string());
    let users = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut names = Vec::new();
    for user in users.filter(|user| user.get(3) == Some(&gid.as_str())) {
        if user[2] != owner {
            return false;
        }
        names.push(user[0]);
    }
    let groups = group.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut members =
        groups.filter(|group| group.get(2) == Some(&gid.as_str())).filter_map(|group| group.get(3).copied());
    let is_owner = |member: &str| member.is_empty() || names.contains(&member.trim());
    !names.is_empty() && members.all(|members| members.split(',').all(is_owner))
}

fn writable(cause: &str, found: &FileStat, hint: &'static str) -> Unfit {
    Unfit::Untrusted { cause: format!("{cause} (mode {:04o})", found.st_mode & 0o7777), hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_private_if_nobody_but_the_owner_is_in_it() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nbob:x:1001:1001::/home/bob:\n\
                      eve:x:1002:100::/home/eve:\nian:x:1003:100::/home/ian:\n";
        let group = "root:x:0:\nann:x:1000:ann\nbob:x:1001:eve\nusers:x:100:\nstaff:x:50:ann\n";
        let of = |gid, owner| is_private(gid, owner, passwd, group);
        assert!(of(0, 0) && of(1000, 1000));
        assert!(!of(1001, 1001), "another is in it");
        assert!(!of(100, 1002), "it is another's as well");
        assert!(!of(50, 1000) && !of(1000, 0) && !of(4711, 1000) && !of(4711, 4711));
        assert!(!is_private(1000, 1000, "", ""), "nothing tells");
        assert!(!is_private(1000, 1000, "ann:x:1000", group), "a broken line");
    }
}
