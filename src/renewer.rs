//! Renews the lease on a timer while a command runs, then releases the lock.
//!
//! A thread of its own renews, so that a hung server delays nothing else. Most commands end before it starts: when the
//! store is to tell at once what happens to the lock, which is after 100 ms, or else when the first renewal is due. What
//! the store then tells, and the end of its connection, only make the renewer renew at once, and not too often: the answer
//! decides.
//!
//! The renewer reports results and decides nothing: its caller decides what a lost lease means.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::clock::Moment;
use crate::error::Error;
use crate::lock::{Claim, Fence, Lease, LockName, LockState, RunEnd, Told, Ttl};
use crate::mailbox::{Arrived, MailSender, Mailbox};
use crate::pace::Pace;
use crate::retry::{Backoff, ReleaseAnswer};
use crate::store::{Kept, News, Renewed, Renewing, Store};
use crate::wait::{Alarm, Limit, Woken};
use crate::{log, notify, retry, text, thread};

/// A report of the renewer.
pub enum Renewal {
    /// The lease is valid until then.
    Until(Moment),
    /// A process asks to give the lock up; with its name, if there are several.
    Asked(Box<Told>, Option<LockName>),
    /// The renewal failed; the lease is unchanged.
    Uncertain(Error),
    /// nxlock does not hold the lock any more.
    Lost(Box<LockState>),
}

/// The result of a release.
pub enum GivenBack {
    Done,
    NotYours(LockState),
    Unconfirmed(Error),
}

pub struct Renewer(Mode);

enum Mode {
    /// No renewal has been due yet, or no thread could be started.
    Inline {
        lock: Box<Lock>,
        alarm: Alarm,
        /// What is still to be reported of the last renewal.
        rest: Option<Renewal>,
    },
    Threaded {
        finishes: MailSender<Finish>,
        messages: Mailbox<Message>,
    },
}

enum Finish {
    Release(Option<RunEnd>),
    /// Let the lock expire after this ttl.
    LetEnd(Ttl, Option<RunEnd>),
    /// Another process releases the lock with this name.
    Leave(LockName),
}

enum Message {
    Renewal(Renewal),
    GivenBack(GivenBack),
}

/// Maximum interval between renewals beside old `SETNX` clients. A client that lost a race writes its own time over
/// nxlock's; that time is at least a second ahead, and a renewal must replace it before it passes.
const AT_MOST_APART_BESIDE_SETNX: Duration = Duration::from_millis(500);

/// Maximum renewal interval while one thing more would take the lock away.
const AT_MOST_APART_AT_RISK: Duration = Duration::from_secs(1);

/// After what time the store is to tell at once what happens to the lock: a short command does not pay for it.
const LISTENS_AFTER: Duration = Duration::from_millis(100);

/// How often nxlock renews because a server tells it something: whatever a server is made to tell, it gets four requests a
/// second for that. The first ones leave at once, as each of several servers tells of its own vote.
const QUESTIONS: Pace = Pace::of(4, Duration::from_millis(250));

