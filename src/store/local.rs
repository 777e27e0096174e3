//! Locks of one machine, without a server: a directory has a file for each lock. It is loaded, changed by the rules of a
//! lock ([`crate::lock::machine`]) and saved under its flock(2). The contract is the same as a server's, except that the
//! kernel reports a killed holder at once.

mod background;
mod check;
mod claim_file;
mod directory;
mod fault;
mod files;
mod filesystem;
mod flock;
mod format;
mod inspect;
mod listening;
mod ofd_lock;
mod pid_view;
mod state;
mod sweep;
mod transaction;
mod world;

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

pub use directory::Directory;

/// Parsers of file contents, for the fuzz targets.
#[cfg(fuzzing)]
pub mod parsers {
    pub use super::files::sealed;
    pub use super::filesystem::network_fuse;
    pub use super::pid_view::Process;
    pub use super::state::State;
}

use super::{
    AcquireMode, Acquired, Asking, Feature, Listed, LockStatus, News, Op, Page, Probed, Released, Renewed, Reply,
    ScanCursor, Store, StoreOptions, Watch, poll_pause,
};
use crate::clock::{Boot, Moment, wall};
use crate::descriptors::CommandFile;
use crate::error::{Error, ErrorKind};
use crate::lock::{Asker, Claim, LockName, LockState, Recorded, Token, Ttl};
use crate::wait::{Limit, Woken};
use crate::{log, text};
use claim_file::HolderFile;
use directory::{OpenDirectory, Part};
use fault::{Flaw, LocalError};
use flock::{FileLock, Locked};
use listening::Watcher;
use state::State;
use transaction::{Attempt, Own, Transaction};
use world::{Host, micros_of_wall};

pub struct Local {
    directory: Directory,
    options: StoreOptions,
    opened: Option<Opened>,
    /// The record file used last, with its key.
    open: Option<(String, Arc<File>)>,
    file_lock: FileLock,
    own: Own,
    /// What this process watched before the grant, kept open because closing it is slow (`Watcher::leave`).
    former: Option<Watcher>,
    /// When to retry without a place in the queue.
    look_at: Moment,
    /// The calls of records, for a holder, by the keys of the locks; none of one that cannot be listened to.
    calls: HashMap<String, Option<listening::Watch>>,
}

/// What every transaction needs.
struct Opened {
    directory: OpenDirectory,
    host: Host,
}

impl Local {
    pub fn new(directory: Directory, options: StoreOptions) -> Local {
        let look_at = Moment::now();
        Local {
            directory,
            options,
            opened: None,
            open: None,
            file_lock: FileLock::default(),
            own: Own::default(),
            former: None,
            look_at,
            calls: HashMap::new(),
        }
    }

    fn prepare(&mut self) -> Result<(), LocalError> {
        // Each time: the directory may have been removed, and may belong to another user since.
        let directory = OpenDirectory::open(&self.directory)?;
        if let Some(opened) = &mut self.opened {
            opened.directory = directory;
        } else {
            let host = Host::new(Boot::this().map_err(|error| LocalError::no_boot(&error))?);
            self.opened = Some(Opened { directory, host });
        }
        Ok(())
    }

