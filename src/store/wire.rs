//! Requests and their replies, over connections that are opened when they are needed, and anew when they have
//! ended. Knows nothing of locks.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use redis::{Cmd, Value, cmd};

use super::Kind;
use super::connect::{Fault, Link, NoReply};
use super::distinct::Distinct;
use super::endpoint::{Address, Endpoint};
use super::route::{Heard, Route};
use crate::clock::Moment;
use crate::limit::Limit;

pub struct Wire {
    route: Route,
    /// Bound on one connect and on one reply.
    pub timeout: Duration,
    /// When the last conversation began.
    pub began: Moment,
    /// Whom it was with, where that may be another each time.
    with: Option<Address>,
    /// The last answer is of a server that is only about to have the key.
    sent_there: bool,
    /// Connections without a request under way; that of the last conversation comes last.
    idle: Vec<Link>,
    /// Connections with a request outstanding that nobody waits for any more, the latest first: what is sent on
    /// one is executed after that request.
    spent: Vec<Link>,
    /// Who the others are, where this server is one of several.
    distinct: Option<Distinct>,
}

/// So often we let ourselves be sent to another server before there is an answer.
const HOPS: usize = 5;

/// Maximum number of connections kept for a request that was given up: each is a descriptor.
const MOST_SPENT: usize = 16;

impl Wire {
    pub fn new(route: Route, timeout: Duration) -> Wire {
        Wire {
            route,
            timeout,
            began: Moment::now(),
            with: None,
            sent_there: false,
            idle: Vec::new(),
            spent: Vec::new(),
            distinct: None,
        }
    }

    /// The server is to be another than those that are spoken to elsewhere.
    pub fn among(&mut self, distinct: &Distinct) {
        self.distinct = Some(distinct.clone());
    }

    pub fn is_one_of_several(&self) -> bool {
        self.distinct.is_some()
    }

    pub fn route(&self) -> &Route {
        &self.route
    }

    /// Whether a key may be on its way from one server to another.
    pub fn is_of_a_cluster(&self) -> bool {
        matches!(self.route, Route::Cluster(_))
    }

