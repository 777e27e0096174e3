//! Random histories of waiters of which only the newest stays: after every call, nobody that was dismissed has the lock
//! or a place in the queue, and nobody else is dismissed. And scripts with a fault, each of which has to be noticed.
//!
//! No lease ends by itself: leases are long, and one that ends has been rewritten.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::once;
use std::slice;

use proptest::prelude::*;
use redis::{Connection, cmd};

use crate::scripts::{Base, Form, Script};
use crate::search::{Fault, all_are_noticed};
use crate::server::{KEYS, Server, eval_with, heard, is_deaf, listen};

const SUPERSEDED: &str = "{lock:x}:superseded";
const SHARES: &str = "{lock:x}:shares";

/// The clients, by the terms of their tokens.
const TERMS: [&str; 8] = ["", "", ":2", ":newest", ":newest", ":newest", ":2:newest", ":2:newest"];

type Client = usize;

/// Returns the form of the scripts for a token.
fn form(token: &str) -> Form {
    let base = if token.contains(":2") { Base::Share } else { Base::Exclusive };
    Form { base, newest: token.ends_with(":newest"), ..Form::default() }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Ask(Client, &'static str),
    /// Gives the lock back, or leaves; afterwards the client begins anew.
    Release(Client),
    /// The client is killed, and another begins anew.
    Kill(Client),
    Deafen(Client),
    Listen(Client),
    /// The waiter's lease is over: it is dropped when it is in the way.
    LeaseEnds(Client),
    LockEnds,
    LoseQueue,
    LoseWaiters,
}

fn event() -> impl Strategy<Value = Event> {
    let who = 0..TERMS.len();
    let mode = prop_oneof![8 => Just("queue"), 2 => Just("once")];
    prop_oneof![
        40 => (who.clone(), mode).prop_map(|(who, mode)| Event::Ask(who, mode)),
        14 => who.clone().prop_map(Event::Release),
        3 => who.clone().prop_map(Event::Kill),
        3 => who.clone().prop_map(Event::Deafen),
        5 => who.clone().prop_map(Event::Listen),
        4 => who.prop_map(Event::LeaseEnds),
        3 => Just(Event::LockEnds),
        1 => Just(Event::LoseQueue),
        1 => Just(Event::LoseWaiters),
    ]
}

/// What a client knows, and what is known of it.
#[derive(Clone, Debug, Default)]
struct Wait {
    /// Tells the waits of one client apart: a token is never used again.
    number: usize,
    ticket: String,
    /// When it asked without joining, or joined: those that did so later are newer.
    asked: Option<u64>,
    /// The same, once it has joined the queue.
    joined: Option<u64>,
    has_lock: bool,
    is_dismissed: bool,
}

struct Scene<'a> {
    server: &'a Server,
    connection: Connection,
    fault: Option<Fault>,
    waits: Vec<Wait>,
    ears: BTreeMap<Client, Connection>,
    /// The tokens of killed clients.
    killed: Vec<String>,
    /// When those asked that were granted the lock.
    granted: BTreeMap<String, u64>,
    time: u64,
}

/// The contents of the keys.
#[derive(Debug)]
struct Keys {
    value: String,
    shares: BTreeSet<String>,
    queue: Vec<String>,
    superseded: BTreeMap<String, String>,
    /// The waiters that listen, and whose channel the server knows.
    subscribed: BTreeSet<Client>,
}

