//! Judges locks by limits, for monitoring: is something wrong, and is that known? No I/O.

use std::time::Duration;

use super::{Named, Row};
use crate::duration::coarse;
use crate::error::Error;
use crate::lock::{Holder, LockState, Recorded, StateKind, words};

/// What counts as wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Since the last success ended.
    pub age: Option<Duration>,
    /// For how long a holder has a lock.
    pub held: Option<Duration>,
    pub waiting: Option<usize>,
}

/// The worse comes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Fine,
    Unknown,
    Critical,
}

/// The judgement of all that was looked at.
pub struct Alarm {
    pub checks: Vec<Check>,
    /// Why nothing is known, or nothing of all that was to be known.
    pub unknown: Option<String>,
}

/// The judgement of one lock by one limit.
pub struct Check {
    pub lock: Named,
    pub measure: Measure,
    pub verdict: Verdict,
    /// What is so, about the lock: `has not succeeded for 31h`.
    pub says: String,
}

/// What was measured, if it is known, and its limit.
pub enum Measure {
    Age(Option<Duration>, Duration),
    Held(Option<Duration>, Duration),
    Waiting(Option<usize>, usize),
}

impl Limits {
    pub fn are_given(&self) -> bool {
        self.age.is_some() || self.held.is_some() || self.waiting.is_some()
    }
}

impl Alarm {
    /// Judges locks. `named` says that the user named them; `unread` tells why the record of a lock is not known.
    pub fn of(rows: &[Row], limits: &Limits, named: bool, mut unread: impl FnMut(&Named) -> Option<String>) -> Alarm {
        let mut checks = Vec::new();
        for Row { lock, status } in rows {
            let mut add = |measure, (verdict, says)| checks.push(Check { lock: lock.clone(), measure, verdict, says });
            if let Some(most) = limits.age {
                match &status.recorded {
                    // Of all locks, not every one is recorded.
                    Some(recorded) if recorded.is_empty() && !named => {}
                    Some(recorded) => {
                        let age = recorded.last_success.as_ref().map(|run| recorded.age_of(run));
                        add(Measure::Age(age, most), judged_age(recorded, age, most));
                    }
                    None => {
                        let why = unread(lock).unwrap_or_else(|| "its recorded runs are not known".to_owned());
                        add(Measure::Age(None, most), (Verdict::Unknown, format!("may not have succeeded: {why}")));
                    }
                }
            }
            if let Some(most) = limits.held {
                let (held, judged) = judged_held(&status.state, most);
                add(Measure::Held(held, most), judged);
            }
            if let Some(most) = limits.waiting {
                let waiting = Some(status.queue.len()).filter(|_| status.knows_waiters && !status.is_unknown());
                add(Measure::Waiting(waiting, most), judged_waiting(waiting, most));
            }
        }
        let is_about_age = |check: &Check| matches!(check.measure, Measure::Age(..));
        let has_no_record = limits.age.is_some() && !checks.iter().any(is_about_age);
        let unknown = has_no_record.then(|| "no run of any lock is recorded: see nxlock run --record".to_owned());
        Alarm { checks, unknown }
    }

    /// Returns an alarm that nothing is known, for this reason.
    pub fn unknown(why: &Error) -> Alarm {
        let hint = if why.hint.is_empty() { String::new() } else { format!("; {}", why.hint) };
        let text = format!("{why}{hint}");
        // In one line.
        Alarm { checks: Vec::new(), unknown: Some(in_a_line(&text)) }
    }

    /// Returns the worst of all.
    pub fn verdict(&self) -> Verdict {
        let unknown = self.unknown.as_ref().map(|_| Verdict::Unknown);
        self.checks.iter().map(|check| check.verdict).chain(unknown).max().unwrap_or(Verdict::Fine)
    }
}

