//! Fences: each grant has one of its own, whatever another program wrote into the key, and it outlives every lease.

use std::collections::BTreeSet;

use redis::{Connection, cmd};

use crate::server::{Answer, KEY, Server, acquire, call, companion, release};

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

    /// Asks for the lock, and returns the answer.
    fn asks(&mut self, token: &str, ttl_ms: i64) -> Answer {
        let (ttl_ms, record) = (ttl_ms.to_string(), format!("nx1:{token}:"));
        let mut more = vec![("ttl", &ttl_ms[..])];
        if is_beside_setnx(token) {
            more.extend([("margin", "5000"), ("identity", &record)]);
        }
        acquire(&mut self.connection, token, "once", &more).unwrap()
    }

    fn gets(&mut self, token: &str, ttl_ms: i64) -> u64 {
        let answer = self.asks(token, ttl_ms);
        assert!(answer.is_granted(), "{token} is granted the lock: {answer:?}");
        let fence = u64::try_from(answer.number("fence")).unwrap();
        assert!((1..1 << 53).contains(&fence), "{fence}");
        fence
    }

    fn releases(&mut self, token: &str) {
        assert_eq!(release(&mut self.connection, token).unwrap().of("verdict"), "released");
    }

    fn fence_lasts(&mut self) -> i64 {
        self.ask(&["PTTL", &companion("fence")])
    }

    fn spoils(&mut self, fence: &str) {
        self.ask::<()>(&["SET", &companion("fence"), fence]);
    }
}

fn token(who: usize, terms: &str) -> String {
    if terms == "number" { format!("4{who:018}") } else { format!("nx1:{who:026}:u@h:1:1:why{terms}") }
}

fn is_beside_setnx(token: &str) -> bool {
    token.starts_with('4')
}

#[test]
fn each_grant_has_a_fence_of_its_own_whatever_is_in_the_key() {
    let mut scene = Scene::new();
    for spoilt in SPOILT {
        for terms in ["", ":2", ":0", "number"] {
            scene.ask::<()>(&["FLUSHALL"]);
            scene.spoils(spoilt);
            let mut fences = BTreeSet::new();
            for who in 0..3 {
                fences.insert(scene.gets(&token(who, terms), 60_000));
                scene.releases(&token(who, terms));
            }
            assert_eq!(fences.len(), 3, "{spoilt}: {fences:?}");
            // The request is repeated, or slots are taken beside each other.
            let first = scene.gets(&token(7, terms), 60_000);
            scene.spoils(spoilt);
            let again = scene.gets(&token(7, terms), 60_000);
            assert!(fences.iter().all(|fence| *fence < first.min(again)), "{spoilt}: {fences:?}, {first}, {again}");
            if terms == ":2" {
                assert_eq!(first, again);
                assert!(scene.gets(&token(8, terms), 60_000) > first, "{spoilt}");
            }
        }
    }
}

#[test]
fn what_no_fence_is_does_not_count_where_a_fence_is_raised_or_set_alone() {
    let mut scene = Scene::new();
    for spoilt in SPOILT {
        scene.ask::<()>(&["SET", KEY, "ours"]);
        scene.spoils(spoilt);
        let fields = [("token", "ours"), ("fence", "1700000000000000"), ("ttl", "60000")];
        let raised = call(&mut scene.connection, "raise", &fields).unwrap();
        assert_eq!(raised.of("verdict"), "raised", "{spoilt}");
        assert_eq!(scene.ask::<String>(&["GET", &companion("fence")]), "1700000000000000", "{spoilt}");
        scene.spoils(spoilt);
        let mut alone = cmd("EVAL");
        alone.arg(include_str!("../../src/store/redis/moving.lua")).arg(1).arg(companion("fence"));
        alone.arg(&["fence", "ttl", "60000"]);
        let mut set = || {
            let parts: Vec<redis::Value> = alone.query(&mut scene.connection).unwrap();
            Answer::read(&parts).number("fence")
        };
        let (set, next) = (set(), set());
        assert!(0 < set && set < next && next < 1 << 53, "{spoilt}: {set}, {next}");
    }
}

#[test]
fn a_fence_outlives_the_longest_lease_whoever_comes_and_goes_meanwhile() {
    let mut scene = Scene::new();
    for (long, short) in [(":2", ":2"), (":0", ":0"), (":2", ":0"), (":0", ":2")] {
        scene.ask::<()>(&["FLUSHALL"]);
        let [first, second, third] = [(1, short), (2, long), (3, short)].map(|(who, terms)| token(who, terms));
        scene.gets(&first, 60_000);
        assert!(scene.fence_lasts() <= DAY_MS);
        scene.gets(&second, LONG_MS);
        let lasts = scene.fence_lasts();
        assert!(lasts > 10 * LONG_MS - 60_000, "{lasts} ms after {second}");
        scene.releases(&first);
        scene.gets(&third, 60_000);
        scene.releases(&third);
        let lasts = scene.fence_lasts();
        assert!(lasts > 10 * LONG_MS - 60_000, "{lasts} ms after {third}");
    }
}
