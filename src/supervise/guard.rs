//! The guard: a process between nxlock and the command, which outlives nxlock and lets no process outlive the lock.
//!
//! nxlock forks the guard, and the guard starts the command, whose parent-death signal binds it to the guard. The guard
//! is the subreaper of the command's tree, in a session of its own and with all signals blocked, so that neither a key
//! nor a signal to a process group ends both nxlock and the guard. If nxlock dies, the guard kills the whole tree and
//! releases the lock. If nxlock is alive but does not run (stopped by a signal, for example), the guard kills the tree
//! before the lease expires. nxlock decides everything else: the guard reports the command's state, and reaps.
//!
//! Both processes may be forked before the lock is granted, while the server decides: the process that is to become the
//! command waits until nxlock writes to a pipe, and ends if nobody can do so any more. The guard is told first.
//!
//! nxlock is a subreaper too: if the guard dies, the command's parent-death signal kills the command, and nxlock kills
//! the rest.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitStatus;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc::{self, c_int};
use nix::poll::PollFlags;
use nix::sys::prctl;
use nix::sys::signal::{SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{AddressFamily, Shutdown, SockFlag, SockType, shutdown, socketpair};
use nix::sys::stat::fstat;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid, pipe2, setsid, write};

use super::kill::Killing;
use super::message::{
    Message, Received, instant, moment, next, number, optional, pair, present, receive, signed, transmit,
};
use super::spawn::{Program, SpawnError, Terminal, Variable};
use super::tree::{self, Tree};
use crate::clock::Moment;
use crate::descriptors::close_all_but;
use crate::lock::Fence;
use crate::proc;
use crate::signals::{blockable, set};
use crate::wait::{Alarm, Limit, Woken};

/// nxlock's handle to the guard.
pub struct Guard {
    pid: Pid,
    socket: OwnedFd,
    end: Option<End>,
    /// The end of the pipe through which the process that is to become the command hears of the grant, until it has.
    go: Option<OwnedFd>,
    /// The guard was told of the grant.
    is_told: bool,
    program: Program,
}

/// What the guard is told when the lock has been granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// No command starts later than this.
    pub by: Moment,
    /// The guard kills the tree at this moment, unless nxlock moves it.
    pub kill_at: Moment,
    pub granted: Granted,
}

/// The grant, as far as it is of use to whoever gives the lock back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    pub at: Moment,
    pub fence: Option<Fence>,
    /// When the store granted it to a run that is recorded, in µs of its clock.
    pub noted: Option<u64>,
}

/// How a guard ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It exited: the command's tree is gone.
    Done,
    /// It was killed.
    Killed,
}

/// A report of the guard about the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandEvent {
    /// There is a process that is to become the command. It reports this itself, before it becomes the command; the guard
    /// repeats it if a signal may have kept the process from that.
    Started(Pid),
    /// The process did not become the command.
    Failed(SpawnError),
    /// This signal stopped the command.
    Stopped(c_int),
    /// The guard begins to kill the tree: as far as it knows, the lease is about to end.
    Overdue,
    /// The command ended. The guard reaps it only after nxlock has read this.
    Ended(ExitStatus),
}

/// An instruction of nxlock to the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instruction {
    /// The lock is granted, and the command starts now.
    Start(Start),
    /// Kill the tree at this moment.
    KillAt(Moment),
    /// nxlock knows how the command ended, and sends it no more signals.
    Reap,
    /// nxlock stops the command for its time limit.
    TimeLimit,
    /// The run is over, and nxlock gives the lock back.
    Over,
}

/// The guard's view of the lock and the command.
pub struct GuardTask<'a> {
    pub terminal: Terminal,
    /// Descriptors that must stay open in the guard while the tree lives.
    pub keep_open: &'a [RawFd],
    /// Releases the lock after nxlock has died. The process does nothing else any more: this may replace it.
    pub give_back: &'a dyn Fn(&Orphaned),
}

