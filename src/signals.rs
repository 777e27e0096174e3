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
use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, raise, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, getppid};

use crate::exit;
use crate::inbox::Fds;

/// Requests to stop: what ends a wait.
const STOP: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
/// What else concerns us once a command runs.
const COMMAND: [Signal; 7] = [
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGCONT,
    Signal::SIGTSTP,
    Signal::SIGCHLD,
];
/// What else concerns us while the terminal is a screen of ours.
const SCREEN: [Signal; 4] = [Signal::SIGQUIT, Signal::SIGWINCH, Signal::SIGTSTP, Signal::SIGCONT];
/// What writing to a file that may not grow, or to a terminal from the background, would bring us. Blocked,
/// the one write fails and the other does not stop us: what we say must not keep us from what we do.
const FULL: Signal = Signal::SIGXFSZ;
const BACKGROUND: Signal = Signal::SIGTTOU;

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    pub signal: Signal,
    pub source: Source,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The kernel, for the terminal: the whole foreground group has had it.
    Terminal,
    /// A process, by kill(2): perhaps to us alone.
    Process,
    /// Either, while we still waited for the lock: no command was there to have it.
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
        let stop: SigSet = heard(STOP);
        let blocked: SigSet = stop.iter().chain([FULL]).collect();
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
        if is_first && !is_ignored(Signal::SIGINT) {
            self.ctrl_c = Some(CtrlC::listen().context("cannot handle Ctrl-C")?);
            SigSet::from(Signal::SIGINT).thread_unblock().context("cannot handle Ctrl-C")?;
        }
        Ok(())
    }

    /// From here on everything is noticed that a command's wrapper must know of.
    ///
    /// # Errors
    /// As pthread_sigmask(3), sigaction(2) and signalfd(2).
    pub fn begin_command(&mut self) -> anyhow::Result<()> {
        // An inherited "ignore" would make wait(2) fail; it is nothing that a command relies on.
        // SAFETY: SIG_DFL runs no code of ours.
        unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }.context("cannot handle signals")?;
        let all = heard(STOP.into_iter().chain(COMMAND));
        let blocked: SigSet = all.iter().chain([BACKGROUND]).collect();
        blocked.thread_block().context("cannot handle signals")?;
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
        let ours: SigSet = STOP.into_iter().filter(|signal| !self.inherited.contains(*signal)).collect();
        ours.thread_unblock().context("cannot handle signals")
    }

    /// The mask that the command is to begin with.
    pub fn inherited(&self) -> SigSet {
        self.inherited
    }

    /// One of them is readable when there are notices.
    pub fn fds(&self) -> Fds<'_> {
        [Some(self.arrivals.as_fd()), self.ctrl_c.as_ref().map(|ctrl_c| ctrl_c.bell.as_fd())]
    }

    /// What has arrived since the last call, without waiting.
    pub fn notices(&mut self) -> Vec<Notice> {
        let mut notices = Vec::new();
        if self.ctrl_c.as_mut().is_some_and(CtrlC::take) {
            notices.push(Notice { signal: Signal::SIGINT, source: Source::Wait });
        }
        while let Ok(Some(info)) = self.arrivals.read_signal() {
            let number = info.ssi_signo.cast_signed();
            let source = if info.ssi_code == libc::SI_KERNEL { Source::Terminal } else { Source::Process };
            notices.extend(Signal::try_from(number).map(|signal| Notice { signal, source }));
        }
        notices
    }

    /// The first request to stop among what has arrived.
    pub fn stop_requested(&mut self) -> Option<Signal> {
        self.notices().into_iter().map(|notice| notice.signal).find(|signal| STOP.contains(signal))
    }
}

/// Starts a thread, by `start`, that is never given a signal: one that is meant for the main thread
/// would be lost on it.
pub fn deaf<T>(start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let started = start();
    before.thread_set_mask()?;
    started
}

impl CtrlC {
    fn listen() -> anyhow::Result<CtrlC> {
        let (bell, mut ring) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        let presses = AtomicUsize::new(0);
        let pressed = move || {
            let _ = ring.write(&[1]);
            if presses.fetch_add(1, Ordering::SeqCst) > 0 {
                exit::die_of(Signal::SIGINT);
            }
        };
        deaf(|| ctrlc::set_handler(pressed).map_err(io::Error::other))?;
        Ok(CtrlC { bell })
    }

    /// Whether it was pressed since the last call.
    fn take(&mut self) -> bool {
        matches!(self.bell.read(&mut [0; 16]), Ok(n) if n > 0)
    }
}

/// Those that our caller lets us hear. One that is ignored must not be blocked: it would be kept for
/// us, and read.
fn heard(signals: impl IntoIterator<Item = Signal>) -> SigSet {
    signals.into_iter().filter(|signal| !is_ignored(*signal)).collect()
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
pub fn is_ignored(signal: Signal) -> bool {
    // SAFETY: with a null new action sigaction(2) only writes the old one, to memory that is ours;
    // all zeroes is a valid sigaction.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal as libc::c_int, std::ptr::null(), &mut old) == 0 && old.sa_sigaction == libc::SIG_IGN
    }
}
