//! Reports what happens to a claim, once: to the log on stderr, and to `--events` as one JSON object a line.
//!
//! Owns the format of these lines, which EVENTS in nxlock-run(1) describes. A caller never waits for a reader.

mod journal;
mod writer;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::unistd::Pid;
use serde::Serialize;
use serde_json::{Value, json};

use crate::clock::{Moment, wall};
use crate::duration::{millis, span};
use crate::error::Error;
use crate::lock::{Claim, Fence, HolderId, Lease, LockName, LockState, Lost, Supersedes, Token, Told, Ttl, words};
use crate::log;
use crate::output::json::{
    Also, Claimant, End, Holder, Loss, Run, Shared, claimant, command_end, holder, kind, loss, run, shared, value,
};
use crate::report::{Busy, Ending, Named, NotYours, Refusal as Why, Refused, Report, Wanted};
use crate::store::QueuePlace;
use crate::text::{self, Tainted};
use journal::LONGEST;
use writer::Writer;

pub use journal::Destination;

static EVENTS: Mutex<Option<Events>> = Mutex::new(None);

/// The state of the claim that the events describe.
struct Events {
    /// None without `--events`.
    writer: Option<Writer>,
    lock: Granted,
    /// The further locks of the claim.
    also: Vec<Granted>,
    known_as: Option<Box<Tainted>>,
    began: Moment,
    granted: Moment,
    started: Moment,
    /// End of the lease, as far as it can be trusted.
    until: Moment,
    /// The lock that was last reported to be waited for.
    waits: Option<LockName>,
    /// The error reported last, until a request succeeds.
    error: Option<String>,
}

/// One of the locks, and what is known of its grant.
struct Granted {
    named: Named,
    id: Option<HolderId>,
    fence: Option<Fence>,
}

/// A line of `--events`.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    #[serde(flatten)]
    lock: Also<'a>,
    #[serde(rename = "as")]
    known_as: Option<&'a str>,
    #[serde(flatten)]
    event: Event<'a>,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Waiting {
        state: &'static str,
        holder: Option<Holder<'a>>,
        position: Option<usize>,
    },
    Trouble {
        message: &'a str,
    },
    Granted {
        waited_ms: u64,
        ttl_ms: u64,
        shared: bool,
        slot: Option<u16>,
        slots: Option<u16>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        also: Vec<Also<'a>>,
    },
    Started {
        pid: i32,
    },
    Renewed {
        ttl_ms: u64,
    },
    Lost {
        #[serde(flatten)]
        loss: Loss<'a>,
        then: &'a str,
    },
    Asked {
        by: Claimant<'a>,
        supersedes: bool,
        then: &'a str,
    },
    Ended {
        status: Option<u8>,
        signal: Option<i32>,
        time_limit: bool,
        ran_ms: u64,
    },
    Released {
        held_ms: u64,
        ends_in_ms: Option<u64>,
    },
    Unreleased {
        message: String,
        ends_in_ms: u64,
    },
    Failed {
        kind: &'static str,
        message: String,
    },
    Refused(Box<Refusal<'a>>),
    Interrupted {
        signal: i32,
    },
    NotRun {
        message: String,
    },
}

#[derive(Serialize)]
struct Refusal<'a> {
    state: &'static str,
    holder: Option<Holder<'a>>,
    waited_ms: u64,
    nested: bool,
    superseded_by: Option<Claimant<'a>>,
    done: Option<Run<'a>>,
}

