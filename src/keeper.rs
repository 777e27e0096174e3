//! Keeps the lock while a command runs: renews the lease on a timer, then gives it back.
//!
//! Renewing is done by a thread of its own, so that a server that hangs holds up nobody but it; it
//! is started when the first renewal is due, and most commands end before that. The keeper reports
//! what it finds and decides nothing: what a lost lease means is the supervisor's to know.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use crate::clock::Moment;
use crate::events;
use crate::inbox::{Alarm, Arrival, Fds, Inbox, NONE, Postbox, Ready};
use crate::limit::Limit;
use crate::lock::{Hold, Lease, Occupancy, Ttl};
use crate::say;
use crate::signals::deaf;
use crate::store::{Renewed, Store, Trouble};
use crate::wait::{self, jittered};

/// What the keeper reports.
pub enum Kept {
    /// The lease may be believed until then.
    Until(Moment),
    /// Asked and not answered; the lease stands as it was.
    Uncertain(Trouble),
    /// The lock is not ours any more.
    Lost(Occupancy),
}

/// What came of giving the lock back.
pub enum GivenBack {
    Done,
    NotYours(Occupancy),
    Unconfirmed(Trouble),
}

pub struct Keeper(Work);

enum Work {
    /// No renewal has been due yet, or there is no thread to be had.
    Resting {
        watch: Watch,
        next: Moment,
        alarm: Alarm,
    },
    Renewing {
        orders: Postbox<Order>,
        reports: Inbox<Report>,
    },
}

enum Order {
    Release,
    /// Let the lock end by itself after this.
    LetEnd(Ttl),
    /// Somebody else gives it back.
    Leave,
}

enum Report {
    Kept(Kept),
    GivenBack(GivenBack),
}

/// At the longest, renewals come this far apart: it bounds how late a lock that a server forgot is
/// missed.
const AT_MOST_APART: Duration = Duration::from_secs(10);

/// And this beside old `SETNX` clients: the time that one of them writes over ours when it has lost a race
/// is at least a second ahead, and must not be believed to have passed.
const AT_MOST_APART_BESIDE_SETNX: Duration = Duration::from_millis(500);

/// A third of the ttl: two renewals may fail before the lease is in danger.
fn apart(hold: &Hold, ttl: Ttl) -> Duration {
    let at_most = if hold.token.is_beside_setnx() { AT_MOST_APART_BESIDE_SETNX } else { AT_MOST_APART };
    (ttl.get() / 3).min(at_most)
}

impl Keeper {
    pub fn new(
        store: Box<dyn Store>,
        hold: Hold,
        ttl: Ttl,
        lease: Lease,
        server_timeout: Duration,
        alarm: Alarm,
    ) -> Keeper {
        let next = lease.asked + apart(&hold, ttl);
        let (until, calm_until) = (lease.until, lease.asked);
        let watch = Watch { store, hold, ttl, until, server_timeout, put_back: 0, calm_until };
        Keeper(Work::Resting { watch, next, alarm })
    }

    /// Waits for news of the lock, for one of `also` to become readable, or for `until`.
    ///
    /// # Errors
    /// As poll(2).
    pub fn next(&mut self, until: Moment, also: Fds<'_>) -> io::Result<Arrival<Kept>> {
        if let Work::Resting { watch, next, alarm } = &self.0 {
            // A connection that ends tells at once of a server that went away, and of what it forgot.
            match alarm.wait(watch.lifeline(), also, until.min(watch.look_at(*next)))? {
                Ready::Also => return Ok(Arrival::Readable),
                Ready::Nothing if !next.passed() => return Ok(Arrival::Time),
                Ready::Own | Ready::Nothing => {}
            }
            if let Err(error) = self.begin_renewing() {
                say::trace(format_args!("renewing without a thread: {}", say::plain(&error)));
            }
        }
        match &mut self.0 {
            // Better late for a signal than without a lock.
            Work::Resting { watch, next, .. } => {
                let kept;
                (kept, *next) = watch.renew(until);
                Ok(Arrival::Letter(kept))
            }
            Work::Renewing { reports, .. } => Ok(match reports.next(until, also)? {
                Arrival::Letter(Report::Kept(kept)) => Arrival::Letter(kept),
                Arrival::Readable => Arrival::Readable,
                Arrival::Letter(Report::GivenBack(_)) | Arrival::Time => Arrival::Time,
            }),
        }
    }

    /// # Errors
    /// If there is no thread to be had (RLIMIT_NPROC), or no descriptors (RLIMIT_NOFILE). Nothing is
    /// changed then.
    fn begin_renewing(&mut self) -> io::Result<()> {
        let (inbox, orders) = Inbox::open()?;
        let (reports, post) = Inbox::open()?;
        // Whoever is to be signalled is looked for in /proc, which takes one.
        let _spare = Alarm::new()?;
        let (give, given) = channel::<Watch>();
        let keep = move || given.recv().map_or((), |watch| watch.keep(inbox, &post));
        deaf(|| thread::Builder::new().name("keeper".into()).spawn(keep))?;
        // Given away only when there is somebody to take it.
        if let Work::Resting { watch, .. } = std::mem::replace(&mut self.0, Work::Renewing { orders, reports }) {
            let _ = give.send(watch);
        }
        Ok(())
    }

