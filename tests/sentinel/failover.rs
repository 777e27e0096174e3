//! A failover while the lock is held and waited for: first with all data of the old master, then without.

use std::time::Duration;

use crate::support::turns::{
    Turn, each_is_served, fences_rise, grants, is_renewed, is_renewed_since, lock_status, queue_is, turn,
};
use crate::support::{Authority, Job, Sentinels, eventually, now, wall};

/// Starts a run that logs its number and its fence, and holds the lock until told to end.
fn numbered(group: &Sentinels, who: usize, options: &[&str]) -> Turn {
    let call = group.nxlock(turn(options)).env("LOG", group.directory().join("log"));
    Turn::of(call.env("WHO", who.to_string()))
}

/// Starts a holder and `n` waiters in the queue behind it.
fn line(group: &Sentinels, n: usize, options: &[&str]) -> Vec<Turn> {
    let mut holder = numbered(group, 0, options);
    holder.up();
    let mut line = vec![holder];
    line.extend((1..=n).map(|who| numbered(group, who, options).once_queued(group)));
    line
}

/// Asserts that each run gets the lock and ends, and that the log shows them in order.
#[track_caller]
fn are_served(group: &Sentinels, line: Vec<Turn>) {
    let n = line.len();
    each_is_served(line);
    let log = group.directory().join("log");
    assert_eq!(grants(&log).iter().map(|grant| grant.0).collect::<Vec<_>>(), (0..n).collect::<Vec<_>>());
    fences_rise(&log);
}

/// Waits until all waiters subscribe at the master.
fn listen_at_the_master(group: &Sentinels, n: usize) {
    eventually("all who wait listen at the master", || {
        group.master().ask::<Vec<String>>(&["PUBSUB", "CHANNELS", "lock:job:wake:*"]).len() == n
    });
}

#[test]
fn a_failover_with_everything_disturbs_neither_who_holds_nor_who_waits() {
    let group = Sentinels::of_three();
    let line = line(&group, 3, &["-t", "12s"]);
    listen_at_the_master(&group, 3);
    let token = group.master().value("lock:job");
    group.master().has_told(2);
    group.fail_over();
    is_renewed(&group);
    assert_eq!(group.master().value("lock:job"), token);
    listen_at_the_master(&group, 3);
    queue_is(&group, &line[1..].iter().map(Turn::pid).collect::<Vec<_>>());
    are_served(&group, line);
}

#[test]
fn a_master_that_dies_is_replaced_for_who_holds_and_who_waits() {
    let mut group = Sentinels::of_three();
    // Sentinels that do not agree on who leads the failover begin again, seconds later.
    let line = line(&group, 3, &["-t", "60s"]);
    group.master().has_told(2);
    let before = group.named_master().unwrap();
    group.lose_patience();
    group.servers[before].kill();
    let killed = now();
    group.have_another_than(before);
    is_renewed_since(&group, killed);
    listen_at_the_master(&group, 3);
    are_served(&group, line);
}

#[test]
fn a_master_that_hangs_is_replaced_and_is_no_master_when_it_goes_on() {
    let group = Sentinels::of_three();
    let line = line(&group, 2, &["-t", "15s", "--server-timeout", "1s"]);
    group.master().has_told(2);
    let before = group.named_master().unwrap();
    group.lose_patience();
    group.servers[before].hang();
    group.have_another_than(before);
    is_renewed(&group);
    group.servers[before].resume();
    eventually("the old master is told", || !group.servers[before].is_master());
    are_served(&group, line);
}

#[test]
fn a_lock_that_the_next_master_does_not_know_is_lost_and_its_command_is_stopped() {
    let mut group = Sentinels::of_three();
    let before = group.named_master().unwrap();
    group.master().cuts_its_replicas_off();
    // The sentinels may fail over to any replica: none has the lock.
    let mut job = Job::start(&group, &["-t", "15s", "--kill-after", "500ms"]);
    // Not earlier, or they might fail over before the lock is held.
    group.lose_patience();
    group.servers[before].kill();
    let end = wall() + Duration::from_secs(15);
    group.have_another_than(before);
    eventually("it ends", || job.running.has_ended());
    job.is_gone_before(end);
    job.running.finish().exits(76).says("lost");
}

#[test]
fn who_waited_for_a_lock_that_is_lost_is_served() {
    let mut group = Sentinels::of_three();
    let before = group.named_master().unwrap();
    group.master().cuts_its_replicas_off();
    let options = ["-t", "15s", "--kill-after", "500ms"];
    let mut holder = numbered(&group, 0, &options);
    holder.up();
    // All at once: sentinels that are quick to fail over take no replica that was cut off ten seconds before.
    let waiters: Vec<Turn> = (1..=3).map(|who| numbered(&group, who, &options)).collect();
    let mut line: Vec<Turn> = waiters.into_iter().map(|waiter| waiter.once_queued(&group)).collect();
    // Not earlier, or they might fail over before the lock is held.
    group.lose_patience();
    group.servers[before].kill();
    group.have_another_than(before);
    holder.running.finish().exits(76).says("lost");
    let mut served = Vec::new();
    while !line.is_empty() {
        let next = crate::support::turns::next_holder(&mut line);
        served.push(next.pid());
        assert!(!line.iter().any(Turn::is_up), "two at once");
        next.leaves();
    }
    fences_rise(&group.directory().join("log"));
    assert_eq!(served.len(), 3);
}

#[test]
fn a_token_that_was_printed_is_good_at_the_next_master() {
    let group = Sentinels::of_three();
    let token = group.nxlock(["acquire", "job", "--ttl", "2m"]).run().exits(0).token();
    let fence = lock_status(&group)["fence"].as_u64();
    group.master().has_told(2);
    group.fail_over();
    group.nxlock(["renew", "job", &token, "--ttl", "3m"]).run().exits(0);
    group.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(75).prints("");
    group.nxlock(["release", "job", &token]).run().exits(0);
    let next = group.nxlock(["run", "job", "-c", "echo $NXLOCK_FENCE"]).run().exits(0).text();
    assert!(next.trim().parse::<u64>().ok() > fence, "{next} after {fence:?}");
}

#[test]
fn who_comes_while_there_is_no_master_waits_for_one() {
    let mut group = Sentinels::of_three();
    let before = group.named_master().unwrap();
    group.servers[before].kill();
    // No sentinel has noticed yet, and with -n nxlock reports the server as unreachable.
    let call = group.nxlock(["run", "job", "-n", "--server-timeout", "500ms", "--", "echo", "ran"]);
    call.run().exits(69).prints("").within(Duration::from_secs(1));
    let waiter = group.nxlock(["run", "job", "--server-timeout", "60s", "--", "echo", "ran"]).start();
    group.lose_patience();
    group.have_another_than(before);
    waiter.finish().exits(0).prints("ran\n");
}

#[test]
fn over_tls_it_is_the_same() {
    let group = Sentinels::secure();
    let line = line(&group, 2, &["-t", "12s"]);
    group.master().has_told(2);
    group.fail_over();
    is_renewed(&group);
    listen_at_the_master(&group, 2);
    are_served(&group, line);
    // nxlock verifies the certificates of sentinels as well.
    let call = group.nxlock(["status", "--server-timeout", "20s"]);
    let other = crate::support::certificates::certificates().another_authority();
    call.env("SSL_CERT_FILE", other).run().exits(69).says("certificate").within(Duration::from_secs(3));
}
