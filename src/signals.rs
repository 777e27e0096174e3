//! Signals in, notices out.
//!
//! What concerns us is blocked and read from a signalfd(2): it can be polled beside sockets, and it
//! tells which signal came and from whom. Only Ctrl-C during a wait goes through ctrlc, whose thread
//! is a way out that needs nobody's cooperation: the second one ends us at once, whatever the main
//! thread is doing. What was ignored when we were started stays ignored, for us and for the command
//! (nohup(1)).

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context;
use nix::libc::{self, c_int};
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, raise, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, getppid};

use crate::mailbox::Fds;
use crate::thread::with_signals_blocked;

/// Requests to stop: what ends a wait.
const STOP: [c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// What else concerns us while the terminal is a screen of ours.
const SCREEN: [c_int; 4] = [libc::SIGQUIT, libc::SIGWINCH, libc::SIGTSTP, libc::SIGCONT];
/// What writing to a file that may not grow would bring us. Blocked, the write fails and does not end us: what we say
/// must not keep us from what we do.
const FULL: c_int = libc::SIGXFSZ;
/// What a terminal sends a process group; all other signals of the kernel concern the process that gets them.
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
/// Never blocked: two that cannot be, and those by which the kernel reports a fault of our own.
const UNBLOCKED: [c_int; 6] = [libc::SIGKILL, libc::SIGSTOP, libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// As kill(2) takes it: real-time signals have no other name.
    pub number: c_int,
    pub source: Source,
    /// What sigqueue(3) sent with it.
    pub value: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The kernel, for the terminal: the whole foreground group has had it.
    Terminal,
    /// A process, by kill(2), or a timer of ours: to nxlock, and perhaps to its whole process group.
    Process,
    /// Either, before there was a command to get it.
    Wait,
}

pub struct Signals {
    arrivals: SignalFd,
    ctrl_c: Option<CtrlC>,
    /// Whether there was a wait.
    has_waited: bool,
    /// What was blocked before us: the command is to find it so.
    inherited: SigSet,
}

/// Ctrl-C, while it goes through ctrlc.
struct CtrlC {
    bell: UnixStream,
}

impl Signals {
    /// Listens for requests to stop. To be called once, by the main thread, before anything is asked
    /// of a server and before there are other threads.
    ///
    /// # Errors
    /// As pthread_sigmask(3) and signalfd(2).
    pub fn listen() -> anyhow::Result<Signals> {
        let stop = heard(STOP);
        let blocked = set(heard_numbers(STOP).chain([FULL]));
        let inherited = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK).context("cannot handle signals")?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let arrivals = SignalFd::with_flags(&stop, flags).context("cannot handle signals")?;
        Ok(Signals { arrivals, ctrl_c: None, has_waited: false, inherited })
    }

    /// From here on Ctrl-C ends us at the second time, even if the main thread does not get to it.
    ///
    /// # Errors
    /// As sigaction(2), socketpair(2) and pthread_create(3).
    pub fn begin_waiting(&mut self) -> anyhow::Result<()> {
        // What did not work the first time is not tried, and told, again and again.
        let is_first = !std::mem::replace(&mut self.has_waited, true);
        // ctrlc would make a Ctrl-C heard that our caller does not want us to hear.
        if is_first && !is_ignored(libc::SIGINT) {
            self.ctrl_c = Some(CtrlC::listen().context("cannot handle Ctrl-C")?);
            SigSet::from(Signal::SIGINT).thread_unblock().context("cannot handle Ctrl-C")?;
        }
        Ok(())
    }

    /// From here on every signal is noticed that can be: what does not concern us is the command's.
    ///
    /// # Errors
    /// As pthread_sigmask(3), sigaction(2) and signalfd(2).
    pub fn begin_command(&mut self) -> anyhow::Result<()> {
        // An inherited "ignore" would make wait(2) fail; it is nothing that a command relies on.
        // SAFETY: SIG_DFL runs no code of ours.
        unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }.context("cannot handle signals")?;
        let all = heard(blockable().filter(|number| *number != FULL));
        all.thread_block().context("cannot handle signals")?;
        self.arrivals.set_mask(&all).context("cannot handle signals")
    }

    /// From here on everything is noticed that somebody must know of who has changed the terminal.
    ///
    /// # Errors
    /// As pthread_sigmask(3) and signalfd(2).
    pub fn begin_screen(&mut self) -> anyhow::Result<()> {
        let all = heard(STOP.into_iter().chain(SCREEN));
        all.thread_block().context("cannot handle signals")?;
        self.arrivals.set_mask(&all).context("cannot handle signals")
    }

    /// Stops us by STOP, or as TSTP would have done if it were not blocked, until somebody continues us. Where nobody is
    /// there to do so, the kernel does not let TSTP stop us.
    pub fn suspend(signal: Signal) {
        let mask = SigSet::from(signal);
        let _ = mask.thread_unblock();
        // Stopping takes effect before it returns.
        let _ = raise(signal);
        let _ = mask.thread_block();
    }

    /// Requests to stop are not for us to hear any more: they end us, as they would a program that does not ask.
    ///
    /// # Errors
    /// As pthread_sigmask(3).
    pub fn end(self) -> anyhow::Result<()> {
        let was_blocked: Vec<c_int> = self.inherited.iter().map(|signal| signal as c_int).collect();
        let ours = set(STOP.into_iter().filter(|number| !was_blocked.contains(number)));
        ours.thread_unblock().context("cannot handle signals")
    }

    /// The mask that the command is to begin with.
    pub fn inherited(&self) -> SigSet {
        self.inherited
    }

    /// One of them is readable when there are notices. The last place is free.
    pub fn fds(&self) -> Fds<'_> {
        [Some(self.arrivals.as_fd()), self.ctrl_c.as_ref().map(|ctrl_c| ctrl_c.bell.as_fd()), None]
    }

    /// What has arrived since the last call, without waiting.
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

    /// The first request to stop among what has arrived.
    pub fn stop_requested(&mut self) -> Option<Signal> {
        let mut numbers = self.notices().into_iter().map(|notice| notice.number);
        numbers.find(|number| STOP.contains(number)).and_then(|number| Signal::try_from(number).ok())
    }
}