impl<'a> Scene<'a> {
    fn new(server: &'a Server, fault: Option<Fault>) -> Scene<'a> {
        let mut connection = server.connect();
        cmd("FLUSHALL").query::<()>(&mut connection).unwrap();
        let mut scene = Scene {
            server,
            connection,
            fault,
            waits: vec![Wait::default(); TERMS.len()],
            ears: BTreeMap::new(),
            killed: Vec::new(),
            granted: BTreeMap::new(),
            time: 0,
        };
        (0..TERMS.len()).for_each(|who| scene.listens(who));
        scene
    }

    fn token(&self, who: Client) -> String {
        let letter = |n: usize| char::from(b'a' + u8::try_from(n).unwrap());
        let number = self.waits[who].number;
        let random: String = [who, number / 26, number % 26].map(letter).into_iter().chain(once('x')).collect();
        format!("nx1:{random}:u@h:1:1:why{}", TERMS[who])
    }

    fn client(&self, token: &str) -> Option<Client> {
        (0..TERMS.len()).find(|who| self.token(*who) == token)
    }

    fn channel(&self, who: Client) -> String {
        format!("c{who}.{}", self.waits[who].number)
    }

    fn listens(&mut self, who: Client) {
        let channel = self.channel(who);
        self.ears.insert(who, listen(self.server, &channel));
    }

    fn is_deaf(&mut self, who: Client) {
        self.ears.remove(&who);
        let channel = self.channel(who);
        is_deaf(&mut self.connection, &channel);
    }

    fn begins_anew(&mut self, who: Client) {
        let number = self.waits[who].number + 1;
        self.waits[who] = Wait { number, ..Wait::default() };
        self.listens(who);
    }

    fn ask<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        cmd(words[0]).arg(&words[1..]).query(&mut self.connection).unwrap()
    }

    fn eval(&mut self, script: Script, args: &[&str]) -> Vec<String> {
        eval_with(&mut self.connection, script, self.fault, args)
    }

    fn releases(&mut self, token: &str) -> Vec<String> {
        self.eval(Script::Release(form(token)), &[token])
    }

    fn keys(&mut self) -> Keys {
        type All = (Option<String>, Vec<String>, Vec<String>, BTreeMap<String, String>);
        let mut all = redis::pipe();
        all.cmd("GET").arg(KEYS[0]).cmd("ZRANGE").arg(SHARES).arg(0).arg(-1);
        all.cmd("ZRANGE").arg(KEYS[1]).arg(0).arg(-1).cmd("HGETALL").arg(SUPERSEDED);
        let (value, shares, queue, superseded): All = all.query(&mut self.connection).unwrap();
        let value = value.unwrap_or_default();
        let is_shared = value.starts_with("nx1:shared:");
        let shares = shares.into_iter().filter(|_| is_shared).collect();
        Keys { shares, value, queue, superseded, subscribed: self.subscribed() }
    }

    fn happens(&mut self, event: Event) -> Result<(), String> {
        let before = self.keys();
        for ear in self.ears.values_mut() {
            heard(ear);
        }
        match event {
            Event::Ask(who, mode) => self.asks(who, mode, &before)?,
            Event::Release(who) => {
                let token = self.token(who);
                self.releases(&token);
                self.begins_anew(who);
            }
            Event::Kill(who) => {
                self.is_deaf(who);
                self.killed.push(self.token(who));
                self.begins_anew(who);
            }
            Event::Deafen(who) => self.is_deaf(who),
            Event::Listen(who) => self.listens(who),
            Event::LeaseEnds(who) => {
                let token = self.token(who);
                if self.ask::<bool>(&["HEXISTS", KEYS[2], &token]) {
                    self.ask::<()>(&["HSET", KEYS[2], &token, "1|1|60000|"]);
                }
            }
            Event::LockEnds => {
                self.ask::<()>(&["DEL", KEYS[0]]);
                // A client that has lost the lock does not ask again with the same token.
                for who in (0..TERMS.len()).filter(|who| self.waits[*who].has_lock).collect::<Vec<_>>() {
                    self.killed.push(self.token(who));
                    self.begins_anew(who);
                }
            }
            Event::LoseQueue => self.ask::<()>(&["DEL", KEYS[1]]),
            Event::LoseWaiters => self.ask::<()>(&["DEL", KEYS[2]]),
        }
        let after = self.keys();
        self.keep_the_rule(&after)
    }

