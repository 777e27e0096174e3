//! A master, its replicas, and the sentinels that monitor them and elect the next master.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use super::certificates::certificates;
use super::ports::steady_port;
use super::replication::replicated;
use super::secure::tls_options;
use super::{Authority, Nxlock, Redis, eventually, eventually_some, within};

/// The name of the monitored master.
pub const MASTER: &str = "main";

/// How long a master may be silent: on a busy machine a live one may not answer for a while.
const PATIENCE_MS: &str = "60000";

/// How long a failover may take: a sentinel that did not get to run for two seconds does nothing for thirty (TILT).
const FAILOVER: Duration = Duration::from_secs(60);

pub struct Sentinels {
    /// The servers; the first is the initial master.
    pub servers: Vec<Redis>,
    pub sentinels: Vec<Redis>,
    secure: bool,
    /// The master's keys are checked at the end.
    pub inspected: bool,
}

impl Sentinels {
    /// Starts one sentinel and one server: there is nothing to fail over to.
    pub fn of_one() -> Sentinels {
        Sentinels::start(1, 1, false)
    }

    /// Starts three sentinels for a master and two replicas; they are slow to consider the master down.
    pub fn of_three() -> Sentinels {
        Sentinels::start(3, 3, false)
    }

    /// Starts the same, with TLS on every connection.
    pub fn secure() -> Sentinels {
        Sentinels::start(3, 3, true)
    }

    fn start(servers: usize, sentinels: usize, secure: bool) -> Sentinels {
        let mut group = Sentinels { servers: Vec::new(), sentinels: Vec::new(), secure, inspected: true };
        for _ in 0..servers {
            let server = group.server();
            group.servers.push(server);
        }
        // Another process may take a port before its sentinel does: then all try others.
        group.sentinels = eventually_some("each sentinel has a port", || {
            let watched = group.sentinel_configurations(sentinels).into_iter();
            watched.map(|(port, configuration)| Redis::as_sentinel(port, &configuration).ok()).collect()
        });
        group.is_complete();
        group
    }

    fn server(&self) -> Redis {
        eventually_some("a redis-server has a port", || {
            let port = steady_port();
            let mut options = replicated();
            if let Some(master) = self.servers.first() {
                options.extend(["--replicaof", "127.0.0.1", &master.port().to_string()].map(str::to_owned));
            }
            if self.secure {
                options.extend(tls_options(port, &certificates().server()));
                options.extend(["--tls-replication", "yes", "--tls-auth-clients", "no"].map(str::to_owned));
            }
            let server = Redis::on_port(port, &options).ok()?;
            // Which of them is the master at the end, and has to be checked, the servers do not know.
            server.leave_as_it_is();
            Some(server)
        })
    }

    /// Returns the configurations: the sentinels know each other and the replicas, as discovery would take seconds.
    fn sentinel_configurations(&self, n: usize) -> Vec<(u16, String)> {
        let ports: Vec<u16> = (0..n).map(|_| steady_port()).collect();
        let id = |who: usize| format!("{who:040x}");
        let configuration = |who: usize| {
            let mut lines = vec![
                if self.secure { "port 0".to_owned() } else { format!("port {}", ports[who]) },
                format!("sentinel myid {}", id(who + 1)),
                format!("sentinel monitor {MASTER} 127.0.0.1 {} {}", self.servers[0].port(), n / 2 + 1),
                format!("sentinel down-after-milliseconds {MASTER} {PATIENCE_MS}"),
                "sentinel announce-ip 127.0.0.1".to_owned(),
                format!("sentinel announce-port {}", ports[who]),
            ];
            for replica in &self.servers[1..] {
                lines.push(format!("sentinel known-replica {MASTER} 127.0.0.1 {}", replica.port()));
            }
            for (other, port) in ports.iter().enumerate().filter(|(other, _)| *other != who) {
                lines.push(format!("sentinel known-sentinel {MASTER} 127.0.0.1 {port} {}", id(other + 1)));
            }
            if self.secure {
                let options = tls_options(ports[who], &certificates().server());
                let options = options[2..].chunks(2).map(|pair| pair.join(" ").replacen("--", "", 1));
                lines.extend(options);
                lines.extend(["tls-replication yes", "tls-auth-clients no"].map(str::to_owned));
            }
            (ports[who], lines.join("\n") + "\n")
        };
        (0..n).map(configuration).collect()
    }

    /// Waits until every replica is in sync, and every sentinel sees all the others.
    fn is_complete(&self) {
        for replica in &self.servers[1..] {
            eventually("the replica is in step", || replica.is_in_step());
        }
        for sentinel in &self.sentinels {
            eventually("they are enough to fail over", || {
                let seen = sentinel.try_ask::<String>(&["SENTINEL", "CKQUORUM", MASTER]);
                seen.is_ok_and(|seen| seen.starts_with(&format!("OK {} ", self.sentinels.len())))
            });
            eventually("the sentinel knows the replicas", || {
                let seen: Vec<redis::Value> = sentinel.ask(&["SENTINEL", "REPLICAS", MASTER]);
                let linked = format!("{seen:?}").matches("\"slave\"").count();
                linked >= self.servers.len() - 1
            });
        }
    }

    pub fn hosts(&self) -> String {
        let hosts: Vec<String> = self.sentinels.iter().map(|one| format!("127.0.0.1:{}", one.port())).collect();
        hosts.join(",")
    }

    /// Returns the master named by the first sentinel that answers.
    pub fn named_master(&self) -> Option<usize> {
        self.named_masters().next()
    }

