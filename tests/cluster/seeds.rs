//! Finding the node that serves a name, starting from any nodes that the URL names.

use std::time::Duration;

use super::{MASTERS, are_served, line, listen_where_the_lock_is};
use crate::support::certificates::certificates;
use crate::support::turns::{Turn, turn};
use crate::support::{Authority, Cluster, Nxlock, Redis, answered, eventually, unused_port};

pub fn seed(node: &Redis) -> String {
    format!("redis+cluster://127.0.0.1:{}", node.port())
}

#[test]
fn names_lie_all_over_the_cluster_and_are_listed_together() {
    let cluster = MASTERS.lend();
    let names: Vec<String> = (0..24).map(|n| format!("job {n:02}")).collect();
    let take = |name: &String| cluster.nxlock(["acquire", "--ttl", "10m", name]).run().exits(0).token();
    let tokens: Vec<String> = names.iter().map(take).collect();
    for node in &cluster.nodes {
        assert!(node.ask::<usize>(&["DBSIZE"]) > 0, "each has some of them");
    }
    let listed = cluster.nxlock(["--json", "status"]).run().exits(0).json();
    let listed: Vec<&str> = listed.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(listed, names, "in order");
    for (name, token) in names.iter().zip(&tokens) {
        cluster.nxlock(["renew", name, token, "--ttl", "11m"]).run().exits(0);
        cluster.nxlock(["release", name, token]).run().exits(0);
    }
    cluster.nxlock(["status"]).run().exits(0).prints("");
}

#[test]
fn any_node_tells_where_a_name_is() {
    let cluster = MASTERS.lend();
    for node in &cluster.nodes {
        let call = cluster.nxlock(["run", "job", "-c", "nxlock status job"]);
        call.env("NXLOCK_SERVER", seed(node)).run().exits(0).says_nothing();
    }
}

/// Returns the requests and the connections that a call makes to all nodes together, without those of the test.
fn traffic(cluster: &Cluster, call: Nxlock) -> (usize, usize) {
    let count = |section: &str, key: &str| -> usize {
        let of = |node: &Redis| {
            let info: String = node.ask(&["INFO", section]);
            let count = info.lines().find_map(|line| line.strip_prefix(key));
            count.and_then(|count| count.trim().parse::<usize>().ok()).expect("it counts them")
        };
        cluster.nodes.iter().map(of).sum()
    };
    let look = || (count("stats", "total_commands_processed:"), count("stats", "total_connections_received:"));
    let idle = (look(), look());
    let ours = (idle.1.0 - idle.0.0, idle.1.1 - idle.0.1);
    let before = look();
    call.run().exits(0);
    let after = look();
    (after.0 - before.0 - ours.0, after.1 - before.1 - ours.1)
}

#[test]
fn a_new_process_connects_to_the_node_it_asks_first_and_to_no_more_than_one_other() {
    let cluster = MASTERS.lend();
    for node in &cluster.nodes {
        let call = cluster.nxlock(["status", "job"]).env("NXLOCK_SERVER", seed(node));
        // The lock is free: status exits with 1.
        let call = call.under(["sh", "-c", "\"$@\"; [ $? = 1 ]", "sh"]);
        let (requests, connections) = traffic(&cluster, call);
        let right = node.port() == cluster.master_of("lock:job").port();
        assert!(connections <= if right { 1 } else { 2 }, "{connections} connections");
        // Commands that a script calls count as well.
        assert!(requests <= 20, "{requests} requests");
    }
}

#[test]
fn a_seed_that_is_gone_or_hangs_is_passed_over() {
    let mut cluster = Cluster::with_replicas();
    // These are replicas: no failover follows.
    cluster.nodes[3].kill();
    cluster.nodes[4].hang();
    let port = |at: usize| cluster.nodes[at].port();
    let hosts = [port(3), port(4), port(5)].map(|port| format!("127.0.0.1:{port}")).join(",");
    let url = format!("redis+cluster://{hosts}");
    for args in [&["run", "job", "-n", "--", "echo", "ran"][..], &["status"]] {
        let call = cluster.nxlock(["--server-timeout", "6s"].iter().chain(args).copied()).env("NXLOCK_SERVER", &url);
        let done = call.run().exits(0);
        assert!(done.took < Duration::from_secs(6), "{args:?}: {:?}", done.took);
    }
    let unknown = format!("redis+cluster://no-such-host.invalid,127.0.0.1:{}", port(0));
    cluster.nxlock(["run", "job", "--server-timeout", "10s", "true"]).env("NXLOCK_SERVER", unknown).run().exits(0);
    cluster.nodes[4].resume();
}

