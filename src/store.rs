//! The `Store` trait: what a lock store does, and what it returns. Knows no protocol and no file format.
//!
//! A returned value is a fact. An error means that the truth is unknown, and nothing may turn "I could not find out"
//! into "free", "held" or success.

mod local;
mod open;
mod probe;
mod quorum;
mod redis;
mod scan;
mod several;
mod url;

use std::collections::BTreeSet;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use crate::clock::Moment;
use crate::descriptors::CommandFile;
use crate::duration::jittered;
use crate::error::Error;
use crate::lock::{
    Asker, Claim, Fence, HolderId, Lease, LockName, LockState, Owner, Prefix, Recorded, Run, StateKind, Terms, Told,
    Ttl,
};
use crate::text::Tainted;
use crate::wait::{Limit, Woken};

#[cfg(fuzzing)]
pub use local::parsers as files;
pub use open::open;
pub use probe::{Finding, Probed, ProbedServer, Verdict};
pub use redis::credentials::{Credentials, PasswordSource};
pub use redis::tls::TlsFiles;
pub use scan::{Page, ScanCursor};
pub use several::Several;
pub use url::{Target, here};

/// A lock store: a server, a quorum of servers or a directory. One thread uses it at a time.
pub trait Store: Send {
    /// Carries out an operation. The functions of `dyn Store` say what each does, and take its reply.
    fn step(&mut self, op: Op<'_>, limit: Limit<'_>) -> Result<Reply, Error>;