    fn asks(&mut self, who: Client, mode: &str, before: &Keys) -> Result<(), String> {
        let token = self.token(who);
        let Wait { ticket, asked, joined, .. } = self.waits[who].clone();
        // A client that waits asks in the queue.
        let mode = if joined.is_some() { "queue" } else { mode };
        let hears = self.ears.contains_key(&who) && mode == "queue";
        let channel = if hears { self.channel(who) } else { String::new() };
        // One that does not join has no ticket to send: with each such request it comes anew.
        let ticket = if ticket.is_empty() || mode != "queue" { "0" } else { &ticket };
        let reply =
            self.eval(Script::Acquire(form(&token)), &[&token, "60000", mode, "60000", "60000", &channel, ticket, ""]);
        let had = before.value == token || before.shares.contains(&token);
        let is_dismissed = self.waits[who].is_dismissed;
        self.time += 1;
        let place = asked.filter(|_| mode == "queue" || had).unwrap_or(self.time);
        self.waits[who].asked = Some(place);
        match reply[0].as_str() {
            "1" if is_dismissed && !had => return Err(format!("{token} was dismissed, and has the lock")),
            "1" => {
                self.waits[who].has_lock = true;
                self.granted.insert(token.clone(), place);
                // A claim of what was its already is nothing new.
                if !had {
                    self.is_not_late(who, place)?;
                    self.dismiss_before(place, who, before)?;
                }
                self.waits[who].joined = None;
                // Nor does it matter any more who came after it.
                self.waits[who].is_dismissed = false;
            }
            "0" if is_dismissed => return Err(format!("{token} was dismissed, and is in the queue again")),
            "0" if mode == "queue" => {
                self.waits[who].ticket.clone_from(&reply[5]);
                if joined.is_none() {
                    self.is_not_late(who, place)?;
                    self.waits[who].joined = Some(place);
                    self.dismiss_before(place, who, before)?;
                }
            }
            // A client that has not joined yet has its ticket nevertheless.
            "0" => {
                self.waits[who].ticket.clone_from(&reply[5]);
                self.waits[who].asked = Some(self.time);
            }
            "2" if !is_dismissed && !self.is_newer(&reply[1], place, joined) => {
                return Err(format!("{token} was not dismissed, and the reply says so: {reply:?}"));
            }
            "2" if !reply[1].contains(":newest") || reply[1] == token => {
                return Err(format!("{token} was dismissed by {reply:?}"));
            }
            "2" => {
                self.releases(&token);
                self.begins_anew(who);
            }
            _ => return Err(format!("{reply:?}")),
        }
        Ok(())
    }

    /// Checks that no client comes in that asked before the holder did.
    fn is_not_late(&mut self, who: Client, place: u64) -> Result<(), String> {
        let value = self.keys().value;
        let Some(holder) = self.client(&value).filter(|holder| *holder != who) else { return Ok(()) };
        let both = TERMS[who].ends_with(":newest") && TERMS[holder] == ":newest";
        match both && self.waits[holder].has_lock && self.waits[holder].asked > Some(place) {
            true => Err(format!("{} comes in though {value} is newer", self.token(who))),
            false => Ok(()),
        }
    }

    /// Returns whether a client that asked later dismisses one that only joins now; or one that has joined, if the other
    /// had no more than a reservation then, and has claimed it since.
    fn is_newer(&self, token: &str, place: u64, joined: Option<u64>) -> bool {
        let other = self.client(token).map(|who| &self.waits[who]);
        match joined {
            None => other.is_none_or(|other| other.asked.is_some_and(|asked| asked > place)),
            Some(_) => self.granted.get(token).is_some_and(|asked| *asked > place),
        }
    }

