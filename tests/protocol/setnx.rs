//! What the scripts do beside SETNX clients, as far as it differs.

use crate::model::{Acquired, Ask, Expiring, Model, Released, Renewed, Token};

/// A time that has passed by the server's clock, without expiry: what a SETNX client has left, or what
/// one whose clock is slow has written over a lock of ours.
pub const STALE: Token = 98;

impl Model {
    pub fn acquire_beside_setnx(&mut self, ask: &Ask) -> Acquired {
        self.expire();
        if self.is_stale() {
            match self.holder.as_ref().map(|holder| holder.is) {
                Some(holder) if holder == ask.token => self.set_lock(ask.token, ask.ttl),
                Some(_) => {}
                None => self.lock = None,
            }
        }
        let answer = self.acquire(ask);
        if let Acquired::Granted { .. } = answer {
            self.hold(ask.token, ask.ttl);
        }
        answer
    }

    pub fn renew_beside_setnx(&mut self, token: Token, ttl: u64, prolong: bool) -> Renewed {
        self.expire();
        let ours = self.is_held_by(token);
        let until = self.holder.as_ref().and_then(|holder| holder.until);
        let left = until.filter(|_| ours && prolong).map_or(0, |until| until - self.now());
        if ours && self.is_stale() {
            self.set_lock(token, ttl.max(left));
        }
        let answer = self.renew(token, ttl, prolong);
        match answer {
            Renewed::Yes | Renewed::Longer(_) => self.hold(token, ttl.max(left)),
            Renewed::NotOurs { .. } if ours => self.holder = None,
            Renewed::NotOurs { .. } => {}
        }
        answer
    }

    pub fn release_beside_setnx(&mut self, token: Token) -> Released {
        self.expire();
        let ours = self.is_held_by(token);
        let answer = self.release(token);
        if ours {
            self.holder = None;
        }
        answer
    }

    /// The record ends 2 ms before the lock; so does, at the latest, what a client believes, and here
    /// neither does.
    fn hold(&mut self, token: Token, ttl: u64) {
        self.holder = Some(Expiring { is: token, until: Some(self.now() + ttl) });
    }

    fn is_held_by(&self, token: Token) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.is == token)
    }

    fn is_stale(&self) -> bool {
        self.lock.as_ref().is_some_and(|lock| lock.is == STALE && lock.until.is_none())
    }
}
