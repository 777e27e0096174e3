//! Text for people: sanitises text of unknown origin for a terminal, cuts it to a width, and formats I/O errors and
//! times.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use nix::libc;
use serde_json::Value;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Returns text from a server sanitised: characters that could move the cursor, hide or reorder words appear as
/// escapes, and long text is cut.
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

/// Quotes text for a POSIX shell. Names, tokens and paths contain no NUL, the only character that cannot be quoted.
pub fn quoted(text: &str) -> String {
    shlex::try_quote(text).map_or_else(|_| String::new(), std::borrow::Cow::into_owned)
}

/// Returns a path sanitised.
pub fn path(path: &Path) -> String {
    clean(&path.to_string_lossy())
}

/// Returns a JSON document as text, with every character escaped that could fool a terminal. Such characters occur only
/// within strings, where `\uXXXX` means the same.
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

/// Returns whether a character could move the cursor, hide or reorder words.
pub fn may_fool(c: char) -> bool {
    c.is_control() || is_format(c)
}

/// Returns whether a character is invisible and changes how its neighbours look: Unicode's bidirectional controls,
/// joiners, tags and the like (general category Cf, and the line separators).
fn is_format(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}'
        | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns the beginning of a text that fits into a number of columns.
pub fn cut(text: &str, columns: usize) -> &str {
    let mut used = 0;
    let end = text.char_indices().find(|(_, c)| {
        used += c.width().unwrap_or(0);
        used > columns
    });
    end.map_or(text, |(at, _)| &text[..at])
}

/// Does the same, and marks a cut with an ellipsis.
pub fn shortened(text: &str, columns: usize) -> Cow<'_, str> {
    match (text.width() <= columns, columns) {
        (true, _) => text.into(),
        (false, 0) => "".into(),
        (false, _) => format!("{}…", cut(text, columns - 1)).into(),
    }
}

/// Compares texts as people count: numbers in them by their value.
pub fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    loop {
        let number = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let order = match (number(left), number(right)) {
            (0, _) | (_, 0) => {
                let (first, second) = (left.chars().next(), right.chars().next());
                let Some(length) = first.map(char::len_utf8).filter(|_| first == second) else {
                    return first.cmp(&second).then_with(|| a.cmp(b));
                };
                (left, right) = (&left[length..], &right[length..]);
                continue;
            }
            (first, second) => {
                let (one, other) = (left[..first].trim_start_matches('0'), right[..second].trim_start_matches('0'));
                (left, right) = (&left[first..], &right[second..]);
                (one.len(), one).cmp(&(other.len(), other))
            }
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// Returns an I/O error's text for the middle of a sentence: without capital letter and number.
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

/// Formats a time as RFC 3339 with milliseconds; returns an empty string before 1970 and after the year 9999.
pub fn instant(time: SystemTime) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    // humantime panics before 1970, and fails after the year 9999.
    if time >= SystemTime::UNIX_EPOCH && write!(text, "{}", humantime::format_rfc3339_millis(time)).is_err() {
        text.clear();
    }
    text
}

/// Formats a time as local time with the zone's offset, for people at a terminal: `2026-11-23 03:00:07 +0100`. As
/// `instant` where there is no local time.
pub fn local_instant(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok();
    since.and_then(|since| local(since.as_secs())).unwrap_or_else(|| instant(time))
}

fn local(seconds: u64) -> Option<String> {
    let seconds = seconds.try_into().ok()?;
    let mut text = [0_u8; 64];
    // SAFETY: for `tm` all zeroes is valid; localtime_r(3) and strftime(3) write to what they are given and no further,
    // and the format ends in NUL.
    let length = unsafe {
        let mut fields: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&raw const seconds, &raw mut fields).is_null() {
            return None;
        }
        libc::strftime(text.as_mut_ptr().cast(), text.len(), c"%Y-%m-%d %H:%M:%S %z".as_ptr(), &raw const fields)
    };
    String::from_utf8(text[..length].to_vec()).ok().filter(|text| !text.is_empty())
}

/// Text that a server sent. It formats itself as [`clean`] makes it. `raw` returns it unchanged, and is not for
/// messages: only to compare, to parse, to connect to, or for a document that is escaped as a whole.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Tainted<T = String>(T);

impl<T: AsRef<str>> Tainted<T> {
    pub fn new(text: T) -> Tainted<T> {
        Tainted(text)
    }

    pub fn raw(&self) -> &str {
        self.0.as_ref()
    }

    pub fn to_owned(&self) -> Tainted {
        Tainted(self.raw().to_owned())
    }
}

impl<'a> Tainted<&'a str> {
    /// Returns the same as `raw`, which may outlive this value.
    pub fn into_raw(self) -> &'a str {
        self.0
    }
}

impl From<&str> for Tainted {
    fn from(text: &str) -> Tainted {
        Tainted(text.to_owned())
    }
}

impl From<String> for Tainted {
    fn from(text: String) -> Tainted {
        Tainted(text)
    }
}

impl<T: AsRef<str>> fmt::Display for Tainted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&clean(self.raw()))
    }
}

impl<T: AsRef<str>> fmt::Debug for Tainted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_could_fool_a_terminal_is_escaped() {
        assert_eq!(clean("a\u{1b}[31mb\r\n\u{202e}c\u{9b}"), "a\\u{1b}[31mb\\u{d}\\u{a}\\u{202e}c\\u{9b}");
        assert_eq!(clean("naïve 日本"), "naïve 日本");
        assert_eq!(clean("\u{600}a\u{1d173}"), "\\u{600}a\\u{1d173}", "every character that Unicode calls a format");
        assert!(clean(&"x".repeat(10_000)).len() < 400);
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
    fn numbers_in_names_count() {
        let mut names =
            ["job-10", "job-9", "job", "job-09", "10", "9", "a", "job-9a", "", "99999999999999999999999", "é2", "é10"];
        names.sort_by(|a, b| natural(a, b));
        let expected =
            ["", "9", "10", "99999999999999999999999", "a", "job", "job-09", "job-9", "job-9a", "job-10", "é2", "é10"];
        assert_eq!(names, expected);
    }

    #[test]
    fn an_instant_that_no_calendar_holds_is_left_out() {
        assert_eq!(instant(SystemTime::UNIX_EPOCH), "1970-01-01T00:00:00.000Z");
        assert_eq!(instant(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), "");
        assert_eq!(instant(SystemTime::UNIX_EPOCH + Duration::from_secs(400_000_000_000)), "");
    }
}
