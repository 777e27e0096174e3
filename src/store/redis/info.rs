//! Interprets what a server reports about itself (Redis command INFO), and which of it endangers locks. No I/O.

use std::time::Duration;

use crate::duration::span;
use crate::error::ErrorKind;
use crate::store::probe::Finding;
use crate::text::{Tainted, clean};

/// `field:value` lines, as INFO returns them.
pub struct Info(Tainted);

/// Settings read by CONFIG GET, if the user may run it.
#[derive(Default)]
pub struct Saving {
    /// When the server takes a snapshot; empty for never.
    pub save: Option<String>,
    pub appendfsync: Option<String>,
}

/// How long a master may be silent: it pings its replicas every ten seconds (`repl-ping-replica-period`).
pub const SILENT: Duration = Duration::from_secs(12);
/// Seconds of silence after which a replica counts as lagging: it reports every second.
const LAGGING: u64 = 10;
pub const SAVE: &str = "CONFIG SET appendonly yes, and the same in its configuration file";
pub const OFTEN: &str = "CONFIG SET appendfsync everysec, and the same in its configuration file";
pub const NEWER: &str = "use Redis 7.2 or later, or Valkey";

impl Info {
    pub fn new(text: &Tainted<&str>) -> Info {
        Info(text.to_owned())
    }

    fn field(&self, name: &str) -> Option<Tainted<&str>> {
        let pairs = self.0.raw().lines().filter_map(|line| line.split_once(':'));
        pairs.filter(|(field, _)| *field == name).map(|(_, value)| Tainted::new(value.trim())).next()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.raw().parse().ok()
    }

    /// Reports the kind of server and its version.
    pub fn version(&self) -> Finding {
        let number = self.field("redis_version");
        let (kind, version) = if let Some(version) = self.field("valkey_version") {
            ("Valkey", version)
        } else if let Some(version) = self.field("dragonfly_version") {
            ("Dragonfly", Tainted::new(version.into_raw().trim_start_matches("df-")))
        } else if self.field("executable").is_some_and(|path| path.raw().contains("keydb")) {
            ("KeyDB", number.unwrap_or(Tainted::new("of no version")))
        } else {
            ("Redis", number.unwrap_or(Tainted::new("of no version")))
        };
        let found = format!("{kind} {version}");
        let mut numbers = number.unwrap_or_default().into_raw().split('.').map(str::parse::<u32>);
        match numbers.next().and_then(Result::ok).zip(numbers.next().and_then(Result::ok)) {
            Some(version) if version < (6, 2) => {
                let hint = "use Redis 6.2 or later, Valkey, KeyDB or Dragonfly";
                Finding::obstacle("server", ErrorKind::Misconfigured, format!("{found} is too old"), hint)
            }
            _ => Finding::fine("server", found),
        }
    }

    /// Returns whether it is one node of a cluster.
    pub fn is_in_cluster(&self) -> bool {
        self.mode() == "cluster"
    }

    fn mode(&self) -> &str {
        let mode = self.field("redis_mode").or_else(|| self.field("server_mode"));
        mode.map(Tainted::into_raw).unwrap_or_default()
    }

    /// Reports a server that keeps no locks, or only a part of them, under this URL: a sentinel, or one node of a cluster,
    /// which says by `cluster` (CLUSTER INFO) of how many.
    pub fn kind(&self, url: &str, cluster: Option<&Info>) -> Option<Finding> {
        let (scheme, address) = url.split_once("://")?;
        let address = address.split('/').next().unwrap_or_default();
        match self.mode() {
            "cluster" if cluster.and_then(|cluster| cluster.number("cluster_size")) == Some(1) => None,
            "cluster" => Some(Finding::obstacle(
                "server",
                ErrorKind::Misconfigured,
                "one node of a cluster, which keeps a part of the locks",
                format!("write {scheme}+cluster://{address}"),
            )),
            "sentinel" => {
                let is_alone = self.number("sentinel_masters") == Some(1);
                let line = self.field("master0").filter(|_| is_alone).map(Tainted::into_raw);
                let name = line.and_then(|line| line.strip_prefix("name=")?.split(',').next()).unwrap_or("MASTER-NAME");
                Some(Finding::obstacle(
                    "server",
                    ErrorKind::Misconfigured,
                    "a sentinel, which keeps no locks, but knows which server does",
                    format!("write {scheme}+sentinel://{address}/{}", clean(name)),
                ))
            }
            _ => None,
        }
    }

