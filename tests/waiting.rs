//! Waiting while the server hangs or is away, and what nxlock reports of a wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::turns::{Turn, is_queued};
use crate::support::{Fate, Proxy, Redis, Running, answered, eventually, eventually_some, lasts, now};

const LEAVE: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// What a waiter says of a lock that another client holds.
const HELD: &str = "waiting for \"job\": held";

/// Sends a waiter a signal, and expects it to die of that soon, with nothing started.
fn leaves_by(waiter: Running, signal: Signal) {
    let told = now();
    waiter.signal(signal);
    waiter.finish().dies_of(signal).prints("");
    // The contract says a second.
    assert!(told.elapsed() < Duration::from_secs(3), "{signal}: {:?}", told.elapsed());
}

#[test]
fn a_waiter_leaves_though_the_server_hangs() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &["-t", "1m"]);
    for signal in LEAVE {
        let options = ["run", "job", "--server-timeout", "30s", "--", "echo", "ran"];
        let mut waiter = redis.nxlock(options).start();
        waiter.says("waiting");
        redis.hang();
        leaves_by(waiter, signal);
        redis.resume();
        let mut first = redis.nxlock(options).start();
        redis.hang();
        // The same for a waiter that never got a reply. Its request may have been sent.
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
    // Only the holder is left.
    eventually("the server has heard all that was said", || redis.others_connected() == 1);
    holder.leaves();
}

#[test]
fn a_second_signal_skips_the_cleaning_up() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &["-t", "1m"]);
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
    let waits = |turn: &Turn| turn.running.stderr().contains(HELD);
    let mut waiter = Turn::once("it waits", || redis.nxlock(options), waits).running;
    redis.kill();
    waiter.says("trying again");
    // For longer than the server timeout.
    let gone = now();
    eventually("it has been away for a while", || gone.elapsed() > Duration::from_millis(700));
    assert!(!waiter.has_ended());
    redis.restart();
    waiter.finish().exits(0).prints("ran\n");
}

#[test]
fn a_server_that_stays_away_is_unreachable_when_the_wait_is_over() {
    let mut redis = Redis::start();
    let options = ["run", "job", "--server-timeout", "20s", "-w", "1500ms", "--", "echo", "ran"];
    let done = eventually_some("the server goes away before the wait is over", || {
        redis.put("lock:job", b"somebody", None);
        let began = now();
        let mut waiter = redis.nxlock(options).start();
        eventually("it waits, or has ended", || waiter.stderr().contains(HELD) || waiter.has_ended());
        redis.kill();
        if began.elapsed() < Duration::from_millis(1500) {
            return Some(waiter.finish());
        }
        redis.restart();
        None
    });
    let done = done.exits(69).prints("").says(HELD);
    assert!(done.took >= Duration::from_millis(1500), "gave up after {:?}", done.took);
}

#[test]
fn a_log_is_told_of_a_wait_once_and_of_its_end() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let mut waiter = redis.nxlock(["run", "job", "--", "true"]).start();
    waiter.says("waiting for");
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
    let holder = Turn::had(&redis, &[]);
    redis.nxlock(["-q", "run", "job", "-n", "--", "true"]).run().exits(75).says_nothing();
    answered(|| redis.nxlock(["-q", "run", "job", "-w", "1s", "--", "true"])).exits(75).says_nothing();
    redis.nxlock(["-q", "acquire", "job", "--ttl", "1m", "-n"]).run().exits(75).says_nothing();
    let waiter = redis.nxlock(["-q", "run", "job", "--", "true"]).start();
    is_queued(&redis, waiter.pid());
    holder.leaves();
    waiter.finish().exits(0).says_nothing();
}

#[test]
fn slow_grants_far_apart_do_not_add_up() {
    let redis = Redis::start();
    let (socket, phase) = (redis.socket(), Arc::new(AtomicUsize::new(0)));
    let now_in = Arc::clone(&phase);
    let slow = Fate::Slow(Duration::from_millis(1100));
    let proxy = Proxy::to(&redis, move |n| {
        let mut plain = redis::Client::open(format!("unix://{}", socket.display())).unwrap().get_connection().unwrap();
        let mut ask = |words: &[&str]| redis::cmd(words[0]).arg(&words[1..]).exec(&mut plain).unwrap();
        match now_in.load(Ordering::SeqCst) {
            // Granted, but too late to be of use; before nxlock retries, another client has it.
            0 if n == 1 => slow,
            0 => {
                ask(&["SET", "lock:job", "another's", "PX", "600000"]);
                now_in.store(1, Ordering::SeqCst);
                Fate::Delivered
            }
            // Free again, and the grant is late once more.
            2 => {
                ask(&["DEL", "lock:job"]);
                now_in.store(3, Ordering::SeqCst);
                slow
            }
            _ => Fate::Delivered,
        }
    });
    let args = ["run", "job", "--no-queue", "-t", "2s", "--server-timeout", "4s", "--", "echo", "ran"];
    let mut waiter = proxy.nxlock(args).start();
    waiter.says("waiting for");
    assert_eq!(phase.load(Ordering::SeqCst), 1);
    lasts(Duration::from_millis(4100));
    phase.store(2, Ordering::SeqCst);
    waiter.finish().exits(0).prints("ran\n");
    assert_eq!(phase.load(Ordering::SeqCst), 3);
}
