//! How a waiter subscribes for its wake-up, and what it does where it cannot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::turns::{Turn, queue, turn};
use crate::support::{
    Authority, Cluster, Fate, OverTcp, Proxy, Redis, Secure, Sentinels, Storm, answered, eventually, lasts, now,
};

fn listeners(redis: &Redis) -> usize {
    redis.ask::<Vec<String>>(&["PUBSUB", "CHANNELS", "lock:job:wake:*"]).len()
}

fn subscriptions(proxy: &Proxy) -> usize {
    proxy.commands().iter().filter(|command| command.starts_with("SUBSCRIBE")).count()
}

/// A waiter gives a server an eighth of this to agree to tell on the connection of the requests, and as much for a
/// second one.
const PATIENT: [&str; 2] = ["--server-timeout", "40s"];

/// Starts a waiter that soon gives up a request, and waits until it is in the queue.
#[track_caller]
fn impatient(redis: &Redis) -> Turn {
    let call = || redis.nxlock(turn(&["--server-timeout", "1s"]));
    Turn::once("it is in the queue", call, |waiter| queue(redis).contains(&waiter.pid()))
}

/// Returns the connections of a server's clients, but for the one that asks.
fn connections(redis: &Redis) -> Vec<String> {
    let list: String = redis.ask(&["CLIENT", "LIST"]);
    let others = list.lines().filter(|line| !line.contains(" cmd=client"));
    others.filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect()
}

/// Starts a waiter, which has so many connections to the server of the lock, and is woken.
#[track_caller]
fn waits_on(authority: &impl Authority, redis: &Redis, n: usize) {
    let holder = Turn::had(authority, &[]);
    let before = connections(redis);
    let call = authority.nxlock(turn(&[&["-t", "10m", "-v"], &PATIENT[..]].concat()));
    let mut waiter = Turn::of(call).once_queued(authority);
    eventually("it listens", || listeners(redis) == 1);
    let its = || connections(redis).into_iter().filter(|id| !before.contains(id)).collect::<Vec<_>>();
    eventually("it has so many connections", || its().len() == n);
    let those = its();
    holder.leaves();
    waiter.up();
    if n == 1 {
        waiter.running.says("tells us at once of changes of the lock");
        assert_eq!(its(), those);
    }
    waiter.leaves();
}

#[test]
fn a_waiter_has_one_connection_and_keeps_it_as_a_holder() {
    let redis = Redis::start();
    waits_on(&redis, &redis, 1);
    let over_tcp = OverTcp::start();
    waits_on(&over_tcp, &over_tcp.0, 1);
    let group = Sentinels::of_one();
    waits_on(&group, group.master(), 1);
    let cluster = Cluster::of_masters();
    waits_on(&cluster, cluster.master_of("lock:job"), 1);
}

#[test]
fn messages_without_end_are_no_storm_of_questions_and_hold_up_nobody() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &["-t", "10m"]);
    let waiters = [(); 4].map(|()| Turn::queued(&redis, &[&["-t", "10m"], &PATIENT[..]].concat()));
    let own: String = redis.ask::<Vec<String>>(&["PUBSUB", "CHANNELS", "lock:job:wake:*"]).remove(0);
    for (channel, word) in [("lock:job:wake", "l"), ("lock:job:wake", "n"), (&own, "g"), (&own, "e1")] {
        let (before, began) = (redis.scripts_run(), now());
        let storm = Storm::of(&redis, &["PUBLISH", channel, word]);
        lasts(Duration::from_secs(2));
        let (asked, took) = (redis.scripts_run() - before, began.elapsed());
        drop(storm);
        // Sixteen at once, then four a second, and a heartbeat.
        let most = 4 * (18 + 5 * (took.as_secs() + 1));
        assert!(asked <= most, "{asked} questions in {took:?}");
    }
    let _storms = [Storm::of(&redis, &["PUBLISH", "lock:job:wake", "l"]), Storm::of(&redis, &["PUBLISH", &own, "g"])];
    answered(|| redis.nxlock(["run", "job", "-w", "1s", "true"])).exits(75);
    holder.leaves();
    for mut waiter in waiters {
        waiter.up();
        waiter.leaves();
    }
}

