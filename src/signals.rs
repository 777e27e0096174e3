//! Reads signals, and reports them as notices.
//!
//! nxlock blocks the signals that concern it and reads them from a signalfd(2), which can be polled beside sockets and
//! tells each signal's sender. Only Ctrl-C during a wait goes through ctrlc, whose thread needs nobody's cooperation:
//! the second Ctrl-C ends nxlock at once, whatever the main thread is doing. Signals ignored at startup stay ignored,
//! for nxlock and for the command (nohup(1)).

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context;
use nix::libc::{self, c_int};
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, raise, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, getpid, getppid};

use crate::thread::with_signals_blocked;

/// Requests to stop: they end a wait.
const STOP: [c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// Further signals that concern nxlock while it has changed the terminal.
const SCREEN: [c_int; 4] = [libc::SIGQUIT, libc::SIGWINCH, libc::SIGTSTP, libc::SIGCONT];
/// Sent for a write beyond the limit on file size. Blocked, so that the write fails and nxlock goes on: a failed
/// message must not keep it from its work.
const FULL: c_int = libc::SIGXFSZ;
/// Signals that a terminal sends to a process group; the kernel's other signals concern the process that gets them.
const TYPED: [c_int; 8] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTSTP,
    libc::SIGHUP,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGTTIN,
    libc::SIGTTOU,
];
/// Never blocked: two that cannot be, and those by which the kernel reports a fault of nxlock itself.
const UNBLOCKED: [c_int; 6] = [libc::SIGKILL, libc::SIGSTOP, libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// As kill(2) takes it: real-time signals have no other name.
    pub number: c_int,
    pub source: Source,
    /// The value that sigqueue(3) sent with it.
    pub value: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The kernel, for the terminal: the whole foreground group got the signal.
    Terminal,
    /// A process, by kill(2), or a timer of nxlock: it went to nxlock, and perhaps to its whole process group.
    Process,
    /// Either, before the command started.
    Wait,
}

pub struct Signals {
    arrivals: SignalFd,
    ctrl_c: Option<CtrlC>,
    /// Whether a wait has begun.
    has_waited: bool,
    /// Signals blocked at startup, as the command is to find them.
    inherited: SigSet,
}

/// Ctrl-C, while it goes through ctrlc.
struct CtrlC {
    pressed_fd: UnixStream,
}

impl Signals {
    /// Starts to listen for requests to stop. Call once, from the main thread, before any request to a server and
    /// before there are other threads.
    ///
    /// # Errors
    /// As pthread_sigmask(3), sigaction(2) and signalfd(2).
    pub fn listen() -> anyhow::Result<Signals> {
        // An inherited "ignore" would make wait(2) fail; no command relies on it.
        // SAFETY: SIG_DFL runs no code of ours.
        unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }.context("cannot handle signals")?;
        let stop = not_ignored(STOP);
        let blocked = set(heard_numbers(STOP).chain([FULL]));
        let inherited = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK).context("cannot handle signals")?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let arrivals = SignalFd::with_flags(&stop, flags).context("cannot handle signals")?;
        Ok(Signals { arrivals, ctrl_c: None, has_waited: false, inherited })
    }

    /// Makes the second Ctrl-C end nxlock from now on, even if the main thread is blocked.
    ///
    /// # Errors
    /// As sigaction(2), socketpair(2) and pthread_create(3).
    pub fn begin_waiting(&mut self) -> anyhow::Result<()> {
        // Do not retry what failed the first time, nor report it again.
        let is_first = !std::mem::replace(&mut self.has_waited, true);
        // ctrlc would override a SIGINT that the caller has set to be ignored.
        if is_first && !is_ignored(libc::SIGINT) {
            self.ctrl_c = Some(CtrlC::listen().context("cannot handle Ctrl-C")?);
            SigSet::from(Signal::SIGINT).thread_unblock().context("cannot handle Ctrl-C")?;
        }
        Ok(())
    }

    /// Listens for every signal from now on: those that do not concern nxlock are for the command.
    ///
    /// # Errors
    /// As pthread_sigmask(3) and signalfd(2).
    pub fn begin_command(&mut self) -> anyhow::Result<()> {
        let all = not_ignored(blockable().filter(|number| *number != FULL));
        all.thread_block().context("cannot handle signals")?;
        self.arrivals.set_mask(&all).context("cannot handle signals")
    }

    /// Listens from now on for every signal that matters to a program that has changed the terminal.
    ///
    /// # Errors
    /// As pthread_sigmask(3) and signalfd(2).
    pub fn begin_screen(&mut self) -> anyhow::Result<()> {
        let all = not_ignored(STOP.into_iter().chain(SCREEN));
        all.thread_block().context("cannot handle signals")?;
        self.arrivals.set_mask(&all).context("cannot handle signals")
    }

    /// Stops nxlock by STOP, or as TSTP would if it were not blocked, until something continues it. The kernel does not
    /// let TSTP stop an orphaned process group.
    pub fn suspend(signal: Signal) {
        let mask = SigSet::from(signal);
        let _ = mask.thread_unblock();
        // The process stops before raise(3) returns.
        let _ = raise(signal);
        let _ = mask.thread_block();
    }

    /// Stops listening for requests to stop: from now on they end nxlock by their default action.
    ///
    /// # Errors
    /// As pthread_sigmask(3).
    pub fn end(self) -> anyhow::Result<()> {
        let was_blocked: Vec<c_int> = self.inherited.iter().map(|signal| signal as c_int).collect();
        let ours = set(STOP.into_iter().filter(|number| !was_blocked.contains(number)));
        ours.thread_unblock().context("cannot handle signals")
    }

    /// Returns the signal mask that the command starts with.
    pub fn inherited(&self) -> SigSet {
        self.inherited
    }

    /// Returns descriptors, one of which is readable when there are notices.
    pub fn fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [Some(self.arrivals.as_fd()), self.ctrl_c.as_ref().map(|ctrl_c| ctrl_c.pressed_fd.as_fd())]
    }

    /// Returns the signals that have arrived since the last call, without waiting.
    pub fn notices(&mut self) -> Vec<Notice> {
        let mut notices = Vec::new();
        if self.ctrl_c.as_mut().is_some_and(CtrlC::take) {
            notices.push(Notice { number: libc::SIGINT, source: Source::Wait, value: None });
        }
        while let Ok(Some(info)) = self.arrivals.read_signal() {
            let number = info.ssi_signo.cast_signed();
            let is_typed = info.ssi_code == libc::SI_KERNEL && TYPED.contains(&number);
            let source = if is_typed { Source::Terminal } else { Source::Process };
            let value = (info.ssi_code == libc::SI_QUEUE).then_some(info.ssi_ptr);
            notices.push(Notice { number, source, value });
        }
        notices
    }

    /// Returns the first request to stop, of the signals that have arrived.
    pub fn stop_requested(&mut self) -> Option<Signal> {
        let mut numbers = self.notices().into_iter().map(|notice| notice.number);
        numbers.find(|number| STOP.contains(number)).and_then(|number| Signal::try_from(number).ok())
    }
}

