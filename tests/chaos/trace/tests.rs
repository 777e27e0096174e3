//! A script with a fault that lets nobody overlap: the trace finds it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use redis::{Connection, RedisResult, Value, cmd};

use super::monitor::{Command, Snapshot, has_told};
use super::replay::{ARRIVES, LEAVES, Replay};
use super::{Trace, follow};
use crate::observer::connected;
use crate::script::{self, LUA};
use crate::support::{Cluster, Redis, eventually, lasts};

/// The script about one key of a lock that is moving.
const MOVING: &str = include_str!("../../../src/store/redis/moving.lua");

struct Scene<'a> {
    redis: &'a Redis,
    connection: Connection,
    key: &'static str,
    /// The digest of the script.
    script: String,
}

impl<'a> Scene<'a> {
    fn at(redis: &'a Redis, lua: &str) -> Scene<'a> {
        let connection = connected(&redis.socket()).unwrap();
        let mut scene = Scene { redis, connection, key: "lock:job", script: String::new() };
        scene.loads(lua);
        scene
    }

    fn loads(&mut self, lua: &str) {
        self.script = cmd("SCRIPT").arg("LOAD").arg(lua).query(&mut self.connection).unwrap();
    }

    fn asks(&mut self, operation: &str, fields: &[(&str, &str)]) -> RedisResult<Value> {
        let of = |field: &str| fields.iter().find(|(name, _)| *name == field).map_or("", |(_, it)| *it);
        let keys = script::keys(self.key, of("token"), !of("who").is_empty());
        let mut call = cmd("EVALSHA");
        call.arg(&self.script).arg(keys.len()).arg(keys).arg(operation);
        fields.iter().for_each(|(field, it)| _ = call.arg(*field).arg(*it));
        call.query(&mut self.connection)
    }

    fn calls(&mut self, operation: &str, fields: &[(&str, &str)]) {
        self.asks(operation, fields).unwrap();
    }

    fn acquires(&mut self, who: u16, terms: &str, more: &[(&str, &str)]) {
        let token = token(who, terms);
        let usual =
            [("token", token.as_str()), ("ttl", "60000"), ("mode", "queue"), ("lease", "6000"), ("grace", "1000")];
        self.calls("acquire", &[&usual[..], more].concat());
    }

    /// Asks for the lock, and the server refuses to write.
    fn is_refused(&mut self, who: u16) {
        let token = token(who, "");
        let fields = [("token", token.as_str()), ("ttl", "1000"), ("mode", "once"), ("lease", "0"), ("grace", "1000")];
        self.asks("acquire", &fields).unwrap_err();
    }

    /// Listens to a channel, until it is dropped.
    fn listener(&self, channel: &str) -> Connection {
        let mut waiter = connected(&self.redis.socket()).unwrap();
        waiter.send_packed_command(&cmd("SUBSCRIBE").arg(channel).get_packed_command()).unwrap();
        waiter.recv_response().unwrap();
        waiter
    }

    fn releases(&mut self, who: u16, terms: &str, more: &[(&str, &str)]) {
        let token = token(who, terms);
        self.calls("release", &[&[("token", token.as_str())], more].concat());
    }
}

fn token(who: u16, terms: &str) -> String {
    format!("nx1:{who:08}aaaaaaaaaaaaaaaaaa:u@h:1:1:c{who}{terms}")
}

/// Returns what is seen of a scene, executed by the script with a fault.
fn seen(fault: Option<(&str, &str)>, scene: impl FnOnce(&mut Scene<'_>)) -> Trace {
    seen_at(&Redis::start(), fault, scene)
}

fn seen_at(redis: &Redis, fault: Option<(&str, &str)>, scene: impl FnOnce(&mut Scene<'_>)) -> Trace {
    let lua = fault.map_or(LUA.to_owned(), |(from, to)| {
        assert_eq!(LUA.matches(from).count(), 1, "lock.lua says once: {from}");
        LUA.replace(from, to)
    });
    // What holds and waits in a scene stays.
    redis.leave_as_it_is();
    seen_during(redis, &[], || scene(&mut Scene::at(redis, &lua)))
}

/// Returns what is seen of a server that may be a replica of these masters, while a scene lasts.
fn seen_during(redis: &Redis, masters: &[u16], scene: impl FnOnce()) -> Trace {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let ends = EndsTheTraces(&over);
        let trace = scope.spawn(|| follow(&redis.socket(), masters, || over.load(Ordering::Relaxed)));
        is_followed(redis);
        scene();
        drop(ends);
        trace.join().unwrap()
    })
}

/// Dropped, also by a panic, it ends the traces, which would otherwise be waited for.
struct EndsTheTraces<'a>(&'a AtomicBool);

