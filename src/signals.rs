//! Signals in, notices out.
//!
//! signal-hook tells which signal came and from whom, and its descriptor can be polled beside
//! sockets. ctrlc's thread is the way out that needs nobody's cooperation: while no command runs,
//! a second request to stop ends us at once, even if the main thread is stuck in a name lookup.
//! What was ignored when we were started stays ignored, for us and for the command (nohup(1)).

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use anyhow::Context;
use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

use crate::exit;

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
}

pub struct Signals {
    delivery: SignalDelivery<UnixStream, WithOrigin>,
    command_runs: Arc<AtomicBool>,
}

impl Signals {
    /// Listens for requests to stop. To be called once, before anything is asked of a server.
    ///
    /// # Errors
    /// As sigaction(2), socketpair(2) and pthread_create(3).
    pub fn listen() -> anyhow::Result<Signals> {
        let heard: Vec<Signal> = STOP.into_iter().filter(|signal| !is_ignored(*signal)).collect();
        // One that comes while the handlers are being set is kept until all of them are.
        let held_back = SigSet::from_iter(STOP);
        held_back.thread_block().context("cannot handle signals")?;
        let command_runs = Arc::new(AtomicBool::new(false));
        if !heard.is_empty() {
            way_out(&heard, Arc::clone(&command_runs)).context("cannot handle signals")?;
        }
        let (read, write) = UnixStream::pair().context("cannot handle signals")?;
        // After ctrlc: signal-hook calls the handler that it finds, ctrlc would replace it.
        let numbers = heard.iter().map(|signal| *signal as libc::c_int);
        let delivery =
            SignalDelivery::with_pipe(read, write, WithOrigin::default(), numbers).context("cannot handle signals")?;
        held_back.thread_unblock().context("cannot handle signals")?;
        Ok(Signals { delivery, command_runs })
    }

    /// From here on everything that a command's wrapper must know of is noticed, and every stop is
    /// the supervisor's to handle.
    ///
    /// # Errors
    /// As sigaction(2).
    pub fn attend_a_command(&mut self) -> anyhow::Result<()> {
        self.command_runs.store(true, Ordering::SeqCst);
        let handle = self.delivery.handle();
        for signal in COMMAND {
            // An inherited "ignore" on CHLD would make wait(2) fail; it is nothing a command relies on.
            if signal == Signal::SIGCHLD || !is_ignored(signal) {
                handle.add_signal(signal as libc::c_int).context("cannot handle signals")?;
            }
        }
        Ok(())
    }

    /// Readable when there are notices.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }

    /// What has arrived since the last call, without waiting.
    pub fn notices(&mut self) -> Vec<Notice> {
        self.delivery.pending().filter_map(|origin| notice(&origin)).collect()
    }

    /// The first request to stop among what has arrived.
    pub fn stop_requested(&mut self) -> Option<Signal> {
        self.notices().into_iter().map(|notice| notice.signal).find(|signal| STOP.contains(signal))
    }
}

fn notice(origin: &Origin) -> Option<Notice> {
    let source = match origin.cause {
        Cause::Kernel => Source::Terminal,
        _ => Source::Process,
    };
    Some(Notice { signal: Signal::try_from(origin.signal).ok()?, source })
}

/// Ends us by the same signal at the second request to stop, unless a command runs.
fn way_out(heard: &[Signal], command_runs: Arc<AtomicBool>) -> anyhow::Result<()> {
    let last = Arc::new(AtomicI32::new(0));
    let requests = Arc::new(AtomicUsize::new(0));
    let latest = Arc::clone(&last);
    ctrlc::set_handler(move || {
        let signal = Signal::try_from(latest.load(Ordering::SeqCst)).unwrap_or(Signal::SIGINT);
        if requests.fetch_add(1, Ordering::SeqCst) > 0 && !command_runs.load(Ordering::SeqCst) {
            exit::die_of(signal);
        }
    })?;
    for signal in STOP {
        if heard.contains(&signal) {
            let last = Arc::clone(&last);
            let number = signal as libc::c_int;
            // SAFETY: the action only stores to an atomic, which is async-signal-safe.
            unsafe { signal_hook::low_level::register(number, move || last.store(number, Ordering::SeqCst)) }?;
        } else {
            ignore_again(signal)?;
        }
    }
    Ok(())
}

/// ctrlc takes all three, ignored or not.
fn ignore_again(number: Signal) -> nix::Result<()> {
    // SAFETY: SIG_IGN runs no code of ours.
    unsafe { signal(number, SigHandler::SigIgn) }.map(drop)
}

fn is_ignored(signal: Signal) -> bool {
    // SAFETY: with a null new action sigaction(2) only writes the old one, to memory that is ours;
    // all zeroes is a valid sigaction.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal as libc::c_int, std::ptr::null(), &mut old) == 0 && old.sa_sigaction == libc::SIG_IGN
    }
}
