//! What the two halves of an `acquire` in the background say to each other: the grant to the front, and that its
//! token was printed back to the keeper. An end without that word is the word that it was not.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::poll::PollFlags;
use nix::unistd::Pid;

use crate::lock::{Fence, Token};
use crate::wait::is_ready;

/// Both ends; each half closes the other's.
///
/// # Errors
/// As socketpair(2).
pub fn socket_pair() -> io::Result<(UnixStream, UnixStream)> {
    UnixStream::pair()
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

    /// Whether there is something to be read, or an end.
    pub fn has_spoken(&self) -> bool {
        is_ready(self.as_fd(), PollFlags::POLLIN)
    }

    /// What was granted; nothing if the keeper has ended without a grant.
    pub fn grant(&mut self) -> Option<(Token, Option<Fence>)> {
        let mut line = String::new();
        self.stream.read_line(&mut line).ok()?;
        let (fence, token) = line.strip_suffix('\n')?.split_once(' ')?;
        Some((token.parse().ok()?, fence.parse().ok().map(Fence)))
    }

    /// The token was printed: the lock is in the keeper's hands.
    ///
    /// # Errors
    /// If there is no keeper any more.
    pub fn printed(mut self) -> io::Result<()> {
        self.stream.get_mut().write_all(PRINTED)
    }

    /// The token was not printed: what the keeper says of giving the lock back; nothing, if that cannot be known.
    pub fn withdraw(mut self, within: Duration) -> Option<String> {
        let mut said = String::new();
        let stream = self.stream.get_mut();
        stream.shutdown(Shutdown::Write).and_then(|()| stream.set_read_timeout(Some(within))).ok()?;
        self.stream.read_to_string(&mut said).ok()?;
        Some(said).filter(|said| !said.is_empty())
    }
}

/// Readable when the keeper has spoken, or has ended.
impl AsFd for KeeperEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
    }
}

/// The keeper's end.
pub struct FrontEnd(UnixStream);

/// What the front makes known.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FrontState {
    Nothing,
    Printed,
    /// It is gone, and nobody was told the token.
    Gone,
}

const PRINTED: &[u8] = b"p";

impl FrontEnd {
    pub fn new(stream: UnixStream) -> FrontEnd {
        FrontEnd(stream)
    }

    /// # Errors
    /// If there is no front any more.
    pub fn grant(&mut self, token: &Token, fence: Option<Fence>) -> io::Result<()> {
        let fence = fence.map_or("-".to_owned(), |fence| fence.0.to_string());
        self.0.write_all(format!("{fence} {}\n", token.as_str()).as_bytes())?;
        self.0.set_nonblocking(true)
    }

    pub fn state(&mut self) -> FrontState {
        match self.0.read(&mut [0]) {
            Ok(1..) => FrontState::Printed,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                FrontState::Nothing
            }
            Ok(0) | Err(_) => FrontState::Gone,
        }
    }

    /// Hears nothing any more: the word that the token was printed reaches us before this, or never leaves the
    /// front. Whether it had come.
    pub fn close(&mut self) -> bool {
        let _ = self.0.shutdown(Shutdown::Read);
        self.state() == FrontState::Printed
    }

    /// What became of the lock, for a front that could not print its token.
    pub fn finish(mut self, said: &str) {
        let _ = self.0.write_all(said.as_bytes());
    }
}

/// Readable when the front has spoken, or has ended.
impl AsFd for FrontEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
