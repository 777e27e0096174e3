//! Several masters that know nothing of each other (Redlock): what more than half of them say, counts.
//!
//! One thread speaks to each, and all are asked at once, so that those that hang cost nothing as long as
//! the others are a majority. There is no queue.
//!
//! A ballot has a token of its own. It is won by a majority of grants, and by the highest fence among them once that
//! is known to a majority whose grants still stand: whoever is granted the lock next meets one of those. Of those who
//! share the votes, who has most keeps them and asks for the rest; the others give theirs up, by requests that nobody
//! waits for. Who waits asks one server first, and the others only if that one would vote for it: a crowd meets
//! there, and does not share the votes.

mod again;
mod assembly;
mod examine;
mod node;
mod verdict;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::endpoint::Endpoint;
use super::{Acquired, Examination, Kind, Manner, Place, Released, Renewed, Standing, Store, Trouble};
use crate::clock::Moment;
use crate::limit::{Limit, Woken};
use crate::lock::{Fence, Hold, HolderId, Lease, LockName, Occupancy, Prefix, State, Token, Ttl};
use again::Again;
use assembly::{Assembly, Others};
use node::{Order, Said, Whose};
use verdict::{Votes, is_granted, is_not_yours, is_raised, verdict};

pub struct Quorum {
    endpoints: Vec<Endpoint>,
    prefix: Prefix,
    timeout: Duration,
    /// Called together when they are first asked.
    assembly: Option<Assembly>,
    ballot: Option<Ballot>,
    again: Again,
}

/// The votes of our last ballot.
struct Ballot {
    /// Used for this one only: what undoes it can take no vote of another away, whenever that comes.
    token: Token,
    /// They have not been given up.
    stands: bool,
}

impl Quorum {
    pub fn new(endpoints: Vec<Endpoint>, prefix: Prefix, timeout: Duration) -> Quorum {
        Quorum { endpoints, prefix, timeout, assembly: None, ballot: None, again: Again::new() }
    }

    fn assembly(&mut self) -> Result<&mut Assembly, Trouble> {
        let assembly = match self.assembly.take() {
            Some(assembly) => assembly,
            None => Assembly::convene(&self.endpoints, &self.prefix, self.timeout).map_err(|error| unable(&error))?,
        };
        Ok(self.assembly.insert(assembly))
    }

    /// Asks all about a new matter.
    fn ask(
        &mut self,
        order: &Order,
        limit: Limit<'_>,
        others: Others,
        enough: impl Fn(&Votes) -> bool,
    ) -> Result<Votes, Trouble> {
        let assembly = self.assembly()?;
        assembly.begin();
        let mut votes = assembly.votes();
        self.go_on(&mut votes, order, |_| true, (limit, others), enough)?;
        Ok(votes)
    }

