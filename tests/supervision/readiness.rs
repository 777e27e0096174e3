//! The guard and the command's process are forked while the server decides: nothing starts before the grant, and nothing
//! is left without one.

use nix::sys::signal::Signal;

use crate::support::turns::{Turn, is_free, is_queued};
use crate::support::{
    Authority, Nxlock, Redis, Running, children_of, eventually, eventually_some, freeze, is_alive, may_trace,
    may_unshare, name_of, program, send, state_of, we_are_root,
};

/// A run whose server hangs: what the lock's command is to be run by is there, and waits.
struct Ready {
    running: Running,
    guard: i32,
    child: i32,
}

impl Ready {
    fn at(redis: &Redis, options: &[&str]) -> Ready {
        redis.hang();
        // What the test looks at meanwhile may take longer than two seconds.
        let words = ["run", "job", "--server-timeout", "20s"].iter().chain(options).chain(&["--", "echo", "ran"]);
        Ready::of(redis.nxlock(words.copied()).start())
    }

    fn of(mut running: Running) -> Ready {
        let pid = running.pid();
        let guard = eventually_some("a guard", || {
            assert!(!running.has_ended());
            children_of(pid).into_iter().find(|child| name_of(*child) == "nx-guard")
        });
        let child = eventually_some("a process to become the command", || children_of(guard).first().copied());
        // It waits in read(2): it has no signals to wait for, nor anything else.
        eventually("it waits", || state_of(child) == Some('S') && state_of(guard) == Some('S'));
        assert_eq!(name_of(child), "nx-guard", "it has executed nothing");
        Ready { running, guard, child }
    }

    fn is_gone(&self) -> bool {
        !is_alive(self.guard) && !is_alive(self.child)
    }
}

#[test]
fn a_command_starts_with_the_grant_in_the_process_that_waited_for_it() {
    let redis = Redis::start();
    let ready = Ready::at(&redis, &["--slots", "300"]);
    redis.resume();
    ready.running.finish().exits(0).prints("ran\n");
    assert!(is_free(&redis));
    // The variables of the grant are those of this one.
    let script = "echo $$ $PPID $NXLOCK_FENCE $NXLOCK_SLOT $NXLOCK_SLOTS; sed -n 's/^Name:.//p' /proc/$PPID/status";
    redis.hang();
    let words = ["run", "job", "--server-timeout", "20s", "--slots", "300", "-c", script];
    let Ready { running, guard, child } = Ready::of(redis.nxlock(words).start());
    redis.resume();
    let done = running.finish().exits(0);
    let fence: String = redis.ask(&["GET", "{lock:job}:fence"]);
    done.prints(&format!("{child} {guard} {fence} 0 300\nnx-guard\n"));
}

#[test]
fn if_nxlock_is_killed_before_the_grant_nothing_starts() {
    let redis = Redis::start();
    let mut ready = Ready::at(&redis, &["-t", "1s"]);
    ready.running.signal(Signal::SIGKILL);
    eventually("it is dead", || ready.running.has_ended());
    eventually("nothing is left", || ready.is_gone());
    redis.resume();
    Turn::had(&redis, &[]).leaves();
    ready.running.finish().dies_of(Signal::SIGKILL).prints("");
    redis.leave_as_it_is();
}

#[test]
fn a_wait_that_is_given_up_before_the_grant_leaves_nothing() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let redis = Redis::start();
        let ready = Ready::at(&redis, &[]);
        ready.running.signal(signal);
        redis.resume();
        let done = ready.running.finish().prints("");
        assert_ne!(done.status.code(), Some(0), "{signal}");
        assert!(!is_alive(ready.guard) && !is_alive(ready.child), "{signal}: nxlock waits for them");
        assert!(is_free(&redis), "{signal}");
    }
}

#[test]
fn a_refusal_leaves_nothing() {
    let redis = Redis::start();
    let turn = Turn::had(&redis, &[]);
    let processes: [fn(&Ready) -> i32; 2] = [|ready| ready.guard, |ready| ready.child];
    for frozen in processes.map(Some).into_iter().chain([None]) {
        let ready = Ready::at(&redis, &["--wait", "1h"]);
        if let Some(frozen) = frozen {
            freeze(frozen(&ready));
        }
        redis.resume();
        is_queued(&redis, ready.running.pid());
        eventually("nothing is left", || ready.is_gone());
        assert_eq!(ready.running.descendants(), [0; 0]);
        ready.running.signal(Signal::SIGTERM);
        ready.running.finish().dies_of(Signal::SIGTERM).prints("");
    }
    turn.leaves();
}

