//! What the answers of several servers mean together. Pure: no server is asked here.

use std::time::Duration;

use super::node::Said;
use crate::lock::{Fence, HolderId, Occupancy, State};
use crate::store::{Kind, Trouble};

/// What each node has said to one question; nothing, as long as it has not answered.
pub struct Votes {
    said: Vec<Option<Said>>,
    /// An answer to an earlier question than this one is of no use.
    since: u64,
}

impl Votes {
    pub fn none(nodes: usize, since: u64) -> Votes {
        Votes { said: (0..nodes).map(|_| None).collect(), since }
    }

    pub fn since(&self) -> u64 {
        self.since
    }

    pub fn cast(&mut self, node: usize, said: Said) {
        self.said[node] = Some(said);
    }

    /// It is asked again.
    pub fn retract(&mut self, node: usize) {
        self.said[node] = None;
    }

    /// Which of them has said what.
    pub fn each(&self) -> impl Iterator<Item = Option<&Said>> {
        self.said.iter().map(Option::as_ref)
    }

    pub fn of(&self, node: usize) -> Option<&Said> {
        self.said[node].as_ref()
    }

    /// More than half.
    pub fn quorum(&self) -> usize {
        self.said.len() / 2 + 1
    }

    pub fn count(&self, which: impl Fn(&Said) -> bool) -> usize {
        self.each().flatten().filter(|said| which(said)).count()
    }

    /// Those that have not answered, and may.
    pub fn open(&self) -> usize {
        self.each().filter(Option::is_none).count()
    }

    pub fn all_in(&self) -> bool {
        self.open() == 0
    }

    /// Those that told what was asked.
    pub fn answered(&self) -> usize {
        self.count(|said| !matches!(said, Said::Failed(_) | Said::Unwanted | Said::Undoing | Said::Spared))
    }

    pub fn has_quorum(&self, which: impl Fn(&Said) -> bool) -> bool {
        self.count(which) >= self.quorum()
    }

    /// Whether a quorum has said so, or none can any more.
    pub fn is_settled(&self, which: impl Fn(&Said) -> bool) -> bool {
        let yes = self.count(which);
        yes >= self.quorum() || yes + self.open() < self.quorum()
    }

    /// Whether so many have said so that the others are no quorum.
    pub fn rules_out_the_rest(&self, which: impl Fn(&Said) -> bool) -> bool {
        self.count(which) + self.quorum() > self.said.len()
    }
}

pub fn is_granted(said: &Said) -> bool {
    matches!(said, Said::Granted(_))
}

pub fn is_raised(said: &Said) -> bool {
    matches!(said, Said::Raised)
}

pub fn is_not_yours(said: &Said) -> bool {
    matches!(said, Said::NotYours(_) | Said::Untouched)
}

/// The highest fence of those that granted; none unless a quorum gave one.
pub fn highest_fence(granted: &Votes) -> Option<Fence> {
    let fences = |said: &Said| match said {
        Said::Granted(fence) => *fence,
        _ => None,
    };
    if !granted.has_quorum(|said| fences(said).is_some()) {
        return None;
    }
    granted.each().flatten().filter_map(fences).max()
}

/// How long a lock lasts that was renewed, if a quorum had it for longer than was asked for and left it so.
pub fn longer_than_asked(votes: &Votes) -> Option<Duration> {
    let left = |said: &Said| match said {
        Said::Extended(left) => *left,
        _ => None,
    };
    let mut lefts: Vec<Duration> = votes.each().flatten().filter_map(left).collect();
    lefts.sort_unstable_by_key(|left| std::cmp::Reverse(*left));
    lefts.get(votes.quorum() - 1).copied()
}

