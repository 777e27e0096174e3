//! A place where locks live: the contract, its answers, and its trouble.
//!
//! An answer is a value; an error means that the truth is unknown, and nothing may turn "I could
//! not find out" into "free", "held" or success.

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
use crate::duration::jittered;
use crate::error::Error;
use crate::lock::{Claim, HolderId, Lease, LockName, LockState, Owner, StateKind, Ttl};
use crate::text::Tainted;
use crate::wait::{Limit, Woken};

#[cfg(fuzzing)]
pub use local::files;
pub use open::open;
pub use probe::Finding;
pub use probe::Probed;
pub use probe::ProbedServer;
pub use probe::Verdict;
pub use redis::credentials::Credentials;
pub use redis::tls::TlsFiles;
pub use scan::Page;
pub use scan::ScanCursor;
pub use url::Target;
pub use url::here;

/// One authority over locks. A value of this speaks to it from one thread.
pub trait Store: Send {
    /// Asks for a lock. Asking again with the same token is the same question: it is granted again
    /// to whoever has it already. Several servers are asked with a new token each time, which is then that of `hold`.
    fn acquire(&mut self, claim: &mut Claim, ttl: Ttl, mode: AcquireMode, limit: Limit<'_>) -> Result<Acquired, Error>;

    /// After an `acquire` that was not granted: waits until it is worth asking again.
    fn pause(&mut self, limit: Limit<'_>) -> Woken;

    /// Moves the expiry to a full ttl from now, if the lock is still held with this token; but never nearer, if
    /// the holder may renew it and is somebody else ([`Claim::may_shorten`]).
    fn renew(&mut self, claim: &Claim, ttl: Ttl, limit: Limit<'_>) -> Result<Renewed, Error>;

    /// Moves the expiry as `renew` does, for the last time: from now on nothing but that ends the
    /// claim, whoever is gone.
    fn let_end(&mut self, claim: &Claim, rest: Ttl, limit: Limit<'_>) -> Result<Renewed, Error> {
        self.renew(claim, rest, limit)
    }

    /// Gives the lock back, if it is still held with this token. Also undoes an `acquire` whose
    /// answer is outstanding.
    fn release(&mut self, claim: &Claim, limit: Limit<'_>) -> Result<Released, Error>;

    /// Leaves a claim to somebody else, who releases it: when this returns, no request is outstanding that could set the
    /// key again.
    fn leave(&mut self, _claim: &Claim) {}

    /// Takes a lock from the holder known as `id`, if it is still the one that has it.
    fn break_lock(&mut self, name: &LockName, id: &HolderId, limit: Limit<'_>) -> Result<Released, Error>;

    /// Who has a lock.
    fn inspect(&mut self, name: &LockName, limit: Limit<'_>) -> Result<LockStatus, Error>;

    /// The names of all locks that exist, in order.
    fn names(&mut self, limit: Limit<'_>) -> Result<Vec<LockName>, Error>;

    /// The next of all locks that exist and how each stands, in any order; a page may be empty, and none is the
    /// end. One may come twice, and then counts as it came last.
    fn list_page(&mut self, list_page: &mut ScanCursor, limit: Limit<'_>) -> Result<Option<Page>, Error> {
        if !list_page.has_begun {
            list_page.names = self.names(limit)?;
            list_page.has_begun = true;
        }
        let Some(name) = list_page.names.last() else { return Ok(None) };
        let status = self.inspect(name, limit)?;
        Ok(Some(list_page.names.pop().map(|name| (name, status)).into_iter().collect()))
    }

    /// Looks at whatever could endanger locks there, and tries one. `limit` is for meeting the authority; after
    /// that each question has the store's own bound on a reply.
    ///
    /// # Errors
    /// If there is nobody to be met. What cannot be found out later is a finding.
    fn probe(&mut self, limit: Limit<'_>) -> Result<Probed, Error>;

    /// A descriptor that keeps the claim for as long as any process has it open, where there is one. It belongs to the
    /// store.
    fn claim_fd(&self) -> Option<RawFd> {
        None
    }

    /// Readable when the connection to the authority has ended, where there is one.
    fn disconnect_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Whether the server that has the lock is only about to become responsible for it, as its last answer showed:
    /// if the cluster calls the move off, the lock is lost without a word.
    fn may_be_called_off(&self) -> bool {
        false
    }
}

/// How to ask for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireMode {
    /// Without waiting, and behind everybody who waits.
    Once,
    /// Standing in line if it is not granted.
    Queue,
    /// As a plain `SET NX` would: granted whenever it is free, whoever waits.
    Plain,
}

pub enum Acquired {
    Granted(Lease),
    Held(LockState, QueuePlace),
}

/// A place in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    /// From 1; 0 for who is not in it.
    pub position: usize,
    pub length: usize,
}

pub enum Renewed {
    Until(Moment),
    /// The same, after an old `SETNX` client had written over it.
    PutBack(Moment),
    /// Its expiry is this far away, further than was asked for: left as it was.
    Longer(Duration),
    NotYours(LockState),
}

pub enum Released {
    Done,
    NotYours(LockState),
}

/// How a name stands: who has it, and who waits.
pub struct LockStatus {
    pub state: LockState,
    pub queue: Vec<Waiter>,
}

/// Who waits for a lock, for people to read.
pub struct Waiter {
    /// From 1.
    pub position: usize,
    pub id: HolderId,
    pub owner: Owner,
    pub waiting: Duration,
    pub reason: Option<Tainted>,
}

impl LockStatus {
    pub fn is_free(&self) -> bool {
        self.state.kind == StateKind::Free
    }

    /// Whether it could not be found out.
    pub fn is_unknown(&self) -> bool {
        matches!(self.state.kind, StateKind::Unknown | StateKind::Damaged)
    }
}

/// How soon to ask again for who does not stand in line: between 50 and 150 ms, so that pollers do not
/// come in step, but no later than the lease ends.
fn poll_pause(occupied: &LockState) -> Duration {
    let poll = jittered(Duration::from_millis(100));
    occupied.ttl.map_or(poll, |ttl| poll.min(ttl + Duration::from_millis(1)))
}
