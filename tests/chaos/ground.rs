//! The place where the locks of an arena live, and its faults. A place without a server has neither a network nor
//! outsiders, and no faults but those of the processes that use it.

use std::fs::{self, DirEntry};
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use crate::observer::owner_of;
use crate::record::{Ailment, Journal, Left, Nanos, On, boot_clock, nanos};
use crate::script::COMPANIONS;
use crate::seed::Seed;
use crate::support::{
    Authority, Cluster, Condition, Local, Network, Redis, Sentinels, Way, eventually, lasts, record, replace_file,
};
use crate::trace::{ARRIVES, LEAVES};

pub trait Ground: Send {
    /// Returns the value of `--server`.
    fn near(&self) -> String;

    /// Returns the same, over a network that can fail.
    fn far(&self) -> Option<String> {
        None
    }

    /// Returns the server's socket, for plain clients and for the observer.
    fn socket(&self) -> Option<PathBuf> {
        None
    }

    /// Returns the file of the password with which clients log in.
    fn password(&self) -> Option<PathBuf> {
        None
    }

    /// Returns the sockets of the servers whose every step is compared with the rules.
    fn traced(&self) -> Vec<PathBuf> {
        self.socket().into_iter().collect()
    }

    /// Returns the ports of the servers of which one may be the master of another.
    fn masters(&self) -> Vec<u16> {
        Vec::new()
    }

    /// Returns the sockets of the nodes of a cluster, of which each has some of the keys.
    fn nodes(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Returns the directory of the locks, for the observer where there are no keys.
    fn files(&self) -> Option<PathBuf> {
        None
    }

    /// Waits, then injects a fault, which is over when this returns.
    fn suffers(&mut self, seed: &mut Seed, names: &[String], journal: &Journal);

    /// Returns what is still there when everybody has gone, though it should not be or does not expire.
    fn left(&mut self) -> Vec<Left>;
}

/// A redis-server of this arena alone.
pub struct Server {
    pub redis: Redis,
    network: Network,
    /// None: it wants no password.
    login: Option<Login>,
    ailments: Vec<Ailment>,
    /// Minimum and maximum pause between two faults, in milliseconds.
    pause: (u64, u64),
}

impl Server {
    pub fn new(redis: Redis, ailments: &[Ailment], pause: (u64, u64)) -> Server {
        // `left` does the check instead, and lets keys stay that expire.
        redis.leave_as_it_is();
        let network = Network::to(&redis);
        Server { redis, network, login: None, ailments: ailments.to_vec(), pause }
    }

    pub fn with(self, login: Login) -> Server {
        Server { login: Some(login), ..self }
    }

    fn has_network(&self) -> bool {
        self.ailments.iter().any(|ailment| matches!(ailment, Ailment::Network(..)))
    }

    fn of_user(&self, url: String) -> String {
        if self.login.is_some() { format!("{url}?user={USER}") } else { url }
    }
}

const USER: &str = "bob";
/// Longer than an attempt to log in, also of a process that is stopped in the middle of it.
const LOGIN: Duration = Duration::from_secs(8);

/// The user as whom contenders log in, with a password that changes: the file of the users, and the file of the password.
pub struct Login {
    home: TempDir,
    /// The passwords that the server still takes, and until when the file had each.
    old: Vec<(String, Nanos)>,
}

impl Login {
    pub fn new() -> Login {
        let login = Login { home: tempfile::tempdir().expect("a directory for the password"), old: Vec::new() };
        let users = format!("user default on nopass ~* &* +@all\nuser {USER} on >0 ~* &* +@all\n");
        fs::write(login.users(), users).expect("users");
        replace_file(&login.password(), "0");
        login
    }

    pub fn users(&self) -> PathBuf {
        self.home.path().join("users")
    }

    pub fn password(&self) -> PathBuf {
        self.home.path().join("password")
    }

