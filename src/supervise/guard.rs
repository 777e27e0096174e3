//! The guard: a process between nxlock and its command, which outlives nxlock and lets nothing outlive the lock.
//!
//! nxlock forks it, and it forks the command, whose parent-death signal binds it to the guard. It is the subreaper of
//! the command's tree, in a session of its own and with all signals blocked, so that neither a key nor a signal to a
//! process group ends both. If nxlock dies, the guard kills the whole tree and gives the lock back. If nxlock is alive
//! and does not run, stopped by a signal for example, the guard kills the tree before the lease ends. Everything else is
//! nxlock's to decide: the guard reports how the command fares, and reaps.
//!
//! nxlock is a subreaper too: if the guard dies, its parent-death signal kills the command, and nxlock the rest.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitStatus;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc::{self, c_int};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid, setsid};

use super::kill::Killing;
use super::spawn::{Program, SpawnError, Terminal};
use super::tree::{self, Tree};
use crate::clock::Moment;
use crate::descriptors::close_all_but;
use crate::mailbox::Alarm;
use crate::signals::{blockable, set};

/// As nxlock sees it.
pub struct Guard {
    pid: Pid,
    socket: OwnedFd,
    end: Option<End>,
}

/// How a guard ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself: the command's tree is gone.
    Done,
    /// It was killed.
    Killed,
}

/// What a guard reports of its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandEvent {
    /// The process that is to become the command.
    Started(Pid),
    /// It did not become the command.
    Failed(SpawnError),
    /// The command was stopped by this signal.
    Stopped(c_int),
    /// The guard reaps it only once nxlock has heard of it.
    Ended(ExitStatus),
}

/// What nxlock tells its guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instruction {
    /// Nothing of the tree may be alive later than this.
    KillAt(Moment),
    /// nxlock has heard how the command ended, and sends it no signal any more.
    Reap,
}

/// What a guard does for a lock, beside its command.
pub struct GuardTask<'a> {
    pub terminal: Terminal,
    /// No command begins later than this.
    pub start_by: Moment,
    /// Nothing of the tree may be alive later than this, unless nxlock says otherwise.
    pub kill_at: Moment,
    /// A descriptor that must stay open for as long as the tree lives.
    pub keep_open: Option<RawFd>,
    /// Gives the lock back, in a process of which nothing else is left; called if nxlock has died.
    pub give_back: &'a dyn Fn(),
}

/// A message: what it is, and a number. Both ends are the same program.
type Message = [u64; 2];
const SIZE: usize = size_of::<Message>();

impl Guard {
    /// Forks a guard that starts the command. To be called by the main thread, with which the guard ends, prctl(2).
    ///
    /// # Errors
    /// As fork(2), socketpair(2) and prctl(2).
    pub fn start(program: &Program, task: &GuardTask<'_>) -> Result<Guard, Errno> {
        prctl::set_child_subreaper(true)?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (ours, guards) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        let nxlock = getpid();
        // SAFETY: the child allocates, which libc permits after a fork; it takes no lock of this program's, since it
        // neither writes to a standard stream nor calls anything that does, and never returns from here.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Guard { pid: child, socket: ours, end: None }),
            ForkResult::Child => {
                drop(ours);
                // Whatever happens, this process goes no further than here.
                let guard = || Guarding::begin(nxlock, guards, program, task).map_or(1, |guarding| guarding.run(task));
                let status = catch_unwind(AssertUnwindSafe(guard)).unwrap_or(1);
                // SAFETY: ends this process, and runs nothing else.
                unsafe { libc::_exit(status) }
            }
        }
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Readable when there is a report; nothing once it has ended.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.end.is_none().then(|| self.socket.as_fd())
    }

    /// The next thing it has reported, without waiting.
    pub fn report(&self) -> Option<CommandEvent> {
        let [what, number] = receive(&self.socket)?;
        let raw = u32::try_from(number).unwrap_or(0).cast_signed();
        Some(match what {
            STARTED => CommandEvent::Started(Pid::from_raw(raw)),
            FAILED => CommandEvent::Failed(Errno::from_raw(raw).into()),
            STOPPED => CommandEvent::Stopped(raw),
            _ => CommandEvent::Ended(ExitStatus::from_raw(raw)),
        })
    }

    /// Tells it by when nothing of the tree may be alive.
    pub fn kill_at(&self, moment: Moment) {
        self.tell(Instruction::KillAt(moment));
    }

    /// Lets it reap the command, wait for the rest of the tree, and end when that is gone.
    pub fn reap(&self) {
        self.tell(Instruction::Reap);
    }

    /// A guard that was stopped goes on: nothing else would continue it.
    fn tell(&self, instruction: Instruction) {
        let message: Message = match instruction {
            Instruction::KillAt(moment) => [KILL_AT, moment.since_boot().map_or(u64::MAX, nanos)],
            Instruction::Reap => [REAP, 0],
        };
        transmit(&self.socket, message);
        self.wake();
    }

    /// Continues it, if it was stopped.
    pub fn wake(&self) {
        if self.end.is_none() {
            let _ = tree::send(self.pid, libc::SIGCONT);
        }
    }

    /// How it has ended, if it has.
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

    /// Ends it, whatever is left of the tree; not before the command has ended.
    pub fn dismiss(&mut self) {
        if self.end.is_none() {
            let _ = tree::send(self.pid, libc::SIGKILL);
        }
    }

    /// Waits for its end, after it was dismissed, and reaps what it has left unreaped: the command.
    pub fn wait(&mut self) {
        while self.end.is_none() && waitpid(self.pid, None) == Err(Errno::EINTR) {}
        self.end.get_or_insert(End::Done);
        reap_all();
    }
}

