//! Waits for descriptors, bounded by a deadline and by cancel descriptors. The only place that polls for the store.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::clock::Moment;
use crate::mailbox::{Fds, NONE};

/// The bounds of a wait: a deadline, and descriptors that cancel it before that.
#[derive(Clone, Copy)]
pub struct Limit<'a> {
    pub until: Moment,
    /// One of them is readable as soon as nobody wants the reply any more.
    pub cancel: Fds<'a>,
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    Ready,
    Cancelled,
    TimeUp,
}

impl<'a> Limit<'a> {
    pub fn until(until: Moment) -> Limit<'a> {
        Limit { until, cancel: NONE }
    }

    /// Returns the same limit, but no later than `until`.
    pub fn no_later_than(self, until: Moment) -> Limit<'a> {
        Limit { until: self.until.min(until), ..self }
    }

    /// Waits until one of `wanted` is ready, the wait is cancelled, or the deadline passes. A cancellation takes
    /// precedence.
    ///
    /// # Errors
    /// As poll(2).
    pub fn wait_for(&self, wanted: &[(BorrowedFd<'_>, PollFlags)]) -> io::Result<Woken> {
        loop {
            let mut fds = Vec::with_capacity(self.cancel.len() + wanted.len());
            fds.extend(self.cancel.iter().flatten().map(|cancel_fd| PollFd::new(*cancel_fd, PollFlags::POLLIN)));
            let cancel = fds.len();
            fds.extend(wanted.iter().map(|(fd, what)| PollFd::new(*fd, *what)));
            let left = self.until.remaining();
            match poll(&mut fds, timeout(left)) {
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
                Ok(0) if self.until.passed() => return Ok(Woken::TimeUp),
                Ok(0) => continue,
                Ok(_) => {}
            }
            let is_cancelled = fds[..cancel].iter().any(|cancel_fd| cancel_fd.any().unwrap_or(false));
            return Ok(if is_cancelled { Woken::Cancelled } else { Woken::Ready });
        }
    }

    /// Does the same for a caller that checks at `look_at` in any case: that moment counts as ready too.
    pub fn rest(&self, look_at: Moment, wanted: &[(BorrowedFd<'_>, PollFlags)]) -> Woken {
        match self.no_later_than(look_at).wait_for(wanted) {
            Ok(Woken::Cancelled) => Woken::Cancelled,
            Ok(Woken::TimeUp) if !look_at.passed() => Woken::TimeUp,
            Ok(Woken::TimeUp | Woken::Ready) | Err(_) => Woken::Ready,
        }
    }
}

/// Returns whether a descriptor is ready now.
pub fn is_ready(fd: BorrowedFd<'_>, what: PollFlags) -> bool {
    Limit::until(Moment::now()).wait_for(&[(fd, what)]).is_ok_and(|woken| woken == Woken::Ready)
}

/// Returns a time-out for poll(2), rounded up so that the deadline has passed on return, and capped: the caller polls
/// again.
fn timeout(left: Duration) -> PollTimeout {
    let millis = left.as_nanos().div_ceil(1_000_000);
    PollTimeout::from(u16::try_from(millis).unwrap_or(u16::MAX))
}
