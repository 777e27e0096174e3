use std::time::Duration;

use nix::sys::signal::Signal;

use super::{ENTER, LEAVE, is_restored, selects, viewer, watch};
use crate::support::turns::{acquire, release};
use crate::support::{Nxlock, Redis, Terminal, eventually, is_alive, lasts, send, state_of};

#[test]
fn the_terminal_is_as_it_was_whatever_ends_the_view() {
    let redis = Redis::start();
    let token = acquire(&redis, "10m");
    for (keys, status) in [("q", 0), ("\x03", 0), ("\x1b[B\x1b[Aq", 0)] {
        let mut terminal = watch(&redis, "");
        selects(&mut terminal, "job ");
        terminal.types(keys);
        terminal.shows(&format!("as before, {status}."));
        is_restored(&mut terminal);
    }
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        let mut terminal = watch(&redis, "");
        selects(&mut terminal, "job ");
        send(viewer(&terminal), signal);
        terminal.shows(&format!("as before, {}.", 128 + signal as i32));
        is_restored(&mut terminal);
    }
    release(&redis, &token);
}

#[test]
fn without_a_server_the_terminal_is_not_touched() {
    let redis = Redis::start();
    let mut terminal = watch(&redis, "-s unix:///no/such/socket --server-timeout 100ms");
    terminal.shows("as before, 69.");
    assert!(!terminal.screen().contains("\x1b[?"), "{:?}", terminal.screen());
}

#[test]
fn a_terminal_that_goes_away_ends_the_view() {
    let redis = Redis::start();
    let token = acquire(&redis, "10m");
    let mut terminal = watch(&redis, "");
    selects(&mut terminal, "job ");
    let viewer = viewer(&terminal);
    terminal.hang_up();
    eventually("it is gone", || !is_alive(viewer));
    release(&redis, &token);
}

#[test]
fn a_terminal_that_takes_nothing_does_not_keep_the_view_from_ending() {
    let redis = Redis::start();
    let names: Vec<String> = (0..60).map(|n| format!("lock:{n:03}-{}", "x".repeat(150))).collect();
    names.iter().for_each(|name| redis.put(name, b"somebody", None));
    let mut terminal = watch(&redis, "");
    selects(&mut terminal, "000");
    let viewer = viewer(&terminal);
    // The view draws more than the terminal buffers, and nobody reads it.
    terminal.resize(250, 70);
    for _ in 0..40 {
        terminal.resize(249, 70);
        lasts(Duration::from_millis(20));
        terminal.resize(250, 70);
        lasts(Duration::from_millis(20));
    }
    send(viewer, Signal::SIGTERM);
    eventually("it is gone", || !is_alive(viewer));
    names.iter().for_each(|name| redis.delete(name));
}

#[test]
fn ctrl_z_gives_the_terminal_back_and_fg_draws_it_again() {
    let redis = Redis::start();
    let token = acquire(&redis, "10m");
    let mut shell = Terminal::start(Nxlock::by("sh", ["-i"]).env("NXLOCK_SERVER", redis.url()).env("PS1", "$ "));
    shell.types("echo shell-$((1+1))\n");
    shell.shows("shell-2");
    shell.types("stty columns 80 rows 24; nxlock status --watch=100ms\n");
    selects(&mut shell, "job ");
    let viewer = viewer(&shell);
    for _ in 0..2 {
        shell.types("\x1a");
        eventually("it is stopped", || state_of(viewer) == Some('T'));
        is_restored(&mut shell);
        shell.types("echo back-$((5+5))\n");
        shell.shows("back-10");
        shell.types("fg\n");
        shell.shows(ENTER);
        shell.shows("> ");
    }
    // A signal that nobody typed has the same effect.
    send(viewer, Signal::SIGTSTP);
    eventually("it is stopped", || state_of(viewer) == Some('T'));
    is_restored(&mut shell);
    shell.types("fg\n");
    shell.shows(ENTER);
    shell.shows("> ");
    shell.types("q");
    // Keys typed before that go to the view.
    shell.shows(LEAVE);
    shell.types("echo left-$?\n");
    shell.shows("left-0");
    shell.types("exit\n");
    shell.finish();
    release(&redis, &token);
}

#[test]
fn where_no_colours_are_wanted_there_are_none_and_the_selection_is_seen() {
    let redis = Redis::start();
    redis.put("lock:job", b"somebody", None);
    let mut terminal = watch(&redis, "");
    terminal.shows("\x1b[7m> job ");
    terminal.types("q");
    terminal.shows("as before, 0.");
    let mut terminal = watch(&redis, "--color never");
    selects(&mut terminal, "job ");
    terminal.types("q");
    terminal.shows("as before, 0.");
    let written = terminal.screen();
    let colours =
        written.split("\x1b[").skip(1).filter_map(|rest| rest.find(char::is_alphabetic).map(|at| &rest[at..=at]));
    assert!(!colours.into_iter().any(|end| end == "m"), "{written:?}");
    redis.delete("lock:job");
}