/// Kinds of messages.
const STARTED: u64 = 1;
const FAILED: u64 = 2;
const STOPPED: u64 = 3;
const ENDED: u64 = 4;
const KILL_AT: u64 = 5;
const REAP: u64 = 6;

/// Whether there was room for it.
fn transmit(socket: &OwnedFd, message: Message) -> bool {
    let mut bytes = [0; SIZE];
    bytes[..8].copy_from_slice(&message[0].to_ne_bytes());
    bytes[8..].copy_from_slice(&message[1].to_ne_bytes());
    send(socket.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL) == Ok(SIZE)
}

fn receive(socket: &OwnedFd) -> Option<Message> {
    let mut bytes = [0; SIZE];
    if recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty()) != Ok(SIZE) {
        return None;
    }
    let (what, number) = bytes.split_at(8);
    Some([u64::from_ne_bytes(what.try_into().ok()?), u64::from_ne_bytes(number.try_into().ok()?)])
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn number(signed: c_int) -> u64 {
    u64::from(signed.cast_unsigned())
}

/// The guard itself.
struct Guarding {
    nxlock: Pid,
    socket: OwnedFd,
    signals: SignalFd,
    alarm: Alarm,
    tree: Tree,
    kill_at: Moment,
    /// The tree is to be gone.
    killing: Option<Killing>,
    report: Ended,
    may_reap: bool,
}

/// Whether nxlock was told how the command ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    NotYet,
    /// There was no room for it: nxlock does not read.
    Untold,
    Told,
}

/// What is left of the children.
enum Reaped {
    /// There is a child left.
    NotAll,
    All,
}

impl Guarding {
    fn begin(nxlock: Pid, socket: OwnedFd, program: &Program, task: &GuardTask<'_>) -> Result<Guarding, Errno> {
        let tell = |errno: Errno| _ = transmit(&socket, [FAILED, number(errno as i32)]);
        let begun = (|| {
            let all = set(blockable());
            all.thread_block()?;
            prctl::set_name(&CString::new(tree::GUARD).unwrap_or_default())?;
            prctl::set_child_subreaper(true)?;
            // A signal that wakes it, even if it was stopped; the kernel is asked whether that was nxlock's end. It does
            // no harm to the nxlock that the guard may become before it comes.
            prctl::set_pdeathsig(Signal::SIGCONT)?;
            let alarm = Alarm::new().map_err(|error| errno(&error))?;
            let signals = SignalFd::with_flags(&all, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
            let command = program.spawn(task.terminal, task.start_by, tell)?;
            Ok((alarm, signals, command))
        })();
        let (alarm, signals, command) = begun.inspect_err(|errno| tell(*errno))?;
        transmit(&socket, [STARTED, number(command.as_raw())]);
        // After the fork, or the command would lose its terminal. In a session of its own the guard keeps no process
        // group from being orphaned, so that where nobody could continue the command, Ctrl-Z does not stop it.
        let _ = setsid();
        // What nxlock has open is nxlock's to close: a connection, a pipe, another program's lock.
        let own = [socket.as_raw_fd(), alarm.as_fd().as_raw_fd(), signals.as_fd().as_raw_fd()];
        close_all_but(&own.into_iter().chain(task.keep_open).collect::<Vec<_>>());
        let mut tree = Tree::new(Vec::new(), task.terminal);
        tree.command = Some(command);
        let kill_at = task.kill_at;
        Ok(Guarding {
            nxlock,
            socket,
            signals,
            alarm,
            tree,
            kill_at,
            killing: None,
            report: Ended::NotYet,
            may_reap: false,
        })
    }

    /// Sees the tree through to its end; the guard's exit status.
    fn run(mut self, task: &GuardTask<'_>) -> c_int {
        loop {
            self.take_instructions();
            self.pass_on();
            let orphaned = self.is_orphaned();
            if self.killing.is_none() && (orphaned || self.kill_at.passed()) {
                self.killing = Some(Killing::begin());
            }
            if let Some(killing) = &mut self.killing {
                killing.round(&self.tree);
            }
            if let Reaped::All = self.reap(orphaned) {
                break;
            }
            // Once nxlock has died its socket is always readable.
            let socket = Some(self.socket.as_fd()).filter(|_| !orphaned);
            if self.alarm.wait(Some(self.signals.as_fd()), [socket, None, None], self.next_deadline()).is_err() {
                // It ends, and the kernel kills the command.
                return 1;
            }
        }
        if self.is_orphaned() {
            // Not for the nxlock that this becomes.
            while let Ok(Some(_)) = self.signals.read_signal() {}
            (task.give_back)();
        }
        0
    }

    /// Whether nxlock has died.
    fn is_orphaned(&self) -> bool {
        getppid() != self.nxlock
    }

    fn next_deadline(&self) -> Moment {
        let kill = self.killing.as_ref().map_or(self.kill_at, Killing::next);
        let tell = if self.report == Ended::Untold { Moment::now() + TELL_AGAIN } else { Moment::NEVER };
        kill.min(tell)
    }

    fn take_instructions(&mut self) {
        while let Some([what, number]) = receive(&self.socket) {
            match what {
                KILL_AT if number == u64::MAX => self.kill_at = Moment::NEVER,
                KILL_AT => self.kill_at = Moment::after_boot(Duration::from_nanos(number)),
                _ => self.may_reap = true,
            }
        }
    }

    /// A signal that the command's tree sends the guard, as a command does that signals its parent, is for nxlock. One
    /// of another process, such as an init that stops a whole service, has come to nxlock as well.
    fn pass_on(&self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            let number = info.ssi_signo.cast_signed();
            let is_sent = info.ssi_code <= 0 && number != libc::SIGCHLD;
            // It is orphaned before it gets its parent-death signal.
            if is_sent && self.is_of_the_tree(info.ssi_pid) && !self.is_orphaned() {
                let _ = tree::send(self.nxlock, number);
            }
        }
    }

