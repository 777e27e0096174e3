//! No more holders at a time than the least limit of them, each slot once; nothing done after the lease; fences in the
//! order of the grants.

use std::collections::HashMap;

use super::{MS, Section, Violation, allowances, in_words};
use crate::record::{Ailment, Mode, Nanos, Record, Sight, Who};

#[derive(Default)]
pub struct Overlaps {
    pub violations: Vec<Violation>,
    /// The duration of each overlap that was excused.
    pub excused: Vec<Nanos>,
}

pub fn check(record: &Record, sections: &[Section]) -> Overlaps {
    let mut found = Overlaps::default();
    for name in 0..record.names.len() {
        let sections: Vec<&Section> = sections.iter().filter(|section| section.name == name).collect();
        overlaps(record, &sections, &mut found);
        slots(record, &sections, &mut found);
        fences(record, &sections, &mut found);
        let sights: Vec<&Sight> = record.sights.iter().filter(|sight| sight.name == name).collect();
        outlived(record, &sections, &sights, &mut found);
    }
    found
}

/// Returns the greatest number of sections that went on at once under one lock.
pub fn most_at_once(record: &Record, sections: &[Section]) -> usize {
    let at_once = |name: usize| {
        let mut inside: Vec<&Section> = Vec::new();
        let mut most = 0;
        for section in sections.iter().filter(|section| section.name == name) {
            inside.retain(|other| other.last() >= section.entered());
            inside.push(section);
            most = most.max(inside.len());
        }
        most
    };
    (0..record.names.len()).map(at_once).max().unwrap_or(0)
}

/// Less than this happens to every process, and the margins cover it.
const STARVED: Nanos = 50 * MS;
/// How long before the end of its lease nxlock kills a command, at most; of a lease of more than 25 s, which nobody has here,
/// it is more. What nxlock waited for a processor before that makes it late for nothing.
const KILLED_BEFORE: Nanos = 250 * MS;

/// Returns whether a section may stamp at each of these moments, though it should have been over at the `end`.
fn allowed(record: &Record, section: &Section, end: Nanos, moments: &[Nanos]) -> bool {
    let mut allowances = allowances(record, section);
    let starved = record.attempts[section.who].starved.since(end.saturating_sub(KILLED_BEFORE));
    allowances.extend((starved >= STARVED).then_some((end, end + starved)));
    moments.iter().all(|at| allowances.iter().any(|(from, to)| (from..=to).contains(&at)))
}

/// Returns whether one section may have been granted before another, or by a master after the next one had granted the
/// other. The time of an outsider's grant is unknown.
fn may_be_older(record: &Record, section: &Section, other: &Section) -> bool {
    match (section.terms.fence, other.terms.fence) {
        (Some(fence), Some(theirs)) if fence <= theirs || may_be_unknown(record, section) => true,
        // A reader has the fence of the first share of all, however late it joins.
        (Some(_), Some(_)) => other.mode == Mode::Shared && !section.mode.is_exclusive(),
        _ => true,
    }
}

/// Returns whether a section may go on though the lock was granted to another: it had lost the lock.
fn goes_on_beside(record: &Record, old: &Section, new: &Section) -> bool {
    let beside: Vec<Nanos> = old.stamps.iter().copied().filter(|at| *at >= new.entered()).collect();
    may_be_older(record, old, new) && allowed(record, old, new.entered(), &beside)
}

fn overlaps(record: &Record, sections: &[&Section], found: &mut Overlaps) {
    // The sections that have not left when the next one enters; of exclusive locks, mostly none.
    let mut inside: Vec<&Section> = Vec::new();
    for &newcomer in sections {
        inside.retain(|section| section.last() >= newcomer.entered());
        inside.push(newcomer);
        let Some(wrong) = too_many(&inside) else { continue };
        // Those that had lost the lock by then do not count.
        let had_lost = |section: &Section| match section.who == newcomer.who {
            true => inside.iter().any(|other| other.who != section.who && goes_on_beside(record, section, other)),
            false => goes_on_beside(record, section, newcomer),
        };
        let counted: Vec<&Section> = inside.iter().copied().filter(|section| !had_lost(section)).collect();
        let at = newcomer.entered();
        let first_end = |sections: &[&Section]| sections.iter().map(|section| section.last()).min().unwrap_or(at);
        match too_many(&counted).filter(|_| counted.iter().any(|section| section.who == newcomer.who)) {
            None => found.excused.push(first_end(&wrong.who) - at),
            Some(Excess { who, rule }) => {
                let to = first_end(&who);
                let who: Vec<Who> = who.iter().map(|section| section.who).collect();
                let name = &record.names[newcomer.name];
                let what = format!("{} overlap by {:.3} ms in {name}{rule}", in_words(&who), (to - at) as f64 / 1e6);
                found.violations.push(Violation { what, name: Some(newcomer.name), who, from: at, to });
            }
        }
    }
}

/// Sections that may not go on at the same time.
struct Excess<'a> {
    who: Vec<&'a Section>,
    rule: String,
}

fn too_many<'a>(at_once: &[&'a Section]) -> Option<Excess<'a>> {
    let least = at_once.iter().map(|section| section.mode.limit()).min()?;
    if at_once.len() as u64 > least {
        let rule = if least == 1 { String::new() } else { format!(", where {least} may hold it") };
        return Some(Excess { who: at_once.to_vec(), rule });
    }
    let (newcomer, others) = at_once.split_last()?;
    let slot = newcomer.terms.slot?.number;
    let other = others.iter().find(|other| other.terms.slot.is_some_and(|theirs| theirs.number == slot))?;
    Some(Excess { who: vec![other, newcomer], rule: format!(", both in slot {slot}") })
}

