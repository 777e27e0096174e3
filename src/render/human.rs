//! For people: the answer on stdout, everything else on stderr.

mod check;

use std::fmt::Write;

use unicode_width::UnicodeWidthStr;

use crate::lock::{LockName, Occupancy, State};
use crate::report::{Acquired, Busy, Named, NotRun, NotYours, Ran, Report, Row, TokenForm, Wanted};
use crate::say::{self, FAINT, clean, instant, span};
use crate::store::{Trouble, Waiter};
use crate::wait::Refused;

pub fn stdout(report: &Report) -> Option<String> {
    match report {
        Report::Acquired(acquired) => Some(token(acquired)),
        Report::Status(status) => Some(table(&status.rows)),
        Report::Checked(checked) => Some(check::told(checked)),
        _ => None,
    }
}

pub fn stderr(report: &Report) {
    match report {
        Report::Acquired(_) | Report::Status(_) | Report::Checked(_) | Report::Interrupted(_) => {}
        Report::Renewed(renewed) => {
            say::trace(format_args!("renewed \"{}\" for {}", renewed.lock.name, span(renewed.ttl.get())));
        }
        Report::Released(released) if released.broken => say::note(format_args!("broke \"{}\"", released.lock.name)),
        Report::Released(released) => say::trace(format_args!("released \"{}\"", released.lock.name)),
        // The status says it.
        Report::Busy(_) if say::is_quiet() => {}
        Report::Busy(busy) => say::error(format_args!("{}", refusal(busy))),
        Report::NotYours(not_yours) => say::error(format_args!("{}", rebuff(not_yours))),
        Report::NotRun(not_run) => say::error(format_args!("{}", unstartable(not_run))),
        Report::Ran(ran) => aftermath(ran),
        Report::Failed(trouble) => say::error(format_args!("{}", explanation(trouble))),
    }
}

fn token(acquired: &Acquired) -> String {
    let token = acquired.hold.token.as_str();
    match acquired.form {
        TokenForm::Plain => format!("{token}\n"),
        TokenForm::Export => {
            let mut text =
                format!("export NXLOCK_NAME={} NXLOCK_TOKEN={}", quoted(acquired.lock.name.as_str()), quoted(token));
            match acquired.fence {
                Some(fence) => writeln!(text, " NXLOCK_FENCE={}", fence.0),
                None => writeln!(text, "; unset NXLOCK_FENCE"),
            }
            .ok();
            text
        }
    }
}

/// Quoted for a POSIX shell. A name and a token hold no NUL, which alone cannot be quoted.
fn quoted(text: &str) -> String {
    shlex::try_quote(text).map_or_else(|_| String::new(), std::borrow::Cow::into_owned)
}

/// What was tried, what came back, what to do.
fn explanation(trouble: &Trouble) -> String {
    let remedy = &trouble.remedy;
    if remedy.is_empty() { trouble.to_string() } else { format!("{trouble}; {remedy}") }
}

fn refusal(busy: &Busy) -> String {
    let name = &busy.lock.name;
    let Refused { occupancy, place, waited, nested } = &busy.refused;
    if *nested {
        return format!("\"{name}\" is already held by this script: it would wait for itself");
    }
    let waited = if waited.as_millis() > 100 { format!(", waited {}", span(*waited)) } else { String::new() };
    let mut text = format!("\"{name}\" is {}{waited}", say::state(occupancy));
    text += &details(busy, occupancy);
    match place.length - usize::from(place.position > 0) {
        0 => {}
        1 => text += &format!("\n  {FAINT}queue{FAINT:#}   one other waits"),
        n => text += &format!("\n  {FAINT}queue{FAINT:#}   {n} others wait"),
    }
    text
}

/// The block under a refusal: who, since when, how long still, why, and how to break it.
fn details(busy: &Busy, occupancy: &Occupancy) -> String {
    let Busy { lock: Named { name, key, by_key }, options, .. } = busy;
    let mut text = String::new();
    let mut line = |label: &str, what: String| _ = write!(text, "\n  {FAINT}{label:<7}{FAINT:#} {what}");
    if let Some(holder) = &occupancy.holder {
        line("by", format!("{}, id {}", say::who(holder), holder.id));
        line("since", format!("{}, {} ago", instant(holder.since), span(holder.held)));
    }
    match occupancy.ttl {
        Some(ttl) => line("lease", format!("{} left unless it is renewed", span(ttl))),
        None if occupancy.state == State::Contested => {}
        None => line("lease", "none: it does not end by itself".into()),
    }
    if let Some(legacy) = &occupancy.legacy {
        line("says", say::validity(legacy));
    }
    if let Some(reason) = occupancy.holder.as_ref().and_then(|holder| holder.reason.as_deref()) {
        line("reason", clean(reason));
    }
    match &occupancy.holder {
        Some(holder) => {
            let (quoted, id) = (quoted(name.as_str()), &holder.id);
            // One that begins with a dash would be taken for an option.
            let which = match name.as_str().starts_with('-') {
                _ if *by_key => format!("--key={quoted} --break {id}"),
                true => format!("--break {id} -- {quoted}"),
                false => format!("{quoted} --break {id}"),
            };
            line("break", format!("nxlock{options} release {which}"));
        }
        None if occupancy.state == State::Contested => {}
        None => line("break", format!("redis-cli DEL {}", quoted(key))),
    }
    text
}

