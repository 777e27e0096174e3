//! Locks of one machine, without a server: a directory has one record per lock, read and written under its flock(2).
//! The contract is the same as a server's, except that the kernel reports a killed holder at once.

mod asking;
mod background;
mod check;
mod commands;
mod directory;
mod fault;
mod filesystem;
mod flock;
mod format;
mod inspect;
mod lines;
mod ofd_lock;
mod pid_view;
mod record;
mod recording;
mod shares;
mod sharing;
mod superseding;
mod sweep;
mod transaction;
mod waiter;
mod waiters;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use directory::Directory;

/// Parsers of file contents, for the fuzz targets.
#[cfg(fuzzing)]
pub mod files {
    pub use crate::lock::Asker;

    pub use super::filesystem::network_fuse;
    pub use super::format::sum;
    pub use super::lines::Line;
    pub use super::pid_view::Process;
    pub use super::record::{Record, RecordedRun, Share, Superseder, Waiter};
}

use super::{
    AcquireMode, Acquired, Asking, Feature, Kept, Listed, LockStatus, Look, Op, Page, Probed, Released, Renewed, Reply,
    ScanCursor, Store, Watch, poll_pause,
};
use crate::clock::{Boot, Moment};
use crate::descriptors::CommandFile;
use crate::error::{Error, ErrorKind};
use crate::lock::{Asker, Claim, HolderId, Lease, LockName, LockState, Prefix, Run, Ttl};
use crate::wait::{Limit, Woken};
use crate::{log, text};
use directory::{OpenDirectory, Part};
use fault::{Flaw, LocalError};
use flock::{FileLock, Locked};
use record::{Life, Record, State};
use transaction::{Granted, HolderFile, Machine, Request, Response, Transaction};
use waiter::WaiterFile;

pub struct Local {
    directory: Directory,
    prefix: Prefix,
    /// Maximum wait for a record that another process has locked.
    timeout: Duration,
    opened: Option<Opened>,
    /// The record file used last, with its key.
    open: Option<(String, Arc<File>)>,
    file_lock: FileLock,
    waiting: Option<WaiterFile>,
    /// The waiter file from before the grant, kept open because closing it is slow (`WaiterFile::leave`).
    former: Option<WaiterFile>,
    /// The claim bound to this process.
    held: Option<HolderFile>,
    /// When to retry without a place in the queue.
    look_at: Moment,
}

/// What every transaction needs.
struct Opened {
    directory: OpenDirectory,
    machine: Machine,
}

impl Local {
    pub fn new(directory: Directory, prefix: Prefix, timeout: Duration) -> Local {
        let look_at = Moment::now();
        Local {
            directory,
            prefix,
            timeout,
            opened: None,
            open: None,
            file_lock: FileLock::default(),
            waiting: None,
            former: None,
            held: None,
            look_at,
        }
    }

    fn prepare(&mut self) -> Result<(), LocalError> {
        // Each time: the directory may have been removed, and may belong to another user since.
        let directory = OpenDirectory::open(&self.directory)?;
        if let Some(opened) = &mut self.opened {
            opened.directory = directory;
        } else {
            let machine = Machine::new(Boot::this().map_err(|error| LocalError::no_boot(&error))?);
            self.opened = Some(Opened { directory, machine });
        }
        Ok(())
    }

    /// Runs `act` on a lock's files while they are locked. Returns `None` if the lock has no files and `make` is false.
    fn transaction<T>(
        &mut self,
        key: &str,
        make: bool,
        limit: Limit<'_>,
        act: impl FnOnce(
            &mut Transaction<'_>,
            &Machine,
            (&mut Option<WaiterFile>, &mut Option<HolderFile>),
        ) -> Result<T, LocalError>,
    ) -> Result<Option<T>, LocalError> {
        self.prepare()?;
        let Local { opened: Some(opened), open, file_lock, waiting, held, timeout, .. } = self else {
            return Err(LocalError::new(ErrorKind::Internal, "not prepared", ""));
        };
        let limit = limit.no_later_than(Moment::now() + *timeout);
        let Some(file) = locked(opened, open, file_lock, key, make, limit)? else { return Ok(None) };
        let mut transaction = Transaction::begin(&opened.machine, &opened.directory, key, file)?;
        act(&mut transaction, &opened.machine, (waiting, held)).map(Some)
    }

