//! Forks the guard and the process that is to become the command: while the store decides, so that a grant finds them
//! there, or after the grant, where that is not possible or they do not fit it.

use std::cell::RefCell;
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::SigSet;

use super::orphaned::Orphan;
use crate::acquire::Preparation;
use crate::cli::{GlobalArgs, Run, SETTINGS};
use crate::cmd::request::{self, Request};
use crate::descriptors::CommandFile;
use crate::lock::{Claim, Fence, HELD, Lease, RunEnd, Slot, Token, Ttl};
use crate::report::{Also, Named};
use crate::store::Credentials;
use crate::supervise::{Descendants, Granted, Guard, GuardTask, Orphaned, Program, Rules, Start, Terminal, Variable};
use crate::{descriptors, handover, supervise, trusted};

/// All with which the guard and the command's process are forked, but the grant.
pub struct Launch<'a> {
    global: &'a GlobalArgs,
    asked: &'a Run,
    lock: Named,
    ttl: Ttl,
    pub rules: Rules,
    credentials: &'a Credentials,
    /// The signal mask of nxlock's caller.
    mask: SigSet,
}

/// A grant, of all its locks.
pub struct Grant<'a> {
    pub claim: &'a Claim,
    pub also: &'a [Also],
    pub fence: Option<Fence>,
    pub slot: Option<Slot>,
}

/// The variables that a command gets.
struct Environment {
    /// Those that are known before a grant.
    known: Vec<Variable>,
    /// Those that only a grant tells.
    granted: Vec<Variable>,
}

impl<'a> Launch<'a> {
    pub fn new(
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

    /// Forks the guard and the command's process, for this grant or for one that differs in its numbers alone. Returns the
    /// variables of this one too.
    fn prepare(
        &self,
        grant: &Grant<'_>,
        terminal: Terminal,
        claim_fds: &[RawFd],
        command_files: &[CommandFile],
    ) -> Result<(Guard, Environment), Errno> {
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
        let environment = self.environment(grant);
        let Environment { known, granted } = &environment;
        let program = Program::until_granted(&words(asked), (known, granted), mask, command_files)?;
        Ok((Guard::prepare(program, &task)?, environment))
    }

    /// Does that, and starts the command.
    ///
    /// # Errors
    /// As [`Guard::prepare`] and [`Guard::start`].
    pub fn start(
        &self,
        grant: &Grant<'_>,
        (lease, terminal): (Lease, Terminal),
        claim_fds: &[RawFd],
        command_files: &[CommandFile],
    ) -> Result<Guard, Errno> {
        let (mut guard, environment) = self.prepare(grant, terminal, claim_fds, command_files)?;
        match guard.start(self.in_time(grant, lease), &environment.granted) {
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

    fn environment(&self, grant: &Grant<'_>) -> Environment {
        let is_granted = |(name, _): &Variable| name.starts_with(FENCE) || name == SLOT;
        let (granted, known) = environment(&self.lock, grant, self.ttl).into_iter().partition(is_granted);
        Environment { known, granted }
    }
}

/// The guard and the command's process, forked while the store decides.
pub struct Ready<'a> {
    launch: &'a Launch<'a>,
    /// The claim as it is requested, and the further locks with the longest fences.
    claim: Claim,
    also: Vec<Also>,
    guard: RefCell<Option<Prepared>>,
}

impl<'a> Ready<'a> {
    pub fn new(launch: &'a Launch<'a>, request: &Request<'_>, claim: &Claim) -> Ready<'a> {
        let also = request.also(claim.also.iter().map(|also| (also.claim.token.clone(), LONGEST)));
        Ready { launch, claim: claim.clone(), also, guard: RefCell::new(None) }
    }

    /// Starts the command, if the processes are there, and are for such a grant.
    pub fn start(&self, grant: &Grant<'_>, lease: Lease, terminal: Terminal) -> Option<Guard> {
        let mut prepared = self.guard.take()?;
        let Environment { known, granted } = self.launch.environment(grant);
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
            let terminal = Terminal::find();
            // An error is no outcome yet: after the grant, nxlock forks again.
            let prepared = self.launch.prepare(&grant, terminal, &[], &[]);
            *guard = prepared.ok().map(|(guard, Environment { known, .. })| Prepared { guard, terminal, known });
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

/// Returns the program and its arguments, byte for byte.
pub fn words(asked: &Run) -> Vec<OsString> {
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
