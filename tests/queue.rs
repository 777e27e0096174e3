//! First come, first served: order, the dead and the frozen in line, and who must not overtake.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::line::{Turn, fences_rise, grants, line_is, queue, standing, stands_in_line, whoever_is_next};
use crate::support::{Redis, Running, eventually, now};

/// Starts `n` that stand in line, one behind the other, and log their turn.
fn in_order(redis: &Redis, n: usize) -> Vec<Running> {
    let start = |who: usize| {
        let call = redis.nxlock(["-q", "run", "job", "-c", "echo \"$WHO $NXLOCK_FENCE\" >> \"$LOG\""]);
        let waiter = call.env("LOG", redis.directory().join("log")).env("WHO", who.to_string()).start();
        stands_in_line(redis, waiter.pid());
        waiter
    };
    (1..=n).map(start).collect()
}

fn pids(turns: &[Turn]) -> Vec<i32> {
    turns.iter().map(Turn::pid).collect()
}

#[test]
fn twenty_are_served_in_the_order_of_their_coming() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let waiters = in_order(&redis, 20);
    assert_eq!(queue(&redis), waiters.iter().map(Running::pid).collect::<Vec<_>>());
    holder.leaves();
    for waiter in waiters {
        waiter.finish().exits(0);
    }
    let log = redis.directory().join("log");
    let order: Vec<usize> = grants(&log).iter().map(|grant| grant.0).collect();
    assert_eq!(order, (1..=20).collect::<Vec<_>>());
    fences_rise(&log);
}

/// What the server has done since it started, by others than the test.
#[derive(Clone, Copy)]
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
            "eval" => work.scripts += calls,
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
    let mut costs = Vec::new();
    for mut next in line {
        holder.leaves();
        next.up();
        let after = work(&redis);
        costs.push(Work {
            commands: after.commands - before.commands,
            scripts: after.scripts - before.scripts,
            published: after.published - before.published,
        });
        before = after;
        holder = next;
    }
    let took = began.elapsed();
    holder.leaves();
    let (many, few) = (&costs[..10], &costs[19..29]);
    // Only the next two are ever called: the one whose turn it is, and the one behind it.
    let called: Vec<u64> = costs[..29].iter().map(|cost| cost.published).collect();
    assert!(called.iter().all(|n| *n == called[28] && *n <= 2), "{called:?}");
    // The others ask by their own clock, each at most every 1.6 s; three questions are a hand-off's.
    let asked = before.scripts - first.scripts;
    let heartbeats = 30 * (took.as_millis() / 1600 + 1);
    assert!(u128::from(asked) <= 3 * 30 + heartbeats, "{asked} in {took:?}");
    // And no question is answered by looking through the line.
    let each = |costs: &[Work]| {
        let sum = |part: fn(&Work) -> u64| costs.iter().map(part).sum::<u64>();
        sum(|cost| cost.commands) / sum(|cost| cost.scripts)
    };
    assert!(each(many) <= each(few) + 5, "{} and {}", each(many), each(few));
}

#[test]
fn three_dead_at_the_head_cost_nothing() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let dead: Vec<Turn> = (0..3).map(|_| Turn::queued(&redis, &[])).collect();
    let mut next = Turn::queued(&redis, &[]);
    for mut waiter in dead {
        waiter.running.signal(Signal::SIGKILL);
        eventually("it is dead", || waiter.running.has_ended());
    }
    line_is(&redis, &[next.pid()]);
    let told = now();
    holder.leaves();
    next.up();
    // A single one that is waited for would cost a second.
    assert!(told.elapsed() < Duration::from_secs(1), "{:?}", told.elapsed());
    next.leaves();
}

#[test]
fn a_frozen_head_costs_its_grace_and_is_served_when_it_goes_on() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let mut frozen = Turn::queued(&redis, &[]);
    let mut next = Turn::queued(&redis, &[]);
    frozen.freeze();
    let told = now();
    holder.leaves();
    next.up();
    // The grace is a second; its place in line would be kept for six.
    assert!(told.elapsed() < Duration::from_secs(4), "{:?}", told.elapsed());
    assert!(!frozen.is_up());
    frozen.goes_on();
    line_is(&redis, &[frozen.pid()]);
    next.leaves();
    frozen.up();
    frozen.leaves();
}

#[test]
fn one_that_was_frozen_for_long_has_its_old_place_again() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let line: Vec<Turn> = (0..3).map(|_| Turn::queued(&redis, &[])).collect();
    line[0].freeze();
    // As if its place had ended meanwhile.
    eventually("it is out of the line", || queue(&redis) == pids(&line[1..]));
    line[0].goes_on();
    line_is(&redis, &pids(&line));
    holder.leaves();
    for mut turn in line {
        turn.up();
        turn.leaves();
    }
}

#[test]
fn when_the_holder_and_the_head_are_killed_the_next_starts_at_the_end_of_the_lease() {
    let redis = Redis::start();
    let mut holder = Turn::had(&redis, &["-t", "2s"]);
    let mut head = Turn::queued(&redis, &[]);
    let mut next = Turn::queued(&redis, &[]);
    for dead in [&mut head, &mut holder] {
        dead.running.signal(Signal::SIGKILL);
        eventually("it is dead", || dead.running.has_ended());
    }
    let killed = now();
    let left = Duration::from_millis(redis.pttl("lock:job").try_into().expect("its lease runs"));
    next.up();
    let took = killed.elapsed();
    assert!(took >= left && took < left + Duration::from_secs(1), "{took:?}, and {left:?} was left of the lease");
    next.leaves();
}