    /// Notes who is dismissed by a client that joined the queue, or was granted the lock, at that time.
    fn dismiss_before(&mut self, place: u64, by: Client, before: &Keys) -> Result<(), String> {
        if !TERMS[by].ends_with(":newest") {
            return Ok(());
        }
        let after = self.keys();
        for who in (0..TERMS.len()).filter(|who| *who != by && TERMS[*who].ends_with(":newest")) {
            let token = self.token(who);
            let wait = &mut self.waits[who];
            if wait.has_lock || wait.is_dismissed || wait.joined.is_none_or(|joined| joined > place) {
                continue;
            }
            wait.is_dismissed = true;
            let is_told = self.ears.get_mut(&who).is_some_and(|ear| heard(ear).contains(&"s".to_owned()));
            if before.queue.contains(&token) && before.subscribed.contains(&who) && !is_told {
                return Err(format!("{token} is dismissed, and is not told"));
            }
        }
        let first = after.queue.first().and_then(|first| self.client(first)).filter(|first| *first != by);
        if let (Some(first), Some(gone)) = (first, before.queue.first())
            && before.queue.get(1) == after.queue.first()
            && gone.ends_with(":newest")
            && !after.value.is_empty()
            && before.value == after.value
            && before.subscribed.contains(&first)
            && !self.ears.get_mut(&first).is_some_and(|ear| heard(ear).iter().any(|word| word != "t"))
        {
            return Err(format!("{first} is the first now, and is not told: {after:?}"));
        }
        Ok(())
    }

    fn subscribed(&mut self) -> BTreeSet<Client> {
        let records: BTreeMap<String, String> = self.ask(&["HGETALL", KEYS[2]]);
        let knows = |who: &Client| records.get(&self.token(*who)).is_some_and(|r| r.ends_with(&self.channel(*who)));
        self.ears.keys().copied().filter(knows).collect()
    }

    fn keep_the_rule(&mut self, keys: &Keys) -> Result<(), String> {
        let newest: Vec<&String> = keys.queue.iter().filter(|token| token.ends_with(":newest")).collect();
        if newest.len() > 1 {
            return Err(format!("two of them wait: {keys:?}"));
        }
        for (who, wait) in self.waits.iter().enumerate() {
            let token = self.token(who);
            if wait.is_dismissed && keys.queue.contains(&token) {
                return Err(format!("{token} was dismissed, and waits: {keys:?}"));
            }
            let is_there = keys.queue.contains(&token) || keys.value == token || keys.shares.contains(&token);
            let noted = keys.superseded.get("dismissed").is_some_and(|notes| notes.contains(&format!(" {token} ")));
            let before = keys.superseded.get("before").and_then(|mark| mark.split('|').next()?.parse::<u64>().ok());
            let is_known =
                noted || before.is_some_and(|before| wait.ticket.parse().is_ok_and(|own: u64| own <= before));
            if wait.is_dismissed && !is_there && !is_known {
                return Err(format!("that {token} was dismissed is forgotten: {keys:?}"));
            }
        }
        let left: i64 = self.ask(&["PTTL", SUPERSEDED]);
        match left {
            -1 => Err(format!("it never expires: {keys:?}")),
            left if !keys.superseded.is_empty() && left < 86_000_000 => Err(format!("{left} ms are left: {keys:?}")),
            _ => Ok(()),
        }
    }

    fn ends(&mut self) -> Result<(), String> {
        // Those that are served when another leaves are gone after the second round.
        for who in (0..TERMS.len()).chain(0..TERMS.len()) {
            self.happens(Event::Release(who))?;
        }
        for token in std::mem::take(&mut self.killed) {
            self.releases(&token);
        }
        let mut left = self.keys().superseded;
        if self.fault == Some(ONE_NOTE) {
            left.remove("before");
        }
        match left {
            left if left.is_empty() => Ok(()),
            left => Err(format!("left behind: {left:?}")),
        }
    }
}

fn search(fault: Option<Fault>, cases: u32) -> Result<(), String> {
    crate::search::search(fault, cases, event(), |server, history| {
        let mut scene = Scene::new(server, fault);
        history.iter().try_for_each(|event| scene.happens(*event)).and_then(|()| scene.ends())
    })
}

