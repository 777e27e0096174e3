//! The work of one script: whatever the keys hold, it is at most in proportion to that, and a crowd is served in batches.
//! A script that runs for long keeps everybody else from the server.
//!
//! Compares what the server itself counts at two sizes. A time is the least of several, and what it is compared with lies far
//! from both: work in proportion to the size, and work in proportion to its square.

use std::iter::once;

use redis::{Connection, Pipeline, cmd, pipe};

use crate::server::{Answer, KEY, Server, call, companion};

const REPETITIONS: usize = 12;
/// The larger size is so many times the smaller one.
const TIMES: usize = 16;
const LATER: &str = "4000000000000";
const MONTH_MS: &str = "2592000000";

/// An operation, and its fields.
type Request<'a> = (&'a str, Vec<(&'a str, &'a str)>);

/// What a script cost the server.
#[derive(Clone, Copy, Debug)]
struct Work {
    /// Commands within the script.
    calls: u64,
    micros: u64,
}

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

    fn call(&mut self, request: &Request<'_>) -> Answer {
        call(&mut self.connection, request.0, &request.1).unwrap()
    }

    fn ask<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        cmd(words[0]).arg(&words[1..]).query(&mut self.connection).unwrap()
    }

    /// Returns the least work of a script on these keys.
    fn work(&mut self, keys: &Pipeline, request: &Request<'_>) -> Work {
        let once = |scene: &mut Scene| {
            scene.ask::<()>(&["FLUSHALL"]);
            keys.query::<()>(&mut scene.connection).unwrap();
            scene.ask::<()>(&["CONFIG", "RESETSTAT"]);
            let before = scene.processor_time();
            scene.call(request);
            let micros = scene.processor_time().saturating_sub(before);
            let stats: String = scene.ask(&["INFO", "commandstats"]);
            let calls = |line: &str| {
                let (_, rest) = line.split_once("calls=").unwrap();
                rest.split(',').next().unwrap().parse::<u64>().unwrap()
            };
            let lines = stats.lines().filter(|line| line.starts_with("cmdstat_"));
            let of_others = ["cmdstat_eval", "cmdstat_info", "cmdstat_config"];
            let within = lines.filter(|line| !of_others.iter().any(|other| line.starts_with(other)));
            Work { calls: within.map(calls).sum(), micros }
        };
        let all: Vec<Work> = (0..REPETITIONS).map(|_| once(self)).collect();
        *all.iter().min_by_key(|work| work.micros).unwrap()
    }

    /// Returns how long the server has had a processor, in µs: on a busy machine a long script is interrupted, and a short
    /// one is not.
    fn processor_time(&mut self) -> u64 {
        let info: String = self.ask(&["INFO", "cpu"]);
        let of = |name: &str| -> f64 {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
            line.trim().parse().unwrap()
        };
        let seconds = of("used_cpu_user_main_thread") + of("used_cpu_sys_main_thread");
        std::time::Duration::from_secs_f64(seconds).as_micros().try_into().unwrap()
    }

    /// Returns the keys as they are, to be written again.
    fn saved(&mut self, keys: &[String]) -> Pipeline {
        let mut saved = pipe();
        for key in keys {
            let dump: Option<Vec<u8>> = cmd("DUMP").arg(key).query(&mut self.connection).unwrap();
            if let Some(dump) = dump {
                saved.cmd("RESTORE").arg(key).arg(1_000_000).arg(dump).ignore();
            }
        }
        saved
    }
}

fn token(who: usize, terms: &str) -> String {
    format!("nx1:{who:026}:u@h:1:1:why{terms}")
}

fn asks(token: &str) -> Request<'_> {
    let wait = [("lease", "60000"), ("grace", "60000")];
    ("acquire", [("token", token), ("ttl", "60000"), ("mode", "once")].into_iter().chain(wait).collect())
}

fn releases(token: &str) -> Request<'_> {
    ("release", vec![("token", token)])
}

/// Returns a request of a run that is recorded.
fn recorded<'a>((operation, mut fields): Request<'a>, more: &[(&'a str, &'a str)]) -> Request<'a> {
    let who = fields[0].1;
    fields.extend([("who", who), ("kept", MONTH_MS), ("most", "1000"), ("waited", "7")]);
    fields.extend(more);
    (operation, fields)
}

/// Returns the release of a run that is done.
fn is_done<'a>(token: &'a str, noted: &'a str) -> Request<'a> {
    recorded(releases(token), &[("granted", noted), ("fence", "1"), ("how", "done|0|")])
}

