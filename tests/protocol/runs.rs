//! Random histories of runs that are recorded: what the server knows of them after each call is what happened. And a
//! thousand nights of a job that ten hosts try.

use std::collections::BTreeMap;

use proptest::prelude::{Just, Strategy, any, prop_oneof};
use redis::{Connection, cmd};

use crate::scripts::{Base, Form, Script};
use crate::search::{Fault, all_are_noticed, search as search_for};
use crate::server::{KEYS, Server, eval_with};

const RUNS: &str = "{lock:x}:runs";
const SHARES: &str = "{lock:x}:shares";
const HOSTS: usize = 5;
const RECORDED: Form = Form { base: Base::Exclusive, newest: false, recorded: true, enclosed: false };
/// Within this, a run that succeeded is not repeated: 20 hours.
const UNLESS: &str = "72000000000";
const DAY: i64 = 86_400_000_000;
const MONTH_MS: &str = "2592000000";

type Host = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Ask(Host),
    /// The command ends, and its host releases the lock; with `again`, twice, because the first reply was lost.
    Ends {
        host: Host,
        how: &'static str,
        again: bool,
    },
    /// The host is gone; its lease runs on.
    Dies(Host),
    LeaseEnds(Host),
    Tomorrow,
    LoseRuns,
}

/// A run that its host began, until the host has recorded its end or has died.
#[derive(Clone)]
struct Run {
    token: String,
    /// When it was granted the lock, by the server's clock.
    granted: String,
    holds: bool,
    /// The server knows that it began.
    is_noted: bool,
    /// It began since the last day began, as far as the server can know.
    is_of_today: bool,
}

struct World {
    connection: Connection,
    fault: Option<Fault>,
    base: Base,
    asked: usize,
    runs: [Option<Run>; HOSTS],
    /// The leases of the dead that still run.
    dead: Vec<Run>,
    /// The outcome of every run that the server knows of and that does not hold the lock.
    known: BTreeMap<String, &'static str>,
    /// The runs that were done since the last day began.
    done: Vec<String>,
}

impl World {
    fn new(server: &Server, fault: Option<Fault>, base: Base) -> World {
        let mut connection = server.connect();
        cmd("FLUSHALL").query::<()>(&mut connection).unwrap();
        let (runs, known) = (std::array::from_fn(|_| None), BTreeMap::new());
        World { connection, fault, base, asked: 0, runs, dead: Vec::new(), known, done: Vec::new() }
    }

    fn eval(&mut self, script: Script, args: &[&str]) -> Vec<String> {
        eval_with(&mut self.connection, script, self.fault, args)
    }

    fn form(&self) -> Form {
        Form { base: self.base, recorded: true, ..Form::default() }
    }

    fn holders(&self) -> usize {
        self.runs.iter().flatten().filter(|run| run.holds).count() + self.dead.len()
    }

    fn acquire(&mut self, token: &str) -> Vec<String> {
        let script = Script::Acquire(self.form());
        self.eval(
            script,
            &[token, "60000", "once", "60000", "60000", "", "0", "", "", token, MONTH_MS, "1000", "7", UNLESS],
        )
    }

    fn release(&mut self, token: &str, granted: &str, how: &str) -> Vec<String> {
        let script = Script::Release(self.form());
        self.eval(script, &[token, token, MONTH_MS, "1000", "7", granted, "1", how])
    }