impl CtrlC {
    fn listen() -> anyhow::Result<CtrlC> {
        let (pressed_fd, mut press) = UnixStream::pair()?;
        pressed_fd.set_nonblocking(true)?;
        let presses = AtomicUsize::new(0);
        let pressed = move || {
            let _ = press.write(&[1]);
            if presses.fetch_add(1, Ordering::SeqCst) > 0 {
                die_of(Signal::SIGINT);
            }
        };
        with_signals_blocked(|| ctrlc::set_handler(pressed).map_err(io::Error::other))?;
        Ok(CtrlC { pressed_fd })
    }

    /// Returns whether Ctrl-C was pressed since the last call.
    fn take(&mut self) -> bool {
        matches!(self.pressed_fd.read(&mut [0; 16]), Ok(n) if n > 0)
    }
}

/// Returns the set of the signals that were not ignored at startup. An ignored signal must not be blocked: the kernel
/// would keep it pending, and nxlock would read it.
fn not_ignored(numbers: impl IntoIterator<Item = c_int>) -> SigSet {
    set(heard_numbers(numbers))
}

fn heard_numbers(numbers: impl IntoIterator<Item = c_int>) -> impl Iterator<Item = c_int> {
    numbers.into_iter().filter(|number| !is_ignored(*number))
}

/// Returns every signal that nxlock may block, real-time signals included, signal(7).
pub fn blockable() -> impl Iterator<Item = c_int> {
    let standard = (1..32).filter(|number| !UNBLOCKED.contains(number));
    standard.chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

/// Returns a set of signals; nix's own sets have no real-time signals.
pub fn set(numbers: impl IntoIterator<Item = c_int>) -> SigSet {
    // SAFETY: sigemptyset(3) initializes the set, and sigaddset(3) refuses what is no signal.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for number in numbers {
            libc::sigaddset(&raw mut set, number);
        }
        SigSet::from_sigset_t_unchecked(set)
    }
}

/// Ends the process by a signal, without a core dump of nxlock.
pub fn die_of(number: Signal) -> ! {
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    // SAFETY: SIG_DFL runs no code of ours.
    let _ = unsafe { signal(number, SigHandler::SigDfl) };
    let _ = SigSet::from(number).thread_unblock();
    let _ = raise(number);
    // Only the init process of a pid namespace survives its own signal.
    leave(128 + number as i32)
}

/// Lets the first process of a pid namespace, as of a container, be ended by the signals that end any other: the kernel
/// discards those that it has no handler for, pid_namespaces(7).
pub fn end_like_any_other() {
    if getpid() != Pid::from_raw(1) {
        return;
    }
    for number in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM] {
        if !is_ignored(number as c_int) {
            // SAFETY: the handler makes one system call.
            let _ = unsafe { signal(number, SigHandler::Handler(end)) };
        }
    }
}

extern "C" fn end(number: c_int) {
    // SAFETY: _exit(2) is async-signal-safe.
    unsafe { libc::_exit(128 + number) }
}

#[expect(clippy::disallowed_methods, reason = "the one place that ends the process")]
fn leave(status: i32) -> ! {
    std::process::exit(status)
}

/// Takes one pending signal of a set, which this thread has blocked; returns whether there was one. Makes only a system
/// call.
pub fn take_pending(blocked: &SigSet) -> bool {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: sigtimedwait(2) reads a set and a time, and takes a pending signal without waiting.
    unsafe { libc::sigtimedwait(blocked.as_ref(), std::ptr::null_mut(), &raw const now) > 0 }
}

/// Makes the kernel send this process a signal when its parent dies, prctl(2). Call after fork(2), in the child of
/// `parent`. It makes only system calls.
///
/// # Errors
/// As prctl(2).
pub fn end_with(parent: Pid, signal: Signal) -> nix::Result<()> {
    prctl::set_pdeathsig(signal)?;
    // If the parent died before that, the kernel sends nothing.
    if getppid() != parent {
        raise(signal)?;
    }
    Ok(())
}

/// Returns whether a signal is ignored now.
pub fn is_ignored(number: c_int) -> bool {
    // SAFETY: with a null new action sigaction(2) only writes the old one, to memory of this function; all zeroes is a
    // valid sigaction.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(number, std::ptr::null(), &mut old) == 0 && old.sa_sigaction == libc::SIG_IGN
    }
}
