//! A lock kept in the background, for as long as a process runs that is no child of ours.
//!
//! The process that asked becomes two before it asks (`fork`): a front, which its caller waits for and which
//! prints the token, and the keeper, which asks, renews, and gives the lock back. So no thread and no connection
//! ever changes hands. The keeper looks at the same things again whenever anything happens: the lease, the
//! process it keeps the lock for (`ward`), who wants it to end, and the owner of the token, who is about to give
//! the lock back (`door`).

mod door;
mod fork;
mod tie;
mod ward;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::signal::Signal;

pub use door::dismiss;
pub use fork::{Half, fork, nowhere};
pub use tie::{ToFront, ToKeeper, tie};
pub use ward::Ward;

use crate::clock::Moment;
use crate::events;
use crate::inbox::{Alarm, Arrival};
use crate::keeper::{GivenBack, Keeper, Kept};
use crate::lock::{Fence, Hold, Lease, Token, Ttl};
use crate::signals::Signals;
use crate::store::{Store, Trouble};
use crate::supervise::{Lost, margin};
use door::{Door, Owner};
use tie::Heard;

/// What a keeper needs, all had before the lock is asked for: once it is granted nothing may be lacking.
pub struct Outfit {
    alarm: Alarm,
    /// Readable when any of what is waited for is.
    bell: Epoll,
    nowhere: File,
}

/// An outfit in the background, where the lock's owner finds it.
pub struct Post {
    alarm: Alarm,
    bell: Epoll,
    door: Door,
}

impl Outfit {
    /// # Errors
    /// As the system calls: there may be too few descriptors.
    pub fn gather() -> io::Result<Outfit> {
        let bell = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Outfit { alarm: Alarm::new()?, bell, nowhere: fork::nowhere()? })
    }

    /// Goes into the background with a lock that was just granted, and tells the front of it.
    ///
    /// # Errors
    /// If that cannot be, or nobody is there any more.
    pub fn leave(
        self,
        key: &str,
        (token, fence): (&Token, Option<Fence>),
        ward: &Ward,
        signals: &Signals,
        front: &mut ToFront,
    ) -> io::Result<Post> {
        // Only the token that was granted is the owner's.
        let door = Door::open(key, token)?;
        for fd in signals.fds().into_iter().flatten().chain([ward.as_fd(), front.as_fd(), door.as_fd()]) {
            self.bell.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        }
        fork::detach(&self.nowhere)?;
        front.grant(token, fence)?;
        Ok(Post { alarm: self.alarm, bell: self.bell, door })
    }
}

/// What is to be kept, and how.
pub struct Charge {
    pub store: Box<dyn Store>,
    pub hold: Hold,
    pub ttl: Ttl,
    pub lease: Lease,
    pub server_timeout: Duration,
    /// What the ward is told a loss by.
    pub lost_signal: Option<Signal>,
}

pub struct Vigil {
    ward: Ward,
    lost_signal: Option<Signal>,
    token: Token,
    keeper: Keeper,
    signals: Signals,
    bell: Epoll,
    /// Until the token is printed.
    front: Option<ToFront>,
    door: Door,
    /// The lease may be believed until then.
    until: Moment,
    /// How long before that a lease that was not renewed counts as lost.
    margin: Duration,
    is_told: bool,
    /// Why it was not renewed, last.
    uncertain: Option<Trouble>,
}

/// How it ends.
enum End {
    /// Nobody needs the lock any more, or somebody wants it from us.
    GiveBack,
    /// Its owner gives it back.
    Leave(Owner),
    /// There is none any more.
    Lost,
}

impl Vigil {
    pub fn begin(post: Post, charge: Charge, ward: Ward, signals: Signals, front: ToFront) -> Vigil {
        let Charge { store, hold, ttl, lease, server_timeout, lost_signal } = charge;
        let token = hold.token.clone();
        Vigil {
            ward,
            lost_signal,
            token,
            keeper: Keeper::new(store, hold, ttl, lease, server_timeout, post.alarm),
            signals,
            bell: post.bell,
            front: Some(front),
            door: post.door,
            until: lease.until,
            margin: margin::stop(ttl, Duration::ZERO),
            is_told: false,
            uncertain: None,
        }
    }

    /// Keeps the lock until there is no more need, or no more lock.
    pub fn keep(mut self) {
        events::kept();
        let end = loop {
            if let Some(end) = self.look() {
                break end;
            }
            let until = if self.is_told { self.until } else { self.until - self.margin };
            match self.keeper.next(until, [Some(self.bell.0.as_fd()), None, None]) {
                Ok(Arrival::Letter(Kept::Until(until))) => self.until = until,
                Ok(Arrival::Letter(Kept::Lost(occupancy))) => break self.lose(&Lost::Taken(occupancy)),
                Ok(Arrival::Letter(Kept::Uncertain(trouble))) => self.uncertain = Some(trouble),
                Ok(Arrival::Readable | Arrival::Time) => {}
                Err(_) => {
                    self.tell();
                    break End::GiveBack;
                }
            }
        };
        match end {
            End::GiveBack => {
                self.is_relied_on();
                let given_back = self.keeper.give_back(None);
                let said = in_words(&given_back);
                match given_back {
                    GivenBack::Done => events::released(None),
                    GivenBack::NotYours(occupancy) => {
                        events::lost(&Lost::Taken(occupancy), "found when it was to be given back");
                    }
                    GivenBack::Unconfirmed(trouble) => events::unreleased(&trouble),
                }
                if let Some(front) = self.front {
                    front.last_words(&said);
                }
            }
            End::Leave(owner) => {
                self.keeper.leave();
                events::released(None);
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
        if self.ward.has_ended() {
            return Some(End::GiveBack);
        }
        if self.signals.stop_requested().is_some() {
            self.tell();
            return Some(End::GiveBack);
        }
        match self.front.as_mut().map(ToFront::heard) {
            Some(Heard::Printed) => self.front = None,
            Some(Heard::Gone) => return Some(End::GiveBack),
            Some(Heard::Nothing) | None => {}
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
                Some(signal) => format!("{signal} to process {}", self.ward.pid()),
                None => format!("process {} is not told", self.ward.pid()),
            };
            events::lost(how, &follows);
        }
        self.tell();
    }

    fn owner(&mut self) -> Option<Owner> {
        self.door.owner(&self.token)
    }

    /// Whether the token was printed. If not, it counts as never granted, and the front hears of that.
    fn is_relied_on(&mut self) -> bool {
        self.front.take_if(ToFront::close);
        self.front.is_none()
    }

    /// Tells the ward that it has no lock, or not for long.
    fn tell(&mut self) {
        if self.is_relied_on()
            && !std::mem::replace(&mut self.is_told, true)
            && let Some(signal) = self.lost_signal
        {
            self.ward.tell(signal);
        }
    }
}

fn in_words(given_back: &GivenBack) -> String {
    match given_back {
        GivenBack::Done | GivenBack::NotYours(_) => "the lock was given back".to_owned(),
        GivenBack::Unconfirmed(trouble) => format!("{trouble}; the lock ends by itself"),
    }
}