    /// The old password is right for as long as whoever has read it may take to log in over a slow network.
    fn rotates(&mut self, redis: &Redis) {
        let now = boot_clock();
        let new = now.to_string();
        redis.ask::<()>(&["ACL", "SETUSER", USER, &format!(">{new}")]);
        let old = fs::read_to_string(self.password()).expect("a password");
        replace_file(&self.password(), &new);
        self.old.push((old, now));
        self.old.retain(|(password, until)| {
            let is_right = now - until <= nanos(LOGIN);
            if !is_right {
                redis.ask::<()>(&["ACL", "SETUSER", USER, &format!("<{password}")]);
            }
            is_right
        });
        redis.ask::<()>(&["ACL", "SAVE"]);
        redis.ask::<i64>(&["CLIENT", "KILL", "USER", USER]);
    }
}

/// Returns the faults, also of its network, that a server with an append-only file survives without losing data.
pub fn everything_but_forgetting() -> Vec<Ailment> {
    use Ailment::{Down, Hung, Loading, OutOfMemory, ReadOnly, Refusing, Rotated, ScriptsForgotten, SetBack, Unheard};
    let millis = Duration::from_millis;
    let network = |condition| [Way::There, Way::Back].map(|way| Ailment::Network(way, condition));
    let conditions = [
        Condition::Delayed(millis(30)),
        Condition::Delayed(millis(400)),
        Condition::Delayed(millis(1400)),
        Condition::Trickling(Duration::from_micros(100)),
        Condition::BlackHoled,
        Condition::Cut,
    ];
    let server = [Hung, Hung, Down, Loading, ReadOnly, OutOfMemory, ScriptsForgotten, SetBack];
    let connections = [Refusing, Refusing, Unheard, Unheard, Rotated, Rotated];
    server.into_iter().chain(connections).chain(conditions.into_iter().flat_map(network)).collect()
}

impl Ground for Server {
    fn near(&self) -> String {
        self.of_user(self.redis.url())
    }

    fn far(&self) -> Option<String> {
        self.has_network().then(|| self.of_user(format!("unix://{}", self.network.socket().display())))
    }

    fn password(&self) -> Option<PathBuf> {
        self.login.as_ref().map(Login::password)
    }

    fn socket(&self) -> Option<PathBuf> {
        Some(self.redis.socket())
    }

    fn suffers(&mut self, seed: &mut Seed, names: &[String], journal: &Journal) {
        lasts(seed.millis(self.pause.0, self.pause.1));
        let ailment = seed.one_of(&self.ailments);
        let name = usize::try_from(seed.between(0, names.len() as u64)).expect("it fits");
        let key = format!("lock:{}", names[name]);
        let on = match ailment {
            Ailment::Deleted | Ailment::Overwritten => On::Name(name),
            _ => On::All,
        };
        // Mostly for less than a lease, and sometimes for longer than most leases.
        let long = if seed.percent(75) { seed.millis(10, 400) } else { seed.millis(400, 1300) };
        let from = boot_clock();
        match ailment {
            Ailment::Hung => {
                self.redis.hang();
                lasts(long);
                self.redis.resume();
            }
            Ailment::Down | Ailment::Emptied => {
                self.redis.kill();
                lasts(long / 2);
                self.redis.restart();
            }
            Ailment::Loading => {
                self.redis.restarts_loading(long / 2);
                self.redis.has_loaded();
            }
            Ailment::ReadOnly => {
                self.redis.becomes_read_only();
                lasts(long);
                self.redis.is_writable_again();
            }
            Ailment::OutOfMemory => {
                self.redis.runs_out_of_memory();
                lasts(long);
                self.redis.has_memory_again();
            }
            Ailment::ScriptsForgotten => self.redis.ask::<()>(&["SCRIPT", "FLUSH"]),
            Ailment::SetForward => self.redis.clock().is_set_forward(seed.millis(300, 6000)),
            Ailment::SetBack => self.redis.clock().is_set_back(seed.millis(50, 500)),
            Ailment::Flushed => self.redis.ask::<()>(&["FLUSHALL"]),
            Ailment::Deleted => _ = self.redis.ask::<i64>(&["DEL", &key]),
            Ailment::Overwritten => self.redis.put(&key, b"somebody else's", Some(seed.between(50, 400))),
            Ailment::Network(way, condition) => {
                self.network.is(way, condition);
                lasts(long);
                self.network.clears();
            }
            Ailment::Refusing => {
                // The server may be slow when it is reachable again.
                if seed.percent(50) {
                    self.network.is(Way::Back, Condition::Delayed(long / 10));
                }
                self.network.refuses();
                lasts(long);
                self.network.accepts();
                lasts(long / 2);
                self.network.clears();
            }
            Ailment::Rotated => self.login.as_mut().expect("a password").rotates(&self.redis),
            Ailment::Unheard => _ = self.network.ends_listening(),
            Ailment::Killed
            | Ailment::GuardKilled
            | Ailment::GroupKilled
            | Ailment::CommandKilled
            | Ailment::TypedInterrupt
            | Ailment::TypedStop
            | Ailment::FrozenAlone
            | Ailment::FrozenWithCommand
            | Ailment::Suspended
            | Ailment::Cancelled
            | Ailment::Severed
            | Ailment::Asked
            | Ailment::Broken
            | Ailment::Stalled => unreachable!("{ailment:?} befalls processes"),
            Ailment::Deposed => unreachable!("no sentinel monitors the server"),
            Ailment::Moved => unreachable!("it is no node of a cluster"),
        }
        journal.befell(ailment, on, from);
    }

