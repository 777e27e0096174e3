//! Owns the command: starts it under a guard, forwards signals, stops it when its time is over.
//!
//! Everything that can happen arrives in one place: signals by the signal descriptor, how the command fares by its
//! guard's socket, renewals and loss by the keeper's letters, deadlines by the clock. The guard reaps the command only
//! when this has heard of its end, so no signal goes to a process that has its pid after it. Knows nothing of stores.

mod group;
mod guard;
mod kill;
pub mod margin;
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

pub use guard::Guard;
pub use guard::GuardTask;
pub use spawn::Program;
pub use spawn::SpawnError;
pub use spawn::Terminal;

use crate::clock::Moment;
use crate::error::Error;
use crate::lock::{Lease, Lost, Ttl};
use crate::mailbox::Arrived;
use crate::proc::{self, Job, JobState};
use crate::renewer::{Renewal, Renewer};
use crate::report::Ending;
use crate::signals::{Notice, Signals, Source};
use crate::{duration, log, notify};
use group::GroupMember;
use guard::{CommandEvent, End};
use kill::Killing;
use suspend::{HadBy, Suspension};
use tree::{Reach, Tree};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnLost {
    /// Stop the command and everything it started
    Stop,
    /// Say so, and let it run on without the lock
    Continue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Descendants {
    /// Give the lock back at once, and let them run on without it
    Leave,
    /// Keep the lock until they are gone
    Wait,
    /// Stop them, then give the lock back
    Stop,
}

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

    /// When whatever is left must be killed, to be gone before that lease can have ended.
    pub fn kill_at(&self, until: Moment) -> Moment {
        match self.on_lost {
            OnLost::Stop => until - margin::kill(self.ttl, self.kill_after),
            OnLost::Continue => Moment::NEVER,
        }
    }
}

/// How it went.
pub struct Outcome {
    /// Or why there is none.
    pub ending: Result<Ending, NoEnding>,
    pub time_limit: bool,
    pub lost: Option<Lost>,
    /// When the lease ends, for all we know.
    pub until: Moment,
}

/// Why it is not known how a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoEnding {
    /// It never began.
    NotBegun(SpawnError),
    /// Its guard was killed; so were the command and all it had started.
    GuardKilled(Pid),
}

