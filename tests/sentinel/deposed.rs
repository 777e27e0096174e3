//! A master that was replaced, and does not know it: it still answers the connections that it has.

use std::time::Duration;

use redis::{Connection, cmd};

use crate::support::turns::{Turn, holder_id, is_free, is_renewed, lock_status, queue_is, turn};
use crate::support::{Authority, Job, MASTER, Redis, Sentinels, answered, eventually, wall};

/// Waits until nobody renews the lock at the old master any more.
fn is_left_alone(old: &mut Connection) {
    eventually("the lock ends at the old master", || {
        !cmd("EXISTS").arg("lock:job").query::<bool>(old).expect("it answers")
    });
}

/// Asserts that another run is refused.
#[track_caller]
fn is_held(group: &Sentinels) {
    group.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(75).prints("");
}

#[test]
fn its_holder_goes_to_the_new_master_and_keeps_the_lock_there() {
    let group = Sentinels::of_three();
    let holder = Turn::had(&group, &["-t", "15s"]);
    group.master().has_told(2);
    let token = group.master().value("lock:job");
    let mut old = group.depose();
    is_renewed(&group);
    assert_eq!(group.master().value("lock:job"), token);
    is_held(&group);
    is_left_alone(&mut old);
    holder.leaves();
    assert!(is_free(&group));
}

#[test]
fn a_lock_that_only_the_old_master_has_is_lost_and_its_command_is_stopped() {
    let group = Sentinels::of_three();
    group.master().cuts_its_replicas_off();
    let mut job = Job::start(&group, &["-t", "15s", "--kill-after", "500ms"]);
    let mut old = group.depose();
    // Until then it may have renewed the lease at the old master.
    let asked = wall();
    let left: i64 = cmd("PTTL").arg("lock:job").query(&mut old).expect("it answers");
    let end = asked + Duration::from_millis(u64::try_from(left).unwrap_or(0));
    eventually("it ends", || job.running.has_ended());
    job.is_gone_before(end);
    job.running.finish().exits(76).says("lost");
}

#[test]
fn its_grant_to_a_waiter_is_not_believed() {
    let group = Sentinels::of_three();
    let holder = Turn::had(&group, &["-t", "20s"]);
    let mut waiter = Turn::queued(&group, &[]);
    group.master().has_told(2);
    // It learns nothing of the failover, until it asks the old master, where the lock is free.
    waiter.freeze();
    let mut old = group.depose();
    is_renewed(&group);
    cmd("DEL").arg("lock:job").exec(&mut old).expect("deleted");
    waiter.goes_on();
    eventually("the old master grants it", || {
        cmd("EXISTS").arg("lock:job").query::<bool>(&mut old).expect("it answers")
    });
    queue_is(&group, &[waiter.pid()]);
    assert!(!waiter.is_up(), "two at once");
    holder.leaves();
    waiter.up();
    waiter.leaves();
}

#[test]
fn its_grant_to_a_newcomer_that_was_sent_there_before_is_not_believed() {
    let group = Sentinels::of_three();
    let old = group.named_master().unwrap();
    group.servers[old].hang();
    let mut newcomer = Turn::of(group.nxlock(turn(&["-v", "--server-timeout", "60s"])));
    newcomer.running.says("the sentinels name the master");
    // Not earlier, or they might send it to the new one.
    group.lose_patience();
    group.have_another_than(old);
    group.agree_on_another_than(old);
    let holder = Turn::had(&group, &["-t", "20s"]);
    group.servers[old].resume();
    queue_is(&group, &[newcomer.pid()]);
    assert!(!newcomer.is_up(), "two at once");
    holder.leaves();
    newcomer.up();
    newcomer.leaves();
}

#[test]
fn a_lock_that_somebody_else_has_at_the_new_master_is_not_released_but_lost() {
    let group = Sentinels::of_three();
    let mut holder = Turn::had(&group, &["-t", "60s"]);
    group.master().has_told(2);
    holder.freeze();
    let _old = group.depose();
    // As if it had not been replicated.
    group.buries("lock:job");
    let next = Turn::had(&group, &[]);
    holder.is_told();
    eventually("the next one has held it for a while", || {
        lock_status(&group)["holder"]["held_ms"].as_u64() > Some(100)
    });
    holder.goes_on();
    holder.finish().exits(76).says("lost");
    next.leaves();
}

#[test]
fn a_recorded_run_whose_lock_the_new_master_does_not_have_was_lost_by_its_record_and_by_its_status() {
    for options in [&["--record"][..], &["--record", "--shared"], &["--record", "--slots", "2"]] {
        let group = Sentinels::of_three();
        let mut holder = Turn::had(&group, &[&["-t", "60s"], options].concat());
        group.master().has_told(2);
        holder.freeze();
        let _old = group.depose();
        // As if it had not been replicated. The old master still has it, and releases it.
        for key in ["lock:job", "{lock:job}:shares", "{lock:job}:terms"] {
            group.buries(key);
        }
        holder.is_told();
        holder.goes_on();
        holder.finish().exits(76).says("lost");
        let history = group.nxlock(["--json", "status", "--history", "job"]).run().exits(0).json();
        assert_eq!(history[0]["history"][0]["outcome"], "lost", "{options:?}: {history}");
    }
}