#[test]
fn while_a_lock_is_put_aside_for_a_waiter_nobody_else_gets_it() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let frozen: Vec<Turn> = (0..4).map(|_| Turn::queued(&redis, &["--reason", "frozen"])).collect();
    frozen.iter().for_each(Turn::freeze);
    holder.leaves();
    // Each is given its second, and then it is the next one's: seen for as long as that takes.
    let (mut person, mut program) = (false, false);
    eventually("it is shown as put aside", || {
        redis.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(75).prints("");
        redis.nxlock(["acquire", "job", "--ttl", "1m", "-w", "0"]).run().exits(75).prints("");
        let table = redis.nxlock(["status", "job"]).run().text();
        person |= table.lines().any(|line| line.starts_with("job ") && line.contains(" reserved "));
        let standing = standing(&redis);
        if standing["state"] == "reserved" {
            program = true;
            assert_eq!(standing["holder"]["reason"], "frozen");
            let ttl = standing["ttl_ms"].as_u64().expect("it ends by itself");
            assert!(ttl <= 4000, "the grace is short: {ttl}");
            let ids = standing["queue"].as_array().unwrap().iter().map(|waiter| &waiter["id"]);
            assert!(!ids.into_iter().any(|id| *id == standing["holder"]["id"]), "it is out of the line: {standing}");
        }
        person && program
    });
    frozen.iter().for_each(Turn::goes_on);
    let mut waiting = frozen;
    while !waiting.is_empty() {
        whoever_is_next(&mut waiting).leaves();
    }
}

#[test]
fn a_newcomer_does_not_overtake_even_when_nobody_has_the_lock() {
    let redis = Redis::start();
    redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0);
    let mut frozen = Turn::queued(&redis, &[]);
    frozen.freeze();
    // Nobody is told.
    redis.delete("lock:job");
    redis.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(75).prints("");
    frozen.goes_on();
    frozen.up();
    frozen.leaves();
}

#[test]
fn the_dead_in_line_keep_nobody_out() {
    let redis = Redis::start();
    for deleted in [true, false] {
        let token = redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0).token();
        let mut dead = [Turn::queued(&redis, &[]), Turn::queued(&redis, &[])];
        for waiter in &mut dead {
            waiter.running.signal(Signal::SIGKILL);
            eventually("it is dead", || waiter.running.has_ended());
        }
        line_is(&redis, &[]);
        if deleted {
            redis.delete("lock:job");
        } else {
            redis.nxlock(["release", "job", &token]).run().exits(0);
        }
        redis.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
        assert_eq!(redis.ask::<i64>(&["DBSIZE"]), 1, "only its fence is left");
    }
}

#[test]
fn who_gives_up_leaves_the_line_at_once_and_the_others_move_up() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let value = redis.value("lock:job");
    let mut line: Vec<Turn> = (0..5).map(|_| Turn::queued(&redis, &[])).collect();
    // At the head, in the middle, at the end.
    for (at, signal) in [(0, Signal::SIGINT), (1, Signal::SIGTERM), (2, Signal::SIGHUP)] {
        let gone = line.remove(at);
        gone.running.signal(signal);
        gone.running.finish().dies_of(signal).prints("");
        // Not a moment later, and not only because nobody listens there any more.
        assert_eq!(redis.ask::<usize>(&["ZCARD", "{lock:job}:queue"]), line.len(), "{signal}");
        assert_eq!(queue(&redis), pids(&line), "{signal}");
        let standing = standing(&redis);
        let positions = standing["queue"].as_array().unwrap().iter().map(|waiter| waiter["position"].as_u64().unwrap());
        assert!(positions.eq(1..=line.len() as u64), "{standing}");
    }
    assert_eq!(redis.value("lock:job"), value, "the holder is not touched");
    holder.leaves();
    for mut turn in line {
        turn.up();
        turn.leaves();
    }
}

#[test]
fn who_has_waited_long_enough_leaves_the_line() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let mut waiter = Turn::queued(&redis, &["-w", "700ms"]);
    eventually("it has given up", || waiter.running.has_ended());
    assert_eq!(redis.ask::<Vec<String>>(&["KEYS", "{lock:job}:[qw]*"]), [""; 0]);
    waiter.running.finish().exits(75).prints("");
    holder.leaves();
}

#[test]
fn one_told_to_leave_while_the_lock_is_put_aside_for_it_passes_it_on() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let frozen = Turn::queued(&redis, &[]);
    let mut next = Turn::queued(&redis, &[]);
    frozen.freeze();
    holder.leaves();
    frozen.running.signal(Signal::SIGTERM);
    frozen.goes_on();
    // It wakes up to two pieces of news at once, and this is the one that counts.
    frozen.running.finish().dies_of(Signal::SIGTERM).prints("");
    next.up();
    next.leaves();
}