fn rebuff(not_yours: &NotYours) -> String {
    let name = &not_yours.lock.name;
    let occupancy = &not_yours.occupancy;
    let then = match (not_yours.wanted, &occupancy.state) {
        (Wanted::Break, State::Free) => return format!("cannot break \"{name}\": it is free"),
        (Wanted::Break, _) => {
            return format!("cannot break \"{name}\": the holder has changed, {}", say::now_whose(occupancy));
        }
        (Wanted::Renew, _) => "cannot renew",
        (Wanted::Release, _) => "cannot release",
    };
    format!("{then} \"{name}\" with this token: {}", say::now_whose(occupancy))
}

fn unstartable(not_run: &NotRun) -> String {
    let command = clean(&not_run.command.to_string_lossy());
    let why = if not_run.missing { "not found".to_owned() } else { say::plain(&not_run.error) };
    format!("cannot run \"{command}\": {why}; \"{}\" was given back", not_run.lock.name)
}

fn aftermath(ran: &Ran) {
    // That it was lost has been said when it was.
    if ran.lost.is_some() || ran.time_limit {
        say::note(format_args!("the command has ended: {}", say::ending(&ran.ending)));
    }
    if let Some(unreleased) = &ran.unreleased {
        let ends_in = span(unreleased.ends_in);
        say::warn(format_args!("{}; the lock ends by itself within {ends_in}", unreleased.trouble));
    }
}

fn table(rows: &[Row]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let head = ["NAME", "STATE", "PROCESS", "ID", "FOR", "LEASE", "FENCE", "REASON"].map(str::to_owned);
    let mut lines = vec![head];
    for row in rows {
        lines.push(cells(&row.lock.name, &row.standing.occupancy));
        lines.extend(row.standing.queue.iter().map(waiter_cells));
    }
    aligned(&lines)
}

/// Lines of cells, each column as wide as its widest cell.
fn aligned<const N: usize>(lines: &[[String; N]]) -> String {
    let width = |column: usize| lines.iter().map(|cells| cells[column].width()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for cells in lines {
        let line: String = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell}{}", " ".repeat(width - cell.width() + 2)))
            .collect();
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn cells(name: &LockName, occupancy: &Occupancy) -> [String; 8] {
    let dash = || "-".to_owned();
    let holder = occupancy.holder.as_ref();
    let free = occupancy.state == State::Free;
    // Where nobody is known to have it, no lease is known either.
    let ends = !free && !matches!(occupancy.state, State::Contested | State::Unknown);
    [
        name.to_string(),
        say::state_word(&occupancy.state).replace('_', " "),
        holder.map_or_else(dash, |holder| say::process(&holder.owner)),
        holder.map_or_else(dash, |holder| holder.id.to_string()),
        holder.map_or_else(dash, |holder| span(holder.held)),
        occupancy.ttl.map_or_else(|| if ends { "no end".to_owned() } else { dash() }, span),
        occupancy.fence.filter(|_| !free).map_or_else(dash, |fence| fence.0.to_string()),
        match &occupancy.legacy {
            Some(legacy) => say::validity(legacy),
            None => holder.and_then(|holder| holder.reason.as_deref()).map(clean).unwrap_or_default(),
        },
    ]
}

/// A waiter stands under the lock that it waits for.
fn waiter_cells(waiter: &Waiter) -> [String; 8] {
    let dash = || "-".to_owned();
    [
        format!("  {}.", waiter.position),
        "waiting".to_owned(),
        say::process(&waiter.owner),
        waiter.id.to_string(),
        span(waiter.waiting),
        dash(),
        dash(),
        waiter.reason.as_deref().map(clean).unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_stands_in_a_name_comes_out_of_eval_as_it_was() {
        for name in ["plain", "two words", "it's", "$(x) `y` \"z\" \\", "-n", "é*?"] {
            let script = format!("printf %s {}", quoted(name));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), name);
        }
    }
}
