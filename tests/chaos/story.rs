//! The report of a violation: what all participants did about that time.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::checker::{self, Violation};
use crate::record::{Ailment, Attempt, Client, Nanos, On, Record, Stamp, Whose, Word};

/// How much before and after is reported; of the attempts concerned, all lines are.
const AROUND: Nanos = 250_000_000;
const LINES: usize = 400;

pub fn summary(record: &Record) -> String {
    let sections = checker::sections(record);
    let mut faults: BTreeMap<String, usize> = BTreeMap::new();
    for fault in &record.faults {
        let kind = match fault.ailment {
            Ailment::Network(way, condition) => format!("network {way:?} {condition:?}"),
            ailment => format!("{ailment:?}"),
        };
        *faults.entry(kind).or_default() += 1;
    }
    let stalls = faults.remove("Stalled").unwrap_or(0);
    let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
    for attempt in &record.attempts {
        *ends.entry(attempt.ended.as_ref().map_or("never", |(_, how)| how)).or_default() += 1;
    }
    let by = |client| sections.iter().filter(|section| record.attempts[section.who].client == client).count();
    let excused = checker::excused(record);
    let mut text = String::new();
    let _ = writeln!(
        text,
        "arena {}: {:.1} s, {} attempts, {} grants ({} run, {} script, {} plain), {} faults, {} stalls of the machine",
        record.arena,
        seconds(record.ended - record.began),
        record.attempts.len(),
        sections.len(),
        by(Client::Run),
        by(Client::Script),
        by(Client::Outsider),
        faults.values().sum::<usize>(),
        stalls,
    );
    let shared = sections.iter().filter(|section| !section.mode.is_exclusive()).count();
    let most = checker::most_at_once(record, &sections);
    if shared > 0 {
        let _ = writeln!(text, "  shared: {shared} grants, up to {most} holders at once");
    }
    let together = record.attempts.iter().filter(|attempt| !attempt.also.is_empty()).count();
    if together > 0 {
        let had = |section: &&checker::Section| {
            let attempt = &record.attempts[section.who];
            section.name == attempt.name && !attempt.also.is_empty()
        };
        let had = sections.iter().filter(had).count();
        let _ = writeln!(text, "  several at once: {together} attempts, {had} of them had all; each lock is a grant");
    }
    let _ = writeln!(text, "  faults: {faults:?}; {} lines torn by a kill", record.torn);
    let _ = writeln!(text, "  attempts ended: {ends:?}");
    let unwatched: Nanos = record.unwatched.iter().map(|(from, to)| to - from).sum();
    let _ = writeln!(text, "  unwatched: {} times, {:.3} s", record.unwatched.len(), seconds(unwatched));
    let mut starved: Vec<Nanos> = record.attempts.iter().map(|attempt| attempt.starved.in_all()).collect();
    starved.sort_unstable();
    let of = |thousandth: usize| starved.get(starved.len() * thousandth / 1000).map_or(0.0, |nanos| seconds(*nanos));
    let _ = writeln!(
        text,
        "  waited for a processor: {:.3} s, one in ten {:.3} s, in a thousand {:.3} s",
        of(500),
        of(900),
        of(999)
    );
    let _ = writeln!(text, "  overlaps excused: {}; the longest, {:.3} s", excused.0, seconds(excused.1));
    let (steps, unjudged) =
        record.traces.iter().fold((0, 0), |(steps, unjudged), trace| (steps + trace.steps, unjudged + trace.unjudged));
    if !record.traces.is_empty() {
        let (seen, unseen) = checker::granted(record, &sections);
        let _ = writeln!(
            text,
            "  requests that were steps of the rules: {steps}; not judged: {unjudged}; grants by them: {seen}; not seen: {unseen}"
        );
    }
    let free = checker::longest_wait_for_a_free_lock(record);
    let standstill = seconds(checker::standstill(record));
    let _ = write!(
        text,
        "  longest wait for a lock that was free: {:.3} s; longest that nobody was in: {standstill:.3} s",
        seconds(free)
    );
    text
}

fn seconds(nanos: Nanos) -> f64 {
    nanos as f64 / 1e9
}

