//! Several locks at once in a Redis server: what they cost, what is left of them, and what faults do to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::turns::{Turn, queue_of};
use crate::support::{
    Authority, Cluster, Fate, Five, Local, Proxy, Redis, Running, eventually, eventually_some, freeze, lasts, text_of,
};

/// Starts a run that holds these locks, and waits until its command runs.
fn holding(authority: &impl Authority, words: &[&str]) -> Running {
    let mut running = authority.nxlock(["run"].iter().chain(words).chain(&["-c", "echo up; sleep 600"])).start();
    running.line("up");
    running
}

#[test]
fn a_name_twice_or_too_many_are_refused_before_a_server_is_asked() {
    let nowhere = |words: &[&str]| {
        let call = crate::support::Nxlock::new(["run"].iter().chain(words).chain(&["--", "true"]));
        call.env("NXLOCK_SERVER", "redis://127.0.0.1:1").run().exits(64).prints("")
    };
    nowhere(&["a", "--also", "a"]).says("\"a\" is named twice");
    nowhere(&["a", "--also", "b", "--also-shared", "b"]).says("\"b\" is named twice");
    nowhere(&["--key", "lock:b", "--also", "b"]).says("same key");
    let names: Vec<String> = (0..16).map(|n| format!("n{n}")).collect();
    let also: Vec<&str> = names.iter().flat_map(|name| ["--also", name]).collect();
    nowhere(&[&["a"][..], &also].concat()).says("16 may be held together");
    let acquire = crate::support::Nxlock::new(["acquire", "a", "--also", "b", "--ttl", "1m"]);
    acquire.env("NXLOCK_SERVER", "redis://127.0.0.1:1").run().exits(64).says("--while-pid");
    let five = Five::start();
    five.nxlock(["run", "a", "--also-shared", "b", "--", "true"]).run().exits(64).says("--also-shared");
}

#[test]
fn sixteen_are_held_together_beside_an_exact_key() {
    let redis = Redis::start();
    let names: Vec<String> = (2..=16).map(|n| format!("n{n}")).collect();
    let also = names.iter().flat_map(|name| ["--also-shared", name]);
    let script = r#"echo "$NXLOCK_COUNT $NXLOCK_KEY $NXLOCK_NAME_16 $NXLOCK_KEY_16"; nxlock status n2 n16 | grep -c '^n.*shared'"#;
    let words = ["run", "--key", "own"].into_iter().chain(also).chain(["-c", script]);
    redis.nxlock(words).run().exits(0).prints("16 own n16 lock:n16\n2\n").says_nothing();
}

/// Returns the requests that a server gets while this runs, without those of other connections of the test, and how
/// long it took.
fn requests(redis: &Redis, words: &[&str]) -> (Vec<String>, Duration) {
    redis.knows_the_script();
    let log = redis.directory().join("monitor");
    let file = std::fs::File::create(&log).unwrap();
    let socket = redis.socket();
    let mut monitor = std::process::Command::new("redis-cli")
        .args(["-s", socket.to_str().unwrap(), "MONITOR"])
        .stdout(file)
        .spawn()
        .unwrap();
    eventually("it is monitored", || text_of(&log).starts_with("OK"));
    let done = redis.nxlock(words).run().exits(0);
    redis.ask::<String>(&["ECHO", "the-end"]);
    eventually("all is told", || text_of(&log).contains("the-end"));
    monitor.kill().unwrap();
    monitor.wait().unwrap();
    let is_asked = |line: &&str| line.contains("] \"") && !line.contains(" lua] ") && !line.contains("the-end");
    let asked = text_of(&log);
    let asked = asked.lines().filter(is_asked).map(|line| line.split('"').nth(1).unwrap().to_owned());
    (asked.collect(), done.took)
}

