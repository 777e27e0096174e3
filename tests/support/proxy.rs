//! Between nxlock and its server: what the network can do to a request and its reply.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use super::{Nxlock, Redis, lasts};

/// What becomes of a request, counted from 1 over all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Delivered,
    /// The server has carried it out; the connection is cut instead of a reply.
    Cut,
    /// The server has carried it out; its reply never comes.
    ReplySwallowed,
    /// It never gets to the server, and nothing says so.
    Blackholed,
    /// The server gets it when the test lets it go, whether its client is still there or not.
    Held,
    /// Its reply takes so long.
    Slow(Duration),
    /// The connection ends behind its reply.
    Last,
    /// It does not get to the server; this is said instead.
    Answered(&'static str),
}

pub struct Proxy {
    directory: TempDir,
    requests: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<String>>>,
    gate: Arc<Gate>,
}

impl Proxy {
    pub fn to(redis: &Redis, fate: impl Fn(usize) -> Fate + Send + Sync + 'static) -> Proxy {
        Proxy::by_command(redis, move |number, _| fate(number))
    }

    /// The same, by the beginning of the request too.
    pub fn by_command(redis: &Redis, fate: impl Fn(usize, &str) -> Fate + Send + Sync + 'static) -> Proxy {
        let directory = tempfile::Builder::new().prefix("nxp").tempdir().expect("a directory for the proxy");
        let listener = UnixListener::bind(directory.path().join("s")).expect("a socket");
        let proxy = Proxy {
            directory,
            requests: Arc::default(),
            connections: Arc::default(),
            seen: Arc::default(),
            gate: Arc::default(),
        };
        let line = Line {
            server: redis.socket(),
            requests: Arc::clone(&proxy.requests),
            seen: Arc::clone(&proxy.seen),
            gate: Arc::clone(&proxy.gate),
            fate: Arc::new(fate),
        };
        let connections = Arc::clone(&proxy.connections);
        // Both kinds of threads end with the test process at the latest.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                connections.fetch_add(1, Ordering::SeqCst);
                let line = line.clone();
                thread::spawn(move || line.carry(client));
            }
        });
        proxy
    }

    pub fn nxlock<I: IntoIterator<Item: Into<std::ffi::OsString>>>(&self, args: I) -> Nxlock {
        Nxlock::new(args).env("NXLOCK_SERVER", format!("unix://{}", self.socket().display()))
    }

    pub fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    /// Lets the requests go that are held, and whatever comes behind them.
    pub fn lets_go(&self) {
        self.gate.opens();
    }

    /// How many requests have come.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Of each request that has come, its first word and, of a script, its first line.
    pub fn commands(&self) -> Vec<String> {
        self.seen.lock().expect("no test has panicked in it").clone()
    }
}

#[derive(Clone)]
struct Line {
    server: PathBuf,
    requests: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<String>>>,
    gate: Arc<Gate>,
    fate: Arc<Decide>,
}

/// What becomes of a request, by its number and its beginning.
type Decide = dyn Fn(usize, &str) -> Fate + Send + Sync;

/// Closed at first.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn opens(&self) {
        *self.is_open.lock().expect("no test has panicked in it") = true;
        self.opened.notify_all();
    }

    fn wait(&self) {
        let is_open = self.is_open.lock().expect("no test has panicked in it");
        drop(self.opened.wait_while(is_open, |is_open| !*is_open));
    }
}

impl Line {
    /// One request at a time, each with its reply. Whatever ends either side ends both.
    fn carry(&self, mut client: UnixStream) -> Option<()> {
        let mut server = connect(&self.server).ok()?;
        let mut requests = redis::Parser::new();
        let mut replies = redis::Parser::new();
        loop {
            let mut heard = Recorder::of(&client);
            let request = requests.parse_value(&mut heard).ok()?;
            let request_bytes = heard.bytes;
            let number = self.requests.fetch_add(1, Ordering::SeqCst) + 1;
            let beginning = beginning(&request);
            self.seen.lock().ok()?.push(beginning.clone());
            let fate = (self.fate)(number, &beginning);
            match fate {
                Fate::Blackholed => continue,
                Fate::Answered(reply) => {
                    client.write_all(reply.as_bytes()).ok()?;
                    continue;
                }
                Fate::Held => self.gate.wait(),
                _ => {}
            }
            server.write_all(&request_bytes).ok()?;
            let mut heard = Recorder::of(&server);
            replies.parse_value(&mut heard).ok()?;
            match fate {
                Fate::Delivered => client.write_all(&heard.bytes).ok()?,
                Fate::Slow(by) => {
                    lasts(by);
                    client.write_all(&heard.bytes).ok()?;
                }
                Fate::Last => {
                    client.write_all(&heard.bytes).ok()?;
                    return None;
                }
                Fate::Cut => return None,
                // Its client may be gone, and have sent more before that.
                Fate::Held => drop(client.write_all(&heard.bytes)),
                Fate::ReplySwallowed | Fate::Blackholed | Fate::Answered(_) => {}
            }
        }
    }
}

fn connect(server: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(server)
}

fn beginning(request: &redis::Value) -> String {
    let redis::Value::Array(words) = request else { return String::new() };
    let texts = words.iter().take(2).filter_map(|word| match word {
        redis::Value::BulkString(word) => std::str::from_utf8(word).ok()?.lines().next(),
        _ => None,
    });
    texts.collect::<Vec<_>>().join(" ")
}

/// Keeps what was read, byte by byte as it came. One byte at a time, so that nothing of the next
/// message is taken with it.
struct Recorder<'a> {
    stream: &'a UnixStream,
    bytes: Vec<u8>,
}

impl<'a> Recorder<'a> {
    fn of(stream: &'a UnixStream) -> Recorder<'a> {
        Recorder { stream, bytes: Vec::new() }
    }
}

impl Read for Recorder<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(first) = buffer.first_mut() else { return Ok(0) };
        let n = self.stream.read(std::slice::from_mut(first))?;
        self.bytes.extend(&buffer[..n]);
        Ok(n)
    }
}
