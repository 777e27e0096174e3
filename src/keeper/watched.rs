//! The watched process, for which a lock is kept: whether it still runs, and how to signal it. Knows nothing of locks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

use crate::error::{Error, ErrorKind};
use crate::text;
use crate::wait::is_ready;

pub struct Watched {
    pid: u32,
    /// A pidfd: it refers to this process even after the pid is reused.
    process: OwnedFd,
}

impl Watched {
    /// Finds a process by its pid in this namespace.
    ///
    /// # Errors
    /// If there is no such process, or it cannot be watched.
    pub fn find(pid: u32) -> Result<Watched, Error> {
        let error = |kind, cause: &str, hint: &str| Error {
            kind,
            action: format!("cannot keep a lock while process {pid} runs"),
            cause: cause.into(),
            hint: hint.into(),
        };
        let missing = || error(ErrorKind::Usage, "there is no such process", "name one that runs, such as $$");
        if pid == std::process::id() {
            let hint = "let that shell have something to do after it, or name another process";
            return Err(error(ErrorKind::Usage, "it is nxlock itself, which its shell has become", hint));
        }
        let number = rustix::process::Pid::from_raw(pid.cast_signed()).ok_or_else(missing)?;
        let process =
            pidfd_open(number, PidfdFlags::empty()).map_err(|errno| match Errno::from_raw(errno.raw_os_error()) {
                Errno::ESRCH => missing(),
                // The kernel may return either.
                Errno::EINVAL | Errno::ENOENT => {
                    error(ErrorKind::Usage, "that number is a thread's", "name the process that it belongs to")
                }
                Errno::ENOSYS | Errno::EPERM => error(
                    ErrorKind::Internal,
                    "processes cannot be watched here",
                    "use Linux 5.3 or later, and permit pidfd_open(2)",
                ),
                other => error(ErrorKind::Internal, &text::plain(&other.into()), ""),
            })?;
        let watched = Watched { pid, process };
        if watched.has_ended() { Err(missing()) } else { Ok(watched) }
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn has_ended(&self) -> bool {
        is_ready(self.process.as_fd(), PollFlags::POLLIN)
    }

    /// Returns whether nxlock may signal the process: not if another user runs it.
    pub fn may_signal(&self) -> bool {
        kill(Pid::from_raw(self.pid.cast_signed()), None) != Err(Errno::EPERM)
    }

    /// Signals the process; does nothing if it has ended.
    pub fn signal(&self, signal: Signal) {
        if let Some(signal) = rustix::process::Signal::from_named_raw(signal as i32) {
            let _ = pidfd_send_signal(&self.process, signal);
        }
    }
}

/// Readable when the process has ended.
impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}
