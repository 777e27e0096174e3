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
mod url;

use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use crate::clock::Moment;
use crate::descriptors::CommandFile;
use crate::duration::jittered;
use crate::error::Error;
use crate::lock::{Asker, Claim, HolderId, Lease, LockName, LockState, Owner, Run, StateKind, Terms, Told, Ttl};
use crate::text::Tainted;
use crate::wait::{Limit, Woken};

#[cfg(fuzzing)]
pub use local::files;
pub use open::open;
pub use probe::{Finding, Probed, ProbedServer, Verdict};
pub use redis::credentials::Credentials;
pub use redis::tls::TlsFiles;
pub use scan::{Page, ScanCursor};
pub use url::{Target, here};

/// A lock store: a server, a quorum of servers or a directory. One thread uses it at a time.
pub trait Store: Send {
    /// Requests a lock. Repeating a request with the same token is idempotent: the store grants the lock again to the
    /// token that holds it. A quorum uses a new token for each request and stores it in `claim`. The answer that grants
    /// nothing says whether the claimant would wait for itself: where that is not known, it is an error.
    fn acquire(&mut self, claim: &mut Claim, ttl: Ttl, mode: AcquireMode, limit: Limit<'_>) -> Result<Acquired, Error>;

    /// After an `acquire` that was not granted, waits until it is worth retrying.
    fn pause(&mut self, limit: Limit<'_>) -> Woken;

    /// Moves the expiry to a full ttl from now, if this token still holds the lock; but never nearer, if another
    /// process may renew the lock and counts on it ([`Claim::may_shorten`]).
    fn renew(&mut self, claim: &Claim, ttl: Ttl, limit: Limit<'_>) -> Result<Renewed, Error>;

    /// Moves the expiry as `renew` does, for the last time: from now on the claim ends only when it expires, even if
    /// its holder dies. Records the end of its run, as `release` does.
    fn let_end(&mut self, claim: &Claim, rest: Ttl, limit: Limit<'_>) -> Result<Renewed, Error> {
        self.renew(claim, rest, limit)
    }

    /// Releases the lock, if this token still holds it, and records the end of its run, if it is to be recorded and has
    /// ended. Also undoes an `acquire` whose reply is outstanding.
    fn release(&mut self, claim: &Claim, limit: Limit<'_>) -> Result<Released, Error>;

    /// Leaves the claim for another process to release. On return, no request is outstanding that could set the key
    /// again.
    fn leave(&mut self, _claim: &Claim) {}

    /// Releases a lock that the holder known as `id` has, if it is still the holder.
    fn break_lock(&mut self, name: &LockName, id: &HolderId, limit: Limit<'_>) -> Result<Released, Error>;

    /// Asks a holder to give a lock up: it finds the asker's token when it renews the lock. `rest` is the rest of its lease:
    /// if it has not renewed the lock by then, the lock is not its own any more. The request may be forgotten after a
    /// minute; to repeat it renews it.
    fn ask_to_give_up(&mut self, name: &LockName, asker: &Asker, rest: Duration, limit: Limit<'_>)
    -> Result<(), Error>;

    /// Takes a request back, if the holder has not found it.
    fn ask_no_more(&mut self, name: &LockName, asker: &Asker, limit: Limit<'_>) -> Result<(), Error>;

    /// Returns who has asked the holder of a claim to give it up, if somebody has since the last call.
    fn asker(&mut self, claim: &Claim, limit: Limit<'_>) -> Result<Option<Told>, Error>;

    /// Returns the holder and the waiters of a lock.
    fn inspect(&mut self, name: &LockName, limit: Limit<'_>) -> Result<LockStatus, Error>;

    /// Does the same; the holder known as `id` is listed even where there are more holders than are listed.
    fn inspect_holder(&mut self, name: &LockName, _id: &HolderId, limit: Limit<'_>) -> Result<LockStatus, Error> {
        self.inspect(name, limit)
    }

    /// Returns the state of a lock with its holders, for people to read.
    fn holders(&mut self, name: &LockName, limit: Limit<'_>) -> Result<LockState, Error> {
        Ok(self.inspect(name, limit)?.state)
    }

    /// Returns the recorded runs of a lock that have ended, or vanished, in any order.
    fn history(&mut self, name: &LockName, limit: Limit<'_>) -> Result<Vec<Run>, Error>;

    /// Returns warnings about the statuses that the store has returned: that a replica shows them, or that something of
    /// them is not known.
    ///
    /// # Errors
    /// If they come from a replica that does not hear from its master: they may be of any age.
    fn doubts(&mut self, _limit: Limit<'_>) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }

    /// Returns the names of all locks, sorted.
    fn names(&mut self, limit: Limit<'_>) -> Result<Vec<LockName>, Error>;

    /// Returns the names of the next locks that have recorded runs, in any order and perhaps twice; a page may be empty,
    /// and `None` is the end.
    fn recorded_page(&mut self, cursor: &mut ScanCursor, limit: Limit<'_>) -> Result<Option<Vec<LockName>>, Error>;

    /// Returns the next locks and their status, in any order; a page may be empty, and `None` is the end. A lock may
    /// occur twice: the later status counts.
    fn list_page(&mut self, cursor: &mut ScanCursor, limit: Limit<'_>) -> Result<Option<Page>, Error> {
        if !cursor.has_begun {
            cursor.names = self.names(limit)?;
            cursor.has_begun = true;
        }
        let Some(name) = cursor.names.last() else { return Ok(None) };
        let status = self.inspect(name, limit)?;
        Ok(Some(cursor.names.pop().map(|name| (name, status)).into_iter().collect()))
    }

    /// Checks for risks to locks, and tries a lock. `limit` covers reaching the store; after that the store's own
    /// timeout applies to each reply.
    ///
    /// # Errors
    /// If the store cannot be reached. Later failures are findings.
    fn probe(&mut self, limit: Limit<'_>) -> Result<Probed, Error>;

    /// Returns a descriptor that keeps the claim until its lease ends while nxlock or its guard has it open, if the store
    /// has one. The store owns it.
    fn claim_fd(&self) -> Option<RawFd> {
        None
    }

    /// Opens a file for the command to inherit, if the store has one. From the moment that the command's process has taken
    /// the lock on it, and while a process has that open file, nobody else gets the lock, whatever becomes of nxlock, its
    /// guard and the lease, unless the lock is released.
    ///
    /// # Errors
    /// If it cannot be opened. No command must begin then.
    fn command_file(&self) -> Result<Option<CommandFile>, Error> {
        Ok(None)
    }

    /// Returns a descriptor that is readable when the connection to the server has ended, if there is one.
    fn disconnect_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Whether the server that has the lock is only about to become responsible for it, as its last answer showed:
    /// if the cluster calls the move off, the lock is lost without a word.
    fn may_be_called_off(&self) -> bool {
        false
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
}

/// A place in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePlace {
    /// From 1; 0 if not in the queue.
    pub position: usize,
    pub length: usize,
}

pub enum Renewed {
    Until(Moment),
    /// The same, after an old `SETNX` client had overwritten the key.
    PutBack(Moment),
    /// The remaining time, longer than requested: the store left it unchanged.
    Longer(Duration),
    NotYours(LockState),
}

pub enum Released {
    Done,
    NotYours(LockState),
    /// The same, and no earlier request of the claim has released it.
    Lost(LockState),
}

/// The status of a lock: its state and its queue.
pub struct LockStatus {
    pub state: LockState,
    pub queue: Vec<Waiter>,
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
