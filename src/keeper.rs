//! Owns the store while a command runs: renews the lease on a timer, then gives it back.
//!
//! A thread of its own, so that a server that hangs holds up nobody but it. It reports what it finds
//! and decides nothing: what a lost lease means for the command is the supervisor's to know.

use std::io;
use std::thread;
use std::time::Duration;

use crate::clock::Moment;
use crate::inbox::{Arrival, Inbox, Postbox};
use crate::limit::Limit;
use crate::lock::{Hold, Lease, Occupancy, Ttl};
use crate::say;
use crate::store::{Released, Renewed, Store, Trouble};
use crate::wait::{insist, jittered};

/// What the keeper reports.
pub enum Kept {
    /// The lease may be believed until then.
    Until(Moment),
    /// Asked and not answered; the lease stands as it was.
    Uncertain(Trouble),
    /// The lock is not ours any more.
    Lost(Occupancy),
    /// The answer to [`Keeper::give_back`]: the last report.
    GivenBack(GivenBack),
}

pub enum GivenBack {
    Done,
    NotYours(Occupancy),
    Unconfirmed(Trouble),
}

pub struct Keeper {
    orders: Postbox<Order>,
}

enum Order {
    Release,
    /// Let the lock end by itself after this.
    LetEnd(Ttl),
}

struct Watch {
    store: Box<dyn Store>,
    hold: Hold,
    ttl: Ttl,
    until: Moment,
    server_timeout: Duration,
    reports: Postbox<Kept>,
}

/// At the longest, renewals come this far apart: it bounds how late a lock that a server forgot is
/// missed.
const AT_MOST_APART: Duration = Duration::from_secs(10);

impl Keeper {
    /// # Errors
    /// As pthread_create(3) and socketpair(2).
    pub fn start(
        store: Box<dyn Store>,
        hold: Hold,
        ttl: Ttl,
        lease: Lease,
        server_timeout: Duration,
        reports: Postbox<Kept>,
    ) -> io::Result<Keeper> {
        let (inbox, orders) = Inbox::open()?;
        let watch = Watch { store, hold, ttl, until: lease.until, server_timeout, reports };
        let first = lease.asked + apart(ttl);
        thread::Builder::new().name("keeper".into()).spawn(move || watch.keep(inbox, first))?;
        Ok(Keeper { orders })
    }

    /// Stops renewing and gives the lock back; [`Kept::GivenBack`] tells how it went.
    pub fn give_back(&self) {
        self.orders.send(Order::Release);
    }

    /// Stops renewing and lets the lock end by itself after `rest`; reports like `give_back`.
    pub fn let_end(&self, rest: Ttl) {
        self.orders.send(Order::LetEnd(rest));
    }
}

/// A third of the ttl: two renewals may fail before the lease is in danger.
fn apart(ttl: Ttl) -> Duration {
    (ttl.get() / 3).min(AT_MOST_APART)
}

impl Watch {
    fn keep(mut self, mut orders: Inbox<Order>, first: Moment) {
        let mut next = first;
        loop {
            // A connection that ends tells at once of a server that went away, and of what it forgot.
            match orders.next(next, self.store.lifeline()) {
                Ok(Arrival::Letter(order)) => {
                    let given_back = self.carry_out(&order);
                    return self.reports.send(Kept::GivenBack(given_back));
                }
                Ok(Arrival::Readable | Arrival::Time) | Err(_) => {}
            }
            let asked = Moment::now();
            match self.store.renew(&self.hold, self.ttl, Limit::until(asked + self.attempt())) {
                Ok(Renewed::Until(until)) => {
                    say::trace(format_args!("renewed for {}", say::span(self.ttl.get())));
                    self.until = until;
                    next = asked + apart(self.ttl);
                    self.reports.send(Kept::Until(until));
                }
                Ok(Renewed::NotYours(occupancy)) => {
                    next = Moment::NEVER;
                    self.reports.send(Kept::Lost(occupancy));
                }
                // Even a refusal is retried: a password or a permission may be about to change.
                Err(trouble) => {
                    next = Moment::now() + jittered((self.ttl.get() / 20).min(Duration::from_secs(1)));
                    self.reports.send(Kept::Uncertain(trouble));
                }
            }
        }
    }

    /// How long one renewal may take: no more than a sixth of the ttl, and leave time for another.
    fn attempt(&self) -> Duration {
        let rest = (self.until.remaining() / 2).max(Duration::from_millis(20));
        (self.ttl.get() / 6).min(rest).min(Duration::from_secs(5))
    }

    fn carry_out(&mut self, order: &Order) -> GivenBack {
        let Watch { store, hold, .. } = self;
        let insisted = insist(self.server_timeout, |limit| match order {
            Order::Release => store.release(hold, limit),
            Order::LetEnd(rest) => store.renew(hold, *rest, limit).map(|renewed| match renewed {
                Renewed::Until(_) => Released::Done,
                Renewed::NotYours(occupancy) => Released::NotYours(occupancy),
            }),
        });
        match insisted.answer {
            Ok(Released::Done) => GivenBack::Done,
            // An earlier try went unanswered while the lock was ours: that one did it.
            Ok(Released::NotYours(_)) if insisted.in_doubt && !self.until.passed() => GivenBack::Done,
            Ok(Released::NotYours(occupancy)) => GivenBack::NotYours(occupancy),
            Err(trouble) => GivenBack::Unconfirmed(trouble),
        }
    }
}
