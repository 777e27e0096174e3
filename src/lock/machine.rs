//! The rules of a lock: who holds it, who waits for it, and what each request changes. Everything else in nxlock carries
//! requests to these rules, or answers away from them.
//!
//! A [`Lock`] is a value, and [`Lock::step`] executes one request on it. It is the specification; the local store is this
//! value, loaded from a file and saved; the tests compare with it what a server does. A server executes the same rules in
//! lock.lua, its translation, in the same order and with the same names.
//!
//! **The model.** A lock has holders and a queue of waiters. Each holder has a lease, which ends by itself unless it is
//! renewed, and a limit: how many may hold the lock while it does. An exclusive lock is a limit of 1, a lock with slots a
//! limit of that many, a reader has none (0). [`Step::fits`] is the only rule of admission. A waiter that is let in while
//! it is not asking gets a reservation: it is a holder with a short lease, the grace, which it extends by claiming it.
//!
//! **A request** reads, does its own, and settles. *Read* drops the holders whose leases have ended. *Settle* tells the
//! first waiter if something has changed for it. In between, a feature acts at one or more of four points, and nowhere
//! else:
//!
//! |            | read                  | admit          | enter                   | leave                    |
//! | ---------- | --------------------- | -------------- | ----------------------- | ------------------------ |
//! | sharing    | drop what has ended   | fits           | slot and fence          | free the slot, serve     |
//! | superseding|                       | a newer one?   | dismiss the older       | forget                   |
//! | records    |                       | done recently? | note that a run begins  | note how it ended        |
//! | SETNX      | free, ours or foreign | margin         | until when it counts    | forget                   |
//! | asking     |                       |                | nobody has asked it yet | forget                   |
//! | breaking   | forget                |                |                         | note by whom             |
//!
//! **Tickets** order the queue. A waiter gets its ticket with its first request and sends it with every other, so it has
//! its place again if the queue was lost; the first that finds it lost has all others called back. Those that go first are
//! before all others, in the order of their own tickets.
//! **Fences** rise with every grant of a name, except that readers who hold it together have one: that of their
//! generation, which the first of the holders began. To **break** a lock is to release it with the token of its holder; who
//! does so is noted for the holder, which finds it with its loss.
//!
//! Owns all that decides. Must not know clocks, processes, connections or files: the [`World`] tells the time and who is
//! alive, and delivers messages. What else a store keeps of a holder or a waiter, it keeps beside the lock, by token.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::hash::Hash;

/// A token: proves who holds the lock or waits for it, and says on which terms.
pub trait Claimant: Clone + Debug + Ord + Hash {
    /// By which others know a holder.
    type Id: Clone + Debug + Ord + Hash;
    type End: Ending;

    fn id(&self) -> Self::Id;
    /// How many may hold the lock while this one does, itself included; 0 is any number.
    fn limit(&self) -> u16;
    /// Whether its waiter dismisses older ones that say so too.
    fn supersedes(&self) -> bool;
    /// Whether it waits ahead of all that do not say so too.
    fn goes_first(&self) -> bool;
    /// When the lock of a SETNX client ends that wrote this value, in ms; none if the value is of nobody like that.
    fn setnx_end(&self) -> Option<u64>;
}

/// How a recorded run ended.
pub trait Ending: Clone + Debug + Eq + Hash {
    /// Nobody has recorded it, and the run holds the lock no more.
    const VANISHED: Self;

    fn is_success(&self) -> bool;
    /// The same of a run that had lost its lock by then.
    fn without_the_lock(self) -> Self;
}

/// What is around a lock. Instants are in µs or, of leases, in ms.
pub trait World<T: Claimant> {
    /// By the clock of leases and tickets.
    fn now_us(&self) -> u64;

    /// By the clock of fences and records, which outlive a boot.
    fn wall_us(&self) -> u64 {
        self.now_us()
    }

    /// Whether a message to this token reaches somebody.
    fn listens(&self, token: &T) -> bool;

    fn lives(&self, waiter: &Waiter<T>) -> bool {
        waiter.is_leased(self.now_us() / 1000) && (!waiter.hears || self.listens(&waiter.token))
    }

    /// Whether a newcomer cannot have this ticket: somebody else has it. Where tickets need not differ, none is.
    fn is_taken(&self, _ticket: u64) -> bool {
        false
    }

    /// Whether a holder holds the lock no more. The key of an exclusive lock is still there when its lease ends.
    fn is_over(&self, token: &T, holder: &Holder) -> bool {
        let now = self.now_us() / 1000;
        holder.end.is_some_and(|end| if token.limit() == 1 { end < now } else { end <= now })
    }

    fn tell(&mut self, token: &T, word: Word) -> Heard;

    /// Tells all who wait, whether they are in the queue or not, that it was lost: they should ask again, the first of them
    /// first. Nobody says that of a queue which is kept with the lock.
    fn call_back(&mut self) {}

    /// Whether a holder listens: one that does not may not be there any more.
    fn hears_of_loss(&self, _token: &T) -> bool {
        true
    }

    fn bounds(&self) -> Bounds {
        Bounds::USUAL
    }
}

/// What the world says to a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    /// The lock is reserved for it: it should claim it.
    Granted,
    /// Something has changed: it should ask again.
    Look,
    /// It should ask again soon, and no later than at this time, in ms: the lock that it waits for may end.
    LookAt(u64),
    /// It was dismissed: it should ask by whom.
    Superseded,
    /// Nothing: shows whether messages arrive.
    Test,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Yes,
    /// Nobody was there.
    No,
    /// The message could not be sent.
    Unsent,
}

/// How much one request does at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// How many holders it drops, and how many it lets in.
    pub batch: usize,
    /// How many dead waiters it drops.
    pub dead: usize,
    /// How many reservations there may be at a time. `local:` has one: its waiters watch the one ahead, so a second one
    /// would not come before the first has.
    pub reservations: usize,
}

impl Bounds {
    pub const USUAL: Bounds = Bounds { batch: 32, dead: 1000, reservations: usize::MAX };
}

