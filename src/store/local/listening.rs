//! What a waiter watches while it sleeps, and a holder while its command runs.
//!
//! Every waiter but the first sleeps until the one ahead is gone, for any reason, and the kernel wakes no other. The
//! first watches the record, which rings when something is said to it, and the end of the process that keeps the claim;
//! or the ends of all who have a share open. A stopped waiter delays the next one only until that polls: every two seconds
//! at the front, less often further back, since a poll costs more the longer the queue is.
//!
//! A holder watches the record too: it rings when somebody asks it to give up, or has broken its claim, and when the file
//! is removed.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use nix::poll::PollFlags;
use rustix::fs::inotify;

use super::background::Background;
use super::claim_file::{Byte, TicketFile};
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
/// Maximum number of commands whose nxlock is gone that a waiter waits for; beyond that, it polls too.
const ORPHANED: usize = 64;
/// Pauses before a look at the shares after a holder's file was closed, or may have been while nobody watched: the
/// kernel reports that it closes a file right before it unlocks it, and on a busy machine a waiter may look in between.
const CLOSING: [Duration; 5] = [
    Duration::from_millis(1),
    Duration::from_millis(4),
    Duration::from_millis(16),
    Duration::from_millis(64),
    Duration::from_millis(256),
];

/// The events that may mean that the holder of a share has closed its file.
const CLOSED: inotify::ReadFlags = inotify::ReadFlags::CLOSE_NOWRITE.union(inotify::ReadFlags::QUEUE_OVERFLOW);

/// A waiter's place in the queue, and what the waiter watches there.
pub struct Watcher {
    place: TicketFile,
    /// The ticket of the waiter ahead, and the wait for its end.
    ahead: Option<(u64, Background)>,
    record: Option<Watch>,
    /// Reports a newer waiter that dismisses this one, or the one ahead.
    newer: Option<Watch>,
    /// The number of the holder, and the wait for its end.
    holder: Option<(u64, Background)>,
    /// Each is readable when a watched process has ended, pidfd_open(2).
    processes: Vec<OwnedFd>,
    /// The claims that only processes of their commands keep, and the waits for the last of these.
    orphaned: Vec<(Byte, Background)>,
    /// The looks that are left since the last holder closed its file.
    closing: &'static [Duration],
    look_at: Moment,
}

/// Reports when a file rings, and every holder of a share that closes its file.
pub struct Watch {
    inotify: OwnedFd,
    inode: u64,
    shares: Option<u64>,
}

/// What the waiter at the front watches.
pub struct Next<'a> {
    pub record: &'a File,
    /// The shares file, while the lock is shared.
    pub shares: Option<&'a File>,
    /// The record file, opened for this alone, and the number whose byte is locked in it while there is a holder.
    pub holder: Option<(File, u64)>,
    /// Pidfds of the watched processes of claims that no process has open any more.
    pub processes: Vec<OwnedFd>,
    /// The file whose bytes processes of commands keep, opened for this alone, and those of the claims that nobody else
    /// keeps.
    pub orphaned: Option<(File, Vec<Byte>)>,
    /// When the claim expires, or enough of the shares may have.
    pub until: Moment,
}

impl Watcher {
    pub fn new(place: TicketFile) -> Watcher {
        Watcher {
            place,
            ahead: None,
            record: None,
            newer: None,
            holder: None,
            processes: Vec::new(),
            orphaned: Vec::new(),
            closing: &[],
            look_at: Moment::now(),
        }
    }

    pub fn place(&self) -> &TicketFile {
        &self.place
    }

    pub fn ticket(&self) -> u64 {
        self.place.ticket
    }

    /// Sets what to watch at a `position` from 1. The caller must have the record locked: no change may come between
    /// what it found and this.
    pub fn listen(&mut self, position: usize, ahead: Option<u64>, front: Option<Next<'_>>) -> io::Result<()> {
        let heartbeat = HEARTBEAT * u32::try_from(1 + position / FURTHER_BACK).unwrap_or(u32::MAX);
        self.look_at = Moment::now() + heartbeat * 4 / 5 + jittered(heartbeat / 5);
        // A wait that has ended would wake this waiter for good.
        self.ahead.take_if(|(ticket, gone)| gone.has_ended() || Some(*ticket) != ahead);
        if let (None, Some(ahead)) = (&self.ahead, ahead) {
            self.ahead = ofd_lock::wait_for_end(&self.place.file, ahead).ok().map(|gone| (ahead, gone));
            if self.ahead.is_none() {
                log::trace(format_args!("cannot be woken by the one ahead (too many processes or files): polling"));
                self.look_at = self.look_at.min(Moment::now() + jittered(POLL));
            }
        }
        let Some(front) = front else {
            (self.record, self.holder) = (None, None);
            self.processes.clear();
            self.orphaned.clear();
            return Ok(());
        };
        let inode = inode(front.record)?;
        let mut may_have_closed = false;
        match self.record.as_ref().filter(|ears| ears.inode == inode) {
            // The caller has read the record.
            Some(ears) => may_have_closed = ears.events().intersects(CLOSED),
            None => self.record = Watch::open(front.record, inode),
        }
        if let (Some(ears), Some(shares)) = (&mut self.record, front.shares) {
            match ears.watch_shares(shares) {
                Ok(is_new) => may_have_closed |= is_new,
                Err(error) => {
                    log::trace(format_args!("cannot watch the shares ({error}): polling"));
                    self.record = None;
                }
            }
        }
        if may_have_closed {
            self.closing = &CLOSING;
        }
        if let (Some(_), Some((pause, rest))) = (front.shares, self.closing.split_first()) {
            self.closing = rest;
            self.look_at = self.look_at.min(Moment::now() + *pause);
        }
        let is_awaited = front.holder.is_some();
        match front.holder {
            // The same number is the same holder. The end of this one reports another one.
            Some((_, number))
                if self.holder.as_ref().is_some_and(|(other, gone)| *other == number && !gone.has_ended()) => {}
            Some((file, number)) => {
                self.holder = ofd_lock::wait_for_end(&Arc::new(file), number).ok().map(|gone| (number, gone));
            }
            None => self.holder = None,
        }
        self.processes = front.processes;
        let are_awaited = self.await_orphaned(front.orphaned);
        self.look_at = self.look_at.min(front.until + Duration::from_millis(1));
        if !are_awaited || self.record.is_none() || (is_awaited && self.holder.is_none() && self.processes.is_empty()) {
            self.look_at = self.look_at.min(Moment::now() + jittered(POLL));
        }
        Ok(())
    }