/// Whether nobody else has as many votes as we have, who are known by `ours`. Of two who have as many, the one whose
/// id is the smaller counts as first: they see each other, and one of them gives its votes up.
pub fn leads(votes: &Votes, ours: Option<&HolderId>) -> bool {
    let own = votes.count(is_granted);
    let taken: Vec<&Occupancy> = votes.each().flatten().filter_map(taken).collect();
    let is_behind = |other: &Occupancy| {
        let theirs = taken.iter().filter(|seen| is_same(seen, other)).count();
        let is_first = || other.holder.as_ref().zip(ours).is_some_and(|(other, ours)| *ours < other.id);
        theirs < own || (theirs == own && is_first())
    };
    own > 0 && taken.iter().all(|other| is_behind(other))
}

/// The first node that has voted for whoever holds the lock; if nobody has a majority, the first that has for anybody.
/// `verdict` is what they say together.
pub fn first_for_the_holder(votes: &Votes, verdict: &Occupancy) -> Option<usize> {
    let holder = verdict.holder_id();
    let has_voted = |said: &Said| taken(said).is_some_and(|seen| holder.is_none() || seen.holder_id() == holder);
    votes.each().position(|said| said.is_some_and(has_voted))
}

/// A lock that somebody else was seen to have.
fn taken(said: &Said) -> Option<&Occupancy> {
    match said {
        Said::Held(seen) | Said::NotYours(seen) | Said::Seen(seen, _) if seen.state != State::Free => Some(seen),
        _ => None,
    }
}

/// Whose a lock is.
pub fn verdict(votes: &Votes) -> Occupancy {
    let quorum = votes.quorum();
    let mut absent = 0;
    let mut taken: Vec<&Occupancy> = Vec::new();
    let mut fence = None;
    for said in votes.each().flatten() {
        match said {
            Said::Held(seen) | Said::NotYours(seen) | Said::Seen(seen, _) => {
                fence = fence.max(seen.fence);
                if seen.state == State::Free { absent += 1 } else { taken.push(seen) }
            }
            // Ours is given back.
            Said::Granted(_) | Said::Done => absent += 1,
            _ => {}
        }
    }
    let silent = votes.each().count() - absent - taken.len();
    if absent >= quorum {
        return Occupancy::free(fence);
    }
    let with = |one: &Occupancy| taken.iter().copied().filter(|other| is_same(one, other)).collect::<Vec<_>>();
    let most = taken.iter().map(|one| with(one)).max_by_key(Vec::len).unwrap_or_default();
    if most.len() >= quorum {
        return held(most, quorum);
    }
    let could_change = most.len().max(absent) + silent >= quorum;
    let state = if could_change { State::Unknown } else { State::Contested };
    let ttl = Some(free_in(absent, &taken, quorum)).filter(|_| state == State::Contested).flatten();
    Occupancy { state, holder: None, ttl, fence: None, legacy: None }
}

/// By who holds it. Values that are not nxlock's are not told apart: they are another program's.
fn is_same(one: &Occupancy, other: &Occupancy) -> bool {
    match (&one.holder, &other.holder) {
        (Some(one), Some(other)) => one.id == other.id && one.owner == other.owner,
        (None, None) => one.state == other.state,
        _ => false,
    }
}

/// What those that show the same holder tell together: no more than a quorum of them agrees on.
fn held(mut by: Vec<&Occupancy>, quorum: usize) -> Occupancy {
    by.sort_by_key(|seen| std::cmp::Reverse(endless(seen)));
    let ttl = by[quorum - 1].ttl;
    // One that was set again has a fence of its own, and so has one that granted late.
    by.sort_by_key(|seen| std::cmp::Reverse(seen.fence));
    Occupancy { ttl, ..by[quorum - 1].clone() }
}

fn endless(seen: &Occupancy) -> Duration {
    seen.ttl.unwrap_or(Duration::MAX)
}

/// How soon a quorum is free if nobody renews.
fn free_in(absent: usize, taken: &[&Occupancy], quorum: usize) -> Option<Duration> {
    let mut ends: Vec<Duration> = taken.iter().copied().map(endless).collect();
    ends.sort_unstable();
    ends.get((quorum - absent).saturating_sub(1)).copied().filter(|end| *end != Duration::MAX)
}

