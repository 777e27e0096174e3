//! The scripts with an impaired server or waiter: one scene each, on a real server, with real subscribers.

use redis::{Connection, RedisResult, Value, cmd};

use crate::server::{KEYS, Server, acquire, heard, inspect, listen, nudge, prolong, release, renew, until, words};

fn wake(token: &str) -> String {
    format!("{}:wake:{token}", KEYS[0])
}

/// Sends the usual ACQUIRE: a ttl and lease of a minute, ten seconds' grace.
fn ask(connection: &mut Connection, token: &str, mode: &str, channel: &str) -> RedisResult<Vec<String>> {
    words(acquire(connection, [token, "60000", mode, "60000", "10000", channel, "0"])?)
}

/// Queues a subscribed waiter: alive until the connection is dropped, and frozen as long as it sends nothing.
fn waits(server: &Server, connection: &mut Connection, token: &str, grace: &str) -> (Connection, String) {
    let ear = listen(server, &wake(token));
    let answer = acquire(connection, [token, "60000", "queue", "60000", grace, &wake(token), "0"]);
    (ear, words(answer.unwrap()).unwrap()[5].clone())
}

fn gone(server: &Server, ear: Connection, token: &str) {
    drop(ear);
    let mut connection = server.connect();
    until("nobody listens", || {
        words(cmd("PUBSUB").arg("NUMSUB").arg(wake(token)).query(&mut connection).unwrap()).unwrap()[1] == "0"
    });
}

fn expires(connection: &mut Connection) {
    until("the lock expires", || !cmd("EXISTS").arg(KEYS[0]).query::<bool>(connection).unwrap());
}

fn send(connection: &mut Connection, line: &[&str]) {
    cmd(line[0]).arg(&line[1..]).query::<Value>(connection).unwrap();
}

fn text(answer: RedisResult<Value>) -> Vec<String> {
    words(answer.unwrap()).unwrap()
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
    assert_eq!(text(release(&mut c, "holder")), ["2", "live"]);
}

