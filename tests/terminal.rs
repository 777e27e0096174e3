//! At a terminal: Ctrl-C, Ctrl-Z, reading, resizing.

use nix::sys::signal::Signal;

use crate::support::{Nxlock, Redis, Terminal, eventually, state_of};

const CTRL_C: &str = "\x03";
const CTRL_BACKSLASH: &str = "\x1c";
const CTRL_Z: &str = "\x1a";
const CTRL_D: &str = "\x04";

fn run(redis: &Redis, script: &str) -> Terminal {
    Terminal::start(redis.nxlock(["run", "job", "-c", script]))
}

/// A shell that does job control, at a terminal.
fn shell(redis: &Redis) -> Terminal {
    let mut shell = Terminal::start(Nxlock::by("sh", ["-i"]).env("NXLOCK_SERVER", redis.url()).env("PS1", "$ "));
    // Told apart from the echo of what is typed by what only the shell can make of it.
    shell.types("echo shell-$((1+1))\n");
    shell.shows("shell-2");
    shell
}

#[test]
fn ctrl_c_gives_the_command_one_int_and_ends_us_like_it() {
    let redis = Redis::start();
    let script = "trap 'echo got-int; trap - INT; kill -INT $$' INT; echo up; while :; do sleep 300 & wait; done";
    let mut terminal = run(&redis, script);
    terminal.shows("up");
    terminal.types(CTRL_C);
    terminal.dies_of(Signal::SIGINT);
    assert_eq!(terminal.screen().matches("got-int").count(), 1);
    assert!(!redis.exists("lock:job"));
}

#[test]
fn ctrl_c_on_a_plain_command_stops_a_shells_loop() {
    let redis = Redis::start();
    let script = "while :; do nxlock run job -- sh -c 'echo round; exec sleep 300'; done";
    let mut terminal = Terminal::start(Nxlock::by("bash", ["-c", script]).env("NXLOCK_SERVER", redis.url()));
    terminal.shows("round");
    terminal.types(CTRL_C);
    terminal.dies_of(Signal::SIGINT);
    assert_eq!(terminal.screen().matches("round").count(), 1);
    assert!(!redis.exists("lock:job"));
}

#[test]
fn a_command_that_survives_ctrl_c_goes_on() {
    let redis = Redis::start();
    let script = "n=0; trap 'n=$((n+1)); echo int-$n' INT; echo up; while [ $n -lt 3 ]; do sleep 0.01; done; exit 8";
    let mut terminal = run(&redis, script);
    terminal.shows("up");
    for n in 1..=3 {
        terminal.types(CTRL_C);
        terminal.shows(&format!("int-{n}"));
    }
    terminal.exits(8);
    assert!(!terminal.screen().contains("int-4"));
    assert!(!redis.exists("lock:job"));
}

#[test]
fn after_a_wait_too_ctrl_c_is_the_commands_to_survive() {
    let redis = Redis::start();
    redis.put("lock:job", b"somebody", None);
    let script = "n=0; trap 'n=$((n+1)); echo int-$n' INT; echo up; while [ $n -lt 3 ]; do sleep 0.01; done; exit 8";
    let mut terminal = run(&redis, script);
    terminal.shows("waiting for \"job\"");
    redis.delete("lock:job");
    terminal.shows("up");
    for n in 1..=3 {
        terminal.types(CTRL_C);
        terminal.shows(&format!("int-{n}"));
    }
    terminal.exits(8);
    assert!(!redis.exists("lock:job"));
}

#[test]
fn a_command_that_makes_an_exit_of_ctrl_c_exits_with_that() {
    let redis = Redis::start();
    let mut terminal = run(&redis, "trap 'exit 3' INT; echo up; while :; do sleep 300 & wait; done");
    terminal.shows("up");
    terminal.types(CTRL_C);
    terminal.exits(3);
}

#[test]
fn ctrl_backslash_quits_both() {
    let redis = Redis::start();
    let mut terminal = run(&redis, "ulimit -c 0; echo up; exec sleep 300");
    terminal.shows("up");
    terminal.types(CTRL_BACKSLASH);
    terminal.dies_of(Signal::SIGQUIT);
    assert!(!redis.exists("lock:job"));
}

#[test]
fn ctrl_c_while_waiting_ends_the_wait_and_leaves_the_line_clean() {
    let redis = Redis::start();
    redis.put("lock:job", b"somebody", None);
    let mut terminal = run(&redis, "echo ran");
    terminal.shows("waiting for \"job\"");
    terminal.types(CTRL_C);
    terminal.dies_of(Signal::SIGINT);
    let screen = terminal.screen();
    assert!(!screen.contains("ran"), "{screen}");
    assert!(screen.ends_with("\r\x1b[K") || screen.ends_with("^C"), "{screen:?}");
    redis.delete("lock:job");
}

#[test]
fn the_waiting_line_leaves_nothing_on_the_screen() {
    let redis = Redis::start();
    redis.put("lock:job", b"somebody", None);
    let mut terminal = run(&redis, "echo ran");
    terminal.resize(40, 10);
    terminal.shows("waiting for \"job\"");
    redis.delete("lock:job");
    terminal.shows("\r\x1b[Kran");
    terminal.exits(0);
}