    fn asks(&mut self, host: Host) -> Result<(), String> {
        // A host whose run is under way asks again, as after a lost reply.
        if let Some(Run { token, holds: true, is_noted, .. }) = self.runs[host].clone() {
            // Without the note, only the lock would tell; its client gives the lock back then.
            if !is_noted && !self.done.is_empty() {
                return Ok(());
            }
            let reply = self.acquire(&token);
            self.runs[host].as_mut().unwrap().is_of_today |= !is_noted;
            self.runs[host].as_mut().unwrap().is_noted = true;
            self.runs[host].as_mut().unwrap().granted.clone_from(reply.last().unwrap());
            return if reply[0] == "1" {
                Ok(())
            } else {
                Err(format!("{token} has the lock, and the reply is {reply:?}"))
            };
        }
        if self.runs[host].is_some() {
            return Ok(());
        }
        self.asked += 1;
        let limit = if self.base == Base::Share { ":2" } else { "" };
        let token = format!("nx1:{:026}:u@host{host}:1:1:why{limit}", self.asked);
        let most = if self.base == Base::Share { 2 } else { 1 };
        let expected = match self.holders() {
            _ if !self.done.is_empty() => "3",
            holders if holders < most => "1",
            _ => "0",
        };
        let reply = self.acquire(&token);
        if reply[0] != expected {
            return Err(format!("the reply to {token} is {reply:?}, not {expected}"));
        }
        match expected {
            "3" if !self.done.iter().any(|done| reply[1].ends_with(&format!("|{done}"))) => {
                return Err(format!("it was done by {:?}, and not as {reply:?}", self.done));
            }
            "1" => {
                let granted = reply.last().unwrap().clone();
                self.runs[host] = Some(Run { token, granted, holds: true, is_noted: true, is_of_today: true });
                // A grant forgets the notes of runs that have vanished.
                let fields: Vec<String> = cmd("HKEYS").arg(RUNS).query(&mut self.connection).unwrap();
                let notes = fields.iter().filter(|field| field.starts_with("run:")).count();
                if notes > self.holders() {
                    return Err(format!("{} hold it, and {fields:?} are noted", self.holders()));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn ends(&mut self, host: Host, how: &'static str, again: bool) -> Result<(), String> {
        let Some(run) = self.runs[host].take() else { return Ok(()) };
        let answer = if run.holds { ["1", "2"] } else { ["0", "0"] };
        let reply = self.release(&run.token, &run.granted, how);
        if !answer.contains(&reply[0].as_str()) || reply.last().unwrap() != "" {
            return Err(format!("the reply to {run} is {reply:?}", run = run.token));
        }
        if again {
            self.release(&run.token, &run.granted, how);
        }
        let outcome = if run.holds { how.split('|').next().unwrap_or_default() } else { "lost" };
        if outcome == "done" && run.is_of_today {
            self.done.push(run.token.clone());
        }
        self.known.insert(run.token, outcome);
        Ok(())
    }

    /// The lease of a dead host's run ends, or that of a host that will be late to notice.
    fn lease_ends(&mut self, host: Host) {
        let Run { token, is_noted, .. } = match self.dead.pop() {
            Some(dead) => dead,
            None => match &mut self.runs[host] {
                Some(run) if run.holds => {
                    run.holds = false;
                    run.clone()
                }
                _ => return,
            },
        };
        if is_noted {
            self.known.insert(token.clone(), "vanished");
        }
        let end = match self.base {
            Base::Share => vec!["ZADD", SHARES, "XX", "1", &token],
            _ => vec!["DEL", KEYS[0]],
        };
        cmd(end[0]).arg(&end[1..]).query::<i64>(&mut self.connection).unwrap();
    }

    /// Sets back all that the server knows by a day.
    fn tomorrow(&mut self) {
        self.done.clear();
        self.runs.iter_mut().flatten().for_each(|run| run.is_of_today = false);
        let yesterday = |instant: &str| (instant.parse::<i64>().unwrap() - DAY).to_string();
        self.runs.iter_mut().flatten().for_each(|run| run.granted = yesterday(&run.granted));
        let all: BTreeMap<String, String> = cmd("HGETALL").arg(RUNS).query(&mut self.connection).unwrap();
        for (field, value) in all {
            let earlier = match field.split(':').next().unwrap() {
                "run" | "line" | "done" => {
                    let (granted, rest) = value.split_once('|').unwrap();
                    format!("{}|{rest}", yesterday(granted))
                }
                "since" => yesterday(&value),
                _ => continue,
            };
            cmd("HSET").arg(RUNS).arg(field).arg(earlier).query::<i64>(&mut self.connection).unwrap();
        }
    }

    fn happens(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Ask(host) => self.asks(host)?,
            Event::Ends { host, how, again } => self.ends(host, how, again)?,
            Event::Dies(host) => {
                if let Some(run) = self.runs[host].take().filter(|run| run.holds) {
                    self.dead.push(run);
                }
            }
            Event::LeaseEnds(host) => self.lease_ends(host),
            Event::Tomorrow => self.tomorrow(),
            Event::LoseRuns => {
                cmd("DEL").arg(RUNS).query::<i64>(&mut self.connection).unwrap();
                self.known.clear();
                self.done.clear();
                self.runs.iter_mut().flatten().chain(&mut self.dead).for_each(|run| run.is_noted = false);
            }
        }
        self.is_as_it_happened(event)
    }

    fn is_as_it_happened(&mut self, event: Event) -> Result<(), String> {
        let reply = self.eval(Script::History, &[]);
        let (lines, vanished) = reply.split_first().unwrap();
        let mut known: BTreeMap<String, &str> = BTreeMap::new();
        for line in lines.lines() {
            let fields: Vec<&str> = line.split('|').collect();
            if known.insert(fields[7].to_owned(), fields[4]).is_some() {
                return Err(format!("{line} is listed twice"));
            }
        }
        known.extend(vanished.chunks(2).map(|pair| (pair[1].clone(), "vanished")));
        if known != self.known {
            return Err(format!("after {event:?} it knows {known:?}, and what happened is {:?}", self.known));
        }
        let ttl: i64 = cmd("PTTL").arg(RUNS).query(&mut self.connection).unwrap();
        if !(2_590_000_000..=2_592_000_000).contains(&ttl) && ttl != -2 {
            return Err(format!("after {event:?} it is kept for {ttl} ms"));
        }
        Ok(())
    }
}

fn event() -> impl Strategy<Value = Event> {
    let hosts = || 0..HOSTS;
    let how = prop_oneof![Just("done|0|"), Just("failed|3|"), Just("signal||15"), Just("lost||15")];
    prop_oneof![
        6 => hosts().prop_map(Event::Ask),
        5 => (hosts(), how, any::<bool>()).prop_map(|(host, how, again)| Event::Ends { host, how, again }),
        1 => hosts().prop_map(Event::Dies),
        2 => hosts().prop_map(Event::LeaseEnds),
        1 => Just(Event::Tomorrow),
        1 => Just(Event::LoseRuns),
    ]
}

fn search(fault: Option<Fault>, cases: u32) -> Result<(), String> {
    [Base::Exclusive, Base::Share].into_iter().try_for_each(|base| {
        search_for(fault, cases, event(), |server, events| {
            let mut world = World::new(server, fault, base);
            events.iter().try_for_each(|event| world.happens(*event))
        })
    })
}

#[test]
fn whatever_happens_the_server_knows_of_each_run_how_it_ended() {
    search(None, 2000).unwrap();
}

const FAULTS: [(&str, Fault); 10] = [
    ("what is done is done again", ("at and us - at < unless then", "false then")),
    ("yesterday's run counts", ("at and us - at < unless then", "at then")),
    ("a run under way is refused", ("if not note and unless then", "if unless then")),
    (
        "nobody notes that a run begins",
        ("redis.call('HSET', R, 'run:' .. who, digits(us)", "redis.call('HSET', R, 'ran:' .. who, digits(us)"),
    ),
    ("nobody sweeps", ("if type(fields) == 'number' then", "if false then")),
    ("a run is swept that goes on", ("if whose and not (ends and ends > us / 1000) then", "if whose then")),
    ("a run has two records", ("(own and was ~= 'vanished')", "false")),
    ("who seemed to have vanished has", ("(own and was ~= 'vanished')", "own")),
    ("nobody finds the lock lost", ("if lost then outcome = 'lost' end", "")),
    ("success is not noted", ("redis.call('HSET', R, 'done', line)", "local _ = line")),
];

#[test]
fn each_fault_in_a_script_is_noticed() {
    let form = Form { recorded: true, ..Form::default() };
    let scripts = [Script::Acquire(form), Script::Release(form), Script::History];
    all_are_noticed(&FAULTS, &scripts, |fault| search(Some(fault), 500));
}

/// Has runs end one after the other, with any number of them kept, and sends some releases again later.
fn releases_come_again(fault: Option<Fault>) -> Result<(), String> {
    let server = Server::start();
    let mut world = World::new(&server, fault, Base::Exclusive);
    let mut random = 88_172_645_463_325_252_u64;
    let mut below = |n: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % n as u64).unwrap()
    };
    let mut all: Vec<[String; 3]> = Vec::new();
    let mut kept: Vec<usize> = Vec::new();
    for number in 0..100 {
        let token = format!("nx1:{number:026}:u@h:1:1:why");
        let granted = world.acquire(&token).last().unwrap().clone();
        all.push([token, granted, format!("failed|{}|", number % 200)]);
        let most = 1 + below(3);
        kept.push(number);
        kept.drain(..kept.len().saturating_sub(most));
        for again in [number, number, below(number + 1), below(number + 1)] {
            let [token, granted, how] = &all[again];
            let args = [token, token, MONTH_MS, &most.to_string(), "7", granted, "1", how];
            world.eval(Script::Release(world.form()), &args);
        }
        let history = world.eval(Script::History, &[]);
        let shown: Vec<[&str; 2]> = history[0].lines().rev().map(line_of).collect();
        let expected: Vec<[&str; 2]> = kept.iter().map(|run| [&all[*run][2][..], &all[*run][0]]).collect();
        if shown != expected {
            return Err(format!("after run {number} it shows {shown:?}, and not {expected:?}"));
        }
    }
    Ok(())
}

/// Returns how a run ended, and the token.
fn line_of(line: &str) -> [&str; 2] {
    let (rest, token) = line.rsplit_once('|').unwrap();
    let at = rest.match_indices('|').nth(3).unwrap().0 + 1;
    [&rest[at..], token]
}

#[test]
fn a_release_that_comes_again_changes_no_record_however_late() {
    releases_come_again(None).unwrap();
    let faults = [
        ("a release that comes again is recorded anew", ("or was_listed then", "then")),
        ("more lines are kept than asked for", ("while count > most and", "while count > most + 1 and")),
    ];
    all_are_noticed(&faults, &[Script::Release(RECORDED)], |fault| releases_come_again(Some(fault)));
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
    let mut world = World::new(&server, None, Base::Exclusive);
    let mut random = 88_172_645_463_325_252_u64;
    let mut below = |n: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % n).unwrap()
    };
    let (mut done, mut could) = (0, 0);
    for night in 0..1000 {
        // The clocks are minutes apart: the hosts come in any order, and some come while another runs.
        let mut hosts: Vec<usize> = (0..10).collect();
        (1..10).rev().for_each(|at| hosts.swap(at, below(at as u64 + 1)));
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
            assert_eq!(refused[0], if successes > 0 { "3" } else { "0" }, "night {night}, {refused:?}");
            assert_eq!(reply[0], if successes > 0 { "3" } else { "1" }, "night {night}, host {host}: {reply:?}");
            if successes > 0 {
                continue;
            }
            let granted = reply.last().unwrap();
            match fate {
                Fate::Succeeds => {
                    assert_eq!(world.release(&token, granted, "done|0|")[0], "1");
                    successes += 1;
                }
                Fate::Fails => assert_eq!(world.release(&token, granted, "failed|1|")[0], "1"),
                Fate::IsKilled => _ = cmd("DEL").arg(KEYS[0]).query::<i64>(&mut world.connection).unwrap(),
                Fate::IsCutOff => {
                    cmd("DEL").arg(KEYS[0]).query::<i64>(&mut world.connection).unwrap();
                    // It has lost its lock by then: what it did does not count.
                    assert_eq!(world.release(&token, granted, "done|0|")[0], "0");
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