    pub fn is_replica(&self) -> bool {
        self.field("role").is_some_and(|role| role.raw() == "slave")
    }

    /// Returns the address of the server's master, if the server is a replica.
    pub fn master(&self) -> Option<String> {
        let field = |name| self.field(name).unwrap_or(Tainted::new("?")).to_string();
        let (host, port) = (field("master_host"), field("master_port"));
        self.is_replica()
            .then(|| if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
    }

    /// Returns whether a replica is in touch with its master. Redis calls the link up until `repl-timeout` has passed, a
    /// minute.
    pub fn is_linked(&self) -> bool {
        let is_up = self.field("master_link_status").is_some_and(|link| link.raw() == "up");
        is_up && self.number("master_last_io_seconds_ago").is_some_and(|silent| silent <= SILENT.as_secs())
    }

    /// Reports whether the server accepts writes, and which replicas have a copy.
    pub fn role(&self, min_replicas: u32) -> Finding {
        if let Some(master) = self.master() {
            let link = if self.is_linked() { "up" } else { "down" };
            let found = format!("a replica of {master} (link {link}), and only a master can grant locks");
            let hint = format!("name the master: redis://{master}");
            return Finding::obstacle("role", ErrorKind::Unavailable, found, hint);
        }
        let replicas: Vec<Replica> =
            (0..).map_while(|n| self.field(&format!("slave{n}"))).map(|line| Replica::read(line.into_raw())).collect();
        let lagging: Vec<String> = replicas.iter().filter_map(Replica::lags).collect();
        let current = replicas.len() - lagging.len();
        let found = match replicas.len() {
            0 => "master, without replicas".to_owned(),
            1 => "master, with 1 replica".to_owned(),
            n => format!("master, with {n} replicas"),
        };
        if u32::try_from(current).is_ok_and(|current| current < min_replicas) {
            let found =
                format!("{found}, {current} of them up to date: with min-replicas {min_replicas} no grant counts");
            let hint = "see INFO replication there, or ask for fewer (--min-replicas)";
            return Finding::obstacle("role", ErrorKind::Unreachable, found, hint);
        }
        if lagging.is_empty() {
            return Finding::fine("role", found);
        }
        let found = format!("{found}; {}: a failover to it would forget locks", lagging.join("; "));
        Finding::warning("role", found, "see INFO replication there, and the replica's log")
    }

    /// Reports whether a master that is cut off from its replicas goes on taking writes, while Sentinel makes one of them
    /// the master. INFO has the field if `min-replicas-to-write` is set.
    pub fn failover(&self) -> Finding {
        if self.number("min_slaves_good_slaves").is_some() {
            return Finding::fine(
                "failover",
                "a master that is cut off from its replicas refuses locks (min-replicas-to-write)",
            );
        }
        Finding::warning(
            "failover",
            "a master that is cut off from its replicas goes on granting locks, to clients that are cut off with it",
            "CONFIG SET min-replicas-to-write 1 on each server, and the same in its configuration file",
        )
    }

    /// Reports whether locks survive a restart.
    pub fn persistence(&self, saving: &Saving) -> Finding {
        let topic = "persistence";
        if self.number("aof_enabled") == Some(1) {
            return match saving.appendfsync.as_deref() {
                Some("always") => Finding::fine(topic, "append-only file, synced always: a crash forgets nothing"),
                Some("everysec") => {
                    Finding::fine(topic, "append-only file, synced everysec: a power cut forgets about a second")
                }
                Some("no") => Finding::warning(
                    topic,
                    "append-only file, synced when the system likes: a power cut forgets about half a minute",
                    OFTEN,
                ),
                _ => Finding::fine(topic, "append-only file; it does not tell how often that is synced (CONFIG GET)"),
            };
        }
        let saved = self.number("rdb_saves").is_some_and(|saves| saves > 0);
        match saving.save.as_deref() {
            Some("") => {
                let found = "neither an append-only file nor snapshots: a restart forgets all locks";
                Finding::warning(topic, found, SAVE)
            }
            None if !saved => {
                let found = "no append-only file, and it does not tell whether it takes snapshots: a restart may forget \
                             all locks";
                Finding::warning(topic, found, format!("permit +config|get, to see; or {SAVE}"))
            }
            _ => {
                Finding::fine(topic, "snapshots, no append-only file: a crash forgets what was granted since the last")
            }
        }
    }

    /// Reports whether a grant can be waited for until it is on disk; it is to be if `is_wanted`.
    pub fn durability(&self, is_wanted: bool, saving: &Saving) -> Finding {
        let topic = "durable";
        let (found, remedy) = match saving.appendfsync.as_deref() {
            _ if self.has_waitaof() == Some(false) => ("it is older than Redis 7.2", NEWER),
            _ if self.number("aof_enabled") != Some(1) => ("it has no append-only file", SAVE),
            Some("no") => ("its append-only file is synced when the system likes", OFTEN),
            Some("always") => return Finding::fine(topic, "possible (--durable), at once: synced always"),
            _ => return Finding::fine(topic, "possible (--durable), within a second or two"),
        };
        match is_wanted {
            true => Finding::obstacle(
                topic,
                ErrorKind::Untrusted,
                format!("with --durable no grant counts: {found}"),
                remedy,
            ),
            false => Finding::fine(topic, format!("not possible (--durable): {found}")),
        }
    }

    /// Returns whether the server has WAITAOF; nothing if it does not tell its version.
    fn has_waitaof(&self) -> Option<bool> {
        let is_other = self.field("dragonfly_version").is_some();
        let version = self.field("redis_version")?.into_raw();
        let mut numbers = version.split('.').map(str::parse::<u32>);
        Some(!is_other && (numbers.next()?.ok()?, numbers.next()?.ok()?) >= (7, 2))
    }

    /// Reports whether the server may evict locks to free memory.
    pub fn memory(&self) -> Finding {
        let topic = "memory";
        let policy = self.field("maxmemory_policy").unwrap_or(Tainted::new("unknown")).to_string();
        match self.number("maxmemory") {
            Some(0) => Finding::fine(topic, "no maxmemory: nothing is evicted"),
            Some(limit) if policy == "noeviction" => {
                Finding::fine(topic, format!("maxmemory {limit} with noeviction: when it is full, it refuses locks"))
            }
            Some(limit) => Finding::warning(
                topic,
                format!("maxmemory {limit} with maxmemory-policy {policy}: eviction takes locks with it"),
                "CONFIG SET maxmemory-policy noeviction, and the same in its configuration file",
            ),
            None => Finding::warning(topic, "it does not tell whether it evicts keys", "see maxmemory-policy there"),
        }
    }
}

/// `ip=10.0.0.7,port=6379,state=online,offset=14,lag=0`
struct Replica {
    name: String,
    online: bool,
    lag: u64,
}

impl Replica {
    fn read(entry: &str) -> Replica {
        let pairs = || entry.split(',').filter_map(|pair| pair.split_once('='));
        let field = |name: &str| pairs().find(|(field, _)| *field == name).map(|(_, value)| value);
        let shown = |name| Tainted::new(field(name).unwrap_or("?"));
        let name = format!("{}:{}", shown("ip"), shown("port"));
        let lag = field("lag").and_then(|lag| lag.parse().ok()).unwrap_or(0);
        Replica { name, online: field("state") == Some("online"), lag }
    }

