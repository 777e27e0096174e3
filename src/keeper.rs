//! The keeper: holds a lock in the background while a process runs that is no child of nxlock.
//!
//! nxlock forks before it requests the lock (`fork`): the front, which the caller waits for, prints the token; the
//! keeper requests, renews and releases the lock. So no thread or connection ever changes hands. On every event the
//! keeper checks the same things again: the lease, the watched process (`watched`), requests to stop, and whether the
//! token's owner is about to release the lock (`control`).

mod control;
mod daemon;
mod handshake;
mod watched;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::PollFlags;
use nix::sys::signal::Signal;

pub use control::ask_to_leave;
pub use daemon::{Half, fork};
pub use handshake::{FrontEnd, Grant, KeeperEnd, socket_pair};
pub use watched::Watched;

use crate::clock::Moment;
use crate::descriptors;
use crate::error::Error;
use crate::lock::{Claim, Lease, LockName, Lost, Token, Told, Ttl};
use crate::mailbox::Arrived;
use crate::notify;
use crate::renewer::{GivenBack, Renewal, Renewer};
use crate::signals::Signals;
use crate::store::Store;
use crate::supervise::margin;
use crate::wait::{Alarm, Limit};
use control::{ControlSocket, TokenOwner};
use handshake::FrontState;

/// The resources of a keeper, allocated before the lock is requested: after the grant nothing may be lacking.
pub struct Resources {
    alarm: Alarm,
    nowhere: File,
}

/// The resources of a keeper in the background, where the token's owner finds it.
pub struct Ready {
    alarm: Alarm,
    /// One for each lock.
    controls: Vec<ControlSocket>,
}

impl Resources {
    /// # Errors
    /// Those of the system calls: there may be too few descriptors.
    pub fn gather() -> io::Result<Resources> {
        Ok(Resources { alarm: Alarm::new()?, nowhere: descriptors::nowhere()? })
    }

    /// Goes into the background with locks that were just granted, of which these are the keys, and sends the grant to the
    /// front.
    ///
    /// # Errors
    /// If a system call fails, or the front has ended.
    pub fn leave(self, keys: &[String], grant: &Grant, front: &mut FrontEnd) -> io::Result<Ready> {
        // The tokens may change until they are granted.
        let tokens = [&grant.token].into_iter().chain(grant.also.iter().map(|(token, _)| token));
        let controls = keys.iter().zip(tokens).map(|(key, token)| ControlSocket::open(key, token));
        let controls = controls.collect::<io::Result<_>>()?;
        daemon::detach(&self.nowhere)?;
        front.grant(grant)?;
        daemon::detach_stderr(&self.nowhere);
        Ok(Ready { alarm: self.alarm, controls })
    }
}

/// The lock to keep, and how.
pub struct Assignment {
    pub store: Box<dyn Store>,
    pub claim: Claim,
    pub ttl: Ttl,
    pub lease: Lease,
    pub server_timeout: Duration,
    /// The signal that tells the watched process of a loss.
    pub lost_signal: Option<Signal>,
}

/// The control socket of one of the locks.
struct Control {
    socket: ControlSocket,
    name: LockName,
    token: Token,
}

pub struct Keeper {
    watched: Watched,
    lost_signal: Option<Signal>,
    renewer: Renewer,
    signals: Signals,
    /// Present until the token is printed.
    front: Option<FrontEnd>,
    /// One for each lock.
    controls: Vec<Control>,
    /// The lease is valid until then.
    until: Moment,
    /// How long before that an unrenewed lease counts as lost.
    margin: Duration,
    /// The watched process was signalled, or gets no signals.
    is_signalled: bool,
    /// When the lock is given back at the latest, because somebody has asked for it.
    gives_up: Moment,
    /// Error of the last renewal that failed.
    uncertain: Option<Error>,
}

/// How long a process has from the signal to its end before the lock is given back, if somebody has asked for it.
const GIVES_UP_WITHIN: Duration = Duration::from_secs(10);

