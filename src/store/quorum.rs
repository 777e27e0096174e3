//! Several masters that know nothing of each other (Redlock): what more than half of them say, counts.
//!
//! One thread speaks to each, and all are asked at once, so that those that hang cost nothing as long as
//! the others are a majority. There is no queue.

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
use assembly::Assembly;
use node::{Order, Said, Whose};
use verdict::{Votes, is_granted, is_not_yours, verdict};

pub struct Quorum {
    endpoints: Vec<Endpoint>,
    prefix: Prefix,
    timeout: Duration,
    /// Called together when they are first asked.
    assembly: Option<Assembly>,
    /// The claim that we have asked for: nobody else has it.
    ours: Option<Token>,
    again: Again,
}

impl Quorum {
    pub fn new(endpoints: Vec<Endpoint>, prefix: Prefix, timeout: Duration) -> Quorum {
        Quorum { endpoints, prefix, timeout, assembly: None, ours: None, again: Again::new() }
    }

    fn assembly(&mut self) -> io::Result<&mut Assembly> {
        let assembly = match self.assembly.take() {
            Some(assembly) => assembly,
            None => Assembly::convene(&self.endpoints, &self.prefix, self.timeout)?,
        };
        Ok(self.assembly.insert(assembly))
    }

    /// Asks all about a new matter.
    fn ask(&mut self, order: &Order, limit: Limit<'_>, enough: impl Fn(&Votes) -> bool) -> Result<Votes, Trouble> {
        self.begin()?;
        self.go_on(order, limit, enough)
    }

    fn begin(&mut self) -> Result<(), Trouble> {
        self.assembly().and_then(Assembly::begin).map_err(|error| unable(&error))
    }

    /// Asks all the next question about the same matter.
    fn go_on(&mut self, order: &Order, limit: Limit<'_>, enough: impl Fn(&Votes) -> bool) -> Result<Votes, Trouble> {
        let asked = self.assembly().and_then(|assembly| assembly.ask(order, limit, enough));
        asked.map_err(|error| unable(&error))
    }

