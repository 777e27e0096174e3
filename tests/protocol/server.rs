//! A redis-server for one test: on a Unix socket, without persistence, killed when dropped, and when the tests die.
//!
//! Owns the process, its directory, the calls of the scripts, and the time. Must not know what the scripts mean.

use std::iter::once;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::sys::signal::Signal;
use redis::{Client, Connection, FromRedisValue, RedisResult, Value, cmd};
use tempfile::TempDir;

use crate::scripts::{Base, Form, Script};
use crate::search::Fault;

pub const KEYS: [&str; 4] = ["lock:x", "{lock:x}:queue", "{lock:x}:waiters", "{lock:x}:fence"];

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

fn eval(connection: &mut Connection, script: Script, args: &[&str]) -> RedisResult<Value> {
    eval_text(connection, script, script.text(), args)
}

/// Calls a script with a fault in its text, and flattens the reply.
pub fn eval_with(connection: &mut Connection, script: Script, fault: Option<Fault>, args: &[&str]) -> Vec<String> {
    let text = str::from_utf8(script.text()).unwrap();
    let text = fault.map_or(text.to_owned(), |(from, to)| text.replace(from, to));
    words(eval_text(connection, script, text.as_bytes(), args).unwrap()).unwrap()
}

fn eval_text(connection: &mut Connection, script: Script, text: &[u8], args: &[&str]) -> RedisResult<Value> {
    let verb = if script == Script::Inspect { "EVAL_RO" } else { "EVAL" };
    let beside = script.companions().into_iter().map(|what| format!("{{{}}}:{what}", KEYS[0]));
    let keys: Vec<String> = once(KEYS[0].to_owned()).chain(beside).collect();
    cmd(verb).arg(text).arg(keys.len()).arg(keys).arg(args).query(connection)
}

pub fn acquire(connection: &mut Connection, args: [&str; 7]) -> RedisResult<Value> {
    eval(connection, Script::Acquire(Form::default()), &args)
}

pub fn release(connection: &mut Connection, token: &str) -> RedisResult<Value> {
    eval(connection, Script::Release(Form::default()), &[token])
}

pub fn renew(connection: &mut Connection, token: &str, ttl: &str) -> RedisResult<Value> {
    eval(connection, Script::Renew(Base::Exclusive), &[token, ttl, "set"])
}

/// Renews as a process that does not keep the lock.
pub fn prolong(connection: &mut Connection, token: &str, ttl: &str) -> RedisResult<Value> {
    eval(connection, Script::Renew(Base::Exclusive), &[token, ttl, "prolong"])
}

/// Sends what follows a renewal that has moved the expiry nearer.
pub fn nudge(connection: &mut Connection) -> RedisResult<Value> {
    eval(connection, Script::Nudge, &[""])
}

pub fn beside_setnx(connection: &mut Connection, script: Script, args: &[&str]) -> RedisResult<Value> {
    eval(connection, script, args)
}

pub fn share(connection: &mut Connection, script: Script, args: &[&str]) -> RedisResult<Value> {
    eval(connection, script, args)
}

pub fn inspect(connection: &mut Connection) -> RedisResult<Value> {
    eval(connection, Script::Inspect, &[])
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
