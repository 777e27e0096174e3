//! Which server is to be asked about a key, however the servers are arranged; and what to do when it turns out
//! to be another. Knows nothing of locks.

mod cluster;
mod sentinel;

use std::fmt;

use redis::Value;

pub use cluster::Cluster;
pub use sentinel::PORT as SENTINEL_PORT;
pub use sentinel::Sentinel;

use super::connection::Connection;
use super::endpoint::{Address, Endpoint, Session};
use super::fault::Fault;
use super::reply;
use crate::clock::Moment;
use crate::error::ErrorKind;
use crate::wait::Limit;

/// The way to the server that is to be asked.
#[derive(Clone)]
pub enum Topology {
    /// Always the same.
    Single(Endpoint),
    /// The master that Sentinel names.
    Sentinel(Sentinel),
    /// The node of a cluster that has the key's slot.
    Cluster(Cluster),
}

/// What a reply tells of the way it came.
pub enum Redirect {
    /// It is an answer.
    Answer,
    /// It is one of a server that is not, or not any more, the one to ask: next time another may be.
    Elsewhere,
    /// Nothing was done: somebody else is to be asked, from now on.
    Moved,
    /// Nothing was done: somebody else is to be asked, this time.
    Ask(Endpoint),
}

impl From<Endpoint> for Topology {
    fn from(endpoint: Endpoint) -> Topology {
        Topology::Single(endpoint)
    }
}

impl Topology {
    /// A connection to the server that is to be asked: one of those that lie idle, or a new one.
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

    /// A connection to a server that we are sent to for this time.
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

    /// What is asked next is about this key.
    pub fn turn_to(&mut self, key: &str) {
        if let Topology::Cluster(cluster) = self {
            cluster.turn_to(key);
        }
    }

    /// Takes note of what a server said.
    pub fn hear(&mut self, from: &Endpoint, reply: &Value) -> Redirect {
        let Value::ServerError(error) = reply else { return Redirect::Answer };
        match (self, error.code()) {
            (Topology::Cluster(cluster), code) => cluster.hear(from, code, error.details().unwrap_or_default()),
            // Another may have its name, or be the sentinels' master, when it is connected to next.
            (_, "READONLY" | "MASTERDOWN") => Redirect::Elsewhere,
            _ => Redirect::Answer,
        }
    }

    /// Takes note that a server could not be talked to.
    pub fn lost(&mut self, peer: &Endpoint) {
        if let Topology::Cluster(cluster) = self {
            cluster.lost(peer);
        }
    }

    /// All servers that have keys, each with its own; none where there is only one to ask.
    pub fn shards(&mut self, idle: &mut Vec<Connection>, limit: Limit<'_>) -> Result<Vec<Endpoint>, Fault> {
        match self {
            Topology::Single(_) | Topology::Sentinel(_) => Ok(Vec::new()),
            Topology::Cluster(cluster) => cluster.masters(idle, limit),
        }
    }

    /// What is asked next is asked of this server.
    pub fn turn_to_shard(&mut self, shard: &Endpoint) {
        if let Topology::Cluster(cluster) = self {
            cluster.turn_to_node(shard);
        }
    }

    /// How we are let in.
    pub fn session(&self) -> &Session {
        match self {
            Topology::Single(endpoint) => &endpoint.session,
            Topology::Sentinel(sentinels) => sentinels.session(),
            Topology::Cluster(cluster) => cluster.session(),
        }
    }

    /// Whether the server that is asked may be another one each time.
    pub fn may_turn(&self) -> bool {
        !matches!(self, Topology::Single(_))
    }
}

/// One of the idle connections, if it is of use. One that the server has closed meanwhile is not.
fn take(idle: &mut Vec<Connection>, fits: impl Fn(&Connection) -> bool) -> Option<Connection> {
    let at = idle.iter().rposition(fits)?;
    Some(idle.remove(at)).filter(Connection::is_quiet)
}

/// What several servers said, none of which told what it was asked.
struct Silence {
    kind: ErrorKind,
    /// Of those that failed: each, and how.
    said: Vec<String>,
}

/// The first of several servers that tells what it is asked, and which of them it was. Each is given its share of
/// the time, so that one that hangs leaves enough for the others and for what comes after.
///
/// # Errors
/// If nobody wants to know any more.
fn first_to_tell<T>(
    servers: &[Address],
    limit: Limit<'_>,
    mut ask: impl FnMut(&Address, Limit<'_>) -> Result<Option<T>, Fault>,
) -> Result<Result<(usize, T), Silence>, Fault> {
    let mut silence = Silence { kind: ErrorKind::Unreachable, said: Vec::new() };
    for (at, server) in servers.iter().enumerate() {
        let share = limit.until.remaining() / u32::try_from(servers.len() - at + 1).unwrap_or(u32::MAX);
        let asked = Moment::now();
        match ask(server, limit.no_later_than(asked + share)) {
            Ok(Some(told)) => return Ok(Ok((at, told))),
            Ok(None) => {}
            Err(Fault::Cancelled) => return Err(Fault::Cancelled),
            Err(fault) => {
                let (kind, cause, _) = reply::told(fault, asked.elapsed());
                if kind != ErrorKind::Unreachable {
                    silence.kind = kind;
                }
                silence.said.push(format!("{server}: {cause}"));
            }
        }
    }
    Ok(Err(silence))
}

/// A fault of a server that we were sent to by others, with its name.
fn befell(fault: Fault, whom: &str, asked: Moment) -> Fault {
    if let Fault::Cancelled = fault {
        return fault;
    }
    let (kind, cause, hint) = reply::told(fault, asked.elapsed());
    Fault::Known { kind, cause: format!("{whom}: {cause}"), hint }
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
