//! Keeps the lock while a command runs: renews the lease on a timer, then gives it back.
//!
//! Renewing is done by a thread of its own, so that a server that hangs holds up nobody but it; it
//! is started when the first renewal is due, and most commands end before that. The keeper reports
//! what it finds and decides nothing: what a lost lease means is the supervisor's to know.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::clock::Moment;
use crate::duration::jittered;
use crate::error::Error;
use crate::lock::{Claim, Lease, LockState, Ttl};
use crate::mailbox::{Alarm, Arrived, Fds, MailSender, Mailbox, NONE, Ready};
use crate::store::{Renewed, Store};
use crate::wait::Limit;
use crate::{log, notify, retry, text, thread};

/// What the keeper reports.
pub enum Renewal {
    /// The lease may be believed until then.
    Until(Moment),
    /// Asked and not answered; the lease stands as it was.
    Uncertain(Error),
    /// The lock is not ours any more.
    Lost(LockState),
}

/// What came of giving the lock back.
pub enum GivenBack {
    Done,
    NotYours(LockState),
    Unconfirmed(Error),
}

pub struct Renewer(Mode);

enum Mode {
    /// No renewal has been due yet, or there is no thread to be had.
    Inline {
        lock: Lock,
        next: Moment,
        alarm: Alarm,
    },
    Threaded {
        finishes: MailSender<Finish>,
        messages: Mailbox<Message>,
    },
}

enum Finish {
    Release,
    /// Let the lock end by itself after this.
    LetEnd(Ttl),
    /// Somebody else gives it back.
    Leave,
}

enum Message {
    Renewal(Renewal),
    GivenBack(GivenBack),
}

/// At the longest, renewals come this far apart: it bounds how late a lock that a server forgot is
/// missed.
const AT_MOST_APART: Duration = Duration::from_secs(10);

/// And this beside old `SETNX` clients: the time that one of them writes over ours when it has lost a race
/// is at least a second ahead, and must not be believed to have passed.
const AT_MOST_APART_BESIDE_SETNX: Duration = Duration::from_millis(500);

/// And this while the lock is at a node of a cluster that is only importing its slot: if the move is called off, the
/// lock is free at the other node at once.
const AT_MOST_APART_WHILE_IMPORTED: Duration = Duration::from_secs(1);

/// A third of the ttl: two renewals may fail before the lease is in danger.
fn apart(store: &dyn Store, claim: &Claim, ttl: Ttl) -> Duration {
    let mut apart = (ttl.get() / 3).min(AT_MOST_APART);
    if claim.token.is_beside_setnx() {
        apart = apart.min(AT_MOST_APART_BESIDE_SETNX);
    }
    if store.may_be_called_off() {
        apart = apart.min(AT_MOST_APART_WHILE_IMPORTED);
    }
    apart
}

impl Renewer {
    pub fn new(
        store: Box<dyn Store>,
        claim: Claim,
        ttl: Ttl,
        lease: Lease,
        server_timeout: Duration,
        alarm: Alarm,
    ) -> Renewer {
        let next = lease.asked + apart(&*store, &claim, ttl);
        let (until, calm_until) = (lease.until, lease.asked);
        let lock = Lock { store, claim, ttl, until, server_timeout, put_back: 0, calm_until };
        Renewer(Mode::Inline { lock, next, alarm })
    }

    /// Waits for news of the lock, for one of `also` to become readable, or for `until`.
    ///
    /// # Errors
    /// As poll(2).
    pub fn next(&mut self, until: Moment, also: Fds<'_>) -> io::Result<Arrived<Renewal>> {
        if let Mode::Inline { lock, next, alarm } = &self.0 {
            // A connection that ends tells at once of a server that went away, and of what it forgot.
            match alarm.wait(lock.disconnect_fd(), also, until.min(lock.look_at(*next)))? {
                Ready::Also => return Ok(Arrived::Readable),
                Ready::Nothing if !next.passed() => return Ok(Arrived::Time),
                Ready::Own | Ready::Nothing => {}
            }
            if let Err(error) = self.begin_renewing() {
                log::trace(format_args!("renewing without a thread: {}", text::plain(&error)));
            }
        }
        match &mut self.0 {
            // Better late for a signal than without a lock.
            Mode::Inline { lock, next, .. } => {
                let kept;
                (kept, *next) = lock.renew(until);
                Ok(Arrived::Message(kept))
            }
            Mode::Threaded { messages, .. } => Ok(match messages.next(until, also)? {
                Arrived::Message(Message::Renewal(kept)) => Arrived::Message(kept),
                Arrived::Readable => Arrived::Readable,
                Arrived::Message(Message::GivenBack(_)) | Arrived::Time => Arrived::Time,
            }),
        }
    }

    /// # Errors
    /// If there is no thread to be had (RLIMIT_NPROC), or no descriptors (RLIMIT_NOFILE). Nothing is
    /// changed then.
    fn begin_renewing(&mut self) -> io::Result<()> {
        let (inbox, finishes) = Mailbox::open()?;
        let (messages, post) = Mailbox::open()?;
        // Whoever is to be signalled is looked for in /proc, which takes one.
        let _spare = Alarm::new()?;
        let (give, given) = channel::<Lock>();
        let keep = move || given.recv().map_or((), |lock| lock.keep(inbox, &post));
        thread::spawn("keeper", keep)?;
        // Given away only when there is somebody to take it.
        if let Mode::Inline { lock, .. } = std::mem::replace(&mut self.0, Mode::Threaded { finishes, messages }) {
            let _ = give.send(lock);
        }
        Ok(())
    }

