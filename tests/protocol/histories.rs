//! Random histories, executed on a server and on the model: every reply, every message and everything left in the keys
//! must be the same.
//!
//! Times differ between the two, so instants are compared by their order, and expiries within bounds.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redis::{Connection, cmd};

use crate::model::{Acquired, Ask, Expiring, Inspected, Mode, Model, Released, Renewed, Token, Word};
use crate::scripts::{Base, Script};
use crate::server::{self, KEYS, Server, until, words};
use crate::setnx::STALE;
use crate::shares::{Entered, SHARED, Terms, limit, share};

const OUTSIDER: Token = 99;
/// The tokens up to this one share the key with SETNX clients.
const BESIDE_SETNX: Token = 2;
const HOLDER: &str = "{lock:x}:holder";
const SHARES: &str = "{lock:x}:shares";
const TERMS: &str = "{lock:x}:terms";

#[derive(Clone, Debug)]
enum Event {
    Acquire {
        who: Token,
        mode: Mode,
        ttl: u64,
        grace: u64,
        channel: bool,
        remembers: bool,
    },
    Renew {
        who: Token,
        ttl: u64,
        prolong: bool,
    },
    Release(Token),
    Subscribe(Token),
    Unsubscribe(Token),
    OutsiderSets {
        expires: bool,
    },
    OutsiderDeletes,
    /// By GETSET, a time that has passed; the client may own the lock by it, or have lost.
    SetnxClientWrites,
    LockExpires,
    HolderExpires,
    ShareExpires(Token),
    SharesLost,
    TermsLost,
    /// Rewrites a waiter's record: with an expired lease, with one far too long, or as another version of nxlock.
    Record {
        who: Token,
        lease: Lease,
    },
    Lost(usize),
    FenceAhead,
    Flush,
    ScriptFlush,
}

#[derive(Clone, Copy, Debug)]
enum Lease {
    Over,
    TooLong,
    OtherVersion,
}

fn event(clients: Vec<Token>) -> impl Strategy<Value = Event> {
    let has_shares = clients.iter().any(|who| limit(*who).is_some());
    let who = prop::sample::select(clients);
    let of_this_kind = match has_shares {
        true => prop_oneof![
            3 => who.clone().prop_map(Event::ShareExpires),
            1 => Just(Event::SharesLost),
            1 => Just(Event::TermsLost),
        ]
        .boxed(),
        false => prop_oneof![3 => Just(Event::SetnxClientWrites), 1 => Just(Event::HolderExpires)].boxed(),
    };
    // So near that a waiter is told.
    let shortest = if has_shares { 2_000 } else { 20_000 };
    let mode = prop_oneof![6 => Just(Mode::Queue), 2 => Just(Mode::Once), 1 => Just(Mode::Plain)];
    let acquire = (
        who.clone(),
        mode,
        prop_oneof![4 => Just(20_000), 4 => Just(60_000), 1 => Just(10_000_000), 1 => Just(shortest)],
        prop_oneof![Just(5_000), Just(90_000)],
    )
        .prop_flat_map(|(who, mode, ttl, grace)| {
            (prop::bool::weighted(0.8), prop::bool::weighted(0.8))
                .prop_map(move |(channel, remembers)| Event::Acquire { who, mode, ttl, grace, channel, remembers })
        });
    // Shorter and longer than the ttls of ACQUIRE, and a second away from where a script decides by the difference.
    let ttls = prop_oneof![Just(8_000u64), Just(45_000), Just(200_000)];
    let renew = (who.clone(), ttls, any::<bool>()).prop_map(|(who, ttl, prolong)| Event::Renew { who, ttl, prolong });
    let lease = prop_oneof![Just(Lease::Over), Just(Lease::TooLong), Just(Lease::OtherVersion)];
    prop_oneof![
        24 => acquire,
        3 => renew,
        8 => who.clone().prop_map(Event::Release),
        6 => who.clone().prop_map(Event::Subscribe),
        4 => who.clone().prop_map(Event::Unsubscribe),
        1 => any::<bool>().prop_map(|expires| Event::OutsiderSets { expires }),
        2 => Just(Event::OutsiderDeletes),
        4 => of_this_kind,
        3 => Just(Event::LockExpires),
        2 => (who, lease).prop_map(|(who, lease)| Event::Record { who, lease }),
        1 => (1..=3usize).prop_map(Event::Lost),
        1 => Just(Event::FenceAhead),
        1 => Just(Event::Flush),
        1 => Just(Event::ScriptFlush),
    ]
}

