//! Reports for people: the answer on stdout, everything else on stderr.

mod check;

use std::io::IsTerminal;

use super::history::{self, Clock};
use super::status::{Table, block, detail, processes_of};
use super::{alarm, metrics};
use crate::descriptors;
use crate::duration::span;
use crate::error::{Error, ErrorKind};
use crate::lock::{HELD, StateKind, words};
use crate::log::{self, FAINT};
use crate::report::{
    Acquired, Answer, Asked, Busy, NotRun, NotYours, Ran, Refusal, Refused, Report, StatusRows, TokenForm, Wanted,
};
use crate::text::{self, clean, quoted};

pub fn stdout(report: &Report) -> Option<String> {
    match report {
        Report::Acquired(acquired) => Some(token(acquired)),
        // The exit status says it.
        Report::Status(_) | Report::Alarm(_) if log::is_quiet() => None,
        Report::Status(status) => Some(standings(status)),
        Report::Histories(histories) => Some(history::table(histories, columns())),
        Report::Metrics(rows, prefix) => Some(metrics::text(rows, prefix)),
        Report::Alarm(alarm) => Some(alarm::line(alarm) + "\n"),
        Report::Checked(checked) => Some(check::text(checked)),
        _ => None,
    }
}

pub fn stderr(report: &Report) {
    match report {
        Report::Acquired(_)
        | Report::Metrics(..)
        | Report::Alarm(_)
        | Report::Watched
        | Report::Checked(_)
        | Report::Interrupted(_)
        | Report::Said(_) => {}
        Report::Status(status) => {
            for doubt in &status.doubts {
                log::warn(format_args!("{doubt}"));
            }
        }
        Report::Histories(histories) => {
            for history in histories {
                if let Some(warning) = history.warning() {
                    log::note(format_args!("\"{}\": {warning}", history.lock.name));
                }
            }
        }
        Report::Renewed(renewed) => {
            log::trace(format_args!("renewed \"{}\" for {}", renewed.lock.name, span(renewed.ttl.get())));
        }
        Report::Released(released) if released.broken => log::note(format_args!("broke \"{}\"", released.lock.name)),
        Report::Released(released) => log::trace(format_args!("released \"{}\"", released.lock.name)),
        // The exit status says it.
        Report::Asked(asked) if log::is_quiet() && asked.answer == Answer::StillHeld => {}
        Report::Asked(asked) => ask(asked),
        Report::Busy(busy) if log::is_quiet() && busy.refused.undecided().is_none() => {}
        Report::Busy(busy) => log::error(format_args!("{}", refusal(busy))),
        Report::NotYours(not_yours) => log::error(format_args!("{}", rebuff(not_yours))),
        Report::NotRun(not_run) => log::error(format_args!("{}", unstartable(not_run))),
        Report::Ran(ran) => aftermath(ran),
        Report::Failed(error) => log::error(format_args!("{}", explanation(error))),
    }
}

/// Returns the details of a single named lock on a terminal, otherwise a table.
fn standings(status: &StatusRows) -> String {
    let columns = columns();
    match status.rows.as_slice() {
        [] => String::new(),
        [row] if status.named && columns.is_some() => detail(row, Some(&status.options)),
        rows => Table::of(&rows.iter().collect::<Vec<_>>(), status.named, columns).text(),
    }
}

/// Returns the usable width of stdout if it is a terminal. The last column is left empty: writing it may wrap the line.
pub fn columns() -> Option<usize> {
    let stdout = std::io::stdout();
    stdout.is_terminal().then(|| descriptors::window(&stdout).0.saturating_sub(1))
}

fn token(acquired: &Acquired) -> String {
    let token = acquired.token.as_str();
    match acquired.form {
        TokenForm::Plain => format!("{token}\n"),
        TokenForm::Export => {
            let mut unset = Vec::new();
            let mut text =
                format!("export NXLOCK_NAME={} NXLOCK_TOKEN={}", quoted(acquired.lock.name.as_str()), quoted(token));
            text += &format!(" {HELD}={}", quoted(&acquired.held));
            let slot = acquired.slot;
            let numbers = [
                ("NXLOCK_FENCE", acquired.fence.map(|fence| fence.0)),
                ("NXLOCK_SLOT", slot.map(|slot| slot.number.into())),
                ("NXLOCK_SLOTS", slot.map(|slot| slot.of.get().into())),
            ];
            let numbers =
                numbers.map(|(variable, value)| (variable.to_owned(), value.map(|value: u64| value.to_string())));
            for (variable, value) in numbers.iter().chain(&acquired.numbered) {
                match value {
                    Some(value) => text += &format!(" {variable}={}", quoted(value)),
                    None => unset.push(variable.as_str()),
                }
            }
            if unset.is_empty() { text + "\n" } else { format!("{text}; unset {}\n", unset.join(" ")) }
        }
    }
}

/// Returns the error's action, cause and hint.
fn explanation(error: &Error) -> String {
    let hint = &error.hint;
    if hint.is_empty() { error.to_string() } else { format!("{error}; {hint}") }
}

/// Maximum number of holders of a shared lock in a refusal.
const NAMED: usize = 5;

