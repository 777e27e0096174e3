//! A holder that is asked to give up, on a Redis server and its key: what the others may do, and what the request
//! leaves behind.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::record;
use crate::support::turns::{Turn, holder_id, is_free, is_renewed, lock_status, queue_is, turn};
use crate::support::{Authority, Done, Fate, Five, Local, Nxlock, Proxy, Redis, answered, eventually, eventually_some};

const LONG: [&str; 2] = ["-t", "10m"];

/// The key with the request to a holder that has the lock alone.
const WAITERS: &str = "{lock:job}:waiters";

/// Returns who asks the holder to give up.
fn asker(redis: &Redis, id: &str) -> Option<String> {
    let asked: Option<String> = redis.ask(&["HGET", WAITERS, "asked"]);
    Some(asked?.strip_prefix(id)?.strip_prefix(' ')?.to_owned())
}

#[test]
fn a_request_that_nobody_finds_expires_with_the_lease() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &["-t", "40s"]);
    let id = holder_id(&redis);
    // It renews nothing meanwhile.
    holder.freeze();
    redis.nxlock(["release", "job", "--ask", &id]).run().exits(0);
    let left = redis.pttl(WAITERS);
    assert!((40_000..=60_000).contains(&left), "{left} ms");
    // The last one counts.
    redis.nxlock(["release", "job", "--ask", &id, "--reason", "again"]).run().exits(0);
    assert!(asker(&redis, &id).unwrap().ends_with(":again"));
    redis.delete(WAITERS);
    holder.goes_on();
    holder.leaves();
    redis.has_only_a_fence();
}

#[test]
fn the_holder_deletes_a_request_that_it_has_found() {
    let redis = Redis::start();
    let holder = Turn::listening(&redis, &LONG);
    redis.nxlock(["release", "job", "--ask", &holder_id(&redis)]).run().exits(0);
    holder.finish().exits(143);
    redis.has_only_a_fence();
}

#[test]
fn a_request_to_a_holder_of_the_past_does_not_concern_the_next() {
    let redis = Redis::start();
    // It does not hear of it, and is gone before it renews the lock again.
    redis.ask::<()>(&["ACL", "SETUSER", "default", "-subscribe"]);
    let holder = Turn::listening(&redis, &LONG);
    let id = holder_id(&redis);
    redis.nxlock(["release", "job", "--ask", &id]).run().exits(0);
    holder.leaves();
    let next = Turn::had(&redis, &LONG);
    for _ in 0..3 {
        redis.renews_soon("lock:job");
    }
    next.leaves();
    redis.has_only_a_fence();
}

#[test]
fn a_request_that_cannot_be_read_costs_nobody_the_lock() {
    let redis = Redis::start();
    let holder = Turn::listening(&redis, &LONG);
    let id = holder_id(&redis);
    redis.ask::<i64>(&["LPUSH", WAITERS, "another's"]);
    redis.renews_soon("lock:job");
    redis.renews_soon("lock:job");
    redis.delete(WAITERS);
    for asked in ["another's", &id, &format!("{id} another's"), &format!("{id} ")] {
        redis.ask::<()>(&["HSET", WAITERS, "asked", asked]);
        redis.renews_soon("lock:job");
        redis.renews_soon("lock:job");
    }
    holder.leaves();
    redis.has_only_a_fence();
}

#[test]
fn a_full_server_refuses_the_request_and_keeps_the_holder() {
    let redis = Redis::start();
    let holder = Turn::listening(&redis, &LONG);
    let id = holder_id(&redis);
    redis.ask::<()>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    redis.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let call = || redis.nxlock(["release", "job", "--ask", &id, "--server-timeout", "1s"]);
    answered(call).exits(69).says("cannot ask for \"job\"").says("out of memory");
    redis.renews_soon("lock:job");
    redis.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    holder.leaves();
    redis.has_only_a_fence();
}

#[test]
fn without_access_to_the_key_a_holder_keeps_its_lock_and_an_asker_is_told() {
    let redis = Redis::start();
    let rules = "ACL SETUSER few on >pw ~lock:* +get +set +del +pttl +pexpire +type +watch +multi +exec";
    redis.ask::<()>(&rules.split(' ').collect::<Vec<_>>());
    let url = format!("{}?user=few&pass=pw", redis.url());
    let few = |words: &[&str]| Nxlock::new(words.iter().copied()).env("NXLOCK_SERVER", &url);
    let script = "echo up; read x; exit 0";
    let (reader, writer) = std::io::pipe().unwrap();
    let mut holder = few(&["run", "job", "-t", "10m", "-c", script]).stdin_from(reader).start();
    holder.line("up");
    for _ in 0..2 {
        redis.ask::<()>(&["PEXPIRE", "lock:job", "30000"]);
        // It is not told of a change, and renews the lease when its connection has ended.
        redis.ask::<i64>(&["CLIENT", "KILL", "USER", "few"]);
        eventually("the lease is renewed", || redis.pttl("lock:job") > 30_000);
    }
    let id = holder_id(&redis);
    few(&["release", "job", "--ask", &id]).run().exits(77).says("cannot ask for \"job\"").says("PERMISSIONS");
    drop(writer);
    holder.finish().exits(0);
}

