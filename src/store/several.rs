//! Several locks as one: all are held, or none. A store over the store that keeps them.
//!
//! They are taken one after the other in the byte order of their keys, which is the same for everybody. So nobody who
//! waits for a lock holds one that comes after it, and those who wait never form a circle.
//!
//! While a later lock is waited for, the earlier ones are renewed. A claim to one that is lost is lost to all of them:
//! [`Acquired::Lost`] before the grant, [`Renewed::NotYours`] after it. The state that either has says which one it was.

use std::time::Duration;

use super::{
    AcquireMode, Acquired, CommandFile, Feature, Kept, Listed, LockStatus, Look, News, Op, Page, Probed, QueuePlace,
    Released, Renewed, Renewing, Reply, ScanCursor, Store, Watch,
};
use crate::clock::Moment;
use crate::error::Error;
use crate::lock::{Claim, Fence, HolderId, Lease, LockName, LockState, Sharing, StateKind, Token, Ttl};
use crate::wait::{Limit, Woken};

pub struct Several {
    store: Box<dyn Store>,
    /// In the order in which they are taken.
    locks: Vec<One>,
    /// Each lock is renewed again after this.
    apart: Duration,
    /// The store is to tell at once what happens to the locks.
    listens: bool,
    /// One thing more would take one of the locks away.
    is_at_risk: bool,
    /// The first lock that turned out to be lost when it was given back, and whether an earlier request may have given it
    /// back.
    lost: Option<(LockState, bool)>,
    /// The first lock of the claim is to end by itself, at that moment.
    ends: Option<Moment>,
    /// No lock that is still to be granted is held by a run that the claimant is part of.
    is_known_to_wait_for_others: bool,
}

/// One of the locks.
struct One {
    /// Its place in the claim, [`Claim::part`].
    at: usize,
    stage: Stage,
    /// Of the grant, with the times of the last renewal.
    lease: Option<Lease>,
    key: String,
    /// The end of the lease that was confirmed last; none if that was another process's.
    until: Option<Moment>,
    /// A request to give it back was not answered.
    in_doubt: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing of it is in the store.
    Untouched,
    /// It was asked for without waiting, and in vain: nothing of it is in the store.
    Refused,
    /// It may be granted, or waited for.
    Asked,
    Held,
    /// It is given back, or ends by itself.
    Over,
}

/// How long ago a lock may have been confirmed when the last one is granted. One that was confirmed earlier is confirmed
/// again: it may have been broken while another was waited for.
const CONFIRMED_WITHIN: Duration = Duration::from_millis(100);

/// How long a process waits that wants to give one of the locks back, until the others are: less than it does.
const LEAVING: Duration = Duration::from_millis(750);

impl Several {
    /// Makes one of the locks of a claim, by their keys in the order of the claim. Nothing is known of them yet: each may
    /// be held.
    pub fn new(store: Box<dyn Store>, keys: &[String]) -> Several {
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by_key(|at| keys[*at].as_bytes());
        let one = |at: usize| One {
            at,
            key: keys[at].clone(),
            stage: Stage::Untouched,
            lease: None,
            until: None,
            in_doubt: false,
        };
        Several {
            store,
            locks: order.into_iter().map(one).collect(),
            apart: Ttl::RENEWED_WITHIN,
            listens: false,
            is_at_risk: false,
            lost: None,
            ends: None,
            is_known_to_wait_for_others: false,
        }
    }

    /// The claim to all of them is another process's, which may hold each.
    pub fn taken_over(mut self) -> Several {
        self.locks.iter_mut().for_each(|one| one.stage = Stage::Held);
        self
    }

