//! Random histories of shares on a server: after every call, what the replies promise and what the keys hold must keep
//! the rule of sharing. And scripts with a fault, each of which has to be noticed.
//!
//! No lease ends by itself: leases are long, and a share expires because its end is set to the past.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::once;

use proptest::prelude::*;
use redis::{Connection, cmd};

use crate::scripts::{Base, Script};
use crate::search::{Fault, all_are_noticed};
use crate::server::{KEYS, Server, eval_with, heard, is_deaf, listen};

const SHARES: &str = "{lock:x}:shares";
const TERMS: &str = "{lock:x}:terms";

/// The clients, by what they ask for: how many may hold the lock while they do, 0 for any number.
const LIMITS: [usize; 8] = [1, 1, 2, 2, 3, 0, 0, 0];

type Client = usize;

/// Returns the kind of the scripts for a client.
fn base(who: Client) -> Base {
    if LIMITS[who] == 1 { Base::Exclusive } else { Base::Share }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Acquire(Client, &'static str),
    Release(Client),
    Renew(Client),
    /// A waiter that does not listen is dead.
    Listen(Client),
    Die(Client),
    Expire(Client),
    LoseKey,
    LoseShares,
    LoseTerms,
    Flush,
}

fn event() -> impl Strategy<Value = Event> {
    let who = 0..LIMITS.len();
    let mode = prop_oneof![6 => Just("queue"), 3 => Just("once"), 1 => Just("plain")];
    prop_oneof![
        30 => (who.clone(), mode).prop_map(|(who, mode)| Event::Acquire(who, mode)),
        16 => who.clone().prop_map(Event::Release),
        4 => who.clone().prop_map(Event::Renew),
        6 => who.clone().prop_map(Event::Listen),
        3 => who.clone().prop_map(Event::Die),
        4 => who.prop_map(Event::Expire),
        1 => Just(Event::LoseKey),
        1 => Just(Event::LoseShares),
        1 => Just(Event::LoseTerms),
        1 => Just(Event::Flush),
    ]
}

fn token(who: Client) -> String {
    let random = "abcdefghijklmnopqrstuvwxy".to_owned() + &char::from(b'a' + u8::try_from(who).unwrap()).to_string();
    match LIMITS[who] {
        1 => format!("nx1:{random}:u@h:1:1:why"),
        limit => format!("nx1:{random}:u@h:1:1:why:{limit}"),
    }
}

fn client(token: &str) -> Option<Client> {
    (0..LIMITS.len()).find(|who| self::token(*who) == token)
}

/// A grant that its client has no reason to believe lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grant {
    fence: u64,
    slot: Option<usize>,
}

struct Scene<'a> {
    server: &'a Server,
    connection: Connection,
    fault: Option<Fault>,
    ears: BTreeMap<Client, Connection>,
    tickets: BTreeMap<Client, String>,
    /// The ticket with which each client was served last.
    served: BTreeMap<Client, u64>,
    /// Holders when the terms were lost: a repeated request may give them another slot.
    forgotten: BTreeSet<Client>,
    /// Waiters without a channel: the server counts them as alive until their leases end.
    polls: BTreeSet<Client>,
    granted: BTreeMap<Client, Grant>,
    /// The generation whose shares were lost: until its key has expired nobody may hold the lock.
    sealed: Option<String>,
    /// The highest fence that each slot, an exclusive holder, and anybody ever had.
    fences: BTreeMap<usize, u64>,
    exclusive_fence: u64,
    highest: u64,
}

/// The contents of the keys.
#[derive(Debug)]
struct Keys {
    value: String,
    /// Whose leases run: claimed ones, and reserved ones.
    shares: BTreeMap<Client, bool>,
    slots: BTreeMap<Client, usize>,
    queue: Vec<Client>,
    state: String,
    has_terms: bool,
}

impl<'a> Scene<'a> {
    fn new(server: &'a Server, fault: Option<Fault>) -> Scene<'a> {
        let mut connection = server.connect();
        cmd("FLUSHALL").query::<()>(&mut connection).unwrap();
        let listening = |who| (who, listen(server, &format!("c{who}")));
        Scene {
            server,
            connection,
            fault,
            ears: (0..LIMITS.len()).map(listening).collect(),
            tickets: BTreeMap::new(),
            served: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            polls: BTreeSet::new(),
            granted: BTreeMap::new(),
            sealed: None,
            fences: BTreeMap::new(),
            exclusive_fence: 0,
            highest: 0,
        }
    }

    fn ask<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        cmd(words[0]).arg(&words[1..]).query(&mut self.connection).unwrap()
    }

