use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::quorum::unreachable_for;
use crate::support::{Condition, Done, Fate, Network, Nxlock, Proxy, Redis, Way, eventually, eventually_some};

/// How long each reply takes.
const LATE: Duration = Duration::from_millis(1200);

/// Delays the replies of three servers, and returns the networks and the value of NXLOCK_SERVER.
fn late(three: &[Redis; 3]) -> ([Network; 3], String) {
    let networks = three.each_ref().map(Network::to);
    networks.iter().for_each(|network| network.is(Way::Back, Condition::Delayed(LATE)));
    let url = |network: &Network| format!("unix://{}", network.socket().display());
    let servers = networks.each_ref().map(url).join(" ");
    (networks, servers)
}

/// Returns the result of a call to which each reply comes within its `--server-timeout`: on a busy machine, one may take
/// longer.
#[track_caller]
fn in_time(call: impl Fn() -> Nxlock) -> Done {
    eventually_some("each reply comes in time", || Some(call().run()).filter(|done| done.status.code() != Some(69)))
}

#[test]
fn a_free_lock_is_granted_if_each_reply_comes_within_the_server_timeout() {
    // The second time, the login takes a round trip too.
    for password in [None, Some("secret")] {
        let server = |_| password.map_or_else(Redis::start, Redis::with_password);
        let three = [(); 3].map(server);
        let (_networks, servers) = late(&three);
        for wait in [&["-n"][..], &["-w", "15s"], &[]] {
            let words = [&["--server-timeout", "2300ms", "run", "job"], wait, &["--", "echo", "ran"]].concat();
            let call = || {
                let call = Nxlock::new(words.iter().copied()).env("NXLOCK_SERVER", &servers);
                call.env("REDISCLI_AUTH", password.unwrap_or_default())
            };
            in_time(call).exits(0).prints("ran\n");
        }
        eventually("nothing is left", || three.iter().all(|redis| !redis.exists("lock:job")));
    }
}

#[test]
fn a_lock_is_given_back_though_the_servers_have_not_said_yet_whether_they_tell_of_changes() {
    // A holder asks each server for that in two round trips, and a new connection needs one to log in.
    let three = [(); 3].map(|()| Redis::with_password("secret"));
    let (_networks, servers) = late(&three);
    let words = ["--server-timeout", "2300ms", "run", "job", "-t", "10m", "--", "sleep", "0.5"];
    in_time(|| Nxlock::new(words).env("NXLOCK_SERVER", &servers).env("REDISCLI_AUTH", "secret")).exits(0);
    eventually("nothing is left", || three.iter().all(|redis| !redis.exists("lock:job")));
}

#[test]
fn a_command_begins_within_the_lease_that_runs_from_the_first_vote() {
    let three = [(); 3].map(|()| Redis::start());
    let (_networks, servers) = late(&three);
    let begins = "redis-cli -s \"$SOCKET\" PTTL lock:job; echo began";
    let words = ["--server-timeout", "20s", "run", "job", "-t", "8s", "-c", begins];
    let call = Nxlock::new(words).env("NXLOCK_SERVER", &servers);
    let text = call.env("SOCKET", three[0].socket()).run().exits(0).text();
    let left: u64 = text.lines().next().and_then(|left| left.parse().ok()).unwrap();
    // The grant and its fence took two replies.
    assert!(left > 4_000, "{text}");
}

/// Three proxies, of which the first `failing` requests to raise a fence, counted over all, are cut off.
fn cutting(three: &[Redis; 3], failing: usize) -> ([Proxy; 3], String) {
    let raised = std::sync::Arc::new(AtomicUsize::new(0));
    let proxies = three.each_ref().map(|redis| {
        let raised = std::sync::Arc::clone(&raised);
        Proxy::by_command(redis, move |_, words| {
            let fails = words.contains(" raise ") && raised.fetch_add(1, Ordering::SeqCst) < failing;
            if fails { Fate::Cut } else { Fate::Delivered }
        })
    });
    let servers = proxies.each_ref().map(Proxy::url).join(" ");
    (proxies, servers)
}

#[test]
fn a_grant_whose_fence_too_few_servers_take_is_given_back_and_asked_for_again() {
    let three = [(); 3].map(|()| Redis::start());
    for wait in [&["-w", "15s"][..], &[]] {
        let (_proxies, servers) = cutting(&three, 9);
        let words = [&["-v", "--server-timeout", "20s", "run", "job"], wait, &["--", "echo", "ran"]].concat();
        let done = Nxlock::new(words.iter().copied()).env("NXLOCK_SERVER", &servers).run().exits(0).prints("ran\n");
        done.says("a majority granted it, and too few of them took the fence");
        eventually("nothing is left", || three.iter().all(|redis| !redis.exists("lock:job")));
    }
    let (_proxies, servers) = cutting(&three, usize::MAX);
    let words = ["run", "job", "-n", "--server-timeout", "500ms", "--", "echo", "ran"];
    let call = || Nxlock::new(words).env("NXLOCK_SERVER", &servers);
    unreachable_for("too few of them took the fence", call).prints("");
    eventually("nothing is left", || three.iter().all(|redis| !redis.exists("lock:job")));
}

#[test]
fn a_ttl_that_ends_before_the_servers_have_answered_is_said_to_be_too_short() {
    let three = [(); 3].map(|()| Redis::start());
    let (_networks, servers) = late(&three);
    // The answers take more than half of it; more than all of it; and one of them does.
    thread::scope(|scope| {
        for ttl in ["3s", "2s", "1s"] {
            for (name, wait) in [("once", &["-n"][..]), ("while", &["-w", "15s"]), ("ever", &[])] {
                let name = format!("{name}-{ttl}");
                let servers = &servers;
                scope.spawn(move || {
                    let words = [&["--server-timeout", "5s", "run", &name, "-t", ttl], wait, &["--", "echo", "ran"]];
                    let call = Nxlock::new(words.concat().iter().copied()).env("NXLOCK_SERVER", servers);
                    call.run().exits(69).prints("").says("use a longer --ttl");
                });
            }
        }
    });
    let is_empty = |redis: &Redis| redis.ask::<Vec<String>>(&["KEYS", "lock:*"]).is_empty();
    eventually("nothing is left", || three.iter().all(is_empty));
}