    fn acquire(&mut self, claim: &mut Claim, ttl: Ttl, mode: AcquireMode, limit: Limit<'_>) -> Result<Acquired, Error> {
        self.apart = ttl.renewed_after();
        let due = |lease: &Lease| (lease.asked + ttl.renewed_after()).passed();
        for index in 0..self.locks.len() {
            if self.locks[index].stage == Stage::Held {
                continue;
            }
            if let Some(gives_up) = self.confirm(claim, ttl, due, limit)? {
                return Ok(gives_up);
            }
            // The server of this lock may hang, and that of the others not.
            let meanwhile = limit.no_later_than(self.due() + ttl.get() / 3);
            let acquired = self.acquire_one(index, claim, ttl, mode, meanwhile);
            if acquired.is_err()
                && let Ok(Some(gives_up)) = self.confirm(claim, ttl, due, limit)
            {
                return Ok(gives_up);
            }
            if let Some(refused) = acquired? {
                let is_waited_for = matches!(refused, Acquired::Held(..) | Acquired::Undecided(..));
                let nested = if is_waited_for { self.nested_behind(index, claim, limit)? } else { None };
                return Ok(nested.unwrap_or(refused));
            }
        }
        if let Some(gives_up) = self.confirm(claim, ttl, |lease| lease.asked.elapsed() > CONFIRMED_WITHIN, limit)? {
            return Ok(gives_up);
        }
        Ok(match self.lease() {
            Some(lease) => Acquired::Granted(lease),
            None => Acquired::TooLate,
        })
    }

    /// Requests one of the locks. Returns the answer if it is not, or of no use, a grant.
    fn acquire_one(
        &mut self,
        index: usize,
        claim: &mut Claim,
        ttl: Ttl,
        mode: AcquireMode,
        limit: Limit<'_>,
    ) -> Result<Option<Acquired>, Error> {
        let Several { store, locks, .. } = self;
        let one = &mut locks[index];
        let part = claim.part_mut(one.at);
        loop {
            let before = std::mem::replace(&mut one.stage, Stage::Asked);
            // A lock that is free at once needs no queue.
            let asks = if before == Stage::Untouched && mode == AcquireMode::Queue { AcquireMode::Once } else { mode };
            let acquired = store.acquire(part, ttl, asks, limit)?;
            let leaves_nothing = asks != AcquireMode::Queue && before != Stage::Asked;
            return Ok(Some(match acquired {
                Acquired::Granted(lease) if lease.until.remaining() >= ttl.get() / 2 => {
                    (one.stage, one.lease, one.until) = (Stage::Held, Some(lease), Some(lease.until));
                    if let Some(at) = one.at.checked_sub(1) {
                        claim.also[at].fence = lease.fence;
                    }
                    return Ok(None);
                }
                // Of no use: the caller asks again.
                Acquired::Granted(lease) => Acquired::Granted(lease),
                Acquired::Held(..) if asks != mode => continue,
                refused => {
                    if leaves_nothing || matches!(refused, Acquired::Superseded(..)) {
                        one.stage = Stage::Refused;
                    }
                    of(refused, &part.name)
                }
            }));
        }
    }

    /// Returns the answer that one of the locks behind this one is held by a run that the claimant is part of: to wait for
    /// this one would be in vain, and for ever if its holder waits for that run. Asks once, and only where such a run holds
    /// any lock. Of a lock that the run shares, the claimant may get a share: that turns out when it is asked for.
    fn nested_behind(&mut self, index: usize, claim: &Claim, limit: Limit<'_>) -> Result<Option<Acquired>, Error> {
        if std::mem::replace(&mut self.is_known_to_wait_for_others, true) {
            return Ok(None);
        }
        let runs: Vec<HolderId> = claim.enclosing.iter().filter_map(Token::id).collect();
        for One { at, .. } in &self.locks[index + 1..] {
            let part = claim.part(*at);
            for run in &runs {
                let seen = self.store.look(&part.name, Look::Holder(run), limit);
                let LockStatus { state, .. } = seen.inspect_err(|_| self.is_known_to_wait_for_others = false)?;
                let is_alone = state.kind == StateKind::Held || part.token.sharing() == Sharing::Exclusive;
                if is_alone && state.held_by(run).is_some() {
                    return Ok(Some(Acquired::Nested(state.of(&part.name), QueuePlace::default())));
                }
            }
        }
        Ok(None)
    }

