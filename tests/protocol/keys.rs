//! What a server adds to the rules of a lock: keys that expire and are lost, and channels.
//!
//! Owns the time, the subscriptions, and what is left of a lock when one of its keys is gone. Must not know the rules.

use std::collections::BTreeSet;

use crate::machine::{Bounds, Heard, Holder, Lock, Op, Reply, Request, Verdict, Word, World};
use crate::token::{Token, UNKNOWN};

/// A lease of a waiter is no longer than this.
const LEASE_MAX: u64 = 120_000;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    pub lock: Lock<Token>,
    pub around: Around,
    /// When the queue's key expires, in ms.
    pub queue_until: Option<u64>,
    /// The holders whose terms are lost: until they ask again, their slots are not known.
    pub unknown: BTreeSet<Token>,
}

/// What is around the lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Around {
    pub now_us: u64,
    /// The tokens whose channel has a subscriber.
    pub listening: BTreeSet<Token>,
    /// The messages sent, and received, since a caller last took them from here.
    pub said: Vec<(Token, Word)>,
    /// All who wait were called back since.
    pub calls_back: bool,
    pub bounds: Bounds,
}

impl World<Token> for Around {
    fn now_us(&self) -> u64 {
        self.now_us
    }

    fn listens(&self, token: &Token) -> bool {
        self.listening.contains(token)
    }

    fn hears_of_loss(&self, token: &Token) -> bool {
        self.listens(token)
    }

    fn tell(&mut self, token: &Token, word: Word) -> Heard {
        if !self.listening.contains(token) {
            return Heard::No;
        }
        self.said.push((*token, word));
        Heard::Yes
    }

    fn call_back(&mut self) {
        self.calls_back = true;
    }

    fn bounds(&self) -> Bounds {
        self.bounds
    }
}

impl Server {
    pub fn new(now_us: u64, bounds: Bounds) -> Server {
        let around = Around { now_us, listening: BTreeSet::new(), said: Vec::new(), calls_back: false, bounds };
        Server { lock: Lock::default(), around, queue_until: None, unknown: BTreeSet::new() }
    }

    pub fn now(&self) -> u64 {
        self.around.now_us / 1000
    }

    /// Executes a request.
    pub fn step(&mut self, op: &Op<'_, Token>) -> Reply<Token> {
        self.expire();
        let asks_again = match op {
            Op::Acquire(request) if !self.is_late(op) && self.unknown.contains(request.token) => Some(*request.token),
            _ => None,
        };
        if let Some(token) = asks_again.filter(|token| token.limit > 0) {
            self.lock.holders.remove(&token);
            self.lock.asked.remove(&token.who);
        }
        let reply = self.lock.step(op, &mut self.around);
        // One that was done recently writes nothing.
        if let Some(token) = asks_again.filter(|_| !matches!(reply.verdict, Verdict::Done(..))) {
            self.unknown.remove(&token);
            if let Some(holder) = self.lock.holders.get_mut(&token) {
                holder.since = self.around.now_us;
            }
        }
        if let Op::Acquire(request) = op
            && self.lock.waiter(request.token).is_some()
        {
            self.queue_until = self.queue_until.max(Some(self.now() + 4 * request.lease.min(LEASE_MAX)));
        }
        self.expire();
        reply
    }

    /// Deletes what has expired, as a server does between any two commands.
    pub fn expire(&mut self) {
        let now = self.now();
        if self.lock.end().is_some_and(|end| end < now) {
            self.lose_lock();
        }
        if self.queue_until.is_some_and(|until| until < now) {
            self.lock.queue.clear();
        }
        if self.lock.queue.is_empty() {
            self.queue_until = None;
        }
        self.unknown.retain(|token| self.lock.holders.contains_key(token));
    }

    /// Returns whether this is a request of a recorded run that has ended: it changes nothing.
    pub fn is_late(&self, op: &Op<'_, Token>) -> bool {
        let Op::Acquire(Request { token, record: Some(_), .. }) = op else { return false };
        self.lock.runs.ended.iter().any(|run| run.who == **token && run.ended.is_some())
    }

    pub fn lose_lock(&mut self) {
        self.lock.holders.clear();
        self.lock.generation = None;
        self.lock.asked.clear();
    }

    pub fn lose_queue(&mut self) {
        self.lock.queue.clear();
    }

    /// Another program has the lock: until it deletes it, or this time.
    pub fn set(&mut self, value: Token, end: Option<u64>) {
        // That the lock is reserved for the owner is noted beside the lock's key.
        let is_owner = |token: &Token| self.lock.owner.is_some_and(|(owner, _)| owner == *token);
        let mut before = self.lock.holders.iter().filter(|(token, _)| is_owner(token) || token.setnx_end.is_some());
        let reserved = before.next().and_then(|(_, holder)| holder.reserved);
        self.lock.holders.clear();
        self.lock.generation = None;
        let holder = Holder { end, limit: 1, fence: self.lock.fence, slot: None, since: 0, reserved };
        self.lock.holders.insert(value, holder);
    }

    /// By whom the lock is shared is lost: nobody comes in until its key expires.
    pub fn lose_shares(&mut self) {
        if let Some(generation) = self.lock.generation {
            let end = self.lock.end();
            self.set(UNKNOWN, end);
            self.lock.generation = Some(generation);
        }
    }

    /// On what terms the lock is shared is lost: nobody comes in until all have left. A holder that asks again gets terms
    /// anew, but no slot.
    pub fn lose_terms(&mut self) {
        let Some(generation) = self.lock.generation else { return };
        for (token, holder) in &mut self.lock.holders {
            if *token != UNKNOWN {
                *holder = Holder { limit: 1, slot: None, fence: generation, reserved: None, ..*holder };
                self.unknown.insert(*token);
            }
        }
        self.lock.asked.clear();
    }

    pub fn flush(&mut self) {
        self.lock = Lock::default();
    }
}