/// One of several holders.
struct Holder {
    token: String,
    slot: Option<usize>,
    is_lapsed: bool,
}

/// Returns the keys of a shared lock, as the script leaves them. `limits` are those of its holders, and of how many each.
fn shared(holders: &[Holder], limits: &[(usize, usize)]) -> Pipeline {
    let mut keys = pipe();
    keys.cmd("SET").arg(KEY).arg("nx1:shared:1").arg("PX").arg(1_000_000).ignore();
    let size = holders.iter().filter_map(|holder| holder.slot).max().map_or(0, |slot| slot + 1);
    let mut map = vec![b'0'; size];
    let (zadd, mut terms) = (keys.cmd("ZADD").arg(companion("shares")), Vec::<(String, String)>::new());
    for Holder { token, slot, is_lapsed } in holders {
        zadd.arg(if *is_lapsed { "1000" } else { LATER }).arg(token);
        let shown = slot.map_or("-".to_owned(), |slot| slot.to_string());
        terms.push((token.clone(), format!("{shown}|1|1|")));
        if let Some(slot) = slot {
            map[*slot] = b'1';
        }
    }
    zadd.ignore();
    let limits: Vec<String> = limits.iter().map(|(limit, many)| format!("{limit}:{many}")).collect();
    terms.push(("all".into(), format!("{}|{}", String::from_utf8(map).unwrap(), limits.join(","))));
    keys.cmd("HSET").arg(companion("terms")).arg(terms).ignore();
    keys
}

/// Asserts that work grows at most in proportion to what is `TIMES` as large: its square lies as far above the bound as
/// the proportion below it.
fn is_linear(what: &str, small: Work, large: Work) {
    let most = small.micros.max(50) * (TIMES * TIMES / 4) as u64;
    assert!(large.micros < most, "{what}: {small:?}, and {TIMES} times as large {large:?}");
}

/// Asserts that work does not depend on what is `TIMES` as large.
fn is_the_same(what: &str, small: Work, large: Work) {
    assert_eq!(small.calls, large.calls, "{what}: commands");
    let most = small.micros.max(50) * (TIMES / 4) as u64;
    assert!(large.micros < most, "{what}: {small:?}, and {TIMES} times as large {large:?}");
}

#[test]
fn a_slot_is_given_back_by_work_in_proportion_to_the_slots() {
    let mut scene = Scene::new();
    let work = [625, 625 * TIMES].map(|slots| {
        let terms = format!(":{slots}");
        let holder = |who: usize, slot| Holder { token: token(who, &terms), slot: Some(slot), is_lapsed: false };
        let keys = shared(&[holder(1, 0), holder(2, slots - 1)], &[(slots, 2)]);
        scene.work(&keys, &releases(&token(1, &terms)))
    });
    assert_eq!(work[0].calls, work[1].calls);
    is_linear("a slot is given back", work[0], work[1]);
}

#[test]
fn slots_whose_leases_are_over_are_dropped_by_work_in_proportion_to_the_slots() {
    let mut scene = Scene::new();
    let work = [625, 625 * TIMES].map(|slots| {
        let terms = format!(":{slots}");
        let lapsed = (0..32).map(|n| Holder { token: token(n, &terms), slot: Some(n), is_lapsed: true });
        let last = Holder { token: token(99, &terms), slot: Some(slots - 1), is_lapsed: false };
        let keys = shared(&lapsed.chain(once(last)).collect::<Vec<_>>(), &[(slots, 33)]);
        scene.work(&keys, &asks(&token(100, &terms)))
    });
    assert_eq!(work[0].calls, work[1].calls);
    is_linear("32 slots whose leases are over", work[0], work[1]);
}

#[test]
fn the_holders_are_counted_once_however_many_limits_leave_with_their_shares() {
    let mut scene = Scene::new();
    let readers = || (0..8000).map(|n| Holder { token: token(n, ":0"), slot: None, is_lapsed: false });
    let work = [2, 2 * TIMES].map(|leaving| {
        let limits = (0..leaving).map(|n| Holder {
            token: token(9000 + n, &format!(":{}", 9000 + n)),
            slot: Some(n),
            is_lapsed: true,
        });
        let each: Vec<(usize, usize)> = (0..leaving).map(|n| (9000 + n, 1)).collect();
        let keys = shared(&readers().chain(limits).collect::<Vec<_>>(), &each);
        scene.work(&keys, &asks(&token(9999, ":0")))
    });
    let most = work[0].micros * (TIMES / 4) as u64;
    assert!(work[1].micros < most, "2 limits leave: {:?}, {} leave: {:?}", work[0], 2 * TIMES, work[1]);
}

