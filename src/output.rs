//! Prints a report: a sentence, a table, a JSON document, or assignments for a shell. Owns stdout.

mod alarm;
pub mod history;
mod human;
pub mod json;
mod metrics;
pub mod progress;
pub mod status;
mod table;

use std::io::{self, Write};

use anstream::AutoStream;
use clap::error::{ContextKind, ContextValue};

use crate::clock::wall;
use crate::exit::{self, Exit};
use crate::report::Report;
use crate::{inherited, log, text};
use status::Table;

/// Prints help that the user asked for, or what is wrong with the command line.
pub fn usage(error: clap::Error) -> Exit {
    let wrong = error.use_stderr();
    // There is nowhere left to report a write error.
    let _ = harmless(error).print();
    Exit::Status(if wrong { exit::USAGE } else { 0 })
}

/// Sanitises the words that clap repeats in an error: a script may pass untrusted ones, and a URL whose -s was forgotten
/// has a password in it.
pub fn harmless(mut error: clap::Error) -> clap::Error {
    let cleaned = |(kind, value): (ContextKind, &ContextValue)| match value {
        ContextValue::String(text) => {
            Some((kind, text::clean(&without_password(text)))).filter(|(_, cleaned)| cleaned != text)
        }
        _ => None,
    };
    let words: Vec<_> = error.context().filter_map(cleaned).collect();
    if !words.is_empty() {
        // The suggestion is a tip on how to write the same word, and repeats it.
        error.remove(ContextKind::Suggested);
    }
    for (kind, word) in words {
        error.insert(kind, ContextValue::String(word));
    }
    error
}

/// Blots out what may be a password in a URL, also in one with a slip: everything before its host and after a `?`; and
/// what may be a token.
fn without_password(word: &str) -> String {
    if word.starts_with("nx1:") {
        return "nx1:***".to_owned();
    }
    let (scheme, rest) = match word.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        // `redis:u:p@h`, `u:p@h`, `//u:p@h`: without the `@` it is no URL.
        None if word.contains('@') => (String::new(), word),
        None => return word.to_owned(),
    };
    let rest = match rest.rsplit_once('@') {
        Some((_, behind)) => format!("***@{behind}"),
        // A password whose host is missing is in the place of a port.
        None => match rest.split_once(':') {
            Some((host, port)) if !port.starts_with(|first: char| first.is_ascii_digit()) => format!("{host}:***"),
            _ => rest.to_owned(),
        },
    };
    match rest.split_once('?') {
        Some((before, _)) => format!("{scheme}{before}?***"),
        None => format!("{scheme}{rest}"),
    }
}

/// Prints on stderr a failure that followed an attempt to print on stdout.
pub fn complain(report: &Report, as_json: bool) {
    match json::document(report) {
        Some(document) if as_json => log::document(&document),
        _ if matches!(report, Report::Alarm(_)) => {
            log::error(format_args!("{}", human::stdout(report).unwrap_or_default().trim_end()));
        }
        _ => human::stderr(report),
    }
}

/// Prints completion words for a shell, one a line. Ignores write errors: there is nowhere to report them.
pub fn offer(words: &[String]) -> Exit {
    let text: String = words.iter().map(|word| format!("{word}\n")).collect();
    let _ = io::stdout().lock().write_all(text.as_bytes());
    Exit::Status(0)
}

/// Prints a report.
///
/// # Errors
/// If stdout cannot be written. The caller decides about a reader that has left: it is an error only where the output
/// must not be lost.
pub fn show(report: &Report, as_json: bool) -> io::Result<()> {
    let stdout = if as_json { json::stdout(report) } else { human::stdout(report) };
    if let Some(text) = stdout {
        write(&text)?;
    }
    if as_json {
        if let Some(document) = json::stderr(report) {
            log::document(&document);
        }
    } else {
        human::stderr(report);
    }
    Ok(())
}

/// Prints the current status for `--watch`: one document a line, or a table under the time. `has_doubts` says whether
/// those of a table are new.
///
/// # Errors
/// If stdout cannot be written.
pub fn show_again(report: &Report, as_json: bool, is_first: bool, has_doubts: bool) -> io::Result<()> {
    match report {
        Report::Status(status) if !as_json => {
            let gap = if is_first { "" } else { "\n" };
            let rows: Vec<_> = status.rows.iter().collect();
            let table = Table::of(&rows, status.named, human::columns()).text();
            if has_doubts {
                human::stderr(report);
            }
            write(&format!("{gap}{}\n{table}", text::instant(wall())))
        }
        report => show(report, as_json),
    }
}

fn write(text: &str) -> io::Result<()> {
    if inherited::stdout_closed() {
        return Err(io::Error::other("it is closed"));
    }
    let mut fitting = AutoStream::new(Vec::new(), AutoStream::choice(&io::stdout()));
    fitting.write_all(text.as_bytes())?;
    Stdout.write_all(&fitting.into_inner())
}

/// stdout without std in between, which reports success when the descriptor is not open for writing (EBADF).
struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(nix::unistd::write(io::stdout(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns what would go to stdout in the requested form; [`log::captured`] has what would go to stderr.
#[cfg(fuzzing)]
pub fn shown(report: &Report, as_json: bool) -> String {
    if as_json {
        return json::text(report).unwrap_or_default();
    }
    human::stderr(report);
    human::stdout(report).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn a_refused_url_is_repeated_without_its_password() {
        for (url, shown) in [
            ("redis://:s3cret@h", "redis://***@h"),
            ("redis://s3cret@h/1", "redis://***@h/1"),
            ("redis://a,redis://u:s3cr@et@b", "redis://***@b"),
            ("redis+unix:///s?pass=s3cret", "redis+unix:///s?***"),
            ("redis://:s3c?ret@h?db=1", "redis://***@h?***"),
            ("redis://h", "redis://h"),
            ("redis://h:6379", "redis://h:6379"),
            ("redis://u:s3cret", "redis://u:***"),
            ("redis:u:s3cret@h", "***@h"),
            ("u:s3cret@h:6379", "***@h:6379"),
            ("nx1:s3cret:u@h:1:1:", "nx1:***"),
        ] {
            for words in
                [&["nxlock", url][..], &["nxlock", "run", "--ttl", url, "n", "true"], &["nxlock", "check", url]]
            {
                let said = harmless(Cli::try_parse_from(words).unwrap_err()).render().to_string();
                assert!(said.contains(&format!("'{shown}'")) && !said.contains("s3c"), "{said}");
            }
        }
    }

    #[test]
    fn a_refused_word_is_repeated_without_what_could_fool_a_terminal() {
        for words in [
            ["-t\u{1b}[2J", "n"],
            ["--on-lost=\u{202e}", "n"],
            ["--\u{9b}A", "n"],
            ["-\u{1b}c", "n"],
            ["-tM\u{7}", "n"],
        ] {
            let line = ["nxlock", "run"].into_iter().chain(words).chain(["true"]);
            let said = harmless(Cli::try_parse_from(line).unwrap_err()).render().to_string();
            assert!(!said.contains(['\u{1b}', '\u{202e}', '\u{9b}', '\u{7}']), "{said:?}");
        }
    }
}
