//! `--min-replicas`: a grant counts only once replicas have it.

use crate::support::turns::{is_free, queue};
use crate::support::{Authority, Cluster, Five, Local, Nxlock, Redis, Sentinels, eventually};

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
    done.says("2 of the 3 replicas that --min-replicas asks for").says("it was given back");
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
    local.nxlock(wanting("1", &["--", "echo", "ran"])).run().exits(64).prints("").says("--min-replicas");
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