#[test]
fn sentinels_that_hang_stop_nobody_and_are_heard_as_soon_as_they_go_on() {
    let group = Sentinels::of_three();
    let short = Turn::had(&group, &["-t", "2s", "--server-timeout", "30s"]);
    group.sentinels.iter().for_each(Redis::hang);
    let old = &group.servers[0];
    for _ in 0..3 {
        old.sees_a_renewal("lock:job");
    }
    short.leaves();
    group.sentinels.iter().for_each(Redis::resume);
    let holder = Turn::had(&group, &["-t", "6s"]);
    group.master().has_told(2);
    group.sentinels.iter().for_each(Redis::hang);
    old.sees_a_renewal("lock:job");
    group.sentinels.iter().for_each(Redis::resume);
    group.promote_another();
    for _ in 0..3 {
        is_renewed(&group);
    }
    holder.leaves();
    assert!(is_free(&group));
}

#[test]
fn its_word_that_a_lock_is_released_is_not_believed() {
    for options in
        [&["-t", "10m"][..], &["-t", "10m", "--record"], &["-t", "10m", "--shared"], &["-t", "10m", "-j", "3"]]
    {
        let group = Sentinels::of_three();
        let mut holder = Turn::had(&group, options);
        group.master().has_told(2);
        holder.freeze();
        let _old = group.depose();
        assert!(!is_free(&group), "{options:?}");
        holder.is_told();
        holder.goes_on();
        holder.finish().exits(0).never_says("lost");
        assert!(is_free(&group), "{options:?}");
        let history = group.nxlock(["--json", "status", "--history", "job"]).run().exits(0).json();
        let runs: Vec<_> = history[0]["history"].as_array().unwrap().iter().map(|run| &run["outcome"]).collect();
        assert_eq!(runs.len(), usize::from(options.contains(&"--record")), "{history}");
        assert!(runs.iter().all(|outcome| *outcome == "done"), "{history}");
    }
}

#[test]
fn its_keepers_and_readers_go_to_the_new_master() {
    let group = Sentinels::of_three();
    let mut script = std::process::Command::new("sleep").arg("300").spawn().unwrap();
    let pid = script.id().to_string();
    group.nxlock(["acquire", "job", "--shared", "-t", "15s", "--while-pid", &pid]).run().exits(0);
    let reader = Turn::had(&group, &["--shared", "-t", "15s"]);
    group.master().has_told(2);
    let mut old = group.depose();
    is_left_alone(&mut old);
    is_held(&group);
    assert_eq!(lock_status(&group)["holders"].as_array().map(Vec::len), Some(2));
    reader.leaves();
    is_held(&group);
    script.kill().unwrap();
    script.wait().unwrap();
    eventually("the keeper gives it back", || is_free(&group));
}

#[test]
fn its_waiters_stand_in_line_at_the_new_master() {
    let group = Sentinels::of_three();
    let holder = Turn::had(&group, &["-t", "15s"]);
    let (mut first, mut second) = (Turn::queued(&group, &[]), Turn::queued(&group, &["--shared"]));
    group.master().has_told(2);
    let _old = group.depose();
    eventually("they listen there", || {
        group.master().ask::<Vec<String>>(&["PUBSUB", "CHANNELS", "lock:job:wake:*"]).len() == 2
    });
    queue_is(&group, &[first.pid(), second.pid()]);
    holder.leaves();
    first.up();
    assert!(!second.is_up());
    first.leaves();
    second.up();
    second.leaves();
}

#[test]
fn a_holder_that_is_asked_or_broken_at_the_new_master_hears_of_it() {
    let group = Sentinels::of_three();
    let holder = Turn::had(&group, &["-t", "15s"]);
    group.master().has_told(2);
    let _old = group.depose();
    group.nxlock(["release", "job", "--ask", &holder_id(&group), "--wait", "30s"]).run().exits(0);
    holder.finish().exits(143).says("asked to give up");
}

#[test]
fn where_no_sentinel_answers_the_server_that_answers_is_believed() {
    let group = Sentinels::of_three();
    let mut holder = Turn::had(&group, &["-t", "9s"]);
    group.sentinels.iter().for_each(Redis::hang);
    for _ in 0..2 {
        group.servers[0].sees_a_renewal("lock:job");
    }
    holder.is_told();
    holder.finish().exits(0).says_nothing();
    group.sentinels.iter().for_each(Redis::resume);
}

#[test]
fn of_sentinels_that_disagree_the_latest_failover_counts() {
    let (group, stale) = (Sentinels::of_three(), Sentinels::of_one());
    group.fail_over();
    // None of these three knows the others: one is of another group, whose master has the same name.
    for hosts in [format!("{},{}", stale.hosts(), group.hosts()), format!("{},{}", group.hosts(), stale.hosts())] {
        let url = format!("redis+sentinel://{hosts}/{MASTER}");
        let mut holder = Turn::of(group.nxlock(turn(&[])).env("NXLOCK_SERVER", url));
        holder.up();
        assert!(group.master().exists("lock:job"), "{hosts}");
        assert!(!stale.master().exists("lock:job"), "{hosts}");
        holder.leaves();
    }
}

#[test]
fn sentinels_that_disagree_without_a_failover_name_no_master() {
    let (one, other) = (Sentinels::of_one(), Sentinels::of_one());
    for hosts in [[one.hosts(), other.hosts()], [other.hosts(), one.hosts()]] {
        let url = format!("redis+sentinel://{}/{MASTER}", hosts.join(","));
        let words = ["run", "job", "-n", "--server-timeout", "500ms", "--", "echo", "ran"];
        let done = answered(|| one.nxlock(words).env("NXLOCK_SERVER", &url)).exits(69).prints("");
        done.says("disagree").says(&one.servers[0].port().to_string());
    }
}
