//! Waits for descriptors until a deadline on the boot clock. The only place that calls poll(2).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::clock::Moment;

/// The bounds of a wait: a deadline, and descriptors that cancel it before that.
#[derive(Clone, Copy)]
pub struct Limit<'a> {
    pub until: Moment,
    /// The wait ends as soon as one of them is readable. `None` is skipped.
    pub cancel: &'a [Option<BorrowedFd<'a>>],
    /// What to do when a request has been sent, before its reply is awaited: it takes time, but waits for nothing.
    pub meanwhile: Option<&'a dyn Fn()>,
}

/// How long poll(2) is let be when the kernel has no memory for it.
const MEMORY_AGAIN: Duration = Duration::from_millis(10);

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    Ready,
    Cancelled,
    TimeUp,
}

impl<'a> Limit<'a> {
    /// Neither a deadline nor a cancellation.
    pub const NONE: Limit<'static> = Limit::until(Moment::NEVER);

    pub const fn until(until: Moment) -> Limit<'a> {
        Limit { until, cancel: &[], meanwhile: None }
    }

    /// Returns the same limit, but no later than `until`.
    pub fn no_later_than(self, until: Moment) -> Limit<'a> {
        Limit { until: self.until.min(until), ..self }
    }

    /// Returns whether a wait would be cancelled at once.
    pub fn is_cancelled(self) -> bool {
        matches!(self.no_later_than(Moment::now()).wait_for(&[]), Ok(Woken::Cancelled))
    }

    /// Waits until one of `wanted` is ready, the wait is cancelled, or the deadline passes. A cancellation takes
    /// precedence. A machine that sleeps meanwhile makes the wait longer: poll(2)'s time-out does not count its sleep.
    /// [`Alarm::wait_for`] does.
    ///
    /// # Errors
    /// As poll(2), but a lack of memory is waited out.
    pub fn wait_for(self, wanted: &[(BorrowedFd<'_>, PollFlags)]) -> io::Result<Woken> {
        Ok(self.poll(wanted, || timeout(self.until.remaining()))?.0)
    }

    /// Does the same for a caller that checks at `look_at` in any case: that moment counts as ready too.
    pub fn rest(self, look_at: Moment, wanted: &[(BorrowedFd<'_>, PollFlags)]) -> Woken {
        match self.no_later_than(look_at).wait_for(wanted) {
            Ok(Woken::Cancelled) => Woken::Cancelled,
            Ok(Woken::TimeUp) if !look_at.passed() => Woken::TimeUp,
            Ok(Woken::TimeUp | Woken::Ready) | Err(_) => Woken::Ready,
        }
    }

    /// Does the same with any time-out; returns the place in `wanted` of the descriptor that is ready, too.
    fn poll(
        self,
        wanted: &[(BorrowedFd<'_>, PollFlags)],
        timeout: impl Fn() -> PollTimeout,
    ) -> io::Result<(Woken, Option<usize>)> {
        let cancel = self.cancel.iter().flatten().map(|fd| PollFd::new(*fd, PollFlags::POLLIN));
        let mut polled: Vec<_> = cancel.chain(wanted.iter().map(|(fd, what)| PollFd::new(*fd, *what))).collect();
        let first = polled.len() - wanted.len();
        loop {
            match poll(&mut polled, timeout()) {
                Ok(0) | Err(Errno::ENOMEM) if self.until.passed() => return Ok((Woken::TimeUp, None)),
                Ok(0) | Err(Errno::EINTR) => continue,
                // A holder that fails here would give its lock back. Without descriptors, poll(2) needs no memory.
                Err(Errno::ENOMEM) => {
                    let _ = poll(&mut [], self::timeout(MEMORY_AGAIN));
                    continue;
                }
                Err(errno) => return Err(errno.into()),
                Ok(_) => {}
            }
            // nix does not know all events: one that it does not know has happened.
            let ready = polled.iter().position(|fd| fd.any().unwrap_or(true));
            return Ok(match ready.and_then(|at| at.checked_sub(first)) {
                Some(at) => (Woken::Ready, Some(at)),
                None => (Woken::Cancelled, None),
            });
        }
    }
}

/// A timer on the boot clock, for those who watch a lease: it expires as soon as a machine resumes that has slept past
/// the deadline. It is a descriptor, so it is allocated before the lock is requested. Each process makes its own: after
/// fork(2), parent and child would set the same timer.
pub struct Alarm(TimerFd);

impl Alarm {
    /// # Errors
    /// As timerfd_create(2).
    pub fn new() -> io::Result<Alarm> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        Ok(Alarm(TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?))
    }

    /// Waits until one of `wanted` is readable, the wait is cancelled, or the deadline passes, as [`Limit::wait_for`].
    ///
    /// # Errors
    /// As [`Limit::wait_for`] and timerfd_settime(2).
    pub fn wait_for(&self, wanted: &[BorrowedFd<'_>], limit: Limit<'_>) -> io::Result<Woken> {
        match limit.until.since_boot() {
            None => self.0.unset(),
            Some(moment) => {
                let at = Expiration::OneShot(TimeSpec::from_duration(moment));
                self.0.set(at, TimerSetTimeFlags::TFD_TIMER_ABSTIME)
            }
        }?;
        let mut polled = vec![(self.0.as_fd(), PollFlags::POLLIN)];
        polled.extend(wanted.iter().map(|fd| (*fd, PollFlags::POLLIN)));
        Ok(match limit.poll(&polled, || PollTimeout::NONE)? {
            (Woken::Ready, Some(0)) => Woken::TimeUp,
            (woken, _) => woken,
        })
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
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