enum Phase {
    Running,
    /// The command has ended; what it has left behind is waited for.
    Outlived,
    /// Told to stop; what is left at this moment is killed.
    Stopping {
        kill_at: Moment,
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
    /// The lease may be believed until then.
    until: Moment,
    time_limit: Moment,
    phase: Phase,
    suspension: Option<Suspension>,
    /// How often nxlock was continued.
    continued: u64,
    /// What came before there was a command.
    early: Vec<Notice>,
    ending: Option<Result<Ending, NoEnding>>,
    /// Nothing of the tree is left.
    is_gone: bool,
    /// The guard may reap.
    is_heard: bool,
    /// A process asked us to end the command, or it died of a key: what it leaves behind is ended too.
    asked_to_end: bool,
    /// INT or QUIT was typed at the terminal.
    typed: Option<c_int>,
    timed_out: bool,
    lost: Option<Lost>,
    uncertain: Option<Error>,
}

impl<'a> Supervisor<'a> {
    /// `guard` was started with this terminal.
    pub fn new(
        (guard, terminal): (&'a mut Guard, Terminal),
        lease: Lease,
        rules: Rules,
        signals: &'a mut Signals,
        renewer: &'a mut Renewer,
    ) -> Supervisor<'a> {
        let time_limit = rules.time_limit.map_or(Moment::NEVER, |limit| Moment::now() + limit);
        // Without one a signal to the whole group comes to the command twice, as to all that are wrapped.
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
            is_heard: false,
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
    /// As poll(2); the guard ends the command then.
    pub fn run(mut self) -> io::Result<Outcome> {
        loop {
            // Deadlines first: after a sleep of the machine or a stop from the terminal nothing else
            // is as urgent.
            self.check_deadlines();
            self.take_notices();
            self.take_reports();
            if let Some(ending) = self.finished() {
                return Ok(Outcome { ending, time_limit: self.timed_out, lost: self.lost, until: self.until });
            }
            self.suspend_if_asked();
            let until = self.next_deadline();
            let [arrivals, ctrl_c, _] = self.signals.fds();
            match self.renewer.next(until, [arrivals, ctrl_c, self.guard.fd()])? {
                Arrived::Message(renewed) => self.renewed(renewed),
                Arrived::Readable | Arrived::Time => {}
            }
        }
    }

    /// The command's ending, once nothing is left to be done about it. What one that ends by itself
    /// leaves behind is left, waited for or stopped; of one that was stopped everything has to be gone.
    fn finished(&mut self) -> Option<Result<Ending, NoEnding>> {
        if let Some(end) = self.guard.end() {
            // It may have reported something since, as its last deed.
            self.take_reports();
            match end {
                End::Done => self.is_gone = true,
                End::Killed => self.do_without_the_guard(),
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
        if !std::mem::replace(&mut self.is_heard, true) {
            self.tree.command = None;
            self.guard.reap();
        }
        None
    }

    /// The guard was killed, and the command with it; what is left of the tree is nxlock's own to kill and to reap.
    fn do_without_the_guard(&mut self) {
        if self.ending.is_none() {
            let pid = self.guard.pid();
            self.ending = Some(Err(NoEnding::GuardKilled(pid)));
            log::warn(format_args!("the guard of the command (process {pid}) was killed: killing the command"));
        }
        if matches!(self.ending, Some(Err(_))) && !matches!(self.phase, Phase::Killing(_)) {
            self.phase = Phase::Killing(Killing::begin());
            self.check_deadlines();
        }
        // It would be waited for as well.
        self.group = None;
        self.is_gone = guard::reap_all();
    }

    fn heard(&mut self, report: CommandEvent) {
        match report {
            CommandEvent::Started(pid) => {
                notify::started(pid);
                // What has come until now may have come before there was a command to get it.
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
            // The report may be older than what has continued the command.
            CommandEvent::Stopped(_) if !self.command_is_stopped() => {}
            CommandEvent::Stopped(signal) if self.tree.terminal() == Terminal::Present => {
                let follows = matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU);
                self.begin_suspension(if follows { signal } else { libc::SIGTSTP }, HadBy::OurGroup);
            }
            // Nobody does job control for us.
            CommandEvent::Stopped(_) => {}
            CommandEvent::Ended(status) => {
                let typed = self.typed;
                let ending = *self.ending.get_or_insert_with(|| Ok(ending(status, typed)));
                // What a shell had started in the background does not hear the key.
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
            self.heard(report);
        }
    }

    fn take_notices(&mut self) {
        let notices = self.signals.notices();
        if self.tree.command.is_none() && self.ending.is_none() {
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
            // The kernel's: a process has ended, or was stopped when it used the terminal from the background. The
            // guard reports what concerns the command.
            (libc::SIGCHLD, _) | (libc::SIGTTIN | libc::SIGTTOU, Source::Terminal | Source::Wait) => {}
            (libc::SIGTSTP, source) => {
                if source == Source::Process {
                    self.tree.signal_all(&[number], reach);
                }
                self.begin_suspension(number, if source == Source::Process { HadBy::All } else { HadBy::OurGroup });
            }
            // The terminal is gone. Who leads its session is alone in being told: by HUP, and by CONT
            // for what is stopped.
            (libc::SIGHUP, Source::Terminal) if leads_session() => {
                self.asked_to_end = true;
                self.signal_and_wake(number, Reach::All);
            }
            (libc::SIGINT | libc::SIGQUIT | libc::SIGHUP | libc::SIGTERM, Source::Wait) => {
                self.typed = Some(number);
                self.asked_to_end = true;
                self.tree.signal_all(&[number], Reach::All);
            }
            // The whole foreground group has had it from the terminal.
            (_, Source::Terminal) => {
                if matches!(number, libc::SIGINT | libc::SIGQUIT) {
                    self.typed = Some(number);
                    // What a shell has started in the background does not hear it.
                    self.asked_to_end |= self.ending.is_some();
                }
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
                if !self.last_call().passed() {
                    self.tree.signal_all(&[number], reach);
                }
            }
            (_, _) => self.tree.signal_command(number, value, reach),
        }
    }

    /// Which processes of the tree have yet to get a signal that came to nxlock. To be asked once for each: then a
    /// signal that came to the group is not taken for the next one.
    fn reach(&self, Notice { number, source, .. }: Notice) -> Reach {
        // A key too leaves its signal with the member of the group.
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
                self.guard.kill_at(self.last_call());
            }
            Renewal::Uncertain(error) => {
                if self.uncertain.is_none() && self.lost.is_none() {
                    let left = self.stop_at().remaining();
                    log::warn(format_args!("{error}; trying again for {}", duration::span(left)));
                }
                self.uncertain = Some(error);
            }
            Renewal::Lost(state) => self.lose(Lost::Taken(state)),
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
        notify::lost(&lost, follows);
        self.lost = Some(lost);
        if then == OnLost::Stop {
            self.stop(libc::SIGTERM, Reach::All);
        }
    }

    fn stop(&mut self, number: c_int, reach: Reach) {
        self.signal_and_wake(number, reach);
        if let Phase::Running | Phase::Outlived = self.phase {
            self.phase = Phase::Stopping { kill_at: Moment::now() + self.rules.kill_after };
        }
    }

    /// Continues what is stopped as well; but not what is to be killed at once. It needs no waking for that, and
    /// would go on until then, when its lease may be over.
    fn signal_and_wake(&self, number: c_int, reach: Reach) {
        match (self.last_call().passed(), reach) {
            (true, _) => _ = self.tree.signal_all(&[number], reach),
            (false, Reach::All) => _ = self.tree.signal_all(&[number, libc::SIGCONT], reach),
            (false, Reach::OutsideOurGroup) => {
                self.tree.signal_all(&[number], reach);
                self.tree.signal_all(&[libc::SIGCONT], Reach::All);
            }
        }
    }

    fn begin_suspension(&mut self, signal: c_int, had_by: HadBy) {
        if self.suspension.is_none() {
            self.suspension = Some(Suspension::begin(signal, had_by, self.continued));
        }
    }

    /// Suspends nxlock as the command is suspended, and the rest of its tree before that. What was stopped for it goes on
    /// when nxlock does, and only if its lease is not about to end.
    fn suspend_if_asked(&mut self) {
        if !self.suspension.as_mut().is_some_and(|suspension| suspension.advance(&self.tree)) {
            return;
        }
        let Some(suspension) = self.suspension.take() else { return };
        // A shell may have continued the job meanwhile; nxlock's own stop would discard that SIGCONT.
        self.take_notices();
        if self.continued != suspension.continued() {
            suspension.undo(&self.tree, true);
            return;
        }
        suspend(self.tree.terminal(), suspension.signal());
        self.check_deadlines();
        let before = self.continued;
        self.take_notices();
        if !self.last_call().passed() {
            suspension.undo(&self.tree, self.continued != before);
        }
    }

    fn check_deadlines(&mut self) {
        if self.lost.is_none() && self.stop_at().passed() {
            let error = self.uncertain.clone();
            self.lose(Lost::Unconfirmed(error));
        }
        if self.time_limit.passed() {
            self.time_limit = Moment::NEVER;
            if matches!(self.phase, Phase::Running | Phase::Outlived) {
                log::warn(format_args!("the time limit is reached: stopping the command"));
                self.timed_out = true;
                self.stop(libc::SIGTERM, Reach::All);
            }
        }
        if let Phase::Stopping { kill_at } = self.phase
            && kill_at.min(self.last_call()).passed()
        {
            let mut killing = Killing::begin();
            if killing.round(&self.tree) {
                log::warn(format_args!("not permitted to kill all of what the command started: waiting for it to end"));
            }
            self.phase = Phase::Killing(killing);
        }
        if let Phase::Killing(killing) = &mut self.phase
            && killing.next().passed()
        {
            killing.round(&self.tree);
            // Nothing is reaped while it is stopped.
            self.guard.wake();
        }
    }

    fn next_deadline(&self) -> Moment {
        let stop_at = if self.lost.is_some() { Moment::NEVER } else { self.stop_at() };
        let kill = match &self.phase {
            Phase::Running | Phase::Outlived => Moment::NEVER,
            Phase::Stopping { kill_at } => (*kill_at).min(self.last_call()),
            Phase::Killing(killing) => killing.next(),
        };
        let look = self.suspension.as_ref().map_or(Moment::NEVER, Suspension::next);
        stop_at.min(self.time_limit).min(kill).min(look)
    }

    fn stop_at(&self) -> Moment {
        self.rules.stop_at(self.until)
    }

    /// When whatever is left must be killed, to be gone before the lease can have ended.
    fn last_call(&self) -> Moment {
        self.rules.kill_at(self.until)
    }
}

/// Whether we are the leader of our session, as a terminal window's first program is.
fn leads_session() -> bool {
    getsid(None) == Ok(getpid())
}

/// How a command ended; `typed` is the signal that its user sent it from the terminal.
fn ending(status: ExitStatus, typed: Option<c_int>) -> Ending {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ending::Status(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, Some(signal)) => Ending::Killed { signal, from_terminal: typed == Some(signal) },
        (None, None) => Ending::Status(u8::MAX),
    }
}

/// Stops us as the command is stopped.
fn suspend(terminal: Terminal, signal: c_int) {
    log::trace(format_args!("suspended: nothing is renewed until SIGCONT"));
    Signals::suspend(match terminal {
        // Where nobody is there to continue it, a group does not stop at TSTP: the first program of a
        // window, or of `ssh -t`. We would alone if this were STOP, and for ever.
        Terminal::Present => Signal::try_from(signal).unwrap_or(Signal::SIGTSTP),
        // Ours may be such a group, and the command's is not: we are there.
        Terminal::Absent => Signal::SIGSTOP,
    });
    log::trace(format_args!("resumed"));
}