/// That too few have answered, or not as was needed: each that failed, and what it said.
pub fn too_few(tried: String, servers: &[String], votes: &Votes) -> Trouble {
    let mut failed: Vec<(&str, &Trouble)> = Vec::new();
    let mut said = Vec::new();
    for (server, vote) in servers.iter().zip(votes.each()) {
        match vote {
            Some(Said::Failed(trouble)) => {
                failed.push((server, trouble));
                said.push(format!("{server}: {}", trouble.came));
            }
            None | Some(Said::Spared) => said.push(format!("{server}: no answer in time")),
            Some(_) => {}
        }
    }
    let lasting = || failed.iter().map(|(_, trouble)| trouble).filter(|trouble| !trouble.may_pass());
    let kind = match lasting().next() {
        // The others alone could not make it good.
        Some(trouble) if lasting().count() + votes.quorum() > servers.len() => trouble.kind,
        _ if said.len() == failed.len() && failed.iter().all(|(_, trouble)| trouble.kind == Kind::Unwilling) => {
            Kind::Unwilling
        }
        // A server that has said nothing may have been sent a request.
        _ if votes.open() > 0 || failed.iter().any(|(_, trouble)| trouble.kind == Kind::Unanswered) => Kind::Unanswered,
        _ => Kind::Unreachable,
    };
    let telling = failed.iter().find(|(_, trouble)| trouble.kind == kind).or(failed.first());
    let remedy = telling.map(|(_, trouble)| trouble.remedy.clone()).unwrap_or_default();
    let mut came = format!("{} of {} servers answered", votes.answered(), servers.len());
    if !said.is_empty() {
        came += &format!(": {}", said.join("; "));
    }
    Trouble { kind, tried, came, remedy }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;
    use std::time::SystemTime;

    use super::*;
    use crate::lock::Fence;

    /// One whose token begins with this letter, for so many seconds; `-` for nothing, `x` for another
    /// program's value, `!` for no answer, `+` for a grant.
    fn said(sight: &str) -> Option<Said> {
        let (who, seconds) = sight.split_at(1);
        let ttl = seconds.parse().ok().map(Duration::from_secs);
        let value = match who {
            "!" => return None,
            "+" => return Some(Said::Granted(Some(Fence(7)))),
            "-" => return Some(Said::Held(Occupancy::free(None))),
            "x" => "another's".to_owned(),
            who => format!("nx1:{}:u@h:1:1800000000000:", who.repeat(26)),
        };
        let fence = ttl.map(|ttl| Fence(ttl.as_secs()));
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        Some(Said::Held(Occupancy::of_value(value.as_bytes(), ttl, fence, now)))
    }

    fn votes(sights: &str) -> Votes {
        Votes { said: sights.split(' ').map(said).collect(), since: 0 }
    }

    /// The state, whose, and for how many seconds.
    fn told(sights: &str) -> (State, Option<char>, Option<u64>) {
        let told = verdict(&votes(sights));
        let who = told.holder.and_then(|holder| holder.id.as_str().chars().next());
        (told.state, who, told.ttl.map(|ttl| ttl.as_secs()))
    }

    #[test]
    fn who_has_more_than_half_holds_it_for_as_long_as_that_lasts() {
        assert_eq!(told("a9 a5 a7 - -"), (State::Held, Some('a'), Some(5)));
        assert_eq!(told("a9 a5 a7 a8 -"), (State::Held, Some('a'), Some(7)));
        assert_eq!(told("a9 b5 a7 ! a1"), (State::Held, Some('a'), Some(1)));
        assert_eq!(told("a9 a8 a7 !"), (State::Held, Some('a'), Some(7)), "of four, three");
        assert_eq!(told("x9 x8 x7 - !"), (State::Foreign, None, Some(7)));
        assert_eq!(told("x x x - -"), (State::NoExpiry, None, None));
    }

    #[test]
    fn where_more_than_half_have_nothing_it_is_free() {
        assert_eq!(told("- - - a9 a9").0, State::Free);
        assert_eq!(told("- - + a9 !").0, State::Free, "what was granted to us is given back");
        assert_eq!(told("- - -").0, State::Free);
    }

    #[test]
    fn where_nobody_has_more_than_half_it_is_contested_until_a_majority_can_be_free() {
        assert_eq!(told("a9 a8 b7 b6 -"), (State::Contested, None, Some(7)));
        assert_eq!(told("a9 a8 - -"), (State::Contested, None, Some(8)));
        assert_eq!(told("a9 b8 c7"), (State::Contested, None, Some(8)));
        assert_eq!(told("x x - - a9"), (State::Contested, None, Some(9)));
        assert_eq!(told("x x x1 - a"), (State::Contested, None, None), "most of them do not end");
    }

    #[test]
    fn what_those_could_decide_that_do_not_answer_is_unknown() {
        assert_eq!(told("a9 a8 - ! -"), (State::Unknown, None, None));
        assert_eq!(told("a9 a8 b7 b6 !"), (State::Unknown, None, None));
        assert_eq!(told("a9 - - ! !").0, State::Unknown);
        assert_eq!(told("! ! ! ! !").0, State::Unknown);
        // However it stands with them, nobody has three.
        assert_eq!(told("a9 b8 c7 - !").0, State::Contested);
    }

    #[test]
    fn a_fence_is_given_if_a_majority_has_one() {
        assert_eq!(highest_fence(&votes("+ + + - !")), Some(Fence(7)));
        assert_eq!(highest_fence(&votes("+ + - - !")), None);
    }

    #[test]
    fn who_has_most_votes_leads_and_of_two_with_as_many_the_smaller_id() {
        let leads = |sights: &str| {
            let ours = HolderId::from_str("bbbbbbbb").unwrap();
            super::leads(&votes(sights), Some(&ours))
        };
        assert!(leads("+ + a9 - !") && leads("+ + a9 c9 -") && leads("+ + c9 c9 !"));
        assert!(!leads("+ + a9 a9 !") && !leads("+ a9 c9 c9 !") && !leads("+ x x - -") && !leads("- - - - -"));
        assert!(!leads("+ x - - -"), "another program gives nothing up");
    }

    #[test]
    fn too_few_answers_are_trouble_of_the_kind_that_would_have_to_pass() {
        let failed = |kind| Some(Said::Failed(Trouble { kind, ..Trouble::of_ours("t", &"it says no") }));
        let kind_of = |said: Vec<Option<Said>>| {
            let servers: Vec<String> = (0..said.len()).map(|at| format!("s{at}")).collect();
            too_few("cannot".into(), &servers, &Votes { said, since: 0 })
        };
        let (unreachable, refused) = (|| failed(Kind::Unreachable), || failed(Kind::Refused));
        let yes = || Some(Said::Done);
        assert_eq!(kind_of(vec![yes(), refused(), unreachable()]).kind, Kind::Unreachable);
        assert_eq!(kind_of(vec![yes(), refused(), refused()]).kind, Kind::Refused);
        assert_eq!(kind_of(vec![yes(), failed(Kind::Unwilling), failed(Kind::Unwilling)]).kind, Kind::Unwilling);
        assert_eq!(kind_of(vec![yes(), failed(Kind::Unwilling), None]).kind, Kind::Unanswered);
        assert_eq!(kind_of(vec![yes(), unreachable(), failed(Kind::Unanswered)]).kind, Kind::Unanswered);
        let came = kind_of(vec![yes(), refused(), None]).came;
        assert_eq!(came, "1 of 3 servers answered: s1: it says no; s2: no answer in time");
    }
}