/// The server and the model, side by side.
struct Both<'a> {
    server: &'a Server,
    real: Connection,
    model: Model,
    ears: BTreeMap<Token, Connection>,
    /// The ticket that each client would send back, as the server and as the model gave it.
    tickets: BTreeMap<Token, (u64, u64)>,
    instants: Vec<(u64, u64)>,
}

fn name(token: Token) -> String {
    match token {
        OUTSIDER => "outsider".into(),
        STALE => "1000000000".into(),
        token if token <= BESIDE_SETNX => format!("400000000000000000{token}"),
        token => match limit(token) {
            Some(limit) => format!("nx1:{token}:u@h:1:1:why:{limit}"),
            None => format!("nx1:{token}"),
        },
    }
}

fn record(token: Token) -> String {
    format!("nx1:{}:u@h:1:1:", name(token))
}

/// Returns a waiter as INSPECT shows it.
fn told(token: Token) -> String {
    if token <= BESIDE_SETNX { record(token) } else { name(token) }
}

fn channel(token: Token) -> String {
    format!("{}:wake:a|b{token}", KEYS[0])
}

fn shown_slot(slot: Option<usize>) -> String {
    slot.map_or("-".to_string(), |slot| slot.to_string())
}

impl Both<'_> {
    fn happens(&mut self, event: &Event) {
        let time: (u64, u64) = cmd("TIME").query(&mut self.real).unwrap();
        self.model.now_us = time.0 * 1_000_000 + time.1;
        match event.clone() {
            Event::Acquire { who, mode, ttl, grace, channel, remembers } => {
                self.acquire(&Ask { token: who, ttl, mode, lease: 60_000, grace, channel, ticket: 0 }, remembers);
            }
            Event::Renew { who, ttl, prolong } => {
                let (beside, stood) = (who <= BESIDE_SETNX, self.model.value());
                let (token, record, ms) = (name(who), record(who), ttl.to_string());
                let args = [&token[..], &ms, if prolong { "prolong" } else { "set" }, &record];
                let answer = match beside {
                    true => server::beside_setnx(&mut self.real, Script::Renew(Base::BesideSetnx), &args),
                    false if limit(who).is_some() => {
                        server::share(&mut self.real, Script::Renew(Base::Share), &args[..3])
                    }
                    false if prolong => server::prolong(&mut self.real, &token, &ms),
                    false => server::renew(&mut self.real, &token, &ms),
                };
                let mut answer = words(answer.unwrap()).unwrap();
                // nxlock does the same. The model has both as one step.
                if answer[0] == "1" && answer[1] == "-1" {
                    server::nudge(&mut self.real).unwrap();
                    answer[1] = "0".into();
                }
                let renewed = match beside {
                    true => self.model.renew_beside_setnx(who, ttl, prolong),
                    false if limit(who).is_some() => self.model.renew_share(who, ttl, prolong),
                    false => self.model.renew(who, ttl, prolong),
                };
                let back = beside.then_some(if stood == Some(STALE) { "1" } else { "0" });
                match renewed {
                    Renewed::NotOurs { value, pttl, fence } => self.not_ours(&answer, value, pttl, fence),
                    Renewed::Yes => assert_eq!(answer, ["1", "0"].into_iter().chain(back).collect::<Vec<_>>()),
                    Renewed::Longer(left) => {
                        same_expiry(&answer[1], left);
                        assert_eq!((&answer[0][..], answer.get(2).map(String::as_str)), ("1", back));
                    }
                }
            }
            // Whether that is said depends on when the script reads the time.
            Event::Release(who) if self.model.ends_hardly_sooner_without(who) => {}
            Event::Release(who) => {
                let beside = who <= BESIDE_SETNX;
                let answer = match beside {
                    true => {
                        server::beside_setnx(&mut self.real, Script::Release(Base::BesideSetnx.into()), &[&name(who)])
                    }
                    false if limit(who).is_some() => {
                        server::share(&mut self.real, Script::Release(Base::Share.into()), &[&name(who)])
                    }
                    false => server::release(&mut self.real, &name(who)),
                };
                let answer = words(answer.unwrap()).unwrap();
                let released = match beside {
                    true => self.model.release_beside_setnx(who),
                    false if limit(who).is_some() => self.model.release_share(who),
                    false => self.model.release(who),
                };
                match released {
                    Released::Free => assert_eq!(answer, ["1"]),
                    Released::Next(next) => assert_eq!(answer, ["2", &name(next)]),
                    Released::NotOurs { value, pttl, fence } => self.not_ours(&answer, value, pttl, fence),
                }
            }
            Event::Subscribe(who) => {
                let server = self.server;
                self.ears.entry(who).or_insert_with(|| server::listen(server, &channel(who)));
                self.model.listening.insert(who);
            }
            Event::Unsubscribe(who) => {
                self.ears.remove(&who);
                self.model.listening.remove(&who);
                let real = &mut self.real;
                until("the server has noticed", || {
                    words(cmd("PUBSUB").arg("NUMSUB").arg(channel(who)).query(real).unwrap()).unwrap()[1] == "0"
                });
            }
            Event::OutsiderSets { expires } => {
                let mut set = cmd("SET");
                set.arg(KEYS[0]).arg("outsider").arg("NX");
                if expires {
                    set.arg("PX").arg(60_000);
                }
                set.query::<Option<String>>(&mut self.real).unwrap();
                let until = expires.then(|| self.model.now() + 60_000);
                self.model.lock.get_or_insert(Expiring { is: OUTSIDER, until });
            }
            Event::OutsiderDeletes => {
                self.send(&["DEL", KEYS[0]]);
                self.model.lock = None;
            }
            Event::SetnxClientWrites => {
                self.send(&["GETSET", KEYS[0], &name(STALE)]);
                self.model.lock = Some(Expiring { is: STALE, until: None });
            }
            Event::HolderExpires => {
                self.send(&["DEL", HOLDER]);
                self.model.holder = None;
            }
            Event::ShareExpires(who) => {
                if self.model.shares.ends.is.contains_key(&who) {
                    self.send(&["ZADD", SHARES, "1000", &name(who)]);
                    self.model.shares.ends.is.insert(who, 1000);
                }
            }
            Event::SharesLost => {
                self.send(&["DEL", SHARES]);
                self.model.shares.ends = Expiring::default();
            }
            Event::TermsLost => {
                self.send(&["DEL", TERMS]);
                self.model.shares.forget_terms();
            }
            Event::LockExpires => {
                self.send(&["PEXPIRE", KEYS[0], "1"]);
                let real = &mut self.real;
                until("the lock has expired", || !cmd("EXISTS").arg(KEYS[0]).query::<bool>(real).unwrap());
                self.model.lock = None;
            }
            Event::Record { who, lease } => self.rewrite(who, lease),
            Event::Lost(key) => {
                self.send(&["DEL", KEYS[key]]);
                match key {
                    1 => self.model.queue = Expiring::default(),
                    2 => (self.model.waiters, self.model.reserved) = (Expiring::default(), None),
                    _ => self.model.fence = None,
                }
            }
            Event::FenceAhead => {
                self.send(&["SET", KEYS[3], "4000000000000000"]);
                self.model.fence = Some(Expiring { is: 4_000_000_000_000_000, until: None });
            }
            Event::Flush => {
                self.send(&["FLUSHALL"]);
                let listening = std::mem::take(&mut self.model.listening);
                self.model = Model { now_us: self.model.now_us, listening, ..Model::default() };
            }
            Event::ScriptFlush => self.send(&["SCRIPT", "FLUSH"]),
        }
        self.model.expire();
        self.same_words();
        self.same_state();
    }

    fn acquire(&mut self, ask: &Ask, remembers: bool) {
        let ticket = self.tickets.get(&ask.token).copied().filter(|_| remembers).unwrap_or_default();
        let mode = match ask.mode {
            Mode::Once => "once",
            Mode::Queue => "queue",
            Mode::Plain => "plain",
        };
        let heard = if ask.channel { channel(ask.token) } else { String::new() };
        let (ttl, lease, grace) = (ask.ttl.to_string(), ask.lease.to_string(), ask.grace.to_string());
        let (token, ticket_sent) = (name(ask.token), ticket.0.to_string());
        let args = [&token[..], &ttl, mode, &lease, &grace, &heard, &ticket_sent];
        let (beside, stood) = (ask.token <= BESIDE_SETNX, (self.model.value(), self.model.holder.is_some()));
        let answer = match beside {
            true => {
                let (margin, record) = ("5000".to_string(), record(ask.token));
                let args: Vec<&str> = args.into_iter().chain(["", "", &margin[..], &record]).collect();
                server::beside_setnx(&mut self.real, Script::Acquire(Base::BesideSetnx.into()), &args)
            }
            false if limit(ask.token).is_some() => {
                let args: Vec<&str> = args.into_iter().chain(["", ""]).collect();
                server::share(&mut self.real, Script::Acquire(Base::Share.into()), &args)
            }
            false => server::acquire(&mut self.real, args),
        };
        let answer = words(answer.unwrap()).unwrap();
        let ask = Ask { ticket: ticket.1, ..ask.clone() };
        let acquired = match beside {
            true => self.model.acquire_beside_setnx(&ask),
            false if limit(ask.token).is_some() => self.model.acquire_share(&ask),
            false => self.model.acquire(&ask),
        };
        match acquired {
            Acquired::Granted { fence, entered: Some(Entered { slot, count }) } => {
                self.same_instant(&answer[1], fence);
                assert_eq!((&answer[0][..], &answer[2..]), ("1", &[shown_slot(slot), count.to_string()][..]));
            }
            Acquired::Granted { fence, entered: None } => {
                let taken_over = usize::from(beside && stood == (Some(STALE), false));
                assert_eq!((answer.len(), &answer[0][..]), (2 + taken_over, "1"), "{answer:?}");
                self.same_instant(&answer[1], fence);
            }
            Acquired::Busy { value, pttl, position, length, ticket, channel_used, fence, taken } => {
                assert_eq!(answer.len(), if taken.is_some() { 12 } else { 9 });
                if let Some(taken) = taken {
                    same_expiry(&answer[9], taken.look);
                    assert_eq!(answer[10..], [taken.count.to_string(), taken.least.to_string()]);
                }
                let facts = [
                    self.shown(value, &answer[1]),
                    position.to_string(),
                    length.to_string(),
                    u8::from(channel_used).to_string(),
                ];
                assert_eq!([&answer[1], &answer[3], &answer[4], &answer[6]].map(String::clone), facts);
                same_expiry(&answer[2], pttl);
                if self.same_instant(&answer[5], ticket) > 0 {
                    self.tickets.insert(ask.token, (answer[5].parse().unwrap(), ticket));
                }
                self.same_instant(&answer[7], fence);
                assert!(answer[8].parse::<u64>().unwrap() >= self.model.now_us);
            }
        }
    }

    fn rewrite(&mut self, who: Token, lease: Lease) {
        let now = self.model.now();
        let Some(record) = self.model.waiters.is.get_mut(&who) else { return };
        let (version, lease) = match lease {
            Lease::Over => (1, 1),
            Lease::TooLong => (1, now + 1_000_000),
            Lease::OtherVersion => (2, now + 50_000),
        };
        let channel = if record.channel { channel(who) } else { String::new() };
        let told = if who <= BESIDE_SETNX { format!("\n{}", self::record(who)) } else { String::new() };
        let text = format!("{version}|{lease}|{}|{channel}{told}", record.grace);
        record.lease = lease;
        record.channel &= version == 1;
        self.send(&["HSET", KEYS[2], &name(who), &text]);
    }

    fn send(&mut self, words: &[&str]) {
        cmd(words[0]).arg(&words[1..]).query::<redis::Value>(&mut self.real).unwrap();
    }

    fn not_ours(&mut self, answer: &[String], value: Option<Token>, pttl: i64, fence: u64) {
        assert_eq!(answer[..2], ["0".to_string(), self.shown(value, &answer[1])]);
        same_expiry(&answer[2], pttl);
        self.same_instant(&answer[3], fence);
    }

    /// Returns the value as the server should show it. A generation is an instant, of which only the order is the same.
    fn shown(&mut self, value: Option<Token>, real: &str) -> String {
        if value == Some(SHARED) {
            let generation = real.strip_prefix("nx1:shared:").unwrap_or_else(|| panic!("{real} is not shared"));
            self.same_instant(generation, self.model.shares.generation);
            return real.to_string();
        }
        value.map(name).unwrap_or_default()
    }

    /// Compares fences and tickets: their order on the server must be that in the model.
    fn same_instant(&mut self, real: &str, model: u64) -> u64 {
        let real: u64 = real.parse().unwrap();
        assert_eq!(real == 0, model == 0);
        for &(r, m) in &self.instants {
            assert_eq!(real.cmp(&r), model.cmp(&m), "{real} and {r} are {model} and {m} in the model");
        }
        if real > 0 && !self.instants.contains(&(real, model)) {
            self.instants.push((real, model));
        }
        model
    }

    fn same_words(&mut self) {
        let said = std::mem::take(&mut self.model.said);
        for (&who, ear) in &mut self.ears {
            let letter = |word| match word {
                Word::Granted => "g",
                Word::Look => "n",
                // A time of the server follows.
                Word::LookIn(_) => "e",
                Word::Test => "t",
            };
            let expected: Vec<&str> = said.iter().filter(|(to, _)| *to == who).map(|(_, word)| letter(*word)).collect();
            let mut heard = server::heard(ear);
            heard.iter_mut().filter(|word| word.starts_with('e')).for_each(|word| word.truncate(1));
            assert_eq!(heard, expected, "words to {who}");
        }
    }

    fn same_state(&mut self) {
        let Inspected { value, pttl, fence, reserved, queue } = self.model.inspect();
        let seen = words(server::inspect(&mut self.real).unwrap()).unwrap();
        assert_eq!(seen[0], if value.is_some() { "string" } else { "none" });
        assert_eq!((&seen[1], &seen[5]), (&self.shown(value, &seen[1]), &u8::from(reserved).to_string()));
        same_expiry(&seen[2], pttl);
        self.same_instant(&seen[3], fence);
        let line: Vec<&[String]> = seen[6..].chunks(2).collect();
        let order: Vec<String> = queue.iter().map(|w| told(w.0)).collect();
        assert_eq!(line.iter().map(|w| w[0].clone()).collect::<Vec<_>>(), order);
        for (&(_, ticket), real) in queue.iter().zip(line) {
            self.same_instant(&real[1], ticket);
        }
        let kept: i64 = cmd("PTTL").arg(KEYS[3]).query(&mut self.real).unwrap();
        let until = self.model.fence.as_ref().map(|fence| fence.until);
        same_expiry(
            &kept.to_string(),
            match until {
                None => -2,
                Some(None) => -1,
                Some(Some(until)) => until as i64 - self.model.now() as i64,
            },
        );
        let holder: Option<String> = cmd("GET").arg(HOLDER).query(&mut self.real).unwrap();
        assert_eq!(holder, self.model.holder.as_ref().map(|holder| record(holder.is)));
        let left: i64 = cmd("PTTL").arg(HOLDER).query(&mut self.real).unwrap();
        let until = self.model.holder.as_ref().and_then(|holder| holder.until);
        same_expiry(&left.to_string(), until.map_or(-2, |until| until as i64 - self.model.now() as i64));
        let marker = self.model.reserved.map(|_| "reserved".to_string());
        let fields: BTreeSet<String> = self.model.waiters.is.keys().map(|t| name(*t)).chain(marker).collect();
        assert_eq!(cmd("HKEYS").arg(KEYS[2]).query::<BTreeSet<String>>(&mut self.real).unwrap(), fields);
        for (key, expires) in [(1, self.model.queue.until), (2, self.model.waiters.until)] {
            let left: i64 = cmd("PTTL").arg(KEYS[key]).query(&mut self.real).unwrap();
            assert_eq!(left > 0, expires.is_some(), "{} has {left} ms", KEYS[key]);
            assert_ne!(left, -1, "{} would stay for ever", KEYS[key]);
        }
        self.same_shares();
    }

    fn same_shares(&mut self) {
        let real = &mut self.real;
        let ends: BTreeMap<String, i64> =
            cmd("ZRANGE").arg(SHARES).arg(0).arg(-1).arg("WITHSCORES").query(real).unwrap();
        let mut terms: BTreeMap<String, String> = cmd("HGETALL").arg(TERMS).query(real).unwrap();
        let shares = self.model.shares.clone();
        assert_eq!(
            ends.keys().cloned().collect::<BTreeSet<_>>(),
            shares.ends.is.keys().map(|token| name(*token)).collect()
        );
        for (token, end) in &shares.ends.is {
            same_expiry(&ends[&name(*token)].to_string(), i64::try_from(*end).unwrap());
        }
        let state = shares.state.as_ref().map(|state| {
            let map: String = state.map.iter().map(|taken| if *taken { '1' } else { '0' }).collect();
            format!("{}|{}|{map}", state.least, state.many)
        });
        assert_eq!(terms.remove("state"), state);
        assert_eq!(terms.keys().cloned().collect::<Vec<_>>(), {
            let mut names: Vec<String> = shares.terms.is.keys().map(|token| name(*token)).collect();
            names.sort();
            names
        });
        for (token, Terms { slot, fence, since, reserved }) in &shares.terms.is {
            let real = terms[&name(*token)].clone();
            let fields: Vec<&str> = real.split('|').collect();
            assert_eq!((fields[0], fields[3]), (&shown_slot(*slot)[..], if *reserved { "r" } else { "" }));
            self.same_instant(fields[1], *fence);
            self.same_instant(fields[2], *since);
        }
        for (key, is_there, until) in [
            (SHARES, !shares.ends.is.is_empty(), shares.ends.until),
            (TERMS, !shares.is_without_terms(), shares.terms.until),
        ] {
            let left: i64 = cmd("PTTL").arg(key).query(&mut self.real).unwrap();
            match (is_there, until) {
                (false, _) => assert_eq!(left, -2, "{key} is there"),
                (true, None) => assert_eq!(left, -1, "{key} expires"),
                (true, Some(until)) => same_expiry(&left.to_string(), until as i64 - self.model.now() as i64),
            }
        }
    }
}

