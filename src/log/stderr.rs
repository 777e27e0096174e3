//! Writes the log to stderr.
//!
//! The reader of stderr may have stalled. While a lease runs, that must not keep nxlock from starting or stopping the
//! command in time: a thread writes then, and nxlock waits for it only at the end, for at most a second.

use std::io::Write;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::poll::PollFlags;

use crate::thread::{BackgroundWriter, FLUSH_AT_EXIT};
use crate::wait::is_ready;

/// Text for stderr.
pub enum Text {
    /// With styles, which are stripped where colours are unwanted.
    Styled(String),
    /// A line in the last row of a terminal, which the next text replaces. An empty one erases it.
    Line(String),
}

/// Whether there is such a line.
static IS_DRAWN: AtomicBool = AtomicBool::new(false);

static URGENT: AtomicBool = AtomicBool::new(false);
static WRITER: OnceLock<Option<BackgroundWriter<Text>>> = OnceLock::new();

/// Sets whether a lease runs; if not, flushes.
pub fn urgent(urgent: bool) {
    URGENT.store(urgent, Ordering::SeqCst);
    if let Some(Some(writer)) = WRITER.get().filter(|_| !urgent) {
        writer.settle(FLUSH_AT_EXIT);
    }
}

/// Waits for at most `within` until everything logged so far has been written; not at all if stderr accepts nothing
/// now: its reader may have stalled.
pub fn settle(within: Duration) {
    if let Some(Some(writer)) = WRITER.get()
        && writer.outstanding() > 0
        && is_ready(std::io::stderr().as_fd(), PollFlags::POLLOUT)
    {
        writer.settle(within);
    }
}

pub fn put(text: Text) {
    if !URGENT.load(Ordering::SeqCst) {
        return write(&text);
    }
    // Without a thread the text is dropped.
    if let Some(writer) = WRITER.get_or_init(|| BackgroundWriter::begin("stderr", |text| write(&text)).ok()) {
        writer.put(text);
    }
}

/// Writes if stderr accepts it at once, and before it returns: the progress line has to be gone when the command
/// begins.
pub fn offer(text: &Text) {
    let stderr = std::io::stderr();
    if is_ready(stderr.as_fd(), PollFlags::POLLOUT) {
        write(text);
    }
}

#[cfg(fuzzing)]
fn write(text: &Text) {
    let (Text::Styled(text) | Text::Line(text)) = text;
    super::captured::put(text);
}

/// Bypasses anstream for what moves the cursor: it strips escapes where colours are unwanted.
#[cfg(not(fuzzing))]
fn write(text: &Text) {
    let _ = match text {
        Text::Styled(text) => {
            if IS_DRAWN.swap(false, Ordering::SeqCst) {
                let _ = std::io::stderr().write_all(b"\r\x1b[K");
            }
            anstream::stderr().lock().write_all(text.as_bytes())
        }
        Text::Line(text) => {
            IS_DRAWN.store(!text.is_empty(), Ordering::SeqCst);
            std::io::stderr().write_all(format!("\r{text}\x1b[K").as_bytes())
        }
    };
}
