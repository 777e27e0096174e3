//! `--min-replicas`: a grant counts only once replicas have it. And a replica shows locks, and grants none.

use crate::support::turns::{is_free, queue};
use crate::support::{Authority, Cluster, Five, Local, Nxlock, Redis, Sentinels, answered, eventually, unused_port};

const JOB: [&str; 3] = ["run", "job", "--min-replicas"];

fn wanting<'a>(replicas: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&JOB[..], &[replicas], more].concat()
}

#[test]
fn a_lock_is_granted_once_as_many_replicas_as_asked_for_have_it() {
    let servers = Sentinels::of_three();
    let fence = "echo $NXLOCK_FENCE";
    for replicas in ["0", "1", "2"] {
        servers.nxlock(wanting(replicas, &["-c", fence])).run().exits(0).says_nothing();
    }
    let token = servers.nxlock(["acquire", "job", "--ttl", "1m", "--min-replicas", "2"]).run().exits(0).token();
    // nxlock has waited for the replicas: they have the token at once.
    for replica in &servers.servers[1..] {
        assert_eq!(replica.value("lock:job").as_deref(), Some(token.as_str()));
    }
    servers.nxlock(["release", "job", &token]).run().exits(0);
}

#[test]
fn what_too_few_replicas_have_is_given_back() {
    let servers = Sentinels::of_three();
    let done = servers.nxlock(wanting("3", &["--", "echo", "ran"])).run().exits(69).prints("");
    done.says("2 of the 3 replicas that --min-replicas asks for").says("it was released");
    assert!(is_free(&servers));
    servers.master().cuts_its_replicas_off();
    let document =
        servers.nxlock(["acquire", "job", "--ttl", "1m", "--min-replicas", "1", "--json"]).run().exits(69).json();
    assert_eq!(document["outcome"], "unreachable");
    assert!(document["message"].as_str().unwrap().contains("0 of the 1 replicas"), "{document}");
    assert!(is_free(&servers));
    servers.nxlock(["run", "job", "--", "true"]).run().exits(0).says_nothing();
}

#[test]
fn the_next_in_line_has_it_replicated_as_well() {
    let servers = Sentinels::of_three();
    let token = servers.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0).token();
    let waiter = servers.nxlock(wanting("2", &["-c", "echo ran"])).start();
    let too_demanding = servers.nxlock(wanting("3", &["-c", "echo ran"])).start();
    eventually("both stand in line", || queue(&servers).len() == 2);
    servers.nxlock(["release", "job", &token]).run().exits(0);
    waiter.finish().exits(0).prints("ran\n");
    too_demanding.finish().exits(69).prints("");
    assert!(is_free(&servers));
}

#[test]
fn who_may_not_wait_for_replicas_is_told_what_permits_it() {
    let redis = Redis::start();
    let rules = ["ACL", "SETUSER", "bob", "on", ">pw", "~*", "resetchannels", "&*", "+@all", "-wait"];
    redis.ask::<()>(&rules);
    let call = Nxlock::new(wanting("1", &["--", "echo", "ran"]));
    let done = call.env("NXLOCK_SERVER", format!("{}?user=bob&pass=pw", redis.url())).run().exits(77).prints("");
    done.says("NOPERM").says("wait");
    assert!(is_free(&redis));
}

#[test]
fn where_there_is_no_one_master_it_makes_no_sense() {
    let (local, five) = (Local::start(), Five::start());
    local
        .nxlock(wanting("1", &["--", "echo", "ran"]))
        .run()
        .exits(64)
        .prints("")
        .says("with --min-replicas: there is no");
    five.nxlock(wanting("1", &["--", "echo", "ran"])).run().exits(64).prints("").says("--min-replicas");
    local.nxlock(wanting("0", &["--", "echo", "ran"])).run().exits(0);
}

#[test]
fn in_a_cluster_it_is_the_replicas_of_the_keys_master() {
    let cluster = Cluster::with_replicas();
    cluster.nxlock(wanting("1", &["--", "echo", "ran"])).run().exits(0).prints("ran\n");
    cluster.nxlock(wanting("2", &["--", "echo", "ran"])).run().exits(69).says("1 of the 2 replicas");
    assert!(is_free(&cluster));
}

