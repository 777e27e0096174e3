//! Waits for the first of three: a message from another thread, a readable descriptor, a moment on the boot clock.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::clock::Moment;

/// A timer on the boot clock. poll(2)'s time-out stops while the machine sleeps; this timer expires as soon as it
/// resumes.
pub struct Alarm(TimerFd);

impl Alarm {
    /// # Errors
    /// As timerfd_create(2).
    pub fn new() -> io::Result<Alarm> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        Ok(Alarm(TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?))
    }

    /// Waits until `own` or one of `also` is readable, or until `until`. A signal may end the wait early: then
    /// [`Ready::Nothing`] is returned too.
    ///
    /// # Errors
    /// As poll(2) and timerfd_settime(2).
    pub fn wait(&self, own: Option<BorrowedFd<'_>>, also: Fds<'_>, until: Moment) -> io::Result<Ready> {
        match until.since_boot() {
            None => self.0.unset(),
            Some(moment) => {
                let at = Expiration::OneShot(TimeSpec::from_duration(moment));
                self.0.set(at, TimerSetTimeFlags::TFD_TIMER_ABSTIME)
            }
        }?;
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut polled = vec![readable(self.0.as_fd())];
        polled.extend(own.map(readable));
        polled.extend(also.into_iter().flatten().map(readable));
        match poll(&mut polled, PollTimeout::NONE) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(Ready::Nothing),
            Err(errno) => return Err(errno.into()),
        }
        let ready = polled.iter().skip(1).position(|fd| fd.any().unwrap_or(false));
        Ok(match ready {
            Some(0) if own.is_some() => Ready::Own,
            Some(_) => Ready::Also,
            None => Ready::Nothing,
        })
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Descriptors to wait for beside one's own.
pub type Fds<'a> = [Option<BorrowedFd<'a>>; 3];

pub const NONE: Fds<'static> = [None; 3];

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    Own,
    Also,
    Nothing,
}

/// A channel that can be waited for together with descriptors.
pub struct Mailbox<T> {
    messages: Receiver<T>,
    wakeup: UnixStream,
    alarm: Alarm,
}

pub struct MailSender<T> {
    messages: Sender<T>,
    wakeup: UnixStream,
}

/// The first event of a wait.
pub enum Arrived<T> {
    Message(T),
    /// One of the other descriptors has data or end of file to read.
    Readable,
    /// The moment has come.
    Time,
}

impl<T> Mailbox<T> {
    /// # Errors
    /// As socketpair(2) and timerfd_create(2).
    pub fn open() -> io::Result<(Mailbox<T>, MailSender<T>)> {
        let (sender, messages) = channel();
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        let mailbox = Mailbox { messages, wakeup: ours, alarm: Alarm::new()? };
        Ok((mailbox, MailSender { messages: sender, wakeup: theirs }))
    }

    /// Waits for a message, for one of `also` to become readable, or for `until`.
    ///
    /// # Errors
    /// As [`Alarm::wait`].
    pub fn next(&mut self, until: Moment, also: Fds<'_>) -> io::Result<Arrived<T>> {
        loop {
            self.drain();
            if let Ok(message) = self.messages.try_recv() {
                return Ok(Arrived::Message(message));
            }
            if until.passed() {
                return Ok(Arrived::Time);
            }
            if self.alarm.wait(Some(self.wakeup.as_fd()), also, until)? == Ready::Also {
                return Ok(Arrived::Readable);
            }
        }
    }

    /// Drains the wake-up socket. A sender queues its message before it writes a byte, so a receiver that checks for
    /// messages after this misses none.
    fn drain(&mut self) {
        let mut bytes = [0; 64];
        while matches!(self.wakeup.read(&mut bytes), Ok(n) if n == bytes.len()) {}
    }
}

impl<T> MailSender<T> {
    /// Returns another sender to the same mailbox.
    ///
    /// # Errors
    /// As fcntl(2): no descriptor may be left.
    pub fn another(&self) -> io::Result<MailSender<T>> {
        Ok(MailSender { messages: self.messages.clone(), wakeup: self.wakeup.try_clone()? })
    }

    /// Sends a message. If the mailbox is gone the message is dropped: nobody is left to read it.
    pub fn send(&self, message: T) {
        if self.messages.send(message).is_ok() {
            // A full socket is readable already.
            let _ = (&self.wakeup).write(&[1]);
        }
    }
}