#[test]
fn a_killed_head_is_skipped_at_expiry() {
    let (server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    let _live = waits_behind_one_that_is_killed(&server, &mut c, "live");
    send(&mut c, &["PEXPIRE", KEYS[0], "1"]);
    expires(&mut c);
    assert_eq!(ask(&mut c, "live", "queue", &wake("live")).unwrap()[0], "1");
}

#[test]
fn a_frozen_head_costs_its_grace_at_expiry_and_keeps_its_place() {
    let (server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    let (_ear, ticket) = waits(&server, &mut c, "frozen", "30");
    let _live = waits(&server, &mut c, "live", "10000");
    send(&mut c, &["PEXPIRE", KEYS[0], "1"]);
    expires(&mut c);

    let answer = ask(&mut c, "live", "queue", &wake("live")).unwrap();
    assert_eq!((&answer[..2], &answer[3][..]), (&["0".into(), "frozen".into()][..], "1"));
    assert!(answer[2].parse::<i64>().unwrap() <= 30);
    assert_eq!(text(inspect(&mut c))[5..7], ["1", "live"]);
    expires(&mut c);
    assert_eq!(ask(&mut c, "live", "queue", &wake("live")).unwrap()[0], "1");

    let _late = waits(&server, &mut c, "late", "10000");
    let back = acquire(&mut c, ["frozen", "60000", "queue", "60000", "30", &wake("frozen"), &ticket]);
    assert_eq!(text(back)[3], "1");
    assert_eq!(text(release(&mut c, "live")), ["2", "frozen"]);
}

#[test]
fn the_next_in_line_is_told_when_a_dead_head_is_dropped() {
    let (server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    let mut next = waits_behind_one_that_is_killed(&server, &mut c, "next");
    assert_eq!(heard(&mut next), ["t"]);
    assert_eq!(ask(&mut c, "last", "queue", "").unwrap()[3], "2");
    assert_eq!(heard(&mut next), ["n"]);
}

#[test]
fn the_next_in_line_is_told_when_a_reservation_ends() {
    let (server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    let (mut first, _ticket) = waits(&server, &mut c, "first", "10000");
    let (mut next, _ticket) = waits(&server, &mut c, "next", "10000");
    assert_eq!((heard(&mut first), heard(&mut next)), (vec!["t".to_string()], vec!["t".to_string()]));
    assert_eq!(text(release(&mut c, "holder")), ["2", "first"]);
    assert_eq!(heard(&mut first), ["g"]);
    let [word] = &heard(&mut next)[..] else { panic!("one word") };
    let told: u64 = word.strip_prefix('e').expect("a time").parse().unwrap();
    let time: (u64, u64) = cmd("TIME").query(&mut c).unwrap();
    let left: u64 = cmd("PTTL").arg(KEYS[0]).query(&mut c).unwrap();
    let ends = time.0 * 1000 + time.1 / 1000 + left;
    assert!(told.abs_diff(ends) <= 1000, "{told}, {ends}");
}

#[test]
fn who_listens_to_all_channels_stands_in_for_no_waiter() {
    let (server, mut c) = started();
    let mut monitor = server.connect();
    cmd("PSUBSCRIBE").arg("*").query::<Value>(&mut monitor).unwrap();
    ask(&mut c, "holder", "once", "").unwrap();
    assert_eq!(ask(&mut c, "deaf", "queue", &wake("deaf")).unwrap()[6], "0", "nobody listens there");
    release(&mut c, "deaf").unwrap();
    let _live = waits_behind_one_that_is_killed(&server, &mut c, "live");
    assert_eq!(text(release(&mut c, "holder")), ["2", "live"]);
}

#[test]
fn an_expiry_that_moves_nearer_is_told_to_the_first_in_line() {
    let (server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    let mut next = waits_behind_one_that_is_killed(&server, &mut c, "next");
    assert_eq!(heard(&mut next), ["t"]);
    assert_eq!(text(renew(&mut c, "holder", "90000")), ["1", "0"]);
    assert_eq!(text(prolong(&mut c, "holder", "1000"))[0], "1");
    assert!(heard(&mut next).is_empty());
    assert_eq!(text(renew(&mut c, "holder", "30000")), ["1", "-1"]);
    nudge(&mut c).unwrap();
    assert_eq!(heard(&mut next), ["n"]);
    let rules = ["~lock:*", "~{lock:*", "+eval", "+get", "+time", "+pttl", "+pexpire"];
    send(&mut c, &[&["ACL", "SETUSER", "renewer", "on", ">pw"], &rules[..]].concat());
    send(&mut c, &["AUTH", "renewer", "pw"]);
    assert_eq!(text(renew(&mut c, "holder", "20000")), ["1", "-1"], "who may not tell renews all the same");
    assert!(nudge(&mut c).is_err());
}

#[test]
fn a_lock_is_given_back_whatever_lies_in_its_queue_s_place() {
    let (_server, mut c) = started();
    for (damaged, other) in [(KEYS[1], KEYS[2]), (KEYS[2], KEYS[1])] {
        ask(&mut c, "holder", "once", "").unwrap();
        send(&mut c, &["DEL", damaged, other]);
        send(&mut c, &["SET", damaged, "mine"]);
        assert_eq!(text(renew(&mut c, "holder", "1000")), ["1", "-1"]);
        assert_eq!(text(release(&mut c, "stranger"))[..2], ["0", "holder"]);
        assert_eq!(text(release(&mut c, "holder")), ["1"]);
        assert!(!cmd("EXISTS").arg(KEYS[0]).query::<bool>(&mut c).unwrap());
        assert_eq!(cmd("GET").arg(damaged).query::<String>(&mut c).unwrap(), "mine");
        send(&mut c, &["DEL", damaged]);
    }
}

#[test]
fn a_fence_of_another_type_is_replaced_and_blocks_no_release() {
    let (_server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    ask(&mut c, "polls", "queue", "").unwrap();
    send(&mut c, &["DEL", KEYS[3]]);
    send(&mut c, &["HSET", KEYS[3], "not", "a fence"]);
    assert_eq!(text(renew(&mut c, "polls", "60000"))[..2], ["0", "holder"]);
    assert_eq!(text(release(&mut c, "holder")), ["2", "polls"]);
    assert!(ask(&mut c, "polls", "queue", "").unwrap()[1].parse::<u64>().unwrap() > 0);
}

#[test]
fn order_survives_a_server_that_lost_everything() {
    let (server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    let waiters = ["a", "b", "c"].map(|token| (token, waits(&server, &mut c, token, "10000")));
    send(&mut c, &["FLUSHALL"]);
    ask(&mut c, "other", "once", "").unwrap();
    for (token, (_, ticket)) in waiters.iter().rev() {
        acquire(&mut c, [token, "60000", "queue", "60000", "10000", &wake(token), ticket]).unwrap();
    }
    let queue = text(inspect(&mut c))[6..].chunks(2).map(|w| w[0].clone()).collect::<Vec<_>>();
    assert_eq!(queue, ["a", "b", "c"]);
}

#[test]
fn a_full_server_refuses_newcomers_and_serves_those_in_line() {
    let (server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    let _first = waits(&server, &mut c, "first", "10000");
    let _second = waits(&server, &mut c, "second", "10000");
    send(&mut c, &["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(text(renew(&mut c, "holder", "60000")), ["1", "0"]);
    assert_eq!(ask(&mut c, "second", "queue", &wake("second")).unwrap()[3], "2");
    refused(&ask(&mut c, "third", "queue", ""), "OOM");
    assert_eq!(text(release(&mut c, "holder")), ["2", "first"]);
    assert_eq!(ask(&mut c, "first", "queue", &wake("first")).unwrap()[0], "1");
    send(&mut c, &["DEL", KEYS[0]]);
    assert_eq!(ask(&mut c, "third", "once", "").unwrap()[1], "second");
    assert_eq!(text(release(&mut c, "second")), ["1"]);
    refused(&ask(&mut c, "third", "once", ""), "OOM");
    refused(&ask(&mut c, "third", "plain", ""), "OOM");
    assert!(!cmd("EXISTS").arg(KEYS[0]).query::<bool>(&mut c).unwrap());
}

#[test]
fn one_who_may_not_publish_polls_and_hands_over_with_time_to_notice() {
    let (server, mut c) = started();
    send(&mut c, &["ACL", "SETUSER", "mute", "on", ">pw", "~*", "+@all", "resetchannels"]);
    let mut mute = server.connect();
    send(&mut mute, &["AUTH", "mute", "pw"]);
    ask(&mut mute, "holder", "once", "").unwrap();
    let _ear = listen(&server, &wake("deaf"));
    assert_eq!(ask(&mut mute, "deaf", "queue", &wake("deaf")).unwrap()[6], "0");
    release(&mut mute, "deaf").unwrap();

    let _live = waits_behind_one_that_is_killed(&server, &mut c, "live");
    assert_eq!(text(release(&mut mute, "holder")), ["2", "live"]);
    assert!(cmd("PTTL").arg(KEYS[0]).query::<i64>(&mut c).unwrap() > 10_000);
}

#[test]
fn a_reader_may_inspect() {
    let (_server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    ask(&mut c, "polls", "queue", "").unwrap();
    let rules = ["%R~lock:*", "%R~{lock:*", "+eval_ro", "+type", "+get", "+pttl", "+time", "+hget", "+zrange"];
    send(&mut c, &[&["ACL", "SETUSER", "reader", "on", ">pw"], &rules[..]].concat());
    send(&mut c, &["AUTH", "reader", "pw"]);
    let seen = text(inspect(&mut c));
    assert_eq!((&seen[1][..], &seen[6][..]), ("holder", "polls"));
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
    until("it has the lock", || cmd("EXISTS").arg(KEYS[0]).query::<bool>(&mut r).unwrap_or(false));
    let seen = text(inspect(&mut r));
    assert_eq!((&seen[1][..], &seen[6][..]), ("holder", "waiter"));
    for token in ["holder", "waiter", "stranger"] {
        refused(&renew(&mut r, token, "60000"), "READONLY");
        refused(&release(&mut r, token), "READONLY");
        for mode in ["queue", "once", "plain"] {
            refused(&ask(&mut r, token, mode, ""), "READONLY");
        }
    }
    send(&mut c, &["DEL", KEYS[0]]);
    until("it has lost the lock", || !cmd("EXISTS").arg(KEYS[0]).query::<bool>(&mut r).unwrap());
    for mode in ["queue", "once", "plain"] {
        refused(&ask(&mut r, "stranger", mode, ""), "READONLY");
    }
}

#[test]
fn a_key_of_another_type_is_named_and_still_lets_a_waiter_leave() {
    let (_server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    ask(&mut c, "polls", "queue", "").unwrap();
    send(&mut c, &["DEL", KEYS[0]]);
    send(&mut c, &["HSET", KEYS[0], "redisson", "1"]);
    assert_eq!(text(inspect(&mut c))[..2], ["hash", ""]);
    refused(&ask(&mut c, "polls", "queue", ""), "WRONGTYPE");
    refused(&release(&mut c, "polls"), "WRONGTYPE");
    assert!(!cmd("EXISTS").arg(KEYS[1]).arg(KEYS[2]).query::<bool>(&mut c).unwrap());
}

#[test]
fn a_crowd_of_the_dead_is_cleared_in_bounded_steps() {
    let (_server, mut c) = started();
    a_crowd_dies(&mut c);
    let answer = ask(&mut c, "late", "once", "").unwrap();
    assert_eq!(answer[..5], ["0", "", "-2", "0", "500"]);
    assert_eq!(ask(&mut c, "late", "once", "").unwrap()[0], "1");
    assert!(!cmd("EXISTS").arg(KEYS[1]).arg(KEYS[2]).query::<bool>(&mut c).unwrap());
}

#[test]
fn a_release_behind_a_crowd_of_the_dead_frees_the_lock_for_who_asks_next() {
    let (server, mut c) = started();
    ask(&mut c, "holder", "once", "").unwrap();
    let (mut ear, ticket) = waits(&server, &mut c, "live", "10000");
    a_crowd_dies(&mut c);
    assert_eq!(text(release(&mut c, "holder")), ["1"]);
    assert_eq!(cmd("ZCARD").arg(KEYS[1]).query::<usize>(&mut c).unwrap(), 501);
    assert_eq!(heard(&mut ear), ["t"], "it finds out by its heartbeat");
    let answer = acquire(&mut c, ["live", "60000", "queue", "60000", "10000", &wake("live"), &ticket]);
    assert_eq!(text(answer)[0], "1");
    assert!(!cmd("EXISTS").arg(KEYS[1]).arg(KEYS[2]).query::<bool>(&mut c).unwrap());
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
    for dead in 0..1500 {
        send(connection, &["ZADD", KEYS[1], &(dead + 1).to_string(), &format!("dead{dead}")]);
        send(connection, &["HSET", KEYS[2], &format!("dead{dead}"), "1|1|10000|"]);
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
        assert_eq!(text(release(&mut c, "holder")), ["2", "w0"]);
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