fn judged_age(recorded: &Recorded, age: Option<Duration>, most: Duration) -> (Verdict, String) {
    if let Some(age) = age {
        return match age > most {
            true => (Verdict::Critical, format!("has not succeeded for {}", coarse(age))),
            false => (Verdict::Fine, format!("succeeded {} ago", coarse(age))),
        };
    }
    // The first run, which may yet succeed.
    let first = recorded.under_way.last().map(|run| recorded.age(run.granted));
    match (recorded.over.first(), first) {
        (Some(last), _) => {
            let ago = coarse(recorded.age_of(last));
            (Verdict::Critical, format!("has never succeeded: the last run {} {ago} ago", words::run_end(&last.end)))
        }
        (None, Some(age)) if age > most => {
            (Verdict::Critical, format!("has not succeeded: its first run began {} ago", coarse(age)))
        }
        (None, Some(_)) => (Verdict::Unknown, "has not ended its first run yet".to_owned()),
        (None, None) => (Verdict::Unknown, "has no recorded run: it is misspelt, or not run with --record".to_owned()),
    }
}

/// Returns for how long the lock has been held, if that is known, and the judgement.
fn judged_held(state: &LockState, most: Duration) -> (Option<Duration>, (Verdict, String)) {
    if state.kind == StateKind::Free {
        return (Some(Duration::ZERO), (Verdict::Fine, "is free".to_owned()));
    }
    let listed = state.shares.as_ref().map_or(usize::from(state.holder.is_some()), |shares| shares.held.len());
    let holders = state.shares.as_ref().map_or(1, |shares| shares.taken);
    let is_known = state.tells_holders() && listed >= holders;
    let longest = state.holders().max_by_key(|holder| holder.held);
    match longest {
        Some(holder) if holder.held > most => {
            let says = format!("has been held for {} by {}", coarse(holder.held), words::who(holder));
            (Some(holder.held), (Verdict::Critical, says))
        }
        Some(&Holder { held, .. }) if is_known => {
            (Some(held), (Verdict::Fine, format!("is held for {}", coarse(held))))
        }
        _ if is_known && holders == 0 => (Some(Duration::ZERO), (Verdict::Fine, "is free".to_owned())),
        _ => {
            let says = format!("is {}: since when is not known", words::held_by(state));
            (None, (Verdict::Unknown, says))
        }
    }
}

fn judged_waiting(waiting: Option<usize>, most: usize) -> (Verdict, String) {
    match waiting {
        None => (Verdict::Unknown, "may have waiters: who waits is not known".to_owned()),
        Some(0) => (Verdict::Fine, "has no waiters".to_owned()),
        Some(waiting) => {
            let verdict = if waiting > most { Verdict::Critical } else { Verdict::Fine };
            (verdict, format!("has {waiting} {}", if waiting == 1 { "waiter" } else { "waiters" }))
        }
    }
}