    /// Asks some about the same.
    fn go_on(
        &mut self,
        votes: &mut Votes,
        order: &Order,
        whom: impl Fn(usize) -> bool,
        patience: (Limit<'_>, Others),
        enough: impl Fn(&Votes) -> bool,
    ) -> Result<(), Trouble> {
        self.assembly()?.ask(votes, order, whom, patience, enough).map_err(|error| unable(&error))
    }

    fn too_few(&self, verb: &str, name: Option<&LockName>, votes: &Votes) -> Trouble {
        let servers: Vec<String> = self.endpoints.iter().map(ToString::to_string).collect();
        let tried = match name {
            Some(name) => format!("cannot {verb} \"{name}\""),
            None => format!("cannot {verb}"),
        };
        verdict::too_few(tried, &servers, votes)
    }

    /// One ballot: granted, or given back wherever it may have been.
    fn vote(&mut self, hold: &mut Hold, ttl: Ttl, limit: Limit<'_>) -> Result<Acquired, Trouble> {
        self.begin_ballot(hold)?;
        // Before any request leaves: the servers' counts begin later than ours.
        let asked = Moment::now();
        // A grant that comes later is of no use.
        let limit = limit.no_later_than(asked + ttl.get() / 2);
        let acquire = Order::Acquire(hold.clone(), ttl);
        let mut votes = self.assembly()?.votes();
        let gate = self.again.gate();
        if let Some(gate) = gate {
            let soon = limit.no_later_than(asked + AT_THE_GATE.max(self.again.took * 4));
            let has_said = |votes: &Votes| votes.of(gate).is_some();
            self.go_on(&mut votes, &acquire, |node| node == gate, (soon, Others::Awaited), has_said)?;
            if let Some(Said::Held(seen)) = votes.of(gate) {
                self.ballot = None;
                return Ok(Acquired::Held(self.again.at_the_gate(seen), Place { position: 0, length: 0 }));
            }
        }
        let is_decided = |votes: &Votes| {
            let is_lost = votes.count(is_granted) + votes.open() < votes.quorum();
            votes.has_quorum(is_granted) || (is_lost && verdict(votes).state != State::Unknown)
        };
        let patience = (limit, Others::LeftBehind);
        self.go_on(&mut votes, &acquire, |node| Some(node) != gate, patience, is_decided)?;
        self.gather(&acquire, &mut votes, asked.elapsed(), limit, is_decided)?;
        if !votes.has_quorum(is_granted) {
            self.undo(hold, &votes);
            let refused = self.refused(hold, &votes);
            if let Ok(Acquired::Held(occupancy, _)) = &refused {
                self.again.seen(&votes, occupancy);
            }
            return refused;
        }
        let fence = verdict::highest_fence(&votes);
        if let Some(fence) = fence
            && let Err(trouble) = self.raise(hold, fence, ttl, patience)
        {
            self.undo(hold, &votes);
            return Err(trouble);
        }
        let (granted, until) = (Moment::now(), ttl.believed_until(asked));
        Ok(Acquired::Granted(Lease { fence, asked, granted, until, taken_over: None }))
    }

    /// Makes a fence known to a majority whose grants still stand.
    fn raise(&mut self, hold: &Hold, fence: Fence, ttl: Ttl, patience: (Limit<'_>, Others)) -> Result<(), Trouble> {
        let mut raised = self.assembly()?.votes();
        let raise = Order::Raise(hold.clone(), fence, ttl);
        self.go_on(&mut raised, &raise, |_| true, patience, |votes| votes.is_settled(is_raised))?;
        if raised.has_quorum(is_raised) {
            return Ok(());
        }
        let trouble = self.outvoted(hold, &raised);
        let came = format!("a majority granted it, and too few of them took the fence: {}", trouble.came);
        Err(Trouble { came, ..trouble })
    }

    fn begin_ballot(&mut self, hold: &mut Hold) -> Result<(), Trouble> {
        if let Some(Ballot { token, stands }) = self.ballot.take() {
            let before = Hold { token, ..hold.clone() };
            if stands {
                self.give_up(&before, |_| true);
            }
            if before.token == hold.token {
                let renamed = hold.token.renamed();
                hold.token = renamed.map_err(|error| Trouble::of_ours("cannot vote", &format!("{error:#}")))?;
            }
        }
        self.ballot = Some(Ballot { token: hold.token.clone(), stands: true });
        self.assembly()?.begin();
        Ok(())
    }

    /// Asks again for what others have of the votes, if none of them has as many: who has fewer gives them up.
    fn gather(
        &mut self,
        acquire: &Order,
        votes: &mut Votes,
        took: Duration,
        limit: Limit<'_>,
        is_decided: impl Fn(&Votes) -> bool,
    ) -> Result<(), Trouble> {
        let ours = self.ballot.as_ref().and_then(|ballot| ballot.token.id());
        let is_held = |said: &Said| matches!(said, Said::Held(_));
        let stay = limit.no_later_than(Moment::now() + STAY.max(took * 10));
        let mut pause = SOON.max(took / 2);
        while !votes.has_quorum(is_granted)
            && votes.count(is_held) > 0
            && verdict::leads(votes, ours.as_ref())
            && stay.rest(Moment::now() + pause, &[]) == Woken::Ready
        {
            let held: Vec<bool> = votes.each().map(|said| said.is_some_and(is_held)).collect();
            self.go_on(votes, acquire, |node| held[node], (limit, Others::LeftBehind), &is_decided)?;
            pause *= 2;
        }
        Ok(())
    }

    /// What a lost ballot tells.
    fn refused(&self, hold: &Hold, votes: &Votes) -> Result<Acquired, Trouble> {
        let occupancy = verdict(votes);
        if !matches!(occupancy.state, State::Unknown | State::Free) {
            return Ok(Acquired::Held(occupancy, Place { position: 0, length: 0 }));
        }
        // With those that do not answer it could have been ours.
        Err(self.outvoted(hold, votes))
    }

    /// Too few have answered as was needed. If a majority has answered at all, it is met.
    fn outvoted(&self, hold: &Hold, votes: &Votes) -> Trouble {
        let trouble = self.too_few("acquire", Some(&hold.name), votes);
        let is_met = trouble.may_pass() && votes.answered() >= votes.quorum();
        Trouble { kind: if is_met { Kind::Unwilling } else { trouble.kind }, ..trouble }
    }

    /// Gives back what a lost ballot may have been granted. Who said that it is held has nothing of ours.
    fn undo(&mut self, hold: &Hold, votes: &Votes) {
        self.give_up(hold, |node| !matches!(votes.of(node), Some(Said::Held(_) | Said::Spared)));
        if let Some(ballot) = &mut self.ballot {
            ballot.stands = false;
        }
    }

    /// Has a ballot's votes undone, and waits for nobody.
    fn give_up(&mut self, hold: &Hold, whom: impl Fn(usize) -> bool) {
        let until = Moment::now() + self.timeout;
        if let Some(assembly) = &mut self.assembly {
            assembly.close();
            assembly.put(&Order::Release(hold.clone(), Whose::Ours), until, whom);
        }
    }

    /// Releases it everywhere, and hears what there is to hear of it.
    fn give_back(&mut self, hold: &Hold, limit: Limit<'_>) -> Result<Votes, Trouble> {
        let is_ours = self.ballot.as_ref().is_some_and(|ballot| ballot.token == hold.token);
        let whose = if is_ours { Whose::Ours } else { Whose::Anybodys };
        self.ask(&Order::Release(hold.clone(), whose), limit, Others::LeftBehind, |_| false)
    }
}

/// How long the one is waited for that is asked before the others, at least.
const AT_THE_GATE: Duration = Duration::from_millis(50);
/// The shortest pause before votes are asked for that others have to give up.
const SOON: Duration = Duration::from_millis(1);
/// How long that is tried, at least.
const STAY: Duration = Duration::from_millis(30);

fn unable(error: &io::Error) -> Trouble {
    Trouble::of_ours("cannot speak to several servers at once", &crate::say::plain(error))
}

impl Store for Quorum {
    fn acquire(&mut self, hold: &mut Hold, ttl: Ttl, _manner: Manner, limit: Limit<'_>) -> Result<Acquired, Trouble> {
        let give_up = limit.no_later_than(Moment::now() + self.timeout);
        let mut before = None;
        loop {
            let began = Moment::now();
            let acquired = match (self.vote(hold, ttl, limit), before) {
                // A last ballot that time ran out on tells less than the one before it.
                (Err(trouble), Some(held)) if trouble.may_pass() && limit.until.passed() => return Ok(held),
                (acquired, _) => acquired?,
            };
            let Acquired::Held(occupancy, _) = &acquired else { return Ok(acquired) };
            self.again.after(occupancy.ttl, began.elapsed());
            // Several came at the same moment, and none of them has it: somebody is to, even if nobody waits.
            let is_split = occupancy.state == State::Contested;
            if !is_split || give_up.rest(self.again.at, &[]) != Woken::Ready {
                return Ok(acquired);
            }
            before = Some(acquired);
        }
    }

    fn pause(&mut self, limit: Limit<'_>) -> Woken {
        limit.rest(self.again.at, &[])
    }

    fn renew(&mut self, hold: &Hold, ttl: Ttl, limit: Limit<'_>) -> Result<Renewed, Trouble> {
        let is_extended = |said: &Said| matches!(said, Said::Extended(_));
        let asked = Moment::now();
        let renew = Order::Renew(hold.clone(), ttl);
        let mut votes = self.ask(&renew, limit, Others::Awaited, |votes| {
            votes.has_quorum(is_extended) || votes.rules_out_the_rest(is_not_yours)
        })?;
        if votes.has_quorum(is_extended) {
            // Those that forgot it get it again, but have no vote for that: others may have had it there.
            if let Some(assembly) = &mut self.assembly {
                let until = Moment::now() + ttl.get() / 3;
                let heal = Order::Heal(hold.clone(), ttl);
                assembly.put(&heal, until, |node| !votes.of(node).is_some_and(is_extended));
            }
            return Ok(match verdict::longer_than_asked(&votes) {
                Some(left) => Renewed::Longer(left),
                None => Renewed::Until(ttl.believed_until(asked)),
            });
        }
        if votes.rules_out_the_rest(is_not_yours) {
            // Whose it is, those may tell that have not answered yet.
            let is_clear = |votes: &Votes| verdict(votes).state != State::Unknown;
            self.go_on(&mut votes, &renew, |_| false, (limit, Others::LeftBehind), is_clear)?;
            return Ok(Renewed::NotYours(verdict(&votes)));
        }
        Err(self.too_few("renew", Some(&hold.name), &votes))
    }

    fn release(&mut self, hold: &Hold, limit: Limit<'_>) -> Result<Released, Trouble> {
        let votes = self.give_back(hold, limit)?;
        if votes.rules_out_the_rest(is_not_yours) {
            return Ok(Released::NotYours(verdict(&votes)));
        }
        if votes.answered() >= votes.quorum() {
            return Ok(Released::Done);
        }
        Err(self.too_few("release", Some(&hold.name), &votes))
    }

    fn take_away(&mut self, name: &LockName, id: &HolderId, limit: Limit<'_>) -> Result<Released, Trouble> {
        let votes = self.ask(&Order::Look(name.clone()), limit, Others::LeftBehind, |_| false)?;
        let theirs = votes.each().flatten().find_map(|said| match said {
            Said::Seen(Occupancy { holder: Some(holder), .. }, token) if holder.id == *id => token.clone(),
            _ => None,
        });
        let Some(token) = theirs else {
            return match votes.answered() >= votes.quorum() {
                true => Ok(Released::NotYours(verdict(&votes))),
                false => Err(self.too_few("break", Some(name), &votes).of_a_read()),
            };
        };
        // The whole value is compared again wherever it is deleted.
        let hold = Hold { name: name.clone(), token, lives_with: None, beside_setnx: None };
        let votes = self.give_back(&hold, limit)?;
        if votes.answered() < votes.quorum() {
            return Err(self.too_few("break", Some(name), &votes));
        }
        // A claim that has no majority is taken away too: it is in the way of others.
        Ok(match votes.count(|said| matches!(said, Said::Done)) {
            0 => Released::NotYours(verdict(&votes)),
            _ => Released::Done,
        })
    }

    fn inspect(&mut self, name: &LockName, limit: Limit<'_>) -> Result<Standing, Trouble> {
        let is_clear = |votes: &Votes| !matches!(verdict(votes).state, State::Unknown | State::Contested);
        let votes = self.ask(&Order::Look(name.clone()), limit, Others::Awaited, is_clear)?;
        if votes.answered() < votes.quorum() {
            return Err(self.too_few("inspect", Some(name), &votes));
        }
        Ok(Standing { occupancy: verdict(&votes), queue: Vec::new() })
    }

    fn names(&mut self, limit: Limit<'_>) -> Result<Vec<LockName>, Trouble> {
        // A lock that is held is known to one of any quorum.
        let votes = self.ask(&Order::Names, limit, Others::LeftBehind, |_| false)?;
        if votes.answered() < votes.quorum() {
            return Err(self.too_few("list the locks", None, &votes));
        }
        let named = votes.each().flatten().flat_map(|said| match said {
            Said::Names(names) => names.clone(),
            _ => Vec::new(),
        });
        let mut names: Vec<LockName> = named.collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn examine(&mut self, _limit: Limit<'_>) -> Result<Examination, Trouble> {
        Ok(examine::examine(&self.endpoints, &self.prefix, self.timeout))
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
