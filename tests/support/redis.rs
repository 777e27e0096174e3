//! A redis-server for one test, and its faults.

use std::fmt;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redis::{Connection, ConnectionAddr, FromRedisValue, IntoConnectionInfo, RedisConnectionInfo, RedisResult};
use tempfile::TempDir;

use super::clock::Clock;
use super::lasting::Swept;
use super::launcher::{NOT_FOUND, launched};
use super::{Nxlock, eventually, eventually_some, now, pause, state_of};

/// Listens on a Unix socket in a directory of its own, and on a TCP port if asked to. Killed when dropped; it must
/// hold nothing then but fences that expire.
pub struct Redis {
    directory: TempDir,
    options: Vec<String>,
    port: Option<u16>,
    process: Option<Child>,
    password: Option<String>,
    clock: Option<Clock>,
    /// The configuration file of a sentinel, which rewrites it.
    configuration: Option<PathBuf>,
    inspected: AtomicBool,
}

impl Redis {
    pub fn start() -> Redis {
        Redis::with(&[])
    }

    /// Starts a server with command line options.
    pub fn with(options: &[&str]) -> Redis {
        let mut redis = Redis::at(None, options);
        redis.boot().expect("redis-server starts");
        redis
    }

    pub fn on_tcp(options: &[&str]) -> Redis {
        // Another process may take the port before the server does: then try another.
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        eventually_some("a redis-server has a port", || Redis::on_port(unused_port(), &options).ok())
    }

    /// Starts a server on a given port. Fails if the port is in use.
    pub(super) fn on_port(port: u16, options: &[String]) -> io::Result<Redis> {
        Redis::booted(Redis::at(Some(port), &options.iter().map(String::as_str).collect::<Vec<_>>()))
    }

    /// Starts a sentinel: it monitors servers, and has no keys.
    pub(super) fn as_sentinel(port: u16, configuration: &str) -> io::Result<Redis> {
        let mut redis = Redis::at(Some(port), &[]);
        let file = redis.data().join("sentinel.conf");
        let of_its_own = format!(
            "bind 127.0.0.1\nunixsocket {}\ndir {}\nlogfile {}\n",
            redis.socket().display(),
            redis.data().display(),
            redis.data().join("log").display()
        );
        std::fs::write(&file, of_its_own + configuration)?;
        redis.configuration = Some(file);
        Redis::booted(redis)
    }

    /// Starts a node of a cluster, which knows the other nodes from its file.
    pub(super) fn of_a_cluster(port: u16, options: &[String], nodes: &str) -> io::Result<Redis> {
        // The node may live as long as this process, and then nobody drops its directory.
        static PLACE: LazyLock<Swept> = LazyLock::new(|| Swept::make("nxc"));
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let redis = Redis::within(PLACE.path(), Some(port), &options);
        std::fs::write(redis.data().join("nodes.conf"), nodes)?;
        Redis::booted(redis)
    }

    fn booted(mut redis: Redis) -> io::Result<Redis> {
        let booted = redis.boot();
        if booted.is_err() || redis.configuration.is_some() {
            redis.leave_as_it_is();
        }
        booted.map(|()| redis)
    }

    /// Starts a server that requires a password.
    pub fn with_password(password: &str) -> Redis {
        let mut redis = Redis::at(None, &["--requirepass", password]);
        redis.password = Some(password.to_owned());
        redis.boot().expect("redis-server starts");
        redis
    }

    /// Starts a server with a clock of its own, fast by so many parts per million.
    pub fn with_clock(fast: i64, options: &[&str]) -> Redis {
        let mut redis = Redis::at(None, options);
        redis.clock = Some(Clock::in_directory(redis.directory.path(), fast));
        redis.boot().expect("redis-server starts");
        redis
    }

    fn at(port: Option<u16>, options: &[&str]) -> Redis {
        Redis::within(&std::env::temp_dir(), port, options)
    }

