//! The queue in a Redis server: what it costs, what it keeps of a waiter and for how long, and a lock that others
//! delete.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::turns::{Turn, acquire, each_is_served, lock_status, next_holder, pids, queue, queue_is, turn};
use crate::support::{Fate, Proxy, Redis, Terminal, eventually, eventually_some, now};

/// What the server has done since it started, for clients other than the test.
#[derive(Clone, Copy, Debug)]
struct Work {
    commands: u64,
    scripts: u64,
    published: u64,
}

fn work(redis: &Redis) -> Work {
    let mut work = Work { commands: 0, scripts: 0, published: 0 };
    for line in redis.ask::<String>(&["INFO", "commandstats"]).lines() {
        let Some((name, stats)) = line.strip_prefix("cmdstat_").and_then(|line| line.split_once(":calls=")) else {
            continue;
        };
        let calls = stats.split(',').next().unwrap().parse::<u64>().unwrap();
        match name {
            "info" | "hello" => continue,
            _ if name.starts_with("client") => continue,
            "eval" | "evalsha" => work.scripts += calls,
            "publish" => work.published += calls,
            _ => {}
        }
        work.commands += calls;
    }
    work
}

#[test]
fn what_a_hand_off_costs_the_server_does_not_grow_with_the_line() {
    let redis = Redis::start();
    let mut holder = Turn::had(&redis, &[]);
    let line: Vec<Turn> = (0..30).map(|_| Turn::queued(&redis, &[])).collect();
    let (began, first) = (now(), work(&redis));
    let mut before = first;
    // With each cost, how many requests timers may have added: one of a waiter for each of its 1.6 s, and one of a holder
    // that begins to listen after 100 ms.
    let (mut costs, mut timers) = (Vec::new(), Vec::new());
    let (mut granted_after, mut seen_at) = (began, began);
    for mut next in line {
        let handed_on = now();
        holder.leaves();
        next.up();
        let after = work(&redis);
        costs.push(Work {
            commands: after.commands - before.commands,
            scripts: after.scripts - before.scripts,
            published: after.published - before.published,
        });
        let listens = granted_after.elapsed() >= Duration::from_millis(100);
        timers.push(30 * seen_at.elapsed().as_millis() / 1600 + u128::from(listens));
        (granted_after, seen_at) = (handed_on, now());
        before = after;
        holder = next;
    }
    let took = began.elapsed();
    holder.leaves();
    let (many, few) = (&costs[..10], &costs[19..29]);
    // A release wakes only the next three waiters: the one whose turn it is, and the two behind it.
    let called: Vec<u64> = costs[..29].iter().map(|cost| cost.published).collect();
    assert!(called.iter().all(|n| *n <= 3), "{called:?}");
    // The others poll by their own timers, each at most every 1.6 s; four requests belong to a hand-off.
    let asked = before.scripts - first.scripts;
    let heartbeats = 30 * (took.as_millis() / 1600 + 1);
    assert!(u128::from(asked) <= 4 * 30 + heartbeats, "{asked} in {took:?}");
    // A hand-off is a release and a claim; each request beyond those two is one waiter's poll.
    let dear = costs[..27].iter().find(|cost| cost.commands > 30 + 20 * cost.scripts.saturating_sub(2));
    assert!(dear.is_none(), "{dear:?}");
    // In one at least no timer went off, or as many as there was time for. On a busy machine a waiter polls late: a timer of
    // one hand-off may go off in the next.
    let so_far = std::iter::once(&0).chain(&timers).zip(&timers).map(|(before, own)| before + own);
    let is_cheap = |(cost, timers): (&Work, u128)| u128::from(cost.commands) <= 30 + 20 * timers;
    assert!(costs[..27].iter().zip(so_far).any(is_cheap), "{costs:?} {timers:?}");
    // And no request goes through the whole queue.
    let each = |costs: &[Work]| {
        let sum = |part: fn(&Work) -> u64| costs.iter().map(part).sum::<u64>();
        sum(|cost| cost.commands) / sum(|cost| cost.scripts)
    };
    assert!(each(many) <= each(few) + 5, "{} and {}", each(many), each(few));
}

