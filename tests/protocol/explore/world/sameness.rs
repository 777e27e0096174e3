//! When two worlds are the same world. Owns nothing; without it the search would have no end.

use std::cmp::Ordering;

use super::{ENDLESS, Fences, NEVER, Reply, Request, START, TTL, World};
use crate::model::Expiring;
use crate::shares::{KEPT, SHARED};

impl World {
    /// Two worlds that differ only in what time it is are one: the clock is set back to `START`, the
    /// past is all the same past, and tickets are counted from 1.
    pub(super) fn rebase(&mut self) {
        let m = &mut self.model;
        let now = m.now();
        let back = |t: u64, past: u64| match t {
            NEVER => NEVER,
            t if t > now + ENDLESS / 2 => START + ENDLESS,
            t => (t + START).saturating_sub(now).max(past),
        };
        for until in [&mut m.queue.until, &mut m.waiters.until].into_iter().flatten() {
            *until = back(*until, 0);
        }
        if let Some(until) = m.lock.as_mut().and_then(|lock| lock.until.as_mut()) {
            *until = back(*until, 0);
        }
        if let Some(until) = m.holder.as_mut().and_then(|holder| holder.until.as_mut()) {
            *until = back(*until, 0);
        }
        for until in [&mut m.shares.ends.until, &mut m.shares.terms.until].into_iter().flatten() {
            *until = START + KEPT;
        }
        m.shares.ends.is.values_mut().for_each(|end| *end = back(*end, START));
        m.waiters.is.values_mut().for_each(|r| r.lease = back(r.lease, START - 1));
        m.now_us = START * 1000;
        m.dropped = 0;
        self.rebase_fences();

        let m = &mut self.model;

        let mut tickets: Vec<u64> = m.queue.is.iter().map(|w| w.0).collect();
        let mut slots: Vec<&mut u64> = Vec::new();
        for c in &mut self.clients {
            (c.deadline, c.owed) = (back(c.deadline, START), back(c.owed, START - 1));
            (c.look_at, c.told_to_look) = (back(c.look_at, START), back(c.told_to_look, START));
            slots.push(&mut c.ticket);
            if let Some(flight) = &mut c.flight {
                flight.sent = back(flight.sent, START - TTL);
                if let Request::Acquire { ticket } = &mut flight.request {
                    slots.push(ticket);
                }
                if let Some(Reply::Busy { ticket, .. }) = &mut flight.reply {
                    slots.push(ticket);
                }
            }
        }
        tickets.extend(slots.iter().map(|t| **t).filter(|t| *t > 0));
        tickets.sort_unstable();
        tickets.dedup();
        let place = |t: u64| tickets.binary_search(&t).map_or(0, |at| at as u64 + 1);
        slots.into_iter().for_each(|t| *t = place(*t));
        m.queue.is = m.queue.is.iter().map(|&(t, token)| (place(t), token)).collect();
    }

    /// All fences of the past are one, or while the lock is shared three: below the fence of its generation, that, and
    /// above. Whoever comes in has that of the generation or a new one.
    fn rebase_fences(&mut self) {
        const LAST: u64 = START * 1000 - 1;
        let m = &mut self.model;
        let is_shared = m.value() == Some(SHARED);
        let generation = m.shares.generation;
        let back = |fence: u64| match fence.cmp(&generation) {
            Ordering::Less if is_shared => LAST - 2,
            Ordering::Equal if is_shared => LAST - 1,
            _ => LAST,
        };
        if let Some(fence) = &mut m.fence {
            *fence = Expiring { is: back(fence.is), until: None };
        }
        for terms in m.shares.terms.is.values_mut() {
            (terms.fence, terms.since) = (back(terms.fence), 0);
        }
        m.shares.generation = if is_shared { back(generation) } else { 0 };
        let Fences { any, exclusive, slots } = &mut self.fences;
        slots.iter_mut().chain([any, exclusive]).for_each(|fence| *fence = back(*fence));
    }
}
