//! Supervises the command: starts it under a guard, forwards signals, and stops it when its time is over. Knows nothing
//! of stores.
//!
//! One loop receives every event: signals from the signal descriptor, the command's state from the guard's socket,
//! renewals and loss from the renewer's mailbox, deadlines from the boot clock. The guard reaps the command only after
//! this module has received its exit status, so nxlock never signals another process that reuses its pid.

mod group;
mod guard;
mod kill;
pub mod margin;
mod message;
mod spawn;
mod suspend;
mod tree;

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use clap::ValueEnum;
use nix::libc::{self, c_int};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpid, getsid};

pub use guard::{Granted, Guard, GuardTask, Orphaned, Start};
pub use spawn::{Program, SpawnError, Terminal, Variable};

use crate::clock::Moment;
use crate::error::Error;
use crate::lock::{Lease, LockName, Lost, Told, Ttl};
use crate::mailbox::Arrived;
use crate::proc::{self, Job, JobState};
use crate::renewer::{Renewal, Renewer};
use crate::report::Ending;
use crate::signals::{Notice, Signals, Source};
use crate::wait::Limit;
use crate::{duration, log, notify};
use group::GroupMember;
use guard::{CommandEvent, End};
use kill::Killing;
use suspend::Suspension;
use tree::{Reach, Tree};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnLost {
    /// Stop the command and everything it started
    Stop,
    /// Report the loss, and let the command run on without the lock
    Continue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Descendants {
    /// Release the lock at once, and let them run on without it
    Leave,
    /// Hold the lock until they are gone
    Wait,
    /// Stop them, then release the lock
    Stop,
}

/// Limits on the command, and the reaction to a lost lock.
#[derive(Clone, Copy)]
pub struct Rules {
    pub ttl: Ttl,
    pub kill_after: Duration,
    pub time_limit: Option<Duration>,
    pub on_lost: OnLost,
    pub descendants: Descendants,
}

impl Rules {
    /// Returns when to stop a command whose lease ends at `until` and was not renewed. No command starts after that.
    pub fn stop_at(&self, until: Moment) -> Moment {
        until - margin::stop_before(self.ttl, self.kill_after)
    }

    /// Returns when to kill what is left of the tree, so that it is gone before a lease that ends at `until` expires.
    pub fn kill_at(&self, until: Moment) -> Moment {
        match self.on_lost {
            OnLost::Stop => until - margin::kill_before(self.ttl, self.kill_after),
            OnLost::Continue => Moment::NEVER,
        }
    }
}

/// The outcome of a supervised run.
pub struct Outcome {
    /// How the command ended, or why that is unknown.
    pub ending: Result<Ending, NoEnding>,
    pub time_limit: bool,
    pub lost: Option<Lost>,
    /// The process that asked nxlock to give up the lock.
    pub asked_by: Option<Box<Told>>,
    /// When the lease expires, as last confirmed.
    pub until: Moment,
}

/// Why it is unknown how a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoEnding {
    /// The command never started.
    NotBegun(SpawnError),
    /// The guard was killed, and with it the command and all its descendants, or those that had outlived the command.
    GuardKilled { guard: Pid, had_ended: bool },
}

enum Phase {
    Running,
    /// The command has ended; nxlock waits for its descendants.
    Outlived,
    /// nxlock has signalled the command to stop, and gives it until this moment.
    Stopping {
        grace_ends: Moment,
    },
    Killing(Killing),
}

pub struct Supervisor<'a> {
    guard: &'a mut Guard,
    group: Option<GroupMember>,
    tree: Tree,
    rules: Rules,
    signals: &'a mut Signals,
    renewer: &'a mut Renewer,
    /// The lease is valid until then.
    until: Moment,
    time_limit: Moment,
    phase: Phase,
    suspension: Option<Suspension>,
    /// Number of times nxlock was continued.
    continued: u64,
    /// Signals that arrived before the command started.
    early: Vec<Notice>,
    ending: Option<Result<Ending, NoEnding>>,
    /// No process of the tree is left.
    is_gone: bool,
    /// The guard may reap the command.
    may_reap: bool,
    /// A signal or another process asked nxlock to end the command, or a typed signal killed it: its descendants are
    /// stopped too.
    asked_to_end: bool,
    /// The first that asked for the lock.
    asked_by: Option<Box<Told>>,
    /// Signal typed at the terminal to stop the command.
    typed: Option<c_int>,
    timed_out: bool,
    lost: Option<Lost>,
    uncertain: Option<Error>,
}