    fn eval(&mut self, script: Script, args: &[&str]) -> Vec<String> {
        eval_with(&mut self.connection, script, self.fault, args)
    }

    fn keys(&mut self) -> Keys {
        type All = (Option<String>, (u64, u64), BTreeMap<String, String>, Vec<(String, u64)>, Vec<String>);
        let mut all = redis::pipe();
        all.cmd("GET").arg(KEYS[0]).cmd("TIME").cmd("HGETALL").arg(TERMS);
        all.cmd("ZRANGE").arg(SHARES).arg(0).arg(-1).arg("WITHSCORES").cmd("ZRANGE").arg(KEYS[1]).arg(0).arg(-1);
        let (value, (seconds, micros), terms, ends, queue): All = all.query(&mut self.connection).unwrap();
        let now = seconds * 1000 + micros / 1000;
        let is_shared = value.as_ref().is_some_and(|value| value.starts_with("nx1:shared:"));
        let running = ends.iter().filter(|(_, end)| is_shared && *end > now).filter_map(|(token, _)| {
            let reserved = terms.get(token).is_some_and(|terms| terms.ends_with("|r"));
            Some((client(token)?, reserved))
        });
        let slots = terms.iter().filter_map(|(token, terms)| {
            let slot = terms.split('|').next()?.parse().ok()?;
            Some((client(token)?, slot))
        });
        Keys {
            shares: running.collect(),
            slots: slots.collect(),
            queue: queue.iter().filter_map(|token| client(token)).collect(),
            state: terms.get("state").cloned().unwrap_or_default(),
            has_terms: terms.contains_key("state"),
            value: value.unwrap_or_default(),
        }
    }

    fn happens(&mut self, event: Event) -> Result<(), String> {
        let before = self.keys();
        for waiter in &before.queue {
            self.ears.get_mut(waiter).map(heard);
        }
        match event {
            // A client that is in the queue does not ask without it.
            Event::Acquire(who, _) if before.queue.contains(&who) => self.acquires(who, "queue", &before)?,
            Event::Acquire(who, mode) => self.acquires(who, mode, &before)?,
            Event::Release(who) => {
                let script = Script::Release(base(who).into());
                let reply = self.eval(script, &[&token(who)]);
                let had = self.granted.remove(&who);
                self.tickets.remove(&who);
                if had.is_some() && reply[0] == "0" {
                    return Err(format!("the share of {who} was not there when it was released"));
                }
            }
            Event::Renew(who) => {
                let script = Script::Renew(base(who));
                let reply = self.eval(script, &[&token(who), "60000", "set"]);
                let has = self.granted.contains_key(&who);
                let is_reserved = before.shares.contains_key(&who) || before.value == token(who);
                // Nobody renews what is only reserved.
                if (reply[0] == "1") != has && (has || !is_reserved) {
                    return Err(format!("a renewal by {who} says {reply:?}"));
                }
            }
            Event::Listen(who) => {
                self.ears.insert(who, listen(self.server, &format!("c{who}")));
            }
            Event::Die(who) => {
                self.ears.remove(&who);
                is_deaf(&mut self.connection, &format!("c{who}"));
            }
            Event::Expire(who) => {
                let is_last = before.shares.len() == 1;
                if before.shares.contains_key(&who) {
                    self.granted.remove(&who);
                    self.ask::<()>(&["ZADD", SHARES, "1000", &token(who)]);
                    if is_last {
                        self.ask::<()>(&["DEL", KEYS[0]]);
                    }
                }
            }
            Event::LoseKey => {
                self.ask::<()>(&["DEL", KEYS[0]]);
                self.granted.clear();
                self.sealed = None;
            }
            Event::LoseShares => {
                self.ask::<()>(&["DEL", SHARES]);
                self.sealed = Some(before.value.clone()).filter(|value| value.starts_with("nx1:shared:"));
                self.granted.retain(|who, _| LIMITS[*who] == 1);
            }
            // A grant of a slot may be lost with it, but not that of a reader.
            Event::LoseTerms => {
                self.ask::<()>(&["DEL", TERMS]);
                self.forgotten = self.granted.keys().copied().collect();
            }
            Event::Flush => {
                self.ask::<()>(&["FLUSHALL"]);
                self.granted.clear();
                self.sealed = None;
            }
        }
        let after = self.keys();
        self.keep_the_rule(&after)?;
        if matches!(event, Event::Acquire(..) | Event::Release(_)) {
            self.keep_the_order(event, &before, &after)?;
        }
        Ok(())
    }