    /// After an `acquire` that was not granted, waits until it is worth retrying.
    fn pause(&mut self, limit: Limit<'_>) -> Woken;

    /// Returns the next of what is listed, in any order; a page may be empty, and `None` is the end. A lock may occur
    /// twice: the later status counts.
    fn page(&mut self, listed: Listed, cursor: &mut ScanCursor, limit: Limit<'_>) -> Result<Option<Page>, Error>;

    /// Checks for risks to locks, and tries a lock. `limit` covers reaching the store; after that the store's own
    /// timeout applies to each reply.
    ///
    /// # Errors
    /// If the store cannot be reached. Later failures are findings.
    fn probe(&mut self, limit: Limit<'_>) -> Result<Probed, Error>;

    /// Opens the files for the command to inherit, if the store has any. From the moment that the command's process has
    /// taken the lock on one, and while a process has that open file, nobody else gets the lock that it belongs to, whatever
    /// becomes of nxlock, its guard and the lease, unless the lock is released.
    ///
    /// # Errors
    /// If one cannot be opened. No command must begin then.
    fn command_files(&self) -> Result<Vec<CommandFile>, Error> {
        Ok(Vec::new())
    }

    /// Returns what a holder is told at once, without waiting, and forgets it.
    fn news(&mut self) -> News {
        News::default()
    }

    /// Returns what a holder watches, or a waiter.
    fn watch(&self) -> Watch<'_> {
        Watch::default()
    }

    /// Returns whether locks there may be used like this.
    fn can(&self, feature: Feature) -> bool;
}

/// An operation on a lock.
pub enum Op<'a> {
    Acquire(&'a mut Claim, Ttl, AcquireMode),
    Renew(&'a Claim, Ttl, Renewing<'a>),
    LetEnd(&'a Claim, Ttl),
    Release(&'a Claim),
    Leave(&'a Claim, Option<&'a LockName>, Option<Fence>),
    Listen(&'a Claim),
    Break(&'a LockName, &'a Asker),
    Ask(&'a LockName, &'a Asker, Asking),
    Look(&'a LockName, Look<'a>),
    History(&'a LockName),
    Doubts,
}

/// The reply to an operation.
pub enum Reply {
    Acquired(Acquired),
    Renewed(Renewed),
    Released(Released),
    Left(()),
    Listening(bool),
    Asked(()),
    Seen(Box<LockStatus>),
    History(Recorded),
    Doubts(Vec<String>),
}

/// What to look at.
#[derive(Clone, Copy)]
pub enum Look<'a> {
    /// The holders, the waiters, and the last recorded runs.
    All,
    /// The holders and the waiters; the holder known as this is listed even where there are more than are listed.
    Holder(&'a HolderId),
    /// The holders, for people to read.
    Holders,
}

/// What a store can list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// All locks, with their status; a free one may be listed, and is if it has recorded runs.
    Locks,
    /// The names of the locks that are held.
    Held,
    /// The names of the locks that are held or have recorded runs.
    Names,
    /// The names of the locks that have recorded runs.
    Histories,
}

/// What a holder watches, or a waiter.
#[derive(Default)]
pub struct Watch<'a> {
    /// Descriptors each of which keeps a claim until its lease ends while nxlock or its guard has it open, if the store has
    /// any. The store owns them.
    pub claim_fds: Vec<RawFd>,
    /// Descriptors one of which is readable when [`Store::news`] may have something, if there are any.
    pub news_fds: Vec<BorrowedFd<'a>>,
    /// To listen may be of use.
    pub may_listen: bool,
    /// One thing more would take the lock away, as the last answer showed. The server that has it is only about to become
    /// responsible for it: if the cluster calls the move off, the lock is lost without a word. Or one of several servers has
    /// lost its vote.
    pub is_at_risk: bool,
    /// A waiter is woken when it is its turn.
    pub hears: bool,
    /// It has been woken, and has not asked since.
    pub was_called: bool,
    /// When one of several locks is to be renewed that is held while another is waited for: by a request for all.
    pub renews_at: Option<Moment>,
}

/// What a holder is told at once.
#[derive(Default)]
pub struct News {
    /// A connection to a server has ended: the server may have forgotten the claim.
    pub is_disconnected: bool,
    /// The keys of the locks to which something has happened, or of whose holder somebody wants something: a renewal tells.
    pub keys: BTreeSet<String>,
}

impl News {
    pub fn of(key: String) -> News {
        News { keys: BTreeSet::from([key]), ..News::default() }
    }

    pub fn is_none(&self) -> bool {
        !self.is_disconnected && self.keys.is_empty()
    }

    pub fn add(&mut self, other: News) {
        self.is_disconnected |= other.is_disconnected;
        self.keys.extend(other.keys);
    }
}

/// Which of several locks to renew.
#[derive(Clone, Copy)]
pub enum Renewing<'a> {
    All,
    /// Those with these keys, and those that were not renewed before.
    Only(&'a BTreeSet<String>),
}

/// What has to have a grant before it counts, beside the server that gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durability {
    /// So many of its replicas.
    pub replicas: u32,
    /// The disk of the server and, of so many replicas, theirs.
    pub on_disk: bool,
}

/// How a store is used.
#[derive(Clone)]
pub struct StoreOptions {
    pub prefix: Prefix,
    /// Bound on one connect, on one reply, and on the wait for a file that another process has locked.
    pub timeout: Duration,
    /// A grant counts only once it has that.
    pub durability: Durability,
}

/// What not every store can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// A grant that counts only once replicas have it.
    Replicas,
    /// A grant that counts only once it is on disk.
    Disk,
    /// A key shared with old `SETNX` clients.
    Setnx,
    Sharing,
    /// A queue of waiters.
    Queue,
    Superseding,
    /// Waiters that are ahead of the others.
    Order,
    Asking,
    Recording,
}

/// Takes the reply to an operation out of the replies to all.
macro_rules! reply {
    ($step:expr, $reply:ident) => {
        match $step? {
            Reply::$reply(reply) => Ok(reply),
            _ => Err(Error::internal("cannot use the store", &"it replies to another operation")),
        }
    };
}

impl dyn Store + '_ {
    /// Requests a lock. Repeating a request with the same token is idempotent: the store grants the lock again to the
    /// token that holds it. A quorum uses a new token for each request and stores it in `claim`. The answer that grants
    /// nothing says whether the claimant would wait for itself: where that is not known, it is an error.
    pub fn acquire(
        &mut self,
        claim: &mut Claim,
        ttl: Ttl,
        mode: AcquireMode,
        limit: Limit<'_>,
    ) -> Result<Acquired, Error> {
        reply!(self.step(Op::Acquire(claim, ttl, mode), limit), Acquired)
    }

    /// Moves the expiry to a full ttl from now, if this token still holds the lock; but never nearer, if another
    /// process may renew the lock and counts on it ([`Claim::may_shorten`]).
    pub fn renew(&mut self, claim: &Claim, ttl: Ttl, limit: Limit<'_>) -> Result<Renewed, Error> {
        self.renew_some(claim, ttl, Renewing::All, limit)
    }

    /// Does the same for some of several locks, and returns what follows for all. A cancellation ends the round: the renewal
    /// in flight is finished, and no other begins. For a single lock it ends the wait for the reply.
    pub fn renew_some(
        &mut self,
        claim: &Claim,
        ttl: Ttl,
        which: Renewing<'_>,
        limit: Limit<'_>,
    ) -> Result<Renewed, Error> {
        reply!(self.step(Op::Renew(claim, ttl, which), limit), Renewed)
    }

    /// Moves the expiry as `renew` does, for the last time: from now on the claim ends only when it expires, even if
    /// its holder dies. Records the end of its run, as `release` does.
    pub fn let_end(&mut self, claim: &Claim, rest: Ttl, limit: Limit<'_>) -> Result<Renewed, Error> {
        reply!(self.step(Op::LetEnd(claim, rest), limit), Renewed)
    }

    /// Releases the lock, if this token still holds it, and records the end of its run, if it is to be recorded and has
    /// ended. Also undoes an `acquire` whose reply is outstanding.
    pub fn release(&mut self, claim: &Claim, limit: Limit<'_>) -> Result<Released, Error> {
        reply!(self.step(Op::Release(claim), limit), Released)
    }

    /// Releases a lock in place of the holder that the breaker names, if it is still the holder. Where the store can, that
    /// one finds out who did so when it next renews or releases the lock.
    pub fn break_lock(&mut self, name: &LockName, breaker: &Asker, limit: Limit<'_>) -> Result<Released, Error> {
        reply!(self.step(Op::Break(name, breaker), limit), Released)
    }

    /// Asks a holder to give a lock up, or takes that back if the holder has not found it: it finds the asker's token when
    /// it renews the lock. The request may be forgotten after a minute; to repeat it renews it.
    pub fn ask(&mut self, name: &LockName, asker: &Asker, asking: Asking, limit: Limit<'_>) -> Result<(), Error> {
        reply!(self.step(Op::Ask(name, asker, asking), limit), Asked)
    }

    /// Returns the holders and the waiters of a lock, or some of them.
    pub fn look(&mut self, name: &LockName, what: Look<'_>, limit: Limit<'_>) -> Result<LockStatus, Error> {
        reply!(self.step(Op::Look(name, what), limit), Seen).map(|seen| *seen)
    }

    /// Returns the names of what is listed, sorted.
    pub fn names(&mut self, listed: Listed, limit: Limit<'_>) -> Result<Vec<LockName>, Error> {
        let (mut cursor, mut names) = (ScanCursor::default(), Vec::new());
        while let Some(page) = self.page(listed, &mut cursor, limit)? {
            names.extend(page.into_iter().map(|(name, _)| name));
        }
        // SCAN may return a key twice, and so may two servers of which one migrates its keys to the other.
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Returns the recorded runs of a lock.
    pub fn history(&mut self, name: &LockName, limit: Limit<'_>) -> Result<Recorded, Error> {
        reply!(self.step(Op::History(name), limit), History)
    }

    /// Returns warnings about the statuses that the store has returned: that a replica shows them, or that something of
    /// them is not known.
    ///
    /// # Errors
    /// If they come from a replica that does not hear from its master: they may be of any age.
    pub fn doubts(&mut self, limit: Limit<'_>) -> Result<Vec<String>, Error> {
        reply!(self.step(Op::Doubts, limit), Doubts)
    }

    /// Leaves a claim to another process: that to the lock with this name, and if the claim has others, they are given back;
    /// without a name, all of it. `fence` is that of its own grant, if it has one. On return, no request is outstanding that
    /// could grant the lock anew, or the server will undo that behind it, as far as the store can.
    pub fn leave(&mut self, claim: &Claim, name: Option<&LockName>, fence: Option<Fence>) {
        // Nothing that could fail is waited for.
        let _ = self.step(Op::Leave(claim, name, fence), Limit::NONE);
    }

    /// Has the store tell a holder at once what happens to its claim, as far as it can, until the connection ends. Returns
    /// whether to renew now: something may have happened before, or the connection was lost by this.
    pub fn listen(&mut self, claim: &Claim, limit: Limit<'_>) -> bool {
        // What fails is that nothing is told.
        matches!(self.step(Op::Listen(claim), limit), Ok(Reply::Listening(true)))
    }
}

/// How to request a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireMode {
    /// Without waiting, and after all waiters.
    Once,
    /// Joining the queue if the lock is not granted.
    Queue,
    /// Like a plain `SET NX`: granted whenever the lock is free, regardless of waiters.
    Plain,
}

pub enum Acquired {
    Granted(Lease),
    /// Granted, but the lease had ended before all was done that belongs to a grant: nothing is held.
    TooLate,
    Held(LockState, QueuePlace),
    /// The lock is not granted, and a run that the claimant is part of holds it, alone or with others
    /// ([`Claim::enclosing`]): the claimant would wait for itself. It may be in the queue all the same.
    Nested(LockState, QueuePlace),
    /// Too few of several servers answer: those that do not could still grant it. The state shows the votes that are
    /// known, the error the servers that are silent.
    Undecided(LockState, Error),
    /// A newer waiter has dismissed this one: it does not wait any more, nothing is granted to its token, and nothing of
    /// it is left in the store.
    Superseded(Box<Told>, LockState, QueuePlace),
    /// Another run has done what was to be done, recently enough: nothing is granted to the requester. It may still be in
    /// the queue.
    Done(Box<Run>, LockState, QueuePlace),
    /// Of several locks, one that had been granted was lost before all were.
    Lost(LockState),
    /// Of several locks, that with this name had been granted, and a process asks for it before all are.
    Asked(Box<Told>, LockName),
}

/// A place in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePlace {
    /// From 1; 0 if not in the queue.
    pub position: usize,
    pub length: usize,
}