    fn error(&self, verb: &str, name: Option<&LockName>, fault: LocalError) -> Error {
        let what = name.map(|name| format!(" \"{name}\"")).unwrap_or_default();
        let action = format!("cannot {verb}{what} at {}", self.directory);
        Error { kind: fault.kind, action, cause: fault.cause, hint: fault.hint }
    }

    fn give_up(&mut self, key: &str, claim: &Claim, limit: Limit<'_>) -> Result<Released, LocalError> {
        let released = self.transaction(key, false, limit, |transaction, _, _| {
            record_end(transaction, claim);
            let ours = transaction.release(&claim.token)?;
            Ok(if ours { Released::Done } else { Released::NotYours(transaction.state()) })
        })?;
        self.waiting = None;
        self.let_go();
        Ok(released.unwrap_or_else(|| Released::NotYours(LockState::free(None))))
    }

    /// Unbinds the claim, or the former claim, from all processes.
    fn let_go(&mut self) {
        self.held.take().into_iter().for_each(HolderFile::let_go);
    }

    /// Returns the names of the locks whose records are of a kind, sorted. A record without a claim is the rest of a lock.
    fn listed(
        &mut self,
        limit: Limit<'_>,
        is_of_it: impl Fn(&OpenDirectory, &Record) -> Result<bool, LocalError>,
    ) -> Result<Vec<LockName>, Error> {
        let prefix = self.prefix.as_str().to_owned();
        let listed = self.prepare().and_then(|()| {
            let Local { opened: Some(Opened { directory, .. }), file_lock, timeout, .. } = self else {
                return Ok(Vec::new());
            };
            let mut names = Vec::new();
            for path in directory.files()?.into_iter().filter(|path| directory.is_record(path)) {
                let limit = limit.no_later_than(Moment::now() + *timeout);
                if let Some((_locked, record)) = listed_record(directory, &path, file_lock, limit)?
                    && is_of_it(directory, &record)?
                {
                    names.extend(record.key.strip_prefix(&prefix).and_then(|name| name.parse::<LockName>().ok()));
                }
            }
            names.sort();
            Ok(names)
        });
        listed.map_err(|fault| self.error("list the locks", None, fault))
    }

    fn extend(&mut self, claim: &Claim, ttl: Ttl, unbound: bool, limit: Limit<'_>) -> Result<Renewed, Error> {
        let asked = Moment::now();
        let key = self.prefix.key(&claim.name);
        let renewed = self.transaction(&key, false, limit, |transaction, _, _| {
            let left = transaction.left_of(&claim.token).filter(|left| *left > ttl.get());
            if let Some(left) = left.filter(|_| !claim.may_shorten()) {
                return Ok(Renewed::Longer(left));
            }
            if unbound {
                record_end(transaction, claim);
            }
            let ours = transaction.renew(&claim.token, ttl.get(), unbound)?;
            if !ours {
                return Ok(Renewed::NotYours(transaction.state()));
            }
            // That nobody can find out who asks is no reason to give up.
            let hears = !unbound && claim.owner_pid.is_some() && claim.may_be_asked();
            let asked_by = claim.token.id().filter(|_| hears).and_then(|id| {
                let asker =
                    transaction.take_asker(&id).inspect_err(|fault| log::trace(format_args!("{}", fault.cause)));
                asker.ok().flatten().map(Box::new)
            });
            Ok(Renewed::Kept(Kept { asked_by, ..Kept::until(ttl.believed_until(asked)) }))
        });
        let renewed = renewed.map_err(|fault| self.error("renew", Some(&claim.name), fault))?;
        if unbound {
            self.let_go();
        }
        Ok(renewed.unwrap_or_else(|| Renewed::NotYours(LockState::free(None))))
    }
}

/// Records the end of a claim's run, if it is to be recorded. A failure is no reason to keep the lock.
fn record_end(transaction: &Transaction<'_>, claim: &Claim) {
    let Some(recording) = &claim.recording else { return };
    let is_held = transaction.held_with(&claim.token);
    if let Err(fault) = transaction.record_end(&claim.token, recording, is_held)
        && recording.end.is_some()
    {
        log::warn(format_args!("the end of the run under \"{}\" is not recorded: {}", claim.name, fault.cause));
    }
}

