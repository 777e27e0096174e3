//! Tells whether a signal was sent to nxlock's whole process group, or to nxlock alone.
//!
//! `kill -INT %1` at a terminal signals every process of a job: nxlock and its command. nxlock must forward a signal
//! sent to itself alone, but not one sent to the group, or the command would get it twice. The signal does not say
//! which of the two it is. So nxlock forks a member of its group that has all signals blocked and does nothing: the
//! kernel keeps pending for it what was sent to the group.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc::{self, c_int};
use nix::poll::PollFlags;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, getpid};

use super::tree;
use crate::clock::Moment;
use crate::descriptors::close_all_but;
use crate::signals::{blockable, end_with, set};
use crate::wait::{Limit, Woken};

/// A process in nxlock's group that only collects signals.
pub struct GroupMember {
    pid: Pid,
    socket: OwnedFd,
}

/// Name in ps(1), unlike nxlock's: a signal to all processes named nxlock is not one to the group.
const NAME: &CStr = c"job-group";

/// Time-out for a reply: the process may be stopped.
const ANSWER: Duration = Duration::from_millis(200);

impl GroupMember {
    /// Forks the process. Call from the main thread, with which it ends (prctl(2)), and with all signals blocked.
    ///
    /// # Errors
    /// As fork(2) and socketpair(2).
    pub fn start() -> Result<GroupMember, Errno> {
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        let nxlock = getpid();
        // SAFETY: the child makes system calls and allocates, which libc permits after a fork, and never returns.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(GroupMember { pid: child, socket: ours }),
            ForkResult::Child => {
                drop(ours);
                let _ = set(blockable()).thread_block();
                let _ = prctl::set_name(NAME);
                if end_with(nxlock, Signal::SIGKILL).is_ok() {
                    close_all_but(&[theirs.as_raw_fd()]);
                    answer(&theirs);
                }
                // SAFETY: ends this process, and runs nothing else.
                unsafe { libc::_exit(0) }
            }
        }
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns whether the group got this signal since the last call for it; false if unknown.
    pub fn had(&self, number: c_int) -> bool {
        let mut reply = [0; REPLY];
        // Discard late replies to earlier queries.
        while recv(self.socket.as_raw_fd(), &mut reply, MsgFlags::MSG_DONTWAIT).is_ok_and(|size| size > 0) {}
        let asked = send(self.socket.as_raw_fd(), &number.to_ne_bytes(), MsgFlags::MSG_NOSIGNAL);
        let limit = Limit::until(Moment::now() + ANSWER);
        asked.is_ok()
            && limit.wait_for(&[(self.socket.as_fd(), PollFlags::POLLIN)]).is_ok_and(|woken| woken == Woken::Ready)
            && recv(self.socket.as_raw_fd(), &mut reply, MsgFlags::MSG_DONTWAIT) == Ok(REPLY)
            && reply == self::reply(number, true)
    }
}

/// Size of a reply: the signal's number, and a byte that says yes or no.
const REPLY: usize = size_of::<c_int>() + 1;

fn reply(number: c_int, had: bool) -> [u8; REPLY] {
    let mut reply = [u8::from(had); REPLY];
    reply[..size_of::<c_int>()].copy_from_slice(&number.to_ne_bytes());
    reply
}

impl Drop for GroupMember {
    fn drop(&mut self) {
        let _ = tree::send(self.pid, libc::SIGKILL);
        while waitpid(self.pid, None) == Err(Errno::EINTR) {}
    }
}

/// Answers queries until the socket is closed.
fn answer(socket: &OwnedFd) {
    let mut question = [0; size_of::<c_int>()];
    while recv(socket.as_raw_fd(), &mut question, MsgFlags::empty()) == Ok(question.len()) {
        let number = c_int::from_ne_bytes(question);
        let asked = set([number]);
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: sigtimedwait(2) reads a set and a time, and takes a pending signal without waiting.
        let had = unsafe { libc::sigtimedwait(asked.as_ref(), std::ptr::null_mut(), &raw const now) } > 0;
        if send(socket.as_raw_fd(), &reply(number, had), MsgFlags::MSG_NOSIGNAL).is_err() {
            return;
        }
    }
}
