//! One transaction on a lock: its state is loaded under the flock of its file, steps are executed on it by the rules of a
//! lock, and it is saved.
//!
//! A process may be killed at any instruction. It therefore locks the byte of a claim or a ticket before the state says
//! that it has one, and unlocks it after the state says that it has none.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use super::claim_file::{Byte, ClaimFiles, HolderFile};
use super::directory::{OpenDirectory, Part};
use super::fault::LocalError;
use super::files::{self, Saved, Saver};
use super::flock::Locked;
use super::listening::{Next, Watcher};
use super::state::{Binding, Life, State, readable};
use super::world::{Host, Present};
use crate::clock::Moment;
use crate::duration::{micros, millis};
use crate::error::ErrorKind;
use crate::lock::machine::{
    self, Begun, Grant, Holder, Mode, Op, Record, Renewal, Reply, Request, Verdict, Waiting, World as _,
};
use crate::lock::{Asker, Claim, Fence, Lease, LockName, LockState, Recording, Sharing, Slot, Token, Ttl};
use crate::store::{AcquireMode, Acquired, Asking, Kept, QueuePlace, Released, Renewed};
use crate::{log, text};

/// How long a lock, or a share of it, stays reserved for the next waiter.
const GRACE: Duration = Duration::from_secs(1);

/// What this process has open for its claims: by that, the kernel knows that it lives.
#[derive(Default)]
pub struct Own {
    pub waiting: Option<Watcher>,
    /// By the keys of the locks.
    pub held: HashMap<String, HolderFile>,
}

pub struct Transaction<'a> {
    pub(super) host: &'a Host,
    path: PathBuf,
    file: &'a Locked,
    saved: Saved,
    /// A power failure has left nothing in the file, and nothing was saved since.
    is_lost: bool,
    pub(super) state: State,
    pub(super) world: Present<'a>,
}

/// A request for the lock.
pub struct Attempt {
    pub ttl: Ttl,
    pub mode: AcquireMode,
    /// Before it was made.
    pub asked: Moment,
}

