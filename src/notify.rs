//! Reports what happens to a claim, once: to the log on stderr, and to `--events` as one JSON object a line.
//!
//! Owns the format of these lines, which EVENTS in nxlock-run(1) describes. A caller never waits for a reader.

mod journal;
mod writer;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::unistd::Pid;
use serde_json::{Map, Value, json};

use crate::clock::{Moment, wall};
use crate::duration::span;
use crate::error::Error;
use crate::lock::{Claim, Fence, HolderId, Lease, LockName, LockState, Lost, Supersedes, Told, Ttl, words};
use crate::output::json::{claimant, fence, holder, kind, lost as how_lost, millis, run, sharing};
use crate::report::{Busy, Ending, Named, Refusal, Refused, Report};
use crate::store::QueuePlace;
use crate::{log, text};
use journal::LONGEST;
use writer::Writer;

pub use journal::Destination;

static EVENTS: Mutex<Option<Events>> = Mutex::new(None);

/// The state of the claim that the events describe.
struct Events {
    /// None without `--events`.
    writer: Option<Writer>,
    lock: Named,
    id: Option<HolderId>,
    fence: Option<Fence>,
    began: Moment,
    granted: Moment,
    started: Moment,
    /// End of the lease, as far as it can be trusted.
    until: Moment,
    waits: bool,
    /// The error reported last, until a request succeeds.
    error: Option<String>,
}

