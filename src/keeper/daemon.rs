//! Forks the keeper from the front, and detaches it. Owns the unsafe code for that, and drops what a background process
//! must not keep of its caller's.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{self, ForkResult, Pid, dup2_stderr, dup2_stdin, dup2_stdout, getpid, setsid};

use crate::signals::{end_with, is_ignored};

/// Which of the two processes this is.
pub enum Half {
    /// The process that the caller waits for, the parent of the keeper.
    Front(Pid),
    Keeper,
}

/// Forks the keeper. Call in a process of one thread: the keeper would have no other. The keeper ends with the front
/// until it is [`detach`]ed.
///
/// # Errors
/// As fork(2).
pub fn fork() -> io::Result<Half> {
    let front = getpid();
    // An inherited "ignore" would hide from the front how the keeper ended.
    // SAFETY: SIG_DFL runs no code of ours.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    // SAFETY: there is one thread, so the child has all that the parent has, and no other thread holds a lock.
    match unsafe { unistd::fork() }? {
        ForkResult::Parent { child } => Ok(Half::Front(child)),
        ForkResult::Child => {
            // TERM would not make a keeper that ignores it leave the queue.
            let signal = if is_ignored(libc::SIGTERM) { Signal::SIGKILL } else { Signal::SIGTERM };
            end_with(front, signal)?;
            Ok(Half::Keeper)
        }
    }
}

/// Detaches this process: it gets its own session, leaves the caller's directory and streams, and no longer ends with
/// the front. stderr is left as it is, for an error that is still to come: see [`detach_stderr`].
///
/// # Errors
/// Those of the system calls; a half-detached process does no harm if it ends.
pub fn detach(nowhere: &File) -> Result<(), Errno> {
    setsid()?;
    unistd::chdir("/")?;
    dup2_stdin(nowhere.as_fd())?;
    dup2_stdout(nowhere.as_fd())?;
    prctl::set_pdeathsig(None)
}

/// Leaves the caller's stderr. Whatever made this fail, the process has the lock and keeps it.
pub fn detach_stderr(nowhere: &File) {
    let _ = dup2_stderr(nowhere.as_fd());
}
