//! A lock kept in the background, for as long as a process runs that is no child of ours.
//!
//! The process that asked becomes two before it asks (`fork`): a front, which its caller waits for and which
//! prints the token, and the keeper, which asks, renews, and gives the lock back. So no thread and no connection
//! ever changes hands. The keeper looks at the same things again whenever anything happens: the lease, the
//! process it keeps the lock for (`ward`), who wants it to end, and the owner of the token, who is about to give
//! the lock back (`door`).

mod control;
mod daemon;
mod handshake;
mod watched;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::signal::Signal;

pub use control::ask_to_leave;
pub use daemon::Half;
pub use daemon::fork;
pub use daemon::nowhere;
pub use handshake::FrontEnd;
pub use handshake::KeeperEnd;
pub use handshake::socket_pair;
pub use watched::Watched;

use crate::clock::Moment;
use crate::error::Error;
use crate::lock::{Claim, Fence, Lease, Lost, Token, Ttl};
use crate::mailbox::{Alarm, Arrived};
use crate::notify;
use crate::renewer::{GivenBack, Renewal, Renewer};
use crate::signals::Signals;
use crate::store::Store;
use crate::supervise::margin;
use control::{ControlSocket, TokenOwner};
use handshake::FrontState;

/// What a keeper needs, all had before the lock is asked for: once it is granted nothing may be lacking.
pub struct Resources {
    alarm: Alarm,
    /// Readable when any of what is waited for is.
    poller: Epoll,
    nowhere: File,
}

/// An outfit in the background, where the lock's owner finds it.
pub struct Ready {
    alarm: Alarm,
    poller: Epoll,
    control: ControlSocket,
}

impl Resources {
    /// # Errors
    /// As the system calls: there may be too few descriptors.
    pub fn gather() -> io::Result<Resources> {
        let poller = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Resources { alarm: Alarm::new()?, poller, nowhere: daemon::nowhere()? })
    }

    /// Goes into the background with a lock that was just granted, and tells the front of it.
    ///
    /// # Errors
    /// If that cannot be, or nobody is there any more.
    pub fn leave(
        self,
        key: &str,
        (token, fence): (&Token, Option<Fence>),
        watched: &Watched,
        signals: &Signals,
        front: &mut FrontEnd,
    ) -> io::Result<Ready> {
        // Only the token that was granted is the owner's.
        let control = ControlSocket::open(key, token)?;
        for fd in signals.fds().into_iter().flatten().chain([watched.as_fd(), front.as_fd(), control.as_fd()]) {
            self.poller.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        }
        daemon::detach(&self.nowhere)?;
        front.grant(token, fence)?;
        Ok(Ready { alarm: self.alarm, poller: self.poller, control })
    }
}

/// What is to be kept, and how.
pub struct Assignment {
    pub store: Box<dyn Store>,
    pub claim: Claim,
    pub ttl: Ttl,
    pub lease: Lease,
    pub server_timeout: Duration,
    /// What the ward is told a loss by.
    pub lost_signal: Option<Signal>,
}

pub struct Keeper {
    watched: Watched,
    lost_signal: Option<Signal>,
    token: Token,
    renewer: Renewer,
    signals: Signals,
    poller: Epoll,
    /// Until the token is printed.
    front: Option<FrontEnd>,
    control: ControlSocket,
    /// The lease may be believed until then.
    until: Moment,
    /// How long before that a lease that was not renewed counts as lost.
    margin: Duration,
    is_told: bool,
    /// Why it was not renewed, last.
    uncertain: Option<Error>,
}

/// How it ends.
enum End {
    /// Nobody needs the lock any more, or somebody wants it from us.
    GiveBack,
    /// Its owner gives it back.
    Leave(TokenOwner),
    /// There is none any more.
    Lost,
}

impl Keeper {
    pub fn begin(post: Ready, charge: Assignment, watched: Watched, signals: Signals, front: FrontEnd) -> Keeper {
        let Assignment { store, claim, ttl, lease, server_timeout, lost_signal } = charge;
        let token = claim.token.clone();
        Keeper {
            watched,
            lost_signal,
            token,
            renewer: Renewer::new(store, claim, ttl, lease, server_timeout, post.alarm),
            signals,
            poller: post.poller,
            front: Some(front),
            control: post.control,
            until: lease.until,
            margin: margin::stop(ttl, Duration::ZERO),
            is_told: false,
            uncertain: None,
        }
    }