    /// Starts to wait for the processes that keep these claims; returns whether all are awaited.
    fn await_orphaned(&mut self, orphaned: Option<(File, Vec<Byte>)>) -> bool {
        let Some((file, mut bytes)) = orphaned else {
            self.orphaned.clear();
            return true;
        };
        let mut are_awaited = bytes.len() <= ORPHANED;
        bytes.truncate(ORPHANED);
        self.orphaned.retain(|(byte, gone)| bytes.contains(byte) && !gone.has_ended());
        let file = Arc::new(file);
        for byte in bytes {
            if self.orphaned.iter().all(|(other, _)| *other != byte) {
                match ofd_lock::wait_until_unkept(&file, byte.of_command()) {
                    Ok(gone) => self.orphaned.push((byte, gone)),
                    Err(_) => are_awaited = false,
                }
            }
        }
        are_awaited
    }

    /// Sets whether to watch the file of the line too, which rings when a waiter is dismissed. The caller must have the
    /// record locked, and must have called `listen`.
    pub fn watch_newer(&mut self, may_be_dismissed: bool) -> io::Result<()> {
        if !may_be_dismissed {
            // Its reports are of no interest any more, and unread they would wake the waiter for good.
            self.newer = None;
            return Ok(());
        }
        let inode = inode(&self.place.file)?;
        match self.newer.as_ref().filter(|ears| ears.inode == inode) {
            Some(ears) => _ = ears.events(),
            None => self.newer = Watch::open(&self.place.file, inode),
        }
        if self.newer.is_none() {
            self.look_at = self.look_at.min(Moment::now() + jittered(POLL));
        }
        Ok(())
    }

    /// Lets the waiter behind move up. Use this instead of dropping where a caller waits: closing an inotify(7)
    /// instance takes the kernel ten milliseconds.
    pub fn leave(&self) {
        self.place.leave();
    }

    /// Waits until something has changed, or a poll is due.
    pub fn wait(&self, limit: Limit<'_>) -> Woken {
        let ahead = self.ahead.iter().map(|(_, gone)| gone.fd());
        let record = self.record.iter().chain(&self.newer).map(|ears| ears.inotify.as_fd());
        let holder = self.holder.iter().filter(|_| self.processes.is_empty()).map(|(_, gone)| gone.fd());
        let processes = self.processes.iter().map(AsFd::as_fd);
        let orphaned = self.orphaned.iter().map(|(_, gone)| gone.fd());
        let wanted = ahead.chain(record).chain(holder).chain(processes).chain(orphaned);
        let wanted: Vec<_> = wanted.map(|fd| (fd, PollFlags::POLLIN)).collect();
        limit.rest(self.look_at, &wanted)
    }
}

impl Watch {
    fn open(file: &File, inode: u64) -> Option<Watch> {
        let heard = || {
            let inotify = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
            // Setting its times rings: a write or a new length is another event.
            inotify::add_watch(&inotify, very(file), inotify::WatchFlags::ATTRIB)?;
            Ok::<_, rustix::io::Errno>(inotify)
        };
        match heard() {
            Ok(inotify) => Some(Watch { inotify, inode, shares: None }),
            Err(error) => {
                log::trace(format_args!("cannot watch the files of the lock ({error}): polling"));
                None
            }
        }
    }

    /// Watches the shares too; returns whether they were not watched before.
    fn watch_shares(&mut self, file: &File) -> io::Result<bool> {
        let shares = inode(file)?;
        if self.shares == Some(shares) {
            return Ok(false);
        }
        inotify::add_watch(&self.inotify, very(file), inotify::WatchFlags::CLOSE_NOWRITE)?;
        self.shares = Some(shares);
        Ok(true)
    }

    /// Returns the kinds of the events so far, and forgets them.
    fn events(&self) -> inotify::ReadFlags {
        let mut buffer = [MaybeUninit::uninit(); 512];
        let mut events = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut kinds = inotify::ReadFlags::empty();
        while let Ok(event) = events.next() {
            kinds |= event.events();
        }
        kinds
    }

    /// Watches the record for a holder, by what it watched as a waiter if it can: a user has few of these.
    pub fn of_holder(record: &File, waited: Option<&mut Watcher>) -> Option<Watch> {
        let inode = inode(record).ok()?;
        let former = waited.and_then(|waited| waited.record.take_if(|ears| ears.inode == inode));
        former.or_else(|| Watch::open(record, inode))
    }

    /// Returns whether the file has rung since the last time.
    pub fn has_rung(&self) -> bool {
        self.events().intersects(inotify::ReadFlags::ATTRIB | inotify::ReadFlags::QUEUE_OVERFLOW)
    }

    /// Returns a descriptor that is readable when the file has rung.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// Returns a path of an open file: the one that was read, whatever has its name now.
fn very(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn inode(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.ino())
}