    fn acquires(&mut self, who: Client, mode: &str, before: &Keys) -> Result<(), String> {
        let channel = if self.ears.contains_key(&who) && mode == "queue" { format!("c{who}") } else { String::new() };
        let ticket = self.tickets.get(&who).cloned().unwrap_or_else(|| "0".into());
        let script = Script::Acquire(base(who).into());
        let reply = self.eval(script, &[&token(who), "60000", mode, "60000", "60000", &channel, &ticket, ""]);
        if reply[0] == "0" {
            if self.granted.contains_key(&who) && before.has_terms {
                return Err(format!("{who} holds it, and is refused: {reply:?}"));
            }
            self.granted.remove(&who);
            if mode == "queue" {
                self.tickets.insert(who, reply[5].clone());
                self.polls.remove(&who);
                if channel.is_empty() {
                    self.polls.insert(who);
                }
            }
            return Ok(());
        }
        let ticket = self.tickets.remove(&who).and_then(|ticket| ticket.parse().ok());
        self.served.insert(who, ticket.unwrap_or(u64::MAX));
        let fence: u64 = reply[1].parse().unwrap();
        let slot = reply.get(2).and_then(|slot| slot.parse::<usize>().ok());
        let grant = Grant { fence, slot };
        if let Some(had) = self.granted.insert(who, grant) {
            return if had == grant || self.forgotten.remove(&who) {
                Ok(())
            } else {
                Err(format!("{who} had {had:?}, and now has {grant:?}"))
            };
        }
        self.follow_the_fences(who, grant, before)
    }

    fn follow_the_fences(&mut self, who: Client, grant: Grant, before: &Keys) -> Result<(), String> {
        let Grant { fence, slot } = grant;
        match (LIMITS[who], slot) {
            (1, _) if fence <= self.highest => Err(format!("the exclusive fence {fence} does not rise")),
            (1, _) => {
                self.exclusive_fence = fence;
                Ok(())
            }
            (0, _) if fence <= self.exclusive_fence => Err(format!("a reader's fence {fence} is a writer's")),
            (0, _) => Ok(()),
            (limit, Some(slot)) => {
                let others =
                    before.slots.iter().filter(|(other, _)| **other != who && before.shares.contains_key(other));
                let taken: BTreeSet<usize> = others.map(|(_, slot)| *slot).collect();
                let last = self.fences.insert(slot, fence).unwrap_or(0);
                if fence <= last || fence <= self.exclusive_fence {
                    Err(format!("the fence {fence} of slot {slot} does not rise above {last}"))
                } else if slot >= limit
                    || taken.contains(&slot) && self.granted.values().filter(|g| g.slot == Some(slot)).count() > 1
                {
                    Err(format!("{who} got the slot {slot} of {limit}, beside {taken:?}"))
                } else {
                    Ok(())
                }
            }
            (_, None) => Err(format!("{who} got no slot")),
        }?;
        self.highest = self.highest.max(fence);
        Ok(())
    }

    /// Checks who holds the lock, by the replies and by the keys.
    fn keep_the_rule(&self, keys: &Keys) -> Result<(), String> {
        let least =
            |who: &mut dyn Iterator<Item = &Client>| who.map(|who| LIMITS[*who]).filter(|limit| *limit > 0).min();
        let many = |count: usize, least: Option<usize>| least.is_some_and(|least| count > least);
        let held = self.granted.len();
        if many(held, least(&mut self.granted.keys())) {
            return Err(format!("too many believe that they hold it: {:?}", self.granted));
        }
        if self.sealed.as_ref().is_some_and(|sealed| *sealed != keys.value || !keys.shares.is_empty()) {
            return Err(format!("those whose shares were lost are not out yet: {keys:?}"));
        }
        if many(keys.shares.len(), least(&mut keys.shares.keys())) {
            return Err(format!("too many shares: {keys:?}"));
        }
        let slots: Vec<usize> = self.granted.values().filter_map(|grant| grant.slot).collect();
        if slots.iter().collect::<BTreeSet<_>>().len() < slots.len() {
            return Err(format!("a slot was given twice: {:?}", self.granted));
        }
        let is_shared = keys.value.starts_with("nx1:shared:");
        for who in self.granted.keys() {
            let holds = if LIMITS[*who] == 1 { keys.value == token(*who) } else { keys.shares.contains_key(who) };
            if !holds {
                return Err(format!("{who} believes that it holds it: {keys:?}"));
            }
        }
        if is_shared && keys.has_terms && !keys.shares.is_empty() {
            let mut fields = keys.state.split('|');
            let told: usize = fields.next().and_then(|least| least.parse().ok()).unwrap_or(0);
            // Expired shares may still count.
            let least = least(&mut keys.shares.keys()).unwrap_or(0);
            if least > 0 && (told == 0 || told > least) {
                return Err(format!("the least limit is {least}: {keys:?}"));
            }
            let map = fields.nth(1).unwrap_or_default().as_bytes();
            let is_free = |slot: &usize| map.get(*slot) != Some(&b'1');
            let live = keys.slots.iter().filter(|(who, _)| keys.shares.contains_key(who));
            if let Some((who, slot)) = live.clone().find(|(_, slot)| is_free(slot)) {
                return Err(format!("the slot {slot} of {who} counts as free: {keys:?}"));
            }
        }
        Ok(())
    }

