//! A blocking system call in a thread of its own: poll(2) cannot wait for it together with descriptors, and nothing can
//! cancel it.

use std::io::{self, PipeReader};
use std::os::fd::{AsFd, BorrowedFd};

use nix::poll::PollFlags;

use crate::thread;
use crate::wait::is_ready;

/// A running call. If this is dropped, the call runs to its end unobserved.
pub struct Background {
    ended: PipeReader,
}

impl Background {
    /// Starts `call`. It must release all its resources by the time it returns: the descriptor becomes readable right
    /// then.
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

    /// Returns a descriptor that is readable when the call has ended.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    pub fn has_ended(&self) -> bool {
        is_ready(self.fd(), PollFlags::POLLIN)
    }
}
