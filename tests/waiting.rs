//! Waiting for a lock, being refused, and being told to leave.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::{Nxlock, Redis, Running, eventually, now, text_of};

/// Somebody who has the lock until told otherwise.
struct Holder {
    running: Running,
    until_dropped: Option<std::io::PipeWriter>,
}

impl Holder {
    fn of(redis: &Redis, options: &[&str]) -> Holder {
        let (reader, writer) = std::io::pipe().unwrap();
        let args = ["run", "job"].iter().chain(options).chain(&["-c", "echo up; read x; exit 0"]).copied();
        let mut running = redis.nxlock(args).stdin_from(reader).start();
        running.line("up");
        Holder { running, until_dropped: Some(writer) }
    }

    fn leaves(mut self) {
        self.until_dropped = None;
        self.running.finish().exits(0);
    }
}

#[test]
fn a_second_caller_waits_and_gets_it() {
    let redis = Redis::start();
    let holder = Holder::of(&redis, &[]);
    let mut second = redis.nxlock(["run", "job", "--", "echo", "ran"]).start();
    second.says("waiting for \"job\": held by");
    assert_eq!(second.stdout(), "");
    holder.leaves();
    second.finish().exits(0).prints("ran\n").says("got \"job\" after");
}

#[test]
fn who_does_not_wait_is_refused_at_once() {
    let redis = Redis::start();
    let holder = Holder::of(&redis, &[]);
    for refusal in [&["-n"][..], &["--no-wait"], &["-w", "0"], &["-w", "0s"], &["--wait=0ms"]] {
        let args = ["run", "job"].iter().chain(refusal).chain(&["--", "echo", "ran"]).copied();
        redis.nxlock(args).run().exits(75).prints("").says("held by somebody else").within(Duration::from_millis(700));
        let args = ["acquire", "job", "--ttl", "1m"].iter().chain(refusal).copied();
        redis.nxlock(args).run().exits(75).prints("");
    }
    holder.leaves();
}

#[test]
fn who_waits_for_so_long_is_refused_then() {
    let redis = Redis::start();
    let holder = Holder::of(&redis, &[]);
    let done = redis.nxlock(["run", "job", "-w", "700ms", "--", "echo", "ran"]).run().exits(75).prints("");
    assert!(done.took >= Duration::from_millis(700), "gave up after {:?}", done.took);
    done.within(Duration::from_millis(1200)).says("waited");
    holder.leaves();
}

#[test]
fn the_status_for_busy_can_be_chosen() {
    let redis = Redis::start();
    let holder = Holder::of(&redis, &[]);
    for status in [0, 1, 75, 255] {
        let number = status.to_string();
        redis.nxlock(["run", "job", "-n", "-E", &number, "--", "echo", "ran"]).run().exits(status).prints("");
        let long = format!("--conflict-exit-code={number}");
        redis.nxlock(["acquire", "job", "--ttl", "1m", "-w", "50ms", &long]).run().exits(status).prints("");
    }
    holder.leaves();
    redis.nxlock(["run", "job", "-n", "-E", "3", "--", "true"]).run().exits(0);
    redis.nxlock(["run", "job", "-E", "256", "--", "true"]).run().exits(64).says("--conflict-exit-code").says("255");
    // Only busy is renamed: not what the server's absence means.
    let nowhere = Nxlock::new(["run", "job", "-n", "-E", "3", "-s", "unix:///no/such/socket", "--", "true"]);
    nowhere.env("NXLOCK_SERVER_TIMEOUT", "100ms").run().exits(69);
}

#[test]
fn a_refusal_names_the_holder_and_how_to_break_it() {
    let redis = Redis::start();
    let holder = Holder::of(&redis, &["--reason", "the monthly report"]);
    let done = redis.nxlock(["run", "job", "-n", "--", "true"]).run().exits(75).says("lease").says("since");
    let done = done.says("the monthly report").says(&format!("pid {}", holder.running.pid()));
    let host = nix::unistd::gethostname().unwrap();
    let done = done.says(&format!("@{}", host.to_str().unwrap()));
    let line = done.stderr.lines().find_map(|line| line.trim_start().strip_prefix("break ")).unwrap();
    let line = line.trim().to_owned();
    assert!(line.contains("release job --break"), "{line}");
    // What it says to do, does it.
    Nxlock::by("sh", ["-c", &line]).env("NXLOCK_SERVER", redis.url()).run().exits(0);
    assert!(!redis.exists("lock:job"));
    drop(holder.until_dropped);
    holder.running.finish().exits(76);
}