/// Longest lease of a waiter, in ms. A longer one was written before the clock was set back.
const LEASE_MAX: u64 = 120_000;
/// A waiter with a longer lease, in ms, is far back, and proves its life seldom: not within two seconds.
const NEAR: u64 = 6_000;
/// The last fence, 2^53 - 1: any JSON parser reads it as it is. What claims to be one beyond it counts as none.
const FENCE_MAX: u64 = (1 << 53) - 1;
/// How many dismissed waiters are noted by their tokens.
const NOTED: usize = 16;
/// How long it is noted who broke a lock, at most, in ms: its holder renews it sooner.
const NOTED_FOR: u64 = 30_000;
/// When to ask again if only a waiter ahead is in the way, which may die.
const BRIEFLY: u64 = 500;

/// A lock, whatever keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lock<T: Claimant> {
    pub holders: BTreeMap<T, Holder>,
    /// While those who hold it let others hold it too: the fence of the first of them.
    pub generation: Option<u64>,
    /// Those that go first, then the others; each in the order of tickets, and of tokens among equal ones.
    pub queue: Vec<Waiter<T>>,
    /// Of the last grant.
    pub fence: u64,
    /// By whom holders are asked to give up.
    pub asked: BTreeMap<T::Id, T>,
    pub broken: Option<Broken<T>>,
    pub superseding: Superseding<T>,
    pub runs: Runs<T>,
    /// Beside SETNX clients: the last holder of ours, and until when its lease counts, whatever they write over it; 0 if it
    /// has not claimed its reservation.
    pub owner: Option<(T, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// Of its lease, in ms; none if it ends only when another program says so.
    pub end: Option<u64>,
    pub limit: u16,
    pub fence: u64,
    /// None if it has no limit, or belongs to another program.
    pub slot: Option<u16>,
    /// When it was granted the lock, in µs, or claimed its reservation.
    pub since: u64,
    /// The ticket of a waiter that has not claimed its reservation yet.
    pub reserved: Option<u64>,
}

/// The claim that was broken last.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Broken<T: Claimant> {
    pub of: T::Id,
    pub by: T,
    /// Until when that counts, in ms: its holder knows of the loss by then.
    pub until: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiter<T> {
    pub ticket: u64,
    pub token: T,
    /// The end of its lease, in ms: it counts as dead then, unless it has asked again. 0 if what was kept of it is lost.
    pub lease: u64,
    /// How long a reservation for it lasts.
    pub grace: u64,
    /// Messages reach it; otherwise it asks often.
    pub hears: bool,
    pub beside_setnx: bool,
}

/// Of the waiters that supersede, only the newest waits. One that was dismissed never comes in again, however late it
/// asks: it is noted by its token until it leaves, or if there are too many, by its ticket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Superseding<T> {
    /// The newest of those that have joined or entered, until it leaves.
    pub newest: Option<(u64, T)>,
    /// All with a ticket up to this are dismissed, by that one.
    pub dismissed: Option<(u64, T)>,
    /// Those who were dismissed and do not know it yet, each with the one that dismissed it.
    pub noted: BTreeMap<T, T>,
    /// There are more than are noted.
    pub more: bool,
}

/// The runs that are recorded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Runs<T: Claimant> {
    /// Those under way; one that does not hold the lock has vanished.
    pub begun: BTreeMap<T, Begun>,
    /// In the order in which they were recorded.
    pub ended: Vec<Run<T>>,
    /// The one that began last of those that succeeded.
    pub done: Option<Run<T>>,
    /// No run noted here was granted the lock before, in µs.
    pub since: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Begun {
    /// In µs.
    pub granted: u64,
    /// How long it had waited, in ms.
    pub waited: u64,
    pub fence: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Run<T: Claimant> {
    pub who: T,
    pub begun: Begun,
    /// In µs; none if nobody has recorded it.
    pub ended: Option<u64>,
    pub end: T::End,
}

/// A request.
#[derive(Clone, Debug)]
pub enum Op<'a, T: Claimant> {
    Acquire(Request<'a, T>),
    Renew(Renewal<'a, T>),
    /// Gives the lock back, or the place in the queue, or both.
    Release {
        token: &'a T,
        /// Who breaks the lock, if that is not its holder.
        by: Option<&'a T>,
        /// The grant with this fence stays: another process has it. A later one to the same token is nobody's.
        keeps: Option<u64>,
        record: Option<Record<T>>,
    },
    /// Records how a run ended whose lease is left to end by itself.
    Record {
        token: &'a T,
        record: Record<T>,
    },
    /// Asks a holder to give up, or takes that back: it hears of it when it renews its lease.
    Ask {
        of: T::Id,
        by: &'a T,
        back: bool,
    },
}

/// A request for the lock: the first, a heartbeat, a poll, a retry, and that which claims a reservation are the same.
#[derive(Clone, Debug)]
pub struct Request<'a, T> {
    pub token: &'a T,
    pub ttl: u64,
    pub mode: Mode,
    /// How long it counts as alive in the queue without asking again.
    pub lease: u64,
    pub grace: u64,
    /// It listens for messages.
    pub channel: bool,
    /// As it was told; 0 if it has none yet.
    pub ticket: u64,
    /// When it was last in the queue, in µs; none if it never was, or was called back since.
    pub last: Option<u64>,
    /// The tokens of the runs that it is part of: if one of them holds the lock, it waits for itself.
    pub enclosing: &'a [T],
    /// Set if its run is recorded.
    pub record: Option<Recording>,
    /// Beside SETNX clients: how long a lock of theirs must have been over to be taken, in ms.
    pub margin: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Does not join the queue, and yields to those in it.
    Once,
    Queue,
    /// Regardless of the queue.
    Plain,
}

/// What a request says of a run that is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recording {
    /// How many ended runs are kept.
    pub most: usize,
    /// How long it has waited, in ms.
    pub waited: u64,
    /// It does not run if another that succeeded began less than this ago, in µs.
    pub unless_done: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Renewal<'a, T> {
    pub token: &'a T,
    pub ttl: u64,
    /// Never nearer than it is: another process renews the lock, and relies on its end.
    pub prolongs: bool,
    pub beside_setnx: bool,
}

