//! The command's birth and its last word.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};

use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};

use nix::unistd::{getpid, getsid};

use crate::clock::Moment;
use crate::inherited;
use crate::report::Ending;

/// Whether there is a terminal that controls us, and so job control to take part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminal {
    /// The command stays in our process group, so that it can read the terminal, and Ctrl-C,
    /// Ctrl-Z and `fg` reach the whole pipeline as they would without us.
    Present,
    /// cron, CI, a service: the command leads a group of its own.
    Absent,
}

impl Terminal {
    fn find() -> Terminal {
        // Opening it fails with ENXIO where no terminal controls the process, tty(4).
        if File::open("/dev/tty").is_ok() { Terminal::Present } else { Terminal::Absent }
    }
}

/// Why a command was not started.
pub enum Unborn {
    /// It could not be in time.
    TooLate,
    /// As execve(2).
    Failed(io::Error),
}

impl From<io::Error> for Unborn {
    fn from(error: io::Error) -> Unborn {
        if error.raw_os_error() == Some(TOO_LATE) { Unborn::TooLate } else { Unborn::Failed(error) }
    }
}

impl From<Errno> for Unborn {
    fn from(errno: Errno) -> Unborn {
        Unborn::Failed(errno.into())
    }
}

/// What a child tells that is too late: nothing else on its way says that.
const TOO_LATE: i32 = libc::ETIME;

/// Starts the command, with `mask` as its signal mask, unless `start_by` has passed. To be called from the
/// main thread: the parent-death signal is bound to the thread that forked, prctl(2).
///
/// # Errors
/// If it could not be started, or not in time.
pub fn spawn(
    program: &OsString,
    args: &[OsString],
    environment: &[(&str, Option<String>)],
    mask: SigSet,
    start_by: Moment,
) -> Result<(Child, Terminal), Unborn> {
    // What loses its parent comes to us instead of to init, so that all of it can be found.
    prctl::set_child_subreaper(true)?;
    let terminal = Terminal::find();
    let mut command = Command::new(program);
    command.args(args);
    for (name, value) in environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if terminal == Terminal::Absent {
        command.process_group(0);
    }
    let parent = std::process::id();
    let pipe_ignored = inherited::pipe_ignored();
    // SAFETY: between fork and exec only sigprocmask(2), sigaction(2), prctl(2), clock_gettime(2),
    // getppid(2) and kill(2) are called, which are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            mask.thread_set_mask()?;
            if pipe_ignored {
                signal(Signal::SIGPIPE, SigHandler::SigIgn)?;
            }
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            // Whatever has held us up since the lock was granted: nothing begins without it.
            if start_by.passed() {
                return Err(io::Error::from_raw_os_error(TOO_LATE));
            }
            // Had we died before that, nobody would tell.
            if libc::getppid().cast_unsigned() != parent {
                libc::raise(libc::SIGKILL);
            }
            Ok(())
        });
    }
    Ok((command.spawn()?, terminal))
}

/// Whether we are the leader of our session, as a terminal window's first program is.
pub fn leads_session() -> bool {
    getsid(None) == Ok(getpid())
}

/// How a command ended; `typed` is the signal that its user sent it from the terminal.
pub fn ending(status: ExitStatus, typed: Option<Signal>) -> Ending {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ending::Status(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, Some(signal)) => {
            Ending::Killed { signal, from_terminal: typed.is_some_and(|typed| typed as i32 == signal) }
        }
        (None, None) => Ending::Status(u8::MAX),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn nothing_begins_too_late() {
        let spawn = |start_by| spawn(&"true".into(), &[], &[], SigSet::empty(), start_by);
        assert!(matches!(spawn(Moment::now()), Err(Unborn::TooLate)));
        let (mut child, _) = spawn(Moment::now() + Duration::from_secs(60)).unwrap_or_else(|_| panic!("it starts"));
        assert!(child.wait().unwrap().success());
    }
}
