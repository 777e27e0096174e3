//! Messages while nxlock runs: warnings, traces (`--verbose`), and the progress of a wait. Writes to
//! stderr, as only clap (`output`) and an orphaned guard (`cmd/run/orphaned`) do beside it.
//!
//! Results are not logged here; `output` prints those.

#[cfg(fuzzing)]
pub mod captured;
mod stderr;

use std::fmt;
use std::sync::OnceLock;

use anstream::ColorChoice;
use anstyle::{AnsiColor, Style};
use serde_json::{Value, json};

use crate::clock::Moment;
use crate::text;

pub use stderr::{Text, offer, settle, urgent};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Quiet,
    Normal,
    Verbose,
}

/// How much is logged, and in which form.
#[derive(Clone, Copy)]
pub struct Options {
    pub level: Level,
    /// One JSON document a line.
    pub json: bool,
    /// stdout belongs to a command: the report goes to stderr.
    pub is_run: bool,
}

static OPTIONS: OnceLock<(Options, Moment)> = OnceLock::new();

const DEFAULT: Options = Options { level: Level::Normal, json: false, is_run: false };
pub const BAD: Style = AnsiColor::Red.on_default().bold();
pub const DOUBTFUL: Style = AnsiColor::Yellow.on_default().bold();
const PLAIN: Style = Style::new();
pub const FAINT: Style = Style::new().dimmed();

/// Sets how much is logged, and in which colours. Called once, before anything is logged.
pub fn begin(options: Options, colours: ColorChoice) {
    // By default anstream looks at NO_COLOR, CLICOLOR_FORCE and the terminal.
    if colours != ColorChoice::Auto {
        colours.write_global();
    }
    let _ = OPTIONS.set((options, Moment::now()));
}

pub fn options() -> Options {
    OPTIONS.get().map_or(DEFAULT, |(options, _)| *options)
}

/// Logs what happens, for `--verbose`.
pub fn trace(what: fmt::Arguments<'_>) {
    if let Some((Options { level: Level::Verbose, .. }, began)) = OPTIONS.get() {
        let elapsed = began.elapsed().as_secs_f64();
        message("trace", PLAIN, format_args!("[{elapsed:.6}s] {what}"));
    }
}

/// Logs something worth knowing.
pub fn note(what: fmt::Arguments<'_>) {
    if options().level >= Level::Normal {
        message("note", PLAIN, what);
    }
}

/// Logs something that the user may need to act on.
pub fn warn(what: fmt::Arguments<'_>) {
    if options().level >= Level::Normal {
        message("warning", DOUBTFUL, what);
    }
}

/// Logs why nxlock stops the command, even with `--quiet`: cron mails it.
pub fn stopping(what: fmt::Arguments<'_>) {
    message("warning", DOUBTFUL, what);
}

/// Logs what went wrong, even with `--quiet`.
pub fn error(what: fmt::Arguments<'_>) {
    line(format_args!("{BAD}nxlock:{BAD:#} {what}"));
}

/// Returns whether only errors are logged.
pub fn is_quiet() -> bool {
    options().level == Level::Quiet
}

/// Returns whether stdout belongs to a command, so that nxlock writes nothing to it.
pub fn is_run() -> bool {
    options().is_run
}

/// Logs a document in one line.
pub fn document(document: &Value) {
    line(format_args!("{}", text::escaped(document)));
}

fn message(event: &str, style: Style, what: fmt::Arguments<'_>) {
    if options().json {
        document(&json!({ "event": event, "message": what.to_string() }));
    } else {
        line(format_args!("{style}nxlock:{style:#} {what}"));
    }
}

/// Logs a line in one write, so that lines of several processes do not mix. A write error has nowhere to be reported.
pub fn line(what: fmt::Arguments<'_>) {
    stderr::put(Text::Styled(format!("{what}\n")));
}
