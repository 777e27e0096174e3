//! The pen: the only code that writes to stderr.
//!
//! stderr may be a pipe that nobody reads, a terminal stopped by Ctrl-S, a file on a disk that hangs. While
//! a lease runs, nothing of that may keep us from starting the command in time, or from stopping it: then
//! a thread of its own writes, and nobody waits for it but at the end, and not for long.

use std::io::Write;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use nix::poll::PollFlags;

use crate::clock::Moment;
use crate::limit::{Limit, Woken};
use crate::signals::deaf;

/// What is to be written.
pub enum Text {
    /// With styles, which are taken out where colours are unwanted.
    Styled(String),
    /// As it is: what moves the cursor.
    Raw(String),
}

enum Errand {
    Write(Text),
    /// Tells when all that was asked for before has been written.
    Tell(Sender<()>),
}

static URGENT: AtomicBool = AtomicBool::new(false);
static SCRIBE: OnceLock<Option<Sender<Errand>>> = OnceLock::new();

/// How long what has been said while it was urgent may take to be written, when it no longer is.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Whether a lease runs.
pub fn urgent(urgent: bool) {
    URGENT.store(urgent, Ordering::SeqCst);
    if let Some(Some(scribe)) = SCRIBE.get().filter(|_| !urgent) {
        let (done, all_written) = channel();
        if scribe.send(Errand::Tell(done)).is_ok() {
            // Longer is not waited for: whoever does not read it does not want it.
            let _ = all_written.recv_timeout(LAST_WORDS);
        }
    }
}

pub fn put(text: Text) {
    if !URGENT.load(Ordering::SeqCst) {
        return write(&text);
    }
    // Without a thread it goes unsaid.
    if let Some(scribe) = SCRIBE.get_or_init(begin) {
        let _ = scribe.send(Errand::Write(text));
    }
}

/// Writes if stderr takes it at once, and before anything else goes on: what a waiter shows has to be gone
/// when its command begins.
pub fn offer(text: &Text) {
    let stderr = std::io::stderr();
    let now = Limit::until(Moment::now());
    if now.wait_for(&[(stderr.as_fd(), PollFlags::POLLOUT)]).is_ok_and(|woken| woken == Woken::Ready) {
        write(text);
    }
}

fn begin() -> Option<Sender<Errand>> {
    let (scribe, errands) = channel();
    deaf(|| thread::Builder::new().name("stderr".into()).spawn(move || run(&errands))).ok()?;
    Some(scribe)
}

fn run(errands: &Receiver<Errand>) {
    for errand in errands {
        match errand {
            Errand::Write(text) => write(&text),
            Errand::Tell(done) => _ = done.send(()),
        }
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