#[test]
fn each_lock_costs_two_requests_on_one_connection() {
    let redis = Redis::start();
    let counted = |words: &[&str], locks: usize| {
        eventually_some("the requests are few, or it did not take long", || {
            let before = connections(&redis);
            let (asked, took) = requests(&redis, words);
            // A run that takes longer than this confirms what it has, and listens.
            let may_ask_more = took >= Duration::from_millis(100) && asked.len() > 2 * locks;
            (!may_ask_more).then(|| (asked, connections(&redis) - before))
        })
    };
    let (one, of_one) = counted(&["run", "a", "--", "true"], 1);
    let (three, of_three) = counted(&["run", "a", "--also", "b", "--also", "c", "--", "true"], 3);
    assert_eq!((one, three), (vec!["EVALSHA".to_owned(); 2], vec!["EVALSHA".to_owned(); 6]));
    assert_eq!(of_one, of_three, "among them those of the test");
}

fn connections(redis: &Redis) -> u64 {
    let info: String = redis.ask(&["INFO", "stats"]);
    let count = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    // The question may come on a connection of its own.
    count.unwrap().trim().parse().unwrap()
}

/// The renewals are ten seconds apart.
#[test]
fn a_holder_hears_at_once_that_any_of_its_locks_is_gone() {
    let redis = Redis::start();
    for gone in ["a", "b", "c"] {
        let words = ["a", "--also-shared", "b", "--also", "c", "--ttl", "10m"];
        let running = holding(&redis, &words);
        hears(&redis, 1);
        hears_of(&redis, running, gone);
    }
}

#[test]
fn what_is_heard_of_one_lock_is_asked_about_that_one_and_delays_no_other() {
    let redis = Redis::start();
    let names: Vec<String> = (2..=16).map(|n| format!("n{n}")).collect();
    let also: Vec<&str> = names.iter().flat_map(|name| ["--also", name]).collect();
    // The next renewal of all comes ten seconds after the last one, which comes after this.
    let began = crate::support::now();
    let mut running = holding(&redis, &[&["n1", "--ttl", "10m", "-v"][..], &also].concat());
    running.says("renewed for");
    is_told_of(&running, 16);
    let before = redis.scripts_run();
    redis.ask::<()>(&["PEXPIRE", "lock:n5", "300000"]);
    eventually("it has asked", || redis.scripts_run() > before);
    redis.delete("lock:n7");
    running.finish().exits(76).says("\"n7\" is lost");
    // Of each of the two, and to give the others back; or else all were due.
    let most = 2 + 16 + 16 * (began.elapsed().as_secs() / 9);
    assert!(redis.scripts_run() - before <= most, "{} requests", redis.scripts_run() - before);
}

/// Breaks one of the locks of a run, and asserts that the run hears of it: it renews them ten seconds after the last time.
#[track_caller]
fn hears_of(authority: &impl Authority, mut running: Running, gone: &str) {
    let status = authority.nxlock(["status", "--json", gone]).run().json();
    let id = status[0]["holders"][0]["id"].as_str().unwrap_or_else(|| panic!("{status}")).to_owned();
    authority.nxlock(["release", gone, "--break", &id]).run().exits(0);
    let broken = crate::support::now();
    running.says(&format!("\"{gone}\" is lost"));
    assert!(broken.elapsed() < Duration::from_secs(5), "\"{gone}\" is found by a renewal");
    running.finish().exits(76);
}

/// Waits until the log of a run with -v says so many times that a server tells it of changes: once for each lock and
/// server.
#[track_caller]
fn is_told_of(running: &Running, times: usize) {
    let told = || running.stderr().matches("tells us at once of changes of the lock").count();
    eventually("it listens", || told() >= times);
}

/// Waits until so many clients are told of changes.
fn hears(redis: &Redis, clients: usize) {
    eventually("it listens", || redis.tells() == clients);
}

#[test]
fn the_nodes_of_a_cluster_each_tell_of_the_locks_that_they_have() {
    let cluster = Cluster::of_masters();
    for gone in ["a", "b", "c", "d"] {
        let running = holding(&cluster, &["a", "--also", "b", "--also", "c", "--also", "d", "--ttl", "10m", "-v"]);
        is_told_of(&running, 4);
        hears_of(&cluster, running, gone);
    }
}

