//! The model of the scripts for shares: several hold the lock, each until its own lease ends.

use std::collections::BTreeMap;

use crate::model::{Acquired, Ask, Expiring, FENCE_MS, Front, Mode, Model, Released, Renewed, Token, Word};

/// The lock's value while it is shared. The model keeps the generation, the rest of the value, beside it.
pub const SHARED: Token = 97;
/// The tokens from this one on are of shares: the hundreds say the limit.
const SHARES: Token = 100;
/// When a waiter asks again whom only another waiter ahead keeps out.
pub const BRIEFLY: i64 = 500;
const SOON: u64 = 2500;
/// How much longer than the lock's key its companions live, when that is set, and the bounds within which it stays.
pub const KEPT: u64 = 10_000;
const KEPT_BETWEEN: std::ops::RangeInclusive<u64> = 1_000..=20_000;

/// Returns the token of a share with a limit; 0 is none.
pub fn share(who: Token, limit: usize) -> Token {
    SHARES * (Token::try_from(limit).unwrap() + 1) + who
}

/// Returns how many may hold the lock while the token does, 0 for any number; nothing if it is exclusive.
pub fn limit(token: Token) -> Option<usize> {
    (token / SHARES).checked_sub(1).map(|limit| limit as usize)
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shares {
    /// While the lock is shared: the fence in its value.
    pub generation: u64,
    /// The end of the lease of each share.
    pub ends: Expiring<BTreeMap<Token, u64>>,
    pub terms: Expiring<BTreeMap<Token, Terms>>,
    /// A field of the terms hash.
    pub state: Option<State>,
    /// How many shares change in one call; `None` for the scripts' limit of 32, which is out of reach here.
    pub batch: Option<usize>,
    /// How near the end of all shares has to be for the first waiter to be told; `None` for the scripts' number.
    pub soon: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    pub slot: Option<usize>,
    pub fence: u64,
    pub since: u64,
    pub reserved: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// The least limit of all shares, 0 if none has one, and how many have that one.
    pub least: usize,
    pub many: usize,
    /// Which slots are taken.
    pub map: Vec<bool>,
}

/// What a grant of a share says beyond the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entered {
    pub slot: Option<usize>,
    pub count: usize,
}

/// What a refusal of a share says beyond what others do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Taken {
    pub look: i64,
    pub count: usize,
    pub least: usize,
}

/// One script at work on the shares.
struct Visit<'a> {
    model: &'a mut Model,
    token: Token,
    /// What the terms say of all shares, if they are known.
    whole: bool,
    state: State,
    count: usize,
    changed: bool,
}

impl Model {
    pub fn acquire_share(&mut self, ask: &Ask) -> Acquired {
        self.begin();
        let (token, ttl) = (ask.token, ask.ttl);
        let mut visit = Visit::of(self, token);
        let queued = visit.model.queue.is.len();
        if visit.model.value() == Some(token) {
            return visit.begin(ask);
        }
        let shared = visit.open();
        if shared && visit.model.shares.ends.is.contains_key(&token) {
            let terms = visit.model.shares.terms.is.get(&token).cloned();
            if terms.is_some() || limit(token) == Some(0) {
                return visit.claim(ttl, terms);
            }
            // Its slot is forgotten: it has to wait for another.
            visit.drop(token);
        }
        if shared && visit.count == 0 {
            visit.clear();
            visit.model.lock = None;
        }
        let mut value = visit.model.value();
        if value.is_none() && (ask.mode == Mode::Plain || queued == 0) {
            return visit.begin(ask);
        }
        let queues = ask.mode == Mode::Queue;
        let (ticket, channel_used) = if queues { visit.model.enqueue(ask) } else { (0, false) };
        if value.is_none() {
            match visit.model.front(Some(token), Some(Word::Granted)).0 {
                Front::Lives(next) if next != token => {
                    visit.model.reserve(next, Some(token));
                    value = Some(next);
                }
                Front::Lives(_) | Front::Nobody => return visit.begin(ask),
                Front::TooManyDead => {}
            }
        } else if visit.whole {
            let entered = match ask.mode {
                Mode::Queue => visit.serve(ttl),
                Mode::Once | Mode::Plain => {
                    if queued > 0 && ask.mode == Mode::Once {
                        visit.serve(ttl);
                    }
                    let is_next = ask.mode == Mode::Plain || visit.model.queue.is.is_empty();
                    let enters = is_next && visit.fits(limit(token).unwrap_or(1));
                    enters.then(|| visit.enter(token, ttl, false))
                }
            };
            visit.settle();
            if let Some((fence, slot)) = entered {
                return visit.granted(fence, slot);
            }
        } else if queues && visit.model.front(Some(token), None).1 {
            visit.model.front(Some(token), Some(Word::Look));
        }
        let pttl = visit.model.pttl();
        let first = visit.model.shares.ends.is.values().min().copied().unwrap_or(0);
        let look = match visit.whole {
            true if visit.fits(limit(token).unwrap_or(1)) => BRIEFLY,
            true => (first as i64 - visit.model.now() as i64).max(0),
            false => pttl,
        };
        let taken = Taken { look, count: visit.count, least: visit.state.least };
        let position = self.queue.is.iter().position(|&(_, t)| queues && t == token).map_or(0, |rank| rank + 1);
        let (length, fence) = (self.queue.is.len(), self.fence());
        Acquired::Busy { value, pttl, position, length, ticket, channel_used, fence, taken: Some(taken) }
    }

