//! Turns a process into the command: fork(2), what comes before execve(2), and why that failed.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::unistd::{ForkResult, Pid, fork, getpid, setpgid};

use crate::clock::Moment;
use crate::signals::{end_with, is_ignored};
use crate::{inherited, proc};

/// Whether a terminal controls us, and so whether there is job control to take part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminal {
    /// The command stays in our process group, so that it can read the terminal, and Ctrl-C,
    /// Ctrl-Z and `fg` reach the whole pipeline as they would without us.
    Present,
    /// cron, CI, a service: the command leads a group of its own.
    Absent,
}

impl Terminal {
    pub fn find() -> Terminal {
        match File::open("/dev/tty") {
            // Only this says that no terminal controls the process, tty(4).
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Terminal::Absent,
            // There may be no such file, or no descriptor left; the kernel's own word is in /proc, if that is there.
            Err(_) if proc::has_no_terminal() => Terminal::Absent,
            Ok(_) | Err(_) => Terminal::Present,
        }
    }
}

/// Why a process did not become the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnError {
    /// Its lease was about to end before it could.
    TooLate,
    /// As execve(2), and the system calls before it.
    Failed(Errno),
}

/// How `TooLate` crosses a process boundary: no system call of a spawn fails with it.
const TOO_LATE: Errno = Errno::ETIME;

impl From<Errno> for SpawnError {
    fn from(errno: Errno) -> SpawnError {
        if errno == TOO_LATE { SpawnError::TooLate } else { SpawnError::Failed(errno) }
    }
}

/// All that execve(2) needs, allocated before anything is forked.
pub struct Program {
    words: Vec<CString>,
    variables: Vec<CString>,
    /// The signal mask that our caller had.
    mask: SigSet,
}

impl Program {
    /// A program found in PATH, its arguments, and our environment changed by `environment`: each variable is set, or
    /// taken out.
    ///
    /// # Errors
    /// EINVAL for a word with a NUL in it.
    pub fn new(words: &[OsString], environment: &[(&str, Option<OsString>)], mask: SigSet) -> Result<Program, Errno> {
        let words = words.iter().map(|word| ended_by_nul(word.as_bytes())).collect::<Result<_, _>>()?;
        Ok(Program { words, variables: variables(environment)?, mask })
    }

    /// Becomes it; returns why not. It sets the caller's signal mask before, and gives SIGPIPE and SIGINT the
    /// dispositions that we were started with.
    pub fn exec(&self) -> Errno {
        let (argv, envp) = (pointers(&self.words), pointers(&self.variables));
        self.exec_with(&argv, &envp)
    }

    fn exec_with(&self, argv: &[*const libc::c_char], envp: &[*const libc::c_char]) -> Errno {
        let pipe = if inherited::pipe_ignored() { SigHandler::SigIgn } else { SigHandler::SigDfl };
        // SAFETY: no handler is set.
        let mut prepared = unsafe { signal(Signal::SIGPIPE, pipe) };
        // A Ctrl-C that comes now is the program's, and not for the handler that we have.
        if prepared.is_ok() && !is_ignored(libc::SIGINT) {
            // SAFETY: as above.
            prepared = unsafe { signal(Signal::SIGINT, SigHandler::SigDfl) };
        }
        if let Err(errno) = prepared.and_then(|_| self.mask.thread_set_mask()) {
            return errno;
        }
        // SAFETY: both are arrays of strings that end with a NUL, and end with a null pointer themselves.
        unsafe { libc::execvpe(argv[0], argv.as_ptr(), envp.as_ptr()) };
        Errno::last()
    }

    /// Forks a process that becomes the command, unless `start_by` has passed when it is ready. Its program may take
    /// long to be found, since a file system can hang: nobody waits for that. If it does not become the command it
    /// calls `failed` with the reason, and ends with 127. It dies by SIGKILL with the thread that calls this, prctl(2).
    ///
    /// # Errors
    /// As fork(2).
    pub fn spawn(&self, terminal: Terminal, start_by: Moment, failed: impl Fn(Errno)) -> Result<Pid, Errno> {
        let (argv, envp) = (pointers(&self.words), pointers(&self.variables));
        let parent = getpid();
        let become_it = || -> Errno {
            let prepared = (|| {
                if terminal == Terminal::Absent {
                    setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
                }
                end_with(parent, Signal::SIGKILL)?;
                // Whatever has held us up since the lock was granted: nothing begins without it.
                if start_by.passed() {
                    return Err(TOO_LATE);
                }
                Ok(())
            })();
            match prepared {
                Ok(()) => self.exec_with(&argv, &envp),
                Err(errno) => errno,
            }
        };
        // SAFETY: the child allocates nothing, takes no lock, and makes only system calls and execvpe(3), until it
        // ends or becomes something else.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(child),
            ForkResult::Child => {
                failed(become_it());
                // SAFETY: ends this process, and runs nothing of ours.
                unsafe { libc::_exit(127) }
            }
        }
    }
}

fn ended_by_nul(bytes: &[u8]) -> Result<CString, Errno> {
    CString::new(bytes).map_err(|_| Errno::EINVAL)
}

/// Ours, but for those that are set or taken out.
fn variables(set: &[(&str, Option<OsString>)]) -> Result<Vec<CString>, Errno> {
    let ours = std::env::vars_os().filter(|(name, _)| set.iter().all(|(other, _)| name != other));
    let ours = ours.map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat());
    let set = set.iter().filter_map(|(name, value)| Some([name.as_bytes(), b"=", value.as_ref()?.as_bytes()].concat()));
    ours.chain(set).map(|variable| ended_by_nul(&variable)).collect()
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{pipe, read, write};

    use super::*;

    /// How it ended, and why it did not become the program.
    fn spawned(program: &str, start_by: Moment) -> (WaitStatus, Option<SpawnError>) {
        let (told, tell) = pipe().unwrap();
        let program = Program::new(&[program.into()], &[], SigSet::empty()).unwrap();
        let failed = |errno: Errno| _ = write(&tell, &(errno as i32).to_ne_bytes());
        let pid = program.spawn(Terminal::Absent, start_by, failed).unwrap();
        drop(tell);
        let status = waitpid(pid, None).unwrap();
        let mut number = [0; 4];
        let is_told = read(&told, &mut number) == Ok(4);
        (status, is_told.then(|| Errno::from_raw(i32::from_ne_bytes(number)).into()))
    }

    #[test]
    fn no_command_begins_too_late() {
        let soon = Moment::now() + Duration::from_secs(60);
        assert!(matches!(spawned("true", soon), (WaitStatus::Exited(_, 0), None)));
        assert_eq!(spawned("true", Moment::now()).1, Some(SpawnError::TooLate));
        assert_eq!(spawned("/no/such/program", soon).1, Some(SpawnError::Failed(Errno::ENOENT)));
    }
}
