//! A connection to one server: opens it, and exchanges requests and replies.
//!
//! A `Connection` carries RESP2, packed by the redis crate, and RESP3 once a server is asked to tell things unasked; above
//! this file, replies look the same. The sockets are nxlock's own and never block, so that one limit bounds
//! every wait: the crate's own connection applies its time-outs once per address and per reply, and cannot be
//! interrupted.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc::{self, c_int};
use nix::poll::PollFlags;
use redis::{Cmd, PushKind, Value, cmd};

use super::credentials::{Login, Secret};
use super::dial::{self, ready};
use super::endpoint::{Address, Endpoint, Session};
use super::fault::{Fault, NoReply};
use super::framing::Framing;
use super::listening::Subscribed;
use super::pushes::{Accepted, Pushes, Wanted};
use super::reply;
use super::tls::{self, TlsStream};
use super::value::value;
use super::wake::{Calls, Channels};
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
    /// The bytes that have come and that no value was made of yet.
    received: Vec<u8>,
    /// How many of them the framing has followed.
    followed: usize,
    framing: Framing,
    /// What the server was asked to tell unasked. It speaks RESP3 then, unless the connection only listens.
    pushes: Option<Pushes>,
    /// There are no requests but for a subscription, in RESP2.
    only_listens: bool,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream>),
}

/// Returns whether sending failed with this because the other end has closed the connection, and not for want of memory,
/// for example.
fn is_of_a_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, WriteZero};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | WriteZero)
}

/// More bytes than any value has.
const LONGEST: usize = 16 << 20;
/// Bytes read without checking the limit. A server that always has more to send would never let the connection wait, and
/// so check it.
const UNTIMED: usize = 1 << 20;
/// Bytes that are read at once.
const PIECE: usize = 8192;
/// How many values are read at once of what nobody asked for.
const AT_ONCE: usize = 64;

static OPENED: AtomicU64 = AtomicU64::new(0);

impl Connection {
    /// Connects to the first of a host's addresses that answers, and logs in if needed: sends nothing to a server
    /// without a password, for its first database.
    pub fn open(endpoint: &Endpoint, limit: Limit<'_>) -> Result<Connection, Fault> {
        // The password first: it may take a while, and a server may close a connection on which nobody logs in.
        let login = endpoint.session.login.as_ref();
        let password = login.map(|login| login.password(limit)).transpose()?;
        let stream = match (&endpoint.address, &endpoint.session.trust) {
            (Address::Unix(path), _) => Stream::Unix(dial::unix(path, limit)?),
            (Address::Tcp { host, port }, None) => Stream::Tcp(dial::host(host.raw(), *port, limit)?),
            (Address::Tcp { host, port }, Some(trust)) => {
                let socket = dial::host(host.raw(), *port, limit)?;
                Stream::Tls(Box::new(TlsStream::begin(socket, host.raw(), trust, limit)?))
            }
        };
        let mut connection = Connection::of(endpoint.clone(), stream);
        // A fault here affects no request: none was sent yet.
        if let Some((refusal, is_of_login)) = connection.greet(password.as_ref(), limit)? {
            let replaced = match login.zip(password).filter(|_| is_of_login) {
                Some((login, password)) => login.replaced(&password, limit)?,
                None => None,
            };
            let Some(password) = replaced else { return Err(refusal) };
            log::trace(format_args!("{endpoint} refuses a password that was replaced meanwhile: trying the new one"));
            if let Some((refusal, _)) = connection.greet(Some(&password), limit)? {
                return Err(refusal);
            }
        }
        log::trace(format_args!("connected to {endpoint}"));
        Ok(connection)
    }

    /// Logs in with a password, and selects the database. Returns the server's refusal, and whether it refuses the login.
    fn greet(&mut self, password: Option<&Secret>, limit: Limit<'_>) -> Result<Option<(Fault, bool)>, Fault> {
        let Session { login, db, .. } = &self.peer.session;
        let login = login.clone();
        let mut greetings: Vec<Cmd> =
            login.as_ref().zip(password).map(|(login, one)| auth(login, one)).into_iter().collect();
        if *db != 0 {
            let mut select = cmd("SELECT");
            select.arg(*db);
            greetings.push(select);
        }
        let replies = self.converse(&greetings, limit)?;
        let refused = replies.iter().position(|reply| matches!(reply, Value::ServerError(_)));
        Ok(refused.map(|at| {
            let refusal = reply::refusal(&replies[at], login.as_ref());
            let is_of_login = at == 0 && password.is_some() && refusal.is_refusal();
            (refusal, is_of_login)
        }))
    }

