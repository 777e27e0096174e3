//! The script with an impaired server or waiter: one scene each, on a real server, with real subscribers.

use redis::{Connection, RedisResult, Value, cmd};

use crate::server::{self, Answer, KEY, Server, companion, heard, inspect, listen, release, renew, until, words};

fn wake(token: &str) -> String {
    format!("{KEY}:wake:{token}")
}

/// Asks with ten seconds' grace.
fn ask(connection: &mut Connection, token: &str, mode: &str, channel: &str) -> RedisResult<Answer> {
    server::acquire(connection, token, mode, &[("grace", "10000"), ("channel", channel)])
}

/// Asks again, with a ticket.
fn comes_back(connection: &mut Connection, token: &str, grace: &str, ticket: &str) -> Answer {
    let more = [("grace", grace), ("channel", &wake(token)[..]), ("ticket", ticket)];
    server::acquire(connection, token, "queue", &more).unwrap()
}

/// Queues a subscribed waiter: alive until the connection is dropped, and frozen as long as it sends nothing.
fn waits(server: &Server, connection: &mut Connection, token: &str, grace: &str) -> (Connection, String) {
    let ear = listen(server, &wake(token));
    let ticket = comes_back(connection, token, grace, "0").of("ticket");
    (ear, ticket)
}

/// Releases a lock, and returns for whom it is reserved.
#[track_caller]
fn released(connection: &mut Connection, token: &str) -> String {
    let answer = release(connection, token).unwrap();
    assert_eq!(answer.of("verdict"), "released", "{answer:?}");
    answer.of("next")
}

/// Returns those that INSPECT shows in the queue.
fn queue(connection: &mut Connection) -> Vec<String> {
    inspect(connection).unwrap().all("queue").chunks(2).map(|waiter| waiter[0].clone()).collect()
}

fn verdict(answer: RedisResult<Answer>) -> String {
    answer.unwrap().of("verdict")
}

fn gone(server: &Server, ear: Connection, token: &str) {
    drop(ear);
    let mut connection = server.connect();
    until("nobody listens", || {
        words(cmd("PUBSUB").arg("NUMSUB").arg(wake(token)).query(&mut connection).unwrap()).unwrap()[1] == "0"
    });
}

fn is_there(connection: &mut Connection, key: &str) -> bool {
    cmd("EXISTS").arg(key).query(connection).unwrap()
}

fn expires(connection: &mut Connection) {
    until("the lock expires", || !is_there(connection, KEY));
}

fn send(connection: &mut Connection, line: &[&str]) {
    cmd(line[0]).arg(&line[1..]).query::<Value>(connection).unwrap();
}

#[track_caller]
fn refused<T: std::fmt::Debug>(answer: &RedisResult<T>, code: &str) {
    assert_eq!(answer.as_ref().expect_err("the server should refuse").code(), Some(code));
}

