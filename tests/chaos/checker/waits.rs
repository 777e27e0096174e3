//! No wait goes on while the lock is free for longer than a waiter takes to notice.

use super::{LATE, MS, Section, Violation};
use crate::record::{Client, Nanos, On, Record, Whose};

/// A waiter polls every 2 s, give or take a fifth: by then it has found a free lock even if it missed its message.
const HEARTBEAT: Nanos = 2_400 * MS;
const BOUND: Nanos = HEARTBEAT + LATE;
/// A waiter whose server did not answer may wait 2 s for the reply, and then pause for 1.5 s.
const RECOVERY: Nanos = 3_500 * MS + LATE;

pub fn check(record: &Record, sections: &[Section]) -> Vec<Violation> {
    let long = free(record, sections).into_iter().filter(|wait| wait.to - wait.from > BOUND);
    long.map(|wait| {
        let seconds = (wait.to - wait.from) as f64 / 1e9;
        let what = format!("{} was free for {seconds:.3} s while c{} waited", record.names[wait.name], wait.who);
        Violation { what, name: Some(wait.name), who: vec![wait.who], from: wait.from, to: wait.to }
    })
    .collect()
}

/// Returns the longest time that a lock was free while an unhindered attempt waited for it.
pub fn longest(record: &Record) -> Nanos {
    free(record, &super::sections(record)).iter().map(|wait| wait.to - wait.from).max().unwrap_or(0)
}

/// Returns the longest time that nobody was inside while the next to enter had asked already, for any reason.
pub fn standstill(record: &Record) -> Nanos {
    let sections = super::sections(record);
    let of = |name: usize| {
        let (mut left, mut longest) = (record.began, 0);
        for section in sections.iter().filter(|section| section.name == name) {
            let waited_since = left.max(record.attempts[section.who].asked);
            longest = longest.max(section.entered().saturating_sub(waited_since));
            left = left.max(section.last());
        }
        longest
    };
    (0..record.names.len()).map(of).max().unwrap_or(0)
}

struct Wait {
    name: usize,
    who: usize,
    from: Nanos,
    to: Nanos,
}

fn free(record: &Record, sections: &[Section]) -> Vec<Wait> {
    let mut found = Vec::new();
    let mut entered = vec![Nanos::MAX; record.attempts.len()];
    sections.iter().for_each(|section| entered[section.who] = section.entered());
    for sight in record.sights.iter().filter(|sight| sight.whose == Whose::Nobodys) {
        // Between two polls an attempt may have entered and left.
        let (mut from, end) = (sight.first.after, sight.last.before);
        let later = sections.partition_point(|section| section.entered() < from);
        let entries = sections[later..].iter().take_while(|section| section.entered() < end);
        let entries = entries.filter(|section| section.name == sight.name).map(Section::entered);
        for to in entries.chain([end]) {
            found.extend(longest_waiter(record, &entered, sight.name, from, to));
            from = to;
        }
    }
    found
}

/// Returns the unhindered attempt that waited for longest, from the moment when it can be assumed to wait.
fn longest_waiter(record: &Record, entered: &[Nanos], name: usize, from: Nanos, to: Nanos) -> Option<Wait> {
    if to <= from + MS {
        return None;
    }
    let waits = record.attempts.iter().enumerate().filter_map(|(who, attempt)| {
        let waited_from = from.max(attempt.asked + LATE);
        let waited_to = to.min(attempt.ended.as_ref().map_or(to, |(at, _)| *at)).min(entered[who]);
        let waits = attempt.name == name && attempt.near && attempt.client == Client::Run && waited_from < waited_to;
        (waits && !kept(record, who, waited_from, waited_to)).then_some(Wait {
            name,
            who,
            from: waited_from,
            to: waited_to,
        })
    });
    waits.max_by_key(|wait| wait.to - wait.from)
}

fn kept(record: &Record, who: usize, from: Nanos, to: Nanos) -> bool {
    record.faults.iter().any(|fault| match fault.on {
        On::All if fault.ailment.disturbs_all() => fault.from <= to && fault.to + RECOVERY >= from,
        On::Attempt(whom) => whom == who && fault.from <= to && fault.to + RECOVERY >= from,
        On::All | On::Name(_) => false,
    })
}
