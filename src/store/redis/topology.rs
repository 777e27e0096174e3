//! Chooses the server for a key, in each arrangement of servers, and learns from replies that another is right. Knows
//! nothing of locks.

mod cluster;
mod sentinel;

use std::fmt;

use redis::Value;

pub use cluster::Cluster;
pub use sentinel::PORT as SENTINEL_PORT;
pub use sentinel::Sentinels;

use super::connection::Connection;
use super::endpoint::{Address, Endpoint, Session};
use super::fault::Fault;
use super::reply;
use crate::clock::Moment;
use crate::error::ErrorKind;
use crate::wait::Limit;

/// An arrangement of servers, and the choice among them.
#[derive(Clone)]
pub enum Topology {
    /// One server.
    Single(Endpoint),
    /// The master that Sentinel names.
    Sentinel(Sentinels),
    /// The node of a cluster that has the key's slot.
    Cluster(Cluster),
}

/// What a reply says about the choice of the server.
pub enum Redirect {
    /// The reply is an answer.
    Answer,
    /// An error of a server that is not, or not any more, the right one: the next request may go to another.
    Elsewhere,
    /// Nothing was done: another server is the right one from now on.
    Moved,
    /// Nothing was done: another server is the right one for this request.
    Ask(Endpoint),
    /// Nothing was done: another server is the right one, and this is no address of one.
    Nowhere(String),
}

impl From<Endpoint> for Topology {
    fn from(endpoint: Endpoint) -> Topology {
        Topology::Single(endpoint)
    }
}

impl Topology {
    /// Returns a connection to the chosen server: an idle one, or a new one.
    pub fn connection(&mut self, idle: &mut Vec<Connection>, limit: Limit<'_>) -> Result<Connection, Fault> {
        match self {
            Topology::Single(endpoint) => match take(idle, |_| true) {
                Some(connection) => Ok(connection),
                None => Connection::open(endpoint, limit),
            },
            Topology::Sentinel(sentinels) => match take(idle, |_| true) {
                Some(connection) => Ok(connection),
                None => sentinels.open_master(limit),
            },
            Topology::Cluster(cluster) => cluster.connection(idle, limit),
        }
    }

    /// Returns a connection to the server of a redirect for one request.
    pub fn link_there(
        &mut self,
        there: &Endpoint,
        idle: &mut Vec<Connection>,
        limit: Limit<'_>,
    ) -> Result<Connection, Fault> {
        match self {
            Topology::Single(_) | Topology::Sentinel(_) => Connection::open(there, limit),
            Topology::Cluster(cluster) => cluster.link_to(&there.address, idle, limit),
        }
    }

    /// Chooses the server that has this key for the next requests.
    pub fn turn_to(&mut self, key: &str) {
        if let Topology::Cluster(cluster) = self {
            cluster.turn_to(key);
        }
    }

    /// Learns from a server's reply.
    pub fn learn(&mut self, from: &Endpoint, reply: &Value) -> Redirect {
        let Value::ServerError(error) = reply else { return Redirect::Answer };
        match (self, error.code()) {
            (Topology::Cluster(cluster), code) => cluster.learn(from, code, error.details().unwrap_or_default()),
            // Another server may have its name, or be the sentinels' master, at the next connect.
            (_, "READONLY" | "MASTERDOWN") => Redirect::Elsewhere,
            _ => Redirect::Answer,
        }
    }

    /// Asks whether the server that has replied is the right one, if others know.
    ///
    /// # Errors
    /// If it is not: the reply is of no value.
    pub fn confirm(&mut self, peer: &Endpoint, limit: Limit<'_>) -> Result<(), Fault> {
        match self {
            Topology::Sentinel(sentinels) => sentinels.confirm(&peer.address, limit),
            Topology::Single(_) | Topology::Cluster(_) => Ok(()),
        }
    }

    /// Records that an exchange with a server failed.
    pub fn lost(&mut self, peer: &Endpoint) {
        if let Topology::Cluster(cluster) = self {
            cluster.lost(peer);
        }
    }