#[test]
fn each_of_several_servers_tells_of_all_locks() {
    let five = Five::start();
    for gone in ["a", "b", "c"] {
        let running = holding(&five, &["a", "--also", "b", "--also", "c", "--ttl", "10m", "-v"]);
        is_told_of(&running, 3 * 5);
        hears_of(&five, running, gone);
    }
}

/// The time-out of the server is longer than the lease.
#[test]
fn a_node_that_hangs_while_its_lock_is_waited_for_costs_none_of_the_others() {
    let cluster = Cluster::of_masters();
    let there = cluster.name_apart_from("a");
    let token = cluster.nxlock(["acquire", &there, "--ttl", "1h"]).run().exits(0).token();
    let words = ["--server-timeout", "6s", "run", "a", "--also", &there, "--ttl", "3s", "--", "echo", "ran"];
    let mut waits = cluster.nxlock(words).start();
    waits.says(&format!("waiting for \"{there}\""));
    let node = &cluster.nodes[cluster.at(&format!("lock:{there}"))];
    node.hang();
    let value = || cluster.ask::<Option<String>>(&["GET", "lock:a"]);
    let held = value();
    assert!(held.is_some());
    // It asks the node that hangs within little more than two seconds, and the lease would end while it waits for an
    // answer.
    lasts(Duration::from_secs(6));
    assert_eq!(value(), held);
    node.resume();
    cluster.nxlock(["release", &there, &token]).run().exits(0);
    waits.finish().exits(0).prints("ran\n");
}

#[test]
fn a_wait_that_ends_on_a_server_that_hangs_leaves_nothing_when_it_goes_on() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "c", "--ttl", "1h"]).run().exits(0).token();
    let mut waits = redis.nxlock(["run", "a", "--also", "b", "--also", "c", "--ttl", "10m", "--", "true"]).start();
    waits.says("waiting for \"c\"");
    redis.hang();
    waits.signal(Signal::SIGTERM);
    waits.finish().dies_of(Signal::SIGTERM);
    redis.resume();
    let are_free = || redis.nxlock(["status", "a", "b"]).run().text().matches(" free ").count() == 2;
    eventually("what was sent behind is carried out", are_free);
    redis.nxlock(["release", "c", &token]).run().exits(0);
}

#[test]
fn an_outage_while_one_is_waited_for_costs_nothing_if_the_others_are_still_there() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "b", "--ttl", "1h"]).run().exits(0).token();
    let words = ["run", "a", "--also", "b", "--ttl", "1h", "--server-timeout", "500ms", "--", "echo", "ran"];
    // On a busy machine, the first answer may take longer.
    let mut waits = eventually_some("the server answers in time", || {
        let mut waits = redis.nxlock(words).start();
        eventually("it waits, or has ended", || waits.has_ended() || waits.stderr().contains("waiting for \"b\""));
        (!waits.has_ended()).then_some(waits)
    });
    redis.hang();
    waits.says("no answer");
    redis.resume();
    redis.nxlock(["release", "b", &token]).run().exits(0);
    waits.finish().exits(0).prints("ran\n");
}

/// Sixteen at a quarter of a second each, and as much again to confirm them: four times the server timeout.
#[test]
fn many_are_had_from_a_server_that_is_far_away_and_given_back() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis, |_| Fate::Slow(Duration::from_millis(250)));
    let names: Vec<String> = (2..=16).map(|n| format!("n{n}")).collect();
    let also = || names.iter().flat_map(|name| ["--also", name]);
    let words = |more: &[&'static str]| -> Vec<String> {
        ["run", "n1"].into_iter().chain(also()).chain(more.iter().copied()).map(str::to_owned).collect()
    };
    let mut holder = proxy.nxlock(words(&["--", "echo", "ran"])).start();
    // To acquire and to release so many takes long: the test waits anew for each.
    holder.line("ran");
    holder.finish().exits(0).prints("ran\n").says_nothing();
    let are_free = || {
        let document = redis.nxlock(["--json", "status"]).run().json();
        document.as_array().unwrap().iter().all(|lock| lock["name"] == "n9" || lock["state"] == "free")
    };
    eventually("all are given back", are_free);
    let token = redis.nxlock(["acquire", "n9", "--ttl", "1h"]).run().exits(0).token();
    proxy.nxlock(words(&["-n", "--", "true"])).run().exits(75).says("\"n9\" is held");
    eventually("those that were had are given back", are_free);
    redis.nxlock(["release", "n9", &token]).run().exits(0);
}

