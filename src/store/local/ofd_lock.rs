//! Locks on numbers: on the byte with that offset in a file, by an open file description, fcntl_locking(2).
//!
//! A waiter locks its ticket while it waits, and a holder the number of its claim while it holds; the processes of its
//! command keep a byte of a file of their own ([`super::claim_file`]). The kernel thus knows who is alive: a lock ends when the last process has closed the file, however that process
//! ends and in whichever namespace it is. The kernel then wakes the processes that wait for the lock. The byte need not
//! exist. Other fcntl(2) locks would end as soon as any descriptor of the file is closed.

use std::fs::File;
use std::io;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::background::Background;

/// Describes a lock on the byte of a number.
fn byte(number: u64, kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: libc::c_short::try_from(kind).unwrap_or(libc::c_short::MAX),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).unwrap_or(0),
        l_start: i64::try_from(number).unwrap_or(i64::MAX),
        l_len: 1,
        l_pid: 0,
    }
}

/// Locks a number that is not locked; fails if it is.
pub fn take(file: &File, number: u64) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&byte(number, libc::F_WRLCK)))?;
    Ok(())
}

/// Keeps a number, through a file that need not be open for writing. It must not be kept by another.
pub fn keep(file: &File, number: u64) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&keeping(number)))?;
    Ok(())
}

/// Returns the lock that keeps a number.
pub fn keeping(number: u64) -> libc::flock {
    byte(number, libc::F_RDLCK)
}

/// Returns whether another open file description keeps the number.
pub fn is_kept(file: &File, number: u64) -> io::Result<bool> {
    is_locked(file, byte(number, libc::F_WRLCK))
}

/// Returns whether another open file description has any number of a file locked.
pub fn is_any_kept(file: &File) -> io::Result<bool> {
    // Up to the end, wherever that is.
    is_locked(file, libc::flock { l_len: 0, ..byte(0, libc::F_WRLCK) })
}

pub fn give_back(file: &File, number: u64) {
    let _ = fcntl(file, FcntlArg::F_OFD_SETLK(&byte(number, libc::F_UNLCK)));
}

/// Returns whether another open file description has the number locked. Processes that only wait for it do not count.
pub fn is_taken(file: &File, number: u64) -> io::Result<bool> {
    is_locked(file, byte(number, libc::F_RDLCK))
}

/// Returns whether a lock of another open file description is in the way of this one.
fn is_locked(file: &File, mut asked: libc::flock) -> io::Result<bool> {
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut asked))?;
    Ok(libc::c_int::from(asked.l_type) != libc::F_UNLCK)
}

/// Starts to wait until the number is not locked any more.
pub fn wait_for_end(file: &Arc<File>, number: u64) -> io::Result<Background> {
    // All waiters get a shared lock, and none needs it for itself.
    wait_to_lock(file, number, libc::F_RDLCK)
}

/// Starts to wait until nobody keeps the number any more.
pub fn wait_until_unkept(file: &Arc<File>, number: u64) -> io::Result<Background> {
    wait_to_lock(file, number, libc::F_WRLCK)
}

/// Starts to wait for a lock, which is released at once.
fn wait_to_lock(file: &Arc<File>, number: u64, kind: libc::c_int) -> io::Result<Background> {
    let file = Arc::clone(file);
    Background::begin(move || {
        while fcntl(&*file, FcntlArg::F_OFD_SETLKW(&byte(number, kind))) == Err(Errno::EINTR) {}
        give_back(&file, number);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_taken_until_its_waiter_lets_go_of_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || Arc::new(File::options().read(true).write(true).open(file.path()).unwrap());
        let (waiter, behind, other) = (open(), open(), open());
        let ticket = 12_331_600_197;
        assert!(!is_taken(&other, ticket).unwrap() && !is_any_kept(&other).unwrap());
        take(&waiter, ticket).unwrap();
        assert!(is_taken(&other, ticket).unwrap() && !is_taken(&other, ticket + 1).unwrap());
        assert!(is_any_kept(&other).unwrap());
        assert!(take(&other, ticket).is_err());
        let wait = wait_for_end(&behind, ticket).unwrap();
        assert!(!wait.has_ended());
        drop(waiter);
        while !wait.has_ended() {
            std::thread::yield_now();
        }
        assert!(!is_taken(&other, ticket).unwrap());
    }
}