    fn of(peer: Endpoint, stream: Stream) -> Connection {
        Connection {
            peer,
            number: OPENED.fetch_add(1, Ordering::Relaxed),
            is_introduced: false,
            stream,
            received: Vec::new(),
            followed: 0,
            framing: Framing::new(),
            pushes: None,
            only_listens: false,
        }
    }

    /// Sends requests at once, and waits for as many replies.
    pub fn converse(&mut self, requests: &[Cmd], limit: Limit<'_>) -> Result<Vec<Value>, NoReply> {
        if let Err(no_reply) = self.send(&packed(requests), limit) {
            // A server that closes the connection at once may have sent the reason. One that does not sends nothing: the
            // request has not left.
            if let Fault::Ended(error) = &no_reply.fault
                && is_of_a_closed(error)
                && let Ok(said @ Value::ServerError(_)) = self.receive(limit)
            {
                return Ok(vec![said; requests.len()]);
            }
            return Err(no_reply);
        }
        if let Some(meanwhile) = limit.meanwhile.filter(|_| !requests.is_empty()) {
            meanwhile();
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
        let mut read = 0;
        loop {
            match self.value(limit, &mut read)? {
                Value::Push { kind, data } => self.heard(&kind, &data),
                reply => return Ok(reply),
            }
        }
    }

    /// Asks the server to tell unasked what concerns a lock, in addition to what it tells, and returns what of that it
    /// tells. Nothing has changed if that is nothing.
    pub fn ask_for(&mut self, wanted: Wanted, limit: Limit<'_>) -> Result<Accepted, Fault> {
        if !self.agrees_to_resp3(limit)? {
            return Ok(Accepted::default());
        }
        let pushes = self.pushes.get_or_insert_default();
        let mut changes = pushes.tells_changes;
        let (tracking, subscription) = pushes.add(wanted);
        let requests: Vec<Cmd> = tracking.iter().chain(&subscription).cloned().collect();
        self.send(&packed(&requests), limit)?;
        for _ in tracking {
            changes = !matches!(self.receive(limit)?, Value::ServerError(_));
        }
        let messages = subscription.is_some() && self.refusal(1, limit)?.is_none();
        if let Some(pushes) = &mut self.pushes {
            pushes.tells_changes = changes;
        }
        Ok(Accepted { changes, messages })
    }

    /// Has the server wake a waiter on this connection, on which it is asked other things too.
    pub fn subscribe(&mut self, channels: &Channels, limit: Limit<'_>) -> Result<Subscribed, Fault> {
        if self.agrees_to_resp3(limit)? { self.wait_on(channels, limit) } else { Ok(Subscribed::NotHere) }
    }

    /// Has the server wake a waiter on this connection, on which it is asked nothing else.
    pub fn only_subscribe(&mut self, channels: &Channels, limit: Limit<'_>) -> Result<Subscribed, Fault> {
        self.only_listens = true;
        self.wait_on(channels, limit)
    }

    fn wait_on(&mut self, channels: &Channels, limit: Limit<'_>) -> Result<Subscribed, Fault> {
        self.pushes.get_or_insert_default().wait(channels);
        let names = channels.names();
        self.send(&packed(&[cmd("SUBSCRIBE").arg(&names).take()]), limit)?;
        Ok(self.refusal(names.len(), limit)?.map_or(Subscribed::Yes, Subscribed::Refused))
    }

    /// Has the server speak RESP3, and returns whether it does.
    ///
    /// Asks for that alone first: a server that refuses it would take the connection of a subscription for nothing else any
    /// more.
    fn agrees_to_resp3(&mut self, limit: Limit<'_>) -> Result<bool, Fault> {
        if self.pushes.is_none() {
            let mut hello = cmd("HELLO");
            hello.arg("3");
            let said = self.converse(&[hello], limit)?.pop().unwrap_or(Value::Nil);
            self.pushes = speaks_resp3(&said).then(Pushes::default);
        }
        Ok(self.pushes.is_some())
    }

    /// Waits for the outcome of a subscription to so many channels: a push for each, or one error, which it returns.
    fn refusal(&mut self, channels: usize, limit: Limit<'_>) -> Result<Option<Value>, Fault> {
        let mut left = channels;
        let mut read = 0;
        while left > 0 {
            match self.value(limit, &mut read)? {
                Value::Push { kind: PushKind::Subscribe, .. } => left -= 1,
                Value::Push { kind, data } => self.heard(&kind, &data),
                error @ Value::ServerError(_) => return Ok(Some(error)),
                _ => return Err(Fault::Garbled("unexpected reply to SUBSCRIBE".into())),
            }
        }
        Ok(None)
    }

    /// Reads what was said to the waiter since the last call.
    ///
    /// # Errors
    /// If the connection has ended, or the server has sent what is no push.
    pub fn calls(&mut self) -> Result<Calls, Fault> {
        let is_all = self.take_pushes()?;
        let calls = self.pushes.as_mut().map(Pushes::take_calls).unwrap_or_default();
        // Whoever publishes without end does not hold up the waiter, whose next request knows all that they could say.
        Ok(Calls { at_once: calls.at_once || !is_all, ..calls })
    }

    /// Returns whether the server was asked to tell things unasked.
    pub fn has_pushes(&self) -> bool {
        self.pushes.is_some()
    }

    /// Returns whether the server was asked to tell what concerns the lock with this key.
    pub fn hears_of(&self, key: &str) -> bool {
        self.pushes.as_ref().is_some_and(|pushes| pushes.has(key))
    }

    /// Forgets the changes of a key that the server has told: the reply to a renewal knows of them.
    pub fn changes_are_known(&mut self, key: &str) {
        if let Some(pushes) = &mut self.pushes {
            pushes.are_known(key);
        }
    }

    /// Reads, between requests, what the server has told unasked, or a part of it, and returns the keys of the locks about
    /// which there is reason to ask.
    ///
    /// # Errors
    /// If the connection has ended, or the server has sent what is no push.
    pub fn news(&mut self) -> Result<Vec<String>, Fault> {
        self.take_pushes()?;
        Ok(self.pushes.as_mut().map(Pushes::take).unwrap_or_default())
    }

    /// Reads what the server has told unasked. Returns whether that was all: a server that tells without end does not hold up
    /// the rest.
    fn take_pushes(&mut self) -> Result<bool, Fault> {
        let now = Limit::until(Moment::now());
        let mut read = 0;
        for _ in 0..AT_ONCE {
            match self.value(now, &mut read) {
                Ok(Value::Push { kind, data }) if self.pushes.is_some() => self.heard(&kind, &data),
                Ok(_) => return Err(Fault::Garbled("it answers what nobody has asked".into())),
                Err(Fault::TimeUp) => return Ok(true),
                Err(fault) => return Err(fault),
            }
        }
        Ok(false)
    }

    /// Returns whether, between requests, the server has neither closed the connection nor sent anything but pushes that
    /// it was asked for.
    pub fn is_of_use(&mut self) -> bool {
        if self.has_pushes() { self.take_pushes().is_ok() } else { self.is_quiet() }
    }

    /// Returns whether, between requests, the server has neither closed the connection nor sent anything.
    pub fn is_quiet(&self) -> bool {
        let now = Limit::until(Moment::now());
        let nothing_comes = now.wait_for(&[(self.fd(), PollFlags::POLLIN)]).is_ok_and(|woken| woken == Woken::TimeUp);
        nothing_comes && self.received.is_empty()
    }

    fn heard(&mut self, kind: &PushKind, data: &[Value]) {
        if let Some(pushes) = &mut self.pushes {
            pushes.hear(kind, data);
        }
    }

    /// Waits for one value: a reply, or a push. Adds to `read` how many bytes it has read.
    fn value(&mut self, limit: Limit<'_>, read: &mut usize) -> Result<Value, Fault> {
        loop {
            let end = self.framing.follow(&self.received[self.followed..]);
            if let Some(more) = end.map_err(|cause| Fault::Garbled(cause.into()))? {
                let value = value(&self.received[..self.followed + more]);
                self.received.drain(..self.followed + more);
                self.followed = 0;
                let value = value.ok_or_else(|| Fault::Garbled("it does not speak the Redis protocol".into()))?;
                return Ok(if self.only_listens { as_push(value) } else { value });
            }
            self.followed = self.received.len();
            self.read(limit, read)?;
        }
    }

    /// Waits for more bytes of the value that has begun to come.
    fn read(&mut self, limit: Limit<'_>, read: &mut usize) -> Result<(), Fault> {
        if self.received.len() >= LONGEST {
            return Err(Fault::Garbled("its reply is too long".into()));
        }
        if *read > UNTIMED {
            if limit.is_cancelled() {
                return Err(Fault::Cancelled);
            }
            if limit.until.passed() {
                return Err(Fault::TimeUp);
            }
        }
        let mut piece = [0; PIECE];
        loop {
            match self.stream.read(&mut piece) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => ready(self.fd(), PollFlags::POLLIN, limit)?,
                Err(e) => return Err(tls::fault(e)),
                Ok(0) => {
                    let closed = io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed");
                    return Err(Fault::Ended(closed));
                }
                Ok(n) => {
                    *read += n;
                    self.received.extend_from_slice(&piece[..n]);
                    return Ok(());
                }
            }
        }
    }