#[test]
fn only_the_newest_waits_in_every_history_and_nobody_else_is_dismissed() {
    search(None, 400).unwrap();
}

/// Scripts that note one dismissed waiter by its token, and the others by their tickets.
const ONE_NOTE: Fault = ("local NOTED = 16", "local NOTED = 1");

#[test]
fn only_the_newest_waits_in_every_history_though_one_alone_is_noted_by_its_token() {
    search(Some(ONE_NOTE), 400).unwrap();
}

#[test]
fn of_waiters_that_were_killed_a_few_notes_stay_and_none_of_them_comes_in_however_late_it_asks() {
    for terms in [":newest", ":2:newest"] {
        let server = Server::start();
        let mut scene = Scene::new(&server, None);
        let token = |number: usize| format!("nx1:w{number:03}:u@h:1:1:why{terms}");
        let ask = |scene: &mut Scene<'_>, token: &str, mode: &str, ticket: &str| {
            scene.eval(Script::Acquire(form(token)), &[token, "60000", mode, "60000", "60000", "", ticket, ""])
        };
        let holder = "nx1:holder:u@h:1:1:why";
        assert_eq!(ask(&mut scene, holder, "once", "0")[0], "1");
        let mut tickets: Vec<String> = Vec::new();
        let mut sizes: Vec<usize> = Vec::new();
        for number in 0..100 {
            let reply = ask(&mut scene, &token(number), "queue", "0");
            assert_eq!(reply[0], "0");
            tickets.push(reply[5].clone());
            sizes.push(scene.keys().superseded.iter().map(|(field, value)| field.len() + value.len()).sum());
        }
        assert_eq!(sizes[99], sizes[50], "bytes of notes: {sizes:?}");
        assert_eq!(scene.keys().queue, [token(99)]);
        let by = ask(&mut scene, &token(98), "queue", &tickets[98]);
        assert_eq!(by[..2], ["2".to_owned(), token(99)]);
        // The newest gives up, and nobody has the lock: they have been dismissed all the same.
        scene.releases(&token(99));
        for lost in [false, true] {
            if lost {
                scene.releases(holder);
                scene.ask::<()>(&["DEL", KEYS[1], KEYS[2]]);
            }
            for (number, ticket) in tickets.iter().enumerate().take(99) {
                let reply = ask(&mut scene, &token(number), "queue", ticket);
                assert_eq!(reply[0], "2", "{number}: {reply:?}");
            }
        }
        assert!(scene.keys().queue.is_empty());
        assert_eq!(ask(&mut scene, &token(100), "queue", "0")[0], "1", "one that comes now is newer than all of them");
    }
}

#[test]
fn a_newcomer_is_newer_than_all_that_are_noted_though_the_clock_was_set_back() {
    let server = Server::start();
    for fault in [None, Some(ONE_NOTE)] {
        let mut scene = Scene::new(&server, fault);
        let token = |number: usize| format!("nx1:w{number:03}:u@h:1:1:why:newest");
        let ask = |scene: &mut Scene<'_>, token: &str, ticket: &str| {
            scene.eval(Script::Acquire(form(token)), &[token, "60000", "queue", "60000", "60000", "", ticket, ""])
        };
        assert_eq!(ask(&mut scene, "nx1:holder:u@h:1:1:why", "0")[0], "1");
        // Tickets of a clock that was years ahead.
        for number in 0..4 {
            assert_eq!(ask(&mut scene, &token(number), &format!("400000000000000{number}"))[0], "0");
        }
        scene.releases(&token(3));
        let reply = ask(&mut scene, &token(4), "0");
        assert_eq!((&reply[0][..], &reply[3][..]), ("0", "1"), "it waits: {reply:?}");
        assert_eq!(ask(&mut scene, &token(2), "4000000000000002")[0], "2");
    }
}