    /// Renews those of the locks that are held and of which this is `due`. Returns why to wait no longer: one is lost, or
    /// somebody asks for it.
    fn confirm(
        &mut self,
        claim: &Claim,
        ttl: Ttl,
        due: impl Fn(&Lease) -> bool,
        limit: Limit<'_>,
    ) -> Result<Option<Acquired>, Error> {
        for index in 0..self.locks.len() {
            let One { at, stage, lease, .. } = &self.locks[index];
            if *stage != Stage::Held || !lease.as_ref().is_some_and(&due) {
                continue;
            }
            let name = claim.part(*at).name.clone();
            match self.renew_one(index, claim, ttl, limit, Moment::now())? {
                Renewed::NotYours(state) => return Ok(Some(Acquired::Lost(state))),
                Renewed::Kept(Kept { asked_by: Some(by), .. }) => return Ok(Some(Acquired::Asked(by, name))),
                Renewed::Kept(_) | Renewed::Longer(_) => {}
            }
        }
        Ok(None)
    }

    /// Returns the lease of all: that of the first lock of the claim, as far as the shortest one goes.
    fn lease(&self) -> Option<Lease> {
        let leases = || self.locks.iter().filter_map(|one| one.lease);
        let first = self.locks.iter().find(|one| one.at == 0)?.lease?;
        let (asked, until) = (leases().map(|lease| lease.asked).min()?, leases().map(|lease| lease.until).min()?);
        Some(Lease { asked, until, granted: Moment::now(), ..first })
    }

    /// Renews one, and before the moment `listens_by` has the store tell what happens to it.
    fn renew_one(
        &mut self,
        index: usize,
        claim: &Claim,
        ttl: Ttl,
        limit: Limit<'_>,
        listens_by: Moment,
    ) -> Result<Renewed, Error> {
        let Several { store, locks, listens, .. } = self;
        let one = &mut locks[index];
        let part = claim.part(one.at);
        let mut asked = Moment::now();
        let mut renewed = store.renew(part, ttl, limit)?;
        // At the server that has just replied: each lock may be at another. One that hangs instead has renewed the lock.
        if *listens
            && matches!(renewed, Renewed::Kept(_))
            && store.watch().may_listen
            && !listens_by.passed()
            && store.listen(part, limit)
            && !limit.until.passed()
        {
            let again = Moment::now();
            // Without a reply in the time that is left, what the first one said still holds.
            if let Ok(reply) = store.renew(part, ttl, limit) {
                (asked, renewed) = (again, reply);
            }
        }
        if let Renewed::Kept(kept) = &renewed {
            one.until = Some(kept.until);
            if let Some(lease) = &mut one.lease {
                (lease.asked, lease.until) = (asked, kept.until);
            }
        }
        Ok(match renewed {
            Renewed::NotYours(state) => Renewed::NotYours(state.of(&part.name)),
            renewed => renewed,
        })
    }

