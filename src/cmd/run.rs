//! Holds a lock around a command. Connects acquisition, renewal and supervision.

mod orphaned;

use std::cell::RefCell;
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::SigSet;
use nix::unistd::Pid;

use super::request::{self, Answer, Request};
use super::{give_back, give_up_if_asked};
use crate::acquire::Preparation;
use crate::cli::{GlobalArgs, Run, SETTINGS};
use crate::clock::Moment;
use crate::descriptors::CommandFile;
use crate::error::{Error, ErrorKind};
use crate::lock::{Claim, Fence, HELD, Lease, LockName, Lost, RunEnd, Slot, Token, Ttl};
use crate::renewer::{GivenBack, Renewer};
use crate::report::{Also, Ending, Named, NotRun, Ran, Report, Unreleased};
use crate::signals::Signals;
use crate::store::Credentials;
use crate::supervise::{
    Descendants, Granted, Guard, GuardTask, NoEnding, Orphaned, Outcome, Program, Rules, SpawnError, Start, Supervisor,
    Terminal, Variable,
};
use crate::wait::Alarm;
use crate::{descriptors, handover, log, notify, proc, supervise, trusted};
use orphaned::Orphan;

pub fn run(global: &GlobalArgs, asked: &Run) -> anyhow::Result<Report> {
    let mut request = Request::of_run(global, asked)?;
    let mut claim = request.claim()?;
    require_proc(&request.lock)?;
    let is_recorded = claim.recording.is_some();
    let (mut store, credentials) = request.open()?;
    let timeout = global.server_timeout;
    let mut signals = Signals::listen()?;
    let launch = Launch::new(global, asked, &request, &credentials, signals.inherited());
    let ready = Ready::new(&launch, &request, &claim);
    let lease = match request.wait_for(&mut *store, &mut claim, &mut signals, &ready)? {
        Answer::Granted(lease) => lease,
        Answer::Refused(report) => return Ok(*report),
    };
    let also = request.also(claim.also.iter().map(|also| (also.claim.token.clone(), also.fence)));
    let Request { lock, ttl, .. } = request;
    log::trace(format_args!("got \"{}\"", lock.name));
    // Allocate everything fallible before the command starts: nxlock must be able to keep the lock and to stop the command.
    let prepared = signals.begin_command().and_then(|()| Alarm::new().context("cannot keep the lock"));
    let (alarm, command_files) = match prepared.and_then(|alarm| Ok((alarm, store.command_files()?))) {
        Ok(prepared) => prepared,
        Err(error) => {
            give_back(&mut *store, &claim, timeout);
            return Err(error);
        }
    };
    if let Some(interrupted) = give_up_if_asked(&mut *store, &claim, timeout, &mut signals) {
        return Ok(interrupted);
    }
    let rules = launch.rules;
    let until_at_least = asked.at_least.map(|least| lease.granted + least);
    log::trace(format_args!("starting the command"));
    log::settle(before_the_command(lease));
    let grant = Grant { claim: &claim, also: &also, fence: lease.fence, slot: lease.slot };
    // It may have gone away during the wait.
    let terminal = Terminal::find();
    let started = match ready.start(&grant, lease, terminal) {
        Some(guard) => Ok(guard),
        None => launch.start(&grant, (lease, terminal), &store.watch().claim_fds, &command_files),
    };
    let mut guard = match started {
        Ok(guard) => guard,
        Err(errno) => {
            claim.ended(Some(not_begun(errno)));
            let given_back = give_back(&mut *store, &claim, timeout);
            return Ok(not_run(lock, words(asked), errno, given_back));
        }
    };
    drop(command_files);
    let mut renewer = Renewer::new(store, claim, ttl, lease, timeout, alarm);
    let supervisor = Supervisor::new(&mut guard, terminal, lease, rules, &mut signals, &mut renewer);
    let Outcome { ending, time_limit, mut lost, asked_by, until } =
        supervisor.run().context("cannot watch the command")?;
    // From here on only nxlock gives the lock back; if it is killed before it has, the guard does.
    guard.is_over();
    if let Ok(ending) = &ending {
        notify::ended(ending, time_limit);
    }
    // The command has run, or may have, unless it is known that it has not.
    let rest = until_at_least.filter(|_| !matches!(ending, Err(NoEnding::NotBegun(_))) && lost.is_none());
    let rest = rest.map(Moment::remaining).filter(|rest| !rest.is_zero());
    let end = end(&ending, time_limit, lost.is_some());
    let unreleased = finish(renewer, rest.map(Ttl::at_least), end, &mut lost);
    guard.dismiss();
    guard.wait();
    if let (Err(_), Some(error)) = (&ending, &unreleased) {
        log::warn(format_args!("{error}"));
    }
    match ending {
        Ok(ending) => {
            let is_unrecorded = is_recorded;
            let unreleased = unreleased.map(|error| Unreleased { error, ends_in: until.remaining(), is_unrecorded });
            Ok(Report::Ran(Ran { lock, ending, time_limit, lost, asked_by, unreleased }))
        }
        Err(NoEnding::NotBegun(SpawnError::TooLate)) => Err(too_late(&lock.name).into()),
        Err(NoEnding::NotBegun(SpawnError::Failed(errno))) => {
            Ok(not_run(lock, words(asked), errno, unreleased.is_none()))
        }
        Err(NoEnding::GuardKilled { guard, had_ended }) => Err(without_a_guard(&lock.name, guard, had_ended).into()),
    }
}