    /// Returns the master named by each sentinel that answers.
    fn named_masters(&self) -> impl Iterator<Item = usize> {
        self.sentinels.iter().filter(|sentinel| !sentinel.is_hanging()).filter_map(|sentinel| {
            let told = sentinel.try_ask::<(String, String)>(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]).ok()?;
            self.servers.iter().position(|server| server.port().to_string() == told.1)
        })
    }

    pub fn master(&self) -> &Redis {
        &self.servers[self.named_master().expect("a sentinel knows the master")]
    }

    /// Makes a master that does not answer for a second count as down, until they have named another.
    pub fn lose_patience(&self) {
        for sentinel in &self.sentinels {
            sentinel.ask::<()>(&["SENTINEL", "SET", MASTER, "down-after-milliseconds", "1000"]);
            sentinel.ask::<()>(&["SENTINEL", "SET", MASTER, "failover-timeout", "3000"]);
        }
    }

    /// Restores the time-out: on a busy machine the next master may not answer for a second either.
    fn regain_patience(&self) {
        for sentinel in &self.sentinels {
            sentinel.ask::<()>(&["SENTINEL", "SET", MASTER, "down-after-milliseconds", PATIENCE_MS]);
        }
    }

    /// Fails over as an administrator does, while the old master is up; it becomes a replica.
    pub fn fail_over(&self) {
        self.demote(self.promote_another());
    }

    /// Makes another server the master, and returns the old one: it takes itself for the master, and answers, until the
    /// sentinels make it a replica some ten seconds later.
    pub fn promote_another(&self) -> usize {
        let before = self.named_master().expect("a master");
        // Always the same one: another may not have heard of the last failover yet, and repeat it.
        let sentinel = self.sentinels.iter().find(|one| !one.is_hanging()).expect("a sentinel runs");
        within(FAILOVER, "there is another master", || {
            // The sentinel gives a failover up if no replica has answered it lately.
            let seen: HashMap<String, String> = sentinel.ask(&["SENTINEL", "MASTER", MASTER]);
            let is_under_way = seen["flags"].contains("failover_in_progress");
            if !is_under_way && seen["port"] == self.servers[before].port().to_string() {
                let _ = sentinel.try_ask::<()>(&["SENTINEL", "FAILOVER", MASTER]);
            }
            self.another_than(before)
        });
        before
    }

    /// Makes an old master a replica of the new one, as the sentinels do.
    pub fn demote(&self, old: usize) {
        let port = self.master().port().to_string();
        self.servers[old].ask::<()>(&["REPLICAOF", "127.0.0.1", &port]);
        for kind in ["normal", "pubsub"] {
            self.servers[old].ask::<()>(&["CLIENT", "KILL", "TYPE", kind]);
        }
    }

    /// Waits until all sentinels name another master.
    pub fn agree_on_another_than(&self, old: usize) {
        eventually("all sentinels name the new master", || self.named_masters().all(|named| named != old));
    }

    /// Cuts the master off from the sentinels and from new clients, and waits until all sentinels name another. The old
    /// one takes itself for the master, and answers the clients that it has. Returns a connection to it.
    pub fn depose(&self) -> redis::Connection {
        let before = self.named_master().expect("a master");
        self.lose_patience();
        let mut old = self.servers[before].connection().expect("connected");
        redis::cmd("CONFIG").arg(&["SET", "requirepass", "deposed"]).exec(&mut old).expect("it has a password");
        let clients: String = redis::cmd("CLIENT").arg("LIST").query(&mut old).expect("clients");
        for client in clients.lines().filter(|client| client.contains(" name=sentinel-")) {
            let id = client.split_whitespace().find_map(|field| field.strip_prefix("id=")).expect("an id");
            redis::cmd("CLIENT").arg(&["KILL", "ID", id]).exec(&mut old).expect("killed");
        }
        self.have_another_than(before);
        self.agree_on_another_than(before);
        let role: redis::Value = redis::cmd("ROLE").query(&mut old).expect("it answers");
        assert!(format!("{role:?}").contains("master"), "it takes itself for the master: {role:?}");
        old
    }

    /// Waits until the sentinels have made another server the master.
    pub fn have_another_than(&self, before: usize) {
        within(FAILOVER, "there is another master", || self.another_than(before));
        self.regain_patience();
    }

    /// Returns the master that the first sentinel that answers names, if it is another, and has taken over.
    fn another_than(&self, before: usize) -> Option<usize> {
        self.named_master().filter(|at| *at != before && self.servers[*at].is_master())
    }
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        if self.inspected && !std::thread::panicking() {
            let mut named = Vec::new();
            eventually("they agree on who is the master", || {
                named = self.named_masters().collect();
                named.iter().all(|at| *at == named[0])
            });
            // A server that was replaced a second time may not know it yet, and keeps its keys.
            let current = |at: usize| named.first().is_none_or(|named| *named == at) && self.servers[at].is_master();
            let masters = (0..self.servers.len()).filter(|at| current(*at));
            let litter: Vec<_> = masters.flat_map(|at| self.servers[at].litter()).collect();
            assert!(litter.is_empty(), "left behind at the master: {litter:?}");
        }
    }
}

impl Authority for Sentinels {
    fn url(&self) -> String {
        let scheme = if self.secure { "rediss+sentinel" } else { "redis+sentinel" };
        format!("{scheme}://{}/{MASTER}", self.hosts())
    }

    fn directory(&self) -> PathBuf {
        self.servers[0].directory()
    }

    fn buries(&self, key: &str) {
        self.master().ask::<()>(&["DEL", key]);
    }

    fn lead(&self, call: Nxlock) -> Nxlock {
        let call = call.env("NXLOCK_SERVER", self.url());
        if self.secure { call.env("SSL_CERT_FILE", certificates().authority()) } else { call }
    }
}
