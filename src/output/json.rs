//! Reports for programs: one document with stable names, durations as `*_ms`, instants as RFC 3339.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::error::{Error, ErrorKind};
use crate::lock::{
    Expiry, Fence, Holder, Legacy, LockState, Lost, Run, Share, Sharing, Slot, SlotCount, StateKind, Supersedes, Token,
    Told, words,
};
use crate::log;
use crate::report::{
    Answer, Checked, CheckedServer, Ending, History, Named, Origin, Ran, Refusal, Refused, Report, Row, Setting, Wanted,
};
use crate::store::{Finding, Verdict, Waiter};
use crate::text::{self, Tainted};

/// Returns the document for stdout; none for `run`, whose stdout belongs to its command.
pub fn stdout(report: &Report) -> Option<String> {
    Some(text(report)? + "\n").filter(|_| !log::is_run())
}

/// Returns the document as text.
pub fn text(report: &Report) -> Option<String> {
    match report {
        // Row by row: one value of all rows would take several times the memory.
        Report::Status(status) => Some(format!(
            "[{}]",
            status.rows.iter().map(|one| text::escaped(&row(one, &status.doubts))).collect::<Vec<_>>().join(",")
        )),
        report => Some(text::escaped(&document(report)?)),
    }
}

pub fn stderr(report: &Report) -> Option<Value> {
    document(report).filter(|_| log::is_run())
}

pub fn document(report: &Report) -> Option<Value> {
    Some(match report {
        Report::Acquired(acquired) => outcome(
            "acquired",
            &acquired.lock,
            [
                ("token", json!(acquired.token.as_str())),
                ("fence", fence(acquired.fence)),
                ("ttl_ms", json!(acquired.ttl.millis())),
                ("keeper", json!(acquired.keeper)),
            ]
            .into_iter()
            .chain(sharing(&acquired.token, acquired.slot)),
        ),
        Report::Busy(busy) => {
            let word = match busy.refused.why {
                Refusal::Held | Refusal::Nested => "held",
                Refusal::Undecided(ref error) => kind(error),
                Refusal::Superseded(_) => "superseded",
                Refusal::Done(_) => "already_done",
            };
            let why = busy.refused.undecided().map(reason).into_iter().flatten();
            outcome(word, &busy.lock, refusal(&busy.refused).chain(why))
        }
        Report::Renewed(renewed) => outcome("renewed", &renewed.lock, [("ttl_ms", json!(renewed.ttl.millis()))]),
        Report::Released(released) => outcome("released", &released.lock, [("broken", json!(released.broken))]),
        Report::Asked(asked) => {
            let word = match asked.answer {
                Answer::Asked => "asked",
                Answer::NoLongerHolds => "no_longer_held",
                Answer::StillHeld => "still_held",
                Answer::Refuses => "refuses",
            };
            outcome(word, &asked.lock, [("holder", holder(&asked.holder)), ("waited_ms", millis(asked.waited))])
        }
        Report::NotYours(not_yours) => {
            let wanted = match not_yours.wanted {
                Wanted::Renew => "renew",
                Wanted::Release => "release",
                Wanted::Break => "break",
                Wanted::Ask => "ask",
            };
            outcome(
                "not_yours",
                &not_yours.lock,
                state(&not_yours.state).into_iter().chain([("wanted", json!(wanted))]),
            )
        }
        Report::Histories(histories) => histories.iter().map(history).collect(),
        Report::Checked(checked) => check(checked),
        Report::Ran(ran) => outcome("ended", &ran.lock, ended(ran)),
        Report::NotRun(not_run) => outcome(
            "not_run",
            &not_run.lock,
            [("command", json!(not_run.command.to_string_lossy())), ("message", json!(text::plain(&not_run.error)))],
        ),
        Report::Failed(error) => failed(error),
        Report::Status(_) | Report::Watched | Report::Interrupted(_) | Report::Said(_) => return None,
    })
}

