//! The inherited state that Rust's runtime changes before `main`: the runtime ignores SIGPIPE, and opens /dev/null for
//! a closed standard stream, for the command as well, or aborts without it. This module runs before the runtime,
//! records the inherited state, and opens the streams itself.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;

use crate::signals::is_ignored;

static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);
static STDOUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// Returns whether SIGPIPE was ignored at startup: the command is to find it so.
pub fn pipe_ignored() -> bool {
    PIPE_IGNORED.load(Ordering::Relaxed)
}

/// Returns whether stdout was closed at startup: output to it reaches nobody.
pub fn stdout_closed() -> bool {
    STDOUT_CLOSED.load(Ordering::Relaxed)
}

// SAFETY: the loader calls what this section points to before `main`; `look` only makes system calls and stores to
// atomics.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    PIPE_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    // SAFETY: F_GETFD reads a flag of a descriptor, or fails if there is none.
    let closed = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } == -1;
    STDOUT_CLOSED.store(closed, Ordering::Relaxed);
    fill_closed_streams();
}

/// Opens a file for each closed standard stream, as the runtime would, so that no file of nxlock gets its number, but
/// closed at exec: the command finds the stream as the caller left it.
fn fill_closed_streams() {
    for stream in [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: fcntl(2) as above; open(2) reads a NUL-terminated string, and takes the lowest free number: this
        // stream's.
        unsafe {
            let is_closed = libc::fcntl(stream, libc::F_GETFD) == -1;
            if is_closed && libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) == -1 {
                // A directory can be neither read nor written, and exists even in a bare chroot(2).
                libc::open(c"/".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            }
        }
    }
}
