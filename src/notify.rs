//! What happens to a claim, told once by whoever finds out: to the log on stderr, and to `--events` as one JSON object
//! a line.
//!
//! Owns the form of these lines. A caller never waits for a reader. EVENTS in nxlock-run(1) describes them.

mod journal;
mod writer;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::unistd::Pid;
use serde_json::{Map, Value, json};

use crate::clock::{Moment, wall};
use crate::duration::span;
use crate::error::Error;
use crate::lock::{Claim, Fence, HolderId, Lease, LockName, LockState, Lost, Ttl, words};
use crate::output::json::{fence, holder, kind, lost as how_lost, millis};
use crate::report::{Ending, Named, Report};
use crate::store::QueuePlace;
use crate::{log, text};
use journal::LONGEST;
use writer::Writer;

pub use journal::Destination;

static BOOK: Mutex<Option<Book>> = Mutex::new(None);

/// What is known of the claim that the events are about.
struct Book {
    /// None without `--events`.
    writer: Option<Writer>,
    lock: Named,
    id: Option<HolderId>,
    fence: Option<Fence>,
    began: Moment,
    granted: Moment,
    started: Moment,
    /// The lease may be believed until then.
    until: Moment,
    waits: bool,
    /// Told last, and not over.
    error: Option<String>,
}

