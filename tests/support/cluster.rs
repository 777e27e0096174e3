//! A Redis Cluster: three masters that share the slots, and optionally a replica of each.

use std::path::PathBuf;

use redis::FromRedisValue;

use super::certificates::certificates;
use super::lasting::Reusable;
use super::ports::steady_port;
use super::redis::Litter;
use super::replication::replicated;
use super::secure::tls_options;
use super::{Authority, Nxlock, Redis, eventually, eventually_some};

/// The slots of each master.
const SLOTS: [&str; MASTERS] = ["0-5460", "5461-10922", "10923-16383"];
const MASTERS: usize = 3;

pub struct Cluster {
    /// The initial masters, then the replica of each.
    pub nodes: Vec<Redis>,
    secure: bool,
    /// The masters' keys are checked at the end.
    pub inspected: bool,
}

impl Cluster {
    pub fn of_masters() -> Cluster {
        Cluster::start(false, false)
    }

    pub fn with_replicas() -> Cluster {
        Cluster::start(true, false)
    }

    /// Starts masters that use TLS, also among themselves.
    pub fn secure() -> Cluster {
        Cluster::start(false, true)
    }

    fn start(replicas: bool, secure: bool) -> Cluster {
        let n = if replicas { 2 * MASTERS } else { MASTERS };
        let nodes = eventually_some("all nodes have their ports", || {
            let ports: Vec<u16> = (0..n).map(|_| steady_port()).collect();
            (0..n).map(|who| node(&ports, who, secure)).collect::<Option<Vec<Redis>>>()
        });
        let cluster = Cluster { nodes, secure, inspected: true };
        cluster.is_complete();
        cluster
    }

    /// Waits until every node sees all others as alive, and the replicas are in sync.
    pub fn is_complete(&self) {
        for node in &self.nodes {
            eventually("the cluster is up", || {
                let info = node.try_ask::<String>(&["CLUSTER", "INFO"]).unwrap_or_default();
                let seen = node.try_ask::<String>(&["CLUSTER", "NODES"]).unwrap_or_default();
                let connected = seen.lines().filter(|line| line.contains(" connected") && !line.contains("fail"));
                info.contains("cluster_state:ok") && connected.count() == self.nodes.len()
            });
            eventually("the replica is in step", || node.is_master() || node.is_in_step());
        }
    }

    pub fn hosts(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        hosts.join(",")
    }

    /// Returns the index of the master that serves a key.
    pub fn at(&self, key: &str) -> usize {
        eventually_some("somebody serves the key", || {
            let up = |node: &Redis| !node.is_hanging() && node.is_master();
            self.nodes.iter().position(|node| up(node) && node.try_ask::<i64>(&["EXISTS", key]).is_ok())
        })
    }

    pub fn master_of(&self, key: &str) -> &Redis {
        &self.nodes[self.at(key)]
    }

    #[track_caller]
    pub fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.master_of(words[1]).ask(words)
    }

    /// Returns the name of a lock that is on another master than that of `other`.
    pub fn name_apart_from(&self, other: &str) -> String {
        let at = self.at(&format!("lock:{other}"));
        let mut names = (0..).map(|n| format!("job-{n}"));
        names.find(|name| self.at(&format!("lock:{name}")) != at).expect("there are three masters")
    }

    /// Starts to move the slot of a key to another master. The keys in it stay where they are.
    pub fn begins_to_move(&self, key: &str) -> Move<'_> {
        self.knows_its_epochs();
        let from = self.at(key);
        let to = (from + 1) % MASTERS;
        let slot = self.nodes[from].ask::<u16>(&["CLUSTER", "KEYSLOT", key]).to_string();
        let id = |node: &Redis| node.ask::<String>(&["CLUSTER", "MYID"]);
        let (source, target) = (id(&self.nodes[from]), id(&self.nodes[to]));
        self.nodes[to].ask::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]);
        self.nodes[from].ask::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]);
        Move { cluster: self, from, to, slot, target }
    }

    /// Waits until every node knows the configuration epoch of every master. A node that is assigned a slot takes an
    /// epoch above all that it knows. If it has not heard of the last move yet, that is no higher than the epoch of the
    /// slot's old master, whose late message takes the slot back: then each of the two redirects clients to the other.
    fn knows_its_epochs(&self) {
        eventually("all nodes know the epochs of all masters", || {
            let epochs = |node: &Redis| {
                let seen = node.try_ask::<String>(&["CLUSTER", "NODES"]).ok()?;
                let masters = seen.lines().map(|line| line.split(' ').collect::<Vec<_>>());
                let masters = masters.filter(|fields| fields[2].contains("master"));
                let mut epochs: Vec<_> = masters.map(|fields| (fields[0].to_owned(), fields[6].to_owned())).collect();
                epochs.sort();
                Some(epochs)
            };
            let mut told = self.nodes.iter().filter(|node| !node.is_hanging()).map(epochs);
            let first = told.next().flatten();
            first.is_some() && told.all(|epochs| epochs == first)
        });
    }

    /// Moves a slot with all its keys, as an administrator's tool does.
    pub fn moves(&self, key: &str) {
        let slot = self.begins_to_move(key);
        slot.carries_its_keys();
        slot.ends();
    }

    /// Makes the nodes consider a node failed that does not answer for a second.
    pub fn loses_patience(&self) {
        for node in &self.nodes {
            node.ask::<()>(&["CONFIG", "SET", "cluster-node-timeout", "1000"]);
        }
    }

    /// Fails over as an administrator does, while the old master is up; it becomes the replica of the new one.
    pub fn fails_over(&self, key: &str) {
        let before = self.at(key);
        // A second request would start over.
        self.nodes[before + MASTERS].ask::<()>(&["CLUSTER", "FAILOVER"]);
        eventually("the replica takes over", || self.nodes[before + MASTERS].is_master());
        eventually("the old master is a replica", || !self.nodes[before].is_master());
    }

    /// Restarts a killed node, which remembers the other nodes and nothing else.
    pub fn comes_back(&mut self, at: usize) {
        self.nodes[at].restart();
        self.nodes[at].leave_as_it_is();
    }

    /// Returns the keys left behind on any master.
    fn litter(&self) -> Vec<Litter> {
        self.nodes.iter().filter(|node| node.is_master()).flat_map(Redis::litter).collect()
    }
}

