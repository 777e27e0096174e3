//! Terminals: no shell to continue nxlock, writes from the background, and a shell as the command.

use nix::sys::signal::Signal;

use crate::support::turns::is_renewed;
use crate::support::{Nxlock, Redis, Terminal, eventually, state_of, text_of};

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

#[test]
fn where_nobody_could_continue_it_ctrl_z_stops_neither_the_command_nor_us() {
    let redis = Redis::start();
    let script = "trap 'exit 4' INT; echo is-$((1+1))-up; while :; do sleep 300 & wait; done";
    // nxlock is the terminal's first program, as in a window or under `ssh -t`: no shell does job control for it.
    let mut terminal = Terminal::start(redis.nxlock(["-v", "run", "job", "-t", "6s", "-c", script]));
    terminal.shows("is-2-up");
    terminal.types(CTRL_Z);
    terminal.shows("^Z");
    // What comes now was not under way before.
    terminal.shows("resumed");
    is_renewed(&redis);
    terminal.types(CTRL_C);
    terminal.exits(4);
}

#[test]
fn where_nobody_could_continue_it_a_command_that_suspends_its_group_suspends_nobody() {
    let redis = Redis::start();
    // As an editor does at Ctrl-Z.
    let script = "kill -TSTP 0; echo on-$((1+1)); read x; exit 6";
    let mut terminal = Terminal::start(redis.nxlock(["-v", "run", "job", "-t", "6s", "-c", script]));
    terminal.shows("on-2");
    eventually("nxlock has not been suspended", || terminal.screen().contains("resumed"));
    is_renewed(&redis);
    terminal.types("\n");
    terminal.exits(6);
}

#[test]
fn a_terminal_that_stops_who_writes_from_the_background_does_not_keep_us_from_stopping_the_command() {
    let redis = Redis::start();
    let pid = redis.directory().join("pid");
    let call = Nxlock::by("sh", ["-i"]).env("NXLOCK_SERVER", redis.url()).env("PS1", "$ ").env("TO", &pid);
    let mut shell = Terminal::start(call);
    // In a session of its own, so that it does not stop with the job.
    let script = "setsid sh -c \"echo \\$\\$ > \\$TO; exec sleep 300\" & sleep 300";
    shell.types("stty tostop; echo set-$((1+1))\n");
    shell.shows("set-2");
    shell.types(&format!("nxlock run job -t 12s -c '{script}' &\n"));
    eventually("it runs", || text_of(&pid).ends_with('\n'));
    let command: i32 = text_of(&pid).trim().parse().unwrap();
    redis.delete("lock:job");
    eventually("all of the command is gone", || state_of(command).is_none());
    shell.shows("is lost");
    shell.types("exit\n");
    shell.finish();
}

#[test]
fn a_terminal_that_goes_away_ends_a_command_that_has_stopped_itself() {
    let redis = Redis::start();
    let mut terminal = Terminal::start(redis.nxlock(["run", "job", "-c", "echo pid $$.; kill -STOP $$; sleep 300"]));
    terminal.shows("pid ");
    let command: i32 = terminal.shows(".").parse().unwrap();
    eventually("it has stopped itself", || state_of(command) == Some('T'));
    terminal.hang_up();
    eventually("the command is gone", || state_of(command).is_none());
    eventually("the lock is given back", || !redis.exists("lock:job"));
}

#[test]
fn a_terminal_that_goes_away_ends_what_the_command_of_a_script_has_left_behind() {
    for script_ends in ["sleep 300", "kill -STOP $$; sleep 300"] {
        let redis = Redis::start();
        // The session leader is a shell: the kernel tells nxlock with its group, once that shell has ended or nobody is left
        // who could continue the group.
        let command = format!("setsid sleep 300 & echo left $!.; {script_ends}");
        let script = "\"$@\"; exit 7";
        let words = ["-c", script, "sh", crate::support::program(), "run", "job", "-c", &command];
        let mut terminal = Terminal::start(Nxlock::by("sh", words).env("NXLOCK_SERVER", redis.url()));
        terminal.shows("left ");
        let left: i32 = terminal.shows(".").parse().unwrap();
        terminal.hang_up();
        eventually("what was left behind is gone", || state_of(left).is_none());
        eventually("the lock is given back", || !redis.exists("lock:job"));
    }
}

#[test]
fn a_terminal_that_goes_away_ends_a_shell_that_is_the_command() {
    let redis = Redis::start();
    let mut terminal = shell_as_the_command(&redis);
    let [shell, job] = job_of(&mut terminal);
    terminal.hang_up();
    eventually("both are gone", || state_of(shell).is_none() && state_of(job).is_none());
    eventually("the lock is given back", || !redis.exists("lock:job"));
}

#[test]
fn a_shell_that_is_the_command_does_job_control() {
    let redis = Redis::start();
    let mut terminal = shell_as_the_command(&redis);
    for _ in 0..2 {
        let [_, job] = job_of(&mut terminal);
        for _ in 0..2 {
            // The job owns the terminal: neither the shell nor nxlock receives any of this.
            terminal.types(CTRL_Z);
            eventually("the job is stopped", || state_of(job) == Some('T'));
            terminal.types("echo back-$((5+5))\n");
            terminal.shows("back-10");
            terminal.types("fg\n");
            eventually("the job goes on", || state_of(job) == Some('S'));
        }
        is_renewed(&redis);
        terminal.types(CTRL_C);
        eventually("the job is gone", || state_of(job).is_none());
    }
    terminal.types("exit 5\n");
    terminal.exits(5);
    assert!(!redis.exists("lock:job"));
}

#[test]
fn a_shell_that_is_the_command_is_stopped_by_term() {
    let redis = Redis::start();
    let mut terminal = shell_as_the_command(&redis);
    let [shell, job] = job_of(&mut terminal);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(terminal.pid()), Signal::SIGTERM).unwrap();
    terminal.finish();
    assert!(state_of(shell).is_none() && state_of(job).is_none());
    assert!(!redis.exists("lock:job"));
}

fn shell_as_the_command(redis: &Redis) -> Terminal {
    let call = redis.nxlock(["run", "job", "-t", "6s", "--kill-after", "300ms", "--", "sh", "-i"]).env("PS1", "$ ");
    let mut terminal = Terminal::start(call);
    terminal.types("echo shell-$((1+1))\n");
    terminal.shows("shell-2");
    terminal
}

/// Starts a job in the shell's foreground. Returns the pids of the shell and of the job.
fn job_of(terminal: &mut Terminal) -> [i32; 2] {
    terminal.types("sh -c 'echo pids $PPID $$ up; exec sleep 300'\n");
    // The terminal echoes the typed line, with its dollar signs.
    loop {
        let between = terminal.shows(" up");
        let numbers: Vec<i32> = between.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        if let [shell, job] = numbers[..] {
            return [shell, job];
        }
    }
}