/// Returns when the lease of each waiter's place ends, in ms of the server's clock, by its process.
fn lease_ends(redis: &Redis) -> HashMap<i32, u64> {
    let records: HashMap<String, String> = redis.ask(&["HGETALL", "{lock:job}:waiters"]);
    let end = |(token, record): (&String, &String)| {
        let pid = token.split(':').nth(3)?.parse().ok()?;
        Some((pid, record.split('|').nth(1)?.parse().ok()?))
    };
    records.iter().filter_map(end).collect()
}

/// Returns when the lease of a waiter's place ends, in ms of the server's clock.
fn lease_end(redis: &Redis, pid: i32) -> Option<u64> {
    lease_ends(redis).remove(&pid)
}

fn server_time(redis: &Redis) -> u64 {
    let (seconds, micros): (u64, u64) = redis.ask(&["TIME"]);
    seconds * 1000 + micros / 1000
}

#[test]
fn who_is_far_back_proves_its_life_seldom_and_hears_when_it_is_near() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let mut line: Vec<Turn> = (0..10).map(|_| Turn::queued(&redis, &[])).collect();
    // Its second request knows its place.
    let seldom = || lease_end(&redis, line[9].pid()).is_some_and(|end| end > server_time(&redis) + 8_000);
    eventually("the last has a long lease", seldom);
    for turn in &line[..2] {
        assert!(lease_end(&redis, turn.pid()).unwrap() <= server_time(&redis) + 6_000);
    }
    // All but the first leave.
    for mut turn in line.drain(1..9) {
        turn.running.signal(Signal::SIGTERM);
        eventually("it has left", || turn.running.has_ended());
    }
    queue_is(&redis, &pids(&line));
    let mut ends: Vec<u64> = Vec::new();
    eventually("the second asks every two seconds", || {
        let end = lease_end(&redis, line[1].pid()).unwrap();
        if ends.last() != Some(&end) {
            ends.push(end);
        }
        ends.windows(3).any(|ends| ends.is_sorted() && ends[2] - ends[0] <= 4_500)
    });
    holder.leaves();
    each_is_served(line);
    redis.has_only_a_fence();
}

/// Less than the last of twenty waits before it asks by itself: ten seconds before its lease ends, or later.
const AT_ONCE: Duration = Duration::from_secs(16);

/// Starts twenty waiters, and waits until those behind the fourth ask seldom, and the last will not for a while.
fn long_line(redis: &Redis, options: &[&str]) -> Vec<Turn> {
    let line: Vec<Turn> = (0..20).map(|_| Turn::queued(redis, options)).collect();
    let mut seldom = HashSet::new();
    eventually("they ask seldom", || {
        let (ends, time) = (lease_ends(redis), server_time(redis));
        // A long lease was long when it began: it need not be so now.
        seldom.extend(ends.iter().filter(|(_, end)| **end > time + 8_000).map(|(pid, _)| *pid));
        let lasts = ends.get(&line[19].pid()).is_some_and(|end| *end > time + 26_000);
        lasts && line[4..].iter().all(|turn| seldom.contains(&turn.pid()))
    });
    line
}

#[test]
fn when_a_server_loses_the_queue_all_are_soon_in_line_again_in_their_order() {
    let (queue, waiters) = ("{lock:job}:queue", "{lock:job}:waiters");
    for lost in [&["DEL", queue][..], &["DEL", waiters], &["DEL", queue, waiters]] {
        let redis = Redis::start();
        let holder = Turn::had(&redis, &[]);
        let mut line = long_line(&redis, &[]);
        // They come back behind somebody who has not known the former queue.
        line[..2].iter().for_each(Turn::freeze);
        let began = now();
        redis.ask::<()>(lost);
        let newcomer = Turn::queued(&redis, &[]);
        line[..2].iter().for_each(Turn::goes_on);
        line.push(newcomer);
        queue_is(&redis, &pids(&line));
        assert!(began.elapsed() < AT_ONCE, "{lost:?}: {:?}", began.elapsed());
        holder.leaves();
        each_is_served(line);
        redis.has_only_a_fence();
    }
}

#[test]
fn after_a_flush_one_starts_soon_and_all_others_are_in_line_again_in_their_order() {
    let redis = Redis::start();
    let mut holder = Turn::had(&redis, &["-t", "10m", "-v"]);
    holder.running.says("tells us at once of changes of the lock");
    let mut line = long_line(&redis, &[]);
    let began = now();
    redis.ask::<()>(&["FLUSHALL"]);
    holder.finish().exits(76);
    let next = next_holder(&mut line);
    queue_is(&redis, &pids(&line));
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    next.leaves();
    each_is_served(line);
    redis.has_only_a_fence();
}