#[test]
fn over_tls_a_waiter_has_one_connection_as_well() {
    let secure = Secure::start();
    waits_on(&secure, &secure.redis, 1);
}

#[test]
fn where_a_server_does_not_speak_resp3_a_waiter_has_two_connections() {
    let redis = Redis::with(&["--rename-command", "HELLO", ""]);
    waits_on(&redis, &redis, 2);
}

/// A waiter over this line listens on a second connection after it has asked once for RESP3, is woken, and complains of
/// nothing else than what is lost of its requests.
#[track_caller]
fn listens_on_a_second_connection(redis: &Redis, proxy: &Proxy, complains: bool) {
    let holder = Turn::had(redis, &[]);
    let before = connections(redis);
    // Where a proxy keeps silent it waits for an eighth of this, and asks again if the second connection takes longer.
    let mut waiter = Turn::of(proxy.nxlock(turn(&["-t", "10m", "--server-timeout", "16s"]))).once_queued(redis);
    eventually("it listens", || listeners(redis) == 1);
    let its = || connections(redis).iter().filter(|id| !before.contains(id)).count();
    eventually("it has a second connection", || its() == 2);
    let asked = proxy.commands().iter().filter(|command| command.starts_with("HELLO")).count();
    assert_eq!(asked, 1);
    holder.leaves();
    waiter.up();
    let said = waiter.running.stderr();
    assert_eq!(said.contains("trying again"), complains, "{said}");
    waiter.leaves();
}

#[test]
fn a_proxy_that_does_not_know_resp3_is_asked_once_and_a_waiter_listens_on_a_second_connection() {
    let fates = [
        Fate::Answered("-ERR unknown command 'HELLO', with args beginning with: '3' \r\n"),
        Fate::Answered("-NOPROTO unsupported protocol version\r\n"),
        Fate::Answered("-NOPERM this user has no permissions to run the 'hello' command\r\n"),
        Fate::Answered("+OK\r\n"),
        Fate::CutBefore,
        Fate::Cut,
        Fate::Blackholed,
        Fate::ReplySwallowed,
    ];
    let each = |fate: Fate| {
        let redis = Redis::start();
        let proxy = Proxy::of_hello(&redis, fate);
        listens_on_a_second_connection(&redis, &proxy, false);
    };
    // At the same time: some wait for a reply that does not come.
    thread::scope(|scope| fates.iter().for_each(|fate| _ = scope.spawn(|| each(*fate))));
}

#[test]
fn a_server_that_is_too_slow_for_a_waiter_is_asked_again_by_the_holder() {
    let redis = Redis::start();
    let proxy = Proxy::of_first(&redis, "HELLO", Fate::Blackholed);
    let holder = Turn::had(&redis, &[]);
    // The waiter gives it an eighth of this, and the holder five seconds.
    let options = ["-t", "10m", "-v", "--server-timeout", "6s"];
    let mut waiter = Turn::of(proxy.nxlock(turn(&options))).once_queued(&redis);
    eventually("it listens", || listeners(&redis) == 1);
    holder.leaves();
    waiter.up();
    waiter.running.says("tells us at once of changes of the lock");
    waiter.leaves();
}

#[test]
fn a_proxy_that_cuts_the_connection_only_behind_the_subscription_is_asked_once() {
    let redis = Redis::start();
    let has_agreed = AtomicBool::new(false);
    let proxy = Proxy::by_command(&redis, move |_, command| {
        if command.starts_with("HELLO") {
            has_agreed.store(true, Ordering::SeqCst);
        }
        match command.starts_with("EVALSHA") && has_agreed.swap(false, Ordering::SeqCst) {
            true => Fate::CutBefore,
            false => Fate::Delivered,
        }
    });
    listens_on_a_second_connection(&redis, &proxy, true);
}

