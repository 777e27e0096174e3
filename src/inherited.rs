//! What we were started with and Rust's runtime changes before `main`: it ignores SIGPIPE, and puts
//! /dev/null in the place of a standard stream that is closed, for the command as well, or ends us if
//! there is none. Looked at, and forestalled, before the runtime.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;

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

// SAFETY: what this section points to is called before `main`; `look` only makes system calls and
// stores to atomics.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    PIPE_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    // SAFETY: F_GETFD reads a flag of a descriptor, or says that there is none.
    let closed = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } == -1;
    STDOUT_CLOSED.store(closed, Ordering::Relaxed);
    fill_closed_streams();
}

/// Puts something in the place of a standard stream that is closed, as the runtime would, so that no file
/// of ours gets its number; but what is closed at exec: the command finds the stream as our caller left it.
fn fill_closed_streams() {
    for stream in [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: fcntl(2) as above; open(2) reads a string that ends with a NUL, and takes the lowest
        // number that is free: this stream's.
        unsafe {
            let is_closed = libc::fcntl(stream, libc::F_GETFD) == -1;
            if is_closed && libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) == -1 {
                // A directory can neither be read nor be written, and is there even in a bare chroot(2).
                libc::open(c"/".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            }
        }
    }
}
