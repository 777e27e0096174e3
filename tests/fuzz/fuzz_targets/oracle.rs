//! The properties of every text that nxlock shows to people or programs.

#![allow(dead_code)]

use nxlock::fuzzed::{Report, captured, shown};

/// General categories Cf, Zl and Zp of Unicode 16, from its DerivedGeneralCategory.txt and not from the program.
const FORMAT: [(u32, u32); 20] = [
    (0xad, 0xad),
    (0x600, 0x605),
    (0x61c, 0x61c),
    (0x6dd, 0x6dd),
    (0x70f, 0x70f),
    (0x890, 0x891),
    (0x8e2, 0x8e2),
    (0x180e, 0x180e),
    (0x200b, 0x200f),
    (0x2028, 0x202e),
    (0x2060, 0x2064),
    (0x2066, 0x206f),
    (0xfeff, 0xfeff),
    (0xfff9, 0xfffb),
    (0x110bd, 0x110bd),
    (0x110cd, 0x110cd),
    (0x13430, 0x1343f),
    (0x1bca0, 0x1bca3),
    (0x1d173, 0x1d17a),
    (0xe0001, 0xe007f),
];

/// The styles of nxlock's own messages, which anstream removes where they are unwanted.
const STYLES: [&str; 7] = ["\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m", "\x1b[0m"];

/// Asserts that nothing in the text moves a cursor, hides words or reorders them.
pub fn harmless(text: &str) {
    for c in text.chars().filter(|c| *c != '\n') {
        let format = !c.is_ascii() && FORMAT.iter().any(|(first, last)| (*first..=*last).contains(&u32::from(c)));
        assert!(!c.is_control() && !format, "{c:?} in {text:?}");
    }
}

pub fn harmless_line(text: &str) {
    harmless(text);
    assert!(!text.contains('\n'), "{text:?}");
}

/// Returns all that nxlock shows people of a report, without styles.
pub fn human(report: &Report) -> String {
    captured::take();
    let text = unstyled(shown(report, false)) + &said();
    harmless(&text);
    text
}

/// Returns what nxlock wrote to stderr meanwhile, without styles.
pub fn said() -> String {
    let text = unstyled(captured::take());
    harmless(&text);
    text
}

fn unstyled(text: String) -> String {
    STYLES.iter().fold(text, |text, style| text.replace(style, ""))
}

/// Returns the document for programs, which is also safe to view.
pub fn json(report: &Report) -> serde_json::Value {
    let text = shown(report, true);
    harmless_line(&text);
    assert!(text.is_ascii() || !text.chars().any(char::is_control));
    serde_json::from_str(&text).expect("a document")
}