    /// Returns a descriptor that is readable, between requests, only when the connection has ended, or the server has told
    /// something unasked.
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

/// Returns the Redis command AUTH.
pub fn auth(login: &Login, password: &Secret) -> Cmd {
    let mut auth = cmd("AUTH");
    auth.arg(&login.user).arg(password.reveal());
    auth
}

/// Returns whether a reply to HELLO says that the server speaks RESP3 from now on.
fn speaks_resp3(said: &Value) -> bool {
    let Value::Array(fields) = said else { return false };
    let field = fields.chunks_exact(2).find(|pair| reply::bytes(&pair[0]) == Some(b"proto"));
    field.is_some_and(|pair| reply::integer(&pair[1]) == Some(3))
}

/// Returns a message in RESP2 as it is in RESP3.
fn as_push(value: Value) -> Value {
    let Value::Array(mut data) = value else { return value };
    let kind = match data.first().and_then(reply::bytes) {
        Some(b"message") => PushKind::Message,
        Some(b"subscribe") => PushKind::Subscribe,
        _ => return Value::Array(data),
    };
    data.remove(0);
    Value::Push { kind, data }
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

    /// Returns the fault of a reply that begins like this, and goes on with this without end, and how many bytes were sent.
    fn endless(beginning: &[u8], rest: &[u8], limit: Limit<'_>) -> (Fault, usize) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let rest = rest.repeat((1 << 14) / rest.len());
        theirs.write_all(&[beginning, &rest].concat()).unwrap();
        let (is_ahead, waits) = std::sync::mpsc::channel();
        let talker = thread::spawn(move || {
            theirs.write_all(&rest).unwrap();
            is_ahead.send(()).unwrap();
            let sent = (2..).find(|_| theirs.write_all(&rest).is_err()).unwrap();
            sent * rest.len()
        });
        waits.recv().unwrap();
        let peer = Endpoint { address: Address::Unix("s".into()), session: Session::default() };
        let mut connection = Connection::of(peer, Stream::Unix(ours));
        let fault = connection.receive(limit).unwrap_err();
        drop(connection);
        (fault, talker.join().unwrap())
    }

    /// Returns a connection on which this has come, and will be sent.
    fn with(said: &str) -> (Connection, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.write_all(said.as_bytes()).unwrap();
        let peer = Endpoint { address: Address::Unix("s".into()), session: Session::default() };
        (Connection::of(peer, Stream::Unix(ours)), theirs)
    }

    fn channels() -> Channels {
        Channels { own: "own".into(), of_all: "all".into() }
    }

    fn soon() -> Limit<'static> {
        Limit::until(Moment::now() + Duration::from_secs(60))
    }

