//! The messages between the two halves of a background `acquire`: the keeper sends the grant, and the front confirms
//! that it printed the token. End of file without the confirmation means that it did not.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::poll::PollFlags;
use nix::unistd::Pid;

use crate::lock::{Fence, Slot, SlotCount, Token};
use crate::wait::is_ready;

/// Returns both ends; each half closes the other's.
///
/// # Errors
/// As socketpair(2).
pub fn socket_pair() -> io::Result<(UnixStream, UnixStream)> {
    UnixStream::pair()
}

/// The keeper's grant, for the front to print.
pub struct Grant {
    pub token: Token,
    pub fence: Option<Fence>,
    pub slot: Option<Slot>,
    /// The tokens and fences of further locks.
    pub also: Vec<(Token, Option<Fence>)>,
}

/// The front's end.
pub struct KeeperEnd {
    keeper: Pid,
    stream: BufReader<UnixStream>,
}

impl KeeperEnd {
    pub fn new(keeper: Pid, stream: UnixStream) -> KeeperEnd {
        KeeperEnd { keeper, stream: BufReader::new(stream) }
    }

    pub fn pid(&self) -> Pid {
        self.keeper
    }

    /// Returns whether there is a message or end of file to read.
    pub fn has_spoken(&self) -> bool {
        is_ready(self.as_fd(), PollFlags::POLLIN)
    }

    /// Returns the grant; `None` if the keeper has ended without one.
    pub fn grant(&mut self) -> Option<Grant> {
        let mut line = String::new();
        self.stream.read_line(&mut line).ok()?;
        let mut words = line.strip_suffix('\n')?.split(' ');
        let fence = words.next()?.parse().ok().map(Fence);
        let (number, of) = (words.next()?.parse().ok(), words.next()?.parse().ok().and_then(SlotCount::of));
        let slot = number.zip(of).map(|(number, of)| Slot { number, of });
        let token = words.next()?.parse().ok()?;
        let mut also = Vec::new();
        while let Some(token) = words.next() {
            also.push((token.parse().ok()?, words.next()?.parse().ok().map(Fence)));
        }
        Some(Grant { token, fence, slot, also })
    }

    /// Confirms that the token was printed: from now on the keeper owns the lock.
    ///
    /// # Errors
    /// If the keeper has ended.
    pub fn printed(mut self) -> io::Result<()> {
        self.stream.get_mut().write_all(PRINTED)
    }

    /// Reports that the token was not printed. Returns the keeper's message about the release; `None` if there is none.
    pub fn withdraw(mut self, within: Duration) -> Option<String> {
        let mut said = String::new();
        let stream = self.stream.get_mut();
        stream.shutdown(Shutdown::Write).and_then(|()| stream.set_read_timeout(Some(within))).ok()?;
        self.stream.read_to_string(&mut said).ok()?;
        Some(said).filter(|said| !said.is_empty())
    }
}

/// Readable when the keeper has sent a message or has ended.
impl AsFd for KeeperEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
    }
}

/// The keeper's end.
pub struct FrontEnd(UnixStream);

/// The last report of the front.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FrontState {
    Nothing,
    Printed,
    /// The front ended without printing the token.
    Gone,
}

const PRINTED: &[u8] = b"p";

/// Returns whether an error says nothing of the other end.
fn is_passing(error: io::ErrorKind) -> bool {
    matches!(error, io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::OutOfMemory)
}

impl FrontEnd {
    pub fn new(stream: UnixStream) -> FrontEnd {
        FrontEnd(stream)
    }

    /// # Errors
    /// If the front has ended.
    pub fn grant(&mut self, Grant { token, fence, slot, also }: &Grant) -> io::Result<()> {
        let in_words = |fence: &Option<Fence>| fence.map_or("-".to_owned(), |fence| fence.0.to_string());
        let fence = in_words(fence);
        let also: String =
            also.iter().map(|(token, fence)| format!(" {} {}", token.as_str(), in_words(fence))).collect();
        let slot = slot.map_or("- -".to_owned(), |slot| format!("{} {}", slot.number, slot.of.get()));
        // Nothing may fail once the front has the grant: it prints the token.
        self.0.set_nonblocking(true)?;
        self.0.write_all(format!("{fence} {slot} {}{also}\n", token.as_str()).as_bytes())
    }

    pub fn state(&mut self) -> FrontState {
        match self.0.read(&mut [0]) {
            Ok(1..) => FrontState::Printed,
            Err(error) if is_passing(error.kind()) => FrontState::Nothing,
            Ok(0) | Err(_) => FrontState::Gone,
        }
    }

    /// Stops reading. The confirmation has either arrived by now or never leaves the front. Returns whether it has
    /// arrived.
    pub fn close(&mut self) -> bool {
        let _ = self.0.shutdown(Shutdown::Read);
        self.state() == FrontState::Printed
    }

    /// Tells a front that could not print its token what became of the lock.
    pub fn finish(mut self, said: &str) {
        let _ = self.0.write_all(said.as_bytes());
    }
}

/// Readable when the front has sent a message or has ended.
impl AsFd for FrontEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