fn node(ports: &[u16], who: usize, secure: bool) -> Option<Redis> {
    let mut options = replicated();
    // On a busy machine a live node may not answer for a while.
    let cluster = "--cluster-enabled yes --cluster-config-file nodes.conf --cluster-node-timeout 60000 \
                   --cluster-replica-validity-factor 0 --cluster-announce-ip 127.0.0.1";
    options.extend(cluster.split_whitespace().map(str::to_owned));
    if secure {
        options.extend(tls_options(ports[who], &certificates().server()));
        let all = "--tls-cluster yes --tls-replication yes --tls-auth-clients no";
        options.extend(all.split_whitespace().map(str::to_owned));
    }
    let node = Redis::of_a_cluster(ports[who], &options, &known(ports, who)).ok()?;
    node.leave_as_it_is();
    Some(node)
}

/// Returns the initial nodes.conf of a node: to discover each other would take the nodes seconds.
fn known(ports: &[u16], who: usize) -> String {
    let id = |who: usize| format!("{:040x}", who + 1);
    let line = |(at, port): (usize, &u16)| {
        let myself = if at == who { "myself," } else { "" };
        let address = format!("127.0.0.1:{port}@{}", port + 10_000);
        match SLOTS.get(at) {
            Some(slots) => format!("{} {address} {myself}master - 0 0 {} connected {slots}\n", id(at), at + 1),
            None => {
                let master = at - MASTERS;
                format!("{} {address} {myself}slave {} 0 0 {} connected\n", id(at), id(master), master + 1)
            }
        }
    };
    let nodes: String = ports.iter().enumerate().map(line).collect();
    format!("{nodes}vars currentEpoch {MASTERS} lastVoteEpoch 0\n")
}

/// A slot that is being moved from one master to another.
pub struct Move<'a> {
    cluster: &'a Cluster,
    from: usize,
    to: usize,
    slot: String,
    target: String,
}

impl Move<'_> {
    pub fn from(&self) -> &Redis {
        &self.cluster.nodes[self.from]
    }

    pub fn to(&self) -> &Redis {
        &self.cluster.nodes[self.to]
    }

    /// Returns the keys in it that have not been migrated.
    pub fn keys(&self) -> Vec<String> {
        self.from().ask(&["CLUSTER", "GETKEYSINSLOT", &self.slot, "1000"])
    }

    pub fn carries_its_keys(&self) {
        self.carries(&self.keys().iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Migrates these keys, if they still exist.
    pub fn carries(&self, keys: &[&str]) {
        let port = self.to().port().to_string();
        let words = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        if !keys.is_empty() {
            self.from().ask::<()>(&[&words, keys].concat());
        }
    }

    /// Sends a request about one key to the master that has it.
    pub fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.from().try_ask(words).unwrap_or_else(|_| {
            // The target answers only after ASKING.
            let mut asking = redis::pipe();
            asking.cmd("ASKING").ignore().cmd(words[0]).arg(&words[1..]);
            let mut connection = self.to().connection().expect("the server answers");
            let (answer,) = asking.query(&mut connection).expect("an answer");
            answer
        })
    }

    /// Makes one of the two masters cancel the move.
    pub fn is_called_off_at(&self, node: &Redis) {
        node.ask::<()>(&["CLUSTER", "SETSLOT", &self.slot, "STABLE"]);
    }

    /// Ends the move, and migrates the keys created meanwhile.
    pub fn ends(self) {
        self.cluster.knows_its_epochs();
        eventually("the slot has moved", || {
            self.carries_its_keys();
            let masters = [self.to(), self.from()].into_iter().chain(self.cluster.nodes.iter().take(MASTERS));
            let told =
                masters.map(|node| node.try_ask::<()>(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &self.target]));
            told.collect::<Result<Vec<()>, _>>().is_ok()
        });
    }
}

impl Reusable for Cluster {
    fn is_as_new(&self) -> Result<(), String> {
        let litter = self.litter();
        for node in &self.nodes {
            node.ask::<()>(&["FLUSHALL"]);
        }
        if litter.is_empty() { Ok(()) } else { Err(format!("left behind in the cluster: {litter:?}")) }
    }
}

impl Authority for Cluster {
    fn url(&self) -> String {
        let scheme = if self.secure { "rediss+cluster" } else { "redis+cluster" };
        format!("{scheme}://{}", self.hosts())
    }

    fn directory(&self) -> PathBuf {
        self.nodes[0].directory()
    }

    fn buries(&self, key: &str) {
        self.master_of(key).ask::<()>(&["DEL", key]);
    }

    fn lead(&self, call: Nxlock) -> Nxlock {
        let call = call.env("NXLOCK_SERVER", self.url());
        if self.secure { call.env("SSL_CERT_FILE", certificates().authority()) } else { call }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.inspected && !std::thread::panicking() {
            let litter = self.litter();
            assert!(litter.is_empty(), "left behind in the cluster: {litter:?}");
        }
    }
}
