//! From an address to a live connection: the only file that knows sockets.
//!
//! A `Link` carries requests and replies in RESP2, packed and parsed by the redis crate. The sockets
//! are ours and never block, so that every wait has one limit, whatever it waits for: the crate's
//! own connection counts its time-outs once per address and per reply, and cannot be interrupted.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, SockaddrLike, UnixAddr, connect, getsockopt, socket,
    sockopt,
};
use redis::{Cmd, Parser, Value, cmd};

use super::endpoint::{Address, Endpoint};
use crate::clock::Moment;
use crate::inbox::{Arrival, Inbox};
use crate::limit::{Limit, Woken};
use crate::say;
use crate::signals::deaf;

/// A connection with at most one request under way.
pub struct Link {
    stream: Stream,
    parser: Parser,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// More than any reply of ours has: a queue of a hundred thousand takes half of it.
const LONGEST: usize = 64 << 20;
/// So much is read without a look at the clock: who has always more to say would keep us from it, and the
/// parser reads a long line anew with every piece.
const UNTIMED: usize = 1 << 20;

/// Why there is no reply.
#[derive(Debug)]
pub enum Fault {
    TimeUp,
    /// A bell of the limit rang: nobody wants the reply any more.
    Bell,
    /// There is no connection, or it broke.
    Ended(io::Error),
    /// What came is not a reply.
    Garbled(String),
    /// The server refused to hear us at all.
    Greeting(Value),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Ended(error)
    }
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Fault {
        Fault::Ended(errno.into())
    }
}

impl Link {
    /// Connects, to the first of a host's addresses that answers, and says who we are where that is
    /// needed: nothing is sent to a server without password for its first database.
    pub fn open(endpoint: &Endpoint, limit: Limit<'_>) -> Result<Link, Fault> {
        let stream = match &endpoint.address {
            Address::Unix(path) => Stream::Unix(dial_unix(path, limit)?),
            Address::Tcp { host, port } => Stream::Tcp(dial_host(host, *port, limit)?),
        };
        let mut link = Link { stream, parser: Parser::new() };
        let greetings = greetings(endpoint);
        let packed = greetings.iter().map(Cmd::get_packed_command).collect::<Vec<_>>().concat();
        link.send(&packed, limit)?;
        for _ in &greetings {
            let reply = link.receive(limit)?;
            if let Value::ServerError(_) = reply {
                return Err(Fault::Greeting(reply));
            }
        }
        say::trace(format_args!("connected to {endpoint}"));
        Ok(link)
    }

    /// Sends a packed request.
    pub fn send(&mut self, mut request: &[u8], limit: Limit<'_>) -> Result<(), Fault> {
        while !request.is_empty() {
            match self.stream.write(request) {
                Ok(0) => return Err(Fault::Ended(io::ErrorKind::WriteZero.into())),
                Ok(n) => request = &request[n..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => ready(self.fd(), PollFlags::POLLOUT, limit)?,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Waits for one reply. After a fault the connection may still be written to, but what it says
    /// can no longer be told apart.
    pub fn receive(&mut self, limit: Limit<'_>) -> Result<Value, Fault> {
        let mut source = Source { stream: &mut self.stream, limit, room: LONGEST, fault: None };
        match self.parser.parse_value(&mut source) {
            Ok(value) => Ok(value),
            Err(error) => Err(source.fault.take().unwrap_or_else(|| match error.is_io_error() {
                true => Fault::Ended(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed")),
                false => Fault::Garbled("it does not speak the Redis protocol".into()),
            })),
        }
    }

    /// Whether, between requests, the other side has neither closed nor said anything unasked.
    pub fn is_quiet(&self) -> bool {
        let now = Limit::until(Moment::now());
        now.wait_for(&[(self.fd(), PollFlags::POLLIN)]).is_ok_and(|woken| woken == Woken::TimeUp)
    }

    /// Readable, between requests, only when the connection has ended.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn greetings(endpoint: &Endpoint) -> Vec<Cmd> {
    let mut greetings = Vec::new();
    if let Some(login) = &endpoint.login {
        let mut auth = cmd("AUTH");
        auth.arg(&login.user).arg(&login.password);
        greetings.push(auth);
    }
    if endpoint.db != 0 {
        let mut select = cmd("SELECT");
        select.arg(endpoint.db);
        greetings.push(select);
    }
    greetings
}

/// Reads with a limit. The parser knows only I/O errors, so the fault is kept aside.
struct Source<'a> {
    stream: &'a mut Stream,
    limit: Limit<'a>,
    /// How much may come still, before it fills all memory.
    room: usize,
    fault: Option<Fault>,
}

impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.room == 0 {
            self.fault = Some(Fault::Garbled("its reply does not end".into()));
            return Err(io::ErrorKind::InvalidData.into());
        }
        if LONGEST - self.room > UNTIMED && self.limit.until.passed() {
            self.fault = Some(Fault::TimeUp);
            return Err(io::ErrorKind::TimedOut.into());
        }
        loop {
            match self.stream.read(buffer) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let fd = self.stream.as_fd();
                    if let Err(fault) = ready(fd, PollFlags::POLLIN, self.limit) {
                        self.fault = Some(fault);
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(e) => {
                    self.fault = Some(Fault::Ended(io::Error::new(e.kind(), e.to_string())));
                    return Err(e);
                }
                Ok(n) => {
                    self.room = self.room.saturating_sub(n);
                    return Ok(n);
                }
            }
        }
    }
}

impl Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }
}