/// A round of renewals takes 2.4 s, and each renewal has 2 s.
#[test]
fn many_are_renewed_at_a_server_that_is_far_away() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis, |_| Fate::Slow(Duration::from_millis(300)));
    let names: Vec<String> = (2..=8).map(|n| format!("n{n}")).collect();
    let also = names.iter().flat_map(|name| ["--also", name]);
    let words = ["run", "n1", "--ttl", "12s"].into_iter().chain(also).chain(["-c", "echo up; sleep 8; echo ran"]);
    let mut holder = proxy.nxlock(words).start();
    // To acquire and to release so many takes long: the test waits anew for each.
    holder.line("up");
    holder.line("ran");
    holder.finish().exits(0).says_nothing();
}

/// Behind the first renewal the server is asked to tell of changes, and the lock is renewed again.
#[test]
fn a_renewal_that_had_its_reply_counts_whatever_becomes_of_the_next() {
    let redis = Redis::start();
    let is_asked = AtomicBool::new(false);
    let was_swallowed = Arc::new(AtomicBool::new(false));
    let is_swallowed = Arc::clone(&was_swallowed);
    let proxy = Proxy::by_command(&redis, move |_, command| {
        if command.starts_with("CLIENT TRACKING") {
            is_asked.store(true, Ordering::SeqCst);
        }
        let comes_next = command.starts_with("EVALSHA renew ") && is_asked.load(Ordering::SeqCst);
        if comes_next && !is_swallowed.swap(true, Ordering::SeqCst) { Fate::ReplySwallowed } else { Fate::Delivered }
    });
    let words = ["run", "a", "--also", "b", "-c", "echo up; sleep 5; echo ran"];
    let holder = Turn::once("it runs", || proxy.nxlock(words), |holder| holder.running.stdout().contains("up"));
    holder.finish().exits(0).prints("up\nran\n").says_nothing();
    assert!(was_swallowed.load(Ordering::SeqCst), "{:?}", proxy.commands());
}

/// Acquires so many locks at a server 250 ms away, and leaves them to a keeper; returns the way to the server, and the token
/// of the first.
fn kept_far_away(redis: &Redis, count: usize) -> (Proxy, String) {
    let proxy = Proxy::to(redis, |_| Fate::Slow(Duration::from_millis(250)));
    let pid = std::process::id().to_string();
    let names: Vec<String> = (2..=count).map(|n| format!("n{n}")).collect();
    let also = names.iter().flat_map(|name| ["--also", name]);
    let token = proxy.nxlock(["acquire", "n1", "--while-pid", &pid].into_iter().chain(also)).run().exits(0).token();
    (proxy, token)
}

/// It gives back the others within less than a second, and all replies would take two.
#[test]
fn a_keeper_leaves_in_time_though_the_server_is_far_away() {
    let redis = Redis::start();
    let (proxy, token) = kept_far_away(&redis, 8);
    proxy.nxlock(["-v", "release", "n1", &token]).run().exits(0).says("its keeper leaves \"n1\" to us");
    let are_free = || {
        let document = redis.nxlock(["--json", "status"]).run().json();
        document.as_array().unwrap().iter().all(|lock| lock["state"] == "free")
    };
    eventually("all are given back", are_free);
}

/// A round of renewals takes four seconds, and `release` waits for three.
#[test]
fn a_keeper_that_renews_many_leaves_after_the_renewal_in_flight() {
    let redis = Redis::start();
    let (proxy, token) = kept_far_away(&redis, 16);
    redis.sees_a_renewal("lock:n1");
    proxy.nxlock(["-v", "release", "n1", &token]).run().exits(0).says("its keeper leaves \"n1\" to us");
}