    /// Stops renewing, and gives the lock back; or, with a `rest`, lets it end by itself after that.
    pub fn give_back(self, rest: Option<Ttl>) -> GivenBack {
        self.carry_out(rest.map_or(Finish::Release, Finish::LetEnd))
    }

    /// Stops renewing, for good: when this returns, no request is under way.
    pub fn leave(self) {
        self.carry_out(Finish::Leave);
    }

    fn carry_out(self, finish: Finish) -> GivenBack {
        match self.0 {
            Mode::Inline { mut lock, .. } => lock.carry_out(&finish),
            Mode::Threaded { finishes, mut messages } => {
                finishes.send(finish);
                loop {
                    // The thread bounds each thing it does, and this is the last.
                    match messages.next(Moment::NEVER, NONE) {
                        Ok(Arrived::Message(Message::GivenBack(given_back))) => return given_back,
                        Ok(_) => {}
                        Err(error) => {
                            return GivenBack::Unconfirmed(Error::internal("cannot give the lock back", &error));
                        }
                    }
                }
            }
        }
    }
}

/// The lock as it is kept: what it takes to renew it and to give it back.
struct Lock {
    store: Box<dyn Store>,
    claim: Claim,
    ttl: Ttl,
    until: Moment,
    server_timeout: Duration,
    /// How often a `SETNX` client had written over it.
    put_back: u32,
    /// Before this, a connection that ends is no reason to renew: something in between may close each after one reply.
    calm_until: Moment,
}

impl Lock {
    /// Renews until there is an order, and carries that out.
    fn keep(mut self, mut finishes: Mailbox<Finish>, messages: &MailSender<Message>) {
        let mut next = Moment::now();
        loop {
            match finishes.next(self.look_at(next), [self.disconnect_fd(), None, None]) {
                Ok(Arrived::Time) if !next.passed() => continue,
                Ok(Arrived::Message(finish)) => return messages.send(Message::GivenBack(self.carry_out(&finish))),
                Ok(Arrived::Readable | Arrived::Time) | Err(_) => {}
            }
            let kept;
            (kept, next) = self.renew(Moment::NEVER);
            messages.send(Message::Renewal(kept));
        }
    }

    /// Readable when the connection has ended and that is a reason to renew.
    fn disconnect_fd(&self) -> Option<BorrowedFd<'_>> {
        self.store.disconnect_fd().filter(|_| self.calm_until.passed())
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
    fn renew(&mut self, until: Moment) -> (Renewal, Moment) {
        let asked = Moment::now();
        self.calm_until = asked + self.soon();
        match self.store.renew(&self.claim, self.ttl, Limit::until(until.min(asked + self.attempt()))) {
            Ok(renewed @ (Renewed::Until(until) | Renewed::PutBack(until))) => {
                notify::renewed(self.ttl, until);
                if let Renewed::PutBack(_) = renewed {
                    self.put_back += 1;
                    notify::put_back(&self.claim.name, self.put_back);
                }
                self.until = until;
                (Renewal::Until(until), asked + apart(&*self.store, &self.claim, self.ttl))
            }
            // Never of a claim of our own; if it were, our lease would stand as it was.
            Ok(Renewed::Longer(_)) => (Renewal::Until(self.until), asked + apart(&*self.store, &self.claim, self.ttl)),
            Ok(Renewed::NotYours(state)) => (Renewal::Lost(state), Moment::NEVER),
            // Even a refusal is retried: a password or a permission may be about to change.
            Err(error) => {
                notify::error(&error);
                let soon = jittered(self.soon());
                (Renewal::Uncertain(error), Moment::now() + soon)
            }
        }
    }

    /// How long one renewal may take: no more than a sixth of the ttl, and leave time for another.
    fn attempt(&self) -> Duration {
        let rest = (self.until.remaining() / 2).max(Duration::from_millis(20));
        (self.ttl.get() / 6).min(rest).min(Duration::from_secs(5))
    }

    fn carry_out(&mut self, finish: &Finish) -> GivenBack {
        let Lock { store, claim, .. } = self;
        let within = self.server_timeout;
        let given_back = match finish {
            Finish::Release => match retry::give_back(within, self.until, |limit| store.release(claim, limit)) {
                Ok(retry::GivenBack::Done | retry::GivenBack::InDoubt) => Ok(GivenBack::Done),
                Ok(retry::GivenBack::NotYours(state)) => Ok(GivenBack::NotYours(state)),
                Err(error) => Err(error),
            },
            // A renewal cannot remove a lock: one that is gone was lost, whatever became of earlier requests.
            Finish::LetEnd(rest) => {
                retry::insist(within, |limit| store.let_end(claim, *rest, limit)).map(|renewed| match renewed {
                    Renewed::Until(_) | Renewed::PutBack(_) | Renewed::Longer(_) => GivenBack::Done,
                    Renewed::NotYours(state) => GivenBack::NotYours(state),
                })
            }
            Finish::Leave => {
                store.leave(claim);
                Ok(GivenBack::Done)
            }
        };
        given_back.unwrap_or_else(GivenBack::Unconfirmed)
    }
}
