//! A process that runs in the memory of the one that starts it, until it becomes another program: clone(2) with
//! CLONE_VM. fork(2) takes three times as long, and most of that is work for a copy that nobody reads.
//!
//! Both processes run at the same time: execve(2) may hang on a file system, and vfork(2) would suspend the caller until
//! then. They have the thread-local data of one thread, errno included, and so the new process must not use libc for a
//! system call that may fail. Must not know what the process is for.

use std::mem::MaybeUninit;

use nix::errno::Errno;
use nix::libc::{self, c_int, c_long, c_void};
use nix::unistd::{ForkResult, Pid, fork};

/// Whether [`system_call`] leaves errno alone. Elsewhere the process gets memory of its own. So it does for valgrind,
/// which cannot run such a process: `.ci/order` sets `traced`.
const SHARES_MEMORY: bool = cfg!(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(traced)));

/// Bytes of the new process's stack: it needs a few thousand. The kernel provides only the pages that are touched.
const STACK: usize = 64 * 1024;

/// Starts a process that calls `body`, and exits with 127 if that returns. If the kernel refuses such a process, as
/// emulators do, starts one that has a copy of the memory.
///
/// # Safety
/// `body` must not panic, allocate, take a lock or use thread-local data, and must make system calls that may fail by
/// [`system_call`].
///
/// # Errors
/// As fork(2).
pub unsafe fn start(body: &'static dyn Fn()) -> Result<Pid, Errno> {
    if SHARES_MEMORY {
        // The process may need both for longer than the caller exists.
        let stack: &'static mut [MaybeUninit<u8>] = Box::leak(Box::new_uninit_slice(STACK));
        let argument: &'static &'static dyn Fn() = Box::leak(Box::new(body));
        let top = stack.as_mut_ptr_range().end.map_addr(|end| end & !0xf);
        let argument = std::ptr::from_ref(argument).cast_mut().cast::<c_void>();
        // SAFETY: the stack and the argument live for ever; `run` and, by our caller's promise, `body` disturb nothing
        // in the memory of this process.
        let pid = unsafe { libc::clone(run, top.cast(), libc::CLONE_VM | libc::SIGCHLD, argument) };
        if pid > 0 {
            return Ok(Pid::from_raw(pid));
        }
    }
    // SAFETY: the child does what our caller promises, and never returns from here.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            body();
            exit()
        }
    }
}

extern "C" fn run(argument: *mut c_void) -> c_int {
    // SAFETY: `start` passes a pointer to this.
    let body = unsafe { *argument.cast::<&'static dyn Fn()>() };
    body();
    exit()
}

fn exit() -> ! {
    // SAFETY: ends this process, and runs no code of nxlock.
    unsafe { libc::_exit(127) }
}

/// Makes a system call. Leaves errno alone if processes that [`start`] starts share memory.
///
/// # Safety
/// As the system call.
///
/// # Errors
/// As the system call.
pub unsafe fn system_call(number: c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: as our caller promises.
    let answer = unsafe { raw(number, arguments) };
    match usize::try_from(answer) {
        Ok(answer) => Ok(answer),
        Err(_) => Err(Errno::from_raw(i32::try_from(-answer).unwrap_or(libc::EIO))),
    }
}

/// Returns what the kernel answers: a negative number is an error, syscall(2).
#[cfg(target_arch = "x86_64")]
unsafe fn raw(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let answer;
    // SAFETY: the kernel's calling convention; the rest as our caller promises.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// Returns what the kernel answers: a negative number is an error, syscall(2).
#[cfg(target_arch = "aarch64")]
unsafe fn raw(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let answer;
    // SAFETY: the kernel's calling convention; the rest as our caller promises.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => answer,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    answer
}

/// Returns what the kernel answers: a negative number is an error.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn raw(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    // SAFETY: as our caller promises.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => -(Errno::last_raw() as isize),
        answer => answer as isize,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, Ordering};

    use nix::sys::wait::{WaitStatus, waitpid};

    use super::*;

    /// Starts a process for a closure.
    fn started(body: impl Fn() + 'static) -> Pid {
        // SAFETY: the closures of these tests do what `start` asks for.
        unsafe { start(Box::leak(Box::new(body))) }.unwrap()
    }

    #[test]
    fn the_process_runs_in_this_memory_and_ends_with_127() {
        static SEEN: AtomicI32 = AtomicI32::new(0);
        let pid = started(|| SEEN.store(nix::unistd::getpid().as_raw(), Ordering::Relaxed));
        assert_eq!(waitpid(pid, None), Ok(WaitStatus::Exited(pid, 127)));
        assert_eq!(SEEN.load(Ordering::Relaxed), pid.as_raw());
    }

    #[test]
    fn a_system_call_tells_its_error_and_leaves_errno_alone() {
        Errno::set_raw(libc::EPROTO);
        let path = c"/no/such/file";
        // SAFETY: access(2) reads a NUL-terminated string.
        let answer = unsafe {
            let path = path.as_ptr() as usize;
            system_call(libc::SYS_faccessat, [libc::AT_FDCWD as usize, path, libc::F_OK as usize, 0, 0, 0])
        };
        assert_eq!((answer, Errno::last_raw()), (Err(Errno::ENOENT), libc::EPROTO));
        // SAFETY: getpid(2) does nothing else.
        let answer = unsafe { system_call(libc::SYS_getpid, [0; 6]) };
        assert_eq!(answer, Ok(nix::unistd::getpid().as_raw() as usize));
    }
}