    fn within(place: &Path, port: Option<u16>, options: &[&str]) -> Redis {
        let directory = tempfile::Builder::new().prefix("nx").tempdir_in(place).expect("a directory for the server");
        std::fs::create_dir(directory.path().join("data")).expect("and one for its data");
        let options = options.iter().map(|&option| option.to_owned()).collect();
        let inspected = AtomicBool::new(true);
        Redis { directory, options, port, process: None, password: None, clock: None, configuration: None, inspected }
    }

    fn boot(&mut self) -> io::Result<()> {
        let mut command = launched("redis-server");
        if let Some(file) = &self.configuration {
            command.arg(file).arg("--sentinel");
        } else {
            command.args(["--port", &self.port.unwrap_or(0).to_string(), "--bind", "127.0.0.1"]);
            command.arg("--unixsocket").arg(self.socket());
            command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
            command.arg("--dir").arg(self.data());
        }
        if let Some(clock) = &self.clock {
            command.envs(clock.environment());
        }
        command.args(&self.options).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("the launcher starts");
        let child = self.process.insert(child);
        let socket = self.directory.path().join("s");
        let info = info(&socket, None);
        let began = now();
        loop {
            if let Some(status) = child.try_wait()? {
                assert!(
                    status.code() != Some(NOT_FOUND),
                    "redis-server is not installed, and these tests need it: `apt-get install redis-server` \
                     (Debian, Ubuntu), `dnf install redis` (Fedora), `apk add redis` (Alpine)"
                );
                return Err(io::Error::other(format!("redis-server ended: {status}")));
            }
            // Any reply will do: the server may require a password, or be loading.
            let answered = redis::Client::open(info.clone())
                .and_then(|client| client.get_connection())
                .map(|mut connection| redis::cmd("PING").query::<()>(&mut connection));
            if matches!(&answered, Ok(reply) if reply.as_ref().err().is_none_or(|error| !error.is_io_error())) {
                break;
            }
            pause(began.elapsed());
        }
        Ok(())
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    /// Returns the directory where it saves.
    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Returns a directory for the files of a test.
    pub fn directory(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    /// Returns its clock; panics if it has none of its own.
    pub fn clock(&self) -> &Clock {
        self.clock.as_ref().expect("a server with a clock of its own")
    }

    pub fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Returns the URL, with the password if there is one.
    pub(super) fn login(&self) -> String {
        match &self.password {
            Some(password) => format!("{}?pass={password}", self.url()),
            None => self.url(),
        }
    }

    pub fn port(&self) -> u16 {
        self.port.expect("a server with a port")
    }

    /// Returns a call of nxlock with this server in its environment.
    pub fn nxlock<I: IntoIterator<Item: Into<std::ffi::OsString>>>(&self, args: I) -> Nxlock {
        Nxlock::new(args).env("NXLOCK_SERVER", self.login())
    }

    /// Sends a request as another client than nxlock.
    #[track_caller]
    pub fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_ask(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    pub fn try_ask<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut self.connection()?)
    }

    pub fn connection(&self) -> RedisResult<Connection> {
        redis::Client::open(info(&self.socket(), self.password.as_deref()))?.get_connection()
    }

    /// Sets a key to an exact value, of any bytes, with an optional expiry. Replaces what it is, of any type, in one step:
    /// a holder never sees it gone.
    pub fn put(&self, key: &str, value: &[u8], ttl_ms: Option<u64>) {
        let mut set = redis::cmd("SET");
        set.arg(key).arg(value);
        if let Some(ttl) = ttl_ms {
            set.arg("PX").arg(ttl);
        }
        set.exec(&mut self.connection().expect("connected")).expect("set");
    }

    pub fn value(&self, key: &str) -> Option<String> {
        self.ask(&["GET", key])
    }

    pub fn exists(&self, key: &str) -> bool {
        self.ask(&["EXISTS", key])
    }

    pub fn pttl(&self, key: &str) -> i64 {
        self.ask(&["PTTL", key])
    }

    /// A function of Lua: when a key expires, in ms by the clock of the server; -1 if it does not, and -2 if it is not
    /// there. A server before 7.0 does not say it, but how long the key lasts: that is added to the clock, if the server was
    /// not held up between the two.
    pub const EXPIRES: &str = "
        local function now()
          local time = redis.call('TIME')
          return time[1] * 1000000 + time[2]
        end
        local function expires(key)
          local at = redis.pcall('PEXPIRETIME', key)
          while type(at) ~= 'number' do
            local began = now()
            local left = redis.call('PTTL', key)
            if now() - began < 1000 then at = left < 0 and left or math.floor(began / 1000) + left end
          end
          return at
        end";

    /// Returns when a key expires, as `EXPIRES` does.
    pub fn expires(&self, key: &str) -> i64 {
        self.ask(&["EVAL", &format!("{} return expires(KEYS[1])", Redis::EXPIRES), "1", key])
    }

    /// Waits until the end of a key has been put off.
    #[track_caller]
    pub fn sees_a_renewal(&self, key: &str) {
        // PTTL, asked twice, does not show a renewal: time passes between the two.
        let end = self.expires(key);
        // Of a server before 7.0, it may differ in its last ms.
        eventually("it is renewed", || self.expires(key) > end + 10);
    }

    /// Waits for a renewal, and not until one is due: this halves what is left of the lease, the server tells the holder
    /// that the key was changed, and the holder renews the lock at once.
    #[track_caller]
    pub fn renews_soon(&self, key: &str) {
        let half = self.pttl(key) / 2;
        assert!(self.ask::<bool>(&["PEXPIRE", key, &half.to_string()]), "there is no {key}");
        eventually("it is renewed", || self.pttl(key) > half);
    }

    pub fn delete(&self, key: &str) {
        assert_eq!(self.ask::<i64>(&["DEL", key]), 1, "there is no {key}");
    }

    /// Loads the script of nxlock, so that no request of nxlock is one more for that.
    pub fn knows_the_script(&self) {
        let lines = include_str!("../../src/store/redis/lock.lua").lines().map(str::trim_start);
        let text = lines.filter(|line| !line.is_empty() && !line.starts_with("--")).flat_map(|line| [line, "\n"]);
        let loaded = self.try_ask::<String>(&["SCRIPT", "LOAD", &text.collect::<String>()]);
        loaded.expect("the server takes scripts");
    }

    /// Returns how many scripts the server has run, for all clients.
    pub fn scripts_run(&self) -> u64 {
        let stats: String = self.ask(&["INFO", "commandstats"]);
        let calls = ["cmdstat_eval:calls=", "cmdstat_evalsha:calls="].map(|name| {
            let calls = stats.lines().find_map(|line| line.strip_prefix(name)?.split(',').next());
            calls.map_or(0, |calls| calls.parse::<u64>().expect("a number"))
        });
        calls.iter().sum()
    }

    /// Asserts that nothing is left of the lock `job` but its fence.
    #[track_caller]
    pub fn has_only_a_fence(&self) {
        assert_eq!(self.ask::<Vec<String>>(&["KEYS", "*"]), ["{lock:job}:fence"]);
    }

    /// Returns how many clients the server tells of changes.
    pub fn tells(&self) -> usize {
        let tracks = |line: &&str| line.split(' ').any(|field| field.starts_with("flags=") && field.contains('t'));
        self.ask::<String>(&["CLIENT", "LIST"]).lines().filter(tracks).count()
    }

    /// Returns how many connections are open, without this one.
    pub fn others_connected(&self) -> usize {
        self.ask::<String>(&["CLIENT", "LIST"]).lines().count() - 1
    }

    /// Stops the server, without closing anything.
    pub fn hang(&self) {
        self.signal(Signal::SIGSTOP);
        eventually("the server is stopped", || state_of(self.pid().as_raw()) == Some('T'));
    }

    pub fn is_hanging(&self) -> bool {
        self.process.is_some() && state_of(self.pid().as_raw()) == Some('T')
    }

    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Kills the server, as by a power failure.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("killed");
            process.wait().expect("reaped");
        }
        let _ = std::fs::remove_file(self.socket());
    }

    /// Restarts the server at the same address, with only the data that it was configured to save, and waits until it has
    /// loaded them.
    pub fn restart(&mut self) {
        self.starts_again();
        eventually("it has loaded", || self.serves());
    }

    /// Restarts the server with options that the next restart no longer has and that make it slow to load its data. The
    /// server listens, and may still be loading.
    pub fn restart_slowly_with(&mut self, options: &[&str]) {
        let before = self.options.clone();
        self.options.extend(options.iter().map(|&option| option.to_owned()));
        self.starts_again();
        self.options = before;
    }

    fn starts_again(&mut self) {
        self.kill();
        self.boot().expect("redis-server starts again");
    }

    /// Returns whether the server answers and is not loading. It may refuse those who have no password.
    pub fn serves(&self) -> bool {
        match self.try_ask::<()>(&["PING"]) {
            Ok(()) => true,
            Err(error) => !error.is_io_error() && error.code() != Some("LOADING"),
        }
    }

    /// Disables the check of the keys that this server holds at its end, also after a restart.
    pub fn leave_as_it_is(&self) {
        self.inspected.store(false, Ordering::Relaxed);
    }

    fn pid(&self) -> Pid {
        let id = self.process.as_ref().expect("the server runs").id();
        Pid::from_raw(id.cast_signed())
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("the server runs");
    }

    /// Returns the keys in any database that do not expire, or are neither a fence nor a record of runs.
    pub(super) fn litter(&self) -> Vec<Litter> {
        let mut connection = self.connection().expect("the server answers");
        let mut litter = Vec::new();
        // A server has 16, a cluster node only one.
        for database in 0.. {
            if redis::cmd("SELECT").arg(database).exec(&mut connection).is_err() {
                break;
            }
            let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut connection).expect("keys");
            for key in keys {
                let pttl: i64 = redis::cmd("PTTL").arg(&key).query(&mut connection).expect("pttl");
                let stays = key.starts_with(b"{") && (key.ends_with(b"}:fence") || key.ends_with(b"}:runs"));
                // -2: it has gone meanwhile.
                if (!stays && pttl != -2) || pttl == -1 {
                    litter.push(Litter { database, key: String::from_utf8_lossy(&key).into_owned(), pttl });
                }
            }
        }
        litter
    }
}

