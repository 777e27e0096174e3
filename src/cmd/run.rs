//! Holds a lock around a command. Connects acquisition, renewal and supervision.

mod launch;
mod orphaned;

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Context;
use nix::errno::Errno;
use nix::libc;
use nix::unistd::Pid;

use super::request::{Answer, Request};
use super::{give_back, give_up_if_asked};
use crate::cli::{GlobalArgs, Run};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::lock::{Lease, LockName, Lost, RunEnd, Ttl};
use crate::renewer::{GivenBack, Renewer};
use crate::report::{Ending, Named, NotRun, Ran, Report, Unreleased};
use crate::signals::Signals;
use crate::supervise::{NoEnding, Outcome, SpawnError, Supervisor, Terminal};
use crate::wait::Alarm;
use crate::{log, notify, proc};
use launch::{Grant, Launch, Ready, words};

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