    const AGREES: &str = "%1\r\n$5\r\nproto\r\n:3\r\n";
    const IS_SUBSCRIBED: &str = ">3\r\n+subscribe\r\n+own\r\n:1\r\n>3\r\n+subscribe\r\n+all\r\n:2\r\n";
    const GRANTED: &str = ">3\r\n+message\r\n+own\r\n+g\r\n";
    const LOST: &str = ">3\r\n+message\r\n+all\r\n+l\r\n";

    #[test]
    fn what_is_said_to_a_waiter_around_a_reply_is_neither_lost_nor_the_reply() {
        let (mut connection, mut server) = with(&[AGREES, IS_SUBSCRIBED, GRANTED, "+OK\r\n", LOST].concat());
        assert!(matches!(connection.subscribe(&channels(), soon()), Ok(Subscribed::Yes)));
        let replies = connection.converse(&[cmd("PING")], soon()).unwrap();
        assert_eq!(replies, [Value::Okay]);
        assert!(connection.is_of_use());
        assert_eq!(connection.calls().unwrap(), Calls { at_once: true, in_turn: true, soon: None });
        assert_eq!(connection.calls().unwrap(), Calls::default());
        server.write_all(b">3\r\n+message\r\n+another\r\n+g\r\n").unwrap();
        assert_eq!(connection.calls().unwrap(), Calls::default());
        drop(server);
        assert!(connection.calls().is_err());
    }