/// The guard's knowledge of a run whose nxlock has died.
pub struct Orphaned {
    /// How the command ended.
    pub status: ExitStatus,
    /// nxlock had stopped the command for its time limit.
    pub time_limit: bool,
    /// nxlock was giving the lock back: the guard has killed nothing.
    pub was_over: bool,
    pub granted: Granted,
}

impl Guard {
    /// Forks a guard, and through it the process that is to become the command: nothing starts before [`Guard::start`].
    /// Call from the main thread: the guard's parent-death signal comes when the thread that forked it ends, prctl(2).
    ///
    /// # Errors
    /// As fork(2), socketpair(2), pipe(2), sigprocmask(2) and prctl(2).
    pub fn prepare(program: Program, task: &GuardTask<'_>) -> Result<Guard, Errno> {
        prctl::set_child_subreaper(true)?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (ours, guards) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        let (grant, go) = pipe2(OFlag::O_CLOEXEC)?;
        let nxlock = getpid();
        // A handler of nxlock must not run in the guard: they share what it would write to.
        let mask = set(blockable()).thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        // SAFETY: the child allocates, which libc permits after a fork; it takes no lock of this program, since it
        // neither writes to a standard stream nor calls anything that does, and never returns from here.
        let forked = unsafe { fork() };
        if let Ok(ForkResult::Child) = forked {
            drop((ours, go));
            // The child must not return from here, not even by a panic.
            let guard = || {
                let guarding = Guarding::begin(nxlock, guards, (&program, grant), task);
                guarding.ok().and_then(Guarding::begin_at_the_grant).map_or(1, |guarding| guarding.run(task))
            };
            let status = catch_unwind(AssertUnwindSafe(guard)).unwrap_or(1);
            // SAFETY: ends this process, and runs nothing else.
            unsafe { libc::_exit(status) }
        }
        // It was the thread's own.
        let _ = mask.thread_set_mask();
        match forked? {
            ForkResult::Parent { child } => {
                Ok(Guard { pid: child, socket: ours, end: None, go: Some(go), is_told: false, program })
            }
            ForkResult::Child => Err(Errno::EINVAL),
        }
    }

    /// Lets the command start, with the variables that depend on the grant.
    ///
    /// # Errors
    /// EPIPE or ECONNRESET if the guard or the command's process has ended: a guard that is there reports it. EINVAL if
    /// they were prepared for other variables; and as send(2) and write(2). Nothing has started then, and nothing will once
    /// the guard is dropped.
    pub fn start(&mut self, start: Start, variables: &[Variable]) -> Result<(), Errno> {
        // The kernel kills the command's process with the guard, but not at once: until then, it has the same ends open.
        if self.end().is_some() {
            return Err(Errno::EPIPE);
        }
        let go = self.go.as_ref().ok_or(Errno::EPIPE)?;
        let message = self.program.message(start.by, variables).ok_or(Errno::EINVAL)?;
        // The guard first: from then on it kills in time what the pipe starts, also if nxlock dies before this returns.
        self.send(Instruction::Start(start))?;
        self.is_told = true;
        while let Err(errno) = write(go, &message) {
            if errno != Errno::EINTR {
                return Err(errno);
            }
        }
        self.go = None;
        Ok(())
    }