/// How the keeper ends.
enum End {
    /// Nobody needs the lock any more, or a signal stopped the keeper.
    GiveBack,
    /// The token's owner releases the lock with this name.
    Leave(TokenOwner, LockName),
    /// The lock is lost.
    Lost,
}

impl Keeper {
    pub fn begin(ready: Ready, assignment: Assignment, watched: Watched, signals: Signals, front: FrontEnd) -> Keeper {
        let Assignment { store, claim, ttl, lease, server_timeout, lost_signal } = assignment;
        let control = |(socket, part): (ControlSocket, &Claim)| Control {
            socket,
            name: part.name.clone(),
            token: part.token.clone(),
        };
        let controls = ready.controls.into_iter().zip(claim.parts()).map(control).collect();
        Keeper {
            watched,
            lost_signal,
            controls,
            renewer: Renewer::new(store, claim, ttl, lease, server_timeout, ready.alarm),
            signals,
            front: Some(front),
            until: lease.until,
            margin: margin::stop_before(ttl, Duration::ZERO),
            is_signalled: false,
            gives_up: Moment::NEVER,
            uncertain: None,
        }
    }

    /// Keeps the lock until nobody needs it or it is lost.
    pub fn keep(mut self) {
        notify::kept();
        let end = loop {
            // Renewals first: the thread that renews may have had a processor when this one had none.
            if let Some(end) = self.take_renewals().or_else(|| self.look()) {
                break end;
            }
            let deadline = if self.is_signalled { self.until } else { self.until - self.margin };
            let fds =
                self.signals.fds().into_iter().chain(self.controls.iter().flat_map(|control| control.socket.fds()));
            let fds = fds.chain([Some(self.watched.as_fd()), self.front.as_ref().map(AsFd::as_fd)]);
            let pauses = self.controls.iter().map(|control| control.socket.pause_ends());
            let until = pauses.fold(deadline.min(self.gives_up), Moment::min);
            match self.renewer.next(Limit { until, cancel: &fds.collect::<Vec<_>>(), ..Limit::NONE }) {
                Ok(Arrived::Message(renewal)) => {
                    if let Some(end) = self.renewed(renewal) {
                        break end;
                    }
                }
                Ok(Arrived::Readable | Arrived::Time) => {}
                Err(_) => {
                    self.signal();
                    break End::GiveBack;
                }
            }
        };
        match end {
            End::GiveBack => {
                self.is_relied_on();
                let given_back = self.renewer.give_back(None, None);
                let said = in_words(&given_back);
                match given_back {
                    GivenBack::Done => notify::released(None),
                    GivenBack::NotYours(state) => {
                        notify::lost(&Lost::Taken(state), "found when it was to be released");
                    }
                    GivenBack::Unconfirmed(error) => notify::unreleased(&error),
                }
                if let Some(front) = self.front {
                    front.finish(&said);
                }
            }
            End::Leave(owner, name) => {
                self.renewer.leave(&name);
                notify::released(None);
                owner.confirm();
            }
            End::Lost if self.controls.len() > 1 => {
                // The others are still relied on, as long as they are not renewed.
                let until = self.until.min(Moment::now() + GIVES_UP_WITHIN);
                let limit = Limit { until, cancel: &self.signals.fds(), ..Limit::NONE };
                let _ = limit.wait_for(&[(self.watched.as_fd(), PollFlags::POLLIN)]);
                self.renewer.give_back(None, None);
            }
            End::Lost => {}
        }
    }

    /// Takes the renewals that have come, and returns how the keeper ends, if it must.
    fn take_renewals(&mut self) -> Option<End> {
        while let Some(renewal) = self.renewer.try_next() {
            if let Some(end) = self.renewed(renewal) {
                return Some(end);
            }
        }
        None
    }

