//! The guard between nxlock and its command: after any kill, stop or keystroke, no process outlives the lock.

use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::turns::{Turn, break_it, is_free, lease_left};
use crate::support::{
    Authority, Local, MainThread, Nxlock, Redis, Running, Terminal, built, children_of, eventually, freeze, is_alive,
    lasts, may_unshare, name_of, now, parent_of, program, send, state_of, text_of, we_are_root,
};

/// A command with a child in its group, a child in a session of its own, and a child that was forked twice and has an
/// empty environment. All ignore TERM, HUP, INT and QUIT; each writes its pid to `$PIDS`.
const TREE: &str = r#"
    deaf='trap "" TERM HUP INT QUIT; echo $$ >> "$0"; while :; do sleep 300; done'
    sh -c "$deaf" "$PIDS" &
    setsid sh -c "$deaf" "$PIDS" &
    ( setsid env -i sh -c "$deaf" "$PIDS" & )
    trap '' TERM HUP INT QUIT; echo $$ >> "$PIDS"; echo up; while :; do sleep 300; done"#;
const MEMBERS: usize = 4;

/// A run of [`TREE`].
struct Tree {
    running: Running,
    pids: Vec<i32>,
}

impl Tree {
    fn start(authority: &impl Authority, options: &[&str]) -> Tree {
        let file = authority.directory().join("pids");
        let _ = fs::remove_file(&file);
        let words = ["run", "job"].iter().chain(options).chain(&["-c", TREE]).copied();
        let running = authority.nxlock(words).env("PIDS", &file).start();
        Tree { running, pids: members(&file) }
    }

    fn command(&self) -> i32 {
        let is_command =
            |pid: &i32| name_of(parent_of(*pid)) == "nx-guard" && text_of_status(*pid, "NSsid") != pid.to_string();
        self.pids.iter().copied().find(is_command).expect("the guard has a child")
    }

    fn guard(&self) -> i32 {
        parent_of(self.command())
    }

    fn is_gone(&self) -> bool {
        !self.pids.iter().any(|pid| is_alive(*pid))
    }
}

