//! What the answers of several servers mean together. Pure: asks no server.

use std::time::Duration;

use super::node::Answer;
use crate::error::{Error, ErrorKind};
use crate::lock::{Expiry, Fence, HolderId, LockState, StateKind, Told};

/// Each node's answer to one question; `None` until it has answered.
pub struct Votes {
    answer: Vec<Option<Answer>>,
    /// Number of the first request whose answers count.
    since: u64,
    /// A node that has answered has told something since.
    are_doubtful: bool,
}

impl Votes {
    pub fn none(nodes: usize, since: u64) -> Votes {
        Votes { answer: (0..nodes).map(|_| None).collect(), since, are_doubtful: false }
    }

    pub fn since(&self) -> u64 {
        self.since
    }

    pub fn cast(&mut self, node: usize, answer: Answer) {
        self.answer[node] = Some(answer);
    }

    /// Clears the answer of a node that is asked again.
    pub fn retract(&mut self, node: usize) {
        self.answer[node] = None;
    }

    /// Takes notice that a node that has answered has told something since: its answer may not be true any more.
    pub fn doubt(&mut self) {
        self.are_doubtful = true;
    }

    pub fn are_doubtful(&self) -> bool {
        self.are_doubtful
    }

    /// Returns the answers in the order of the nodes.
    pub fn each(&self) -> impl Iterator<Item = Option<&Answer>> {
        self.answer.iter().map(Option::as_ref)
    }

    pub fn of(&self, node: usize) -> Option<&Answer> {
        self.answer[node].as_ref()
    }

    /// Returns how many nodes are more than half.
    pub fn quorum(&self) -> usize {
        self.answer.len() / 2 + 1
    }

    pub fn count(&self, which: impl Fn(&Answer) -> bool) -> usize {
        self.each().flatten().filter(|answer| which(answer)).count()
    }

    /// Returns how many nodes have not answered, and still may.
    pub fn open(&self) -> usize {
        self.each().filter(Option::is_none).count()
    }

    pub fn all_in(&self) -> bool {
        self.open() == 0
    }

    /// Returns how many nodes answered the question.
    pub fn answered(&self) -> usize {
        self.count(|answer| {
            !matches!(answer, Answer::Failed(_) | Answer::Unwanted | Answer::Undoing | Answer::Spared | Answer::News(_))
        })
    }

    pub fn has_quorum(&self, which: impl Fn(&Answer) -> bool) -> bool {
        self.count(which) >= self.quorum()
    }

    /// Returns whether a quorum gave such an answer, or none can any more.
    pub fn is_settled(&self, which: impl Fn(&Answer) -> bool) -> bool {
        let yes = self.count(which);
        yes >= self.quorum() || yes + self.open() < self.quorum()
    }

    /// Returns whether so many nodes gave such an answer that the others are no quorum.
    pub fn rules_out_the_rest(&self, which: impl Fn(&Answer) -> bool) -> bool {
        self.count(which) + self.quorum() > self.answer.len()
    }
}

pub fn is_granted(answer: &Answer) -> bool {
    matches!(answer, Answer::Granted(_))
}

pub fn is_raised(answer: &Answer) -> bool {
    matches!(answer, Answer::Raised)
}

/// Returns who has broken the claim, if a server says so.
pub fn broken_by(votes: &Votes) -> Option<Box<Told>> {
    let told = |answer: &Answer| if let Answer::NotYours(state) = answer { state.broken_by.clone() } else { None };
    votes.each().flatten().find_map(told)
}

pub fn is_not_yours(answer: &Answer) -> bool {
    matches!(answer, Answer::NotYours(_) | Answer::Untouched)
}

/// Returns whether the server has granted the lock to another holder.
pub fn is_taken(answer: &Answer) -> bool {
    taken(answer).is_some()
}

/// Returns whether a quorum voted for a run that the claimant is part of; nothing if the nodes that have not answered
/// decide it.
pub fn is_nested(votes: &Votes) -> Option<bool> {
    let nested = votes.count(|answer| matches!(answer, Answer::Nested(_)));
    let silent = votes.answer.len() - votes.answered();
    match nested {
        0 => Some(false),
        _ if nested >= votes.quorum() => Some(true),
        _ if nested + silent >= votes.quorum() => None,
        _ => Some(false),
    }
}

