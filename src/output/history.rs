//! Recorded runs for people: a table of them, and one in a line.

use std::io::IsTerminal;
use std::time::{Duration, SystemTime};

use anstyle::{AnsiColor, Style};

use super::table::{Cell, Layout, Yield};
use crate::duration::{coarse, span};
use crate::lock::{Recorded, Run, RunOutcome, RunUnderWay, words};
use crate::log::{BAD, DOUBTFUL, FAINT};
use crate::report::History;
use crate::text::{instant, local_instant};

const COLUMNS: usize = 9;
const HEADING: [&str; COLUMNS] = ["NAME", "ENDED", "GRANTED", "HOLDER", "WAITED", "HELD", "OUTCOME", "FENCE", "REASON"];
/// Down to sixty columns the table keeps who ran when, and how it ended.
const YIELDS: [Yield; 17] = [
    (7, 0),
    (8, 10),
    (0, 12),
    (3, 16),
    (4, 0),
    (8, 10),
    (0, 12),
    (3, 16),
    (8, 0),
    (0, 12),
    (3, 16),
    (5, 0),
    (0, 12),
    (2, 0),
    (0, 12),
    (3, 12),
    (0, 6),
];

/// How a time is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// On a terminal: local time, with the zone.
    Local,
    /// RFC 3339.
    Universal,
}

impl Clock {
    /// Returns how times are shown on a stream.
    pub fn of(stream: &impl IsTerminal) -> Clock {
        if stream.is_terminal() { Clock::Local } else { Clock::Universal }
    }

    pub fn show(self, time: SystemTime) -> String {
        match self {
            Clock::Local => local_instant(time),
            Clock::Universal => instant(time),
        }
    }
}

/// A terminal of so many columns has room for bars and marks.
pub const WIDE: usize = 96;

/// Returns a table of runs for a terminal of this width, or for a file; nothing if there are none.
pub fn table(histories: &[History], columns: Option<usize>) -> String {
    let clock = if columns.is_some() { Clock::Local } else { Clock::Universal };
    let is_wide = columns.is_some_and(|columns| columns >= WIDE);
    // In a file, how long ago something was is soon wrong.
    let ended = if columns.is_some() { HEADING[1] } else { "" };
    let mut heading = HEADING.map(|word| Cell::styled(word, FAINT));
    heading[1].text = ended.to_owned();
    let lines = histories.iter().flat_map(|history| {
        let under_way = history.recorded.under_way.iter().map(move |run| line_under_way(history, run, clock, is_wide));
        let longest = is_wide.then(|| longest(&history.recorded.over));
        under_way.chain(history.recorded.over.iter().map(move |run| line(history, run, clock, longest)))
    });
    let mut lines: Vec<[Cell; COLUMNS]> = lines.collect();
    if lines.is_empty() {
        return String::new();
    }
    // On a terminal, a single lock has been named above.
    if let ([_], Some(_)) = (histories, columns) {
        lines.iter_mut().chain([&mut heading]).for_each(|line| line[0] = Cell::default());
    }
    let layout = Layout::of(std::iter::once(&heading).chain(&lines), &YIELDS, columns);
    std::iter::once(&heading).chain(&lines).map(|line| layout.line(line) + "\n").collect()
}

/// Returns the style that marks how a run ended.
fn style(outcome: RunOutcome) -> Style {
    match outcome {
        RunOutcome::Done => AnsiColor::Green.on_default(),
        RunOutcome::Failed | RunOutcome::Signal | RunOutcome::TimeLimit | RunOutcome::Lost => BAD,
        RunOutcome::Vanished => DOUBTFUL,
    }
}

fn or_dash(text: Option<String>) -> Cell {
    text.map_or_else(|| Cell::styled("-", FAINT), Cell::from)
}

