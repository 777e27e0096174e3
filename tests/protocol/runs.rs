//! Releases of recorded runs that come again, however late, and a thousand nights of a job that ten hosts try.

use std::collections::BTreeMap;

use redis::{Connection, cmd};

use crate::dice::Dice;
use crate::server::{Answer, KEY, Server, acquire, call, companion};

/// Within this, a run that succeeded is not repeated: 20 hours.
const UNLESS: &str = "72000000000";
const DAY: i64 = 86_400_000_000;
const MONTH_MS: &str = "2592000000";

struct World {
    connection: Connection,
}

impl World {
    fn new(server: &Server) -> World {
        World { connection: server.connect() }
    }

    fn acquire(&mut self, token: &str) -> Answer {
        let record = [("who", token), ("kept", MONTH_MS), ("most", "1000"), ("waited", "7"), ("unless", UNLESS)];
        acquire(&mut self.connection, token, "once", &record).unwrap()
    }

    fn release(&mut self, token: &str, noted: &str, most: &str, how: &str) -> Answer {
        let record = [("who", token), ("kept", MONTH_MS), ("most", most), ("waited", "7"), ("granted", noted)];
        let fields = [("token", token), ("fence", "1"), ("how", how)];
        call(&mut self.connection, "release", &[&fields[..], &record].concat()).unwrap()
    }

    /// Sets back all that the server knows by a day.
    fn tomorrow(&mut self) {
        let yesterday = |instant: &str| (instant.parse::<i64>().unwrap() - DAY).to_string();
        let all: BTreeMap<String, String> = cmd("HGETALL").arg(companion("runs")).query(&mut self.connection).unwrap();
        let mut set_back = cmd("HSET");
        set_back.arg(companion("runs"));
        for (field, value) in all {
            let earlier = match field.split(':').next().unwrap() {
                "run" | "line" | "done" => {
                    let (granted, rest) = value.split_once('|').unwrap();
                    format!("{}|{rest}", yesterday(granted))
                }
                "since" => yesterday(&value),
                _ => continue,
            };
            set_back.arg(field).arg(earlier);
        }
        set_back.query::<i64>(&mut self.connection).unwrap();
    }
}

#[test]
fn a_release_that_comes_again_changes_no_record_however_late() {
    let server = Server::start();
    let mut world = World::new(&server);
    let mut dice = Dice::new(1);
    let mut all: Vec<[String; 3]> = Vec::new();
    let mut kept: Vec<usize> = Vec::new();
    for number in 0..100 {
        let token = format!("nx1:{number:026}:u@h:1:1:why");
        let noted = world.acquire(&token).of("noted");
        all.push([token, noted, format!("failed|{}|", number % 200)]);
        let most = 1 + dice.index(3);
        kept.push(number);
        kept.drain(..kept.len().saturating_sub(most));
        let mut any = || dice.index(number + 1);
        for again in [number, number, any(), any()] {
            let [token, noted, how] = &all[again];
            world.release(token, noted, &most.to_string(), how);
        }
        let history = call(&mut world.connection, "history", &[("who", "-")]).unwrap().of("ended");
        let shown: Vec<[&str; 2]> = history.lines().rev().map(line_of).collect();
        let expected: Vec<[&str; 2]> = kept.iter().map(|run| [&all[*run][2][..], &all[*run][0]]).collect();
        assert_eq!(shown, expected, "after run {number}");
    }
}

