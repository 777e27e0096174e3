//! A proxy between nxlock and its server: what the network can do to a request and its reply.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use super::{Nxlock, Redis, eventually, lasts};

/// What happens to a request, counted from 1 over all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Delivered,
    /// The server executes it; the connection is closed instead of a reply.
    Cut,
    /// The connection is closed before it reaches the server.
    CutBefore,
    /// The server executes it; its reply is lost.
    ReplySwallowed,
    /// It never reaches the server, without an error.
    Blackholed,
    /// It reaches the server when the test releases it, even if its client is gone.
    Held,
    /// Its reply is delayed by so long.
    Slow(Duration),
    /// Its reply arrives, and of what the server says unasked from then on nothing.
    Deafened,
    /// The connection is closed after its reply.
    Last,
    /// It never reaches the server; the proxy sends this reply instead.
    Answered(&'static str),
    /// It never reaches the server; the proxy sends the first of these, and then the second without end.
    Endless(&'static str, &'static str),
    /// The proxy sends these likewise, behind its reply.
    Followed(&'static str, &'static str),
}

pub struct Proxy {
    directory: TempDir,
    requests: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
    /// How many of the connections have not ended.
    lines: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<String>>>,
    gate: Arc<Gate>,
}

impl Proxy {
    pub fn to(redis: &Redis, fate: impl Fn(usize) -> Fate + Send + Sync + 'static) -> Proxy {
        Proxy::by_command(redis, move |number, _| fate(number))
    }

    /// Returns a proxy at which only HELLO meets this fate: it does not know RESP3.
    pub fn of_hello(redis: &Redis, fate: Fate) -> Proxy {
        Proxy::by_command(redis, move |_, command| match command.starts_with("HELLO") {
            true => fate,
            false => Fate::Delivered,
        })
    }

    /// Returns a proxy at which only the first request that begins with these words meets this fate. A run that takes
    /// longer than a tenth of a second sends others between its grant and its release.
    pub fn of_first(redis: &Redis, words: &'static str, fate: Fate) -> Proxy {
        let is_over = AtomicBool::new(false);
        Proxy::by_command(redis, move |_, command| {
            let is_it = command.starts_with(words) && !is_over.swap(true, Ordering::SeqCst);
            if is_it { fate } else { Fate::Delivered }
        })
    }