    pub fn release_share(&mut self, token: Token) -> Released {
        self.begin();
        let was_first = self.queue.is.first().is_some_and(|&(_, t)| t == token);
        self.dequeue(token);
        let value = self.value();
        if value == Some(token) || self.reserved != value {
            self.reserved = None;
            self.expire();
        }
        let mut visit = Visit::of(self, token);
        let shared = visit.open();
        let ours = value == Some(token) || shared && visit.model.shares.ends.is.contains_key(&token);
        let ended = visit.model.pttl();
        let mut answer = match ours {
            true => Released::Free,
            false => Released::NotOurs { value, pttl: ended, fence: visit.model.fence() },
        };
        if shared && ours {
            visit.drop(token);
        }
        if value == Some(token) || value.is_none() || shared && visit.count == 0 {
            if shared {
                visit.clear();
            }
            match visit.model.front(None, Some(Word::Granted)).0 {
                Front::Lives(next) => {
                    visit.model.reserve(next, None);
                    if ours {
                        answer = Released::Next(next);
                    }
                }
                Front::Nobody | Front::TooManyDead => visit.model.lock = None,
            }
        } else if shared {
            visit.serve(0);
            let ends = visit.settle();
            let soon = visit.model.shares.soon.unwrap_or(SOON);
            let is_nearer = ends.is_some_and(|ends| ends < soon as i64 && ends < ended);
            if was_first || is_nearer {
                visit.model.front(None, Some(Word::Look));
            }
        } else if was_first {
            visit.model.front(None, Some(Word::Look));
        }
        if !shared {
            self.shares.ends.is.remove(&token);
            self.shares.terms.is.remove(&token);
            if self.shares.ends.is.is_empty() {
                self.shares.forget_terms();
            }
        }
        self.expire();
        answer
    }

    /// Returns whether all shares end a few milliseconds sooner without this one.
    pub fn ends_hardly_sooner_without(&self, token: Token) -> bool {
        let ends = &self.shares.ends.is;
        let others = ends.iter().filter(|(other, _)| **other != token).map(|(_, end)| *end).max();
        let sooner = |others: u64| ends.get(&token).map_or(0, |end| end.saturating_sub(others));
        others.is_some_and(|others| (1..=20).contains(&sooner(others)))
    }

    pub fn renew_share(&mut self, token: Token, ttl: u64, prolong: bool) -> Renewed {
        self.begin();
        let (now, until) = (self.now(), Some(self.now() + FENCE_MS.max(10 * ttl)));
        if let Some(fence) = &mut self.fence {
            fence.until = fence.until.max(until);
        }
        let end = self.shares.ends.is.get(&token).copied().filter(|end| *end > now);
        let Some(end) = end.filter(|_| self.value() == Some(SHARED)) else {
            return Renewed::NotOurs { value: self.value(), pttl: self.pttl(), fence: self.fence() };
        };
        let left = end - now;
        let stays = prolong && left > ttl;
        if !stays {
            self.shares.ends.is.insert(token, now + ttl);
        }
        self.last_as_long_as_the_shares();
        if stays {
            return Renewed::Longer(left as i64);
        }
        if left > ttl {
            self.front(None, Some(Word::Look));
        }
        Renewed::Yes
    }

