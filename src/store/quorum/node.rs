//! One server of several, asked by a thread of its own: one order after the other, so that what undoes a
//! request is always behind it. Knows nothing of the other servers, and decides nothing.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use crate::clock::Moment;
use crate::inbox::Postbox;
use crate::limit::{Limit, Woken};
use crate::lock::{Fence, Hold, LockName, Occupancy, State, Token, Ttl};
use crate::say;
use crate::signals::deaf;
use crate::store::reply::What;
use crate::store::server::Server;
use crate::store::{Acquired, Kind, Manner, Released, Renewed, Store, Trouble};

/// What a node is to do.
#[derive(Clone)]
pub enum Order {
    /// Be ready to be asked.
    Connect(LockName),
    Acquire(Hold, Ttl),
    /// Raise the fence to what a majority was given.
    Raise(LockName, Fence, Ttl),
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
    pub order: Order,
    pub until: Moment,
    /// Ends when nobody does any more.
    pub wanted: Option<Arc<UnixStream>>,
}

/// What came of an order.
pub enum Said {
    Connected,
    Granted(Option<Fence>),
    Held(Occupancy),
    /// How the fence stood before it was raised.
    Raised(Fence),
    /// For this long, if that is longer than asked for.
    Extended(Option<Duration>),
    NotYours(Occupancy),
    /// It was never asked for the lock, so it has nothing of ours.
    Untouched,
    Done,
    Seen(Occupancy, Option<Token>),
    Names(Vec<LockName>),
    /// Nobody wanted to know any more.
    Unwanted,
    Failed(Trouble),
}

pub struct Letter {
    pub node: usize,
    pub question: u64,
    pub said: Said,
}

struct Node {
    server: Server,
    round_trip: Duration,
    /// The claim that the server was asked for, and may have granted.
    asked: Option<Token>,
    /// It has not answered when it was last asked for one: it may still grant it.
    is_in_doubt: bool,
    /// The claim that the server said to have taken back.
    given_back: Option<Token>,
    /// The last renewal found no key.
    is_absent: bool,
}

/// Starts a node's thread. It ends when nobody can send it orders any more.
///
/// # Errors
/// As pthread_create(3).
pub fn start(at: usize, server: Server, answers: Postbox<Letter>) -> io::Result<Sender<Errand>> {
    let (orders, given) = channel::<Errand>();
    let mut node = Node {
        server,
        round_trip: Duration::ZERO,
        asked: None,
        is_in_doubt: false,
        given_back: None,
        is_absent: false,
    };
    let work = move || {
        for errand in given {
            let said = node.carry_out(&errand);
            answers.send(Letter { node: at, question: errand.question, said });
        }
    };
    deaf(|| thread::Builder::new().name("quorum".into()).spawn(work))?;
    Ok(orders)
}

impl Errand {
    fn limit(&self) -> Limit<'_> {
        Limit { until: self.until, bells: [self.wanted.as_ref().map(|wanted| wanted.as_fd()), None, None] }
    }

    /// Whether nobody wants the answer any more.
    fn is_unwanted(&self) -> bool {
        let now = self.limit().no_later_than(Moment::now());
        now.wait_for(&[]).is_ok_and(|woken| woken == Woken::Bell)
    }
}

impl Node {
    fn carry_out(&mut self, errand: &Errand) -> Said {
        if errand.is_unwanted() {
            return Said::Unwanted;
        }
        if errand.until.passed() {
            return Said::Failed(Trouble { kind: Kind::Unreachable, ..Trouble::of_ours("", &"no answer in time") });
        }
        match self.obey(&errand.order, errand.limit()) {
            Ok(said) => said,
            Err(_) if errand.is_unwanted() => Said::Unwanted,
            Err(trouble) => {
                say::trace(format_args!("{trouble}"));
                Said::Failed(trouble)
            }
        }
    }

    fn obey(&mut self, order: &Order, limit: Limit<'_>) -> Result<Said, Trouble> {
        Ok(match order {
            Order::Connect(name) => {
                let began = Moment::now();
                // Seen through even when nobody waits for it: one that is far away is ready the next time.
                self.server.connect(&What::to("acquire", name), Limit::until(limit.until))?;
                // Until there is a reply to go by.
                if self.round_trip.is_zero() {
                    self.round_trip = began.elapsed();
                }
                Said::Connected
            }
            Order::Acquire(hold, ttl) => match self.acquire(hold, *ttl, limit)? {
                Acquired::Granted(lease) => Said::Granted(lease.fence),
                Acquired::Held(occupancy, _) => Said::Held(occupancy),
            },
            Order::Raise(name, fence, ttl) => {
                let limit = limit.no_later_than(self.reply_by(*ttl));
                Said::Raised(self.server.raise(name, *fence, *ttl, limit)?)
            }
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

    /// A node that takes longer is left behind: small against the ttl, but it must be given the time
    /// that its distance takes.
    fn reply_by(&self, ttl: Ttl) -> Moment {
        let small = (ttl.get() / 20).clamp(Duration::from_millis(20), Duration::from_millis(500));
        Moment::now() + small.max(self.round_trip * 4)
    }

    fn acquire(&mut self, hold: &Hold, ttl: Ttl, limit: Limit<'_>) -> Result<Acquired, Trouble> {
        self.server.connect(&What::to("acquire", &hold.name), limit)?;
        self.asked = Some(hold.token.clone());
        self.given_back = None;
        self.is_in_doubt = true;
        let asked = Moment::now();
        let acquired = self.server.acquire(hold, ttl, Manner::Plain, limit.no_later_than(self.reply_by(ttl)))?;
        self.is_in_doubt = false;
        self.round_trip = asked.elapsed();
        Ok(acquired)
    }

    fn renew(&mut self, hold: &Hold, ttl: Ttl, limit: Limit<'_>) -> Result<Said, Trouble> {
        self.is_absent = false;
        self.server.connect(&What::to("renew", &hold.name), limit)?;
        let asked = Moment::now();
        let renewed = self.server.renew(hold, ttl, limit.no_later_than(self.reply_by(ttl)))?;
        self.round_trip = asked.elapsed();
        Ok(match renewed {
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
        let in_doubt = std::mem::take(&mut self.is_in_doubt) && self.server.undo_outstanding(hold, limit);
        let released = self.server.release(hold, limit)?;
        self.asked = None;
        Ok(match released {
            // It went already by what was sent behind the request in doubt, or it never came.
            Released::NotYours(occupancy) if in_doubt && occupancy.state != State::Free => {
                return Err(Trouble { kind: Kind::Unanswered, ..Trouble::of_ours("", &"an answer was lost") });
            }
            Released::NotYours(occupancy) if !in_doubt => Said::NotYours(occupancy),
            Released::NotYours(_) | Released::Done => {
                self.given_back = Some(hold.token.clone());
                Said::Done
            }
        })
    }
}
