//! Sends requests and receives replies, over connections that it opens on demand, and again after they have ended.
//! Follows redirects. Knows nothing of locks.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use redis::{Cmd, Value, cmd};

use super::connection::{self, Connection};
use super::credentials::Login;
use super::distinct::Distinct;
use super::endpoint::{Address, Endpoint};
use super::fault::{Fault, NoReply};
use super::listening::{Listening, Subscribed};
use super::pushes::{Accepted, Wanted};
use super::reply::{self, Peer};
use super::topology::{Redirect, Topology};
use super::wake::Channels;
use crate::clock::Moment;
use crate::error::ErrorKind;
use crate::store::News;
use crate::wait::Limit;

pub struct Client {
    topology: Topology,
    /// Time-out of one connect, and of one reply.
    pub timeout: Duration,
    /// When the last exchange began.
    pub began: Moment,
    /// Its server, if the topology may choose another each time.
    with: Option<Address>,
    /// The last reply came from a server that is only importing the key's slot.
    sent_there: bool,
    /// Connections without an outstanding request, that of the last exchange last.
    idle: Vec<Connection>,
    /// Connections with an outstanding request that was given up, the latest first: the server executes what is sent on
    /// one after that request.
    spent: Vec<Connection>,
    /// Former spent connections, with when something was sent behind their requests, the latest first. They stay open
    /// for the replies: a proxy that cannot deliver one may end both sides, and drop what came behind. Among them are those
    /// on which the server did not say in time whether it tells things unasked: nothing has to be undone there, and a
    /// release can still be sent where a new connection would have to log in first.
    undone: Vec<Undone>,
    /// A server has replied before.
    has_met: bool,
    /// Whether servers tell things unasked.
    listening: Listening,
    /// The identities of all servers, if this is one of several.
    distinct: Option<Distinct>,
}

/// A connection whose replies cannot be told apart any more, and behind whose requests something was sent, or may be.
struct Undone {
    since: Moment,
    connection: Connection,
    /// The keys of the locks for which something was sent behind its request.
    keys: Vec<String>,
}

/// What to do with a request if the node that has the slot redirects it to the one that the slot is moving to (ASK).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OnAsk {
    /// Send it there.
    Follow,
    /// Return the redirect: nothing was done.
    Return,
}

/// Maximum redirects per request.
const MAX_REDIRECTS: usize = 5;

/// Maximum number of spent connections, and of undone ones: each is a descriptor.
const MOST_SPENT: usize = 16;
/// How long an undone connection stays open.
const UNDONE_FOR: Duration = Duration::from_secs(60);
/// How long to wait for a server that is executing what was given up, before this process may exit.
const LINGER: Duration = Duration::from_secs(1);

impl Undone {
    fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|one| one == key)
    }
}

impl Client {
    pub fn new(topology: Topology, timeout: Duration) -> Client {
        Client {
            topology,
            timeout,
            began: Moment::now(),
            with: None,
            sent_there: false,
            idle: Vec::new(),
            spent: Vec::new(),
            undone: Vec::new(),
            has_met: false,
            listening: Listening::Untried,
            distinct: None,
        }
    }

    /// Requires the server to be another than those of the other clients.
    pub fn require_distinct(&mut self, distinct: &Distinct) {
        self.distinct = Some(distinct.clone());
    }

