//! Renders the model as lines of text for a screen of a given size.

use std::time::Duration;

use anstyle::Style;
use unicode_width::UnicodeWidthStr;

use super::model::{Action, Model, Page};
use super::order::Sort;
use crate::clock::Moment;
use crate::duration::span;
use crate::lock::{Holder, Recorded, words};
use crate::log::{BAD, DOUBTFUL, FAINT};
use crate::output::history;
use crate::output::status::{Table, detail};
use crate::report::{History, Named};
use crate::text::shortened;

/// Line prefixes, which show the selected lock without colours too.
const SELECTED: &str = "> ";
const OTHERS: &str = "  ";

/// Least space between what is shown and where it comes from.
const GAP: usize = 3;

/// How late a poll may be before the head shows the age of the model.
const LATE: Duration = Duration::from_secs(1);

const HELP: [(&str, &str); 13] = [
    ("up, k", "the lock before"),
    ("down, j", "the next"),
    ("page up, page down", "a screen at a time"),
    ("g, G", "the first, the last"),
    ("Enter", "one lock, its queue and its runs"),
    ("Esc", "back; without the filter"),
    ("s", "sort by name, held, lease, waiting"),
    ("/", "filter by name, holder, reason"),
    ("n, N", "the next match, the one before"),
    ("a", "ask the holder to give up"),
    ("b", "take the lock from its holder"),
    ("?", "this help"),
    ("q, Ctrl-C", "quit"),
];

/// Returns all lines of a screen, none wider than the screen.
pub fn lines(model: &mut Model, columns: usize, rows: usize) -> Vec<String> {
    // Leave the last column empty: the sequence that erases the rest of a line would erase its character.
    let columns = columns.saturating_sub(1);
    // All lines but the head and the foot.
    let height = rows.saturating_sub(2);
    let page = match &model.page {
        Page::Question(.., back) => back.as_ref().clone(),
        page => page.clone(),
    };
    let page = match page {
        Page::List | Page::Filter => list(model, columns, height),
        Page::Detail | Page::Question(..) => one(model, columns, height),
        Page::Help => HELP.map(|(key, what)| plain(&format!("  {key:<20}{what}"), columns)).to_vec(),
    };
    let mut lines = vec![head(model, columns)];
    lines.extend(page);
    lines.truncate(rows.saturating_sub(1));
    lines.resize(rows.saturating_sub(1), String::new());
    lines.push(foot(model, columns));
    lines.truncate(rows);
    lines
}

fn plain(text: &str, columns: usize) -> String {
    styled(text, Style::new(), columns)
}

fn styled(text: &str, style: Style, columns: usize) -> String {
    format!("{style}{}{style:#}", shortened(text, columns))
}

/// Returns what is shown, and its age if it is older than expected.
fn head(model: &Model, columns: usize) -> String {
    let shown = model.shown().len();
    let count = match (model.seen, model.found, shown) {
        (None, found, _) => format!("listing locks: {} so far", found.unwrap_or(0)),
        (Some(_), _, 1) => "1 lock".to_owned(),
        (Some(_), _, n) => format!("{n} locks"),
    };
    let by = match model.sort {
        Sort::AsNamed => String::new(),
        Sort::Name => ", by name".to_owned(),
        Sort::Held => ", held longest first".to_owned(),
        Sort::Lease => ", by the end of the lease".to_owned(),
        Sort::Waiting => ", most waiting first".to_owned(),
    };
    let filter = if model.filter.is_empty() { String::new() } else { format!(", with \"{}\"", model.filter) };
    // Where there is room, the place is on the right.
    let left = |text: String, style: Style| {
        let room = columns.saturating_sub(text.width() + GAP);
        let place = if room < model.place.width().min(20) { "".into() } else { shortened(&model.place, room) };
        let gap = columns.saturating_sub(text.width() + place.width());
        if place.is_empty() {
            return styled(&text, style, columns);
        }
        format!("{}{:gap$}{FAINT}{place}{FAINT:#}", styled(&text, style, columns), "")
    };
    let age = model.seen.map(Moment::elapsed).filter(|age| *age > model.every * 2 + LATE);
    match age {
        Some(age) => left(format!("{count}{by}{filter}, as it was {} ago", span(age)), DOUBTFUL),
        None if model.doubts.is_empty() => left(format!("{count}{by}{filter}, every {}", span(model.every)), FAINT),
        None => styled(&format!("{count}{by}{filter}; {}", model.doubts.join("; ")), DOUBTFUL, columns),
    }
}

