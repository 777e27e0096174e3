//! Holds a lock around a command. Connects acquisition, renewal and supervision.

mod orphaned;

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use nix::errno::Errno;
use nix::libc;
use nix::unistd::Pid;

use super::request::{self, Answer, Request};
use super::{give_back, give_up_if_asked};
use crate::cli::{GlobalArgs, Run, SETTINGS};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::lock::{Claim, HELD, Lease, LockName, Lost, RunEnd, Token, Ttl};
use crate::renewer::{GivenBack, Renewer};
use crate::report::{Also, Ending, Named, NotRun, Ran, Report, Unreleased};
use crate::signals::Signals;
use crate::supervise::{
    Descendants, Guard, GuardTask, NoEnding, Orphaned, Outcome, Program, Rules, SpawnError, Supervisor, Terminal,
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
    let lease = match request.wait_for(&mut *store, &mut claim, &mut signals)? {
        Answer::Granted(lease) => lease,
        Answer::Refused(report) => return Ok(*report),
    };
    let also = request.also(claim.also.iter().map(|also| (also.claim.token.clone(), also.fence)));
    let Request { lock, ttl, .. } = request;
    log::trace(format_args!("got \"{}\"", lock.name));
    // Allocate everything fallible before spawning: nxlock must be able to keep the lock and to stop the command.
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
    let words = words(asked);
    let rules = Rules {
        ttl,
        kill_after: asked.kill_after,
        time_limit: asked.time_limit,
        on_lost: asked.on_lost,
        descendants: asked.descendants,
    };
    let terminal = Terminal::find();
    let until_at_least = asked.at_least.map(|least| lease.granted + least);
    let claim_fds = store.watch().claim_fds;
    keep_files_from_the_command(global);
    let mask = signals.inherited();
    // Before the fork: the guard does as little as possible.
    let files = handover::packed(&credentials.handed());
    let orphan = Orphan { global, files: &files, lock: &lock, mask, at_least: until_at_least, claim_fds: &claim_fds };
    let task = GuardTask {
        terminal,
        start_by: rules.stop_at(lease.until),
        kill_at: rules.kill_at(lease.until),
        keep_open: &claim_fds,
        give_back: &|orphaned: &Orphaned| {
            let end = match asked.descendants {
                // The guard has killed those that the run waited for.
                Descendants::Wait if !orphaned.was_over => RunEnd::killed(libc::SIGKILL),
                _ => supervise::ending(orphaned.status, None).end(),
            };
            let mut claim = claim.clone();
            claim.ended(Some(if orphaned.time_limit { end.at_the_time_limit() } else { end }));
            orphan.give_back(&claim, orphaned.was_over);
        },
    };
    let environment = environment((&lock, &also), &claim, lease, ttl);
    let program = Program::new(&words, &environment, mask, &command_files);
    log::trace(format_args!("starting the command"));
    log::settle(before_the_command(lease));
    let mut guard = match program.and_then(|program| Guard::start(&program, &task)) {
        Ok(guard) => guard,
        Err(errno) => {
            claim.ended(Some(not_begun(errno)));
            let given_back = give_back(&mut *store, &claim, timeout);
            return Ok(not_run(lock, words, errno, given_back));
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
        Err(NoEnding::NotBegun(SpawnError::Failed(errno))) => Ok(not_run(lock, words, errno, unreleased.is_none())),
        Err(NoEnding::GuardKilled { guard, had_ended }) => Err(without_a_guard(&lock.name, guard, had_ended).into()),
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

fn environment(
    (lock, also): (&Named, &[Also]),
    claim: &Claim,
    lease: Lease,
    ttl: Ttl,
) -> Vec<(Cow<'static, str>, Option<OsString>)> {
    let held = claim.enclosing.iter().chain(claim.parts().map(|part| &part.token));
    let own = [
        ("NXLOCK_NAME", Some(lock.name.as_str().into())),
        ("NXLOCK_KEY", Some(lock.key.clone().into())),
        ("NXLOCK_TOKEN", Some(claim.token.as_str().into())),
        ("NXLOCK_FENCE", lease.fence.map(|fence| fence.0.to_string().into())),
        ("NXLOCK_SLOT", lease.slot.map(|slot| slot.number.to_string().into())),
        ("NXLOCK_SLOTS", lease.slot.map(|slot| slot.of.get().to_string().into())),
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