/// Kills what a failed test leaves running.
impl Drop for Tree {
    fn drop(&mut self) {
        for pid in self.pids.iter().filter(|pid| is_alive(**pid)) {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
    }
}

fn members(file: &std::path::Path) -> Vec<i32> {
    eventually("all of the tree is there", || pids_in(file).len() == MEMBERS);
    pids_in(file)
}

fn pids_in(file: &std::path::Path) -> Vec<i32> {
    text_of(file).lines().filter_map(|line| line.parse().ok()).collect()
}

fn text_of_status(pid: i32, field: &str) -> String {
    let status = text_of(format!("/proc/{pid}/status").as_ref());
    let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.unwrap_or_default().trim().to_owned()
}

/// Asserts that the next holder starts once the tree is gone, long before the lease would have expired.
#[track_caller]
fn the_next_starts_after(authority: &impl Authority, tree: &Tree) {
    let next = Turn::had(authority, &[]);
    assert!(tree.is_gone(), "the next one runs beside what was left of the tree");
    next.leaves();
}

fn kills_leave_nothing(authority: &impl Authority) {
    let mut tree = Tree::start(authority, &["-t", "1h"]);
    tree.running.signal(Signal::SIGKILL);
    the_next_starts_after(authority, &tree);
    eventually("it is dead", || tree.running.has_ended());

    let mut tree = Tree::start(authority, &["-t", "1h"]);
    send(tree.guard(), Signal::SIGKILL);
    the_next_starts_after(authority, &tree);
    eventually("it ends", || tree.running.has_ended());

    let mut tree = Tree::start(authority, &["-t", "1h"]);
    // nxlock leads a session here, and so a process group; its guard is in neither.
    send(-tree.running.pid(), Signal::SIGKILL);
    the_next_starts_after(authority, &tree);
    eventually("it is dead", || tree.running.has_ended());
}

#[test]
fn nothing_outlives_a_kill_of_nxlock_of_its_guard_or_of_its_group() {
    kills_leave_nothing(&Redis::start());
    kills_leave_nothing(&Local::start());
}

/// A program of chains of processes, each of which forks the next one and exits, at once, behind whatever else wants to
/// run. A chain that nobody kills for twenty seconds creates the file of the first argument.
const CHAINS: &str = r#"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
int main(int count, char **words) {
    signal(SIGTERM, SIG_IGN);
    if (nice(10) < 0) return 1;
    time_t ends = time(NULL) + 20;
    for (int chain = 0; chain < 4; chain++)
        if (fork() == 0) {
            while (time(NULL) < ends)
                if (fork() > 0) _exit(0);
            open(words[1], O_CREAT | O_WRONLY, 0600);
            _exit(0);
        }
    printf("up\n");
    fflush(stdout);
    for (;;) pause();
}"#;

fn guard_of(running: &Running) -> i32 {
    let is_guard = |pid: &i32| name_of(*pid) == "nx-guard";
    children_of(running.pid()).into_iter().find(is_guard).expect("it has a guard")
}

fn chains_are_killed(authority: &impl Authority, options: &[&str], kill: impl Fn(&Running)) {
    let outlived = authority.directory().join("outlived");
    let program = built(&authority.directory(), CHAINS);
    let command = ["--", program.to_str().unwrap(), outlived.to_str().unwrap()];
    let words = ["run", "job"].iter().chain(options).chain(&command).copied();
    let mut running = authority.nxlock(words).start();
    running.line("up");
    kill(&running);
    Turn::had(authority, &[]).leaves();
    assert!(!outlived.exists(), "a chain has outrun the kills");
    let of_nxlock = |pid: &i32| name_of(*pid) == "nx-guard";
    eventually("only its guard is left", || running.descendants().iter().all(of_nxlock));
}

/// Options of a run that kills what it stops at once, long before its lease ends.
const AT_ONCE: [&str; 4] = ["-t", "1h", "--kill-after", "0s"];

#[test]
fn processes_that_fork_and_exit_do_not_outrun_the_guard() {
    let kill = |running: &Running| {
        let guard = guard_of(running);
        eventually("processes have ended that nobody has reaped", || {
            // nxlock continues a stopped guard with each instruction, and may have one for it now.
            send(guard, Signal::SIGSTOP);
            children_of(guard).len() > 500
        });
        running.signal(Signal::SIGKILL);
    };
    chains_are_killed(&Redis::start(), &AT_ONCE, kill);
    chains_are_killed(&Local::start(), &AT_ONCE, kill);
}

#[test]
fn processes_that_fork_and_exit_do_not_outrun_the_guard_of_a_frozen_nxlock() {
    chains_are_killed(&Redis::start(), &["-t", "2s"], |running| freeze(running.pid()));
    chains_are_killed(&Local::start(), &["-t", "2s"], |running| freeze(running.pid()));
}

#[test]
fn processes_that_fork_and_exit_do_not_outrun_nxlock() {
    let stop = |running: &Running| running.signal(Signal::SIGTERM);
    chains_are_killed(&Redis::start(), &AT_ONCE, stop);
    let kill_guard = |running: &Running| send(guard_of(running), Signal::SIGKILL);
    chains_are_killed(&Redis::start(), &AT_ONCE, kill_guard);
}

#[test]
fn a_kill_by_timeout_leaves_nothing() {
    let redis = Redis::start();
    let is_whole = |seconds: &str| {
        let file = redis.directory().join(format!("pids of {seconds}"));
        let call = redis.nxlock(["run", "job", "-t", "1h", "-c", TREE]).env("PIDS", &file);
        let mut running = call.under(["setsid", "-w", "timeout", "-s", "KILL", seconds]).start();
        eventually("all of the tree is there, or it is killed", || {
            pids_in(&file).len() == MEMBERS || running.has_ended()
        });
        let pids = pids_in(&file);
        (pids.len() == MEMBERS).then(|| Tree { running, pids })
    };
    // On a busy machine, the tree may not be whole after three seconds.
    let tree = is_whole("3").or_else(|| is_whole("12")).expect("it is whole in time");
    the_next_starts_after(&redis, &tree);
}

#[test]
fn a_kill_of_its_group_at_a_terminal_leaves_nothing() {
    let redis = Redis::start();
    let file = redis.directory().join("pids");
    let mut terminal = Terminal::start(redis.nxlock(["run", "job", "-t", "1h", "-c", TREE]).env("PIDS", &file));
    let pids = members(&file);
    // The command is in the same group.
    send(-terminal.pid(), Signal::SIGKILL);
    Turn::had(&redis, &[]).leaves();
    assert!(!pids.into_iter().any(is_alive));
    terminal.dies_of(Signal::SIGKILL);
}

#[test]
fn the_guard_leads_a_session_of_its_own_and_hears_no_signal() {
    let local = Local::start();
    let mut tree = Tree::start(&local, &["-t", "1h"]);
    let guard = tree.guard();
    assert_eq!(name_of(guard), "nx-guard");
    assert_eq!(parent_of(guard), tree.running.pid());
    assert_eq!(text_of_status(guard, "NSsid"), guard.to_string());
    let blocked = u64::from_str_radix(&text_of_status(guard, "SigBlk"), 16).unwrap();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGTSTP, Signal::SIGUSR1, Signal::SIGALRM] {
        assert!(blocked >> (signal as i32 - 1) & 1 == 1, "{signal}: {blocked:x}");
    }
    // Of the descriptors of nxlock's caller, the guard keeps only the standard streams.
    let open = fs::read_dir(format!("/proc/{guard}/fd")).unwrap().flatten();
    let open: Vec<_> = open.map(|fd| fs::read_link(fd.path()).unwrap_or_default()).collect();
    assert!(open.len() <= 7, "{open:?}");
    // If both were killed, as when this test ends, what is left of the tree would keep the lock.
    tree.running.signal(Signal::SIGKILL);
    the_next_starts_after(&local, &tree);
    eventually("it is dead", || tree.running.has_ended());
}

