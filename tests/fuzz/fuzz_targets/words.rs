//! Words of a command line, the environment or a file: durations, names, ids, tokens.

#![no_main]

mod oracle;

use std::time::Duration;

use clap::Parser;
use libfuzzer_sys::fuzz_target;
use nxlock::fuzzed::{Cli, HolderId, LockName, Prefix, Token, Ttl, harmless, parse_duration};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = str::from_utf8(bytes) else { return };
    // A caller would cut an argument there.
    if text.contains('\0') {
        return;
    }
    if let Some(duration) = taken(parse_duration(text)) {
        assert!(duration <= Ttl::MAX);
        let written = humantime::format_duration(duration).to_string();
        assert_eq!(parse_duration(&written), Ok(duration), "{written}");
    }
    if let Some(ttl) = taken(text.parse::<Ttl>()) {
        assert!((Ttl::MIN..=Ttl::MAX).contains(&ttl.get()));
        assert_eq!(parse_duration(text), Ok(ttl.get()));
        assert_eq!(Duration::from_millis(ttl.millis()).as_millis(), ttl.get().as_millis());
    }
    if let Some(name) = taken(text.parse::<LockName>()) {
        assert!(name.as_str() == text && (1..=200).contains(&text.len()) && is_of_a_key(text));
    }
    if let Some(prefix) = taken(text.parse::<Prefix>()) {
        assert!(prefix.as_str() == text && is_of_a_key(text));
    }
    if let Some(id) = taken(text.parse::<HolderId>()) {
        assert!(id.as_str() == text && text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    }
    if let Some(token) = taken(text.parse::<Token>()) {
        assert!(token.as_str() == text && text.len() <= 1024 && !text.chars().any(char::is_control));
    }
    let lines: Vec<&str> = ["nxlock"].into_iter().chain(text.lines()).collect();
    typed(&lines);
    // One of several positions, since parsing a command line is slow.
    match text.len() % 4 {
        0 => typed(&["nxlock", "run", text, "true"]),
        1 => typed(&["nxlock", "release", "name", "--break", text]),
        2 => typed(&["nxlock", text, "name"]),
        _ => {
            let options =
                ["--ttl", "--wait", "--kill-after", "--at-least", "--server-timeout", "--prefix", "-E", "--on-lost"];
            let option = options[text.len() / 4 % options.len()];
            typed(&["nxlock", "run", &format!("{option}={text}"), "name", "true"]);
        }
    }
});

/// Asserts that the error of a word is one harmless line.
fn taken<T>(parsed: Result<T, String>) -> Option<T> {
    parsed.inspect_err(|why| oracle::harmless_line(why)).ok()
}

fn is_of_a_key(text: &str) -> bool {
    !text.chars().any(|c| c.is_control() || c == '{' || c == '}')
}

/// Asserts that a command line is accepted, or refused with a harmless message.
fn typed(words: &[&str]) {
    if let Err(error) = Cli::try_parse_from(words) {
        oracle::harmless(&harmless(error).render().to_string());
    }
}