/// Starts to report the events of a claim. Must be called before nxlock opens any other descriptor, which could be
/// mistaken for one that the caller opened.
///
/// # Errors
/// If the destination can never be written to.
pub fn begin(at: Option<&Destination>, lock: &Named, also: &[Named], claim: &Claim) -> Result<(), Error> {
    let writer = at.map(Writer::open).transpose()?.flatten();
    let now = Moment::now();
    let one = |named: &Named, claim: &Claim| Granted { named: named.clone(), id: claim.token.id(), fence: None };
    let events = Events {
        writer,
        lock: one(lock, claim),
        also: also.iter().zip(&claim.also).map(|(named, also)| one(named, &also.claim)).collect(),
        known_as: Token::read(claim.identity().as_bytes()).and_then(|told| told.owner.known_as),
        began: now,
        granted: now,
        started: now,
        until: now,
        waits: None,
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

/// Reports, once for each lock, that nxlock waits for another holder's.
pub fn waiting(state: &LockState, place: QueuePlace) {
    note(|events| {
        events.error = None;
        let lock = events.named(state.name.as_ref()).named.name.clone();
        if events.waits.as_ref() != Some(&lock) {
            events.waits = Some(lock);
            let position = Some(place.position).filter(|position| *position > 0);
            let (kind, holder) = (words::state_name(&state.kind), state.holder.as_ref().map(holder));
            events.tell_of(state.name.as_ref(), Event::Waiting { state: kind, holder, position });
        }
    });
}

/// Reports that a request failed and is retried. Reports the same error only once in a row.
pub fn error(error: &Error) {
    note(|events| {
        let message = error.to_string();
        if events.error.as_ref() != Some(&message) {
            events.tell(Event::Trouble { message: &message });
            events.error = Some(message);
        }
    });
}

/// Reports the grant. The line is written a little later, so that it does not delay the start of a command.
pub fn granted(claim: &Claim, lease: &Lease, ttl: Ttl) {
    note(|events| {
        (events.lock.id, events.lock.fence) = (claim.token.id(), lease.fence);
        for (one, also) in events.also.iter_mut().zip(&claim.also) {
            (one.id, one.fence) = (also.claim.token.id(), also.fence);
        }
        events.error = None;
        events.granted = lease.granted;
        events.until = lease.until;
        let (waited_ms, ttl_ms) = (millis(events.began.elapsed()), ttl.millis());
        let Shared { shared, slot, slots } = shared(&claim.token, lease.slot);
        let line = |events: &Events| {
            let also = events.also.iter().map(Granted::line).collect();
            events.line(None, Event::Granted { waited_ms, ttl_ms, shared, slot, slots, also })
        };
        events.write(line, Writer::hold_back);
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
        events.tell(Event::Started { pid: pid.as_raw() });
    });
}

pub fn renewed(ttl: Ttl, until: Moment) {
    note(|events| {
        log::trace(format_args!("renewed for {}", span(ttl.get())));
        events.error = None;
        events.until = until;
        events.tell(Event::Renewed { ttl_ms: ttl.millis() });
    });
}

/// Reports that the lock was lost before its release.
pub fn lost(lost: &Lost, follows: &str) {
    note(|events| {
        let name = &events.named(lost.name()).named.name;
        if log::options().json {
            let (name, message) = (name.as_str(), lost.to_string());
            log::document(&json!({ "event": "lost", "name": name, "message": message, "then": follows }));
        } else {
            log::error(format_args!("\"{name}\" is lost: {lost}; {follows}"));
        }
        events.lost(lost, follows);
    });
}

/// Reports that a process has asked for the lock, or the one with this name if there are several, and that it is given up.
pub fn asked(by: &Told, wanted: Option<&LockName>, follows: &str) {
    note(|events| {
        let is_newer = by.terms.supersedes == Supersedes::Running;
        let (name, who) = (&events.named(wanted).named.name, words::who_and_why(by));
        if log::options().json {
            let (name, by) = (name.as_str(), claimant(by));
            log::document(
                &json!({ "event": "asked", "name": name, "by": by, "supersedes": is_newer, "then": follows }),
            );
        } else if is_newer {
            log::stopping(format_args!("\"{name}\": superseded by {who}; {follows}"));
        } else {
            log::stopping(format_args!("asked to give up \"{name}\" by {who}; {follows}"));
        }
        events.tell_of(wanted, Event::Asked { by: claimant(by), supersedes: is_newer, then: follows });
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
        let ran_ms = millis(events.started.elapsed());
        let End { status, signal } = command_end(ending);
        events.tell(Event::Ended { status, signal, time_limit, ran_ms });
    });
}

/// Reports the release, or that the lock stays until it expires after `rest`.
pub fn released(rest: Option<Duration>) {
    note(|events| {
        match rest {
            None => log::trace(format_args!("released {}", events.names())),
            Some(rest) => {
                log::trace(format_args!("\"{}\" stays locked for {}", events.lock.named.name, span(rest)));
            }
        }
        let held_ms = millis(events.granted.elapsed());
        events.tell(Event::Released { held_ms, ends_in_ms: rest.map(millis) });
    });
}

/// Reports that the release failed: the lock stays until it expires.
pub fn unreleased(error: &Error) {
    note(|events| {
        let ends_in_ms = millis(events.until.remaining());
        events.tell(Event::Unreleased { message: error.to_string(), ends_in_ms });
    });
}

/// Reports the outcome, unless an event has reported it already.
pub fn concluded(report: &Report) {
    note(|events| match report {
        Report::Busy(Busy { refused: Refused { why: Why::Undecided(error), .. }, .. }) | Report::Failed(error) => {
            events.tell(Event::Failed { kind: kind(error), message: error.to_string() });
        }
        Report::Busy(busy) => {
            let refused = &busy.refused;
            events.tell_of(
                refused.state.name.as_ref(),
                Event::Refused(Box::new(Refusal {
                    state: words::state_name(&refused.state.kind),
                    holder: refused.state.holder.as_ref().map(holder),
                    waited_ms: millis(refused.waited),
                    nested: matches!(refused.why, Why::Nested),
                    superseded_by: refused.superseded_by().map(claimant),
                    done: refused.done().map(run),
                })),
            );
        }
        Report::NotYours(NotYours { wanted: Wanted::Hold, state, .. }) => {
            let lost = Lost::Taken(state.clone());
            events.lost(&lost, "nothing is started");
        }
        Report::Interrupted(signal) => events.tell(Event::Interrupted { signal: *signal as i32 }),
        Report::NotRun(not_run) => events.tell(Event::NotRun { message: text::plain(&not_run.error) }),
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

impl Granted {
    fn line(&self) -> Also<'_> {
        let Granted { named, id, fence } = self;
        Also {
            name: named.name.as_str(),
            key: &named.key,
            id: id.as_ref().map(HolderId::as_str),
            fence: fence.map(|it| it.0),
        }
    }
}

impl Events {
    fn tell(&mut self, event: Event<'_>) {
        self.tell_of(None, event);
    }

    fn lost(&mut self, lost: &Lost, follows: &str) {
        // The line has the name already.
        let loss = Loss { name: None, ..loss(lost) };
        self.tell_of(lost.name(), Event::Lost { loss, then: follows });
    }

    /// Passes an event to the writer, about the lock with this name if there are several.
    fn tell_of(&mut self, name: Option<&LockName>, event: Event<'_>) {
        self.write(|events| events.line(name, event), Writer::put);
    }

    /// Passes a line to the writer. Without `--events`, makes no line.
    fn write(&mut self, line: impl FnOnce(&Events) -> String, how: fn(&mut Writer, String)) {
        if let Some(mut writer) = self.writer.take() {
            how(&mut writer, line(self));
            self.writer = Some(writer);
        }
    }

    /// Returns the lock with this name; the first if there is none.
    fn named(&self, name: Option<&LockName>) -> &Granted {
        self.also.iter().find(|one| name == Some(&one.named.name)).unwrap_or(&self.lock)
    }

    /// Returns the names of all locks, for a message.
    fn names(&self) -> String {
        let names = [&self.lock].into_iter().chain(&self.also).map(|one| format!("\"{}\"", one.named.name));
        names.collect::<Vec<_>>().join(", ")
    }

    fn flush(&mut self) {
        self.writer.iter_mut().for_each(Writer::flush);
    }

    fn line(&self, name: Option<&LockName>, event: Event<'_>) -> String {
        let lock = self.named(name).line();
        let (time, known_as) = (text::instant(wall()), self.known_as.as_deref().map(Tainted::raw));
        short(value(Line { time, lock, known_as, event }))
    }
}

/// Returns a line that fits in one write(2). Sets fields that make it too long to null.
fn short(mut line: Value) -> String {
    let mut text = format!("{}\n", text::escaped(&line));
    for long in ["message", "holder", "by", "done", "also", "key"] {
        if text.len() > LONGEST
            && let Some(field) = line.get_mut(long)
        {
            *field = Value::Null;
            text = format!("{}\n", text::escaped(&line));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_at_once_however_long_it_is() {
        let fields = |message: usize, key: usize| json!({ "event": "x", "message": "\u{1}".repeat(message), "key": "k".repeat(key) });
        let read = |line: String| serde_json::from_str::<Value>(line.strip_suffix('\n').unwrap()).unwrap();
        assert_eq!(read(short(fields(10, 10))), fields(10, 10));
        let cut = read(short(fields(1000, 10)));
        assert!(cut["message"].is_null() && cut["key"].is_string(), "{cut}");
        assert!(short(fields(1000, 9000)).len() <= LONGEST);
    }
}