/// All with which the guard and the command's process are forked, but the grant.
struct Launch<'a> {
    global: &'a GlobalArgs,
    asked: &'a Run,
    lock: Named,
    ttl: Ttl,
    rules: Rules,
    credentials: &'a Credentials,
    /// The signal mask of nxlock's caller.
    mask: SigSet,
}

/// A grant, of all its locks.
struct Grant<'a> {
    claim: &'a Claim,
    also: &'a [Also],
    fence: Option<Fence>,
    slot: Option<Slot>,
}

impl<'a> Launch<'a> {
    fn new(
        global: &'a GlobalArgs,
        asked: &'a Run,
        request: &Request<'_>,
        credentials: &'a Credentials,
        mask: SigSet,
    ) -> Launch<'a> {
        let (lock, ttl) = (request.lock.clone(), request.ttl);
        let rules = Rules {
            ttl,
            kill_after: asked.kill_after,
            time_limit: asked.time_limit,
            on_lost: asked.on_lost,
            descendants: asked.descendants,
        };
        Launch { global, asked, lock, ttl, rules, credentials, mask }
    }

    /// Forks the guard and the command's process, for this grant or for one that differs in its numbers alone.
    fn prepare(
        &self,
        grant: &Grant<'_>,
        terminal: Terminal,
        claim_fds: &[RawFd],
        command_files: &[CommandFile],
    ) -> Result<Guard, Errno> {
        let Launch { global, asked, ref lock, credentials, mask, .. } = *self;
        keep_files_from_the_command(global);
        // Before the fork: the guard does as little as possible.
        let files = handover::packed(&credentials.handed());
        let orphan = Orphan { global, files: &files, lock, mask, claim_fds };
        let task = GuardTask {
            terminal,
            keep_open: claim_fds,
            give_back: &|orphaned: &Orphaned| {
                let end = match asked.descendants {
                    // The guard has killed those that the run waited for.
                    Descendants::Wait if !orphaned.was_over => RunEnd::killed(libc::SIGKILL),
                    _ => supervise::ending(orphaned.status, None).end(),
                };
                let Granted { at, fence, noted } = orphaned.granted;
                let mut claim = grant.claim.clone();
                if let Some(recording) = &mut claim.recording {
                    (recording.granted, recording.fence, recording.noted) = (Some(at), fence, noted);
                }
                claim.ended(Some(if orphaned.time_limit { end.at_the_time_limit() } else { end }));
                orphan.give_back(&claim, asked.at_least.map(|least| at + least), orphaned.was_over);
            },
        };
        let (granted, known) = self.environment(grant);
        let program = Program::told(&words(asked), (&known, &granted), mask, command_files)?;
        Guard::prepare(program, &task)
    }

    /// Does that, and starts the command.
    fn start(
        &self,
        grant: &Grant<'_>,
        (lease, terminal): (Lease, Terminal),
        claim_fds: &[RawFd],
        command_files: &[CommandFile],
    ) -> Result<Guard, Errno> {
        let mut guard = self.prepare(grant, terminal, claim_fds, command_files)?;
        match guard.start(self.in_time(grant, lease), &self.environment(grant).0) {
            // The guard reports why, or its supervisor that it has ended.
            Ok(()) | Err(Errno::EPIPE | Errno::ECONNRESET) => Ok(guard),
            Err(errno) => Err(errno),
        }
    }

    /// Returns what the guard is told of a grant.
    fn in_time(&self, grant: &Grant<'_>, Lease { granted: at, until, .. }: Lease) -> Start {
        let noted = grant.claim.recording.as_ref().and_then(|recording| recording.noted);
        let granted = Granted { at, fence: grant.fence, noted };
        Start { by: self.rules.stop_at(until), kill_at: self.rules.kill_at(until), granted }
    }

    /// Returns the variables that the command gets: those that only a grant tells, and those that are known before.
    fn environment(&self, grant: &Grant<'_>) -> (Vec<Variable>, Vec<Variable>) {
        let tells = |(name, _): &Variable| name.starts_with(FENCE) || name == SLOT;
        environment(&self.lock, grant, self.ttl).into_iter().partition(tells)
    }
}