    /// A limit, cut to what one connect or one reply may take.
    pub fn within<'a>(&self, limit: Limit<'a>) -> Limit<'a> {
        limit.no_later_than(Moment::now() + self.timeout)
    }

    /// What is asked next is about this key.
    pub fn turn_to(&mut self, key: &str) {
        self.route.turn_to(key);
    }

    /// What is asked next is asked of this server.
    pub fn turn_to_shard(&mut self, shard: &Endpoint) {
        self.route.turn_to_shard(shard);
    }

    /// All servers that have keys, each with its own; none where there is only one to ask.
    pub fn shards(&mut self, limit: Limit<'_>) -> Result<Vec<Endpoint>, Fault> {
        self.began = Moment::now();
        let limit = self.within(limit);
        self.route.shards(&mut self.idle, limit)
    }

    /// The server that the next request goes to, as far as can be told before: connected to.
    pub fn reach(&mut self, limit: Limit<'_>) -> Result<Endpoint, Fault> {
        self.began = Moment::now();
        let link = self.link(limit)?;
        let peer = link.peer.clone();
        self.idle.push(link);
        Ok(peer)
    }

    /// The server that has answered last.
    pub fn answered(&self) -> Option<&Endpoint> {
        self.idle.last().map(|link| &link.peer)
    }

    /// The same, if it is only about to have the key.
    pub fn sent_there(&self) -> Option<&Endpoint> {
        self.answered().filter(|_| self.sent_there)
    }

    /// Whether a request is outstanding that nobody waits for any more.
    pub fn is_in_doubt(&self) -> bool {
        !self.spent.is_empty()
    }

    /// One request, one reply.
    pub fn ask(&mut self, request: &Cmd, limit: Limit<'_>) -> Result<Value, NoReply> {
        let mut replies = self.ask_all(std::slice::from_ref(request), limit)?;
        replies.pop().ok_or_else(|| Fault::Garbled("it does not reply".into()).into())
    }

    /// Several requests in one go; as many replies.
    pub fn ask_all(&mut self, requests: &[Cmd], limit: Limit<'_>) -> Result<Vec<Value>, NoReply> {
        self.began = Moment::now();
        let mut there = None;
        for _ in 0..HOPS {
            let replies = match &there {
                None => {
                    let link = self.link(limit)?;
                    self.converse(link, requests, limit)?
                }
                Some(there) => self.ask_there(there, requests, limit)?,
            };
            self.sent_there = there.take().is_some();
            let heard = replies.first().zip(self.idle.last()).map(|(reply, link)| self.route.hear(&link.peer, reply));
            match heard.unwrap_or(Heard::Answer) {
                Heard::Answer => return Ok(replies),
                Heard::Astray => {
                    self.idle.clear();
                    return Ok(replies);
                }
                Heard::Moved => {}
                Heard::Ask(node) => there = Some(node),
            }
        }
        Err(Fault::Told {
            kind: Kind::Unwilling,
            came: "its servers send us from one to another without end".into(),
            remedy: "see CLUSTER INFO there, on each",
        }
        .into())
    }

    /// The same, of the server that was turned to and of no other: where it sends us is not followed.
    pub fn ask_here(&mut self, requests: &[Cmd], limit: Limit<'_>) -> Result<Vec<Value>, NoReply> {
        self.began = Moment::now();
        let link = self.link(limit)?;
        self.converse(link, requests, limit)
    }

    /// The same, but only on the connection of the last request, whose state at the server matters.
    pub fn ask_on(&mut self, requests: &[Cmd], limit: Limit<'_>) -> Result<Vec<Value>, NoReply> {
        let gone = || Fault::Ended(io::Error::new(io::ErrorKind::NotConnected, "the connection was closed"));
        let link = self.idle.pop().ok_or_else(gone)?;
        self.converse(link, requests, limit)
    }

    /// The same as one transaction; the replies to MULTI, to each request, and to EXEC (Redis commands).
    pub fn exec_on(&mut self, requests: &[Cmd], limit: Limit<'_>) -> Result<Vec<Value>, NoReply> {
        // Holds until EXEC.
        let before = if self.sent_there { vec![cmd("ASKING"), cmd("MULTI")] } else { vec![cmd("MULTI")] };
        let all: Vec<Cmd> = before.iter().chain(requests).cloned().chain([cmd("EXEC")]).collect();
        Ok(self.ask_on(&all, limit)?.split_off(before.len() - 1))
    }

    /// Asks a server that is about to have the key, which has to be said before each request (Redis command
    /// ASKING).
    pub fn ask_there(&mut self, there: &Endpoint, requests: &[Cmd], limit: Limit<'_>) -> Result<Vec<Value>, NoReply> {
        let within = self.within(limit);
        let link = self.route.link_there(there, &mut self.idle, within)?;
        self.with = Some(link.peer.address.clone());
        let requests: Vec<Cmd> = requests.iter().flat_map(|request| [cmd("ASKING"), request.clone()]).collect();
        let replies = self.converse(link, &requests, limit)?;
        Ok(replies.into_iter().skip(1).step_by(2).collect())
    }

    fn link(&mut self, limit: Limit<'_>) -> Result<Link, Fault> {
        let limit = self.within(limit);
        let link = self.route.link(&mut self.idle, limit)?;
        if self.route.may_turn() {
            self.with = Some(link.peer.address.clone());
        }
        Ok(link)
    }

    fn converse(&mut self, mut link: Link, requests: &[Cmd], limit: Limit<'_>) -> Result<Vec<Value>, NoReply> {
        match self.exchange(&mut link, requests, self.within(limit)) {
            Ok(replies) => {
                self.idle.push(link);
                Ok(replies)
            }
            Err(no_reply) => {
                self.route.lost(&link.peer);
                if no_reply.sent && matches!(no_reply.fault, Fault::TimeUp | Fault::Bell) {
                    // The one before it has been given up for longest.
                    self.spent.truncate(MOST_SPENT - 1);
                    self.spent.insert(0, link);
                }
                Err(no_reply)
            }
        }
    }

    /// One of several servers tells who it is ahead of its first answer, in the same round trip.
    fn exchange(&self, link: &mut Link, requests: &[Cmd], limit: Limit<'_>) -> Result<Vec<Value>, NoReply> {
        let Some(distinct) = self.distinct.as_ref().filter(|_| !link.is_introduced) else {
            return link.converse(requests, limit);
        };
        let all: Vec<Cmd> = [Distinct::question()].into_iter().chain(requests.iter().cloned()).collect();
        let mut replies = link.converse(&all, limit)?.into_iter();
        let told = replies.next().unwrap_or(Value::Nil);
        // The other requests have been carried out all the same.
        distinct.hear(&link.peer, &told).map_err(|fault| NoReply { fault, sent: true })?;
        link.is_introduced = true;
        Ok(replies.collect())
    }

    /// Sends requests behind each one that was given up, so that they cannot be executed before it. Nobody
    /// waits for the replies.
    pub fn send_behind(&mut self, requests: &[Cmd], limit: Limit<'_>) {
        let packed = requests.iter().map(Cmd::get_packed_command).collect::<Vec<_>>().concat();
        for mut spent in self.spent.drain(..) {
            // If it cannot be sent, neither could what it is to undo be answered: the lease ends.
            let _ = spent.send(&packed, limit);
        }
    }

    /// Readable when the connection has ended.
    pub fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        self.idle.last().map(Link::fd)
    }
}

/// Who is asked, and which server that was last, where it may be another each time. Without the password.
impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.with {
            Some(address) => write!(f, "{} ({address})", self.route),
            None => self.route.fmt(f),
        }
    }
}