#[test]
fn a_server_without_scripts_has_its_holders_asked_as_well() {
    let redis = Redis::start();
    redis.ask::<()>(&["ACL", "SETUSER", "default", "-eval", "-evalsha"]);
    let holder = Turn::listening(&redis, &LONG);
    redis.nxlock(["release", "job", "--ask", &holder_id(&redis), "--wait", "20s"]).run().exits(0);
    holder.finish().exits(143).says("asked to give up \"job\"");
    assert_eq!(redis.ask::<i64>(&["DBSIZE"]), 0);
}

#[test]
fn a_frozen_holder_is_waited_for_until_its_lease_is_over() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &LONG);
    let id = holder_id(&redis);
    holder.freeze();
    redis.nxlock(["release", "job", "--ask", &id, "--wait", "100ms"]).run().exits(75).says("still holds");
    let mut asks = redis.nxlock(["-v", "release", "job", "--ask", &id, "--wait", "20s"]).start();
    asks.says("to give up \"job\": waiting");
    // The lease ends soon, and the holder does not learn of that.
    redis.ask::<()>(&["PEXPIRE", "lock:job", "1000"]);
    asks.finish().exits(0).says("no longer holds \"job\"");
    assert!(is_free(&redis), "{}", lock_status(&redis));
    holder.goes_on();
    holder.finish().exits(76).says("is lost");
    redis.has_only_a_fence();
}

#[test]
fn a_lock_that_was_given_up_for_lost_and_is_renewed_again_can_be_asked_for() {
    let redis = Redis::start();
    let mut holder = Turn::had(&redis, &["-t", "6s", "--on-lost", "continue"]);
    let id = holder_id(&redis);
    // The server keeps the lock for longer than the holder knows, which does not renew it before the server hangs.
    holder.freeze();
    redis.ask::<()>(&["PEXPIRE", "lock:job", "600000"]);
    redis.hang();
    holder.goes_on();
    holder.running.says("is lost");
    redis.resume();
    holder.running.says("the lock is renewed again");
    redis.nxlock(["release", "job", "--ask", &id, "--wait", "20s"]).run().exits(0);
    holder.finish().exits(76).says("asked to give up");
    redis.has_only_a_fence();
}

#[test]
fn a_waiter_that_leaves_takes_its_request_back() {
    let redis = Redis::start();
    let older = Turn::had(&redis, &["-t", "10m", "--supersede=running"]);
    let id = holder_id(&redis);
    older.freeze();
    let mut newest = Turn::queued(&redis, &["--supersede=running"]);
    newest.running.says("to give up");
    assert!(asker(&redis, &id).is_some());
    newest.running.signal(Signal::SIGTERM);
    newest.finish().dies_of(Signal::SIGTERM);
    assert!(asker(&redis, &id).is_none());
    // So does one that is dismissed by another which leaves the holder alone.
    let mut newest = Turn::queued(&redis, &["--supersede=running"]);
    newest.running.says("to give up");
    let mut last = Turn::of(redis.nxlock(turn(&["--supersede"])));
    newest.finish().exits(75);
    assert!(asker(&redis, &id).is_none());
    older.goes_on();
    older.leaves();
    last.up();
    last.leaves();
    redis.has_only_a_fence();
}

/// Returns whether a request is one to a holder to give up, by its beginning.
fn asks(words: &str) -> bool {
    words.contains(" ask ") && !words.contains(" back")
}

/// A newer run asks the holder over this line, and gives up: nothing of its request stays.
#[track_caller]
fn a_newer_run_that_gives_up_leaves_the_holder_alone(redis: &Redis, proxy: &Proxy, then: impl FnOnce()) {
    let older = Turn::had(redis, &["-t", "10m", "--supersede=running"]);
    let id = holder_id(redis);
    // It renews nothing meanwhile.
    older.freeze();
    // On a busy machine, the wait may be over before it has asked.
    eventually("it asks before it gives up", || {
        proxy.nxlock(turn(&["--supersede=running", "-w", "3s"])).run().exits(75).prints("");
        proxy.commands().iter().any(|words| asks(words))
    });
    then();
    proxy.has_carried_all();
    assert!(asker(redis, &id).is_none(), "the request is taken back");
    older.goes_on();
    older.leaves();
    redis.has_only_a_fence();
}

