//! The command's birth and its last word.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::unistd::{ForkResult, Pid, fork, getpid, getsid, pipe2, read, setpgid, write};

use crate::clock::Moment;
use crate::inherited;
use crate::report::Ending;
use crate::signals::{end_with, is_ignored};

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

/// What was forked to become the command. Its program may take long to be found: a file system can hang. Nobody waits
/// for that, since a lease goes on meanwhile.
pub struct Child {
    pub pid: Pid,
    pub terminal: Terminal,
    word: OwnedFd,
}

/// Why a child did not become the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unborn {
    /// It could not in time.
    TooLate,
    /// As execve(2), and what comes before it.
    Failed(Errno),
}

/// What a child tells that is too late: nothing else on its way says that.
const TOO_LATE: Errno = Errno::ETIME;

impl Child {
    /// Why it did not become the command, if so. To be asked when it has ended.
    pub fn unborn(&self) -> Option<Unborn> {
        let mut number = [0; 4];
        // Nothing is written, and the end is closed, by execve(2), and by SIGKILL.
        let is_told = read(&self.word, &mut number) == Ok(number.len());
        is_told.then(|| match Errno::from_raw(i32::from_ne_bytes(number)) {
            TOO_LATE => Unborn::TooLate,
            errno => Unborn::Failed(errno),
        })
    }
}

/// Starts the command, with `mask` as its signal mask, unless `start_by` has passed when it is ready. To be called
/// from the main thread: the parent-death signal is bound to the thread that forked, prctl(2).
///
/// # Errors
/// As fork(2), pipe(2) and prctl(2); EINVAL for a word with a NUL in it.
pub fn spawn(
    words: &[OsString],
    environment: &[(&str, Option<String>)],
    mask: SigSet,
    start_by: Moment,
) -> Result<Child, Errno> {
    // What loses its parent comes to us instead of to init, so that all of it can be found.
    prctl::set_child_subreaper(true)?;
    let terminal = Terminal::find();
    // All that takes memory is done before the fork.
    let words = words.iter().map(|word| ended_by_nul(word.as_bytes())).collect::<Result<Vec<_>, _>>()?;
    let variables = variables(environment)?;
    let (argv, envp) = (pointers(&words), pointers(&variables));
    let pipe_ignored = inherited::pipe_ignored();
    let parent = getpid();
    let (word, told) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    let become_it = || -> Errno {
        let prepared = (|| {
            if terminal == Terminal::Absent {
                setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
            }
            let pipe = if pipe_ignored { SigHandler::SigIgn } else { SigHandler::SigDfl };
            // SAFETY: no handler is set.
            unsafe { signal(Signal::SIGPIPE, pipe)? };
            // Ctrl-C that comes now is the command's, and not for the handler that we have.
            if !is_ignored(Signal::SIGINT) {
                // SAFETY: as above.
                unsafe { signal(Signal::SIGINT, SigHandler::SigDfl)? };
            }
            mask.thread_set_mask()?;
            end_with(parent, Signal::SIGKILL)?;
            // Whatever has held us up since the lock was granted: nothing begins without it.
            if start_by.passed() {
                return Err(TOO_LATE);
            }
            Ok(())
        })();
        match prepared {
            Ok(()) => {
                // SAFETY: both are arrays of strings that end with a NUL, and end with a null pointer themselves.
                unsafe { libc::execvpe(argv[0], argv.as_ptr(), envp.as_ptr()) };
                Errno::last()
            }
            Err(errno) => errno,
        }
    };
    // SAFETY: the child allocates nothing, takes no lock, and makes only system calls and execvpe(3), until it
    // ends or becomes something else.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(Child { pid: child, terminal, word }),
        ForkResult::Child => {
            let number = become_it() as i32;
            let _ = write(&told, &number.to_ne_bytes());
            // SAFETY: ends this process, and runs nothing of ours.
            unsafe { libc::_exit(127) }
        }
    }
}

fn ended_by_nul(bytes: &[u8]) -> Result<CString, Errno> {
    CString::new(bytes).map_err(|_| Errno::EINVAL)
}

/// Ours, but for what is set, or taken out.
fn variables(set: &[(&str, Option<String>)]) -> Result<Vec<CString>, Errno> {
    let ours = std::env::vars_os().filter(|(name, _)| set.iter().all(|(other, _)| name != other));
    let ours = ours.map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat());
    let set = set.iter().filter_map(|(name, value)| Some(format!("{name}={}", value.as_ref()?).into_bytes()));
    ours.chain(set).map(|variable| ended_by_nul(&variable)).collect()
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
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

    use nix::sys::wait::{WaitStatus, waitpid};

    use super::*;

    /// Its end, and why it was not born.
    fn born(program: &str, start_by: Moment) -> (WaitStatus, Option<Unborn>) {
        let child = spawn(&[program.into()], &[], SigSet::empty(), start_by).unwrap();
        (waitpid(child.pid, None).unwrap(), child.unborn())
    }

    #[test]
    fn nothing_begins_too_late() {
        let soon = Moment::now() + Duration::from_secs(60);
        assert!(matches!(born("true", soon), (WaitStatus::Exited(_, 0), None)));
        assert_eq!(born("true", Moment::now()).1, Some(Unborn::TooLate));
        assert_eq!(born("/no/such/program", soon).1, Some(Unborn::Failed(Errno::ENOENT)));
    }
}