/// Returns the renewal interval.
fn apart(store: &dyn Store, claim: &Claim, ttl: Ttl) -> Duration {
    let mut apart = ttl.renewed_after();
    if claim.token.is_beside_setnx() {
        apart = apart.min(AT_MOST_APART_BESIDE_SETNX);
    }
    if store.watch().is_at_risk {
        apart = apart.min(AT_MOST_APART_AT_RISK);
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
        let due = lease.asked + apart(&*store, &claim, ttl);
        let listens_at = if store.watch().may_listen { Moment::now() + LISTENS_AFTER } else { Moment::NEVER };
        // Others may be granted a share of the lock too, and each of several has its own.
        let fence = lease.fence.filter(|_| !claim.token.is_share() && claim.also.is_empty());
        let lock = Box::new(Lock {
            store,
            claim,
            ttl,
            until: lease.until,
            fence,
            server_timeout,
            put_back: 0,
            asked_by: None,
            asked: None,
            questions: QUESTIONS,
            retries: Backoff::new(),
            news: News::default(),
            due,
            listens_at,
        });
        Renewer(Mode::Inline { lock, alarm, rest: None })
    }

    /// Waits for a report, within the limit.
    ///
    /// # Errors
    /// As poll(2).
    pub fn next(&mut self, limit: Limit<'_>) -> io::Result<Arrived<Renewal>> {
        if let Mode::Inline { lock, alarm, rest } = &mut self.0 {
            if let Some(renewal) = rest.take() {
                return Ok(Arrived::Message(renewal));
            }
            let wake_at = lock.wakes_at();
            match alarm.wait_for(&lock.news_fds(), limit.no_later_than(wake_at))? {
                Woken::Cancelled => return Ok(Arrived::Readable),
                Woken::Ready | Woken::TimeUp if !lock.wakes_at().passed() => return Ok(Arrived::Time),
                Woken::Ready | Woken::TimeUp => {}
            }
            let is_due = lock.renews_at().passed();
            if let Err(error) = self.begin_renewing() {
                log::trace(format_args!("renewing without a thread: {}", text::plain(&error)));
                if let Mode::Inline { lock, .. } = &mut self.0
                    && !is_due
                {
                    // To listen takes two replies, and nothing else goes on meanwhile.
                    lock.listens_at = Moment::NEVER;
                    return Ok(Arrived::Time);
                }
            }
        }
        match &mut self.0 {
            // A late reaction to a signal is better than a lost lock.
            Mode::Inline { lock, rest, .. } => {
                let renewal;
                (renewal, *rest) = lock.renew(Limit::until(limit.until));
                Ok(Arrived::Message(renewal))
            }
            Mode::Threaded { messages, .. } => Ok(match messages.next(limit)? {
                Arrived::Message(Message::Renewal(renewal)) => Arrived::Message(renewal),
                Arrived::Readable => Arrived::Readable,
                Arrived::Message(Message::GivenBack(_)) | Arrived::Time => Arrived::Time,
            }),
        }
    }

    /// Returns a report that has come, without waiting.
    pub fn try_next(&mut self) -> Option<Renewal> {
        match &mut self.0 {
            Mode::Inline { rest, .. } => rest.take(),
            Mode::Threaded { messages, .. } => match messages.try_next()? {
                Message::Renewal(renewal) => Some(renewal),
                Message::GivenBack(_) => None,
            },
        }
    }

    /// # Errors
    /// If no thread (RLIMIT_NPROC) or no descriptor (RLIMIT_NOFILE) is left. Nothing has changed then.
    fn begin_renewing(&mut self) -> io::Result<()> {
        let (mailbox, finishes) = Mailbox::open()?;
        let (messages, sender) = Mailbox::open()?;
        // The supervisor needs one descriptor to search /proc for processes to signal.
        let _spare = Alarm::new()?;
        let (give, given) = channel::<Box<Lock>>();
        let keep = move || given.recv().map_or((), |lock| lock.keep(mailbox, &sender));
        thread::spawn("renewer", keep)?;
        // The lock moves only once the thread exists.
        if let Mode::Inline { lock, .. } = std::mem::replace(&mut self.0, Mode::Threaded { finishes, messages }) {
            let _ = give.send(lock);
        }
        Ok(())
    }

    /// Stops renewing and releases the lock; with a `rest`, lets it expire after that instead. `end` is that of the run
    /// under it, if it is recorded.
    pub fn give_back(self, rest: Option<Ttl>, end: Option<RunEnd>) -> GivenBack {
        self.carry_out(rest.map_or(Finish::Release(end), |rest| Finish::LetEnd(rest, end)))
    }

    /// Stops renewing for good, and leaves the lock with this name to another process: when this returns, no request is
    /// in flight.
    pub fn leave(self, name: &LockName) {
        self.carry_out(Finish::Leave(name.clone()));
    }

    fn carry_out(self, finish: Finish) -> GivenBack {
        match self.0 {
            Mode::Inline { mut lock, .. } => lock.carry_out(&finish),
            Mode::Threaded { finishes, mut messages } => {
                finishes.send(finish);
                loop {
                    // Every operation of the thread has a time-out, and this is its last.
                    match messages.next(Limit::NONE) {
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

/// The lock, with what it takes to renew and release it.
struct Lock {
    store: Box<dyn Store>,
    claim: Claim,
    ttl: Ttl,
    until: Moment,
    /// That of an exclusive lock.
    fence: Option<Fence>,
    server_timeout: Duration,
    /// Number of times a `SETNX` client had overwritten the lock.
    put_back: u32,
    /// The one that asks to give the lock up, once it has been reported.
    asked_by: Option<Box<Told>>,
    /// When nxlock last renewed.
    asked: Option<Moment>,
    /// What was heard since.
    news: News,
    /// The requests that something heard has caused.
    questions: Pace,
    /// The pauses after renewals that failed, since one did not.
    retries: Backoff,
    /// When to renew, if nothing is heard before; never, once the lock is lost.
    due: Moment,
    /// When the store is to tell at once what happens.
    listens_at: Moment,
}

impl Lock {
    /// Renews until a `Finish` arrives, and carries that out.
    fn keep(mut self, mut finishes: Mailbox<Finish>, messages: &MailSender<Message>) {
        loop {
            let wake_at = self.wakes_at();
            let news = self.news_fds().into_iter().map(Some).collect::<Vec<_>>();
            match finishes.next(Limit { until: wake_at, cancel: &news, ..Limit::NONE }) {
                Ok(Arrived::Message(finish)) => {
                    let given_back = self.carry_out(&finish);
                    // With this message the process may exit: the store sends what it still has to send when it is dropped.
                    drop(self);
                    return messages.send(Message::GivenBack(given_back));
                }
                Ok(Arrived::Readable | Arrived::Time) if !self.renews_at().passed() => self.listen(),
                Ok(Arrived::Readable | Arrived::Time) | Err(_) => {
                    let finish = [Some(finishes.fd())];
                    let (renewal, rest) = self.renew(Limit { cancel: &finish, ..Limit::NONE });
                    for renewal in [Some(renewal), rest].into_iter().flatten() {
                        messages.send(Message::Renewal(renewal));
                    }
                }
            }
        }
    }

    /// Returns when there is something to do: to renew, or to have the store tell at once what happens.
    fn wakes_at(&mut self) -> Moment {
        self.renews_at().min(self.listens_at)
    }

    /// Has the store tell at once what happens, from the moment for that.
    fn listen(&mut self) {
        if !self.listens_at.passed() {
            return;
        }
        self.listens_at = Moment::NEVER;
        let until = Moment::now() + self.server_timeout.min(self.attempt());
        if self.store.listen(&self.claim, Limit::until(until)) {
            self.due = Moment::now();
        }
    }

    /// Returns when to renew: when it is due, or earlier, if something was heard. After the end of a connection there is a
    /// delay too: a proxy may close each one after one reply. Locks of which one is lost are not renewed, whatever is heard.
    fn renews_at(&mut self) -> Moment {
        self.news.add(self.store.news());
        if self.due == Moment::NEVER {
            return Moment::NEVER;
        }
        let asks_at = || self.questions.next().unwrap_or(Moment::now());
        let connects_at = || self.asked.map_or(Moment::now(), |asked| asked + self.soon());
        let told = (!self.news.keys.is_empty()).then(asks_at);
        let cut = self.news.is_disconnected.then(connects_at);
        [told, cut].into_iter().flatten().fold(self.due, Moment::min)
    }

    /// Returns descriptors one of which is readable when there may be something to hear. All is read as it comes, also while
    /// it may not be asked about: a server disconnects who does not read.
    fn news_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.store.watch().news_fds
    }

    /// Returns the minimum delay before an unscheduled renewal.
    fn soon(&self) -> Duration {
        (self.ttl.get() / 20).min(Duration::from_secs(1))
    }

    /// Renews once, within the limit; returns the result, and who asks to give the lock up, if that is news. A cancellation
    /// ends a round of several renewals, and interrupts none.
    fn renew(&mut self, limit: Limit<'_>) -> (Renewal, Option<Renewal>) {
        let asked = Moment::now();
        let (is_due, news) = (self.due.passed(), std::mem::take(&mut self.news));
        self.asked = Some(asked);
        if !is_due {
            self.questions.done(news.keys.len(), asked);
        }
        // Of several locks, those of which nothing was heard are renewed when they are due.
        let is_of_some = !is_due && !news.is_disconnected && !news.keys.is_empty() && !self.claim.also.is_empty();
        let which = if is_of_some { Renewing::Only(&news.keys) } else { Renewing::All };
        let cancel = if self.claim.also.is_empty() { &[] } else { limit.cancel };
        let limit = Limit { cancel, ..limit.no_later_than(asked + self.attempt()) };
        let renewed = self.store.renew_some(&self.claim, self.ttl, which, limit);
        let due = asked + apart(&*self.store, &self.claim, self.ttl);
        self.due = if is_of_some { self.due.min(due) } else { due };
        match renewed {
            Ok(Renewed::Kept(Kept { until, put_back, asked_by, wanted })) => {
                self.retries = Backoff::new();
                notify::renewed(self.ttl, until);
                if put_back {
                    self.put_back += 1;
                    notify::put_back(&self.claim.name, self.put_back);
                }
                self.until = until;
                let news = asked_by.clone().filter(|_| asked_by != self.asked_by);
                self.asked_by = asked_by;
                // The connection may be another one.
                if self.listens_at == Moment::NEVER && self.store.watch().may_listen {
                    self.listens_at = asked;
                }
                (Renewal::Until(until), news.map(|by| Renewal::Asked(by, wanted)))
            }
            // Never for the holder's own claim; if it were, the lease would be unchanged.
            Ok(Renewed::Longer(_)) => (Renewal::Until(self.until), None),
            Ok(Renewed::NotYours(state)) => {
                self.due = Moment::NEVER;
                self.listens_at = Moment::NEVER;
                (Renewal::Lost(Box::new(state)), None)
            }
            // Retry even after a refusal: a password or a permission may be about to change. At first soon: the lock may be at
            // another server now, which is known.
            Err(error) => {
                notify::error(&error);
                self.due = Moment::now() + self.retries.next().min(self.soon());
                (Renewal::Uncertain(error), None)
            }
        }
    }

    /// Returns the time-out of one renewal: at most a sixth of the ttl, with time left for another.
    fn attempt(&self) -> Duration {
        let rest = (self.until.remaining() / 2).max(Duration::from_millis(20));
        (self.ttl.get() / 6).min(rest).min(Duration::from_secs(5))
    }

    fn carry_out(&mut self, finish: &Finish) -> GivenBack {
        let Lock { store, claim, .. } = self;
        let within = self.server_timeout;
        if let Finish::Release(end) | Finish::LetEnd(_, end) = finish {
            claim.ended(*end);
        }
        let answer = match finish {
            Finish::Release(_) => retry::release(within, self.until, self.fence, |limit| store.release(claim, limit)),
            Finish::LetEnd(rest, _) => {
                retry::let_end(within, *rest, self.fence, |limit| store.let_end(claim, *rest, limit))
            }
            Finish::Leave(name) => {
                store.leave(claim, Some(name), self.fence);
                return GivenBack::Done;
            }
        };
        match answer {
            Ok(ReleaseAnswer::Done | ReleaseAnswer::InDoubt) => GivenBack::Done,
            Ok(ReleaseAnswer::NotYours(state)) => GivenBack::NotYours(*state),
            Err(error) => GivenBack::Unconfirmed(error),
        }
    }
}
