//! The world around a lock in a directory: the clocks of this machine, and whom the kernel says to be alive.
//!
//! Whether a claim has ended is asked once, when a transaction begins.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::SystemTime;

use super::claim_file::{Byte, ClaimFiles};
use super::directory::Part;
use super::fault::LocalError;
use super::pid_view::{PidView, Presence};
use super::state::{Binding, Life, State};
use crate::clock::{Boot, Moment, wall};
use crate::duration::micros;
use crate::lock::Token;
use crate::lock::machine::{Bounds, Heard, Holder, Superseding, Waiter, Word, World};

/// What nxlock knows of this machine: its boot, and the processes that it can see.
pub struct Host {
    pub boot: Boot,
    pid_view: OnceCell<PidView>,
}

impl Host {
    pub fn new(boot: Boot) -> Host {
        Host { boot, pid_view: OnceCell::new() }
    }

    /// Returns the view of processes, created when it is first needed, which is seldom. While the kernel does not tell what
    /// can be seen, it is asked again each time.
    pub fn pid_view(&self) -> PidView {
        if self.pid_view.get().is_none()
            && let Ok(view) = PidView::new(&self.boot)
        {
            let _ = self.pid_view.set(view);
        }
        self.pid_view.get().copied().unwrap_or(PidView::none())
    }

    /// Returns the time by the clock of leases and tickets: µs since the machine's boot.
    pub fn now_us(&self) -> u64 {
        self.boot.micros(Moment::now())
    }
}

/// Maximum number of watched processes that a waiter waits for; beyond that, it polls.
const WATCHED: usize = 64;

/// Whether a claim has ended.
enum End {
    Come,
    /// With the pidfd of the watched process, if no process has the claim open any more.
    Awaited(Option<OwnedFd>),
    /// Nobody keeps it any more, but it is to last until then.
    Lasts(u64),
    /// Processes of its command keep it: its lease has ended, or its nxlock and guard are gone.
    InUse(InUse),
}

/// A claim that only processes of its command keep.
#[derive(Clone, Copy)]
pub struct InUse {
    pub byte: Byte,
    /// Neither nxlock nor the guard has the claim open any more.
    pub is_orphaned: bool,
}

/// The world of one transaction.
pub struct Present<'a> {
    host: &'a Host,
    pub files: ClaimFiles<'a>,
    /// By the clock of leases, in µs.
    pub now: u64,
    wall: u64,
    /// The holders whose claims have ended, as they were found.
    over: BTreeMap<Token, Holder>,
    /// The claims that only processes of their commands keep.
    pub in_use: BTreeMap<Token, InUse>,
    /// Pidfds of the watched processes of claims that no process has open any more.
    pub awaited: Vec<OwnedFd>,
    /// The files whose watchers are to be woken.
    rings: BTreeSet<Part>,
    /// Why the kernel did not tell whether a waiter is alive.
    failed: RefCell<Option<LocalError>>,
}