#[test]
fn a_run_of_which_both_die_at_once_still_loses_its_command() {
    let redis = Redis::start();
    let mut running =
        redis.nxlock(["run", "job", "-t", "3s", "-c", "echo pid $$; trap '' HUP; exec sleep 300"]).start();
    let command: i32 = running.line("pid ").parse().unwrap();
    let guard = parent_of(command);
    // Neither can notice the other's end.
    freeze(running.pid());
    send(guard, Signal::SIGKILL);
    send(running.pid(), Signal::SIGKILL);
    eventually("the command is gone", || !is_alive(command));
    eventually("the lease has ended", || is_free(&redis));
}

#[test]
fn a_frozen_guard_wakes_up_when_nxlock_is_killed() {
    fn does(authority: &impl Authority) {
        let mut tree = Tree::start(authority, &["-t", "1h"]);
        freeze(tree.guard());
        tree.running.signal(Signal::SIGKILL);
        the_next_starts_after(authority, &tree);
        eventually("it is dead", || tree.running.has_ended());
    }
    does(&Redis::start());
    does(&Local::start());
}

fn a_frozen_nxlock_outlives_its_command(authority: &impl Authority) {
    let tree = Tree::start(authority, &["-t", "4s"]);
    freeze(tree.running.pid());
    let next = Turn::had(authority, &[]);
    assert!(tree.is_gone(), "the next one runs beside what was left of the tree");
    tree.running.signal(Signal::SIGCONT);
    next.leaves();
}

#[test]
fn a_command_whose_nxlock_is_frozen_is_killed_before_its_lease_ends() {
    // At the same time: each takes as long as a lease.
    std::thread::scope(|scope| {
        scope.spawn(|| a_frozen_nxlock_outlives_its_command(&Redis::start()));
        scope.spawn(|| a_frozen_nxlock_outlives_its_command(&Local::start()));
    });
}

#[test]
fn a_frozen_nxlock_that_wakes_up_tells_of_the_loss() {
    let redis = Redis::start();
    let mut running = redis.nxlock(["run", "job", "-t", "3s", "-c", "echo pid $$; exec sleep 300"]).start();
    let command: i32 = running.line("pid ").parse().unwrap();
    freeze(running.pid());
    eventually("the command is gone", || !is_alive(command));
    eventually("the lease has ended", || is_free(&redis));
    running.signal(Signal::SIGCONT);
    running.finish().exits(76).says("\"job\" is lost");
}

/// Stops the main thread of an nxlock, which tells the guard of renewals. Another thread goes on renewing.
fn main_thread_stops(running: &Running) -> MainThread {
    MainThread::stopped(running.pid()).expect("a child of this process")
}

