//! Sentinels that are slow, silent, out of reach, or of different opinions.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::scripted::{Answer, Scripted, Sentinel};
use crate::support::turns::Turn;
use crate::support::{Authority, Redis, eventually, now};

/// Acquires the lock at a server without asking the sentinels, and releases it.
fn is_had_and_released_at(server: &Redis) {
    let url = format!("redis://127.0.0.1:{}", server.port());
    server.nxlock(["run", "job", "-n", "--", "true"]).env("NXLOCK_SERVER", url).run().exits(0);
}

#[test]
fn a_connection_to_a_sentinel_that_dies_without_an_error_is_replaced() {
    let group = Scripted::of(2);
    let holder = Turn::had(&group, &["-t", "3s"]);
    group.sentinels.iter().for_each(Sentinel::loses_its_connections);
    group.name(1, 2);
    holder.finish().exits(76).says("lost");
    // It may have expired there by now.
    group.servers[0].ask::<()>(&["DEL", "lock:job"]);
}

/// Returns whether a waiter does not believe the grant by the old master, if there is such a failover while it waits,
/// and since when it could ask about it.
#[track_caller]
fn does_not_believe_a_grant_after(group: &Scripted, fails_over: impl FnOnce()) -> (bool, Instant) {
    // It has asked the server what it asks as a holder, and does not ask for the master before it goes.
    let first = Turn::listening(group, &["-t", "60s"]);
    let mut waiter = Turn::queued(group, &["-v", "-t", "60s"]);
    waiter.freeze();
    fails_over();
    // The holder goes, and leaves the lock at the old master to the waiter.
    first.leaves();
    let since = now();
    waiter.goes_on();
    waiter.up();
    if !group.servers[1].exists("lock:job") {
        waiter.is_told();
        waiter.finish();
        group.servers.iter().for_each(Redis::leave_as_it_is);
        return (false, since);
    }
    waiter.running.says("is not the master any more");
    waiter.leaves();
    group.servers[0].delete("lock:job");
    (true, since)
}

#[test]
fn a_waiter_does_not_believe_a_grant_that_a_sentinel_could_refute_on_a_new_connection() {
    // nxlock waits a second for the first answer, of which half is for the old connections. A busy machine may take
    // longer: then the test begins again.
    let is_judged = (0..8).any(|_| {
        let group = Scripted::of(2);
        let (does_not_believe, since) = does_not_believe_a_grant_after(&group, || {
            group.sentinels.iter().for_each(Sentinel::loses_its_connections);
            group.name(1, 2);
        });
        let in_time = |answer: &Answer| (since..since + Duration::from_millis(700)).contains(&answer.given);
        let one_was_in_time = group.sentinels.iter().any(|sentinel| sentinel.now().answers.iter().any(in_time));
        assert!(does_not_believe || !one_was_in_time, "it was told on a new connection");
        does_not_believe
    });
    assert!(is_judged, "no answer was in time");
}

/// Returns whether a sentinel has answered a question so late that nxlock may not have waited for it: 50 ms, which begin
/// before the first sentinel reads the question.
fn was_late(group: &Scripted, leader: usize) -> bool {
    let answers = |at: usize| group.sentinels[at].now().answers.clone();
    let (last, one, other) = (answers(leader), answers((leader + 1) % 3), answers((leader + 2) % 3));
    // An answer that it has not given yet is late, too.
    let late = |(last, (one, other)): (&Answer, (&Answer, &Answer))| {
        last.given.saturating_duration_since(last.asked.min(one.asked).min(other.asked)) > Duration::from_millis(25)
    };
    last.len() < one.len().min(other.len()) || last.iter().zip(one.iter().zip(&other)).any(late)
}

#[test]
fn a_waiter_does_not_believe_a_grant_though_only_the_sentinel_that_answers_last_knows_of_the_failover() {
    // nxlock waits 50 ms for the last answer. A busy machine may take longer: then the test begins again.
    let is_judged = (0..8).any(|_| {
        let group = Scripted::of(2);
        let (does_not_believe, _) = does_not_believe_a_grant_after(&group, || {
            group.sentinels.iter().for_each(|sentinel| sentinel.now().answers.clear());
            // The others lead no failover, and name the old master for a second more.
            let mut leader = group.sentinels[1].now();
            (leader.names, leader.slow) = ((group.servers[1].port(), 2), Duration::from_millis(10));
        });
        let answers = || group.sentinels.iter().map(|sentinel| sentinel.now().answers.clone()).collect::<Vec<_>>();
        assert!(does_not_believe || was_late(&group, 1), "{:?}", answers());
        does_not_believe
    });
    assert!(is_judged, "no answer was in time");
}

