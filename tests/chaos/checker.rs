//! The violations that a record may not show, and the excuses.
//!
//! The excuses are the contract's. Each is for one attempt, for a limited time:
//!
//! - A lease that ended early (deleted, overwritten, flushed, a server that restarted empty, a master that was replaced
//!   before its replica had the lock, a server's clock set forward): its holder goes on until it notices. It sends a renewal every third of the ttl. nxlock then tells the
//!   command to stop, and kills one that does not after `--kill-after`. Whatever else fails meanwhile, the command is
//!   gone at the end of the lease that nxlock believes in, no later than a ttl after the lock was lost: only a renewal
//!   that finds the lock in place extends it.
//! - nxlock stopped without its command: until nxlock is continued, no process can stop the command.
//! - The whole machine stopped, or one of its processors: the moment between its resuming and nxlock's.
//! - nxlock was not scheduled when it was to kill the command: it may be late by the time that it waited for a processor
//!   since then, if that was long.
//!
//! What a server did is checked besides, whatever came of it: each request is a step of the rules (`trace`).
//!
//! Nothing else excuses anything: not a server that hangs, restarts with its data, is full, read-only or loading, not a
//! network, not a cluster that moves the lock from node to node, not a freeze of nxlock with its command, and not a kill of
//! nxlock, of its guard or of its process group, with any processes that its command has started: the section ends before
//! another holder enters.

mod order;
mod overlap;
mod steps;
#[cfg(test)]
mod tests;
mod waits;

use std::collections::HashSet;

use crate::record::{Ailment, Attempt, Client, Fault, Mode, Nanos, On, Record, Terms, Who, Word};

pub use order::HAS_TIME;
pub use overlap::most_at_once;
pub use steps::granted;
pub use waits::{UNSEEN, longest as longest_wait_for_a_free_lock, standstill};

const MS: Nanos = 1_000_000;
/// How late a process that waits for nothing may be on a busy machine.
const LATE: Nanos = 500 * MS;
/// How long a server may be slow after a fault.
const FELT_FOR: Nanos = 2_000 * MS;
/// How long nxlock may take to stop its command after SIGCONT.
const WAKING: Nanos = 100 * MS;

/// A violation of the contract.
#[derive(Debug)]
pub struct Violation {
    pub what: String,
    pub name: Option<usize>,
    pub who: Vec<Who>,
    pub from: Nanos,
    pub to: Nanos,
}

/// The work done under one grant. That of an attempt with several locks is a section of each.
#[derive(Debug, Clone)]
pub struct Section {
    pub who: Who,
    pub name: usize,
    pub mode: Mode,
    pub terms: Terms,
    /// The times of its stamps, in order; the first is the entry.
    pub stamps: Vec<Nanos>,
}

impl Section {
    pub fn entered(&self) -> Nanos {
        self.stamps[0]
    }

    pub fn last(&self) -> Nanos {
        *self.stamps.last().expect("it has entered")
    }
}

pub fn check(record: &Record) -> Vec<Violation> {
    let sections = sections(record);
    let mut found = overlap::check(record, &sections).violations;
    found.extend(order::check(record, &sections));
    found.extend(waits::check(record, &sections));
    found.extend(endings(record));
    found.extend(second_entries(record));
    found.extend(steps::check(record, &sections));
    found.sort_by_key(|violation| violation.from);
    found
}

/// Returns `c1, c2 and c3`.
fn in_words(who: &[Who]) -> String {
    let names: Vec<String> = who.iter().map(|who| format!("c{who}")).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => names.concat(),
    }
}

/// Returns how many overlaps were excused, and the longest.
pub fn excused(record: &Record) -> (usize, Nanos) {
    let excused = overlap::check(record, &sections(record)).excused;
    (excused.len(), excused.into_iter().max().unwrap_or(0))
}

