//! A network between nxlock and its server: it forwards bytes both ways at once, without parsing them, and each way has
//! a condition of its own that a test may change at any time.

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

/// A direction of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the server: requests.
    There,
    /// From the server: replies, and what it publishes.
    Back,
}

/// What happens to bytes that arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Clear,
    /// All bytes arrive late, in order.
    Delayed(Duration),
    /// The bytes arrive one at a time, with a pause after each.
    Trickling(Duration),
    /// The bytes are lost, without an error.
    BlackHoled,
    /// The connection is closed instead, on both sides. [`Way::There`]: before the request is delivered. [`Way::Back`]:
    /// after the request, but before its reply.
    Cut,
}

pub struct Network {
    directory: TempDir,
    conditions: Arc<Mutex<[Condition; 2]>>,
    connections: Arc<Mutex<Vec<Weak<Connection>>>>,
    closed: Arc<AtomicBool>,
}

/// A connection that is being forwarded.
struct Connection {
    client: UnixStream,
    server: UnixStream,
    /// The client has sent SUBSCRIBE.
    listens: AtomicBool,
}

impl Connection {
    fn ends(&self) {
        let _ = (self.client.shutdown(Shutdown::Both), self.server.shutdown(Shutdown::Both));
    }
}

impl Network {
    pub fn to(redis: &Redis) -> Network {
        // No request of nxlock is one more for that.
        redis.knows_the_script();
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
        // This thread ends with the network, and the threads that it starts end with their connections.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if closed.load(Ordering::SeqCst) {
                    return;
                }
                // Where the server refuses, the network does too.
                let _ = carry(client, &server, &conditions, &connections);
            }
        });
        network
    }

    /// Sets the condition from now on, also for bytes on their way.
    pub fn is(&self, way: Way, condition: Condition) {
        self.conditions.lock().expect("no test has panicked in it")[way as usize] = condition;
    }

    pub fn clears(&self) {
        self.is(Way::There, Condition::Clear);
        self.is(Way::Back, Condition::Clear);
    }

    /// Closes all connections, and refuses others until it [`accepts`](Network::accepts) again: a proxy that restarts.
    pub fn refuses(&self) {
        let (socket, aside) = (self.socket(), self.aside());
        fs::rename(&socket, aside).expect("it is there");
        // A socket that nobody listens on. It is removed with the directory.
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

    /// Closes the connections that have sent SUBSCRIBE, and no other. Returns how many there were.
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
            // The end of one way ends both.
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
        // Check again after each wait: a condition that is over must not delay the remaining bytes.
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