    /// Checks that nobody alive was overtaken, and that the first waiter is served as soon as it fits.
    fn keep_the_order(&mut self, event: Event, before: &Keys, after: &Keys) -> Result<(), String> {
        let has = |keys: &Keys, who: &Client| keys.shares.contains_key(who) || keys.value == token(*who);
        let alive = |who: &&Client| self.ears.contains_key(who) || self.polls.contains(who);
        let entered = (0..LIMITS.len()).filter(|who| has(after, who) && !has(before, who));
        for who in entered {
            let is_plain = matches!(event, Event::Acquire(asks, "plain") if asks == who);
            let ahead = before.queue.iter().take_while(|waiter| **waiter != who);
            let is_late = |waiter: &&Client| {
                let ticket = self.tickets.get(waiter).and_then(|ticket| ticket.parse::<u64>().ok());
                ticket.is_some_and(|ticket| self.served.get(&who).is_some_and(|served| *served < ticket))
            };
            // A client that comes back with an earlier ticket was there before.
            let overtaken =
                ahead.filter(alive).filter(|waiter| !is_late(waiter)).find(|waiter| after.queue.contains(waiter));
            if let (Some(waiter), false) = (overtaken, is_plain) {
                return Err(format!("{who} has overtaken {waiter}: {after:?}"));
            }
        }
        if let Event::Release(who) = event
            && LIMITS[who] != 1
            && after.value.starts_with("nx1:shared:")
            && after.shares.is_empty()
            && self.sealed.as_ref() != Some(&after.value)
        {
            return Err(format!("nobody holds it, and its key is left: {after:?}"));
        }
        let first = after.queue.iter().find(alive);
        let Some(first) = first.filter(|_| after.has_terms || !after.value.starts_with("nx1:shared:")) else {
            return Ok(());
        };
        let limits = after.shares.keys().chain(once(first)).map(|who| LIMITS[*who]).filter(|limit| *limit > 0);
        let fits = limits.min().is_none_or(|least| after.shares.len() < least) && !after.shares.is_empty();
        // Exclusive calls do not know of shares that have expired: their waiters look when the key expires. And calls
        // of those who do not queue serve nobody.
        let knows = match event {
            Event::Acquire(who, mode) => LIMITS[who] != 1 && mode != "plain",
            Event::Release(who) => LIMITS[who] != 1,
            _ => false,
        };
        let first = *first;
        // The script only sends a message to a waiter behind dead ones. One that polls finds out by itself.
        let is_behind_dead = before.queue.iter().take_while(|waiter| **waiter != first).any(|waiter| !alive(&waiter));
        let finds_out = is_behind_dead && self.polls.contains(&first);
        let is_called = |scene: &mut Scene<'_>| {
            scene.ears.get_mut(&first).is_some_and(|ear| heard(ear).iter().any(|word| word != "t"))
        };
        let waits = after.value.is_empty() || after.value.starts_with("nx1:shared:") && fits;
        if knows && waits && !finds_out && !is_called(self) {
            return Err(format!("{first} waits, though it fits: {after:?}"));
        }
        Ok(())
    }

    fn ends(&mut self) -> Result<(), String> {
        for who in 0..LIMITS.len() {
            self.happens(Event::Listen(who))?;
        }
        // A client that is served when another leaves is gone after the second round.
        for who in (0..LIMITS.len()).chain(0..LIMITS.len()) {
            self.happens(Event::Release(who))?;
        }
        let left: Vec<String> = self.ask(&["KEYS", "*"]);
        // Leftovers of an earlier generation expire.
        let stays = left.into_iter().filter(|key| *key != KEYS[3]).collect::<Vec<_>>();
        let lasting: Vec<_> = stays.iter().filter(|key| self.ask::<i64>(&["PTTL", key]) < 0).collect();
        if lasting.is_empty() { Ok(()) } else { Err(format!("left behind: {lasting:?}")) }
    }
}

