//! The progress line of a waiter, at a terminal and in a log.

use nix::sys::signal::Signal;

use crate::support::turns::{Turn, each_is_served, lock_status, queue, turn};
use crate::support::{Nxlock, Redis, Terminal, eventually_some, now};

/// Returns what a screen shows after this was written to it.
fn rendered(written: &str) -> String {
    let mut lines = vec![Vec::new()];
    let mut column = 0;
    let mut rest = written.chars();
    while let Some(c) = rest.next() {
        let line = lines.last_mut().expect("there is always one");
        match c {
            '\r' => column = 0,
            '\n' => lines.push(Vec::new()),
            '\x1b' => match rest.by_ref().find(char::is_ascii_alphabetic) {
                Some('K') => line.truncate(column),
                Some('m') => {}
                other => panic!("an escape that a line does not need: {other:?} in {written:?}"),
            },
            c => {
                line.resize((column + 1).max(line.len()), ' ');
                line[column] = c;
                column += 1;
            }
        }
    }
    let lines: Vec<String> = lines.iter().map(|line| line.iter().collect::<String>().trim_end().to_owned()).collect();
    lines.join("\n").trim_end().to_owned()
}

/// Starts a waiter at a terminal wide enough for the whole line.
fn at_a_terminal(redis: &Redis, options: &[&str]) -> Terminal {
    // Set the width before nxlock starts: it truncates the line to the width.
    let args = ["-c", "stty columns 200 rows 24 && exec nxlock run job \"$@\" -- echo ran", "sh"];
    let call = Nxlock::by("sh", args.iter().chain(options).copied()).env("NXLOCK_SERVER", redis.url());
    Terminal::start(call)
}

#[test]
fn at_a_terminal_one_live_line_tells_of_the_wait_and_leaves_no_trace() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &["-t", "1m"]);
    let mut first = Turn::queued(&redis, &["-t", "1m"]);
    let seen = lock_status(&redis)["holder"].take();
    let mut terminal = at_a_terminal(&redis, &[]);
    let held_by =
        |pid| format!("s by {}@{}:{pid}, lease ", seen["user"].as_str().unwrap(), seen["host"].as_str().unwrap());
    terminal.shows("waiting for \"job\": 1 ahead of us, waited ");
    terminal.shows(&held_by(holder.pid()));
    for _ in 0..3 {
        // Redrawn in place.
        terminal.shows("\rwaiting for \"job\": 1 ahead of us, waited ");
    }
    holder.leaves();
    first.up();
    terminal.shows("waiting for \"job\": we are next, waited ");
    terminal.shows(&held_by(first.pid()));
    let screen = terminal.screen();
    assert!(!screen.contains('\n'), "all of it is one line: {screen:?}");
    assert!(rendered(&screen).starts_with("waiting for \"job\": "), "{screen:?}");
    first.leaves();
    terminal.shows("ran");
    terminal.exits(0);
    assert_eq!(rendered(&terminal.screen()), "ran");
}

#[test]
fn at_a_terminal_a_refusal_stands_where_the_live_line_was() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &["-t", "1m"]);
    // On a busy machine, the wait may be over before it has a place in the queue.
    let (screen, took) = eventually_some("it shows the wait before that is over", || {
        let began = now();
        let mut terminal = at_a_terminal(&redis, &["-w", "1500ms"]);
        let (ended, screen) = (terminal.finish().code(), terminal.screen());
        let is_told = ended == Some(75) && screen.contains("we are next, waited ");
        is_told.then_some((screen, began.elapsed()))
    });
    let shown = rendered(&screen);
    let waited = shown.strip_prefix("nxlock: \"job\" is held by somebody else, waited ");
    let waited = waited.and_then(|rest| rest.split('s').next()?.parse::<f64>().ok());
    assert!(waited.is_some_and(|seconds| (1.5..=took.as_secs_f64()).contains(&seconds)), "{shown}");
    assert!(!shown.contains("waiting for") && !shown.contains("ran"), "{shown}");
    assert!(queue(&redis).is_empty());
    holder.leaves();
}

#[test]
fn at_a_terminal_ctrl_c_leaves_the_line_and_no_trace() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &["-t", "1m"]);
    let mut terminal = at_a_terminal(&redis, &[]);
    terminal.shows("we are next, waited ");
    terminal.types("\x03");
    terminal.dies_of(Signal::SIGINT);
    assert!(queue(&redis).is_empty());
    let shown = rendered(&terminal.screen());
    assert!(!shown.contains("waiting for") && !shown.contains("ran"), "{shown}");
    holder.leaves();
}

#[test]
fn at_a_terminal_a_lock_that_is_free_shows_no_line() {
    let redis = Redis::start();
    let mut terminal = at_a_terminal(&redis, &[]);
    terminal.exits(0);
    assert_eq!(terminal.screen(), "ran\r\n");
}

#[test]
fn a_log_has_one_line_at_the_start_and_one_at_the_end_whoever_holds_it_meanwhile() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let line: Vec<Turn> = (0..3).map(|_| Turn::queued(&redis, &[])).collect();
    let last = Turn::of(redis.nxlock(turn(&[]))).once_queued(&redis);
    holder.leaves();
    each_is_served(line);
    let mut last = last;
    last.up();
    let said = last.running.stderr();
    last.leaves();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines[0].contains("waiting for \"job\": held by ") && lines[0].contains(", 3 ahead of us; "), "{said}");
    assert!(lines[1].contains("got \"job\" after "), "{said}");
    assert!(!said.contains(['\r', '\x1b']), "{said:?}");
}