#[test]
fn a_call_that_comes_while_a_request_is_under_way_is_neither_lost_nor_its_reply() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let (is_queued, asks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (then, holds) = (Arc::clone(&is_queued), Arc::clone(&asks));
    let proxy = Proxy::by_command(&redis, move |_, command| match command.starts_with("EVALSHA acquire") {
        true if then.load(Ordering::SeqCst) => {
            holds.store(true, Ordering::SeqCst);
            Fate::Held
        }
        _ => Fate::Delivered,
    });
    let mut waiter = Turn::of(proxy.nxlock(turn(&["--server-timeout", "20s"]))).once_queued(&redis);
    is_queued.store(true, Ordering::SeqCst);
    eventually("it asks again", || asks.load(Ordering::SeqCst));
    holder.leaves();
    // The lock was reserved for it, and it was called.
    proxy.lets_go();
    waiter.up();
    waiter.leaves();
}

#[test]
fn a_waiter_whose_request_is_lost_listens_where_the_next_is_answered() {
    let redis = Redis::start();
    redis.put("lock:job", b"another's", Some(600_000));
    let mut waiter = impatient(&redis);
    eventually("it listens", || listeners(&redis) == 1);
    redis.hang();
    waiter.running.says("trying again");
    redis.resume();
    redis.delete("lock:job");
    waiter.up();
    waiter.leaves();
}

#[test]
fn waiters_listen_again_after_a_stall_and_a_restart() {
    let mut redis = Redis::start();
    redis.put("lock:job", b"another's", Some(600_000));
    let mut line: Vec<Turn> = (0..5).map(|_| impatient(&redis)).collect();
    eventually("all listen", || listeners(&redis) == 5);
    redis.hang();
    for turn in &mut line {
        turn.running.says("trying again");
    }
    redis.kill();
    redis.restart();
    // Some waiters may have the lock by now. Keep it from the others: only a waiter subscribes.
    redis.ask::<()>(&["SET", "lock:job", "another's", "PX", "600000"]);
    // One that had it may have been stopped before its command has told.
    let waits = |turn: &mut Turn| !turn.is_up() && !turn.running.has_ended();
    eventually("all who wait listen again", || {
        let waiting = line.iter_mut().map(|turn| usize::from(waits(turn))).sum::<usize>();
        listeners(&redis) == waiting && waiting >= 3
    });
    redis.leave_as_it_is();
}

#[test]
fn a_passing_refusal_to_subscribe_is_tried_again_and_a_lasting_one_is_not() {
    let refusals = [
        ("-ERR max number of clients reached\r\n", true),
        ("-LOADING Redis is loading the dataset in memory\r\n", true),
        ("-NOPERM this user has no permissions to run the 'subscribe' command\r\n", false),
        ("-ERR unknown command 'SUBSCRIBE', with args beginning with: \r\n", false),
    ];
    for (refusal, passes) in refusals {
        let redis = Redis::start();
        let proxy = Proxy::by_command(&redis, move |_, command| match command.starts_with("SUBSCRIBE") {
            true => Fate::Answered(refusal),
            false => Fate::Delivered,
        });
        let holder = Turn::had(&redis, &[]);
        // A reply that is late would cost it its connection, and it subscribes once on each.
        let mut waiter = Turn::of(proxy.nxlock(turn(&["--server-timeout", "1m"]))).once_queued(&redis);
        if passes {
            eventually("it is tried again", || subscriptions(&proxy) >= 3);
        } else {
            let polls = redis.scripts_run();
            eventually("it goes on without", || redis.scripts_run() >= polls + 2);
            // As a holder it subscribes to other messages.
            assert_eq!(subscriptions(&proxy), 1, "{refusal}");
        }
        holder.leaves();
        waiter.up();
        waiter.leaves();
    }
}

