//! A redis-server for one bench: on loopback TCP and on a Unix socket, without persistence; killed
//! when dropped, and when the bench dies.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redis::{Client, Connection, FromRedisValue, RedisResult, cmd};
use tempfile::TempDir;

use super::clock::pause;
use super::is_former;

pub struct Server {
    process: Child,
    directory: TempDir,
    port: u16,
}

/// The server's statistics since their last reset.
pub struct Stats {
    /// Calls of each command, including those from within scripts.
    pub calls: BTreeMap<String, u64>,
    pub connections: u64,
}

impl Stats {
    pub fn all(&self) -> u64 {
        self.calls.values().sum()
    }

    /// Returns how often scripts were run.
    pub fn scripts(&self) -> u64 {
        self.of("eval") + self.of("evalsha")
    }

    pub fn of(&self, command: &str) -> u64 {
        self.calls.get(command).copied().unwrap_or(0)
    }
}

impl Server {
    pub fn start() -> Server {
        Server::with(&[])
    }

    /// Starts a server with command line options.
    pub fn with(options: &[String]) -> Server {
        // Another process may take the port before the server does: then try another.
        let keeping = ["--save", "", "--appendonly", "no"].map(str::to_owned);
        (0..20).find_map(|_| Server::try_start(&[&keeping, options].concat())).expect("redis-server starts")
    }

    /// Starts a sentinel, which has no keys.
    pub fn as_sentinel() -> Server {
        (0..20).find_map(|_| Server::try_start(&["--sentinel".to_owned()])).expect("redis-server starts as a sentinel")
    }

    fn try_start(options: &[String]) -> Option<Server> {
        let unused = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = unused.expect("a port").port();
        let directory = tempfile::Builder::new().prefix("nx").tempdir().expect("a directory for the server");
        // A sentinel requires this file, and writes to it.
        let file = directory.path().join("conf");
        std::fs::write(&file, "").expect("a file for its configuration");
        let mut command = Command::new("redis-server");
        command.arg(file).args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
        command.arg("--dir").arg(directory.path()).arg("--unixsocket").arg(directory.path().join("s"));
        command.args(options);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: prctl(2) is async-signal-safe.
        unsafe { command.pre_exec(|| Ok(prctl::set_pdeathsig(Signal::SIGKILL)?)) };
        let process = command.spawn().expect("redis-server is installed");
        let mut server = Server { process, directory, port };
        loop {
            if server.connect().is_ok() {
                return Some(server);
            }
            if server.process.try_wait().expect("it is our child").is_some() {
                return None;
            }
            pause(Duration::from_millis(1));
        }
    }

    pub fn tcp(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn unix(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    /// Returns the URL of a directory of the measured build: no server at all.
    pub fn local(&self) -> String {
        let directory = if is_former() { "locks.former" } else { "locks" };
        format!("local:{}", self.directory.path().join(directory).display())
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns a directory for the files of a bench.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn connect(&self) -> RedisResult<Connection> {
        let mut connection = Client::open(self.unix())?.get_connection()?;
        cmd("PING").query::<()>(&mut connection)?;
        Ok(connection)
    }

    pub fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut connection = self.connect().expect("the server answers");
        let reply = cmd(words[0]).arg(&words[1..]).query(&mut connection);
        reply.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    pub fn version(&self) -> String {
        let info: String = self.ask(&["INFO", "server"]);
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        format!("redis-server {}", version.unwrap_or("of no known version"))
    }

    /// Returns the processor time that the server's main thread has used.
    pub fn cpu(&self) -> Duration {
        let info: String = self.ask(&["INFO", "cpu"]);
        let of = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        let used = ["used_cpu_user_main_thread:", "used_cpu_sys_main_thread:"].map(|name| of(name).unwrap_or_default());
        Duration::from_secs_f64(used.iter().sum())
    }

    /// Resets the statistics that [`Server::stats`] returns.
    pub fn forget_stats(&self) {
        self.ask::<()>(&["CONFIG", "RESETSTAT"]);
    }

    /// Returns the statistics, without the requests that this takes.
    pub fn stats(&self) -> Stats {
        let info: String = self.ask(&["INFO", "everything"]);
        let mut calls = BTreeMap::new();
        let mut connections = 0;
        for line in info.lines() {
            if let Some((name, rest)) = line.strip_prefix("cmdstat_").and_then(|line| line.split_once(":calls=")) {
                let number: u64 = rest.split(',').next().and_then(|n| n.parse().ok()).expect("a number of calls");
                calls.insert(name.to_owned(), number);
            } else if let Some(number) = line.strip_prefix("total_connections_received:") {
                connections = number.trim().parse().expect("a number of connections");
            }
        }
        for ours in ["ping", "info", "config|resetstat", "config"] {
            calls.remove(ours);
        }
        // Without the connection of this request.
        Stats { calls, connections: connections - 1 }
    }
}

impl Server {
    pub fn kill(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it is ours");
    }

    /// Stops the server, which then neither answers nor closes anything.
    pub fn hang(&self) {
        kill(Pid::from_raw(self.process.id().cast_signed()), Signal::SIGSTOP).expect("it runs");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
