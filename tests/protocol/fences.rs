//! Fences: each grant has one of its own, whatever another program wrote into the key, and it outlives every lease.

use std::collections::BTreeSet;

use redis::{Connection, cmd};

use crate::scripts::{Base, Form, Script};
use crate::server::{KEYS, Server, eval_with};

/// What no fence is, and the last ones.
const SPOILT: [&str; 14] = [
    "nan",
    "inf",
    "-inf",
    "1e300",
    "1e3",
    "0x10",
    "9223372036854775807",
    "99999999999999999999999999",
    "9007199254740993",
    "9007199254740992",
    "9007199254740991",
    "garbage",
    "-5",
    "",
];
const DAY_MS: i64 = 86_400_000;
const LONG_MS: i64 = 360_000_000;

struct Scene {
    _server: Server,
    connection: Connection,
}

impl Scene {
    fn new() -> Scene {
        let server = Server::start();
        let connection = server.connect();
        Scene { _server: server, connection }
    }

    fn ask<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        cmd(words[0]).arg(&words[1..]).query(&mut self.connection).unwrap()
    }

    /// Asks for the lock, and returns the reply.
    fn asks(&mut self, base: Base, token: &str, ttl_ms: i64) -> Vec<String> {
        let (ttl_ms, record) = (ttl_ms.to_string(), format!("nx1:{token}:"));
        let mut args = vec![token, &ttl_ms, "once", "60000", "10000", "", "0", "", ""];
        if base == Base::BesideSetnx {
            args.extend(["5000", &record]);
        }
        eval_with(&mut self.connection, Script::Acquire(base.into()), None, &args)
    }

    fn gets(&mut self, base: Base, token: &str, ttl_ms: i64) -> u64 {
        let reply = self.asks(base, token, ttl_ms);
        assert_eq!(reply[0], "1", "{token} is granted the lock: {reply:?}");
        let fence = reply[1].parse().unwrap_or_else(|_| panic!("{:?} is no fence", reply[1]));
        assert!((1..1 << 53).contains(&fence), "{fence}");
        fence
    }

    fn releases(&mut self, base: Base, token: &str) {
        let form = Form { base, ..Form::default() };
        assert_eq!(eval_with(&mut self.connection, Script::Release(form), None, &[token])[0], "1");
    }

    fn fence_lasts(&mut self) -> i64 {
        self.ask(&["PTTL", KEYS[3]])
    }
}

fn token(who: usize, terms: &str) -> String {
    format!("nx1:{who:026}:u@h:1:1:why{terms}")
}

#[test]
fn each_grant_has_a_fence_of_its_own_whatever_is_in_the_key() {
    let mut scene = Scene::new();
    for spoilt in SPOILT {
        for (base, terms) in [(Base::Exclusive, ""), (Base::Share, ":2"), (Base::Share, ":0"), (Base::BesideSetnx, "")]
        {
            scene.ask::<()>(&["FLUSHALL"]);
            scene.ask::<()>(&["SET", KEYS[3], spoilt]);
            let mut fences = BTreeSet::new();
            for who in 0..3 {
                fences.insert(scene.gets(base, &token(who, terms), 60_000));
                scene.releases(base, &token(who, terms));
            }
            assert_eq!(fences.len(), 3, "{spoilt}: {fences:?}");
            // The request is repeated, or slots are taken beside each other.
            let first = scene.gets(base, &token(7, terms), 60_000);
            scene.ask::<()>(&["SET", KEYS[3], spoilt]);
            let again = scene.gets(base, &token(7, terms), 60_000);
            assert!(fences.iter().all(|fence| *fence < first.min(again)), "{spoilt}: {fences:?}, {first}, {again}");
            if terms == ":2" {
                assert_eq!(first, again);
                assert!(scene.gets(base, &token(8, terms), 60_000) > first, "{spoilt}");
            }
        }
    }
}

#[test]
fn what_no_fence_is_does_not_count_where_a_fence_is_raised_or_set_alone() {
    let mut scene = Scene::new();
    for spoilt in SPOILT {
        scene.ask::<()>(&["SET", KEYS[0], "ours"]);
        scene.ask::<()>(&["SET", KEYS[3], spoilt]);
        let raised = eval_with(&mut scene.connection, Script::Raise, None, &["ours", "1700000000000000", "60000"]);
        assert_eq!(raised, ["1"], "{spoilt}");
        assert_eq!(scene.ask::<String>(&["GET", KEYS[3]]), "1700000000000000", "{spoilt}");
        scene.ask::<()>(&["SET", KEYS[3], spoilt]);
        let mut alone = cmd("EVAL");
        alone.arg(Script::FenceMoving.text()).arg(1).arg(KEYS[3]).arg("60000");
        let set: Vec<String> = alone.query(&mut scene.connection).unwrap();
        let next: Vec<String> = alone.query(&mut scene.connection).unwrap();
        let [set, next] = [&set, &next].map(|fence| fence[0].parse::<u64>().unwrap());
        assert!(0 < set && set < next && next < 1 << 53, "{spoilt}: {set}, {next}");
    }
}

#[test]
fn a_fence_outlives_the_longest_lease_whoever_comes_and_goes_meanwhile() {
    let mut scene = Scene::new();
    for (long, short) in [(":2", ":2"), (":0", ":0"), (":2", ":0"), (":0", ":2")] {
        scene.ask::<()>(&["FLUSHALL"]);
        let [first, second, third] = [(1, short), (2, long), (3, short)].map(|(who, terms)| token(who, terms));
        scene.gets(Base::Share, &first, 60_000);
        assert!(scene.fence_lasts() <= DAY_MS);
        scene.gets(Base::Share, &second, LONG_MS);
        let lasts = scene.fence_lasts();
        assert!(lasts > 10 * LONG_MS - 60_000, "{lasts} ms after {second}");
        scene.releases(Base::Share, &first);
        scene.gets(Base::Share, &third, 60_000);
        scene.releases(Base::Share, &third);
        let lasts = scene.fence_lasts();
        assert!(lasts > 10 * LONG_MS - 60_000, "{lasts} ms after {third}");
    }
}