impl<'a> Supervisor<'a> {
    /// `terminal` is the one that `guard` was started with.
    pub fn new(
        guard: &'a mut Guard,
        terminal: Terminal,
        lease: Lease,
        rules: Rules,
        signals: &'a mut Signals,
        renewer: &'a mut Renewer,
    ) -> Supervisor<'a> {
        let time_limit = rules.time_limit.map_or(Moment::NEVER, |limit| Moment::now() + limit);
        // Without it, a signal to the whole group reaches the command twice, as under any wrapper.
        let group = if terminal == Terminal::Present { GroupMember::start().ok() } else { None };
        let helpers = [guard.pid()].into_iter().chain(group.as_ref().map(GroupMember::pid)).collect();
        Supervisor {
            guard,
            group,
            tree: Tree::new(helpers, terminal),
            rules,
            signals,
            renewer,
            until: lease.until,
            time_limit,
            phase: Phase::Running,
            suspension: None,
            continued: 0,
            early: Vec::new(),
            ending: None,
            is_gone: false,
            may_reap: false,
            asked_to_end: false,
            asked_by: None,
            typed: None,
            timed_out: false,
            lost: None,
            uncertain: None,
        }
    }

    /// Supervises the command until it has ended.
    ///
    /// # Errors
    /// As poll(2); the guard then ends the command.
    pub fn run(mut self) -> io::Result<Outcome> {
        loop {
            // Deadlines first: they may have passed while the machine slept or nxlock was stopped.
            self.check_deadlines();
            self.take_notices();
            self.take_reports();
            if let Some(ending) = self.finished() {
                let Supervisor { timed_out: time_limit, lost, asked_by, until, .. } = self;
                return Ok(Outcome { ending, time_limit, lost, asked_by, until });
            }
            self.suspend_if_asked();
            let until = self.next_deadline();
            let [arrivals, ctrl_c] = self.signals.fds();
            match self.renewer.next(Limit { until, cancel: &[arrivals, ctrl_c, self.guard.fd()], ..Limit::NONE })? {
                Arrived::Message(renewed) => self.renewed(renewed),
                Arrived::Readable | Arrived::Time => {}
            }
        }
    }

    /// Returns the command's ending once nothing is left to do. If the command ended by itself, its descendants are
    /// left alone, awaited or stopped, as configured; if it was stopped, all of them must be gone.
    fn finished(&mut self) -> Option<Result<Ending, NoEnding>> {
        if let Some(end) = self.guard.end() {
            // The guard may have sent a last report before it ended.
            self.take_reports();
            match end {
                // One that ends without a word has not done its work.
                End::Done if self.ending.is_some() => self.is_gone = true,
                End::Done | End::Killed => self.do_without_the_guard(),
            }
        }
        let ending = self.ending?;
        if self.is_gone || matches!(ending, Err(NoEnding::NotBegun(_))) {
            return Some(ending);
        }
        match (&self.phase, self.rules.descendants) {
            (Phase::Stopping { .. } | Phase::Killing(_), _) => {}
            (_, Descendants::Stop) => self.stop(libc::SIGTERM, Reach::All),
            _ if self.asked_to_end => self.stop(libc::SIGTERM, Reach::All),
            (_, Descendants::Leave) => return Some(ending),
            (Phase::Running, Descendants::Wait) => {
                log::trace(format_args!("the command has ended: waiting for what it has left behind"));
                self.phase = Phase::Outlived;
            }
            (Phase::Outlived, Descendants::Wait) => {}
        }
        if !std::mem::replace(&mut self.may_reap, true) {
            self.tree.command = None;
            self.guard.reap();
        }
        None
    }

    /// Handles the death of the guard, which killed the command too: nxlock kills and reaps the rest of the tree
    /// itself, unless the command had ended and its descendants are left alone.
    fn do_without_the_guard(&mut self) {
        // `reap_all` would count the group member as a child left.
        self.group = None;
        self.is_gone = guard::reap_all();
        let is_killing = matches!(self.phase, Phase::Killing(_));
        let guard = self.guard.pid();
        let had_ended = match self.ending {
            None => false,
            Some(Ok(_)) if !self.is_gone && !is_killing && !self.leaves_descendants() => true,
            Some(_) => return,
        };
        self.ending = Some(Err(NoEnding::GuardKilled { guard, had_ended }));
        let what = if had_ended { "what the command has left" } else { "the command" };
        log::warn(format_args!("the guard of the command (process {guard}) was killed: killing {what}"));
        if !is_killing {
            self.phase = Phase::Killing(Killing::begin());
            self.check_deadlines();
            self.is_gone = guard::reap_all();
        }
    }

    /// Returns whether the descendants of a command that has ended run on.
    fn leaves_descendants(&self) -> bool {
        !self.is_stopping() && !self.asked_to_end && self.rules.descendants == Descendants::Leave
    }

    fn on_event(&mut self, report: CommandEvent) {
        match report {
            CommandEvent::Started(pid) if self.tree.command == Some(pid) => {}
            CommandEvent::Started(pid) => {
                notify::started(pid);
                // Signals read so far may predate the command, which has then missed them.
                self.early.extend(self.signals.notices());
                self.tree.command = Some(pid);
                if let Phase::Stopping { .. } = self.phase {
                    self.signal_and_wake(libc::SIGTERM, Reach::All);
                }
                for notice in std::mem::take(&mut self.early) {
                    self.reach(notice);
                    let source = if notice.source == Source::Terminal { Source::Wait } else { notice.source };
                    self.notice(Notice { source, ..notice }, Reach::All);
                }
            }
            CommandEvent::Failed(error) => self.ending = Some(Err(NoEnding::NotBegun(error))),
            // The report may predate a SIGCONT to the command.
            CommandEvent::Stopped(_) if !self.command_is_stopped() => {}
            CommandEvent::Stopped(signal) if self.tree.terminal() == Terminal::Present => {
                let follows = matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU);
                self.begin_suspension(if follows { signal } else { libc::SIGTSTP }, None);
            }
            // Without a terminal there is no job control.
            CommandEvent::Stopped(_) => {}
            CommandEvent::Overdue => self.lose(Lost::Unconfirmed(self.uncertain.clone())),
            CommandEvent::Ended(status) => {
                let typed = self.typed;
                let ending = *self.ending.get_or_insert_with(|| Ok(ending(status, typed)));
                // A shell shields its background jobs from typed signals.
                self.asked_to_end |= matches!(ending, Ok(Ending::Killed { from_terminal: true, .. }));
            }
        }
    }

    fn command_is_stopped(&self) -> bool {
        let job = self.tree.command.filter(|_| proc::is_ours()).and_then(|pid| Job::of(pid.as_raw()));
        job.is_none_or(|job| job.state == JobState::Stopped)
    }

    fn take_reports(&mut self) {
        while let Some(report) = self.guard.report() {
            self.on_event(report);
        }
    }

    fn take_notices(&mut self) {
        let notices = self.signals.notices();
        if self.tree.command.is_none() && self.ending.is_none() {
            // A user may have stopped the guard and the process that is to become the command, too, and continued nxlock
            // alone. The guard reports that process, and nxlock then sends it the signal.
            if notices.iter().any(|notice| notice.number == libc::SIGCONT) {
                self.guard.wake();
            }
            self.early.extend(notices);
        } else {
            for notice in notices {
                self.notice(notice, self.reach(notice));
            }
        }
    }

    fn notice(&mut self, notice: Notice, reach: Reach) {
        let Notice { number, source, value } = notice;
        match (number, source) {
            // From the kernel: a child ended, or a process in a background group used the terminal. The guard reports
            // what concerns the command.
            (libc::SIGCHLD, _) | (libc::SIGTTIN | libc::SIGTTOU, Source::Terminal | Source::Wait) => {}
            (libc::SIGTSTP, source) => {
                let sent_to = (source == Source::Process).then_some(reach);
                if let Some(reach) = sent_to {
                    self.tree.signal_all(&[number], reach);
                }
                self.begin_suspension(number, sent_to);
            }
            // The terminal hung up. The kernel tells only the session leader: by HUP, and by CONT for stopped
            // processes.
            (libc::SIGHUP, Source::Terminal) if leads_session() => {
                self.asked_to_end = true;
                self.signal_and_wake(number, Reach::All);
            }
            (libc::SIGINT | libc::SIGQUIT | libc::SIGHUP | libc::SIGTERM, Source::Wait) => {
                self.typed = Some(number);
                self.asked_to_end = true;
                self.tree.signal_all(&[number], Reach::All);
            }
            // The terminal has sent the signal to the whole foreground group.
            (_, Source::Terminal) => {
                if matches!(number, libc::SIGINT | libc::SIGQUIT) {
                    self.typed = Some(number);
                    // A shell shields its background jobs from it.
                    self.asked_to_end |= self.ending.is_some();
                }
                // The session leader has ended, or the group is stopped and nobody is left to continue it.
                self.asked_to_end |= number == libc::SIGHUP;
            }
            (libc::SIGTERM, _) => {
                log::trace(format_args!("got SIGTERM: stopping the command"));
                self.asked_to_end = true;
                self.stop(number, reach);
            }
            (libc::SIGINT | libc::SIGQUIT | libc::SIGHUP, _) => {
                self.asked_to_end = true;
                self.tree.signal_all(&[number], reach);
            }
            (libc::SIGCONT, _) => {
                self.continued += 1;
                let suspension = self.suspension.take();
                if !self.kill_at().passed() {
                    match suspension {
                        Some(suspension) => suspension.call_off(&self.tree, reach),
                        None => _ = self.tree.signal_all(&[number], reach),
                    }
                }
            }
            (_, _) => self.tree.signal_command(number, value, reach),
        }
    }

    /// Returns which processes of the tree still need a signal that nxlock received. Call once per signal: the group's
    /// copy is consumed, and would otherwise count for the next signal.
    fn reach(&self, Notice { number, source, .. }: Notice) -> Reach {
        // From the kernel, to nxlock alone.
        if number == libc::SIGCHLD {
            return Reach::All;
        }
        // A typed signal leaves a copy with the group member too.
        let had = self.group.as_ref().is_some_and(|group| group.had(number));
        if had && source == Source::Process { Reach::OutsideOurGroup } else { Reach::All }
    }

    fn renewed(&mut self, renewed: Renewal) {
        match renewed {
            Renewal::Until(until) => {
                if self.uncertain.take().is_some() {
                    log::note(format_args!("the lock is renewed again"));
                }
                self.until = until;
                self.guard.kill_at(self.kill_at());
            }
            Renewal::Asked(asker, name) => self.give_up_for(asker, name.as_ref()),
            Renewal::Uncertain(error) => {
                if self.uncertain.is_none() && self.lost.is_none() {
                    let left = self.stop_at().remaining();
                    log::warn(format_args!("{error}; trying again for {}", duration::span(left)));
                }
                self.uncertain = Some(error);
            }
            Renewal::Lost(state) => self.lose(Lost::Taken(*state)),
        }
    }

    /// Stops the command as SIGTERM from another process does, once for all who ask for the lock. A lock that was lost
    /// and is renewed again can be asked for too.
    fn give_up_for(&mut self, asker: Box<Told>, name: Option<&LockName>) {
        // nxlock stops no command that has ended, nor the descendants that it is to leave alone.
        self.take_reports();
        if self.asked_by.is_some() || self.ending.is_some() && self.leaves_descendants() {
            return;
        }
        self.asked_to_end = true;
        if self.is_stopping() {
            notify::asked(&asker, name, "the command is being stopped already");
        } else {
            notify::asked(&asker, name, "stopping the command");
            self.stop(libc::SIGTERM, Reach::All);
        }
        self.asked_by = Some(asker);
    }

    fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Stopping { .. } | Phase::Killing(_))
    }

    fn lose(&mut self, lost: Lost) {
        if self.lost.is_some() {
            return;
        }
        let then = self.rules.on_lost;
        let follows = match then {
            OnLost::Stop | OnLost::Continue if self.is_stopping() => "the command is being stopped already",
            OnLost::Stop => "stopping the command",
            OnLost::Continue if lost.name().is_some() => {
                "the command runs on, and none of its locks is renewed any more"
            }
            OnLost::Continue => "the command runs on without it",
        };
        notify::lost(&lost, follows);
        self.lost = Some(lost);
        if then == OnLost::Stop {
            self.stop(libc::SIGTERM, Reach::All);
        }
    }

    fn stop(&mut self, number: c_int, reach: Reach) {
        self.signal_and_wake(number, reach);
        if let Phase::Running | Phase::Outlived = self.phase {
            self.phase = Phase::Stopping { grace_ends: Moment::now() + self.rules.kill_after };
        }
    }

    /// Signals processes and continues stopped ones, unless they are about to be killed: SIGKILL needs no SIGCONT, and
    /// a continued process would run on until then, perhaps past the end of the lease.
    fn signal_and_wake(&self, number: c_int, reach: Reach) {
        match (self.kill_at().passed(), reach) {
            (true, _) => _ = self.tree.signal_all(&[number], reach),
            (false, Reach::All) => _ = self.tree.signal_all(&[number, libc::SIGCONT], reach),
            (false, Reach::OutsideOurGroup) => {
                self.tree.signal_all(&[number], reach);
                self.tree.signal_all(&[libc::SIGCONT], Reach::All);
            }
        }
    }

    fn begin_suspension(&mut self, signal: c_int, sent_to: Option<Reach>) {
        self.suspension.get_or_insert_with(|| Suspension::begin(signal)).was_sent_to(sent_to);
    }

    /// Suspends nxlock like the command, after the rest of the tree. When nxlock is continued, so are the processes it
    /// stopped, unless the lease is about to end.
    fn suspend_if_asked(&mut self) {
        if !self.suspension.as_mut().is_some_and(|suspension| suspension.advance(&self.tree)) {
            return;
        }
        let before = self.continued;
        self.take_notices();
        // A shell has continued the job meanwhile: nxlock would stop beside a tree that runs, also where another suspension
        // has begun since.
        if self.continued != before {
            return;
        }
        let Some(suspension) = self.suspension.take() else { return };
        suspend(self.tree.terminal(), suspension.signal());
        self.check_deadlines();
        self.take_notices();
        if !self.kill_at().passed() {
            suspension.undo(&self.tree, self.continued != before);
        }
    }

    /// Does what is due. Takes the renewals that have come first: the thread that renews may have had a processor when this
    /// one had none.
    fn check_deadlines(&mut self) {
        while let Some(renewed) = self.renewer.try_next() {
            self.renewed(renewed);
        }
        if self.lost.is_none() && self.stop_at().passed() {
            let error = self.uncertain.clone();
            self.lose(Lost::Unconfirmed(error));
        }
        if self.time_limit.passed() {
            // The command may have ended in time, and nxlock been stopped since.
            self.take_reports();
            self.time_limit = Moment::NEVER;
            let is_over = self.ending.is_some() && !matches!(self.rules.descendants, Descendants::Wait);
            if !is_over && matches!(self.phase, Phase::Running | Phase::Outlived) {
                log::stopping(format_args!("the time limit is reached: stopping the command"));
                self.timed_out = true;
                self.guard.time_limit();
                self.stop(libc::SIGTERM, Reach::All);
            }
        }
        if let Phase::Stopping { grace_ends } = self.phase
            && grace_ends.min(self.kill_at()).passed()
        {
            let mut killing = Killing::begin();
            if self.kill(&mut killing) {
                log::warn(format_args!("not permitted to kill all of what the command started: waiting for it to end"));
            }
            self.phase = Phase::Killing(killing);
        }
        if let Phase::Killing(killing) = &mut self.phase
            && killing.next().passed()
        {
            let mut killing = std::mem::replace(killing, Killing::begin());
            self.kill(&mut killing);
            self.phase = Phase::Killing(killing);
        }
    }

    /// Kills every process of the tree; returns whether the kernel denied permission for one of them.
    fn kill(&self, killing: &mut Killing) -> bool {
        // A stopped guard reaps nothing.
        self.guard.wake();
        killing.round(|| {
            if self.guard.has_ended() {
                guard::reap_all();
            }
            self.tree.kill()
        })
    }

    fn next_deadline(&self) -> Moment {
        let stop_at = if self.lost.is_some() { Moment::NEVER } else { self.stop_at() };
        let kill = match &self.phase {
            Phase::Running | Phase::Outlived => Moment::NEVER,
            Phase::Stopping { grace_ends } => (*grace_ends).min(self.kill_at()),
            Phase::Killing(killing) => killing.next(),
        };
        let look = self.suspension.as_ref().map_or(Moment::NEVER, Suspension::next);
        stop_at.min(self.time_limit).min(kill).min(look)
    }

    fn stop_at(&self) -> Moment {
        self.rules.stop_at(self.until)
    }

    /// Returns when to kill what is left of the tree, so that it is gone before the lease expires.
    fn kill_at(&self) -> Moment {
        self.rules.kill_at(self.until)
    }
}

/// Returns whether nxlock leads its session, as the first program of a terminal window does.
fn leads_session() -> bool {
    getsid(None) == Ok(getpid())
}

/// Returns how a command ended; `typed` is the signal that the user typed at the terminal.
pub fn ending(status: ExitStatus, typed: Option<c_int>) -> Ending {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ending::Status(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, Some(signal)) => Ending::Killed { signal, from_terminal: typed == Some(signal) },
        (None, None) => Ending::Status(u8::MAX),
    }
}

/// Suspends nxlock like the command.
fn suspend(terminal: Terminal, signal: c_int) {
    log::trace(format_args!("suspended: nothing is renewed until SIGCONT"));
    Signals::suspend(match terminal {
        // TSTP does not stop an orphaned process group, such as the first program of a window or of `ssh -t`. STOP
        // would stop nxlock alone, and for ever.
        Terminal::Present => Signal::try_from(signal).unwrap_or(Signal::SIGTSTP),
        // nxlock's group may be orphaned, and TSTP would not stop it; the command's tree is stopped already.
        Terminal::Absent => Signal::SIGSTOP,
    });
    log::trace(format_args!("resumed"));
}
