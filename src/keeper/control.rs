//! The control socket of a keeper, for the owner of its token on the same machine: a socket in the abstract namespace,
//! unix(7), named by the public part of the token. `release` announces there that it is about to release the lock, so
//! that the keeper does not report a loss. The keeper replies twice: at once, that it has heard the announcement, and
//! when it has left the lock to `release`.
//!
//! One message is one token (SOCK_SEQPACKET). Anybody may connect, so no caller may cost the keeper much: the keeper
//! never waits for a caller, refuses other users by the kernel's peer credentials, and stops listening for a moment
//! after a refusal.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, getsockopt, listen, socket,
    sockopt::PeerCredentials,
};
use nix::unistd::geteuid;

use crate::clock::Moment;
use crate::lock::Token;
use crate::wait::{Limit, Woken};

/// Time-out of `release` for the keeper's first reply: a hung keeper must not delay it.
const HEARS: Duration = Duration::from_secs(1);
/// How long `release` waits for the second reply beyond the time-out of a server's reply: the keeper may be waiting for a
/// server's reply, and then tries to give back its other locks within this.
const LEAVES: Duration = Duration::from_secs(1);
/// The keeper's replies: it has heard its caller, and it has left.
const HEARD: &[u8] = b"h";
const LEFT: &[u8] = b"l";
/// Maximum connections in the backlog, and maximum accepted before the keeper does anything else.
const BACKLOG: u8 = 64;
/// Maximum callers that have not sent a token yet. `release` sends it at once; the oldest caller is dropped.
const CALLERS: usize = 16;
/// How long the keeper does not listen after a refusal: a bound on what refusals cost.
const PAUSE: Duration = Duration::from_millis(20);
/// Longer than any token.
const LONGEST: usize = 2048;
/// Maximum length of an abstract address without its first byte, unix(7).
const NAME_MAX: usize = 107;

/// The keeper's end.
pub struct ControlSocket {
    /// std has no type for SOCK_SEQPACKET; accept(2), read(2) and write(2) are the same.
    listener: UnixListener,
    /// Callers that have not sent anything yet, the oldest first.
    callers: VecDeque<UnixStream>,
    /// The end of the pause after a refusal.
    pause: Option<Moment>,
}

/// A caller that has sent the token, knows that the keeper has heard it, and waits until the keeper has left.
pub struct TokenOwner(UnixStream);

/// The message of a caller.
enum Received {
    Nothing,
    Token,
    /// Something else, or end of file.
    Other,
}

impl ControlSocket {
    /// # Errors
    /// As socket(2) and bind(2).
    pub fn open(key: &str, token: &Token) -> io::Result<ControlSocket> {
        let name = name(key, token).ok_or_else(|| io::Error::from(ErrorKind::InvalidInput))?;
        let listener = seqpacket(SockFlag::SOCK_NONBLOCK)?;
        bind(listener.as_raw_fd(), &UnixAddr::new_abstract(&name)?)?;
        // The kernel queues one connection more than that.
        listen(&listener, Backlog::new(i32::from(BACKLOG) - 1)?)?;
        Ok(ControlSocket { listener: listener.into(), callers: VecDeque::new(), pause: None })
    }

    /// Returns the owner of the token, if it has called. Accepts connections during a pause too.
    pub fn owner(&mut self, token: &Token) -> Option<TokenOwner> {
        let mut refused = self.accept().is_err();
        let mut waiting = VecDeque::new();
        for caller in self.callers.drain(..) {
            match received(&caller, token) {
                Received::Token => return Some(TokenOwner::acknowledge(caller)),
                Received::Nothing => waiting.push_back(caller),
                Received::Other => refused = true,
            }
        }
        refused |= waiting.len() > CALLERS;
        waiting.drain(..waiting.len().saturating_sub(CALLERS));
        self.callers = waiting;
        self.pause =
            if refused { Some(Moment::now() + PAUSE) } else { self.pause.filter(|pause_ends| !pause_ends.passed()) };
        None
    }

    /// Accepts the connections in the backlog.
    ///
    /// # Errors
    /// If a caller was refused, or accept(2) fails.
    fn accept(&mut self) -> io::Result<()> {
        let mut refused = Ok(());
        for _ in 0..BACKLOG {
            match self.listener.accept() {
                Ok((caller, _)) if is_ours(&caller) => {
                    caller.set_nonblocking(true)?;
                    self.callers.push_back(caller);
                }
                Ok(_) => refused = Err(ErrorKind::PermissionDenied.into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        refused
    }

    /// Returns descriptors, one of which is readable when a caller has sent something or, except during a pause, has
    /// connected.
    pub fn fds(&self) -> impl Iterator<Item = Option<BorrowedFd<'_>>> {
        let listener = self.pause.is_none().then(|| self.listener.as_fd());
        self.callers.iter().map(|caller| Some(caller.as_fd())).chain([listener])
    }

    /// Returns when a pause ends: [`ControlSocket::owner`] is to be called then.
    pub fn pause_ends(&self) -> Moment {
        self.pause.unwrap_or(Moment::NEVER)
    }
}

impl TokenOwner {
    /// Tells a caller that the keeper has heard it.
    fn acknowledge(mut caller: UnixStream) -> TokenOwner {
        // A caller that has ended needs no reply.
        let _ = caller.write_all(HEARD);
        TokenOwner(caller)
    }

    /// Confirms that nothing is renewed any more, and that the keeper has tried to give back the other locks of the claim.
    pub fn confirm(mut self) {
        let _ = self.0.write_all(LEFT);
    }
}

fn seqpacket(flags: SockFlag) -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC | flags, None)?)
}