/// Returns the highest fence of the grants; `None` unless a quorum gave one.
pub fn highest_fence(granted: &Votes) -> Option<Fence> {
    let fences = |answer: &Answer| match answer {
        Answer::Granted(fence) => *fence,
        _ => None,
    };
    if !granted.has_quorum(|answer| fences(answer).is_some()) {
        return None;
    }
    granted.each().flatten().filter_map(fences).max()
}

/// Returns the remaining time of a renewed lock, if a quorum had it for longer than requested and left it so.
pub fn longer_than_asked(votes: &Votes) -> Option<Duration> {
    let left = |answer: &Answer| match answer {
        Answer::Extended(left) => *left,
        _ => None,
    };
    let mut lefts: Vec<Duration> = votes.each().flatten().filter_map(left).collect();
    lefts.sort_unstable_by_key(|left| std::cmp::Reverse(*left));
    lefts.get(votes.quorum() - 1).copied()
}

/// Returns whether no other candidate has as many votes as `ours`. Of two with as many, the smaller id leads: both see
/// each other, and one gives its votes up.
pub fn leads(votes: &Votes, ours: Option<&HolderId>) -> bool {
    let own = votes.count(is_granted);
    let taken: Vec<&LockState> = votes.each().flatten().filter_map(taken).collect();
    let is_behind = |other: &LockState| {
        let theirs = taken.iter().filter(|seen| is_same(seen, other)).count();
        let is_first = || other.holder.as_ref().zip(ours).is_some_and(|(other, ours)| *ours < other.id);
        theirs < own || (theirs == own && is_first())
    };
    own > 0 && taken.iter().all(|other| is_behind(other))
}

/// Returns the first node that voted for the holder in `verdict`, the result of all answers; for any candidate, if
/// `verdict` names none.
pub fn first_for_the_holder(votes: &Votes, verdict: &LockState) -> Option<usize> {
    let holder = verdict.holder_id();
    let has_voted = |answer: &Answer| taken(answer).is_some_and(|seen| holder.is_none() || seen.holder_id() == holder);
    votes.each().position(|answer| answer.is_some_and(has_voted))
}

/// Returns the state of a lock that the node granted to another holder.
fn taken(answer: &Answer) -> Option<&LockState> {
    match answer {
        Answer::Held(seen) | Answer::Nested(seen) | Answer::NotYours(seen) | Answer::Seen(seen, _) => {
            Some(seen).filter(|seen| seen.kind != StateKind::Free)
        }
        _ => None,
    }
}

/// Returns the state of the lock that the answers show together.
pub fn verdict(votes: &Votes) -> LockState {
    weigh(votes).0
}

/// Returns whether the votes tell whose the lock is, and with which fence.
pub fn is_clear(votes: &Votes) -> bool {
    weigh(votes).1
}

/// Returns both.
fn weigh(votes: &Votes) -> (LockState, bool) {
    let quorum = votes.quorum();
    let mut absent = 0;
    let mut taken: Vec<&LockState> = Vec::new();
    let mut fence = None;
    for answer in votes.each().flatten() {
        match answer {
            Answer::Held(seen) | Answer::Nested(seen) | Answer::NotYours(seen) | Answer::Seen(seen, _) => {
                fence = fence.max(seen.fence);
                if seen.kind == StateKind::Free { absent += 1 } else { taken.push(seen) }
            }
            // Our own grants are given back.
            Answer::Granted(_) | Answer::Done => absent += 1,
            _ => {}
        }
    }
    let silent = votes.each().count() - absent - taken.len();
    if absent >= quorum {
        return (LockState::free(fence), true);
    }
    let with = |one: &LockState| taken.iter().copied().filter(|other| is_same(one, other)).collect::<Vec<_>>();
    let most = taken.iter().rev().map(|one| with(one)).max_by_key(Vec::len).unwrap_or_default();
    if most.len() >= quorum {
        return held(most, quorum);
    }
    let could_change = most.len().max(absent) + silent >= quorum;
    let kind = if could_change { StateKind::Unknown } else { StateKind::Contested };
    let expiry = if could_change { Expiry::Unknown } else { free_in(absent, &taken, quorum) };
    // The candidate with the most votes: the user may contact it, or break its claim.
    let holder = most.first().and_then(|seen| seen.holder.clone());
    (not_asked(LockState { kind, holder, expiry, ..LockState::free(None) }), false)
}

