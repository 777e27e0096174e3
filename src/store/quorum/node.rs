//! One server of several, asked by a thread of its own: one order after the other, so that what undoes a
//! request is always behind it. Knows nothing of the other servers, and decides nothing.
//!
//! What undoes a request in doubt is sent behind it on the same connection, and no answer is waited for: its token
//! is never used again, so that it can take nothing else away, whenever it is carried out.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use crate::clock::Moment;
use crate::inbox::Postbox;
use crate::limit::Limit;
use crate::lock::{Fence, Hold, LockName, Occupancy, State, Token, Ttl};
use crate::say;
use crate::signals::deaf;
use crate::store::reply::What;
use crate::store::server::Server;
use crate::store::{Acquired, Kind, Manner, Released, Renewed, Store, Trouble};

/// What a node is to do.
#[derive(Clone)]
pub enum Order {
    Acquire(Hold, Ttl),
    /// Raise the fence to what a majority was given, where its vote still stands.
    Raise(Hold, Fence, Ttl),
    Renew(Hold, Ttl),
    /// Set the key again if the last renewal did not find it.
    Heal(Hold, Ttl),
    /// With a token that nobody else can have used, nothing is asked where nothing was granted.
    Release(Hold, Whose),
    Look(LockName),
    Names,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Minted by this process.
    Ours,
    Anybodys,
}

/// An order, and for how long somebody wants its answer.
pub struct Errand {
    pub question: u64,
    /// Several questions may be about the same.
    pub matter: u64,
    pub order: Order,
    pub until: Moment,
}

/// What came of an order.
pub enum Said {
    Granted(Option<Fence>),
    Held(Occupancy),
    Raised,
    /// For this long, if that is longer than asked for.
    Extended(Option<Duration>),
    NotYours(Occupancy),
    /// It has nothing of ours: it was never asked for the lock, or our vote is gone.
    Untouched,
    /// It was in doubt, and what undoes it is on its way.
    Undoing,
    Done,
    Seen(Occupancy, Option<Token>),
    Names(Vec<LockName>),
    /// Nobody wanted to know any more.
    Unwanted,
    /// It was not asked: it is silent.
    Spared,
    Failed(Trouble),
}

pub struct Letter {
    pub node: usize,
    pub question: u64,
    pub said: Said,
}

struct Node {
    server: Server,
    closed: Arc<AtomicU64>,
    /// The claim that the server was asked for, and may have granted.
    asked: Option<Token>,
    /// It has not answered when it was last asked for one: it may still grant it.
    is_in_doubt: bool,
    /// The claim that the server said to have taken back.
    given_back: Option<Token>,
    /// The last renewal found no key.
    is_absent: bool,
}

/// Starts a node's thread. It ends when nobody can send it orders any more; when `end` is readable, nobody waits for
/// any answer any more. Of a matter up to `closed` nothing is asked any more, but for the end of a lease.
///
/// # Errors
/// As pthread_create(3).
pub fn start(
    at: usize,
    server: Server,
    end: UnixStream,
    closed: Arc<AtomicU64>,
    answers: Postbox<Letter>,
) -> io::Result<Sender<Errand>> {
    let (orders, given) = channel::<Errand>();
    let mut node = Node { server, closed, asked: None, is_in_doubt: false, given_back: None, is_absent: false };
    let work = move || {
        for errand in given {
            let said = node.carry_out(&errand, &end);
            answers.send(Letter { node: at, question: errand.question, said });
        }
    };
    deaf(|| thread::Builder::new().name("quorum".into()).spawn(work))?;
    Ok(orders)
}

impl Node {
    fn carry_out(&mut self, errand: &Errand, end: &UnixStream) -> Said {
        // What says how long the lock is ours is sent in any case.
        let is_last = matches!(errand.order, Order::Release(..) | Order::Renew(..));
        if !is_last && errand.matter <= self.closed.load(Ordering::Relaxed) {
            return Said::Unwanted;
        }
        if errand.until.passed() && !matches!(errand.order, Order::Release(..)) {
            return Said::Failed(Trouble { kind: Kind::Unreachable, ..Trouble::of_ours("", &"no answer in time") });
        }
        let limit = Limit { until: errand.until, bells: [Some(end.as_fd()), None, None] };
        self.obey(&errand.order, limit).unwrap_or_else(|trouble| {
            say::trace(format_args!("{trouble}"));
            Said::Failed(trouble)
        })
    }

    fn obey(&mut self, order: &Order, limit: Limit<'_>) -> Result<Said, Trouble> {
        Ok(match order {
            Order::Acquire(hold, ttl) => match self.acquire(hold, *ttl, limit)? {
                Acquired::Granted(lease) => Said::Granted(lease.fence),
                Acquired::Held(occupancy, _) => Said::Held(occupancy),
            },
            Order::Raise(hold, fence, ttl) => match self.server.raise(hold, *fence, *ttl, limit)? {
                true => Said::Raised,
                false => Said::Untouched,
            },
            Order::Renew(hold, ttl) => self.renew(hold, *ttl, limit)?,
            Order::Heal(hold, ttl) => {
                if std::mem::take(&mut self.is_absent) {
                    self.acquire(hold, *ttl, limit)?;
                }
                Said::Done
            }
            Order::Release(hold, whose) => self.release(hold, *whose, limit)?,
            Order::Look(name) => {
                let (standing, value) = self.server.sight(name, limit)?;
                Said::Seen(standing.occupancy, value.and_then(|value| value.parse().ok()))
            }
            Order::Names => Said::Names(self.server.names(limit)?),
        })
    }

    fn acquire(&mut self, hold: &Hold, ttl: Ttl, limit: Limit<'_>) -> Result<Acquired, Trouble> {
        self.server.connect(&What::to("acquire", &hold.name), limit)?;
        self.asked = Some(hold.token.clone());
        self.given_back = None;
        self.is_in_doubt = true;
        let acquired = self.server.acquire(&mut hold.clone(), ttl, Manner::Plain, limit)?;
        self.is_in_doubt = false;
        Ok(acquired)
    }

    fn renew(&mut self, hold: &Hold, ttl: Ttl, limit: Limit<'_>) -> Result<Said, Trouble> {
        self.is_absent = false;
        self.server.connect(&What::to("renew", &hold.name), limit)?;
        Ok(match self.server.renew(hold, ttl, limit)? {
            Renewed::Until(_) | Renewed::PutBack(_) => Said::Extended(None),
            Renewed::Longer(left) => Said::Extended(Some(left)),
            Renewed::NotYours(occupancy) => {
                self.is_absent = occupancy.state == State::Free;
                Said::NotYours(occupancy)
            }
        })
    }

    fn release(&mut self, hold: &Hold, whose: Whose, limit: Limit<'_>) -> Result<Said, Trouble> {
        let token = Some(&hold.token);
        // Asked again, since not all have answered.
        if self.given_back.as_ref() == token {
            return Ok(Said::Done);
        }
        if whose == Whose::Ours && self.asked.as_ref() != token {
            return Ok(Said::Untouched);
        }
        if std::mem::take(&mut self.is_in_doubt) && self.server.undo_outstanding(hold, limit) {
            self.asked = None;
            return Ok(Said::Undoing);
        }
        let released = self.server.release(hold, limit)?;
        // Not before that: who asks again because there was no answer must not be told that there is nothing of ours.
        self.asked = None;
        Ok(match released {
            Released::NotYours(occupancy) => Said::NotYours(occupancy),
            Released::Done => {
                self.given_back = Some(hold.token.clone());
                Said::Done
            }
        })
    }
}
