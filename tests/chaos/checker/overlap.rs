//! One holder at a time; nothing done after the lease; fences in the order of the grants.

use super::{MS, Section, Violation, allowances};
use crate::record::{Nanos, Record, Sight, Whose};

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
        fences(record, &sections, &mut found);
        let sights: Vec<&Sight> = record.sights.iter().filter(|sight| sight.name == name).collect();
        outlived(record, &sections, &sights, &mut found);
    }
    found
}

/// Less than this happens to every process, and the margins cover it.
const STARVED: Nanos = 50 * MS;

/// Returns whether a section may stamp at each of these moments, though it should have been over at the `end`.
fn allowed(record: &Record, section: &Section, end: Nanos, moments: &[Nanos]) -> bool {
    let mut allowances = allowances(record, section);
    let starved = record.attempts[section.who].starved;
    allowances.extend((starved >= STARVED).then_some((end, end + starved)));
    moments.iter().all(|at| allowances.iter().any(|(from, to)| (from..=to).contains(&at)))
}

fn overlaps(record: &Record, sections: &[&Section], found: &mut Overlaps) {
    // The sections that have not left when the next one enters; mostly none.
    let mut inside: Vec<&Section> = Vec::new();
    for &newcomer in sections {
        inside.retain(|section| section.last() >= newcomer.entered());
        for &other in &inside {
            let to = other.last().min(newcomer.last());
            let goes_on_beside = |old: &Section, new: &Section| {
                let beside: Vec<Nanos> = old.stamps.iter().copied().filter(|at| *at >= new.entered()).collect();
                allowed(record, old, new.entered(), &beside)
            };
            // The section with the earlier grant had lost the lock; the time of an outsider's grant is unknown.
            let excused = match (other.fence, newcomer.fence) {
                (Some(theirs), Some(fence)) if fence < theirs => goes_on_beside(newcomer, other),
                (Some(_), Some(_)) => goes_on_beside(other, newcomer),
                _ => goes_on_beside(other, newcomer) || goes_on_beside(newcomer, other),
            };
            if excused {
                found.excused.push(to - newcomer.entered());
                continue;
            }
            let what = format!(
                "c{} and c{} overlap by {:.3} ms in {}",
                other.who,
                newcomer.who,
                (to - newcomer.entered()) as f64 / 1e6,
                record.names[other.name]
            );
            let who = vec![other.who, newcomer.who];
            found.violations.push(Violation { what, name: Some(other.name), who, from: newcomer.entered(), to });
        }
        inside.push(newcomer);
    }
}

fn fences(record: &Record, sections: &[&Section], found: &mut Overlaps) {
    let mut highest: Option<(&Section, u64)> = None;
    for &section in sections {
        let Some(fence) = section.fence else { continue };
        match highest {
            Some((before, high)) if fence <= high => {
                // The earlier grant may have entered later.
                if fence < high && allowed(record, section, before.entered(), &[section.entered()]) {
                    continue;
                }
                let what = format!(
                    "c{} entered {} with fence {fence}, after c{} with {high}",
                    section.who, record.names[section.name], before.who
                );
                let who = vec![before.who, section.who];
                let at = section.entered();
                found.violations.push(Violation { what, name: Some(section.name), who, from: at, to: at });
            }
            _ => highest = Some((section, fence)),
        }
    }
}

/// Finds holders that went on without the lock. Entering proves possession; what a holder does after another state of
/// the lock was seen, it does without the lock.
fn outlived(record: &Record, sections: &[&Section], sights: &[&Sight], found: &mut Overlaps) {
    for section in sections {
        let first = sights.partition_point(|sight| sight.last.before <= section.entered());
        let Some(seen) = sights[first..].iter().find(|sight| sight.whose != Whose::Of(section.who)) else { continue };
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
