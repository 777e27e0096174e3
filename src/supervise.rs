//! Owns the child: forwards signals, stops it when its time is over, reaps it.
//!
//! Everything that can happen arrives in one place: signals and the child's end by the signal
//! descriptor, renewals and loss by the keeper's letters, deadlines by the clock. One thread both
//! reaps and signals, so no signal goes to a process that has been reaped. Knows nothing of stores.

mod child;
pub mod margin;
mod tree;

use std::io;
use std::time::Duration;

use nix::sys::signal::Signal;

pub use child::{Unborn, spawn};

use crate::cli::{Descendants, OnLost};
use crate::clock::Moment;
use crate::events;
use crate::inbox::Arrival;
use crate::keeper::{Keeper, Kept};
use crate::lock::{Lease, LockName, Occupancy, Ttl};
use crate::report::Ending;
use crate::say;
use crate::signals::{Notice, Signals, Source};
use crate::store::Trouble;
use child::{Child, Terminal};
use tree::{Reaped, Tree};

/// What the command may and may not do.
#[derive(Clone, Copy)]
pub struct Rules {
    pub ttl: Ttl,
    pub kill_after: Duration,
    pub time_limit: Option<Duration>,
    pub on_lost: OnLost,
    pub descendants: Descendants,
}

impl Rules {
    /// When a command is told to stop whose lease ends at `until` and has not been renewed. Later than that
    /// none is begun.
    pub fn stop_at(&self, until: Moment) -> Moment {
        until - margin::stop(self.ttl, self.kill_after)
    }
}

/// How it went.
pub struct Outcome {
    /// Or why there was no command.
    pub ending: Result<Ending, Unborn>,
    pub time_limit: bool,
    pub lost: Option<Lost>,
    /// When the lease ends, for all we know.
    pub until: Moment,
}

/// A lock that went while its command ran.
pub enum Lost {
    /// The server said whose it is now.
    Taken(Occupancy),
    /// It could not be renewed in time; what the last try came to.
    Unconfirmed(Option<Trouble>),
}

enum Phase {
    Running,
    /// The command has ended; what it has left behind is waited for.
    Outlived,
    /// Told to stop; what is left at this moment is killed.
    Stopping {
        kill_at: Moment,
    },
    /// Killed; what is left is killed again, until nothing is.
    Killing {
        again: Moment,
    },
}

pub struct Supervisor<'a> {
    name: &'a LockName,
    tree: Tree,
    rules: Rules,
    signals: &'a mut Signals,
    keeper: &'a mut Keeper,
    /// The lease may be believed until then.
    until: Moment,
    time_limit: Moment,
    phase: Phase,
    ending: Option<Result<Ending, Unborn>>,
    /// A process asked us to end the command: what it leaves behind is ended too.
    asked_to_end: bool,
    /// INT or QUIT was typed at the terminal.
    typed: Option<Signal>,
    timed_out: bool,
    lost: Option<Lost>,
    uncertain: Option<Trouble>,
}