#[test]
fn after_a_flush_the_lock_is_not_idle_while_twenty_wait_for_it() {
    let redis = Redis::start();
    let mut holder = Turn::had(&redis, &["-t", "10m", "-v"]);
    holder.running.says("tells us at once of changes of the lock");
    let mut line = long_line(&redis, &[]);
    // Their commands end at once.
    line.iter_mut().for_each(Turn::is_told);
    let began = now();
    redis.ask::<()>(&["FLUSHALL"]);
    holder.finish().exits(76);
    line.into_iter().for_each(Turn::leaves);
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    redis.has_only_a_fence();
}

#[test]
fn one_that_alone_was_dropped_calls_nobody_back() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let [first, mut second, third] = [(); 3].map(|()| Turn::queued(&redis, &[]));
    let mut connection = redis.connection().unwrap();
    let mut called = connection.as_pubsub();
    called.subscribe("lock:job:wake").unwrap();
    let before = lease_end(&redis, first.pid());
    eventually("it asks when all are there", || lease_end(&redis, first.pid()) > before);
    first.freeze();
    eventually("its lease has ended", || queue(&redis) == [second.pid(), third.pid()]);
    holder.leaves();
    second.up();
    first.goes_on();
    queue_is(&redis, &[first.pid(), third.pid()]);
    redis.ask::<()>(&["PUBLISH", "lock:job:wake", "nothing was before"]);
    assert_eq!(called.get_message().unwrap().get_payload_bytes(), b"nothing was before");
    second.leaves();
    each_is_served([first, third]);
}

#[test]
fn who_waits_far_back_at_a_terminal_sees_the_line_move() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let mut line: Vec<Turn> = (0..9).map(|_| Turn::queued(&redis, &[])).collect();
    let mut terminal = Terminal::start(redis.nxlock(["run", "job", "--", "true"]));
    terminal.shows("9 ahead of us");
    let pid = terminal.pid();
    eventually("it has a long lease", || lease_end(&redis, pid).is_some_and(|end| end > server_time(&redis) + 30_000));
    let mut leaves = line.remove(5);
    leaves.running.signal(Signal::SIGTERM);
    eventually("one has left", || leaves.running.has_ended());
    terminal.shows("8 ahead of us");
    holder.leaves();
    each_is_served(line);
    terminal.exits(0);
}

/// Puts waiters in the queue, before all others, whom nobody hears any more.
fn put_dead_ahead(redis: &Redis, count: usize) {
    let token = |n: usize| format!("nx1:{n:026}:u@h:1:1:");
    let lease = server_time(redis) + 60_000;
    let queue: Vec<(usize, String)> = (1..=count).map(|n| (n, token(n))).collect();
    let records: Vec<(String, String)> =
        (1..=count).map(|n| (token(n), format!("1|{lease}|1000|lock:job:wake:{n}"))).collect();
    let mut connection = redis.connection().unwrap();
    redis::pipe()
        .zadd_multiple("{lock:job}:queue", &queue)
        .hset_multiple("{lock:job}:waiters", &records)
        .query::<()>(&mut connection)
        .unwrap();
}

#[test]
fn however_many_of_those_ahead_are_dead_a_release_finds_the_first_that_lives() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis, |_| Fate::Delivered);
    let mut holder = Turn::of(proxy.nxlock(turn(&[])));
    holder.up();
    let mut next = Turn::queued(&redis, &[]);
    put_dead_ahead(&redis, 2500);
    let releases = || proxy.commands().iter().filter(|command| command.contains(" release ")).count();
    holder.leaves();
    // One script drops a thousand. The waiter asks now and then too.
    assert!(releases() >= 2, "{}", releases());
    let state = &lock_status(&redis)["state"];
    assert!(state == "reserved" || state == "held", "{state}");
    next.up();
    next.leaves();
    redis.has_only_a_fence();
}

#[test]
fn one_that_was_frozen_for_long_has_its_old_place_again() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let line: Vec<Turn> = (0..3).map(|_| Turn::queued(&redis, &[])).collect();
    line[0].freeze();
    // As if its place in the queue had expired meanwhile.
    eventually("it is out of the line", || queue(&redis) == pids(&line[1..]));
    line[0].goes_on();
    queue_is(&redis, &pids(&line));
    holder.leaves();
    each_is_served(line);
}

