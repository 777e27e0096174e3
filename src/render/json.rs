//! For programs: one document with stable names, durations as `*_ms`, instants as RFC 3339.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::config::{Origin, Setting, shown};
use crate::lock::{Fence, Holder, Legacy, Occupancy, State};
use crate::report::{Checked, CheckedServer, Ending, Named, Ran, Report, Row, Wanted};
use crate::say::{self, Tainted};
use crate::store::{Finding, Kind, Trouble, Verdict, Waiter};
use crate::supervise::Lost;
use crate::wait::Refused;

/// The document of every verb but `run`, whose stdout is its command's.
pub fn stdout(report: &Report) -> Option<String> {
    Some(text(report)? + "\n").filter(|_| !say::is_run())
}

/// The document as it is written.
pub fn text(report: &Report) -> Option<String> {
    match report {
        // Row by row: all of them as one value would take several times the room.
        Report::Status(status) => {
            Some(format!("[{}]", status.rows.iter().map(|one| say::escaped(&row(one))).collect::<Vec<_>>().join(",")))
        }
        report => Some(say::escaped(&document(report)?)),
    }
}

pub fn stderr(report: &Report) -> Option<Value> {
    document(report).filter(|_| say::is_run())
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
                ("keeper", json!(acquired.keeper())),
            ],
        ),
        Report::Busy(busy) => outcome("held", &busy.lock, refusal(&busy.refused)),
        Report::Renewed(renewed) => outcome("renewed", &renewed.lock, [("ttl_ms", json!(renewed.ttl.millis()))]),
        Report::Released(released) => outcome("released", &released.lock, [("broken", json!(released.broken))]),
        Report::NotYours(not_yours) => {
            let wanted = match not_yours.wanted {
                Wanted::Renew => "renew",
                Wanted::Release => "release",
                Wanted::Break => "break",
            };
            outcome(
                "not_yours",
                &not_yours.lock,
                occupancy(&not_yours.occupancy).into_iter().chain([("wanted", json!(wanted))]),
            )
        }
        Report::Checked(checked) => check(checked),
        Report::Ran(ran) => outcome("ended", &ran.lock, ended(ran)),
        Report::NotRun(not_run) => outcome(
            "not_run",
            &not_run.lock,
            [("command", json!(not_run.command.to_string_lossy())), ("message", json!(say::plain(&not_run.error)))],
        ),
        Report::Failed(trouble) => failed(trouble),
        Report::Status(_) | Report::Watched | Report::Interrupted(_) | Report::Said(_) => return None,
    })
}

fn outcome(outcome: &str, lock: &Named, more: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let first = [("outcome", json!(outcome)), ("name", json!(lock.name.as_str())), ("key", json!(lock.key))];
    object(first.into_iter().chain(more))
}

fn refusal(refused: &Refused) -> impl Iterator<Item = (&'static str, Value)> {
    let more = [
        ("queue_length", json!(refused.place.length - usize::from(refused.place.position > 0))),
        ("waited_ms", millis(refused.waited)),
        ("nested", json!(refused.nested)),
    ];
    occupancy(&refused.occupancy).into_iter().chain(more)
}

fn object(fields: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
}

fn occupancy(occupancy: &Occupancy) -> [(&'static str, Value); 4] {
    [
        ("state", json!(say::state_word(&occupancy.state))),
        ("holder", occupancy.holder.as_ref().map_or(Value::Null, holder)),
        ("ttl_ms", occupancy.ttl.map_or(Value::Null, millis)),
        ("fence", fence(occupancy.fence)),
    ]
}

pub fn holder(holder: &Holder) -> Value {
    json!({
        "id": holder.id.as_str(),
        "host": holder.owner.host.raw(),
        "user": holder.owner.user.raw(),
        "pid": holder.owner.pid,
        "since": say::instant(holder.since),
        "held_ms": millis(holder.held),
        "reason": holder.reason.as_ref().map(Tainted::raw),
    })
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
    })
}

fn row(row: &Row) -> Value {
    let seen = &row.standing.occupancy;
    let name = [("name", json!(row.lock.name.as_str())), ("key", json!(row.lock.key))];
    let rest = [
        ("queue", row.standing.queue.iter().map(waiter).collect()),
        ("legacy", seen.legacy.map_or(Value::Null, legacy)),
        ("warnings", seen.warning().into_iter().collect()),
    ];
    object(name.into_iter().chain(occupancy(seen)).chain(rest))
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
        "file": place.map(|place| shown(&place.path)),
        "line": place.map(|place| place.line),
    })
}

fn server(server: &CheckedServer) -> Value {
    json!({ "url": server.url, "findings": server.findings.iter().map(finding).collect::<Value>() })
}

fn finding(finding: &Finding) -> Value {
    let (verdict, remedy) = match &finding.verdict {
        Verdict::Fine => ("fine", None),
        Verdict::Warning(remedy) => ("warning", Some(remedy)),
        Verdict::Obstacle(_, remedy) => ("obstacle", Some(remedy)),
    };
    json!({ "topic": finding.topic, "found": finding.found, "verdict": verdict, "remedy": remedy })
}

fn legacy(legacy: Legacy) -> Value {
    json!({ "valid_until": say::instant(legacy.valid_until), "stale": legacy.stale })
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
        ("unreleased", ran.unreleased.as_ref().map_or(Value::Null, |unreleased| {
            json!({ "message": unreleased.trouble.to_string(), "ends_in_ms": millis(unreleased.ends_in) })
        })),
    ]
}

pub fn lost(lost: &Lost) -> Value {
    let how = match lost {
        Lost::Taken(occupancy) if occupancy.state == State::Free => "expired",
        Lost::Taken(_) => "taken",
        Lost::Unconfirmed(_) => "unconfirmed",
    };
    json!({ "how": how, "message": say::lost_how(lost) })
}

fn failed(trouble: &Trouble) -> Value {
    json!({ "outcome": kind(trouble), "message": trouble.to_string(), "remedy": trouble.remedy })
}

pub fn kind(trouble: &Trouble) -> &'static str {
    match trouble.kind {
        Kind::Unreachable | Kind::Unanswered | Kind::Unwilling | Kind::Untrusted => "unreachable",
        Kind::Refused => "refused",
        Kind::Misconfigured | Kind::WrongType => "misconfigured",
        Kind::Usage => "usage",
        Kind::Broken => "broken",
    }
}

pub fn fence(fence: Option<Fence>) -> Value {
    fence.map_or(Value::Null, |fence| json!(fence.0))
}

pub fn millis(duration: Duration) -> Value {
    json!(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}
