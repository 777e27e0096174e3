//! No wait goes on for longer than a waiter takes to notice while the lock is free, or while the first in the queue
//! may hold it together with those who do.

use super::{LATE, MS, Section, Violation};
use crate::record::{Attempt, Client, Nanos, On, Record, Sight, Who, Whose};

/// A waiter polls every 2 s, give or take a fifth: by then it has found a free lock even if it missed its message.
const HEARTBEAT: Nanos = 2_400 * MS;
const BOUND: Nanos = HEARTBEAT + LATE;
/// A waiter whose server did not answer may wait 2 s for the reply, and then pause for 1.5 s.
const RECOVERY: Nanos = 3_500 * MS + LATE;

pub fn check(record: &Record, sections: &[Section]) -> Vec<Violation> {
    let alone = free(record, sections).into_iter().map(|wait| (wait, "was free"));
    let waits = alone.chain(with_room(record, sections).into_iter().map(|wait| (wait, "had room")));
    let long = waits.filter(|(wait, _)| wait.to - wait.from > BOUND);
    long.map(|(wait, how)| {
        let seconds = (wait.to - wait.from) as f64 / 1e9;
        let what = format!("{} {how} for {seconds:.3} s while c{} waited", record.names[wait.name], wait.who);
        Violation { what, name: Some(wait.name), who: vec![wait.who], from: wait.from, to: wait.to }
    })
    .collect()
}

/// Returns the longest time that an unhindered attempt waited for a lock that was free, or had room for it.
pub fn longest(record: &Record) -> Nanos {
    let sections = super::sections(record);
    free(record, &sections)
        .iter()
        .chain(&with_room(record, &sections))
        .map(|wait| wait.to - wait.from)
        .max()
        .unwrap_or(0)
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

/// Finds the times for which the first live waiter in the queue fitted those who had the lock.
fn with_room(record: &Record, sections: &[Section]) -> Vec<Wait> {
    let mut entered = vec![Nanos::MAX; record.attempts.len()];
    sections.iter().for_each(|section| entered[section.who] = section.entered());
    let mut found = Vec::new();
    // The waiter, since when it has had room, and the last poll that saw it so.
    let mut current: Option<(usize, Who, Nanos, Nanos)> = None;
    let mut ends = |(name, who, from, seen): (usize, Who, Nanos, Nanos)| {
        let attempt = &record.attempts[who];
        let from = from.max(attempt.asked + LATE);
        let to = seen.min(attempt.ended.as_ref().map_or(seen, |(at, _)| *at)).min(entered[who]);
        let waits = attempt.near && attempt.client == Client::Run && from < to && !kept(record, who, from, to);
        found.extend(waits.then_some(Wait { name, who, from, to }));
    };
    for sight in &record.sights {
        let next = first_that_fits(record, sight);
        current = match current.take() {
            // If the observer did not look in between, nobody knows.
            Some((name, who, from, seen))
                if (name, next) == (sight.name, Some(who)) && sight.first.before <= seen + UNSEEN =>
            {
                Some((name, who, from, sight.last.before))
            }
            before => {
                before.into_iter().for_each(&mut ends);
                next.map(|who| (sight.name, who, sight.first.after, sight.last.before))
            }
        };
    }
    current.into_iter().for_each(&mut ends);
    found
}

/// The observer looks more often than that, unless nobody gets a processor, or the files: then nobody knows.
pub const UNSEEN: Nanos = 100 * MS;

/// Returns the first live waiter, if it may hold the lock together with those who have it.
fn first_that_fits(record: &Record, sight: &Sight) -> Option<Who> {
    let Whose::Shared(holders) = &sight.whose else { return None };
    let lives = |who: &Who| record.attempts[*who].ended.as_ref().is_none_or(|(at, _)| *at > sight.last.before);
    let first = sight.line.iter().copied().find(|who| !holders.contains(who) && lives(who))?;
    let all = holders.iter().chain([&first]);
    let least = all.clone().map(|who| record.attempts[*who].mode_of(sight.name).limit()).min()?;
    (all.count() as u64 <= least).then_some(first)
}

/// Returns the unhindered attempt that waited for longest, from the moment when it can be assumed to wait.
fn longest_waiter(record: &Record, entered: &[Nanos], name: usize, from: Nanos, to: Nanos) -> Option<Wait> {
    if to <= from + MS {
        return None;
    }
    let waits = record.attempts.iter().enumerate().filter_map(|(who, attempt)| {
        let waited_from = from.max(attempt.asked + LATE);
        let waited_to = to.min(attempt.ended.as_ref().map_or(to, |(at, _)| *at)).min(entered[who]);
        let waits = comes_first(record, attempt) == name
            && attempt.near
            && attempt.client == Client::Run
            && waited_from < waited_to;
        (waits && !kept(record, who, waited_from, waited_to)).then_some(Wait {
            name,
            who,
            from: waited_from,
            to: waited_to,
        })
    });
    waits.max_by_key(|wait| wait.to - wait.from)
}

/// Returns the lock of an attempt that it waits for before it waits for any other.
fn comes_first(record: &Record, attempt: &Attempt) -> usize {
    let names = attempt.locks().map(|(name, _)| name);
    names.min_by_key(|name| record.names[*name].as_bytes()).unwrap_or(attempt.name)
}

fn kept(record: &Record, who: usize, from: Nanos, to: Nanos) -> bool {
    record.faults.iter().any(|fault| match fault.on {
        On::All if fault.ailment.disturbs_all() => fault.from <= to && fault.to + RECOVERY >= from,
        On::Attempt(whom) => whom == who && fault.from <= to && fault.to + RECOVERY >= from,
        On::All | On::Name(_) => false,
    })
}
