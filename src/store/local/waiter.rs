//! A stand in line: what a waiter has and listens to there.
//!
//! All but the first sleep until the one ahead has gone, whichever way it went, and the kernel wakes
//! nobody else. The first watches the record, and the end of whoever keeps the claim. A waiter that was
//! stopped holds up the next one only until that looks by itself: at the front every two seconds, further
//! back less often, since to look costs more the longer the line is.

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

/// How often those at the front look.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Every so many places further back, as long again.
const FURTHER_BACK: usize = 4;
/// How often the first looks where the kernel has no watch left for it, inotify(7), max_user_instances.
const POLL: Duration = Duration::from_millis(50);

pub struct WaiterFile {
    /// The line's file, as opened for this stand: what is locked by it goes with it.
    file: Arc<File>,
    ticket: u64,
    /// The one ahead, and its going.
    ahead: Option<(u64, Background)>,
    record: Option<Watch>,
    /// The fence of a holder, and its going.
    holder: Option<(u64, Background)>,
    /// Readable when the process has ended that the claim is kept for, pidfd_open(2).
    process: Option<OwnedFd>,
    look_at: Moment,
}

/// Hears every write to one file.
struct Watch {
    inotify: OwnedFd,
    inode: u64,
}

/// What the one at the front has to watch.
pub struct Next<'a> {
    pub record: &'a File,
    /// The record, opened for this alone, and the fence that is locked in it for as long as there is a holder.
    pub holder: Option<(File, u64)>,
    /// The end of a process that the claim is kept for, if nobody else keeps it.
    pub process: Option<OwnedFd>,
    /// When the claim ends by itself.
    pub until: Moment,
}

impl WaiterFile {
    /// Takes a ticket in a line that was opened for nothing else.
    pub fn take(file: File, ticket: u64) -> io::Result<WaiterFile> {
        ofd_lock::take(&file, ticket)?;
        let file = Arc::new(file);
        Ok(WaiterFile { file, ticket, ahead: None, record: None, holder: None, process: None, look_at: Moment::now() })
    }

    pub fn ticket(&self) -> u64 {
        self.ticket
    }

    /// Whether it is in this file.
    pub fn is_in(&self, file: &File) -> io::Result<bool> {
        Ok(inode(&self.file)? == inode(file)?)
    }

    /// Settles what to listen to at a `position` from 1. To be called while the record is locked, so that no change comes
    /// between what was found and this.
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
            // The record of another holder tells of its end too.
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

    /// Lets the one behind move up. Not by being dropped, where somebody waits for what comes next: to
    /// close an inotify(7) instance takes the kernel ten milliseconds.
    pub fn leave(&self) {
        ofd_lock::give_back(&self.file, self.ticket);
    }

    /// Waits until something has changed, or it is time to look.
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
        // By itself it would go only with the last wait that has the file open.
        self.leave();
    }
}

impl Watch {
    fn open(file: &File, inode: u64) -> Option<Watch> {
        let heard = || {
            let inotify = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
            // By descriptor, so that it is the file that was read.
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

    /// What has been heard is known by now.
    fn forget(&self) {
        let mut buffer = [MaybeUninit::uninit(); 512];
        let mut events = inotify::Reader::new(&self.inotify, &mut buffer);
        while events.next().is_ok() {}
    }
}

fn inode(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.ino())
}
