//! Closes the descriptors that a process inherited and was not started to use.

use std::os::fd::RawFd;

use nix::libc;

/// Closes everything but the standard streams and `kept`: a flock(1) lock or a pipe on another descriptor would last
/// until this process ends. Call after fork(2), in a process that uses no other descriptor any more.
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
    // SAFETY: close_range(2) and close(2) of descriptors that nothing in this process uses, by the caller's promise.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    // Linux before 5.9: close them one by one.
    if closed == -1 {
        let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let numbers: Vec<u32> = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        for number in numbers.into_iter().filter(|number| (first..=last).contains(number)) {
            // SAFETY: as above; the directory's own descriptor is closed already, and then this fails.
            unsafe { libc::close(number.cast_signed()) };
        }
    }
}