    #[test]
    fn a_connection_that_only_listens_hears_the_same_in_the_old_protocol() {
        let said = [IS_SUBSCRIBED, GRANTED].concat().replace('>', "*");
        let (mut connection, mut server) = with(&said);
        assert!(matches!(connection.only_subscribe(&channels(), soon()), Ok(Subscribed::Yes)));
        assert_eq!(connection.calls().unwrap(), Calls { at_once: true, ..Calls::default() });
        server.write_all(b"-ERR\r\n").unwrap();
        assert!(connection.calls().is_err());
    }

    #[test]
    fn a_holder_takes_no_notice_of_the_channels_of_its_wait() {
        let said = [AGREES, IS_SUBSCRIBED, "+OK\r\n", ">3\r\n+subscribe\r\n+c\r\n:1\r\n", GRANTED].concat();
        let (mut connection, _server) = with(&said);
        assert!(matches!(connection.subscribe(&channels(), soon()), Ok(Subscribed::Yes)));
        let wanted = Wanted { key: "k".into(), channel: "c".into(), is_shared: false };
        assert_eq!(connection.ask_for(wanted, soon()).unwrap(), Accepted { changes: true, messages: true });
        assert!(connection.news().unwrap().is_empty());
    }

    #[test]
    fn a_server_that_does_not_speak_resp3_leaves_the_connection_as_it_was() {
        let (mut connection, _server) = with("-NOPROTO\r\n+OK\r\n");
        assert!(matches!(connection.subscribe(&channels(), soon()), Ok(Subscribed::NotHere)));
        assert!(!connection.has_pushes());
        assert_eq!(connection.converse(&[cmd("PING")], soon()).unwrap(), [Value::Okay]);
    }

    #[test]
    fn what_is_told_without_end_between_requests_is_given_up() {
        for beginning in ["$9000000000000000000\r\n", "+"] {
            let (mut connection, mut server) = with(&[AGREES, IS_SUBSCRIBED, beginning].concat());
            assert!(matches!(connection.subscribe(&channels(), soon()), Ok(Subscribed::Yes)));
            let talker = thread::spawn(move || (0..).try_for_each(|_| server.write_all(&[b'x'; 1 << 16])));
            let mut pieces = 0;
            let fault = loop {
                match connection.news() {
                    Ok(_) => pieces += 1,
                    Err(fault) => break fault,
                }
                let _ = soon().wait_for(&[(connection.fd(), PollFlags::POLLIN)]);
            };
            assert!(matches!(fault, Fault::Garbled(_)), "{fault:?}");
            assert!(pieces > 1 && connection.received.len() <= LONGEST + PIECE);
            drop(connection);
            assert!(talker.join().unwrap().is_err());
        }
    }

    #[test]
    fn a_reply_without_end_is_given_up() {
        let (fault, _) = endless(b"$9000000000000000000\r\n", b"x", soon());
        assert!(matches!(fault, Fault::Garbled(_)), "{fault:?}");
        let (fault, _) = endless(b"+", b"x", Limit::until(Moment::now()));
        assert!(matches!(fault, Fault::TimeUp), "{fault:?}");
    }

    #[test]
    fn messages_without_end_before_a_reply_hide_no_cancellation() {
        let (cancelled, _) = UnixStream::pair().unwrap();
        let cancel = [Some(cancelled.as_fd())];
        let (fault, sent) = endless(b"", LOST.as_bytes(), Limit { cancel: &cancel, ..soon() });
        // A part of it may be in the kernel's buffers.
        assert!(matches!(fault, Fault::Cancelled) && sent < 4 * UNTIMED, "{fault:?} after {sent} bytes");
    }
}
