//! A report made visible: a sentence, a table, a document, or assignments for a shell. The only
//! writer on stdout.

mod human;
mod json;

use std::io::{self, Write};

use crate::exit::{self, Exit};
use crate::inherited;
use crate::report::Report;
use crate::say;

/// Shows help where it was asked for, and what is wrong with a command line.
pub fn usage(error: &clap::Error) -> Exit {
    let wrong = error.use_stderr();
    // Nobody is left to tell if it cannot be written.
    let _ = error.print();
    Exit::Status(if wrong { exit::USAGE } else { 0 })
}

/// Says on stderr what stdout did not take.
pub fn complain(report: &Report, as_json: bool) {
    match json::document(report) {
        Some(document) if as_json => say::document(&document),
        _ => human::stderr(report),
    }
}

/// Shows a report.
///
/// # Errors
/// If stdout does not take what was to go there. A reader that has left is no error, except to
/// somebody who must not lose what was said: it is the caller's to know.
pub fn show(report: &Report, as_json: bool) -> io::Result<()> {
    let stdout = if as_json { json::stdout(report) } else { human::stdout(report) };
    if let Some(text) = stdout {
        if inherited::stdout_closed() {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "it is closed"));
        }
        let mut out = anstream::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
    }
    if as_json {
        if let Some(document) = json::stderr(report) {
            say::document(&document);
        }
    } else {
        human::stderr(report);
    }
    Ok(())
}