#[test]
fn a_command_that_its_guard_has_killed_in_time_did_not_end_by_itself() {
    let local = Local::start();
    let mut running = local.nxlock(["run", "job", "-t", "3s", "-c", "echo pid $$; exec sleep 300"]).start();
    let command: i32 = running.line("pid ").parse().unwrap();
    let main = main_thread_stops(&running);
    eventually("its guard has killed the command", || !is_alive(command));
    main.goes_on();
    running.finish().exits(76).says("it could not be renewed in time");
    assert!(is_free(&local));
}

#[test]
fn a_lease_that_was_renewed_while_the_main_thread_had_no_processor_is_not_lost() {
    let is_judged = (0..3).any(|_| {
        let local = Local::start();
        let began = now();
        let script = "trap 'exit 3' USR1; echo pid $$; while :; do sleep 0.05; done";
        let mut running = local.nxlock(["run", "job", "-t", "12s", "-c", script]).start();
        let command: i32 = running.line("pid ").parse().unwrap();
        let main = main_thread_stops(&running);
        let stopped = now();
        // Three quarters of a lease that nobody renews are for the command. Then nxlock stops it, and its guard kills it
        // a quarter of a second before the end.
        eventually("nxlock would stop it", || stopped.elapsed() > Duration::from_millis(9100));
        running.signal(Signal::SIGUSR1);
        main.goes_on();
        let done = running.finish();
        // On a busy machine, the guard was earlier.
        let is_late = began.elapsed() > Duration::from_secs(11);
        assert!(done.status.code() == Some(3) || is_late, "{}", done.both());
        eventually("the command is gone", || !is_alive(command));
        done.status.code() == Some(3)
    });
    assert!(is_judged, "the main thread was always late");
}

#[test]
fn what_a_command_leaves_behind_is_not_stopped_for_who_asks_when_the_command_has_ended() {
    let redis = Redis::start();
    let script = "(trap '' HUP; exec sleep 300) > /dev/null 2>&1 & echo left $!; echo pid $$; read x; exit 0";
    let (reader, writer) = std::io::pipe().unwrap();
    let call = redis.nxlock(["run", "job", "-t", "1h", "--descendants", "leave", "-c", script]);
    let mut running = call.stdin_from(reader).start();
    let left: i32 = running.line("left ").parse().unwrap();
    let command: i32 = running.line("pid ").parse().unwrap();
    let guard = parent_of(command);
    let main = main_thread_stops(&running);
    main.is_asked_meanwhile(&redis);
    drop(writer);
    eventually("the command has ended", || !is_alive(command));
    eventually("the guard has told that", || state_of(guard) == Some('S'));
    main.goes_on();
    running.finish().exits(0).says_nothing();
    assert!(is_alive(left));
    send(left, Signal::SIGKILL);
}

#[test]
fn a_frozen_guard_does_not_keep_nxlock_from_stopping_the_tree_in_time() {
    let redis = Redis::start();
    let tree = Tree::start(&redis, &["-t", "10s", "--kill-after", "200ms"]);
    let guard = tree.guard();
    freeze(guard);
    redis.delete("lock:job");
    eventually("all of it is gone", || tree.is_gone());
}

#[test]
fn renewals_are_told_to_the_guard() {
    let redis = Redis::start();
    let (reader, writer) = std::io::pipe().unwrap();
    // The command runs for several times the lease that the guard was first told of.
    let call = redis.nxlock(["-v", "run", "job", "-t", "6s", "-c", "echo up; read x; exit 4"]).stdin_from(reader);
    let mut running = call.start();
    running.line("up");
    eventually("its lease would have ended twice", || {
        let said = running.stderr();
        assert!(!said.contains("lost"), "{said}");
        // The first comes at once, and the others every two seconds.
        said.matches("renewed for 6s").count() > 6
    });
    drop(writer);
    running.finish().exits(4);
}

#[test]
fn a_loss_that_is_put_up_with_is_so_for_the_guard_too() {
    let redis = Redis::start();
    let (reader, writer) = std::io::pipe().unwrap();
    let call = redis.nxlock(["run", "job", "-t", "3s", "--on-lost", "continue", "-c", "echo up; read x; exit 4"]);
    let mut running = call.stdin_from(reader).start();
    running.line("up");
    freeze(running.pid());
    eventually("the lease has ended", || is_free(&redis));
    running.signal(Signal::SIGCONT);
    running.says("\"job\" is lost");
    drop(writer);
    running.finish().exits(76);
}