    /// Renews all, or some. An error of one moves nothing, and the loss of one is the loss of all. Each reply leaves as much
    /// time for the next one, as long as no lease ends meanwhile. Begins none after a cancellation: who wants to give the
    /// locks back waits for one renewal, and not for the round.
    fn renew(&mut self, claim: &Claim, ttl: Ttl, which: Renewing<'_>, mut limit: Limit<'_>) -> Result<Renewed, Error> {
        let cancellation = limit;
        limit.cancel = &[];
        let within = limit.until.remaining();
        let ends = self.lease().map_or(limit.until, |lease| lease.until);
        // To listen takes several replies for each: what there is no time for now is done with the next renewals.
        let listens_by = Moment::now() + within / 2;
        let mut all = Kept::until(Moment::NEVER);
        let mut failed = None;
        if let Renewing::All = which {
            self.is_at_risk = false;
        }
        for index in 0..self.locks.len() {
            let One { key, until, .. } = &self.locks[index];
            let is_left_out = matches!(which, Renewing::Only(keys) if !keys.contains(key));
            if let Some(until) = until
                && (is_left_out || cancellation.is_cancelled())
            {
                all.until = all.until.min(*until);
                continue;
            }
            match self.renew_one(index, claim, ttl, limit, listens_by) {
                Ok(Renewed::Kept(kept)) => {
                    limit.until = limit.until.max(ends.min(Moment::now() + within));
                    all.until = all.until.min(kept.until);
                    all.put_back |= kept.put_back;
                    if all.asked_by.is_none() && kept.asked_by.is_some() {
                        all.asked_by = kept.asked_by;
                        all.wanted = Some(claim.part(self.locks[index].at).name.clone());
                    }
                }
                // Never for a claim's own holder.
                Ok(Renewed::Longer(_)) => {}
                Ok(Renewed::NotYours(state)) => return Ok(Renewed::NotYours(state)),
                Err(error) => _ = failed.get_or_insert(error),
            }
            self.is_at_risk |= self.store.watch().is_at_risk;
        }
        failed.map_or(Ok(Renewed::Kept(all)), Err)
    }