#[test]
fn where_a_second_connection_is_impossible_a_waiter_polls_and_is_served() {
    for fate in [Fate::Cut, Fate::Blackholed, Fate::ReplySwallowed] {
        let redis = Redis::start();
        let proxy = Proxy::by_command(&redis, move |_, command| match command.starts_with("SUBSCRIBE") {
            true => fate,
            false => Fate::Delivered,
        });
        let holder = Turn::had(&redis, &[]);
        let mut waiter = Turn::of(proxy.nxlock(turn(&[]))).once_queued(&redis);
        holder.leaves();
        waiter.up();
        waiter.leaves();
        // And when the lock is free at once.
        proxy.nxlock(["run", "job", "--", "true"]).run().exits(0);
    }
}

#[test]
fn a_subscription_that_is_cut_again_and_again_is_not_tried_without_a_pause() {
    let redis = Redis::start();
    redis.put("lock:job", b"another's", Some(600_000));
    let mut waiter = Turn::queued(&redis, &PATIENT);
    eventually("it listens", || listeners(&redis) == 1);
    let (began, mut cut) = (now(), 0);
    while began.elapsed() < Duration::from_millis(1500) {
        cut += redis.ask::<u32>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        lasts(Duration::from_millis(5));
    }
    assert!((1..=4).contains(&cut), "{cut} subscriptions");
    redis.delete("lock:job");
    waiter.up();
    waiter.leaves();
}

#[test]
fn messages_without_end_hold_up_no_waiter() {
    let redis = Redis::start();
    redis.put("lock:job", b"another's", Some(600_000));
    // Otherwise the server closes the connection of whoever does not read fast enough.
    redis.ask::<()>(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 0 0 0"]);
    let waiter = Turn::queued(&redis, &PATIENT);
    let channel = redis.ask::<Vec<String>>(&["PUBSUB", "CHANNELS", "lock:job:wake:*"]).remove(0);
    let (goes_on, published) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU32::new(0)));
    let storm = thread::spawn({
        let (goes_on, published) = (Arc::clone(&goes_on), Arc::clone(&published));
        let mut connection = redis.connection().unwrap();
        let mut messages = redis::pipe();
        (0..1000).for_each(|_| _ = messages.cmd("PUBLISH").arg(&channel).arg("t").ignore());
        move || {
            while goes_on.load(Ordering::Relaxed) {
                messages.exec(&mut connection).unwrap();
                published.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    eventually("there are many messages", || published.load(Ordering::Relaxed) >= 20);
    waiter.running.signal(Signal::SIGTERM);
    waiter.finish().dies_of(Signal::SIGTERM);
    goes_on.store(false, Ordering::Relaxed);
    storm.join().unwrap();
    redis.delete("lock:job");
}

#[test]
fn a_connection_that_ends_behind_each_reply_brings_no_storm_of_renewals() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis, |_| Fate::Last);
    let began = now();
    let mut holder = Turn::of(proxy.nxlock(turn(&["-t", "40s"])));
    holder.up();
    lasts(Duration::from_millis(1500));
    let (requests, took) = (proxy.requests(), began.elapsed());
    // For the lock, to be told, and then one a second.
    assert!(requests as u64 <= 4 + took.as_secs(), "{requests} in {took:?}");
    holder.leaves();
}

#[test]
fn the_kernel_finds_out_about_a_dead_connection_that_only_listens() {
    let redis = Redis::on_tcp(&[]);
    let holder = Turn::had(&redis, &[]);
    let url = format!("redis://127.0.0.1:{}", redis.port());
    let waiter = Turn::of(redis.nxlock(turn(&PATIENT)).env("NXLOCK_SERVER", url)).once_queued(&redis);
    let server = format!("0100007F:{:04X}", redis.port());
    // proc_pid_net(5): word 4 is the state, 01 is established; word 6 is the timer, 02 is keepalive.
    let timers = || {
        let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", waiter.pid())).unwrap();
        let to_server = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let established = to_server.filter(|w| w[2] == server && w[3] == "01");
        established.map(|w| w[5][..2].to_owned()).collect::<Vec<_>>()
    };
    // While a request is under way, the timer is another.
    eventually("the timer is that of keepalive", || timers() == ["02"]);
    holder.leaves();
    waiter.leaves();
}
