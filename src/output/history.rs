//! Recorded runs for people: a table of them, and one in a line.

use std::time::SystemTime;

use anstyle::AnsiColor;

use super::table::{Cell, Layout, Yield};
use crate::duration::span;
use crate::lock::{Run, RunOutcome, words};
use crate::log::{BAD, DOUBTFUL, FAINT};
use crate::report::History;
use crate::text::{instant, local_instant};

const COLUMNS: usize = 8;
const HEADING: [&str; COLUMNS] = ["NAME", "GRANTED", "HOLDER", "WAITED", "HELD", "OUTCOME", "FENCE", "REASON"];
/// Down to sixty columns the table keeps who ran when, and how it ended.
const YIELDS: [Yield; 11] =
    [(6, 0), (7, 10), (0, 12), (2, 16), (3, 0), (2, 10), (7, 0), (0, 6), (2, 8), (4, 0), (1, 17)];

/// How a time is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// On a terminal: local time, with the zone.
    Local,
    /// RFC 3339.
    Universal,
}

impl Clock {
    fn show(self, time: SystemTime) -> String {
        match self {
            Clock::Local => local_instant(time),
            Clock::Universal => instant(time),
        }
    }
}

/// Returns a table of runs for a terminal of this width, or for a file; nothing if there are none.
pub fn table(histories: &[History], columns: Option<usize>) -> String {
    let clock = if columns.is_some() { Clock::Local } else { Clock::Universal };
    let heading = HEADING.map(|word| Cell { text: word.to_owned(), style: FAINT });
    let lines = histories.iter().flat_map(|history| history.runs.iter().map(move |run| line(history, run, clock)));
    let lines: Vec<[Cell; COLUMNS]> = lines.collect();
    if lines.is_empty() {
        return String::new();
    }
    let layout = Layout::of(std::iter::once(&heading).chain(&lines), &YIELDS, columns);
    std::iter::once(&heading).chain(&lines).map(|line| layout.line(line) + "\n").collect()
}

fn line(history: &History, run: &Run, clock: Clock) -> [Cell; COLUMNS] {
    let style = match run.end.outcome {
        RunOutcome::Done => AnsiColor::Green.on_default(),
        RunOutcome::Failed | RunOutcome::Signal | RunOutcome::TimeLimit | RunOutcome::Lost => BAD,
        RunOutcome::Vanished => DOUBTFUL,
    };
    let or_dash = |text: Option<String>| text.map_or_else(|| Cell { text: "-".into(), style: FAINT }, Cell::from);
    [
        history.lock.name.to_string().into(),
        clock.show(run.granted).into(),
        words::process(&run.by.owner).into(),
        span(run.waited).into(),
        or_dash(run.held().map(span)),
        Cell { text: words::run_end(&run.end), style },
        or_dash(run.fence.map(|fence| fence.0.to_string())),
        run.by.reason.as_ref().map(ToString::to_string).unwrap_or_default().into(),
    ]
}

/// Returns the last run of a lock in a line: `done in 3m 12s, begun 2026-11-23 03:00:07 +0100 by alice@ci-7, pid 4711`.
pub fn last(run: &Run, clock: Clock) -> String {
    let word = if run.end.outcome == RunOutcome::Done { "in" } else { "after" };
    let held = run.held().map(|held| format!(" {word} {}", span(held))).unwrap_or_default();
    let (end, granted) = (words::run_end(&run.end), clock.show(run.granted));
    format!("{end}{held}, begun {granted} by {}", words::who_and_why(&run.by))
}