    fn left(&mut self) -> Vec<Left> {
        // The lock of a killed holder stays until its lease expires.
        eventually("the leases of the dead have ended", || {
            self.redis.ask::<Vec<String>>(&["KEYS", "lock:*"]).is_empty()
        });
        lasting(&self.redis).map(Left::of_nobody).collect()
    }
}

/// Returns the keys that are not those of a lock, or do not expire as these do.
fn lasting(redis: &Redis) -> impl Iterator<Item = String> {
    let keys: Vec<String> = redis.ask(&["KEYS", "*"]);
    // A waiter that was killed is forgotten with the queue, and a holder with the shares.
    let ends = |key: &String| {
        let limit = match key.rsplit(':').next() {
            Some("fence" | "newest") => 86_400_000,
            Some("runs") => 31 * 86_400_000,
            // Four times the lease of one that is far back in the queue.
            _ => 120_000,
        };
        (1..=limit + 10_000).contains(&redis.pttl(key))
    };
    let ours =
        |key: &String| COMPANIONS.iter().any(|name| key.strip_suffix(name).is_some_and(|key| key.ends_with(':')));
    keys.into_iter().filter(move |key| !(ours(key) && ends(key)))
}

/// Several independent servers, each with a network of its own. A fault of one affects no other, and none loses data.
pub struct Several(Vec<(Redis, Network)>);

impl Several {
    pub fn new() -> Several {
        let server = |_| {
            let redis = Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
            redis.leave_as_it_is();
            let network = Network::to(&redis);
            (redis, network)
        };
        Several((0..5).map(server).collect())
    }
}

impl Ground for Several {
    fn near(&self) -> String {
        self.0.iter().map(|(redis, _)| redis.url()).collect::<Vec<_>>().join(" ")
    }

    fn far(&self) -> Option<String> {
        let urls = self.0.iter().map(|(_, network)| format!("unix://{}", network.socket().display()));
        Some(urls.collect::<Vec<_>>().join(" "))
    }

    fn traced(&self) -> Vec<PathBuf> {
        self.0.iter().map(|(redis, _)| redis.socket()).collect()
    }

