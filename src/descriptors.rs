//! What a process has open that it was not started to use: everything that it inherited.

use std::os::fd::RawFd;

use nix::libc;

/// Closes everything but the standard streams and `kept`: a lock of flock(1) on another descriptor, or a pipe, would
/// end only with this process. To be called after fork(2), by a process that uses no other descriptor any more.
pub fn close_all_but(kept: &[RawFd]) {
    let mut first = libc::STDERR_FILENO.cast_unsigned() + 1;
    let mut kept: Vec<u32> = kept.iter().map(|fd| fd.cast_unsigned()).filter(|fd| *fd >= first).collect();
    kept.sort_unstable();
    for fd in kept {
        close_from_to(first, fd - 1);
        first = fd.saturating_add(1);
    }
    close_from_to(first, u32::MAX);
}

fn close_from_to(first: u32, last: u32) {
    if first > last {
        return;
    }
    // SAFETY: close_range(2) and close(2) of descriptors that nothing in this process uses, as the caller says.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    // Before Linux 5.9, one by one.
    if closed == -1 {
        let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let numbers: Vec<u32> = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        for number in numbers.into_iter().filter(|number| (first..=last).contains(number)) {
            // SAFETY: as above; the one that the directory was read by is closed already, and then this fails.
            unsafe { libc::close(number.cast_signed()) };
        }
    }
}