impl<'a> Transaction<'a> {
    /// Loads the state from a file that the caller has locked. The caller is whose claim this is about, if it is asking.
    pub fn begin(
        host: &'a Host,
        directory: &'a OpenDirectory,
        key: &str,
        file: &'a Locked,
        caller: Option<&Token>,
    ) -> Result<Transaction<'a>, LocalError> {
        let path = directory.file(key, Part::Record);
        let now = host.now_us();
        let loaded = files::load(&file.0, &path, &host.boot, now / 1000)?;
        let (saved, state) = loaded.map_err(|flaw| LocalError::flawed(&path, flaw))?;
        let is_lost = state.is_none();
        let mut state = state.unwrap_or_else(|| State::new(key, host.boot.id()));
        if state.key != key {
            let cause = format!("{} is the record of another lock", text::path(&path));
            return Err(LocalError::new(ErrorKind::Misconfigured, cause, "use another NAME"));
        }
        let mut world = Present::new(host, ClaimFiles::new(directory, key, &file.0), now);
        world.look(&mut state, caller)?;
        Ok(Transaction { host, path, file, saved, is_lost, state, world })
    }

    /// Returns whether the files of the lock are needed: it is held, its runs are recorded, or a process has locked a byte
    /// of them. A holder that has lost the lock, and one that was dismissed and does not know it yet, have one too. What a
    /// run has left behind keeps none but its own.
    pub fn is_needed(&self) -> bool {
        let parts = [Part::Record, Part::Shares, Part::Line];
        !self.state.lock.seen(&self.world).holders.is_empty()
            || self.state.has_runs()
            || parts.iter().any(|part| self.world.files.is_anybodys(*part).unwrap_or(true))
    }

    /// Executes a request by the rules of a lock.
    fn step(&mut self, op: &Op<'_, Token>) -> Result<Reply<Token>, LocalError> {
        let reply = self.state.lock.step(op, &mut self.world);
        self.world.failure()?;
        Ok(reply)
    }

    /// Saves what the steps have changed, and wakes those to whom something was said.
    fn save(&mut self, saver: Saver) -> Result<(), LocalError> {
        let Transaction { host, path, file, saved, is_lost, state, world } = self;
        state.bindings.retain(|token, _| state.lock.holders.contains_key(token));
        for token in state.lock.holders.keys().filter(|token| !state.bindings.contains_key(token)).collect::<Vec<_>>() {
            // It has a reservation.
            state.bindings.insert(token.clone(), Binding::none(world.now));
            state.boot = host.boot.id().map(str::to_owned);
        }
        saved.save(&file.0, path, state, (host.boot.id(), saver), || world.wake())?;
        if std::mem::take(is_lost) {
            let path = text::path(path);
            log::warn(format_args!(
                "{path} was only partly written when the machine went down: what runs it had recorded is lost"
            ));
        }
        Ok(())
    }

    /// Requests the lock.
    pub fn acquire(&mut self, claim: &mut Claim, attempt: &Attempt, own: &mut Own) -> Result<Acquired, LocalError> {
        let (mode, ttl) = (attempt.mode, attempt.ttl.millis());
        let token = &claim.token;
        let before = self.state.lock.holders.get(token).copied().filter(|holder| !self.world.is_over(token, holder));
        let waited = self.state.lock.waiter(token).is_some();
        let request = Request {
            token,
            ttl,
            mode: match mode {
                AcquireMode::Once => Mode::Once,
                AcquireMode::Queue => Mode::Queue,
                AcquireMode::Plain => Mode::Plain,
            },
            lease: 0,
            grace: millis(GRACE),
            channel: true,
            ticket: own.waiting.as_ref().map_or(0, Watcher::ticket),
            last: None,
            enclosing: &claim.enclosing,
            record: claim.recording.as_ref().map(recording),
            margin: None,
        };
        let Reply { verdict, length, .. } = self.step(&Op::Acquire(request))?;
        self.keep_runs(claim.recording.as_ref());
        let saver = |is_known: bool| if is_known { Saver::Other } else { Saver::Newcomer };
        match verdict {
            Verdict::Granted(grant) => {
                let held = self.bind(claim, before, own.held.get(&self.state.key))?;
                // If the state is not saved, the claim is not bound.
                self.save(saver(before.is_some()))?;
                own.held.extend(held.map(|held| (self.state.key.clone(), held)));
                if let Some(recording) = &mut claim.recording {
                    recording.noted = grant.noted;
                }
                Ok(Acquired::Granted(lease(&claim.token, &grant, attempt)))
            }
            Verdict::Waiting(Waiting { place: position, ticket, nested, .. }) => {
                if mode == AcquireMode::Queue {
                    let has_place = match &own.waiting {
                        Some(waiting) => waiting.ticket() == ticket && self.world.files.has(waiting.place())?,
                        None => false,
                    };
                    let place = if has_place { None } else { Some(self.world.files.stand(ticket)?) };
                    self.save(saver(waited))?;
                    if let Some(place) = place {
                        own.waiting = Some(Watcher::new(place));
                    }
                    if let Some(waiting) = &mut own.waiting {
                        self.listen(waiting, token, position)?;
                    }
                } else {
                    self.save(Saver::Other)?;
                }
                let (state, place) = (self.lock_state(), QueuePlace { position, length });
                Ok(if nested.is_some() { Acquired::Nested(state, place) } else { Acquired::Held(state, place) })
            }
            Verdict::Superseded(by) => {
                // It knows now.
                self.step(&Op::Release { token, by: None, keeps: None, record: None })?;
                self.save(Saver::Other)?;
                own.waiting = None;
                let by = by.told().ok_or_else(|| senseless("superseded by no token"))?;
                Ok(Acquired::Superseded(Box::new(by), self.lock_state(), QueuePlace { position: 0, length }))
            }
            Verdict::Done(run, others) => {
                self.save(Saver::Other)?;
                let run = readable(&run).ok_or_else(|| senseless("a run with no token"))?;
                let place = QueuePlace { position: 0, length: others };
                Ok(Acquired::Done(Box::new(run), self.lock_state(), place))
            }
            _ => Err(senseless("the reply to another request")),
        }
    }

    /// Notes what keeps a claim that was granted, and binds it to this process, unless it is. `before` is the holder that
    /// it was already.
    fn bind(
        &mut self,
        claim: &Claim,
        before: Option<Holder>,
        held: Option<&HolderFile>,
    ) -> Result<Option<HolderFile>, LocalError> {
        let Claim { token, owner_pid, at_least, .. } = claim;
        let life = match owner_pid {
            None => Life::Lease,
            Some(pid) if *pid == std::process::id() => Life::Holder,
            // A watched process that nxlock cannot see: only its keeper learns when it ends.
            Some(pid) => self.host.pid_view().process(*pid).map_or(Life::Lease, Life::HolderAnd),
        };
        let State { lock, bindings, boot, .. } = &mut self.state;
        let claimed = before.filter(|holder| holder.reserved.is_none());
        let known = bindings.get(token).copied().filter(|_| claimed.is_some());
        let number = match (life, known.and_then(|known| known.number)) {
            (Life::Lease, known) => known,
            (_, Some(known)) => Some(known),
            (_, None) if token.is_share() => {
                let taken = bindings.values().filter_map(|binding| binding.number);
                Some(self.world.files.free_number(taken, self.world.now)?)
            }
            (_, None) => lock.holders.get(token).map(|holder| holder.fence),
        };
        let byte = number.filter(|_| life != Life::Lease).map(|number| Byte::of(token, number));
        let is_new = |byte: &Byte| held.is_none_or(|held| held.byte() != *byte);
        let held = byte.filter(is_new).map(|byte| self.world.files.hold(byte)).transpose()?;
        let now = self.world.now;
        let not_before = at_least.map(|least| now.saturating_add(micros(least)));
        let granted = known.map_or(now, |known| known.granted);
        bindings.insert(token.clone(), Binding { granted, life, not_before, number });
        if known.is_none() {
            *boot = self.host.boot.id().map(str::to_owned);
        }
        Ok(held)
    }

    /// Moves the end of a lease. If `unbound`, the claim no longer ends with its process, and the end of its run is
    /// recorded.
    pub fn extend(&mut self, claim: &Claim, ttl: Ttl, asked: Moment, unbound: bool) -> Result<Renewed, LocalError> {
        let token = &claim.token;
        let prolongs = !claim.may_shorten();
        let renewal = Renewal { token, ttl: ttl.millis(), prolongs, beside_setnx: false };
        let reply = self.step(&Op::Renew(renewal))?;
        if let Verdict::Longer(left) = reply.verdict {
            return Ok(Renewed::Longer(Duration::from_millis(left)));
        }
        if unbound {
            if let Some(binding) = self.state.bindings.get_mut(token) {
                binding.life = Life::Lease;
            }
            if let Some(record) = claim.recording.as_ref().map(record) {
                self.step(&Op::Record { token, record })?;
                self.keep_runs(claim.recording.as_ref());
            }
        }
        self.save(Saver::Other)?;
        match &reply.verdict {
            Verdict::Kept { asked_by, .. } => {
                let hears = !unbound && claim.owner_pid.is_some() && claim.may_be_asked();
                let asked_by = asked_by.as_ref().filter(|_| hears).and_then(Token::told).map(Box::new);
                Ok(Renewed::Kept(Kept { asked_by, ..Kept::until(ttl.believed_until(asked)) }))
            }
            _ => Ok(Renewed::NotYours(self.state_after_loss(&reply))),
        }
    }

    /// Ends a claim or a wait, and records the end of the claim's run.
    pub fn release(&mut self, claim: &Claim) -> Result<Released, LocalError> {
        let record = claim.recording.as_ref().map(record);
        let reply = self.step(&Op::Release { token: &claim.token, by: None, keeps: None, record })?;
        self.keep_runs(claim.recording.as_ref());
        self.save(Saver::Other)?;
        Ok(self.released(&reply))
    }

    /// Ends the claim of the holder that the breaker names.
    pub fn break_lock(&mut self, name: &LockName, breaker: &Asker) -> Result<Released, LocalError> {
        let is_it = |(token, holder): &(&Token, &Holder)| {
            token.id().as_ref() == Some(&breaker.of) && !self.world.is_over(token, holder)
        };
        let token = self.state.lock.holders.iter().find(is_it).map(|(token, _)| token.clone());
        let Some(token) = token else { return Ok(Released::NotYours(self.status()?.state)) };
        let Claim { token, broken_by, .. } = Claim::broken(name.clone(), token, &breaker.by);
        let reply = self.step(&Op::Release { token: &token, by: broken_by.as_ref(), keeps: None, record: None })?;
        self.world.call_holders();
        self.save(Saver::Other)?;
        Ok(self.released(&reply))
    }

    fn released(&self, reply: &Reply<Token>) -> Released {
        match reply.verdict {
            Verdict::Released(_) => Released::Done,
            _ => Released::NotYours(self.state_after_loss(reply)),
        }
    }

    /// Returns who holds the lock in place of the caller.
    fn state_after_loss(&self, reply: &Reply<Token>) -> LockState {
        let broken_by = reply.broken_by.as_ref().and_then(Token::told).map(Box::new);
        LockState { broken_by, ..self.lock_state() }
    }

    /// Asks a holder to give up, or takes that back. One who is no holder any more is asked nothing.
    pub fn ask(&mut self, asker: &Asker, asking: Asking) -> Result<(), LocalError> {
        let back = asking == Asking::NoMore;
        let is_repeated = self.state.lock.asked.get(&Some(asker.of.clone())) == Some(&asker.by);
        // A waiter repeats its request whenever it is woken, and this wakes it too.
        if !back && !is_repeated {
            self.world.call_holders();
        }
        self.step(&Op::Ask { of: Some(asker.of.clone()), by: &asker.by, back })?;
        self.save(if back { Saver::Other } else { Saver::Newcomer })
    }

    /// Notes how long the runs are to be kept that a request has recorded, if there are any.
    fn keep_runs(&mut self, recording: Option<&Recording>) {
        if let Some(recording) = recording.filter(|_| self.state.has_runs()) {
            let until = self.world.wall_us().saturating_add(micros(recording.kept_for()));
            self.state.runs_until = self.state.runs_until.max(until);
        }
    }

    /// Sets what a waiter at a `position` from 1 watches: the waiter ahead, or at the front the lock.
    fn listen(&mut self, waiting: &mut Watcher, token: &Token, position: usize) -> Result<(), LocalError> {
        let processes = std::mem::take(&mut self.world.awaited);
        let mut ahead = None;
        for waiter in self.state.lock.queue[..position.saturating_sub(1)].iter().rev() {
            if self.world.files.waits(waiter.ticket)? {
                ahead = Some(waiter);
                break;
            }
        }
        // One that is stopped does not move out of the way by itself.
        let may_be_dismissed = token.supersedes() || ahead.is_some_and(|waiter| waiter.token.supersedes());
        let front = if ahead.is_some() { None } else { Some(self.front(token, processes)?) };
        // Only a waiter that has yet to claim its reservation can be ahead of the first.
        let reserved = || self.state.lock.holders.values().find_map(|holder| holder.reserved);
        let ahead = ahead.map(|waiter| waiter.ticket).or_else(reserved);
        waiting
            .listen(position, ahead, front)
            .and_then(|()| waiting.watch_newer(may_be_dismissed))
            .map_err(|error| LocalError::of(&self.path, &error))
    }

    /// Returns what the waiter at the front watches, which has this token.
    fn front(&self, token: &Token, processes: Vec<OwnedFd>) -> Result<Next<'_>, LocalError> {
        let (State { lock, bindings, .. }, Present { files, in_use, now, .. }) = (&self.state, &self.world);
        // Those whose leases have ended are kept by processes. An exclusive waiter waits for all of them.
        let ends = lock.holders.values().filter_map(|holder| holder.end?.checked_mul(1000)).filter(|end| end > now);
        let until = if token.is_share() { ends.min() } else { ends.max() };
        let alone = lock.holders.iter().next().filter(|_| lock.generation.is_none() && in_use.is_empty());
        let number = alone.and_then(|(token, holder)| {
            let binding = bindings.get(token)?;
            binding.number.filter(|_| holder.reserved.is_none() && binding.life != Life::Lease)
        });
        let holder = number.map(|number| Ok(files.opened_anew(Part::Record)?.map(|file| (file, number))));
        let orphaned = match files.opened_anew(Part::Commands) {
            Ok(Some(file)) if !in_use.is_empty() => Some((file, in_use.values().map(|claim| claim.byte).collect())),
            _ => None,
        };
        Ok(Next {
            record: &self.file.0,
            shares: if lock.generation.is_some() { files.opened(Part::Shares)? } else { None },
            holder: holder.transpose()?.flatten(),
            processes,
            orphaned,
            until: until.map_or(Moment::NEVER, |until| self.host.boot.moment(until)),
        })
    }
}