fn search(fault: Option<Fault>, cases: u32) -> Result<(), String> {
    crate::search::search(fault, cases, event(), |server, history| {
        let mut scene = Scene::new(server, fault);
        let kept = history.iter().try_for_each(|event| scene.happens(*event)).and_then(|()| scene.ends());
        kept.map_err(|why| format!("{why}, granted {:?}", scene.granted))
    })
}

#[test]
fn a_waiter_that_polls_behind_a_dead_one_comes_in_when_it_asks() {
    let server = Server::start();
    let mut scene = Scene::new(&server, None);
    let (holder, reader, third, dead, polls) = (0, 7, 4, 3, 5);
    for event in [
        Event::Acquire(holder, "queue"),
        Event::Acquire(reader, "queue"),
        Event::Acquire(third, "queue"),
        Event::Acquire(dead, "queue"),
        Event::Die(polls),
        Event::Acquire(polls, "queue"),
        Event::Die(dead),
        Event::Release(holder),
        Event::Acquire(reader, "queue"),
    ] {
        scene.happens(event).unwrap();
    }
    assert!(!scene.keys().shares.contains_key(&polls));
    scene.happens(Event::Acquire(polls, "queue")).unwrap();
    assert!(scene.keys().shares.contains_key(&polls));
    scene.ends().unwrap();
}

#[test]
fn shares_keep_the_rule_the_order_and_the_fences_in_every_history() {
    search(None, 400).unwrap();
}

#[test]
fn terms_that_were_lost_and_are_written_again_expire() {
    let server = Server::start();
    let mut scene = Scene::new(&server, None);
    let reader = 5;
    for event in [Event::Acquire(reader, "queue"), Event::LoseTerms, Event::Acquire(reader, "queue")] {
        scene.happens(event).unwrap();
    }
    let left: i64 = scene.ask(&["PTTL", TERMS]);
    assert!(left > 0, "the reader dies, and {TERMS} stays: {left} ms");
}

/// Faults in the scripts, and what each does.
const FAULTS: [(&str, Fault); 17] = [
    ("one too many comes in", ("return most == 0 or count < most", "return most == 0 or count <= most")),
    (
        "the limit of the newcomer does not count",
        ("or (n > 0 and n < least)) and n or least", "or false) and n or least"),
    ),
    ("the limits of the holders do not count", ("local most = (least == 0", "local most = (true")),
    (
        "a slot is given twice",
        ("slot = (string.find(map, '0', 1, true) or #map + 1) - 1", "slot = math.max(0, #map - 1)"),
    ),
    (
        "a slot that is free again is not known to be",
        (".. '0' .. string.sub(map, slot + 2)", ".. '2' .. string.sub(map, slot + 2)"),
    ),
    (
        "the least limit is not counted anew",
        ("if least == 0 or many > 0 then return end", "if many == 0 then least = 0 end do return end"),
    ),
    (
        "the fence of a slot does not rise",
        ("if n > 0 then fence = bump(math.max(lasts, redis.call('PTTL', F)))", "if n > 0 then"),
    ),
    (
        "a new generation has the fence of the last",
        ("generation = bump(fence_ms)", "generation = last_fence() or bump(fence_ms)"),
    ),
    (
        "what is left of a generation counts in the next",
        ("redis.call('DEL', H, T)\nfound", "redis.call('DEL', T)\nfound"),
    ),
    ("a share is renewed whatever the lock holds", ("value and string.sub(value, 1, 11) == 'nx1:shared:' and", "")),
    (
        "shares that were lost count as nobody's",
        ("if found == 0 then return false end", "if found == 0 then whole = true return true end"),
    ),
    ("a release serves nobody", ("  serve(0)\n", "")),
    ("readers pass a writer", ("if not n or not fits(n) then", "if not n then break elseif not fits(n) then")),
    (
        "who does not queue passes the queue",
        ("(mode == 'plain' or redis.call('ZCARD', Q) == 0) and fits(limit)", "fits(limit)"),
    ),
    ("a repeated request enters again", ("if mine then\nredis.call('PEXPIRE'", "if false then\nredis.call('PEXPIRE'")),
    ("the last to leave leaves the key", ("if value then redis.call('DEL', K) end", "")),
    ("a dead waiter blocks the queue", ("moved = dropped\n", "break\n")),
];

#[test]
fn each_fault_in_a_script_is_noticed() {
    let form = Base::Share.into();
    let scripts = [Script::Acquire(form), Script::Release(form), Script::Renew(Base::Share)];
    all_are_noticed(&FAULTS, &scripts, |fault| search(Some(fault), 2000));
}