fn list(model: &mut Model, columns: usize, height: usize) -> Vec<String> {
    // At least one line, though a tiny screen may not show it.
    let height = scrolled(height.saturating_sub(1), model.shown().len());
    model.height = height;
    let place = model.place().unwrap_or(0);
    // Keep the selected lock visible.
    model.top = model.top.clamp((place + 1).saturating_sub(height), place);
    let shown = model.shown();
    if shown.is_empty() && model.has_been_seen() {
        let none = if model.filter.is_empty() { "no locks" } else { "no locks with this text" };
        return vec![styled(&format!("{OTHERS}{none}"), FAINT, columns)];
    }
    let columns = columns.saturating_sub(OTHERS.len());
    let table = Table::with_bars(&shown, false, Some(columns), &|row| model.bar(row));
    let visible = model.top..shown.len().min(model.top + height);
    let selected = model.place();
    let mut lines = vec![format!("{OTHERS}{}", table.heading())];
    for (at, line) in visible.clone().zip(table.lines(visible)) {
        lines.push(if Some(at) == selected { emphasized(&line, columns) } else { format!("{OTHERS}{line}") });
    }
    lines.extend(beyond(model.top, height, shown.len(), columns));
    lines
}

/// Returns how many of the lines on a page scroll: if not all fit, one is for what lies beyond.
fn scrolled(height: usize, lines: usize) -> usize {
    if lines > height && height > 2 { height - 1 } else { height.max(1) }
}

/// Returns the line that says how much lies above and below, if not all is visible.
fn beyond(top: usize, height: usize, all: usize, columns: usize) -> Option<String> {
    let below = all.saturating_sub(top + height);
    let said = match (top, below) {
        (0, 0) => return None,
        (0, below) => format!("{OTHERS}↓ {below} more"),
        (above, 0) => format!("{OTHERS}↑ {above} more"),
        (above, below) => format!("{OTHERS}↑ {above}, ↓ {below} more"),
    };
    (height > 1).then(|| styled(&said, FAINT, columns))
}

/// Inverts a line over the full width.
fn emphasized(line: &str, columns: usize) -> String {
    let style = Style::new().invert();
    let bare = anstream::adapter::strip_str(line).to_string();
    let rest = columns.saturating_sub(bare.width());
    format!("{style}{SELECTED}{bare}{:rest$}{style:#}", "")
}

fn one(model: &mut Model, columns: usize, height: usize) -> Vec<String> {
    let shown = match model.selected() {
        Some((_, Some(row))) => {
            let history = |recorded: &Recorded| History { lock: row.lock.clone(), recorded: recorded.clone() };
            let runs = row.status.recorded.iter().map(|recorded| history::table(&[history(recorded)], Some(columns)));
            let runs: String = runs.filter(|runs| !runs.is_empty()).map(|runs| format!("\n{runs}")).collect();
            detail(row, None) + &runs
        }
        Some((lock, None)) => format!("\"{}\" is {FAINT}free{FAINT:#}\n", lock.name),
        None => String::new(),
    };
    let all: Vec<&str> = shown.lines().collect();
    let height = scrolled(height, all.len());
    model.height = height;
    model.top = model.top.min(all.len().saturating_sub(height));
    let visible = &all[model.top..all.len().min(model.top + height)];
    let lines = visible.iter().map(|line| fitted(line, columns));
    lines.chain(beyond(model.top, height, all.len(), columns)).collect()
}

/// Cuts a styled line to a width; a line that is cut loses its styles.
fn fitted(line: &str, columns: usize) -> String {
    let bare = anstream::adapter::strip_str(line).to_string();
    match shortened(&bare, columns) {
        whole if whole == bare => line.to_owned(),
        cut => cut.into_owned(),
    }
}

/// Returns the last line: a question, the filter, an error, the result of an action, or the keys.
fn foot(model: &Model, columns: usize) -> String {
    if let (Page::List | Page::Detail, None, None, Some(pending)) =
        (&model.page, &model.error, &model.notice, model.pending())
    {
        return plain(&pending, columns);
    }
    match (&model.page, &model.error, &model.notice) {
        (Page::Question(action, lock, holder, _), ..) => question(model, *action, lock, holder, columns),
        (Page::Filter, ..) => plain(&format!("/{}", model.filter), columns),
        (_, Some(error), _) => {
            let age = model.seen.map(|seen| span(seen.elapsed())).unwrap_or_default();
            styled(&format!("as it was {age} ago: {}; trying again", error.cause), BAD, columns)
        }
        (_, _, Some(notice)) => plain(notice, columns),
        (Page::Help, ..) => styled("any key: back", FAINT, columns),
        (Page::Detail, ..) => styled("Esc back  a ask  b break  ? help  q quit", FAINT, columns),
        (Page::List, ..) => styled("Enter queue  s sort  / find  a ask  b break  ? help  q quit", FAINT, columns),
    }
}

fn question(model: &Model, action: Action, lock: &Named, holder: &Holder, columns: usize) -> String {
    let (verb, again) = match action {
        Action::Ask => ("ask for", "a"),
        Action::Break => ("break", "b"),
    };
    let others = model.holders(lock).len() > 1;
    // The question itself is never cut, however long the names are.
    let ask = if others { format!("? type y; {again}: the next holder") } else { "? type y".to_owned() };
    let (who, held) = (words::who(holder), span(holder.held));
    let what = format!("{verb} \"{}\", held by {who}, id {}, for {held}", lock.name, holder.id);
    styled(&format!("{}{ask}", shortened(&what, columns.saturating_sub(ask.len()))), DOUBTFUL, columns)
}
