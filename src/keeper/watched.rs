//! The process that a lock is kept for: whether it still runs, and how it is told. Knows nothing of locks.

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
    /// It stays this process, whoever has its number later.
    process: OwnedFd,
}

impl Watched {
    /// Finds a process by the number that it has here.
    ///
    /// # Errors
    /// If it is not there, or cannot be watched.
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
                // Which of the two is the kernel's to choose.
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

    /// Whether it may be sent signals: not if it is another user's.
    pub fn may_signal(&self) -> bool {
        kill(Pid::from_raw(self.pid.cast_signed()), None) != Err(Errno::EPERM)
    }

    /// Sends it a signal. To one that has ended there is nothing to say.
    pub fn signal(&self, signal: Signal) {
        if let Some(signal) = rustix::process::Signal::from_named_raw(signal as i32) {
            let _ = pidfd_send_signal(&self.process, signal);
        }
    }
}

/// Readable when it has ended.
impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}
