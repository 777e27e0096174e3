//! What we say while it goes on: the only writer on stderr.
//!
//! Warnings, what happens (`--verbose`), and the line that tells what is waited for. Nothing said
//! here is an answer; those are `render`'s.

#[cfg(fuzzing)]
pub mod heard;
mod listing;
mod scribe;
mod tainted;
mod text;
mod waiting;

use std::fmt;
use std::sync::OnceLock;

use anstyle::{AnsiColor, Style};
use serde_json::{Value, json};

use crate::cli::{Everywhere, When};
use crate::clock::Moment;
use crate::lock::LockName;
use crate::report::Ending;
use crate::supervise::Lost;
use scribe::Text;

pub use listing::Listing;
pub use scribe::{settle, urgent};
pub use tainted::Tainted;
pub use text::{
    clean, escaped, instant, may_fool, now_whose, plain, process, shortened, span, state, state_word, validity, who,
};
pub use waiting::Waiting;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Quiet,
    Normal,
    Verbose,
}

struct Voice {
    level: Level,
    json: bool,
    /// stdout is a command's: documents go to stderr.
    is_run: bool,
    began: Moment,
}

static VOICE: OnceLock<Voice> = OnceLock::new();

const DEFAULT: Voice = Voice { level: Level::Normal, json: false, is_run: false, began: Moment::NEVER };
pub const BAD: Style = AnsiColor::Red.on_default().bold();
pub const DOUBTFUL: Style = AnsiColor::Yellow.on_default().bold();
const PLAIN: Style = Style::new();
pub const FAINT: Style = Style::new().dimmed();

/// Settles how much is said, and how. To be called once, before anything is said.
pub fn begin(options: &Everywhere, is_run: bool) {
    let level = match (options.quiet, options.verbose) {
        (true, _) => Level::Quiet,
        (_, true) => Level::Verbose,
        _ => Level::Normal,
    };
    match options.color {
        // anstream asks NO_COLOR, CLICOLOR_FORCE and the terminal.
        When::Auto => {}
        When::Always => anstream::ColorChoice::Always.write_global(),
        When::Never => anstream::ColorChoice::Never.write_global(),
    }
    let _ = VOICE.set(Voice { level, json: options.json, is_run, began: Moment::now() });
}

fn voice() -> &'static Voice {
    VOICE.get().unwrap_or(&DEFAULT)
}

/// What happens, for `--verbose`.
pub fn trace(what: fmt::Arguments<'_>) {
    let voice = voice();
    if voice.level == Level::Verbose {
        let elapsed = voice.began.elapsed().as_secs_f64();
        message("trace", PLAIN, format_args!("[{elapsed:.6}s] {what}"));
    }
}

/// Something worth knowing.
pub fn note(what: fmt::Arguments<'_>) {
    if voice().level >= Level::Normal {
        message("note", PLAIN, what);
    }
}

/// Something that may need somebody to act.
pub fn warn(what: fmt::Arguments<'_>) {
    if voice().level >= Level::Normal {
        message("warning", DOUBTFUL, what);
    }
}

/// What went wrong: said even when quiet.
pub fn error(what: fmt::Arguments<'_>) {
    line(format_args!("{BAD}nxlock:{BAD:#} {what}"));
}

/// Nothing but errors is said.
pub fn is_quiet() -> bool {
    voice().level == Level::Quiet
}

/// stdout is a command's, and nothing of ours goes there.
pub fn is_run() -> bool {
    voice().is_run
}

/// The lock was lost: how, and what follows.
pub fn lost(name: &LockName, lost: &Lost, follows: &str) {
    let how = lost_how(lost);
    if voice().json {
        document(&json!({ "event": "lost", "name": name.as_str(), "message": how, "then": follows }));
    } else {
        error(format_args!("\"{name}\" is lost: {how}; {follows}"));
    }
}

/// An old `SETNX` client had written over the lock, so often by now.
pub fn put_back(name: &LockName, times: u32) {
    let often = if times == 1 { String::new() } else { format!(" ({times} times by now)") };
    warn(format_args!("an old SETNX client had written over \"{name}\" while it was held: put back{often}"));
}

pub fn lost_how(lost: &Lost) -> String {
    match lost {
        Lost::Taken(occupancy) => now_whose(occupancy),
        Lost::Unconfirmed(None) => "it could not be renewed in time".to_owned(),
        Lost::Unconfirmed(Some(trouble)) => format!("it could not be renewed in time: {trouble}"),
    }
}

pub fn ending(ending: &Ending) -> String {
    match ending {
        Ending::Status(status) => format!("it exited with {status}"),
        Ending::Killed { signal, .. } => format!("it died of signal {signal}"),
    }
}

/// One document, one line.
pub fn document(document: &Value) {
    line(format_args!("{}", text::escaped(document)));
}

fn message(event: &str, style: Style, what: fmt::Arguments<'_>) {
    if voice().json {
        document(&json!({ "event": event, "message": what.to_string() }));
    } else {
        line(format_args!("{style}nxlock:{style:#} {what}"));
    }
}

/// All of a line in one write, so that lines of several processes do not mix. Nobody can be told
/// that stderr does not take it.
fn line(what: fmt::Arguments<'_>) {
    scribe::put(Text::Styled(format!("{what}\n")));
}