    /// Moves the expiries: that of the lock's key to the latest end, those of its companions only if that is far off.
    /// Returns how long the lock's key lasts now.
    fn last_as_long_as_the_shares(&mut self) -> i64 {
        let now = self.now();
        let latest = self.shares.ends.is.values().max().copied().unwrap();
        match &mut self.lock {
            Some(lock) if latest > now => lock.until = Some(latest),
            _ => self.lock = None,
        }
        let ends = &mut self.shares.ends;
        if !ends.until.is_some_and(|until| KEPT_BETWEEN.contains(&until.saturating_sub(latest))) {
            ends.until = Some(latest + KEPT);
            self.shares.terms.until = ends.until;
        }
        latest as i64 - now as i64
    }
}

impl Shares {
    pub fn is_without_terms(&self) -> bool {
        self.terms.is.is_empty() && self.state.is_none()
    }

    pub fn forget_terms(&mut self) {
        (self.terms, self.state) = (Expiring::default(), None);
    }

    /// Deletes expired and empty keys.
    pub fn expire(&mut self, now: u64) {
        let over = |until: Option<u64>| until.is_some_and(|until| until < now);
        if over(self.ends.until) || self.ends.is.is_empty() {
            self.ends = Expiring::default();
        }
        if over(self.terms.until) || self.is_without_terms() {
            self.forget_terms();
        }
    }
}