#[test]
fn a_killed_head_is_skipped_at_release() {
    let (server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    let _live = waits_behind_one_that_is_killed(&server, &mut c, "live");
    assert_eq!(released(&mut c, "holder"), "live");
}

#[test]
fn a_killed_head_is_skipped_at_expiry() {
    let (server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    let _live = waits_behind_one_that_is_killed(&server, &mut c, "live");
    send(&mut c, &["PEXPIRE", KEY, "1"]);
    expires(&mut c);
    assert!(ask(&mut c, "live", "queue", &wake("live")).unwrap().is_granted());
}

#[test]
fn a_frozen_head_costs_its_grace_at_expiry_and_keeps_its_place() {
    let (server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    let (_ear, ticket) = waits(&server, &mut c, "frozen", "30");
    let _live = waits(&server, &mut c, "live", "10000");
    send(&mut c, &["PEXPIRE", KEY, "1"]);
    expires(&mut c);

    let answer = ask(&mut c, "live", "queue", &wake("live")).unwrap();
    assert_eq!((answer.of("value"), answer.of("place")), ("frozen".into(), "1".into()));
    assert!(answer.number("pttl") <= 30);
    assert_eq!((inspect(&mut c).unwrap().of("reserved"), queue(&mut c)), ("1".into(), vec!["live".to_owned()]));
    expires(&mut c);
    assert!(ask(&mut c, "live", "queue", &wake("live")).unwrap().is_granted());

    let _late = waits(&server, &mut c, "late", "10000");
    assert_eq!(comes_back(&mut c, "frozen", "30", &ticket).of("place"), "1");
    assert_eq!(released(&mut c, "live"), "frozen");
}

#[test]
fn the_next_in_line_is_told_when_a_dead_head_is_dropped() {
    let (server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    let mut next = waits_behind_one_that_is_killed(&server, &mut c, "next");
    assert_eq!(heard(&mut next), ["t"]);
    assert_eq!(ask(&mut c, "last", "queue", "").unwrap().of("place"), "2");
    let [word] = &heard(&mut next)[..] else { panic!("one word") };
    assert!(word.starts_with('e'), "{word}: it is the first now, and the holder's lease ends");
}

#[test]
fn the_next_in_line_is_told_when_a_reservation_ends() {
    let (server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    let (mut first, _ticket) = waits(&server, &mut c, "first", "10000");
    let (mut next, _ticket) = waits(&server, &mut c, "next", "10000");
    assert_eq!((heard(&mut first), heard(&mut next)), (vec!["t".to_string()], vec!["t".to_string()]));
    assert_eq!(released(&mut c, "holder"), "first");
    assert_eq!(heard(&mut first), ["g"]);
    let [word] = &heard(&mut next)[..] else { panic!("one word") };
    let told: u64 = word.strip_prefix('e').expect("a time").parse().unwrap();
    let time: (u64, u64) = cmd("TIME").query(&mut c).unwrap();
    let left: u64 = cmd("PTTL").arg(KEY).query(&mut c).unwrap();
    let ends = time.0 * 1000 + time.1 / 1000 + left;
    assert!(told.abs_diff(ends) <= 1000, "{told}, {ends}");
}

#[test]
fn who_listens_to_all_channels_stands_in_for_no_waiter() {
    let (server, mut c) = started();
    let mut monitor = server.connect();
    cmd("PSUBSCRIBE").arg("*").query::<Value>(&mut monitor).unwrap();
    ask(&mut c, "holder", "once", "").unwrap();
    assert_eq!(ask(&mut c, "deaf", "queue", &wake("deaf")).unwrap().of("heard"), "0", "nobody listens there");
    release(&mut c, "deaf").unwrap();
    let _live = waits_behind_one_that_is_killed(&server, &mut c, "live");
    assert_eq!(released(&mut c, "holder"), "live");
}

#[test]
fn an_expiry_that_moves_nearer_is_told_to_the_first_in_line() {
    let (server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    let mut next = waits_behind_one_that_is_killed(&server, &mut c, "next");
    assert_eq!(heard(&mut next), ["t"]);
    assert_eq!(verdict(renew(&mut c, "holder", "90000", "set")), "kept");
    assert_eq!(verdict(renew(&mut c, "holder", "1000", "prolong")), "longer");
    assert!(heard(&mut next).is_empty());
    assert_eq!(verdict(renew(&mut c, "holder", "30000", "set")), "kept");
    let [word] = &heard(&mut next)[..] else { panic!("one word") };
    assert!(word.starts_with('e'), "{word}");
    let all = ["~lock:*", "~{lock:*", "+@all", "resetchannels"];
    send(&mut c, &[&["ACL", "SETUSER", "renewer", "on", ">pw"], &all[..]].concat());
    send(&mut c, &["AUTH", "renewer", "pw"]);
    assert_eq!(verdict(renew(&mut c, "holder", "20000", "set")), "kept", "one that may not tell renews all the same");
}

#[test]
fn a_lock_is_given_back_whatever_lies_in_its_queue_s_place() {
    let (_server, mut c) = started();
    let [queue, waiters] = ["queue", "waiters"].map(companion);
    for (damaged, other) in [(&queue, &waiters), (&waiters, &queue)] {
        ask(&mut c, "holder", "once", "").unwrap();
        send(&mut c, &["DEL", damaged, other]);
        send(&mut c, &["SET", damaged, "mine"]);
        assert_eq!(verdict(renew(&mut c, "holder", "1000", "set")), "kept");
        let stranger = release(&mut c, "stranger").unwrap();
        assert_eq!((stranger.of("verdict"), stranger.of("value")), ("not_yours".into(), "holder".into()));
        assert_eq!(released(&mut c, "holder"), "");
        assert!(!is_there(&mut c, KEY));
        assert_eq!(cmd("GET").arg(damaged).query::<String>(&mut c).unwrap(), "mine");
        send(&mut c, &["DEL", damaged]);
    }
}

#[test]
fn a_fence_of_another_type_is_replaced_and_blocks_no_release() {
    let (_server, mut c) = started();
    let fence = companion("fence");
    ask(&mut c, "holder", "once", "").unwrap();
    ask(&mut c, "polls", "queue", "").unwrap();
    send(&mut c, &["DEL", &fence]);
    send(&mut c, &["HSET", &fence, "not", "a fence"]);
    let renewed = renew(&mut c, "polls", "60000", "set").unwrap();
    assert_eq!((renewed.of("verdict"), renewed.of("value")), ("not_yours".into(), "holder".into()));
    assert_eq!(released(&mut c, "holder"), "polls");
    assert!(ask(&mut c, "polls", "queue", "").unwrap().number("fence") > 0);
}

#[test]
fn order_survives_a_server_that_lost_everything() {
    let (server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    let waiters = ["a", "b", "c"].map(|token| (token, waits(&server, &mut c, token, "10000")));
    send(&mut c, &["FLUSHALL"]);
    ask(&mut c, "other", "once", "").unwrap();
    for (token, (_, ticket)) in waiters.iter().rev() {
        comes_back(&mut c, token, "10000", ticket);
    }
    assert_eq!(queue(&mut c), ["a", "b", "c"]);
}

#[test]
fn a_full_server_refuses_newcomers_and_serves_those_in_line() {
    let (server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    let _first = waits(&server, &mut c, "first", "10000");
    let _second = waits(&server, &mut c, "second", "10000");
    send(&mut c, &["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(verdict(renew(&mut c, "holder", "60000", "set")), "kept");
    assert_eq!(ask(&mut c, "second", "queue", &wake("second")).unwrap().of("place"), "2");
    refused(&ask(&mut c, "third", "queue", ""), "OOM");
    assert_eq!(released(&mut c, "holder"), "first");
    assert!(ask(&mut c, "first", "queue", &wake("first")).unwrap().is_granted());
    send(&mut c, &["DEL", KEY]);
    assert_eq!(ask(&mut c, "third", "once", "").unwrap().of("value"), "second");
    assert_eq!(released(&mut c, "second"), "");
    refused(&ask(&mut c, "third", "once", ""), "OOM");
    refused(&ask(&mut c, "third", "plain", ""), "OOM");
    assert!(!is_there(&mut c, KEY));
}

#[test]
fn one_who_may_not_publish_polls_and_hands_over_with_time_to_notice() {
    let (server, mut c) = started();
    send(&mut c, &["ACL", "SETUSER", "mute", "on", ">pw", "~*", "+@all", "resetchannels"]);
    let mut mute = server.connect();
    send(&mut mute, &["AUTH", "mute", "pw"]);
    ask(&mut mute, "holder", "once", "").unwrap();
    let _ear = listen(&server, &wake("deaf"));
    assert_eq!(ask(&mut mute, "deaf", "queue", &wake("deaf")).unwrap().of("heard"), "0");
    release(&mut mute, "deaf").unwrap();

    let _live = waits_behind_one_that_is_killed(&server, &mut c, "live");
    assert_eq!(released(&mut mute, "holder"), "live");
    assert!(cmd("PTTL").arg(KEY).query::<i64>(&mut c).unwrap() > 10_000);
}

#[test]
fn a_reader_may_inspect() {
    let (_server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    ask(&mut c, "polls", "queue", "").unwrap();
    let rules = ["%R~lock:*", "%R~{lock:*", "+eval_ro", "+type", "+get", "+pttl", "+time", "+hget", "+zrange"];
    send(&mut c, &[&["ACL", "SETUSER", "reader", "on", ">pw"], &rules[..]].concat());
    send(&mut c, &["AUTH", "reader", "pw"]);
    assert_eq!((inspect(&mut c).unwrap().of("value"), queue(&mut c)), ("holder".into(), vec!["polls".to_owned()]));
}

#[test]
fn a_replica_shows_the_queue_and_says_no_to_nobody() {
    let (master, port) = Server::on_tcp();
    let replica = Server::start();
    let (mut c, mut r) = (master.connect(), replica.connect());
    ask(&mut c, "holder", "once", "").unwrap();
    let _ear = waits(&master, &mut c, "waiter", "10000");
    send(&mut c, &["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    send(&mut r, &["REPLICAOF", "127.0.0.1", &port.to_string()]);
    until("it has the lock", || cmd("EXISTS").arg(KEY).query::<bool>(&mut r).unwrap_or(false));
    assert_eq!((inspect(&mut r).unwrap().of("value"), queue(&mut r)), ("holder".into(), vec!["waiter".to_owned()]));
    for token in ["holder", "waiter", "stranger"] {
        refused(&renew(&mut r, token, "60000", "set"), "READONLY");
        refused(&release(&mut r, token), "READONLY");
        for mode in ["queue", "once", "plain"] {
            refused(&ask(&mut r, token, mode, ""), "READONLY");
        }
    }
    send(&mut c, &["DEL", KEY]);
    until("it has lost the lock", || !cmd("EXISTS").arg(KEY).query::<bool>(&mut r).unwrap());
    for mode in ["queue", "once", "plain"] {
        refused(&ask(&mut r, "stranger", mode, ""), "READONLY");
    }
}

/// While the slot of a lock moves, a waiter that comes in leaves the queue with a request for each key, and one may fail.
#[test]
fn a_holder_of_which_only_the_place_in_the_queue_is_left_passes_the_lock_on() {
    let (server, mut c) = started();
    let queue = companion("queue");
    ask(&mut c, "holder", "once", "").unwrap();
    let (mut first, _) = waits(&server, &mut c, "first", "10000");
    send(&mut c, &["ZADD", &queue, "1", "holder"]);
    assert_eq!(released(&mut c, "holder"), "first");
    assert_eq!(heard(&mut first), ["t", "g"]);
    assert!(!is_there(&mut c, &queue));

    let (_second, ticket) = waits(&server, &mut c, "second", "10000");
    send(&mut c, &["ZADD", &queue, &ticket, "first"]);
    send(&mut c, &["ZINCRBY", &queue, "1", "first"]);
    let (mut third, _) = waits(&server, &mut c, "third", "10000");
    assert_eq!(heard(&mut third), ["t"]);
    assert_eq!(released(&mut c, "first"), "second");
    let [word] = &heard(&mut third)[..] else { panic!("one word") };
    assert!(word.starts_with('e'), "{word}: it is the first now");
}

#[test]
fn a_master_that_was_demoted_tells_nobody_of_a_release_that_it_refuses() {
    let (server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    let (mut ear, _) = waits(&server, &mut c, "waiter", "10000");
    assert_eq!(heard(&mut ear), ["t"]);
    send(&mut c, &["REPLICAOF", "127.0.0.1", "1"]);
    refused(&release(&mut c, "holder"), "READONLY");
    assert!(heard(&mut ear).is_empty());
}

#[test]
fn a_key_of_another_type_is_named_and_still_lets_a_waiter_leave() {
    let (_server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    ask(&mut c, "polls", "queue", "").unwrap();
    send(&mut c, &["DEL", KEY]);
    send(&mut c, &["HSET", KEY, "redisson", "1"]);
    let seen = inspect(&mut c).unwrap();
    assert_eq!((seen.of("type"), seen.of("value")), ("hash".into(), String::new()));
    refused(&ask(&mut c, "polls", "queue", ""), "WRONGTYPE");
    refused(&release(&mut c, "polls"), "WRONGTYPE");
    assert!(!is_there(&mut c, &companion("queue")) && !is_there(&mut c, &companion("waiters")));
}

#[test]
fn a_crowd_of_the_dead_is_cleared_in_bounded_steps() {
    let (_server, mut c) = started();
    a_crowd_dies(&mut c);
    let answer = ask(&mut c, "late", "once", "").unwrap();
    let found = ["value", "pttl", "place", "length", "again"].map(|field| answer.of(field));
    assert_eq!(found, ["", "-2", "0", "500", "1"], "{answer:?}");
    assert!(ask(&mut c, "late", "once", "").unwrap().is_granted());
    assert!(!is_there(&mut c, &companion("queue")) && !is_there(&mut c, &companion("waiters")));
}

#[test]
fn a_release_behind_a_crowd_of_the_dead_frees_the_lock_for_who_asks_next() {
    let (server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    let (mut ear, ticket) = waits(&server, &mut c, "live", "10000");
    a_crowd_dies(&mut c);
    assert_eq!(released(&mut c, "holder"), "");
    assert_eq!(cmd("ZCARD").arg(companion("queue")).query::<usize>(&mut c).unwrap(), 501);
    assert_eq!(heard(&mut ear), ["t"], "it finds out by its heartbeat");
    assert!(comes_back(&mut c, "live", "10000", &ticket).is_granted());
    assert!(!is_there(&mut c, &companion("queue")) && !is_there(&mut c, &companion("waiters")));
}

/// Returns the subscription of the live waiter.
fn waits_behind_one_that_is_killed(server: &Server, connection: &mut Connection, token: &str) -> Connection {
    let (dead, _) = waits(server, connection, "killed", "10000");
    let (live, _) = waits(server, connection, token, "10000");
    gone(server, dead, "killed");
    live
}

/// Queues more dead waiters than one script drops.
fn a_crowd_dies(connection: &mut Connection) {
    let [queue, waiters] = ["queue", "waiters"].map(companion);
    for dead in 0..1500 {
        send(connection, &["ZADD", &queue, &(dead + 1).to_string(), &format!("dead{dead}")]);
        send(connection, &["HSET", &waiters, &format!("dead{dead}"), "1|1|10000|"]);
    }
}

#[test]
fn a_hand_over_costs_the_same_however_many_wait() {
    let (_server, mut c) = started();
    let mut work = Vec::new();
    for waiters in [3, 500] {
        send(&mut c, &["FLUSHALL"]);
        ask(&mut c, "holder", "once", "").unwrap();
        for waiter in 0..waiters {
            ask(&mut c, &format!("w{waiter}"), "queue", "").unwrap();
        }
        send(&mut c, &["CONFIG", "RESETSTAT"]);
        assert_eq!(released(&mut c, "holder"), "w0");
        let stats: String = cmd("INFO").arg("commandstats").query(&mut c).unwrap();
        let calls = |line: &str| line.split_once("calls=")?.1.split_once(',')?.0.parse::<u64>().ok();
        work.push(stats.lines().filter(|line| !line.contains("config")).filter_map(calls).sum::<u64>());
    }
    assert_eq!(work[0], work[1], "commands for a hand-over");
    assert!(work[0] > 10, "commands within scripts must be counted");
}

fn started() -> (Server, Connection) {
    let server = Server::start();
    let connection = server.connect();
    (server, connection)
}