/// Returns what a caller has sent so far, without waiting.
fn received(mut caller: &UnixStream, token: &Token) -> Received {
    let mut message = [0; LONGEST];
    match caller.read(&mut message) {
        Ok(length) if message[..length] == *token.as_str().as_bytes() => Received::Token,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Received::Nothing,
        Ok(_) | Err(_) => Received::Other,
    }
}

/// Asks the keeper of a claim, if this machine has one, to leave the release to this process, and waits until it has left:
/// no renewal is in flight then, and the keeper has tried to give back the other locks of the claim. `server_timeout` is
/// that of a server's reply. Returns whether the keeper has left.
pub fn ask_to_leave(key: &str, token: &Token, server_timeout: Duration) -> bool {
    let limit = Limit::until(Moment::now() + HEARS);
    let Some(mut keeper) = name(key, token).and_then(|name| call(&name, limit).ok()) else { return false };
    // Another user may have the name by now, and must not get the token.
    (is_ours(&keeper) || geteuid().is_root() && is_of(&keeper, token))
        && keeper.write_all(token.as_str().as_bytes()).is_ok()
        && replies(&keeper, HEARD, limit)
        && replies(&keeper, LEFT, Limit::until(Moment::now() + server_timeout + LEAVES))
}

/// Returns whether the keeper's next reply is this one. The end of the keeper is another.
fn replies(mut keeper: &UnixStream, expected: &[u8], limit: Limit<'_>) -> bool {
    let mut reply = [0; 2];
    limit.wait_for(&[(keeper.as_fd(), PollFlags::POLLIN)]).is_ok_and(|woken| woken == Woken::Ready)
        && keeper.read(&mut reply).is_ok_and(|length| reply[..length] == *expected)
}

/// Connects; waits for room in the backlog if it is full.
fn call(name: &[u8], limit: Limit<'_>) -> io::Result<UnixStream> {
    let keeper = UnixStream::from(seqpacket(SockFlag::empty())?);
    let address = UnixAddr::new_abstract(name)?;
    loop {
        // This bounds connect(2) too, unix(7). Zero would mean no time-out.
        keeper.set_write_timeout(Some(limit.until.remaining().max(Duration::from_millis(1))))?;
        match connect(keeper.as_raw_fd(), &address) {
            Err(Errno::EINTR) if !limit.until.passed() => {}
            connected => break connected?,
        }
    }
    keeper.set_nonblocking(true)?;
    Ok(keeper)
}

/// Returns whether the peer runs as the same user or as the superuser.
fn is_ours(other: &UnixStream) -> bool {
    getsockopt(other, PeerCredentials).is_ok_and(|other| other.uid() == geteuid().as_raw() || other.uid() == 0)
}

/// Returns whether the peer is the process that made the claim, as far as this process can see it.
fn is_of(other: &UnixStream, token: &Token) -> bool {
    let claimant = token.told().and_then(|told| i32::try_from(told.owner.pid).ok());
    getsockopt(other, PeerCredentials).is_ok_and(|other| Some(other.pid()) == claimant)
}

