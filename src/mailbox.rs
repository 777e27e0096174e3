//! Waiting for whatever comes first: a letter from another thread, a descriptor that becomes
//! readable, a moment on a clock that counts sleep.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::clock::Moment;

/// Rings at a moment. poll(2) counts on a clock that stops while the machine sleeps; this one wakes
/// us when it resumes.
pub struct Alarm(TimerFd);

impl Alarm {
    /// # Errors
    /// As timerfd_create(2).
    pub fn new() -> io::Result<Alarm> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        Ok(Alarm(TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?))
    }

    /// Waits until `own` or one of `also` is readable, or the moment has come. A signal may end the
    /// wait before that, and then nothing is.
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

/// Descriptors that are waited for beside one's own.
pub type Fds<'a> = [Option<BorrowedFd<'a>>; 3];

pub const NONE: Fds<'static> = [None; 3];

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    Own,
    Also,
    Nothing,
}

/// A channel that can be waited for together with a descriptor.
pub struct Mailbox<T> {
    messages: Receiver<T>,
    wakeup: UnixStream,
    alarm: Alarm,
}

pub struct MailSender<T> {
    messages: Sender<T>,
    wakeup: UnixStream,
}

/// What came first.
pub enum Arrived<T> {
    Message(T),
    /// A descriptor that was waited for as well has something to read, or its end.
    Readable,
    /// The moment has come.
    Time,
}

impl<T> Mailbox<T> {
    /// # Errors
    /// As socketpair(2) and timerfd_create(2).
    pub fn open() -> io::Result<(Mailbox<T>, MailSender<T>)> {
        let (post, messages) = channel();
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        let inbox = Mailbox { messages, wakeup: ours, alarm: Alarm::new()? };
        Ok((inbox, MailSender { messages: post, wakeup: theirs }))
    }

    /// Waits for a letter, for one of `also` to become readable, or for `until`.
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

    /// Takes the rings out of the bell. A letter is posted before its ring, so whoever looks for
    /// letters after this misses none.
    fn drain(&mut self) {
        let mut bytes = [0; 64];
        while matches!(self.wakeup.read(&mut bytes), Ok(n) if n == bytes.len()) {}
    }
}

impl<T> MailSender<T> {
    /// Another way into the same inbox.
    ///
    /// # Errors
    /// As fcntl(2): there may be no descriptor left.
    pub fn another(&self) -> io::Result<MailSender<T>> {
        Ok(MailSender { messages: self.messages.clone(), wakeup: self.wakeup.try_clone()? })
    }

    /// Posts a letter. One to an inbox that is gone is lost: nobody is left to read it.
    pub fn send(&self, message: T) {
        if self.messages.send(message).is_ok() {
            // A full socket means that the bell is ringing already.
            let _ = (&self.wakeup).write(&[1]);
        }
    }
}
