//! A system call that blocks, in a thread of its own: it cannot be waited for together with anything
//! else, and there is no end to it but its own.

use std::io::{self, PipeReader};
use std::os::fd::{AsFd, BorrowedFd};

use nix::poll::PollFlags;

use crate::thread;
use crate::wait::is_ready;

/// A call under way. Dropped, it goes on until it ends, and nobody hears of it.
pub struct Background {
    ended: PipeReader,
}

impl Background {
    /// Starts `call`, which has to let go of all it needs when it ends: then the end is told.
    ///
    /// # Errors
    /// As pipe(2) and pthread_create(3).
    pub fn begin(call: impl FnOnce() + Send + 'static) -> io::Result<Background> {
        let (ended, ours) = io::pipe()?;
        let thread = move || {
            call();
            drop(ours);
        };
        thread::spawn("blocked", thread)?;
        Ok(Background { ended })
    }

    /// Readable when the call has ended.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    pub fn has_ended(&self) -> bool {
        is_ready(self.fd(), PollFlags::POLLIN)
    }
}
