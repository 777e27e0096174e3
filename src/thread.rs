//! Threads, and the background writer: a thread that writes, so that no other thread waits for a reader that stalls.
//!
//! A reader may be a pipe that nobody empties, a terminal stopped by Ctrl-S, or a file on a disk that hangs.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow};

/// Starts a thread with all signals blocked: a signal for the main thread would be lost on another.
///
/// # Errors
/// As pthread_create(3).
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    with_signals_blocked(|| Builder::new().name(name.to_owned()).spawn(body)).map(drop)
}

/// Runs `start`, which starts a thread, while all signals are blocked: the thread inherits the mask.
///
/// # Errors
/// As pthread_sigmask(3), and those of `start`.
pub fn with_signals_blocked<T>(start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let started = start();
    before.thread_set_mask()?;
    started
}

/// A thread that writes items in order.
pub struct BackgroundWriter<T> {
    jobs: Sender<Job<T>>,
    outstanding: Arc<AtomicUsize>,
}

enum Job<T> {
    Write(T),
    /// Report when everything queued before this has been written.
    Tell(Sender<()>),
}

/// Maximum number of unwritten items: a bound on memory.
const ROOM: usize = 1000;

/// How long nxlock waits at exit for a reader to take the rest of the output.
pub const FLUSH_AT_EXIT: Duration = Duration::from_secs(1);

impl<T: Send + 'static> BackgroundWriter<T> {
    /// # Errors
    /// If no thread can be started, pthread_create(3).
    pub fn begin(name: &str, mut write: impl FnMut(T) + Send + 'static) -> io::Result<BackgroundWriter<T>> {
        let (jobs, asked) = channel();
        let outstanding = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&outstanding);
        let run = move || {
            for job in asked {
                match job {
                    Job::Write(what) => {
                        write(what);
                        left.fetch_sub(1, Ordering::SeqCst);
                    }
                    Job::Tell(done) => _ = done.send(()),
                }
            }
        };
        spawn(name, run)?;
        Ok(BackgroundWriter { jobs, outstanding })
    }

    /// Queues an item to be written. Returns false, and queues nothing, if too many items wait already.
    pub fn put(&self, what: T) -> bool {
        if self.outstanding.fetch_add(1, Ordering::SeqCst) < ROOM && self.jobs.send(Job::Write(what)).is_ok() {
            return true;
        }
        self.outstanding.fetch_sub(1, Ordering::SeqCst);
        false
    }

    /// Waits until everything queued has been written, but no longer than `within`.
    pub fn settle(&self, within: Duration) {
        let (done, all_written) = channel();
        if self.jobs.send(Job::Tell(done)).is_ok() {
            let _ = all_written.recv_timeout(within);
        }
    }

    /// Returns the number of unwritten items.
    pub fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_a_writer_that_is_stuck_and_items_without_room_are_refused() {
        let (free, stuck) = channel::<()>();
        let writer = BackgroundWriter::begin("pen", move |_: usize| _ = stuck.recv()).unwrap();
        let taken = (0..ROOM + 10).filter(|what| writer.put(*what)).count();
        assert_eq!((taken, writer.outstanding()), (ROOM, ROOM));
        writer.settle(Duration::from_millis(10));
        assert_eq!(writer.outstanding(), ROOM);
        drop(free);
        writer.settle(Duration::from_secs(60));
        assert_eq!(writer.outstanding(), 0);
        assert!(writer.put(0), "there is room again");
    }
}
