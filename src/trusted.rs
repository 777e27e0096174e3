//! Files that nxlock trusts, as configuration, password or certificate: it reads them only if no user but this one and
//! root can have written them, or have chosen the file to which the path leads. Knows nothing of their contents.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nix::unistd::geteuid;

use crate::text;

/// The reason for not reading a file.
pub enum Unfit {
    Unreadable(io::Error),
    /// Another user could have written the file, or have put it there.
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
/// Maximum number of links, as in the kernel, path_resolution(7).
const MOST_LINKS: usize = 40;
const ROOT: &str = "/";
const HERE: &str = ".";

/// Opens a file that the caller named. A descriptor that the caller opened is trusted like an argument: `/dev/stdin`,
/// `/dev/fd/N`, `<(...)`.
///
/// # Errors
/// As `open_found`.
pub fn open(path: &Path) -> Result<File, Unfit> {
    if descriptor(path).is_some() {
        return Ok(File::open(path)?);
    }
    open_found(path)
}

/// Opens a file that only this user and root can have written, by a path that only they can have laid out.
///
/// Walks the path as the kernel would, one name at a time, and judges what it has opened: a user who may write to a
/// directory on the way, or owns a link there, could redirect the path to a file that only this user may read.
///
/// # Errors
/// As open(2); and if another user may have chosen the file. A missing file is reported as missing, even if another
/// user could have created it.
pub fn open_found(path: &Path) -> Result<File, Unfit> {
    // Most machines and users have no configuration: one system call tells.
    if let Err(error) = std::fs::metadata(path)
        && error.kind() == io::ErrorKind::NotFound
    {
        return Err(error.into());
    }
    let mut walk = Walk::begin(path)?;
    let mut rest = names(path);
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        let entry = walk.enter(&name)?;
        match kind(&entry.found) {
            SFlag::S_IFLNK => {
                links += 1;
                if links > MOST_LINKS {
                    return Err(Errno::ELOOP.into());
                }
                walk.judge(is_ours(&entry.found, &format!("the link {}", walk.shown(&name))));
                let target = PathBuf::from(readlinkat(&entry.fd, "")?);
                if target.is_absolute() {
                    walk.go_to(ROOT)?;
                }
                for name in names(&target).into_iter().rev() {
                    rest.push_front(name);
                }
            }
            SFlag::S_IFDIR => walk.go_into(name, entry),
            _ if rest.is_empty() => {
                walk.judge(is_ours(&entry.found, "it").and_then(|()| is_not_writable(&entry)));
                walk.judged()?;
                return entry.read_from(&walk.directory, &name);
            }
            _ => return Err(Errno::ENOTDIR.into()),
        }
    }
    walk.judged()?;
    Err(Errno::EISDIR.into())
}

/// Returns the number of the descriptor of this process that a path is exactly, proc_pid_fd(5).
pub fn descriptor(path: &Path) -> Option<RawFd> {
    let path = path.as_os_str().as_bytes();
    if path == b"/dev/stdin" {
        return Some(0);
    }
    let number = path.strip_prefix(b"/dev/fd/").or_else(|| path.strip_prefix(b"/proc/self/fd/"))?;
    let is_number = !number.is_empty() && number.iter().all(u8::is_ascii_digit);
    is_number.then(|| std::str::from_utf8(number).ok()?.parse().ok()).flatten()
}

/// Returns the names to look up, in order.
fn names(path: &Path) -> VecDeque<OsString> {
    let is_name = |component: &Component<'_>| matches!(component, Component::Normal(_) | Component::ParentDir);
    path.components().filter(is_name).map(|component| component.as_os_str().to_owned()).collect()
}

/// A file opened only to be judged (O_PATH): this neither reads it nor blocks.
struct Entry {
    fd: OwnedFd,
    found: FileStat,
}

impl Entry {
    fn open(directory: impl AsFd, name: &OsStr) -> Result<Entry, Errno> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        // Only a lookup of a directory triggers an automount, so try O_DIRECTORY first.
        let opened = match openat(directory.as_fd(), name, flags | OFlag::O_DIRECTORY, Mode::empty()) {
            Err(Errno::ENOTDIR | Errno::ELOOP) => openat(directory, name, flags, Mode::empty()),
            opened => opened,
        };
        let fd = opened?;
        let found = fstat(&fd)?;
        Ok(Entry { fd, found })
    }

    /// Opens the file for reading: this very file, even if the name leads to another by now.
    fn read_from(&self, directory: &Entry, name: &OsStr) -> Result<File, Unfit> {
        match retried(|| File::open(self.path())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return Ok(opened?),
        }
        // Without /proc, by name. Only this user and root could have put another file there meanwhile, so no other user
        // can make this block.
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = retried(|| Ok(File::from(openat(&directory.fd, name, flags, Mode::empty())?)))?;
        let found = fstat(&file)?;
        if (found.st_dev, found.st_ino) != (self.found.st_dev, self.found.st_ino) {
            return Err(io::Error::other("it was replaced while it was opened: try again").into());
        }
        Ok(file)
    }

    /// Returns a path to the descriptor, proc_pid_fd(5).
    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd()).into()
    }

    /// Returns whether an ACL may grant access to other users than the mode shows, acl(5): the group bits of the mode
    /// are then the maximum for all of them. True if that cannot be determined.
    fn may_have_acl(&self) -> bool {
        match rustix::fs::getxattr(self.path(), "system.posix_acl_access", &mut [0_u8; 1][..]) {
            Err(errno) => errno != rustix::io::Errno::NODATA && errno != rustix::io::Errno::OPNOTSUPP,
            Ok(_) => true,
        }
    }

    fn others_may_write(&self) -> bool {
        let mode = self.found.st_mode;
        let by_group = mode & WRITE_OF_GROUP != 0 && (!has_private_group(&self.found) || self.may_have_acl());
        mode & WRITE_OF_ALL != 0 || by_group
    }
}

