//! A client that sends a server the same command again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Redis, lasts};

/// A server that is kept busy would answer nobody in time.
const PAUSE: Duration = Duration::from_micros(500);

/// Goes on until it is dropped.
pub struct Storm {
    is_over: Arc<AtomicBool>,
    sender: Option<JoinHandle<()>>,
}

impl Storm {
    pub fn of(redis: &Redis, words: &[&str]) -> Storm {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut connection = redis.connection().expect("a connection");
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let ends = Arc::clone(&is_over);
        let sender = thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                command.exec(&mut connection).expect("it is carried out");
                lasts(PAUSE);
            }
        });
        Storm { is_over, sender: Some(sender) }
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.sender.take().map(JoinHandle::join);
    }
}