/// Returns a text of several lines in one.
fn in_a_line(text: &str) -> String {
    text.lines().map(str::trim).fold(String::new(), |line, next| match line.as_str() {
        "" => next.to_owned(),
        before if before.ends_with(':') => format!("{line} {next}"),
        _ => format!("{line}; {next}"),
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::lock::{Fence, Owner, Prefix, Run, RunEnd, RunUnderWay, Token};
    use crate::store::LockStatus;

    const HOUR: Duration = Duration::from_secs(3600);

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    fn token() -> Token {
        let owner = Owner { user: "u".into(), host: "h".into(), pid: 1, known_as: None };
        Token::mint(&owner, None, SystemTime::UNIX_EPOCH).unwrap()
    }

    /// Returns a run that ended so many hours ago.
    fn run(hours: u32, end: RunEnd) -> Run {
        let ended = now() - HOUR * hours;
        let by = token().told().unwrap();
        Run { by, fence: None, waited: Duration::ZERO, granted: ended - HOUR, ended: Some(ended), end }
    }

    fn row(state: LockState, recorded: Option<Recorded>) -> Row {
        let lock = Named::new(&"nightly".parse().unwrap(), &Prefix::none());
        Row { lock, status: LockStatus { state, queue: Vec::new(), knows_waiters: true, recorded } }
    }

    fn of(over: Vec<Run>, under_way: Vec<RunUnderWay>) -> Option<Recorded> {
        Some(Recorded::of(over, under_way, [None, None], now()))
    }

    #[test]
    fn an_age_is_fine_until_the_limit_and_unknown_without_a_record() {
        let (done, failed) = (RunEnd::exited(0), RunEnd::exited(3));
        let begun = |hours: u32| vec![RunUnderWay::from(run(hours - 1, RunEnd::VANISHED))];
        let cases = [
            (of(vec![run(3, done)], vec![]), Verdict::Fine, "succeeded 3h ago"),
            (of(vec![run(26, done)], vec![]), Verdict::Fine, "succeeded 26h ago"),
            (of(vec![run(31, done)], vec![]), Verdict::Critical, "has not succeeded for 31h"),
            (of(vec![run(1, failed), run(31, done)], vec![]), Verdict::Critical, "has not succeeded for 31h"),
            (of(vec![run(1, failed), run(3, done)], vec![]), Verdict::Fine, "succeeded 3h ago"),
            (
                of(vec![run(3, failed)], begun(1)),
                Verdict::Critical,
                "has never succeeded: the last run failed (3) 3h ago",
            ),
            (of(vec![], begun(2)), Verdict::Unknown, "has not ended its first run yet"),
            (of(vec![], begun(30)), Verdict::Critical, "has not succeeded: its first run began 30h ago"),
            (of(vec![], vec![]), Verdict::Unknown, "has no recorded run: it is misspelt, or not run with --record"),
            (None, Verdict::Unknown, "may not have succeeded: no permission"),
        ];
        let limits = Limits { age: Some(26 * HOUR), ..Limits::default() };
        for (recorded, verdict, says) in cases {
            let alarm =
                Alarm::of(&[row(LockState::free(None), recorded)], &limits, true, |_| Some("no permission".into()));
            assert_eq!((alarm.verdict(), alarm.checks[0].says.as_str()), (verdict, says));
        }
    }

    #[test]
    fn of_all_locks_those_without_a_record_have_no_age_and_if_none_has_one_nothing_is_known() {
        let limits = Limits { age: Some(HOUR), ..Limits::default() };
        let judged = |rows: &[Row]| Alarm::of(rows, &limits, false, |_| None);
        let unrecorded = || row(LockState::free(None), of(vec![], vec![]));
        assert_eq!(judged(&[unrecorded()]).verdict(), Verdict::Unknown);
        assert_eq!(judged(&[]).verdict(), Verdict::Unknown);
        let recorded = row(LockState::free(None), of(vec![run(0, RunEnd::exited(0))], vec![]));
        let alarm = judged(&[unrecorded(), recorded]);
        assert_eq!((alarm.verdict(), alarm.checks.len()), (Verdict::Fine, 1));
    }

    #[test]
    fn a_lock_that_nobody_can_date_is_neither_fine_nor_not() {
        let limits = Limits { held: Some(HOUR), ..Limits::default() };
        let judged = |state| Alarm::of(&[row(state, None)], &limits, true, |_| None).verdict();
        let held = |hours: u32| {
            let granted = (now() - HOUR * hours).duration_since(SystemTime::UNIX_EPOCH).unwrap();
            let fence = Fence(u64::try_from(granted.as_micros()).unwrap());
            LockState::of_value(token().as_str().as_bytes(), Some(HOUR), Some(fence), now())
        };
        assert_eq!(judged(LockState::free(None)), Verdict::Fine);
        assert_eq!(judged(held(0)), Verdict::Fine);
        assert_eq!(judged(held(1)), Verdict::Fine);
        assert_eq!(judged(held(2)), Verdict::Critical);
        assert_eq!(judged(LockState::of_value(b"another program's", Some(HOUR), None, now())), Verdict::Unknown);
        let unknown = LockState { kind: StateKind::Unknown, ..LockState::free(None) };
        assert_eq!(judged(unknown), Verdict::Unknown);
    }

    #[test]
    fn what_is_certainly_wrong_outweighs_what_is_not_known() {
        let limits = Limits { age: Some(HOUR), waiting: Some(0), ..Limits::default() };
        let late = row(LockState::free(None), of(vec![run(9, RunEnd::exited(0))], vec![]));
        let alarm = Alarm::of(&[row(LockState::free(None), None), late], &limits, true, |_| None);
        assert_eq!(alarm.verdict(), Verdict::Critical);
        assert_eq!(alarm.checks.len(), 4);
    }
}