fn ready(fd: BorrowedFd<'_>, what: PollFlags, limit: Limit<'_>) -> Result<(), Fault> {
    match limit.wait_for(&[(fd, what)])? {
        Woken::Ready => Ok(()),
        Woken::Bell => Err(Fault::Bell),
        Woken::TimeUp => Err(Fault::TimeUp),
    }
}

fn dial_unix(path: &Path, limit: Limit<'_>) -> Result<UnixStream, Fault> {
    dial(AddressFamily::Unix, &UnixAddr::new(path)?, limit).map(UnixStream::from)
}

fn dial_host(host: &str, port: u16, limit: Limit<'_>) -> Result<TcpStream, Fault> {
    let mut last = Fault::Ended(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    for address in resolve(host, port, limit)? {
        let dialled = match address {
            SocketAddr::V4(address) => dial(AddressFamily::Inet, &SockaddrIn::from(address), limit),
            SocketAddr::V6(address) => dial(AddressFamily::Inet6, &SockaddrIn6::from(address), limit),
        };
        match dialled {
            Ok(socket) => {
                let stream = TcpStream::from(socket);
                // Requests are single small writes: waiting to fill a segment would only delay them.
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(fault @ (Fault::Bell | Fault::TimeUp)) => return Err(fault),
            Err(fault) => last = fault,
        }
    }
    Err(last)
}

fn dial(family: AddressFamily, address: &impl SockaddrLike, limit: Limit<'_>) -> Result<OwnedFd, Fault> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, SockType::Stream, flags, None)?;
    match connect(socket.as_raw_fd(), address) {
        Ok(()) => return Ok(socket),
        Err(Errno::EINPROGRESS) => {}
        Err(errno) => return Err(errno.into()),
    }
    ready(socket.as_fd(), PollFlags::POLLOUT, limit)?;
    match getsockopt(&socket, sockopt::SocketError)? {
        0 => Ok(socket),
        errno => Err(io::Error::from_raw_os_error(errno).into()),
    }
}

/// Looks a name up. getaddrinfo(3) knows no limit, so a thread of its own waits for it; one that is
/// given up ends with its answer.
fn resolve(host: &str, port: u16, limit: Limit<'_>) -> Result<Vec<SocketAddr>, Fault> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (mut inbox, postbox) = Inbox::open()?;
    let host = host.to_owned();
    let look_up = move || postbox.send((host.as_str(), port).to_socket_addrs().map(Vec::from_iter));
    deaf(|| thread::Builder::new().name("name lookup".into()).spawn(look_up))?;
    match inbox.next(limit.until, limit.bells)? {
        Arrival::Letter(addresses) => Ok(addresses?),
        Arrival::Readable => Err(Fault::Bell),
        Arrival::Time => Err(Fault::TimeUp),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// What becomes of a reply that begins like this and does not end.
    fn endless(beginning: &'static [u8], limit: Duration) -> Fault {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let talker = thread::spawn(move || {
            let begun = theirs.write_all(beginning);
            begun.and_then(|()| (0..).try_for_each(|_| theirs.write_all(&[b'x'; 1 << 16])))
        });
        let mut link = Link { stream: Stream::Unix(ours), parser: Parser::new() };
        let fault = link.receive(Limit::until(Moment::now() + limit)).unwrap_err();
        drop(link);
        assert!(talker.join().unwrap().is_err());
        fault
    }

    #[test]
    fn a_reply_without_end_is_given_up() {
        let fault = endless(b"$9000000000000000000\r\n", Duration::from_secs(60));
        assert!(matches!(fault, Fault::Garbled(_)), "{fault:?}");
        let fault = endless(b"+", Duration::ZERO);
        assert!(matches!(fault, Fault::TimeUp), "{fault:?}");
    }
}
