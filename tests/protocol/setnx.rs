//! The model of the scripts beside SETNX clients, as far as it differs.

use crate::model::{Acquired, Ask, Expiring, Model, Released, Renewed, Token};

/// A lock value without expiry, whose time has passed by the server's clock: left by a SETNX client, or written over
/// nxlock's lock by one whose clock is slow.
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

    /// In the scripts the record expires 2 ms before the lock, and the client's view of its lease no later. In the
    /// model neither ends early.
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
