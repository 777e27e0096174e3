//! One transaction on a lock: its files, read under the flock of the record, and the rules by which the lock changes
//! hands.
//!
//! A process may be killed at any instruction, and what it has written by then must be consistent. It therefore writes
//! the record first and updates the queue afterwards: a holder that is still in the queue loses nothing and gains
//! nothing by it. `sharing` has the order of the writes of a shared lock.

use std::cell::OnceCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::commands;
use super::directory::{OpenDirectory, Part};
use super::fault::{Flaw, LocalError};
use super::flock::Locked;
use super::lines::Lines;
use super::ofd_lock;
use super::pid_view::{PidView, Presence};
use super::record::{Grant, Life, RECORD, Record, State, Waiter};
use super::shares::Shares;
use super::waiter::{Next, WaiterFile};
use super::waiters::Waiters;
use crate::clock::{Boot, Moment, wall};
use crate::descriptors::CommandFile;
use crate::error::ErrorKind;
use crate::lock::{Fence, Sharing, Slot, Token};
use crate::store::AcquireMode;
use crate::{log, text};

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

/// A claim bound to this process and its guard: the record file, opened for this alone, with the byte of the fence
/// locked; or the shares file, with the byte of the share's number locked.
pub struct HolderFile {
    pub(super) file: File,
    pub(super) byte: u64,
    /// The file whose byte the processes of the command keep.
    pub(super) commands: PathBuf,
    pub(super) command_byte: u64,
}

impl HolderFile {
    /// Returns the descriptor that holds the lock on the byte.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Opens a file for the command to inherit, by which its processes keep the claim even if nxlock and its guard are
    /// killed at once.
    pub fn for_the_command(&self, directory: &OpenDirectory) -> Result<CommandFile, LocalError> {
        commands::inheritable(directory, &self.commands, self.command_byte)
    }

    /// Unlocks the byte for all processes that have the descriptor open.
    pub fn let_go(self) {
        ofd_lock::give_back(&self.file, self.byte);
    }
}

/// How long a lock, or a share of it, stays reserved for the next waiter.
pub(super) const GRACE: Duration = Duration::from_secs(1);

pub struct Transaction<'a> {
    machine: &'a Machine,
    pub(super) directory: &'a OpenDirectory,
    path: PathBuf,
    file: Locked,
    pub(super) record: Record,
    pub(super) waiters: Waiters,
    /// Those who hold the lock together; `None` if nobody has looked: an exclusive lock does without.
    pub(super) shares: Option<Shares>,
    /// Waiters that let the reservation of a share lapse.
    pub(super) late: Vec<Token>,
    /// Microseconds since boot.
    pub(super) now: u64,
    /// Pidfds of the watched processes of claims that no process has open any more.
    pub(super) awaited: Vec<OwnedFd>,
    /// The claims that only processes of their commands keep.
    pub(super) in_use: Vec<InUse>,
    /// The lease of the record's claim has ended, and processes of its command, or its `not_before`, keep the claim.
    outlasted: bool,
}

/// A request for the lock.
pub struct Request<'a> {
    pub token: &'a Token,
    pub ttl: Duration,
    pub at_least: Option<Duration>,
    pub mode: AcquireMode,
    pub life: Life,
    /// The claim that the requester holds already.
    pub held: &'a mut Option<HolderFile>,
    /// The place of the requester in the queue, if it has one.
    pub waiting: &'a mut Option<WaiterFile>,
}

/// The response to a request.
pub enum Response {
    Granted(Granted),
    /// Not granted: the requester waits, if it asked to.
    Held,
    /// Dismissed by the newer waiter with this token.
    Superseded(Token),
}

/// The grant to a token.
pub struct Granted {
    pub fence: Fence,
    pub slot: Option<Slot>,
}

/// Whether a claim has ended.
pub(super) enum End {
    Come,
    /// With the pidfd of the watched process, if no process has the claim open any more.
    Awaited(Option<OwnedFd>),
    /// Nobody keeps it any more, but it is to last until then.
    Lasts(u64),
    /// Processes of its command keep it: its lease has ended, or its nxlock and guard are gone (`is_orphaned`).
    InUse {
        is_orphaned: bool,
    },
}

