//! The directory of the lock files: its path, its owner and the files in it. Knows nothing of their contents.

use std::fmt;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::libc;
use nix::unistd::geteuid;

use super::fault::LocalError;
use super::filesystem;
use super::format::sum;
use crate::error::ErrorKind;
use crate::text;

/// Which directory to use.
#[derive(Clone)]
pub enum Directory {
    /// One per user, the same in every environment: cron's is not a login shell's. It is in /tmp, like tmux(1)'s
    /// sockets, where nobody has to create it first.
    OfUser,
    /// Shared by all users who may write there.
    At(PathBuf),
}

/// A directory that passed the checks.
pub struct OpenDirectory {
    path: PathBuf,
    /// Required owner of the files: this user in a private directory, any user in a shared one.
    owner: Option<u32>,
    /// Mode of the files: a user who may write in the directory may write its files.
    mode: u32,
    /// Owner of the directory itself.
    user: u32,
    group: u32,
}

/// One of the files of a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The state of the lock. A transaction holds this file's flock while it reads and writes. A holder that has the lock
    /// for itself locks a byte here.
    Record,
    /// Empty: each waiter locks the byte of its ticket, and waits for that of the waiter ahead.
    Line,
    /// Empty: a holder of a share locks a byte here.
    Shares,
    /// Empty: the processes of a command lock a byte here.
    Commands,
}

impl Part {
    /// All parts, the record last: without it, nobody would find the rest again.
    pub const ALL: [Part; 4] = [Part::Line, Part::Shares, Part::Commands, Part::Record];
}

/// Prefix of a file that is being created. No lock's file name begins with it.
const UNFINISHED: &str = "~new";
/// Longer names are shortened; file systems allow 255 bytes.
const NAME_MAX: usize = 200;

impl Directory {
    /// Parses the text after `local:`.
    ///
    /// # Errors
    /// The reason why the path is invalid.
    pub fn named(path: &str) -> Result<Directory, String> {
        let inner = path.trim_start_matches('/');
        match path.len() - inner.len() {
            // Messages show the path verbatim, for the user to type again.
            _ if path.contains(text::may_fool) => Err("there is a control or format character in its path".into()),
            0 if path.is_empty() => Ok(Directory::OfUser),
            0 => Err("after `local:`, give the absolute path of a directory, or nothing".into()),
            2 => Err("locks of another machine cannot be reached by `local:`: write local:/path".into()),
            _ => Ok(Directory::At(Path::new("/").join(inner))),
        }
    }

    pub fn path(&self) -> PathBuf {
        match self {
            Directory::OfUser => PathBuf::from(format!("/tmp/nxlock-{}", geteuid())),
            Directory::At(path) => path.clone(),
        }
    }
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Directory::OfUser => f.write_str("local:"),
            Directory::At(path) => write!(f, "local:{}", path.display()),
        }
    }
}

impl OpenDirectory {
    /// Creates the directory if it is missing, and checks whether it can be trusted with locks.
    pub fn open(directory: &Directory) -> Result<OpenDirectory, LocalError> {
        let path = directory.path();
        let failed = |error| LocalError::of(&path, &error);
        let own = matches!(directory, Directory::OfUser);
        // The user's own directory must not be a symbolic link: anyone could have created that in /tmp.
        let look = || if own { fs::symlink_metadata(&path) } else { fs::metadata(&path) };
        let found = match look() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(&path, own).map_err(failed)?;
                look()
            }
            found => found,
        };
        let found = found.map_err(failed)?;
        if !found.is_dir() {
            let hint = if own { "remove it, or name another: local:/path" } else { "name a directory: local:/path" };
            return Err(LocalError::new(
                ErrorKind::Misconfigured,
                format!("{} is not a directory", text::path(&path)),
                hint,
            ));
        }
        if own {
            is_private(&path, &found)?;
        }
        filesystem::keeps_locks(&path)?;
        Ok(OpenDirectory {
            path,
            owner: own.then(|| geteuid().as_raw()),
            mode: file_mode(found.permissions().mode()),
            user: found.uid(),
            group: found.gid(),
        })
    }

    pub fn file(&self, key: &str, part: Part) -> PathBuf {
        let extension = match part {
            Part::Record => "lock",
            Part::Line => "line",
            Part::Shares => "shares",
            Part::Commands => "commands",
        };
        self.path.join(format!("{}.{extension}", file_name(key)))
    }

    /// Returns the key of a lock by the path of its file; none if it is too long for a file name.
    pub fn key_of(&self, path: &Path) -> Option<String> {
        let name = path.file_stem()?.to_str()?.to_owned();
        (!name.contains('~')).then(|| name.replace("%7E", "~").replace("%2F", "/").replace("%25", "%"))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns when the files of a lock were last written.
    pub fn written(&self, key: &str) -> [Option<SystemTime>; Part::ALL.len()] {
        Part::ALL.map(|part| fs::metadata(self.file(key, part)).and_then(|file| file.modified()).ok())
    }

    /// Returns the paths of all files, in no order.
    pub fn files(&self) -> Result<Vec<PathBuf>, LocalError> {
        let listed = || fs::read_dir(&self.path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>();
        listed().map_err(|error| LocalError::of(&self.path, &error))
    }

    pub fn is_record(&self, path: &Path) -> bool {
        let is_file = || fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
        path.extension().is_some_and(|extension| extension == "lock") && is_file()
    }

    /// Returns whether a process was killed while it created this file.
    pub fn is_unfinished(&self, path: &Path) -> bool {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(UNFINISHED.as_bytes()))
    }

    /// Returns whether `path` still names this open file: it may have been removed, and created again.
    pub fn is_at(&self, file: &File, path: &Path) -> bool {
        let same = |open: Metadata, named: Metadata| (open.ino(), open.dev()) == (named.ino(), named.dev());
        file.metadata().and_then(|open| Ok(same(open, fs::symlink_metadata(path)?))).unwrap_or(false)
    }

    /// Opens a file; `None` if there is none.
    pub fn open_file(&self, path: &Path) -> Result<Option<File>, LocalError> {
        self.open_with(path, OpenOptions::new().read(true).write(true))
    }

    /// Opens a file for reading only; `None` if there is none.
    pub fn open_to_read(&self, path: &Path) -> Result<Option<File>, LocalError> {
        self.open_with(path, OpenOptions::new().read(true))
    }

    fn open_with(&self, path: &Path, options: &mut OpenOptions) -> Result<Option<File>, LocalError> {
        let failed = |error| LocalError::of(path, &error);
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        // Never with O_CREAT: in a sticky directory, that prevents opening other users' files, proc_sys_fs(5).
        let file = match options.custom_flags(flags).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed)?,
        };
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() {
            let cause = format!("{} is not a file", text::path(path));
            return Err(LocalError::new(ErrorKind::Misconfigured, cause, "remove it, or use another NAME"));
        }
        if self.owner.is_some_and(|owner| owner != found.uid()) {
            return Err(belongs_to_another(path, &found));
        }
        Ok(Some(file))
    }

    /// Waits until the names of its files are on disk.
    pub fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    /// Creates a file with this content, whole or not at all. Another process may have created it already.
    pub fn create_file(&self, path: &Path, content: &[u8]) -> Result<(), LocalError> {
        let failed = |error| LocalError::of(path, &error);
        let random = getrandom::u64().map_err(|error| failed(io::Error::other(error)))?;
        let unfinished = self.path.join(format!("{UNFINISHED}-{random:016x}"));
        let made = self.fill(&unfinished, content).and_then(|()| match fs::hard_link(&unfinished, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        });
        let removed = fs::remove_file(&unfinished);
        made.and(removed).map_err(failed)
    }

    fn fill(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let mut mode = self.mode;
        if self.owner.is_none() {
            // Root may write anywhere, and must not lock out the owner of the directory.
            if geteuid().is_root() {
                let _ = fchown(&file, Some(self.user), None);
            }
            // A group-writable directory is meant for its group. If this process may not give the file to that group,
            // the file keeps the group of the process, which gets access only where everybody has it.
            if fchown(&file, None, Some(self.group)).is_err() && mode & 0o006 == 0 {
                mode &= !0o060;
            }
        }
        file.set_permissions(PermissionsExt::from_mode(mode))?;
        file.write_all(content)?;
        // Without this, a power failure could leave the file empty, which would look like damage.
        file.sync_all()
    }
}

