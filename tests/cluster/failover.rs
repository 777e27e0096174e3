//! A slot's master fails: the next one has all of its data or none of it, or there is no next one.

use std::time::Duration;

use super::{are_served, line, listen_where_the_lock_is};
use crate::support::turns::{Turn, fences_rise, is_renewed, is_renewed_since, next_holder, queue_is, turn};
use crate::support::{Authority, Cluster, Job, answered, eventually, now, wall};

#[test]
fn a_failover_with_everything_disturbs_neither_who_holds_nor_who_waits() {
    let cluster = Cluster::with_replicas();
    let line = line(&cluster, 3, &["-t", "8s"]);
    listen_where_the_lock_is(&cluster, 3);
    let token: Option<String> = cluster.ask(&["GET", "lock:job"]);
    cluster.fails_over("lock:job");
    is_renewed(&cluster);
    assert_eq!(cluster.ask::<Option<String>>(&["GET", "lock:job"]), token);
    listen_where_the_lock_is(&cluster, 3);
    queue_is(&cluster, &line[1..].iter().map(Turn::pid).collect::<Vec<_>>());
    are_served(&cluster, line);
}

#[test]
fn a_master_that_dies_is_replaced_for_who_holds_and_who_waits() {
    let mut cluster = Cluster::with_replicas();
    // An election that fails begins again, seconds later.
    let line = line(&cluster, 3, &["-t", "60s"]);
    let before = cluster.at("lock:job");
    cluster.nodes[before].has_told(1);
    cluster.loses_patience();
    cluster.nodes[before].kill();
    let killed = now();
    assert_ne!(cluster.at("lock:job"), before);
    is_renewed_since(&cluster, killed);
    listen_where_the_lock_is(&cluster, 3);
    are_served(&cluster, line);
}

#[test]
fn a_master_that_hangs_is_replaced() {
    let cluster = Cluster::with_replicas();
    let line = line(&cluster, 2, &["-t", "15s", "--server-timeout", "1s"]);
    let before = cluster.at("lock:job");
    cluster.nodes[before].has_told(1);
    cluster.loses_patience();
    cluster.nodes[before].hang();
    eventually("the replica has taken over", || cluster.nodes[before + 3].is_master());
    eventually("the holder and the line are there", || {
        cluster.nodes[before + 3].ask::<Vec<String>>(&["PUBSUB", "CHANNELS", "lock:job:wake:*"]).len() == 2
    });
    cluster.nodes[before].resume();
    eventually("the old master is told", || !cluster.nodes[before].is_master());
    are_served(&cluster, line);
}

#[test]
fn a_lock_that_the_next_master_does_not_know_is_lost_and_its_command_is_stopped() {
    let mut cluster = Cluster::with_replicas();
    let before = cluster.at("lock:job");
    cluster.nodes[before].cuts_its_replicas_off();
    let mut job = Job::start(&cluster, &["-t", "15s", "--kill-after", "500ms"]);
    cluster.loses_patience();
    cluster.nodes[before].kill();
    let end = wall() + Duration::from_secs(15);
    eventually("it ends", || job.running.has_ended());
    job.is_gone_before(end);
    job.running.finish().exits(76).says("lost");
}

#[test]
fn who_waited_for_a_lock_that_is_lost_is_served() {
    let mut cluster = Cluster::with_replicas();
    let before = cluster.at("lock:job");
    cluster.nodes[before].cuts_its_replicas_off();
    let mut line = line(&cluster, 3, &["-t", "15s", "--kill-after", "500ms"]);
    cluster.loses_patience();
    cluster.nodes[before].kill();
    let holder = line.remove(0);
    holder.running.finish().exits(76).says("lost");
    while !line.is_empty() {
        let next = next_holder(&mut line);
        assert!(!line.iter().any(Turn::is_up), "two at once");
        next.leaves();
    }
    fences_rise(&cluster.directory().join("log"));
}

#[test]
fn a_slot_without_a_master_is_weather() {
    let mut cluster = Cluster::of_masters();
    let holder = Turn::had(&cluster, &["-t", "1m"]);
    let before = cluster.at("lock:job");
    let name = cluster.name_apart_from("job");
    cluster.loses_patience();
    cluster.nodes[before].kill();
    eventually("both others know that the cluster is down", || {
        let others = [1, 2].map(|next| &cluster.nodes[(before + next) % 3]);
        others.iter().all(|node| node.ask::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:fail"))
    });
    // A cluster that lacks the master of one slot serves no slot at all.
    let call = || cluster.nxlock(["run", &name, "-n", "--server-timeout", "1s", "--", "echo", "ran"]);
    answered(call).exits(69).prints("").says("CLUSTERDOWN").within(Duration::from_secs(2));
    let mut waiter = Turn::of(cluster.nxlock(turn(&[])).env("NXLOCK_SERVER_TIMEOUT", "60s"));
    waiter.running.says("waiting");
    // The master comes back without its data.
    cluster.comes_back(before);
    holder.running.finish().exits(76).says("lost");
    waiter.up();
    waiter.leaves();
}
