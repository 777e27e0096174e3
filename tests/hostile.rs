//! Servers that send what no server sends: nxlock gives up, soon and with little memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::turns::Turn;
use crate::support::{Done, Fate, Nxlock, Proxy, Redis, eventually, eventually_some, text_of};

/// The memory that nxlock may take for a reply, in kilobytes: twice what it needs for the longest, and less than a slow
/// machine has filled within the server timeout.
const MOST: u64 = 110_000;

/// Beginnings of replies, and what follows without end.
const ENDLESS: [(&str, &str); 6] = [
    ("*20000000\r\n", "*0\r\n"),
    ("%10000000\r\n", "_\r\n"),
    ("~20000000\r\n", "+\r\n"),
    (">20000000\r\n+message\r\n", ":1\r\n"),
    ("*4000\r\n", "*4000\r\n"),
    ("*20000000\r\n", "-A\r\n"),
];

/// Returns the highest memory that a process has taken, in kilobytes, proc_pid_status(5); 0 if it is gone.
fn most_taken(pid: i32) -> u64 {
    let status = text_of(format!("/proc/{pid}/status").as_ref());
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")).and_then(|kilobytes| kilobytes.parse().ok()).unwrap_or(0)
}

/// Runs a call that must not take much memory to its end, and again if it has ended before anybody looked at it.
#[track_caller]
fn ends_small(call: impl Fn() -> Nxlock, bound: u64) -> Done {
    eventually_some("it is seen", || {
        let (mut running, mut most) = (call().start(), 0);
        eventually("it ends", || {
            most = most.max(most_taken(running.pid()));
            running.has_ended()
        });
        let done = running.finish();
        assert!(most < bound, "it took {most} kB:\n{}", done.both());
        (most > 0).then_some(done)
    })
}

/// Returns a proxy that replies to each script without end.
fn endless(redis: &Redis, begin: &'static str, rest: &'static str) -> Proxy {
    Proxy::by_command(redis, move |_, words| match words.starts_with("EVAL") {
        true => Fate::Endless(begin, rest),
        false => Fate::Delivered,
    })
}

#[test]
fn a_reply_of_elements_without_end_takes_little_memory() {
    let redis = Redis::start();
    for (begin, rest) in ENDLESS {
        let proxy = endless(&redis, begin, rest);
        let call = || proxy.nxlock(["status", "job", "--server-timeout", "6s"]);
        ends_small(call, MOST).exits(69).prints("");
    }
}

#[test]
fn three_servers_that_reply_without_end_take_little_memory_together() {
    let three = [(); 3].map(|()| Redis::start());
    for (begin, rest) in &ENDLESS[1..2] {
        let proxies = three.each_ref().map(|redis| endless(redis, begin, rest));
        let servers = proxies.each_ref().map(Proxy::url).join(" ");
        let call = || Nxlock::new(["status", "job", "--server-timeout", "10s"]).env("NXLOCK_SERVER", &servers);
        ends_small(call, 2 * MOST).exits(69).prints("");
    }
}

#[test]
fn a_holder_whose_renewals_are_answered_without_end_takes_little_memory() {
    let redis = Redis::start();
    let scripts = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&scripts);
    let proxy = Proxy::by_command(&redis, move |_, words| {
        let is_renewal = words.starts_with("EVAL") && seen.fetch_add(1, Ordering::SeqCst) > 0;
        if is_renewal { Fate::Endless("*20000000\r\n", "-A\r\n") } else { Fate::Delivered }
    });
    // A renewal has a sixth of the ttl.
    let holder = proxy.nxlock(["run", "job", "-t", "24s", "--", "sleep", "300"]).start();
    let mut most = 0;
    eventually("it has renewed the lock twice", || {
        most = most.max(most_taken(holder.pid()));
        scripts.load(Ordering::SeqCst) > 2
    });
    assert!(most > 0 && most < MOST, "it took {most} kB");
    drop(holder);
    // Nobody could release it.
    redis.leave_as_it_is();
}

#[test]
fn who_is_told_something_without_end_between_requests_takes_little_memory() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &["-t", "10m"]);
    for (begin, rest) in [("$1000000000\r\n", "x"), ("+", "x"), (">3\r\n+message\r\n+", "x")] {
        for call in [["run", "another", "-t", "10m"], ["run", "job", "-w", "10m"]] {
            // The first request of who listens is the last one for seconds.
            let listens = AtomicBool::new(false);
            let proxy = Proxy::by_command(&redis, move |_, words| match words {
                words if words.starts_with("SUBSCRIBE") => {
                    listens.store(true, Ordering::SeqCst);
                    Fate::Delivered
                }
                words if words.starts_with("EVAL") && listens.swap(false, Ordering::SeqCst) => {
                    Fate::Followed(begin, rest)
                }
                _ => Fate::Delivered,
            });
            let told = proxy.nxlock(call.into_iter().chain(["--", "sleep", "300"])).start();
            let mut most = 0;
            eventually("it gives up the connection twice", || {
                most = most.max(most_taken(told.pid()));
                proxy.connections() > 2
            });
            assert!(most > 0 && most < MOST, "{call:?}, {begin:?}: it took {most} kB");
        }
    }
    drop(holder);
    redis.leave_as_it_is();
}

#[test]
fn a_scan_that_does_not_come_to_an_end_is_given_up() {
    let redis = Redis::start();
    for answers in [
        ["*2\r\n$1\r\n7\r\n*0\r\n"; 3],
        ["*2\r\n$1\r\n7\r\n*1\r\n$8\r\nlock:job\r\n", "*2\r\n$1\r\n8\r\n*0\r\n", "*2\r\n$1\r\n9\r\n*0\r\n"],
    ] {
        let scans = AtomicUsize::new(0);
        let proxy = Proxy::by_command(&redis, move |_, words| match words.starts_with("SCAN") {
            true => Fate::Answered(answers[scans.fetch_add(1, Ordering::SeqCst) % answers.len()]),
            false => Fate::Delivered,
        });
        for verb in [&["status"][..], &["status", "--history"]] {
            let done = proxy.nxlock(verb.iter().copied()).run().exits(69).prints("");
            done.says("its SCAN does not come to an end: after");
        }
    }
}

#[test]
fn a_reply_of_another_shape_is_not_our_own_failure() {
    let redis = Redis::start();
    for reply in ["+OK\r\n", "$-1\r\n", ":7\r\n", "*1\r\n*1\r\n$1\r\nx\r\n", "*0\r\n"] {
        let proxy = Proxy::by_command(&redis, move |_, words| match words.starts_with("EVAL") {
            true => Fate::Answered(reply),
            false => Fate::Delivered,
        });
        for verb in [&["run", "job", "-n", "--", "echo", "ran"][..], &["status", "job"], &["release", "job", "nx1:x"]] {
            let done = proxy.nxlock(verb.iter().copied()).run().exits(69).prints("");
            done.says("unexpected reply").says("check that it is a Redis server");
        }
    }
}