/// Returns the sections in the order of their entries.
pub fn sections(record: &Record) -> Vec<Section> {
    let mut all: Vec<Option<Section>> = vec![None; record.attempts.len()];
    for stamp in &record.stamps {
        match (&mut all[stamp.who], stamp.word) {
            (empty @ None, Word::Enter(terms)) => {
                let Attempt { name, mode, .. } = record.attempts[stamp.who];
                *empty = Some(Section { who: stamp.who, name, mode, terms, stamps: vec![stamp.at] });
            }
            (Some(section), Word::Beat | Word::Leave) => section.stamps.push(stamp.at),
            // See `second_entries`.
            (Some(_), Word::Enter(_)) => {}
            (section, word) => panic!("{word:?} of c{} after {section:?}", stamp.who),
        }
    }
    let of_each_lock = |section: Section| {
        let also = &record.attempts[section.who].also;
        let further = also.iter().zip(section.terms.also).map(|(&(name, mode), fence)| {
            let terms = Terms { fence, ..Terms::default() };
            Section { name, mode, terms, ..section.clone() }
        });
        let further: Vec<Section> = further.collect();
        [section].into_iter().chain(further)
    };
    let mut sections: Vec<Section> = all.into_iter().flatten().flat_map(of_each_lock).collect();
    sections.sort_by_key(Section::entered);
    sections
}

/// Nobody's command runs twice.
fn second_entries(record: &Record) -> Vec<Violation> {
    let mut entered: Vec<Option<Nanos>> = vec![None; record.attempts.len()];
    let mut found = Vec::new();
    for stamp in record.stamps.iter().filter(|stamp| matches!(stamp.word, Word::Enter(_))) {
        if let Some(first) = entered[stamp.who].replace(stamp.at) {
            let what = format!("the command of c{} ran twice", stamp.who);
            let name = Some(record.attempts[stamp.who].name);
            found.push(Violation { what, name, who: vec![stamp.who], from: first, to: stamp.at });
        }
    }
    found
}

/// Returns the intervals in which a section may do what another's grant forbids.
pub fn allowances(record: &Record, section: &Section) -> Vec<(Nanos, Nanos)> {
    let attempt = &record.attempts[section.who];
    // A lock that was lost and granted to the same attempt again needs no excuse. But a clock that is set forward
    // may end a lease only later.
    let regained = |fault: &Fault| {
        let seen = |sight: &&crate::record::Sight| sight.name == section.name && sight.whose.includes(section.who);
        let again = record.sights.iter().filter(seen).any(|sight| sight.last.before > fault.to);
        again && fault.ailment != Ailment::SetForward
    };
    let allowed = |fault: &Fault| match (fault.ailment, fault.on) {
        (Ailment::FrozenAlone, On::Attempt(who)) if who == section.who => Some((fault.from, fault.to + WAKING)),
        (Ailment::Stalled, _) => Some((fault.from, fault.to + WAKING)),
        (ailment, on) if ailment.forgets() && on != On::Attempt(section.who) => {
            let touches = on == On::All || on == On::Name(section.name);
            let before = attempt.asked <= fault.to;
            (touches && before && !regained(fault)).then(|| (fault.from, fault.to + notice(record, section, fault)))
        }
        _ => None,
    };
    let near =
        |fault: &&Fault| fault.to + 2 * attempt.ttl.max(WAKING) >= section.entered() && fault.from <= section.last();
    record.faults.iter().filter(near).filter_map(allowed).collect()
}

/// Returns how long a lock may still be used after it was lost.
fn notice(record: &Record, section: &Section, lost: &Fault) -> Nanos {
    let attempt = &record.attempts[section.who];
    let prompt = attempt.ttl / 3 + attempt.dawdles + LATE;
    let meanwhile = |fault: &&Fault| {
        let theirs = fault.on == On::All && fault.ailment.disturbs_all() || fault.on == On::Attempt(section.who);
        theirs && **fault != *lost && fault.to >= lost.from && fault.from <= lost.to + prompt
    };
    let undisturbed = attempt.near && attempt.client == Client::Run && !record.faults.iter().any(|f| meanwhile(&f));
    if undisturbed { prompt.min(attempt.ttl) } else { attempt.ttl }
}