/// The line of a refusal that says how to break it, carried out in a shell that is told nothing else.
fn break_as_told(call: Nxlock, environment: &[(&str, &str)]) {
    let done = call.run().exits(75);
    let line = done.stderr.lines().find_map(|line| line.trim_start().strip_prefix("break ")).unwrap().trim();
    let told = environment.iter().fold(Nxlock::by("sh", ["-c", line]), |call, (name, value)| call.env(name, value));
    told.run().exits(0);
}

#[test]
fn the_command_that_breaks_a_lock_is_right_for_an_odd_name() {
    let redis = Redis::start();
    let url = redis.url();
    for name in ["two words", "it's", "$(false) `false`", "a;b", "*"] {
        redis.nxlock(["acquire", name, "--ttl", "1m"]).run().exits(0);
        break_as_told(redis.nxlock(["run", name, "-n", "true"]), &[("NXLOCK_SERVER", &url)]);
        assert!(!redis.exists(&format!("lock:{name}")), "{name}");
    }
}

#[test]
fn the_command_that_breaks_a_lock_is_right_for_a_prefix_given_as_an_option() {
    let redis = Redis::start();
    let url = redis.url();
    redis.nxlock(["acquire", "job", "--ttl", "1m", "--prefix", "team:"]).run().exits(0);
    // One of the same name in another place is not to be taken for it.
    let other = redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().token();
    break_as_told(redis.nxlock(["run", "job", "-n", "--prefix", "team:", "true"]), &[("NXLOCK_SERVER", &url)]);
    assert!(!redis.exists("team:job"));
    redis.nxlock(["release", "job", &other]).run().exits(0);
}

#[test]
fn a_refusal_after_a_wait_names_the_holder_of_the_end() {
    let redis = Redis::start();
    redis.nxlock(["acquire", "job", "--ttl", "1m", "--reason", "the first"]).run().exits(0);
    let mut waiter = redis.nxlock(["run", "job", "-w", "1500ms", "--", "echo", "ran"]).start();
    waiter.says("waiting");
    // In one step: the name is never free.
    redis.put("lock:job", b"a plain client", None);
    waiter.finish().exits(75).prints("").says("another program").never_says("the first");
    redis.delete("lock:job");
}

#[test]
fn an_expired_lease_lets_the_next_one_in_at_once_and_not_before() {
    let redis = Redis::start();
    let began = now();
    redis.nxlock(["acquire", "job", "--ttl", "1s"]).run().exits(0);
    redis.nxlock(["run", "job", "--", "true"]).run().exits(0);
    let took = began.elapsed();
    assert!((Duration::from_millis(990)..Duration::from_secs(3)).contains(&took), "{took:?}");
}

const LEAVE: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Tells a waiter to leave, and expects it to: soon, by that signal, with nothing started.
fn leaves_by(waiter: Running, signal: Signal) {
    let told = now();
    waiter.signal(signal);
    waiter.finish().dies_of(signal).prints("");
    // The contract says a second.
    assert!(told.elapsed() < Duration::from_secs(3), "{signal}: {:?}", told.elapsed());
}

#[test]
fn a_waiter_that_is_told_to_leave_leaves_by_that_signal() {
    let redis = Redis::start();
    let holder = Holder::of(&redis, &[]);
    let value = redis.value("lock:job");
    for signal in LEAVE {
        let mut waiter = redis.nxlock(["run", "job", "--", "echo", "ran"]).start();
        waiter.says("waiting");
        leaves_by(waiter, signal);
    }
    assert_eq!(redis.value("lock:job"), value, "the holder is not touched");
    assert_eq!(redis.ask::<i64>(&["DBSIZE"]), 2, "the lock and its fence");
    holder.leaves();
}

#[test]
fn a_waiter_leaves_though_the_server_hangs() {
    let redis = Redis::start();
    let holder = Holder::of(&redis, &["-t", "1m"]);
    for signal in LEAVE {
        let options = ["run", "job", "--server-timeout", "30s", "--", "echo", "ran"];
        let mut waiter = redis.nxlock(options).start();
        waiter.says("waiting");
        redis.hang();
        leaves_by(waiter, signal);
        redis.resume();
        let mut first = redis.nxlock(options).start();
        redis.hang();
        // Also one that has never had an answer. Its lock may have been asked for.
        eventually("it listens to signals", || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", first.pid())).unwrap_or_default();
            // Caught, or blocked to be read from a descriptor.
            let sets = status.lines().filter_map(|line| line.strip_prefix("Sig")?.split_once(":\t"));
            let heard = sets.filter(|(set, _)| matches!(*set, "Cgt" | "Blk"));
            heard.fold(0, |bits, (_, set)| bits | u64::from_str_radix(set, 16).unwrap()) >> (signal as i32 - 1) & 1 == 1
        });
        assert!(!first.has_ended());
        leaves_by(first, signal);
        redis.resume();
    }
    // Ours and the holder's.
    eventually("the server has heard all that was said", || redis.others_connected() == 1);
    holder.leaves();
}