    fn linger(&mut self, votes: &mut Votes) {
        if let Some(assembly) = &mut self.assembly {
            assembly.linger(votes);
        }
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
    fn vote(&mut self, hold: &Hold, ttl: Ttl, limit: Limit<'_>) -> Result<Acquired, Trouble> {
        let is_ready = |said: &Said| matches!(said, Said::Connected);
        let connect = Order::Connect(hold.name.clone());
        let mut votes = self.ask(&connect, limit, |votes| votes.is_settled(is_ready))?;
        if !votes.has_quorum(is_ready) {
            self.linger(&mut votes);
            return Err(self.too_few("acquire", Some(&hold.name), &votes));
        }
        // Before any request leaves: the servers' counts begin later than ours.
        let asked = Moment::now();
        // A grant that comes later is of no use.
        let limit = limit.no_later_than(asked + ttl.get() / 2);
        let acquire = Order::Acquire(hold.clone(), ttl);
        let mut votes = self.go_on(&acquire, limit, |votes| votes.is_settled(is_granted))?;
        if votes.has_quorum(is_granted) {
            return match self.fence(hold, ttl, &votes, limit) {
                Ok(fence) => {
                    let (granted, until) = (Moment::now(), ttl.believed_until(asked));
                    Ok(Acquired::Granted(Lease { fence, asked, granted, until, taken_over: None }))
                }
                Err(trouble) => {
                    self.undo(hold, &votes);
                    Err(trouble)
                }
            };
        }
        // Whose it is may be for those to say that have not answered yet.
        if verdict(&votes).state == State::Unknown
            && let Some(assembly) = &mut self.assembly
        {
            assembly.hear_the_well(&mut votes);
        }
        let occupancy = verdict(&votes);
        self.undo(hold, &votes);
        match occupancy.state {
            // With those that do not answer it could have been ours. A majority does, though: it is met.
            State::Unknown | State::Free => {
                let trouble = self.too_few("acquire", Some(&hold.name), &votes);
                let is_met =
                    matches!(trouble.kind, Kind::Unreachable | Kind::Unanswered) && votes.answered() >= votes.quorum();
                Err(Trouble { kind: if is_met { Kind::Unwilling } else { trouble.kind }, ..trouble })
            }
            _ => Ok(Acquired::Held(occupancy, Place { position: 0, length: 0 })),
        }
    }

    /// Makes the highest of the fences that were granted known to a quorum: any later one meets it, and
    /// gives a higher one.
    fn fence(&mut self, hold: &Hold, ttl: Ttl, granted: &Votes, limit: Limit<'_>) -> Result<Option<Fence>, Trouble> {
        let Some(mut fence) = verdict::highest_fence(granted) else { return Ok(None) };
        let quorum = granted.quorum();
        loop {
            let raise = Order::Raise(hold.name.clone(), fence, ttl);
            let is_settled = |votes: &Votes| {
                let raised = verdict::raised_by(votes, granted, fence);
                raised >= quorum || raised + votes.open() < quorum
            };
            let votes = self.go_on(&raise, limit, is_settled)?;
            if verdict::raised_by(&votes, granted, fence) >= quorum {
                return Ok(Some(fence));
            }
            match verdict::outdone_by(&votes, fence) {
                Some(Fence(higher)) if !limit.until.passed() => fence = Fence(higher + 1),
                _ => return Err(self.too_few("acquire", Some(&hold.name), &votes)),
            }
        }
    }

    /// Gives back what a lost ballot may have been granted. Who said that it is held has nothing of ours.
    fn undo(&mut self, hold: &Hold, votes: &Votes) {
        let release = Order::Release(hold.clone(), Whose::Ours);
        let until = Moment::now() + self.timeout;
        let mut undone = Votes::none(self.endpoints.len());
        if let Some(assembly) = &mut self.assembly {
            assembly.close();
            assembly.put(&release, until, |node| !matches!(votes.of(node), Some(Said::Held(_))));
            for (node, said) in votes.each().enumerate() {
                if let Some(Said::Held(_)) = said {
                    undone.cast(node, Said::Done);
                }
            }
            assembly.linger(&mut undone);
        }
    }

    /// Releases it everywhere, and hears what there is to hear of it.
    fn give_back(&mut self, hold: &Hold, whose: Whose, limit: Limit<'_>) -> Result<Votes, Trouble> {
        if let Some(assembly) = &mut self.assembly {
            assembly.close();
        }
        let order = Order::Release(hold.clone(), whose);
        // Those that hang are not waited for if the others can tell.
        let mut votes = self.go_on(&order, limit, |votes| votes.answered() >= votes.quorum())?;
        self.linger(&mut votes);
        Ok(votes)
    }
}

fn unable(error: &io::Error) -> Trouble {
    Trouble::of_ours("cannot speak to several servers at once", &crate::say::plain(error))
}

impl Store for Quorum {
    fn acquire(&mut self, hold: &Hold, ttl: Ttl, _manner: Manner, limit: Limit<'_>) -> Result<Acquired, Trouble> {
        self.ours = Some(hold.token.clone());
        let give_up = limit.no_later_than(Moment::now() + self.timeout);
        let mut before = None;
        loop {
            let acquired = match (self.vote(hold, ttl, limit), before) {
                // A last ballot that time ran out on tells less than the one before it.
                (Err(trouble), Some(held)) if trouble.may_pass() && limit.until.passed() => return Ok(held),
                (acquired, _) => acquired?,
            };
            let Acquired::Held(occupancy, _) = &acquired else { return Ok(acquired) };
            self.again.after(occupancy);
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
        let votes = self.ask(&Order::Renew(hold.clone(), ttl), limit, |votes| {
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
            return Ok(Renewed::NotYours(verdict(&votes)));
        }
        Err(self.too_few("renew", Some(&hold.name), &votes))
    }

    fn release(&mut self, hold: &Hold, limit: Limit<'_>) -> Result<Released, Trouble> {
        let whose = if self.ours.as_ref() == Some(&hold.token) { Whose::Ours } else { Whose::Anybodys };
        let votes = self.give_back(hold, whose, limit)?;
        if votes.rules_out_the_rest(is_not_yours) {
            return Ok(Released::NotYours(verdict(&votes)));
        }
        if votes.answered() >= votes.quorum() {
            return Ok(Released::Done);
        }
        Err(self.too_few("release", Some(&hold.name), &votes))
    }

    fn take_away(&mut self, name: &LockName, id: &HolderId, limit: Limit<'_>) -> Result<Released, Trouble> {
        let mut votes = self.ask(&Order::Look(name.clone()), limit, |votes| votes.answered() >= votes.quorum())?;
        self.linger(&mut votes);
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
        let votes = self.give_back(&hold, Whose::Anybodys, limit)?;
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
        let votes = self.ask(&Order::Look(name.clone()), limit, is_clear)?;
        if votes.answered() < votes.quorum() {
            return Err(self.too_few("inspect", Some(name), &votes));
        }
        Ok(Standing { occupancy: verdict(&votes), queue: Vec::new() })
    }

    fn names(&mut self, limit: Limit<'_>) -> Result<Vec<LockName>, Trouble> {
        // A lock that is held is known to one of any quorum.
        let mut votes = self.ask(&Order::Names, limit, |votes| votes.answered() >= votes.quorum())?;
        self.linger(&mut votes);
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
