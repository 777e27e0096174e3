//! Server failures while many wait: scripts lost, all data lost, a restart.

use crate::support::turns::{
    Turn, each_is_served, fences_rise, grants, is_queued, is_renewed, next_holder, pids, queue_is, turn,
};
use crate::support::{Fate, Proxy, Redis, Running, eventually};

/// Starts a run that logs its number and its fence, and holds the lock until told to end.
fn numbered(redis: &Redis, who: usize, options: &[&str]) -> Turn {
    let call = redis.nxlock(turn(options)).env("LOG", redis.directory().join("log"));
    Turn::of(call.env("WHO", who.to_string()))
}

fn line(redis: &Redis, n: usize) -> Vec<Turn> {
    (1..=n).map(|who| numbered(redis, who, &[]).once_queued(redis)).collect()
}

/// Starts a holder with the number 0.
fn holder(redis: &Redis, options: &[&str]) -> Turn {
    let mut holder = numbered(redis, 0, options);
    holder.up();
    holder
}

/// Asserts that each run gets the lock and ends, and that the log shows this order.
#[track_caller]
fn served_in_order(redis: &Redis, line: Vec<Turn>, order: &[usize]) {
    each_is_served(line);
    let log = redis.directory().join("log");
    let served: Vec<usize> = grants(&log).iter().map(|grant| grant.0).collect();
    assert_eq!(served, order);
    fences_rise(&log);
}

#[test]
fn scripts_may_be_forgotten_at_any_time() {
    let redis = Redis::start();
    let forget = || redis.ask::<()>(&["SCRIPT", "FLUSH"]);
    let mut holder = holder(&redis, &["-t", "6s"]);
    let line = line(&redis, 5);
    forget();
    is_renewed(&redis);
    queue_is(&redis, &pids(&line));
    for mut next in line {
        forget();
        holder.leaves();
        forget();
        next.up();
        forget();
        holder = next;
    }
    holder.leaves();
    served_in_order(&redis, Vec::new(), &[0, 1, 2, 3, 4, 5]);
}

#[test]
fn after_a_restart_without_memory_the_holder_stops_and_tickets_restore_the_order() {
    let mut redis = Redis::start();
    let holder = holder(&redis, &["-t", "1m"]);
    let mut line = line(&redis, 8);
    redis.restart();
    holder.running.finish().exits(76);
    // The first waiter that reconnects finds the lock free and the queue empty.
    let mut first = 0;
    eventually("somebody has it", || {
        first = line.iter().position(Turn::is_up).unwrap_or(line.len());
        first < line.len()
    });
    let early = line.remove(first);
    queue_is(&redis, &pids(&line));
    early.leaves();
    let order: Vec<usize> = [0, first + 1].into_iter().chain((1..=8).filter(|who| *who != first + 1)).collect();
    served_in_order(&redis, line, &order);
}

#[test]
fn while_the_server_is_away_nobody_gets_anything() {
    let mut redis = Redis::start();
    let holder = holder(&redis, &["-t", "1m"]);
    let mut line = line(&redis, 3);
    redis.kill();
    for turn in &mut line {
        turn.running.says("trying again");
    }
    assert!(line.iter().all(|turn| !turn.is_up()));
    redis.restart();
    holder.running.finish().exits(76);
    while !line.is_empty() {
        next_holder(&mut line).leaves();
    }
    fences_rise(&redis.directory().join("log"));
}

