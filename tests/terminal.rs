//! At a terminal: Ctrl-C, Ctrl-Z, reading, resizing.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{
    Authority, Local, Nxlock, Redis, Terminal, children_of, eventually, eventually_some, is_alive, may_unshare,
    name_of, parent_of, send, state_of, text_of,
};

const CTRL_C: &str = "\x03";
const CTRL_BACKSLASH: &str = "\x1c";
const CTRL_Z: &str = "\x1a";
const CTRL_D: &str = "\x04";

fn run(redis: &Redis, script: &str) -> Terminal {
    Terminal::start(redis.nxlock(["run", "job", "-c", script]))
}

/// Starts a shell with job control, at a terminal.
fn shell(redis: &Redis) -> Terminal {
    shell_with(redis, &[])
}

fn shell_with(redis: &Redis, variables: &[(&str, &str)]) -> Terminal {
    let call = Nxlock::by("sh", ["-i"]).env("NXLOCK_SERVER", redis.url()).env("PS1", "$ ");
    let mut shell = Terminal::start(variables.iter().fold(call, |call, (name, value)| call.env(name, value)));
    // The echo of the input does not contain the sum: only the shell computes it.
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

/// Counts INT, and exits with 8 at the third.
const COUNTS: &str = "n=0; trap 'n=$((n+1)); echo int-$n' INT; trap 'echo got-USR1' USR1; echo up
    while [ $n -lt 3 ]; do sleep 0.01; done; exit 8";

#[test]
fn a_command_that_survives_ctrl_c_goes_on() {
    let redis = Redis::start();
    let mut terminal = run(&redis, COUNTS);
    terminal.shows("up");
    let nxlock = terminal.pid();
    supervises(&mut terminal, nxlock);
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
    let mut terminal = run(&redis, COUNTS);
    terminal.shows("waiting for \"job\"");
    redis.delete("lock:job");
    terminal.shows("up");
    let nxlock = terminal.pid();
    supervises(&mut terminal, nxlock);
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
    // TTOU would stop a background process that changes them.
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
    // The terminal echoes what is typed, dollar signs and all.
    let pids = loop {
        let between = shell.shows(" up");
        let numbers: Vec<i32> = between.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        if let [command, guard] = numbers[..] {
            break [command, parent_of(guard)];
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
fn ctrl_z_during_a_wait_does_not_stop_the_command_after_it() {
    let redis = Redis::start();
    let mut shell = shell(&redis);
    redis.hang();
    shell.types("nxlock run job --server-timeout 20s -- sh -c 'echo ran-$((3+4))'\n");
    let child_of = |parent: i32, name: &str| {
        let is_named = |pid: &i32| name_of(*pid) == name;
        eventually_some(name, || children_of(parent).into_iter().find(is_named))
    };
    let nxlock = child_of(shell.pid(), "nxlock");
    // The process that is to become the command is in nxlock's group, and has the signal pending.
    child_of(child_of(nxlock, "nx-guard"), "nx-guard");
    shell.types(CTRL_Z);
    eventually("it is stopped", || state_of(nxlock) == Some('T'));
    send(nxlock, Signal::SIGCONT);
    redis.resume();
    shell.shows("ran-7");
    eventually("the lock is given back", || !redis.exists("lock:job"));
    // The shell warns of a job that it believes to be stopped.
    shell.types("exit\nexit\n");
    shell.finish();
}

#[test]
fn a_job_in_the_background_can_be_brought_to_the_foreground() {
    let redis = Redis::start();
    let mut shell = shell(&redis);
    shell.types("nxlock run job -- sh -c 'echo up-$((1+3)); read x; echo read-$x' &\n");
    shell.shows("up-4");
    // It reads in the background, and TTIN stops it.
    shell.types("fg\n");
    // The shell prints the command that it continues, quoted in its own way.
    shell.shows("echo read-\\$x");
    shell.types("words\n");
    shell.shows("read-words");
    shell.types("exit\n");
    shell.finish();
}

#[test]
fn a_job_that_is_continued_while_it_gets_ready_to_be_suspended_goes_on() {
    let redis = Redis::start();
    // It does not stop, and nxlock gives it time to.
    let script = r"
import os, signal, time
continued = []
signal.signal(signal.SIGTSTP, lambda *_: os.write(1, b'ready\n'))
signal.signal(signal.SIGCONT, lambda *_: continued.append(1))
print('up', flush=True)
while not continued: time.sleep(0.01)
print('read', input())
";
    let mut shell = shell_with(&redis, &[("SCRIPT", script)]);
    shell.types("nxlock run job -- python3 -c \"$SCRIPT\" &\n");
    shell.shows("up");
    shell.types("kill -TSTP %1\n");
    shell.shows("ready");
    shell.types("fg\n");
    shell.types("words\n");
    shell.shows("read words");
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
    send(terminal.pid(), Signal::SIGTERM);
    terminal.exits(143);
}

/// Starts two processes that the terminal's signals do not affect: one in a session of its own, one that ignores them.
const DEAF: &str = r#"( trap '' TERM; exec setsid sh -c 'trap "" HUP; echo $$ >> "$PIDS"; exec sleep 300' ) &
    sh -c 'trap "" INT QUIT TSTP; echo $$ >> "$PIDS"; while :; do sleep 300; done' &"#;

fn pids(file: &std::path::Path, count: usize) -> Vec<i32> {
    let read = || text_of(file).lines().filter_map(|line| line.parse().ok()).collect::<Vec<i32>>();
    eventually("all are there", || read().len() == count);
    read()
}

#[test]
fn what_a_command_that_dies_of_ctrl_c_has_left_is_gone_before_the_lock_is() {
    // bash does not die of QUIT.
    for (authority, shell, key, signal) in [
        (&Redis::start() as &dyn Named, "bash", CTRL_C, Signal::SIGINT),
        (&Redis::start(), "sh", CTRL_BACKSLASH, Signal::SIGQUIT),
        (&Local::start(), "bash", CTRL_C, Signal::SIGINT),
    ] {
        let file = authority.place().join("pids");
        let script = format!("ulimit -c 0; {DEAF} wait");
        let call =
            authority.call(&["run", "job", "--kill-after", "500ms", "--", shell, "-c", &script]).env("PIDS", &file);
        let mut terminal = Terminal::start(call);
        let left = pids(&file, 2);
        let mut next = authority.call(&["run", "job", "-c", "echo up; read x"]).start();
        next.says("waiting for");
        terminal.types(key);
        next.line("up");
        assert!(!left.into_iter().any(is_alive), "the next one runs beside what was left");
        terminal.dies_of(signal);
        next.finish();
    }
}

/// The dyn-compatible part of [`Authority`].
trait Named {
    fn place(&self) -> std::path::PathBuf;
    fn call(&self, args: &[&str]) -> Nxlock;
}

impl<A: Authority> Named for A {
    fn place(&self) -> std::path::PathBuf {
        self.directory()
    }

    fn call(&self, args: &[&str]) -> Nxlock {
        self.nxlock(args.iter().copied())
    }
}

#[test]
fn ctrl_z_stops_what_does_not_hear_it_and_fg_continues_all() {
    let redis = Redis::start();
    let file = redis.directory().join("pids");
    let mut shell = shell_with(&redis, &[("PIDS", file.to_str().unwrap()), ("DEAF", DEAF)]);
    shell.types("nxlock run job -c 'eval \"$DEAF\" echo $$ >> $PIDS; read x; exit 6'; echo status-$?\n");
    let tree = pids(&file, 3);
    let all_are = |stopped: bool| tree.iter().all(|pid| (state_of(*pid) == Some('T')) == stopped);
    for _ in 0..2 {
        shell.types(CTRL_Z);
        eventually("all are stopped", || all_are(true));
        shell.types("echo back-$((5+5))\n");
        shell.shows("back-10");
        assert!(all_are(true), "they stay so");
        shell.types("fg\n");
        eventually("all go on", || all_are(false));
    }
    shell.types("words\n");
    eventually("the command has ended", || !redis.exists("lock:job"));
    for pid in tree {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    shell.types("exit\n");
    shell.finish();
}

#[test]
fn suspended_for_longer_than_its_lease_a_command_never_goes_on() {
    let redis = Redis::start();
    let file = redis.directory().join("pids");
    let mut shell = shell_with(&redis, &[("PIDS", file.to_str().unwrap()), ("DEAF", DEAF)]);
    // A job that is slow to begin has its lock until it is suspended.
    shell.types("nxlock run job -t 4s -c 'eval \"$DEAF\" echo $$ >> $PIDS; read x; exit 6'\n");
    let tree = pids(&file, 3);
    shell.types(CTRL_Z);
    eventually("they are stopped", || tree.iter().all(|pid| matches!(state_of(*pid), Some('T') | None)));
    shell.types("echo back-$((5+5))\n");
    shell.shows("back-10");
    // Nobody has continued them, and they do not delay the next holder.
    redis.nxlock(["run", "job", "--", "true"]).run().exits(0);
    assert!(tree.into_iter().all(|pid| !is_alive(pid)));
    shell.types("fg; echo status-$?\n");
    shell.shows("is lost");
    shell.shows("status-76");
    shell.types("exit\n");
    shell.finish();
}

#[test]
fn an_editor_has_the_time_to_give_the_terminal_back() {
    let redis = Redis::start();
    // It handles TSTP, and takes a while until it stops itself. It is a child of the command.
    let editor = redis.directory().join("editor");
    let script = "trap 'sleep 0.1; echo given-$((3+3)); kill -STOP $$; echo taken-$((4+4))' TSTP
        echo up-$((1+1)); while :; do :; done";
    std::fs::write(&editor, script).unwrap();
    let mut shell = shell_with(&redis, &[("EDITOR", editor.to_str().unwrap())]);
    shell.types("nxlock run job -- sh -c 'sh \"$EDITOR\"; true'\n");
    shell.shows("up-2");
    shell.types(CTRL_Z);
    shell.shows("given-6");
    shell.types("echo back-$((5+5))\n");
    shell.shows("back-10");
    shell.types("fg\n");
    shell.shows("taken-8");
    shell.types(CTRL_C);
    shell.types("exit\n");
    shell.finish();
}

#[test]
fn a_key_is_not_taken_for_a_signal_that_comes_after_it() {
    let redis = Redis::start();
    let script = "trap 'echo got-INT' INT; trap 'exit 3' TERM; echo up; while :; do sleep 300 & wait; done";
    let mut terminal = Terminal::start(redis.nxlock(["run", "job", "--", "bash", "-c", script]));
    terminal.shows("up");
    for _ in 0..3 {
        terminal.types(CTRL_C);
        terminal.shows("got-INT");
        eventually("nxlock has had it", || !is_pending(terminal.pid(), Signal::SIGINT));
        send(terminal.pid(), Signal::SIGINT);
        terminal.shows("got-INT");
    }
    send(terminal.pid(), Signal::SIGTERM);
    terminal.exits(3);
}

/// Returns the process by which nxlock finds out who else got a signal.
fn group_member(nxlock: i32) -> i32 {
    eventually_some("nxlock has it", || children_of(nxlock).into_iter().find(|child| name_of(*child) == "job-group"))
}

#[test]
fn a_signal_to_the_whole_job_comes_to_the_command_once_though_a_process_of_nxlock_does_not_get_to_run() {
    let redis = Redis::start();
    let script = "trap 'echo got-HUP' HUP; trap 'echo got-USR1' USR1; echo up; while :; do sleep 300 & wait; done";
    let mut terminal = Terminal::start(redis.nxlock(["run", "job", "--", "bash", "-c", script]));
    terminal.shows("up");
    let (job, nxlock, member) = (-terminal.pid(), terminal.pid(), group_member(terminal.pid()));
    supervises(&mut terminal, nxlock);
    let mut comes = |whom: i32, times: usize| {
        send(whom, Signal::SIGHUP);
        terminal.shows("got-HUP");
        // Handled after all signals before it.
        send(nxlock, Signal::SIGUSR1);
        terminal.shows("got-USR1");
        assert_eq!(terminal.screen().matches("got-HUP").count(), times, "{}", terminal.screen());
    };
    send(member, Signal::SIGSTOP);
    eventually("the member of the group is stopped", || state_of(member) == Some('T'));
    comes(job, 1);
    // nxlock does not know whether the group got this one, and passes it on.
    comes(nxlock, 2);
    send(member, Signal::SIGCONT);
    eventually("it has taken what was for the group", || !is_pending(member, Signal::SIGHUP));
    comes(nxlock, 3);
    comes(job, 4);
    send(job, Signal::SIGKILL);
    terminal.dies_of(Signal::SIGKILL);
    eventually("the lock is given back", || !redis.exists("lock:job"));
}

#[test]
fn a_job_that_is_continued_at_once_goes_on_though_nxlock_cannot_tell_that_all_of_it_was_to_stop() {
    let redis = Redis::start();
    let script = "trap 'echo got-USR1' USR1; echo up; while :; do sleep 300 & wait; done";
    let mut shell = shell_with(&redis, &[("SCRIPT", script)]);
    shell.types("nxlock run job -- bash -c \"$SCRIPT\"\n");
    shell.shows("up");
    let nxlock =
        eventually_some("it runs", || children_of(shell.pid()).into_iter().find(|pid| name_of(*pid) == "nxlock"));
    supervises(&mut shell, nxlock);
    let member = group_member(nxlock);
    send(member, Signal::SIGSTOP);
    eventually("the member of the group is stopped", || state_of(member) == Some('T'));
    send(-nxlock, Signal::SIGTSTP);
    eventually("nxlock has had it", || !is_pending(nxlock, Signal::SIGTSTP));
    // The kernel discards the TSTP that is pending for the member of the group, by which nxlock is to tell.
    send(-nxlock, Signal::SIGCONT);
    send(nxlock, Signal::SIGUSR1);
    shell.shows("got-USR1");
    shell.types(CTRL_C);
    shell.types("exit\n");
    shell.finish();
}

/// Waits until nxlock knows that the command, which tells of USR1, has begun. Before that, nxlock does not know which
/// signals the command has missed, and passes all of them on.
fn supervises(terminal: &mut Terminal, nxlock: i32) {
    send(nxlock, Signal::SIGUSR1);
    terminal.shows("got-USR1");
}

/// Returns whether a signal is pending for a process, proc_pid_status(5).
fn is_pending(pid: i32, signal: Signal) -> bool {
    let status = text_of(format!("/proc/{pid}/status").as_ref());
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).expect("it runs").trim();
    u64::from_str_radix(pending, 16).unwrap() >> (signal as i32 - 1) & 1 == 1
}

#[test]
fn a_signal_to_the_whole_job_comes_to_the_command_once() {
    let redis = Redis::start();
    let script = "for s in INT QUIT HUP USR1 USR2 ALRM TERM; do trap \"echo got-$s\" $s; done; \
                  echo up; while :; do sleep 300 & wait; done";
    let mut terminal = Terminal::start(redis.nxlock(["run", "job", "--kill-after", "1h", "--", "bash", "-c", script]));
    terminal.shows("up");
    let nxlock = terminal.pid();
    supervises(&mut terminal, nxlock);
    let group = -terminal.pid();
    let signals = [
        (Signal::SIGINT, "INT"),
        (Signal::SIGQUIT, "QUIT"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
        (Signal::SIGALRM, "ALRM"),
        (Signal::SIGTERM, "TERM"),
    ];
    for (signal, name) in signals {
        send(group, signal);
        terminal.shows(&format!("got-{name}"));
        // Until nxlock has read the signal, the kernel merges another one with it.
        eventually("nxlock has had it", || !is_pending(terminal.pid(), signal));
        // nxlock passes on a signal that is sent to it alone.
        send(terminal.pid(), signal);
        terminal.shows(&format!("got-{name}"));
    }
    // Handled after all signals before it.
    send(terminal.pid(), Signal::SIGUSR1);
    terminal.shows("got-USR1");
    let screen = terminal.screen();
    for (_, name) in signals {
        let times = if name == "USR1" { 4 } else { 2 };
        assert_eq!(screen.matches(&format!("got-{name}")).count(), times, "{name}:\n{screen}");
    }
    send(group, Signal::SIGKILL);
    terminal.dies_of(Signal::SIGKILL);
    eventually("the lock is given back", || !redis.exists("lock:job"));
}

#[test]
fn a_command_that_uses_the_terminal_from_the_background_goes_on_in_the_foreground() {
    let redis = Redis::start();
    let mut shell = shell(&redis);
    // Like an editor that is started with `&`: TTOU stops it, and the shell has to notice.
    shell.types("nxlock run job -- sh -c 'echo up-$((1+3)); stty sane; echo sane-$((2+3)); read x; echo read-$x' &\n");
    shell.shows("up-4");
    eventually("the shell knows that it has stopped", || {
        shell.types("jobs\n");
        shell.screen().contains("topped")
    });
    shell.types("fg\n");
    shell.shows("sane-5");
    shell.types("words\n");
    shell.shows("read-words");
    shell.types("exit\n");
    shell.finish();
}

#[test]
fn a_command_that_stops_itself_gives_the_shell_back() {
    let redis = Redis::start();
    let mut shell = shell(&redis);
    for signal in ["STOP", "TSTP"] {
        shell.types(&format!("nxlock run job -- sh -c 'kill -{signal} $$; echo on-$((2+3))'\n"));
        shell.shows("topped");
        shell.types("echo back-$((5+5))\n");
        shell.shows("back-10");
        shell.types("fg\n");
        shell.shows("on-5");
    }
    shell.types("exit\n");
    shell.finish();
}

#[test]
fn a_terminal_without_dev_tty_is_one_all_the_same() {
    if !may_unshare(&["--mount"]) {
        return;
    }
    let redis = Redis::start();
    let hide = r#"unshare --mount sh -c 'mount -t tmpfs none /dev && exec "$@"' sh "$@""#;
    let script = "echo group $(ps -o pgid= -p $$) $(ps -o pgid= -p $(ps -o ppid= -p $PPID)) end";
    let words = ["-c", hide, "sh", crate::support::program(), "run", "job", "-c", script];
    let mut terminal = Terminal::start(redis.lead(Nxlock::by("sh", words)));
    terminal.shows("group ");
    let groups = terminal.shows(" end");
    let [command, nxlock] = groups.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{groups}") };
    assert_eq!(command, nxlock, "the command stays in the group that the terminal talks to");
    terminal.exits(0);
}

#[test]
fn a_waiter_in_the_background_does_not_draw_over_the_prompt() {
    let redis = Redis::start();
    redis.put("lock:job", b"somebody", None);
    let mut shell = shell(&redis);
    shell.types("nxlock run job -- echo ran-it &\n");
    eventually("it waits", || redis.exists("{lock:job}:queue"));
    shell.types("echo prompt-$((5+5))\n");
    shell.shows("prompt-10");
    assert!(!shell.screen().contains("waiting for"), "{}", shell.screen());
    shell.types("fg\n");
    shell.shows("waiting for \"job\"");
    redis.delete("lock:job");
    shell.shows("ran-it");
    shell.types("exit\n");
    shell.finish();
}
