//! Messages between nxlock and the processes that it forks for itself: a few numbers each, over a socket that keeps
//! messages apart (SOCK_SEQPACKET). Both ends are the same program. Must not know what the numbers mean.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc::c_int;
use nix::sys::socket::{MsgFlags, recv, send};

use crate::clock::Moment;

/// The numbers of a message.
const NUMBERS: usize = 5;
const SIZE: usize = NUMBERS * size_of::<u64>();

/// A message; those that say less leave the rest 0.
pub type Message = [u64; NUMBERS];

/// What comes over a socket.
pub enum Received {
    Message(Message),
    NotYet,
    /// The other end is closed: nothing comes any more.
    End,
}

/// Returns a message of two numbers.
pub fn pair(first: u64, second: u64) -> Message {
    [first, second, 0, 0, 0]
}

/// Sends a message.
///
/// # Errors
/// As send(2): EAGAIN if there is no room for it, EPIPE or ECONNRESET if nobody can read it any more.
pub fn transmit(socket: &OwnedFd, message: Message) -> Result<(), Errno> {
    let mut bytes = [0; SIZE];
    bytes.chunks_exact_mut(8).zip(message).for_each(|(bytes, number)| bytes.copy_from_slice(&number.to_ne_bytes()));
    loop {
        match send(socket.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL) {
            Err(Errno::EINTR) => {}
            sent => return sent.map(drop),
        }
    }
}

/// Receives a message; at the end, or if none is there and the socket does not block, there is none.
pub fn receive(socket: &OwnedFd) -> Option<Message> {
    match next(socket) {
        Received::Message(message) => Some(message),
        Received::NotYet | Received::End => None,
    }
}

/// Does the same, and tells the end.
pub fn next(socket: &OwnedFd) -> Received {
    let mut bytes = [0; SIZE];
    loop {
        return match recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
            Ok(SIZE) => {
                let mut numbers = bytes.chunks_exact(8).map(|bytes| bytes.try_into().map_or(0, u64::from_ne_bytes));
                Received::Message(std::array::from_fn(|_| numbers.next().unwrap_or(0)))
            }
            // The other end was closed with a message unread, which the kernel says once, ahead of what it had sent.
            Err(Errno::EINTR | Errno::ECONNRESET) => continue,
            // Or it has failed for now, as for lack of memory.
            Err(_) => Received::NotYet,
            Ok(_) => Received::End,
        };
    }
}

/// Returns an int as a message carries it.
pub fn number(signed: c_int) -> u64 {
    u64::from(signed.cast_unsigned())
}

/// Returns the int that a message carries.
pub fn signed(number: u64) -> c_int {
    u32::try_from(number).unwrap_or(0).cast_signed()
}

/// What stands in a message for a number that there is not, and for [`Moment::NEVER`].
const NONE: u64 = u64::MAX;

/// Returns a number as a message carries it, or that there is none.
pub fn optional(number: Option<u64>) -> u64 {
    number.unwrap_or(NONE)
}

/// Returns the number that a message carries, if it carries one.
pub fn present(number: u64) -> Option<u64> {
    Some(number).filter(|number| *number != NONE)
}

/// Returns a moment as a message carries it, in nanoseconds since boot.
pub fn instant(moment: Moment) -> u64 {
    optional(moment.since_boot().and_then(|since| u64::try_from(since.as_nanos()).ok()))
}

/// Returns the moment that a message carries.
pub fn moment(number: u64) -> Moment {
    present(number).map_or(Moment::NEVER, |nanos| Moment::after_boot(Duration::from_nanos(nanos)))
}