impl<'a> Present<'a> {
    pub fn new(host: &'a Host, files: ClaimFiles<'a>, now: u64) -> Present<'a> {
        let (over, in_use, awaited, rings, failed) = Default::default();
        Present { host, files, now, wall: micros_of_wall(), over, in_use, awaited, rings, failed }
    }

    /// Asks the kernel who is alive, and takes out of a state what belongs to those who are not, as far as the rules of a
    /// lock leave that to the world. The caller lives, whatever the kernel says: it is asking.
    pub fn look(&mut self, state: &mut State, caller: Option<&Token>) -> Result<(), LocalError> {
        let is_of_now = state.boot.is_some() && state.boot.as_deref() == self.host.boot.id();
        for (token, holder) in &mut state.lock.holders {
            let binding = state.bindings.entry(token.clone()).or_insert(Binding::none(0));
            let is_other_boot = self.host.boot.is_other_than(state.boot.as_deref());
            match self.end_of(token, holder, binding, is_other_boot)? {
                End::Come if caller == Some(token) && self.is_leased(holder) && !is_other_boot => {}
                End::Come => _ = self.over.insert(token.clone(), *holder),
                End::Awaited(process) => self.awaited.extend(process.filter(|_| self.awaited.len() < WATCHED)),
                End::Lasts(until) => {
                    holder.end = Some(until.div_ceil(1000));
                    *binding = Binding { life: Life::Lease, not_before: None, ..*binding };
                }
                End::InUse(in_use) => _ = self.in_use.insert(token.clone(), in_use),
            }
        }
        // The tickets may be those of a clock that has restarted since.
        if !is_of_now {
            state.lock.broken = None;
            let mut alive = Vec::new();
            for waiter in std::mem::take(&mut state.lock.queue) {
                if caller == Some(&waiter.token) || self.files.waits(waiter.ticket)? {
                    alive.push(waiter);
                }
            }
            state.lock.queue = alive;
        }
        self.forget_superseding(state, caller)?;
        state.forget_runs(self.wall);
        Ok(())
    }

    /// Forgets the newest waiter if it is dead, as if it had left, and who was dismissed if nobody is left who could ask.
    fn forget_superseding(&self, state: &mut State, caller: Option<&Token>) -> Result<(), LocalError> {
        let superseding = &mut state.lock.superseding;
        if *superseding == Superseding::default() {
            return Ok(());
        }
        if let Some((ticket, token)) = &superseding.newest {
            let holds = state.lock.holders.contains_key(token) && !self.over.contains_key(token);
            if !holds && caller != Some(token) && !self.files.waits(*ticket)? {
                superseding.newest = None;
            }
        }
        if superseding.newest.is_none() && !self.files.is_anybodys(Part::Line)? {
            *superseding = Superseding::default();
        }
        Ok(())
    }

    fn is_leased(&self, holder: &Holder) -> bool {
        holder.end.is_none_or(|end| end.saturating_mul(1000) > self.now)
    }

    /// Returns whether a claim has ended.
    fn end_of(
        &self,
        token: &Token,
        holder: &Holder,
        binding: &Binding,
        is_other_boot: bool,
    ) -> Result<End, LocalError> {
        let byte = binding.number.map(|number| Byte::of(token, number));
        let is_held_open = || byte.map_or(Ok(false), |byte| self.files.is_held_open(byte));
        let is_over = match (holder.reserved, binding.life) {
            (None, Life::Holder) => {
                let is_held_open = is_held_open()?;
                let is_kept = is_held_open && self.is_leased(holder);
                if let Some(byte) = byte.filter(|_| !is_kept)
                    && self.files.is_in_use(byte)?
                {
                    return Ok(End::InUse(InUse { byte, is_orphaned: !is_held_open }));
                }
                // One that has it open still, and is stopped, has lost it.
                let is_of_now = binding.granted <= self.now && !is_other_boot;
                let not_before = binding.not_before.filter(|until| *until > self.now && is_of_now && !is_held_open);
                if let Some(until) = not_before {
                    return Ok(End::Lasts(until));
                }
                !is_kept
            }
            _ if !self.is_leased(holder) => true,
            (Some(ticket), _) => !self.files.waits(ticket)?,
            // A grant in the future was made by the clock of another boot.
            (None, Life::Lease) => is_other_boot || binding.granted > self.now,
            (None, Life::HolderAnd(_)) if is_held_open()? => false,
            (None, Life::HolderAnd(_)) if is_other_boot => true,
            (None, Life::HolderAnd(process)) => match self.host.pid_view().presence(&process) {
                Presence::Runs(end) => return Ok(End::Awaited(Some(end))),
                Presence::Ended => true,
                Presence::Unseen => binding.granted > self.now,
            },
        };
        Ok(if is_over { End::Come } else { End::Awaited(None) })
    }

    /// Returns why the kernel did not tell something since the last time.
    pub fn failure(&self) -> Result<(), LocalError> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Has the holders ask what there is: they watch the record, as the first waiter does.
    pub fn call_holders(&mut self) {
        self.rings.insert(Part::Record);
    }

    /// Wakes those to whom a word was said. They can only read it when the record is unlocked.
    pub fn wake(&self) {
        self.rings.iter().for_each(|part| self.files.ring(*part));
    }
}

impl World<Token> for Present<'_> {
    fn now_us(&self) -> u64 {
        self.now
    }

    fn wall_us(&self) -> u64 {
        self.wall
    }

    fn listens(&self, _: &Token) -> bool {
        true
    }

    fn lives(&self, waiter: &Waiter<Token>) -> bool {
        self.files.waits(waiter.ticket).unwrap_or_else(|error| {
            self.failed.borrow_mut().get_or_insert(error);
            true
        })
    }

    fn is_taken(&self, ticket: u64) -> bool {
        self.files.waits(ticket).unwrap_or(false)
    }

    fn is_over(&self, token: &Token, holder: &Holder) -> bool {
        self.over.get(token) == Some(holder)
    }

    /// Whoever waits watches a file: at the front of the queue the record, and if it may be dismissed that of the line.
    fn tell(&mut self, _: &Token, word: Word) -> Heard {
        let part = match word {
            Word::Granted | Word::Look | Word::LookAt(_) => Part::Record,
            Word::Superseded => Part::Line,
            Word::Test => return Heard::Yes,
        };
        self.rings.insert(part);
        if matches!(self.files.opened(part), Ok(Some(_))) { Heard::Yes } else { Heard::Unsent }
    }

    /// The waiters watch the one ahead: a second reservation would not be claimed before the first.
    fn bounds(&self) -> Bounds {
        Bounds { batch: usize::MAX, dead: usize::MAX, reservations: 1 }
    }
}

/// Microseconds since 1970, by the wall clock.
pub fn micros_of_wall() -> u64 {
    micros(wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}