#[test]
fn a_reservation_dismisses_nobody_until_it_is_claimed() {
    let server = Server::start();
    let mut scene = Scene::new(&server, None);
    let (holder, reserved, older, newer) = (0, 5, 4, 3);
    for event in [
        Event::Ask(holder, "queue"),
        Event::Ask(older, "once"),
        Event::Ask(reserved, "queue"),
        Event::Release(holder),
        Event::Ask(newer, "queue"),
        Event::Release(newer),
        Event::Ask(older, "queue"),
    ] {
        scene.happens(event).unwrap();
    }
    let token = scene.token(older);
    assert_eq!(scene.keys().queue, slice::from_ref(&token));
    scene.happens(Event::Ask(reserved, "queue")).unwrap();
    assert_eq!(scene.keys().queue, [token]);
    scene.happens(Event::Ask(older, "queue")).unwrap();
    assert!(scene.keys().queue.is_empty());
    scene.ends().unwrap();
}

#[test]
fn a_slot_whose_lease_is_over_is_free_though_a_dismissed_waiter_found_it_first() {
    let server = Server::start();
    let mut scene = Scene::new(&server, None);
    let ask = |scene: &mut Scene<'_>, random: &str, terms: &str, mode: &str, ticket: &str| {
        let token = format!("nx1:{random}:u@h:1:1:why{terms}");
        scene.eval(Script::Acquire(form(&token)), &[&token, "60000", mode, "60000", "60000", "", ticket, ""])
    };
    for holder in ["first", "second"] {
        assert_eq!(ask(&mut scene, holder, ":2", "once", "0")[0], "1");
    }
    let older = ask(&mut scene, "older", ":2:newest", "queue", "0");
    let newer = ask(&mut scene, "newer", ":2:newest", "queue", "0");
    scene.ask::<()>(&["ZADD", SHARES, "1000", "nx1:first:u@h:1:1:why:2"]);
    assert_eq!(ask(&mut scene, "older", ":2:newest", "queue", &older[5])[0], "2");
    let granted = ask(&mut scene, "newer", ":2:newest", "queue", &newer[5]);
    assert_eq!((&granted[0][..], &granted[2][..]), ("1", "0"), "the slot of the first: {granted:?}");
}

/// Faults in the scripts, and what each does.
const FAULTS: [(&str, Fault); 12] = [
    ("who was dismissed is let in again", ("if t == token then return by end", "")),
    ("nobody notes who was dismissed", ("if before then dismiss(theirs, before, token) end", "")),
    ("who is dismissed keeps its place", ("redis.call('ZREM', Q, before)", "")),
    ("who is dismissed is not told", ("publish(w.channel, 's')", "local _ = w")),
    ("nobody knows the newest", ("redis.call('HSET', S, 'newest', digits(ticket) .. '|' .. token)", "")),
    (
        "what is noted is forgotten too soon",
        ("redis.call('PEXPIRE', S, digits(FENCE_MS))", "redis.call('PEXPIRE', S, 24000)"),
    ),
    ("who leaves is still the newest", ("local sound = true\nno_longer_waits()", "local sound = true")),
    (
        "nobody knows that the holder is newer",
        ("ipairs({ 'newest', 'granted', 'before' }) do", "ipairs({ 'newest', 'before' }) do"),
    ),
    ("a grant dismisses nobody", ("supersede(mine)\n", "")),
    ("the next is not told that it is the first", ("or dismissed_first then", "then")),
    ("who enters at once dismisses nobody", ("ticket = next_ticket()\nsupersede(ticket)", "ticket = next_ticket()")),
    ("an older one dismisses a newer one", ("t ~= token and (theirs > ticket or", "false and (theirs > ticket or")),
];

#[test]
fn each_fault_in_a_script_is_noticed() {
    let (alone, shared) = (form(":newest"), form(":2:newest"));
    let scripts = [Script::Acquire(alone), Script::Acquire(shared), Script::Release(alone)];
    all_are_noticed(&FAULTS, &scripts, |fault| search(Some(fault), 2000));
}