/// What is to be recorded of a run.
#[derive(Clone, Debug)]
pub struct Record<T: Claimant> {
    pub most: usize,
    /// As the caller knows it; its grant is 0 if it does not.
    pub begun: Begun,
    /// None if nothing ran.
    pub end: Option<T::End>,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reply<T: Claimant> {
    pub verdict: Verdict<T>,
    /// After a request for the lock; before a renewal or a release.
    pub state: State<T>,
    /// How many wait.
    pub length: usize,
    /// To be repeated at once: there may be more dead waiters, or holders whose leases have ended, than one request drops,
    /// and nobody else may know that the lock is free.
    pub again: bool,
    /// What the record says now of how the caller's run ended.
    pub recorded: Option<T::End>,
    /// Who has broken the claim that the caller renews or releases.
    pub broken_by: Option<T>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict<T: Claimant> {
    Granted(Grant<T>),
    Waiting(Waiting<T>),
    /// A newer waiter has dismissed the caller.
    Superseded(T),
    /// This run has done recently what was to be done; so many others wait.
    Done(Run<T>, usize),
    Kept {
        asked_by: Option<T>,
        /// A SETNX client had written over the lock.
        put_back: bool,
    },
    /// It ends later than was asked for, in so many ms.
    Longer(u64),
    /// If exclusive, it is held by this one now.
    Released(Option<T>),
    NotYours,
    Asked,
    Recorded,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grant<T> {
    pub fence: u64,
    pub slot: Option<u16>,
    /// How many hold the lock.
    pub count: usize,
    /// The value of a SETNX client whose lock was over.
    pub taken_over: Option<T>,
    /// When the run was noted, in µs, if it is recorded.
    pub noted: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiting<T> {
    /// From 1; 0 if it is not in the queue.
    pub place: usize,
    /// To be sent with the next request.
    pub ticket: u64,
    /// Messages reach it.
    pub hears: bool,
    /// When to ask again without a message if near the front, in ms; none if the lock does not end by itself.
    pub look_in: Option<u64>,
    /// The run around it that holds the lock.
    pub nested: Option<T>,
}

/// Who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State<T> {
    /// The only holder, if the lock is not shared.
    pub value: Option<T>,
    pub generation: Option<u64>,
    /// Until the last lease ends, in ms; none if nobody holds it, or it does not end by itself.
    pub left: Option<u64>,
    pub fence: u64,
    pub count: usize,
    /// The least limit of those who hold it; 0 if none has one.
    pub least: u16,
}

impl<T: Claimant> Default for Lock<T> {
    fn default() -> Lock<T> {
        Lock {
            holders: BTreeMap::new(),
            generation: None,
            queue: Vec::new(),
            fence: 0,
            asked: BTreeMap::new(),
            broken: None,
            superseding: Superseding::default(),
            runs: Runs::default(),
            owner: None,
        }
    }
}

impl<T> Default for Superseding<T> {
    fn default() -> Superseding<T> {
        Superseding { newest: None, dismissed: None, noted: BTreeMap::new(), more: false }
    }
}

impl<T: Claimant> Default for Runs<T> {
    fn default() -> Runs<T> {
        Runs { begun: BTreeMap::new(), ended: Vec::new(), done: None, since: None }
    }
}

impl<'a, T: Claimant> Op<'a, T> {
    /// Returns the token of the one that asks, if that is a holder or a waiter.
    fn caller(&self) -> Option<&'a T> {
        let (Op::Acquire(Request { token, .. })
        | Op::Renew(Renewal { token, .. })
        | Op::Release { token, .. }
        | Op::Record { token, .. }) = self
        else {
            return None;
        };
        Some(token)
    }
}

impl<T> Waiter<T> {
    pub fn is_leased(&self, now: u64) -> bool {
        (now..=now + LEASE_MAX).contains(&self.lease)
    }
}

impl<T: Claimant> Waiter<T> {
    /// Returns by what the queue is sorted.
    pub fn order(&self) -> (bool, u64, &T) {
        (!self.token.goes_first(), self.ticket, &self.token)
    }
}

impl<T: Claimant> Lock<T> {
    /// Executes a request.
    pub fn step<W: World<T>>(&mut self, op: &Op<'_, T>, world: &mut W) -> Reply<T> {
        let mut step = Step::new(self, op.caller(), world);
        step.read(op);
        let found = step.lock.state(step.now);
        let verdict = match op {
            Op::Acquire(request) => step.acquire(request),
            Op::Renew(renewal) => step.renew(renewal),
            Op::Release { token, keeps: Some(fence), .. } if step.has_by(token, *fence) => Verdict::NotYours,
            Op::Release { token, by, record, .. } => step.release(token, *by, record.as_ref()),
            Op::Record { token, record } => step.record(token, record),
            Op::Ask { of, by, back } => step.ask(of, by, *back),
        };
        step.settle();
        let is_new = matches!(op, Op::Acquire(_) | Op::Ask { .. });
        let state = if is_new { step.lock.state(step.now) } else { found };
        let (recorded, broken_by) = (step.recorded.take(), step.broken_by.take());
        let again = step.dead >= step.bounds.dead || step.too_many;
        step.put_back();
        Reply { verdict, state, length: self.queue.len(), again, recorded, broken_by }
    }

    /// Returns who holds the lock at this time, in ms.
    pub fn state(&self, now: u64) -> State<T> {
        State {
            value: self.holders.keys().next().filter(|_| self.generation.is_none()).cloned(),
            generation: self.generation.filter(|_| !self.holders.is_empty()),
            left: self.end().map(|end| end.saturating_sub(now)),
            fence: self.fence,
            count: self.holders.len(),
            least: self.least(),
        }
    }

    /// Returns when the last lease ends, in ms; none if nobody holds the lock, or it does not end by itself.
    pub fn end(&self) -> Option<u64> {
        self.holders.values().map(|holder| holder.end).max_by_key(|end| end.unwrap_or(u64::MAX)).flatten()
    }

    /// Returns the lock as it is without those whose leases have ended, and without dead waiters.
    pub fn seen(&self, world: &impl World<T>) -> Lock<T> {
        let mut seen = self.clone();
        seen.holders.retain(|token, holder| !world.is_over(token, holder));
        seen.queue.retain(|waiter| world.lives(waiter));
        seen
    }

    /// Returns the recorded runs that have ended, the last first, and those that have vanished.
    pub fn history(&self, world: &impl World<T>) -> Vec<Run<T>> {
        let vanished = self.noted(world, false).map(|(who, begun)| Run::vanished(who, *begun));
        self.runs.ended.iter().rev().cloned().chain(vanished).collect()
    }

    /// Returns the recorded runs that have not ended and hold the lock.
    pub fn under_way(&self, world: &impl World<T>) -> Vec<(T, Begun)> {
        self.noted(world, true).map(|(who, begun)| (who.clone(), *begun)).collect()
    }

    /// Returns the runs that have not ended, of those who hold the lock or of those who do not.
    fn noted(&self, world: &impl World<T>, hold: bool) -> impl Iterator<Item = (&T, &Begun)> {
        let is_owner =
            |who: &T| self.owner.as_ref().is_some_and(|(owner, end)| owner == who && *end > world.now_us() / 1000);
        let holds =
            move |who: &T| self.holders.get(who).is_some_and(|holder| !world.is_over(who, holder)) || is_owner(who);
        // If it has ended, it has asked once more since.
        self.runs.begun.iter().filter(move |(who, _)| holds(who) == hold && self.runs.line_of(who).is_none())
    }

    pub fn waiter(&self, token: &T) -> Option<&Waiter<T>> {
        self.queue.iter().find(|waiter| waiter.token == *token)
    }

    /// Returns the least limit of the holders; 0 if none has one.
    fn least(&self) -> u16 {
        self.holders.values().map(|holder| holder.limit).filter(|limit| *limit > 0).min().unwrap_or(0)
    }
}

/// One request at work.
struct Step<'a, T: Claimant, W> {
    lock: &'a mut Lock<T>,
    world: &'a mut W,
    /// Whose request it is. It lives, whatever is known of it: it is asking.
    caller: Option<&'a T>,
    us: u64,
    now: u64,
    wall: u64,
    bounds: Bounds,
    /// It has dropped as many holders as it may.
    too_many: bool,
    /// How many dead waiters it has dropped.
    dead: usize,
    /// The first of the queue is another one now, or what it waits for ends sooner.
    moved: bool,
    /// The second waiter may be another one.
    closer: bool,
    /// The caller has come in by this request, or has claimed its reservation.
    entered: bool,
    recorded: Option<T::End>,
    /// Who has broken the caller's claim.
    broken_by: Option<T>,
    /// What a SETNX client wrote, and does not count: its lock is over, or the caller's lease runs.
    ignored: Option<(T, Holder)>,
}

impl<'a, T: Claimant, W: World<T>> Step<'a, T, W> {
    fn new(lock: &'a mut Lock<T>, caller: Option<&'a T>, world: &'a mut W) -> Step<'a, T, W> {
        let (us, wall, bounds) = (world.now_us(), world.wall_us(), world.bounds());
        Step {
            lock,
            world,
            caller,
            us,
            now: us / 1000,
            wall,
            bounds,
            too_many: false,
            dead: 0,
            moved: false,
            closer: false,
            entered: false,
            recorded: None,
            broken_by: None,
            ignored: None,
        }
    }

    // Read

    /// Drops the holders whose leases have ended: all, if nobody is left, or as many as one request may.
    fn read(&mut self, op: &Op<'_, T>) {
        let is_over = |(token, holder): &(&T, &Holder)| self.world.is_over(token, holder);
        let mut over: Vec<(Option<u64>, T)> =
            self.lock.holders.iter().filter(is_over).map(|(token, holder)| (holder.end, token.clone())).collect();
        let is_past = self.lock.end().is_some_and(|end| end < self.now);
        if over.len() < self.lock.holders.len() || !is_past {
            over.sort();
            over.truncate(self.bounds.batch);
            self.too_many = over.len() == self.bounds.batch;
        }
        over.iter().for_each(|(_, token)| self.drop(token));
        self.lock.broken.take_if(|broken| broken.until < self.now);
        match op {
            Op::Acquire(Request { margin: Some(margin), .. }) => self.read_setnx(Some(*margin)),
            Op::Renew(Renewal { beside_setnx: true, .. }) => self.read_setnx(None),
            _ => {}
        }
    }

    /// Reads a value without expiry that says when it ends: the lock of a SETNX client. Of two that race, the one that
    /// loses writes over the winner's value, so while the caller's lease runs, that counts. A lock that has been over for
    /// longer than the margin is free.
    fn read_setnx(&mut self, margin: Option<u64>) {
        let Some((value, holder)) = self.lock.holders.iter().next().filter(|(_, holder)| holder.end.is_none()) else {
            return;
        };
        let (value, holder) = (value.clone(), *holder);
        let Some(ended) = value.setnx_end() else { return };
        match self.lock.owner.clone().filter(|(_, end)| *end > self.now) {
            Some((owner, end)) if self.caller == Some(&owner) => {
                let ours = Holder { end: Some(end), fence: self.lock.fence, slot: Some(0), ..holder };
                self.lock.holders = BTreeMap::from([(owner, ours)]);
            }
            None if margin.is_some_and(|margin| ended + margin < self.now) => self.lock.holders.clear(),
            _ => return,
        }
        self.ignored = Some((value, holder));
    }

    /// Ends the step: what a SETNX client wrote stays, unless somebody has come in or the caller has put its own back.
    fn put_back(&mut self) {
        let is_ours = |holders: &BTreeMap<T, Holder>| self.caller.is_some_and(|caller| holders.contains_key(caller));
        if let Some((value, holder)) = self.ignored.take()
            && (self.lock.holders.is_empty() || is_ours(&self.lock.holders))
        {
            self.lock.holders = BTreeMap::from([(value, holder)]);
        }
    }

    /// Returns the holder with this token.
    fn holds(&self, token: &T) -> Option<&Holder> {
        self.lock.holders.get(token).filter(|holder| !self.world.is_over(token, holder))
    }

    // Admit

    /// Returns whether one more may hold the lock, with this limit; with 0, whether anybody may.
    fn fits(&self, limit: u16) -> bool {
        let limits = [limit, self.lock.least()].into_iter().filter(|limit| *limit > 0);
        limits.min().is_none_or(|most| self.lock.holders.len() < usize::from(most))
    }

    /// Returns who has dismissed the caller. One without a ticket is a newcomer, newer than all with one.
    fn dismissed_by(&self, token: &T, ticket: u64) -> Option<T> {
        if !token.supersedes() {
            return None;
        }
        let Superseding { newest, dismissed, noted, .. } = &self.lock.superseding;
        let newer = newest.as_ref().filter(|(theirs, _)| *theirs > ticket);
        let not_newer = dismissed.as_ref().filter(|(theirs, _)| *theirs >= ticket);
        let marks = [newer, not_newer].into_iter().flatten().filter(|(_, by)| ticket > 0 && by != token);
        noted.get(token).or_else(|| marks.map(|(_, by)| by).next()).cloned()
    }

    /// Returns the run that has done recently what was to be done; none to a run that is noted and has the lock: it may be
    /// under way. If the clock was set back since, it counts as if it had just ended, or nothing would run until the clock
    /// has caught up.
    fn done_recently(&mut self, token: &T, recording: Recording) -> Option<Run<T>> {
        let unless_done = recording.unless_done?;
        let is_claimed = self.holds(token).is_some_and(|holder| holder.reserved.is_none());
        if is_claimed && self.lock.runs.begun.contains_key(token) {
            return None;
        }
        let done = self.lock.runs.done.as_mut()?;
        if done.begun.granted > self.wall {
            let held = done.ended.unwrap_or(done.begun.granted).saturating_sub(done.begun.granted);
            (done.begun.granted, done.ended) = (self.wall.saturating_sub(held), Some(self.wall));
        }
        (self.wall - done.begun.granted < unless_done).then(|| done.clone())
    }

    /// Returns whether the caller's run is recorded as ended: the request arrives late, and nobody is there to hold the lock,
    /// for whom a newer one would have to leave. One that has vanished may come back.
    fn has_ended(&self, token: &T) -> bool {
        let runs = &self.lock.runs;
        runs.line_of(token).is_some_and(|at| runs.ended[at].end != T::End::VANISHED)
    }

    // The queue

    fn dequeue(&mut self, token: &T) {
        let is_at = |at: usize| self.lock.queue.get(at).is_some_and(|waiter| waiter.token == *token);
        (self.moved, self.closer) = (self.moved || is_at(0), self.closer || is_at(1));
        self.lock.queue.retain(|waiter| waiter.token != *token);
    }

    /// Returns the first live waiter, after dropping the dead before it; none if nobody waits, or too many are dead.
    fn front(&mut self) -> Option<Waiter<T>> {
        while self.dead < self.bounds.dead {
            let first = self.lock.queue.first()?.clone();
            if self.caller == Some(&first.token) || self.world.lives(&first) {
                return Some(first);
            }
            self.dequeue(&first.token);
            self.dead += 1;
        }
        None
    }

    /// Returns whether nobody waits who is before the caller.
    fn is_next(&self, token: &T) -> bool {
        self.lock.queue.first().is_none_or(|first| token.goes_first() && !first.token.goes_first())
    }

    /// Returns the ticket of a newcomer: behind all others of its kind, and newer than all that supersede.
    fn next_ticket(&self, token: &T) -> u64 {
        let is_like = |waiter: &&Waiter<T>| waiter.token.goes_first() == token.goes_first();
        let last = self.lock.queue.iter().rfind(is_like).map(|waiter| waiter.ticket);
        let Superseding { newest, dismissed, .. } = &self.lock.superseding;
        let marks = [newest, dismissed].into_iter().flatten().filter(|_| token.supersedes()).map(|(ticket, _)| *ticket);
        let mut ticket = marks.chain(last).map(|ticket| ticket.saturating_add(1)).fold(self.us, u64::max);
        while ticket < u64::MAX && self.world.is_taken(ticket) {
            ticket += 1;
        }
        ticket
    }

    /// Returns whether the queue was lost: the caller was in it once, and is not any more, nor is anybody who was then. One
    /// that alone was dropped finds others.
    fn is_lost(&self, request: &Request<'_, T>) -> bool {
        request.last.is_some_and(|last| match self.lock.waiter(request.token) {
            Some(own) => own.lease == 0,
            None => self.lock.queue.iter().all(|other| other.ticket > last),
        })
    }

    /// Takes a place in the queue, or keeps it; returns whether messages reach the caller. That is tested once; later, it
    /// is enough that it listens.
    fn join(&mut self, request: &Request<'_, T>, ticket: u64) -> bool {
        let Request { token, ttl, lease, grace, channel, .. } = *request;
        let own = self.lock.queue.iter().position(|waiter| waiter.token == *token);
        let heard = own.is_some_and(|at| self.lock.queue[at].hears && self.lock.queue[at].is_leased(self.now));
        let hears = channel && (heard && self.world.listens(token) || self.world.tell(token, Word::Test) == Heard::Yes);
        // With a grace beyond its ttl, a claim would bring the end nearer.
        let (lease, grace) = (self.now + lease.min(LEASE_MAX), grace.min(ttl));
        let beside_setnx = request.margin.is_some();
        let waiter = Waiter { ticket, token: token.clone(), lease, grace, hears, beside_setnx };
        if let Some(at) = own {
            self.lock.queue[at] = waiter;
        } else {
            let at = self.lock.queue.partition_point(|other| other.order() < waiter.order());
            self.lock.queue.insert(at, waiter);
        }
        hears
    }

    // Enter

    /// Adds a holder: granted for so long or, to a waiter with this ticket, reserved.
    fn enter(&mut self, token: &T, ms: u64, reserved: Option<u64>) {
        let (limit, begins) = (token.limit(), self.lock.holders.is_empty());
        if limit != 0 || begins {
            self.lock.fence = next_fence(self.lock.fence, self.wall);
        }
        if begins {
            self.lock.generation = (limit != 1).then_some(self.lock.fence);
            self.lock.asked.clear();
        }
        let taken: BTreeSet<u16> = self.lock.holders.values().filter_map(|holder| holder.slot).collect();
        let slot = (limit != 0).then(|| (0..u16::MAX).find(|slot| !taken.contains(slot)).unwrap_or(u16::MAX));
        let fence = self.lock.generation.filter(|_| limit == 0).unwrap_or(self.lock.fence);
        let holder = Holder { end: Some(self.now.saturating_add(ms)), limit, fence, slot, since: self.wall, reserved };
        self.lock.holders.insert(token.clone(), holder);
        self.entered |= self.caller == Some(token);
    }

    /// Lets the first live waiters in as long as they fit: the caller for its ttl, others for their grace.
    fn serve(&mut self, ttl: u64) {
        for round in 0..self.bounds.batch {
            // The first is looked at once though nothing fits: the dead before it go.
            if round > 0 && !self.fits(0) {
                return;
            }
            let Some(first) = self.front().filter(|first| self.fits(first.token.limit())) else { return };
            let Waiter { ticket, token, lease, grace, hears, beside_setnx } = first;
            if self.caller == Some(&token) {
                self.dequeue(&token);
                self.enter(&token, ttl, None);
                continue;
            }
            if self.reservations() >= self.bounds.reservations {
                return;
            }
            let heard = if hears { self.world.tell(&token, Word::Granted) } else { Heard::Yes };
            self.dequeue(&token);
            if beside_setnx && heard != Heard::No {
                self.lock.owner = Some((token.clone(), 0));
            }
            match heard {
                Heard::Yes => self.enter(&token, grace, Some(ticket)),
                // It notices at its next heartbeat, which comes before its lease ends.
                Heard::Unsent => self.enter(&token, grace.max(lease.saturating_sub(self.now)), Some(ticket)),
                Heard::No => {}
            }
        }
    }

    fn reservations(&self) -> usize {
        self.lock.holders.values().filter(|holder| holder.reserved.is_some()).count()
    }

    /// Makes the caller, which has joined or come in, the newest, and dismisses the one that was. One with a reservation
    /// may still claim it, and older ones that have not joined are not dismissed with it.
    fn supersede(&mut self, token: &T, ticket: u64) {
        let newest = self.lock.superseding.newest.clone().filter(|(_, newest)| newest != token);
        if !token.supersedes() || newest.is_none() && self.lock.superseding.newest.is_some() {
            return;
        }
        if let Some((theirs, older)) = newest {
            let waits = self.lock.waiter(&older).is_some_and(|waiter| waiter.hears && waiter.is_leased(self.now));
            self.dequeue(&older);
            let is_reserved = self.holds(&older).is_some_and(|holder| holder.reserved.is_some());
            let superseding = &mut self.lock.superseding;
            if superseding.noted.len() < NOTED {
                superseding.noted.insert(older.clone(), token.clone());
            } else {
                superseding.more = true;
            }
            if !is_reserved {
                superseding.dismiss_up_to(theirs, token);
            }
            if waits {
                self.world.tell(&older, Word::Superseded);
            }
        }
        self.lock.superseding.newest = Some((ticket, token.clone()));
    }

    /// Notes that a run begins, and lists those that have vanished, if more are noted than hold the lock. Returns when it
    /// was granted the lock: a request that is repeated changes nothing.
    fn note(&mut self, token: &T, recording: Recording, fence: u64) -> u64 {
        if let Some(begun) = self.lock.runs.begun.get(token).filter(|_| !self.entered) {
            return begun.granted;
        }
        self.lock.runs.begun.remove(token);
        if self.lock.runs.begun.len() >= self.lock.holders.len() {
            let gone = self.lock.runs.begun.iter().filter(|(who, _)| self.holds(who).is_none());
            let mut gone: Vec<(Begun, T)> = gone.map(|(who, begun)| (*begun, who.clone())).collect();
            gone.sort_by_key(|(begun, _)| begun.granted);
            gone.truncate(self.bounds.batch);
            let runs = &mut self.lock.runs;
            for (begun, who) in gone {
                runs.begun.remove(&who);
                // If it has ended, it has asked once more since.
                if runs.line_of(&who).is_none() {
                    runs.ended.push(Run::vanished(&who, begun));
                }
            }
            runs.keep(recording.most);
        }
        let runs = &mut self.lock.runs;
        runs.since = Some(runs.since.unwrap_or(self.wall).min(self.wall));
        runs.begun.insert(token.clone(), Begun { granted: self.wall, waited: recording.waited, fence });
        self.wall
    }

    // Leave

    fn drop(&mut self, token: &T) {
        self.lock.holders.remove(token);
        self.lock.asked.remove(&token.id());
    }

    /// Records how a run ended. It has one line, the first, unless it only seemed to have vanished by then: a request that
    /// is repeated, or arrives late, adds nothing, though the line has been removed since. One in which nothing ran has none.
    fn note_end(&mut self, token: &T, record: &Record<T>, has_lost: bool) {
        let runs = &mut self.lock.runs;
        let noted = runs.begun.remove(token);
        let line = runs.line_of(token);
        let was_listed = noted.is_none() && runs.since.is_some_and(|since| record.begun.granted >= since);
        let is_done = runs.done.as_ref().is_some_and(|done| done.who == *token);
        let is_known = is_done || line.map_or(was_listed, |at| runs.ended[at].end != T::End::VANISHED);
        self.recorded = line.map(|at| runs.ended[at].end.clone());
        if is_known {
            return;
        }
        let Some(end) = record.end.clone() else {
            line.map(|at| runs.ended.remove(at));
            return;
        };
        let listed = line.map(|at| runs.ended.remove(at).begun);
        let granted = if record.begun.granted > 0 { record.begun.granted } else { self.wall };
        let begun = listed.or(noted).unwrap_or(Begun { granted, ..record.begun });
        let end = if has_lost { end.without_the_lock() } else { end };
        self.recorded = Some(end.clone());
        let run = Run { who: token.clone(), begun, ended: Some(self.wall), end };
        runs.ended.push(run.clone());
        runs.keep(record.most);
        let last = runs.done.as_ref().map(|done| done.begun.granted);
        if run.end.is_success() && last.is_none_or(|last| last > self.wall || last <= begun.granted) {
            runs.done = Some(run);
        }
    }

    /// Settles: tells the first waiter if it is another one now, or what it waits for ends sooner; and the second that it is
    /// near, if it does not know.
    fn settle(&mut self) {
        if self.lock.holders.is_empty() {
            self.lock.generation = None;
            // Of a value that is put back, the owner may come back too.
            if self.ignored.is_none() {
                self.lock.asked.clear();
            }
        }
        let first = if self.moved || self.closer { self.front() } else { None };
        let moved = std::mem::take(&mut self.moved);
        self.closer = false;
        let Some(first) = first else { return };
        let is_told = |waiter: &Waiter<T>| waiter.hears && self.caller != Some(&waiter.token);
        if moved && is_told(&first) {
            let end = self.lock.end().filter(|_| self.lock.generation.is_none());
            self.world.tell(&first.token, end.map_or(Word::Look, Word::LookAt));
        }
        let is_far = |waiter: &&Waiter<T>| waiter.is_leased(self.now) && waiter.lease - self.now > NEAR;
        if let Some(second) = self.lock.queue.get(1).filter(is_far).filter(|second| is_told(second)) {
            self.world.tell(&second.token, Word::Look);
        }
    }

    // The requests

    fn acquire(&mut self, request: &Request<'_, T>) -> Verdict<T> {
        let Request { token, ttl, mode, ticket, .. } = *request;
        if request.record.is_some() && self.has_ended(token) {
            return Verdict::Waiting(Waiting { place: 0, ticket, hears: false, look_in: None, nested: None });
        }
        if let Some(run) = request.record.and_then(|recording| self.done_recently(token, recording)) {
            let others = self.lock.queue.iter().filter(|waiter| waiter.token != *token).count();
            return Verdict::Done(run, others);
        }
        if self.holds(token).is_some() {
            self.claim(token, ttl, ticket);
            self.dequeue(token);
            if self.lock.generation.is_some() {
                self.serve(ttl);
            }
            return self.granted(request);
        }
        let ticket = self.lock.waiter(token).map_or(ticket, |own| own.ticket);
        if let Some(by) = self.dismissed_by(token, ticket) {
            self.dequeue(token);
            self.serve(ttl);
            return Verdict::Superseded(by);
        }
        let needs_ticket = ticket == 0 && (mode == Mode::Queue || token.supersedes());
        let ticket = if needs_ticket { self.next_ticket(token) } else { ticket };
        let (mut place, mut hears, is_lost) = (0, false, self.is_lost(request));
        // One that may not queue comes in only if nobody alive waits before it: the dead go first, and the living come in.
        if mode == Mode::Once && !self.is_next(token) && self.fits(0) {
            self.serve(ttl);
        }
        let is_next = mode == Mode::Plain || self.is_next(token);
        if !self.entered && is_next && self.fits(token.limit()) {
            self.enter(token, ttl, None);
            self.dequeue(token);
            self.supersede(token, ticket);
            self.moved = true;
            if self.lock.generation.is_some() {
                self.serve(ttl);
            }
        } else if !self.entered && mode == Mode::Queue {
            hears = self.join(request, ticket);
            // After all else: nobody is dismissed by one that is not there.
            self.supersede(token, ticket);
            self.serve(ttl);
        }
        if is_lost {
            self.world.call_back();
        }
        if self.entered {
            return self.granted(request);
        }
        self.settle();
        if mode == Mode::Queue {
            place = self.lock.queue.iter().position(|waiter| waiter.token == *token).map_or(0, |at| at + 1);
        }
        Verdict::Waiting(Waiting {
            place,
            ticket,
            hears,
            look_in: self.look_in(token),
            nested: request.enclosing.iter().rev().find(|token| self.holds(token).is_some()).cloned(),
        })
    }

    /// Extends the caller's lease, or claims its reservation. A lease that ends later stays as it is: the request may be late,
    /// and whoever has the token relies on it.
    fn claim(&mut self, token: &T, ttl: u64, ticket: u64) {
        let (end, wall) = (self.now + ttl, self.wall);
        let Some(mine) = self.lock.holders.get_mut(token) else { return };
        let is_claim = mine.reserved.take().is_some();
        if is_claim || mine.end.is_none_or(|later| later < end) {
            mine.end = Some(end);
        }
        // Puts its own back, if a SETNX client wrote over it.
        self.ignored = None;
        if is_claim {
            mine.since = wall;
            self.entered = true;
        }
        // Older ones have to see that a newer one has the lock, though another has become the newest meanwhile.
        if is_claim && ticket > 0 && token.supersedes() {
            match &self.lock.superseding.newest {
                None => self.lock.superseding.newest = Some((ticket, token.clone())),
                Some((_, newest)) if newest == token => {}
                Some(_) => self.lock.superseding.dismiss_up_to(ticket, token),
            }
        }
    }

    fn granted(&mut self, request: &Request<'_, T>) -> Verdict<T> {
        let token = request.token;
        let Some(Holder { fence, slot, end, .. }) = self.lock.holders.get(token).copied() else {
            return Verdict::NotYours;
        };
        let noted = request.record.map(|recording| self.note(token, recording, fence));
        if request.margin.is_some() {
            self.lock.owner = Some((token.clone(), end.unwrap_or(self.now + request.ttl)));
        }
        let taken_over = self.ignored.take().map(|(value, _)| value);
        Verdict::Granted(Grant { fence, slot, count: self.lock.holders.len(), taken_over, noted })
    }

    /// Returns when to look again without a message: at the first end of a lease, if only that can let the caller in.
    fn look_in(&self, token: &T) -> Option<u64> {
        if self.fits(token.limit()) {
            return Some(BRIEFLY);
        }
        let end = self.lock.holders.values().filter_map(|holder| holder.end).min();
        end.map(|end| end.saturating_sub(self.now))
    }

    fn renew(&mut self, renewal: &Renewal<'_, T>) -> Verdict<T> {
        let Renewal { token, ttl, prolongs, beside_setnx } = *renewal;
        let Some(mine) = self.holds(token) else {
            self.lock.owner.take_if(|(owner, _)| owner == token);
            self.find_breaker(token);
            return Verdict::NotYours;
        };
        let left = mine.end.map(|end| end.saturating_sub(self.now));
        let stays = left.filter(|left| prolongs && *left > ttl);
        if let (Some(left), None) = (stays, &self.ignored) {
            return Verdict::Longer(left);
        }
        let end = self.now + stays.unwrap_or(ttl);
        if let Some(mine) = self.lock.holders.get_mut(token) {
            mine.end = Some(end);
        }
        if beside_setnx {
            self.lock.owner = Some((token.clone(), end));
        }
        self.moved |= left.is_none_or(|left| self.now + left > end);
        let put_back = self.ignored.take().is_some();
        Verdict::Kept { asked_by: self.lock.asked.get(&token.id()).cloned(), put_back }
    }

    /// Returns whether a token holds the lock by the grant with this fence, as far as that is known: not by a later one.
    fn has_by(&self, token: &T, fence: u64) -> bool {
        let is_alone = self.lock.generation.is_none();
        self.holds(token).is_some_and(|mine| if is_alone { self.lock.fence } else { mine.fence } <= fence)
    }

    fn release(&mut self, token: &T, by: Option<&T>, record: Option<&Record<T>>) -> Verdict<T> {
        let mine = self.holds(token).copied();
        let is_mine = mine.is_some();
        if let (Some(Holder { end, .. }), Some(by)) = (mine, by)
            && self.world.hears_of_loss(token)
        {
            let until = end.unwrap_or(u64::MAX).min(self.now + NOTED_FOR);
            if until > self.now {
                self.lock.broken = Some(Broken { of: token.id(), by: by.clone(), until });
            }
        }
        if !is_mine {
            self.find_breaker(token);
        }
        self.dequeue(token);
        if token.supersedes() {
            self.lock.superseding.forget(token);
        }
        self.lock.owner.take_if(|(owner, _)| owner == token);
        if is_mine {
            self.drop(token);
        }
        // A reservation that came while the caller gave up passes on to the next.
        if is_mine || self.fits(0) {
            self.serve(0);
        }
        if let Some(record) = record {
            self.note_end(token, record, !is_mine);
        }
        let next = self.lock.holders.keys().next().filter(|_| self.lock.generation.is_none());
        if is_mine { Verdict::Released(next.cloned()) } else { Verdict::NotYours }
    }

    /// Tells the caller who has broken its claim, once.
    fn find_breaker(&mut self, token: &T) {
        self.broken_by = self.lock.broken.take_if(|broken| broken.of == token.id()).map(|broken| broken.by);
    }

    fn record(&mut self, token: &T, record: &Record<T>) -> Verdict<T> {
        let has_lost = self.holds(token).is_none();
        self.note_end(token, record, has_lost);
        Verdict::Recorded
    }

    /// Of an exclusive lock, only the holder can be asked; among those who share one, whoever it may be.
    fn ask(&mut self, of: &T::Id, by: &T, back: bool) -> Verdict<T> {
        let is_held = match self.lock.generation {
            Some(_) => !self.lock.holders.is_empty(),
            None => self.lock.holders.keys().any(|token| token.id() == *of),
        };
        if !is_held {
            return Verdict::NotYours;
        }
        if !back {
            self.lock.asked.insert(of.clone(), by.clone());
        } else if self.lock.asked.get(of) == Some(by) {
            self.lock.asked.remove(of);
        }
        Verdict::Asked
    }
}

/// Returns the fence of the next grant: above the last, and not below the clock, in case that was lost.
fn next_fence(last: u64, wall_us: u64) -> u64 {
    if last < FENCE_MAX { wall_us.max(last + 1) } else { wall_us }
}

impl<T: Clone + Ord> Superseding<T> {
    /// Dismisses all with tickets up to this one, unless later ones are dismissed already.
    fn dismiss_up_to(&mut self, ticket: u64, by: &T) {
        if self.dismissed.as_ref().is_none_or(|(last, _)| *last < ticket) {
            self.dismissed = Some((ticket, by.clone()));
        }
    }

    /// Forgets one that leaves; and all that is known, if nobody is left who could ask.
    fn forget(&mut self, token: &T) {
        self.noted.remove(token);
        self.newest.take_if(|(_, newest)| newest == token);
        if self.newest.is_none() && self.noted.is_empty() && !self.more {
            self.dismissed = None;
        }
    }
}

impl<T: Claimant> Runs<T> {
    fn line_of(&self, who: &T) -> Option<usize> {
        self.ended.iter().position(|run| run.who == *who)
    }

    /// Removes the first lines, as far as there are more than this.
    fn keep(&mut self, most: usize) {
        self.ended.drain(..self.ended.len().saturating_sub(most));
    }
}

impl<T: Claimant> Run<T> {
    fn vanished(who: &T, begun: Begun) -> Run<T> {
        Run { who: who.clone(), begun, ended: None, end: T::End::VANISHED }
    }
}