fn stays_locked_for_the_rest(authority: &impl Authority) {
    let words = ["run", "job", "-t", "1h", "--at-least", "1m", "-c", "echo pid $$; exec sleep 300"];
    let mut running = authority.nxlock(words).start();
    let command: i32 = running.line("pid ").parse().unwrap();
    running.signal(Signal::SIGKILL);
    eventually("the command is gone", || !is_alive(command));
    // The lease is longer than a minute; without --at-least the lock would be free.
    eventually("the rest of the minute is left", || lease_left(authority).as_secs() <= 60);
    assert!(!is_free(authority));
    authority.nxlock(["run", "job", "-n", "--", "true"]).run().exits(75);
    eventually("it is dead", || running.has_ended());
    break_it(authority);
}

fn stays_locked_though_the_guard_is_killed(authority: &impl Authority) {
    for descendants in ["leave", "wait", "stop"] {
        let options = ["--at-least", "1m", "--descendants", descendants];
        let words = ["run", "job", "-t", "1h"].iter().chain(&options).chain(&["-c", "echo pid $$; exec sleep 300"]);
        let mut running = authority.nxlock(words.copied()).start();
        let command: i32 = running.line("pid ").parse().unwrap();
        send(parent_of(command), Signal::SIGKILL);
        running.finish().exits(70).says("its guard (process ");
        assert!(!is_alive(command));
        let left = lease_left(authority);
        assert!(!left.is_zero() && left.as_secs() <= 60, "{descendants}: {left:?}");
        authority.nxlock(["run", "job", "-n", "--", "true"]).run().exits(75);
        break_it(authority);
    }
}

#[test]
fn a_run_whose_guard_is_killed_keeps_the_name_for_as_long_as_it_was_asked_to() {
    stays_locked_though_the_guard_is_killed(&Redis::start());
    stays_locked_though_the_guard_is_killed(&Local::start());
}

#[test]
fn a_command_that_never_began_keeps_no_name() {
    fn keeps_none(authority: &impl Authority) {
        authority.nxlock(["run", "job", "--at-least", "1m", "--", "/no/such/program"]).run().exits(127);
        assert!(is_free(authority));
    }
    keeps_none(&Redis::start());
    keeps_none(&Local::start());
}

#[test]
fn a_killed_run_keeps_the_name_for_as_long_as_it_was_asked_to() {
    stays_locked_for_the_rest(&Redis::start());
    stays_locked_for_the_rest(&Local::start());
}

#[test]
fn where_proc_is_that_of_another_pid_namespace_nothing_outlives_a_killed_nxlock() {
    let options: &[&str] = if we_are_root() { &[] } else { &["--user", "--map-current-user"] };
    let options = [options, &["--pid", "--fork"]].concat();
    if !may_unshare(&options) {
        return;
    }
    let redis = Redis::start();
    let file = redis.directory().join("beats");
    // The pids of the namespace mean nothing outside: what a process writes shows that it is alive.
    let deaf = r#"( setsid env -i F="$F" sh -c 'trap "" TERM HUP; while :; do echo beat >> "$F"; sleep 0.02; done' & ); exec sleep 300"#;
    let script = r#"nxlock -v run job -t 1h -c "$DEAF" &
        while [ ! -s "$F" ]; do kill -0 $! || exit; sleep 0.02; done; echo it runs; kill -9 $!; exec sleep 300"#;
    let inside = [&["unshare"], &options[..], &["sh", "-c", script]].concat();
    let call = Nxlock::by(inside[0], inside[1..].iter().copied()).env("DEAF", deaf).env("F", &file);
    let mut namespace = redis.lead(call).start();
    namespace.line("it runs");
    let next = Turn::had(&redis, &[]);
    let beats = fs::metadata(&file).unwrap().len();
    lasts(std::time::Duration::from_millis(200));
    assert_eq!(fs::metadata(&file).unwrap().len(), beats, "the next one runs beside what was left of the tree");
    next.leaves();
    drop(namespace);
}

#[test]
fn without_proc_no_command_is_run() {
    let options: &[&str] = if we_are_root() { &["--mount"] } else { &["--map-root-user", "--mount"] };
    if !may_unshare(options) {
        return;
    }
    let redis = Redis::start();
    let hide = r#"mount -t tmpfs none /proc && exec "$@""#;
    let words =
        [&["unshare"], options, &["sh", "-c", hide, "sh", program(), "run", "job", "--", "echo", "ran"]].concat();
    let done = redis.lead(Nxlock::by(words[0], words[1..].iter().copied())).run().exits(78).prints("");
    done.says("could not be stopped").says("mount -t proc proc /proc");
    assert!(!redis.exists("lock:job"));
}

