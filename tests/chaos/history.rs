//! The grants and releases of a run in a form that other checkers read: a Jepsen history, one operation a line in EDN.
//!
//! `NXLOCK_CHAOS_HISTORY=FILE` adds to a file, for each attempt: that it asked (`:invoke :acquire`), that it was in (`:ok`),
//! that it was about to leave (`:invoke :release`) and that it had left (`:ok`); `:info` if it was killed, and may have left
//! at any later time, or if it is not known whether it was granted the lock, and `:fail` if it was refused. Overlaps that
//! the checker excuses are in it: where locks are lost (`forgetful`, `deposed`), it may be none of a mutex. `:key` names the arena and the lock, each to be judged alone; `:limit`
//! is how many may hold the lock while this one does, and nil is any number: a mutex, where it is 1 for all.

use std::collections::BTreeMap;
use std::fmt::Write;

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

/// Returns why a history is none of a lock: reads only the text. The lock is held for certain from the reply to
/// `acquire` to the call of `release`. If no two such intervals collide, each operation may have happened at these ends,
/// and the history is linearizable; if two do, it is not, as the lock was held for at least as long.
pub fn refuted(history: &str) -> Option<String> {
    let field = |line: &str, name: &str| {
        let (_, rest) = line.split_once(&format!(":{name} "))?;
        Some(rest.split([',', '}']).next()?.to_owned())
    };
    let mut holders: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for line in history.lines() {
        let of = |name: &str| field(line, name).unwrap_or_default();
        let held = holders.entry(of("key")).or_default();
        match (of("type").as_str(), of("f").as_str()) {
            (":ok", ":acquire") => {
                held.insert(of("process"), of("limit").parse().unwrap_or(u64::MAX));
                if held.values().min().is_some_and(|least| held.len() as u64 > *least) {
                    return Some(format!("{held:?} hold it: {line}"));
                }
            }
            (":invoke", ":release") => _ = held.remove(&of("process")),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Client, Stamp, Starved, Terms, Word};

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
}
