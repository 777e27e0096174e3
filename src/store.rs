//! A place where locks live: the contract, its answers, and its trouble.
//!
//! An answer is a value; an error means that the truth is unknown, and nothing may turn "I could
//! not find out" into "free", "held" or success.

mod access;
pub mod connect;
mod dial;
mod distinct;
mod endpoint;
mod examine;
mod ladder;
mod line;
mod local;
mod quorum;
mod reply;
mod route;
mod script;
mod secure;
mod server;
mod several;
mod survey;
mod target;
mod wire;

use std::fmt;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use crate::clock::Moment;
use crate::limit::{Limit, Woken};
use crate::lock::{Hold, HolderId, Lease, LockName, Occupancy, Owner, Prefix, State, Ttl};
use crate::say::Tainted;
use crate::wait::jittered;

pub use access::{Access, TlsFiles};
pub use examine::{Examination, Examined, Finding, Verdict};
#[cfg(fuzzing)]
pub use local::files;
pub use survey::{Page, Survey};
pub use target::{Target, here};

/// One authority over locks. A value of this speaks to it from one thread.
pub trait Store: Send {
    /// Asks for a lock. Asking again with the same token is the same question: it is granted again
    /// to whoever has it already. Several servers are asked with a new token each time, which is then that of `hold`.
    fn acquire(&mut self, hold: &mut Hold, ttl: Ttl, manner: Manner, limit: Limit<'_>) -> Result<Acquired, Trouble>;

    /// After an `acquire` that was not granted: waits until it is worth asking again.
    fn pause(&mut self, limit: Limit<'_>) -> Woken;

    /// Moves the expiry to a full ttl from now, if the lock is still held with this token; but never nearer, if
    /// the holder may renew it and is somebody else ([`Hold::may_shorten`]).
    fn renew(&mut self, hold: &Hold, ttl: Ttl, limit: Limit<'_>) -> Result<Renewed, Trouble>;

    /// Moves the expiry as `renew` does, for the last time: from now on nothing but that ends the
    /// claim, whoever is gone.
    fn let_end(&mut self, hold: &Hold, rest: Ttl, limit: Limit<'_>) -> Result<Renewed, Trouble> {
        self.renew(hold, rest, limit)
    }

    /// Gives the lock back, if it is still held with this token. Also undoes an `acquire` whose
    /// answer is outstanding.
    fn release(&mut self, hold: &Hold, limit: Limit<'_>) -> Result<Released, Trouble>;

    /// Takes a lock from the holder known as `id`, if it is still the one that has it.
    fn take_away(&mut self, name: &LockName, id: &HolderId, limit: Limit<'_>) -> Result<Released, Trouble>;

    /// Who has a lock.
    fn inspect(&mut self, name: &LockName, limit: Limit<'_>) -> Result<Standing, Trouble>;

    /// The names of all locks that exist, in order.
    fn names(&mut self, limit: Limit<'_>) -> Result<Vec<LockName>, Trouble>;

    /// The next of all locks that exist and how each stands, in any order; a page may be empty, and none is the
    /// end. One may come twice, and then counts as it came last.
    fn survey(&mut self, survey: &mut Survey, limit: Limit<'_>) -> Result<Option<Page>, Trouble> {
        if !survey.has_begun {
            survey.names = self.names(limit)?;
            survey.has_begun = true;
        }
        let Some(name) = survey.names.last() else { return Ok(None) };
        let standing = self.inspect(name, limit)?;
        Ok(Some(survey.names.pop().map(|name| (name, standing)).into_iter().collect()))
    }

    /// Looks at whatever could endanger locks there, and tries one. `limit` is for meeting the authority; after
    /// that each question has the store's own bound on a reply.
    ///
    /// # Errors
    /// If there is nobody to be met. What cannot be found out later is a finding.
    fn examine(&mut self, limit: Limit<'_>) -> Result<Examination, Trouble>;

    /// A descriptor that keeps the claim for as long as any process has it open, where there is one. It belongs to the
    /// store.
    fn claim_fd(&self) -> Option<RawFd> {
        None
    }

    /// Readable when the connection to the authority has ended, where there is one.
    fn lifeline(&self) -> Option<BorrowedFd<'_>>;
}

/// How to ask for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Without waiting, and behind everybody who waits.
    Once,
    /// Standing in line if it is not granted.
    Queue,
    /// As a plain `SET NX` would: granted whenever it is free, whoever waits.
    Plain,
}

pub enum Acquired {
    Granted(Lease),
    Held(Occupancy, Place),
}

/// A place in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
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
    NotYours(Occupancy),
}

pub enum Released {
    Done,
    NotYours(Occupancy),
}

/// How a name stands: who has it, and who waits.
pub struct Standing {
    pub occupancy: Occupancy,
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

impl Standing {
    pub fn is_free(&self) -> bool {
        self.occupancy.state == State::Free
    }

    /// Whether it could not be found out.
    pub fn is_unknown(&self) -> bool {
        matches!(self.occupancy.state, State::Unknown | State::Damaged)
    }
}

/// Why we could not find out.
#[derive(Clone, Debug)]
pub struct Trouble {
    pub kind: Kind,
    /// What was being done, where: `cannot acquire "deploy" at redis://cache:6379`.
    pub tried: String,
    /// What came back.
    pub came: String,
    /// What to do about it.
    pub remedy: String,
}

/// What can be done about trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No answer, and no byte of a request left this machine: nothing happened. Asking again may help.
    Unreachable,
    /// No answer to a request that may have been carried out. Asking again may help.
    Unanswered,
    /// A "not now": asking again later may help.
    Unwilling,
    /// There is an answer, and it is not one to rely on: a certificate that nobody we trust vouches for, a grant
    /// that too few replicas have.
    Untrusted,
    /// A "no" that stays no: wrong password, no permission.
    Refused,
    /// Something that was set up wrongly: no server named, a bad URL.
    Misconfigured,
    /// The key holds something that cannot be a lock.
    WrongType,
    /// What was asked for makes no sense.
    Usage,
    /// Our own failure.
    Broken,
}

impl Trouble {
    /// A failure of our own.
    pub fn of_ours(tried: &str, came: &impl ToString) -> Trouble {
        Trouble { kind: Kind::Broken, tried: tried.into(), came: came.to_string(), remedy: String::new() }
    }

    /// The same trouble for a request that changes nothing: it does not matter whether it was carried out.
    pub fn of_a_read(self) -> Trouble {
        Trouble { kind: if self.kind == Kind::Unanswered { Kind::Unreachable } else { self.kind }, ..self }
    }

    /// Whether asking again may help.
    pub fn may_pass(&self) -> bool {
        matches!(self.kind, Kind::Unreachable | Kind::Unanswered | Kind::Unwilling)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.tried, self.came)
    }
}

impl std::error::Error for Trouble {}

/// Opens the store that a target names. Nothing is asked of it yet.
///
/// A grant counts only once so many replicas of a server have it.
pub fn open(target: Target, prefix: Prefix, timeout: Duration, min_replicas: u32) -> Box<dyn Store> {
    match target {
        Target::Redis(route) => Box::new(server::Server::new(route, prefix, timeout, min_replicas)),
        Target::Quorum(endpoints) => Box::new(quorum::Quorum::new(endpoints, prefix, timeout)),
        Target::Local(directory) => Box::new(local::Local::new(directory, prefix, timeout)),
    }
}

/// How soon to ask again for who does not stand in line: between 50 and 150 ms, so that pollers do not
/// come in step, but no later than the lease ends.
fn poll_pause(occupied: &Occupancy) -> Duration {
    let poll = jittered(Duration::from_millis(100));
    occupied.ttl.map_or(poll, |ttl| poll.min(ttl + Duration::from_millis(1)))
}
