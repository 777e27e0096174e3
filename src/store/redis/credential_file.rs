//! A file with a password, a certificate or a key. Each connection reads it anew: it may have been replaced meanwhile.
//! What can be read only once is kept. Knows nothing of the contents.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::handover::{self, Handed};
use crate::trusted::{self, Unfit};
use crate::{log, text};

pub struct CredentialFile {
    /// As the user named it.
    path: PathBuf,
    /// The path to read it anew: a keeper leaves its caller's directory.
    again: PathBuf,
    /// Maximum bytes.
    longest: u64,
    last: Mutex<Option<Last>>,
}

/// What was read last.
struct Last {
    contents: Contents,
    kind: Kind,
    /// The file has gone since, and the user knows.
    has_gone: bool,
}

#[derive(Clone)]
pub struct Contents {
    pub bytes: Arc<[u8]>,
    /// The mode of a regular file.
    pub mode: Option<u32>,
}

/// How often the file can be read, as the kernel says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A pipe, a terminal or another device, or a descriptor that this process does not have.
    Once,
    /// A regular file at a path.
    Anew,
    /// A regular file behind a descriptor of the caller, as long as the descriptor is this file's.
    Descriptor { device: u64, inode: u64 },
}

impl CredentialFile {
    pub fn new(path: &Path, longest: u64) -> CredentialFile {
        let last =
            handover::received().unwrap_or_default().iter().find(|handed| handed.path == path).map(|handed| Last {
                contents: Contents { bytes: handed.bytes.as_slice().into(), mode: None },
                kind: if handed.is_once { Kind::Once } else { Kind::Anew },
                has_gone: false,
            });
        CredentialFile { path: path.to_owned(), again: again(path), longest, last: Mutex::new(last) }
    }

    /// Returns the path, as the user named it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the contents: as they are now, unless they could be read only once. Those of a file that has gone since
    /// are what they were.
    ///
    /// # Errors
    /// As [`trusted::open`], and read(2); and if it is too long.
    pub fn read(&self) -> Result<Contents, Unfit> {
        let mut last = self.last();
        let Some(before) = last.as_mut() else {
            let (contents, kind) = self.first()?;
            *last = Some(Last { contents: contents.clone(), kind, has_gone: false });
            return Ok(contents);
        };
        match self.anew(before.kind) {
            Ok(Some(contents)) => {
                (before.contents, before.has_gone) = (contents, false);
            }
            Ok(None) => {}
            Err(Unfit::Unreadable(error)) if error.kind() == io::ErrorKind::NotFound => {
                if !std::mem::replace(&mut before.has_gone, true) {
                    let shown = text::path(&self.path);
                    log::warn(format_args!("{shown} has gone: using what was last read from it"));
                }
            }
            Err(unfit) => return Err(unfit),
        }
        Ok(before.contents.clone())
    }

    /// Returns what was last read, for another process.
    pub fn handed(&self) -> Option<Handed> {
        let last = self.last();
        let Last { contents, kind, .. } = last.as_ref()?;
        // The descriptors of the other process are others.
        Some(Handed { path: self.path.clone(), is_once: *kind != Kind::Anew, bytes: contents.bytes.to_vec() })
    }

    fn last(&self) -> MutexGuard<'_, Option<Last>> {
        // A panic leaves a whole value: it is replaced in one step.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn first(&self) -> Result<(Contents, Kind), Unfit> {
        let file = trusted::open(&self.path)?;
        let found = file.metadata()?;
        let kind = match (found.is_file(), trusted::descriptor(&self.path)) {
            (false, _) => Kind::Once,
            (true, None) => Kind::Anew,
            (true, Some(_)) => Kind::Descriptor { device: found.dev(), inode: found.ino() },
        };
        Ok((self.contents(file, &found)?, kind))
    }

    /// Returns the contents as they are now; nothing if they can be read no more.
    fn anew(&self, kind: Kind) -> Result<Option<Contents>, Unfit> {
        let (path, is_the_same): (_, &dyn Fn(&Metadata) -> bool) = match kind {
            Kind::Once => return Ok(None),
            Kind::Anew => (&self.again, &|_| true),
            Kind::Descriptor { device, inode } => {
                (&self.path, &move |found: &Metadata| (found.dev(), found.ino()) == (device, inode))
            }
        };
        let found = match std::fs::metadata(path) {
            // The descriptor was closed, or is another file's by now.
            Err(_) if kind != Kind::Anew => return Ok(None),
            Ok(found) if !is_the_same(&found) => return Ok(None),
            found => found?,
        };
        // To open a pipe could block.
        if !found.is_file() {
            return Err(io::Error::other("it is no regular file any more").into());
        }
        let file = trusted::open(path)?;
        let found = file.metadata()?;
        self.contents(file, &found).map(Some)
    }

    fn contents(&self, file: File, found: &Metadata) -> Result<Contents, Unfit> {
        let mut bytes = Vec::new();
        file.take(self.longest + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > self.longest {
            return Err(io::Error::other(format!("it is longer than {} KiB", self.longest / 1024)).into());
        }
        Ok(Contents { bytes: bytes.into(), mode: found.is_file().then(|| found.permissions().mode()) })
    }
}

/// Returns the absolute form of a path; the path itself if that form cannot be read: then the directory must not change.
fn again(path: &Path) -> PathBuf {
    if path.is_absolute() {
        return path.to_owned();
    }
    // To open a pipe would take its reader's place.
    let can_be_read = |path: &PathBuf| path.is_file() && trusted::open_found(path).is_ok();
    std::path::absolute(path).ok().filter(can_be_read).unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read(file: &CredentialFile) -> Result<String, String> {
        match file.read() {
            Ok(contents) => Ok(String::from_utf8_lossy(&contents.bytes).into_owned()),
            Err(Unfit::Unreadable(error)) => Err(text::plain(&error)),
            Err(Unfit::Untrusted { cause, .. }) => Err(cause),
        }
    }

    #[test]
    fn a_regular_file_is_read_anew_and_one_that_has_gone_is_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        let file = CredentialFile::new(&path, 8);
        assert!(read(&file).is_err(), "it is not there yet");
        fs::write(&path, "one").unwrap();
        assert_eq!(read(&file).as_deref(), Ok("one"));
        fs::write(&path, "two").unwrap();
        assert_eq!(read(&file).as_deref(), Ok("two"));
        fs::remove_file(&path).unwrap();
        assert_eq!(read(&file).as_deref(), Ok("two"));
        fs::write(&path, "three").unwrap();
        assert_eq!(read(&file).as_deref(), Ok("three"));
        fs::write(&path, "123456789").unwrap();
        assert!(read(&file).is_err_and(|error| error.contains("longer")));
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        assert_eq!(read(&file), Err("it is no regular file any more".to_owned()));
    }

    #[test]
    fn a_pipe_is_read_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        let writer = std::thread::spawn({
            let path = path.clone();
            move || fs::write(path, "once").unwrap()
        });
        let file = CredentialFile::new(&path, 8);
        assert_eq!(read(&file).as_deref(), Ok("once"));
        writer.join().unwrap();
        assert_eq!(read(&file).as_deref(), Ok("once"));
        fs::remove_file(&path).unwrap();
        assert_eq!(read(&file).as_deref(), Ok("once"));
    }
}
