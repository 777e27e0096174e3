//! When two worlds are the same world. Owns nothing; without it the search would have no end.

use super::{ENDLESS, NEVER, Reply, Request, START, TTL, World};
use crate::model::Expiring;

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
        m.waiters.is.values_mut().for_each(|r| r.lease = back(r.lease, START - 1));
        m.now_us = START * 1000;
        if let Some(fence) = &mut m.fence {
            *fence = Expiring { is: START * 1000 - 1, until: None };
        }
        self.last_fence = START * 1000 - 1;

        let mut tickets: Vec<u64> = m.queue.is.iter().map(|w| w.0).collect();
        let mut slots: Vec<&mut u64> = Vec::new();
        for c in &mut self.clients {
            (c.deadline, c.owed) = (back(c.deadline, START), back(c.owed, START - 1));
            c.look_at = back(c.look_at, START);
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
}