#[test]
fn one_script_drops_a_thousand_dead_waiters_at_most_wherever_they_are_in_the_queue() {
    let mut scene = Scene::new();
    let caller = token(0, ":0");
    for request in [asks(&caller), releases(&caller)] {
        let holders = [0, 1].map(|n| Holder { token: token(n, ":0"), slot: None, is_lapsed: false });
        let mut keys = shared(&holders, &[]);
        // 40 live readers, and 500 dead ones before each of them.
        let (mut queue, mut records) = (Vec::new(), Vec::new());
        for waiter in 0..40 * 501 {
            let name = token(100_000 + waiter, ":0");
            queue.push((waiter.to_string(), name.clone()));
            let is_alive = waiter % 501 == 500;
            records.push((name, if is_alive { "1|LEASE|10000|".to_owned() } else { "1|1|10000|".to_owned() }));
        }
        let (seconds, _): (u64, u64) = scene.ask(&["TIME"]);
        let lease = (seconds * 1000 + 100_000).to_string();
        records.iter_mut().for_each(|(_, record)| *record = record.replace("LEASE", &lease));
        keys.cmd("ZADD").arg(companion("queue")).arg(&queue).ignore();
        keys.cmd("HSET").arg(companion("waiters")).arg(&records).ignore();
        let work = scene.work(&keys, &request);
        let left: usize = scene.ask(&["ZCARD", &companion("queue")]);
        assert!(left >= 40 * 501 - 1000 - 32, "{left} are left of {}: {work:?}", 40 * 501);
        assert!(left <= 40 * 501 - 1000, "{left} are left");
        assert!(work.calls < 1000 * 6 + 32 * 12 + 100, "{work:?}");
    }
}

#[test]
fn a_shared_lock_is_shown_by_the_same_work_however_many_hold_it() {
    let mut scene = Scene::new();
    let work = [600, 600 * TIMES].map(|holders| {
        let holders = (0..holders).map(|n| Holder { token: token(n, ":0"), slot: None, is_lapsed: false });
        let keys = shared(&holders.collect::<Vec<_>>(), &[]);
        scene.work(&keys, &("inspect", Vec::new()))
    });
    assert!(work[1].calls < work[0].calls + 20, "{work:?}");
    is_the_same("INSPECT of a shared lock", work[0], Work { calls: work[0].calls, ..work[1] });
}

/// Returns the keys after so many runs that have ended, and so many that vanished.
fn runs(scene: &mut Scene, ended: usize, vanished: usize) -> Pipeline {
    scene.ask::<()>(&["FLUSHALL"]);
    for n in 0..ended {
        let run = token(n, "");
        let noted = scene.call(&recorded(asks(&run), &[])).of("noted");
        scene.call(&is_done(&run, &noted));
    }
    for n in 0..vanished {
        scene.call(&recorded(asks(&token(10_000 + n, ":0")), &[]));
    }
    scene.saved(&[companion("runs")])
}

#[test]
fn runs_that_vanished_are_listed_by_work_in_proportion_to_them_and_to_the_lines() {
    let mut scene = Scene::new();
    let both = [1, TIMES].map(|times| {
        let keys = runs(&mut scene, 62 * times, 32 * times);
        let grant = token(20_000, "");
        let swept = scene.work(&keys, &recorded(asks(&grant), &[]));
        let shown = scene.work(&keys, &("history", vec![("who", "-")]));
        assert!(swept.calls < 1000, "{swept:?}");
        (swept, shown)
    });
    is_linear("a grant after killed runs", both[0].0, both[1].0);
    is_linear("their history", both[0].1, both[1].1);
}

#[test]
fn a_run_is_recorded_by_the_same_work_however_many_are_kept() {
    let mut scene = Scene::new();
    let both = [62, 62 * TIMES].map(|kept| {
        let keys = runs(&mut scene, kept, 0);
        let run = token(20_000, "");
        let granted = scene.work(&keys, &recorded(asks(&run), &[]));
        scene.ask::<()>(&["FLUSHALL"]);
        keys.query::<()>(&mut scene.connection).unwrap();
        let noted = scene.call(&recorded(asks(&run), &[])).of("noted");
        let keys = scene.saved(&[KEY.to_owned(), companion("runs")]);
        (granted, scene.work(&keys, &is_done(&run, &noted)))
    });
    is_the_same("a grant", both[0].0, both[1].0);
    is_the_same("a release", both[0].1, both[1].1);
}
