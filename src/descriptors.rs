//! Descriptors across processes: closes those that a process inherited and was not started to use, keeps nxlock's from
//! the command, finds a number for one that the command is to inherit, and asks a terminal for its size.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::dup2_stdin;
use rustix::termios::tcgetwinsize;

/// A file for the command to inherit, and the lock that the command's process is to take on it, fcntl_locking(2).
pub struct CommandFile {
    pub file: OwnedFd,
    pub lock: libc::flock,
}

/// The highest number for a descriptor that the command inherits. bash(1) keeps its script at 255, and a higher number
/// would make the kernel copy a larger table at each fork(2) of the command.
const HIGHEST: RawFd = 254;

/// Gives a file the highest free number up to [`HIGHEST`] and to the limit of this process, or leaves its number if
/// there is none above it: scripts and programs expect the low numbers to be free. The descriptor is closed at exec.
///
/// # Errors
/// As fcntl(2).
pub fn moved_up(file: File) -> io::Result<OwnedFd> {
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let highest = RawFd::try_from(limit).map_or(HIGHEST, |limit| HIGHEST.min(limit - 1));
    // SAFETY: F_GETFD reads a flag of a descriptor, or fails if there is none.
    let is_free = |number: &RawFd| unsafe { libc::fcntl(*number, libc::F_GETFD) } == -1;
    let Some(number) = (file.as_raw_fd() + 1..=highest).rev().find(is_free) else { return Ok(file.into()) };
    // SAFETY: F_DUPFD_CLOEXEC takes numbers, and returns a new descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(Errno::result(libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, number))?) })
}

/// Closes everything but the standard streams and `kept`: a flock(1) lock or a pipe on another descriptor would last
/// until this process ends. Call after fork(2), in a process that uses no other descriptor any more.
pub fn close_all_but(kept: &[RawFd]) {
    let mut first = libc::STDERR_FILENO.cast_unsigned() + 1;
    let mut kept: Vec<u32> = kept.iter().map(|fd| fd.cast_unsigned()).filter(|fd| *fd >= first).collect();
    kept.sort_unstable();
    for fd in kept {
        close_from_to(first, fd - 1);
        first = fd.saturating_add(1);
    }
    close_from_to(first, u32::MAX);
}

/// Opens a file that takes the place of the standard streams.
///
/// # Errors
/// As open(2).
pub fn nowhere() -> io::Result<File> {
    // A directory can be neither read nor written, and exists even in a bare chroot(2).
    File::options().read(true).write(true).open("/dev/null").or_else(|_| File::open("/"))
}

/// Keeps a descriptor of the caller from the processes that this one starts; in place of stdin they get an empty one.
pub fn keep_from_the_command(fd: RawFd) {
    match fd {
        libc::STDIN_FILENO => _ = nowhere().map(|nowhere| dup2_stdin(nowhere.as_fd())),
        libc::STDOUT_FILENO | libc::STDERR_FILENO => {}
        // SAFETY: F_SETFD only changes a flag of a descriptor, and fails if there is none.
        _ => _ = unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) },
    }
}

/// Returns the columns and rows of a terminal: 80 by 24 if it does not know them.
pub fn window(terminal: impl AsFd) -> (usize, usize) {
    let known = tcgetwinsize(terminal).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
    known.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()))
}

fn close_from_to(first: u32, last: u32) {
    if first > last {
        return;
    }
    // SAFETY: close_range(2) and close(2) of descriptors that nothing in this process uses, by the caller's promise.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    // Linux before 5.9: close them one by one.
    if closed == -1 {
        let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let numbers: Vec<u32> = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        for number in numbers.into_iter().filter(|number| (first..=last).contains(number)) {
            // SAFETY: as above; the directory's own descriptor is closed already, and then this fails.
            unsafe { libc::close(number.cast_signed()) };
        }
    }
}