    /// Takes one renewal, and returns how the keeper ends, if it must.
    fn renewed(&mut self, renewal: Renewal) -> Option<End> {
        match renewal {
            Renewal::Until(until) => self.until = until,
            Renewal::Asked(asker, name) => return self.give_up_for(&asker, name.as_ref()),
            Renewal::Uncertain(error) => self.uncertain = Some(error),
            Renewal::Lost(state) => return Some(self.lose(&Lost::Taken(*state))),
        }
        None
    }

    /// Returns how the keeper ends, if it must. Checks the lease first: the keeper, or the machine, may have been
    /// stopped.
    fn look(&mut self) -> Option<End> {
        if self.until.passed() {
            return Some(self.lose(&Lost::Unconfirmed(self.uncertain.clone())));
        }
        if !self.is_signalled && (self.until - self.margin).passed() {
            match self.left_to_owner() {
                Some(end) => return Some(end),
                // A renewal may still succeed, but is no longer to be relied on.
                None if self.is_relied_on() => self.report_loss(&Lost::Unconfirmed(self.uncertain.clone())),
                None => return Some(End::GiveBack),
            }
        }
        if self.watched.has_ended() || self.gives_up.passed() {
            return Some(End::GiveBack);
        }
        if self.signals.stop_requested().is_some() {
            self.signal();
            return Some(End::GiveBack);
        }
        match self.front.as_mut().map(FrontEnd::state) {
            Some(FrontState::Printed) => self.front = None,
            Some(FrontState::Gone) => return Some(End::GiveBack),
            Some(FrontState::Nothing) | None => {}
        }
        self.left_to_owner()
    }

    /// Handles a lost lock: its owner has released it, or else the watched process must know.
    fn lose(&mut self, how: &Lost) -> End {
        self.left_to_owner().unwrap_or_else(|| {
            self.report_loss(how);
            End::Lost
        })
    }

    /// Handles a request to give the lock up. If the owner of a token is about to release it, or the watched process has
    /// ended, the keeper ends; if not, the keeper tells the process, and leaves it some time to end.
    fn give_up_for(&mut self, asker: &Told, name: Option<&LockName>) -> Option<End> {
        let end = self.left_to_owner().or_else(|| self.watched.has_ended().then_some(End::GiveBack));
        if end.is_none() && self.gives_up == Moment::NEVER && self.is_relied_on() {
            notify::asked(asker, name, &self.what_follows());
            self.gives_up = Moment::now() + GIVES_UP_WITHIN;
            // The signal may have been for a loss that did not come about.
            self.is_signalled = false;
            self.signal();
        }
        end
    }

    /// Reports that the lock is lost, or soon will be.
    fn report_loss(&mut self, how: &Lost) {
        if !self.is_signalled {
            notify::lost(how, &self.what_follows());
        }
        self.signal();
    }

    /// Returns how the watched process learns of it, if it does.
    fn what_follows(&self) -> String {
        match self.lost_signal {
            Some(signal) => format!("{signal} to process {}", self.watched.pid()),
            None => format!("process {} is not told", self.watched.pid()),
        }
    }

    /// Returns the end if the owner of a token is about to release its lock.
    fn left_to_owner(&mut self) -> Option<End> {
        let find = |Control { socket, name, token }: &mut Control| Some(End::Leave(socket.owner(token)?, name.clone()));
        self.controls.iter_mut().find_map(find)
    }

    /// Returns whether the token was printed. If not, it counts as never granted, and the front learns that.
    fn is_relied_on(&mut self) -> bool {
        self.front.take_if(FrontEnd::close);
        self.front.is_none()
    }

    /// Signals the watched process that the lock is lost, or soon will be.
    fn signal(&mut self) {
        if self.is_relied_on()
            && !std::mem::replace(&mut self.is_signalled, true)
            && let Some(signal) = self.lost_signal
        {
            self.watched.signal(signal);
        }
    }
}

fn in_words(given_back: &GivenBack) -> String {
    match given_back {
        GivenBack::Done | GivenBack::NotYours(_) => "the lock was released".to_owned(),
        GivenBack::Unconfirmed(error) => format!("{error}; the lock ends by itself"),
    }
}