/// What is asked of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asking {
    ToGiveUp,
    /// Not to give up, if it has not been told yet.
    NoMore,
}

pub enum Renewed {
    Kept(Kept),
    /// The remaining time, longer than requested: the store left it unchanged.
    Longer(Duration),
    NotYours(LockState),
}

/// A lease that was renewed.
pub struct Kept {
    pub until: Moment,
    /// An old `SETNX` client had overwritten the key.
    pub put_back: bool,
    /// The one that asks the holder to give up, the same each time.
    pub asked_by: Option<Box<Told>>,
    /// Of several locks, the one that is asked for.
    pub wanted: Option<LockName>,
}

impl Kept {
    /// Returns a lease until then, of which nothing else is to be said.
    pub fn until(until: Moment) -> Kept {
        Kept { until, put_back: false, asked_by: None, wanted: None }
    }
}

pub enum Released {
    Done,
    NotYours(LockState),
    /// The same, and no earlier request of the claim has released it.
    Lost(LockState),
}

/// The status of a lock: its state, its queue and its recorded runs.
pub struct LockStatus {
    pub state: LockState,
    pub queue: Vec<Waiter>,
    /// False if nobody tells who waits: a server that runs no scripts, and several servers, have no queue.
    pub knows_waiters: bool,
    /// None if they are not known, or nobody has asked for them.
    pub recorded: Option<Recorded>,
}

/// A waiter of a lock, for people to read.
pub struct Waiter {
    /// From 1.
    pub position: usize,
    pub id: HolderId,
    pub owner: Owner,
    pub waiting: Duration,
    pub reason: Option<Tainted>,
    pub terms: Terms,
}

impl LockStatus {
    pub fn is_free(&self) -> bool {
        self.state.kind == StateKind::Free
    }

    /// Returns whether runs are recorded beside the lock.
    pub fn has_record(&self) -> bool {
        self.recorded.as_ref().is_some_and(|recorded| !recorded.is_empty())
    }

    /// Returns whether the state could not be determined.
    pub fn is_unknown(&self) -> bool {
        matches!(self.state.kind, StateKind::Unknown | StateKind::Damaged)
    }
}

/// Returns the pause before a retry without a place in the queue: 50 to 150 ms at random, to keep pollers out of step,
/// but no longer than the lease lasts.
fn poll_pause(occupied: &LockState) -> Duration {
    let poll = jittered(Duration::from_millis(100));
    occupied.expiry.left().map_or(poll, |ttl| poll.min(ttl + Duration::from_millis(1)))
}
