//! Turns a process into the command: the steps before execve(2), the search for the program, and their errors.

use std::borrow::Cow;
use std::cell::Cell;
use std::ffi::{CStr, CString, OsString, c_char};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::sys::stat::Mode;
use nix::unistd::{ForkResult, Pid, fork, getpid, setpgid};

use super::message::{instant, moment};
use crate::clock::Moment;
use crate::descriptors::CommandFile;
use crate::signals::{end_with, is_ignored, set, take_pending};
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

/// A variable of a program's environment; without a value, it is unset.
pub type Variable = (Cow<'static, str>, Option<OsString>);

/// Everything that execve(2) needs: a process that becomes the program allocates nothing.
pub struct Program {
    /// The program, or the files to try in this order.
    files: Vec<CString>,
    is_searched: bool,
    /// `/bin/sh`, the words and a null pointer: without its first element, the program's argv. The shell's for a script
    /// without a `#!` line, once the file has taken the place of the first word.
    argv: Vec<Cell<*const c_char>>,
    envp: Vec<*const c_char>,
    /// The texts that `argv` and `envp` point to.
    _owned: [Vec<CString>; 2],
    /// The message that nxlock sends to the process when the lock is granted: until when it may start, and then the
    /// variables that depend on the grant, each with as many bytes as were prepared for it. `envp` points to those too.
    grant_message: Box<[Cell<u8>]>,
    /// These variables, and their bytes.
    granted: Vec<(String, usize)>,
    /// The signal mask of nxlock's caller.
    mask: SigSet,
    inherited: Vec<InheritedFile>,
}

/// A file that the program inherits, and the lock that its process takes on it.
///
/// Such a lock belongs to an open file, not to a process, fcntl_locking(2): whoever has that open keeps the lock. The
/// process therefore opens the file anew, so that nxlock and its guard, which may be stopped at any instruction, never
/// have what it locks open.
struct InheritedFile {
    number: RawFd,
    /// Where the process can open again what has this number.
    path: CString,
    lock: libc::flock,
}

impl InheritedFile {
    fn new(CommandFile { file, lock }: &CommandFile) -> Result<InheritedFile, Errno> {
        let number = file.as_raw_fd();
        let path = ended_by_nul(format!("/proc/self/fd/{number}").into_bytes())?;
        Ok(InheritedFile { number, path, lock: *lock })
    }

    /// Opens and locks the file, and gives it its number, for the program to inherit.
    fn take(&self) -> Result<(), Errno> {
        let opened = open(self.path.as_c_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
        fcntl(&opened, FcntlArg::F_OFD_SETLK(&self.lock))?;
        // SAFETY: nothing else in this process uses what has this number. The other descriptor is closed.
        Errno::result(unsafe { libc::dup3(opened.as_raw_fd(), self.number, 0) })?;
        Ok(())
    }
}

const SHELL: &CStr = c"/bin/sh";

/// Bytes of a name that are too many for the kernel: PATH_MAX.
const LONGEST: usize = libc::PATH_MAX as usize;

impl Program {
    /// Prepares a program found in PATH, its arguments, nxlock's environment with the variables in `environment` set or
    /// removed, and the files that it inherits in addition to those that are not closed at exec.
    ///
    /// # Errors
    /// EINVAL if a word or a variable contains a NUL; ENOENT if there is no word.
    pub fn new(
        words: &[OsString],
        environment: &[Variable],
        mask: SigSet,
        files_to_inherit: &[CommandFile],
    ) -> Result<Program, Errno> {
        Program::until_granted(words, (environment, &[]), mask, files_to_inherit)
    }

    /// Does the same for a process that is told the `granted` variables later, with other values that are no longer.
    ///
    /// # Errors
    /// As [`Program::new`].
    pub fn until_granted(
        words: &[OsString],
        (environment, granted): (&[Variable], &[Variable]),
        mask: SigSet,
        files_to_inherit: &[CommandFile],
    ) -> Result<Program, Errno> {
        let program = words.first().ok_or(Errno::ENOENT)?.as_bytes();
        let is_searched = !program.is_empty() && !program.contains(&b'/');
        let files = if is_searched { searched(program)? } else { vec![ended_by_nul(program.to_vec())?] };
        let words = words.iter().map(|word| ended_by_nul(word.as_bytes().to_vec())).collect::<Result<Vec<_>, _>>()?;
        let set = texts(environment).map(|(_, text)| ended_by_nul(text)).collect::<Result<Vec<_>, _>>()?;
        let is_inherited = |variable: &&CStr| {
            environment.iter().chain(granted).all(|(name, _)| !sets(variable.to_bytes(), name.as_ref()))
        };
        let inherited = inherited_environment().filter(is_inherited);
        let granted: Vec<_> = texts(granted).map(|(name, text)| (name.to_owned(), text.len() + 1)).collect();
        let grant_message = vec![Cell::new(0); START_BY + granted.iter().map(|(_, length)| length).sum::<usize>()];
        let grant_message = grant_message.into_boxed_slice();
        let mut at = START_BY;
        let granted_later = granted.iter().map(|(_, length)| {
            let text = grant_message[at..].as_ptr().cast();
            at += length;
            text
        });
        let end = [std::ptr::null()];
        let envp = inherited.map(CStr::as_ptr).chain(set.iter().map(|variable| variable.as_ptr()));
        let envp = envp.chain(granted_later).chain(end).collect();
        let argv = [SHELL.as_ptr()].into_iter().chain(words.iter().map(|word| word.as_ptr())).chain(end);
        let argv = argv.map(Cell::new).collect();
        let inherited = files_to_inherit.iter().map(InheritedFile::new).collect::<Result<_, _>>()?;
        Ok(Program { files, is_searched, argv, envp, _owned: [words, set], grant_message, granted, mask, inherited })
    }

    /// Returns the message by which a process learns that it may start until then, with the variables that depend on the
    /// grant; none if it was prepared for others.
    pub fn message(&self, start_by: Moment, variables: &[Variable]) -> Option<Vec<u8>> {
        let mut message = instant(start_by).to_ne_bytes().to_vec();
        let mut prepared = self.granted.iter();
        for (name, text) in texts(variables) {
            let (expected, length) = prepared.next()?;
            if expected != name || text.len() >= *length || text.contains(&0) {
                return None;
            }
            let end = message.len() + length;
            message.extend(text);
            message.resize(end, 0);
        }
        prepared.next().is_none().then_some(message)
    }

    /// Becomes the program; returns the error if that fails. First sets the caller's signal mask, and restores the
    /// inherited dispositions of SIGPIPE and SIGINT. Searches PATH as execvp(3) does, in every libc alike.
    pub fn exec(&self) -> Errno {
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
        let mut is_denied = false;
        for file in &self.files {
            match self.execve(file, &self.argv[1..]) {
                Errno::ENOEXEC => {
                    self.argv[1].set(file.as_ptr());
                    self.execve(SHELL, &self.argv);
                    return Errno::ENOEXEC;
                }
                errno if !self.is_searched => return errno,
                Errno::EACCES => is_denied = true,
                // It is not in this directory.
                Errno::ENOENT | Errno::ENOTDIR | Errno::ESTALE | Errno::ENODEV | Errno::ETIMEDOUT => {}
                errno => return errno,
            }
        }
        if is_denied { Errno::EACCES } else { Errno::ENOENT }
    }

    fn execve(&self, file: &CStr, argv: &[Cell<*const c_char>]) -> Errno {
        // SAFETY: the file's name ends with a NUL; `argv` and `envp` are arrays of such strings, and end with a null
        // pointer. A cell is what it contains.
        unsafe { libc::execve(file.as_ptr(), argv.as_ptr().cast(), self.envp.as_ptr()) };
        Errno::last()
    }

    /// Starts a process that becomes the command when it is told so through `grant`, unless it is ready too late; if it
    /// never is, and nobody can do so any more, it exits. Does not wait for execve(2), which a hung file system may delay.
    /// Once it has been told, the process itself calls `begins`; if it does not become the command, it calls `failed` with
    /// the reason and exits with 127. Both may only make system calls, as in any child of fork(2). The kernel kills the
    /// process when the calling thread ends, prctl(2).
    ///
    /// # Errors
    /// As fork(2).
    pub fn spawn(
        &self,
        terminal: Terminal,
        grant: &OwnedFd,
        begins: impl FnOnce(),
        failed: impl FnOnce(Errno),
    ) -> Result<Pid, Errno> {
        let parent = getpid();
        // SAFETY: the child makes only system calls, and never returns from here.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(child),
            ForkResult::Child => {
                match become_child(terminal, parent).and_then(|()| self.await_grant(grant)) {
                    Ok(Some(start_by)) => {
                        begins();
                        failed(self.begin(start_by));
                    }
                    Ok(None) => {}
                    Err(errno) => failed(errno),
                }
                // SAFETY: ends this process, and runs no code of nxlock.
                unsafe { libc::_exit(127) }
            }
        }
    }

    /// Waits for the message of the grant, which puts the variables into their places; returns until when the program may
    /// start. Returns nothing if there is none, nor will be.
    fn await_grant(&self, grant: &OwnedFd) -> Result<Option<Moment>, Errno> {
        let size = self.grant_message.len();
        let read = loop {
            // SAFETY: `grant_message` has so many bytes, and nothing else uses them now. A cell is what it contains.
            let read = unsafe { libc::read(grant.as_raw_fd(), self.grant_message.as_ptr().cast_mut().cast(), size) };
            match Errno::result(read) {
                Err(Errno::EINTR) => {}
                read => break read?,
            }
        };
        // nxlock writes all at once, and no more than a pipe takes at once, pipe(7).
        if usize::try_from(read) != Ok(size) {
            return Ok(None);
        }
        // A key or a `kill -TSTP` that came before the grant was for a wait, from which nxlock has been continued.
        while take_pending(&set([libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU])) {}
        let start_by = std::array::from_fn(|at| self.grant_message.get(at).map_or(0, Cell::get));
        Ok(Some(moment(u64::from_ne_bytes(start_by))))
    }

    /// Becomes the program; returns the error if that fails.
    fn begin(&self, start_by: Moment) -> Errno {
        // Before it looks at the clock: if the lease has not ended by then, nobody gets the lock until the command has.
        for file in &self.inherited {
            if let Err(errno) = file.take() {
                return errno;
            }
        }
        // nxlock may have been delayed since the grant: no command starts without the lock.
        if start_by.passed() {
            return TOO_LATE;
        }
        self.exec()
    }
}

/// Prepares a process that was just forked by `parent`.
fn become_child(terminal: Terminal, parent: Pid) -> Result<(), Errno> {
    if terminal == Terminal::Absent {
        setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    }
    end_with(parent, Signal::SIGKILL)
}

/// Bytes of the moment until which a program may start, ahead of its variables.
const START_BY: usize = size_of::<u64>();

/// Returns the variables that are set, each with its string of an environment.
fn texts(variables: &[Variable]) -> impl Iterator<Item = (&str, Vec<u8>)> {
    let set = variables.iter().filter_map(|(name, value)| Some((name.as_ref(), value.as_ref()?)));
    set.map(|(name, value)| (name, [name.as_bytes(), b"=", value.as_bytes()].concat()))
}

/// Returns where a program may be: in the directories of PATH, execvp(3).
fn searched(program: &[u8]) -> Result<Vec<CString>, Errno> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/bin:/usr/bin".into());
    let file = |directory: &[u8]| match directory {
        // The working directory.
        [] => program.to_vec(),
        _ => [directory, b"/", program].concat(),
    };
    let directories = path.as_bytes().split(|byte| *byte == b':');
    // No file is there: the kernel refuses the name.
    let directories = directories.filter(|directory| directory.len() < LONGEST);
    directories.map(|directory| ended_by_nul(file(directory))).collect()
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
        static environ: *const *const c_char;
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{pipe2, read, write};

    use super::*;

    /// Returns how a process ended that was told that it may start until then, or was never told, and what it said: its own
    /// pid when it began, and why it did not become the program.
    fn spawned(words: &[&str], start_by: Option<Moment>) -> (WaitStatus, Option<Pid>, Option<SpawnError>) {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
        let (grant, go) = pipe2(OFlag::O_CLOEXEC).unwrap();
        let words: Vec<_> = words.iter().map(OsString::from).collect();
        let program = Program::until_granted(&words, (&[], &fence("9999")), SigSet::empty(), &[]).unwrap();
        if let Some(start_by) = start_by {
            let message = program.message(start_by, &fence("12")).unwrap();
            assert_eq!(write(&go, &message), Ok(message.len()));
        }
        drop(go);
        let say = |number: i32| _ = write(&writer, &number.to_ne_bytes());
        let (begins, failed) = (|| say(getpid().as_raw()), |errno| say(errno as i32));
        let pid = program.spawn(Terminal::Absent, &grant, begins, failed).unwrap();
        let status = waitpid(pid, None).unwrap();
        let said = || {
            let mut number = [0; 4];
            (read(&reader, &mut number) == Ok(4)).then(|| i32::from_ne_bytes(number))
        };
        let began = said().map(Pid::from_raw);
        assert!(began.is_none_or(|began| began == pid));
        (status, began, said().map(|number| Errno::from_raw(number).into()))
    }

    fn fence(value: &str) -> [Variable; 1] {
        [("FENCE".into(), Some(value.into()))]
    }

    fn soon() -> Option<Moment> {
        Some(Moment::now() + Duration::from_secs(60))
    }

    #[test]
    fn no_command_begins_too_late() {
        assert!(matches!(spawned(&["true"], soon()), (WaitStatus::Exited(_, 0), Some(_), None)));
        assert_eq!(spawned(&["true"], Some(Moment::now())).2, Some(SpawnError::TooLate));
        assert_eq!(spawned(&["/no/such/program"], soon()).2, Some(SpawnError::Failed(Errno::ENOENT)));
    }

    #[test]
    fn no_command_begins_before_it_is_told() {
        assert!(matches!(spawned(&["true"], None), (WaitStatus::Exited(_, 127), None, None)));
    }

    #[test]
    fn a_command_gets_the_variables_of_the_grant() {
        let is_set = ["sh", "-c", "exec test \"$FENCE $(env | grep -c ^FENCE=)\" = '12 1'"];
        assert!(matches!(spawned(&is_set, soon()), (WaitStatus::Exited(_, 0), Some(_), None)));
    }

    #[test]
    fn what_a_command_was_not_prepared_for_is_not_told() {
        let program = Program::until_granted(&["true".into()], (&[], &fence("999")), SigSet::empty(), &[]).unwrap();
        let message = |variables: &[Variable]| program.message(Moment::NEVER, variables);
        assert!(message(&fence("1000")).is_none(), "longer");
        assert!(message(&[("FENCE".into(), None)]).is_none(), "unset");
        assert!(message(&[("SLOT".into(), Some("1".into()))]).is_none(), "another");
        assert!(message(&[]).is_none() && message(&[fence("1"), fence("1")].concat()).is_none(), "fewer, and more");
        assert_eq!(message(&fence("1")).map(|message| message.len()), Some(program.grant_message.len()));
    }
}