/// The fields of an event beside those that all have.
type Fields<const N: usize> = [(&'static str, Value); N];

/// From here on events of a claim go there. To be called before anything else of ours is opened: a descriptor that
/// our caller has not opened must not be taken for one.
///
/// # Errors
/// If it cannot be written to, and never could.
pub fn begin(at: Option<&Destination>, lock: &Named, claim: &Claim) -> Result<(), Error> {
    let writer = at.map(Writer::open).transpose()?.flatten();
    let now = Moment::now();
    let book = Book {
        writer,
        lock: lock.clone(),
        id: claim.token.id(),
        fence: None,
        began: now,
        granted: now,
        started: now,
        until: now,
        waits: false,
        error: None,
    };
    *BOOK.lock().unwrap_or_else(PoisonError::into_inner) = Some(book);
    Ok(())
}

/// Writes in the book, if one is kept.
fn note(write: impl FnOnce(&mut Book)) {
    if let Some(book) = BOOK.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        write(book);
    }
}

/// The lock is somebody else's, and is waited for.
pub fn waiting(state: &LockState, place: QueuePlace) {
    note(|book| {
        book.error = None;
        if !std::mem::replace(&mut book.waits, true) {
            let [state, holder] = whose(state);
            let position = Some(place.position).filter(|position| *position > 0);
            book.tell("waiting", [state, holder, ("position", json!(position))]);
        }
    });
}

/// The server does not answer as it should, and is asked again. The same is not told twice.
pub fn error(error: &Error) {
    note(|book| {
        let message = error.to_string();
        if book.error.as_ref() != Some(&message) {
            book.tell("trouble", [("message", json!(message))]);
            book.error = Some(message);
        }
    });
}

/// The lock is ours. Written a little later, so that nothing keeps a command from starting.
pub fn granted(claim: &Claim, lease: &Lease, ttl: Ttl) {
    note(|book| {
        book.id = claim.token.id();
        book.error = None;
        book.fence = lease.fence;
        book.granted = lease.granted;
        book.until = lease.until;
        let line = book.line("granted", [("waited_ms", millis(book.began.elapsed())), ("ttl_ms", json!(ttl.millis()))]);
        if let Some(writer) = &mut book.writer {
            writer.hold_back(line);
        }
    });
}

/// The lock is kept, and nothing is about to start: what was held back is written.
pub fn kept() {
    note(Book::flush);
}

/// The command is under way.
pub fn started(pid: Pid) {
    note(|book| {
        log::trace(format_args!("started the command, pid {pid}"));
        book.started = Moment::now();
        book.tell("started", [("pid", json!(pid.as_raw()))]);
    });
}

pub fn renewed(ttl: Ttl, until: Moment) {
    note(|book| {
        log::trace(format_args!("renewed for {}", span(ttl.get())));
        book.error = None;
        book.until = until;
        book.tell("renewed", [("ttl_ms", json!(ttl.millis()))]);
    });
}

/// The lock went before it was given back.
pub fn lost(lost: &Lost, follows: &str) {
    note(|book| {
        if log::options().json {
            let message = lost.to_string();
            let name = book.lock.name.as_str();
            log::document(&json!({ "event": "lost", "name": name, "message": message, "then": follows }));
        } else {
            log::error(format_args!("\"{}\" is lost: {lost}; {follows}", book.lock.name));
        }
        let how = how_lost(lost);
        book.tell("lost", [("how", how["how"].clone()), ("message", how["message"].clone()), ("then", json!(follows))]);
    });
}

/// An old `SETNX` client had written over the lock, for this many times by now.
pub fn put_back(name: &LockName, times: u32) {
    let often = if times == 1 { String::new() } else { format!(" ({times} times by now)") };
    log::warn(format_args!("an old SETNX client had written over \"{name}\" while it was held: put back{often}"));
}

/// The command has ended, and with it all that was waited for.
pub fn ended(ending: &Ending, time_limit: bool) {
    note(|book| {
        log::trace(format_args!("the command has ended: {ending}"));
        let (status, signal) = match ending {
            Ending::Status(status) => (json!(status), Value::Null),
            Ending::Killed { signal, .. } => (Value::Null, json!(signal)),
        };
        let ran = ("ran_ms", millis(book.started.elapsed()));
        book.tell("ended", [("status", status), ("signal", signal), ("time_limit", json!(time_limit)), ran]);
    });
}

/// The lock was given back, or is left to end by itself after a rest.
pub fn released(rest: Option<Duration>) {
    note(|book| {
        match rest {
            None => log::trace(format_args!("gave back \"{}\"", book.lock.name)),
            Some(rest) => log::trace(format_args!("\"{}\" stays locked for {}", book.lock.name, span(rest))),
        }
        let held = ("held_ms", millis(book.granted.elapsed()));
        book.tell("released", [held, ("ends_in_ms", rest.map_or(Value::Null, millis))]);
    });
}

/// The lock could not be given back: it ends by itself.
pub fn unreleased(error: &Error) {
    note(|book| {
        let ends_in = ("ends_in_ms", millis(book.until.remaining()));
        book.tell("unreleased", [("message", json!(error.to_string())), ends_in]);
    });
}

/// What it came to, as far as it has not been told as it happened.
pub fn concluded(report: &Report) {
    note(|book| match report {
        Report::Busy(busy) => {
            let [state, holder] = whose(&busy.refused.state);
            let waited = ("waited_ms", millis(busy.refused.waited));
            book.tell("refused", [state, holder, waited, ("nested", json!(busy.refused.nested))]);
        }
        Report::Interrupted(signal) => book.tell("interrupted", [("signal", json!(*signal as i32))]),
        Report::NotRun(not_run) => book.tell("not_run", [("message", json!(text::plain(&not_run.error)))]),
        Report::Failed(error) => {
            book.tell("failed", [("kind", json!(kind(error))), ("message", json!(error.to_string()))]);
        }
        _ => book.flush(),
    });
}

/// Nothing happens any more: what is still to be written may take a moment, and what was not written is told.
pub fn end() {
    let book = BOOK.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(writer) = book.and_then(|book| book.writer) {
        writer.end();
    }
}

fn whose(state: &LockState) -> Fields<2> {
    [("state", json!(words::state_name(&state.kind))), ("holder", state.holder.as_ref().map_or(Value::Null, holder))]
}

impl Book {
    fn tell<const N: usize>(&mut self, event: &str, more: Fields<N>) {
        if self.writer.is_some() {
            let line = self.line(event, more);
            self.writer.iter_mut().for_each(|writer| writer.put(line.clone()));
        }
    }

    fn flush(&mut self) {
        self.writer.iter_mut().for_each(Writer::flush);
    }

    fn line<const N: usize>(&self, event: &str, more: Fields<N>) -> String {
        let all = [
            ("time", json!(text::instant(wall()))),
            ("event", json!(event)),
            ("name", json!(self.lock.name.as_str())),
            ("key", json!(self.lock.key)),
            ("id", json!(self.id.as_ref().map(HolderId::as_str))),
            ("fence", fence(self.fence)),
        ];
        let fields = all.into_iter().chain(more).map(|(name, value)| (name.to_owned(), value));
        short(fields.collect())
    }
}

/// A line that can be written at once: what makes it too long is left out.
fn short(mut fields: Map<String, Value>) -> String {
    let mut line = format!("{}\n", text::escaped(&Value::Object(fields.clone())));
    for long in ["message", "holder", "key"] {
        if line.len() > LONGEST && fields.contains_key(long) {
            fields.insert(long.to_owned(), Value::Null);
            line = format!("{}\n", text::escaped(&Value::Object(fields.clone())));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_at_once_whatever_is_to_be_told() {
        let fields = |message: usize, key: usize| {
            let fields =
                [("event", json!("x")), ("message", json!("\u{1}".repeat(message))), ("key", json!("k".repeat(key)))];
            fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect::<Map<_, _>>()
        };
        let read = |line: String| serde_json::from_str::<Value>(line.strip_suffix('\n').unwrap()).unwrap();
        assert_eq!(read(short(fields(10, 10))), Value::Object(fields(10, 10)));
        let cut = read(short(fields(1000, 10)));
        assert!(cut["message"].is_null() && cut["key"].is_string(), "{cut}");
        assert!(short(fields(1000, 9000)).len() <= LONGEST);
    }
}
