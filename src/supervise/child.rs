//! The command's birth and its last word.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};

use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};

use nix::unistd::{getpid, getsid};

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

/// Starts the command, with `mask` as its signal mask. To be called from the main thread: the parent-death signal is bound to the
/// thread that forked, prctl(2).
///
/// # Errors
/// As execve(2).
pub fn spawn(
    program: &OsString,
    args: &[OsString],
    environment: &[(&str, Option<String>)],
    mask: SigSet,
) -> io::Result<(Child, Terminal)> {
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
    // SAFETY: between fork and exec only sigprocmask(2), sigaction(2), prctl(2), getppid(2) and kill(2) are
    // which are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            mask.thread_set_mask()?;
            if pipe_ignored {
                signal(Signal::SIGPIPE, SigHandler::SigIgn)?;
            }
            prctl::set_pdeathsig(Signal::SIGKILL)?;
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