/// How late the last request of a process that has ended may arrive.
const LATE: Duration = Duration::from_secs(2);

/// A key that nobody should have left.
pub(super) struct Litter {
    database: usize,
    key: String,
    /// As PTTL replies: -1 if the key does not expire.
    pttl: i64,
}

impl fmt::Debug for Litter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (pttl {})", self.database, self.key, self.pttl)
    }
}

impl Litter {
    fn expires_soon(&self) -> bool {
        (0..100).contains(&self.pttl)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let mut litter = Vec::new();
        if self.process.is_some() && self.inspected.load(Ordering::Relaxed) && !std::thread::panicking() {
            // The last requests to a minority of servers are sent and not waited for. A key that expires was not deleted
            // by any.
            let began = now();
            litter = self.litter();
            while !litter.is_empty() && !litter.iter().any(Litter::expires_soon) && began.elapsed() < LATE {
                pause(began.elapsed());
                litter = self.litter();
            }
        }
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        assert!(litter.is_empty(), "left behind in the server: {litter:?}");
    }
}

fn info(socket: &Path, password: Option<&str>) -> redis::ConnectionInfo {
    let settings = RedisConnectionInfo::default();
    let settings = match password {
        Some(password) => settings.set_password(password),
        None => settings,
    };
    let address = ConnectionAddr::Unix(socket.to_owned());
    address.into_connection_info().expect("an address").set_redis_settings(settings)
}

/// Returns a port on which nobody listens now.
pub fn unused_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its number").port()
}
