//! The scribe: the only code that writes to stderr.
//!
//! Whoever reads it may not. While a lease runs, nothing of that may keep us from starting the command in time, or
//! from stopping it: then a pen writes, and nobody waits for it but at the end, and not for long.

use std::io::Write;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::poll::PollFlags;

use crate::limit::is_ready;
use crate::pen::{LAST_WORDS, Pen};

/// What is to be written.
pub enum Text {
    /// With styles, which are taken out where colours are unwanted.
    Styled(String),
    /// As it is: what moves the cursor.
    Raw(String),
}

static URGENT: AtomicBool = AtomicBool::new(false);
static SCRIBE: OnceLock<Option<Pen<Text>>> = OnceLock::new();

/// Whether a lease runs.
pub fn urgent(urgent: bool) {
    URGENT.store(urgent, Ordering::SeqCst);
    if let Some(Some(pen)) = SCRIBE.get().filter(|_| !urgent) {
        pen.settle(LAST_WORDS);
    }
}

/// Wait until everything said so far has been written, but no longer than `within`, and not at all if stderr takes
/// nothing now: its reader may have stalled.
pub fn settle(within: Duration) {
    if let Some(Some(pen)) = SCRIBE.get()
        && pen.outstanding() > 0
        && is_ready(std::io::stderr().as_fd(), PollFlags::POLLOUT)
    {
        pen.settle(within);
    }
}

pub fn put(text: Text) {
    if !URGENT.load(Ordering::SeqCst) {
        return write(&text);
    }
    // Without a thread it goes unsaid.
    if let Some(pen) = SCRIBE.get_or_init(|| Pen::begin("stderr", |text| write(&text)).ok()) {
        pen.put(text);
    }
}

/// Writes if stderr takes it at once, and before anything else goes on: what a waiter shows has to be gone
/// when its command begins.
pub fn offer(text: &Text) {
    let stderr = std::io::stderr();
    if is_ready(stderr.as_fd(), PollFlags::POLLOUT) {
        write(text);
    }
}

#[cfg(fuzzing)]
fn write(text: &Text) {
    let (Text::Styled(text) | Text::Raw(text)) = text;
    super::heard::put(text);
}

#[cfg(not(fuzzing))]
fn write(text: &Text) {
    let _ = match text {
        Text::Styled(text) => anstream::stderr().lock().write_all(text.as_bytes()),
        Text::Raw(text) => std::io::stderr().write_all(text.as_bytes()),
    };
}