impl<'a> Visit<'a> {
    fn of(model: &'a mut Model, token: Token) -> Visit<'a> {
        Visit { model, token, whole: false, state: State::default(), count: 0, changed: false }
    }

    fn most(&self) -> usize {
        self.model.shares.batch.unwrap_or(usize::MAX)
    }

    /// Returns whether the lock is shared, and by whom is known. Drops shares whose leases are over.
    fn open(&mut self) -> bool {
        self.count = self.model.shares.ends.is.len();
        if self.model.value() != Some(SHARED) || self.count == 0 {
            self.count = 0;
            return false;
        }
        if let Some(state) = &self.model.shares.state {
            (self.whole, self.state) = (true, state.clone());
        }
        for _ in 0..self.most() {
            let first = self.model.shares.ends.is.iter().min_by_key(|(token, end)| (**end, **token));
            let Some((&token, _)) = first.filter(|(_, end)| **end <= self.model.now()) else { break };
            self.drop(token);
        }
        true
    }

    fn drop(&mut self, token: Token) {
        self.model.shares.ends.is.remove(&token);
        let terms = self.model.shares.terms.is.remove(&token);
        (self.count, self.changed) = (self.count - 1, true);
        if let Some(slot) = terms.and_then(|terms| terms.slot) {
            if let Some(taken) = self.state.map.get_mut(slot) {
                *taken = false;
            }
            while self.state.map.last() == Some(&false) {
                self.state.map.pop();
            }
        }
        if self.whole && self.state.least > 0 && limit(token) == Some(self.state.least) {
            self.state.many -= 1;
            if self.state.many == 0 {
                let limits = self.model.shares.ends.is.keys().filter_map(|token| limit(*token).filter(|n| *n > 0));
                self.state.least = limits.clone().min().unwrap_or(0);
                self.state.many = limits.filter(|limit| *limit == self.state.least).count();
            }
        }
    }

    /// Returns whether one more with this limit may come in.
    fn fits(&self, n: usize) -> bool {
        [n, self.state.least].into_iter().filter(|limit| *limit > 0).min().is_none_or(|most| self.count < most)
    }

    /// Adds a share: claimed for `ms`, or reserved for so long. Returns its fence and its slot.
    fn enter(&mut self, token: Token, ms: u64, reserved: bool) -> (u64, Option<usize>) {
        let n = limit(token).unwrap_or(1);
        let (mut slot, mut fence) = (None, self.model.shares.generation);
        if n > 0 {
            let map = &mut self.state.map;
            let free = map.iter().position(|taken| !taken).unwrap_or(map.len());
            map.resize(map.len().max(free + 1), false);
            map[free] = true;
            slot = Some(free);
            if self.state.least == 0 || n < self.state.least {
                (self.state.least, self.state.many) = (n, 1);
            } else if n == self.state.least {
                self.state.many += 1;
            }
        }
        if self.count > 0 {
            let kept = self.model.now() + FENCE_MS.max(10 * ms);
            let until = self.model.fence.as_ref().and_then(|fence| fence.until).max(Some(kept));
            if n > 0 {
                self.model.bump(0);
                fence = self.model.fence();
            }
            if let Some(fence) = &mut self.model.fence {
                fence.until = until;
            }
        }
        self.model.shares.ends.is.insert(token, self.model.now() + ms);
        let terms = Terms { slot, fence, since: self.model.now_us, reserved };
        self.model.shares.terms.is.insert(token, terms);
        (self.count, self.changed) = (self.count + 1, true);
        (fence, slot)
    }

    /// Removes what is left of a generation that is over.
    fn clear(&mut self) {
        let shares = &mut self.model.shares;
        if !shares.ends.is.is_empty() || shares.state.is_some() {
            shares.ends = Expiring::default();
            shares.forget_terms();
        }
        (self.count, self.state, self.whole) = (0, State::default(), false);
    }

    /// Begins a generation with the caller, and lets in the first waiters behind it.
    fn begin(&mut self, ask: &Ask) -> Acquired {
        self.model.leave(self.token);
        self.clear();
        self.model.bump(FENCE_MS.max(10 * ask.ttl));
        self.model.shares.generation = self.model.fence();
        self.model.set_lock(SHARED, ask.ttl);
        self.whole = true;
        let (fence, slot) = self.enter(self.token, ask.ttl, false);
        self.serve(ask.ttl);
        self.settle();
        self.granted(fence, slot)
    }

    /// Renews what is the caller's already, or claims what is reserved for it.
    fn claim(&mut self, ttl: u64, terms: Option<Terms>) -> Acquired {
        let (now, since) = (self.model.now(), self.model.now_us);
        self.model.leave(self.token);
        let is_known = terms.is_some();
        let forgotten = Terms { slot: None, fence: self.model.shares.generation, since, reserved: true };
        let mut terms = terms.unwrap_or(forgotten);
        if terms.reserved {
            terms.since = since;
        }
        terms.reserved = false;
        let (fence, slot) = (terms.fence, terms.slot);
        self.model.shares.ends.is.insert(self.token, now + ttl);
        self.model.shares.terms.is.insert(self.token, terms);
        if !is_known {
            let shares = &mut self.model.shares;
            shares.terms.until = shares.terms.until.max(shares.ends.until);
        }
        if let Some(kept) = &mut self.model.fence {
            kept.until = kept.until.max(Some(now + FENCE_MS.max(10 * ttl)));
        }
        self.changed = true;
        self.serve(ttl);
        self.settle();
        self.granted(fence, slot)
    }

    fn granted(&self, fence: u64, slot: Option<usize>) -> Acquired {
        Acquired::Granted { fence, entered: Some(Entered { slot, count: self.count }) }
    }

    /// Lets the first waiters in as long as they fit; returns the caller's fence and slot if it was among them.
    fn serve(&mut self, ttl: u64) -> Option<(u64, Option<usize>)> {
        let (mut entered, mut moved) = (None, false);
        for _ in 0..if self.whole { self.most() } else { 0 } {
            let Some(&(_, first)) = self.model.queue.is.first() else { break };
            if !limit(first).is_some_and(|n| self.fits(n)) {
                if moved {
                    break;
                }
                match self.model.front(Some(self.token), None) {
                    (Front::Lives(next), dropped) if next != first => moved = dropped,
                    _ => break,
                }
            } else if first == self.token {
                (entered, moved) = (Some(self.enter(first, ttl, false)), true);
                self.model.dequeue(first);
            } else {
                moved = true;
                match self.model.front(Some(self.token), Some(Word::Granted)).0 {
                    Front::Lives(next) if next == first => {
                        let grace = self.model.waiters.is[&first].grace;
                        self.enter(first, grace, true);
                        self.model.dequeue(first);
                    }
                    Front::Lives(_) => {}
                    Front::Nobody | Front::TooManyDead => break,
                }
            }
        }
        if moved {
            self.model.front(Some(self.token), Some(Word::Look));
        }
        entered
    }

    /// Writes what has changed. Returns how long the lock's key lasts, if that has.
    fn settle(&mut self) -> Option<i64> {
        if !self.changed {
            return None;
        }
        if self.whole {
            self.model.shares.state = Some(self.state.clone());
        }
        let lasts = self.model.last_as_long_as_the_shares();
        self.model.expire();
        Some(lasts)
    }
}
