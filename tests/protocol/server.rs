//! A redis-server for one test: on a Unix socket, without persistence, killed when dropped, and when the tests die.
//!
//! Owns the process, its directory, the calls of the script, and the time. Must not know what the script means.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::sys::signal::Signal;
use redis::{Client, Connection, FromRedisValue, RedisResult, Value, cmd};
use tempfile::TempDir;

use crate::script;

pub const KEY: &str = "lock:x";

pub struct Server {
    process: Child,
    directory: TempDir,
}

impl Server {
    pub fn start() -> Server {
        Server::listening(0).expect("redis-server starts")
    }

    /// Starts a server with a TCP port too, which another server can reach.
    pub fn on_tcp() -> (Server, u16) {
        // Another process may take the port before the server does: then try another.
        for _ in 0..20 {
            let unused = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
            let port = unused.expect("a port").port();
            if let Some(server) = Server::listening(port) {
                return (server, port);
            }
        }
        panic!("no port is left to a redis-server");
    }

    fn listening(port: u16) -> Option<Server> {
        let directory = tempfile::Builder::new().prefix("nx").tempdir().expect("a directory for the server");
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.arg("--dir").arg(directory.path()).arg("--unixsocket").arg(directory.path().join("s"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: prctl(2) is async-signal-safe.
        unsafe { command.pre_exec(|| Ok(prctl::set_pdeathsig(Signal::SIGKILL)?)) };
        let process = command.spawn().expect("redis-server is installed");
        let mut server = Server { process, directory };
        let mut ended = false;
        let began = Stopwatch::start();
        while !ended && server.try_connect().is_err() {
            ended = server.process.try_wait().expect("it is our child").is_some();
            began.again("the server is up");
        }
        (!ended).then_some(server)
    }

    pub fn connect(&self) -> Connection {
        self.try_connect().unwrap()
    }

    fn try_connect(&self) -> RedisResult<Connection> {
        let socket = self.directory.path().join("s");
        let mut connection = Client::open(format!("unix://{}", socket.display()))?.get_connection()?;
        cmd("PING").query::<()>(&mut connection)?;
        Ok(connection)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "the one place where these tests ask for the time")]
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    /// Sleeps before the next check of a condition; panics after 20 s.
    #[expect(clippy::disallowed_methods, reason = "the one pause, between two looks at a fact")]
    fn again(&self, what: &str) {
        assert!(self.elapsed() < Duration::from_secs(20), "it never came about that {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Waits until a condition is true.
pub fn until(what: &str, mut fact: impl FnMut() -> bool) {
    let began = Stopwatch::start();
    while !fact() {
        began.again(what);
    }
}

/// An answer of the script: of each field the words.
#[derive(Debug)]
pub struct Answer(BTreeMap<String, Vec<String>>);

impl Answer {
    /// Reads field, value, field, value.
    pub fn read(parts: &[Value]) -> Answer {
        let text = |part: &Value| words(part.clone()).unwrap();
        Answer(parts.chunks(2).map(|pair| (text(&pair[0]).concat(), text(&pair[1]))).collect())
    }

    pub fn of(&self, field: &str) -> String {
        self.all(field).concat()
    }

    pub fn all(&self, field: &str) -> &[String] {
        self.0.get(field).map_or(&[], Vec::as_slice)
    }

    pub fn number(&self, field: &str) -> i64 {
        self.of(field).parse().unwrap_or_else(|_| panic!("{field} is no number: {self:?}"))
    }

    pub fn is_granted(&self) -> bool {
        self.of("verdict") == "granted"
    }

    pub fn waits(&self) -> bool {
        self.of("verdict") == "waiting"
    }
}

/// Returns the key of a companion.
pub fn companion(name: &str) -> String {
    script::companion(KEY, name)
}

/// Calls the script, with the keys that it needs for these fields.
pub fn call(connection: &mut Connection, operation: &str, fields: &[(&str, &str)]) -> RedisResult<Answer> {
    let of = |field: &str| fields.iter().find(|(name, _)| *name == field).map_or("", |(_, it)| *it);
    let keys = script::keys(KEY, of("token"), !of("who").is_empty());
    let only_reads = matches!(operation, "inspect" | "history");
    let mut eval = cmd(if only_reads { "EVAL_RO" } else { "EVAL" });
    eval.arg(script::LUA).arg(keys.len()).arg(keys).arg(operation);
    fields.iter().filter(|(_, it)| !it.is_empty()).for_each(|(field, it)| _ = eval.arg(*field).arg(*it));
    eval.query(connection).map(|parts: Vec<Value>| Answer::read(&parts))
}

/// Asks for the lock as clients mostly do: a ttl, a lease and a grace of a minute.
pub fn acquire(connection: &mut Connection, token: &str, mode: &str, more: &[(&str, &str)]) -> RedisResult<Answer> {
    let usual = [("token", token), ("ttl", "60000"), ("mode", mode), ("lease", "60000"), ("grace", "60000")];
    let unless = |field: &(&str, &str)| more.iter().all(|(name, _)| *name != field.0);
    let fields: Vec<(&str, &str)> = usual.into_iter().filter(unless).chain(more.iter().copied()).collect();
    call(connection, "acquire", &fields)
}

pub fn release(connection: &mut Connection, token: &str) -> RedisResult<Answer> {
    call(connection, "release", &[("token", token)])
}

pub fn renew(connection: &mut Connection, token: &str, ttl: &str, how: &str) -> RedisResult<Answer> {
    call(connection, "renew", &[("token", token), ("ttl", ttl), ("how", how)])
}

pub fn inspect(connection: &mut Connection) -> RedisResult<Answer> {
    call(connection, "inspect", &[])
}

/// Flattens a reply: every part as text, the parts of a nested list one after the other.
pub fn words(answer: Value) -> RedisResult<Vec<String>> {
    match answer {
        Value::Array(parts) => Ok(parts.into_iter().map(words).collect::<RedisResult<Vec<_>>>()?.concat()),
        part => Ok(vec![String::from_redis_value(part)?]),
    }
}

/// Returns a connection whose SUBSCRIBE to one channel was confirmed.
pub fn listen(server: &Server, channel: &str) -> Connection {
    let mut connection = server.connect();
    cmd("SUBSCRIBE").arg(channel).query::<Value>(&mut connection).unwrap();
    connection
}

/// Waits until nobody listens to a channel whose listener's connection was closed.
pub fn is_deaf(connection: &mut Connection, channel: &str) {
    until("nobody listens", || {
        let heard: Vec<Value> = cmd("PUBSUB").arg("NUMSUB").arg(channel).query(connection).unwrap();
        heard.get(1) == Some(&Value::Int(0))
    });
}

/// Returns the messages on the channel so far: those sent before a PING are read before its reply.
pub fn heard(connection: &mut Connection) -> Vec<String> {
    let mut heard = Vec::new();
    let mut answer = words(cmd("PING").query(connection).unwrap()).unwrap();
    while answer[0] == "message" {
        heard.push(answer[2].clone());
        answer = words(connection.recv_response().unwrap()).unwrap();
    }
    heard
}
