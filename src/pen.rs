//! A pen: a thread of its own that writes, so that nobody else waits for who does not read.
//!
//! What is written may be a pipe that nobody empties, a terminal stopped by Ctrl-S, a file on a disk that hangs.
//! Knows nothing of what is written, nor where.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use crate::signals::deaf;

pub struct Pen<T> {
    errands: Sender<Errand<T>>,
    outstanding: Arc<AtomicUsize>,
}

enum Errand<T> {
    Write(T),
    /// Tells when all that was asked for before has been written.
    Tell(Sender<()>),
}

/// As much as may wait to be written: a bound on memory.
const ROOM: usize = 1000;

/// How long what is still to be written may take when there is nothing else left to do. Whoever does not read it
/// by then does not want it.
pub const LAST_WORDS: Duration = Duration::from_secs(1);

impl<T: Send + 'static> Pen<T> {
    /// # Errors
    /// If there is no thread to be had, pthread_create(3).
    pub fn begin(name: &str, mut write: impl FnMut(T) + Send + 'static) -> io::Result<Pen<T>> {
        let (errands, asked) = channel();
        let outstanding = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&outstanding);
        let run = move || {
            for errand in asked {
                match errand {
                    Errand::Write(what) => {
                        write(what);
                        left.fetch_sub(1, Ordering::SeqCst);
                    }
                    Errand::Tell(done) => _ = done.send(()),
                }
            }
        };
        deaf(|| thread::Builder::new().name(name.to_owned()).spawn(run))?;
        Ok(Pen { errands, outstanding })
    }

    /// Has it written, as soon as may be. Nothing is done, and false the answer, if too much waits already.
    pub fn put(&self, what: T) -> bool {
        if self.outstanding.fetch_add(1, Ordering::SeqCst) < ROOM && self.errands.send(Errand::Write(what)).is_ok() {
            return true;
        }
        self.outstanding.fetch_sub(1, Ordering::SeqCst);
        false
    }

    /// Waits until all has been written, and no longer than `within`.
    pub fn settle(&self, within: Duration) {
        let (done, all_written) = channel();
        if self.errands.send(Errand::Tell(done)).is_ok() {
            let _ = all_written.recv_timeout(within);
        }
    }

    /// How much still waits to be written.
    pub fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_a_pen_that_is_stuck_and_what_it_has_no_room_for_is_refused() {
        let (free, stuck) = channel::<()>();
        let pen = Pen::begin("pen", move |_: usize| _ = stuck.recv()).unwrap();
        let taken = (0..ROOM + 10).filter(|what| pen.put(*what)).count();
        assert_eq!((taken, pen.outstanding()), (ROOM, ROOM));
        pen.settle(Duration::from_millis(10));
        assert_eq!(pen.outstanding(), ROOM);
        drop(free);
        pen.settle(Duration::from_secs(60));
        assert_eq!(pen.outstanding(), 0);
        assert!(pen.put(0), "there is room again");
    }
}