    /// As `to`, but `fate` is also passed the command and its first argument; of a script, the operation and its fields.
    pub fn by_command(redis: &Redis, fate: impl Fn(usize, &str) -> Fate + Send + Sync + 'static) -> Proxy {
        redis.knows_the_script();
        let directory = tempfile::Builder::new().prefix("nxp").tempdir().expect("a directory for the proxy");
        let listener = UnixListener::bind(directory.path().join("s")).expect("a socket");
        let proxy = Proxy {
            directory,
            requests: Arc::default(),
            connections: Arc::default(),
            lines: Arc::default(),
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
        let (connections, lines) = (Arc::clone(&proxy.connections), Arc::clone(&proxy.lines));
        // Both kinds of threads end with the test process at the latest.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                connections.fetch_add(1, Ordering::SeqCst);
                lines.fetch_add(1, Ordering::SeqCst);
                let (line, lines) = (line.clone(), Arc::clone(&lines));
                thread::spawn(move || {
                    line.carry(client);
                    lines.fetch_sub(1, Ordering::SeqCst);
                });
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

    /// Releases the held requests, and all that follow.
    pub fn lets_go(&self) {
        self.gate.opens();
    }

    /// Waits until the server has executed all that clients have sent which are gone by now: the proxy may still have what
    /// they sent last, without waiting for the reply.
    #[track_caller]
    pub fn has_carried_all(&self) {
        // This one is accepted last: when it has ended, all before it are counted.
        let mut last = connect(&self.socket()).expect("the proxy accepts connections");
        last.shutdown(Shutdown::Write).expect("the connection is open");
        last.read_to_end(&mut Vec::new()).expect("the proxy ends the connection");
        eventually("all that was sent is executed", || self.lines.load(Ordering::SeqCst) == 0);
    }

    /// Returns how many requests have arrived.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Returns the first word of each request that has arrived and, of a script, its first line.
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

/// Decides the fate of a request, by its number, its command and its first argument.
type Decide = dyn Fn(usize, &str) -> Fate + Send + Sync;

/// Initially closed.
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

/// A request that was forwarded.
struct Outstanding {
    fate: Fate,
    /// Of how many values its reply consists, unless it is an error.
    values: usize,
}

impl Line {
    /// Forwards one request at a time, each with its reply, and at any time what the server says unasked. The end of one side
    /// ends both.
    fn carry(&self, mut client: UnixStream) -> Option<()> {
        let mut server = connect(&self.server).ok()?;
        let to_client = Arc::new(Mutex::new(client.try_clone().ok()?));
        let (ask, asked) = mpsc::channel();
        let (answer, answered) = mpsc::channel();
        let (from_server, back) = (server.try_clone().ok()?, Arc::clone(&to_client));
        let both = (client.try_clone().ok()?, server.try_clone().ok()?);
        thread::spawn(move || {
            carry_back(&from_server, &back, &asked, &answer);
            ends(&both.0, &both.1);
        });
        self.forward(&mut client, &mut server, &to_client, &ask, &answered);
        ends(&client, &server);
        Some(())
    }

    fn forward(
        &self,
        client: &mut UnixStream,
        server: &mut UnixStream,
        to_client: &Mutex<UnixStream>,
        ask: &Sender<Outstanding>,
        answered: &Receiver<()>,
    ) -> Option<()> {
        let mut requests = redis::Parser::new();
        loop {
            let mut heard = Recorder::of(client);
            let request = requests.parse_value(&mut heard).ok()?;
            let request_bytes = heard.bytes;
            let number = self.requests.fetch_add(1, Ordering::SeqCst) + 1;
            let words = first_words(&request);
            self.seen.lock().ok()?.push(words.lines().next().unwrap_or_default().to_owned());
            let fate = (self.fate)(number, &words);
            match fate {
                Fate::Blackholed => continue,
                Fate::CutBefore => return None,
                Fate::Answered(reply) => {
                    to_client.lock().ok()?.write_all(reply.as_bytes()).ok()?;
                    continue;
                }
                Fate::Endless(begin, rest) => {
                    return says_without_end(&mut *to_client.lock().ok()?, begin, rest);
                }
                Fate::Held => self.gate.wait(),
                _ => {}
            }
            ask.send(Outstanding { fate, values: values_of_reply(&request) }).ok()?;
            server.write_all(&request_bytes).ok()?;
            answered.recv().ok()?;
        }
    }
}

/// Carries what the server says to the client. The client may be gone, after sending more requests: they are forwarded, so
/// that it does not hear ends nothing.
fn carry_back(
    server: &UnixStream,
    client: &Mutex<UnixStream>,
    asked: &Receiver<Outstanding>,
    answered: &Sender<()>,
) -> Option<()> {
    let pass = |bytes: &[u8]| client.lock().ok().map(|mut client| drop(client.write_all(bytes)));
    let mut said = redis::Parser::new();
    let mut outstanding = None;
    let mut reply = Vec::new();
    let mut is_deaf = false;
    loop {
        let mut heard = Recorder::of(server);
        let value = said.parse_value(&mut heard).ok()?;
        outstanding = outstanding.or_else(|| asked.try_recv().ok());
        let Some(Outstanding { fate, values }) = outstanding.take_if(|_| !is_unasked(&value)) else {
            if !is_deaf {
                pass(&heard.bytes)?;
            }
            continue;
        };
        reply.extend(heard.bytes);
        if values > 1 && !matches!(value, redis::Value::ServerError(_)) {
            outstanding = Some(Outstanding { fate, values: values - 1 });
            continue;
        }
        let reply = std::mem::take(&mut reply);
        match fate {
            Fate::Cut => return None,
            Fate::ReplySwallowed => {}
            Fate::Slow(by) => {
                lasts(by);
                pass(&reply)?;
            }
            Fate::Deafened => {
                is_deaf = true;
                pass(&reply)?;
            }
            Fate::Last => {
                pass(&reply)?;
                return None;
            }
            Fate::Followed(begin, rest) => {
                pass(&reply)?;
                return says_without_end(&mut *client.lock().ok()?, begin, rest);
            }
            _ => pass(&reply)?,
        }
        answered.send(()).ok()?;
    }
}

fn says_without_end(client: &mut UnixStream, begin: &str, rest: &str) -> Option<()> {
    client.write_all(begin.as_bytes()).ok()?;
    let much = rest.repeat(16 * 1024);
    loop {
        client.write_all(much.as_bytes()).ok()?;
    }
}

/// Ends both sides of a line.
fn ends(client: &UnixStream, server: &UnixStream) {
    for side in [client, server] {
        // It may have ended.
        let _ = side.shutdown(Shutdown::Both);
    }
}

/// Returns of how many values the reply to a request consists: each channel of a subscription has one.
fn values_of_reply(request: &redis::Value) -> usize {
    match request {
        redis::Value::Array(words) if words.first() == Some(&redis::Value::BulkString(b"SUBSCRIBE".into())) => {
            words.len() - 1
        }
        _ => 1,
    }
}

fn connect(server: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(server)
}

/// Returns whether a value is no reply to a request.
fn is_unasked(value: &redis::Value) -> bool {
    matches!(value, redis::Value::Push { kind, .. } if *kind != redis::PushKind::Subscribe)
}

/// Returns the command and its first argument: of a script, the operation and its fields.
fn first_words(request: &redis::Value) -> String {
    let redis::Value::Array(words) = request else { return String::new() };
    let word = |at: usize| match words.get(at) {
        Some(redis::Value::BulkString(word)) => std::str::from_utf8(word).unwrap_or_default(),
        _ => "",
    };
    let keys: usize = word(2).parse().unwrap_or(0);
    let shown = match word(0).starts_with("EVAL") {
        true => [word(0), word(3 + keys)].into_iter().chain((4 + keys..words.len()).step_by(2).map(word)).collect(),
        false => vec![word(0), word(1)],
    };
    shown.join(" ")
}

/// Records the bytes that were read. It takes nothing of the next message: it reads one byte at a time, except of a text
/// whose length it has read.
struct Recorder<'a> {
    stream: &'a UnixStream,
    bytes: Vec<u8>,
    /// How many of the next bytes are of a text.
    of_text: usize,
}

impl<'a> Recorder<'a> {
    fn of(stream: &'a UnixStream) -> Recorder<'a> {
        Recorder { stream, bytes: Vec::new(), of_text: 0 }
    }

    /// Returns the length of the text that the last line announces, with the end of its line.
    fn announced(&self) -> Option<usize> {
        let line = self.bytes.strip_suffix(b"\r\n")?.rsplit(|byte| *byte == b'\n').next()?;
        let length = std::str::from_utf8(line).ok()?.strip_prefix(['$', '=', '!'])?;
        Some(length.parse::<usize>().ok()? + 2)
    }
}

impl Read for Recorder<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = self.of_text.max(1).min(buffer.len());
        let n = self.stream.read(&mut buffer[..most])?;
        self.bytes.extend(&buffer[..n]);
        self.of_text = if self.of_text > 0 { self.of_text - n } else { self.announced().unwrap_or(0) };
        Ok(n)
    }
}