impl CtrlC {
    fn listen() -> anyhow::Result<CtrlC> {
        let (bell, mut ring) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        let presses = AtomicUsize::new(0);
        let pressed = move || {
            let _ = ring.write(&[1]);
            if presses.fetch_add(1, Ordering::SeqCst) > 0 {
                die_of(Signal::SIGINT);
            }
        };
        with_signals_blocked(|| ctrlc::set_handler(pressed).map_err(io::Error::other))?;
        Ok(CtrlC { bell })
    }

    /// Whether it was pressed since the last call.
    fn take(&mut self) -> bool {
        matches!(self.bell.read(&mut [0; 16]), Ok(n) if n > 0)
    }
}

/// Signals that were not ignored at startup. One that is ignored must not be blocked: the kernel would keep it for
/// us, and we would read it.
fn heard(numbers: impl IntoIterator<Item = c_int>) -> SigSet {
    set(heard_numbers(numbers))
}

fn heard_numbers(numbers: impl IntoIterator<Item = c_int>) -> impl Iterator<Item = c_int> {
    numbers.into_iter().filter(|number| !is_ignored(*number))
}

/// Every signal that a process can block, real-time signals included, signal(7).
pub fn blockable() -> impl Iterator<Item = c_int> {
    let standard = (1..32).filter(|number| !UNBLOCKED.contains(number));
    standard.chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

/// nix's own sets have no real-time signals.
pub fn set(numbers: impl IntoIterator<Item = c_int>) -> SigSet {
    // SAFETY: sigemptyset(3) makes a valid set of it, and sigaddset(3) refuses what is no signal.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for number in numbers {
            libc::sigaddset(&raw mut set, number);
        }
        SigSet::from_sigset_t_unchecked(set)
    }
}

/// Ends the process by a signal, without a core file of ours.
pub fn die_of(number: Signal) -> ! {
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    // SAFETY: SIG_DFL runs no code of ours.
    let _ = unsafe { signal(number, SigHandler::SigDfl) };
    let _ = SigSet::from(number).thread_unblock();
    let _ = raise(number);
    // Only the first process of a pid namespace survives its own signal.
    leave(128 + number as i32)
}

#[expect(clippy::disallowed_methods, reason = "the one place that ends the process")]
fn leave(status: i32) -> ! {
    std::process::exit(status)
}

/// Has us end by a signal when our parent does, prctl(2): to be called after fork(2), by the child of `parent`. It makes
/// nothing but system calls.
///
/// # Errors
/// As prctl(2).
pub fn end_with(parent: Pid, signal: Signal) -> nix::Result<()> {
    prctl::set_pdeathsig(signal)?;
    // Had it died before that, nobody would tell.
    if getppid() != parent {
        raise(signal)?;
    }
    Ok(())
}

/// Whether a signal is ignored just now.
pub fn is_ignored(number: c_int) -> bool {
    // SAFETY: with a null new action sigaction(2) only writes the old one, to memory that is ours;
    // all zeroes is a valid sigaction.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(number, std::ptr::null(), &mut old) == 0 && old.sa_sigaction == libc::SIG_IGN
    }
}