/// Adds to a state that nobody can ask the holder for the lock: several servers have no place for that.
pub fn not_asked(mut state: LockState) -> LockState {
    state.holder.iter_mut().for_each(|holder| holder.terms.no_ask = true);
    state
}

/// Compares the holders. Values of other programs are all the same.
fn is_same(one: &LockState, other: &LockState) -> bool {
    match (&one.holder, &other.holder) {
        (Some(one), Some(other)) => one.id == other.id && one.owner == other.owner,
        (None, None) => one.kind == other.kind,
        _ => false,
    }
}

/// Combines states that show the same holder: the ttl is the highest that a quorum of them reaches, the fence the one
/// that a quorum shows. Returns whether there is such a fence: a server where the key was set again has one of its own,
/// higher or lower, and so has one that granted late.
fn held(mut by: Vec<&LockState>, quorum: usize) -> (LockState, bool) {
    by.sort_by_key(|seen| std::cmp::Reverse(at_most(seen)));
    let shown = |fence: &Option<Fence>| by.iter().filter(|seen| seen.fence == *fence).count();
    let fence = by.iter().map(|seen| seen.fence).find(|fence| shown(fence) >= quorum);
    let state = LockState { fence: fence.flatten(), ..by[quorum - 1].clone() };
    (not_asked(state), fence.is_some())
}

/// Returns when a vote ends at the latest.
fn at_most(seen: &LockState) -> Duration {
    seen.expiry.left().unwrap_or(Duration::MAX)
}

/// Returns how soon a quorum is free if no holder renews.
fn free_in(absent: usize, taken: &[&LockState], quorum: usize) -> Expiry {
    let mut by_end = taken.to_vec();
    by_end.sort_by_key(|seen| at_most(seen));
    match by_end.get((quorum - absent).saturating_sub(1)).map(|seen| seen.expiry) {
        Some(Expiry::Never) if by_end.iter().all(|seen| seen.expiry != Expiry::Unknown) => Expiry::Never,
        Some(Expiry::In(end)) => Expiry::In(end),
        _ => Expiry::Unknown,
    }
}

