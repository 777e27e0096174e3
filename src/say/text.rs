//! Turning values into words.

use std::borrow::Cow;
use std::io;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::lock::{Holder, Legacy, Occupancy, Owner, State};

/// Text from a server, made harmless: what could move a cursor, hide or reorder words is shown as
/// an escape, and what is long is cut.
pub fn clean(text: &str) -> String {
    let mut cleaned = String::new();
    for c in text.chars() {
        if cleaned.len() > 300 {
            cleaned.push('…');
            break;
        }
        if may_fool(c) {
            cleaned.extend(c.escape_unicode());
        } else {
            cleaned.push(c);
        }
    }
    cleaned
}

/// A document's text, in which what could fool a terminal is escaped. Outside its strings there is
/// nothing of the kind, and inside a string `\uXXXX` means the same.
pub fn escaped(document: &Value) -> String {
    let mut escaped = String::new();
    for c in document.to_string().chars() {
        if may_fool(c) {
            let units = c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
            escaped.push_str(&units);
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Whether it could move a cursor, hide or reorder words.
pub fn may_fool(c: char) -> bool {
    c.is_control() || is_format(c)
}

/// Invisible characters that change how their neighbours look: Unicode's bidirectional controls,
/// joiners, tags and the like (general category Cf, and the line separators).
fn is_format(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}'
        | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}')
}

/// The beginning of a text that fits into so many columns.
pub fn cut(text: &str, columns: usize) -> &str {
    let mut used = 0;
    let end = text.char_indices().find(|(_, c)| {
        used += c.width().unwrap_or(0);
        used > columns
    });
    end.map_or(text, |(at, _)| &text[..at])
}

/// The same, with a sign that something is missing.
pub fn shortened(text: &str, columns: usize) -> Cow<'_, str> {
    match (text.width() <= columns, columns) {
        (true, _) => text.into(),
        (false, 0) => "".into(),
        (false, _) => format!("{}…", cut(text, columns - 1)).into(),
    }
}

/// A length of time, to the precision a person wants: `4m 12s`, `24s`, `1.5s`, `80ms`.
pub fn span(duration: Duration) -> String {
    let precise = match duration {
        long if long >= Duration::from_secs(3600) => Duration::from_secs(long.as_secs() / 60 * 60),
        middling if middling >= Duration::from_secs(10) => Duration::from_secs(middling.as_secs()),
        short if short >= Duration::from_secs(1) => {
            let tenths = short.as_millis() / 100;
            return if tenths % 10 == 0 {
                format!("{}s", tenths / 10)
            } else {
                format!("{}.{}s", tenths / 10, tenths % 10)
            };
        }
        tiny => Duration::from_millis(u64::try_from(tiny.as_millis()).unwrap_or(0)),
    };
    humantime::format_duration(precise).to_string()
}

/// An I/O error in the middle of a sentence: without capital letter and number.
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

/// RFC 3339 with milliseconds; empty for what no calendar holds.
pub fn instant(time: SystemTime) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    // humantime panics before 1970, and fails after the year 9999.
    if time >= SystemTime::UNIX_EPOCH && write!(text, "{}", humantime::format_rfc3339_millis(time)).is_err() {
        text.clear();
    }
    text
}

/// `alice@web-3:4711`
pub fn process(owner: &Owner) -> String {
    format!("{}@{}:{}", owner.user, owner.host, owner.pid)
}

/// `alice@web-3, pid 4711`
pub fn who(holder: &Holder) -> String {
    let owner = &holder.owner;
    format!("{}@{}, pid {}", owner.user, owner.host, owner.pid)
}

/// Who has it, in the middle of a sentence.
pub fn held_by(occupancy: &Occupancy) -> String {
    held_by_after(occupancy, Duration::ZERO)
}

/// The same, so long after it was found so.
pub fn held_by_after(occupancy: &Occupancy, since: Duration) -> String {
    match (&occupancy.holder, &occupancy.state) {
        (Some(holder), _) => format!("held by {} for {}", who(holder), span(holder.held + since)),
        (None, State::Free) => "free".to_owned(),
        (None, State::Legacy) => "held by an old SETNX client, without expiry".to_owned(),
        (None, State::NoExpiry) => "held by another program, without expiry".to_owned(),
        (None, State::WrongType(_)) => "taken by a key of another type".to_owned(),
        (None, State::Contested) => "contested, without a holder that has a majority of the servers".to_owned(),
        (None, State::Unknown) => "not known, since too few servers answer".to_owned(),
        (None, _) => "held by another program".to_owned(),
    }
}

/// A state's name, as JSON has it.
pub fn state_word(state: &State) -> &'static str {
    match state {
        State::Free => "free",
        State::Held => "held",
        State::Reserved => "reserved",
        State::Foreign => "foreign",
        State::Legacy => "legacy",
        State::NoExpiry => "no_expiry",
        State::WrongType(_) => "wrong_type",
        State::Contested => "contested",
        State::Unknown | State::Damaged => "unknown",
    }
}

/// What an old `SETNX` lock says of itself, by the server's clock.
pub fn validity(legacy: &Legacy) -> String {
    match (instant(legacy.valid_until), legacy.stale) {
        (never, _) if never.is_empty() => "valid for ever".to_owned(),
        (since, true) => format!("stale since {since}"),
        (until, false) => format!("valid until {until}"),
    }
}

/// What an occupied name is, to somebody who was refused.
pub fn state(occupancy: &Occupancy) -> String {
    match &occupancy.state {
        State::WrongType(kind) => format!("a key of type {kind}"),
        _ if occupancy.holder.is_some() => "held by somebody else".to_owned(),
        _ => held_by(occupancy),
    }
}

/// Whose it is now, after it turned out not to be ours.
pub fn now_whose(occupancy: &Occupancy) -> String {
    match occupancy.state {
        State::Free => "it had expired or was deleted".to_owned(),
        _ => format!("it is now {}", held_by(occupancy)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_fool_a_terminal_is_escaped() {
        assert_eq!(clean("a\u{1b}[31mb\r\n\u{202e}c\u{9b}"), "a\\u{1b}[31mb\\u{d}\\u{a}\\u{202e}c\\u{9b}");
        assert_eq!(clean("naïve 日本"), "naïve 日本");
        assert_eq!(clean("\u{600}a\u{1d173}"), "\\u{600}a\\u{1d173}", "every character that Unicode calls a format");
        assert!(clean(&"x".repeat(10_000)).len() < 400);
    }

    #[test]
    fn spans_are_as_precise_as_a_person_wants() {
        for (millis, text) in [
            (0, "0s"),
            (80, "80ms"),
            (1_000, "1s"),
            (1_560, "1.5s"),
            (24_900, "24s"),
            (252_000, "4m 12s"),
            (7_322_000, "2h 2m"),
        ] {
            assert_eq!(span(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn a_text_is_cut_by_columns_not_bytes() {
        assert_eq!(cut("日本語", 4), "日本");
        assert_eq!(cut("abc", 10), "abc");
        assert_eq!(shortened("日本語", 5), "日本…");
        assert_eq!(shortened("日本語", 6), "日本語");
        assert_eq!(shortened("abc", 0), "");
    }

    #[test]
    fn an_instant_that_no_calendar_holds_is_left_out() {
        assert_eq!(instant(SystemTime::UNIX_EPOCH), "1970-01-01T00:00:00.000Z");
        assert_eq!(instant(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), "");
        assert_eq!(instant(SystemTime::UNIX_EPOCH + Duration::from_secs(400_000_000_000)), "");
    }
}
