//! A waiter's place in the queue, and what the waiter watches there.
//!
//! Every waiter but the first sleeps until the one ahead is gone, for any reason, and the kernel wakes no other. The
//! first watches the record, and the end of the process that keeps the claim. A stopped waiter delays the next one only
//! until that polls: every two seconds at the front, less often further back, since a poll costs more the longer the
//! queue is.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use nix::poll::PollFlags;
use rustix::fs::inotify;

use super::background::Background;
use super::ofd_lock;
use crate::clock::Moment;
use crate::duration::jittered;
use crate::log;
use crate::wait::{Limit, Woken};

/// Poll interval at the front of the queue.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// So many places further back, the interval is longer by another [`HEARTBEAT`].
const FURTHER_BACK: usize = 4;
/// Poll interval where the kernel cannot wake the waiter, as when inotify(7) has reached max_user_instances.
const POLL: Duration = Duration::from_millis(50);

pub struct WaiterFile {
    /// The waiters file, opened for this waiter alone: locks through it end with it.
    file: Arc<File>,
    ticket: u64,
    /// The ticket of the waiter ahead, and the wait for its end.
    ahead: Option<(u64, Background)>,
    record: Option<Watch>,
    /// The fence of the holder, and the wait for its end.
    holder: Option<(u64, Background)>,
    /// Readable when the watched process has ended, pidfd_open(2).
    process: Option<OwnedFd>,
    look_at: Moment,
}

/// Reports every write to one file.
struct Watch {
    inotify: OwnedFd,
    inode: u64,
}

/// What the waiter at the front watches.
pub struct Next<'a> {
    pub record: &'a File,
    /// The record file, opened for this alone, and the fence, whose byte is locked in it while there is a holder.
    pub holder: Option<(File, u64)>,
    /// Pidfd of the watched process, if no process has the claim open any more.
    pub process: Option<OwnedFd>,
    /// When the claim expires.
    pub until: Moment,
}

impl WaiterFile {
    /// Locks a ticket in the waiters file, which must have been opened for this alone.
    pub fn take(file: File, ticket: u64) -> io::Result<WaiterFile> {
        ofd_lock::take(&file, ticket)?;
        let file = Arc::new(file);
        Ok(WaiterFile { file, ticket, ahead: None, record: None, holder: None, process: None, look_at: Moment::now() })
    }

    pub fn ticket(&self) -> u64 {
        self.ticket
    }

    /// Returns whether the ticket is in this file.
    pub fn is_in(&self, file: &File) -> io::Result<bool> {
        Ok(inode(&self.file)? == inode(file)?)
    }

    /// Sets what to watch at a `position` from 1. The caller must have the record locked: no change may come between
    /// what it found and this.
    pub fn listen(&mut self, position: usize, ahead: Option<u64>, front: Option<Next<'_>>) -> io::Result<()> {
        let heartbeat = HEARTBEAT * u32::try_from(1 + position / FURTHER_BACK).unwrap_or(u32::MAX);
        self.look_at = Moment::now() + heartbeat * 4 / 5 + jittered(heartbeat / 5);
        let awaited = self.ahead.as_ref().filter(|(_, gone)| !gone.has_ended()).map(|(ticket, _)| *ticket);
        if awaited != ahead {
            self.ahead = ahead.and_then(|ahead| Some((ahead, ofd_lock::wait_for_end(&self.file, ahead).ok()?)));
        }
        if ahead.is_some() && self.ahead.is_none() {
            log::trace(format_args!("cannot be woken by the one ahead (too many processes or files): polling"));
            self.look_at = self.look_at.min(Moment::now() + jittered(POLL));
        }
        let Some(front) = front else {
            (self.record, self.holder, self.process) = (None, None, None);
            return Ok(());
        };
        let inode = inode(front.record)?;
        match self.record.as_ref().filter(|ears| ears.inode == inode) {
            Some(ears) => ears.forget(),
            None => self.record = Watch::open(front.record, inode),
        }
        let is_awaited = front.holder.is_some();
        match front.holder {
            // The same fence is the same holder. A write to the record reports another one.
            Some((_, fence))
                if self.holder.as_ref().is_some_and(|(other, gone)| *other == fence && !gone.has_ended()) => {}
            Some((file, fence)) => {
                self.holder = ofd_lock::wait_for_end(&Arc::new(file), fence).ok().map(|gone| (fence, gone));
            }
            None => self.holder = None,
        }
        self.process = front.process;
        self.look_at = self.look_at.min(front.until + Duration::from_millis(1));
        if self.record.is_none() || (is_awaited && self.holder.is_none() && self.process.is_none()) {
            self.look_at = self.look_at.min(Moment::now() + jittered(POLL));
        }
        Ok(())
    }

    /// Lets the waiter behind move up. Use this instead of dropping where a caller waits: closing an inotify(7)
    /// instance takes the kernel ten milliseconds.
    pub fn leave(&self) {
        ofd_lock::give_back(&self.file, self.ticket);
    }

    /// Waits until something has changed, or a poll is due.
    pub fn wait(&self, limit: Limit<'_>) -> Woken {
        let ahead = self.ahead.iter().map(|(_, gone)| gone.fd());
        let record = self.record.iter().map(|ears| ears.inotify.as_fd());
        let holder = self.holder.iter().filter(|_| self.process.is_none()).map(|(_, gone)| gone.fd());
        let process = self.process.iter().map(AsFd::as_fd);
        let wanted: Vec<_> =
            ahead.chain(record).chain(holder).chain(process).map(|fd| (fd, PollFlags::POLLIN)).collect();
        limit.rest(self.look_at, &wanted)
    }
}

impl Drop for WaiterFile {
    fn drop(&mut self) {
        // Otherwise the ticket would stay locked until the last wait closes the file.
        self.leave();
    }
}

impl Watch {
    fn open(file: &File, inode: u64) -> Option<Watch> {
        let heard = || {
            let inotify = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
            // By descriptor, to watch the very file that was read.
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            inotify::add_watch(&inotify, path, inotify::WatchFlags::MODIFY)?;
            Ok::<_, rustix::io::Errno>(inotify)
        };
        match heard() {
            Ok(inotify) => Some(Watch { inotify, inode }),
            Err(error) => {
                log::trace(format_args!("cannot watch the record ({error}): polling"));
                None
            }
        }
    }

    /// Discards the events so far: the caller has read the record.
    fn forget(&self) {
        let mut buffer = [MaybeUninit::uninit(); 512];
        let mut events = inotify::Reader::new(&self.inotify, &mut buffer);
        while events.next().is_ok() {}
    }
}

fn inode(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.ino())
}