/// The guard and the command's process, forked while the store decides.
struct Ready<'a> {
    launch: &'a Launch<'a>,
    /// The claim as it is requested, and the further locks with the longest fences.
    claim: Claim,
    also: Vec<Also>,
    guard: RefCell<Option<Prepared>>,
}

impl<'a> Ready<'a> {
    fn new(launch: &'a Launch<'a>, request: &Request<'_>, claim: &Claim) -> Ready<'a> {
        let also = request.also(claim.also.iter().map(|also| (also.claim.token.clone(), LONGEST)));
        Ready { launch, claim: claim.clone(), also, guard: RefCell::new(None) }
    }

    /// Starts the command, if the processes are there, and are for such a grant.
    fn start(&self, grant: &Grant<'_>, lease: Lease, terminal: Terminal) -> Option<Guard> {
        let mut prepared = self.guard.take()?;
        let (granted, known) = self.launch.environment(grant);
        let is_for_this = prepared.known == known && prepared.terminal == terminal;
        let has_started = is_for_this && prepared.guard.start(self.launch.in_time(grant, lease), &granted).is_ok();
        has_started.then_some(prepared.guard)
    }
}

/// A guard, and what it was forked for.
struct Prepared {
    guard: Guard,
    terminal: Terminal,
    /// The variables that the command has from it.
    known: Vec<Variable>,
}

/// The fence that takes the most room.
const LONGEST: Option<Fence> = Some(Fence(u64::MAX));

impl Preparation for Ready<'_> {
    fn begin(&self) {
        let mut guard = self.guard.borrow_mut();
        if guard.is_none() {
            let slot = self.launch.asked.sharing.slots.map(|of| Slot { number: of.get() - 1, of });
            let grant = Grant { claim: &self.claim, also: &self.also, fence: LONGEST, slot };
            // What fails now may succeed after the grant, or tells why it does not.
            let terminal = Terminal::find();
            let prepared = self.launch.prepare(&grant, terminal, &[], &[]);
            let known = self.launch.environment(&grant).1;
            *guard = prepared.ok().map(|guard| Prepared { guard, terminal, known });
        }
    }

    fn undo(&self) {
        self.guard.take();
    }
}

/// Keeps the descriptors that the caller opened for files of nxlock from the command: it could read a password there.
fn keep_files_from_the_command(global: &GlobalArgs) {
    let files = SETTINGS.iter().filter(|setting| setting.is_file).filter_map(|setting| (setting.value)(global));
    for number in files.filter_map(|file| trusted::descriptor(Path::new(&file))) {
        descriptors::keep_from_the_command(number);
    }
}

/// Returns how long the start of the command may wait for stderr to accept what was logged before.
fn before_the_command(lease: Lease) -> Duration {
    (lease.until.remaining() / 20).min(Duration::from_millis(250))
}

fn not_run(lock: Named, words: Vec<OsString>, errno: Errno, given_back: bool) -> Report {
    let before_dashes = words.get(1).is_some_and(|word| word == "--");
    let command = words.into_iter().next().unwrap_or_default();
    let missing = errno == Errno::ENOENT;
    Report::NotRun(NotRun { lock, command, before_dashes, missing, error: errno.into(), given_back })
}

/// Returns how a run ended, for its record; none if it never began.
fn end(ending: &Result<Ending, NoEnding>, time_limit: bool, is_lost: bool) -> Option<RunEnd> {
    let end = match *ending {
        Ok(ending) => ending.end(),
        Err(NoEnding::NotBegun(SpawnError::TooLate)) => return None,
        Err(NoEnding::NotBegun(SpawnError::Failed(errno))) => not_begun(errno),
        // The kernel killed the command with it, or nxlock what it had waited for.
        Err(NoEnding::GuardKilled { .. }) => RunEnd::killed(libc::SIGKILL),
    };
    Some(match () {
        () if is_lost => end.without_the_lock(),
        () if time_limit => end.at_the_time_limit(),
        () => end,
    })
}