/// Prints each signal that it receives; exits at USR2.
const COUNTS: &str = r#"for s in INT HUP QUIT TERM TSTP CONT USR1; do trap "echo got-$s" $s; done
    trap 'echo end; exit 4' USR2; echo up $$; while :; do sleep 300 & wait; done"#;

#[test]
fn a_nested_run_passes_a_signal_on_once() {
    let local = Local::start();
    let words = ["run", "outer", "--", "nxlock", "run", "inner", "--kill-after", "1h", "--", "bash", "-c", COUNTS];
    let mut running = local.nxlock(words).start();
    running.line("up ");
    for (signal, name) in
        [(Signal::SIGINT, "INT"), (Signal::SIGHUP, "HUP"), (Signal::SIGQUIT, "QUIT"), (Signal::SIGUSR1, "USR1")]
    {
        running.signal(signal);
        running.line(&format!("got-{name}"));
    }
    // Handled after the signals before it.
    running.signal(Signal::SIGUSR2);
    running.line("end");
    let text = running.finish().text();
    for name in ["INT", "HUP", "QUIT", "USR1"] {
        assert_eq!(
            text.matches(&format!(
                "got-{name}
"
            ))
            .count(),
            1,
            "{name}:
{text}"
        );
    }
}

/// Counts INT and USR1. At USR2, signals its parent, the guard, and exits when nxlock has forwarded that signal: what the
/// guard received before, it has forwarded before.
const COUNTS_BEHIND_THE_GUARD: &str = r#"trap 'echo got-INT' INT; trap 'echo got-USR1' USR1;
    trap 'kill -URG $PPID' USR2; trap 'echo end; exit 4' URG; echo pid $$; while :; do sleep 300 & wait; done"#;

/// Lets kill(1) signal these processes, and ends it.
#[track_caller]
fn kill_sends(signal: &str, pids: &[i32]) {
    let pids = pids.iter().map(ToString::to_string);
    let done = std::process::Command::new("sh").args(["-c", "kill -s \"$@\"", "sh", signal]).args(pids).status();
    assert!(done.expect("there is a shell").success());
}

/// Sends a signal to the guard, and to nxlock too if asked, so that the guard looks for the sender when it has gone.
/// Returns what the command prints.
#[track_caller]
fn signalled_while_the_guard_is_frozen(authority: &impl Authority, signal: &str, and_nxlock: bool) -> String {
    let mut running = authority.nxlock(["run", "job", "-c", COUNTS_BEHIND_THE_GUARD]).start();
    let guard = parent_of(running.line("pid ").parse().unwrap());
    freeze(guard);
    let nxlock = Some(running.pid()).filter(|_| and_nxlock);
    kill_sends(signal, &[guard].into_iter().chain(nxlock).collect::<Vec<_>>());
    if and_nxlock {
        running.line(&format!("got-{signal}"));
    }
    send(guard, Signal::SIGCONT);
    running.signal(Signal::SIGUSR2);
    running.line("end");
    running.finish().exits(4).text()
}

#[test]
fn a_signal_to_nxlock_and_to_its_guard_reaches_the_command_once() {
    let local = Local::start();
    for signal in ["INT", "USR1"] {
        let text = signalled_while_the_guard_is_frozen(&local, signal, true);
        assert_eq!(text.matches(&format!("got-{signal}")).count(), 1, "{text}");
    }
}

#[test]
fn a_signal_of_another_process_to_the_guard_alone_does_not_reach_the_command() {
    let local = Local::start();
    let text = signalled_while_the_guard_is_frozen(&local, "USR1", false);
    assert!(!text.contains("got-"), "{text}");
    // Nor does that of a process that lives.
    let mut running = local.nxlock(["run", "job", "-c", COUNTS_BEHIND_THE_GUARD]).start();
    send(parent_of(running.line("pid ").parse().unwrap()), Signal::SIGUSR1);
    running.signal(Signal::SIGUSR2);
    running.line("end");
    let text = running.finish().exits(4).text();
    assert!(!text.contains("got-"), "{text}");
}