fn same_expiry(real: &str, model: i64) {
    let real: i64 = real.parse().unwrap();
    assert_eq!(real.min(0), model.min(0));
    assert!(real <= model + 5_000 && real >= model - 5_000, "{real} ms left, {model} in the model");
}

fn agree(clients: &[Token]) {
    let server = Server::start();
    let config = Config { cases: 450, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let histories = prop::collection::vec(event(clients.to_vec()), 1..60);
    let outcome = runner.run(&histories, |history| {
        let mut real = server.connect();
        cmd("FLUSHALL").query::<()>(&mut real).unwrap();
        let model = Model::default();
        let mut both = Both {
            server: &server,
            real,
            model,
            ears: BTreeMap::new(),
            tickets: BTreeMap::new(),
            instants: Vec::new(),
        };
        clients.iter().for_each(|who| both.happens(&Event::Subscribe(*who)));
        history.iter().for_each(|event| both.happens(event));
        Ok(())
    });
    outcome.unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn the_scripts_do_what_the_model_says() {
    agree(&[1, 2, 3, 4, 5]);
}

#[test]
fn the_scripts_for_shares_do_what_the_model_says() {
    agree(&[3, 4, share(1, 0), share(2, 0), share(3, 2), share(4, 2), share(5, 3)]);
}
