//! A connection to one server: opens it, and exchanges requests and replies.
//!
//! A `Connection` carries RESP2, packed and parsed by the redis crate. The sockets are nxlock's own and never block, so
//! that one limit bounds every wait: the crate's own connection applies its time-outs once per address and per reply,
//! and cannot be interrupted.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc::{self, c_int};
use nix::poll::PollFlags;
use redis::{Cmd, Parser, Value, cmd};

use super::credentials::Login;
use super::dial::{self, ready};
use super::elements::Elements;
use super::endpoint::{Address, Endpoint};
use super::fault::{Fault, NoReply};
use super::reply;
use super::tls::{self, TlsStream};
use crate::clock::Moment;
use crate::log;
use crate::wait::{Limit, Woken};

/// A connection with at most one exchange in progress.
pub struct Connection {
    /// The server.
    pub peer: Endpoint,
    /// Other connections of this process have other numbers.
    pub number: u64,
    /// The server has told its identity, if that matters.
    pub is_introduced: bool,
    stream: Stream,
    parser: Parser,
    elements: Elements,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream>),
}

/// More bytes than any reply has.
const LONGEST: usize = 16 << 20;
/// Bytes of a reply read without checking the deadline. A server that always has more to send would never let the
/// connection check it, and the parser parses a long line anew with every piece.
const UNTIMED: usize = 1 << 20;

static OPENED: AtomicU64 = AtomicU64::new(0);

impl Connection {
    /// Connects to the first of a host's addresses that answers, and logs in if needed: sends nothing to a server
    /// without a password, for its first database.
    pub fn open(endpoint: &Endpoint, limit: Limit<'_>) -> Result<Connection, Fault> {
        // The password first: it may take a while, and a server may close a connection on which nobody logs in.
        let greetings = greetings(endpoint, limit)?;
        let stream = match (&endpoint.address, &endpoint.session.trust) {
            (Address::Unix(path), _) => Stream::Unix(dial::unix(path, limit)?),
            (Address::Tcp { host, port }, None) => Stream::Tcp(dial::host(host.raw(), *port, limit)?),
            (Address::Tcp { host, port }, Some(trust)) => {
                let socket = dial::host(host.raw(), *port, limit)?;
                Stream::Tls(Box::new(TlsStream::begin(socket, host.raw(), trust, limit)?))
            }
        };
        let mut connection = Connection {
            peer: endpoint.clone(),
            number: OPENED.fetch_add(1, Ordering::Relaxed),
            is_introduced: false,
            stream,
            parser: Parser::new(),
            elements: Elements::new(),
        };
        // A fault here affects no request: none was sent yet.
        for reply in connection.converse(&greetings, limit)? {
            if let Value::ServerError(_) = reply {
                return Err(reply::refusal(&reply, endpoint.session.login.as_ref()));
            }
        }
        log::trace(format_args!("connected to {endpoint}"));
        Ok(connection)
    }

    /// Sends requests at once, and waits for as many replies.
    pub fn converse(&mut self, requests: &[Cmd], limit: Limit<'_>) -> Result<Vec<Value>, NoReply> {
        if let Err(no_reply) = self.send(&packed(requests), limit) {
            // A server that closes the connection at once may have sent the reason.
            if let Fault::Ended(_) = no_reply.fault
                && let Ok(said @ Value::ServerError(_)) = self.receive(limit)
            {
                return Ok(vec![said; requests.len()]);
            }
            return Err(no_reply);
        }
        let received: Result<Vec<Value>, Fault> = requests.iter().map(|_| self.receive(limit)).collect();
        received.map_err(|fault| NoReply { fault, sent: true })
    }

    /// Sends a packed request.
    pub fn send(&mut self, request: &[u8], limit: Limit<'_>) -> Result<(), NoReply> {
        let mut rest = request;
        self.send_rest(&mut rest, limit).map_err(|fault| NoReply { fault, sent: rest.len() < request.len() })
    }

    /// Sends requests behind one whose reply was given up, so that the server executes them after it.
    ///
    /// A server that is about to write that reply must be able to: Redis reads nothing more from a client that it
    /// cannot write to. On a Unix socket it cannot once this process has exited (TCP takes the reply all the same), so
    /// until `linger`, this waits for the reply to arrive. A server that has not read the first request reads both
    /// together.
    pub fn send_behind(&mut self, requests: &[u8], limit: Limit<'_>, linger: Moment) -> Result<(), NoReply> {
        let unread = self.unread();
        self.send(requests, limit)?;
        if let (Some(before), Some(after)) = (unread, self.unread())
            && after > 0
            && (before == 0 || after <= before)
        {
            // Without the reply there is nothing more to do than without the wait.
            let _ = Limit::until(linger).wait_for(&[(self.fd(), PollFlags::POLLIN)]);
        }
        Ok(())
    }