    /// Whether the sender of a signal belongs to the tree. It may have ended since.
    fn is_of_the_tree(&self, sender: u32) -> bool {
        let sender = Pid::from_raw(sender.cast_signed());
        let is_gone = || tree::send(sender, 0) == Err(Errno::ESRCH);
        sender.as_raw() > 0 && self.tree.all().is_none_or(|all| all.contains(&sender) || is_gone())
    }

    fn reap(&mut self, orphaned: bool) -> Reaped {
        loop {
            let Some(child) = next_child() else { return Reaped::All };
            match child {
                Child::NoneYet => return Reaped::NotAll,
                Child::Ended(pid, status) if self.tree.command == Some(pid) => {
                    if self.report != Ended::Told {
                        let told = transmit(&self.socket, [ENDED, number(status)]);
                        self.report = if told { Ended::Told } else { Ended::Untold };
                    }
                    if !self.may_reap && !orphaned {
                        return Reaped::NotAll;
                    }
                    self.tree.command = None;
                    consume(pid, libc::WEXITED);
                }
                Child::Ended(pid, _) => consume(pid, libc::WEXITED),
                Child::Stopped(pid, signal) => {
                    consume(pid, libc::WSTOPPED);
                    if self.tree.command == Some(pid) {
                        transmit(&self.socket, [STOPPED, number(signal)]);
                    }
                }
                // It asked to be traced, ptrace(2), and has stopped for its tracer.
                Child::Trapped(pid) => consume(pid, libc::WSTOPPED),
            }
        }
    }
}

/// Reaps every child that has ended. Whether there is none left.
pub fn reap_all() -> bool {
    loop {
        let mut status = 0;
        // SAFETY: waitpid(2) writes to `status` only. nix's does not know real-time signals.
        match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
            0 => return false,
            -1 => return true,
            _ => {}
        }
    }
}

/// When to try again to report to an nxlock that does not read.
const TELL_AGAIN: Duration = Duration::from_millis(100);

/// What the kernel has to tell of a child.
enum Child {
    NoneYet,
    /// Its status as wait(2) has it.
    Ended(Pid, c_int),
    /// And by which signal.
    Stopped(Pid, c_int),
    Trapped(Pid),
}

/// Looks at a child that has ended or stopped, and leaves it to be waited for. Nothing if there is no child.
fn next_child() -> Option<Child> {
    // SAFETY: waitid(2) writes to `info` only, for which all zeroes is valid.
    let (found, info) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let how = libc::WEXITED | libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT;
        (libc::waitid(libc::P_ALL, 0, &raw mut info, how), info)
    };
    if found != 0 {
        return (Errno::last() != Errno::ECHILD).then_some(Child::NoneYet);
    }
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

/// Takes what [`next_child`] has shown.
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
