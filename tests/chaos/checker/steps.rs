//! Each request that a server carried out, and each save of a lock's file, is a step of the rules; and an attempt was told
//! what the rules answered.

use super::{Section, Violation};
use crate::record::{Client, Record};
use crate::trace::{Granted, Trace};

/// Fences are of the server's clock, in µs: a grant may be told this long after it was not seen.
const NEAR: u64 = 1_000_000;

pub fn check(record: &Record, sections: &[Section]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (at, what) in record.traces.iter().flat_map(|trace| &trace.faults) {
        let what = format!("what the rules do not allow was done: {what}");
        found.push(Violation { what, name: None, who: Vec::new(), from: *at, to: *at });
    }
    // Of servers that vote, none has granted a lock: a majority has.
    if !record.voted && !record.traces.is_empty() {
        let ours = sections.iter().filter(|section| record.attempts[section.who].client != Client::Outsider);
        found.extend(ours.filter(|section| !is_granted(&record.traces, section)).map(|section| Violation {
            what: format!("c{} entered with {:?}, which no grant was", section.who, section.terms),
            name: Some(section.name),
            who: vec![section.who],
            from: section.entered(),
            to: section.entered(),
        }));
    }
    found
}

/// Returns whether the rules granted it on these terms at one of the servers, or it was not seen.
fn is_granted(traces: &[Trace], section: &Section) -> bool {
    let Some(fence) = section.terms.fence else { return true };
    let slot = section.terms.slot.map(|slot| slot.number);
    let is_it = |grant: &Granted| {
        grant.who() == Some(section.who)
            && grant.fence == fence
            && slot.is_none_or(|slot| grant.slot.map(u64::from) == Some(slot))
    };
    let unseen = |(from, to): &(u64, u64)| (from.saturating_sub(NEAR)..=to.saturating_add(NEAR)).contains(&fence);
    let may_be = |trace: &Trace| {
        trace.grants.iter().any(is_it) || trace.fences.contains(&fence) || trace.gaps.iter().any(unseen)
    };
    traces.iter().any(may_be)
}