/// The fields of an event beside the common ones.
type Fields<const N: usize> = [(&'static str, Value); N];

/// Starts to report the events of a claim. Must be called before nxlock opens any other descriptor, which could be
/// mistaken for one that the caller opened.
///
/// # Errors
/// If the destination can never be written to.
pub fn begin(at: Option<&Destination>, lock: &Named, claim: &Claim) -> Result<(), Error> {
    let writer = at.map(Writer::open).transpose()?.flatten();
    let now = Moment::now();
    let events = Events {
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
    *EVENTS.lock().unwrap_or_else(PoisonError::into_inner) = Some(events);
    Ok(())
}

/// Updates the state that the events describe, if `begin` has been called.
fn note(write: impl FnOnce(&mut Events)) {
    if let Some(events) = EVENTS.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        write(events);
    }
}

/// Reports, once per claim, that nxlock waits for another holder's lock.
pub fn waiting(state: &LockState, place: QueuePlace) {
    note(|events| {
        events.error = None;
        if !std::mem::replace(&mut events.waits, true) {
            let [state, holder] = whose(state);
            let position = Some(place.position).filter(|position| *position > 0);
            events.tell("waiting", [state, holder, ("position", json!(position))]);
        }
    });
}

/// Reports that a request failed and is retried. Reports the same error only once in a row.
pub fn error(error: &Error) {
    note(|events| {
        let message = error.to_string();
        if events.error.as_ref() != Some(&message) {
            events.tell("trouble", [("message", json!(message))]);
            events.error = Some(message);
        }
    });
}

/// Reports the grant. The line is written a little later, so that it does not delay the start of a command.
pub fn granted(claim: &Claim, lease: &Lease, ttl: Ttl) {
    note(|events| {
        events.id = claim.token.id();
        events.error = None;
        events.fence = lease.fence;
        events.granted = lease.granted;
        events.until = lease.until;
        let waited = ("waited_ms", millis(events.began.elapsed()));
        let [shared, slot, slots] = sharing(&claim.token, lease.slot);
        let more = [waited, ("ttl_ms", json!(ttl.millis())), shared, slot, slots];
        events.write("granted", more, Writer::hold_back);
    });
}

/// Writes what was held back: the lock is kept, and no command is about to start.
pub fn kept() {
    note(Events::flush);
}

/// Reports the start of the command.
pub fn started(pid: Pid) {
    note(|events| {
        log::trace(format_args!("started the command, pid {pid}"));
        events.started = Moment::now();
        events.tell("started", [("pid", json!(pid.as_raw()))]);
    });
}

pub fn renewed(ttl: Ttl, until: Moment) {
    note(|events| {
        log::trace(format_args!("renewed for {}", span(ttl.get())));
        events.error = None;
        events.until = until;
        events.tell("renewed", [("ttl_ms", json!(ttl.millis()))]);
    });
}

/// Reports that the lock was lost before its release.
pub fn lost(lost: &Lost, follows: &str) {
    note(|events| {
        if log::options().json {
            let message = lost.to_string();
            let name = events.lock.name.as_str();
            log::document(&json!({ "event": "lost", "name": name, "message": message, "then": follows }));
        } else {
            log::error(format_args!("\"{}\" is lost: {lost}; {follows}", events.lock.name));
        }
        let how = how_lost(lost);
        events
            .tell("lost", [("how", how["how"].clone()), ("message", how["message"].clone()), ("then", json!(follows))]);
    });
}

/// Reports that a process has asked for the lock, and that it is given up.
pub fn asked(by: &Told, follows: &str) {
    note(|events| {
        let is_newer = by.terms.supersedes == Supersedes::Running;
        let (name, who, document) = (&events.lock.name, words::who_and_why(by), claimant(by));
        if log::options().json {
            let name = name.as_str();
            log::document(
                &json!({ "event": "asked", "name": name, "by": document, "supersedes": is_newer, "then": follows }),
            );
        } else if is_newer {
            log::note(format_args!("\"{name}\": superseded by {who}; {follows}"));
        } else {
            log::note(format_args!("asked to give up \"{name}\" by {who}; {follows}"));
        }
        events.tell("asked", [("by", document), ("supersedes", json!(is_newer)), ("then", json!(follows))]);
    });
}

/// Warns that an old `SETNX` client had overwritten the lock, `times` times so far.
pub fn put_back(name: &LockName, times: u32) {
    let often = if times == 1 { String::new() } else { format!(" ({times} times by now)") };
    log::warn(format_args!("an old SETNX client had written over \"{name}\" while it was held: put back{often}"));
}

/// Reports the end of the command and of all descendants that nxlock waited for.
pub fn ended(ending: &Ending, time_limit: bool) {
    note(|events| {
        log::trace(format_args!("the command has ended: {ending}"));
        let (status, signal) = match ending {
            Ending::Status(status) => (json!(status), Value::Null),
            Ending::Killed { signal, .. } => (Value::Null, json!(signal)),
        };
        let ran = ("ran_ms", millis(events.started.elapsed()));
        events.tell("ended", [("status", status), ("signal", signal), ("time_limit", json!(time_limit)), ran]);
    });
}

/// Reports the release, or that the lock stays until it expires after `rest`.
pub fn released(rest: Option<Duration>) {
    note(|events| {
        match rest {
            None => log::trace(format_args!("gave back \"{}\"", events.lock.name)),
            Some(rest) => log::trace(format_args!("\"{}\" stays locked for {}", events.lock.name, span(rest))),
        }
        let held = ("held_ms", millis(events.granted.elapsed()));
        events.tell("released", [held, ("ends_in_ms", rest.map_or(Value::Null, millis))]);
    });
}

/// Reports that the release failed: the lock stays until it expires.
pub fn unreleased(error: &Error) {
    note(|events| {
        let ends_in = ("ends_in_ms", millis(events.until.remaining()));
        events.tell("unreleased", [("message", json!(error.to_string())), ends_in]);
    });
}

/// Reports the outcome, unless an event has reported it already.
pub fn concluded(report: &Report) {
    note(|events| match report {
        Report::Busy(Busy { refused: Refused { why: Refusal::Undecided(error), .. }, .. }) | Report::Failed(error) => {
            events.tell("failed", [("kind", json!(kind(error))), ("message", json!(error.to_string()))]);
        }
        Report::Busy(busy) => {
            let [state, holder] = whose(&busy.refused.state);
            let waited = ("waited_ms", millis(busy.refused.waited));
            let superseded_by = ("superseded_by", busy.refused.superseded_by().map_or(Value::Null, claimant));
            let nested = ("nested", json!(matches!(busy.refused.why, Refusal::Nested)));
            let done = ("done", busy.refused.done().map_or(Value::Null, run));
            events.tell("refused", [state, holder, waited, nested, superseded_by, done]);
        }
        Report::Interrupted(signal) => events.tell("interrupted", [("signal", json!(*signal as i32))]),
        Report::NotRun(not_run) => events.tell("not_run", [("message", json!(text::plain(&not_run.error)))]),
        _ => events.flush(),
    });
}

/// Flushes for up to 1 s; reports dropped events.
pub fn end() {
    let events = EVENTS.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(writer) = events.and_then(|events| events.writer) {
        writer.end();
    }
}

fn whose(state: &LockState) -> Fields<2> {
    [("state", json!(words::state_name(&state.kind))), ("holder", state.holder.as_ref().map_or(Value::Null, holder))]
}

impl Events {
    fn tell<const N: usize>(&mut self, event: &str, more: Fields<N>) {
        self.write(event, more, Writer::put);
    }

    /// Passes the line to the writer. Without `--events`, makes no line.
    fn write<const N: usize>(&mut self, event: &str, more: Fields<N>, how: fn(&mut Writer, String)) {
        if let Some(mut writer) = self.writer.take() {
            how(&mut writer, self.line(event, more));
            self.writer = Some(writer);
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

/// Returns a line that fits in one write(2). Sets fields that make it too long to null.
fn short(mut fields: Map<String, Value>) -> String {
    let mut line = format!("{}\n", text::escaped(&Value::Object(fields.clone())));
    for long in ["message", "holder", "by", "done", "key"] {
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
    fn a_line_is_written_at_once_however_long_it_is() {
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