/// Returns how a grant is shared.
pub fn sharing(token: &Token, slot: Option<Slot>) -> [(&'static str, Value); 3] {
    [
        ("shared", json!(token.sharing() == Sharing::Shared)),
        ("slot", json!(slot.map(|slot| slot.number))),
        ("slots", json!(slot.map(|slot| slot.of.get()))),
    ]
}

fn outcome(outcome: &str, lock: &Named, more: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let first = [("outcome", json!(outcome)), ("name", json!(lock.name.as_str())), ("key", json!(lock.key))];
    object(first.into_iter().chain(more))
}

fn refusal(refused: &Refused) -> impl Iterator<Item = (&'static str, Value)> {
    let more = [
        ("queue_length", json!(refused.place.length - usize::from(refused.place.position > 0))),
        ("waited_ms", millis(refused.waited)),
        ("nested", json!(matches!(refused.why, Refusal::Nested))),
        ("superseded_by", refused.superseded_by().map_or(Value::Null, claimant)),
        ("done", refused.done().map_or(Value::Null, run)),
    ];
    state(&refused.state).into_iter().chain(more)
}

/// Returns the process that a token is of.
pub fn claimant(by: &Told) -> Value {
    json!({
        "id": by.id.as_str(),
        "host": by.owner.host.raw(),
        "user": by.owner.user.raw(),
        "pid": by.owner.pid,
        "reason": by.reason.as_ref().map(Tainted::raw),
    })
}

/// Returns a recorded run.
pub fn run(run: &Run) -> Value {
    let mut value = claimant(&run.by);
    value["fence"] = fence(run.fence);
    value["asked"] = json!(text::instant(run.asked()));
    value["granted"] = json!(text::instant(run.granted));
    value["ended"] = json!(run.ended.map(text::instant));
    value["waited_ms"] = millis(run.waited);
    value["held_ms"] = json!(run.held().map(millis));
    value["outcome"] = json!(run.end.outcome.name());
    value["status"] = json!(run.end.status);
    value["signal"] = json!(run.end.signal);
    value
}

fn history(history: &History) -> Value {
    json!({
        "name": history.lock.name.as_str(),
        "key": history.lock.key,
        "history": history.runs.iter().map(run).collect::<Value>(),
    })
}

fn object(fields: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
}

fn state(state: &LockState) -> [(&'static str, Value); 7] {
    let (holders, taken, slots) = match (&state.shares, &state.holder) {
        (Some(shares), _) => {
            let are_known = !shares.held.is_empty() || shares.taken == 0;
            let holders = are_known.then(|| shares.held.iter().map(share).collect::<Vec<_>>());
            (json!(holders), Some(shares.taken), shares.slots.map(SlotCount::get))
        }
        (None, Some(holder)) if matches!(state.kind, StateKind::Held | StateKind::Reserved) => {
            (json!([sole_holder(state, holder)]), Some(1), Some(1))
        }
        (None, _) if state.kind == StateKind::Free => (json!([]), Some(0), None),
        (None, _) => (Value::Null, None, None),
    };
    [
        ("state", json!(words::state_name(&state.kind))),
        ("holder", state.holder.as_ref().map_or(Value::Null, holder)),
        ("holders", holders),
        ("taken", json!(taken)),
        ("slots", json!(slots)),
        ("ttl_ms", ttl(state.expiry)),
        ("fence", fence(state.fence)),
    ]
}

pub fn holder(holder: &Holder) -> Value {
    json!({
        "id": holder.id.as_str(),
        "host": holder.owner.host.raw(),
        "user": holder.owner.user.raw(),
        "pid": holder.owner.pid,
        "since": text::instant(holder.since),
        "held_ms": millis(holder.held),
        "reason": holder.reason.as_ref().map(Tainted::raw),
        "may_be_asked": holder.may_be_asked(),
    })
}

fn share(share: &Share) -> Value {
    let mut value = holder(&share.holder);
    value["ttl_ms"] = ttl(share.expiry);
    value["fence"] = fence(share.fence);
    value["slot"] = json!(share.slot);
    value["slots"] = json!(share.sharing().slots().map(SlotCount::get));
    value["claimed"] = json!(share.is_claimed);
    value
}

/// Returns the holder of an exclusive lock as one of its holders.
fn sole_holder(state: &LockState, by: &Holder) -> Value {
    let mut value = holder(by);
    value["ttl_ms"] = ttl(state.expiry);
    value["fence"] = fence(state.fence);
    value["slot"] = Value::Null;
    value["slots"] = json!(1);
    value["claimed"] = json!(state.kind == StateKind::Held);
    value
}

fn waiter(waiter: &Waiter) -> Value {
    json!({
        "position": waiter.position,
        "id": waiter.id.as_str(),
        "host": waiter.owner.host.raw(),
        "user": waiter.owner.user.raw(),
        "pid": waiter.owner.pid,
        "waiting_ms": millis(waiter.waiting),
        "reason": waiter.reason.as_ref().map(Tainted::raw),
        "shared": waiter.terms.sharing == Sharing::Shared,
        "slots": waiter.terms.sharing.slots().map(SlotCount::get),
        "supersedes": waiter.terms.supersedes != Supersedes::Nobody,
    })
}

fn row(row: &Row, doubts: &[String]) -> Value {
    let seen = &row.status.state;
    let name = [("name", json!(row.lock.name.as_str())), ("key", json!(row.lock.key))];
    let rest = [
        ("queue", row.status.queue.iter().map(waiter).collect()),
        ("legacy", seen.legacy.map_or(Value::Null, legacy)),
        ("warnings", seen.warning().into_iter().chain(doubts.iter().cloned()).collect()),
    ];
    object(name.into_iter().chain(state(seen)).chain(rest))
}

fn check(checked: &Checked) -> Value {
    let outcome = match (checked.obstacle(), checked.warnings()) {
        (Some(_), _) => "unfit",
        (None, 0) => "fit",
        (None, _) => "fit_with_warnings",
    };
    json!({
        "outcome": outcome,
        "settings": checked.settings.iter().map(setting).collect::<Value>(),
        "servers": checked.servers.iter().map(server).collect::<Value>(),
    })
}

fn setting(setting: &Setting) -> Value {
    let (origin, variable, place) = match &setting.origin {
        Origin::Flag => ("flag", None, None),
        Origin::Environment(variable) => ("environment", Some(variable), None),
        Origin::File(place) => ("file", None, Some(place)),
        Origin::Default => ("default", None, None),
    };
    json!({
        "name": setting.name,
        "value": setting.value,
        "origin": origin,
        "variable": variable,
        "file": place.map(|place| text::path(&place.path)),
        "line": place.map(|place| place.line),
    })
}

fn server(server: &CheckedServer) -> Value {
    json!({ "url": server.url, "findings": server.findings.iter().map(finding).collect::<Value>() })
}

fn finding(finding: &Finding) -> Value {
    let (verdict, hint) = match &finding.verdict {
        Verdict::Fine => ("fine", None),
        Verdict::Warning(hint) => ("warning", Some(hint)),
        Verdict::Obstacle(_, hint) => ("obstacle", Some(hint)),
    };
    json!({ "topic": finding.topic, "found": finding.found, "verdict": verdict, "remedy": hint })
}

fn legacy(legacy: Legacy) -> Value {
    json!({ "valid_until": text::instant(legacy.valid_until), "stale": legacy.stale })
}

fn ended(ran: &Ran) -> Vec<(&'static str, Value)> {
    let (status, signal) = match ran.ending {
        Ending::Status(status) => (json!(status), Value::Null),
        Ending::Killed { signal, .. } => (Value::Null, json!(signal)),
    };
    vec![
        ("status", status),
        ("signal", signal),
        ("time_limit", json!(ran.time_limit)),
        ("lost", ran.lost.as_ref().map_or(Value::Null, lost)),
        ("asked_by", ran.asked_by.as_deref().map_or(Value::Null, claimant)),
        ("unreleased", ran.unreleased.as_ref().map_or(Value::Null, |unreleased| {
            json!({ "message": unreleased.error.to_string(), "ends_in_ms": millis(unreleased.ends_in) })
        })),
    ]
}

pub fn lost(lost: &Lost) -> Value {
    let how = match lost {
        Lost::Taken(state) if state.kind == StateKind::Free => "expired",
        Lost::Taken(_) => "taken",
        Lost::Unconfirmed(_) => "unconfirmed",
    };
    json!({ "how": how, "message": lost.to_string() })
}

fn failed(error: &Error) -> Value {
    object([("outcome", json!(kind(error)))].into_iter().chain(reason(error)))
}

fn reason(error: &Error) -> [(&'static str, Value); 2] {
    [("message", json!(error.to_string())), ("remedy", json!(error.hint))]
}

pub fn kind(error: &Error) -> &'static str {
    match error.kind {
        ErrorKind::Unreachable | ErrorKind::Unanswered | ErrorKind::Unavailable | ErrorKind::Untrusted => "unreachable",
        ErrorKind::Refused => "refused",
        ErrorKind::Misconfigured | ErrorKind::WrongType | ErrorKind::Damaged => "misconfigured",
        ErrorKind::Usage => "usage",
        ErrorKind::Internal => "broken",
    }
}

pub fn fence(fence: Option<Fence>) -> Value {
    fence.map_or(Value::Null, |fence| json!(fence.0))
}

fn ttl(expiry: Expiry) -> Value {
    expiry.left().map_or(Value::Null, millis)
}

pub fn millis(duration: Duration) -> Value {
    json!(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}