/// Returns whether something befell an attempt, or its server, that it may feel: a fault lasted until less than [`FELT_FOR`]
/// before the attempt.
fn is_disturbed(record: &Record, who: Who, ended: Nanos) -> bool {
    let attempt = &record.attempts[who];
    let is_felt = |fault: &Fault| {
        let touches = match fault.on {
            On::All => fault.ailment != Ailment::ScriptsForgotten,
            On::Name(name) => attempt.locks().any(|(one, _)| one == name),
            On::Attempt(whose) => whose == who,
        };
        touches && fault.from <= ended && fault.to + FELT_FOR >= attempt.asked
    };
    record.faults.iter().any(is_felt)
}

/// Returns whether another attempt may have asked this one to give up before it ended.
fn may_be_superseded(record: &Record, who: Who, ended: Nanos) -> bool {
    let attempt = &record.attempts[who];
    let asks = |(other, theirs): (Who, &Attempt)| {
        let is_about_one = theirs.locks().any(|(name, _)| attempt.locks().any(|(ours, _)| ours == name));
        let is_there = theirs.asked <= ended && theirs.ended.as_ref().is_none_or(|(at, _)| *at >= attempt.asked);
        other != who && theirs.supersedes_holders && is_about_one && is_there
    };
    attempt.supersedes_holders && record.attempts.iter().enumerate().any(asks)
}

/// Finds attempts that failed without an explanation or never ended, and what was left behind.
fn endings(record: &Record) -> Vec<Violation> {
    let mut found = Vec::new();
    let entries = record.stamps.iter().filter(|stamp| matches!(stamp.word, Word::Enter(_)));
    let entered: HashSet<Who> = entries.map(|stamp| stamp.who).collect();
    for (who, attempt) in record.attempts.iter().enumerate() {
        let ended = attempt.ended.as_ref();
        let at = ended.map_or(attempt.asked, |(at, _)| *at);
        let violation = |what| Violation { what, name: Some(attempt.name), who: vec![who], from: at, to: at };
        // A killed script, and a test binary that runs as the script, have exit statuses of their own.
        let disturbed = || is_disturbed(record, who, attempt.ended.as_ref().map_or(record.ended, |(at, _)| *at));
        let is_explained = |how: &str| match how {
            "0" => entered.contains(&who),
            "75" => attempt.may_be_refused,
            "124" => attempt.is_limited,
            "129" | "130" => disturbed(),
            "143" => disturbed() || entered.contains(&who) && may_be_superseded(record, who, at),
            // On a busy machine the shortest leases end by themselves, and a server may be late for any.
            "69" | "76" | "137" => true,
            _ => false,
        };
        match ended {
            None => found.push(violation(format!("c{who} has waited for ever"))),
            Some((_, how)) if attempt.client == Client::Run && !how.starts_with("signal") => {
                // Without its guard, nxlock does not know how the command ended.
                let guard_killed =
                    |fault: &Fault| fault.ailment == Ailment::GuardKilled && fault.on == On::Attempt(who);
                let without_a_guard = how == "70" && record.faults.iter().any(guard_killed);
                if !is_explained(how) && !without_a_guard {
                    let but = if entered.contains(&who) { "" } else { " and was never inside" };
                    found.push(violation(format!("c{who} exited with {how}{but}")));
                }
            }
            Some(_) => {}
        }
    }
    // Of a waiter or a holder that was killed, and had no visitor after it, the next one clears away what is left; so
    // it does with a claim that lasted longer than its process, when the lease is over.
    let may_leave = |who: &Who| {
        let attempt = &record.attempts[*who];
        let was_killed = attempt.ended.as_ref().is_some_and(|(_, how)| how == "signal 9" || how == "137");
        was_killed || attempt.outlasted
    };
    for left in record.left.iter().filter(|left| !left.of.as_ref().is_some_and(may_leave)) {
        let what = format!("left behind: {}", left.what);
        let name = left.of.map(|who| record.attempts[who].name);
        let who = left.of.into_iter().collect();
        found.push(Violation { what, name, who, from: record.ended, to: record.ended });
    }
    found
}