#[test]
fn no_process_of_a_run_but_nxlock_has_its_name() {
    let local = Local::start();
    let mut running = local.nxlock(["run", "job", "-c", "echo pid $$; exec sleep 300"]).start();
    let command: i32 = running.line("pid ").parse().unwrap();
    assert_eq!(name_of(running.pid()), "nxlock");
    let others: Vec<String> = running.descendants().into_iter().map(name_of).collect();
    assert!(
        others.contains(&"nx-guard".to_owned()) && !others.iter().any(|name| name.contains("nxlock")),
        "{others:?}"
    );
    // As `pkill -9 nxlock` does.
    running.signal(Signal::SIGKILL);
    Turn::had(&local, &[]).leaves();
    assert!(!is_alive(command));
}

/// Starts a run that leaves a process behind, and kills nxlock while it gives the lock back: `hold` keeps that from being
/// done. Returns the process.
#[track_caller]
fn killed_while_it_gives_back<T>(authority: &impl Authority, options: &[&str], hold: impl Fn() -> T) -> i32 {
    let script = "setsid sleep 300 >/dev/null 2>&1 & echo left $!; read x";
    // nxlock is to be killed before it stops trying.
    let words = [&["-v", "--server-timeout", "20s", "run", "job", "-t", "1h"], options, &["-c", script]].concat();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut running = authority.nxlock(words).stdin_from(reader).start();
    let left: i32 = running.line("left ").parse().unwrap();
    let held = hold();
    drop(writer);
    running.says("the command has ended");
    running.signal(Signal::SIGKILL);
    eventually("it is dead", || running.has_ended());
    drop(held);
    left
}

fn the_guard_gives_back_what_nxlock_was_giving_back<T>(authority: &impl Authority, hold: impl Fn() -> T) {
    let left = killed_while_it_gives_back(authority, &[], &hold);
    eventually("it is free", || is_free(authority));
    assert!(is_alive(left), "it was to be left alone");
    send(left, Signal::SIGKILL);
    let left = killed_while_it_gives_back(authority, &["--at-least", "1m"], &hold);
    eventually("the rest of the minute is left", || lease_left(authority).as_secs() <= 60);
    assert!(!is_free(authority) && is_alive(left));
    send(left, Signal::SIGKILL);
    break_it(authority);
}

#[test]
fn an_nxlock_that_is_killed_while_it_gives_the_lock_back_leaves_that_to_its_guard() {
    struct Hanging<'a>(&'a Redis);
    impl Drop for Hanging<'_> {
        fn drop(&mut self) {
            self.0.resume();
        }
    }
    let redis = Redis::start();
    the_guard_gives_back_what_nxlock_was_giving_back(&redis, || {
        redis.hang();
        Hanging(&redis)
    });
    let local = Local::start();
    the_guard_gives_back_what_nxlock_was_giving_back(&local, || {
        let record = fs::File::open(local.file("lock")).unwrap();
        record.lock().unwrap();
        record
    });
}

#[test]
fn a_nested_run_is_suspended_and_goes_on() {
    let local = Local::start();
    let words = ["run", "outer", "--", "nxlock", "run", "inner", "-c", "echo up $$; read x; exit 3"];
    let (reader, writer) = std::io::pipe().unwrap();
    let mut running = local.nxlock(words).stdin_from(reader).start();
    let command: i32 = running.line("up ").parse().unwrap();
    let all = [running.pid(), parent_of(parent_of(command)), command];
    for _ in 0..5 {
        running.signal(Signal::SIGTSTP);
        eventually("all are stopped", || all.iter().all(|pid| state_of(*pid) == Some('T')));
        running.signal(Signal::SIGCONT);
        eventually("all go on", || all.iter().all(|pid| state_of(*pid) != Some('T')));
    }
    drop(writer);
    running.finish().exits(3);
}

