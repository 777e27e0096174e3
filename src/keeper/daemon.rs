//! One process becomes two: the half that its caller waits for, and the keeper. Owns what is unsafe about that,
//! and what a process in the background must not keep of its caller's.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{self, ForkResult, Pid, dup2_stderr, dup2_stdin, dup2_stdout, getpid, setsid};

use crate::signals::{end_with, is_ignored};

/// Which of the two this is.
pub enum Half {
    /// The caller's, which has the other as its child.
    Front(Pid),
    Keeper,
}

/// Becomes two. To be called by a process of one thread: no other would be there in the keeper. The keeper ends
/// with the front, until it is [`detach`]ed.
///
/// # Errors
/// As fork(2).
pub fn fork() -> io::Result<Half> {
    let front = getpid();
    // An inherited "ignore" would keep from us how the keeper ended.
    // SAFETY: SIG_DFL runs no code of ours.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    // SAFETY: there is one thread, so the child has all that the parent has, and no lock is held by anybody else.
    match unsafe { unistd::fork() }? {
        ForkResult::Parent { child } => Ok(Half::Front(child)),
        ForkResult::Child => {
            // One that does not hear TERM could not be told to leave the line.
            let told = if is_ignored(libc::SIGTERM) { Signal::SIGKILL } else { Signal::SIGTERM };
            end_with(front, told)?;
            Ok(Half::Keeper)
        }
    }
}

/// A file for streams that nobody is behind.
///
/// # Errors
/// As open(2).
pub fn nowhere() -> io::Result<File> {
    // A directory can neither be read nor be written, and is there even in a bare chroot(2).
    File::options().read(true).write(true).open("/dev/null").or_else(|_| File::open("/"))
}

/// Goes into the background: a session of its own, no directory and no stream of the caller's, and no end with
/// the front.
///
/// # Errors
/// As the system calls; the half way is no harm to a process that ends.
pub fn detach(nowhere: &File) -> Result<(), Errno> {
    setsid()?;
    unistd::chdir("/")?;
    dup2_stdin(nowhere.as_fd())?;
    dup2_stdout(nowhere.as_fd())?;
    dup2_stderr(nowhere.as_fd())?;
    prctl::set_pdeathsig(None)
}