    /// Returns how much the server has not read yet of what was sent by a Unix socket: buffers in the kernel, in bytes,
    /// so more than the messages (SIOCOUTQ). If the kernel does not tell, nothing.
    fn unread(&self) -> Option<c_int> {
        let Stream::Unix(socket) = &self.stream else { return None };
        let mut bytes = 0;
        // SAFETY: the descriptor is open, and the kernel writes one int.
        let told = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        Some(if told == 0 { bytes } else { 0 })
    }

    /// Sends the rest of a request, and removes from it what was sent.
    fn send_rest(&mut self, request: &mut &[u8], limit: Limit<'_>) -> Result<(), Fault> {
        loop {
            // Even with an empty rest, TLS may have buffered bytes to send.
            let sent = match request.is_empty() {
                true => self.stream.flush().map(|()| None),
                false => self.stream.write(request).map(Some),
            };
            match sent {
                Ok(None) => return Ok(()),
                Ok(Some(0)) => return Err(Fault::Ended(io::ErrorKind::WriteZero.into())),
                Ok(Some(n)) => *request = &request[n..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => ready(self.fd(), PollFlags::POLLOUT, limit)?,
                Err(e) => return Err(tls::fault(e)),
            }
        }
    }

    /// Waits for one reply. After a fault the connection may still be written to, but its replies cannot be told apart
    /// any more.
    pub fn receive(&mut self, limit: Limit<'_>) -> Result<Value, Fault> {
        self.elements.begin();
        let Connection { stream, elements, .. } = self;
        let mut source = Source { stream, elements, limit, room: LONGEST, fault: None };
        match self.parser.parse_value(&mut source) {
            Ok(value) => Ok(value),
            Err(error) => Err(source.fault.take().unwrap_or_else(|| match error.is_io_error() {
                true => Fault::Ended(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed")),
                false => Fault::Garbled("it does not speak the Redis protocol".into()),
            })),
        }
    }

    /// Returns whether, between requests, the server has neither closed the connection nor sent anything unasked.
    pub fn is_quiet(&self) -> bool {
        let now = Limit::until(Moment::now());
        now.wait_for(&[(self.fd(), PollFlags::POLLIN)]).is_ok_and(|woken| woken == Woken::TimeUp)
    }

    /// Returns a descriptor that is readable, between requests, only when the connection has ended.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Returns requests as they are sent.
pub fn packed(requests: &[Cmd]) -> Vec<u8> {
    let mut packed = Vec::new();
    requests.iter().for_each(|request| request.write_packed_command(&mut packed));
    packed
}

fn greetings(endpoint: &Endpoint, limit: Limit<'_>) -> Result<Vec<Cmd>, Fault> {
    let session = &endpoint.session;
    let mut greetings = Vec::new();
    greetings.extend(session.login.as_ref().map(|login| auth(login, limit)).transpose()?);
    if session.db != 0 {
        let mut select = cmd("SELECT");
        select.arg(session.db);
        greetings.push(select);
    }
    Ok(greetings)
}

/// Returns the Redis command AUTH, with the password as it is now.
///
/// # Errors
/// As [`Login::password`].
pub fn auth(login: &Login, limit: Limit<'_>) -> Result<Cmd, Fault> {
    let password = login.password(limit)?;
    let mut auth = cmd("AUTH");
    auth.arg(&login.user).arg(password.reveal());
    Ok(auth)
}

/// A reader with a limit. The parser knows only I/O errors, so the fault is kept here.
struct Source<'a> {
    stream: &'a mut Stream,
    elements: &'a mut Elements,
    limit: Limit<'a>,
    /// Bytes that may still come, so that an endless reply does not fill all memory.
    room: usize,
    fault: Option<Fault>,
}

impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.room == 0 {
            self.fault = Some(Fault::Garbled("its reply is too long".into()));
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
                    let kind = e.kind();
                    self.fault = Some(tls::fault(e));
                    return Err(kind.into());
                }
                Ok(n) => {
                    self.room = self.room.saturating_sub(n);
                    if let Err(cause) = self.elements.follow(&buffer[..n]) {
                        self.fault = Some(Fault::Garbled(cause.into()));
                        return Err(io::ErrorKind::InvalidData.into());
                    }
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
            Stream::Tls(tls) => tls.socket().as_fd(),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
            Stream::Tls(tls) => tls.read(buffer),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => Ok(()),
            Stream::Tls(tls) => tls.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::store::redis::endpoint::Session;

    /// Returns the fault of a reply that begins like this and does not end.
    fn endless(beginning: &'static [u8], limit: Duration) -> Fault {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let talker = thread::spawn(move || {
            let begun = theirs.write_all(beginning);
            begun.and_then(|()| (0..).try_for_each(|_| theirs.write_all(&[b'x'; 1 << 16])))
        });
        let peer = Endpoint { address: Address::Unix("s".into()), session: Session::default() };
        let mut connection = Connection {
            peer,
            number: 0,
            is_introduced: false,
            stream: Stream::Unix(ours),
            parser: Parser::new(),
            elements: Elements::new(),
        };
        let fault = connection.receive(Limit::until(Moment::now() + limit)).unwrap_err();
        drop(connection);
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
