//! The grants and releases of a run in a form that other checkers read: a Jepsen history, one operation a line in EDN.
//!
//! `NXLOCK_CHAOS_HISTORY=FILE` adds to a file, for each attempt: that it asked (`:invoke :acquire`), that it was in (`:ok`),
//! that it was about to leave (`:invoke :release`) and that it had left (`:ok`); `:info` if it was killed, and may have left
//! at any later time, or if it is not known whether it was granted the lock, and `:fail` if it was refused. Overlaps that
//! the checker excuses are in it: where locks are lost (`forgetful`, `deposed`), it may be none of a mutex. `:key` names the
//! arena and the lock, each to be judged alone; `:limit` is how many may hold the lock while this one does, and nil is any
//! number: a mutex, where it is 1 for all.
//!
//! The history of each run is read back, and an order of its operations is searched that a lock allows (todc-utils).

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

use todc_utils::{Action, History, Specification, WGLChecker};

use crate::checker::{self, Section};
use crate::record::{Attempt, Mode, Nanos, Record, UNANSWERED};

/// Returns the operations of a run, in order of time.
pub fn of(record: &Record) -> String {
    let sections = checker::sections(record);
    let mut lines: Vec<(Nanos, usize, String)> = Vec::new();
    let of_each_lock = |(who, attempt): (usize, &'_ Attempt)| -> Vec<(usize, usize, Mode)> {
        attempt.locks().map(|(name, mode)| (who, name, mode)).collect()
    };
    for (who, name, mode) in record.attempts.iter().enumerate().flat_map(of_each_lock) {
        let attempt = &record.attempts[who];
        let limit = match mode {
            Mode::Shared => "nil".to_owned(),
            mode => mode.limit().to_string(),
        };
        let mut operation = |at: Nanos, kind: &str, act: &str| {
            let order = lines.len();
            let key = format!("{}/{}", record.arena, record.names[name]);
            let time = at.saturating_sub(record.began);
            let line = format!(
                "{{:process {who}, :type :{kind}, :f :{act}, :value nil, :time {time}, :key {key:?}, :limit {limit}}}"
            );
            lines.push((at, order, line));
        };
        operation(attempt.asked, "invoke", "acquire");
        let ended = attempt.ended.as_ref();
        let unknown = |how: &str| ["137", UNANSWERED].contains(&how) || how.starts_with("signal");
        let was_killed = ended.is_none_or(|(_, how)| unknown(how));
        let end = ended.map_or(record.ended, |(at, _)| *at);
        let Some(section) = sections.iter().find(|section: &&Section| section.who == who) else {
            let was_refused = ended.is_some_and(|(_, how)| how == "75");
            operation(end, if was_refused { "fail" } else { "info" }, "acquire");
            continue;
        };
        operation(section.entered(), "ok", "acquire");
        operation(section.last(), "invoke", "release");
        operation(end.max(section.last()), if was_killed { "info" } else { "ok" }, "release");
    }
    lines.sort();
    let mut text = String::new();
    for (_, _, line) in lines {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// Returns why a history is none of a lock, by two judges that read only the text: one finds two who hold
/// it for certain at once ([`collision`]), the other, of todc-utils, no order that explains it ([`is_linearizable`]).
pub fn refuted(history: &str) -> Option<String> {
    let mut of_each: BTreeMap<&str, Vec<Operation<'_>>> = BTreeMap::new();
    for (key, operation) in history.lines().filter_map(Operation::read) {
        of_each.entry(key).or_default().push(operation);
    }
    of_each.into_iter().find_map(|(key, operations)| {
        let why =
            collision(&operations).or_else(|| (!is_linearizable(&operations)).then(|| "no order explains it".into()));
        Some(format!("{key}: {}", why?))
    })
}

/// What a line tells of a lock.
struct Operation<'a> {
    process: usize,
    kind: &'a str,
    act: &'a str,
    /// How many may hold the lock while this process does.
    limit: u64,
}

impl<'a> Operation<'a> {
    /// Returns the key of the lock besides.
    fn read(line: &'a str) -> Option<(&'a str, Operation<'a>)> {
        let field = |name: &str| {
            let (_, rest) = line.split_once(&format!(":{name} "))?;
            rest.split([',', '}']).next()
        };
        let process = field("process")?.parse().ok()?;
        let limit = field("limit")?.parse().unwrap_or(u64::MAX);
        Some((field("key")?, Operation { process, kind: field("type")?, act: field("f")?, limit }))
    }
}

/// Returns who held a lock together and may not. It is held for certain from the reply to `acquire` to the call of
/// `release`. If no two such intervals collide, each operation may have happened at these ends, and the history is
/// linearizable; if two do, it is not, as the lock was held for at least as long.
fn collision(operations: &[Operation<'_>]) -> Option<String> {
    let mut held: BTreeMap<usize, u64> = BTreeMap::new();
    for operation in operations {
        match (operation.kind, operation.act) {
            (":ok", ":acquire") => {
                held.insert(operation.process, operation.limit);
                if !has_room(&held) {
                    return Some(format!("held by {:?} at once", held.keys()));
                }
            }
            (":invoke", ":release") => _ = held.remove(&operation.process),
            _ => {}
        }
    }
    None
}

/// Returns whether these processes, each with its limit, may hold a lock together.
fn has_room(held: &BTreeMap<usize, u64>) -> bool {
    held.values().min().is_none_or(|least| held.len() as u64 <= *least)
}

/// How many lines about a lock are searched: time and memory grow with their square.
const SEARCHED: usize = 2000;

/// Returns whether an order of the operations explains the first lines about a lock, by the search of Wing, Gong and Lowe,
/// which Knossos and porcupine use as well. It knows nothing of the argument of [`collision`].
fn is_linearizable(operations: &[Operation<'_>]) -> bool {
    let operations = &operations[..operations.len().min(SEARCHED)];
    let has = |kind: &str, act: &str| -> HashSet<usize> {
        let those = operations.iter().filter(|operation| (operation.kind, operation.act) == (kind, act));
        those.map(|operation| operation.process).collect()
    };
    let (granted, released) = (has(":ok", ":acquire"), has(":ok", ":release"));
    // An `acquire` without an answer may never have happened, and nothing else can have needed it. A `release` without one
    // may have happened at any later time.
    let happened = operations.iter().filter(|operation| granted.contains(&operation.process));
    let mut actions = Vec::new();
    let mut unanswered = Vec::new();
    for Operation { process, kind, act, limit } in happened {
        let step = Step { process: *process, takes: (*act == ":acquire").then_some(*limit) };
        match *kind {
            ":invoke" => {
                let is_answered = step.takes.is_some() || released.contains(process);
                unanswered.extend((!is_answered).then(|| (*process, Action::Response(step.clone()))));
                actions.push((*process, Action::Call(step)));
            }
            ":ok" => actions.push((*process, Action::Response(step))),
            _ => {}
        }
    }
    actions.extend(unanswered);
    actions.is_empty() || WGLChecker::<Semaphore>::is_linearizable(History::from_actions(actions))
}

/// A process takes a lock, which so many may hold meanwhile, or gives it back.
#[derive(Clone, Debug)]
struct Step {
    process: usize,
    takes: Option<u64>,
}

/// A lock, as its holders, each with its limit: a mutex, where that is 1 for all.
struct Semaphore;

impl Specification for Semaphore {
    type State = BTreeMap<usize, u64>;
    type Operation = Step;

    fn init() -> Self::State {
        BTreeMap::new()
    }

    fn apply(step: &Step, held: &Self::State) -> (bool, Self::State) {
        let mut next = held.clone();
        let is_valid = match step.takes {
            Some(limit) => next.insert(step.process, limit).is_none() && has_room(&next),
            None => next.remove(&step.process).is_some(),
        };
        (is_valid, if is_valid { next } else { held.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Client, Stamp, Starved, Terms, Word};
    use crate::seed::{self, Seed};

    fn record(modes: &[Mode], sections: &[(usize, Nanos, Nanos)]) -> Record {
        let attempt = |mode: &Mode| Attempt {
            name: 0,
            client: Client::Run,
            mode: *mode,
            also: Vec::new(),
            ttl: 1000,
            queued: true,
            first: false,
            near: true,
            dawdles: 0,
            outlasted: false,
            may_be_refused: false,
            supersedes_holders: false,
            is_limited: false,
            asked: 10,
            ended: Some((900, "75".into())),
            starved: Starved::default(),
        };
        let stamps = sections.iter().flat_map(|(who, from, to)| {
            let enter = Stamp { at: *from, who: *who, word: Word::Enter(Terms::default()) };
            [enter, Stamp { at: *to, who: *who, word: Word::Leave }]
        });
        let mut stamps: Vec<Stamp> = stamps.collect();
        stamps.sort_by_key(|stamp| stamp.at);
        Record {
            arena: "by hand",
            names: vec!["job".into()],
            began: 0,
            ended: 1000,
            attempts: modes.iter().map(attempt).collect(),
            stamps,
            faults: Vec::new(),
            sights: Vec::new(),
            unwatched: Vec::new(),
            traces: Vec::new(),
            voted: false,
            left: Vec::new(),
            torn: 0,
        }
    }

    #[test]
    fn a_run_in_turns_is_a_history_of_a_mutex_and_an_overlap_is_not() {
        let in_turns = of(&record(&[Mode::Exclusive; 3], &[(0, 20, 30), (1, 30, 40)]));
        assert_eq!(in_turns.lines().count(), 10, "{in_turns}");
        let first = in_turns.lines().next().unwrap();
        assert_eq!(
            first,
            "{:process 0, :type :invoke, :f :acquire, :value nil, :time 10, :key \"by hand/job\", :limit 1}"
        );
        assert!(in_turns.contains("{:process 2, :type :fail, :f :acquire, :value nil, :time 900,"), "{in_turns}");
        assert_eq!(refuted(&in_turns), None);
        let overlap = of(&record(&[Mode::Exclusive; 2], &[(0, 20, 31), (1, 30, 40)]));
        assert!(refuted(&overlap).is_some(), "{overlap}");
    }

    #[test]
    fn several_locks_are_each_a_history() {
        let mut record = record(&[Mode::Exclusive; 2], &[(0, 20, 31), (1, 30, 40)]);
        record.names.push("other".into());
        record.attempts[1].name = 1;
        assert_eq!(refuted(&of(&record)), None);
        record.attempts[1].also = vec![(0, Mode::Exclusive)];
        let history = of(&record);
        assert!(refuted(&history).is_some_and(|why| why.contains("by hand/job")), "{history}");
    }

    #[test]
    fn readers_and_slots_are_a_semaphore() {
        let slots = [Mode::Slots(2), Mode::Slots(2), Mode::Shared];
        assert_eq!(refuted(&of(&record(&slots, &[(0, 20, 40), (1, 30, 50)]))), None);
        assert!(refuted(&of(&record(&slots, &[(0, 20, 40), (1, 30, 50), (2, 35, 36)]))).is_some());
        assert_eq!(refuted(&of(&record(&[Mode::Shared; 3], &[(0, 20, 40), (1, 30, 50), (2, 35, 36)]))), None);
    }

    #[test]
    fn two_who_hold_a_lock_for_certain_collide_if_and_only_if_no_order_explains_the_history() {
        let mut seed = Seed::of(seed::fresh());
        let mut explained = 0;
        for _ in 0..500 {
            let modes: Vec<Mode> = (0..6)
                .map(|_| match seed.between(0, 4) {
                    0 => Mode::Shared,
                    1 => Mode::Slots(seed.between(1, 4)),
                    _ => Mode::Exclusive,
                })
                .collect();
            let mut sections: Vec<(usize, Nanos, Nanos)> = Vec::new();
            let mut now = 20;
            for who in 0..modes.len().min(usize::try_from(seed.between(2, 7)).unwrap()) {
                // Mostly one after the other.
                let from = if seed.percent(80) { now } else { seed.between(11, now + 1) };
                now = now.max(from + seed.between(0, 20));
                sections.push((who, from, now));
            }
            let mut record = record(&modes, &sections);
            for (who, _, to) in &sections {
                let how = if seed.percent(20) { "signal 9" } else { "0" };
                record.attempts[*who].ended = Some((to + seed.between(0, 30), how.into()));
            }
            let history = of(&record);
            let operations: Vec<Operation<'_>> =
                history.lines().filter_map(Operation::read).map(|(_, operation)| operation).collect();
            let is_explained = is_linearizable(&operations);
            assert_eq!(is_explained, collision(&operations).is_none(), "{history}");
            explained += usize::from(is_explained);
        }
        assert!((100..400).contains(&explained), "{explained} of 500 are explained");
    }
}
