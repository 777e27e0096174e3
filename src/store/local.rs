//! Locks of one machine, without a server: a record for each in a directory, read and written under
//! its flock(2). The same contract as a server's; only that the kernel tells at once of a holder that
//! was killed.

mod account;
mod background;
mod entry;
mod examine;
mod fault;
mod filesystem;
mod flock;
mod line;
mod place;
mod process;
mod record;
mod stand;
mod sweep;
mod ticket;
mod visit;

use std::fs::File;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use place::Directory;

/// What stands in files, for the fuzz targets.
#[cfg(fuzzing)]
pub mod files {
    pub use super::entry::sum;
    pub use super::filesystem::network_fuse;
    pub use super::process::Process;
    pub use super::record::{Record, Waiter};
}

use fault::{Fault, Flaw};
use flock::Patience;
use place::{Part, Place};
use record::{Life, Record};
use stand::Stand;
use visit::{Ask, Held, Machine, Visit};

use super::{Acquired, Examination, Kind, Manner, Released, Renewed, Standing, Store, Trouble, poll_pause};
use crate::clock::{Boot, Moment};
use crate::limit::{Limit, Woken};
use crate::lock::{Hold, HolderId, Lease, LockName, Occupancy, Prefix, Ttl};

pub struct Local {
    directory: Directory,
    prefix: Prefix,
    /// Bound on how long another process may have a record locked.
    timeout: Duration,
    grounds: Option<Grounds>,
    /// The record that was last used, by its key.
    open: Option<(String, Arc<File>)>,
    patience: Patience,
    stand: Option<Stand>,
    /// The one that we had before the lock was ours.
    former: Option<Stand>,
    /// The claim that lives with this process.
    held: Option<Held>,
    /// When it is worth asking again, for who does not stand in line.
    look_at: Moment,
}

/// What all visits stand on.
struct Grounds {
    place: Place,
    machine: Machine,
}

impl Local {
    pub fn new(directory: Directory, prefix: Prefix, timeout: Duration) -> Local {
        let look_at = Moment::now();
        Local {
            directory,
            prefix,
            timeout,
            grounds: None,
            open: None,
            patience: Patience::default(),
            stand: None,
            former: None,
            held: None,
            look_at,
        }
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        // Each time: it may have been removed, and be somebody else's since.
        let place = Place::open(&self.directory)?;
        if let Some(grounds) = &mut self.grounds {
            grounds.place = place;
        } else {
            let machine = Machine::new(Boot::this().map_err(|error| Fault::no_boot(&error))?);
            self.grounds = Some(Grounds { place, machine });
        }
        Ok(())
    }

