//! Sentinels that say what a test has them say, of servers that are no replicas of each other: as if nothing had been
//! replicated before a failover.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, connect, listen, setsockopt};
use nix::sys::socket::{socket, sockopt};

use crate::support::{Authority, MASTER, Redis, eventually, lasts};

pub struct Scripted {
    pub servers: Vec<Redis>,
    pub sentinels: Vec<Sentinel>,
}

pub struct Sentinel {
    port: u16,
    script: Arc<Mutex<Script>>,
}

/// When a sentinel was asked, and when it answered that.
#[derive(Clone, Debug)]
pub struct Answer {
    pub asked: Instant,
    pub given: Instant,
}

/// What a sentinel says, and how.
pub struct Script {
    /// The port of the master, and the epoch.
    pub names: (u16, u64),
    /// What it names from the question of this number on, if that was not the first.
    pub then: Option<(usize, (u16, u64))>,
    /// It takes so long to answer.
    pub slow: Duration,
    /// It does not answer the questions from this number on.
    pub hangs_after: usize,
    asked: usize,
    pub answers: Vec<Answer>,
    connected: usize,
    /// The numbers of the connections that carry nothing any more, without an error.
    dead: HashSet<usize>,
    /// Shut down when it is out of reach.
    streams: Vec<TcpStream>,
    is_out_of_reach: bool,
}

impl Scripted {
    /// Starts servers, and three sentinels that name the first one, of epoch 1.
    pub fn of(servers: usize) -> Scripted {
        let servers: Vec<Redis> = (0..servers).map(|_| Redis::on_tcp(&[])).collect();
        let sentinels = (0..3).map(|_| Sentinel::naming(servers[0].port())).collect();
        Scripted { servers, sentinels }
    }

    /// Has all sentinels name this server.
    pub fn name(&self, server: usize, epoch: u64) {
        let names = (self.servers[server].port(), epoch);
        self.sentinels.iter().for_each(|sentinel| sentinel.now().names = names);
    }
}

impl Script {
    /// Returns how many questions it has been asked.
    pub fn asked(&self) -> usize {
        self.asked
    }
}

impl Authority for Scripted {
    fn url(&self) -> String {
        let hosts: Vec<String> = self.sentinels.iter().map(|one| format!("127.0.0.1:{}", one.port)).collect();
        format!("redis+sentinel://{}/{MASTER}", hosts.join(","))
    }

    fn directory(&self) -> PathBuf {
        self.servers[0].directory()
    }
}

impl Sentinel {
    fn naming(master: u16) -> Sentinel {
        let script = Script {
            names: (master, 1),
            then: None,
            slow: Duration::ZERO,
            hangs_after: usize::MAX,
            asked: 0,
            answers: Vec::new(),
            connected: 0,
            dead: HashSet::new(),
            streams: Vec::new(),
            is_out_of_reach: false,
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        let sentinel = Sentinel { port, script: Arc::new(Mutex::new(script)) };
        sentinel.serves(listener);
        sentinel
    }

    /// Returns its script, to read or to change.
    pub fn now(&self) -> MutexGuard<'_, Script> {
        self.script.lock().expect("no test has panicked in it")
    }

    /// Has all its connections carry nothing any more, without an error, as if a packet filter had forgotten them.
    pub fn loses_its_connections(&self) {
        let mut script = self.now();
        script.dead = (0..script.connected).collect();
    }

    fn serves(&self, listener: TcpListener) {
        let script = Arc::clone(&self.script);
        // Both kinds of threads end with the test process at the latest.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let mut now = script.lock().expect("no test has panicked in it");
                if now.is_out_of_reach {
                    return;
                }
                let number = now.connected;
                now.connected += 1;
                now.streams.extend(client.try_clone());
                drop(now);
                let script = Arc::clone(&script);
                thread::spawn(move || answer(client, number, &script));
            }
        });
    }

    /// Ends its connections, and lets no other client connect, nor fail to, until the result is dropped.
    pub fn is_out_of_reach(&self) -> OutOfReach<'_> {
        let mut now = self.now();
        now.is_out_of_reach = true;
        now.streams.drain(..).for_each(|stream| drop(stream.shutdown(std::net::Shutdown::Both)));
        drop(now);
        // The listener goes when it sees the next client.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        let address = SockaddrIn::new(127, 0, 0, 1, self.port);
        let new = |flags| socket(AddressFamily::Inet, SockType::Stream, flags | SockFlag::SOCK_CLOEXEC, None);
        let full = new(SockFlag::empty()).expect("a socket");
        setsockopt(&full, sockopt::ReuseAddr, &true).expect("an option");
        eventually("the port is free", || bind(full.as_raw_fd(), &address).is_ok());
        listen(&full, Backlog::new(0).expect("a length")).expect("it listens");
        // With its backlog full, a listener drops further connections.
        let mut sockets = vec![full];
        for _ in 0..4 {
            let client = new(SockFlag::SOCK_NONBLOCK).expect("a socket");
            let _ = connect(client.as_raw_fd(), &address);
            sockets.push(client);
        }
        OutOfReach { sentinel: self, sockets }
    }
}

pub struct OutOfReach<'a> {
    sentinel: &'a Sentinel,
    sockets: Vec<std::os::fd::OwnedFd>,
}

impl Drop for OutOfReach<'_> {
    fn drop(&mut self) {
        self.sockets.clear();
        self.sentinel.now().is_out_of_reach = false;
        let mut listener = None;
        eventually("the port is free", || {
            listener = TcpListener::bind(("127.0.0.1", self.sentinel.port)).ok();
            listener.is_some()
        });
        self.sentinel.serves(listener.expect("it is bound"));
    }
}

/// Answers the questions of one client. Each is two requests: SENTINEL GET-MASTER-ADDR-BY-NAME, and SENTINEL MASTER.
fn answer(mut client: TcpStream, number: usize, script: &Mutex<Script>) -> io::Result<()> {
    let mut heard = Vec::new();
    loop {
        let mut bytes = [0; 4096];
        let n = client.read(&mut bytes)?;
        if n == 0 {
            return Ok(());
        }
        heard.extend_from_slice(&bytes[..n]);
        if !heard.ends_with(format!("\r\n{MASTER}\r\n").as_bytes()) || heard.windows(8).filter(is_request).count() < 2 {
            continue;
        }
        heard.clear();
        let asked = crate::support::now();
        let mut now = script.lock().expect("no test has panicked in it");
        now.asked += 1;
        if now.dead.contains(&number) || now.asked > now.hangs_after {
            continue;
        }
        let (port, epoch) = now.then.filter(|(from, _)| now.asked >= *from).map_or(now.names, |(_, names)| names);
        let slow = now.slow;
        drop(now);
        lasts(slow);
        let (port, epoch) = (port.to_string(), epoch.to_string());
        let reply = array(&["127.0.0.1", &port]) + &array(&["name", MASTER, "config-epoch", &epoch]);
        script.lock().expect("as above").answers.push(Answer { asked, given: crate::support::now() });
        client.write_all(reply.as_bytes())?;
    }
}

fn is_request(bytes: &&[u8]) -> bool {
    bytes.eq_ignore_ascii_case(b"SENTINEL")
}

fn array(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{}", words.len(), words.concat())
}