/// Returns the error for too few answers, or too few of the kind needed: with each node that failed, and its cause.
pub fn too_few(action: String, servers: &[String], votes: &Votes) -> Error {
    let mut failed: Vec<(&str, &Error)> = Vec::new();
    let mut answer = Vec::new();
    for (server, vote) in servers.iter().zip(votes.each()) {
        match vote {
            Some(Answer::Failed(error)) => {
                failed.push((server, error));
                answer.push(format!("{server}: {}", error.cause));
            }
            None | Some(Answer::Spared) => answer.push(format!("{server}: no answer in time")),
            Some(_) => {}
        }
    }
    let lasting = || failed.iter().map(|(_, error)| error).filter(|error| !error.is_retryable());
    let kind = match lasting().next() {
        // The other servers alone are no quorum.
        Some(error) if lasting().count() + votes.quorum() > servers.len() => error.kind,
        _ if answer.len() == failed.len() && failed.iter().all(|(_, error)| error.kind == ErrorKind::Unavailable) => {
            ErrorKind::Unavailable
        }
        // A server that has not answered may have received the request.
        _ if votes.open() > 0 || failed.iter().any(|(_, error)| error.kind == ErrorKind::Unanswered) => {
            ErrorKind::Unanswered
        }
        _ => ErrorKind::Unreachable,
    };
    let telling = failed.iter().find(|(_, error)| error.kind == kind).or(failed.first());
    let hint = telling.map(|(_, error)| error.hint.clone()).unwrap_or_default();
    let mut cause = format!("{} of {} servers answered", votes.answered(), servers.len());
    if !answer.is_empty() {
        cause += &format!(": {}", answer.join("; "));
    }
    Error { kind, action, cause, hint }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;
    use std::time::SystemTime;

    use super::*;
    use crate::lock::Fence;

    /// A holder whose token begins with this letter, with so many seconds left; `-` for no holder, `n` for a run that
    /// encloses the claimant, `x` for another program's value, `!` for no answer, `+` for a grant.
    fn answer(vote: &str) -> Option<Answer> {
        let (who, seconds) = vote.split_at(1);
        let ttl = seconds.parse().ok().map(Duration::from_secs);
        let value = match who {
            "!" => return None,
            "+" => return Some(Answer::Granted(Some(Fence(7)))),
            "-" => return Some(Answer::Held(LockState::free(None))),
            "n" => return Some(Answer::Nested(LockState::free(None))),
            "x" => "another's".to_owned(),
            who => format!("nx1:{}:u@h:1:1800000000000:", who.repeat(26)),
        };
        let fence = ttl.map(|ttl| Fence(ttl.as_secs()));
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        Some(Answer::Held(LockState::of_value(value.as_bytes(), ttl, fence, now)))
    }

    fn votes(text: &str) -> Votes {
        Votes { answer: text.split(' ').map(answer).collect(), ..Votes::none(0, 0) }
    }

    /// Returns the kind of state, the holder's letter, and the seconds left.
    fn shown(text: &str) -> (StateKind, Option<char>, Option<u64>) {
        let state = verdict(&votes(text));
        let who = state.holder.and_then(|holder| holder.id.as_str().chars().next());
        (state.kind, who, state.expiry.left().map(|left| left.as_secs()))
    }

    #[test]
    fn who_has_more_than_half_holds_it_for_as_long_as_that_lasts() {
        assert_eq!(shown("a9 a5 a7 - -"), (StateKind::Held, Some('a'), Some(5)));
        assert_eq!(shown("a9 a5 a7 a8 -"), (StateKind::Held, Some('a'), Some(7)));
        assert_eq!(shown("a9 b5 a7 ! a1"), (StateKind::Held, Some('a'), Some(1)));
        assert_eq!(shown("a9 a8 a7 !"), (StateKind::Held, Some('a'), Some(7)), "of four, three");
        assert_eq!(shown("x9 x8 x7 - !"), (StateKind::Foreign, None, Some(7)));
        assert_eq!(shown("x x x - -"), (StateKind::NoExpiry, None, None));
    }

    #[test]
    fn where_more_than_half_have_nothing_it_is_free() {
        assert_eq!(shown("- - - a9 a9").0, StateKind::Free);
        assert_eq!(shown("- - + a9 !").0, StateKind::Free, "what was granted to us is given back");
        assert_eq!(shown("- - -").0, StateKind::Free);
    }

    #[test]
    fn where_nobody_has_more_than_half_it_is_contested_until_a_majority_can_be_free() {
        assert_eq!(shown("a9 a8 b7 b6 -"), (StateKind::Contested, Some('a'), Some(7)));
        assert_eq!(shown("a9 a8 - -"), (StateKind::Contested, Some('a'), Some(8)));
        assert_eq!(shown("a9 b8 c7"), (StateKind::Contested, Some('a'), Some(8)));
        assert_eq!(shown("x x - - a9"), (StateKind::Contested, None, Some(9)));
        assert_eq!(shown("x x x1 - a"), (StateKind::Contested, None, None), "most of them do not end");
        assert_eq!(verdict(&votes("x x x1 - a")).expiry, Expiry::Never);
    }

    #[test]
    fn what_those_could_decide_that_do_not_answer_is_unknown() {
        assert_eq!(shown("a9 a8 - ! -"), (StateKind::Unknown, Some('a'), None));
        assert_eq!(shown("a9 a8 b7 b6 !"), (StateKind::Unknown, Some('a'), None));
        assert_eq!(shown("a9 - - ! !").0, StateKind::Unknown);
        assert_eq!(shown("! ! ! ! !").0, StateKind::Unknown);
        // None of them ends sooner than is known.
        assert_eq!(verdict(&votes("a9 a8 - ! -")).expiry, Expiry::Unknown);
        // The silent server cannot give anyone three votes.
        assert_eq!(shown("a9 b8 c7 - !").0, StateKind::Contested);
    }

    #[test]
    fn a_run_encloses_the_claimant_if_a_majority_voted_for_it_and_the_silent_may_decide() {
        let nested = |text: &str| is_nested(&votes(text));
        assert_eq!(nested("n n n ! !"), Some(true));
        assert_eq!(nested("n n ! a9 -"), None);
        assert_eq!(nested("n ! ! - -"), None);
        assert_eq!(nested("n n a9 a9 a9"), Some(false));
        assert_eq!(nested("n a9 a9 a9 !"), Some(false));
        assert_eq!(nested("! ! ! - -"), Some(false), "no server has its vote");
    }

    #[test]
    fn a_fence_is_given_if_a_majority_has_one() {
        assert_eq!(highest_fence(&votes("+ + + - !")), Some(Fence(7)));
        assert_eq!(highest_fence(&votes("+ + - - !")), None);
    }

    #[test]
    fn the_fence_of_a_lock_is_the_one_that_a_majority_shows() {
        // In these texts the fence is the number of seconds left.
        let fence = |text: &str| verdict(&votes(text)).fence.map(|fence| fence.0);
        assert_eq!(fence("a7 a9 a7 a1 a7"), Some(7));
        assert!(is_clear(&votes("a7 a7 a7 ! !")) && is_clear(&votes("a7 a9 a7 a1 a7")));
        // The silent servers know which of the others shows it.
        assert_eq!(fence("a9 a7 a7 ! !"), None);
        assert!(!is_clear(&votes("a9 a7 a7 ! !")) && !is_clear(&votes("a9 a7 - ! !")));
        assert!(is_clear(&votes("- - - ! !")) && is_clear(&votes("a a a ! !")));
    }

    #[test]
    fn who_has_most_votes_leads_and_of_two_with_as_many_the_smaller_id() {
        let leads = |text: &str| {
            let ours = HolderId::from_str("bbbbbbbb").unwrap();
            super::leads(&votes(text), Some(&ours))
        };
        assert!(leads("+ + a9 - !") && leads("+ + a9 c9 -") && leads("+ + c9 c9 !"));
        assert!(!leads("+ + a9 a9 !") && !leads("+ a9 c9 c9 !") && !leads("+ x x - -") && !leads("- - - - -"));
        assert!(!leads("+ x - - -"), "another program gives nothing up");
    }

    #[test]
    fn too_few_answers_are_trouble_of_the_kind_that_would_have_to_pass() {
        let failed = |kind| Some(Answer::Failed(Error { kind, ..Error::internal("t", &"it says no") }));
        let kind_of = |answer: Vec<Option<Answer>>| {
            let servers: Vec<String> = (0..answer.len()).map(|at| format!("s{at}")).collect();
            too_few("cannot".into(), &servers, &Votes { answer, ..Votes::none(0, 0) })
        };
        let (unreachable, refused) = (|| failed(ErrorKind::Unreachable), || failed(ErrorKind::Refused));
        let yes = || Some(Answer::Done);
        assert_eq!(kind_of(vec![yes(), refused(), unreachable()]).kind, ErrorKind::Unreachable);
        assert_eq!(kind_of(vec![yes(), refused(), refused()]).kind, ErrorKind::Refused);
        assert_eq!(
            kind_of(vec![yes(), failed(ErrorKind::Unavailable), failed(ErrorKind::Unavailable)]).kind,
            ErrorKind::Unavailable
        );
        assert_eq!(kind_of(vec![yes(), failed(ErrorKind::Unavailable), None]).kind, ErrorKind::Unanswered);
        assert_eq!(kind_of(vec![yes(), unreachable(), failed(ErrorKind::Unanswered)]).kind, ErrorKind::Unanswered);
        let cause = kind_of(vec![yes(), refused(), None]).cause;
        assert_eq!(cause, "1 of 3 servers answered: s1: it says no; s2: no answer in time");
    }
}