/// A user who stops nxlock and all that it has started may stop a process in its first moment.
#[test]
fn what_is_stopped_before_it_is_bound_to_its_guard_goes_with_the_refusal() {
    if !may_trace() {
        return;
    }
    let redis = Redis::start();
    let turn = Turn::had(&redis, &[]);
    redis.hang();
    // It stops in its first call. The guard stops in each of several, so that it does not end in the time that it has.
    let calls = ["setpgid", "setsid", "close_range"].map(|call| format!("--inject={call}:signal=SIGSTOP"));
    let strace = ["strace", "-f", "-o", "/dev/null"].map(String::from).into_iter().chain(calls);
    let waiter = redis.nxlock(["run", "job", "--server-timeout", "1m", "--", "echo", "ran"]).under(strace).start();
    // A stopped process that is traced is in state t.
    let is_stopped = |pid: &i32| matches!(state_of(*pid), Some('t' | 'T'));
    eventually("both are stopped", || waiter.descendants().iter().filter(|pid| is_stopped(pid)).count() == 2);
    let nxlock = children_of(waiter.pid())[0];
    redis.resume();
    is_queued(&redis, nxlock);
    eventually("nothing but nxlock is left", || waiter.descendants() == [nxlock]);
    send(nxlock, Signal::SIGTERM);
    waiter.finish().dies_of(Signal::SIGTERM).prints("");
    turn.leaves();
}

#[test]
fn who_does_not_wait_forks_nothing_for_a_refusal() {
    let redis = Redis::start();
    let turn = Turn::had(&redis, &[]);
    redis.hang();
    let words = ["-v", "--server-timeout", "20s", "run", "job", "-n", "--", "echo", "ran"];
    let running = redis.nxlock(words).start();
    // It sleeps in poll(2) once it has sent its request.
    eventually("it has asked", || running.stderr().contains("connected to") && state_of(running.pid()) == Some('S'));
    assert_eq!(running.descendants(), [0; 0]);
    redis.resume();
    running.finish().exits(75).prints("");
    turn.leaves();
}

#[test]
fn what_is_killed_before_the_grant_is_forked_anew() {
    let redis = Redis::start();
    for killed in [|ready: &Ready| ready.guard, |ready: &Ready| ready.child] {
        let ready = Ready::at(&redis, &[]);
        send(killed(&ready), Signal::SIGKILL);
        eventually("it is dead", || !is_alive(killed(&ready)));
        redis.resume();
        ready.running.finish().exits(0).prints("ran\n");
        redis.has_only_a_fence();
    }
}

#[test]
fn a_guard_that_is_stopped_before_the_grant_goes_on_with_it() {
    let redis = Redis::start();
    let ready = Ready::at(&redis, &[]);
    freeze(ready.guard);
    redis.resume();
    ready.running.finish().exits(0).prints("ran\n");
    redis.has_only_a_fence();
}

/// As a script does that stops a job and all of its processes, and continues the job.
#[test]
fn a_run_that_is_stopped_whole_before_the_grant_goes_on_with_nxlock() {
    let redis = Redis::start();
    let ready = Ready::at(&redis, &[]);
    for pid in [ready.running.pid(), ready.guard, ready.child] {
        freeze(pid);
    }
    redis.resume();
    ready.running.signal(Signal::SIGCONT);
    ready.running.finish().exits(0).prints("ran\n");
    redis.has_only_a_fence();
}

#[test]
fn a_grant_that_comes_too_late_starts_nothing() {
    let redis = Redis::start();
    // Long enough for the command that runs in the end.
    let ready = Ready::at(&redis, &["-t", "3s"]);
    freeze(ready.running.pid());
    redis.resume();
    Turn::had(&redis, &[]).leaves();
    let next = Turn::had(&redis, &[]);
    ready.running.signal(Signal::SIGCONT);
    is_queued(&redis, ready.running.pid());
    assert_eq!(ready.running.stdout(), "");
    assert!(ready.is_gone(), "what was forked for the first request is of no use");
    next.leaves();
    ready.running.finish().exits(0).prints("ran\n");
}

#[test]
fn who_stands_in_line_has_no_further_process() {
    let redis = Redis::start();
    let turn = Turn::had(&redis, &[]);
    let waiter = redis.nxlock(["run", "job", "--", "echo", "ran"]).start();
    is_queued(&redis, waiter.pid());
    assert_eq!(waiter.descendants(), [0; 0]);
    turn.leaves();
    waiter.finish().exits(0).prints("ran\n");
}

/// Nobody waits for a guard that does not say how its command ended.
#[test]
fn a_guard_that_leaves_without_a_word_is_as_good_as_killed() {
    let redis = Redis::start();
    // In a pid namespace that nxlock is not in, it sees no parent, and takes itself for orphaned.
    let options: &[&str] = if we_are_root() { &["--pid"] } else { &["--map-root-user", "--pid"] };
    if !may_unshare(options) {
        return;
    }
    for _ in 0..12 {
        let words = [options, &[program(), "run", "job", "-t", "2s", "--", "true"]].concat();
        let ended = redis.lead(Nxlock::by("unshare", words)).run();
        assert!(matches!(ended.status.code(), Some(70 | 76 | 126)), "{}", ended.both());
    }
    redis.leave_as_it_is();
}