fn lease(token: &Token, grant: &Grant<Token>, attempt: &Attempt) -> Lease {
    let slot = match token.sharing() {
        Sharing::Slots(of) => grant.slot.map(|number| Slot { number, of }),
        Sharing::Shared | Sharing::Exclusive => None,
    };
    let (asked, until) = (attempt.asked, attempt.ttl.believed_until(attempt.asked));
    Lease { fence: Some(Fence(grant.fence)), asked, granted: Moment::now(), until, taken_over: None, slot }
}

/// Returns what a request says of a run that is recorded.
fn recording(recording: &Recording) -> machine::Recording {
    machine::Recording {
        most: recording.kept.get().into(),
        waited: millis(recording.waited()),
        unless_done: recording.unless_done.map(micros),
    }
}

/// Returns what is to be recorded of a run.
fn record(recording: &Recording) -> Record<Token> {
    let (granted, fence) = (recording.noted.unwrap_or(0), recording.fence.map_or(0, |fence| fence.0));
    let begun = Begun { granted, waited: millis(recording.waited()), fence };
    Record { most: recording.kept.get().into(), begun, end: recording.end }
}

/// Describes a mistake of nxlock's.
fn senseless(cause: &str) -> LocalError {
    LocalError::new(ErrorKind::Internal, cause, "")
}
