//! What a search is about: how many clients, how they behave, what may go wrong, which scripts run.

use crate::keys::Server;
use crate::machine::{Bounds, Mode, Op, Reply, Request};
use crate::token::Token;

/// Left by a SETNX client, or written over nxlock's lock by one whose clock is slow: by the server's clock, its time has
/// passed.
pub const STALE: Token = Token::of_setnx(9997, 1);
pub const TTL: u64 = 3;
pub const GRACE: u64 = 2;
/// A lease that does not come any nearer to its end.
pub const ENDLESS: u64 = 200;

/// What executes requests: the rules, or in a test broken ones.
pub type Scripts = fn(&mut Server, &Op<'_, Token>) -> Reply<Token>;

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
    /// What the token of each says.
    pub tokens: Vec<Token>,
    pub beside_setnx: bool,
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
    pub scripts: Scripts,
}

impl Setting {
    pub fn bounds(&self) -> Bounds {
        Bounds {
            batch: self.batch.unwrap_or(Bounds::USUAL.batch),
            dead: self.drops.unwrap_or(Bounds::USUAL.dead),
            ..Bounds::USUAL
        }
    }

    /// Returns a request for the lock.
    pub fn asks<'a>(&self, token: &'a Token, mode: Mode, ticket: u64) -> Request<'a, Token> {
        Request {
            token,
            ttl: TTL,
            mode,
            lease: self.lease,
            grace: GRACE,
            channel: mode == Mode::Queue,
            ticket,
            last: None,
            enclosing: &[],
            record: None,
            margin: self.beside_setnx.then_some(0),
        }
    }
}
