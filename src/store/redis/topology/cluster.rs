//! Finds the node of a Redis Cluster that has a key's slot (Redis Cluster specification): asks any node that answers,
//! and follows its redirects.

use std::collections::HashSet;
use std::fmt;

use redis::{Value, cmd};

use super::{Redirect, first_answer, take, with_server};
use crate::clock::Moment;
use crate::error::ErrorKind;
use crate::store::redis::connection::Connection;
use crate::store::redis::endpoint::{Address, Endpoint, Session};
use crate::store::redis::fault::Fault;
use crate::store::redis::reply;
use crate::wait::Limit;
use crate::{log, text};

const SLOTS: u16 = 16384;

#[derive(Clone)]
pub struct Cluster {
    /// As the URL lists them.
    seeds: Vec<Address>,
    /// All known nodes, the one most likely to answer first.
    nodes: Vec<Address>,
    session: Session,
    /// Ranges of slots and their nodes, the latest report first.
    slots: Vec<(u16, u16, Address)>,
    destination: Destination,
}

/// The destination of the next request.
#[derive(Clone)]
enum Destination {
    Slot(u16),
    Node(Address),
}

impl Cluster {
    pub fn new(seeds: Vec<Address>, session: Session) -> Cluster {
        Cluster { nodes: seeds.clone(), seeds, session, slots: Vec::new(), destination: Destination::Slot(0) }
    }

    pub fn session(&self) -> &Session {
        &self.session
    }

    pub fn turn_to(&mut self, key: &str) {
        self.destination = Destination::Slot(slot(key.as_bytes()));
    }

    pub fn turn_to_node(&mut self, node: &Endpoint) {
        self.destination = Destination::Node(node.address.clone());
    }

    pub fn connection(&mut self, idle: &mut Vec<Connection>, limit: Limit<'_>) -> Result<Connection, Fault> {
        let node = match &self.destination {
            Destination::Node(node) => Some(node.clone()),
            Destination::Slot(slot) => self.owner(*slot).cloned(),
        };
        if let Some(node) = node {
            return self.link_to(&node, idle, limit);
        }
        let connection = self.any(idle, limit)?;
        // The new connection may have fetched the table of slots, which names the owner.
        let owner = match &self.destination {
            Destination::Slot(slot) => self.owner(*slot).filter(|owner| **owner != connection.peer.address).cloned(),
            Destination::Node(_) => None,
        };
        match owner {
            None => Ok(connection),
            Some(owner) => {
                idle.push(connection);
                self.link_to(&owner, idle, limit)
            }
        }
    }

    fn owner(&self, slot: u16) -> Option<&Address> {
        self.slots.iter().find(|(from, to, _)| (*from..=*to).contains(&slot)).map(|(.., node)| node)
    }

    pub fn link_to(
        &mut self,
        node: &Address,
        idle: &mut Vec<Connection>,
        limit: Limit<'_>,
    ) -> Result<Connection, Fault> {
        if let Some(connection) = take(idle, |connection| connection.peer.address == *node) {
            return Ok(connection);
        }
        let endpoint = Endpoint { address: node.clone(), session: self.session.clone() };
        let asked = Moment::now();
        Connection::open(&endpoint, limit).map_err(|fault| {
            self.lost(&endpoint);
            with_server(fault, &format!("its node {node}"), asked)
        })
    }

    /// Returns the first node that the URL names.
    pub fn seed(&self) -> Option<Endpoint> {
        let address = self.seeds.first()?.clone();
        Some(Endpoint { address, session: self.session.clone() })
    }

    /// Returns a connection to any node: it can redirect.
    fn any(&mut self, idle: &mut Vec<Connection>, limit: Limit<'_>) -> Result<Connection, Fault> {
        match take(idle, |_| true) {
            Some(connection) => Ok(connection),
            None => self.meet(limit),
        }
    }

    /// Connects to the first node that answers, and has fetched the table of slots from it.
    fn meet(&mut self, limit: Limit<'_>) -> Result<Connection, Fault> {
        let nodes = self.nodes.clone();
        let met = first_answer(&nodes, limit, |node, share| {
            let endpoint = Endpoint { address: node.clone(), session: self.session.clone() };
            let mut connection = Connection::open(&endpoint, share)?;
            self.fetch_slots(&mut connection, share)?;
            Ok(Some(connection))
        })?;
        match met {
            Ok((at, connection)) => {
                self.prefer(&nodes[at]);
                Ok(connection)
            }
            Err(failures) => Err(Fault::Known {
                kind: failures.kind,
                cause: format!("no node of it answers: {}", failures.said.join("; ")),
                hint: "check that the servers run and the addresses are right",
            }),
        }
    }

    fn prefer(&mut self, node: &Address) {
        self.nodes.retain(|known| known != node);
        self.nodes.insert(0, node.clone());
    }