    /// Runs `act` on a lock while its file is locked. Returns `None` if the lock has no file and `make` is false.
    fn transaction<T>(
        &mut self,
        (key, make): (&str, bool),
        caller: Option<&Token>,
        limit: Limit<'_>,
        act: impl FnOnce(&mut Transaction<'_>, &mut Own) -> Result<T, LocalError>,
    ) -> Result<Option<T>, LocalError> {
        self.prepare()?;
        let Local { opened: Some(opened), open, file_lock, own, options, .. } = self else {
            return Err(LocalError::new(ErrorKind::Internal, "not prepared", ""));
        };
        let limit = limit.no_later_than(Moment::now() + options.timeout);
        let Some(file) = locked(opened, open, file_lock, key, make, limit)?.map(Locked) else { return Ok(None) };
        let mut transaction = Transaction::begin(&opened.host, &opened.directory, key, &file, caller)?;
        act(&mut transaction, own).map(Some)
    }

    fn error(&self, verb: &str, name: Option<&LockName>, fault: LocalError) -> Error {
        let what = name.map(|name| format!(" \"{name}\"")).unwrap_or_default();
        let action = format!("cannot {verb}{what} at {}", self.directory);
        Error { kind: fault.kind, action, cause: fault.cause, hint: fault.hint }
    }

    fn give_up(&mut self, key: &str, claim: &Claim, limit: Limit<'_>) -> Result<Released, LocalError> {
        let released =
            self.transaction((key, false), Some(&claim.token), limit, |transaction, _| transaction.release(claim))?;
        self.own.waiting = None;
        self.let_go(key);
        Ok(released.unwrap_or_else(|| Released::NotYours(LockState::free(None))))
    }

    /// Unbinds the claim to a lock, or the former claim, from all processes.
    fn let_go(&mut self, key: &str) {
        self.own.held.remove(key).into_iter().for_each(HolderFile::let_go);
    }

    /// Returns the names of the locks that are listed, sorted.
    fn listed(&mut self, listed: Listed, limit: Limit<'_>) -> Result<Vec<LockName>, Error> {
        let prefix = self.options.prefix.as_str().to_owned();
        let now = micros_of_wall();
        let names = self.prepare().and_then(|()| {
            let Local { opened: Some(Opened { directory, host }), file_lock, options, .. } = self else {
                return Ok(Vec::new());
            };
            let has_runs = |state: &State| state.has_runs() && state.runs_until > now;
            let is_held = |state: &State| !state.lock.holders.is_empty();
            let mut names = Vec::new();
            for path in directory.files()?.into_iter().filter(|path| directory.is_record(path)) {
                let limit = limit.no_later_than(Moment::now() + options.timeout);
                let key = match (listed_state(directory, host, &path, file_lock, limit)?, listed) {
                    (Ok(state), Listed::Histories) => state.filter(has_runs),
                    (Ok(state), Listed::Locks | Listed::Names) => {
                        state.filter(|state| is_held(state) || has_runs(state))
                    }
                    (Ok(state), Listed::Held) => state.filter(is_held),
                    // Another program's file is no lock.
                    (Err(Flaw::Foreign), _) => None,
                    // Whoever reads its history is told.
                    (Err(_), Listed::Histories) => {
                        names.extend(directory.key_of(&path).and_then(|key| name_of(&key, &prefix)));
                        None
                    }
                    // It may be a lock that is held.
                    (Err(flaw), Listed::Locks | Listed::Names | Listed::Held) => {
                        return Err(LocalError::flawed(&path, flaw));
                    }
                };
                names.extend(key.and_then(|state| name_of(&state.key, &prefix)));
            }
            names.sort();
            Ok(names)
        });
        names.map_err(|fault| self.error("list the locks", None, fault))
    }

    fn extend(&mut self, claim: &Claim, ttl: Ttl, unbound: bool, limit: Limit<'_>) -> Result<Renewed, Error> {
        let asked = Moment::now();
        let key = self.options.prefix.key(&claim.name);
        let renewed = self.transaction((&key, false), Some(&claim.token), limit, |transaction, _| {
            transaction.extend(claim, ttl, asked, unbound)
        });
        let renewed = renewed.map_err(|fault| self.error("renew", Some(&claim.name), fault))?;
        if unbound {
            self.let_go(&key);
        }
        Ok(renewed.unwrap_or_else(|| Renewed::NotYours(LockState::free(None))))
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
                    sweep::sweep(&opened.directory, &opened.host);
                    let boot = opened.host.boot.id();
                    opened.directory.create_file(&path, &files::created(&State::new(key, boot), boot)?)?;
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

/// Returns the name of the lock with a key, if the prefix is this one.
fn name_of(key: &str, prefix: &str) -> Option<LockName> {
    key.strip_prefix(prefix)?.parse().ok()
}

/// Returns the state in a file; none if it was removed meanwhile, or a power failure has left none.
fn listed_state(
    directory: &OpenDirectory,
    host: &Host,
    path: &Path,
    file_lock: &mut FileLock,
    limit: Limit<'_>,
) -> Result<Result<Option<State>, Flaw>, LocalError> {
    let Some(file) = directory.open_file(path)?.map(Arc::new) else { return Ok(Ok(None)) };
    lock(&file, path, file_lock, limit)?;
    let file = Locked(file);
    let loaded = files::load(&file.0, path, &host.boot, host.now_us() / 1000)?;
    Ok(loaded.map(|(_, state)| state))
}

impl Local {
    fn acquire(&mut self, claim: &mut Claim, ttl: Ttl, mode: AcquireMode, limit: Limit<'_>) -> Result<Acquired, Error> {
        // Read before the request: the lease in the record starts later.
        let attempt = Attempt { ttl, mode, asked: Moment::now() };
        let (key, token) = (self.options.prefix.key(&claim.name), claim.token.clone());
        let acquired = self.transaction((&key, true), Some(&token), limit, |transaction, own| {
            transaction.acquire(claim, &attempt, own)
        });
        let nothing = || LocalError::new(ErrorKind::Internal, "no record could be made", "");
        let acquired = acquired.and_then(|acquired| acquired.ok_or_else(nothing));
        let acquired = acquired.map_err(|fault| self.error("acquire", Some(&claim.name), fault))?;
        match &acquired {
            // After the record is unlocked: the waiter behind wakes.
            Acquired::Granted(_) => {
                self.former = self.own.waiting.take();
                self.former.iter().for_each(Watcher::leave);
                if self.options.durability.on_disk {
                    self.make_durable(claim, limit)?;
                }
            }
            Acquired::Held(state, _) => self.look_at = Moment::now() + poll_pause(state),
            // The first two are of several servers only.
            Acquired::Undecided(..)
            | Acquired::TooLate
            | Acquired::Nested(..)
            | Acquired::Superseded(..)
            | Acquired::Done(..)
            | Acquired::Lost(_)
            | Acquired::Asked(..) => {}
        }
        Ok(acquired)
    }

    /// Waits until a lock that was just granted is on disk, and releases it if it cannot be. Its file is not locked
    /// meanwhile.
    fn make_durable(&mut self, claim: &Claim, limit: Limit<'_>) -> Result<(), Error> {
        let file = self.open.as_ref().map(|(_, file)| file.sync_data());
        let directory = self.opened.as_ref().map(|opened| opened.directory.sync());
        let Some(error) = file.into_iter().chain(directory).find_map(Result::err) else { return Ok(()) };
        let cause = format!("it cannot be written to the disk ({}), so it was released", text::plain(&error));
        let fault = LocalError::new(ErrorKind::Untrusted, cause, "see what the kernel says of the disk (dmesg)");
        // If that fails, the caller that gives up the wait tries once more.
        let _ = self.release(claim, limit);
        Err(self.error("acquire", Some(&claim.name), fault))
    }

    fn renew(&mut self, claim: &Claim, ttl: Ttl, limit: Limit<'_>) -> Result<Renewed, Error> {
        self.extend(claim, ttl, false, limit)
    }

    /// Listens for what concerns a holder of the lock whose record was used last. Returns whether it does so from now on.
    fn listen(&mut self) -> bool {
        let Some((key, record)) = self.open.as_ref().filter(|(key, _)| !self.calls.contains_key(key)) else {
            return false;
        };
        let watch = listening::Watch::of_holder(record, self.former.as_mut());
        let hears = watch.is_some();
        self.calls.insert(key.clone(), watch);
        if hears {
            log::trace(format_args!("{} tells us at once of changes of the lock, and of requests", self.directory));
        }
        hears
    }

    fn let_end(&mut self, claim: &Claim, rest: Ttl, limit: Limit<'_>) -> Result<Renewed, Error> {
        self.extend(claim, rest, true, limit)
    }

    fn release(&mut self, claim: &Claim, limit: Limit<'_>) -> Result<Released, Error> {
        let key = self.options.prefix.key(&claim.name);
        self.give_up(&key, claim, limit).map_err(|fault| self.error("release", Some(&claim.name), fault))
    }

    fn break_lock(&mut self, name: &LockName, breaker: &Asker, limit: Limit<'_>) -> Result<Released, Error> {
        let key = self.options.prefix.key(name);
        let taken =
            self.transaction((&key, false), None, limit, |transaction, _| transaction.break_lock(name, breaker));
        let taken = taken.map_err(|fault| self.error("break", Some(name), fault))?;
        Ok(taken.unwrap_or_else(|| Released::NotYours(LockState::free(None))))
    }

    fn ask(&mut self, name: &LockName, asker: &Asker, asking: Asking, limit: Limit<'_>) -> Result<(), Error> {
        let key = self.options.prefix.key(name);
        // Without a file, there is no holder either.
        let asked = self.transaction((&key, false), None, limit, |transaction, _| transaction.ask(asker, asking));
        asked.map(drop).map_err(|fault| self.error("ask for", Some(name), fault))
    }

    fn look_at(&mut self, name: &LockName, limit: Limit<'_>) -> Result<LockStatus, Error> {
        let key = self.options.prefix.key(name);
        let status = self.transaction((&key, false), None, limit, |transaction, _| transaction.status());
        let status = status.map_err(|fault| self.error("inspect", Some(name), fault))?;
        let nothing = || LockStatus {
            state: LockState::free(None),
            queue: Vec::new(),
            knows_waiters: true,
            recorded: Some(Recorded::none(wall())),
        };
        Ok(status.unwrap_or_else(nothing))
    }

    fn history(&mut self, name: &LockName, limit: Limit<'_>) -> Result<Recorded, Error> {
        let key = self.options.prefix.key(name);
        let history = self.transaction((&key, false), None, limit, |transaction, _| Ok(transaction.recorded()));
        let history = history.map_err(|fault| self.error("read the history of", Some(name), fault))?;
        Ok(history.unwrap_or_else(|| Recorded::none(wall())))
    }

    fn doubts(&mut self, _: Limit<'_>) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }
}

impl Store for Local {
    fn step(&mut self, op: Op<'_>, limit: Limit<'_>) -> Result<Reply, Error> {
        Ok(match op {
            Op::Acquire(claim, ttl, mode) => Reply::Acquired(self.acquire(claim, ttl, mode, limit)?),
            Op::Renew(claim, ttl, _) => Reply::Renewed(self.renew(claim, ttl, limit)?),
            Op::LetEnd(claim, rest) => Reply::Renewed(self.let_end(claim, rest, limit)?),
            Op::Release(claim) => Reply::Released(self.release(claim, limit)?),
            Op::Leave(..) => Reply::Left(()),
            Op::Listen(_) => Reply::Listening(self.listen()),
            Op::Break(name, breaker) => Reply::Released(self.break_lock(name, breaker, limit)?),
            Op::Ask(name, asker, asking) => Reply::Asked(self.ask(name, asker, asking, limit)?),
            Op::Look(name, _) => Reply::Seen(Box::new(self.look_at(name, limit)?)),
            Op::History(name) => Reply::History(self.history(name, limit)?),
            Op::Doubts => Reply::Doubts(self.doubts(limit)?),
        })
    }

    fn pause(&mut self, limit: Limit<'_>) -> Woken {
        match &self.own.waiting {
            Some(waiting) => waiting.wait(limit),
            None => limit.rest(self.look_at, &[]),
        }
    }

    fn page(&mut self, listed: Listed, cursor: &mut ScanCursor, limit: Limit<'_>) -> Result<Option<Page>, Error> {
        if !cursor.has_begun {
            cursor.names = self.listed(listed, limit)?;
            cursor.has_begun = true;
        }
        if listed != Listed::Locks {
            let names = std::mem::take(&mut cursor.names);
            return Ok(
                Some(names.into_iter().map(|name| (name, None)).collect()).filter(|page: &Page| !page.is_empty())
            );
        }
        let Some(name) = cursor.names.last().cloned() else { return Ok(None) };
        let status = self.look_at(&name, limit)?;
        cursor.names.pop();
        Ok(Some(vec![(name, Some(status))]))
    }

    fn probe(&mut self, _: Limit<'_>) -> Result<Probed, Error> {
        let findings = check::probe(self).map_err(|fault| self.error("keep locks", None, fault))?;
        Ok(Probed::of(&self.directory, findings))
    }

    fn command_files(&self) -> Result<Vec<CommandFile>, Error> {
        let opened = self.own.held.values().map(|held| held.for_the_command(&OpenDirectory::open(&self.directory)?));
        opened.collect::<Result<_, _>>().map_err(|fault| self.error("keep a lock", None, fault))
    }

    fn news(&mut self) -> News {
        // All of them, or one would wake the holder for good.
        let rung = self.calls.iter().filter(|(_, call)| call.as_ref().is_some_and(listening::Watch::has_rung));
        News { keys: rung.map(|(key, _)| key.clone()).collect(), ..News::default() }
    }

    fn watch(&self) -> Watch<'_> {
        let claim_fds = self.own.held.values().map(HolderFile::fd).collect();
        let news_fds = self.calls.values().flatten().map(listening::Watch::fd).collect();
        let may_listen = self.open.as_ref().is_none_or(|(key, _)| !self.calls.contains_key(key));
        Watch { claim_fds, news_fds, may_listen, hears: true, ..Watch::default() }
    }

    fn can(&self, feature: Feature) -> bool {
        !matches!(feature, Feature::Replicas | Feature::Setnx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::lock::{Fence, Lease, Owner, Prefix, Token};
    use crate::store::Durability;

    #[test]
    fn after_the_last_fence_the_clock_gives_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let at = Directory::At(directory.path().into());
        let name: LockName = "deploy".parse().unwrap();
        let prefix: Prefix = "lock:".parse().unwrap();
        let key = prefix.key(&name);
        let directory = OpenDirectory::open(&at).unwrap_or_else(|fault| panic!("{}", fault.cause));
        let mut state = State::new(&key, None);
        state.lock.fence = u64::MAX;
        let written = files::created(&state, None).unwrap_or_else(|fault| panic!("{}", fault.cause));
        std::fs::write(directory.file(&key, Part::Record), written).unwrap();
        let owner = Owner { user: "u".into(), host: "h".into(), pid: 1, known_as: None };
        let mut claim = Claim::of(name, Token::mint(&owner, None, SystemTime::UNIX_EPOCH).unwrap());
        let options = StoreOptions { prefix, timeout: Duration::from_secs(60), durability: Durability::default() };
        let mut local = Local::new(at, options);
        let limit = Limit::until(Moment::now() + Duration::from_secs(60));
        let acquired =
            local.acquire(&mut claim, Ttl::at_least(Duration::from_secs(60)), AcquireMode::Once, limit).unwrap();
        assert!(matches!(acquired, Acquired::Granted(Lease { fence: Some(fence), .. }) if fence < Fence::MAX));
    }
}