#[test]
fn a_command_that_goes_on_without_one_of_its_locks_is_left_by_all() {
    let redis = Redis::start();
    let mut running = holding(&redis, &["-v", "a", "--also", "b", "-t", "1m", "--on-lost", "continue"]);
    running.says("renewed for");
    redis.delete("lock:a");
    running.says("\"a\" is lost: ");
    running.says("the command runs on, and none of its locks is renewed any more");
    // Not even if a server tells nxlock that it ends soon.
    redis.ask::<()>(&["PEXPIRE", "lock:b", "500"]);
    eventually("the other has ended too", || redis.value("lock:b").is_none());
    assert!(!running.has_ended());
    running.signal(Signal::SIGTERM);
    running.finish().exits(76);
}

#[test]
fn events_say_which_lock_they_are_about() {
    let redis = Redis::start();
    let log = redis.directory().join("events");
    let token = redis.nxlock(["acquire", "b", "--ttl", "1h"]).run().exits(0).token();
    let events = ["--events", log.to_str().unwrap(), "--ttl", "1m"];
    let words = ["run", "job", "--also", "b"];
    let mut running = redis.nxlock(words.iter().chain(&events).chain(&["-c", "echo up; sleep 600"])).start();
    running.says("waiting for \"b\"");
    redis.nxlock(["release", "b", &token]).run().exits(0);
    running.line("up");
    redis.delete("lock:b");
    running.finish().exits(76);
    let text = text_of(&log);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of =
        |event: &str| lines.iter().find(|line| line["event"] == event).unwrap_or_else(|| panic!("{event}: {text}"));
    assert_eq!((&of("waiting")["name"], &of("waiting")["key"]), (&"b".into(), &"lock:b".into()), "{text}");
    assert_eq!(of("granted")["name"], "job");
    assert_eq!(of("granted")["also"][0]["name"], "b", "{text}");
    assert!(of("granted")["also"][0]["fence"].is_u64());
    assert_eq!((&of("lost")["name"], &of("lost")["id"]), (&"b".into(), &of("granted")["also"][0]["id"]), "{text}");
    assert_eq!(of("ended")["name"], "job");
}

/// The command has a descriptor for each.
#[test]
fn the_processes_of_a_command_keep_all_local_locks_if_nxlock_and_guard_are_killed() {
    let local = Local::start();
    let mut running =
        local.nxlock(["run", "a", "--also", "b", "-c", "setsid sh -c 'echo $$ > pid; exec sleep 600' & echo up; wait"]);
    running = running.in_directory(&local.directory());
    let mut running = running.start();
    running.line("up");
    eventually("it has left the session", || !text_of(&local.directory().join("pid")).is_empty());
    let guard = crate::support::children_of(running.pid())[0];
    // Each would end them all if it outlived the other. A stopped guard would too: the kernel continues it when nxlock
    // dies, as its process group is orphaned then, setpgid(2).
    freeze(running.pid());
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(guard), Signal::SIGKILL).unwrap();
    running.signal(Signal::SIGKILL);
    for name in ["a", "b"] {
        local.nxlock(["run", name, "-n", "--", "true"]).run().exits(75);
    }
    let pid: i32 = text_of(&local.directory().join("pid")).trim().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    for name in ["a", "b"] {
        local.nxlock(["run", name, "-w", "20s", "--", "true"]).run().exits(0);
    }
}

/// Random numbers that are the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        // The constants of Knuth's MMIX.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }

    /// Returns two to five of these, in any order.
    fn some<'a>(&mut self, names: &[&'a str]) -> Vec<&'a str> {
        let mut left = names.to_vec();
        let count = 2 + self.below(4);
        (0..count).map(|_| left.swap_remove(self.below(left.len()))).collect()
    }
}