/// Opens and locks the record file of a lock: the file that has the name now, not one that was removed meanwhile.
fn locked(
    opened: &Opened,
    open: &mut Option<(String, Arc<File>)>,
    file_lock: &mut FileLock,
    key: &str,
    make: bool,
    limit: Limit<'_>,
) -> Result<Option<Arc<File>>, LocalError> {
    let path = opened.directory.file(key, Part::Record);
    loop {
        let file = match open.take().filter(|(whose, _)| whose == key) {
            Some((_, file)) => file,
            None => match opened.directory.open_file(&path)? {
                Some(file) => Arc::new(file),
                None if make => {
                    sweep::sweep(&opened.directory, &opened.machine);
                    opened
                        .directory
                        .create_file(&path, &transaction::written(&Record::new(key, opened.machine.boot.id()))?)?;
                    continue;
                }
                None => return Ok(None),
            },
        };
        if !file_lock.try_lock(&file).map_err(|error| LocalError::of(&path, &error))? {
            let before = opened.directory.written(key);
            lock(&file, &path, file_lock, limit).map_err(|fault| match opened.directory.written(key) == before {
                true => fault,
                // The files changed meanwhile: no process hangs, but many compete.
                false => LocalError::new(
                    ErrorKind::Unavailable,
                    format!("too many processes use {}: no turn came in time", text::path(&path)),
                    "wait, or use a longer --server-timeout",
                ),
            })?;
        }
        if opened.directory.is_at(&file, &path) {
            *open = Some((key.to_owned(), Arc::clone(&file)));
            return Ok(Some(file));
        }
        if limit.until.passed() {
            let cause = format!("{} is removed again and again", text::path(&path));
            return Err(LocalError::new(ErrorKind::Unreachable, cause, "see who does"));
        }
    }
}

fn lock(file: &Arc<File>, path: &Path, file_lock: &mut FileLock, limit: Limit<'_>) -> Result<(), LocalError> {
    match file_lock.lock(file, limit).map_err(|error| LocalError::of(path, &error))? {
        Woken::Ready => Ok(()),
        Woken::Cancelled => Err(LocalError::new(ErrorKind::Unreachable, "interrupted", "")),
        Woken::TimeUp => {
            let cause = format!("another process keeps {} locked", text::path(path));
            Err(LocalError::new(ErrorKind::Unreachable, cause, "see which one hangs (fuser, lslocks)"))
        }
    }
}

/// Returns the record in a file, which stays locked; none in another program's file, which is no lock.
fn listed_record(
    directory: &OpenDirectory,
    path: &Path,
    file_lock: &mut FileLock,
    limit: Limit<'_>,
) -> Result<Option<(Locked, Record)>, LocalError> {
    let Some(file) = directory.open_file(path)?.map(Arc::new) else { return Ok(None) };
    lock(&file, path, file_lock, limit)?;
    let file = Locked(file);
    match transaction::record(&file.0, path)? {
        Ok(record) => Ok(Some((file, record))),
        Err(Flaw::Foreign) => Ok(None),
        Err(flaw) => Err(LocalError::flawed(path, flaw)),
    }
}

