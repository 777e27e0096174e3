//! What a search is about: how many clients, how they behave, what may go wrong, which scripts run.

use crate::model::{Acquired, Ask, Mode, Model, Released, Renewed, Token};
use crate::shares::{Shares, limit};

pub const FOREIGN: Token = 99;
pub const TTL: u64 = 3;
pub const GRACE: u64 = 2;
/// A lease that does not come any nearer to its end.
pub const ENDLESS: u64 = 200;

/// The scripts, so that a test may put a broken one in place of a true one.
#[derive(Clone, Copy)]
pub struct Server {
    pub acquire: fn(&mut Model, &Ask) -> Acquired,
    pub release: fn(&mut Model, Token) -> Released,
    pub renew: fn(&mut Model, Token, u64, bool) -> Renewed,
}

pub const TRUE: Server = Server { acquire: Model::acquire, release: Model::release, renew: Model::renew };

pub const BESIDE_SETNX: Server = Server {
    acquire: Model::acquire_beside_setnx,
    release: Model::release_beside_setnx,
    renew: Model::renew_beside_setnx,
};

pub const SHARING: Server = Server {
    acquire: |model, ask| match limit(ask.token) {
        Some(_) => model.acquire_share(ask),
        None => model.acquire(ask),
    },
    release: |model, token| match limit(token) {
        Some(_) => model.release_share(token),
        None => model.release(token),
    },
    renew: |model, token, ttl, prolong| match limit(token) {
        Some(_) => model.renew_share(token, ttl, prolong),
        None => model.renew(token, ttl, prolong),
    },
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Crash,
    /// One that waits, or whose request is on its way, does not.
    HolderCrashes,
    Freeze,
    LoseReply,
    LoseMail,
    ForeignSet,
    ForeignDel,
    Flush,
    /// A SETNX client has lost by GETSET, and its clock is slow.
    WriteOver,
    /// Somebody with the token, who does not keep the lock, asks for a ttl of one tick.
    RenewByVerb,
    /// The holder of a lock that nobody else keeps wants it for longer, or for no longer than a tick.
    Lengthen,
    Shorten,
    /// The server evicts the ends of all shares, or their terms.
    LoseShares,
    LoseTerms,
}

#[derive(Clone)]
pub struct Setting {
    pub modes: Vec<Mode>,
    /// With how many each shares the lock, 0 for any number; nothing if it is exclusive.
    pub limits: Vec<Option<usize>>,
    pub sessions: u8,
    pub lease: u64,
    pub heartbeat: Option<u64>,
    /// How many at the front of the queue watch the lock's expiry.
    pub watchers: usize,
    pub faults: &'static [Fault],
    pub at_most: u8,
    /// No time passes between what is due and its being done, but for clients that are frozen.
    pub prompt: bool,
    /// How many of the dead in line one call drops.
    pub drops: Option<usize>,
    /// How many shares change in one call.
    pub batch: Option<usize>,
    /// Whether one that asks `once` takes an answer for a no, by whether the lock was free; nothing if it
    /// goes on to ask.
    pub gives_up: Option<fn(bool) -> bool>,
    pub server: Server,
}

impl Setting {
    /// Returns no shares, and how scripts change them. As in the true ones, an end of all shares is announced if it is
    /// nearer than a little more than a heartbeat.
    pub fn shares(&self) -> Shares {
        let soon = self.heartbeat.map_or(ENDLESS, |heartbeat| heartbeat + 1);
        Shares { batch: self.batch, soon: Some(soon), ..Shares::default() }
    }
}
