//! Between nxlock and its server: what the network can do to a request and its reply.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use tempfile::TempDir;

use super::{Nxlock, Redis};

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
}

pub struct Proxy {
    directory: TempDir,
    requests: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    pub fn to(redis: &Redis, fate: impl Fn(usize) -> Fate + Send + Sync + 'static) -> Proxy {
        let directory = tempfile::Builder::new().prefix("nxp").tempdir().expect("a directory for the proxy");
        let listener = UnixListener::bind(directory.path().join("s")).expect("a socket");
        let proxy = Proxy { directory, requests: Arc::default(), connections: Arc::default(), seen: Arc::default() };
        let line = Line {
            server: redis.socket(),
            requests: Arc::clone(&proxy.requests),
            seen: Arc::clone(&proxy.seen),
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
    fate: Arc<dyn Fn(usize) -> Fate + Send + Sync>,
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
            self.seen.lock().ok()?.push(beginning(&request));
            let fate = (self.fate)(number);
            if fate == Fate::Blackholed {
                continue;
            }
            server.write_all(&request_bytes).ok()?;
            let mut heard = Recorder::of(&server);
            replies.parse_value(&mut heard).ok()?;
            match fate {
                Fate::Delivered => client.write_all(&heard.bytes).ok()?,
                Fate::Cut => return None,
                Fate::ReplySwallowed | Fate::Blackholed => {}
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