    /// Ends a guard whose command has not started and is not to, and the process that waited to become the command. Kills a
    /// guard that does not end soon.
    fn discard(&mut self) {
        let pipe = self.go.take().and_then(|go| fstat(&go).ok()).map(|pipe| pipe.st_ino);
        if !self.is_told {
            let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Write);
            self.wake();
            let limit = Limit::until(Moment::now() + DISCARDED);
            while limit.wait_for(&[(self.socket.as_fd(), PollFlags::POLLIN)]).is_ok_and(|woken| woken == Woken::Ready) {
                if let Received::End = next(&self.socket) {
                    break;
                }
            }
        }
        self.dismiss();
        self.wait();
        // The kernel kills the process with a guard that is killed, unless it was stopped before it asked for that: then it
        // is a child of nxlock now, and no other has this pipe.
        for (_, orphan) in tree::children().filter(|(shown, _)| pipe.is_some_and(|pipe| proc::has_pipe(*shown, pipe))) {
            let _ = tree::send(orphan, libc::SIGKILL);
            while waitpid(orphan, None) == Err(Errno::EINTR) {}
        }
        // Whoever waits for a lock is no parent of what others leave.
        let _ = prctl::set_child_subreaper(false);
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns a descriptor that is readable when there is a report; `None` once the guard has ended.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.end.is_none().then(|| self.socket.as_fd())
    }

    /// Returns the next report, without waiting.
    pub fn report(&self) -> Option<CommandEvent> {
        let [what, number, ..] = receive(&self.socket)?;
        let raw = signed(number);
        Some(match what {
            STARTED => CommandEvent::Started(Pid::from_raw(raw)),
            FAILED => CommandEvent::Failed(Errno::from_raw(raw).into()),
            STOPPED => CommandEvent::Stopped(raw),
            OVERDUE => CommandEvent::Overdue,
            _ => CommandEvent::Ended(ExitStatus::from_raw(raw)),
        })
    }

    /// Tells the guard when to kill the tree.
    pub fn kill_at(&self, moment: Moment) {
        let _ = self.send(Instruction::KillAt(moment));
    }

    /// Lets the guard reap the command, wait for the rest of the tree, and exit when that is gone.
    pub fn reap(&self) {
        let _ = self.send(Instruction::Reap);
    }

    /// Tells the guard that the command is stopped for its time limit, which is how the run ends.
    pub fn time_limit(&self) {
        let _ = self.send(Instruction::TimeLimit);
    }

    /// Tells the guard that the run is over, and what is left of the tree is left alone: if nxlock dies before it has
    /// given the lock back, the guard only does that. Call once the command has ended.
    pub fn is_over(&self) {
        let _ = self.send(Instruction::Over);
    }

    /// Sends an instruction, and continues a stopped guard: nothing else would.
    ///
    /// # Errors
    /// As [`transmit`].
    fn send(&self, instruction: Instruction) -> Result<(), Errno> {
        let message: Message = match instruction {
            Instruction::Start(Start { kill_at, granted: Granted { at, fence, noted }, .. }) => {
                [START, instant(kill_at), instant(at), optional(fence.map(|fence| fence.0)), optional(noted)]
            }
            Instruction::KillAt(at) => pair(KILL_AT, instant(at)),
            Instruction::Reap => pair(REAP, 0),
            Instruction::TimeLimit => pair(TIME_LIMIT, 0),
            Instruction::Over => pair(OVER, 0),
        };
        let sent = transmit(&self.socket, message);
        self.wake();
        sent
    }

    /// Continues the guard if it is stopped.
    pub fn wake(&self) {
        if self.end.is_none() {
            let _ = tree::send(self.pid, libc::SIGCONT);
        }
    }

    /// Returns how the guard ended, if it has.
    pub fn end(&mut self) -> Option<End> {
        if self.end.is_none() {
            self.end = match waitpid(self.pid, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => None,
                Ok(WaitStatus::Exited(_, 0)) => Some(End::Done),
                Ok(_) | Err(_) => Some(End::Killed),
            };
        }
        self.end
    }

    /// Returns whether [`Guard::end`] has returned an end: the processes of the tree are nxlock's children now.
    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Kills the guard, even if processes of the tree are left. Call only after the command has ended.
    pub fn dismiss(&mut self) {
        if self.end.is_none() {
            let _ = tree::send(self.pid, libc::SIGKILL);
        }
    }

    /// Waits for a dismissed guard to end, and reaps what it left unreaped: the command.
    pub fn wait(&mut self) {
        while self.end.is_none() && waitpid(self.pid, None) == Err(Errno::EINTR) {}
        self.end.get_or_insert(End::Done);
        reap_all();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.go.is_some() {
            self.discard();
        }
    }
}

/// Types of messages: their first number.
const STARTED: u64 = 1;
const FAILED: u64 = 2;
const STOPPED: u64 = 3;
const ENDED: u64 = 4;
const KILL_AT: u64 = 5;
const REAP: u64 = 6;
const OVERDUE: u64 = 7;
const TIME_LIMIT: u64 = 8;
const OVER: u64 = 9;
const START: u64 = 10;