    fn lags(&self) -> Option<String> {
        let ago = || span(Duration::from_secs(self.lag));
        match self.lag {
            _ if !self.online => Some(format!("{} is not up to date yet", self.name)),
            lag if lag > LAGGING => Some(format!("{} was last heard of {} ago", self.name, ago())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Verdict;

    fn word(finding: &Finding) -> &'static str {
        match finding.verdict {
            Verdict::Fine => "fine",
            Verdict::Warning(_) => "warning",
            Verdict::Obstacle(..) => "obstacle",
        }
    }

    #[test]
    fn each_kind_of_server_is_known_by_its_name_and_an_old_one_by_its_version() {
        for (info, found, verdict) in [
            ("redis_version:7.0.15\r\n", "Redis 7.0.15", "fine"),
            ("redis_version:6.2.0\r\n", "Redis 6.2.0", "fine"),
            ("redis_version:6.0.16\r\n", "Redis 6.0.16 is too old", "obstacle"),
            ("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.0.1\r\n", "Valkey 9.0.1", "fine"),
            ("redis_version:6.3.4\r\nexecutable:/usr/bin/keydb-server\r\n", "KeyDB 6.3.4", "fine"),
            ("redis_version:7.4.0\r\ndragonfly_version:df-v1.25.0\r\n", "Dragonfly v1.25.0", "fine"),
            ("", "Redis of no version", "fine"),
        ] {
            let finding = Info::new(&Tainted::new(info)).version();
            assert_eq!((finding.found.as_str(), word(&finding)), (found, verdict), "{info:?}");
        }
    }

    #[test]
    fn replicas_that_lag_are_named_and_do_not_count() {
        let info = "role:master\r\nconnected_slaves:3\r\nslave0:ip=10.0.0.1,port=1,state=online,offset=1,lag=1\r\n\
                    slave1:ip=10.0.0.2,port=2,state=online,offset=1,lag=11\r\n\
                    slave2:ip=10.0.0.3,port=3,state=send_bulk,offset=0,lag=0\r\n";
        let finding = Info::new(&Tainted::new(info)).role(1);
        assert_eq!(word(&finding), "warning");
        assert!(finding.found.contains("10.0.0.2:2 was last heard of 11s ago"), "{}", finding.found);
        assert!(finding.found.contains("10.0.0.3:3 is not up to date yet"), "{}", finding.found);
        assert_eq!(word(&Info::new(&Tainted::new(info)).role(2)), "obstacle");
    }

    #[test]
    fn whether_a_grant_can_be_on_disk_is_told() {
        let told = |info: &str, appendfsync: &str, is_wanted: bool| {
            let saving = Saving { save: None, appendfsync: Some(appendfsync.to_owned()) };
            let finding = Info::new(&Tainted::new(info)).durability(is_wanted, &saving);
            (word(&finding), finding.found.contains("not possible") || finding.found.contains("no grant counts"))
        };
        for (info, appendfsync, is_possible) in [
            ("redis_version:7.2.0\r\naof_enabled:1\r\n", "everysec", true),
            ("redis_version:8.2.3\r\naof_enabled:1\r\n", "always", true),
            ("redis_version:8.2.3\r\naof_enabled:1\r\n", "no", false),
            ("redis_version:7.0.15\r\naof_enabled:1\r\n", "always", false),
            ("redis_version:7.2.0\r\naof_enabled:0\r\n", "everysec", false),
            ("redis_version:7.4.0\r\ndragonfly_version:df-v1.25.0\r\naof_enabled:1\r\n", "everysec", false),
        ] {
            assert_eq!(told(info, appendfsync, false), ("fine", !is_possible), "{info}");
            let verdict = if is_possible { "fine" } else { "obstacle" };
            assert_eq!(told(info, appendfsync, true), (verdict, !is_possible), "{info}");
        }
    }

    #[test]
    fn what_a_crash_forgets_is_reported_of_each_way_to_save() {
        let finding = |info: &str, save: Option<&str>, appendfsync: Option<&str>| {
            let saving = Saving { save: save.map(str::to_owned), appendfsync: appendfsync.map(str::to_owned) };
            word(&Info::new(&Tainted::new(info)).persistence(&saving))
        };
        assert_eq!(finding("aof_enabled:1\r\n", Some(""), Some("always")), "fine");
        assert_eq!(finding("aof_enabled:1\r\n", None, None), "fine");
        assert_eq!(finding("aof_enabled:1\r\n", Some(""), Some("no")), "warning");
        assert_eq!(finding("aof_enabled:0\r\n", Some(""), Some("everysec")), "warning");
        assert_eq!(finding("aof_enabled:0\r\n", Some("3600 1"), None), "fine");
        assert_eq!(finding("aof_enabled:0\r\nrdb_saves:0\r\n", None, None), "warning");
        assert_eq!(finding("aof_enabled:0\r\nrdb_saves:2\r\n", None, None), "fine");
    }
}
