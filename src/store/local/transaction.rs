//! One transaction on a lock: its files, read under the flock of the record, and the rules by which the lock changes
//! hands.
//!
//! A process may be killed at any instruction, and what it has written by then must be consistent. It therefore writes
//! the record first and updates the queue afterwards: a holder that is still in the queue loses nothing and gains
//! nothing by it.

use std::cell::OnceCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::directory::{OpenDirectory, Part};
use super::fault::{Flaw, LocalError};
use super::flock::Locked;
use super::ofd_lock;
use super::pid_view::{PidView, Presence};
use super::record::{Grant, Life, RECORD, Record, Waiter};
use super::waiter::{Next, WaiterFile};
use super::waiters::Waiters;
use crate::clock::{Boot, Moment, wall};
use crate::error::ErrorKind;
use crate::lock::{Fence, Token};
use crate::store::AcquireMode;
use crate::text;

/// What nxlock knows of this machine: its boot, and the processes that it can see.
pub struct Machine {
    pub boot: Boot,
    pid_view: OnceCell<PidView>,
}

impl Machine {
    pub fn new(boot: Boot) -> Machine {
        Machine { boot, pid_view: OnceCell::new() }
    }

    /// Returns the view of processes, created when it is first needed, which is seldom.
    pub fn pid_view(&self) -> &PidView {
        self.pid_view.get_or_init(|| PidView::new(&self.boot))
    }
}

/// A claim bound to this process and its children: the record file, opened for this alone, with the byte of the fence
/// locked.
pub struct HolderFile {
    file: File,
    fence: u64,
}

impl HolderFile {
    /// Returns the descriptor that holds the lock on the byte.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Unlocks the byte for all processes that have the descriptor open.
    pub fn let_go(self) {
        ofd_lock::give_back(&self.file, self.fence);
    }
}

/// How long a lock stays reserved for the next waiter.
const GRACE: Duration = Duration::from_secs(1);

pub struct Transaction<'a> {
    machine: &'a Machine,
    directory: &'a OpenDirectory,
    path: PathBuf,
    file: Locked,
    pub(super) record: Record,
    pub(super) waiters: Waiters,
    /// Microseconds since boot.
    pub(super) now: u64,
    /// Pidfd of the watched process, if no process has the claim open any more.
    awaited: Option<OwnedFd>,
}

/// A request for the lock.
pub struct Request<'a> {
    pub token: &'a Token,
    pub ttl: Duration,
    pub mode: AcquireMode,
    pub life: Life,
    /// The claim that the requester holds already.
    pub held: &'a mut Option<HolderFile>,
    /// The place of the requester in the queue, if it has one.
    pub waiting: &'a mut Option<WaiterFile>,
}