/// How long a guard may take to end that is not needed: it may be stopped.
const DISCARDED: Duration = Duration::from_millis(250);

/// The guard's own state.
struct Guarding {
    nxlock: Pid,
    socket: OwnedFd,
    signals: SignalFd,
    alarm: Alarm,
    tree: Tree,
    kill_at: Moment,
    granted: Granted,
    /// The rounds of SIGKILL, once they have begun.
    killing: Option<Killing>,
    report: Ended,
    /// How the command ended.
    ended: Option<ExitStatus>,
    /// nxlock has begun to stop the command, for its time limit.
    time_limit: bool,
    may_reap: bool,
    /// nxlock gives the lock back.
    is_over: bool,
}

/// Whether the guard has reported how the command ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    NotYet,
    /// The socket is full: nxlock does not read it.
    Unreported,
    Reported,
}

/// The result of reaping.
enum Reaped {
    /// A child is left.
    NotAll,
    All,
}

impl Guarding {
    /// Forks the process that is to become the command, and waits for `grant`.
    fn begin(
        nxlock: Pid,
        socket: OwnedFd,
        (program, grant): (&Program, OwnedFd),
        task: &GuardTask<'_>,
    ) -> Result<Guarding, Errno> {
        let begins = || _ = transmit(&socket, pair(STARTED, number(getpid().as_raw())));
        let failed = |errno: Errno| _ = transmit(&socket, pair(FAILED, number(errno as i32)));
        let begun = (|| {
            let all = set(blockable());
            all.thread_block()?;
            prctl::set_name(&CString::new(tree::GUARD).unwrap_or_default())?;
            prctl::set_child_subreaper(true)?;
            // SIGCONT wakes even a stopped guard, which then asks the kernel whether nxlock has died. It does no harm
            // if it arrives after the guard has become another nxlock.
            prctl::set_pdeathsig(Signal::SIGCONT)?;
            let alarm = Alarm::new().map_err(|error| errno(&error))?;
            let signals = SignalFd::with_flags(&all, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
            let command = program.spawn(task.terminal, &grant, begins, failed)?;
            Ok((alarm, signals, command))
        })();
        let (alarm, signals, command) = begun.inspect_err(|errno| failed(*errno))?;
        // Once the command has its process, or the command would lose its terminal. A guard in a session of its own
        // keeps no process group from being orphaned, so Ctrl-Z does not stop a command that nobody could continue.
        let _ = setsid();
        drop(grant);
        // nxlock must be able to close what it has open: a connection, a pipe, another program's lock.
        let own = [socket.as_raw_fd(), alarm.as_fd().as_raw_fd(), signals.as_fd().as_raw_fd()];
        close_all_but(&own.iter().chain(task.keep_open).copied().collect::<Vec<_>>());
        let mut tree = Tree::new(Vec::new(), task.terminal);
        tree.command = Some(command);
        Ok(Guarding {
            nxlock,
            socket,
            signals,
            alarm,
            tree,
            kill_at: Moment::NEVER,
            granted: Granted { at: Moment::NEVER, fence: None, noted: None },
            killing: None,
            report: Ended::NotYet,
            ended: None,
            time_limit: false,
            may_reap: false,
            is_over: false,
        })
    }

    /// Waits until nxlock lets the command start. If it does not, or has died, ends the process that was to become the
    /// command: there is nothing to guard.
    fn begin_at_the_grant(mut self) -> Option<Guarding> {
        loop {
            match next(&self.socket) {
                Received::Message([START, kill_at, at, fence, noted]) => {
                    self.kill_at = moment(kill_at);
                    self.granted = Granted { at: moment(at), fence: present(fence).map(Fence), noted: present(noted) };
                    continue_what_waits();
                    return Some(self);
                }
                // Everything else concerns a command that has started.
                Received::Message(_) => {}
                // Signals stay where they are: the command may have sent one by the time that this is continued.
                Received::NotYet => match Limit::NONE.wait_for(&[(self.socket.as_fd(), PollFlags::POLLIN)]) {
                    Ok(_) => {}
                    Err(_) => break,
                },
                // nxlock needs no guard, or has died.
                Received::End => break,
            }
        }
        let command = self.tree.command?;
        let _ = tree::send(command, libc::SIGKILL);
        while waitpid(command, None) == Err(Errno::EINTR) {}
        None
    }

    /// Guards the tree until it is gone; returns the guard's exit status.
    fn run(mut self, task: &GuardTask<'_>) -> c_int {
        loop {
            self.take_instructions();
            self.pass_on();
            let orphaned = self.is_orphaned();
            if orphaned && self.is_over {
                break;
            }
            if self.killing.is_none() && (orphaned || self.kill_at.passed()) {
                // nxlock may have renewed the lease meanwhile, and would take the end of the command for its own.
                let _ = transmit(&self.socket, pair(OVERDUE, 0));
                self.killing = Some(Killing::begin());
            }
            if let Some(mut killing) = self.killing.take() {
                killing.round(|| {
                    self.reap(orphaned);
                    self.tree.kill()
                });
                self.killing = Some(killing);
            }
            if let Reaped::All = self.reap(orphaned) {
                break;
            }
            // Once nxlock has died, its socket is always readable.
            let socket = Some(self.socket.as_fd()).filter(|_| !orphaned);
            let limit = Limit { until: self.next_deadline(), cancel: &[socket], ..Limit::NONE };
            if self.alarm.wait_for(&[self.signals.as_fd()], limit).is_err() {
                // The guard exits, and the kernel kills the command.
                return 1;
            }
        }
        if self.is_orphaned() {
            // Pending signals are not for the nxlock that this process becomes.
            while let Ok(Some(_)) = self.signals.read_signal() {}
            // The command is gone, and the tree with it unless the run was over: what the guard did not see end, it has
            // killed.
            let status = self.ended.unwrap_or(ExitStatus::from_raw(libc::SIGKILL));
            let (time_limit, was_over, granted) = (self.time_limit, self.is_over, self.granted);
            (task.give_back)(&Orphaned { status, time_limit, was_over, granted });
        }
        0
    }

    /// Returns whether nxlock has died.
    fn is_orphaned(&self) -> bool {
        getppid() != self.nxlock
    }

    fn next_deadline(&self) -> Moment {
        let kill = self.killing.as_ref().map_or(self.kill_at, Killing::next);
        let report = if self.report == Ended::Unreported { Moment::now() + REPORT_AGAIN } else { Moment::NEVER };
        kill.min(report)
    }

    fn take_instructions(&mut self) {
        while let Some([what, number, ..]) = receive(&self.socket) {
            match what {
                KILL_AT => self.kill_at = moment(number),
                TIME_LIMIT => self.time_limit = true,
                OVER => (self.is_over, self.kill_at) = (true, Moment::NEVER),
                _ => self.may_reap = true,
            }
        }
    }

    /// Forwards to nxlock a signal from the command's tree, such as a command sends to its parent. No other is forwarded:
    /// another process, such as an init that stops a whole service, has signalled nxlock too. Call before reaping:
    /// until then, a child that has ended still belongs to the tree.
    fn pass_on(&self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            let number = info.ssi_signo.cast_signed();
            let is_sent = info.ssi_code <= 0 && number != libc::SIGCHLD;
            // nxlock's death orphans the guard before the parent-death signal arrives.
            if is_sent && self.tree.has(Pid::from_raw(info.ssi_pid.cast_signed())) && !self.is_orphaned() {
                let _ = tree::send(self.nxlock, number);
            }
        }
    }