#[test]
fn without_any_seed_nobody_knows() {
    let cluster = MASTERS.lend();
    let url = format!("redis+cluster://127.0.0.1:{},127.0.0.1:{}", unused_port(), unused_port());
    for verb in
        [&["status"][..], &["run", "job", "--", "echo", "ran"], &["run", "job", "-w", "1m", "--", "echo", "ran"]]
    {
        let call =
            || cluster.nxlock(verb.iter().copied()).env("NXLOCK_SERVER", &url).env("NXLOCK_SERVER_TIMEOUT", "500ms");
        answered(call).exits(69).prints("").says("refused").within(Duration::from_secs(1));
    }
}

#[test]
fn a_node_of_a_cluster_is_not_taken_for_a_server_of_its_own() {
    let cluster = MASTERS.lend();
    let here = cluster.at("lock:job");
    let elsewhere = format!("redis://127.0.0.1:{}", cluster.nodes[(here + 1) % 3].port());
    for wait in [&["-n"][..], &["-w", "1m"], &[]] {
        let args = ["run", "job", "--server-timeout", "20s"].iter().chain(wait).chain(&["--", "echo", "ran"]);
        let call = cluster.nxlock(args.copied()).env("NXLOCK_SERVER", &elsewhere);
        call.run().exits(78).prints("").says("redis+cluster://").within(Duration::from_secs(3));
    }
    for verb in [&["status", "job"][..], &["acquire", "job", "--ttl", "1m"], &["release", "job", "x"]] {
        let call = cluster.nxlock(verb.iter().copied()).env("NXLOCK_SERVER", &elsewhere);
        call.run().exits(78).says("redis+cluster://");
    }
}

#[test]
fn a_server_of_its_own_is_no_cluster() {
    let redis = Redis::on_tcp(&[]);
    let call = Nxlock::new(["run", "job", "--server-timeout", "20s", "--", "echo", "ran"]);
    let done = call.env("NXLOCK_SERVER", seed(&redis)).run().prints("").never_says("panicked");
    done.within(Duration::from_secs(3)).says("no node of a cluster").exits(78);
}

#[test]
fn who_lists_all_locks_is_not_told_a_part_of_them() {
    let mut cluster = Cluster::of_masters();
    let token = cluster.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0).token();
    let other = cluster.name_apart_from("job");
    let away = cluster.at(&format!("lock:{other}"));
    cluster.nodes[away].hang();
    let done = cluster.nxlock(["status", "--server-timeout", "1s"]).run().exits(69);
    done.within(Duration::from_secs(2));
    cluster.nodes[away].resume();
    cluster.nxlock(["release", "job", &token]).run().exits(0);
    cluster.nodes[away].kill();
    cluster.nxlock(["status", "--server-timeout", "1s"]).run().exits(69);
}

#[test]
fn a_user_with_what_the_manual_lists_can_do_everything() {
    let cluster = Cluster::of_masters();
    let listed = "~lock:* ~{lock:*}:* resetchannels &lock:* +eval +evalsha +get +set +del +time +pttl +pexpire +type \
                  +scan +zadd +zrem +zrange +zrank +zscore +zcard +zcount +hget +hgetall +hmget +hset +hdel +hlen +publish \
                  +pubsub|numsub +subscribe +client|tracking +cluster|slots +cluster|myid +asking";
    for node in &cluster.nodes {
        let words = ["ACL", "SETUSER", "deploy", "on", ">s3cret"].into_iter().chain(listed.split_whitespace());
        node.ask::<()>(&words.collect::<Vec<_>>());
    }
    let url = format!("redis+cluster://deploy:s3cret@{}", cluster.hosts());
    let call = |args: &[&'static str]| cluster.nxlock(args.iter().copied()).env("NXLOCK_SERVER", &url);
    let mut holder = Turn::of(call(&turn(&["-t", "60s"])));
    holder.up();
    let mut waiter = Turn::of(call(&turn(&[])));
    eventually("it is in the queue", || {
        let seen = call(&["--json", "status", "job"]).run().exits(0).json();
        seen[0]["queue"].as_array().is_some_and(|queue| queue.len() == 1)
    });
    assert!(call(&["status"]).run().exits(0).text().contains("job "));
    holder.leaves();
    waiter.up();
    waiter.leaves();
    call(&["-v", "run", "job", "-n", "--", "true"]).run().exits(0).never_says("s3cret");
    for node in &cluster.nodes {
        let denied: Vec<redis::Value> = node.ask(&["ACL", "LOG"]);
        assert!(denied.is_empty(), "{denied:?}");
    }
}

#[test]
fn over_tls_it_is_the_same() {
    let cluster = Cluster::secure();
    let line = line(&cluster, 2, &["-t", "8s"]);
    listen_where_the_lock_is(&cluster, 2);
    cluster.moves("lock:job");
    // The waiters learn of the move with their next request.
    listen_where_the_lock_is(&cluster, 2);
    are_served(&cluster, line);
    let other = certificates().another_authority();
    let call = cluster.nxlock(["status", "--server-timeout", "20s"]).env("SSL_CERT_FILE", other);
    call.run().exits(69).says("certificate").within(Duration::from_secs(3));
}
