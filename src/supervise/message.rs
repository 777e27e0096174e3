//! Messages between nxlock and the processes that it forks for itself: two numbers each, over a socket that keeps
//! messages apart (SOCK_SEQPACKET). Both ends are the same program. Must not know what the numbers mean.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::libc::c_int;
use nix::sys::socket::{MsgFlags, recv, send};

pub type Message = [u64; 2];
const SIZE: usize = size_of::<Message>();

/// Sends a message; returns whether there was room for it.
pub fn transmit(socket: &OwnedFd, message: Message) -> bool {
    let mut bytes = [0; SIZE];
    bytes[..8].copy_from_slice(&message[0].to_ne_bytes());
    bytes[8..].copy_from_slice(&message[1].to_ne_bytes());
    send(socket.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL) == Ok(SIZE)
}

/// Receives a message; returns `None` at the end, or if none is there and the socket does not block.
pub fn receive(socket: &OwnedFd) -> Option<Message> {
    let mut bytes = [0; SIZE];
    if recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty()) != Ok(SIZE) {
        return None;
    }
    let (first, second) = bytes.split_at(8);
    Some([u64::from_ne_bytes(first.try_into().ok()?), u64::from_ne_bytes(second.try_into().ok()?)])
}

/// Returns an int as a message carries it.
pub fn number(signed: c_int) -> u64 {
    u64::from(signed.cast_unsigned())
}

/// Returns the int that a message carries.
pub fn signed(number: u64) -> c_int {
    u32::try_from(number).unwrap_or(0).cast_signed()
}