#[test]
fn sentinels_that_stay_silent_are_reported_once_and_stop_nobody() {
    let group = Scripted::of(1);
    let mut holder = Turn::had(&group, &["-t", "6s"]);
    group.sentinels.iter().for_each(|sentinel| sentinel.now().hangs_after = 0);
    // After ten seconds.
    holder.running.says("too few sentinels answer");
    group.servers[0].sees_a_renewal("lock:job");
    holder.is_told();
    let done = holder.finish().exits(0);
    assert_eq!(done.stderr.matches("too few sentinels answer").count(), 1, "{}", done.both());
}

#[test]
fn a_majority_that_is_slow_confirms_a_reply_though_an_answer_to_an_earlier_question_comes_first() {
    let group = Scripted::of(1);
    for (sentinel, slow) in group.sentinels.iter().zip([0, 200, 250]) {
        sentinel.now().slow = Duration::from_millis(slow);
    }
    let done = group.nxlock(["-v", "run", "job", "--", "true"]).run().exits(0);
    done.says("the sentinels name the master").never_says("too few sentinels");
}

#[test]
fn the_server_of_the_latest_failover_is_the_master_though_one_sentinel_alone_knows() {
    // A busy machine may take longer than the 50 ms that nxlock waits for the last answer: then the test begins again.
    let is_judged = (0..8).any(|_| {
        let group = Scripted::of(2);
        group.sentinels[1].now().names = (group.servers[1].port(), 2);
        // It answers after the others have: before those that a majority waits for have their 50 ms.
        group.sentinels[1].now().slow = Duration::from_millis(10);
        let mut holder = Turn::had(&group, &["-v", "-t", "60s"]);
        let [at_the_old, at_the_new] = [0, 1].map(|at| group.servers[at].exists("lock:job"));
        if at_the_old || !at_the_new {
            assert!(was_late(&group, 1), "{}", holder.running.stderr());
            group.servers.iter().for_each(Redis::leave_as_it_is);
            return false;
        }
        holder.running.says("renewed for");
        holder.is_told();
        let done = holder.finish().exits(0).never_says("too few sentinels");
        let is_believed = !done.stderr.contains("is not the master any more");
        assert!(is_believed || was_late(&group, 1), "{}", done.both());
        is_believed
    });
    assert!(is_judged, "no answer was in time");
    // Without that delay, too, it gets the lock.
    let group = Scripted::of(2);
    group.sentinels[1].now().names = (group.servers[1].port(), 2);
    group.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
    group.servers.iter().for_each(Redis::leave_as_it_is);
}

#[test]
fn one_sentinel_that_names_a_replica_by_a_later_failover_does_not_depose_the_master() {
    let group = Scripted::of(2);
    group.servers[1].becomes_read_only();
    group.sentinels[0].now().names = (group.servers[1].port(), 9);
    group.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
    // Renewed there.
    let holder = Turn::listening(&group, &["-t", "60s"]);
    assert!(group.servers[0].exists("lock:job"));
    holder.leaves();
    group.servers[1].is_writable_again();
    // It does by one that a server has taken the role for, and that has answered in time.
    group.sentinels[0].now().names = (group.servers[1].port(), 10);
    let is_judged = (0..8).any(|_| {
        group.sentinels.iter().for_each(|sentinel| sentinel.now().answers.clear());
        let holder = Turn::had(&group, &["-t", "60s"]);
        if group.servers[1].exists("lock:job") && !group.servers[0].exists("lock:job") {
            holder.leaves();
            return true;
        }
        assert!(was_late(&group, 0), "{}", holder.running.stderr());
        drop(holder);
        group.servers.iter().for_each(|server| server.ask::<()>(&["DEL", "lock:job"]));
        false
    });
    assert!(is_judged, "no answer was in time");
}