#[test]
fn over_a_slow_line_a_request_is_taken_back_all_the_same() {
    let redis = Redis::start();
    // Each answer comes later than a waiter waits for those about its request.
    let slow = |_| Fate::Slow(Duration::from_millis(300));
    let proxy = Proxy::to(&redis, slow);
    a_newer_run_that_gives_up_leaves_the_holder_alone(&redis, &proxy, || {});
}

#[test]
fn a_request_whose_reply_is_lost_is_taken_back() {
    let redis = Redis::start();
    let proxy = Proxy::by_command(&redis, |_, words| if asks(words) { Fate::ReplySwallowed } else { Fate::Delivered });
    a_newer_run_that_gives_up_leaves_the_holder_alone(&redis, &proxy, || {});
}

#[test]
fn a_request_that_arrives_after_its_asker_has_left_is_taken_back() {
    let redis = Redis::start();
    let proxy = Proxy::by_command(&redis, |_, words| if asks(words) { Fate::Held } else { Fate::Delivered });
    let arrived = || redis.ask::<String>(&["INFO", "commandstats"]).contains("cmdstat_hset:");
    a_newer_run_that_gives_up_leaves_the_holder_alone(&redis, &proxy, || {
        redis.ask::<()>(&["CONFIG", "RESETSTAT"]);
        proxy.lets_go();
        eventually("it arrives", arrived);
    });
}

#[test]
fn a_request_is_taken_back_over_a_new_connection_if_the_line_was_cut() {
    let redis = Redis::start();
    let proxy = Proxy::by_command(&redis, |_, words| if asks(words) { Fate::Cut } else { Fate::Delivered });
    a_newer_run_that_gives_up_leaves_the_holder_alone(&redis, &proxy, || {});
}

#[test]
fn a_request_that_did_not_arrive_is_repeated_while_its_asker_waits() {
    let redis = Redis::start();
    let holder = Turn::listening(&redis, &LONG);
    let id = holder_id(&redis);
    let lost = AtomicBool::new(false);
    let proxy = Proxy::by_command(&redis, move |_, words| match asks(words) && !lost.swap(true, Ordering::SeqCst) {
        true => Fate::Blackholed,
        false => Fate::Delivered,
    });
    let words = ["release", "job", "--ask", &id, "-w", "15s", "--server-timeout", "1s"];
    // On a busy machine, the server may not show the holder in time.
    let is_answered = |done: &Done| done.status.code() != Some(69);
    let asked = eventually_some("the server answers in time", || Some(proxy.nxlock(words).run()).filter(is_answered));
    asked.exits(0).says("the holder may have been asked or not");
    holder.finish().exits(143);
    redis.has_only_a_fence();
}

#[test]
fn to_take_a_request_back_leaves_that_of_another_alone() {
    let redis = Redis::start();
    let older = Turn::had(&redis, &["-t", "10m", "--supersede=running"]);
    let id = holder_id(&redis);
    older.freeze();
    let mut newest = Turn::queued(&redis, &["--supersede=running"]);
    newest.running.says("to give up");
    redis.nxlock(["release", "job", "--ask", &id, "--reason", "another"]).run().exits(0);
    newest.running.signal(Signal::SIGTERM);
    newest.finish().dies_of(Signal::SIGTERM);
    assert!(asker(&redis, &id).unwrap().ends_with(":another"));
    redis.ask::<i64>(&["HDEL", WAITERS, "asked"]);
    older.goes_on();
    older.leaves();
    redis.has_only_a_fence();
}

#[test]
fn a_server_that_does_not_say_who_asks_costs_nobody_the_lock() {
    let redis = Redis::start();
    let proxy = Proxy::by_command(&redis, |_, words| match words.starts_with("HGET") {
        true => Fate::Held,
        false => Fate::Delivered,
    });
    // A renewal by script says who asks.
    redis.ask::<()>(&["ACL", "SETUSER", "default", "-eval", "-evalsha"]);
    let mut holder = Turn::of(proxy.nxlock(turn(&["-t", "15s"])));
    holder.up();
    for _ in 0..3 {
        is_renewed(&redis);
    }
    holder.leaves();
}