    fn repeat_that_it_started(&self, command: Pid) {
        let _ = transmit(&self.socket, pair(STARTED, number(command.as_raw())));
    }

    fn reap(&mut self, orphaned: bool) -> Reaped {
        loop {
            let Some(child) = next_child() else { return Reaped::All };
            match child {
                Child::NoneYet => return Reaped::NotAll,
                Child::Ended(pid, status) if self.tree.command == Some(pid) => {
                    let ended = ExitStatus::from_raw(status);
                    self.ended = Some(ended);
                    if self.report != Ended::Reported {
                        if ended.signal().is_some() {
                            self.repeat_that_it_started(pid);
                        }
                        let is_sent = transmit(&self.socket, pair(ENDED, number(status))).is_ok();
                        self.report = if is_sent { Ended::Reported } else { Ended::Unreported };
                    }
                    if !self.may_reap && !orphaned {
                        reap_others(pid);
                        return Reaped::NotAll;
                    }
                    self.tree.command = None;
                    consume(pid, libc::WEXITED);
                }
                Child::Ended(pid, _) => consume(pid, libc::WEXITED),
                Child::Stopped(pid, signal) => {
                    consume(pid, libc::WSTOPPED);
                    if self.tree.command == Some(pid) {
                        self.repeat_that_it_started(pid);
                        let _ = transmit(&self.socket, pair(STOPPED, number(signal)));
                    }
                }
                // A child that asked to be traced, ptrace(2), has stopped for its tracer.
                Child::Trapped(pid) => consume(pid, libc::WSTOPPED),
            }
        }
    }
}

