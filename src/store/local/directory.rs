//! The directory that locks lie in: which one, whose, and its files. Knows nothing of what stands in
//! them.

use std::fmt;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::libc;
use nix::unistd::geteuid;

use super::fault::{LocalError, shown};
use super::filesystem;
use super::format::sum;
use crate::error::ErrorKind;
use crate::text;

/// Which directory.
#[derive(Clone)]
pub enum Directory {
    /// One for each user, the same wherever the user comes from: cron's environment is not a login
    /// shell's. In /tmp as tmux(1) has its sockets, so nobody has to make it.
    OfUser,
    /// Shared by whoever may write there.
    At(PathBuf),
}

/// A directory that was found fit.
pub struct OpenDirectory {
    path: PathBuf,
    /// Whose files it must have: those of this user alone, where it is nobody else's.
    owner: Option<u32>,
    /// Who may write in it may write its files.
    mode: u32,
    /// Whose it is itself.
    user: u32,
    group: u32,
}

/// A lock has two files.
#[derive(Clone, Copy)]
pub enum Part {
    /// Who has it. Its flock is held for as long as it takes to read and write both.
    Record,
    /// Who waits, and the turnstile: in it each has its ticket locked, and waits for that of the one ahead.
    Waiters,
}

/// A file that nobody's name for a lock can be that of.
const UNFINISHED: &str = "~new";
/// Longer names are shortened; file systems take 255 bytes.
const NAME_MAX: usize = 200;

impl Directory {
    /// What stands behind `local:`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn named(path: &str) -> Result<Directory, String> {
        let inner = path.trim_start_matches('/');
        match path.len() - inner.len() {
            // It is shown as it is, to be typed again.
            _ if path.contains(text::may_fool) => Err("there is a control or format character in its path".into()),
            0 if path.is_empty() => Ok(Directory::OfUser),
            0 => Err("behind `local:` there must be the whole path of a directory, or nothing".into()),
            2 => Err("locks of another machine cannot be reached by `local:`: write local:/path".into()),
            _ => Ok(Directory::At(Path::new("/").join(inner))),
        }
    }

    fn path(&self) -> PathBuf {
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
    /// Makes the directory if it is missing, and sees whether it can be trusted with locks.
    pub fn open(directory: &Directory) -> Result<OpenDirectory, LocalError> {
        let path = directory.path();
        let failed = |error| LocalError::of(&path, &error);
        let own = matches!(directory, Directory::OfUser);
        // Of one's own, a link is not followed: anybody could have laid it.
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
                format!("{} is not a directory", shown(&path)),
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
            Part::Waiters => "line",
        };
        self.path.join(format!("{}.{extension}", file_name(key)))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// When the files of a lock were last written.
    pub fn written(&self, key: &str) -> [Option<SystemTime>; 2] {
        [Part::Record, Part::Waiters]
            .map(|part| fs::metadata(self.file(key, part)).and_then(|file| file.modified()).ok())
    }

    /// All there is, in no order.
    pub fn files(&self) -> Result<Vec<PathBuf>, LocalError> {
        let listed = || fs::read_dir(&self.path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>();
        listed().map_err(|error| LocalError::of(&self.path, &error))
    }

    pub fn is_record(&self, path: &Path) -> bool {
        let is_file = || fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
        path.extension().is_some_and(|extension| extension == "lock") && is_file()
    }

    /// Of somebody who was killed while making a file.
    pub fn is_unfinished(&self, path: &Path) -> bool {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(UNFINISHED.as_bytes()))
    }

    /// Whether an open file has this name still: it may have been removed, and made anew.
    pub fn is_at(&self, file: &File, path: &Path) -> bool {
        let same = |open: Metadata, named: Metadata| (open.ino(), open.dev()) == (named.ino(), named.dev());
        file.metadata().and_then(|open| Ok(same(open, fs::symlink_metadata(path)?))).unwrap_or(false)
    }

    /// Opens a file; nothing if there is none.
    pub fn open_file(&self, path: &Path) -> Result<Option<File>, LocalError> {
        let failed = |error| LocalError::of(path, &error);
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        // Never with O_CREAT: in a sticky directory that keeps others' files from being opened, proc_sys_fs(5).
        let file = match OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed)?,
        };
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() {
            let cause = format!("{} is not a file", shown(path));
            return Err(LocalError::new(ErrorKind::Misconfigured, cause, "remove it, or use another NAME"));
        }
        if self.owner.is_some_and(|owner| owner != found.uid()) {
            return Err(belongs_to_another(path, &found));
        }
        Ok(Some(file))
    }

    /// Makes a file with this in it, whole or not at all. It may be there already, by somebody else.
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
            // Root may write anywhere, and is not to lock out those whose directory it is.
            if geteuid().is_root() {
                let _ = fchown(&file, Some(self.user), None);
            }
            // Whoever made the directory group-writable meant its group. If it is not ours to give, the file
            // has ours, which was not meant; but where everybody may write, so may ours.
            if fchown(&file, None, Some(self.group)).is_err() && mode & 0o006 == 0 {
                mode &= !0o060;
            }
        }
        file.set_permissions(PermissionsExt::from_mode(mode))?;
        file.write_all(content)?;
        // Else a power cut could leave it empty, which would look like damage.
        file.sync_all()
    }
}

fn make(path: &Path, own: bool) -> io::Result<()> {
    if !own {
        return fs::create_dir_all(path);
    }
    match DirBuilder::new().mode(0o700).create(path) {
        // Whatever the umask has taken away.
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
        let cause = format!("{} has the mode {mode:04o}, so that others could meddle", shown(path));
        return Err(LocalError::new(ErrorKind::Misconfigured, cause, "see what lies there, then: chmod 700"));
    }
    Ok(())
}

fn belongs_to_another(path: &Path, found: &Metadata) -> LocalError {
    let cause = format!("{} belongs to user {} and not to {}", shown(path), found.uid(), geteuid());
    LocalError::new(
        ErrorKind::Misconfigured,
        cause,
        "have it removed, or name a directory that is to be shared: local:/path",
    )
}

/// What a directory's mode means for its files. The sticky bit keeps what lies there for long without
/// being touched from being cleaned away, tmpfiles.d(5).
fn file_mode(directory: u32) -> u32 {
    let shared = |write: u32, both: u32| if directory & write == 0 { 0 } else { both };
    0o1600 | shared(0o020, 0o060) | shared(0o002, 0o006)
}

/// The key itself wherever it can be: people look for it. What is long ends in a checksum instead;
/// the key stands in the record.
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