/// Starts two waiters for a lock that nobody gives back, and kills the first. Returns the second, and when the lease
/// ends, in ms of the server's clock; `None` if the machine was so slow that it ended before.
fn behind_one_that_is_killed(redis: &Redis) -> Option<(Turn, i64)> {
    let token = acquire(redis, "2s");
    let [mut head, next] = [(); 2].map(|()| {
        let waiter = Turn::of(redis.nxlock(turn(&[])));
        let waits = || waiter.running.stderr().contains("waiting for \"job\"");
        eventually("it waits, or the lease has ended", || waits() || waiter.is_up());
        waiter
    });
    head.running.signal(Signal::SIGKILL);
    eventually("it is dead", || head.running.has_ended());
    let end = redis.expires("lock:job");
    if redis.value("lock:job") == Some(token) {
        return Some((next, end));
    }
    next.leaves();
    None
}

#[test]
fn when_the_head_is_killed_and_nobody_gives_the_lock_back_the_next_starts_at_the_end_of_the_lease() {
    let redis = Redis::start();
    let (mut next, end) = eventually_some("the lease still runs", || behind_one_that_is_killed(&redis));
    // Its fence says when it was granted the lock, in us of the server's clock.
    let granted = next.up().parse::<i64>().unwrap() / 1000;
    // Of a server before 7.0, the end may differ in its last ms.
    assert!(granted + 1 >= end && granted < end + 1000, "granted at {granted}, and the lease ended at {end}");
    next.leaves();
}

#[test]
fn a_newcomer_does_not_overtake_even_when_nobody_has_the_lock() {
    let redis = Redis::start();
    redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0);
    let mut frozen = Turn::queued(&redis, &[]);
    frozen.freeze();
    // Nobody wakes the waiter.
    redis.delete("lock:job");
    redis.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(75).prints("");
    frozen.goes_on();
    frozen.up();
    frozen.leaves();
}

#[test]
fn the_dead_in_line_keep_nobody_out_of_a_lock_that_was_deleted() {
    let redis = Redis::start();
    redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0);
    let mut dead = [Turn::queued(&redis, &[]), Turn::queued(&redis, &[])];
    for waiter in &mut dead {
        waiter.running.signal(Signal::SIGKILL);
        eventually("it is dead", || waiter.running.has_ended());
    }
    queue_is(&redis, &[]);
    redis.delete("lock:job");
    redis.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
    assert_eq!(redis.ask::<i64>(&["DBSIZE"]), 1, "only its fence is left");
}

#[test]
fn who_leaves_the_line_is_forgotten_and_not_only_unheard() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let stays = Turn::queued(&redis, &[]);
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let told = Turn::queued(&redis, &[]);
        assert_eq!(redis.ask::<usize>(&["ZCARD", "{lock:job}:queue"]), 2);
        told.running.signal(signal);
        told.running.finish().dies_of(signal).prints("");
        assert_eq!(redis.ask::<usize>(&["ZCARD", "{lock:job}:queue"]), 1, "{signal}");
    }
    // Its wait may be over before `status` shows it in the queue.
    let mut out_of_time = Turn::waiting(&redis, &["-w", "3s"]);
    eventually("it has given up", || out_of_time.running.has_ended());
    assert_eq!(redis.ask::<usize>(&["ZCARD", "{lock:job}:queue"]), 1);
    stays.running.signal(Signal::SIGTERM);
    stays.running.finish().dies_of(Signal::SIGTERM).prints("");
    assert_eq!(redis.ask::<i64>(&["DBSIZE"]), 2, "the lock and its fence");
    holder.leaves();
}

#[test]
fn a_lock_behind_thousands_of_dead_is_free_and_not_busy() {
    for options in [&["-n"][..], &["-w", "10s"], &[]] {
        let redis = Redis::start();
        let (queue, waiters) = ("{lock:job}:queue", "{lock:job}:waiters");
        let mut dead = redis::pipe();
        for n in 1..=4500 {
            dead.zadd(queue, format!("dead{n}"), n).ignore();
            dead.hset(waiters, format!("dead{n}"), "1|1|10000|").ignore();
        }
        dead.exec(&mut redis.connection().unwrap()).unwrap();
        let args = ["run", "job"].iter().chain(options).chain(&["--", "echo", "ran"]).copied();
        redis.nxlock(args).run().exits(0).prints("ran\n").never_says("free");
    }
}
