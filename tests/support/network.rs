//! A network between nxlock and its server: it carries bytes both ways at once, whatever they mean,
//! and each way has a condition of its own that a test changes as it likes.

use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket as nix_socket};
use tempfile::TempDir;

use super::{Nxlock, Redis, lasts};

/// One of the two ways through a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the server: requests.
    There,
    /// From the server: replies, and what it publishes.
    Back,
}

/// What becomes of bytes that arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Clear,
    /// They come late, all of them, in order.
    Delayed(Duration),
    /// They come one at a time, with a pause after each.
    Trickling(Duration),
    /// They never come, and nothing says so.
    BlackHoled,
    /// The connection ends instead, on both sides. There: before the request is delivered. Back:
    /// after it was, but before its reply.
    Cut,
}

pub struct Network {
    directory: TempDir,
    conditions: Arc<Mutex<[Condition; 2]>>,
    connections: Arc<Mutex<Vec<Weak<Connection>>>>,
    closed: Arc<AtomicBool>,
}

/// One that is carried, for as long as it is.
struct Connection {
    client: UnixStream,
    server: UnixStream,
    /// It has been sent a SUBSCRIBE.
    listens: AtomicBool,
}

impl Connection {
    fn ends(&self) {
        let _ = (self.client.shutdown(Shutdown::Both), self.server.shutdown(Shutdown::Both));
    }
}

impl Network {
    pub fn to(redis: &Redis) -> Network {
        Network::to_socket(&redis.socket())
    }

    pub fn to_socket(server: &Path) -> Network {
        let directory = tempfile::Builder::new().prefix("nxn").tempdir().expect("a directory for the network");
        let listener = UnixListener::bind(directory.path().join("s")).expect("a socket");
        let conditions = Arc::new(Mutex::new([Condition::Clear; 2]));
        let closed = Arc::new(AtomicBool::new(false));
        let connections = Arc::default();
        let network = Network {
            directory,
            conditions: Arc::clone(&conditions),
            connections: Arc::clone(&connections),
            closed: Arc::clone(&closed),
        };
        let server = server.to_owned();
        // It ends with the network, and what it starts with the connections.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if closed.load(Ordering::SeqCst) {
                    return;
                }
                // A server that is away refuses, and so do we.
                let _ = carry(client, &server, &conditions, &connections);
            }
        });
        network
    }

    /// From now on; for bytes that are under way too.
    pub fn is(&self, way: Way, condition: Condition) {
        self.conditions.lock().expect("no test has panicked in it")[way as usize] = condition;
    }

    pub fn clears(&self) {
        self.is(Way::There, Condition::Clear);
        self.is(Way::Back, Condition::Clear);
    }

    /// Ends all connections, and refuses others until it [`accepts`](Network::accepts) again: a proxy that is restarted.
    pub fn refuses(&self) {
        let (socket, aside) = (self.socket(), self.aside());
        fs::rename(&socket, aside).expect("it is there");
        // One that nobody listens at. It goes with the directory.
        let refusing =
            nix_socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        bind(refusing.as_raw_fd(), &UnixAddr::new(&socket).expect("a short path")).expect("an address");
        self.ends(|_| true);
    }

    pub fn accepts(&self) {
        fs::rename(self.aside(), self.socket()).expect("it refuses");
    }

    fn aside(&self) -> PathBuf {
        self.directory.path().join("aside")
    }

    /// Ends the connections on which somebody listens, SUBSCRIBE, and no other. How many there were.
    pub fn ends_listening(&self) -> usize {
        self.ends(|connection| connection.listens.swap(false, Ordering::SeqCst))
    }

    fn ends(&self, which: impl Fn(&Connection) -> bool) -> usize {
        let connections = self.connections.lock().expect("no test has panicked in it");
        let ended = connections.iter().filter_map(Weak::upgrade).filter(|connection| which(connection));
        ended.map(|connection| connection.ends()).count()
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    pub fn nxlock<I: IntoIterator<Item: Into<std::ffi::OsString>>>(&self, args: I) -> Nxlock {
        Nxlock::new(args).env("NXLOCK_SERVER", format!("unix://{}", self.socket().display()))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::SeqCst);
        let _ = UnixStream::connect(self.socket());
    }
}

const SUBSCRIBE: &[u8] = b"\r\nSUBSCRIBE\r\n";

fn carry(
    client: UnixStream,
    server: &Path,
    conditions: &Arc<Mutex<[Condition; 2]>>,
    connections: &Mutex<Vec<Weak<Connection>>>,
) -> io::Result<()> {
    let server = UnixStream::connect(server)?;
    let connection = Arc::new(Connection { client, server, listens: AtomicBool::new(false) });
    let mut connections = connections.lock().expect("no test has panicked in it");
    connections.retain(|connection| connection.strong_count() > 0);
    connections.push(Arc::downgrade(&connection));
    for way in [Way::There, Way::Back] {
        let (conditions, connection) = (Arc::clone(conditions), Arc::clone(&connection));
        thread::spawn(move || {
            let _ = pump(&connection, way, || conditions.lock().expect("no test has panicked in it")[way as usize]);
            // Whatever ends one way ends both.
            connection.ends();
        });
    }
    Ok(())
}

fn pump(connection: &Connection, way: Way, condition: impl Fn() -> Condition) -> io::Result<()> {
    let (mut from, mut to) = match way {
        Way::There => (&connection.client, &connection.server),
        Way::Back => (&connection.server, &connection.client),
    };
    let mut buffer = [0; 16 * 1024];
    loop {
        let mut rest = match from.read(&mut buffer)? {
            0 => return Ok(()),
            n => &buffer[..n],
        };
        if way == Way::There && rest.windows(SUBSCRIBE.len()).any(|word| word.eq_ignore_ascii_case(SUBSCRIBE)) {
            connection.listens.store(true, Ordering::SeqCst);
        }
        // Looked at again after each wait: a condition that is over does not hold up what is left.
        let mut waited = false;
        while !rest.is_empty() {
            let now = match condition() {
                Condition::Cut => return Ok(()),
                Condition::BlackHoled => rest.len(),
                Condition::Delayed(by) if !waited => {
                    lasts(by);
                    waited = true;
                    continue;
                }
                Condition::Clear | Condition::Delayed(_) => {
                    to.write_all(rest)?;
                    rest.len()
                }
                Condition::Trickling(pause) => {
                    to.write_all(&rest[..1])?;
                    lasts(pause);
                    1
                }
            };
            rest = &rest[now..];
        }
    }
}