#[test]
fn all_three_streams_are_the_terminal() {
    let redis = Redis::start();
    let mut terminal = run(&redis, "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all-three; tty");
    terminal.shows("all-three");
    terminal.shows("/dev/pts/");
    terminal.exits(0);
}

#[test]
fn the_command_reads_the_terminal() {
    let redis = Redis::start();
    let mut terminal = run(&redis, "echo ask; read answer; echo \"said-$answer\"; cat >/dev/null; exit 2");
    terminal.shows("ask");
    terminal.types("forty two\n");
    terminal.shows("said-forty two");
    terminal.types(CTRL_D);
    terminal.exits(2);
}

#[test]
fn the_command_may_change_the_terminals_modes() {
    let redis = Redis::start();
    // Background processes that change them are stopped by TTOU.
    let mut terminal = run(&redis, "stty -echo && echo ask && read answer && stty echo && echo \"said-$answer\"");
    terminal.shows("ask");
    terminal.types("hidden\n");
    assert_eq!(terminal.shows("said-hidden").trim(), "", "what was typed is not echoed");
    terminal.exits(0);
}

#[test]
fn in_a_pipeline_the_command_still_reads_the_terminal() {
    let redis = Redis::start();
    let mut shell = shell(&redis);
    shell.types("echo data | nxlock run job -- sh -c 'echo ask-$((2+3)); read a </dev/tty; read b; echo $b-$a'\n");
    shell.shows("ask-5");
    shell.types("typed\n");
    shell.shows("data-typed");
    shell.types("exit\n");
    shell.exits(0);
}

#[test]
fn in_a_pipeline_ctrl_c_reaches_all_of_it() {
    let redis = Redis::start();
    let mut shell = shell(&redis);
    shell.types("sleep 300 | nxlock run job -- sh -c 'echo up-$((2+3)); exec sleep 300'; echo left-$?\n");
    shell.shows("up-5");
    shell.types(CTRL_C);
    shell.types("echo again-$((3+4))\n");
    shell.shows("again-7");
    assert!(!redis.exists("lock:job"));
    shell.types("exit\n");
    shell.finish();
}

#[test]
fn ctrl_z_stops_both_and_fg_resumes_them() {
    let redis = Redis::start();
    let mut shell = shell(&redis);
    shell.types("nxlock run job -- sh -c 'echo up $$ $PPID up; read x; echo read-$x; exit 6'; echo status-$?\n");
    // What is typed is echoed, dollar signs and all.
    let pids = loop {
        let between = shell.shows(" up");
        let numbers: Vec<i32> = between.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        if let [command, nxlock] = numbers[..] {
            break [command, nxlock];
        }
    };
    let both_are = |state: char| pids.iter().all(|pid| state_of(*pid) == Some(state));
    for _ in 0..2 {
        shell.types(CTRL_Z);
        eventually("both are stopped", || both_are('T'));
        shell.types("echo back-$((5+5))\n");
        shell.shows("back-10");
        assert!(redis.exists("lock:job"), "it is still held");
        shell.types("fg\n");
        eventually("both go on, and wait again", || both_are('S'));
    }
    shell.types("words\n");
    shell.shows("read-words");
    shell.types("echo done-$((6+6))\n");
    shell.shows("done-12");
    assert!(!redis.exists("lock:job"));
    shell.types("exit\n");
    shell.finish();
}

#[test]
fn a_job_in_the_background_can_be_brought_to_the_foreground() {
    let redis = Redis::start();
    let mut shell = shell(&redis);
    shell.types("nxlock run job -- sh -c 'echo up-$((1+3)); read x; echo read-$x' &\n");
    shell.shows("up-4");
    // It wants to read, and is stopped for it (TTIN).
    shell.types("fg\n");
    shell.types("words\n");
    shell.shows("read-words");
    shell.types("exit\n");
    shell.finish();
}

#[test]
fn a_terminal_that_changes_its_size_is_told_to_the_command() {
    let redis = Redis::start();
    let mut terminal = run(&redis, "trap 'stty size; exit 4' WINCH; echo up; while :; do sleep 300 & wait; done");
    terminal.shows("up");
    terminal.resize(101, 57);
    terminal.shows("57 101");
    terminal.exits(4);
}

#[test]
fn a_terminal_that_goes_away_ends_the_command() {
    let redis = Redis::start();
    let mut terminal = run(&redis, "echo pid $$.; exec sleep 300");
    terminal.shows("pid ");
    let command: i32 = terminal.shows(".").parse().unwrap();
    terminal.hang_up();
    eventually("the command is gone", || state_of(command).is_none());
    eventually("the lock is given back", || !redis.exists("lock:job"));
}

#[test]
fn term_from_elsewhere_ends_a_command_at_a_terminal() {
    let redis = Redis::start();
    let mut terminal = run(&redis, "echo up; exec sleep 300");
    terminal.shows("up");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(terminal.pid()), Signal::SIGTERM).unwrap();
    terminal.exits(143);
}