fn refusal(busy: &Busy) -> String {
    let name = &busy.lock.name;
    let Refused { state, place, waited, sharing, why } = &busy.refused;
    match why {
        Refusal::Held | Refusal::Undecided(_) => {}
        Refusal::Nested if state.kind == StateKind::Shared => {
            return format!(
                "\"{name}\" is already held by this script, which would wait for itself: release that share first"
            );
        }
        Refusal::Nested => return format!("\"{name}\" is already held by this script: it would wait for itself"),
        Refusal::Superseded(newer) => return format!("\"{name}\": superseded by {}", words::who_and_why(newer)),
        Refusal::Done(run) => {
            return format!("\"{name}\": nothing to do: {}", history::last(run, Clock::of(&std::io::stderr()), None));
        }
    }
    let waited = if waited.as_millis() > 100 { format!(", waited {}", span(*waited)) } else { String::new() };
    let others = place.length - usize::from(place.position > 0);
    let fits = state.shares.as_ref().is_some_and(|shares| shares.fits(*sharing));
    let before = if fits && others > 0 { ", and somebody waits for it before you" } else { "" };
    let mut text = format!("\"{name}\" is {}{before}{waited}", words::describe(state));
    text += &block(&busy.lock, state, Some(&busy.options), NAMED, Clock::of(&std::io::stderr()));
    if let Some(error) = busy.refused.undecided() {
        text += &format!("\n  {FAINT}why{FAINT:#}     {}", error.cause);
    }
    match others {
        0 => {}
        1 => text += &format!("\n  {FAINT}queue{FAINT:#}   one other waits"),
        n => text += &format!("\n  {FAINT}queue{FAINT:#}   {n} others wait"),
    }
    text
}

fn ask(Asked { lock, holder, answer, waited }: &Asked) {
    let (name, who) = (&lock.name, words::who(holder));
    match answer {
        Answer::Asked => log::note(format_args!("asked {who}, to give up \"{name}\"")),
        Answer::NoLongerHolds => log::note(format_args!("{who}, no longer holds \"{name}\"")),
        Answer::StillHeld => {
            log::error(format_args!("{who}, was asked, and still holds \"{name}\" after {}", span(*waited)));
        }
        Answer::Refuses => {
            let why = match &holder.orphaned {
                Some(file) => format!("{}; see which ones: {}", words::ORPHANED, processes_of(file)),
                None if holder.terms.no_ask => "it refuses (--no-ask, or --lost-signal none)".to_owned(),
                None => "no process renews that lock, which ends with its lease".to_owned(),
            };
            log::error(format_args!("{who}, cannot be asked to give up \"{name}\": {why}"));
        }
    }
}

/// Nobody who holds the lock has the ID that was given.
const OTHER_HOLDER: &str = "the holder has changed, or the ID is misspelt";

fn rebuff(not_yours: &NotYours) -> String {
    let name = &not_yours.lock.name;
    let state = &not_yours.state;
    let then = match (not_yours.wanted, &state.kind) {
        (Wanted::Break, StateKind::Free) => return format!("cannot break \"{name}\": it is free"),
        (Wanted::Break, _) => {
            return format!("cannot break \"{name}\": {OTHER_HOLDER}, {}", words::now_whose(state));
        }
        (Wanted::Ask, StateKind::Free) => return format!("nobody to ask for \"{name}\": it is free"),
        (Wanted::Ask, _) => {
            return format!("nobody to ask for \"{name}\": {OTHER_HOLDER}, {}", words::now_whose(state));
        }
        (Wanted::Release, StateKind::Free) if state.broken_by.is_none() => {
            let clock = Clock::of(&std::io::stderr());
            let why = match not_yours.ended {
                Some(ended) => format!("its run has ended, at {}", clock.show(ended)),
                None => "it was released before, has expired, or was deleted".to_owned(),
            };
            return format!("\"{name}\" is not held: {why}");
        }
        (Wanted::Hold, _) => {
            return format!("\"{name}\" was lost while another lock was waited for: {}", words::lost_to(state));
        }
        (Wanted::Renew, _) => "cannot renew",
        (Wanted::Release, _) => "cannot release",
    };
    format!("{then} \"{name}\" with this token: {}", words::lost_to(state))
}

fn unstartable(not_run: &NotRun) -> String {
    let command = clean(&not_run.command.to_string_lossy());
    let why = if not_run.missing { "not found".to_owned() } else { text::plain(&not_run.error) };
    let lock = &not_run.lock.name;
    let then = if not_run.given_back { "was released" } else { "ends by itself" };
    let hint = match not_run.missing && not_run.before_dashes {
        true => "; the command begins with the word after the name; a further name takes --also NAME",
        false => "",
    };
    format!("cannot run \"{command}\": {why}; \"{lock}\" {then}{hint}")
}

fn aftermath(ran: &Ran) {
    // The loss was logged when it happened.
    if ran.lost.is_some() || ran.time_limit {
        log::note(format_args!("the command has ended: {}", ran.ending));
    }
    if let Some(unreleased) = &ran.unreleased {
        let ends_in = span(unreleased.ends_in);
        let (lock, is) = match unreleased.error.kind {
            ErrorKind::Unanswered => ("may have been released, and otherwise ends", "may not be"),
            _ => ("ends", "is not"),
        };
        let record =
            if unreleased.is_unrecorded { format!(", and the end of the run {is} recorded") } else { String::new() };
        log::warn(format_args!("{}; the lock {lock} by itself within {ends_in}{record}", unreleased.error));
    }
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
