//! Clusters, Sentinels and server lists: `check` probes each server, and reports each problem for its server.

use serde_json::Value;

use crate::support::{Authority, Cluster, Done, Five, Sentinels};

/// Returns the URL of each group of findings, and its topics with their verdicts.
fn groups(done: &Done) -> Vec<(String, Vec<(String, String)>)> {
    let document = done.json();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let servers = document["servers"].as_array().unwrap_or_else(|| panic!("{}", done.both()));
    let findings = |server: &Value| {
        let findings = server["findings"].as_array().unwrap();
        findings.iter().map(|finding| (text(&finding["topic"]), text(&finding["verdict"]))).collect()
    };
    servers.iter().map(|server| (text(&server["url"]), findings(server))).collect()
}

fn has(findings: &[(String, String)], topic: &str, verdict: &str) -> bool {
    findings.iter().any(|(found, judged)| found == topic && judged == verdict)
}

#[test]
fn of_a_cluster_every_master_is_looked_at_and_a_lock_is_tried() {
    let cluster = Cluster::of_masters();
    // These servers have no persistence.
    let done = cluster.nxlock(["--json", "check"]).run().exits(1);
    let groups = groups(&done);
    assert_eq!(groups.len(), 4, "{}", done.both());
    let (url, whole) = &groups[0];
    assert!(url.starts_with("redis+cluster://"), "{url}");
    for topic in ["round trip", "permissions", "locks", "waiters"] {
        assert!(has(whole, topic, "fine"), "{topic}: {}", done.both());
    }
    for (_, master) in &groups[1..] {
        assert!(has(master, "role", "fine") && has(master, "persistence", "warning"), "{}", done.both());
    }
}

#[test]
fn of_sentinels_the_master_is_looked_at() {
    let servers = Sentinels::of_one();
    let done = servers.nxlock(["--json", "check"]).run().exits(1);
    let groups = groups(&done);
    assert_eq!(groups.len(), 1, "{}", done.both());
    assert!(groups[0].0.starts_with("redis+sentinel://"), "{}", done.both());
    assert!(has(&groups[0].1, "locks", "fine") && has(&groups[0].1, "persistence", "warning"), "{}", done.both());
}

#[test]
fn a_master_that_sentinels_name_is_to_refuse_locks_without_its_replicas() {
    let servers = Sentinels::of_three();
    let done = servers.nxlock(["--json", "check"]).run().exits(1);
    assert!(has(&groups(&done)[0].1, "failover", "warning"), "{}", done.both());
    assert!(done.both().contains("min-replicas-to-write 1"), "{}", done.both());
    servers.master().ask::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let done = servers.nxlock(["--json", "check"]).run().exits(1);
    assert!(has(&groups(&done)[0].1, "failover", "fine"), "{}", done.both());
    // Other servers are not failed over.
    let done = servers.master().nxlock(["--json", "check"]).run().exits(1);
    assert!(!done.both().contains("failover\""), "{}", done.both());
}

#[test]
fn of_several_servers_what_ails_a_minority_is_a_warning() {
    let mut five = Five::start();
    five.each_mut()[1].kill();
    let check = |five: &Five| five.nxlock(["--json", "check", "--server-timeout", "2s"]).run();
    let done = check(&five).exits(1);
    let found = groups(&done);
    assert_eq!(found.len(), 5, "{}", done.both());
    assert!(has(&found[1].1, "server", "warning") && has(&found[0].1, "locks", "fine"), "{}", done.both());
    for at in [2, 4] {
        five.each_mut()[at].kill();
    }
    let done = check(&five).exits(69);
    assert!(has(&groups(&done)[4].1, "server", "obstacle"), "{}", done.both());
}
