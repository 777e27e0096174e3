//! A quorum of masters that know nothing of each other (Redlock): what more than half of them say counts.
//!
//! One thread speaks to each server, and all are asked at once: those that hang cost nothing as long as the others are
//! a majority. There is no queue.
//!
//! Each ballot has a token of its own. A claim wins it with a majority of grants, and takes the highest fence among
//! them once a majority whose grants are still valid knows that fence: the next holder meets one of those. If the votes
//! are split, the candidate with the most keeps them and asks for the rest; the others give theirs up, by requests
//! whose replies nobody awaits. A waiter asks one server first, the gate, and the others only if the gate would vote
//! for it, or is late: a crowd meets there and does not split the votes.

mod check;
mod contention;
mod fanout;
mod node;
mod tally;

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use super::redis::endpoint::Endpoint;
use super::{
    AcquireMode, Acquired, Durability, Feature, Kept, Listed, LockStatus, Look, News, Op, Page, Probed, QueuePlace,
    Released, Renewed, Reply, ScanCursor, Store, StoreOptions, Watch,
};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::lock::{Asker, Claim, Fence, Lease, LockName, LockState, StateKind, Token, Ttl};
use crate::wait::{Limit, Woken};
use contention::Contention;
use fanout::{Fanout, Stragglers};
use node::{Answer, Request, Whose};
use tally::{Votes, broken_by, is_granted, is_not_yours, is_raised, verdict};

pub struct Quorum {
    endpoints: Vec<Endpoint>,
    options: StoreOptions,
    /// Started for the first request.
    fanout: Option<Fanout>,
    /// The last ballot of this process for each lock.
    ballots: HashMap<LockName, Ballot>,
    contention: Contention,
    /// The last renewal has found a vote gone.
    is_at_risk: bool,
}

struct Ballot {
    /// Used for this ballot only: its undo can never take away a vote of another ballot, however late it arrives.
    token: Token,
    /// Its votes have not been given up.
    is_cast: bool,
}

impl Quorum {
    pub fn new(endpoints: Vec<Endpoint>, options: StoreOptions) -> Quorum {
        // None of the servers has a grant that counts.
        let options = StoreOptions { durability: Durability::default(), ..options };
        Quorum {
            endpoints,
            options,
            fanout: None,
            ballots: HashMap::new(),
            contention: Contention::new(),
            is_at_risk: false,
        }
    }

    fn fanout(&mut self) -> Result<&mut Fanout, Error> {
        let fanout = match self.fanout.take() {
            Some(fanout) => fanout,
            None => Fanout::start(&self.endpoints, &self.options).map_err(|error| unable(&error))?,
        };
        Ok(self.fanout.insert(fanout))
    }

    /// Begins a new operation, and asks all nodes.
    fn ask(
        &mut self,
        request: &Request,
        limit: Limit<'_>,
        others: Stragglers,
        enough: impl Fn(&Votes) -> bool,
    ) -> Result<Votes, Error> {
        let fanout = self.fanout()?;
        fanout.begin();
        let mut votes = fanout.votes();
        self.go_on(&mut votes, request, |_| true, (limit, others), enough)?;
        Ok(votes)
    }

