//! A network between nxlock and its server: it carries bytes both ways at once, whatever they mean,
//! and each way has a condition of its own that a test changes as it likes.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

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
    closed: Arc<AtomicBool>,
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
        let network = Network { directory, conditions: Arc::clone(&conditions), closed: Arc::clone(&closed) };
        let server = server.to_owned();
        // It ends with the network, and what it starts with the connections.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if closed.load(Ordering::SeqCst) {
                    return;
                }
                // A server that is away refuses, and so do we.
                let _ = carry(client, &server, &conditions);
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

fn carry(client: UnixStream, server: &Path, conditions: &Arc<Mutex<[Condition; 2]>>) -> io::Result<()> {
    let server = UnixStream::connect(server)?;
    let there = (client.try_clone()?, server.try_clone()?, Way::There);
    let back = (server, client, Way::Back);
    for (from, to, way) in [there, back] {
        let conditions = Arc::clone(conditions);
        thread::spawn(move || {
            let _ = pump(&from, &to, || conditions.lock().expect("no test has panicked in it")[way as usize]);
            // Whatever ends one way ends both.
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        });
    }
    Ok(())
}

fn pump(mut from: &UnixStream, mut to: &UnixStream, condition: impl Fn() -> Condition) -> io::Result<()> {
    let mut buffer = [0; 16 * 1024];
    loop {
        let mut rest = match from.read(&mut buffer)? {
            0 => return Ok(()),
            n => &buffer[..n],
        };
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