pub fn tell(record: &Record, violation: &Violation) -> String {
    let asked = violation.who.iter().map(|who| record.attempts[*who].asked).min();
    let from = violation.from.min(asked.unwrap_or(violation.from)).saturating_sub(AROUND);
    let to = violation.to + AROUND;
    let about = |name: usize| violation.name.is_none_or(|about| about == name);
    let mut lines: Vec<(Nanos, String)> = Vec::new();
    let concerned: Vec<String> = violation.who.iter().map(|who| format!("c{who}")).collect();
    let concerns = |line: &str| {
        let mut words = line.split(' ');
        !line.contains("seen:") && words.any(|word| concerned.iter().any(|who| who == word))
    };
    let concerns_it = |attempt: &Attempt| attempt.locks().any(|(name, _)| about(name));
    for (who, attempt) in record.attempts.iter().enumerate().filter(|(_, attempt)| concerns_it(attempt)) {
        let how = format!(
            "{:?}, {:?}, ttl {} ms{}{}{}{}",
            attempt.client,
            attempt.mode,
            attempt.ttl / 1_000_000,
            if attempt.queued { "" } else { ", not in line" },
            if attempt.first { ", goes first" } else { "" },
            if attempt.near { "" } else { ", over the network" },
            if attempt.dawdles > 0 { ", will not stop" } else { "" },
        );
        let names: Vec<&str> = attempt.locks().map(|(name, _)| record.names[name].as_str()).collect();
        lines.push((attempt.asked, format!("c{who} asks for {}: {how}", names.join(" and "))));
        if let Some((at, how)) = &attempt.ended {
            lines.push((*at, format!("c{who} has ended: {how}")));
        }
    }
    // Of the attempts concerned, the first and the last beat of each run of beats.
    let stamps = record.stamps.iter().filter(|stamp| concerns_it(&record.attempts[stamp.who]));
    let stamps: Vec<&Stamp> = stamps.filter(|stamp| (from..=to).contains(&stamp.at)).collect();
    for (n, stamp) in stamps.iter().enumerate() {
        let same =
            |other: Option<&&Stamp>| other.is_some_and(|other| (other.who, other.word) == (stamp.who, Word::Beat));
        let between = same(n.checked_sub(1).and_then(|before| stamps.get(before))) && same(stamps.get(n + 1));
        if stamp.word != Word::Beat || violation.who.contains(&stamp.who) && !between {
            lines.push((stamp.at, stamp.to_string()));
        }
    }
    for fault in &record.faults {
        let whom = match fault.on {
            On::All => String::new(),
            On::Name(name) if about(name) => format!(" {}", record.names[name]),
            On::Attempt(who) if concerns_it(&record.attempts[who]) => format!(" c{who}"),
            On::Name(_) | On::Attempt(_) => continue,
        };
        lines.push((fault.from, format!("    fault begins: {:?}{whom}", fault.ailment)));
        lines.push((fault.to, format!("    fault is over: {:?}{whom}", fault.ailment)));
    }
    for sight in record.sights.iter().filter(|sight| about(sight.name)) {
        let whose = match &sight.whose {
            Whose::Nobodys => "nobody's".to_owned(),
            Whose::Of(who) => format!("c{who}'s"),
            Whose::Shared(holders) => format!("shared by {holders:?}"),
            Whose::Strange => "a stranger's".to_owned(),
        };
        let seen = format!("      seen: {} is {whose}, in line {:?}", record.names[sight.name], sight.line);
        lines.push((sight.first.after, seen));
    }
    lines.retain(|(at, line)| (from..=to).contains(at) || concerns(line));
    lines.sort();
    let mut text = format!("VIOLATION in {}: {}\n", record.arena, violation.what);
    let dropped = lines.len().saturating_sub(LINES);
    for (at, line) in lines.iter().take(LINES) {
        let _ = writeln!(text, "  {:>12.6}  {line}", (*at as f64 - record.began as f64) / 1e9);
    }
    if dropped > 0 {
        let _ = writeln!(text, "  ... and {dropped} more lines");
    }
    text
}