impl Drop for EndsTheTraces<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until a server is followed: it tells what it executes, and was asked for its keys after that.
fn is_followed(redis: &Redis) {
    eventually("it is followed", || {
        let clients: String = redis.ask(&["CLIENT", "LIST"]);
        let newest = |verb: &str| {
            let theirs = clients.lines().filter(|client| client.split(' ').any(|field| field == verb));
            theirs.filter_map(|client| client.strip_prefix("id=")?.split(' ').next()?.parse::<u64>().ok()).max()
        };
        newest("cmd=monitor").is_some_and(|tells| newest("cmd=eval").is_some_and(|asks| asks > tells))
    });
}

/// Asserts that a scene is seen as steps of the rules, and with a fault is not.
#[track_caller]
fn is_found(fault: (&str, &str), scene: impl Fn(&mut Scene<'_>)) {
    let trace = seen(None, &scene);
    assert!(trace.faults.is_empty() && trace.steps > 1 && trace.unjudged == 0, "{:?}", trace.faults);
    let trace = seen(Some(fault), &scene);
    assert!(!trace.faults.is_empty(), "{} steps, and nothing is found", trace.steps);
}

#[test]
fn a_fence_that_is_given_twice_is_found() {
    is_found(("digits(math.max(last_fence() + 1, us))", "digits(last_fence() > 0 and last_fence() or us)"), |scene| {
        for who in [1, 2] {
            scene.acquires(who, "", &[]);
            scene.releases(who, "", &[]);
        }
    });
}

#[test]
fn a_place_that_is_not_behind_the_others_is_found() {
    is_found(("last and tonumber(last) + ahead + 1 or 0", "0"), |scene| {
        scene.acquires(1, "", &[]);
        // As if the clock had been set back since the second came.
        let (seconds, _): (u64, u64) = cmd("TIME").query(&mut scene.connection).unwrap();
        scene.acquires(2, "", &[("ticket", &format!("{}000000", seconds + 3600))]);
        scene.acquires(3, "", &[]);
    });
}

#[test]
fn a_slot_that_is_not_freed_is_found() {
    is_found((".. '0' .. string.sub(lock.map, slot + 2)", ".. '2' .. string.sub(lock.map, slot + 2)"), |scene| {
        scene.acquires(1, ":3", &[]);
        scene.acquires(2, ":3", &[]);
        scene.releases(1, ":3", &[]);
        scene.acquires(3, ":3", &[]);
    });
}

#[test]
fn a_limit_that_is_forgotten_to_be_counted_anew_is_found() {
    is_found(("if many == 1 then set_least() end", ""), |scene| {
        scene.acquires(1, ":2", &[]);
        scene.acquires(2, ":4", &[]);
        scene.acquires(3, ":4", &[]);
        scene.acquires(4, ":4", &[]);
        scene.releases(1, ":2", &[]);
    });
}

#[test]
fn a_reservation_that_lasts_too_long_is_found() {
    is_found(("hears and w.grace or", "hears and 3 * w.grace or"), |scene| {
        scene.acquires(1, "", &[]);
        scene.acquires(2, "", &[]);
        scene.releases(1, "", &[]);
    });
}

#[test]
fn a_waiter_that_comes_back_after_its_dismissal_is_found() {
    is_found(("local by = N and noted", "local by = nil"), |scene| {
        scene.acquires(1, "", &[]);
        scene.acquires(2, ":newest", &[]);
        scene.acquires(3, ":newest", &[]);
        scene.acquires(2, ":newest", &[]);
    });
}

#[test]
fn a_run_that_is_recorded_twice_is_found() {
    let run = |who: &'static str| [("who", who), ("kept", "60000"), ("most", "5"), ("how", "done|0|")];
    is_found(("whose == arg.who or (own and was ~= 'vanished') or was_listed then", "false then"), |scene| {
        let who = token(1, "");
        let who: &'static str = Box::leak(who.into_boxed_str());
        scene.acquires(1, "", &run(who)[..3]);
        scene.releases(1, "", &run(who));
        scene.releases(1, "", &run(who));
    });
}

#[test]
fn a_waiter_that_is_passed_by_one_that_does_not_queue_is_found() {
    is_found(("fits(n) and (arg.mode == 'plain' or is_next())", "fits(n)"), |scene| {
        scene.acquires(1, ":2", &[]);
        scene.acquires(2, "", &[]);
        scene.acquires(3, ":2", &[("mode", "once")]);
    });
}

#[test]
fn a_key_that_never_expires_is_found() {
    is_found(("    lengthen(W, 4 * lease)\n", ""), |scene| {
        scene.acquires(1, "", &[]);
        scene.acquires(2, "", &[]);
    });
}

#[test]
fn a_release_that_does_not_reach_the_key_is_found() {
    is_found(("if lock.value then redis.call('DEL', K) end", ""), |scene| {
        scene.acquires(1, "", &[]);
        scene.releases(1, "", &[]);
    });
}

#[test]
fn a_request_that_writes_nothing_is_found() {
    is_found(("if arg.mode ~= 'queue' then redis.call('ZREM', Q, '') end", ""), |scene| {
        scene.acquires(1, "", &[]);
        scene.acquires(2, "", &[("mode", "once")]);
    });
}

#[test]
fn a_fence_that_is_lowered_is_found() {
    is_found(("if last_fence() < tonumber(arg.fence) then", "if true then"), |scene| {
        scene.acquires(1, "", &[]);
        for fence in ["9007199254740990", "9007199254740989"] {
            scene.calls("raise", &[("token", &token(1, "")), ("fence", fence), ("ttl", "60000")]);
        }
    });
}

#[test]
fn a_fence_that_is_raised_without_the_vote_is_found() {
    is_found(("if redis.call('GET', K) ~= token then return { 'verdict', 'not_yours' } end", ""), |scene| {
        scene.acquires(1, "", &[]);
        scene.calls("raise", &[("token", &token(2, "")), ("fence", "9007199254740990"), ("ttl", "60000")]);
    });
}

#[test]
fn what_is_wrong_about_one_key_of_a_lock_that_is_moving_is_found() {
    let scene = |moving: &str| {
        seen(None, |scene| {
            scene.loads(moving);
            let mut calls = |operation: &str, key: &str, who: u16, more: &[&str]| {
                let mut call = cmd("EVALSHA");
                call.arg(&scene.script).arg(1).arg(key).arg(&[operation, "token", &token(who, ""), "ttl", "60000"]);
                call.arg(more).query::<Value>(&mut scene.connection).unwrap();
            };
            calls("acquire", "lock:job", 1, &[]);
            calls("fence", "{lock:job}:fence", 1, &[]);
            calls("acquire", "lock:job", 1, &[]);
            calls("acquire", "lock:job", 2, &[]);
            calls("renew", "lock:job", 2, &["how", "set"]);
            calls("renew", "lock:job", 1, &["how", "set"]);
            calls("renew", "lock:job", 1, &["how", "prolong"]);
            calls("release", "lock:job", 2, &[]);
            calls("release", "lock:job", 1, &[]);
            calls("acquire", "lock:job", 2, &[]);
            calls("fence", "{lock:job}:fence", 2, &[]);
        })
    };
    let trace = scene(MOVING);
    assert!(trace.faults.is_empty(), "{:?}", trace.faults);
    assert_eq!((trace.steps, trace.unjudged), (11, 0));
    for (right, wrong) in [
        ("'acquire' and not value then", "'acquire' then"),
        ("if value == token then", "if value then"),
        ("math.max((n and n < 2 ^ 53 - 1 and n or 0) + 1, us)", "n or us"),
        ("redis.call('DEL', K)", "redis.call('PEXPIRE', K, '1000')"),
    ] {
        assert_eq!(MOVING.matches(right).count(), 1, "{right}");
        assert!(!scene(&MOVING.replace(right, wrong)).faults.is_empty(), "{wrong}");
    }
}

#[test]
fn a_grant_that_was_told_and_could_not_be_written_is_none() {
    let trace = seen(None, |scene| {
        scene.acquires(1, "", &[("ttl", "3000")]);
        let _waiter = scene.listener("lock:job:wake:2");
        scene.acquires(2, "", &[("channel", "lock:job:wake:2")]);
        let mut ask = |words: &[&str]| cmd(words[0]).arg(&words[1..]).query::<Value>(&mut scene.connection);
        eventually("the lease is over", || ask(&["EXISTS", "lock:job"]) == Ok(Value::Int(0)));
        scene.redis.becomes_read_only();
        scene.is_refused(3);
        scene.redis.is_writable_again();
    });
    assert!(trace.faults.is_empty(), "{:?}", trace.faults);
    assert_eq!((trace.grants.len(), trace.unjudged), (1, 1));
}

#[test]
fn a_server_that_was_full_before_it_was_followed_may_refuse_until_it_has_memory_again() {
    let redis = Redis::start();
    redis.leave_as_it_is();
    redis.runs_out_of_memory();
    let mut scene = Scene::at(&redis, LUA);
    let trace = seen_during(&redis, &[], || {
        scene.is_refused(1);
        redis.has_memory_again();
        scene.acquires(2, "", &[]);
    });
    assert!(trace.faults.is_empty(), "{:?}", trace.faults);
    assert_eq!((trace.grants.len(), trace.unjudged), (1, 1));
}

#[test]
fn a_request_about_a_lock_that_is_moving_may_be_aborted_and_the_next_ones_are_judged() {
    let mut cluster = Cluster::of_masters();
    cluster.inspected = false;
    let from = cluster.at("lock:job");
    let nodes = [&cluster.nodes[from], &cluster.nodes[(from + 1) % 3]];
    let all_hear = |word: &str| nodes.iter().for_each(|node| node.ask(&["PING", &format!("{word}lock:job")]));
    let over = AtomicBool::new(false);
    // A follower asks whether it is time to stop only when it has seen everything that it was told.
    let pauses = [0, 1].map(AtomicUsize::new);
    let all_is_seen = || {
        eventually("all is told", || nodes.iter().all(|node| has_told(&node.socket())));
        let before = pauses.each_ref().map(|pauses| pauses.load(Ordering::Relaxed));
        eventually("all is seen", || (0..2).all(|at| pauses[at].load(Ordering::Relaxed) > before[at] + 1));
    };
    let [old, new] = thread::scope(|scope| {
        let ends = EndsTheTraces(&over);
        let followed = [0, 1].map(|at| {
            let (over, pauses, socket) = (&over, &pauses[at], nodes[at].socket());
            let enough = move || pauses.fetch_add(1, Ordering::Relaxed) > 0 && over.load(Ordering::Relaxed);
            scope.spawn(move || follow(&socket, &[], enough))
        });
        all_is_seen();
        let mut scene = Scene::at(nodes[0], LUA);
        scene.acquires(1, ":2", &[]);
        scene.acquires(2, "", &[]);
        all_hear(LEAVES);
        let slot = cluster.begins_to_move("lock:job");
        // All keys are there until the last share has ended.
        let (keys, token) = (script::keys("lock:job", "", false), token(1, ":2"));
        let mut release = cmd("EVALSHA");
        release.arg(&scene.script).arg(keys.len()).arg(keys).arg(&["release", "token", &token]);
        let aborted = release.query::<Value>(&mut scene.connection).unwrap_err();
        assert!(aborted.to_string().contains("non local key"), "{aborted}");
        slot.ends();
        all_hear(ARRIVES);
        all_is_seen();
        let mut scene = Scene::at(nodes[1], LUA);
        scene.acquires(2, "", &[]);
        scene.releases(2, "", &[]);
        drop(ends);
        followed.map(|trace| trace.join().unwrap())
    });
    assert!(old.faults.is_empty() && new.faults.is_empty(), "{:?} {:?}", old.faults, new.faults);
    assert_eq!((old.steps, old.unjudged), (2, 1));
    assert_eq!((new.steps, new.unjudged), (2, 0));
}

/// Returns what is seen of a server: first as a replica, which then becomes the master; or the other way round.
fn seen_of_two(is_replica_first: bool) -> Trace {
    let [master, other] = [0, 1].map(|_| Redis::on_tcp(&["--repl-diskless-sync-delay", "0"]));
    master.leave_as_it_is();
    other.leave_as_it_is();
    let port = master.port().to_string();
    let is_fed = || {
        other.ask::<()>(&["REPLICAOF", "127.0.0.1", &port]);
        eventually("it is in step", || other.is_in_step());
        let mut master = Scene::at(&master, LUA);
        master.acquires(1, "", &[]);
        // The replica may hear of its reservation only when it has told the master how far it is: once a second.
        master.acquires(2, "", &[("grace", "60000")]);
        master.releases(1, "", &[]);
        eventually("the replica has it", || other.value("lock:job").is_some_and(|value| value.contains(":c2")));
    };
    let serves = || {
        let mut scene = Scene::at(&other, LUA);
        scene.acquires(3, "", &[]);
        scene.acquires(4, "", &[]);
        scene.releases(3, "", &[]);
    };
    seen_during(&other, &[master.port()], || {
        if is_replica_first {
            is_fed();
            other.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
            // As a sentinel does.
            other.ask::<i64>(&["CLIENT", "KILL", "TYPE", "normal"]);
            is_followed(&other);
            serves();
        } else {
            serves();
            is_fed();
        }
    })
}

#[test]
fn a_server_is_judged_while_it_is_a_master_and_not_while_it_is_a_replica() {
    for is_replica_first in [true, false] {
        let trace = seen_of_two(is_replica_first);
        assert!(trace.faults.is_empty(), "{:?}", trace.faults);
        assert_eq!((trace.steps, trace.unjudged), (3, 0), "{is_replica_first}");
    }
}

#[test]
fn a_lock_that_ended_by_the_time_before_its_clock_was_set_back_raises_no_alarm() {
    let redis = Redis::with_clock(0, &[]);
    let trace = seen_at(&redis, None, |scene| {
        scene.acquires(1, "", &[("ttl", "300")]);
        eventually("the lease is over", || cmd("EXISTS").arg("lock:job").query::<i64>(&mut scene.connection) == Ok(0));
        scene.redis.clock().is_set_back(Duration::from_millis(250));
        scene.acquires(2, "", &[("mode", "plain")]);
        scene.releases(2, "", &[]);
    });
    assert!(trace.faults.is_empty(), "{:?}", trace.faults);
}

#[test]
fn a_reservation_that_is_claimed_unseen_after_the_clock_was_set_forward_raises_no_alarm_about_its_fence() {
    let redis = Redis::with_clock(0, &[]);
    let mut fence = 0;
    let trace = seen_at(&redis, None, |scene| {
        scene.acquires(1, "", &[]);
        let _waiter = scene.listener("two");
        let waits: &[(&str, &str)] = &[("grace", "60000"), ("channel", "two")];
        scene.acquires(2, "", waits);
        scene.releases(1, "", &[]);
        fence = cmd("GET").arg("{lock:job}:fence").query(&mut scene.connection).unwrap();
        // The trace does not see the claim, and the fence is far older than what the trace does not see.
        scene.redis.clock().is_set_forward(Duration::from_secs(9));
        scene.releases(3, "", &[]);
        scene.redis.clock().is_set_back(Duration::from_secs(4));
        scene.acquires(2, "", waits);
    });
    assert!(trace.faults.is_empty(), "{:?}", trace.faults);
    assert!(trace.fences.contains(&fence), "{fence}: {:?}", trace.fences);
}

#[test]
fn a_clock_that_was_set_back_while_nothing_was_seen_leaves_a_gap_from_its_earliest_time() {
    let mut replay = Replay::of(false);
    replay.begins(Snapshot::default(), 9_000_000);
    replay.is_cut_off();
    shows(&mut replay, 2000, false, "PING");
    replay.begins(Snapshot::default(), 5_000_000);
    assert_eq!(replay.into_trace().gaps, [(0, 9_000_000), (2_000_000, 9_000_000)]);
}

#[test]
fn a_clock_that_is_set_forward_in_the_middle_of_a_request_raises_no_alarm() {
    let long = ("local us = tonumber(time[1])", "for _ = 1, 30000000 do end local us = tonumber(time[1])");
    let redis = Redis::with_clock(0, &[]);
    let trace = seen_at(&redis, Some(long), |scene| {
        scene.acquires(1, "", &[]);
        thread::scope(|scope| {
            let redis = scene.redis;
            scope.spawn(|| {
                lasts(Duration::from_millis(50));
                redis.clock().is_set_forward(Duration::from_secs(5));
            });
            scene.calls("renew", &[("token", &token(1, "")), ("ttl", "2000"), ("how", "set")]);
        });
        let mut sets = |key: &str| {
            let mut plain = cmd("SET");
            plain.arg(&[key, "plain:c2", "NX", "PX", "60000"]).query::<Value>(&mut scene.connection).unwrap();
        };
        // Other locks have their own times.
        let mut other = Scene { key: "lock:other", ..Scene::at(scene.redis, LUA) };
        other.acquires(3, "", &[]);
        sets("lock:another");
        // The server counts the lease from the later time, and refuses this.
        sets("lock:job");
        scene.releases(1, "", &[]);
    });
    assert!(trace.faults.is_empty(), "{:?}", trace.faults);
}

#[test]
fn a_grant_that_was_held_up_raises_no_alarm_about_what_is_told_later() {
    let long = ("local us = tonumber(time[1])", "for _ = 1, 10000000 do end local us = tonumber(time[1])");
    let trace = seen(Some(long), |scene| {
        scene.acquires(1, "", &[]);
        scene.loads(LUA);
        let _waiters = [2, 3].map(|who| {
            let channel = format!("lock:job:wake:{who}");
            let waiter = scene.listener(&channel);
            scene.acquires(who, "", &[("channel", &channel)]);
            waiter
        });
        // The server tells the third when the lease ends. It counts that from another moment of the grant than the trace.
        scene.releases(2, "", &[]);
        scene.releases(1, "", &[]);
    });
    assert!(trace.faults.is_empty(), "{:?}", trace.faults);
    assert_eq!(trace.steps, 5);
}

#[test]
fn a_release_that_was_held_up_raises_no_alarm_about_what_it_told() {
    let long = ("local function wake()", "local function wake() for _ = 1, 10000000 do end");
    let trace = seen(Some(long), |scene| {
        scene.acquires(1, "", &[]);
        let channel = "lock:job:wake:3";
        let _waiter = scene.listener(channel);
        scene.acquires(2, "", &[]);
        scene.acquires(3, "", &[("channel", channel)]);
        scene.releases(2, "", &[]);
    });
    assert!(trace.faults.is_empty(), "{:?}", trace.faults);
    assert_eq!(trace.steps, 4);
}

#[test]
fn a_renewal_that_ends_the_lease_about_when_it_would_have_ended_tells_the_waiter_or_not() {
    let trace = seen(None, |scene| {
        scene.acquires(1, "", &[]);
        let channel = "lock:job:wake:2";
        let _waiter = scene.listener(channel);
        scene.acquires(2, "", &[("channel", channel)]);
        for n in 0..400 {
            let left: i64 = cmd("PTTL").arg("lock:job").query(&mut scene.connection).unwrap();
            let ttl = (left + n % 3 - 1).to_string();
            scene.calls("renew", &[("token", &token(1, "")), ("ttl", &ttl), ("how", "set")]);
        }
    });
    assert!(trace.faults.is_empty(), "{:?}", trace.faults);
    assert_eq!(trace.steps, 402);
}

#[test]
fn a_lease_that_ends_in_the_middle_of_a_request_has_not_ended_for_it() {
    let trace = seen(None, |scene| {
        scene.acquires(1, "", &[("ttl", "300")]);
        let time = "local time = redis.call('TIME')";
        scene.loads(&LUA.replace(time, &format!("for _ = 1, 30000000 do end {time}")));
        let mut left = || cmd("PTTL").arg("lock:job").query::<i64>(&mut scene.connection).unwrap();
        eventually("the lease ends soon", || left() < 30);
        // Keys expire by the time at which a script begins.
        scene.acquires(3, "", &[("mode", "plain")]);
    });
    assert!(trace.faults.is_empty(), "{:?}", trace.faults);
    assert_eq!(trace.steps, 2);
}

#[test]
fn a_lease_that_may_have_ended_has_not_until_something_shows_it() {
    let trace = seen(None, |scene| {
        scene.acquires(1, "", &[("ttl", "300")]);
        // Each may find the lock or not, up to the moment at which it is gone.
        let mut left = || cmd("PTTL").arg("lock:job").query::<i64>(&mut scene.connection).unwrap();
        eventually("the lease ends soon", || left() < 20);
        for n in 0..400 {
            scene.releases(2, "", &[]);
            if n % 4 == 0 {
                scene.acquires(3, "", &[("mode", "plain")]);
            }
        }
    });
    assert!(trace.faults.is_empty(), "{:?}", trace.faults);
}

#[test]
fn a_claim_is_not_taken_for_an_earlier_one_that_has_ended() {
    let trace = seen(None, |scene| {
        scene.acquires(1, "", &[]);
        scene.acquires(2, ":newest", &[("ttl", "500")]);
        let ticket = cmd("ZSCORE").arg("{lock:job}:queue").arg(token(2, ":newest")).query(&mut scene.connection);
        let ticket: String = ticket.unwrap();
        let mut now = || cmd("TIME").query::<(u64, u64)>(&mut scene.connection).unwrap();
        let over = ticket.parse::<u64>().unwrap() + 600_000;
        eventually("a lease of the second, counted from its ticket, would be over", || {
            let (seconds, us) = now();
            seconds * 1_000_000 + us > over
        });
        scene.releases(1, "", &[]);
        scene.acquires(4, ":newest", &[]);
        // Of all times it writes its ticket alone, as that of one that was dismissed: its claim came later.
        scene.acquires(2, ":newest", &[("ttl", "500"), ("ticket", &ticket)]);
        scene.acquires(3, "", &[("mode", "plain")]);
    });
    assert!(trace.faults.is_empty(), "{:?}", trace.faults);
    assert_eq!(trace.steps, 6);
}

/// Shows a replay, at so many ms, that a server executed this.
fn shows(replay: &mut Replay, ms: u64, is_in_script: bool, words: &str) {
    let words = words.split(' ').map(str::to_owned).collect();
    replay.sees(&Command { at: ms * 1000, is_in_script, port: None, words });
}

/// Shows a replay that a server called the script with a request about the lock.
fn shows_a_call(replay: &mut Replay, ms: u64, request: &str) {
    let keys = "lock:job {lock:job}:fence {lock:job}:shares {lock:job}:terms {lock:job}:queue {lock:job}:waiters";
    shows(replay, ms, false, &format!("EVALSHA 0 6 {keys} {request}"));
}

/// Shows a replay that the script began to carry out a request about the lock.
fn shows_a_request(replay: &mut Replay, ms: u64, request: &str) {
    shows_a_call(replay, ms, request);
    shows(replay, ms, true, "TIME");
}

/// Shows a replay that the lock was granted, and set so many ms later.
fn shows_a_grant(replay: &mut Replay, ms: u64, later: u64) {
    let token = token(1, "");
    shows_a_request(replay, ms, &format!("acquire token {token} ttl 1000 mode once"));
    shows(replay, ms, true, &format!("SET {{lock:job}}:fence {ms}000 PX 86400000"));
    shows(replay, ms + later, true, &format!("SET lock:job {token} PX 1000"));
    replay.ends();
}

/// Shows a replay that the first of three slots was granted for so many ms.
fn shows_a_first_share(replay: &mut Replay, ms: u64, token: &str, ttl: u64) {
    shows_a_request(replay, ms, &format!("acquire token {token} ttl {ttl} mode once"));
    for words in [
        &format!("SET {{lock:job}}:fence {ms}000 PX 86400000"),
        &format!("SET lock:job nx1:shared:{ms}000 PX {ttl}"),
        "DEL {lock:job}:shares {lock:job}:terms",
        &format!("ZADD {{lock:job}}:shares {} {token}", ms + ttl),
        &format!("HSET {{lock:job}}:terms {token} 0|{ms}000|{ms}000|"),
        "HSET {lock:job}:terms all 1|3:1",
        &format!("PEXPIRE {{lock:job}}:shares {}", ttl + 10_000),
        &format!("PEXPIRE {{lock:job}}:terms {}", ttl + 10_000),
    ] {
        shows(replay, ms, true, words);
    }
}

#[test]
fn what_another_program_wrote_may_be_older_than_the_server_told_of_it() {
    let mut replay = Replay::of(false);
    replay.begins(Snapshot::default(), 0);
    shows(&mut replay, 1_000_000, false, "PING");
    // Executed 8 ms before.
    shows(&mut replay, 1_000_010, false, "SET lock:job other PX 100");
    shows_a_grant(&mut replay, 1_000_103, 0);
    let trace = replay.into_trace();
    assert!(trace.faults.is_empty(), "{:?}", trace.faults);
    assert_eq!(trace.grants.len(), 1);
}

#[test]
fn a_clock_that_is_set_far_forward_before_the_server_tells_of_having_read_it_raises_no_alarm() {
    let mut replay = Replay::of(false);
    replay.begins(Snapshot::default(), 0);
    let token = token(1, "");
    shows_a_call(&mut replay, 1_000_000, &format!("acquire token {token} ttl 1000 mode once"));
    shows(&mut replay, 1_004_000, true, "TIME");
    shows(&mut replay, 1_004_000, true, "SET {lock:job}:fence 1000000070 PX 86400000");
    shows(&mut replay, 1_004_000, true, &format!("SET lock:job {token} PX 1000"));
    replay.ends();
    let trace = replay.into_trace();
    assert!(trace.faults.is_empty(), "{:?}", trace.faults);
    assert_eq!(trace.grants.len(), 1);
}

#[test]
fn a_fence_that_is_raised_changes_nothing_about_when_the_lock_ends() {
    let mut replay = Replay::of(false);
    replay.begins(Snapshot::default(), 0);
    shows_a_grant(&mut replay, 1_000_000, 12);
    shows_a_request(&mut replay, 1_000_040, &format!("raise token {} fence 1000030000 ttl 1000", token(1, "")));
    shows(&mut replay, 1_000_040, true, "SET {lock:job}:fence 1000030000 PX 86400000");
    // The lock was set 12 ms after the call began, and is held as much longer.
    shows_a_request(&mut replay, 1_001_011, &format!("acquire token {} ttl 1000 mode plain", token(2, "")));
    shows(&mut replay, 1_001_011, true, "ZREM {lock:job}:queue ");
    replay.ends();
    let trace = replay.into_trace();
    assert!(trace.faults.is_empty(), "{:?}", trace.faults);
    assert_eq!(trace.steps, 3);
}

#[test]
fn a_lease_that_a_held_up_grant_set_later_raises_no_alarm_when_it_is_cut_short() {
    let mut replay = Replay::of(false);
    replay.begins(Snapshot::default(), 0);
    // The server counts the lease from the moment at which it goes on, and not from that at which it read the clock.
    shows_a_grant(&mut replay, 1_000_000, 1_480);
    let waiter = token(2, "");
    shows_a_request(
        &mut replay,
        1_001_500,
        &format!("acquire token {waiter} ttl 1000 mode queue lease 6000 grace 1000 channel w"),
    );
    for words in [
        "PUBLISH w t",
        &format!("ZADD {{lock:job}}:queue 1001500000 {waiter}"),
        "DEL {lock:job}:waiters",
        &format!("HSET {{lock:job}}:waiters {waiter} 1|1007500|1000|w"),
        "PEXPIRE {lock:job}:queue 24000",
        "PEXPIRE {lock:job}:waiters 24000",
    ] {
        shows(&mut replay, 1_001_500, true, words);
    }
    shows_a_request(&mut replay, 1_001_550, &format!("renew token {} ttl 100 how set", token(1, "")));
    for words in ["PEXPIRE {lock:job}:fence 86400000", "PEXPIRE lock:job 100", "PUBLISH w e1001650"] {
        shows(&mut replay, 1_001_550, true, words);
    }
    replay.ends();
    let trace = replay.into_trace();
    assert!(trace.faults.is_empty(), "{:?}", trace.faults);
    assert_eq!(trace.steps, 3);
}

#[test]
fn a_server_that_is_stopped_once_it_has_read_the_clock_raises_no_alarm_about_who_has_not_ended_by_then() {
    let mut replay = Replay::of(false);
    replay.begins(Snapshot::default(), 0);
    let (first, second) = (token(1, ":3"), token(2, ":3"));
    shows_a_first_share(&mut replay, 1_000_000, &first, 300);
    shows_a_request(&mut replay, 1_000_040, &format!("acquire token {second} ttl 5000 mode once"));
    for words in [
        "SET {lock:job}:fence 1000040000 PX 86400000",
        &format!("ZADD {{lock:job}}:shares 1005040 {second}"),
        &format!("HSET {{lock:job}}:terms {second} 1|1000040000|1000040000|"),
        "HSET {lock:job}:terms all 11|3:2",
        "PEXPIRE lock:job 5000",
        "PEXPIRE {lock:job}:shares 15000",
        "PEXPIRE {lock:job}:terms 15000",
    ] {
        shows(&mut replay, 1_000_040, true, words);
    }
    // The server has read the clock at once, and tells of it when it goes on.
    shows_a_call(&mut replay, 1_000_060, &format!("acquire token {} ttl 500 mode once", token(3, "")));
    shows(&mut replay, 1_000_455, true, "TIME");
    shows(&mut replay, 1_000_455, true, "ZREM {lock:job}:queue ");
    replay.ends();
    let trace = replay.into_trace();
    assert!(trace.faults.is_empty(), "{:?}", trace.faults);
    assert_eq!(trace.steps, 3);
}

#[test]
fn a_renewal_found_the_lease_that_it_lengthened() {
    let mut replay = Replay::of(false);
    replay.begins(Snapshot::default(), 0);
    let (first, second) = (token(1, ":3"), token(2, ""));
    shows_a_first_share(&mut replay, 1_000_000, &first, 100);
    // It read the clock at once, and is held up before it tells of that, and again until the lease would have ended.
    shows_a_call(&mut replay, 1_000_096, &format!("renew token {first} ttl 100 how set"));
    shows(&mut replay, 1_000_098, true, "TIME");
    shows(&mut replay, 1_000_098, true, "PEXPIRE {lock:job}:fence 86400000");
    shows(&mut replay, 1_000_101, true, &format!("ZADD {{lock:job}}:shares 1000196 {first}"));
    shows(&mut replay, 1_000_101, true, "PEXPIRE lock:job 100");
    shows_a_request(&mut replay, 1_000_102, &format!("acquire token {second} ttl 500 mode once"));
    shows(&mut replay, 1_000_102, true, "ZREM {lock:job}:queue ");
    replay.ends();
    let trace = replay.into_trace();
    assert!(trace.faults.is_empty(), "{:?}", trace.faults);
    assert_eq!(trace.steps, 3);
}

#[test]
fn a_request_about_one_key_of_a_lock_that_is_moving_may_be_aborted_where_the_key_has_just_expired() {
    // The server compiles the script for 30 ms before it begins.
    let seen = |is_moving: bool, begins: u64| {
        let mut replay = Replay::of(false);
        replay.begins(Snapshot::default(), 0);
        shows_a_grant(&mut replay, 1_000_000, 0);
        if is_moving {
            replay.sees(&Command {
                at: 1_000_000_000,
                is_in_script: false,
                port: None,
                words: vec!["PING".into(), format!("{LEAVES}lock:job")],
            });
        }
        let request = format!("EVAL moving.lua 1 lock:job acquire token {} ttl 1000", token(1, ""));
        shows(&mut replay, begins - 30, false, &request);
        shows(&mut replay, begins, true, "TIME");
        replay.ends();
        replay.into_trace().faults
    };
    assert!(seen(true, 1_001_001).is_empty());
    assert_eq!(seen(true, 1_000_500).len(), 1);
    assert_eq!(seen(false, 1_001_001).len(), 1);
}

#[test]
fn who_shares_a_lock_while_nothing_is_seen_may_have_the_fence_of_those_who_shared_it_before() {
    let shared = |generation: u64| {
        let mut seen = Snapshot::default();
        let set = ["SET", "lock:job", &format!("nx1:shared:{generation}")].map(str::to_owned);
        seen.keys.executes("SET", &set, 0).unwrap();
        seen
    };
    let mut replay = Replay::of(false);
    replay.begins(Snapshot::default(), 0);
    replay.begins(shared(1001), 1_000_000_000);
    replay.is_cut_off();
    replay.begins(shared(1002), 1_000_000_000);
    let fences = replay.into_trace().fences;
    assert!(fences.contains(&1001) && fences.contains(&1002), "{fences:?}");
}

#[test]
fn a_grant_while_the_keys_are_not_known_may_have_the_fence_that_was_given() {
    let mut replay = Replay::of(false);
    replay.begins(Snapshot::default(), 0);
    // Which keys it takes away is to be looked at.
    shows(&mut replay, 1_000_000, false, "MIGRATE");
    shows_a_grant(&mut replay, 1_000_001, 0);
    let trace = replay.into_trace();
    assert!(trace.faults.is_empty(), "{:?}", trace.faults);
    assert_eq!((trace.unjudged, trace.fences.contains(&1_000_001_000)), (1, true));
}

#[test]
fn what_was_not_seen_is_judged_by_what_the_server_has_then() {
    let trace = seen(None, |scene| {
        scene.acquires(1, "", &[]);
        scene.calls("release", &[("token", &token(7, ""))]);
        scene.releases(1, "", &[]);
    });
    assert_eq!((trace.steps, trace.faults.len(), trace.grants.len()), (3, 0, 1));
    assert_eq!(trace.grants[0].who(), Some(1));
}