    /// Asks some nodes within the same operation.
    fn go_on(
        &mut self,
        votes: &mut Votes,
        request: &Request,
        nodes: impl Fn(usize) -> bool,
        patience: (Limit<'_>, Stragglers),
        enough: impl Fn(&Votes) -> bool,
    ) -> Result<(), Error> {
        self.fanout()?.ask(votes, request, nodes, patience, enough).map_err(|error| unable(&error))
    }

    fn too_few(&self, verb: &str, name: Option<&LockName>, votes: &Votes) -> Error {
        let servers: Vec<String> = self.endpoints.iter().map(ToString::to_string).collect();
        let action = match name {
            Some(name) => format!("cannot {verb} \"{name}\""),
            None => format!("cannot {verb}"),
        };
        tally::too_few(action, &servers, votes)
    }

    /// Holds one ballot: the lock is granted, or given back wherever it may have been granted.
    fn vote(&mut self, claim: &mut Claim, ttl: Ttl, limit: Limit<'_>) -> Result<Acquired, Error> {
        self.begin_ballot(claim)?;
        // Read before any request leaves: the servers' ttls start later.
        let asked = Moment::now();
        let is_last = limit.until.remaining() <= LAST_BALLOT;
        let until = ttl.believed_until(asked);
        let acquire = Request::Acquire(claim.clone(), ttl);
        let mut votes = self.fanout()?.votes();
        // The last ballot of a wait decides between busy and free: there is no time to ask the others later.
        let gate = self.contention.gate().filter(|_| !is_last);
        if let Some(gate) = gate {
            let soon = asked + AT_THE_GATE.max(self.contention.took * 4);
            let has_said = |votes: &Votes| votes.of(gate).is_some();
            let patience = (limit, Stragglers::AwaitedUntil(soon));
            self.go_on(&mut votes, &acquire, |node| node == gate, patience, has_said)?;
            if let Some(Answer::Held(seen)) = votes.of(gate) {
                self.ballots.remove(&claim.name);
                let state = self.contention.at_the_gate(seen);
                return Ok(match &self.contention.undecided {
                    Some(error) => Acquired::Undecided(state, error.clone()),
                    None => Acquired::Held(state, QueuePlace::default()),
                });
            }
        }
        let is_decided = |votes: &Votes| {
            let is_lost = votes.count(is_granted) + votes.open() < votes.quorum();
            let is_known = || tally::is_clear(votes) || verdict(votes).kind == StateKind::Contested;
            votes.has_quorum(is_granted) || (is_lost && is_known())
        };
        let patience = (limit, Stragglers::LeftBehind);
        self.go_on(&mut votes, &acquire, |node| Some(node) != gate, patience, is_decided)?;
        self.gather((claim, &acquire), &mut votes, asked.elapsed(), limit, is_decided)?;
        if !votes.has_quorum(is_granted) {
            self.undo(claim, &votes);
            let refused = self.refused(claim, &votes);
            match &refused {
                Ok(Acquired::Held(state, _)) => self.contention.seen(&votes, state, None),
                Ok(Acquired::Undecided(state, error)) => self.contention.seen(&votes, state, Some(error)),
                _ => {}
            }
            return refused;
        }
        let fence = tally::highest_fence(&votes);
        let raised = fence.map_or(Ok(()), |fence| self.raise(claim, fence, ttl, patience));
        let is_late = until.passed();
        if raised.is_err() || is_late {
            self.undo(claim, &votes);
        }
        match raised {
            // The votes end with the lease, so a late fence finds none.
            _ if is_late => Ok(Acquired::TooLate),
            Err(error) => Err(error),
            Ok(()) => {
                let granted = Moment::now();
                Ok(Acquired::Granted(Lease { fence, asked, granted, until, taken_over: None, slot: None }))
            }
        }
    }

    /// Makes a fence known to a majority whose grants are still valid.
    fn raise(&mut self, claim: &Claim, fence: Fence, ttl: Ttl, patience: (Limit<'_>, Stragglers)) -> Result<(), Error> {
        let mut raised = self.fanout()?.votes();
        let raise = Request::Raise(claim.clone(), fence, ttl);
        self.go_on(&mut raised, &raise, |_| true, patience, |votes| votes.is_settled(is_raised))?;
        if raised.has_quorum(is_raised) {
            return Ok(());
        }
        let error = self.too_few("acquire", Some(&claim.name), &raised);
        let cause = format!("a majority granted it, and too few of them took the fence: {}", error.cause);
        // A majority has just answered: the servers are there.
        let kind = if error.is_retryable() { ErrorKind::Unavailable } else { error.kind };
        Err(Error { kind, cause, ..error })
    }

    fn begin_ballot(&mut self, claim: &mut Claim) -> Result<(), Error> {
        if let Some(Ballot { token, is_cast }) = self.ballots.remove(&claim.name) {
            let before = Claim { token, ..claim.clone() };
            if is_cast {
                self.give_up(&before, |_| true);
            }
            if before.token == claim.token {
                let renamed = claim.token.renamed();
                claim.token = renamed.map_err(|error| Error::internal("cannot vote", &format!("{error:#}")))?;
            }
        }
        self.ballots.insert(claim.name.clone(), Ballot { token: claim.token.clone(), is_cast: true });
        self.fanout()?.begin();
        Ok(())
    }

    /// Asks again for votes that other candidates have, if none of them has as many: those with fewer give theirs up.
    fn gather(
        &mut self,
        (claim, acquire): (&Claim, &Request),
        votes: &mut Votes,
        took: Duration,
        limit: Limit<'_>,
        is_decided: impl Fn(&Votes) -> bool,
    ) -> Result<(), Error> {
        let ours = claim.token.id();
        let is_held = |answer: &Answer| matches!(answer, Answer::Held(_));
        let stay = limit.no_later_than(Moment::now() + STAY.max(took * 10));
        let mut pause = SOON.max(took / 2);
        while !votes.has_quorum(is_granted)
            && votes.count(is_held) > 0
            && tally::leads(votes, ours.as_ref())
            && stay.rest(Moment::now() + pause, &[]) == Woken::Ready
        {
            let held: Vec<bool> = votes.each().map(|answer| answer.is_some_and(is_held)).collect();
            self.go_on(votes, acquire, |node| held[node], (limit, Stragglers::LeftBehind), &is_decided)?;
            pause *= 2;
        }
        Ok(())
    }

    /// Moves the expiry, and with `heals` sets the key again on servers that lost it.
    fn extend(&mut self, claim: &Claim, ttl: Ttl, heals: bool, limit: Limit<'_>) -> Result<Renewed, Error> {
        let is_extended = |answer: &Answer| matches!(answer, Answer::Extended(_));
        let is_decided = |votes: &Votes| votes.has_quorum(is_extended) || votes.rules_out_the_rest(is_not_yours);
        let renew = Request::Renew(claim.clone(), ttl);
        let mut again = 0..AGAIN;
        let (asked, mut votes) = loop {
            let asked = Moment::now();
            // One server may be silent, and another lose a vote that it has just confirmed: it tells that.
            let may_ask_again = again.next().is_some();
            let is_enough = |votes: &Votes| is_decided(votes) || may_ask_again && votes.are_doubtful();
            let votes = self.ask(&renew, limit, Stragglers::AwaitedUnlessSilent, is_enough)?;
            if is_decided(&votes) || !is_enough(&votes) {
                break (asked, votes);
            }
        };
        self.is_at_risk = votes.count(is_not_yours) > 0;
        if votes.has_quorum(is_extended) {
            // Servers that lost the key get it again, but cast no vote by that: another holder may have had it there.
            if let Some(fanout) = self.fanout.as_mut().filter(|_| heals) {
                let until = Moment::now() + ttl.get() / 3;
                let heal = Request::Heal(claim.clone(), ttl);
                fanout.put(&heal, until, |node| !votes.of(node).is_some_and(is_extended));
            }
            return Ok(match tally::longer_than_asked(&votes) {
                Some(left) => Renewed::Longer(left),
                None => Renewed::Kept(Kept::until(ttl.believed_until(asked))),
            });
        }
        if votes.rules_out_the_rest(is_not_yours) {
            // Nodes that have not answered yet may tell who the holder is.
            let is_clear = |votes: &Votes| verdict(votes).kind != StateKind::Unknown;
            self.go_on(&mut votes, &renew, |_| false, (limit, Stragglers::LeftBehind), is_clear)?;
            return Ok(Renewed::NotYours(LockState { broken_by: broken_by(&votes), ..verdict(&votes) }));
        }
        Err(self.too_few("renew", Some(&claim.name), &votes))
    }

    /// Returns the result of a lost ballot.
    fn refused(&self, claim: &Claim, votes: &Votes) -> Result<Acquired, Error> {
        let state = tally::verdict(votes);
        match state.kind {
            _ if tally::is_nested(votes) == Some(true) => Ok(Acquired::Nested(state, QueuePlace::default())),
            _ if tally::is_nested(votes).is_none() => Err(self.outvoted(claim, votes)),
            StateKind::Free => Err(self.outvoted(claim, votes)),
            // The servers that do not answer could have granted it: that they have not is not known.
            StateKind::Unknown if !votes.rules_out_the_rest(tally::is_taken) => {
                let error = self.outvoted(claim, votes);
                match state.holder.is_some() && votes.answered() >= votes.quorum() {
                    true => Ok(Acquired::Undecided(state, error)),
                    false => Err(error),
                }
            }
            _ => Ok(Acquired::Held(state, QueuePlace::default())),
        }
    }

    /// Returns the error of a ballot with too few usable answers. If a majority answered at all, the quorum is
    /// reachable.
    fn outvoted(&self, claim: &Claim, votes: &Votes) -> Error {
        let error = self.too_few("acquire", Some(&claim.name), votes);
        let is_met = error.is_retryable() && votes.answered() >= votes.quorum();
        Error { kind: if is_met { ErrorKind::Unavailable } else { error.kind }, ..error }
    }

    /// Gives back what a lost ballot may have been granted. A server that replied that another token holds it granted us
    /// nothing.
    fn undo(&mut self, claim: &Claim, votes: &Votes) {
        self.give_up(claim, |node| {
            !matches!(votes.of(node), Some(Answer::Held(_) | Answer::Nested(_) | Answer::Spared))
        });
        if let Some(ballot) = self.ballots.get_mut(&claim.name) {
            ballot.is_cast = false;
        }
    }

    /// Sends the undo of a ballot's votes, and waits for no reply.
    fn give_up(&mut self, claim: &Claim, nodes: impl Fn(usize) -> bool) {
        let until = Moment::now() + self.options.timeout;
        if let Some(fanout) = &mut self.fanout {
            fanout.close();
            fanout.put(&Request::Undo(claim.clone()), until, nodes);
        }
    }

    /// Releases the claim on all servers, and collects the replies.
    fn give_back(&mut self, claim: &Claim, limit: Limit<'_>) -> Result<Votes, Error> {
        let is_ours = self.ballots.get(&claim.name).is_some_and(|ballot| ballot.token == claim.token);
        let whose = if is_ours { Whose::Ours } else { Whose::Anybodys };
        self.ask(&Request::Release(claim.clone(), whose), limit, Stragglers::LeftBehind, |_| false)
    }
}

/// A ballot that has no more time than this is the last one of a wait.
const LAST_BALLOT: Duration = Duration::from_millis(250);
/// Minimum wait for the gate's reply.
const AT_THE_GATE: Duration = Duration::from_millis(50);
/// Minimum pause before asking again for votes that other candidates have to give up.
const SOON: Duration = Duration::from_millis(1);
/// How often a renewal asks again, because servers that have answered tell something, while others are silent.
const AGAIN: usize = 3;
/// Minimum time for which to ask again.
const STAY: Duration = Duration::from_millis(30);

fn unable(error: &io::Error) -> Error {
    Error::internal("cannot speak to several servers at once", &crate::text::plain(error))
}

impl Quorum {
    fn acquire(
        &mut self,
        claim: &mut Claim,
        ttl: Ttl,
        _mode: AcquireMode,
        limit: Limit<'_>,
    ) -> Result<Acquired, Error> {
        let give_up = limit.no_later_than(Moment::now() + self.options.timeout);
        let mut before = None;
        loop {
            let began = Moment::now();
            let acquired = match (self.vote(claim, ttl, limit), before) {
                // A last ballot that timed out tells less than the one before it.
                (Err(error), Some(held)) if error.is_retryable() && limit.until.passed() => return Ok(held),
                (acquired, _) => acquired?,
            };
            let (Acquired::Held(state, _) | Acquired::Undecided(state, _)) = &acquired else {
                // What comes next is about another lock.
                self.contention = Contention::new();
                return Ok(acquired);
            };
            self.contention.after(state.expiry.left(), began.elapsed());
            // Several candidates came at the same moment, and none has the lock: one should get it, even if none waits.
            let is_split = state.kind == StateKind::Contested;
            if !is_split || give_up.rest(self.contention.at, &[]) != Woken::Ready {
                return Ok(acquired);
            }
            before = Some(acquired);
        }
    }

    fn renew(&mut self, claim: &Claim, ttl: Ttl, limit: Limit<'_>) -> Result<Renewed, Error> {
        // A key that is set again could outlive its release by another process: only the process that keeps the claim
        // knows that no release is under way.
        self.extend(claim, ttl, claim.owner_pid.is_some(), limit)
    }

    fn let_end(&mut self, claim: &Claim, rest: Ttl, limit: Limit<'_>) -> Result<Renewed, Error> {
        self.extend(claim, rest, false, limit)
    }

    fn release(&mut self, claim: &Claim, limit: Limit<'_>) -> Result<Released, Error> {
        let votes = self.give_back(claim, limit)?;
        if votes.rules_out_the_rest(is_not_yours) {
            return Ok(Released::NotYours(LockState { broken_by: broken_by(&votes), ..verdict(&votes) }));
        }
        if votes.answered() >= votes.quorum() {
            return Ok(Released::Done);
        }
        Err(self.too_few("release", Some(&claim.name), &votes))
    }

    fn break_lock(&mut self, name: &LockName, breaker: &Asker, limit: Limit<'_>) -> Result<Released, Error> {
        let theirs = |votes: &Votes| {
            votes.each().flatten().find_map(|answer| match answer {
                Answer::Seen(LockState { holder: Some(holder), .. }, token) if holder.id == breaker.of => token.clone(),
                _ => None,
            })
        };
        // A claim without a majority may be at the slowest server alone.
        let look = Request::Look(name.clone());
        let votes = self.ask(&look, limit, Stragglers::Awaited, |votes| theirs(votes).is_some())?;
        let Some(token) = theirs(&votes) else {
            return match votes.answered() >= votes.quorum() {
                true => Ok(Released::NotYours(verdict(&votes))),
                false => Err(self.too_few("break", Some(name), &votes).of_read()),
            };
        };
        // Each server compares the whole value again before it deletes the key.
        let release = Request::Release(Claim::broken(name.clone(), token, &breaker.by), Whose::Anybodys);
        let votes = self.ask(&release, limit, Stragglers::Awaited, |_| false)?;
        if votes.answered() < votes.quorum() {
            return Err(self.too_few("break", Some(name), &votes));
        }
        // A claim without a majority is broken too: it blocks others.
        Ok(match votes.count(|answer| matches!(answer, Answer::Done)) {
            0 => Released::NotYours(verdict(&votes)),
            _ => Released::Done,
        })
    }

    fn look_at(&mut self, name: &LockName, _: Look<'_>, limit: Limit<'_>) -> Result<LockStatus, Error> {
        let votes = self.ask(&Request::Look(name.clone()), limit, Stragglers::Awaited, tally::is_clear)?;
        if votes.answered() < votes.quorum() {
            return Err(self.too_few("inspect", Some(name), &votes));
        }
        Ok(LockStatus { state: verdict(&votes), queue: Vec::new(), knows_waiters: false, recorded: None })
    }

    /// A replica that does not hear from its master is no vote: what it shows may be of any age.
    fn doubts(&mut self, limit: Limit<'_>) -> Result<Vec<String>, Error> {
        let votes = self.ask(&Request::Doubts, limit, Stragglers::LeftBehind, |_| false)?;
        let doubts = |answer: &Answer| match answer {
            Answer::Doubts(doubts) => Some(doubts.clone()),
            _ => None,
        };
        if !votes.has_quorum(|answer| doubts(answer).is_some()) {
            return Err(self.too_few("look at locks", None, &votes));
        }
        Ok(votes.each().flatten().filter_map(doubts).flatten().collect())
    }

    fn names(&mut self, limit: Limit<'_>) -> Result<Vec<LockName>, Error> {
        // Any quorum includes a server that knows a held lock.
        let votes = self.ask(&Request::Names, limit, Stragglers::LeftBehind, |_| false)?;
        if votes.answered() < votes.quorum() {
            return Err(self.too_few("list the locks", None, &votes));
        }
        let named = votes.each().flatten().flat_map(|answer| match answer {
            Answer::Names(names) => names.clone(),
            _ => Vec::new(),
        });
        let mut names: Vec<LockName> = named.collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn leave(&mut self, claim: &Claim) {
        if let Some(mut fanout) = self.fanout.take() {
            fanout.awaits_the_well();
            fanout.close();
            fanout.put(&Request::Leave(claim.clone()), Moment::now(), |_| true);
        }
    }

    /// Asks each server, and waits for none: one that has begun to tell is news.
    fn listen(&mut self, claim: &Claim, limit: Limit<'_>) {
        if let Some(fanout) = &mut self.fanout {
            fanout.put(&Request::Listen(claim.clone()), limit.until, |_| true);
        }
    }
}

/// Returns the error for an operation that [`Store::can`] rules out.
fn no_place(verb: &str, name: &LockName) -> Error {
    Error::internal(&format!("cannot {verb} \"{name}\""), &"several servers have no place for that")
}

impl Store for Quorum {
    fn step(&mut self, op: Op<'_>, limit: Limit<'_>) -> Result<Reply, Error> {
        Ok(match op {
            Op::Acquire(claim, ttl, mode) => Reply::Acquired(self.acquire(claim, ttl, mode, limit)?),
            Op::Renew(claim, ttl, _) => Reply::Renewed(self.renew(claim, ttl, limit)?),
            Op::LetEnd(claim, rest) => Reply::Renewed(self.let_end(claim, rest, limit)?),
            Op::Release(claim) => Reply::Released(self.release(claim, limit)?),
            Op::Leave(claim, ..) => {
                self.leave(claim);
                Reply::Left(())
            }
            Op::Listen(claim) => {
                self.listen(claim, limit);
                Reply::Listening(false)
            }
            Op::Break(name, breaker) => Reply::Released(self.break_lock(name, breaker, limit)?),
            Op::Ask(name, ..) => return Err(no_place("ask for", name)),
            Op::Look(name, what) => Reply::Seen(Box::new(self.look_at(name, what, limit)?)),
            Op::History(name) => return Err(no_place("read the history of", name)),
            Op::Doubts => Reply::Doubts(self.doubts(limit)?),
        })
    }

    fn pause(&mut self, limit: Limit<'_>) -> Woken {
        limit.rest(self.contention.at, &[])
    }

    fn page(&mut self, listed: Listed, cursor: &mut ScanCursor, limit: Limit<'_>) -> Result<Option<Page>, Error> {
        if !cursor.has_begun {
            cursor.names = if listed == Listed::Histories { Vec::new() } else { self.names(limit)? };
            cursor.has_begun = true;
        }
        let Some(name) = cursor.names.last().cloned() else { return Ok(None) };
        let status = match listed {
            Listed::Locks => Some(self.look_at(&name, Look::All, limit)?),
            Listed::Held | Listed::Names | Listed::Histories => None,
        };
        cursor.names.pop();
        Ok(Some(vec![(name, status)]))
    }

    fn probe(&mut self, _limit: Limit<'_>) -> Result<Probed, Error> {
        Ok(check::probe(&self.endpoints, &self.options))
    }

    fn news(&mut self) -> News {
        // That nothing can be heard is no news.
        self.fanout.as_mut().and_then(|fanout| fanout.news().ok()).unwrap_or_default()
    }

    fn watch(&self) -> Watch<'_> {
        let news_fds = self.fanout.as_ref().map(Fanout::news_fd).into_iter().collect();
        Watch { news_fds, may_listen: true, is_at_risk: self.is_at_risk, ..Watch::default() }
    }

    fn can(&self, _: Feature) -> bool {
        false
    }
}