    /// Returns all servers that have keys, each with its own; none if there is only one server.
    pub fn shards(&mut self, idle: &mut Vec<Connection>, limit: Limit<'_>) -> Result<Vec<Endpoint>, Fault> {
        match self {
            Topology::Single(_) | Topology::Sentinel(_) => Ok(Vec::new()),
            Topology::Cluster(cluster) => cluster.masters(idle, limit),
        }
    }

    /// Chooses this server for the next requests.
    pub fn turn_to_shard(&mut self, shard: &Endpoint) {
        if let Topology::Cluster(cluster) = self {
            cluster.turn_to_node(shard);
        }
    }

    /// Returns how to log in.
    pub fn session(&self) -> &Session {
        match self {
            Topology::Single(endpoint) => &endpoint.session,
            Topology::Sentinel(sentinels) => sentinels.session(),
            Topology::Cluster(cluster) => cluster.session(),
        }
    }

    /// Returns whether Sentinel names the server.
    pub fn is_named(&self) -> bool {
        matches!(self, Topology::Sentinel(_))
    }

    /// Returns whether each request may go to another server.
    pub fn may_turn(&self) -> bool {
        !matches!(self, Topology::Single(_))
    }
}

/// Takes the last idle connection that fits, if it is of use. One that the server has closed meanwhile is not.
fn take(idle: &mut Vec<Connection>, fits: impl Fn(&Connection) -> bool) -> Option<Connection> {
    let at = idle.iter().rposition(fits)?;
    let mut connection = idle.remove(at);
    connection.is_of_use().then_some(connection)
}

/// The failures of several servers, none of which gave an answer.
struct Failures {
    kind: ErrorKind,
    /// The servers that failed, each with its error.
    said: Vec<String>,
}

impl Default for Failures {
    fn default() -> Failures {
        Failures { kind: ErrorKind::Unreachable, said: Vec::new() }
    }
}

impl Failures {
    fn add(&mut self, server: &Address, fault: Fault, asked: Moment) {
        let (kind, cause, _) = reply::described(fault, asked.elapsed());
        if kind != ErrorKind::Unreachable {
            self.kind = kind;
        }
        self.said.push(format!("{server}: {cause}"));
    }
}

/// Returns the share of one of `left` servers that are still to be asked: one that hangs leaves enough time for the
/// others, and for what comes after.
fn share(limit: Limit<'_>, left: usize) -> Limit<'_> {
    limit.no_later_than(Moment::now() + limit.until.remaining() / u32::try_from(left + 1).unwrap_or(u32::MAX))
}

/// Asks several servers in turn, and returns the index and the answer of the first that gives one.
///
/// # Errors
/// If the wait is cancelled.
fn first_answer<T>(
    servers: &[Address],
    limit: Limit<'_>,
    mut ask: impl FnMut(&Address, Limit<'_>) -> Result<Option<T>, Fault>,
) -> Result<Result<(usize, T), Failures>, Fault> {
    let mut failures = Failures::default();
    for (at, server) in servers.iter().enumerate() {
        let asked = Moment::now();
        match ask(server, share(limit, servers.len() - at)) {
            Ok(Some(answer)) => return Ok(Ok((at, answer))),
            Ok(None) => {}
            Err(Fault::Cancelled) => return Err(Fault::Cancelled),
            Err(fault) => failures.add(server, fault, asked),
        }
    }
    Ok(Err(failures))
}

/// Adds the server's name to a fault: the user did not name that server, others did.
fn with_server(fault: Fault, server: &str, asked: Moment) -> Fault {
    if let Fault::Cancelled = fault {
        return fault;
    }
    let (kind, cause, hint) = reply::described(fault, asked.elapsed());
    Fault::Known { kind, cause: format!("{server}: {cause}"), hint }
}

/// Without the password.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Topology::Single(endpoint) => endpoint.fmt(f),
            Topology::Sentinel(sentinels) => sentinels.fmt(f),
            Topology::Cluster(cluster) => cluster.fmt(f),
        }
    }
}