    /// Learns from an error which node is the right one.
    pub fn learn(&mut self, from: &Endpoint, code: &str, details: &str) -> Redirect {
        match (code, redirection(from, details)) {
            ("MOVED" | "ASK", None) => Redirect::Nowhere(details.into()),
            ("MOVED", Some((slot, node))) => {
                log::trace(format_args!("{} sends us to {node}", from.address));
                self.slots.retain(|(first, last, _)| (*first, *last) != (slot, slot));
                self.slots.insert(0, (slot, slot, node.clone()));
                if !self.nodes.contains(&node) {
                    self.nodes.push(node);
                }
                Redirect::Moved
            }
            ("ASK", Some((_, node))) => Redirect::Ask(Endpoint { address: node, session: self.session.clone() }),
            // The node's view of the cluster may be out of date, or it may be cut off.
            ("CLUSTERDOWN" | "READONLY" | "MASTERDOWN", _) => {
                self.lost(from);
                Redirect::Elsewhere
            }
            _ => Redirect::Answer,
        }
    }

    /// Forgets the slots of a node that does not answer, and asks it last from now on.
    pub fn lost(&mut self, node: &Endpoint) {
        self.slots.retain(|(.., known)| *known != node.address);
        if let Some(at) = self.nodes.iter().position(|known| *known == node.address) {
            let node = self.nodes.remove(at);
            self.nodes.push(node);
        }
    }

    /// Returns all nodes that have slots.
    pub fn masters(&mut self, idle: &mut Vec<Connection>, limit: Limit<'_>) -> Result<Vec<Endpoint>, Fault> {
        let connection = match take(idle, |_| true) {
            Some(mut connection) => {
                self.fetch_slots(&mut connection, limit)?;
                connection
            }
            None => self.meet(limit)?,
        };
        idle.push(connection);
        let covered: usize = self.slots.iter().map(|(from, to, _)| usize::from(to.saturating_sub(*from)) + 1).sum();
        if covered < usize::from(SLOTS) {
            return Err(Fault::Known {
                kind: ErrorKind::Unavailable,
                cause: format!("{} of its {SLOTS} slots are not assigned", usize::from(SLOTS) - covered),
                hint: "see CLUSTER INFO there",
            });
        }
        let masters = each_once(self.slots.iter().map(|(.., node)| node));
        Ok(masters.into_iter().map(|address| Endpoint { address, session: self.session.clone() }).collect())
    }

    /// Fetches the table of slots from a node (Redis command CLUSTER SLOTS). Rejects a server outside a cluster, which
    /// would take every key for its own: with two of them as seeds, each could grant the same lock.
    fn fetch_slots(&mut self, connection: &mut Connection, limit: Limit<'_>) -> Result<(), Fault> {
        let mut question = cmd("CLUSTER");
        question.arg("SLOTS");
        let said = connection.converse(&[question], limit)?.pop().unwrap_or(Value::Nil);
        let ranges = match &said {
            Value::Array(ranges) => ranges,
            Value::ServerError(error) if error.details().is_some_and(|said| said.contains("support disabled")) => {
                return Err(Fault::Known {
                    kind: ErrorKind::Misconfigured,
                    cause: "it is no node of a cluster".into(),
                    hint: "write redis:// for a server of its own",
                });
            }
            Value::ServerError(_) => return Err(reply::refusal(&said, self.session.login.as_ref())),
            _ => return Err(Fault::Garbled("it is no node of a cluster".into())),
        };
        let slots = table(&connection.peer, ranges);
        self.slots = slots.ok_or_else(|| Fault::Garbled("unexpected reply to CLUSTER SLOTS".into()))?;
        self.nodes = each_once(self.nodes.iter().chain(self.slots.iter().map(|(.., node)| node)));
        Ok(())
    }
}

/// Parses `SLOT HOST:PORT` of MOVED and ASK. An empty host means that of the node that sent it.
fn redirection(from: &Endpoint, details: &str) -> Option<(u16, Address)> {
    let mut words = details.split_whitespace();
    let slot = words.next()?.parse().ok().filter(|slot| *slot < SLOTS)?;
    let (host, port) = words.next()?.rsplit_once(':')?;
    Some((slot, node(from, host, port.parse().ok()?)?))
}

/// Returns the addresses in order, each where it occurs first.
fn each_once<'a>(addresses: impl Iterator<Item = &'a Address>) -> Vec<Address> {
    let mut known = HashSet::new();
    addresses.filter(|address| known.insert(*address)).cloned().collect()
}

/// Parses the table of slots, which has no more ranges than there are slots.
fn table(from: &Endpoint, ranges: &[Value]) -> Option<Vec<(u16, u16, Address)>> {
    if ranges.len() > usize::from(SLOTS) {
        return None;
    }
    ranges.iter().map(|range| owned(from, range)).collect()
}