    /// Does something with a lock's files while nobody else can; nothing, if it has none and none are
    /// to be made.
    fn visit<T>(
        &mut self,
        key: &str,
        make: bool,
        limit: Limit<'_>,
        act: impl FnOnce(&mut Visit<'_>, &Machine, (&mut Option<Stand>, &mut Option<Held>)) -> Result<T, Fault>,
    ) -> Result<Option<T>, Fault> {
        self.prepare()?;
        let Local { grounds: Some(grounds), open, patience, stand, held, timeout, .. } = self else {
            return Err(Fault::new(Kind::Broken, "not prepared", ""));
        };
        let limit = limit.no_later_than(Moment::now() + *timeout);
        let Some(file) = locked(grounds, open, patience, key, make, limit)? else { return Ok(None) };
        let mut visit = Visit::begin(&grounds.machine, &grounds.place, key, file)?;
        act(&mut visit, &grounds.machine, (stand, held)).map(Some)
    }

    fn trouble(&self, verb: &str, name: Option<&LockName>, fault: Fault) -> Trouble {
        let what = name.map(|name| format!(" \"{name}\"")).unwrap_or_default();
        let tried = format!("cannot {verb}{what} at {}", self.directory);
        Trouble { kind: fault.kind, tried, came: fault.came, remedy: fault.remedy }
    }

    fn give_up(&mut self, key: &str, hold: &Hold, limit: Limit<'_>) -> Result<Released, Fault> {
        let released = self.visit(key, false, limit, |visit, _, _| {
            let ours = visit.release(&hold.token)?;
            Ok(if ours { Released::Done } else { Released::NotYours(visit.occupancy()) })
        })?;
        self.stand = None;
        self.let_go();
        Ok(released.unwrap_or_else(|| Released::NotYours(Occupancy::free(None))))
    }

    /// The claim, or what it was, lives with no process any more.
    fn let_go(&mut self) {
        self.held.take().into_iter().for_each(Held::let_go);
    }

    fn extend(&mut self, hold: &Hold, ttl: Ttl, unbound: bool, limit: Limit<'_>) -> Result<Renewed, Trouble> {
        let asked = Moment::now();
        let key = self.prefix.key(&hold.name);
        let renewed = self.visit(&key, false, limit, |visit, _, _| {
            let left = visit.occupancy().ttl.filter(|left| *left > ttl.get());
            if let Some(left) = left.filter(|_| !hold.may_shorten() && visit.holder() == Some(&hold.token)) {
                return Ok(Renewed::Longer(left));
            }
            let ours = visit.renew(&hold.token, ttl.get(), unbound)?;
            Ok(if ours { Renewed::Until(ttl.believed_until(asked)) } else { Renewed::NotYours(visit.occupancy()) })
        });
        let renewed = renewed.map_err(|fault| self.trouble("renew", Some(&hold.name), fault))?;
        if unbound {
            self.let_go();
        }
        Ok(renewed.unwrap_or_else(|| Renewed::NotYours(Occupancy::free(None))))
    }
}

/// A lock's record, locked: the one that has its name now, and not one that was removed meanwhile.
fn locked(
    grounds: &Grounds,
    open: &mut Option<(String, Arc<File>)>,
    patience: &mut Patience,
    key: &str,
    make: bool,
    limit: Limit<'_>,
) -> Result<Option<Arc<File>>, Fault> {
    let path = grounds.place.file(key, Part::Record);
    loop {
        let file = match open.take().filter(|(whose, _)| whose == key) {
            Some((_, file)) => file,
            None => match grounds.place.open_file(&path)? {
                Some(file) => Arc::new(file),
                None if make => {
                    sweep::sweep(&grounds.place, &grounds.machine);
                    grounds.place.create_file(&path, &visit::written(&Record::new(key, grounds.machine.boot.id()))?)?;
                    continue;
                }
                None => return Ok(None),
            },
        };
        if !patience.try_lock(&file).map_err(|error| Fault::of(&path, &error))? {
            let before = grounds.place.written(key);
            lock(&file, &path, patience, limit).map_err(|fault| match grounds.place.written(key) == before {
                true => fault,
                // Somebody else got on meanwhile: it hangs nowhere, and there are many.
                false => Fault::new(
                    Kind::Unwilling,
                    format!("{} is in use by so many that our turn has not come", fault::shown(&path)),
                    "wait, or use a longer --server-timeout",
                ),
            })?;
        }
        if grounds.place.is_at(&file, &path) {
            *open = Some((key.to_owned(), Arc::clone(&file)));
            return Ok(Some(file));
        }
        if limit.until.passed() {
            let came = format!("{} is removed again and again", fault::shown(&path));
            return Err(Fault::new(Kind::Unreachable, came, "see who does"));
        }
    }
}

fn lock(file: &Arc<File>, path: &Path, patience: &mut Patience, limit: Limit<'_>) -> Result<(), Fault> {
    match patience.lock(file, limit).map_err(|error| Fault::of(path, &error))? {
        Woken::Ready => Ok(()),
        Woken::Bell => Err(Fault::new(Kind::Unreachable, "interrupted", "")),
        Woken::TimeUp => {
            let came = format!("another process has {} locked and does not let go of it", fault::shown(path));
            Err(Fault::new(Kind::Unreachable, came, "see which one hangs (fuser, lslocks)"))
        }
    }
}

/// The key of a record, if somebody claims it. A record without a claim is what is left of a lock, and
/// keeps its fence; another program's file is no lock.
fn listed_key(place: &Place, path: &Path, patience: &mut Patience, limit: Limit<'_>) -> Result<Option<String>, Fault> {
    let Some(file) = place.open_file(path)?.map(Arc::new) else { return Ok(None) };
    lock(&file, path, patience, limit)?;
    match visit::record(&file, path)? {
        Ok(record) => Ok(record.claim.map(|_| record.key)),
        Err(Flaw::Foreign) => Ok(None),
        Err(flaw) => Err(Fault::flawed(path, flaw)),
    }
}

impl Store for Local {
    fn acquire(&mut self, hold: &mut Hold, ttl: Ttl, manner: Manner, limit: Limit<'_>) -> Result<Acquired, Trouble> {
        // Before it is asked for: the lease is counted from later than that.
        let asked = Moment::now();
        let key = self.prefix.key(&hold.name);
        let acquired = self.visit(&key, true, limit, |visit, machine, (stand, held)| {
            let life = match hold.lives_with {
                None => Life::Lease,
                Some(pid) if pid == std::process::id() => Life::Holder,
                // One that cannot be seen has a keeper all the same, and nobody knows when it ends but that.
                Some(pid) => machine.sight().process(pid).map_or(Life::Lease, Life::HolderAnd),
            };
            let mut ask = Ask { token: &hold.token, ttl: ttl.get(), manner, life, held, stand };
            if let Some(fence) = visit.acquire(&mut ask)? {
                let (granted, until) = (Moment::now(), ttl.believed_until(asked));
                let lease = Lease { fence: Some(fence), asked, granted, until, taken_over: None };
                return Ok(Acquired::Granted(lease));
            }
            Ok(Acquired::Held(visit.occupancy(), visit.place_of(&hold.token)))
        });
        let nothing = || Fault::new(Kind::Broken, "no record could be made", "");
        let acquired = acquired.and_then(|acquired| acquired.ok_or_else(nothing));
        let acquired = acquired.map_err(|fault| self.trouble("acquire", Some(&hold.name), fault))?;
        match &acquired {
            // After the record is unlocked: the one behind wakes.
            Acquired::Granted(_) => {
                self.former = self.stand.take();
                self.former.iter().for_each(Stand::leave);
            }
            Acquired::Held(occupancy, _) => self.look_at = Moment::now() + poll_pause(occupancy),
        }
        Ok(acquired)
    }

