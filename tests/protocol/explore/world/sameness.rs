//! When two worlds are the same world. Owns nothing; without it the search would have no end.

use std::cmp::Ordering;

use super::{ENDLESS, Fences, NEVER, Reply, Request, START, TTL, World};

impl World {
    /// Two worlds that differ only in what time it is are one: the clock is set back to `START`, the past is all the same
    /// past, and tickets are counted from 1.
    pub(super) fn rebase(&mut self) {
        let now = self.server.now();
        let back = |t: u64, past: u64| match t {
            NEVER => NEVER,
            t if t > now + ENDLESS / 2 => START + ENDLESS,
            t => (t + START).saturating_sub(now).max(past),
        };
        self.server.around.now_us = START * 1000;
        if let Some(until) = &mut self.server.queue_until {
            *until = back(*until, 0);
        }
        let lock = &mut self.server.lock;
        let is_shared = lock.generation.is_some();
        for end in lock.holders.values_mut().filter_map(|holder| holder.end.as_mut()) {
            *end = back(*end, if is_shared { START } else { 0 });
        }
        lock.queue.iter_mut().for_each(|waiter| waiter.lease = back(waiter.lease, START - 1));
        if let Some((_, end)) = &mut lock.owner {
            *end = back(*end, START);
        }
        // What the owner of a lease that is over was called makes no difference.
        lock.owner.take_if(|(_, end)| *end <= START);
        self.rebase_fences();

        let lock = &mut self.server.lock;
        let mut slots: Vec<&mut u64> = lock.queue.iter_mut().map(|waiter| &mut waiter.ticket).collect();
        slots.extend(lock.holders.values_mut().filter_map(|holder| holder.reserved.as_mut()));
        let marks = [&mut lock.superseding.newest, &mut lock.superseding.dismissed];
        slots.extend(marks.into_iter().flatten().map(|(ticket, _)| ticket));
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
        let mut tickets: Vec<u64> = slots.iter().map(|t| **t).filter(|t| *t > 0).collect();
        tickets.sort_unstable();
        tickets.dedup();
        let place = |t: u64| tickets.binary_search(&t).map_or(0, |at| at as u64 + 1);
        slots.into_iter().for_each(|t| *t = place(*t));
    }

    /// All fences of the past are one, or while the lock is shared three: below the fence of its generation, that, and
    /// above. Whoever comes in has that of the generation or a new one.
    fn rebase_fences(&mut self) {
        const LAST: u64 = START * 1000 - 1;
        let lock = &mut self.server.lock;
        let generation = lock.generation;
        let back = |fence: u64| match generation.map(|generation| fence.cmp(&generation)) {
            _ if fence == 0 => 0,
            Some(Ordering::Less) => LAST - 2,
            Some(Ordering::Equal) => LAST - 1,
            _ => LAST,
        };
        lock.fence = back(lock.fence);
        for holder in lock.holders.values_mut() {
            (holder.fence, holder.since) = (back(holder.fence), 0);
        }
        lock.generation = generation.map(back);
        let Fences { any, exclusive, slots } = &mut self.fences;
        slots.iter_mut().chain([any, exclusive]).for_each(|fence| *fence = back(*fence));
    }
}