#[test]
fn a_lock_that_outlives_its_command_has_nobody_to_ask() {
    let redis = Redis::start();
    redis.nxlock(["run", "job", "--at-least", "10m", "--", "true"]).run().exits(0);
    let id = holder_id(&redis);
    redis.nxlock(["release", "job", "--ask", &id, "--wait", "300ms"]).run().exits(75).says("still holds");
    redis.nxlock(["release", "job", "--break", &id]).run().exits(0);
    redis.has_only_a_fence();
}

#[test]
fn several_servers_have_no_place_for_a_request() {
    let five = Five::start();
    let holder = Turn::had(&five, &LONG);
    let seen = lock_status(&five);
    assert_eq!(seen["holder"]["may_be_asked"], false, "{seen}");
    five.nxlock(["release", "job", "--ask", &holder_id(&five)]).run().exits(64).says("no place where a holder");
    five.nxlock(["run", "job", "-n", "--", "true"]).run().exits(75).never_says("--ask");
    holder.leaves();
}

#[test]
fn what_contradicts_itself_is_refused() {
    let redis = Redis::start();
    for options in [&["--shared"][..], &["--slots", "2"], &["--no-ask"], &["--setnx-compat"]] {
        let words = [&["run", "job", "--supersede=running"], options, &["--", "echo", "ran"]].concat();
        redis.nxlock(words).run().exits(64).prints("").says("--supersede");
    }
    let words = ["acquire", "job", "--while-pid", "1", "--supersede=running", "--lost-signal", "none"];
    redis.nxlock(words).run().exits(64).prints("").says("--lost-signal none");
    redis.nxlock(["run", "job", "--supersede=all", "--", "true"]).run().exits(64).says("waiting, running");
    for words in
        [&["--ask", "aaaaaaaa", "--break", "aaaaaaaa"][..], &["--wait", "1s"], &["--reason", "x"], &["--ask", ""]]
    {
        redis.nxlock([&["release", "job"], words].concat()).run().exits(64).says("--");
    }
    assert_eq!(redis.ask::<i64>(&["DBSIZE"]), 0);
}

#[test]
fn a_waiter_asks_each_holder_of_its_kind_once() {
    let redis = Redis::start();
    let older = Turn::had(&redis, &["-t", "10m", "--supersede=running"]);
    let id = holder_id(&redis);
    // It renews nothing meanwhile.
    older.freeze();
    let mut newest = Turn::queued(&redis, &["--supersede=running"]);
    newest.running.says(&format!("pid {}, to give up \"job\"", older.pid()));
    assert!(asker(&redis, &id).is_some());
    redis.ask::<i64>(&["HDEL", WAITERS, "asked"]);
    // Another joins the queue, and asks the same holder: the one before is dismissed.
    let mut last = Turn::queued(&redis, &["--supersede=running"]);
    queue_is(&redis, &[last.pid()]);
    newest.finish().exits(75).says("superseded by");
    eventually("it asks too", || asker(&redis, &id).is_some());
    older.goes_on();
    older.finish().exits(143).says(&format!("pid {}", last.pid()));
    last.up();
    last.leaves();
}

#[test]
fn a_directory_keeps_only_the_last_request_to_those_who_hold_the_lock() {
    let local = Local::start();
    let slots = ["--slots", "2", "-t", "10m"];
    let holders = [Turn::had(&local, &slots), Turn::had(&local, &slots)];
    // They hear no request meanwhile.
    holders.iter().for_each(Turn::freeze);
    let seen = lock_status(&local);
    let ids: Vec<_> = seen["holders"].as_array().unwrap().iter().map(|holder| holder["id"].as_str().unwrap()).collect();
    let requests = || {
        let state = record::state(&local.file("lock"));
        record::lines(&state, "asked").map(str::to_owned).collect::<Vec<_>>()
    };
    for id in [ids[0], ids[1], ids[0]] {
        local.nxlock(["release", "job", "--ask", id]).run().exits(0);
    }
    assert_eq!(requests().len(), 2);
    let [first, second] = holders;
    let pid = first.pid();
    first.goes_on();
    first.finish().exits(143);
    let left = seen["holders"].as_array().unwrap().iter().find(|holder| holder["pid"] != pid).unwrap();
    local.nxlock(["release", "job", "--ask", left["id"].as_str().unwrap()]).run().exits(0);
    let requests = requests();
    assert!(requests.len() == 1 && requests[0].contains(left["id"].as_str().unwrap()), "{requests:?}");
    second.goes_on();
    second.finish().exits(143);
}
