//! What we were started with and Rust's runtime changes before `main`: it ignores SIGPIPE, and puts
//! /dev/null in the place of a standard stream that is closed. Looked at before the runtime.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;
use nix::sys::signal::Signal;

use crate::signals::is_ignored;

static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);
static STDOUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// SIGPIPE was ignored: the command is to find it so.
pub fn pipe_ignored() -> bool {
    PIPE_IGNORED.load(Ordering::Relaxed)
}

/// There was no stdout: what is written to it reaches nobody.
pub fn stdout_closed() -> bool {
    STDOUT_CLOSED.load(Ordering::Relaxed)
}

// SAFETY: what this section points to is called before `main`; `look` only makes two system calls
// and stores to atomics.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    PIPE_IGNORED.store(is_ignored(Signal::SIGPIPE), Ordering::Relaxed);
    // SAFETY: F_GETFD reads a flag of a descriptor, or says that there is none.
    let closed = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } == -1;
    STDOUT_CLOSED.store(closed, Ordering::Relaxed);
}