#[test]
fn after_a_restart_with_memory_the_holder_keeps_it_and_the_line_stands() {
    let mut redis = Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let holder = holder(&redis, &["-t", "1m"]);
    let line = line(&redis, 8);
    let value = redis.value("lock:job");
    redis.restart();
    queue_is(&redis, &pids(&line));
    assert_eq!(redis.value("lock:job"), value);
    is_renewed(&redis);
    queue_is(&redis, &pids(&line));
    assert!(line.iter().all(|turn| !turn.is_up()));
    holder.leaves();
    served_in_order(&redis, line, &[0, 1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn a_restart_with_memory_in_the_middle_of_a_line_loses_nobody() {
    let mut redis = Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut now_has_it = holder(&redis, &["-t", "1m"]);
    let mut line = line(&redis, 4);
    while !line.is_empty() {
        redis.restart();
        now_has_it.leaves();
        // The first waiter may not have reconnected yet: then another one is the first.
        now_has_it = next_holder(&mut line);
    }
    now_has_it.leaves();
    let log = redis.directory().join("log");
    assert_eq!(grants(&log).len(), 5);
    fences_rise(&log);
}

#[test]
fn twenty_who_wait_are_all_served_after_everything_was_deleted() {
    let redis = Redis::start();
    let log = redis.directory().join("log");
    let holder = holder(&redis, &["-t", "1m"]);
    let start = |who: usize| {
        let call = redis.nxlock(["-q", "run", "job", "-c", "echo \"$WHO $NXLOCK_FENCE\" >> \"$LOG\""]);
        let waiter = call.env("LOG", &log).env("WHO", who.to_string()).start();
        is_queued(&redis, waiter.pid());
        waiter
    };
    let waiters: Vec<Running> = (1..=20).map(start).collect();
    redis.ask::<()>(&["FLUSHALL"]);
    holder.running.finish().exits(76);
    for waiter in waiters {
        waiter.finish().exits(0);
    }
    let mut served: Vec<usize> = grants(&log).iter().map(|grant| grant.0).collect();
    fences_rise(&log);
    served.sort_unstable();
    assert_eq!(served, (0..=20).collect::<Vec<_>>());
}

#[test]
fn who_was_given_the_lock_when_everything_was_deleted_does_not_run_beside_another() {
    let redis = Redis::start();
    let holder = holder(&redis, &["-t", "1m"]);
    let mut line = line(&redis, 3);
    // Reserved for a waiter that cannot claim it, and then deleted.
    line[0].freeze();
    holder.leaves();
    redis.ask::<()>(&["FLUSHALL"]);
    line[0].goes_on();
    while !line.is_empty() {
        let next = next_holder(&mut line);
        assert!(!line.iter().any(Turn::is_up));
        next.leaves();
    }
    fences_rise(&redis.directory().join("log"));
}

#[test]
fn who_is_called_and_does_not_hear_it_looks_by_itself() {
    let redis = Redis::start();
    let proxy = Proxy::by_command(&redis, |_, words| match words.starts_with("SUBSCRIBE") {
        true => Fate::Deafened,
        false => Fate::Delivered,
    });
    let holder = holder(&redis, &[]);
    let mut line = vec![Turn::of(proxy.nxlock(turn(&[]))).once_queued(&redis), Turn::queued(&redis, &[])];
    holder.leaves();
    // The reservation of the first lapses, unless its heartbeat happens to come before that.
    while !line.is_empty() {
        let mut next = next_holder(&mut line);
        assert!(!line.iter().any(Turn::is_up));
        next.up();
        // A waiter that missed the message keeps its place.
        queue_is(&redis, &pids(&line));
        next.leaves();
    }
}

#[test]
fn who_loses_every_third_connection_is_served_all_the_same() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis, |request| if request % 3 == 0 { Fate::Cut } else { Fate::Delivered });
    let holder = holder(&redis, &["-t", "1m"]);
    let mut line: Vec<Turn> = (0..3).map(|_| Turn::of(proxy.nxlock(turn(&["-t", "1m"]))).once_queued(&redis)).collect();
    line.push(Turn::queued(&redis, &["-t", "1m"]));
    let mut fences = vec![grants(&redis.directory().join("log"))[0].1];
    holder.leaves();
    while !line.is_empty() {
        let mut next = next_holder(&mut line);
        assert!(!line.iter().any(Turn::is_up));
        fences.push(next.up().parse().unwrap());
        next.leaves();
    }
    assert!(fences.is_sorted_by(|before, after| before < after), "{fences:?}");
}