const SIX: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Runs once under some of the locks, and returns how long it waited for them, or the pid of nxlock if it was killed before.
fn runs_once(authority: &impl Authority, dice: &mut Dice) -> Result<Duration, i32> {
    let script = r#"for n in $NAMES; do exec 9>"$DIR/$n"; flock -n 9 || echo "overlap $n" >> "$DIR/log"
        case $n in a) exec 3>&9;; b) exec 4>&9;; c) exec 5>&9;; d) exec 6>&9;; e) exec 7>&9;; f) exec 8>&9;; esac; done
        echo up; exec sleep 0.01"#;
    let names = dice.some(&SIX);
    let also = names[1..].iter().flat_map(|name| ["--also", name]);
    let end = dice.below(8);
    // The test kills the first three; their locks are free when their leases end. The others must keep theirs, also on a
    // machine that runs none of them for a second.
    let ttl = if end < 3 { "1s" } else { "20s" };
    let words = ["-q", "run", names[0], "--ttl", ttl].into_iter().chain(also).chain(["-c", script]);
    let call = authority.nxlock(words).env("NAMES", names.join(" ")).env("DIR", authority.directory().join("held"));
    let began = crate::support::now();
    let mut running = call.start();
    let kill = |pid: i32| _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL);
    match end {
        0 | 1 => {
            lasts(Duration::from_millis(dice.below(200).try_into().unwrap()));
            let guards = if dice.below(2) == 0 { crate::support::children_of(running.pid()) } else { Vec::new() };
            running.signal(Signal::SIGKILL);
            guards.into_iter().for_each(kill);
            Err(running.pid())
        }
        2 => {
            lasts(Duration::from_millis(dice.below(200).try_into().unwrap()));
            running.signal(Signal::SIGTERM);
            Err(running.pid())
        }
        _ => {
            running.line("up");
            let waited = began.elapsed();
            running.finish().exits(0).says_nothing();
            Ok(waited)
        }
    }
}

/// Thirty runners at a time, each with a few locks in any order, some of which are killed.
fn are_taken_in_any_order(authority: &(impl Authority + Sync)) {
    // By hand: more rounds, and a file for the longest wait.
    let rounds: usize = std::env::var("SEVERAL_ROUNDS").map_or(60, |rounds| rounds.parse().unwrap());
    let directory = authority.directory().join("held");
    std::fs::create_dir_all(&directory).unwrap();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let (longest, killed) = (std::sync::Mutex::new(Duration::ZERO), std::sync::Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..30 {
            scope.spawn(|| {
                loop {
                    let round = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if round >= rounds {
                        return;
                    }
                    match runs_once(authority, &mut Dice(round as u64 * 7919)) {
                        Ok(waited) => {
                            let mut longest = longest.lock().unwrap();
                            *longest = waited.max(*longest);
                        }
                        Err(pid) => killed.lock().unwrap().push(pid),
                    }
                }
            });
        }
    });
    if let Ok(report) = std::env::var("SEVERAL_REPORT") {
        std::fs::write(report, format!("{rounds} rounds, longest wait {:?}\n", longest.into_inner().unwrap())).unwrap();
    }
    assert_eq!(text_of(&directory.join("log")), "");
    // A queue contains at most waiters that were killed, and the next run removes those.
    let (killed, queued) = (killed.into_inner().unwrap(), SIX.map(|name| queue_of(authority, name)).concat());
    assert!(queued.iter().all(|pid| killed.contains(pid)), "{queued:?} {killed:?}");
    let also = SIX[1..].iter().flat_map(|name| ["--also", *name]);
    authority.nxlock(["run", SIX[0]].into_iter().chain(also).chain(["--", "true"])).run().exits(0);
    let left = || authority.nxlock(["--json", "status"]).run().exits(0).json();
    eventually("no lock is left", || left().as_array().unwrap().iter().all(|lock| lock["state"] == "free"));
}

#[test]
fn in_any_order_and_with_kills_nobody_waits_in_a_circle_and_nothing_is_left() {
    are_taken_in_any_order(&Redis::start());
}

#[test]
fn local_locks_are_taken_in_any_order_and_with_kills() {
    are_taken_in_any_order(&Local::start());
}