    pub fn is_one_of_several(&self) -> bool {
        self.distinct.is_some()
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns whether a key may move from one server to another.
    pub fn is_of_a_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_))
    }

    /// Returns a limit, cut to the time-out of one connect or one reply.
    pub fn within<'a>(&self, limit: Limit<'a>) -> Limit<'a> {
        limit.no_later_than(Moment::now() + self.timeout)
    }

    /// Directs the next requests to the server that has this key.
    pub fn turn_to(&mut self, key: &str) {
        self.topology.turn_to(key);
    }

    /// Directs the next requests to this server.
    pub fn turn_to_shard(&mut self, shard: &Endpoint) {
        self.topology.turn_to_shard(shard);
    }

    /// Returns all servers that have keys, each with its own; none if there is only one server.
    pub fn shards(&mut self, limit: Limit<'_>) -> Result<Vec<Endpoint>, Fault> {
        self.began = Moment::now();
        let limit = self.within(limit);
        let shards = self.topology.shards(&mut self.idle, limit);
        shards.map_err(|fault| self.judged(fault))
    }

    /// Connects to the server of the next request, as far as it is known in advance, and returns it.
    pub fn reach(&mut self, limit: Limit<'_>) -> Result<Endpoint, Fault> {
        self.began = Moment::now();
        let connection = self.connection(limit)?;
        let peer = connection.peer.clone();
        self.idle.push(connection);
        Ok(peer)
    }

    /// Returns the server that replied last.
    pub fn answered(&self) -> Option<&Endpoint> {
        self.idle.last().map(|connection| &connection.peer)
    }

    /// Returns the number of the connection that had the last reply.
    pub fn answered_by(&self) -> Option<u64> {
        self.idle.last().map(|connection| connection.number)
    }

    /// Returns whether the connection of this number is still there.
    pub fn has(&self, number: u64) -> bool {
        self.idle.iter().any(|connection| connection.number == number)
    }

    /// Returns the server that replied last if it is only importing the key's slot.
    pub fn sent_there(&self) -> Option<&Endpoint> {
        self.answered().filter(|_| self.sent_there)
    }

    /// Returns whether a request is outstanding that was given up.
    pub fn is_in_doubt(&self) -> bool {
        !self.spent.is_empty()
    }

    /// Returns whether a request may still be outstanding that was given up, be it one to tell things unasked, and behind
    /// which nothing was sent for the lock with this key.
    pub fn may_be_late(&self, key: &str) -> bool {
        self.is_in_doubt() || self.undone.iter().any(|undone| !undone.has(key))
    }

    /// Sends a request and returns its reply.
    pub fn ask(&mut self, request: &Cmd, limit: Limit<'_>) -> Result<Value, NoReply> {
        self.ask_once(request, OnAsk::Follow, limit)
    }

    /// Sends a request and returns its reply, which may be the redirect of a slot that is moving.
    pub fn ask_once(&mut self, request: &Cmd, on_ask: OnAsk, limit: Limit<'_>) -> Result<Value, NoReply> {
        let mut replies = self.ask_redirected(std::slice::from_ref(request), on_ask, limit)?;
        replies.pop().ok_or_else(|| Fault::Garbled("it does not reply".into()).into())
    }

    /// Sends several requests at once, and returns as many replies. Follows a redirect in the first one.
    pub fn ask_all(&mut self, requests: &[Cmd], limit: Limit<'_>) -> Result<Vec<Value>, NoReply> {
        self.ask_redirected(requests, OnAsk::Follow, limit)
    }

    fn ask_redirected(&mut self, requests: &[Cmd], on_ask: OnAsk, limit: Limit<'_>) -> Result<Vec<Value>, NoReply> {
        self.began = Moment::now();
        let mut there = None;
        for _ in 0..MAX_REDIRECTS {
            let replies = match &there {
                None => {
                    let connection = self.connection(limit)?;
                    self.converse(connection, requests, limit)?
                }
                Some(there) => self.ask_there(there, requests, limit)?,
            };
            self.sent_there = there.take().is_some();
            let redirect = replies
                .first()
                .zip(self.idle.last())
                .map(|(reply, connection)| self.topology.learn(&connection.peer, reply));
            match redirect.unwrap_or(Redirect::Answer) {
                Redirect::Answer => return Ok(replies),
                Redirect::Elsewhere => {
                    self.idle.clear();
                    return Ok(replies);
                }
                Redirect::Moved => {}
                Redirect::Nowhere(details) => {
                    let details = reply::without_password(&details, self.login());
                    return Err(Fault::Known {
                        kind: ErrorKind::Misconfigured,
                        cause: format!("it redirects to \"{details}\", where no server can be"),
                        hint: "see cluster-announce-ip and cluster-announce-port there",
                    }
                    .into());
                }
                Redirect::Ask(_) if on_ask == OnAsk::Return => return Ok(replies),
                Redirect::Ask(node) => there = Some(node),
            }
        }
        Err(Fault::Known {
            kind: ErrorKind::Unavailable,
            cause: "too many redirects between its nodes".into(),
            hint: "see CLUSTER INFO there, on each",
        }
        .into())
    }

    /// Does the same at the chosen server alone, without following redirects.
    pub fn ask_here(&mut self, requests: &[Cmd], limit: Limit<'_>) -> Result<Vec<Value>, NoReply> {
        self.began = Moment::now();
        let connection = self.connection(limit)?;
        self.converse(connection, requests, limit)
    }

    /// Does the same, but only on the connection of the last request, whose state at the server matters.
    pub fn ask_on(&mut self, requests: &[Cmd], limit: Limit<'_>) -> Result<Vec<Value>, NoReply> {
        let gone = || Fault::Ended(io::Error::new(io::ErrorKind::NotConnected, "the connection was closed"));
        let connection = self.idle.pop().ok_or_else(gone)?;
        self.converse(connection, requests, limit)
    }

    /// Does the same as one transaction. Returns the replies to MULTI, to each request, and to EXEC (Redis commands); only
    /// the error if the server does not begin one, since it would execute the requests all the same.
    pub fn exec_on(&mut self, requests: &[Cmd], limit: Limit<'_>) -> Result<Vec<Value>, NoReply> {
        // ASKING is valid until EXEC.
        let begin = if self.sent_there { vec![cmd("ASKING"), cmd("MULTI")] } else { vec![cmd("MULTI")] };
        let mut replies = self.ask_on(&begin, limit).map_err(NoReply::of_read)?.split_off(begin.len() - 1);
        if !replies.iter().any(|reply| matches!(reply, Value::ServerError(_))) {
            let rest: Vec<Cmd> = requests.iter().cloned().chain([cmd("EXEC")]).collect();
            replies.extend(self.ask_on(&rest, limit)?);
        }
        Ok(replies)
    }

    /// Sends requests to a server that is importing the key's slot, with ASKING before each (Redis command ASKING).
    pub fn ask_there(&mut self, there: &Endpoint, requests: &[Cmd], limit: Limit<'_>) -> Result<Vec<Value>, NoReply> {
        let within = self.within(limit);
        let connection = self.topology.link_there(there, &mut self.idle, within);
        let connection = connection.map_err(|fault| self.judged(fault))?;
        self.with = Some(connection.peer.address.clone());
        let requests: Vec<Cmd> = requests.iter().flat_map(|request| [cmd("ASKING"), request.clone()]).collect();
        let replies = self.converse(connection, &requests, limit)?;
        self.sent_there = true;
        Ok(replies.into_iter().skip(1).step_by(2).collect())
    }

    /// Does the same as [`Client::ask_there`]; error messages name the server of the exchange before, and not this one.
    pub fn ask_there_aside(
        &mut self,
        there: &Endpoint,
        requests: &[Cmd],
        limit: Limit<'_>,
    ) -> Result<Vec<Value>, NoReply> {
        let with = self.with.clone();
        let replies = self.ask_there(there, requests, limit);
        self.with = with;
        replies
    }

    fn connection(&mut self, limit: Limit<'_>) -> Result<Connection, Fault> {
        let limit = self.within(limit);
        self.undone.retain(|undone| undone.since.elapsed() < UNDONE_FOR);
        let connection = self.topology.connection(&mut self.idle, limit);
        let connection = connection.map_err(|fault| self.judged(fault))?;
        if self.topology.may_turn() {
            self.with = Some(connection.peer.address.clone());
        }
        Ok(connection)
    }

    /// Returns a fault of the first contact as it is: what is wrong with the login or a certificate stays wrong. Later it
    /// may be about to change, since a server and the files of its clients do not change at the same moment.
    fn judged(&self, fault: Fault) -> Fault {
        if self.has_met { fault.that_may_pass() } else { fault }
    }

    fn converse(
        &mut self,
        mut connection: Connection,
        requests: &[Cmd],
        limit: Limit<'_>,
    ) -> Result<Vec<Value>, NoReply> {
        match self.exchange(&mut connection, requests, self.within(limit)) {
            Ok(replies) => {
                if let Err(fault) = self.topology.confirm(&connection.peer, self.within(limit)) {
                    match fault {
                        // What was carried out has to be undone there, and soon: without asking again for the master.
                        Fault::Cancelled => self.idle.push(connection),
                        _ => self.idle.clear(),
                    }
                    return Err(NoReply { fault, sent: true });
                }
                self.has_met = true;
                self.idle.push(connection);
                self.note_lost_listening();
                if let Listening::Agreed { on, .. } = self.listening
                    && self.answered_by() == Some(on)
                {
                    self.listening = Listening::Works;
                }
                Ok(replies)
            }
            Err(mut no_reply) => {
                self.topology.lost(&connection.peer);
                // With TLS 1.3, a server refuses the certificate of a client after the handshake.
                if let Fault::Known { kind: ErrorKind::Untrusted, .. } = no_reply.fault {
                    no_reply.fault = self.judged(no_reply.fault);
                }
                if no_reply.sent && matches!(no_reply.fault, Fault::TimeUp | Fault::Cancelled) {
                    // Drops the one that was given up the longest ago.
                    self.spent.truncate(MOST_SPENT - 1);
                    self.spent.insert(0, connection);
                }
                Err(no_reply)
            }
        }
    }

    /// Sends requests and receives their replies. If this is one of several servers, it tells its identity ahead of its
    /// first reply, in the same round trip.
    fn exchange(&self, connection: &mut Connection, requests: &[Cmd], limit: Limit<'_>) -> Result<Vec<Value>, NoReply> {
        let Some(distinct) = self.distinct.as_ref().filter(|_| !connection.is_introduced) else {
            return connection.converse(requests, limit);
        };
        let all: Vec<Cmd> = [Distinct::question()].into_iter().chain(requests.iter().cloned()).collect();
        let mut replies = connection.converse(&all, limit)?.into_iter();
        let identity = replies.next().unwrap_or(Value::Nil);
        // The server has executed the other requests all the same.
        distinct.record(&connection.peer, &identity).map_err(|fault| NoReply { fault, sent: true })?;
        connection.is_introduced = true;
        Ok(replies.collect())
    }

    /// Sends requests behind each one that was given up, so that the server cannot execute them before it. Does not
    /// wait for their replies, and for a server that is executing what was given up no longer than until `linger`. More
    /// may be sent behind them.
    pub fn follow(&mut self, requests: &[Cmd], limit: Limit<'_>, linger: Moment) {
        let packed = connection::packed(requests);
        let linger = linger.min(Moment::now() + LINGER);
        // If sending fails, the request to undo cannot be answered either, and what it has set expires.
        self.spent.retain_mut(|spent| spent.send_behind(&packed, limit, linger).is_ok());
    }

    /// Does the same for the last time for the lock with this key. What is sent for another lock goes behind the same
    /// requests: one of them may have been for that.
    pub fn send_behind(&mut self, key: &str, requests: &[Cmd], limit: Limit<'_>) {
        let packed = connection::packed(requests);
        for undone in self.undone.iter_mut().filter(|undone| !undone.has(key)) {
            // If sending fails, so has whatever the server was to do later.
            let _ = undone.connection.send(&packed, limit);
            undone.keys.push(key.to_owned());
        }
        self.follow(requests, limit, Moment::NEVER);
        let spent = std::mem::take(&mut self.spent);
        self.keep_open(spent, &[key]);
    }

    /// Keeps connections open behind whose requests something was sent for the locks with these keys, and may be sent for
    /// others.
    fn keep_open(&mut self, connections: Vec<Connection>, keys: &[&str]) {
        let since = Moment::now();
        let keys = || keys.iter().copied().map(str::to_owned).collect();
        let undone = connections.into_iter().map(|connection| Undone { since, connection, keys: keys() });
        self.undone.splice(0..0, undone);
        self.undone.truncate(MOST_SPENT);
    }

    /// Returns whether a server may be asked to tell things unasked.
    pub fn may_listen(&self) -> bool {
        self.listening.may_be_tried()
    }

    /// Takes notice if the connection is lost on which a server has agreed to tell things unasked, and has not answered yet.
    fn note_lost_listening(&mut self) {
        if let Listening::Agreed { on, .. } = self.listening
            && !self.has(on)
        {
            self.listening = self.listening.failed();
        }
    }

    /// Asks the server that replied last to tell what concerns a lock, on that connection. Returns what it tells; nothing
    /// if there is no connection, it was asked already, or it is not to be asked.
    ///
    /// # Errors
    /// If the server does not answer. The connection is of no use then, but to send a release.
    pub fn ask_for(&mut self, wanted: Wanted, limit: Limit<'_>) -> Result<Option<Accepted>, Fault> {
        let hears_of = |connection: &Connection| connection.hears_of(&wanted.key);
        if self.idle.last().is_none_or(hears_of) {
            return Ok(None);
        }
        let agrees = |accepted: &Accepted| *accepted != Accepted::default();
        let said = self.listen(limit, |connection, limit| connection.ask_for(wanted, limit), agrees);
        said.map_err(|(fault, connection)| {
            if matches!(fault, Fault::TimeUp | Fault::Cancelled) {
                self.keep_open(vec![*connection], &[]);
            }
            fault
        })
    }

    /// Has the server that replied last, or was reached, wake a waiter on that connection.
    ///
    /// # Errors
    /// If the server does not answer. The connection is lost then.
    pub fn subscribe(&mut self, channels: &Channels, limit: Limit<'_>) -> Result<Subscribed, Fault> {
        let agrees = |subscribed: &Subscribed| !matches!(subscribed, Subscribed::NotHere);
        let before = self.listening;
        let said = self.listen(limit, |connection, limit| connection.subscribe(channels, limit), agrees);
        // While the connection is open, whoever releases the lock counts on this waiter to hear of that.
        let subscribed = said.map_err(|(fault, _closed)| fault);
        if let Err(Fault::TimeUp) = subscribed {
            // A waiter has less time than a holder, who may ask again: the server may only be slow.
            self.listening = before;
        }
        Ok(subscribed?.unwrap_or(Subscribed::NotHere))
    }

    /// Asks a server to tell things unasked, unless that is not to be tried, and keeps whether it does.
    ///
    /// # Errors
    /// If the server does not answer, with the connection, whose replies cannot be told apart any more.
    fn listen<T>(
        &mut self,
        limit: Limit<'_>,
        ask: impl FnOnce(&mut Connection, Limit<'_>) -> Result<T, Fault>,
        agrees: impl FnOnce(&T) -> bool,
    ) -> Result<Option<T>, (Fault, Box<Connection>)> {
        self.note_lost_listening();
        let limit = self.within(limit);
        let Some(mut connection) = self.idle.pop_if(|_| self.listening.may_be_tried()) else { return Ok(None) };
        let said = ask(&mut connection, limit);
        self.listening = match &said {
            Ok(said) if agrees(said) => self.listening.agreed(connection.number),
            Ok(_) => Listening::Off(Moment::NEVER),
            Err(Fault::Cancelled) => self.listening,
            Err(_) => self.listening.failed(),
        };
        match said {
            Ok(said) => {
                self.idle.push(connection);
                Ok(Some(said))
            }
            Err(fault) => Err((fault, Box::new(connection))),
        }
    }

    /// Returns the idle connection of this number, if it is still there.
    pub fn idle_one(&mut self, number: u64) -> Option<&mut Connection> {
        self.idle.iter_mut().find(|connection| connection.number == number)
    }

    /// Closes it.
    pub fn hang_up(&mut self, number: u64) {
        self.idle.retain(|connection| connection.number != number);
    }

    /// Does the same as [`Client::ask_for`], at a server that is connected to if there is no connection.
    pub fn meet_and_ask_for(&mut self, wanted: Wanted, limit: Limit<'_>) -> Result<Accepted, Fault> {
        self.reach(limit)?;
        self.ask_for(wanted, limit).map(Option::unwrap_or_default)
    }

    /// Forgets the changes of a key that the server has told: the last reply knows of them.
    pub fn changes_are_known(&mut self, key: &str) {
        if let Some(connection) = self.idle.last_mut() {
            connection.changes_are_known(key);
        }
    }

    /// Returns what the servers have told unasked that are asked to, or that replied last.
    pub fn news(&mut self) -> News {
        let mut news = News::default();
        for at in (0..self.idle.len()).rev().filter(|at| self.may_have_news(*at)).collect::<Vec<_>>() {
            match self.idle[at].news() {
                Ok(keys) => news.keys.extend(keys),
                Err(_) => {
                    self.idle.remove(at);
                    news.is_disconnected = true;
                }
            }
        }
        news
    }

    /// Returns descriptors one of which is readable when [`Client::news`] may have something.
    pub fn news_fds(&self) -> Vec<BorrowedFd<'_>> {
        (0..self.idle.len()).filter(|at| self.may_have_news(*at)).map(|at| self.idle[at].fd()).collect()
    }

    /// Returns whether the end of an idle connection is news, or something may be told on it.
    fn may_have_news(&self, at: usize) -> bool {
        at + 1 == self.idle.len() || self.idle[at].has_pushes()
    }
}

impl Peer for Client {
    fn login(&self) -> Option<&Login> {
        self.topology.session().login.as_ref()
    }
}

/// The topology and, if it may choose another server each time, the last server. Without the password.
impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.with {
            Some(address) => write!(f, "{} ({address})", self.topology),
            None => self.topology.fmt(f),
        }
    }
}