/// Returns the end of a command that could not be executed.
fn not_begun(errno: Errno) -> RunEnd {
    RunEnd::exited(if errno == Errno::ENOENT { 127 } else { 126 })
}

/// Fails without /proc: nxlock could not find, and so not stop, what the command starts in other sessions.
fn require_proc(lock: &Named) -> Result<(), Error> {
    if proc::own_number().is_some() {
        return Ok(());
    }
    Err(Error {
        kind: ErrorKind::Misconfigured,
        action: format!("cannot run a command under \"{}\"", lock.name),
        cause: "/proc does not show this process, so what the command starts could not be stopped".into(),
        hint: "mount /proc: mount -t proc proc /proc".into(),
    })
}

/// The guard was killed, and so was the command, or what the run was to wait for or to stop after it.
fn without_a_guard(name: &LockName, guard: Pid, had_ended: bool) -> Error {
    let killed =
        if had_ended { "was all that the command had left" } else { "were the command and all that it had started" };
    Error {
        kind: ErrorKind::Internal,
        action: format!("cannot supervise the command under \"{name}\""),
        cause: format!("its guard (process {guard}) was killed, and so {killed}"),
        hint: "find out what kills processes named nx-guard: the kernel may, for lack of memory".into(),
    }
}

/// nxlock or the whole machine was stopped between the grant and the start.
fn too_late(name: &LockName) -> Error {
    Error {
        kind: ErrorKind::Unreachable,
        action: format!("cannot use the lock \"{name}\""),
        cause: "it was granted, and its lease was about to end before the command could be started".into(),
        hint: "see what stopped nxlock meanwhile, or use a longer --ttl".into(),
    }
}

/// Returns the program and its arguments, byte for byte.
fn words(asked: &Run) -> Vec<OsString> {
    match &asked.shell {
        Some(text) => vec!["sh".into(), "-c".into(), text.clone()],
        None => asked.command.clone(),
    }
}

/// The variables that only a grant tells, beside the fences of further locks, which begin with the first.
const FENCE: &str = "NXLOCK_FENCE";
const SLOT: &str = "NXLOCK_SLOT";

fn environment(lock: &Named, grant: &Grant<'_>, ttl: Ttl) -> Vec<Variable> {
    let Grant { claim, also, fence, slot } = *grant;
    let held = claim.enclosing.iter().chain(claim.parts().map(|part| &part.token));
    let own = [
        ("NXLOCK_NAME", Some(lock.name.as_str().into())),
        ("NXLOCK_KEY", Some(lock.key.clone().into())),
        ("NXLOCK_TOKEN", Some(claim.token.as_str().into())),
        (FENCE, fence.map(|fence| fence.0.to_string().into())),
        (SLOT, slot.map(|slot| slot.number.to_string().into())),
        ("NXLOCK_SLOTS", slot.map(|slot| slot.of.get().to_string().into())),
        ("NXLOCK_TTL_MS", Some(ttl.millis().to_string().into())),
        (HELD, Some(held.map(Token::as_str).collect::<Vec<_>>().join(" ").into())),
    ];
    let numbered = request::numbered(also).into_iter().map(|(name, value)| (name.into(), value.map(Into::into)));
    own.map(|(name, value)| (name.into(), value)).into_iter().chain(numbered).collect()
}

/// Gives the lock back, or leaves it for the `rest` of `--at-least`. Returns the error if that fails; sets `lost` if
/// the lock turns out to be lost.
fn finish(renewer: Renewer, rest: Option<Ttl>, end: Option<RunEnd>, lost: &mut Option<Lost>) -> Option<Error> {
    match renewer.give_back(rest, end) {
        GivenBack::NotYours(state) if lost.is_none() => {
            let found = Lost::Taken(state);
            let follows = "found when the command had ended";
            notify::lost(&found, follows);
            *lost = Some(found);
        }
        GivenBack::Done => {
            notify::released(rest.map(Ttl::get));
        }
        GivenBack::NotYours(_) => {}
        GivenBack::Unconfirmed(error) => {
            notify::unreleased(&error);
            return Some(error);
        }
    }
    None
}
