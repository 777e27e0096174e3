//! Tells whether a signal was sent to nxlock's whole process group, or to nxlock alone.
//!
//! `kill -INT %1` at a terminal signals every process of a job: nxlock and its command. nxlock must forward a signal
//! sent to itself alone, but not one sent to the group, or the command would get it twice. The signal does not say
//! which of the two it is. So nxlock forks a member of its group that has all signals blocked and does nothing: the
//! kernel keeps pending for it what was sent to the group.

use std::cell::Cell;
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc::{self, c_int};
use nix::poll::PollFlags;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, getpid};

use super::message::{self, pair, receive, signed, transmit};
use super::tree;
use crate::clock::Moment;
use crate::descriptors::close_all_but;
use crate::proc::Job;
use crate::signals::{blockable, end_with, set, take_pending};
use crate::wait::{Limit, Woken};

/// A process in nxlock's group that only collects signals.
pub struct GroupMember {
    pid: Pid,
    socket: OwnedFd,
    /// Numbers of the last query, and of the last that was answered. A query has its own and the signal's, a reply its
    /// query's, and whether the signal was pending: a late reply does not answer another query.
    asked: Cell<u64>,
    answered: Cell<u64>,
}

/// Name in ps(1), unlike nxlock's: a signal to all processes named nxlock is not one to the group.
const NAME: &CStr = c"job-group";

/// Time-out for a reply: the process may be stopped, or not get to run.
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
            ForkResult::Parent { child } => {
                Ok(GroupMember { pid: child, socket: ours, asked: Cell::new(0), answered: Cell::new(0) })
            }
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
        // Only then is what is pending for it not left from an earlier signal.
        let is_idle = self.answered.get() == self.asked.get();
        let query = self.asked.get() + 1;
        self.asked.set(query);
        if transmit(&self.socket, pair(query, message::number(number))).is_err() {
            return false;
        }
        let answer = self.answer_to(query, Limit::until(Moment::now() + ANSWER));
        answer.unwrap_or_else(|| {
            let is_pending = is_idle && Job::of(self.pid.as_raw()).is_some_and(|job| job.has_pending(number));
            // It may have taken the signal just before.
            self.answer_to(query, Limit::until(Moment::now())).unwrap_or(is_pending)
        })
    }

    /// Returns the reply to a query.
    fn answer_to(&self, query: u64, limit: Limit<'_>) -> Option<bool> {
        while self.answered.get() != query {
            if limit.wait_for(&[(self.socket.as_fd(), PollFlags::POLLIN)]).ok()? != Woken::Ready {
                return None;
            }
            let [answered, had, ..] = receive(&self.socket)?;
            self.answered.set(answered);
            if answered == query {
                return Some(had != 0);
            }
        }
        None
    }
}

impl Drop for GroupMember {
    fn drop(&mut self) {
        let _ = tree::send(self.pid, libc::SIGKILL);
        while waitpid(self.pid, None) == Err(Errno::EINTR) {}
    }
}

/// Answers queries until the socket is closed.
fn answer(socket: &OwnedFd) {
    while let Some([query, number, ..]) = receive(socket) {
        let had = take_pending(&set([signed(number)]));
        if transmit(socket, pair(query, u64::from(had))).is_err() {
            return;
        }
    }
}
