//! Turns a process into the command: fork(2), the steps before execve(2), and their errors.

use std::ffi::{CStr, CString, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::unistd::{ForkResult, Pid, fork, getpid, setpgid};

use crate::clock::Moment;
use crate::signals::{end_with, is_ignored};
use crate::{inherited, proc};

/// Whether nxlock has a controlling terminal, and so takes part in job control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminal {
    /// The command stays in nxlock's process group, so that it can read the terminal, and Ctrl-C, Ctrl-Z and `fg` reach
    /// the whole pipeline as they would without nxlock.
    Present,
    /// cron, CI, a service: the command leads a process group of its own.
    Absent,
}

impl Terminal {
    pub fn find() -> Terminal {
        match File::open("/dev/tty") {
            // Only ENXIO says that there is no controlling terminal, tty(4).
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Terminal::Absent,
            // The file may be missing, or no descriptor left; /proc, if mounted, has the kernel's answer.
            Err(_) if proc::has_no_terminal() => Terminal::Absent,
            Ok(_) | Err(_) => Terminal::Present,
        }
    }
}

/// Why a process did not become the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnError {
    /// The lease was about to expire.
    TooLate,
    /// The error of execve(2), or of a system call before it.
    Failed(Errno),
}

/// `TooLate` in a message between processes: no system call of a spawn fails with it.
const TOO_LATE: Errno = Errno::ETIME;

impl From<Errno> for SpawnError {
    fn from(errno: Errno) -> SpawnError {
        if errno == TOO_LATE { SpawnError::TooLate } else { SpawnError::Failed(errno) }
    }
}

/// Everything that execve(2) needs, allocated before fork(2).
pub struct Program {
    words: Vec<CString>,
    /// nxlock's environment without the variables in `set`.
    inherited: Vec<&'static CStr>,
    set: Vec<CString>,
    /// The signal mask of nxlock's caller.
    mask: SigSet,
}

impl Program {
    /// Prepares a program found in PATH, its arguments, and nxlock's environment with the variables in `environment`
    /// set or removed.
    ///
    /// # Errors
    /// EINVAL if a word or a variable contains a NUL.
    pub fn new(words: &[OsString], environment: &[(&str, Option<OsString>)], mask: SigSet) -> Result<Program, Errno> {
        let words = words.iter().map(|word| ended_by_nul(word.as_bytes().to_vec())).collect::<Result<_, _>>()?;
        let is_inherited = |variable: &&CStr| environment.iter().all(|(name, _)| !sets(variable.to_bytes(), name));
        let inherited = inherited_environment().filter(is_inherited).collect();
        let set = environment.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let set = set.map(|(name, value)| ended_by_nul([name.as_bytes(), b"=", value.as_bytes()].concat()));
        Ok(Program { words, inherited, set: set.collect::<Result<_, _>>()?, mask })
    }

    /// Becomes the program; returns the error if that fails. First sets the caller's signal mask, and restores the
    /// inherited dispositions of SIGPIPE and SIGINT.
    pub fn exec(&self) -> Errno {
        let (argv, envp) = (self.argv(), self.envp());
        self.exec_with(&argv, &envp)
    }

    fn argv(&self) -> Vec<*const libc::c_char> {
        pointers(self.words.iter().map(CString::as_c_str))
    }

    fn envp(&self) -> Vec<*const libc::c_char> {
        pointers(self.inherited.iter().copied().chain(self.set.iter().map(CString::as_c_str)))
    }

    fn exec_with(&self, argv: &[*const libc::c_char], envp: &[*const libc::c_char]) -> Errno {
        let pipe = if inherited::pipe_ignored() { SigHandler::SigIgn } else { SigHandler::SigDfl };
        // SAFETY: installs no handler.
        let mut prepared = unsafe { signal(Signal::SIGPIPE, pipe) };
        // From now on a Ctrl-C is for the program, not for nxlock's handler.
        if prepared.is_ok() && !is_ignored(libc::SIGINT) {
            // SAFETY: as above.
            prepared = unsafe { signal(Signal::SIGINT, SigHandler::SigDfl) };
        }
        if let Err(errno) = prepared.and_then(|_| self.mask.thread_set_mask()) {
            return errno;
        }
        // SAFETY: both are arrays of NUL-terminated strings, and end with a null pointer.
        unsafe { libc::execvpe(argv[0], argv.as_ptr(), envp.as_ptr()) };
        Errno::last()
    }