impl Local {
    fn acquire(&mut self, claim: &mut Claim, ttl: Ttl, mode: AcquireMode, limit: Limit<'_>) -> Result<Acquired, Error> {
        // Read before the request: the lease in the record starts later.
        let asked = Moment::now();
        let key = self.prefix.key(&claim.name);
        let acquired = self.transaction(&key, true, limit, |transaction, machine, (waiting, held)| {
            let life = match claim.owner_pid {
                None => Life::Lease,
                Some(pid) if pid == std::process::id() => Life::Holder,
                // A watched process that nxlock cannot see: only its keeper learns when it ends.
                Some(pid) => machine.pid_view().process(pid).map_or(Life::Lease, Life::HolderAnd),
            };
            if let Some(recording) = &claim.recording
                && let Some(run) = transaction.already_done(&claim.token, recording)?
            {
                let place = transaction.place_of(&claim.token);
                transaction.settle()?;
                return Ok(Acquired::Done(Box::new(run), transaction.state(), place));
            }
            let (token, at_least) = (&claim.token, claim.at_least);
            let mut ask = Request { token, ttl: ttl.get(), at_least, mode, life, held, waiting };
            Ok(match transaction.acquire(&mut ask)? {
                Response::Granted(Granted { fence, slot }) => {
                    if let Some(recording) = &claim.recording
                        && let Err(fault) = transaction.note_run(&claim.token, recording, fence)
                    {
                        // The disk may be full. No command begins, so nobody should wait for it.
                        transaction.release(&claim.token)?;
                        return Err(fault);
                    }
                    let (granted, until) = (Moment::now(), ttl.believed_until(asked));
                    Acquired::Granted(Lease { fence: Some(fence), asked, granted, until, taken_over: None, slot })
                }
                Response::Held => {
                    let (state, place) = (transaction.state(), transaction.place_of(&claim.token));
                    match claim.enclosing.iter().any(|token| transaction.held_with(token)) {
                        true => Acquired::Nested(state, place),
                        false => Acquired::Held(state, place),
                    }
                }
                Response::Superseded(by) => {
                    let by =
                        by.told().ok_or_else(|| LocalError::new(ErrorKind::Internal, "superseded by no token", ""))?;
                    Acquired::Superseded(Box::new(by), transaction.state(), transaction.place_of(&claim.token))
                }
            })
        });
        let nothing = || LocalError::new(ErrorKind::Internal, "no record could be made", "");
        let acquired = acquired.and_then(|acquired| acquired.ok_or_else(nothing));
        let acquired = acquired.map_err(|fault| self.error("acquire", Some(&claim.name), fault))?;
        match &acquired {
            // After the record is unlocked: the waiter behind wakes.
            Acquired::Granted(_) => {
                self.former = self.waiting.take();
                self.former.iter().for_each(WaiterFile::leave);
            }
            Acquired::Held(state, _) => self.look_at = Moment::now() + poll_pause(state),
            // The first two are of several servers only.
            Acquired::Undecided(..)
            | Acquired::TooLate
            | Acquired::Nested(..)
            | Acquired::Superseded(..)
            | Acquired::Done(..) => {}
        }
        Ok(acquired)
    }

    fn renew(&mut self, claim: &Claim, ttl: Ttl, limit: Limit<'_>) -> Result<Renewed, Error> {
        self.extend(claim, ttl, false, limit)
    }

    fn let_end(&mut self, claim: &Claim, rest: Ttl, limit: Limit<'_>) -> Result<Renewed, Error> {
        self.extend(claim, rest, true, limit)
    }

    fn release(&mut self, claim: &Claim, limit: Limit<'_>) -> Result<Released, Error> {
        let key = self.prefix.key(&claim.name);
        self.give_up(&key, claim, limit).map_err(|fault| self.error("release", Some(&claim.name), fault))
    }

    fn break_lock(&mut self, name: &LockName, id: &HolderId, limit: Limit<'_>) -> Result<Released, Error> {
        let key = self.prefix.key(name);
        let taken = self.transaction(&key, false, limit, |transaction, _, _| {
            let state = transaction.inspect()?.state;
            let Some(token) = transaction.token_of(id) else { return Ok(Released::NotYours(state)) };
            transaction.release(&token).map(|_| Released::Done)
        });
        let taken = taken.map_err(|fault| self.error("break", Some(name), fault))?;
        Ok(taken.unwrap_or_else(|| Released::NotYours(LockState::free(None))))
    }

    fn ask(&mut self, name: &LockName, asker: &Asker, asking: Asking, limit: Limit<'_>) -> Result<(), Error> {
        let key = self.prefix.key(name);
        // Without files, there is no holder either.
        let asked = self.transaction(&key, false, limit, |transaction, _, _| match asking {
            Asking::ToGiveUp => transaction.put_asker(asker),
            Asking::NoMore => transaction.remove_asker(&asker.by),
        });
        asked.map(drop).map_err(|fault| self.error("ask for", Some(name), fault))
    }

    fn look_at(&mut self, name: &LockName, _: Look<'_>, limit: Limit<'_>) -> Result<LockStatus, Error> {
        let key = self.prefix.key(name);
        let status = self.transaction(&key, false, limit, |transaction, _, _| transaction.inspect());
        let status = status.map_err(|fault| self.error("inspect", Some(name), fault))?;
        Ok(status.unwrap_or_else(|| LockStatus { state: LockState::free(None), queue: Vec::new() }))
    }

    fn history(&mut self, name: &LockName, limit: Limit<'_>) -> Result<Vec<Run>, Error> {
        let key = self.prefix.key(name);
        let history = self.transaction(&key, false, limit, |transaction, _, _| {
            transaction.settle()?;
            transaction.history()
        });
        let history = history.map_err(|fault| self.error("read the history of", Some(name), fault))?;
        Ok(history.unwrap_or_default())
    }