    /// Gives back those of the locks that may be held or waited for, the last one first, except one. What is given back is
    /// not given back again. Each reply leaves at least `each` for the next one.
    fn give_back(
        &mut self,
        claim: &Claim,
        kept: Option<usize>,
        each: Duration,
        mut limit: Limit<'_>,
    ) -> Result<(), Error> {
        let Several { store, locks, lost, .. } = self;
        let mut failed = None;
        let is_there = |one: &&mut One| matches!(one.stage, Stage::Asked | Stage::Held) && Some(one.at) != kept;
        for one in locks.iter_mut().rev().filter(is_there) {
            let part = claim.part(one.at);
            match store.release(part, limit) {
                Ok(released) => {
                    let was_held = std::mem::replace(&mut one.stage, Stage::Over) == Stage::Held;
                    if let Released::NotYours(state) | Released::Lost(state) = released
                        && was_held
                    {
                        lost.get_or_insert((state.of(&part.name), one.in_doubt));
                    }
                    limit.until = limit.until.max(Moment::now() + each);
                }
                Err(error) => {
                    one.in_doubt = true;
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn release(&mut self, claim: &Claim, limit: Limit<'_>) -> Result<Released, Error> {
        // Who leaves a wait has no time, and no use for the replies.
        let were_granted = self.locks.iter().all(|one| matches!(one.stage, Stage::Held | Stage::Over));
        let each = if were_granted { limit.until.remaining() } else { Duration::ZERO };
        self.give_back(claim, None, each, limit)?;
        Ok(match self.lost.take() {
            None => Released::Done,
            Some((state, true)) => Released::NotYours(state),
            Some((state, false)) => Released::Lost(state),
        })
    }

    /// Lets the first lock of the claim end, and gives back the others.
    fn let_end(&mut self, claim: &Claim, rest: Ttl, limit: Limit<'_>) -> Result<Renewed, Error> {
        let within = limit.until.remaining();
        if self.ends.is_none() {
            match self.store.let_end(claim, rest, limit)? {
                Renewed::Kept(kept) => self.ends = Some(kept.until),
                Renewed::Longer(left) => self.ends = Some(Moment::now() + left),
                Renewed::NotYours(state) => {
                    self.lost.get_or_insert((state.of(&claim.name), true));
                    self.ends = Some(Moment::now());
                }
            }
        }
        self.give_back(claim, Some(0), within, limit)?;
        Ok(match (self.lost.take(), self.ends) {
            (Some((state, _)), _) => Renewed::NotYours(state),
            (None, ends) => Renewed::Kept(Kept::until(ends.unwrap_or(Moment::now()))),
        })
    }

    /// Leaves one of the locks to another process, and gives back the others; without a name, leaves all.
    fn leave(&mut self, claim: &Claim, name: Option<&LockName>, fence: Option<Fence>) {
        let mut left: Vec<usize> = self.locks.iter().map(|one| one.at).collect();
        if let Some(name) = name {
            left.retain(|at| claim.part(*at).name == *name);
            // What cannot be given back ends by itself.
            let _ = self.give_back(claim, left.first().copied(), Duration::ZERO, Limit::until(Moment::now() + LEAVING));
        }
        for at in left {
            let fence = at.checked_sub(1).map_or(fence, |at| claim.also[at].fence);
            self.store.leave(claim.part(at), name, fence);
        }
    }

    /// Returns when a lock is to be renewed that is held while another is waited for.
    fn due(&self) -> Moment {
        let held = self.locks.iter().filter(|one| one.stage == Stage::Held);
        held.filter_map(|one| one.lease).map(|lease| lease.asked + self.apart).min().unwrap_or(Moment::NEVER)
    }
}

/// Returns an answer that grants nothing as one about the lock with this name.
fn of(refused: Acquired, name: &LockName) -> Acquired {
    match refused {
        Acquired::Held(state, place) => Acquired::Held(state.of(name), place),
        Acquired::Nested(state, place) => Acquired::Nested(state.of(name), place),
        Acquired::Undecided(state, error) => Acquired::Undecided(state.of(name), error),
        Acquired::Superseded(by, state, place) => Acquired::Superseded(by, state.of(name), place),
        Acquired::Done(run, state, place) => Acquired::Done(run, state.of(name), place),
        Acquired::Lost(state) => Acquired::Lost(state.of(name)),
        other @ (Acquired::Granted(_) | Acquired::TooLate | Acquired::Asked(..)) => other,
    }
}

impl Store for Several {
    fn step(&mut self, op: Op<'_>, limit: Limit<'_>) -> Result<Reply, Error> {
        Ok(match op {
            Op::Acquire(claim, ttl, mode) => Reply::Acquired(self.acquire(claim, ttl, mode, limit)?),
            Op::Renew(claim, ttl, which) => Reply::Renewed(self.renew(claim, ttl, which, limit)?),
            Op::LetEnd(claim, rest) => Reply::Renewed(self.let_end(claim, rest, limit)?),
            Op::Release(claim) => Reply::Released(self.release(claim, limit)?),
            Op::Leave(claim, name, fence) => {
                self.leave(claim, name, fence);
                Reply::Left(())
            }
            // Each lock at its next renewal, which is now.
            Op::Listen(_) => {
                self.listens = true;
                Reply::Listening(true)
            }
            of_any @ (Op::Break(..) | Op::Ask(..) | Op::Look(..) | Op::History(_) | Op::Doubts) => {
                return self.store.step(of_any, limit);
            }
        })
    }

    fn pause(&mut self, limit: Limit<'_>) -> Woken {
        let due = self.due();
        match self.store.pause(limit.no_later_than(due)) {
            Woken::TimeUp if due.passed() => Woken::Ready,
            woken => woken,
        }
    }

    fn page(&mut self, listed: Listed, cursor: &mut ScanCursor, limit: Limit<'_>) -> Result<Option<Page>, Error> {
        self.store.page(listed, cursor, limit)
    }

    fn probe(&mut self, limit: Limit<'_>) -> Result<Probed, Error> {
        self.store.probe(limit)
    }

    fn command_files(&self) -> Result<Vec<CommandFile>, Error> {
        self.store.command_files()
    }

    fn news(&mut self) -> News {
        self.store.news()
    }

    fn watch(&self) -> Watch<'_> {
        let watch = self.store.watch();
        let may_listen = watch.may_listen && !self.listens;
        let renews_at = Some(self.due()).filter(|due| *due != Moment::NEVER);
        Watch { may_listen, is_at_risk: self.is_at_risk, renews_at, ..watch }
    }

    fn can(&self, feature: Feature) -> bool {
        self.store.can(feature)
    }
}