    /// Forks a process that becomes the command, unless `start_by` passes before it is ready. Does not wait for
    /// execve(2), which a hung file system may delay. If the process does not become the command, it calls `failed` with
    /// the reason and exits with 127. The kernel kills it when the calling thread ends, prctl(2).
    ///
    /// # Errors
    /// As fork(2).
    pub fn spawn(&self, terminal: Terminal, start_by: Moment, failed: impl Fn(Errno)) -> Result<Pid, Errno> {
        let (argv, envp) = (self.argv(), self.envp());
        let parent = getpid();
        let become_it = || -> Errno {
            let prepared = (|| {
                if terminal == Terminal::Absent {
                    setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
                }
                end_with(parent, Signal::SIGKILL)?;
                // nxlock may have been delayed since the grant: no command starts without the lock.
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
        // SAFETY: the child allocates nothing, takes no lock, and makes only system calls and execvpe(3) until it exits
        // or becomes another program.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(child),
            ForkResult::Child => {
                failed(become_it());
                // SAFETY: ends this process, and runs no code of nxlock.
                unsafe { libc::_exit(127) }
            }
        }
    }
}

fn ended_by_nul(bytes: Vec<u8>) -> Result<CString, Errno> {
    CString::new(bytes).map_err(|_| Errno::EINVAL)
}

/// Returns whether a string of an environment, `NAME=value`, sets the variable.
fn sets(variable: &[u8], name: &str) -> bool {
    variable.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
}

/// Returns nxlock's environment, environ(7), without copying it.
fn inherited_environment() -> impl Iterator<Item = &'static CStr> {
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    // SAFETY: it is an array of NUL-terminated strings that ends with a null pointer, and nxlock never changes it. The
    // array itself may be missing.
    let string = |index| unsafe {
        environ.as_ref()?;
        Some(*environ.add(index)).filter(|string| !string.is_null())
    };
    // SAFETY: as above.
    (0..).map_while(string).map(|string| unsafe { CStr::from_ptr(string) })
}

fn pointers<'a>(strings: impl Iterator<Item = &'a CStr>) -> Vec<*const libc::c_char> {
    strings.map(CStr::as_ptr).chain([std::ptr::null()]).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{pipe, read, write};

    use super::*;

    /// Returns how the process ended, and why it did not become the program.
    fn spawned(program: &str, start_by: Moment) -> (WaitStatus, Option<SpawnError>) {
        let (told, tell) = pipe().unwrap();
        let program = Program::new(&[program.into()], &[], SigSet::empty()).unwrap();
        let say = |number: i32| _ = write(&tell, &number.to_ne_bytes());
        let pid = program.spawn(Terminal::Absent, start_by, |errno| say(errno as i32)).unwrap();
        drop(tell);
        let status = waitpid(pid, None).unwrap();
        let said = || {
            let mut number = [0; 4];
            (read(&told, &mut number) == Ok(4)).then(|| i32::from_ne_bytes(number))
        };
        (status, said().map(|number| Errno::from_raw(number).into()))
    }

    #[test]
    fn no_command_begins_too_late() {
        let soon = Moment::now() + Duration::from_secs(60);
        assert!(matches!(spawned("true", soon), (WaitStatus::Exited(_, 0), None)));
        assert_eq!(spawned("true", Moment::now()).1, Some(SpawnError::TooLate));
        assert_eq!(spawned("/no/such/program", soon).1, Some(SpawnError::Failed(Errno::ENOENT)));
    }
}
