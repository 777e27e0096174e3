//! Hands the contents of files from a guard to the nxlock that it becomes, since a pipe cannot be read again, and a file
//! may have gone: by a file without a name, whose descriptor is inherited. No argument and no variable shows them.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::OnceLock;

use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};

/// The variable that names the descriptor.
pub const VARIABLE: &str = "NXLOCK_HANDOVER";

/// A file's contents, as another process has read them.
pub struct Handed {
    /// As the user named it.
    pub path: PathBuf,
    /// It cannot be read again.
    pub is_once: bool,
    pub bytes: Vec<u8>,
}

/// Returns the text that [`send`] writes: prepared in advance, since a process that was forked beside threads does as
/// little as possible.
pub fn packed(files: &[Handed]) -> Vec<u8> {
    let mut packed = Vec::new();
    for Handed { path, is_once, bytes } in files {
        let path = path.as_os_str().as_bytes();
        packed.push(u8::from(*is_once));
        for part in [path, bytes] {
            packed.extend((part.len() as u64).to_ne_bytes());
            packed.extend(part);
        }
    }
    packed
}

/// Writes what was packed to a descriptor that stays open across execve(2), and returns its number. Call only in a
/// process that starts no other.
///
/// # Errors
/// As memfd_create(2) and write(2).
pub fn send(packed: &[u8]) -> io::Result<RawFd> {
    let mut file = File::from(memfd_create(c"nxlock", MFdFlags::empty())?);
    file.write_all(packed)?;
    file.rewind()?;
    Ok(file.into_raw_fd())
}

/// Returns the files that another nxlock has handed to this process; `None` if this process takes no other's place.
pub fn received() -> Option<&'static [Handed]> {
    static RECEIVED: OnceLock<Option<Vec<Handed>>> = OnceLock::new();
    RECEIVED.get_or_init(read).as_deref()
}

fn read() -> Option<Vec<Handed>> {
    let number: RawFd = std::env::var(VARIABLE).ok()?.parse().ok().filter(|number| *number > libc::STDERR_FILENO)?;
    // SAFETY: F_GETFD reads a flag of a descriptor, or fails if there is none.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } != 0 {
        return None;
    }
    // SAFETY: the descriptor is open and inherited, and nothing else in nxlock uses it.
    let mut file = File::from(unsafe { OwnedFd::from_raw_fd(number) });
    let mut packed = Vec::new();
    file.read_to_end(&mut packed).ok()?;
    unpacked(&packed)
}

fn unpacked(mut rest: &[u8]) -> Option<Vec<Handed>> {
    let mut files = Vec::new();
    while let Some((is_once, behind)) = rest.split_first() {
        let (path, behind) = part(behind)?;
        let (bytes, behind) = part(behind)?;
        rest = behind;
        let path = PathBuf::from(OsString::from_vec(path.to_vec()));
        files.push(Handed { path, is_once: *is_once != 0, bytes: bytes.to_vec() });
    }
    Some(files)
}

/// Returns a part, and what follows it.
fn part(packed: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, behind) = packed.split_first_chunk()?;
    behind.split_at_checked(usize::try_from(u64::from_ne_bytes(*length)).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked_and_nothing_of_what_is_cut_short() {
        let file = |path: &str, is_once, bytes: &[u8]| Handed { path: path.into(), is_once, bytes: bytes.to_vec() };
        let packed = packed(&[file("/dev/fd/63", true, b"s3cret\0\n"), file("a b", false, b"")]);
        let files = unpacked(&packed).unwrap();
        let seen: Vec<_> = files.iter().map(|file| (file.path.to_str().unwrap(), file.is_once, &*file.bytes)).collect();
        assert_eq!(seen, [("/dev/fd/63", true, &b"s3cret\0\n"[..]), ("a b", false, b"")]);
        assert!(unpacked(&[]).unwrap().is_empty());
        assert!((1..packed.len()).filter(|at| unpacked(&packed[..*at]).is_some()).count() == 1, "between the files");
        assert!(unpacked(&[1; 30]).is_none());
    }
}
