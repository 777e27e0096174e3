//! `status --watch`: a screen with keys, or text for each change.

/// The terminal is restored, however the view ends.
mod leaving;
mod piped;
mod screen;

use std::time::Duration;

use crate::support::{Nxlock, Redis, Terminal, children_of, eventually, eventually_some, name_of};

/// Returns what a screen showed last, line by line, without colours.
fn picture(terminal: &mut Terminal) -> Option<Vec<String>> {
    let written = terminal.screen();
    let whole = &written[..written.rfind("\x1b[J")?];
    let frame = &whole[whole.rfind("\x1b[H")? + 3..];
    let mut lines = Vec::new();
    for line in frame.split("\r\n") {
        let mut bare = String::new();
        let mut rest = line.chars();
        while let Some(c) = rest.next() {
            match c {
                '\x1b' => assert!(matches!(rest.find(char::is_ascii_alphabetic), Some('m' | 'K')), "{line:?}"),
                c => bare.push(c),
            }
        }
        lines.push(bare);
    }
    Some(lines)
}

/// Waits until the screen shows such lines, and returns them.
#[track_caller]
fn shows(terminal: &mut Terminal, is_so: impl Fn(&[String]) -> bool) -> Vec<String> {
    let mut last = Vec::new();
    let began = crate::support::now();
    eventually("the screen shows it", || {
        last = picture(terminal).unwrap_or_default();
        is_so(&last) || began.elapsed() > crate::support::LIMIT - Duration::from_secs(2)
    });
    assert!(is_so(&last), "the screen shows something else:\n{}", last.join("\n"));
    last
}

#[track_caller]
fn says(terminal: &mut Terminal, text: &str) -> Vec<String> {
    shows(terminal, |lines| lines.iter().any(|line| line.contains(text)))
}

/// Waits until the selected line begins with this name.
#[track_caller]
fn selects(terminal: &mut Terminal, name: &str) -> Vec<String> {
    shows(terminal, |lines| lines.iter().any(|line| line.starts_with(&format!("> {name}"))))
}

/// Starts a view in a shell that prints its exit status if the terminal is as it was before.
fn watch(redis: &Redis, args: &str) -> Terminal {
    let script = format!(
        "stty columns 80 rows 24; before=$(stty -g); nxlock status --watch=100ms {args}; status=$?
         [ \"$before\" = \"$(stty -g)\" ] && echo \"as before, $status.\""
    );
    let call = Nxlock::by("sh", ["-c", &script]).env("NXLOCK_SERVER", redis.url());
    Terminal::start(call)
}

/// Returns the pid of the view.
fn viewer(terminal: &Terminal) -> i32 {
    eventually_some("the view's process", || {
        children_of(terminal.pid()).first().copied().filter(|child| name_of(*child) == "nxlock")
    })
}

const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// Asserts that the view has entered the alternate screen and left it again.
#[track_caller]
fn is_restored(terminal: &mut Terminal) {
    let written = terminal.screen();
    assert_eq!(written.matches(ENTER).count(), written.matches(LEAVE).count(), "{written:?}");
    assert!(written.rfind(ENTER) < written.rfind(LEAVE), "{written:?}");
}

#[test]
fn how_often_is_a_length_of_time_and_not_less_than_a_tenth_of_a_second() {
    let redis = Redis::start();
    redis.nxlock(["status", "--watch=5"]).run().exits(64).says("--watch").says("5s");
    redis.nxlock(["status", "--watch=1ms"]).run().exits(64).says("--watch").says("100ms");
}