/// Continues the process that is to become the command, if a user stopped it while it waited for the grant: the user has
/// continued nxlock, and nxlock does not know the process yet.
fn continue_what_waits() {
    let Some(Child::Stopped(stopped, _)) = next_child() else { return };
    // It has the guard's name until execve(2). A command may stop itself.
    if tree::children().any(|(shown, pid)| pid == stopped && proc::name(shown) == tree::GUARD) {
        let _ = tree::send(stopped, libc::SIGCONT);
    }
}

/// Reaps the children that have ended except one, which the kernel would show again and again.
fn reap_others(kept: Pid) {
    tree::children().filter(|(_, pid)| *pid != kept).for_each(|(_, pid)| consume(pid, libc::WEXITED));
}

/// Reaps every child that has ended; returns whether no child is left.
pub fn reap_all() -> bool {
    loop {
        let mut status = 0;
        // SAFETY: waitpid(2) writes to `status` only. nix's waitpid does not know real-time signals.
        match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
            0 => return false,
            -1 if Errno::last() != Errno::EINTR => return true,
            _ => {}
        }
    }
}

/// Delay before another attempt to report to an nxlock that does not read.
const REPORT_AGAIN: Duration = Duration::from_millis(100);

/// The state of a child, as the kernel reports it.
enum Child {
    NoneYet,
    /// With its status as wait(2) encodes it.
    Ended(Pid, c_int),
    /// With the signal that stopped it.
    Stopped(Pid, c_int),
    Trapped(Pid),
}

/// Returns the state of a child that has ended or stopped, without reaping it; `None` if there is no child.
fn next_child() -> Option<Child> {
    let how = libc::WEXITED | libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT;
    let info = loop {
        // SAFETY: waitid(2) writes to `info` only, for which all zeroes is valid.
        let (found, info) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            (libc::waitid(libc::P_ALL, 0, &raw mut info, how), info)
        };
        if found == 0 {
            break info;
        }
        match Errno::last() {
            Errno::ECHILD => return None,
            // No other SIGCHLD will tell of this child.
            Errno::EINTR => {}
            _ => return Some(Child::NoneYet),
        }
    };
    // SAFETY: waitid(2) fills in these fields, or leaves the pid 0.
    let (pid, status) = unsafe { (Pid::from_raw(info.si_pid()), info.si_status()) };
    Some(match info.si_code {
        _ if pid.as_raw() == 0 => Child::NoneYet,
        libc::CLD_EXITED => Child::Ended(pid, (status & 0xff) << 8),
        libc::CLD_KILLED => Child::Ended(pid, status),
        libc::CLD_DUMPED => Child::Ended(pid, status | 0x80),
        libc::CLD_STOPPED => Child::Stopped(pid, status),
        _ => Child::Trapped(pid),
    })
}

/// Consumes the state that [`next_child`] returned.
fn consume(pid: Pid, how: c_int) {
    // SAFETY: as above.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_PID, pid.as_raw().cast_unsigned(), &raw mut info, how | libc::WNOHANG);
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}