/// With `longest`, how long the longest run took, the line has a mark.
fn line(history: &History, run: &Run, clock: Clock, longest: Option<Duration>) -> [Cell; COLUMNS] {
    let marks: Vec<_> = longest.map(|longest| mark(run, longest)).into_iter().collect();
    let held = or_dash(run.held().map(span));
    let gap = if marks.is_empty() { "" } else { " " };
    let ago = run.ended.map(|ended| format!("{} ago", coarse(history.recorded.age(ended))));
    [
        history.lock.name.to_string().into(),
        if clock == Clock::Local { or_dash(ago) } else { Cell::default() },
        clock.show(run.granted).into(),
        words::process(&run.by.owner).into(),
        span(run.waited).into(),
        Cell { marks, text: format!("{gap}{}", held.text), ..held },
        Cell::styled(words::run_end(&run.end), style(run.end.outcome)),
        or_dash(run.fence.map(|fence| fence.0.to_string())),
        run.by.reason.as_ref().map(ToString::to_string).unwrap_or_default().into(),
    ]
}

fn line_under_way(history: &History, run: &RunUnderWay, clock: Clock, has_marks: bool) -> [Cell; COLUMNS] {
    [
        history.lock.name.to_string().into(),
        if clock == Clock::Local { or_dash(None) } else { Cell::default() },
        clock.show(run.granted).into(),
        words::process(&run.by.owner).into(),
        span(run.waited).into(),
        // Below the marks of the runs that have ended.
        format!("{}{}", if has_marks { "  " } else { "" }, span(history.recorded.age(run.granted))).into(),
        "running".into(),
        or_dash(run.fence.map(|fence| fence.0.to_string())),
        run.by.reason.as_ref().map(ToString::to_string).unwrap_or_default().into(),
    ]
}

/// Maximum number of runs in the strip of a table.
const STRIP: usize = 8;

/// The heights of a strip.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Returns the last runs as marks, at most so many, the last one last: as high as they took long, beside each other. Cyan
/// and red differ for those too who see no difference between green and red.
pub fn strip(recorded: &Recorded, most: usize) -> Vec<(char, Style)> {
    let runs = &recorded.over[..recorded.over.len().min(most)];
    let longest = longest(runs);
    runs.iter().rev().map(|run| mark(run, longest)).collect()
}

fn longest(runs: &[Run]) -> Duration {
    runs.iter().filter_map(Run::held).max().unwrap_or_default()
}

/// Returns the mark of a run beside one that took longest.
fn mark(run: &Run, longest: Duration) -> (char, Style) {
    let part = run.held().map_or(0.0, |held| held.as_secs_f64() / longest.as_secs_f64().max(f64::MIN_POSITIVE));
    let step = HEIGHTS.iter().zip(1_u8..).find(|(_, step)| part * 8.0 <= f64::from(*step));
    let style = match run.end.outcome {
        RunOutcome::Done => AnsiColor::Cyan.on_default(),
        outcome => style(outcome),
    };
    (step.map_or('█', |(height, _)| *height), style)
}

/// Returns how and when the last run ended, in a few words: `done 3h ago`; where there is room, behind a strip of the last
/// runs.
pub fn brief(recorded: &Recorded, clock: Clock, has_room: bool) -> Option<Cell> {
    let run = recorded.over.first()?;
    let when = match clock {
        Clock::Local => format!("{} ago", coarse(recorded.age_of(run))),
        Clock::Universal => clock.show(run.ended.unwrap_or(run.granted)),
    };
    let said = format!("{} {when}", words::run_end(&run.end));
    let marks = if has_room && recorded.over.len() > 1 { strip(recorded, STRIP) } else { Vec::new() };
    let gap = if marks.is_empty() { "" } else { " " };
    Some(Cell { marks, text: format!("{gap}{said}"), style: style(run.end.outcome) })
}

/// Returns a run in a line: `done 3h ago in 3m 12s by alice@ci-7, pid 4711, begun 2026-11-23 03:00:07 +0100`. `recorded`
/// tells how long ago it ended.
pub fn last(run: &Run, clock: Clock, recorded: Option<&Recorded>) -> String {
    let word = if run.is_success() { "in" } else { "after" };
    let held = run.held().map(|held| format!(" {word} {}", span(held))).unwrap_or_default();
    let ended = recorded.and_then(|recorded| Some(recorded.age(run.ended?)));
    let ago = ended.map(|age| format!(" {} ago", coarse(age))).unwrap_or_default();
    let (end, granted) = (words::run_end(&run.end), clock.show(run.granted));
    let reason = run.by.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("{end}{ago}{held} by {}, begun {granted}{reason}", words::owner(&run.by.owner))
}
