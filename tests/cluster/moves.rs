//! A slot goes from one master to another, while somebody holds a name in it and others wait.

use std::time::Duration;

use super::{MASTERS, are_served, line, listen_where_the_lock_is};
use crate::support::line::{
    Turn, acquire, fences_rise, grants, is_free, is_renewed, queue, release, turn, whoever_is_next,
};
use crate::support::{Authority, Running, eventually};

#[test]
fn a_slot_that_moves_disturbs_neither_who_holds_nor_who_waits() {
    let cluster = MASTERS.lend();
    let line = line(&cluster, 3, &["-t", "8s"]);
    let token: Option<String> = cluster.ask(&["GET", "lock:job"]);
    for _ in 0..2 {
        listen_where_the_lock_is(&cluster, 3);
        let before = cluster.at("lock:job");
        cluster.moves("lock:job");
        assert_ne!(cluster.at("lock:job"), before);
        is_renewed(&cluster);
        assert_eq!(cluster.ask::<Option<String>>(&["GET", "lock:job"]), token);
    }
    listen_where_the_lock_is(&cluster, 3);
    are_served(&cluster, line);
}

#[test]
fn a_lock_that_is_given_back_after_its_slot_has_moved_is_handed_on() {
    let cluster = MASTERS.lend();
    // Who holds is not renewed in between, and who waits has not noticed: to the new place they seem dead.
    let line = line(&cluster, 3, &["-t", "10m"]);
    cluster.moves("lock:job");
    are_served_in_any_order(&cluster, line);
    let token = acquire(&cluster, "10m");
    cluster.moves("lock:job");
    release(&cluster, &token);
    assert!(is_free(&cluster));
}

#[test]
fn a_lock_is_renewed_and_given_back_where_it_is_while_its_slot_is_on_its_way() {
    let cluster = MASTERS.lend();
    let holder = Turn::had(&cluster, &["-t", "9s"]);
    let slot = cluster.begins_to_move("lock:job");
    let left = |at: &crate::support::Redis| at.pttl("lock:job");
    // Still there, though the slot is leaving.
    eventually("it is renewed at the old place", || left(slot.from()) < 8_500);
    eventually("it is renewed at the old place", || left(slot.from()) > 8_500);
    slot.carries_its_keys();
    // The new place answers only who says that it was sent there.
    let ttl = || {
        let mut connection = slot.to().connection().unwrap();
        let mut ask = redis::pipe();
        let (ttl,): (i64,) = ask.cmd("ASKING").ignore().cmd("PTTL").arg("lock:job").query(&mut connection).unwrap();
        ttl
    };
    eventually("its lease runs down", || ttl() < 8_500);
    eventually("it is renewed at the new place", || ttl() > 8_500);
    slot.ends();
    holder.leaves();
    eventually("it is free", || is_free(&cluster));
}

#[test]
fn who_comes_while_a_slot_is_on_its_way_waits_for_its_arrival() {
    let cluster = MASTERS.lend();
    let token = acquire(&cluster, "5m");
    let slot = cluster.begins_to_move("lock:job");
    // Of the keys of a lock some are here and some nowhere: the cluster asks for patience.
    let call = cluster.nxlock(["run", "job", "-n", "--server-timeout", "500ms", "--", "echo", "ran"]);
    call.run().exits(69).prints("").says("TRYAGAIN").within(Duration::from_secs(1));
    let mut waiter = Turn::of(cluster.nxlock(turn(&[])));
    waiter.running.says("TRYAGAIN");
    slot.ends();
    eventually("it stands in line", || queue(&cluster) == [waiter.pid()]);
    release(&cluster, &token);
    waiter.up();
    waiter.leaves();
}

#[test]
fn a_release_while_a_slot_is_on_its_way_is_asked_for_until_it_arrives() {
    let cluster = MASTERS.lend();
    let token = acquire(&cluster, "5m");
    let slot = cluster.begins_to_move("lock:job");
    let giving_back = cluster.nxlock(["release", "job", &token, "--server-timeout", "15s"]).start();
    eventually("it was told to try again", || {
        slot.from().ask::<String>(&["INFO", "errorstats"]).contains("errorstat_TRYAGAIN")
    });
    slot.ends();
    giving_back.finish().exits(0);
    assert!(is_free(&cluster));
}

#[test]
fn a_line_that_moves_at_every_turn_loses_nobody() {
    let cluster = MASTERS.lend();
    let mut waiting = line(&cluster, 5, &["-t", "10s"]);
    while !waiting.is_empty() {
        let next = whoever_is_next(&mut waiting);
        cluster.moves("lock:job");
        assert!(!waiting.iter().any(Turn::is_up), "two at once");
        next.leaves();
    }
    assert_eq!(grants(&cluster.directory().join("log")).len(), 6);
    fences_rise(&cluster.directory().join("log"));
}

/// Each has its turn, one after the other.
#[track_caller]
fn are_served_in_any_order(authority: &impl Authority, mut waiting: Vec<Turn>) {
    let n = waiting.len();
    while !waiting.is_empty() {
        let next = whoever_is_next(&mut waiting);
        assert!(!waiting.iter().any(Turn::is_up), "two at once");
        next.leaves();
    }
    let log = authority.directory().join("log");
    assert_eq!(grants(&log).len(), n);
    fences_rise(&log);
}

#[test]
fn a_list_waits_for_the_lock_whose_slot_is_on_its_way_and_finds_it_where_it_goes() {
    let cluster = MASTERS.lend();
    let names: Vec<String> = (0..40).map(|n| format!("job-{n:02}")).collect();
    let tokens: Vec<String> =
        names.iter().map(|name| cluster.nxlock(["acquire", name, "-t", "10m"]).run().exits(0).token()).collect();
    let list = || cluster.nxlock(["--json", "--server-timeout", "15s", "status"]).start();
    let listed = |list: Running| {
        let rows = list.finish().exits(0).json();
        let names = rows.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(listed(list()), names);
    let slot = cluster.begins_to_move("lock:job-07");
    slot.from().ask::<()>(&["CONFIG", "RESETSTAT"]);
    let waiting = list();
    // Of its keys some are here and some nowhere: it is asked for patience, and does not go on without.
    eventually("it asks again", || {
        let errors: String = slot.from().ask(&["INFO", "errorstats"]);
        let count = errors.lines().find_map(|line| line.strip_prefix("errorstat_TRYAGAIN:count="));
        count.and_then(|count| count.trim().parse::<u32>().ok()).is_some_and(|count| count >= 3)
    });
    slot.carries_its_keys();
    slot.ends();
    assert_eq!(listed(waiting), names);
    assert_eq!(listed(list()), names);
    for (name, token) in names.iter().zip(&tokens) {
        cluster.nxlock(["release", name, token]).run().exits(0);
    }
    assert_eq!(listed(list()), [""; 0]);
}