/// Parses `from, to, [host, port, ...], ...`: a range of slots and its master.
fn owned(from: &Endpoint, range: &Value) -> Option<(u16, u16, Address)> {
    let Value::Array(range) = range else { return None };
    let [first, last, Value::Array(master), ..] = range.as_slice() else { return None };
    let number = |value| reply::integer(value).and_then(|n| u16::try_from(n).ok());
    let [host, port, ..] = master.as_slice() else { return None };
    let host = reply::text(host).unwrap_or_default().into_raw();
    Some((number(first)?, number(last)?, node(from, host, number(port)?)?))
}

fn node(from: &Endpoint, host: &str, port: u16) -> Option<Address> {
    match (host, &from.address) {
        ("" | "?", Address::Tcp { host, .. }) => Some(Address::Tcp { host: host.clone(), port }),
        ("" | "?", Address::Unix(_)) => None,
        _ if host.contains(text::may_fool) => None,
        _ => Some(Address::Tcp { host: host.into(), port }),
    }
}

/// Returns the slot of a key: of the text between its first `{` and the next `}`, if there is any, and else of all of
/// it.
fn slot(key: &[u8]) -> u16 {
    let tag = || {
        let open = key.iter().position(|byte| *byte == b'{')? + 1;
        let length = key[open..].iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &key[open..open + length])
    };
    crc16(tag().unwrap_or(key)) % SLOTS
}

/// Returns the checksum of the cluster specification, CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    let shifted = |sum: u16, _| (sum << 1) ^ if sum & 0x8000 == 0 { 0 } else { 0x1021 };
    bytes.iter().fold(0, |sum, byte| (0..u8::BITS).fold(sum ^ (u16::from(*byte) << 8), shifted))
}

/// Without the password.
impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seeds: Vec<_> = self.seeds.iter().map(ToString::to_string).collect();
        write!(f, "{}+cluster://{}{}", self.session.scheme(), self.session.user(), seeds.join(","))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::time::{ClockId, clock_gettime};

    use super::*;

    fn at(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.into(), port }
    }

    #[test]
    fn a_key_and_what_belongs_to_it_are_in_one_slot() {
        // As returned by CLUSTER KEYSLOT.
        assert_eq!(slot(b"123456789"), 12739);
        assert_eq!(slot(b"lock:deploy"), slot(b"{lock:deploy}:queue"));
        assert_eq!(slot(b"{}x"), crc16(b"{}x") % SLOTS);
        assert_eq!(slot(b"a{b"), crc16(b"a{b") % SLOTS);
    }

    #[test]
    fn a_redirection_to_nonsense_is_reported() {
        let from = Endpoint { address: at("here", 7000), session: Session::default() };
        let mut cluster = Cluster::new(vec![at("here", 7000)], Session::default());
        for code in ["MOVED", "ASK"] {
            assert!(matches!(cluster.learn(&from, code, "1 a\u{1b}[2J:1"), Redirect::Nowhere(_)));
        }
        assert!(matches!(cluster.learn(&from, "MOVED", "1 there:1"), Redirect::Moved));
    }

    fn hosts(count: u16) -> Vec<Address> {
        (0..count).map(|number| at(&format!("host-{number}"), 7000)).collect()
    }

    #[test]
    fn many_nodes_cost_as_much_more_as_they_are_more() {
        let cost = |count: u16| {
            let (all, mut least) = (hosts(count), Duration::MAX);
            for _ in 0..5 {
                let began = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
                assert_eq!(each_once(all.iter().chain(&all)).len(), all.len());
                let ended = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
                least = least.min(Duration::from(ended - began));
            }
            least
        };
        // Sixteen times as many: if each were compared with each, it would be 256 times as much.
        let (few, many) = (cost(1000), cost(16000));
        assert!(many < few * 64, "{few:?}, {many:?}");
    }

    #[test]
    fn a_table_with_more_ranges_than_slots_is_none() {
        let from = Endpoint { address: at("here", 7000), session: Session::default() };
        let range = |number: u16| {
            let master = vec![Value::BulkString(format!("host-{number}").into_bytes()), Value::Int(7000)];
            Value::Array(vec![Value::Int(number.into()), Value::Int(number.into()), Value::Array(master)])
        };
        let ranges: Vec<Value> = (0..=SLOTS).map(range).collect();
        assert!(table(&from, &ranges).is_none());
        assert_eq!(table(&from, &ranges[1..]).map(|slots| slots.len()), Some(usize::from(SLOTS)));
    }

    #[test]
    fn a_redirection_is_followed_to_any_kind_of_host_and_to_no_nonsense() {
        let from = Endpoint { address: at("here", 7000), session: Session::default() };
        assert_eq!(redirection(&from, "3999 127.0.0.1:6381"), Some((3999, at("127.0.0.1", 6381))));
        assert_eq!(redirection(&from, "3999 ::1:6381"), Some((3999, at("::1", 6381))));
        assert_eq!(redirection(&from, "3999 :6381"), Some((3999, at("here", 6381))));
        for nonsense in ["", "3999", "16384 h:1", "x h:1", "1 h:x", "1 h", "1 a\u{1b}[2J:1"] {
            assert_eq!(redirection(&from, nonsense), None, "{nonsense}");
        }
    }
}