/// Finds holders that were told something else than they had asked for.
fn slots(record: &Record, sections: &[&Section], found: &mut Overlaps) {
    for section in sections {
        let as_asked = match (section.mode, section.terms.slot) {
            (Mode::Slots(count), Some(slot)) => slot.of == count && slot.number < count,
            (mode, slot) => !matches!(mode, Mode::Slots(_)) && slot.is_none(),
        };
        if !as_asked {
            let (who, name) = (section.who, &record.names[section.name]);
            let asked = section.mode;
            let what = format!("c{who} entered {name} with {:?}, and asked for {asked:?}", section.terms.slot);
            let at = section.entered();
            found.violations.push(Violation { what, name: Some(section.name), who: vec![who], from: at, to: at });
        }
    }
}

/// The section with the highest fence of its kind so far.
type Highest<'a> = Option<(&'a Section, u64)>;

fn raise<'a>(highest: &mut Highest<'a>, section: &'a Section, fence: u64) {
    if highest.is_none_or(|(_, high)| fence > high) {
        *highest = Some((section, fence));
    }
}

/// Finds fences that are too low. A fence is above those of all who had the lock alone before; that of an exclusive
/// holder is above all, and that of a slot above all of this slot. Readers who hold a lock together have the same.
fn fences(record: &Record, sections: &[&Section], found: &mut Overlaps) {
    let (mut of_all, mut alone): (Highest<'_>, Highest<'_>) = (None, None);
    let mut of_slots: HashMap<u64, Highest<'_>> = HashMap::new();
    let mut readers: Vec<&Section> = Vec::new();
    for &section in sections {
        let Some(fence) = section.terms.fence else { continue };
        let mode = section.mode;
        let slot = section.terms.slot.map(|slot| slot.number);
        let before = match slot {
            _ if mode.is_exclusive() => of_all,
            Some(slot) => {
                let of_slot = of_slots.get(&slot).copied().flatten();
                of_slot.into_iter().chain(alone).max_by_key(|(_, high)| *high)
            }
            None => alone,
        };
        if let Some((before, high)) = before.filter(|(_, high)| fence <= *high) {
            // The earlier grant may have entered later.
            if fence < high && allowed(record, section, before.entered(), &[section.entered()]) {
                continue;
            }
            // The next master has readers of before a grant that it does not know, and another reader joins them.
            if fence < high && mode == Mode::Shared && may_be_unknown(record, before) {
                continue;
            }
            found.violations.push(with_fence(record, section, fence, "after", before, high));
            continue;
        }
        raise(&mut of_all, section, fence);
        if mode.is_exclusive() {
            raise(&mut alone, section, fence);
        }
        if let Some(slot) = slot {
            raise(of_slots.entry(slot).or_default(), section, fence);
        }
        readers.retain(|reader| reader.last() >= section.entered());
        if mode != Mode::Shared {
            continue;
        }
        let differs = |reader: &&&Section| {
            let lost = goes_on_beside(record, reader, section) || goes_on_beside(record, section, reader);
            reader.terms.fence != Some(fence) && !lost
        };
        if let Some(reader) = readers.iter().find(differs) {
            let theirs = reader.terms.fence.unwrap_or(0);
            found.violations.push(with_fence(record, section, fence, "together with", reader, theirs));
        }
        readers.push(section);
    }
}

/// Returns whether the old master may have granted the lock when its replica heard of grants no more.
fn may_be_unknown(record: &Record, section: &Section) -> bool {
    let deposed = record.faults.iter().filter(|fault| fault.ailment == Ailment::Deposed);
    let asked = record.attempts[section.who].asked;
    deposed.into_iter().any(|fault| section.entered() >= fault.from && asked <= fault.to)
}

fn with_fence(record: &Record, section: &Section, fence: u64, how: &str, other: &Section, theirs: u64) -> Violation {
    let name = &record.names[section.name];
    let what = format!("c{} entered {name} with fence {fence}, {how} c{} with {theirs}", section.who, other.who);
    let at = section.entered();
    Violation { what, name: Some(section.name), who: vec![other.who, section.who], from: at, to: at }
}

/// Finds holders that went on without the lock. Entering proves possession; what a holder does after another state of
/// the lock was seen, it does without the lock.
fn outlived(record: &Record, sections: &[&Section], sights: &[&Sight], found: &mut Overlaps) {
    for section in sections {
        let first = sights.partition_point(|sight| sight.last.before <= section.entered());
        let Some(seen) = sights[first..].iter().find(|sight| !sight.whose.includes(section.who)) else { continue };
        // Of a sight that began before the entry, only the end is known to be later.
        let lost_by = if seen.first.before >= section.entered() { seen.first.after } else { seen.last.after };
        let after: Vec<Nanos> = section.stamps.iter().copied().filter(|at| *at > lost_by).collect();
        if after.is_empty() || allowed(record, section, lost_by, &after) {
            continue;
        }
        let what = format!(
            "c{} went on in {} for {:.3} ms after it was seen that the lock was {:?}",
            section.who,
            record.names[section.name],
            (section.last() - lost_by) as f64 / 1e6,
            seen.whose
        );
        let who = vec![section.who];
        found.violations.push(Violation { what, name: Some(section.name), who, from: lost_by, to: section.last() });
    }
}
