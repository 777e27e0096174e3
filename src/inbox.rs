//! A channel that can be waited for together with a descriptor, on a clock that counts sleep.
//!
//! Everything that can happen to a thread arrives here: letters from another thread, a descriptor
//! that became readable, a moment that has come.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::clock::Moment;

pub struct Inbox<T> {
    letters: Receiver<T>,
    bell: UnixStream,
    /// poll(2) counts on a clock that stops while the machine sleeps; this one wakes us at resume.
    alarm: TimerFd,
}

pub struct Postbox<T> {
    letters: Sender<T>,
    bell: UnixStream,
}

/// What came first.
pub enum Arrival<T> {
    Letter(T),
    /// The descriptor that was waited for as well has something to read, or its end.
    Readable,
    /// The moment has come.
    Time,
}

impl<T> Inbox<T> {
    /// # Errors
    /// As socketpair(2) and timerfd_create(2).
    pub fn open() -> io::Result<(Inbox<T>, Postbox<T>)> {
        let (post, letters) = channel();
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        let alarm = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        Ok((Inbox { letters, bell: ours, alarm }, Postbox { letters: post, bell: theirs }))
    }

    /// Waits for a letter, for `also` to become readable, or for `until`.
    ///
    /// # Errors
    /// As poll(2) and timerfd_settime(2).
    pub fn next(&mut self, until: Moment, also: Option<BorrowedFd<'_>>) -> io::Result<Arrival<T>> {
        loop {
            self.silence();
            if let Ok(letter) = self.letters.try_recv() {
                return Ok(Arrival::Letter(letter));
            }
            if until.passed() {
                return Ok(Arrival::Time);
            }
            self.set_alarm(until)?;
            let readable = PollFlags::POLLIN;
            let mut fds = vec![PollFd::new(self.bell.as_fd(), readable), PollFd::new(self.alarm.as_fd(), readable)];
            fds.extend(also.map(|fd| PollFd::new(fd, readable)));
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            if fds.get(2).and_then(PollFd::any).unwrap_or(false) {
                return Ok(Arrival::Readable);
            }
        }
    }

    /// Takes the rings out of the bell. A letter is posted before its ring, so whoever looks for
    /// letters after this misses none.
    fn silence(&mut self) {
        let mut rings = [0; 64];
        while matches!(self.bell.read(&mut rings), Ok(n) if n == rings.len()) {}
    }

    fn set_alarm(&self, until: Moment) -> io::Result<()> {
        let alarm = match until.since_boot() {
            None => self.alarm.unset(),
            Some(moment) => {
                let at = Expiration::OneShot(TimeSpec::from_duration(moment));
                self.alarm.set(at, TimerSetTimeFlags::TFD_TIMER_ABSTIME)
            }
        };
        Ok(alarm?)
    }
}

impl<T> Postbox<T> {
    /// Posts a letter. One to an inbox that is gone is lost: nobody is left to read it.
    pub fn send(&self, letter: T) {
        if self.letters.send(letter).is_ok() {
            // A full socket means that the bell is ringing already.
            let _ = (&self.bell).write(&[1]);
        }
    }
}
