//! Waits for the first of three: a message from another thread, a readable descriptor, a moment on the boot clock.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::wait::{Alarm, Limit, Woken};

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
    /// One of the limit's descriptors has data or end of file to read.
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

    /// Waits for a message, within the limit.
    ///
    /// # Errors
    /// As [`Alarm::wait_for`].
    pub fn next(&mut self, limit: Limit<'_>) -> io::Result<Arrived<T>> {
        loop {
            // The time first: a caller then misses no message that came before it was over.
            let is_over = limit.until.passed();
            self.drain();
            if let Ok(message) = self.messages.try_recv() {
                return Ok(Arrived::Message(message));
            }
            if is_over {
                return Ok(Arrived::Time);
            }
            if self.alarm.wait_for(&[self.wakeup.as_fd()], limit)? == Woken::Cancelled {
                return Ok(Arrived::Readable);
            }
        }
    }

    /// Returns a message that has come, without waiting.
    pub fn try_next(&self) -> Option<T> {
        self.messages.try_recv().ok()
    }

    /// Returns the channel alone, for a receiver that waits for nothing else any more.
    pub fn into_channel(self) -> Receiver<T> {
        self.messages
    }

    /// Returns a descriptor that is readable when a message may have come.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
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
        self.reaches(message);
    }

    /// Does the same, and returns whether somebody is left to read it.
    pub fn reaches(&self, message: T) -> bool {
        let is_sent = self.messages.send(message).is_ok();
        if is_sent {
            // A full socket is readable already.
            let _ = (&self.wakeup).write(&[1]);
        }
        is_sent
    }
}