    /// Keeps the lock until there is no more need, or no more lock.
    pub fn keep(mut self) {
        notify::kept();
        let end = loop {
            if let Some(end) = self.look() {
                break end;
            }
            let until = if self.is_told { self.until } else { self.until - self.margin };
            match self.renewer.next(until, [Some(self.poller.0.as_fd()), None, None]) {
                Ok(Arrived::Message(Renewal::Until(until))) => self.until = until,
                Ok(Arrived::Message(Renewal::Lost(state))) => break self.lose(&Lost::Taken(state)),
                Ok(Arrived::Message(Renewal::Uncertain(error))) => self.uncertain = Some(error),
                Ok(Arrived::Readable | Arrived::Time) => {}
                Err(_) => {
                    self.tell();
                    break End::GiveBack;
                }
            }
        };
        match end {
            End::GiveBack => {
                self.is_relied_on();
                let given_back = self.renewer.give_back(None);
                let said = in_words(&given_back);
                match given_back {
                    GivenBack::Done => notify::released(None),
                    GivenBack::NotYours(state) => {
                        notify::lost(&Lost::Taken(state), "found when it was to be given back");
                    }
                    GivenBack::Unconfirmed(error) => notify::unreleased(&error),
                }
                if let Some(front) = self.front {
                    front.finish(&said);
                }
            }
            End::Leave(owner) => {
                self.renewer.leave();
                notify::released(None);
                owner.answer();
            }
            End::Lost => {}
        }
    }

    /// Sees whether there is an end to it. The lease first: we may have been stopped, or the whole machine.
    fn look(&mut self) -> Option<End> {
        if self.until.passed() {
            return Some(self.lose(&Lost::Unconfirmed(self.uncertain.clone())));
        }
        if !self.is_told && (self.until - self.margin).passed() {
            match self.owner() {
                Some(owner) => return Some(End::Leave(owner)),
                // It may still be renewed, but that is not to be relied on any more.
                None if self.is_relied_on() => self.give_up(&Lost::Unconfirmed(self.uncertain.clone())),
                None => return Some(End::GiveBack),
            }
        }
        if self.watched.has_ended() {
            return Some(End::GiveBack);
        }
        if self.signals.stop_requested().is_some() {
            self.tell();
            return Some(End::GiveBack);
        }
        match self.front.as_mut().map(FrontEnd::state) {
            Some(FrontState::Printed) => self.front = None,
            Some(FrontState::Gone) => return Some(End::GiveBack),
            Some(FrontState::Nothing) | None => {}
        }
        self.owner().map(End::Leave)
    }

    /// There is no lock any more: by its owner's will, or else the ward has to know.
    fn lose(&mut self, how: &Lost) -> End {
        match self.owner() {
            Some(owner) => End::Leave(owner),
            None => {
                self.give_up(how);
                End::Lost
            }
        }
    }

    /// The ward has no lock, or not for long.
    fn give_up(&mut self, how: &Lost) {
        if !self.is_told {
            let follows = match self.lost_signal {
                Some(signal) => format!("{signal} to process {}", self.watched.pid()),
                None => format!("process {} is not told", self.watched.pid()),
            };
            notify::lost(how, &follows);
        }
        self.tell();
    }

    fn owner(&mut self) -> Option<TokenOwner> {
        self.control.owner(&self.token)
    }

    /// Whether the token was printed. If not, it counts as never granted, and the front hears of that.
    fn is_relied_on(&mut self) -> bool {
        self.front.take_if(FrontEnd::close);
        self.front.is_none()
    }

    /// Tells the ward that it has no lock, or not for long.
    fn tell(&mut self) {
        if self.is_relied_on()
            && !std::mem::replace(&mut self.is_told, true)
            && let Some(signal) = self.lost_signal
        {
            self.watched.signal(signal);
        }
    }
}

fn in_words(given_back: &GivenBack) -> String {
    match given_back {
        GivenBack::Done | GivenBack::NotYours(_) => "the lock was given back".to_owned(),
        GivenBack::Unconfirmed(error) => format!("{error}; the lock ends by itself"),
    }
}
