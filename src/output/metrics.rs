//! Locks as OpenMetrics text, which is also Prometheus' text format, for a textfile collector.
//! <https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md>
//!
//! The names are those in nxlock-status(1): they do not change.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

use crate::lock::{LockState, Prefix, Recorded, Run, RunOutcome, StateKind};
use crate::report::Row;
use crate::text::clean;

/// A series: labels beside those of the lock, and the value.
type Sample = (String, String);

/// A metric of each lock that has it.
struct Family {
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    samples: fn(&Row) -> Vec<Sample>,
}

const FAMILIES: [Family; 9] = [
    Family {
        name: "nxlock_holders",
        unit: "",
        help: "Number of holders of the lock; 0 if it is free.",
        samples: |row| one(holders(&row.status.state)),
    },
    Family {
        name: "nxlock_held_seconds",
        unit: "seconds",
        help: "Time since the grant, of the holder that has had the lock longest.",
        samples: |row| one(row.status.state.holders().map(|holder| holder.held).max().map(seconds)),
    },
    Family {
        name: "nxlock_lease_seconds",
        unit: "seconds",
        help: "Time until the lock ends unless it is renewed.",
        samples: |row| one(row.status.state.expiry.left().map(seconds)),
    },
    Family {
        name: "nxlock_waiters",
        unit: "",
        help: "Number of waiters, at most 500.",
        samples: |row| one((row.status.knows_waiters && !row.status.is_unknown()).then_some(row.status.queue.len())),
    },
    Family {
        name: "nxlock_last_success_timestamp_seconds",
        unit: "seconds",
        help: "When the last recorded run that succeeded ended.",
        samples: |row| one(recorded(row).and_then(|it| it.last_success.as_ref()).and_then(end)),
    },
    Family {
        name: "nxlock_last_success_duration_seconds",
        unit: "seconds",
        help: "How long the last recorded run that succeeded held the lock.",
        samples: |row| {
            let success = recorded(row).and_then(|it| it.last_success.as_ref());
            one(success.and_then(Run::held).map(seconds))
        },
    },
    Family {
        name: "nxlock_last_failure_timestamp_seconds",
        unit: "seconds",
        help: "When the last recorded run that did not succeed ended or, if it vanished, began.",
        samples: |row| one(recorded(row).and_then(|it| it.last_failure.as_ref()).and_then(end)),
    },
    Family {
        name: "nxlock_runs_under_way",
        unit: "",
        help: "Number of recorded runs that have not ended.",
        samples: |row| one(recorded(row).map(|it| it.under_way.len())),
    },
    Family {
        name: "nxlock_recorded_runs",
        unit: "",
        help: "Number of the last recorded runs, at most 20, by how they ended.",
        samples: |row| recorded(row).map(by_outcome).unwrap_or_default(),
    },
];

/// Returns the text.
pub fn text(rows: &[Row], prefix: &Prefix) -> String {
    let mut text = String::new();
    for Family { name, unit, help, samples } in FAMILIES {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
        if !unit.is_empty() {
            let _ = writeln!(text, "# UNIT {name} {unit}");
        }
        for row in rows {
            let lock = format!(
                "name=\"{}\",prefix=\"{}\"",
                escaped(&row.lock.name.to_string()),
                escaped(&clean(prefix.as_str()))
            );
            for (labels, value) in samples(row) {
                let _ = writeln!(text, "{name}{{{lock}{labels}}} {value}");
            }
        }
    }
    text + "# EOF\n"
}

fn one(value: Option<impl ToString>) -> Vec<Sample> {
    value.map(|value| (String::new(), value.to_string())).into_iter().collect()
}

/// Returns the number of holders, if it is known.
fn holders(state: &LockState) -> Option<usize> {
    match (&state.kind, &state.shares) {
        (StateKind::Unknown | StateKind::Damaged | StateKind::Contested | StateKind::WrongType(_), _) => None,
        (StateKind::Free, _) => Some(0),
        (StateKind::Shared, shares) => shares.as_ref().map(|shares| shares.taken),
        _ => Some(1),
    }
}

fn recorded(row: &Row) -> Option<&Recorded> {
    row.status.recorded.as_ref().filter(|recorded| !recorded.is_empty())
}

/// Returns a number for each outcome, 0 too: a series that comes only with the first failure has no increase.
fn by_outcome(recorded: &Recorded) -> Vec<Sample> {
    let mut counts: BTreeMap<&str, usize> = RunOutcome::ALL.map(|outcome| (outcome.name(), 0)).into();
    for run in &recorded.over {
        *counts.entry(run.end.outcome.name()).or_default() += 1;
    }
    counts.into_iter().map(|(outcome, count)| (format!(",outcome=\"{outcome}\""), count.to_string())).collect()
}

fn end(run: &Run) -> Option<String> {
    run.ended.unwrap_or(run.granted).duration_since(SystemTime::UNIX_EPOCH).ok().map(seconds)
}

fn seconds(duration: Duration) -> String {
    format!("{}.{:03}", duration.as_secs(), duration.subsec_millis())
}

/// Escapes the value of a label, a text without control characters.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
