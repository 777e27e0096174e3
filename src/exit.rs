//! Maps every report and every error to its exit status. Elsewhere nxlock exits only by a second Ctrl-C (`signals`), on
//! clap's usage errors (`output`), and in the forked guard and command (`supervise`).
//!
//! The statuses are those of sysexits(3), as in flock(1), so that callers do not take them for the command's own; the
//! others follow env(1) and timeout(1).

use std::process::ExitCode;

use nix::sys::signal::Signal;

use crate::error::ErrorKind;
use crate::report::alarm::Verdict;
use crate::report::{Answer, Ending, Ran, Report};
use crate::signals::die_of;

pub const USAGE: u8 = 64;
const UNREACHABLE: u8 = 69;

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Status(u8),
    /// Die of the same signal, so that a calling shell's loop stops.
    Signal(Signal),
}

impl From<&Report> for Exit {
    fn from(report: &Report) -> Exit {
        Exit::Status(match report {
            Report::Acquired(_)
            | Report::Renewed(_)
            | Report::Released(_)
            | Report::Histories(_)
            | Report::Metrics(..)
            | Report::Watched => 0,
            // As plug-ins of Nagios.
            Report::Alarm(alarm) => match alarm.verdict() {
                Verdict::Fine => 0,
                Verdict::Critical => 2,
                Verdict::Unknown => 3,
            },
            Report::Status(rows) if rows.named && rows.rows.iter().any(|row| row.status.is_unknown()) => UNREACHABLE,
            Report::Status(rows) => u8::from(rows.named && rows.rows.iter().any(|row| row.status.is_free())),
            Report::Checked(checked) => match checked.obstacle() {
                Some(kind) => of(kind),
                None => u8::from(checked.warnings() > 0),
            },
            Report::Asked(asked) => match asked.answer {
                Answer::Asked | Answer::NoLongerHolds => 0,
                Answer::StillHeld | Answer::Refuses => 75,
            },
            Report::Busy(busy) => match busy.refused.undecided() {
                Some(error) => of(error.kind),
                None => busy.conflict_exit_code.unwrap_or(75),
            },
            Report::NotYours(_) => 76,
            Report::Interrupted(signal) => return Exit::Signal(*signal),
            Report::NotRun(failed) if failed.missing => 127,
            Report::NotRun(_) => 126,
            Report::Ran(ran) if ran.lost.is_some() => 76,
            Report::Ran(ran) if ran.time_limit => 124,
            Report::Ran(Ran { ending, .. }) | Report::Said(ending) => match *ending {
                Ending::Status(status) => status,
                Ending::Killed { signal, from_terminal: true } => match Signal::try_from(signal) {
                    Ok(signal) => return Exit::Signal(signal),
                    Err(_) => killed_by(signal),
                },
                Ending::Killed { signal, .. } => killed_by(signal),
            },
            Report::Failed(error) => of(error.kind),
        })
    }
}

fn of(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Unreachable | ErrorKind::Unanswered | ErrorKind::Unavailable | ErrorKind::Untrusted => UNREACHABLE,
        ErrorKind::Usage => USAGE,
        ErrorKind::Internal => 70,
        ErrorKind::Refused => 77,
        ErrorKind::Misconfigured | ErrorKind::WrongType | ErrorKind::Damaged => 78,
    }
}

fn killed_by(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

impl Exit {
    pub fn code(self) -> ExitCode {
        match self {
            Exit::Status(status) => ExitCode::from(status),
            Exit::Signal(signal) => die_of(signal),
        }
    }
}
