//! First come, first served: no waiter in the queue is overtaken by one that came later and queues too.
//!
//! Two that may hold the lock together may be granted it at the same moment, and enter in any order. One of them has
//! overtaken the other only if that one was still in the queue afterwards. Those that go first overtake the others.

use std::collections::HashMap;

use super::{LATE, Section, Violation};
use crate::record::{Ailment, Nanos, On, Record, Sight, Who};

/// A waiter that does not claim its reservation in time loses its turn. It has no longer than the ttl.
pub const HAS_TIME: Nanos = LATE;

pub fn check(record: &Record, sections: &[Section]) -> Vec<Violation> {
    let mut found = Vec::new();
    for name in 0..record.names.len() {
        let sections: Vec<&Section> = sections.iter().filter(|section| section.name == name).collect();
        let sights: Vec<&Sight> = record.sights.iter().filter(|sight| sight.name == name).collect();
        found.extend(overtaken(record, &sections, &sights));
    }
    found
}

/// When a waiter was seen in the queue: the end of the first poll, and the beginning of the last.
struct Place {
    first: Nanos,
    last: Nanos,
}

fn overtaken(record: &Record, sections: &[&Section], sights: &[&Sight]) -> Vec<Violation> {
    let mut places: HashMap<Who, Place> = HashMap::new();
    // Maps a waiter and one behind it to the last time at which both were seen so.
    let mut behind: HashMap<(Who, Who), Nanos> = HashMap::new();
    for sight in sights {
        for (at, who) in sight.line.iter().enumerate() {
            let place = places.entry(*who).or_insert(Place { first: sight.first.after, last: sight.last.before });
            place.last = sight.last.before;
            for later in &sight.line[at + 1..] {
                behind.insert((*who, *later), sight.last.before);
            }
        }
    }
    let mut found = Vec::new();
    for (n, &served) in sections.iter().enumerate() {
        let Some(place) = places.get(&served.who) else { continue };
        let attempt = &record.attempts[served.who];
        if !attempt.near || attempt.ttl < HAS_TIME {
            continue;
        }
        // The sections entered while the waiter was queued, or later.
        let before = sections[..n].iter().rev().take_while(|other| other.entered() >= place.first);
        for &other in before {
            let theirs = &record.attempts[other.who];
            let since =
                behind.get(&(served.who, other.who)).copied().or((theirs.asked > place.first).then_some(theirs.asked));
            let Some(since) = since.filter(|_| theirs.queued) else { continue };
            if theirs.first && !attempt.first {
                continue;
            }
            let together = !served.mode.is_exclusive() && !other.mode.is_exclusive();
            if together && place.last <= other.entered() {
                continue;
            }
            if other.entered() < since || excused(record, sights, served, since, other.entered()) {
                continue;
            }
            let what = format!(
                "c{} came to {} after c{} and was served before it",
                other.who, record.names[other.name], served.who
            );
            let who = vec![served.who, other.who];
            found.push(Violation { what, name: Some(other.name), who, from: since, to: other.entered() });
        }
    }
    found
}

/// Returns whether the waiter could not come, was out of the queue for a while, or had its reservation.
fn excused(record: &Record, sights: &[&Sight], served: &Section, since: Nanos, until: Nanos) -> bool {
    let struck = record.faults.iter().any(|fault| {
        let theirs = match fault.on {
            On::All => {
                let ailment = fault.ailment;
                // With a new password, all lose their connections.
                let is_felt_in_line = matches!(ailment, Ailment::SetBack | Ailment::Rotated);
                ailment.disturbs_all() || ailment.forgets() || is_felt_in_line
            }
            On::Name(name) => name == served.name && fault.ailment != Ailment::Asked,
            On::Attempt(who) => who == served.who,
        };
        // A waiter that lost its connection, or its place in the queue, needs time to come back.
        theirs && fault.from <= until && fault.to + 4 * LATE + 2 * LATE >= since
    });
    let called = sights.iter().any(|sight| sight.whose.includes(served.who) && sight.first.before <= until);
    // A reservation came and went where nobody looked for as long as one lasts.
    let unseen = |(from, to): &(Nanos, Nanos)| to - from >= HAS_TIME && *from <= until && *to >= since;
    struck || called || record.unwatched.iter().any(unseen)
}