    /// Stops renewing, and gives the lock back; or, with a `rest`, lets it end by itself after that.
    pub fn give_back(self, rest: Option<Ttl>) -> GivenBack {
        self.carry_out(rest.map_or(Order::Release, Order::LetEnd))
    }

    /// Stops renewing, for good: when this returns, no request is under way.
    pub fn leave(self) {
        self.carry_out(Order::Leave);
    }

    fn carry_out(self, order: Order) -> GivenBack {
        match self.0 {
            Work::Resting { mut watch, .. } => watch.carry_out(&order),
            Work::Renewing { orders, mut reports } => {
                orders.send(order);
                loop {
                    // The thread bounds each thing it does, and this is the last.
                    match reports.next(Moment::NEVER, NONE) {
                        Ok(Arrival::Letter(Report::GivenBack(given_back))) => return given_back,
                        Ok(_) => {}
                        Err(error) => {
                            return GivenBack::Unconfirmed(Trouble::of_ours("cannot give the lock back", &error));
                        }
                    }
                }
            }
        }
    }
}

/// The lock as it is kept: what it takes to renew it and to give it back.
struct Watch {
    store: Box<dyn Store>,
    hold: Hold,
    ttl: Ttl,
    until: Moment,
    server_timeout: Duration,
    /// How often a `SETNX` client had written over it.
    put_back: u32,
    /// Before this, a connection that ends is no reason to renew: something in between may close each after one reply.
    calm_until: Moment,
}

impl Watch {
    /// Renews until there is an order, and carries that out.
    fn keep(mut self, mut orders: Inbox<Order>, reports: &Postbox<Report>) {
        let mut next = Moment::now();
        loop {
            match orders.next(self.look_at(next), [self.lifeline(), None, None]) {
                Ok(Arrival::Time) if !next.passed() => continue,
                Ok(Arrival::Letter(order)) => return reports.send(Report::GivenBack(self.carry_out(&order))),
                Ok(Arrival::Readable | Arrival::Time) | Err(_) => {}
            }
            let kept;
            (kept, next) = self.renew(Moment::NEVER);
            reports.send(Report::Kept(kept));
        }
    }

    /// Readable when the connection has ended and that is a reason to renew.
    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        self.store.lifeline().filter(|_| self.calm_until.passed())
    }

    /// When to look at the lock again if it is to be renewed at `next`: before that, once a connection's end counts.
    fn look_at(&self, next: Moment) -> Moment {
        if self.calm_until.passed() { next } else { next.min(self.calm_until) }
    }

    /// How soon a renewal may follow another out of its turn.
    fn soon(&self) -> Duration {
        (self.ttl.get() / 20).min(Duration::from_secs(1))
    }

    /// Renews once, trying no longer than `until`; what came of it, and when to renew again.
    fn renew(&mut self, until: Moment) -> (Kept, Moment) {
        let asked = Moment::now();
        self.calm_until = asked + self.soon();
        match self.store.renew(&self.hold, self.ttl, Limit::until(until.min(asked + self.attempt()))) {
            Ok(renewed @ (Renewed::Until(until) | Renewed::PutBack(until))) => {
                say::trace(format_args!("renewed for {}", say::span(self.ttl.get())));
                events::renewed(self.ttl, until);
                if let Renewed::PutBack(_) = renewed {
                    self.put_back += 1;
                    say::put_back(&self.hold.name, self.put_back);
                }
                self.until = until;
                (Kept::Until(until), asked + apart(&self.hold, self.ttl))
            }
            // Never of a claim of our own; if it were, our lease would stand as it was.
            Ok(Renewed::Longer(_)) => (Kept::Until(self.until), asked + apart(&self.hold, self.ttl)),
            Ok(Renewed::NotYours(occupancy)) => (Kept::Lost(occupancy), Moment::NEVER),
            // Even a refusal is retried: a password or a permission may be about to change.
            Err(trouble) => {
                events::trouble(&trouble);
                let soon = jittered(self.soon());
                (Kept::Uncertain(trouble), Moment::now() + soon)
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
        let within = self.server_timeout;
        let given_back = match order {
            Order::Release => match wait::give_back(within, self.until, |limit| store.release(hold, limit)) {
                Ok(wait::GivenBack::Done | wait::GivenBack::InDoubt) => Ok(GivenBack::Done),
                Ok(wait::GivenBack::NotYours(occupancy)) => Ok(GivenBack::NotYours(occupancy)),
                Err(trouble) => Err(trouble),
            },
            // A renewal cannot remove a lock: one that is gone was lost, whatever became of earlier requests.
            Order::LetEnd(rest) => {
                wait::insist(within, |limit| store.let_end(hold, *rest, limit)).map(|renewed| match renewed {
                    Renewed::Until(_) | Renewed::PutBack(_) | Renewed::Longer(_) => GivenBack::Done,
                    Renewed::NotYours(occupancy) => GivenBack::NotYours(occupancy),
                })
            }
            Order::Leave => Ok(GivenBack::Done),
        };
        given_back.unwrap_or_else(GivenBack::Unconfirmed)
    }
}