    fn pause(&mut self, limit: Limit<'_>) -> Woken {
        match &self.stand {
            Some(stand) => stand.wait(limit),
            None => limit.rest(self.look_at, &[]),
        }
    }

    fn renew(&mut self, hold: &Hold, ttl: Ttl, limit: Limit<'_>) -> Result<Renewed, Trouble> {
        self.extend(hold, ttl, false, limit)
    }

    fn let_end(&mut self, hold: &Hold, rest: Ttl, limit: Limit<'_>) -> Result<Renewed, Trouble> {
        self.extend(hold, rest, true, limit)
    }

    fn release(&mut self, hold: &Hold, limit: Limit<'_>) -> Result<Released, Trouble> {
        let key = self.prefix.key(&hold.name);
        self.give_up(&key, hold, limit).map_err(|fault| self.trouble("release", Some(&hold.name), fault))
    }

    fn take_away(&mut self, name: &LockName, id: &HolderId, limit: Limit<'_>) -> Result<Released, Trouble> {
        let key = self.prefix.key(name);
        let taken = self.visit(&key, false, limit, |visit, _, _| {
            let occupancy = visit.inspect()?.occupancy;
            let seen = occupancy.holder.as_ref().is_some_and(|holder| holder.id == *id);
            let Some(token) = visit.holder().cloned().filter(|_| seen) else {
                return Ok(Released::NotYours(occupancy));
            };
            visit.release(&token).map(|_| Released::Done)
        });
        let taken = taken.map_err(|fault| self.trouble("break", Some(name), fault))?;
        Ok(taken.unwrap_or_else(|| Released::NotYours(Occupancy::free(None))))
    }

    fn inspect(&mut self, name: &LockName, limit: Limit<'_>) -> Result<Standing, Trouble> {
        let key = self.prefix.key(name);
        let standing = self.visit(&key, false, limit, |visit, _, _| visit.inspect());
        let standing = standing.map_err(|fault| self.trouble("inspect", Some(name), fault))?;
        Ok(standing.unwrap_or_else(|| Standing { occupancy: Occupancy::free(None), queue: Vec::new() }))
    }

    fn names(&mut self, limit: Limit<'_>) -> Result<Vec<LockName>, Trouble> {
        let prefix = self.prefix.as_str().to_owned();
        let listed = self.prepare().and_then(|()| {
            let Local { grounds: Some(Grounds { place, .. }), patience, timeout, .. } = self else {
                return Ok(Vec::new());
            };
            let mut names = Vec::new();
            for path in place.files()?.into_iter().filter(|path| place.is_record(path)) {
                let key = listed_key(place, &path, patience, limit.no_later_than(Moment::now() + *timeout))?;
                names.extend(key.and_then(|key| key.strip_prefix(&prefix)?.parse::<LockName>().ok()));
            }
            names.sort();
            Ok(names)
        });
        listed.map_err(|fault| self.trouble("list the locks", None, fault))
    }

    fn examine(&mut self, _: Limit<'_>) -> Result<Examination, Trouble> {
        let findings = examine::examine(self).map_err(|fault| self.trouble("keep locks", None, fault))?;
        Ok(Examination::of(&self.directory, findings))
    }

    fn claim_fd(&self) -> Option<RawFd> {
        self.held.as_ref().map(Held::fd)
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::lock::{Owner, Token};

    #[test]
    fn a_fence_at_its_end_does_not_go_back() {
        let directory = tempfile::tempdir().unwrap();
        let at = Directory::At(directory.path().into());
        let name: LockName = "deploy".parse().unwrap();
        let prefix: Prefix = "lock:".parse().unwrap();
        let key = prefix.key(&name);
        let place = Place::open(&at).unwrap_or_else(|fault| panic!("{}", fault.came));
        let record = Record { fence: u64::MAX, ..Record::new(&key, Boot::this().unwrap().id()) };
        std::fs::write(place.file(&key, Part::Record), record.written().unwrap()).unwrap();
        let owner = Owner { user: "u".into(), host: "h".into(), pid: 1 };
        let mut hold = Hold {
            name,
            token: Token::mint(&owner, None, SystemTime::UNIX_EPOCH).unwrap(),
            lives_with: None,
            beside_setnx: None,
        };
        let mut local = Local::new(at, prefix, Duration::from_secs(60));
        let limit = Limit::until(Moment::now() + Duration::from_secs(60));
        let acquired = local.acquire(&mut hold, Ttl::at_least(Duration::from_secs(60)), Manner::Once, limit).unwrap();
        assert!(matches!(acquired, Acquired::Granted(Lease { fence: Some(fence), .. }) if fence.0 == u64::MAX));
    }
}