    fn suffers(&mut self, seed: &mut Seed, _names: &[String], journal: &Journal) {
        use Ailment::{Down, Hung, Refusing};
        let millis = Duration::from_millis;
        lasts(seed.millis(20, 300));
        let network = |condition| [Way::There, Way::Back].map(|way| Ailment::Network(way, condition));
        let conditions =
            [Condition::Delayed(millis(30)), Condition::Delayed(millis(400)), Condition::BlackHoled, Condition::Cut];
        let ailments: Vec<Ailment> =
            [Hung, Hung, Down, Refusing].into_iter().chain(conditions.into_iter().flat_map(network)).collect();
        let ailment = seed.one_of(&ailments);
        // Mostly a minority.
        let many = seed.one_of(&[1, 1, 1, 2, 2, 2, 3]);
        let first = usize::try_from(seed.between(0, 5)).expect("it fits");
        let long = if seed.percent(75) { seed.millis(10, 400) } else { seed.millis(400, 1300) };
        let from = boot_clock();
        let struck: Vec<usize> = (0..many).map(|n| (first + n) % 5).collect();
        for at in &struck {
            let (redis, network) = &mut self.0[*at];
            match ailment {
                Hung => redis.hang(),
                Down => redis.kill(),
                Refusing => network.refuses(),
                Ailment::Network(way, condition) => network.is(way, condition),
                _ => unreachable!("{ailment:?} is none of these"),
            }
        }
        lasts(long);
        for at in &struck {
            let (redis, network) = &mut self.0[*at];
            match ailment {
                Hung => redis.resume(),
                Down => redis.restart(),
                Refusing => network.accepts(),
                _ => network.clears(),
            }
        }
        journal.befell(ailment, On::All, from);
    }

    fn left(&mut self) -> Vec<Left> {
        let mut left = Vec::new();
        for (redis, _) in &self.0 {
            let keys = || redis.ask::<Vec<String>>(&["KEYS", "*"]);
            eventually("the leases of the dead have ended", || keys().iter().all(|key| key.ends_with(":fence")));
            left.extend(keys().into_iter().filter(|key| redis.pttl(key) <= 0).map(Left::of_nobody));
        }
        left
    }
}

/// A master and its replicas. Sentinels make a replica the master, and the old master answers its clients for a while,
/// and grants them locks: it does not know that it was deposed.
pub struct Failovers(Sentinels);

impl Failovers {
    pub fn new() -> Failovers {
        let mut group = Sentinels::of_three();
        // `left` does it instead, and lets keys stay that expire.
        group.inspected = false;
        Failovers(group)
    }
}

impl Ground for Failovers {
    fn near(&self) -> String {
        self.0.url()
    }

    fn traced(&self) -> Vec<PathBuf> {
        self.0.servers.iter().map(Redis::socket).collect()
    }

    fn masters(&self) -> Vec<u16> {
        self.0.servers.iter().map(Redis::port).collect()
    }

    fn suffers(&mut self, seed: &mut Seed, _names: &[String], journal: &Journal) {
        let Failovers(group) = self;
        lasts(seed.millis(200, 1000));
        let from = boot_clock();
        let old = group.promote_another();
        group.agree_on_another_than(old);
        journal.befell(Ailment::Deposed, On::All, from);
        lasts(seed.millis(0, 6000));
        group.demote(old);
        eventually("the old master is a replica", || group.servers[old].is_in_step());
    }

    fn left(&mut self) -> Vec<Left> {
        let keys = || self.0.master().ask::<Vec<String>>(&["KEYS", "lock:*"]);
        eventually("the leases of the dead have ended", || keys().is_empty());
        lasting(self.0.master()).map(Left::of_nobody).collect()
    }
}

/// A cluster in which the slots of the locks move all the time, and a node sometimes hangs meanwhile. Neither loses data.
pub struct Moves(Cluster);

impl Moves {
    pub fn new() -> Moves {
        let mut cluster = Cluster::of_masters();
        // `left` does it instead, and lets keys stay that expire.
        cluster.inspected = false;
        Moves(cluster)
    }
}

impl Ground for Moves {
    fn near(&self) -> String {
        self.0.url()
    }

    fn nodes(&self) -> Vec<PathBuf> {
        self.0.nodes.iter().map(Redis::socket).collect()
    }

    fn traced(&self) -> Vec<PathBuf> {
        self.nodes()
    }

