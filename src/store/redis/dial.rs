//! Connects a socket to an address, within a limit. The only file that knows network addresses and how names are looked
//! up.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, SockaddrLike, UnixAddr, connect, getsockopt,
    setsockopt, socket, sockopt,
};

use super::fault::Fault;
use crate::clock::Moment;
use crate::error::ErrorKind;
use crate::mailbox::{Arrived, Mailbox};
use crate::wait::{Limit, Woken};
use crate::{text, thread};

/// Waits until a socket is ready for an operation.
pub fn ready(fd: BorrowedFd<'_>, operation: PollFlags, limit: Limit<'_>) -> Result<(), Fault> {
    match limit.wait_for(&[(fd, operation)])? {
        Woken::Ready => Ok(()),
        Woken::Cancelled => Err(Fault::Cancelled),
        Woken::TimeUp => Err(Fault::TimeUp),
    }
}

pub fn unix(path: &Path, limit: Limit<'_>) -> Result<UnixStream, Fault> {
    dial(AddressFamily::Unix, &UnixAddr::new(path)?, limit).map(UnixStream::from)
}

/// Connects to the first of a host's addresses that answers.
pub fn host(host: &str, port: u16, limit: Limit<'_>) -> Result<TcpStream, Fault> {
    first_of(&resolve(host, port, limit)?, limit)
}

/// Tries each address for its share of the remaining time, so that one that drops packets leaves enough for the others.
fn first_of(addresses: &[SocketAddr], limit: Limit<'_>) -> Result<TcpStream, Fault> {
    let mut last = Fault::Ended(io::Error::new(io::ErrorKind::NotFound, "the host name has no address"));
    for (at, address) in addresses.iter().copied().enumerate() {
        let share = limit.until.remaining() / u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
        let limit = limit.no_later_than(Moment::now() + share);
        let dialled = match address {
            SocketAddr::V4(address) => dial(AddressFamily::Inet, &SockaddrIn::from(address), limit),
            SocketAddr::V6(address) => dial(AddressFamily::Inet6, &SockaddrIn6::from(address), limit),
        };
        match dialled {
            Ok(socket) => {
                let stream = TcpStream::from(socket);
                // Requests are single small writes: waiting to fill a segment would only delay them.
                stream.set_nodelay(true)?;
                keep_alive(&stream)?;
                return Ok(stream);
            }
            Err(Fault::Cancelled) => return Err(Fault::Cancelled),
            Err(fault) => last = fault,
        }
    }
    Err(last)
}

/// Makes the kernel detect that the server is gone although nothing is sent for long: a subscriber only waits.
fn keep_alive(stream: &TcpStream) -> Result<(), Fault> {
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &15)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &5)?;
    Ok(setsockopt(stream, sockopt::TcpKeepCount, &3)?)
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

/// Looks a name up. getaddrinfo(3) has no time-out, so a thread of its own waits for it, and ends with the answer even
/// after nxlock has given up.
fn resolve(host: &str, port: u16, limit: Limit<'_>) -> Result<Vec<SocketAddr>, Fault> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (mut addresses, sender) = Mailbox::open()?;
    let host = host.to_owned();
    let look_up = move || sender.send((host.as_str(), port).to_socket_addrs().map(Vec::from_iter));
    thread::spawn("name lookup", look_up)?;
    match addresses.next(limit)? {
        Arrived::Message(addresses) => addresses.map_err(|error| Fault::Known {
            kind: ErrorKind::Unreachable,
            cause: format!("the host's name has no address: {}", text::plain(&error)),
            hint: "check how the name is spelt, and that this machine can look it up (getent hosts NAME)",
        }),
        Arrived::Readable => Err(Fault::Cancelled),
        Arrived::Time => Err(Fault::TimeUp),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use nix::sys::socket::{Backlog, bind, getsockname, listen};

    use super::*;

    #[test]
    fn an_address_that_drops_packets_leaves_time_for_the_next() {
        // With its backlog full, a listener drops further connections.
        let full = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(full.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
        listen(&full, Backlog::new(0).unwrap()).unwrap();
        let dropping: SockaddrIn = getsockname(full.as_raw_fd()).unwrap();
        let soon = || Limit::until(Moment::now() + Duration::from_millis(200));
        let mut waiting = Vec::new();
        while let Ok(socket) = dial(AddressFamily::Inet, &dropping, soon()) {
            waiting.push(socket);
            assert!(waiting.len() < 10, "it drops nobody");
        }
        let answers = TcpListener::bind("127.0.0.1:0").unwrap();
        let dropping = SocketAddr::from(([127, 0, 0, 1], dropping.port()));
        let addresses = [dropping, dropping, answers.local_addr().unwrap()];
        let limit = Limit::until(Moment::now() + Duration::from_secs(3));
        let stream = first_of(&addresses, limit).unwrap_or_else(|fault| panic!("{fault:?}"));
        assert_eq!(stream.peer_addr().unwrap(), addresses[2]);
    }
}