/// A claim that only processes of its command keep.
pub(super) struct InUse {
    /// The byte that they keep.
    pub byte: u64,
    /// Neither nxlock nor the guard has the claim open any more.
    pub is_orphaned: bool,
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
        let mut transaction = Transaction {
            machine,
            directory,
            path,
            file: locked,
            record,
            waiters,
            shares: None,
            late: Vec::new(),
            now,
            awaited: Vec::new(),
            in_use: Vec::new(),
            outlasted: false,
        };
        if let Some(grant) = transaction.record.grant().filter(|grant| grant.until <= now) {
            transaction.outlasted = matches!(transaction.end_of(grant)?, End::InUse { .. } | End::Lasts(_));
        }
        if matches!(transaction.record.state, State::Shared(_)) {
            transaction.read_shares()?;
        }
        Ok(transaction)
    }

    /// Requests the lock.
    pub fn acquire(&mut self, ask: &mut Request<'_>) -> Result<Response, LocalError> {
        self.forget_the_dead()?;
        if self.held_with(ask.token) {
            self.no_longer_waits(ask.token)?;
            return self.claim(ask).map(Response::Granted);
        }
        if let Some(by) = self.dismissed_by(ask.token)? {
            return self.knows_of_its_dismissal(ask, by);
        }
        self.pass_over()?;
        let sharing = ask.token.sharing();
        let mut first = self.first()?;
        // A free lock without waiters needs no place in the queue, and a full disk has no room for one.
        if ask.mode == AcquireMode::Queue && (first.is_some() || !self.fits(sharing)?) {
            if let Some(newer) = self.stand_in_line(ask)? {
                return self.knows_of_its_dismissal(ask, newer);
            }
            first = self.first()?;
        }
        let others = first.filter(|first| first.token != *ask.token && ask.mode != AcquireMode::Plain);
        match others {
            Some(first) => self.call(&first)?,
            None if self.fits(sharing)? => return self.grant_newest(ask),
            None => {}
        }
        match ask.waiting {
            Some(waiting) if ask.mode == AcquireMode::Queue => self.listen(waiting, ask.token).map(|()| Response::Held),
            _ => Ok(Response::Held),
        }
    }

    /// Grants the lock, unless a newer waiter dismisses the requester.
    fn grant_newest(&mut self, ask: &mut Request<'_>) -> Result<Response, LocalError> {
        let ticket = ask.waiting.as_ref().map(WaiterFile::ticket);
        if let Some(newer) = self.supersede(ask.token, ticket)? {
            return self.knows_of_its_dismissal(ask, newer);
        }
        let granted = self.grant(ask)?;
        self.no_longer_waits(ask.token)?;
        Ok(Response::Granted(granted))
    }

    /// Moves the expiry to `ttl` from now; returns whether the token holds the lock. If `unbound`, the claim no longer
    /// ends with its process.
    pub fn renew(&mut self, token: &Token, ttl: Duration, unbound: bool) -> Result<bool, LocalError> {
        if !self.held_with(token) {
            self.settle()?;
            return Ok(false);
        }
        let until = self.in_future(ttl);
        let renewed = |grant: &mut Grant| {
            grant.until = until;
            if unbound {
                grant.life = Life::Lease;
            }
        };
        if let State::Held(grant) = &mut self.record.state {
            renewed(grant);
            return self.write().map(|()| true);
        }
        self.change_share(token, renewed).map(|()| true)
    }

    /// Ends a claim or a wait; returns whether the token held the lock. The lock then goes to the first waiter.
    pub fn release(&mut self, token: &Token) -> Result<bool, LocalError> {
        self.pass_over()?;
        self.waiters.remove(token)?;
        // A damaged file must not keep a lock from being released: it is reported to those who wait.
        let _ = self.no_longer_waits(token);
        let ours = self.held_with(token);
        let is_share = self.share_of(token).is_some();
        // One that was lost is over, and nobody else may come to blank it.
        if token.is_share() && self.shares.is_none() {
            let _ = self.read_shares();
        }
        self.blank_ended_shares()?;
        if is_share {
            self.remove_share(token)?;
            // The share is gone, whatever fails now: a shared record without shares is that of a free lock, and the write
            // to the shares has woken the first waiter, which asks again.
            if let Err(fault) = self.serve(true) {
                log::trace(format_args!("no waiter is called: {}", fault.cause));
            }
            return Ok(ours);
        }
        if ours {
            self.record.state = State::Free;
        } else {
            self.settle()?;
        }
        self.serve(ours)?;
        Ok(ours)
    }

    /// Reserves what was released for the first waiter, or writes that the lock is free. One write decides both.
    fn serve(&mut self, is_released: bool) -> Result<(), LocalError> {
        match self.first()? {
            Some(first) if self.fits(first.token.sharing())? => self.call(&first),
            _ if is_released && self.record.state == State::Free => self.write(),
            _ => Ok(()),
        }
    }

    /// Returns whether this token has the lock, or a share of it, or a reservation.
    pub fn is_holder(&self, token: &Token) -> bool {
        self.record.grant().is_some_and(|grant| grant.token == *token) || self.share_of(token).is_some()
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

    pub(super) fn held_with(&self, token: &Token) -> bool {
        let runs = |grant: &Grant| self.outlasted || (grant.until > self.now && !self.is_of_another_boot());
        let grant = self.record.grant().filter(|grant| grant.token == *token && runs(grant));
        grant.is_some() || self.share_of(token).is_some()
    }

    /// Returns whether one more may hold the lock.
    fn fits(&mut self, sharing: Sharing) -> Result<bool, LocalError> {
        self.settle()?;
        Ok(match self.record.state {
            State::Free => true,
            State::Held(_) => false,
            State::Shared(_) => self.occupancy().fits(sharing),
        })
    }

    /// Reserves the lock, or a share of it, for the first waiter, if it may hold it. There is never more than one
    /// reservation: the waiters behind sleep until the first is gone, and would not come in time.
    fn call(&mut self, first: &Waiter) -> Result<(), LocalError> {
        match self.fits(first.token.sharing())? && self.reserved().is_none() {
            true => self.reserve(first),
            false => Ok(()),
        }
    }

    /// Returns the ticket of the waiter that has a reservation.
    fn reserved(&self) -> Option<u64> {
        let grants = self.record.grant().into_iter().chain(self.shares().map(|share| &share.grant));
        grants.filter_map(|grant| grant.reserved).next()
    }

    /// Clears the claim if its lease has expired, or if the kernel knows that its holder is gone; but not while
    /// processes of its command run.
    pub(super) fn settle(&mut self) -> Result<(), LocalError> {
        let Some(grant) = self.record.grant() else { return Ok(()) };
        match self.end_of(grant)? {
            End::Come => self.record.state = State::Free,
            End::Awaited(process) => self.awaited = process.into_iter().collect(),
            End::Lasts(until) => {
                if let State::Held(grant) = &mut self.record.state {
                    grant.becomes_lease(until);
                }
            }
            End::InUse { is_orphaned } => {
                self.in_use = vec![InUse { byte: commands::byte_of_fence(self.record.fence), is_orphaned }];
            }
        }
        Ok(())
    }

    /// Returns whether the record's claim has ended.
    fn end_of(&self, grant: &Grant) -> Result<End, LocalError> {
        let is_taken =
            |byte| ofd_lock::is_taken(&self.file.0, byte).map_err(|error| LocalError::unlockable(&self.path, &error));
        let fence = self.record.fence;
        self.end(grant, || is_taken(fence), || self.is_in_use(commands::byte_of_fence(fence)))
    }

    /// Returns whether a claim has ended. `is_held_open` tells whether nxlock or its guard has it open, and `is_in_use`
    /// whether a process of its command does.
    pub(super) fn end(
        &self,
        grant: &Grant,
        is_held_open: impl Fn() -> Result<bool, LocalError>,
        is_in_use: impl Fn() -> Result<bool, LocalError>,
    ) -> Result<End, LocalError> {
        let is_over = match (grant.reserved, grant.life) {
            (None, Life::Holder) => {
                let is_held_open = is_held_open()?;
                let is_kept = is_held_open && grant.until > self.now;
                if !is_kept && is_in_use()? {
                    return Ok(End::InUse { is_orphaned: !is_held_open });
                }
                // One that has it open still, and is stopped, has lost it.
                let is_of_now = grant.granted <= self.now && !self.is_of_another_boot();
                let not_before = grant.not_before.filter(|until| *until > self.now && is_of_now && !is_held_open);
                if let Some(until) = not_before {
                    return Ok(End::Lasts(until));
                }
                !is_kept
            }
            _ if grant.until <= self.now => true,
            (Some(ticket), _) => !self.waiters.lives(ticket)?,
            // A grant in the future was made by the clock of another boot.
            (None, Life::Lease) => self.is_of_another_boot() || grant.granted > self.now,
            (None, Life::HolderAnd(_)) if is_held_open()? => false,
            (None, Life::HolderAnd(_)) if self.is_of_another_boot() => true,
            (None, Life::HolderAnd(process)) => match self.machine.pid_view().presence(&process) {
                Presence::Runs(end) => return Ok(End::Awaited(Some(end))),
                Presence::Ended => true,
                Presence::Unseen => grant.granted > self.now,
            },
        };
        Ok(if is_over { End::Come } else { End::Awaited(None) })
    }

    /// Drops a waiter that let its reservation lapse.
    fn pass_over(&mut self) -> Result<(), LocalError> {
        if let State::Held(grant) = &self.record.state
            && grant.reserved.is_some()
            && grant.until <= self.now
        {
            self.late.push(grant.token.clone());
            self.record.state = State::Free;
        }
        if !self.late.is_empty() {
            // Otherwise the waiter would be dropped again when it has come back.
            self.blank_ended_shares()?;
        }
        for token in std::mem::take(&mut self.late) {
            self.waiters.remove(&token)?;
        }
        Ok(())
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
        Ok(!self.is_holder(&waiter.token) && self.waiters.lives(waiter.ticket)?)
    }

    /// Takes a place in the queue. Returns the token of a newer waiter instead, if that dismisses the requester.
    fn stand_in_line(&mut self, ask: &mut Request<'_>) -> Result<Option<Token>, LocalError> {
        let broken = |error| LocalError::of(&self.path, &error);
        let file = self.waiters.file(self.directory)?;
        let stands = ask.waiting.as_ref().map_or(Ok(false), |waiting| waiting.is_in(file)).map_err(broken)?;
        if !stands {
            let ticket = self.waiters.next_ticket(self.now);
            let waiting = WaiterFile::take(self.waiters.opened_anew(self.directory)?, ticket);
            *ask.waiting = Some(waiting.map_err(|error| LocalError::unlockable(&self.path, &error))?);
        }
        let Some(ticket) = ask.waiting.as_ref().map(WaiterFile::ticket) else { return Ok(None) };
        if let Some(newer) = self.supersede(ask.token, Some(ticket))? {
            return Ok(Some(newer));
        }
        // A waiter that let its reservation lapse gets its old place back.
        if self.waiters.find(ask.token).is_none() {
            self.waiters.put(self.directory, Waiter { ticket, token: ask.token.clone() })?;
        }
        Ok(None)
    }

    /// Sets what a waiter watches: the waiter ahead, or at the front the lock.
    fn listen(&mut self, waiting: &mut WaiterFile, token: &Token) -> Result<(), LocalError> {
        let mut ahead = None;
        let mut may_be_dismissed = token.supersedes();
        while let Some(waiter) = self.waiters.ahead_of(waiting.ticket()).cloned() {
            if self.may_be_next(&waiter)? {
                ahead = Some(waiter.ticket);
                // One that is stopped does not move out of the way by itself.
                may_be_dismissed |= waiter.token.supersedes();
                break;
            }
            self.waiters.remove(&waiter.token)?;
        }
        let processes = std::mem::take(&mut self.awaited);
        let in_use: Vec<u64> = self.in_use.iter().map(|claim| claim.byte).collect();
        let grant = self.record.grant();
        let until = match grant {
            Some(grant) => Some(grant.until).filter(|until| *until > self.now),
            None => self.shares_until(token.sharing()),
        };
        let front = match ahead {
            Some(_) => None,
            None => Some(Next {
                record: &self.file.0,
                shares: self.shares.as_ref().filter(|shares| !shares.is_empty()).and_then(Shares::opened),
                holder: match grant {
                    Some(Grant { reserved: None, life: Life::Holder | Life::HolderAnd(_), .. })
                        if in_use.is_empty() =>
                    {
                        Some((self.opened_anew()?, self.record.fence))
                    }
                    _ => None,
                },
                processes,
                orphaned: match self.directory.open_file(&self.file_of(Part::Commands)) {
                    Ok(Some(file)) if !in_use.is_empty() => Some((file, in_use)),
                    _ => None,
                },
                until: until.map_or(Moment::NEVER, |until| self.machine.boot.moment(until)),
            }),
        };
        // Only a waiter that has yet to claim its reservation can be ahead of the first.
        let ahead = ahead.or(self.reserved());
        let position = self.position(waiting.ticket());
        waiting.listen(position, ahead, front).map_err(|error| LocalError::of(&self.path, &error))?;
        let superseders = may_be_dismissed.then(|| self.superseders()).transpose()?;
        let watched = superseders.as_ref().and_then(Lines::opened);
        waiting.watch_newer(watched).map_err(|error| LocalError::of(&self.path, &error))
    }

    fn grant(&mut self, ask: &mut Request<'_>) -> Result<Granted, LocalError> {
        if ask.token.is_share() {
            return self.join(ask);
        }
        let fence = self.next_fence();
        self.hold_open(ask, fence)?;
        self.change_hands(fence, State::Held(self.grant_to(ask)))?;
        self.waiters.remove(ask.token)?;
        Ok(Granted { fence: Fence(fence), slot: None })
    }

    /// Returns a claim by the requester.
    pub(super) fn grant_to(&self, ask: &Request<'_>) -> Grant {
        Grant {
            token: ask.token.clone(),
            granted: self.now,
            until: self.in_future(ask.ttl),
            since: micros_of_wall() / 1000,
            reserved: None,
            life: ask.life,
            not_before: ask.at_least.map(|least| self.in_future(least)),
        }
    }

    /// Binds the claim to this process, before the record says that it is.
    fn hold_open(&self, ask: &mut Request<'_>, fence: u64) -> Result<(), LocalError> {
        let is_held = ask.held.as_ref().is_some_and(|held| held.byte == fence);
        if is_held || ask.life == Life::Lease {
            return Ok(());
        }
        let file = self.opened_anew()?;
        ofd_lock::take(&file, fence).map_err(|error| LocalError::unlockable(&self.path, &error))?;
        let (commands, command_byte) = (self.file_of(Part::Commands), commands::byte_of_fence(fence));
        *ask.held = Some(HolderFile { file, byte: fence, commands, command_byte });
        Ok(())
    }

    pub(super) fn file_of(&self, part: Part) -> PathBuf {
        self.directory.file(&self.record.key, part)
    }

    /// Returns whether a process of a command keeps this byte.
    pub(super) fn is_in_use(&self, byte: u64) -> Result<bool, LocalError> {
        let path = self.file_of(Part::Commands);
        commands::is_kept(self.directory.open_file(&path)?.as_ref(), &path, byte)
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
        let grant = Grant {
            token: waiter.token.clone(),
            granted: self.now,
            until: self.in_future(GRACE),
            since: micros_of_wall() / 1000,
            reserved: Some(waiter.ticket),
            life: Life::Lease,
            not_before: None,
        };
        match self.record.state {
            State::Shared(generation) => self.add_share(generation, grant, |_, _| Ok(())).map(drop),
            // A share too: its generation begins when it claims the lock.
            State::Free | State::Held(_) => self.change_hands(self.next_fence(), State::Held(grant)),
        }
    }

    /// Claims a lock that this token already holds, or that is reserved for it.
    fn claim(&mut self, ask: &mut Request<'_>) -> Result<Granted, LocalError> {
        if ask.token.is_share() {
            return if self.share_of(ask.token).is_some() { self.claim_share(ask) } else { self.join(ask) };
        }
        self.hold_open(ask, self.record.fence)?;
        let claimed = self.grant_to(ask);
        if let State::Held(grant) = &mut self.record.state {
            grant.is_claimed(&claimed);
        }
        self.write()?;
        self.waiters.remove(ask.token)?;
        Ok(Granted { fence: Fence(self.record.fence), slot: None })
    }

    /// Returns the next fence. It rises with every change of holder; the wall clock is its lower bound, in case the
    /// record is lost, or another program has written a number into it after which there is none.
    pub(super) fn next_fence(&self) -> u64 {
        let last = Some(self.record.fence).filter(|last| *last < Fence::MAX.0);
        micros_of_wall().max(last.unwrap_or(0) + 1)
    }

    pub(super) fn change_hands(&mut self, fence: u64, state: State) -> Result<(), LocalError> {
        self.record.fence = fence;
        self.record.boot = self.machine.boot.id().map(str::to_owned);
        self.record.state = state;
        self.write()
    }

    fn in_future(&self, after: Duration) -> u64 {
        self.now.saturating_add(u64::try_from(after.as_micros()).unwrap_or(u64::MAX))
    }

    fn write(&self) -> Result<(), LocalError> {
        self.file.0.write_all_at(&written(&self.record)?, 0).map_err(|error| LocalError::of(&self.path, &error))
    }
}

/// Microseconds since 1970, by the wall clock.
pub(super) fn micros_of_wall() -> u64 {
    let since = wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
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