    fn suffers(&mut self, seed: &mut Seed, names: &[String], journal: &Journal) {
        let Moves(cluster) = self;
        lasts(seed.millis(10, 250));
        // Sometimes two at once.
        let first = usize::try_from(seed.between(0, names.len() as u64)).expect("it fits");
        let many = seed.one_of(&[1, 1, 1, 2]).min(names.len());
        let moves: Vec<_> = (0..many)
            .map(|n| {
                let name = (first + n) % names.len();
                let key = format!("lock:{}", names[name]);
                let from = boot_clock();
                lasts(seed.millis(0, 30));
                cluster.nodes.iter().for_each(|node| node.ask(&["PING", &format!("{LEAVES}{key}")]));
                (name, from, cluster.begins_to_move(&key))
            })
            .collect();
        // Mostly for less than a lease, and sometimes for longer than most leases.
        let long = |seed: &mut Seed| if seed.percent(90) { seed.millis(0, 120) } else { seed.millis(400, 1500) };
        for (.., slot) in &moves {
            lasts(long(seed));
            let mut keys = slot.keys();
            let at_once = seed.one_of(&[1, 1, 2, keys.len().max(1)]);
            while !keys.is_empty() {
                let next: Vec<String> = (0..at_once.min(keys.len()))
                    .map(|_| keys.swap_remove(usize::try_from(seed.between(0, keys.len() as u64)).expect("it fits")))
                    .collect();
                slot.carries(&next.iter().map(String::as_str).collect::<Vec<_>>());
                lasts(if seed.percent(70) { Duration::ZERO } else { long(seed) });
                // What is at that node is out of reach meanwhile.
                if seed.percent(6) {
                    let (node, from) = (if seed.percent(50) { slot.from() } else { slot.to() }, boot_clock());
                    node.hang();
                    lasts(long(seed) * 2);
                    node.resume();
                    journal.befell(Ailment::Hung, On::All, from);
                }
            }
        }
        for (name, from, slot) in moves {
            slot.ends();
            cluster.nodes.iter().for_each(|node| node.ask(&["PING", &format!("{ARRIVES}lock:{}", names[name])]));
            journal.befell(Ailment::Moved, On::Name(name), from);
        }
    }

    fn left(&mut self) -> Vec<Left> {
        let mut left = Vec::new();
        for node in &self.0.nodes {
            // The lock of a killed holder stays until its lease expires.
            eventually("the leases of the dead have ended", || node.ask::<Vec<String>>(&["KEYS", "lock:*"]).is_empty());
            left.extend(lasting(node).map(Left::of_nobody));
        }
        left
    }
}

/// A directory, with no faults but those of the processes that use it.
pub struct OneMachine(Local);

impl OneMachine {
    pub fn new() -> OneMachine {
        OneMachine(Local::start())
    }
}

impl Ground for OneMachine {
    fn near(&self) -> String {
        self.0.url()
    }

    fn files(&self) -> Option<PathBuf> {
        Some(self.0.directory().join("locks"))
    }

    fn suffers(&mut self, seed: &mut Seed, _names: &[String], _journal: &Journal) {
        lasts(seed.millis(100, 500));
    }

    fn left(&mut self) -> Vec<Left> {
        let locks = || self.0.nxlock(["--json", "status"]).run().json().as_array().cloned().unwrap_or_default();
        // A token that a script got before it was killed stays until its lease expires.
        eventually("the leases of the dead have ended", || locks().iter().all(|lock| lock["state"] == "free"));
        // Then the directory may hold fences and the records of runs, but no waiters and no shares.
        let files = fs::read_dir(self.0.directory().join("locks")).expect("the directory").flatten();
        let records = files.filter(|file| file.path().extension().is_some_and(|extension| extension == "lock"));
        let entries = |record: DirEntry| {
            let path = record.path();
            let state = record::state(&path);
            let left = ["holder", "waiter", "noted"].into_iter().flat_map(|kind| record::lines(&state, kind));
            left.map(|entry| Left { what: path.display().to_string(), of: owner_of(entry) }).collect::<Vec<_>>()
        };
        records.flat_map(entries).collect()
    }
}

/// A directory whose first fault is a panic of the test.
pub struct Failing(pub OneMachine, pub &'static str);

impl Ground for Failing {
    fn near(&self) -> String {
        self.0.near()
    }

    fn files(&self) -> Option<PathBuf> {
        self.0.files()
    }

    fn suffers(&mut self, _seed: &mut Seed, _names: &[String], _journal: &Journal) {
        panic!("{}", self.1)
    }

    fn left(&mut self) -> Vec<Left> {
        Vec::new()
    }
}
