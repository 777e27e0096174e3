//! The server's work for one lock, as a pure value: the specification of the scripts.
//!
//! Owns the lock, its queue, its waiters' records, its fence, and the subscriptions. Must not know connections or
//! clients. Time advances only when a caller sets `now_us`.

use std::collections::{BTreeMap, BTreeSet};

use crate::shares::{Entered, Shares, Taken};

/// Ordered as the token strings: among equal tickets the smaller token is first.
pub type Token = u32;

pub const FENCE_MS: u64 = 86_400_000;
pub const LEASE_MAX: u64 = 120_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    Once,
    Queue,
    Plain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    Granted,
    Look,
    /// Look again in so many milliseconds, when a reservation ends.
    LookIn(u64),
    Test,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ask {
    pub token: Token,
    pub ttl: u64,
    pub mode: Mode,
    pub lease: u64,
    pub grace: u64,
    pub channel: bool,
    pub ticket: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Acquired {
    Granted {
        fence: u64,
        entered: Option<Entered>,
    },
    Busy {
        value: Option<Token>,
        pttl: i64,
        position: usize,
        length: usize,
        ticket: u64,
        channel_used: bool,
        fence: u64,
        taken: Option<Taken>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Released {
    Free,
    Next(Token),
    NotOurs { value: Option<Token>, pttl: i64, fence: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Renewed {
    Yes,
    /// The lock is ours, and expires later than requested.
    Longer(i64),
    NotOurs {
        value: Option<Token>,
        pttl: i64,
        fence: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Inspected {
    pub value: Option<Token>,
    pub pttl: i64,
    pub fence: u64,
    pub reserved: bool,
    pub queue: Vec<(Token, u64)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    pub lease: u64,
    pub grace: u64,
    pub channel: bool,
}

/// A key. The server deletes an empty one together with its expiry: created again, it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Expiring<T> {
    pub is: T,
    pub until: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Model {
    pub now_us: u64,
    pub lock: Option<Expiring<Token>>,
    pub queue: Expiring<BTreeSet<(u64, Token)>>,
    pub waiters: Expiring<BTreeMap<Token, Record>>,
    /// A field of the waiters hash: the token for which the lock was last reserved.
    pub reserved: Option<Token>,
    pub fence: Option<Expiring<u64>>,
    /// Beside SETNX clients: the token with a valid lease, independent of the lock's value.
    pub holder: Option<Expiring<Token>>,
    pub shares: Shares,
    /// How many dead waiters one call drops; `None` for the scripts' limit of 1000, which is out of reach here.
    pub drops: Option<usize>,
    /// How many this call has dropped.
    pub dropped: usize,
    /// The tokens whose channel has a subscriber.
    pub listening: BTreeSet<Token>,
    /// The messages sent, and received, since a caller last took them from here.
    pub said: Vec<(Token, Word)>,
}

/// The front of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    Lives(Token),
    Nobody,
    /// One call has dropped as many dead waiters as it may.
    TooManyDead,
}

impl Model {
    pub fn acquire(&mut self, ask: &Ask) -> Acquired {
        self.begin();
        let token = ask.token;
        let mut value = self.value();
        if value == Some(token) {
            self.leave(token);
            self.set_lock(token, ask.ttl);
            let kept = self.now() + FENCE_MS.max(10 * ask.ttl);
            match &mut self.fence {
                Some(fence) => fence.until = fence.until.max(Some(kept)),
                None => self.bump(FENCE_MS.max(10 * ask.ttl)),
            }
            return Acquired::Granted { fence: self.fence(), entered: None };
        }
        if value.is_none() && (ask.mode == Mode::Plain || self.queue.is.is_empty()) {
            return self.grant(ask);
        }
        let queues = ask.mode == Mode::Queue;
        let (ticket, channel_used) = if queues { self.enqueue(ask) } else { (0, false) };
        if value.is_none() {
            match self.front(Some(token), Some(Word::Granted)).0 {
                Front::Lives(next) if next != token => {
                    self.reserve(next, Some(token));
                    value = Some(next);
                }
                Front::Lives(_) | Front::Nobody => return self.grant(ask),
                Front::TooManyDead => {}
            }
        } else if queues && self.front(Some(token), None).1 {
            self.front(Some(token), Some(Word::Look));
        }
        let position = self.queue.is.iter().position(|&(_, t)| queues && t == token).map_or(0, |rank| rank + 1);
        let (pttl, length, fence) = (self.pttl(), self.queue.is.len(), self.fence());
        Acquired::Busy { value, pttl, position, length, ticket, channel_used, fence, taken: None }
    }

    pub fn release(&mut self, token: Token) -> Released {
        self.begin();
        let was_first = self.queue.is.first().is_some_and(|&(_, t)| t == token);
        self.dequeue(token);
        let value = self.value();
        let ours = value == Some(token);
        if ours || self.reserved != value {
            self.reserved = None;
        }
        let not_ours = Released::NotOurs { value, pttl: self.pttl(), fence: self.fence() };
        if ours || value.is_none() {
            match self.front(None, Some(Word::Granted)).0 {
                Front::Lives(next) => {
                    self.reserve(next, None);
                    if ours { Released::Next(next) } else { not_ours }
                }
                Front::Nobody | Front::TooManyDead => {
                    self.lock = None;
                    if ours { Released::Free } else { not_ours }
                }
            }
        } else {
            if was_first {
                self.front(None, Some(Word::Look));
            }
            not_ours
        }
    }

    /// Renews the lock. With `prolong`, another process keeps the lock, and relies on its expiry.
    pub fn renew(&mut self, token: Token, ttl: u64, prolong: bool) -> Renewed {
        self.begin();
        let kept = self.now() + FENCE_MS.max(10 * ttl);
        if let Some(fence) = &mut self.fence {
            fence.until = fence.until.max(Some(kept));
        }
        if self.value() == Some(token) {
            if prolong && self.pttl() > ttl as i64 {
                return Renewed::Longer(self.pttl());
            }
            let is_nearer = !(0..=ttl as i64).contains(&self.pttl());
            self.set_lock(token, ttl);
            if is_nearer {
                self.front(Some(token), Some(Word::Look));
            }
            return Renewed::Yes;
        }
        Renewed::NotOurs { value: self.value(), pttl: self.pttl(), fence: self.fence() }
    }

    pub fn inspect(&self) -> Inspected {
        let mut seen = self.clone();
        seen.expire();
        let leased = || seen.queue.is.iter().filter(|w| seen.leased(w.1).is_some());
        let hears = |t: &Token| seen.leased(*t).is_some_and(|r| r.channel) && seen.listening.contains(t);
        let any = leased().any(|(_, t)| hears(t));
        let alive = |t: &Token| !any || hears(t) || seen.leased(*t).is_some_and(|r| !r.channel);
        Inspected {
            value: seen.value(),
            pttl: seen.pttl(),
            fence: seen.fence(),
            reserved: seen.reserved.is_some() && seen.reserved == seen.value(),
            queue: leased().filter(|(_, t)| alive(t)).map(|&(ticket, t)| (t, ticket)).collect(),
        }
    }

    /// Begins a call.
    pub fn begin(&mut self) {
        self.dropped = 0;
        self.expire();
    }

    /// Deletes expired and empty keys, as a server does between any two commands.
    pub fn expire(&mut self) {
        let now = self.now();
        let over = |until: Option<u64>| until.is_some_and(|until| until < now);
        self.lock.take_if(|lock| over(lock.until));
        self.fence.take_if(|fence| over(fence.until));
        self.holder.take_if(|holder| over(holder.until));
        if over(self.queue.until) || self.queue.is.is_empty() {
            self.queue = Expiring::default();
        }
        if over(self.waiters.until) {
            self.waiters.is.clear();
            self.reserved = None;
        }
        if self.waiters.is.is_empty() && self.reserved.is_none() {
            self.waiters.until = None;
        }
        self.shares.expire(now);
    }

    pub fn now(&self) -> u64 {
        self.now_us / 1000
    }

    pub fn value(&self) -> Option<Token> {
        self.lock.as_ref().map(|lock| lock.is)
    }

    pub fn ticket(&self, token: Token) -> Option<u64> {
        self.queue.is.iter().find(|w| w.1 == token).map(|w| w.0)
    }

    pub fn leased(&self, token: Token) -> Option<&Record> {
        self.waiters.is.get(&token).filter(|r| (self.now()..=self.now() + LEASE_MAX).contains(&r.lease))
    }

    fn grant(&mut self, ask: &Ask) -> Acquired {
        self.leave(ask.token);
        self.bump(FENCE_MS.max(10 * ask.ttl));
        self.set_lock(ask.token, ask.ttl);
        self.front(Some(ask.token), Some(Word::Look));
        Acquired::Granted { fence: self.fence(), entered: None }
    }

    pub fn enqueue(&mut self, ask: &Ask) -> (u64, bool) {
        let (now, token) = (self.now(), ask.token);
        let heard = self.leased(token).is_some_and(|own| own.channel) && self.listening.contains(&token);
        let channel = ask.channel && (heard || self.publish(token, Word::Test));
        let last = self.queue.is.last().map_or(0, |w| w.0);
        let new = if ask.ticket == 0 { self.now_us.max(last + 1) } else { ask.ticket };
        let ticket = self.ticket(token).unwrap_or(new);
        if self.queue.is.is_empty() {
            self.waiters = Expiring::default();
            self.reserved.take_if(|reserved| self.lock.as_ref().map(|lock| lock.is) != Some(*reserved));
        }
        self.queue.is.insert((ticket, token));
        let record = Record { lease: now + ask.lease.min(LEASE_MAX), grace: ask.grace.min(ask.ttl), channel };
        self.waiters.is.insert(token, record);
        let kept = Some(now + 4 * ask.lease.min(LEASE_MAX));
        self.queue.until = self.queue.until.max(kept);
        self.waiters.until = self.waiters.until.max(kept);
        (ticket, channel)
    }

    /// Returns the first live waiter, and whether dead ones were dropped before it.
    pub fn front(&mut self, caller: Option<Token>, word: Option<Word>) -> (Front, bool) {
        let mut dropped = false;
        loop {
            let Some(&(_, first)) = self.queue.is.first() else { return (Front::Nobody, dropped) };
            let alive = Some(first) == caller
                || match (self.leased(first).map(|r| r.channel), word) {
                    (None, _) => false,
                    (Some(false), _) => true,
                    (Some(true), Some(word)) => self.publish(first, word),
                    (Some(true), None) => self.listening.contains(&first),
                };
            if alive {
                return (Front::Lives(first), dropped);
            }
            if self.drops != Some(self.dropped) {
                self.dequeue(first);
                self.dropped += 1;
                dropped = true;
            }
            if self.drops == Some(self.dropped) {
                return (Front::TooManyDead, dropped);
            }
        }
    }

    pub fn reserve(&mut self, next: Token, caller: Option<Token>) {
        let grace = self.waiters.is[&next].grace;
        self.reserved = Some(next);
        self.dequeue(next);
        self.bump(FENCE_MS);
        self.set_lock(next, grace);
        self.front(caller, Some(Word::LookIn(grace)));
    }

    pub fn leave(&mut self, token: Token) {
        self.reserved = None;
        self.dequeue(token);
    }

    pub fn dequeue(&mut self, token: Token) {
        self.queue.is.retain(|w| w.1 != token);
        self.waiters.is.remove(&token);
        self.expire();
    }

    pub fn set_lock(&mut self, token: Token, ttl: u64) {
        self.lock = Some(Expiring { is: token, until: Some(self.now() + ttl) });
    }

    pub fn bump(&mut self, kept: u64) {
        let fence = self.now_us.max(self.fence() + 1);
        self.fence = Some(Expiring { is: fence, until: Some(self.now() + kept) });
    }

    pub fn fence(&self) -> u64 {
        self.fence.as_ref().map_or(0, |fence| fence.is)
    }

    pub fn pttl(&self) -> i64 {
        match &self.lock {
            None => -2,
            Some(Expiring { until: None, .. }) => -1,
            Some(Expiring { until: Some(until), .. }) => *until as i64 - self.now() as i64,
        }
    }

    fn publish(&mut self, to: Token, word: Word) -> bool {
        let heard = self.listening.contains(&to);
        if heard {
            self.said.push((to, word));
        }
        heard
    }
}
