//! Each request that a server carried out, and each save of a lock's file, is a step of the rules; and an attempt was told
//! what the rules answered.

use std::collections::BTreeMap;

use super::{Section, Violation};
use crate::record::{Client, Record};
use crate::trace::{Granted, Trace};

/// Fences are of the server's clock, in µs: a grant may be told this long after it was not seen.
const NEAR: u64 = 1_000_000;
/// The same of a vote, which may be so much older than the fence that the last of a majority gave.
const NEAR_A_VOTE: u64 = 3_000_000;

pub fn check(record: &Record, sections: &[Section]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (at, what) in record.traces.iter().flat_map(|trace| &trace.faults) {
        let what = format!("what the rules do not allow was done: {what}");
        found.push(Violation { what, name: None, who: Vec::new(), from: *at, to: *at });
    }
    found.extend(judged(record, sections).filter(|(_, grant)| *grant == Grant::None).map(|(section, _)| Violation {
        what: format!("c{} entered with {:?}, which no grant was", section.who, section.terms),
        name: Some(section.name),
        who: vec![section.who],
        from: section.entered(),
        to: section.entered(),
    }));
    found
}

/// Returns to how many sections the traces show a grant, and of how many it was not seen whether there was one.
pub fn granted(record: &Record, sections: &[Section]) -> (usize, usize) {
    let many = |is: Grant| judged(record, sections).filter(|(_, grant)| *grant == is).count();
    (many(Grant::Seen), many(Grant::Unseen))
}

/// What the traces say of the grant of a section.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grant {
    Seen,
    /// There may have been one at a time of which not everything was seen, or by a request that was not judged.
    Unseen,
    None,
}

/// Returns the sections of ours, each with what the traces say of its grant; none if nothing is traced.
fn judged<'a>(record: &'a Record, sections: &'a [Section]) -> impl Iterator<Item = (&'a Section, Grant)> {
    let ours = |section: &&Section| record.attempts[section.who].client != Client::Outsider;
    let sections = sections.iter().filter(|_| !record.traces.is_empty()).filter(ours);
    sections
        .map(|section| (section, if record.voted { voted(record, section) } else { granted_by_one(record, section) }))
}

/// Returns what the traces say of a grant by one of the servers, on these terms.
fn granted_by_one(record: &Record, section: &Section) -> Grant {
    let Some(fence) = section.terms.fence else { return Grant::None };
    let slot = section.terms.slot.map(|slot| slot.number);
    let is_it = |grant: &Granted| {
        is_of(record, section, grant)
            && grant.fence == fence
            && slot.is_none_or(|slot| grant.slot.map(u64::from) == Some(slot))
    };
    let was_missed = |trace: &Trace| {
        let of_it = |(key, _): &&(String, _)| is_key_of(record, section, key);
        trace.missed.iter().filter(of_it).any(|(_, (from, to))| (from..=to).contains(&&fence))
    };
    let may_be = |trace: &Trace| trace.fences.contains(&fence) || has_gap(trace, fence, NEAR) || was_missed(trace);
    if record.traces.iter().any(|trace| trace.grants.iter().any(is_it)) {
        Grant::Seen
    } else if record.traces.iter().any(may_be) {
        Grant::Unseen
    } else {
        Grant::None
    }
}

/// Returns what the traces say of a grant by a majority of servers, each of which gives a fence of its own: they have granted
/// it to one token.
fn voted(record: &Record, section: &Section) -> Grant {
    let Some(fence) = section.terms.fence else { return Grant::None };
    let mut votes: BTreeMap<&str, Vec<bool>> = BTreeMap::new();
    for (at, trace) in record.traces.iter().enumerate() {
        for grant in trace.grants.iter().filter(|grant| is_of(record, section, grant)) {
            votes.entry(&grant.token.0).or_insert_with(|| vec![false; record.traces.len()])[at] = true;
        }
    }
    let quorum = record.traces.len() / 2 + 1;
    let may_be = |(trace, has_voted): (&Trace, &bool)| *has_voted || has_gap(trace, fence, NEAR_A_VOTE);
    let many = |votes: &Vec<bool>| record.traces.iter().zip(votes).filter(|vote| may_be(*vote)).count();
    if votes.values().any(|votes| votes.iter().filter(|has_voted| **has_voted).count() >= quorum) {
        Grant::Seen
    } else if votes.values().any(|votes| many(votes) >= quorum) || many(&vec![false; record.traces.len()]) >= quorum {
        Grant::Unseen
    } else {
        Grant::None
    }
}

fn is_of(record: &Record, section: &Section, grant: &Granted) -> bool {
    grant.who() == Some(section.who) && is_key_of(record, section, &grant.key)
}

fn is_key_of(record: &Record, section: &Section, key: &str) -> bool {
    key.strip_prefix("lock:") == Some(&*record.names[section.name])
}

/// Returns whether not everything was seen that was done near a time.
fn has_gap(trace: &Trace, time: u64, near: u64) -> bool {
    trace.gaps.iter().any(|(from, to)| (from.saturating_sub(near)..=to.saturating_add(near)).contains(&time))
}