    fn doubts(&mut self, _: Limit<'_>) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }
}

impl Store for Local {
    fn step(&mut self, op: Op<'_>, limit: Limit<'_>) -> Result<Reply, Error> {
        Ok(match op {
            Op::Acquire(claim, ttl, mode) => Reply::Acquired(self.acquire(claim, ttl, mode, limit)?),
            Op::Renew(claim, ttl) => Reply::Renewed(self.renew(claim, ttl, limit)?),
            Op::LetEnd(claim, rest) => Reply::Renewed(self.let_end(claim, rest, limit)?),
            Op::Release(claim) => Reply::Released(self.release(claim, limit)?),
            Op::Break(name, id) => Reply::Released(self.break_lock(name, id, limit)?),
            Op::Ask(name, asker, asking) => Reply::Asked(self.ask(name, asker, asking, limit)?),
            Op::Look(name, what) => Reply::Seen(self.look_at(name, what, limit)?),
            Op::History(name) => Reply::History(self.history(name, limit)?),
            Op::Doubts => Reply::Doubts(self.doubts(limit)?),
        })
    }

    fn pause(&mut self, limit: Limit<'_>) -> Woken {
        match &self.waiting {
            Some(waiting) => waiting.wait(limit),
            None => limit.rest(self.look_at, &[]),
        }
    }

    fn page(&mut self, listed: Listed, cursor: &mut ScanCursor, limit: Limit<'_>) -> Result<Option<Page>, Error> {
        if !cursor.has_begun {
            cursor.names = match listed {
                Listed::Locks | Listed::Names => self.listed(limit, |_, record| Ok(record.state != State::Free)),
                // A damaged one is reported by its name.
                Listed::Histories => self.listed(limit, |directory, record| {
                    Ok(recording::recorded(directory, &record.key).map_or(true, |runs| runs.all().next().is_some()))
                }),
            }?;
            cursor.has_begun = true;
        }
        if listed != Listed::Locks {
            let names = std::mem::take(&mut cursor.names);
            return Ok(
                Some(names.into_iter().map(|name| (name, None)).collect()).filter(|page: &Page| !page.is_empty())
            );
        }
        let Some(name) = cursor.names.last().cloned() else { return Ok(None) };
        let status = self.look_at(&name, Look::All, limit)?;
        cursor.names.pop();
        Ok(Some(vec![(name, Some(status))]))
    }

    fn probe(&mut self, _: Limit<'_>) -> Result<Probed, Error> {
        let findings = check::probe(self).map_err(|fault| self.error("keep locks", None, fault))?;
        Ok(Probed::of(&self.directory, findings))
    }

    fn command_file(&self) -> Result<Option<CommandFile>, Error> {
        let opened = self.held.as_ref().map(|held| held.for_the_command(&OpenDirectory::open(&self.directory)?));
        opened.transpose().map_err(|fault| self.error("keep a lock", None, fault))
    }

    fn watch(&self) -> Watch<'_> {
        Watch { claim_fd: self.held.as_ref().map(HolderFile::fd), hears: true, ..Watch::default() }
    }

    fn can(&self, feature: Feature) -> bool {
        !matches!(feature, Feature::Replicas | Feature::Setnx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::lock::{Fence, Owner, Token};

    #[test]
    fn after_the_last_fence_the_clock_gives_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let at = Directory::At(directory.path().into());
        let name: LockName = "deploy".parse().unwrap();
        let prefix: Prefix = "lock:".parse().unwrap();
        let key = prefix.key(&name);
        let directory = OpenDirectory::open(&at).unwrap_or_else(|fault| panic!("{}", fault.cause));
        let record = Record { fence: u64::MAX, ..Record::new(&key, Boot::this().unwrap().id()) };
        std::fs::write(directory.file(&key, Part::Record), record.written().unwrap()).unwrap();
        let owner = Owner { user: "u".into(), host: "h".into(), pid: 1 };
        let mut claim = Claim::of(name, Token::mint(&owner, None, SystemTime::UNIX_EPOCH).unwrap());
        let mut local = Local::new(at, prefix, Duration::from_secs(60));
        let limit = Limit::until(Moment::now() + Duration::from_secs(60));
        let acquired =
            local.acquire(&mut claim, Ttl::at_least(Duration::from_secs(60)), AcquireMode::Once, limit).unwrap();
        assert!(matches!(acquired, Acquired::Granted(Lease { fence: Some(fence), .. }) if fence < Fence::MAX));
    }
}