#[test]
fn a_request_that_comes_when_its_run_has_ended_is_not_granted_the_lock_and_keeps_nobody_from_it() {
    let server = Server::start();
    let mut world = World::new(&server);
    let token = |number: usize| format!("nx1:{number:026}:u@h:1:1:why:newest");
    let ask = |world: &mut World, token: &str, mode: &str, ticket: &str| {
        let fields = [("who", token), ("kept", MONTH_MS), ("most", "3"), ("ticket", ticket)];
        acquire(&mut world.connection, token, mode, &fields).unwrap()
    };
    let (old, new) = (token(1), token(2));
    let noted = ask(&mut world, &old, "once", "0").of("noted");
    // The newer one has its ticket, and has not joined yet.
    let ticket = ask(&mut world, &new, "once", "0").of("ticket");
    assert_eq!(world.release(&old, &noted, "3", "failed|1|").of("verdict"), "released");
    for mode in ["once", "queue", "plain"] {
        assert_eq!(ask(&mut world, &old, mode, "0").of("verdict"), "waiting", "{mode}");
    }
    let seen = call(&mut world.connection, "inspect", &[("most", "9")]).unwrap();
    assert_eq!(seen.of("type"), "none");
    assert_eq!(ask(&mut world, &new, "queue", &ticket).of("verdict"), "granted");
}

/// Returns how a run ended, and the token.
fn line_of(line: &str) -> [&str; 2] {
    let (rest, token) = line.rsplit_once('|').unwrap();
    let at = rest.match_indices('|').nth(3).unwrap().0 + 1;
    [&rest[at..], token]
}

/// The fate of a host in one night.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Down,
    Succeeds,
    Fails,
    IsKilled,
    /// It is done, and its lease has ended before it can say so.
    IsCutOff,
}

#[test]
fn in_a_thousand_nights_the_job_is_done_once_whenever_a_host_could() {
    let server = Server::start();
    let mut world = World::new(&server);
    let mut dice = Dice::new(1);
    let mut below = |n: usize| dice.index(n);
    let (mut done, mut could) = (0, 0);
    for night in 0..1000 {
        // The clocks are minutes apart: the hosts come in any order, and some come while another runs.
        let mut hosts: Vec<usize> = (0..10).collect();
        (1..10).rev().for_each(|at| hosts.swap(at, below(at + 1)));
        let mut successes = 0;
        let mut one_could = false;
        for host in hosts {
            let fate = match below(10) {
                0..=2 => Fate::Down,
                3..=5 => Fate::Succeeds,
                6..=7 => Fate::Fails,
                8 => Fate::IsKilled,
                _ => Fate::IsCutOff,
            };
            if fate == Fate::Down {
                continue;
            }
            one_could |= fate == Fate::Succeeds;
            let token = format!("nx1:{:026}:u@host{host}:1:1:night", night * 10 + host);
            let reply = world.acquire(&token);
            // The one that comes meanwhile does not wait.
            let meanwhile = format!("nx1:{:026}:u@meanwhile:1:1:night", 1_000_000 + night * 10 + host);
            let refused = world.acquire(&meanwhile);
            let [expected, meanwhile] = if successes > 0 { ["done"; 2] } else { ["granted", "waiting"] };
            assert_eq!(refused.of("verdict"), meanwhile, "night {night}, {refused:?}");
            assert_eq!(reply.of("verdict"), expected, "night {night}, host {host}: {reply:?}");
            if successes > 0 {
                continue;
            }
            let noted = &reply.of("noted");
            match fate {
                Fate::Succeeds => {
                    assert_eq!(world.release(&token, noted, "1000", "done|0|").of("verdict"), "released");
                    successes += 1;
                }
                Fate::Fails => {
                    assert_eq!(world.release(&token, noted, "1000", "failed|1|").of("verdict"), "released");
                }
                Fate::IsKilled => _ = cmd("DEL").arg(KEY).query::<i64>(&mut world.connection).unwrap(),
                Fate::IsCutOff => {
                    cmd("DEL").arg(KEY).query::<i64>(&mut world.connection).unwrap();
                    // It has lost its lock by then: what it did does not count.
                    assert_eq!(world.release(&token, noted, "1000", "done|0|").of("verdict"), "not_yours");
                }
                Fate::Down => {}
            }
        }
        assert!(successes <= 1, "night {night}: done {successes} times");
        assert_eq!(successes == 1, one_could, "night {night}");
        done += successes;
        could += u32::from(one_could);
        world.tomorrow();
    }
    assert_eq!(done, could);
    assert!((800..1000).contains(&done), "{done} of 1000 nights");
}
