//! From an address to a connected socket, within a limit: the only file that knows addresses of the
//! network, and how names are looked up.

use std::io;
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

use super::connect::Fault;
use crate::inbox::{Arrival, Inbox};
use crate::limit::{Limit, Woken};
use crate::signals::deaf;

/// Waits until a socket is ready for something.
pub fn ready(fd: BorrowedFd<'_>, what: PollFlags, limit: Limit<'_>) -> Result<(), Fault> {
    match limit.wait_for(&[(fd, what)])? {
        Woken::Ready => Ok(()),
        Woken::Bell => Err(Fault::Bell),
        Woken::TimeUp => Err(Fault::TimeUp),
    }
}

pub fn unix(path: &Path, limit: Limit<'_>) -> Result<UnixStream, Fault> {
    dial(AddressFamily::Unix, &UnixAddr::new(path)?, limit).map(UnixStream::from)
}

/// The first of a host's addresses that answers.
pub fn host(host: &str, port: u16, limit: Limit<'_>) -> Result<TcpStream, Fault> {
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