/// Retries after EINTR: opening a named pipe may block, and a signal interrupt it.
fn retried(mut open: impl FnMut() -> io::Result<File>) -> io::Result<File> {
    loop {
        match open() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            opened => return opened,
        }
    }
}

/// The progress of a walk along a path.
struct Walk {
    directory: Entry,
    /// For messages.
    path: PathBuf,
    /// The first thing on the way that another user could have changed. Reported only at the end: a missing file is
    /// reported as missing.
    distrusted: Option<Unfit>,
}

impl Walk {
    fn begin(path: &Path) -> Result<Walk, Unfit> {
        if path.as_os_str().is_empty() {
            return Err(Errno::ENOENT.into());
        }
        let begin = if path.is_absolute() { ROOT } else { HERE };
        let directory = Entry::open(AT_FDCWD, begin.as_ref())?;
        let mut walk = Walk { directory, path: begin.into(), distrusted: None };
        walk.judge_directory();
        Ok(walk)
    }

    /// Opens an entry of the current directory.
    fn enter(&mut self, name: &OsStr) -> Result<Entry, Unfit> {
        // A user who may write to the directory may have put the entry there. In a sticky directory only the entry's
        // owner can have, and the owner is checked in any case.
        let is_sticky = self.directory.found.st_mode & STICKY != 0;
        if self.distrusted.is_none() && !is_sticky && self.directory.others_may_write() {
            let cause = format!("others than its owner may write to {}", self.directory_shown());
            let hint = "chmod go-w that directory, or keep the file in another";
            self.distrusted = Some(writable(&cause, &self.directory.found, hint));
        }
        Ok(Entry::open(&self.directory.fd, name)?)
    }

    fn go_into(&mut self, name: OsString, entry: Entry) {
        // The path contains no links, so `..` removes its last name.
        match (name == "..", self.path.file_name()) {
            (true, Some(_)) => _ = self.path.pop(),
            (true, None) if self.path == Path::new(ROOT) => {}
            _ => self.path.push(name),
        }
        self.directory = entry;
        self.judge_directory();
    }

    fn go_to(&mut self, path: &str) -> Result<(), Unfit> {
        self.directory = Entry::open(AT_FDCWD, path.as_ref())?;
        self.path = path.into();
        self.judge_directory();
        Ok(())
    }

    fn judge_directory(&mut self) {
        self.judge(is_ours(&self.directory.found, &self.directory_shown()));
    }

    fn judge(&mut self, judgement: Result<(), Unfit>) {
        if self.distrusted.is_none() {
            self.distrusted = judgement.err();
        }
    }

    fn judged(&mut self) -> Result<(), Unfit> {
        self.distrusted.take().map_or(Ok(()), Err)
    }

    fn directory_shown(&self) -> String {
        match self.path == Path::new(HERE) {
            true => "the working directory".to_owned(),
            false => format!("the directory {}", text::path(&self.path)),
        }
    }

    fn shown(&self, name: &OsStr) -> String {
        text::path(&self.path.join(name))
    }
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
        _ if is_unmapped(found.st_uid) => {
            let us = if us == 0 { "root".to_owned() } else { format!("user {us} or root") };
            let hint = "this user namespace has no number for its owner, whoever that is: map it, or name /dev/stdin and \
                        give the file on stdin";
            (us, hint)
        }
        0 => ("root".to_owned(), "chown it to root, or name another; under sudo, leave out -E"),
        us => (format!("user {us} or root"), "name one of your own"),
    };
    Err(Unfit::Untrusted { cause: format!("{what} belongs to user {}, not to {us}", found.st_uid), hint })
}

/// Returns whether a user id is the one shown for all users that this user namespace does not map, user_namespaces(7).
fn is_unmapped(uid: u32) -> bool {
    let text = |path| std::fs::read_to_string(path).unwrap_or_default();
    let number = text("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(65534);
    let map = text("/proc/self/uid_map");
    uid == number && map.split_whitespace().ne(["0", "0", "4294967295"])
}

fn is_not_writable(file: &Entry) -> Result<(), Unfit> {
    // Writing to a device does not change what it returns: /dev/null.
    let is_device = kind(&file.found) == SFlag::S_IFCHR;
    if !is_device && file.others_may_write() {
        return Err(writable("others than its owner may write to it", &file.found, "chmod go-w it"));
    }
    Ok(())
}

/// Returns whether only its owner is in the group of a file: where each user has a group, the umask is usually 002.
/// False if passwd and group do not tell.
fn has_private_group(found: &FileStat) -> bool {
    let text = |path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    is_private(found.st_gid, found.st_uid, &text("/etc/passwd"), &text("/etc/group"))
}

/// Returns whether, by passwd(5) and group(5), a group is its owner's primary group and no other user's, and has no
/// other member.
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
    fn a_descriptor_is_named_by_its_number_and_by_nothing_else() {
        for path in ["/dev/stdin", "/dev/fd/0", "/dev/fd/63", "/proc/self/fd/7"] {
            assert!(descriptor(Path::new(path)).is_some(), "{path}");
        }
        for path in [
            "/dev/fd",
            "/dev/fd/",
            "/dev/fd/0/",
            "/dev/fd/../fd/0",
            "/dev/fd/3/x",
            "/dev/fd/+3",
            "/dev//fd/3",
            "/dev/stdin/..",
            "/dev/fd/../../home/ann",
            "/proc/self/fd/../../x",
            "/proc/1/fd/0",
            "dev/fd/0",
        ] {
            assert_eq!(descriptor(Path::new(path)), None, "{path}");
        }
    }

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