#[test]
fn a_second_signal_skips_the_cleaning_up() {
    let redis = Redis::start();
    let holder = Holder::of(&redis, &["-t", "1m"]);
    let mut waiter = redis.nxlock(["run", "job", "--server-timeout", "30s", "--", "echo", "ran"]).start();
    waiter.says("waiting");
    redis.hang();
    waiter.signal(Signal::SIGTERM);
    waiter.signal(Signal::SIGTERM);
    waiter.finish().dies_of(Signal::SIGTERM).prints("");
    redis.resume();
    eventually("the server has heard all that was said", || redis.others_connected() == 1);
    holder.leaves();
}

#[test]
fn a_server_that_goes_away_while_we_wait_is_waited_for() {
    let mut redis = Redis::start();
    redis.put("lock:job", b"somebody", None);
    let options = ["run", "job", "--server-timeout", "300ms", "-w", "1m", "--", "echo", "ran"];
    let mut waiter = redis.nxlock(options).start();
    waiter.says("waiting for \"job\": held");
    redis.kill();
    waiter.says("trying again");
    // For longer than one contact may take.
    let gone = now();
    eventually("it has been away for a while", || gone.elapsed() > Duration::from_millis(700));
    assert!(!waiter.has_ended());
    redis.restart();
    waiter.finish().exits(0).prints("ran\n");
}

#[test]
fn a_server_that_stays_away_is_unreachable_when_the_wait_is_over() {
    let mut redis = Redis::start();
    redis.put("lock:job", b"somebody", None);
    let options = ["run", "job", "--server-timeout", "300ms", "-w", "1500ms", "--", "echo", "ran"];
    let mut waiter = redis.nxlock(options).start();
    waiter.says("waiting for \"job\": held");
    redis.kill();
    let done = waiter.finish().exits(69).prints("");
    assert!(done.took >= Duration::from_millis(1500), "gave up after {:?}", done.took);
}

#[test]
fn a_log_is_told_of_a_wait_once_and_of_its_end() {
    let redis = Redis::start();
    let holder = Holder::of(&redis, &[]);
    let mut waiter = redis.nxlock(["run", "job", "--", "true"]).start();
    let began = now();
    eventually("it has waited for a while", || began.elapsed() > Duration::from_millis(1500));
    assert!(!waiter.has_ended());
    holder.leaves();
    let done = waiter.finish().exits(0);
    let lines: Vec<&str> = done.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("waiting for") && lines[1].contains("got \"job\""), "{lines:?}");
}

#[test]
fn a_quiet_caller_hears_nothing_of_a_wait() {
    let redis = Redis::start();
    let holder = Holder::of(&redis, &[]);
    redis.nxlock(["-q", "run", "job", "-n", "--", "true"]).run().exits(75).says_nothing();
    redis.nxlock(["-q", "run", "job", "-w", "200ms", "--", "true"]).run().exits(75).says_nothing();
    redis.nxlock(["-q", "acquire", "job", "--ttl", "1m", "-n"]).run().exits(75).says_nothing();
    let waiter = redis.nxlock(["-q", "run", "job", "--", "true"]).start();
    holder.leaves();
    waiter.finish().exits(0).says_nothing();
}

#[test]
fn a_waiter_that_was_killed_stands_in_nobodys_way() {
    let redis = Redis::start();
    let log = redis.directory().join("log");
    let holder = Holder::of(&redis, &[]);
    let mut first = redis.nxlock(["run", "job", "-c", "echo first >> \"$LOG\""]).env("LOG", &log).start();
    first.says("waiting");
    let mut second = redis.nxlock(["run", "job", "-c", "echo second >> \"$LOG\""]).env("LOG", &log).start();
    second.says("waiting");
    first.signal(Signal::SIGKILL);
    eventually("the first is dead", || first.has_ended());
    holder.leaves();
    second.finish().exits(0);
    assert_eq!(text_of(&log), "second\n");
}

#[test]
fn a_name_that_this_script_holds_already_is_refused_at_once() {
    let redis = Redis::start();
    for inner in ["nxlock run job -- echo ran", "sh -c 'nxlock run job -E 9 -- echo ran; [ $? = 9 ] && exit 75'"] {
        let done = redis.nxlock(["run", "job", "-c", inner]).run().exits(75).prints("");
        done.says("already held by this script").within(Duration::from_secs(1));
    }
    // Two deep, the outer one is still known.
    let deep = "nxlock run other -- nxlock run job -- echo ran";
    redis.nxlock(["run", "job", "-c", deep]).run().exits(75).prints("").says("already held by this script");
}
