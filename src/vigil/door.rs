//! Where a keeper can be found on its machine, by who has its token: a socket in the abstract namespace, unix(7),
//! named by what everybody may know of the token. `release` says there that it is about to give the lock back,
//! so that the keeper does not take that for a loss.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use nix::poll::PollFlags;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket, sockopt::PeerCredentials,
};
use nix::unistd::geteuid;

use crate::clock::Moment;
use crate::limit::{Limit, Woken};
use crate::lock::Token;

/// How long a keeper is waited for: one that hangs must not hold up a release.
const ANSWER: Duration = Duration::from_secs(1);
/// How long one who has knocked may take to say a token. It is sent at once.
const KNOCK: Duration = Duration::from_millis(250);
/// More than any token has.
const LONGEST: usize = 2048;
/// What fits into an address, unix(7), without its first byte.
const NAME: usize = 107;

/// The keeper's side.
pub struct Door(UnixListener);

/// Somebody who has the token, and waits to hear that nothing is renewed any more.
pub struct Owner(UnixStream);

impl Door {
    /// # Errors
    /// As bind(2).
    pub fn open(key: &str, token: &Token) -> io::Result<Door> {
        let name = name(key, token).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Door(listener))
    }

    /// Whether the owner of the token has come.
    ///
    /// # Errors
    /// If nobody can be let in, and that may last.
    pub fn owner(&self, token: &Token) -> io::Result<Option<Owner>> {
        loop {
            match self.0.accept() {
                Ok((caller, _)) if may_meet(&caller) && says(&caller, token) => return Ok(Some(Owner(caller))),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Readable when somebody has come.
impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Owner {
    /// Nothing is renewed any more.
    pub fn answer(mut self) {
        let _ = self.0.write_all(b"k");
    }
}

/// Asks the keeper of a claim, if it has one here, to leave it to us. Whether it does.
pub fn dismiss(key: &str, token: &Token) -> bool {
    let limit = Limit::until(Moment::now() + ANSWER);
    let Some(mut keeper) = name(key, token).and_then(|name| knock(&name)) else { return false };
    // Anybody may have the name by now; only ours may hear the token.
    may_meet(&keeper)
        && keeper.write_all(format!("{}\n", token.as_str()).as_bytes()).is_ok()
        && limit.wait_for(&[(keeper.as_fd(), PollFlags::POLLIN)]).is_ok_and(|woken| woken == Woken::Ready)
        && keeper.read(&mut [0]).is_ok_and(|n| n > 0)
}

/// Nothing if nobody is there, or so many knock that there is no room.
fn knock(name: &[u8]) -> Option<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
    connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name).ok()?).ok()?;
    Some(UnixStream::from(socket))
}

/// A caller that says the whole token, and nothing else.
fn says(mut caller: &UnixStream, token: &Token) -> bool {
    let limit = Limit::until(Moment::now() + KNOCK);
    let expected = format!("{}\n", token.as_str());
    let mut said = Vec::new();
    let mut piece = [0; LONGEST];
    if caller.set_nonblocking(true).is_err() {
        return false;
    }
    while !said.ends_with(b"\n") && said.len() <= LONGEST {
        match limit.wait_for(&[(caller.as_fd(), PollFlags::POLLIN)]) {
            Ok(Woken::Ready) => {}
            _ => return false,
        }
        match caller.read(&mut piece) {
            Ok(n) if n > 0 => said.extend_from_slice(&piece[..n]),
            _ => return false,
        }
    }
    said == expected.as_bytes()
}

/// The same user, or one of the two is the superuser.
fn may_meet(other: &UnixStream) -> bool {
    let ours = geteuid().as_raw();
    getsockopt(other, PeerCredentials).is_ok_and(|other| other.uid() == ours || other.uid() == 0 || ours == 0)
}

/// The token's id, which `status` shows, and the key as far as there is room.
fn name(key: &str, token: &Token) -> Option<Vec<u8>> {
    let mut name = format!("nxlock-keeper:{}:{key}", token.id()?).into_bytes();
    name.truncate(NAME);
    Some(name)
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::SystemTime;

    use super::*;
    use crate::lock::Owner as Whose;

    fn mint() -> Token {
        let owner = Whose { user: "u".into(), host: "h".into(), pid: 1 };
        Token::mint(&owner, None, SystemTime::UNIX_EPOCH).unwrap()
    }

    /// Waits until somebody has come, and lets in whoever has the token.
    fn let_in(door: &Door, token: &Token) -> Option<Owner> {
        let soon = Limit::until(Moment::now() + Duration::from_secs(20));
        soon.wait_for(&[(door.as_fd(), PollFlags::POLLIN)]).unwrap();
        door.owner(token).unwrap()
    }

    #[test]
    fn only_who_has_the_whole_token_is_heard() {
        let token = mint();
        let key = "lock:".to_owned() + &"x".repeat(200);
        let door = Door::open(&key, &token).unwrap();
        assert!(door.owner(&token).unwrap().is_none());
        // The same id, and not the same token.
        let half: Token = format!("nx1:{}:u@h:1:0:other", token.random_part()).parse().unwrap();
        let (theirs, ours) = (half.clone(), key.clone());
        let stranger = thread::spawn(move || dismiss(&ours, &theirs));
        assert!(let_in(&door, &token).is_none());
        assert!(!stranger.join().unwrap());
        let (theirs, ours) = (token.clone(), key.clone());
        let owner = thread::spawn(move || dismiss(&ours, &theirs));
        let_in(&door, &token).unwrap().answer();
        assert!(owner.join().unwrap());
        drop(door);
        assert!(!dismiss(&key, &token), "nobody is there");
    }

    #[test]
    fn whoever_knocks_and_says_nothing_is_let_go() {
        let token = mint();
        let door = Door::open("lock:job", &token).unwrap();
        let _silent = knock(&name("lock:job", &token).unwrap()).unwrap();
        assert!(let_in(&door, &token).is_none());
    }
}