fn make(path: &Path, own: bool) -> io::Result<()> {
    if !own {
        return fs::create_dir_all(path);
    }
    match DirBuilder::new().mode(0o700).create(path) {
        // Sets the bits that the umask cleared.
        Ok(()) => fs::set_permissions(path, PermissionsExt::from_mode(0o700)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn is_private(path: &Path, found: &Metadata) -> Result<(), LocalError> {
    if found.uid() != geteuid().as_raw() {
        return Err(belongs_to_another(path, found));
    }
    let mode = found.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        let cause = format!("{} has mode {mode:04o}: other users could change it", text::path(path));
        return Err(LocalError::new(ErrorKind::Misconfigured, cause, "see what lies there, then: chmod 700"));
    }
    Ok(())
}

fn belongs_to_another(path: &Path, found: &Metadata) -> LocalError {
    let cause = format!("{} belongs to user {} and not to {}", text::path(path), found.uid(), geteuid());
    LocalError::new(
        ErrorKind::Misconfigured,
        cause,
        "have it removed, or name a directory that is to be shared: local:/path",
    )
}

/// Returns the mode of files in a directory with this mode. The sticky bit prevents the removal of files that were
/// unused for long, tmpfiles.d(5).
fn file_mode(directory: u32) -> u32 {
    let shared = |write: u32, both: u32| if directory & write == 0 { 0 } else { both };
    0o1600 | shared(0o020, 0o060) | shared(0o002, 0o006)
}

/// Returns the file name of a key: the key itself if possible, since people look for it. A long key is cut and ends in
/// a checksum; the record contains the whole key.
fn file_name(key: &str) -> String {
    let name = key.replace('%', "%25").replace('/', "%2F").replace('~', "%7E");
    if name.len() <= NAME_MAX {
        return name;
    }
    let cut = (0..=NAME_MAX).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
    format!("{}~{:016x}", &name[..cut], sum(key.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_after_its_key() {
        assert_eq!(file_name("lock:deploy"), "lock:deploy");
        assert_eq!(file_name("../a b/~%é"), "..%2Fa b%2F%7E%25é");
        let directory = OpenDirectory { path: "d".into(), owner: None, mode: 0, user: 0, group: 0 };
        for key in ["lock:deploy", "../a b/~%é.lock", "%2F"] {
            assert_eq!(directory.key_of(&directory.file(key, Part::Record)).as_deref(), Some(key));
        }
        assert_eq!(directory.key_of(&directory.file(&"é".repeat(150), Part::Record)), None);
        let (long, longer) = ("é".repeat(150), format!("{}x", "é".repeat(150)));
        assert!(file_name(&long).len() < 240);
        assert_ne!(file_name(&long), file_name(&longer));
    }

    #[test]
    fn who_may_write_in_a_directory_may_write_its_files() {
        for (directory, file) in [(0o700, 0o1600), (0o2775, 0o1660), (0o1777, 0o1666), (0o755, 0o1600)] {
            assert_eq!(file_mode(directory), file);
        }
    }
}