/// Returns the socket's name: the token's id, which `status` shows, and as much of the key as fits.
fn name(key: &str, token: &Token) -> Option<Vec<u8>> {
    let mut name = format!("nxlock-keeper:{}:{key}", token.id()?).into_bytes();
    name.truncate(NAME_MAX);
    Some(name)
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::SystemTime;

    use super::*;
    use crate::lock::Owner;
    use crate::wait::is_ready;

    const KEY: &str = "lock:job";
    const SERVER_TIMEOUT: Duration = Duration::from_secs(20);

    fn mint() -> Token {
        let owner = Owner { user: "u".into(), host: "h".into(), pid: 1, known_as: None };
        Token::mint(&owner, None, SystemTime::UNIX_EPOCH).unwrap()
    }

    fn soon() -> Limit<'static> {
        Limit::until(Moment::now() + Duration::from_secs(20))
    }

    /// Returns a caller that has connected and has not sent anything.
    fn caller(token: &Token) -> UnixStream {
        call(&name(KEY, token).unwrap(), soon()).unwrap()
    }

    /// Waits as the keeper does, within a limit.
    fn wait(control: &ControlSocket, limit: Limit<'_>) -> Woken {
        let fds: Vec<_> = control.fds().flatten().map(|fd| (fd, PollFlags::POLLIN)).collect();
        limit.rest(control.pause_ends(), &fds)
    }

    fn wakes(control: &ControlSocket) -> bool {
        wait(control, Limit::until(Moment::now())) == Woken::Ready
    }

    /// Waits for a caller or the end of a pause, and returns the owner if it has called.
    fn next(control: &mut ControlSocket, token: &Token) -> Option<TokenOwner> {
        assert_eq!(wait(control, soon()), Woken::Ready);
        control.owner(token)
    }

    /// Returns the owner, after as many waits as it takes.
    fn find(control: &mut ControlSocket, token: &Token) -> TokenOwner {
        let until = soon().until;
        loop {
            assert!(!until.passed(), "the owner is not heard");
            if let Some(owner) = next(control, token) {
                return owner;
            }
        }
    }

    #[test]
    fn only_the_whole_token_is_heard() {
        let token = mint();
        let key = "lock:".to_owned() + &"x".repeat(200);
        let mut control = ControlSocket::open(&key, &token).unwrap();
        assert!(control.owner(&token).is_none());
        // The same id, but another token.
        let half: Token = format!("nx1:{}:u@h:1:0:other", token.random_part()).parse().unwrap();
        let (theirs, ours) = (half.clone(), key.clone());
        let stranger = thread::spawn(move || ask_to_leave(&ours, &theirs, SERVER_TIMEOUT));
        while !stranger.is_finished() {
            wait(&control, Limit::until(Moment::now() + PAUSE));
            assert!(control.owner(&token).is_none());
        }
        assert!(!stranger.join().unwrap());
        let (theirs, ours) = (token.clone(), key.clone());
        let owner = thread::spawn(move || ask_to_leave(&ours, &theirs, SERVER_TIMEOUT));
        find(&mut control, &token).confirm();
        assert!(owner.join().unwrap());
        let (theirs, ours) = (token.clone(), key.clone());
        let owner = thread::spawn(move || ask_to_leave(&ours, &theirs, SERVER_TIMEOUT));
        drop(find(&mut control, &token));
        assert!(!owner.join().unwrap(), "it has heard the owner, and has ended");
        drop(control);
        assert!(!ask_to_leave(&key, &token, SERVER_TIMEOUT), "nobody is there");
    }

    #[test]
    fn a_caller_that_sends_nothing_is_not_waited_for_and_does_not_wake_the_keeper() {
        let token = mint();
        let mut control = ControlSocket::open(KEY, &token).unwrap();
        let _silent = caller(&token);
        assert!(next(&mut control, &token).is_none());
        assert!(!wakes(&control));
        let mut owner = caller(&token);
        assert!(next(&mut control, &token).is_none(), "it has not sent its token yet");
        owner.write_all(token.as_str().as_bytes()).unwrap();
        assert!(next(&mut control, &token).is_some());
    }

    #[test]
    fn a_token_in_two_messages_is_none() {
        let token = mint();
        let mut control = ControlSocket::open(KEY, &token).unwrap();
        let mut caller = caller(&token);
        let (front, back) = token.as_str().as_bytes().split_at(10);
        caller.write_all(front).and_then(|()| caller.write_all(back)).unwrap();
        assert!(next(&mut control, &token).is_none());
        assert_eq!(control.callers.len(), 0);
    }

    #[test]
    fn callers_that_send_nothing_are_let_go_when_there_are_many_and_the_owner_is_heard() {
        let token = mint();
        let mut control = ControlSocket::open(KEY, &token).unwrap();
        let silent: Vec<_> = (0..BACKLOG).map(|_| caller(&token)).collect();
        assert!(next(&mut control, &token).is_none());
        assert_eq!(control.callers.len(), CALLERS);
        let more: Vec<_> = (0..BACKLOG).map(|_| caller(&token)).collect();
        let theirs = token.clone();
        // The backlog has no room for it until the keeper accepts again.
        let owner = thread::spawn(move || {
            let mut owner = call(&name(KEY, &theirs).unwrap(), soon()).unwrap();
            owner.write_all(theirs.as_str().as_bytes()).unwrap();
            owner
        });
        find(&mut control, &token).confirm();
        let owner = owner.join().unwrap();
        assert!(replies(&owner, HEARD, soon()) && replies(&owner, LEFT, soon()));
        drop((silent, more));
    }

    #[test]
    fn after_a_refusal_the_keeper_is_not_woken_before_a_pause_is_over() {
        let token = mint();
        let mut control = ControlSocket::open(KEY, &token).unwrap();
        drop(caller(&token));
        assert!(next(&mut control, &token).is_none());
        let pause = control.pause.expect("a pause has begun");
        // A caller does not wake the keeper during the pause; the end of the pause does.
        drop(caller(&token));
        assert!(is_ready(control.listener.as_fd(), PollFlags::POLLIN), "somebody has called");
        assert_eq!(wait(&control, soon()), Woken::Ready);
        assert!(pause.passed());
        assert!(next(&mut control, &token).is_none());
        assert!(control.pause > Some(pause), "the second is refused too, and another pause begins");
        while control.pause.is_some() {
            assert!(next(&mut control, &token).is_none());
        }
        assert!(!wakes(&control));
        let _caller = caller(&token);
        assert!(wakes(&control));
    }
}