#[test]
fn a_replica_shows_what_its_master_has_told_it_and_says_so() {
    let servers = Sentinels::of_three();
    let replica = &servers.servers[1];
    replica.nxlock(["status"]).run().exits(0).prints("").says("is a replica of");
    let token = servers.nxlock(["acquire", "job", "--ttl", "1m", "--min-replicas", "2"]).run().exits(0).token();
    let shown = replica.nxlock(["status", "job"]).run().exits(0).says("is a replica of").text();
    assert!(shown.contains(&token[4..12]), "{shown}");
    let warnings =
        replica.nxlock(["--json", "status", "job"]).run().exits(0).says_nothing().json()[0]["warnings"].take();
    assert!(warnings[0].as_str().unwrap().contains("is a replica of"), "{warnings}");
    replica.nxlock(["status", "--history", "job"]).run().exits(0).says("is a replica of");
    servers.master().nxlock(["status", "job"]).run().exits(0).says_nothing();
    let done = answered(|| replica.nxlock(["--server-timeout", "200ms", "run", "other", "-n", "--", "echo", "ran"]));
    done.exits(69).prints("").says("name the master");
    servers.nxlock(["release", "job", &token]).run().exits(0);
}

#[test]
fn a_replica_that_has_lost_its_master_does_not_say_that_a_lock_is_free() {
    let servers = Sentinels::of_three();
    let replica = &servers.servers[1];
    servers.master().cuts_its_replicas_off();
    for words in [&["status", "job"][..], &["status"], &["status", "--history", "job"]] {
        eventually("it notices", || {
            let done = replica.nxlock(words.iter().copied()).env("NXLOCK_SERVER_TIMEOUT", "200ms").run();
            let said = |text| done.stderr.contains(text);
            done.status.code() == Some(69)
                && done.text().is_empty()
                && said("does not hear from it")
                && said("name the master")
        });
    }
}

#[test]
fn a_replica_is_named_by_whoever_looks_and_one_that_does_not_tell_is_doubted() {
    let servers = Sentinels::of_three();
    let replica = &servers.servers[1];
    replica.ask::<()>(&["ACL", "SETUSER", "looker", "on", ">pw", "~*", "&*", "+@all", "-info"]);
    let looker = |words: &[&str]| {
        let url = format!("{}?user=looker&pass=pw", replica.url());
        Nxlock::new(words.iter().copied()).env("NXLOCK_SERVER", url).run()
    };
    looker(&["status"]).exits(0).prints("").says("does not tell whether it is a replica");
    let seen = looker(&["--json", "status", "job"]).exits(1).says_nothing().json();
    assert!(seen[0]["warnings"][0].as_str().unwrap().contains("does not tell"), "{seen}");
}

#[test]
fn one_that_watches_is_told_when_its_server_becomes_a_replica() {
    let (redis, master) = (Redis::start(), Redis::on_tcp(&[]));
    let mut watching = redis.nxlock(["status", "--watch=100ms", "job"]).start();
    eventually("it shows the lock", || watching.stdout().contains("free"));
    assert_eq!(watching.stderr(), "");
    redis.ask::<()>(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    watching.says("is a replica of");
    redis.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
}

#[test]
fn of_several_servers_those_that_have_lost_their_masters_have_no_vote() {
    let five = Five::start();
    let call = |timeout: &str| five.nxlock(["--server-timeout", timeout, "status", "job"]).run();
    for redis in &five.each()[..2] {
        redis.ask::<()>(&["REPLICAOF", "127.0.0.1", &unused_port().to_string()]);
    }
    // The other three have to answer.
    call("15s").exits(1).says_nothing();
    five.each()[2].ask::<()>(&["REPLICAOF", "127.0.0.1", &unused_port().to_string()]);
    call("1s").exits(69).prints("").says("does not hear from it");
    for redis in &five.each()[..3] {
        redis.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
    }
}
