//! What happens to a lock, for `--events`: one JSON object a line.
//!
//! Owns the form of these lines; whoever knows that something has happened calls, and goes on at once. Without
//! `--events` nothing is done. What they come to in the manual is in `cli/docs/events.rs`.

mod journal;
mod writer;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::unistd::Pid;
use serde_json::{Map, Value, json};

use crate::clock::{Moment, wall};
use crate::lock::{Fence, Hold, HolderId, Lease, Occupancy, Ttl};
use crate::render::json::{fence, holder, kind, lost as how_lost, millis};
use crate::report::{Ending, Named, Report};
use crate::say;
use crate::store::{Place, Trouble};
use crate::supervise::Lost;
use journal::LONGEST;
use writer::Writer;

pub use journal::Destination;

static BOOK: Mutex<Option<Book>> = Mutex::new(None);

/// What is known of the claim that the events are about.
struct Book {
    writer: Writer,
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
    trouble: Option<String>,
}

/// The fields of an event beside those that all have.
type Fields<const N: usize> = [(&'static str, Value); N];

/// From here on events of a claim go there. To be called before anything else of ours is opened: a descriptor that
/// our caller has not opened must not be taken for one.
///
/// # Errors
/// If it cannot be written to, and never could.
pub fn begin(at: Option<&Destination>, lock: &Named, hold: &Hold) -> Result<(), Trouble> {
    let Some(at) = at else { return Ok(()) };
    let Some(writer) = Writer::open(at)? else { return Ok(()) };
    let now = Moment::now();
    let book = Book {
        writer,
        lock: lock.clone(),
        id: hold.token.id(),
        fence: None,
        began: now,
        granted: now,
        started: now,
        until: now,
        waits: false,
        trouble: None,
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
pub fn waiting(occupancy: &Occupancy, place: Place) {
    note(|book| {
        book.trouble = None;
        if !std::mem::replace(&mut book.waits, true) {
            let [state, holder] = whose(occupancy);
            let position = Some(place.position).filter(|position| *position > 0);
            book.tell("waiting", [state, holder, ("position", json!(position))]);
        }
    });
}

/// The server does not answer as it should, and is asked again. The same is not told twice.
pub fn trouble(trouble: &Trouble) {
    note(|book| {
        let message = trouble.to_string();
        if book.trouble.as_ref() != Some(&message) {
            book.tell("trouble", [("message", json!(message))]);
            book.trouble = Some(message);
        }
    });
}

/// The lock is ours. Written a little later, so that nothing keeps a command from starting.
pub fn granted(hold: &Hold, lease: &Lease, ttl: Ttl) {
    note(|book| {
        book.id = hold.token.id();
        book.trouble = None;
        book.fence = lease.fence;
        book.granted = lease.granted;
        book.until = lease.until;
        let line = book.line("granted", [("waited_ms", millis(book.began.elapsed())), ("ttl_ms", json!(ttl.millis()))]);
        book.writer.hold_back(line);
    });
}

/// The lock is kept, and nothing is about to start: what was held back is written.
pub fn kept() {
    note(|book| book.writer.flush());
}

/// The command is under way.
pub fn started(pid: Pid) {
    note(|book| {
        book.started = Moment::now();
        book.tell("started", [("pid", json!(pid.as_raw()))]);
    });
}

pub fn renewed(ttl: Ttl, until: Moment) {
    note(|book| {
        book.trouble = None;
        book.until = until;
        book.tell("renewed", [("ttl_ms", json!(ttl.millis()))]);
    });
}

/// The lock went before it was given back.
pub fn lost(lost: &Lost, follows: &str) {
    note(|book| {
        let how = how_lost(lost);
        book.tell("lost", [("how", how["how"].clone()), ("message", how["message"].clone()), ("then", json!(follows))]);
    });
}

/// The command has ended, and with it all that was waited for.
pub fn ended(ending: &Ending, time_limit: bool) {
    note(|book| {
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
        let held = ("held_ms", millis(book.granted.elapsed()));
        book.tell("released", [held, ("ends_in_ms", rest.map_or(Value::Null, millis))]);
    });
}

/// The lock could not be given back: it ends by itself.
pub fn unreleased(trouble: &Trouble) {
    note(|book| {
        let ends_in = ("ends_in_ms", millis(book.until.remaining()));
        book.tell("unreleased", [("message", json!(trouble.to_string())), ends_in]);
    });
}

/// What it came to, as far as it has not been told as it happened.
pub fn concluded(report: &Report) {
    note(|book| match report {
        Report::Busy(busy) => {
            let [state, holder] = whose(&busy.refused.occupancy);
            let waited = ("waited_ms", millis(busy.refused.waited));
            book.tell("refused", [state, holder, waited, ("nested", json!(busy.refused.nested))]);
        }
        Report::Interrupted(signal) => book.tell("interrupted", [("signal", json!(*signal as i32))]),
        Report::NotRun(not_run) => book.tell("not_run", [("message", json!(say::plain(&not_run.error)))]),
        Report::Failed(trouble) => {
            book.tell("failed", [("kind", json!(kind(trouble))), ("message", json!(trouble.to_string()))]);
        }
        _ => book.writer.flush(),
    });
}

/// Nothing happens any more: what is still to be written may take a moment, and what was not written is told.
pub fn end() {
    if let Some(book) = BOOK.lock().unwrap_or_else(PoisonError::into_inner).take() {
        book.writer.end();
    }
}

fn whose(occupancy: &Occupancy) -> Fields<2> {
    [
        ("state", json!(say::state_word(&occupancy.state))),
        ("holder", occupancy.holder.as_ref().map_or(Value::Null, holder)),
    ]
}

impl Book {
    fn tell<const N: usize>(&mut self, event: &str, more: Fields<N>) {
        let line = self.line(event, more);
        self.writer.put(line);
    }

    fn line<const N: usize>(&self, event: &str, more: Fields<N>) -> String {
        let all = [
            ("time", json!(say::instant(wall()))),
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
    let mut line = format!("{}\n", say::escaped(&Value::Object(fields.clone())));
    for long in ["message", "holder", "key"] {
        if line.len() > LONGEST && fields.contains_key(long) {
            fields.insert(long.to_owned(), Value::Null);
            line = format!("{}\n", say::escaped(&Value::Object(fields.clone())));
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