#[test]
fn a_sentinel_that_was_out_of_reach_is_asked_again_at_the_next_renewal() {
    let group = Scripted::of(2);
    let mut holder = Turn::had(&group, &["-v", "-t", "3s"]);
    let out_of_reach: Vec<_> = group.sentinels.iter().map(Sentinel::is_out_of_reach).collect();
    for _ in 0..3 {
        group.servers[0].sees_a_renewal("lock:job");
    }
    group.name(1, 2);
    drop(out_of_reach);
    let renewed = |stderr: &str| stderr.matches("renewed for").count();
    let before = renewed(&holder.running.stderr());
    eventually("it ends", || holder.running.has_ended());
    let done = holder.finish().exits(76).says("lost");
    // Nothing waits for sentinels that were silent before: the next renewal asks, and the one after that has the answer.
    assert!(renewed(&done.stderr) - before <= 4, "{}", done.both());
    // It may have expired there by now.
    group.servers[0].ask::<()>(&["DEL", "lock:job"]);
}

#[test]
fn a_reply_of_a_server_that_was_deposed_and_is_the_master_once_more_does_not_count() {
    let group = Scripted::of(1);
    for sentinel in &group.sentinels {
        sentinel.now().then = Some((2, (group.servers[0].port(), 3)));
    }
    // With the first question it finds the master: it must not ask that again.
    let call = group.nxlock(["-v", "--server-timeout", "15s", "run", "job", "-n", "--", "echo", "ran"]);
    let done = call.run().exits(0).prints("ran\n");
    done.says("was deposed, and is the master once more");
}

#[test]
fn a_signal_while_a_grant_waits_for_the_sentinels_leaves_no_lock_behind() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let group = Scripted::of(1);
        // They answer the question before the connect, and no other.
        group.sentinels.iter().for_each(|sentinel| sentinel.now().hangs_after = 1);
        let words = ["--server-timeout", "15s", "run", "job", "-t", "10m", "--", "sleep", "300"];
        let run = group.nxlock(words).start();
        eventually("it is granted", || group.servers[0].exists("lock:job"));
        run.signal(signal);
        assert!(!run.finish().status.success());
        assert!(!group.servers[0].exists("lock:job"), "{signal}");
    }
}

#[test]
fn a_list_that_begins_at_one_master_and_ends_at_the_next_has_all_locks() {
    const MANY: usize = 2000;
    let group = Scripted::of(2);
    for server in &group.servers {
        let mut pipe = redis::pipe();
        for n in 0..MANY {
            pipe.cmd("SET").arg(format!("lock:n{n:04}")).arg("foreign").arg("PX").arg(3_600_000).ignore();
        }
        pipe.exec(&mut server.connection().unwrap()).unwrap();
    }
    // At one page of the other it is not at the beginning, for certain.
    for page in [3, 5, 8, 12, 20] {
        group.sentinels.iter().for_each(|sentinel| {
            let mut now = sentinel.now();
            now.names = (group.servers[0].port(), 1);
            now.then = Some((now.asked() + page, (group.servers[1].port(), 2)));
        });
        let listed = group.nxlock(["--json", "status", "--server-timeout", "20s"]).run().exits(0).json();
        assert_eq!(listed.as_array().map(Vec::len), Some(MANY), "{page}");
    }
    group.servers.iter().for_each(|server| server.ask::<()>(&["FLUSHALL"]));
}

#[test]
fn a_lock_that_another_had_and_released_at_the_new_master_was_lost() {
    let group = Scripted::of(2);
    let mut holder = Turn::had(&group, &["-v", "-t", "60s"]);
    is_had_and_released_at(&group.servers[1]);
    // The longer the release takes, the less certain it is that the other's grant came before it: by one percent.
    let server = &group.servers[1];
    let granted: u64 = server.ask(&["GET", "{lock:job}:fence"]);
    eventually("it was granted before the release for certain", || {
        let (seconds, us): (u64, u64) = server.ask(&["TIME"]);
        seconds * 1_000_000 + us > granted + 300_000
    });
    group.name(1, 2);
    holder.is_told();
    holder.finish().exits(76).says("lost");
}
