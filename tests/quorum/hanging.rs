use std::time::Duration;

use crate::quorum::{OTHERS, nothing_is_left, told_by_all, unreachable_for};
use crate::support::turns::{Turn, acquire, turn};
use crate::support::{Authority, Five, Nxlock, Redis, eventually, lasts, now};

#[test]
fn a_hanging_minority_does_not_slow_a_grant_and_is_undone_when_it_goes_on() {
    let five = Five::start();
    for hanging in [&[0][..], &[4], &[1, 2]] {
        for at in hanging {
            five.each()[*at].hang();
        }
        // If it waited for a server that hangs, the call would take longer than the test allows.
        let call = ["--server-timeout", "30s", "run", "job", "--", "echo", "ran"];
        five.nxlock(call).run().exits(0).prints("ran\n").says_nothing();
        for at in hanging {
            five.each()[*at].resume();
        }
        nothing_is_left(&five);
    }
}

#[test]
fn a_hanging_minority_does_not_keep_a_lease_from_being_renewed() {
    let five = Five::start();
    let holder = Turn::had(&five, &["-t", "15s", "--server-timeout", "30s"]);
    eventually("the fourth tells it", || five.each()[3].tells() > 0);
    five.each()[0].hang();
    five.each()[1].hang();
    for _ in 0..3 {
        five.each()[3].renews_soon("lock:job");
    }
    // Nor from being released.
    holder.leaves();
    five.each()[0].resume();
    five.each()[1].resume();
    nothing_is_left(&five);
}

#[test]
fn what_a_hanging_majority_is_asked_for_is_undone_when_it_goes_on() {
    let five = Five::start();
    for at in [0, 1, 2] {
        five.each()[at].hang();
    }
    let call = ["--server-timeout", "1s", "run", "job", "-n", "-t", "10m", "--", "echo", "ran"];
    unreachable_for("2 of 5 servers answered", || five.nxlock(call)).prints("");
    assert!(five.each()[3..].iter().all(|redis| !redis.exists("lock:job")));
    for at in [0, 1, 2] {
        five.each()[at].resume();
    }
    nothing_is_left(&five);
}

#[test]
fn a_lock_that_is_given_back_while_some_hang_is_free_and_stays_so() {
    let five = Five::start();
    let token = acquire(&five, "10m");
    five.each()[2].hang();
    five.each()[3].hang();
    five.nxlock(["--server-timeout", "30s", "release", "job", &token]).run().exits(0).says_nothing();
    five.nxlock(["--server-timeout", "30s", "status", "job"]).run().exits(1);
    five.nxlock(["--server-timeout", "30s", "run", "job", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
    five.each()[2].resume();
    five.each()[3].resume();
    nothing_is_left(&five);
}

#[test]
fn a_waiter_has_its_turn_though_all_servers_hung_for_a_while() {
    let three = [Redis::start(), Redis::start(), Redis::start()];
    three.iter().for_each(|redis| redis.put("lock:job", OTHERS, Some(600_000)));
    let servers = three.each_ref().map(Redis::url).join(" ");
    let call = || Nxlock::new(turn(&["-v", "-t", "30s", "--server-timeout", "500ms"])).env("NXLOCK_SERVER", &servers);
    let mut waiter = Turn::once("it waits", call, |turn| turn.running.stderr().contains("waiting for \"job\""));
    // The lock ends while they hang.
    three.iter().for_each(|redis| redis.ask::<()>(&["PEXPIRE", "lock:job", "6300"]));
    three.iter().for_each(Redis::hang);
    // Long enough that nxlock no longer waits for any of them.
    eventually("several ballots are without an answer", || {
        waiter.running.stderr().matches("0 of 3 servers answered").count() > 8
    });
    three.iter().for_each(Redis::resume);
    waiter.up();
    waiter.leaves();
    eventually("nothing is left", || three.iter().all(|redis| !redis.exists("lock:job")));
}

#[test]
fn a_lock_is_given_back_where_it_was_granted_late() {
    let five = Five::start();
    five.each()[4].hang();
    let call = || five.nxlock(turn(&["-v", "-t", "30s", "--server-timeout", "300ms"]));
    let mut holder = Turn::once("it is up", call, Turn::is_up);
    holder.running.says("no answer within");
    five.each()[4].resume();
    eventually("it has granted what it was asked for", || {
        let values = five.values();
        values[4].is_some() && values[..4].contains(&values[4])
    });
    // The request's connection is gone: nothing can follow the request on it.
    let _: i64 = five.each()[4].ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    holder.leaves();
    nothing_is_left(&five);
}

/// Asserts that a holder at three servers notices at once that it has lost its majority, when the first of them hangs, the
/// second has lost `first`, and the third loses `then`. The first would be asked for its vote for five seconds.
#[track_caller]
fn notices(options: &[&str], first: &str, then: &str, meanwhile: impl FnOnce(&Redis)) {
    let three = [Redis::start(), Redis::start(), Redis::start()];
    let holder = told_by_all(&three, options);
    three[0].hang();
    let before = three[2].scripts_run();
    three[1].delete(first);
    eventually("the third is asked", || three[2].scripts_run() > before);
    meanwhile(&three[1]);
    if first != then {
        three[1].delete(then);
    }
    let began = now();
    three[2].delete(then);
    holder.finish().exits(76).says("is lost");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    three[0].resume();
    three.iter().for_each(Redis::leave_as_it_is);
}

#[test]
fn a_majority_that_is_lost_while_the_others_hang_is_noticed_at_once() {
    notices(&[], "lock:job", "lock:job", |_| {});
}

#[test]
fn nor_do_others_delay_that_who_try_to_get_the_lock() {
    notices(&[], "lock:job", "lock:job", |free| {
        for _ in 0..10 {
            free.put("lock:job", OTHERS, Some(600_000));
            lasts(Duration::from_millis(20));
            free.delete("lock:job");
            lasts(Duration::from_millis(20));
        }
    });
}

#[test]
fn nor_does_another_lock_that_is_in_doubt() {
    notices(&["--also", "other"], "lock:job", "lock:other", |_| {});
}