impl<'a> Transaction<'a> {
    /// Reads the record, which the caller has locked, and the waiters. Dropping the transaction unlocks the record.
    pub fn begin(
        machine: &'a Machine,
        directory: &'a OpenDirectory,
        key: &str,
        file: Arc<File>,
    ) -> Result<Transaction<'a>, LocalError> {
        let path = directory.file(key, Part::Record);
        let locked = Locked(file);
        let record = record(&locked.0, &path)?.map_err(|flaw| LocalError::flawed(&path, flaw))?;
        if record.key != key {
            let cause = format!("{} is the record of another lock", text::path(&path));
            return Err(LocalError::new(ErrorKind::Misconfigured, cause, "use another NAME"));
        }
        let waiters = Waiters::read(directory, directory.file(key, Part::Waiters))?;
        let now = machine.boot.micros(Moment::now());
        Ok(Transaction { machine, directory, path, file: locked, record, waiters, now, awaited: None })
    }

    /// Requests the lock; returns the fence if the token has the lock now.
    pub fn acquire(&mut self, ask: &mut Request<'_>) -> Result<Option<Fence>, LocalError> {
        self.forget_the_dead()?;
        if self.held_with(ask.token) {
            return self.claim(ask).map(Some);
        }
        self.pass_over()?;
        let mut first = self.first()?;
        // A free lock without waiters needs no place in the queue, and a full disk has no room for one.
        if ask.mode == AcquireMode::Queue && (first.is_some() || !self.is_free()?) {
            self.stand_in_line(ask)?;
            first = self.first()?;
        }
        let ours = first.as_ref().is_none_or(|first| first.token == *ask.token);
        self.settle()?;
        match first {
            _ if self.record.grant.is_some() => {}
            Some(first) if !ours && ask.mode != AcquireMode::Plain => self.reserve(&first)?,
            _ => return self.grant(ask).map(Some),
        }
        match ask.waiting {
            Some(waiting) if ask.mode == AcquireMode::Queue => self.listen(waiting).map(|()| None),
            _ => Ok(None),
        }
    }

    /// Moves the expiry to `ttl` from now; returns whether the token holds the lock. If `unbound`, the claim no longer
    /// ends with its process.
    pub fn renew(&mut self, token: &Token, ttl: Duration, unbound: bool) -> Result<bool, LocalError> {
        if !self.held_with(token) {
            self.settle()?;
            return Ok(false);
        }
        let until = self.in_future(ttl);
        if let Some(grant) = &mut self.record.grant {
            grant.until = until;
            if unbound {
                grant.life = Life::Lease;
            }
        }
        self.write().map(|()| true)
    }

    /// Ends a claim or a wait; returns whether the token held the lock. The lock then goes to the first waiter.
    pub fn release(&mut self, token: &Token) -> Result<bool, LocalError> {
        self.pass_over()?;
        self.waiters.remove(token)?;
        let ours = self.held_with(token);
        if ours {
            self.record.grant = None;
        } else {
            self.settle()?;
        }
        match self.first()? {
            Some(first) if self.record.grant.is_none() => self.reserve(&first)?,
            _ if ours => self.write()?,
            _ => {}
        }
        Ok(ours)
    }

    /// Returns the token of the holder.
    pub fn holder(&self) -> Option<&Token> {
        self.record.grant.as_ref().map(|grant| &grant.token)
    }

    fn is_of_another_boot(&self) -> bool {
        self.machine.boot.is_other_than(self.record.boot.as_deref())
    }

    /// Drops the dead waiters of a record whose boot is another one or unknown: their tickets may be those of a clock
    /// that has restarted since.
    fn forget_the_dead(&mut self) -> Result<(), LocalError> {
        if self.record.boot.as_deref() == self.machine.boot.id() && self.record.boot.is_some() {
            return Ok(());
        }
        let waiters: Vec<Waiter> = self.waiters.all().cloned().collect();
        for waiter in waiters {
            if !self.waiters.lives(waiter.ticket)? {
                self.waiters.remove(&waiter.token)?;
            }
        }
        Ok(())
    }

    fn held_with(&self, token: &Token) -> bool {
        let grant = self.record.grant.as_ref().filter(|grant| grant.token == *token && grant.until > self.now);
        grant.is_some() && !self.is_of_another_boot()
    }

    fn is_free(&mut self) -> Result<bool, LocalError> {
        self.settle()?;
        Ok(self.record.grant.is_none())
    }

    /// Clears the claim if its lease has expired, or if the kernel knows that its holder is gone.
    pub(super) fn settle(&mut self) -> Result<(), LocalError> {
        let Some(grant) = &self.record.grant else { return Ok(()) };
        let is_over = match (grant.reserved, grant.life) {
            _ if grant.until <= self.now => true,
            (Some(ticket), _) => !self.waiters.lives(ticket)?,
            // A grant in the future was made by the clock of another boot.
            (None, Life::Lease) => self.is_of_another_boot() || grant.granted > self.now,
            (None, _) if self.is_held_open()? => false,
            (None, Life::Holder) => true,
            (None, Life::HolderAnd(_)) if self.is_of_another_boot() => true,
            (None, Life::HolderAnd(process)) => match self.machine.pid_view().presence(&process) {
                Presence::Runs(end) => {
                    self.awaited = Some(end);
                    false
                }
                Presence::Ended => true,
                Presence::Unseen => grant.granted > self.now,
            },
        };
        if is_over {
            self.record.grant = None;
        }
        Ok(())
    }

    /// Returns whether the process that was granted the claim, or a child of it, has the claim open.
    fn is_held_open(&self) -> Result<bool, LocalError> {
        ofd_lock::is_taken(&self.file.0, self.record.fence).map_err(|error| LocalError::unlockable(&self.path, &error))
    }

    /// Drops a waiter that let its reservation lapse.
    fn pass_over(&mut self) -> Result<(), LocalError> {
        match self.record.grant.take_if(|grant| grant.reserved.is_some() && grant.until <= self.now) {
            Some(late) => self.waiters.remove(&late.token),
            None => Ok(()),
        }
    }

    /// Returns the first live waiter, and drops the dead ones before it.
    fn first(&mut self) -> Result<Option<Waiter>, LocalError> {
        while let Some(first) = self.waiters.first().cloned() {
            if self.may_be_next(&first)? {
                return Ok(Some(first));
            }
            self.waiters.remove(&first.token)?;
        }
        Ok(None)
    }

    /// Returns whether a waiter is alive and not the holder. The holder may still be in the queue: until it claims its
    /// reservation, or if it was killed between two writes.
    pub(super) fn may_be_next(&self, waiter: &Waiter) -> Result<bool, LocalError> {
        Ok(self.holder() != Some(&waiter.token) && self.waiters.lives(waiter.ticket)?)
    }

    fn stand_in_line(&mut self, ask: &mut Request<'_>) -> Result<(), LocalError> {
        let broken = |error| LocalError::of(&self.path, &error);
        let file = self.waiters.file(self.directory)?;
        let stands = ask.waiting.as_ref().map_or(Ok(false), |waiting| waiting.is_in(file)).map_err(broken)?;
        if !stands {
            let ticket = self.waiters.next_ticket(self.now);
            let waiting = WaiterFile::take(self.waiters.opened_anew(self.directory)?, ticket);
            *ask.waiting = Some(waiting.map_err(|error| LocalError::unlockable(&self.path, &error))?);
        }
        // A waiter that let its reservation lapse gets its old place back.
        match ask.waiting {
            Some(waiting) if self.waiters.find(ask.token).is_none() => {
                let waiter = Waiter { ticket: waiting.ticket(), token: ask.token.clone() };
                self.waiters.put(self.directory, waiter)
            }
            _ => Ok(()),
        }
    }

    /// Sets what a waiter watches: the waiter ahead, or at the front the lock.
    fn listen(&mut self, waiting: &mut WaiterFile) -> Result<(), LocalError> {
        let mut ahead = None;
        while let Some(waiter) = self.waiters.ahead_of(waiting.ticket()).cloned() {
            if self.may_be_next(&waiter)? {
                ahead = Some(waiter.ticket);
                break;
            }
            self.waiters.remove(&waiter.token)?;
        }
        let grant = self.record.grant.as_ref();
        let until = self.machine.boot.moment(grant.map_or(self.now, |grant| grant.until));
        let front = match ahead {
            Some(_) => None,
            None => Some(Next {
                record: &self.file.0,
                holder: match grant {
                    Some(Grant { reserved: None, life: Life::Holder | Life::HolderAnd(_), .. }) => {
                        Some((self.opened_anew()?, self.record.fence))
                    }
                    _ => None,
                },
                process: self.awaited.take(),
                until,
            }),
        };
        // Only a waiter that has yet to claim its reservation can be ahead of the first.
        let ahead = ahead.or(grant.and_then(|grant| grant.reserved));
        let position = self.position(waiting.ticket());
        waiting.listen(position, ahead, front).map_err(|error| LocalError::of(&self.path, &error))
    }

    fn grant(&mut self, ask: &mut Request<'_>) -> Result<Fence, LocalError> {
        let until = self.in_future(ask.ttl);
        let fence = self.next_fence();
        self.hold_open(ask, fence)?;
        self.change_hands(
            fence,
            Grant {
                token: ask.token.clone(),
                granted: self.now,
                until,
                since: millis_of_wall(),
                reserved: None,
                life: ask.life,
            },
        )?;
        self.waiters.remove(ask.token)?;
        Ok(Fence(fence))
    }

    /// Binds the claim to this process, before the record says that it is.
    fn hold_open(&self, ask: &mut Request<'_>, fence: u64) -> Result<(), LocalError> {
        let is_held = ask.held.as_ref().is_some_and(|held| held.fence == fence);
        if is_held || ask.life == Life::Lease {
            return Ok(());
        }
        let file = self.opened_anew()?;
        ofd_lock::take(&file, fence).map_err(|error| LocalError::unlockable(&self.path, &error))?;
        *ask.held = Some(HolderFile { file, fence });
        Ok(())
    }

    /// Opens the record file once more: locks through it are independent of the record's flock.
    fn opened_anew(&self) -> Result<File, LocalError> {
        let gone = || LocalError::of(&self.path, &io::Error::from(io::ErrorKind::NotFound));
        self.directory.open_file(&self.path)?.ok_or_else(gone)
    }

    /// Reserves the lock for a waiter until it claims the lock or [`GRACE`] is over: nobody can get ahead of it. The
    /// waiter wakes as soon as this is written, and leaves the queue itself; so nothing is left to do here that would
    /// delay it.
    fn reserve(&mut self, waiter: &Waiter) -> Result<(), LocalError> {
        let until = self.in_future(GRACE);
        self.change_hands(
            self.next_fence(),
            Grant {
                token: waiter.token.clone(),
                granted: self.now,
                until,
                since: millis_of_wall(),
                reserved: Some(waiter.ticket),
                life: Life::Lease,
            },
        )
    }

    /// Claims a lock that this token already holds, or that is reserved for it.
    fn claim(&mut self, ask: &mut Request<'_>) -> Result<Fence, LocalError> {
        self.hold_open(ask, self.record.fence)?;
        let (now, until) = (self.now, self.in_future(ask.ttl));
        if let Some(grant) = &mut self.record.grant {
            if grant.reserved.take().is_some() {
                (grant.granted, grant.since) = (now, millis_of_wall());
            }
            (grant.until, grant.life) = (until, ask.life);
        }
        self.write()?;
        self.waiters.remove(ask.token)?;
        Ok(Fence(self.record.fence))
    }

    /// Returns the next fence. It rises with every change of holder; the wall clock is its lower bound, in case the
    /// record is lost.
    fn next_fence(&self) -> u64 {
        let floor = wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros();
        self.record.fence.saturating_add(1).max(u64::try_from(floor).unwrap_or(0))
    }

    fn change_hands(&mut self, fence: u64, grant: Grant) -> Result<(), LocalError> {
        self.record.fence = fence;
        self.record.boot = self.machine.boot.id().map(str::to_owned);
        self.record.grant = Some(grant);
        self.write()
    }

    fn in_future(&self, after: Duration) -> u64 {
        self.now.saturating_add(u64::try_from(after.as_micros()).unwrap_or(u64::MAX))
    }

    fn write(&self) -> Result<(), LocalError> {
        self.file.0.write_all_at(&written(&self.record)?, 0).map_err(|error| LocalError::of(&self.path, &error))
    }
}

fn millis_of_wall() -> u64 {
    let since = wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Formats a record.
pub fn written(record: &Record) -> Result<Vec<u8>, LocalError> {
    let too_long = || LocalError::new(ErrorKind::Usage, "the prefix is too long for a file", "use a shorter --prefix");
    record.written().ok_or_else(too_long)
}

/// Parses a record that the caller has locked.
pub fn record(file: &File, path: &Path) -> Result<Result<Record, Flaw>, LocalError> {
    // One byte more than a record has identifies a foreign file, without reading all of it.
    let mut bytes = [0; RECORD + 1];
    let length = file.read_at(&mut bytes, 0).map_err(|error| LocalError::of(path, &error))?;
    Ok(Record::read(&bytes[..length]))
}