impl<'a> Supervisor<'a> {
    pub fn new(
        name: &'a LockName,
        child: Child,
        lease: Lease,
        rules: Rules,
        signals: &'a mut Signals,
        keeper: &'a mut Keeper,
    ) -> Supervisor<'a> {
        let time_limit = rules.time_limit.map_or(Moment::NEVER, |limit| Moment::now() + limit);
        Supervisor {
            name,
            tree: Tree::of(child),
            rules,
            signals,
            keeper,
            until: lease.until,
            time_limit,
            phase: Phase::Running,
            ending: None,
            asked_to_end: false,
            typed: None,
            timed_out: false,
            lost: None,
            uncertain: None,
        }
    }

    /// Sees the command through to its end.
    ///
    /// # Errors
    /// As poll(2); the command runs on then.
    pub fn run(mut self) -> io::Result<Outcome> {
        loop {
            // Deadlines first: after a sleep of the machine or a stop from the terminal nothing else
            // is as urgent.
            self.check_deadlines();
            for notice in self.signals.notices() {
                self.notice(notice);
            }
            if let Some(ending) = self.finished() {
                return Ok(Outcome { ending, time_limit: self.timed_out, lost: self.lost, until: self.until });
            }
            let until = self.next_deadline();
            match self.keeper.next(until, self.signals.fds())? {
                Arrival::Letter(kept) => self.kept(kept),
                Arrival::Readable | Arrival::Time => {}
            }
        }
    }

    /// The command's ending, once nothing is left to be done about it. What one that ends by itself
    /// leaves behind is left, waited for or stopped; of one that was stopped everything has to be gone.
    fn finished(&mut self) -> Option<Result<Ending, Unborn>> {
        loop {
            match self.tree.reap() {
                Reaped::Command(end) => self.ending = Some(end.map(|status| child::ending(status, self.typed))),
                Reaped::Other => {}
                Reaped::NoneLeft => return self.ending,
                Reaped::NoneYet => break,
            }
        }
        let ending = self.ending?;
        match (&self.phase, self.rules.descendants) {
            (Phase::Stopping { .. } | Phase::Killing { .. }, _) => {}
            (_, Descendants::Stop) => self.stop(Signal::SIGTERM),
            _ if self.asked_to_end => self.stop(Signal::SIGTERM),
            (_, Descendants::Leave) => return Some(ending),
            (Phase::Running, Descendants::Wait) => {
                say::trace(format_args!("the command has ended: waiting for what it has left behind"));
                self.phase = Phase::Outlived;
            }
            (Phase::Outlived, Descendants::Wait) => {}
        }
        None
    }

    fn notice(&mut self, notice: Notice) {
        let Notice { signal, source } = notice;
        match (signal, source) {
            (Signal::SIGCHLD, _) => {}
            (Signal::SIGTSTP, source) => {
                if source == Source::Process {
                    self.tree.signal_all(&[signal]);
                }
                suspend(self.tree.terminal());
            }
            // The terminal is gone. Who leads its session is alone in being told: by HUP, and by CONT
            // for what is stopped.
            (Signal::SIGHUP, Source::Terminal) if child::leads_session() => {
                self.asked_to_end = true;
                self.signal_and_wake(signal);
            }
            // Heard only now that the command runs, which has not had it.
            (_, Source::Wait) => {
                self.typed = Some(signal);
                self.asked_to_end = true;
                self.tree.signal_all(&[signal]);
            }
            // The whole foreground group has had it from the terminal.
            (_, Source::Terminal) => {
                if matches!(signal, Signal::SIGINT | Signal::SIGQUIT) {
                    self.typed = Some(signal);
                    // What a shell has started in the background does not hear it.
                    self.asked_to_end |= self.ending.is_some();
                }
            }
            (Signal::SIGTERM, Source::Process) => {
                say::trace(format_args!("got SIGTERM: stopping the command"));
                self.asked_to_end = true;
                self.stop(signal);
            }
            (Signal::SIGINT | Signal::SIGQUIT | Signal::SIGHUP, Source::Process) => {
                self.asked_to_end = true;
                self.tree.signal_all(&[signal]);
            }
            (Signal::SIGCONT, Source::Process) => {
                if !self.last_call().passed() {
                    self.tree.signal_all(&[signal]);
                }
            }
            (_, Source::Process) => self.tree.signal_command(signal),
        }
    }

    fn kept(&mut self, kept: Kept) {
        match kept {
            Kept::Until(until) => {
                if self.uncertain.take().is_some() {
                    say::note(format_args!("the lock is renewed again"));
                }
                self.until = until;
            }
            Kept::Uncertain(trouble) => {
                if self.uncertain.is_none() && self.lost.is_none() {
                    let left = self.stop_at().remaining();
                    say::warn(format_args!("{trouble}; trying again for {}", say::span(left)));
                }
                self.uncertain = Some(trouble);
            }
            Kept::Lost(occupancy) => self.lose(Lost::Taken(occupancy)),
        }
    }

    fn lose(&mut self, lost: Lost) {
        if self.lost.is_some() {
            return;
        }
        let then = self.rules.on_lost;
        let follows = match then {
            OnLost::Stop => "stopping the command",
            OnLost::Continue => "the command runs on without it",
        };
        say::lost(self.name, &lost, follows);
        events::lost(&lost, follows);
        self.lost = Some(lost);
        if then == OnLost::Stop {
            self.stop(Signal::SIGTERM);
        }
    }

    fn stop(&mut self, signal: Signal) {
        self.signal_and_wake(signal);
        if let Phase::Running | Phase::Outlived = self.phase {
            self.phase = Phase::Stopping { kill_at: Moment::now() + self.rules.kill_after };
        }
    }

    /// Continues what is stopped as well; but not what is to be killed at once. It needs no waking for that, and
    /// would go on until then, when its lease may be over.
    fn signal_and_wake(&self, signal: Signal) {
        match self.last_call().passed() {
            true => self.tree.signal_all(&[signal]),
            false => self.tree.signal_all(&[signal, Signal::SIGCONT]),
        };
    }

    fn check_deadlines(&mut self) {
        if self.lost.is_none() && self.stop_at().passed() {
            let trouble = self.uncertain.clone();
            self.lose(Lost::Unconfirmed(trouble));
        }
        if self.time_limit.passed() {
            self.time_limit = Moment::NEVER;
            if matches!(self.phase, Phase::Running | Phase::Outlived) {
                say::warn(format_args!("the time limit is reached: stopping the command"));
                self.timed_out = true;
                self.stop(Signal::SIGTERM);
            }
        }
        let killing = match self.phase {
            Phase::Running | Phase::Outlived => false,
            Phase::Stopping { kill_at } => kill_at.min(self.last_call()).passed(),
            Phase::Killing { again } => again.passed(),
        };
        if killing {
            let refused = self.tree.signal_all(&[Signal::SIGKILL]);
            if refused && matches!(self.phase, Phase::Stopping { .. }) {
                say::warn(format_args!("not permitted to kill all of what the command started: waiting for it to end"));
            }
            self.phase = Phase::Killing { again: Moment::now() + KILL_AGAIN };
        }
    }

    fn next_deadline(&self) -> Moment {
        let stop_at = if self.lost.is_some() { Moment::NEVER } else { self.stop_at() };
        let kill = match self.phase {
            Phase::Running | Phase::Outlived => Moment::NEVER,
            Phase::Stopping { kill_at } => kill_at.min(self.last_call()),
            Phase::Killing { again } => again,
        };
        stop_at.min(self.time_limit).min(kill)
    }

    fn stop_at(&self) -> Moment {
        self.rules.stop_at(self.until)
    }

    /// When whatever is left must be killed, to be gone before the lease can have ended.
    fn last_call(&self) -> Moment {
        match self.rules.on_lost {
            OnLost::Stop => self.until - margin::kill(self.rules.ttl, self.rules.kill_after),
            OnLost::Continue => Moment::NEVER,
        }
    }
}

/// What is forked while it is killed is found in the next round.
const KILL_AGAIN: Duration = Duration::from_millis(10);

/// Stops us as the command is stopped.
fn suspend(terminal: Terminal) {
    say::trace(format_args!("suspended: nothing is renewed until SIGCONT"));
    let signal = match terminal {
        // Where nobody is there to continue it, a group does not stop at TSTP: the first program of a
        // window, or of `ssh -t`. We would alone if this were STOP, and for ever.
        Terminal::Present => Signal::SIGTSTP,
        // Ours may be such a group, and the command's is not: we are there.
        Terminal::Absent => Signal::SIGSTOP,
    };
    Signals::suspend(signal);
    say::trace(format_args!("resumed"));
}