#[test]
fn a_command_without_a_terminal_may_get_ready_to_be_suspended() {
    let local = Local::start();
    // The handler uses no child process, which would be stopped as well.
    let script = r"
import os, signal, time
def stop(*_): os.write(1, b'ready\n'); os.kill(os.getpid(), signal.SIGSTOP)
signal.signal(signal.SIGTSTP, stop)
signal.signal(signal.SIGCONT, lambda *_: os.write(1, b'cont\n'))
signal.signal(signal.SIGUSR1, lambda *_: os._exit(5))
print('up', os.getpid(), flush=True)
while True: time.sleep(1)
";
    let mut running = local.nxlock(["run", "job", "--", "python3", "-c", script]).start();
    let command: i32 = running.line("up ").parse().unwrap();
    running.signal(Signal::SIGTSTP);
    running.line("ready");
    eventually("both are stopped", || [command, running.pid()].iter().all(|pid| state_of(*pid) == Some('T')));
    running.signal(Signal::SIGCONT);
    running.line("cont");
    running.signal(Signal::SIGUSR1);
    let text = running.finish().exits(5).text();
    assert_eq!((text.matches("ready").count(), text.matches("cont").count()), (1, 1), "{text}");
}

/// Catches SIGTSTP, and does not run for a second while the signal arrives: vfork(2) suspends it.
const LATE: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
static void stop(int number) { write(1, "ready\n", 6); raise(SIGSTOP); }
int main(void) {
    signal(SIGTSTP, stop);
    if (vfork() == 0) {
        signal(SIGTSTP, SIG_IGN);
        dprintf(1, "up %d\n", getppid());
        sleep(1);
        _exit(0);
    }
    for (;;) pause();
}
"#;

#[test]
fn a_command_gets_ready_to_be_suspended_however_late_it_takes_the_signal() {
    let local = Local::start();
    let late = built(&local.directory(), LATE);
    let mut running = local.nxlock(["run", "job", "--", late.to_str().unwrap()]).start();
    let command: i32 = running.line("up ").parse().unwrap();
    running.signal(Signal::SIGTSTP);
    eventually("both are stopped", || [command, running.pid()].iter().all(|pid| state_of(*pid) == Some('T')));
    assert!(running.stdout().contains("ready"), "{}", running.stdout());
    running.signal(Signal::SIGKILL);
    eventually("the command is gone", || !is_alive(command));
}

#[test]
fn a_guard_gives_back_by_a_password_that_is_seen_nowhere() {
    let redis = Redis::with_password("s3cret");
    let url = format!("{}?pass=s3cret", redis.url());
    for key in ["odd job", "-odd"] {
        let key_option = format!("--key={key}");
        let mut running = Nxlock::new(["run", &key_option, "-t", "1h", "-c", "echo pid $$; exec sleep 300"])
            .env("NXLOCK_SERVER", &url)
            .start();
        let command: i32 = running.line("pid ").parse().unwrap();
        running.signal(Signal::SIGKILL);
        eventually("the command is gone", || !is_alive(command));
        Nxlock::new(["run", &key_option, "--", "true"]).env("NXLOCK_SERVER", &url).run().exits(0);
        eventually("it is dead", || running.has_ended());
        let said = running.stderr();
        assert!(
            said.contains(&format!("nxlock was killed, and so were the command under \"{key}\""))
                && !said.contains("s3cret"),
            "{said}"
        );
    }
}

#[test]
fn the_command_is_not_killed_by_a_guard_that_was_told_to_leave() {
    let local = Local::start();
    let mut running = local.nxlock(["run", "job", "-c", "setsid sleep 300 >/dev/null 2>&1 & echo pid $!"]).start();
    let left: i32 = running.line("pid ").parse().unwrap();
    eventually("it ends", || running.has_ended());
    assert!(is_alive(left) && is_free(&local));
    assert_eq!(running.descendants(), [left], "the guard is gone");
    send(left, Signal::SIGKILL);
}

#[test]
fn whatever_happens_to_the_command_of_a_frozen_nxlock_its_end_is_reported() {
    // nxlock reads nothing, and soon there is no room for more reports.
    let local = Local::start();
    let script = "echo pid $$; while :; do sleep 300 & wait; done";
    let mut running = local.nxlock(["run", "job", "-t", "1h", "-c", script]).start();
    let command: i32 = running.line("pid ").parse().unwrap();
    freeze(running.pid());
    for _ in 0..600 {
        send(command, Signal::SIGSTOP);
        eventually("it stops", || state_of(command) == Some('T'));
        send(command, Signal::SIGCONT);
        eventually("it goes on", || state_of(command) != Some('T'));
    }
    send(command, Signal::SIGKILL);
    running.signal(Signal::SIGCONT);
    running.finish().exits(137);
}
