//! Each call of the script, as a step of the rules: what it left in the keys, whom it told what, and to whom it granted the
//! lock must be what the rules say. Those about one key of a lock that is moving, and those that raise a fence to what a
//! majority gave, have simpler rules, which are here.
//!
//! MONITOR shows what a script did, and neither what it read nor what it answered. What the rules ask of the world is
//! therefore searched for: which moment of the server's clock a call had, whether a key that was about to expire was still
//! there, and who listened to its channel. If no world explains what the script did, it did what the rules do not allow.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt::Debug;

use super::Trace;
use super::keyspace::Keyspace;
use super::lock;
use super::monitor::{Command, Snapshot};
use super::token::{End, Token};
use crate::machine::{
    Begun, Claimant as _, Heard, Holder, Lock, Mode, Op, Record, Recording, Renewal, Request, Verdict, Word, World,
};
use crate::observer::who as owner;
use crate::record::{Nanos, Who, boot_clock};
use crate::script::{AHEAD, COMPANIONS, companion, word};
use crate::support::ailing::{REFUSES, SERVES};

/// How far what expires may be from when it was to expire, in ms: the server's clock for it is a little older than the one
/// that the script reads.
const BLUR: u64 = 3;
/// If a server's clock goes back by more than this, in µs, it was set back.
const SET_BACK: u64 = 1000;
/// How long a server may take from reading its clock to telling of it, in µs.
const HELD_UP: u64 = 2_000_000;

/// What the test says to a server in a `PING`, with the key of a lock, as MONITOR does not tell of CLUSTER SETSLOT: its slot
/// is about to move, from there or to there; and it has moved.
pub const LEAVES: &str = "leaves ";
pub const ARRIVES: &str = "arrives ";
const PING: &str = "PING";

/// A call of the script: its request, and what it did.
struct Call {
    /// When the server told of the command before it: no moment of the call is earlier.
    since: u64,
    /// When the server told of the call itself.
    begins: u64,
    /// When it read the clock.
    at: u64,
    /// When the server told of its last command.
    last: u64,
    /// It is about one key of a lock that is moving, or raises a fence.
    is_simple: bool,
    key: String,
    fields: BTreeMap<String, String>,
    operation: String,
    writes: Vec<Vec<String>>,
    /// The channel and the word of each message to a waiter.
    said: Vec<(String, String)>,
    /// The server has begun to execute it.
    began: bool,
}

/// A grant that the rules gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The key of the lock.
    pub key: String,
    pub token: Token,
    pub fence: u64,
    pub slot: Option<u16>,
}

impl Granted {
    /// Returns the attempt that has the lock: its token says it in its reason.
    pub fn who(&self) -> Option<Who> {
        owner(&self.token.0)
    }
}

pub struct Replay {
    /// None until a snapshot says how the keys are.
    keys: Option<Keyspace>,
    /// Another server is its master: it grants nothing.
    is_replica: bool,
    /// It may become a replica at any time.
    may_be_replica: bool,
    /// It is full, or read-only: it may refuse what a script writes first.
    refuses: bool,
    /// From when to when, by the server's clock, it was not seen so far what the server executed. None: everything is seen,
    /// though the keys may not be known.
    unseen: Option<(u64, u64)>,
    /// The locks whose keys are coming from another server, or going to one. The server may abort a script about one in the
    /// middle, where it needs a key that is not there any more.
    moving: HashSet<String>,
    /// The fences of the reservations that the last step about a lock left, by its key.
    reserved: BTreeMap<String, Vec<u64>>,
    /// The fences that calls may have granted that were not seen or not judged, and those given for a lock that was moving.
    fences: HashSet<u64>,
    call: Option<Call>,
    /// The last commands, for the report.
    past: VecDeque<String>,
    grants: Vec<Granted>,
    /// How many calls were steps of the rules.
    steps: usize,
    /// How many calls could not be judged: what they found in the keys had been lost in part, or was not seen.
    unjudged: usize,
    /// What the rules do not allow.
    faults: Vec<(Nanos, String)>,
    /// Intervals of the server's clock of which not everything was seen, in µs.
    gaps: Vec<(u64, u64)>,
    /// When the server told of the last command that was seen, a script's included.
    last: u64,
    /// For the key of a lock, how far its end may be off, in ms: as long as the call took that set it. The server tells of
    /// another program's command after it has executed it: that may be older by the time since the command before it.
    blurs: BTreeMap<String, u64>,
}

/// What a call of the script found.
struct Found<'a> {
    keys: &'a Keyspace,
    /// By the clock that it read.
    us: u64,
    /// How far off, in ms, what it says of the lock's end may be: that end may be, and the call may have been held up
    /// between two looks at the clock.
    blur: u64,
}

/// What is around the lock: what the trace does not tell is chosen.
struct Around {
    us: u64,
    /// Whether those who were asked for listen, in the order in which the rules ask.
    choices: RefCell<Choices>,
    said: Vec<(Token, Word)>,
    /// All who wait were called back.
    calls_back: bool,
}

struct Choices {
    given: Vec<bool>,
    made: Vec<(Token, bool)>,
}

impl Around {
    fn chosen(&self, token: &Token) -> bool {
        let mut choices = self.choices.borrow_mut();
        if let Some((_, listens)) = choices.made.iter().find(|(asked, _)| asked == token) {
            return *listens;
        }
        let listens = choices.given.get(choices.made.len()).copied().unwrap_or(true);
        choices.made.push((token.clone(), listens));
        listens
    }
}

impl World<Token> for Around {
    fn now_us(&self) -> u64 {
        self.us
    }

    fn listens(&self, token: &Token) -> bool {
        self.chosen(token)
    }

    /// The key of an exclusive lock is there, or it is not in the lock.
    fn is_over(&self, token: &Token, holder: &Holder) -> bool {
        token.limit() != 1 && holder.end.is_some_and(|end| end <= self.us / 1000)
    }

    /// The server tells whoever is not there, too.
    fn tell(&mut self, token: &Token, word: Word) -> Heard {
        self.said.push((token.clone(), word));
        if self.chosen(token) { Heard::Yes } else { Heard::No }
    }

    fn call_back(&mut self) {
        self.calls_back = true;
    }
}

impl Replay {
    /// Begins before anything is seen, of a server that may become a replica or not.
    pub fn of(may_be_replica: bool) -> Replay {
        Replay {
            keys: None,
            is_replica: false,
            may_be_replica,
            refuses: false,
            unseen: Some((0, 0)),
            moving: HashSet::new(),
            reserved: BTreeMap::new(),
            fences: HashSet::new(),
            call: None,
            past: VecDeque::new(),
            grants: Vec::new(),
            steps: 0,
            unjudged: 0,
            faults: Vec::new(),
            gaps: Vec::new(),
            last: 0,
            blurs: BTreeMap::new(),
        }
    }

    pub fn into_trace(mut self) -> Trace {
        self.is_seen_from(u64::MAX, 0);
        let Replay { steps, unjudged, faults, grants, gaps, fences, .. } = self;
        Trace { steps, unjudged, faults, grants, gaps, fences, missed: Vec::new() }
    }

    /// Whether the keys are not known any more: the caller is to take a snapshot.
    pub fn is_lost(&self) -> bool {
        self.keys.is_none()
    }

    pub fn begins(&mut self, Snapshot { keys, is_full }: Snapshot, at: u64) {
        // It may have begun unseen to refuse what scripts write, or have ended to.
        self.refuses = is_full;
        self.blurs.clear();
        self.call = None;
        self.is_replica = false;
        // Of a clock that was set back, fences are ahead.
        let last_fence = keys.greatest("}:fence").unwrap_or(0);
        self.fences.extend(lock::generations(&keys));
        self.keys = Some(keys);
        self.is_seen_from(at, last_fence);
        self.past.push_back("a look at all keys".into());
    }

    /// The connection is gone: what the server executes is not seen.
    pub fn is_cut_off(&mut self) {
        self.call = None;
        self.fences.extend(self.keys.take().iter().flat_map(lock::generations));
        self.is_replica = false;
        self.unseen.get_or_insert((self.last, self.last));
        self.fences.extend(self.reserved.values().flatten());
    }

    /// It is a replica, which it was since it was last seen as one, as nothing has cut us off.
    pub fn is_fed(&mut self, at: u64) {
        self.call = None;
        self.keys = None;
        self.is_replica = true;
        self.is_seen_from(at, 0);
    }

    /// Everything is seen that the server executes from then on. The last fence that it had given counts as not seen.
    fn is_seen_from(&mut self, at: u64, last_fence: u64) {
        self.gaps.extend(self.unseen.take().map(|unseen| widened(widened(unseen, at), last_fence.max(at))));
        self.last = at;
    }

    pub fn sees(&mut self, command: &Command) {
        let verb = command.verb();
        if let (PING, Some(text @ (REFUSES | SERVES))) = (&*verb, command.words.get(1).map(String::as_str)) {
            self.ends();
            self.refuses = text == REFUSES;
        }
        if let Some(unseen) = &mut self.unseen {
            *unseen = widened(*unseen, command.at);
            return;
        }
        if self.is_replica {
            return;
        }
        let since = std::mem::replace(&mut self.last, command.at);
        // The clock was set back: a key may have expired by the time that it had.
        if command.at + SET_BACK < since {
            self.is_cut_off();
            return;
        }
        match (&*verb, command.words.get(1)) {
            (PING, Some(text)) => self.moves(text),
            // Which keys are here now, and what they are, is to be looked at.
            ("MIGRATE" | "RESTORE-ASKING", _) => {
                self.ends();
                self.keys = None;
            }
            _ => {}
        }
        if self.keys.is_none() {
            if command.is_in_script {
                self.fences.extend(fence_given(&command.words));
            }
            if let Some(call) = Call::read(command, &verb, since) {
                self.is_not_judged(&call);
            }
            return;
        }
        if command.is_in_script {
            self.in_script(command, &verb, since);
            return;
        }
        self.ends();
        if let Some(call) = Call::read(command, &verb, since) {
            self.note(command);
            self.call = Some(call);
        } else if Keyspace::writes(&verb) {
            self.note(command);
            self.executes(&verb, command, since);
        }
    }

    /// The test says that a lock begins to move, or has arrived.
    fn moves(&mut self, text: &str) {
        if let Some(key) = text.strip_prefix(LEAVES) {
            self.ends();
            self.moving.insert(key.to_owned());
        } else if let Some(key) = text.strip_prefix(ARRIVES) {
            self.ends();
            self.moving.remove(key);
        }
    }

    fn in_script(&mut self, command: &Command, verb: &str, since: u64) {
        let Some(call) = &mut self.call else {
            if Keyspace::writes(verb) {
                self.note(command);
                self.executes(verb, command, since);
            }
            return;
        };
        if verb == "TIME" {
            (call.began, call.at) = (true, command.at);
        }
        call.last = command.at;
        if verb == "PUBLISH" && !command.words[1].contains(":holder:") {
            call.said.push((command.words[1].clone(), command.words[2].clone()));
        }
        if Keyspace::writes(verb) {
            call.writes.push(command.words.clone());
        }
        if Keyspace::writes(verb) || verb == "PUBLISH" {
            self.note(command);
        }
    }

    fn note(&mut self, command: &Command) {
        // A script is told whole.
        let words: Vec<&str> = command.words.iter().map(|word| if word.len() > 1000 { "..." } else { word }).collect();
        let indent = if command.is_in_script { "  " } else { "" };
        self.past.push_back(format!("{} {indent}{}", command.at, words.join(" ")));
        if self.past.len() > 60 {
            self.past.pop_front();
        }
    }

    /// Another program writes, at some moment since the one before it.
    fn executes(&mut self, verb: &str, command: &Command, since: u64) {
        let Some(mut keys) = self.keys.take() else { return };
        let now = command.at / 1000;
        let key = command.words.get(1).cloned().unwrap_or_default();
        // Whether a key is still there decides what this does.
        let is_near = |end: u64| end.abs_diff(now) <= self.blur_of(&key);
        let is_doubtful = verb == "SET" && keys.end(&key).is_some_and(is_near);
        keys.expire(now, |name| if name == key { 0 } else { self.blur_of(name) });
        let end = keys.end(&key);
        match keys.executes(verb, &command.words, now) {
            Ok(()) if is_doubtful => {
                self.keys = Some(keys);
                self.is_cut_off();
            }
            Ok(()) => {
                // When a companion expires says nothing about when the lock ends.
                if keys.end(&key) != end && lock_of(&key) == key {
                    self.blurs.insert(key, command.at.saturating_sub(since) / 1000);
                }
                self.keys = Some(keys);
            }
            Err(why) => {
                self.fails(&why);
                self.is_cut_off();
            }
        }
    }

    fn fails(&mut self, what: &str) {
        let past: Vec<String> = self.past.iter().skip(self.past.len().saturating_sub(40)).cloned().collect();
        self.faults.push((boot_clock(), format!("{what}\n    {}", past.join("\n    "))));
    }

    /// The call is over: it was a step of the rules, or a fault.
    pub fn ends(&mut self) {
        let Some(call) = self.call.take() else { return };
        if call.is_simple && call.began {
            self.ends_simply(&call);
            return;
        }
        // The script was not loaded.
        if !call.began {
            return;
        }
        // Each call writes. One that was refused its first write has done nothing, but test a channel, or tell a waiter of a
        // grant that was to be written next: the waiter asks, and learns that there is none.
        if call.writes.is_empty() {
            let may_be_refused = self.refuses || self.may_be_replica || self.moving.contains(&call.key);
            match may_be_refused && call.said.iter().all(|(_, word)| word == "t" || word == "g") {
                true => self.unjudged += 1,
                false => self.fails(&format!("{} of {} wrote nothing", call.operation, call.key)),
            }
            return;
        }
        let Some(before) = self.keys.take() else { return };
        let blur = self.blur(&call);
        let mut why: Vec<String> = Vec::new();
        let mut is_known = true;
        for us in call.moments() {
            for mut keys in self.before_it(&before, &call, us / 1000, blur) {
                let Some(lock) = lock::read(&keys, &call.key) else {
                    is_known = false;
                    continue;
                };
                let found = Found { keys: &keys.clone(), us, blur };
                let after = call.carried_out(&mut keys, us / 1000).map_err(|what| vec![what]);
                let step = after.and_then(|after| Ok((call.is_a_step(&lock, &found, &after)?, after)));
                match step {
                    Ok((granted, after)) => {
                        self.grants.extend(granted);
                        self.reserved.insert(call.key.clone(), reserved(&after));
                        self.is_explained(&call, keys);
                        return;
                    }
                    Err(what) => why.extend(what),
                }
            }
        }
        // What follows is judged by what the server has then.
        if is_known && !self.moving.contains(&call.key) {
            why.sort();
            why.dedup();
            why.truncate(6);
            self.fails(&format!("{} of {}: {}", call.operation, call.key, why.join("\n    or ")));
        } else {
            self.is_not_judged(&call);
        }
    }

    fn is_not_judged(&mut self, call: &Call) {
        self.unjudged += 1;
        self.fences.extend(call.fences().chain(self.reserved.get(&call.key).into_iter().flatten().copied()));
    }

    /// Returns how far off, in ms, the end of a key may be.
    fn blur_of(&self, key: &str) -> u64 {
        BLUR + self.blurs.get(lock_of(key)).copied().unwrap_or(0)
    }

    /// Returns how far off, in ms, the end of the lock may be that a call found.
    fn blur(&self, call: &Call) -> u64 {
        self.blur_of(&call.key) + call.took()
    }

    /// Returns the keys as a call may have found them: where it is not certain whether the lock's key had expired, both. If
    /// both explain the call, the key is there, so that the next call may find either. Where the call that set its end was
    /// held up, it may end later. Whether a renewal brings the end nearer is not certain either, if it hardly moves it.
    fn before_it(&self, keys: &Keyspace, call: &Call, now: u64, blur: u64) -> Vec<Keyspace> {
        let key = &call.key;
        let mut there = keys.clone();
        there.expire(now, |name| if lock_of(name) == *key { blur } else { self.blur_of(name) });
        let mut found = vec![there];
        let Some(end) = keys.end(key) else { return found };
        if end < now + blur {
            let mut gone = found[0].clone();
            gone.remove(key);
            found.push(gone);
        }
        let renewed = now + call.number("ttl");
        let hardly_moves = call.operation == "renew" && end.abs_diff(renewed) <= blur;
        let held_up = self.blurs.get(key).filter(|held_up| **held_up > 0);
        let others = hardly_moves.then_some([renewed, renewed + 1]).into_iter().flatten();
        for other in others.chain(held_up.map(|held_up| end + held_up)) {
            let mut moved = found[0].clone();
            moved.ends_at(key, other);
            found.push(moved);
        }
        found
    }

    /// A call was a step of the rules, and left these keys.
    fn is_explained(&mut self, call: &Call, keys: Keyspace) {
        self.steps += 1;
        self.keys = Some(keys);
        if call.sets_the_end() {
            self.blurs.insert(call.key.clone(), call.took());
        }
    }

    /// A request of simpler rules is over: it changed only what contains its token, or gave a fence above the last. The server
    /// aborts it where its key has expired since the server chose to execute it here, and not to name the other node.
    fn ends_simply(&mut self, call: &Call) {
        let Some(before) = self.keys.take() else { return };
        let blur = self.blur(call);
        let now = call.at / 1000;
        for mut keys in self.before_it(&before, call, now, blur) {
            let is_aborted = call.writes.is_empty() && !keys.has(&call.key) && self.moving.contains(&call.key);
            if !is_aborted && !call.is_right(&keys, blur) {
                continue;
            }
            for words in &call.writes {
                let _ = keys.executes(&words[0].to_ascii_uppercase(), words, now);
            }
            // One that is raised was given before.
            self.fences.extend(call.fences().filter(|_| call.operation != RAISE));
            self.is_explained(call, keys);
            return;
        }
        let value = before.text(&call.key).unwrap_or_default();
        self.fails(&format!("{} of {}, which is {value:?}: {:?}", call.operation, call.key, call.writes));
    }
}

/// Returns the key of the lock that a key belongs to: it, or that of which it is a companion.
fn lock_of(key: &str) -> &str {
    key.strip_prefix('{').and_then(|rest| rest.split_once("}:")).map_or(key, |(lock, _)| lock)
}

/// The requests about all of a lock; those about one key of a lock that is moving, which another script carries out; and that
/// of servers that vote.
const OPERATIONS: [&str; 5] = ["acquire", "release", "record", "renew", "ask"];
const OF_ONE_KEY: [&str; 5] = ["acquire", "release", "renew", "fence", "withdraw"];
const RAISE: &str = "raise";

/// Returns an interval that contains another, and a time.
fn widened((from, to): (u64, u64), at: u64) -> (u64, u64) {
    (from.min(at), to.max(at))
}

/// Returns the fence that a command in a script gives: one of its own, or that of a share.
fn fence_given(words: &[String]) -> Option<u64> {
    let (key, last) = (words.get(1)?, words.last()?);
    match &*words[0].to_ascii_uppercase() {
        "SET" if key.ends_with("}:fence") => words.get(2)?.parse().ok(),
        "HSET" if key.ends_with("}:terms") => last.split('|').nth(1)?.parse().ok(),
        _ => None,
    }
}

impl Call {
    fn read(command: &Command, verb: &str, since: u64) -> Option<Call> {
        if !matches!(verb, "EVAL" | "EVALSHA") {
            return None;
        }
        let count: usize = command.words.get(2)?.parse().ok()?;
        let (key, operation) = (command.words.get(3)?.clone(), command.words.get(3 + count)?.clone());
        let is_simple = if count == 1 { OF_ONE_KEY.contains(&operation.as_str()) } else { operation == RAISE };
        let is_of_all = count > 1 && key.starts_with("lock:") && OPERATIONS.contains(&operation.as_str());
        if !is_simple && !is_of_all {
            return None;
        }
        let fields = command.words[4 + count..].chunks(2);
        let fields = fields.map(|pair| (pair[0].clone(), pair.get(1).cloned().unwrap_or_default())).collect();
        let (writes, said) = (Vec::new(), Vec::new());
        let at = command.at;
        Some(Call { since, begins: at, at, last: at, is_simple, key, fields, operation, writes, said, began: false })
    }

    /// Returns how long it took by the server's clock, in ms: long if the server was stopped, or its clock set forward, in the
    /// middle of it. The server counts an expiry from the beginning of the call (7.2 and later), or from the command.
    fn took(&self) -> u64 {
        self.last.abs_diff(self.begins) / 1000
    }

    /// Whether it does with its key what it is to do (moving.lua), or with the fence that it raises.
    fn is_right(&self, keys: &Keyspace, blur: u64) -> bool {
        let (value, ttl) = (keys.text(&self.key), self.number("ttl"));
        let writes: Vec<Vec<&str>> =
            self.writes.iter().map(|words| words.iter().map(String::as_str).collect()).collect();
        let fence_of = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        let lasts = (10 * ttl).max(86_400_000);
        let is_ours = value == Some(self.field("token"));
        match &*self.operation {
            "fence" => {
                let last = fence_of(value);
                let [writes] = writes.as_slice() else { return false };
                let ["SET", _, fence, "PX", px] = writes.as_slice() else { return false };
                let fence = fence_of(Some(fence));
                let is_next = fence == last + 1 || fence > last && fence.abs_diff(self.at) < HELD_UP;
                return *px == lasts.to_string() && is_next;
            }
            RAISE => {
                let key = companion(&self.key, "fence");
                let is_lower = is_ours && fence_of(keys.text(&key)) < self.number("fence");
                let is_raised = |words: &[&str]| {
                    let [verb, of, fence, px, ms] = words else { return false };
                    let lasts_so_long = ms.parse::<u64>().is_ok_and(|ms| ms >= lasts);
                    [*verb, *of, *fence, *px] == ["SET", &key, self.field("fence"), "PX"] && lasts_so_long
                };
                return match writes.as_slice() {
                    [] => !is_lower,
                    [words] => is_lower && is_raised(words),
                    _ => false,
                };
            }
            "withdraw" => {
                let is_there = keys.field(&self.key, self.field("field")) == Some(self.field("value"));
                let expected: &[&[&str]] = if is_there { &[&["HDEL", &self.key, self.field("field")]] } else { &[] };
                return writes == expected;
            }
            _ => {}
        }
        let lengthens: &[&str] = &["PEXPIRE", &self.key, self.field("ttl")];
        let expected: &[&[&str]] = match &*self.operation {
            "release" if is_ours => &[&["DEL", &self.key]],
            "acquire" if is_ours => {
                let left = keys.end(&self.key).map_or(0, |end| end.saturating_sub(self.at / 1000));
                let [words] = writes.as_slice() else { return false };
                let ["PEXPIRE", of, px] = words.as_slice() else { return false };
                return *of == self.key && fence_of(Some(px)).abs_diff(ttl.max(left)) <= blur;
            }
            "renew" if is_ours => {
                let left = keys.end(&self.key).map_or(u64::MAX, |end| end.saturating_sub(self.at / 1000));
                let may_be_longer = self.field("how") == "prolong" && left + blur > ttl;
                let is_nearer = self.field("how") != "prolong" || left <= ttl + blur;
                return if writes.is_empty() { may_be_longer } else { is_nearer && writes == [lengthens] };
            }
            "acquire" if value.is_none() => &[&["SET", &self.key, self.field("token"), "PX", self.field("ttl")]],
            _ => &[],
        };
        writes == expected
    }

    /// Whether it sets when the lock's key expires.
    fn sets_the_end(&self) -> bool {
        self.writes.iter().any(|words| matches!(&*words[0], "SET" | "PEXPIRE") && words[1] == self.key)
    }

    /// Returns the fences that it gave.
    fn fences(&self) -> impl Iterator<Item = u64> {
        self.writes.iter().filter_map(|words| fence_given(words))
    }

    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map(String::as_str).unwrap_or_default()
    }

    fn number(&self, name: &str) -> u64 {
        self.field(name).parse().unwrap_or(0)
    }

    /// Returns the moments, in µs, that the script may have read from the clock, the likeliest first: those that it wrote, the
    /// one at which the server told of it, those from which it may have counted what it wrote, and, as the server may have
    /// been stopped before it told of it, or its clock set forward, the one at which it told of the call.
    fn moments(&self) -> Vec<u64> {
        // Some of them are whole milliseconds.
        let earliest = self.begins.min(self.at.saturating_sub(HELD_UP)).max(self.since.min(self.at) / 1000 * 1000);
        let is_possible = |us: &u64| (earliest..=self.at).contains(us);
        let numbers = |word: &String| {
            let digits = word.split(|c: char| !c.is_ascii_digit());
            digits.filter_map(|text| text.parse().ok()).collect::<Vec<u64>>()
        };
        let written: Vec<u64> = self.writes.iter().flatten().flat_map(numbers).collect();
        // The number by which one that goes first is sorted is its ticket less AHEAD.
        let tickets = written.iter().map(|number| AHEAD.unsigned_abs().saturating_sub(*number));
        let mut moments: Vec<u64> = written.iter().copied().chain(tickets).filter(is_possible).collect();
        moments.sort_unstable();
        moments.reverse();
        moments.extend([self.at, (self.at / 1000 * 1000).saturating_sub(1)]);
        let lengths = ["ttl", "lease", "grace"].map(|name| self.number(name));
        // A token says when it was made.
        let ends = self.writes.iter().flatten().filter(|word| !word.contains("nx1:")).flat_map(numbers);
        let began = |end: u64| lengths.map(|ms| end.saturating_sub(ms).saturating_mul(1000));
        moments.extend(ends.flat_map(began).chain([self.begins]).filter(is_possible));
        moments
    }

    /// Writes into the keys what the script wrote. Returns the lock that they hold then.
    ///
    /// # Errors
    /// If the script cannot have found these keys: no key expires while a script runs, so it lengthens only a lock that is
    /// there.
    fn carried_out(&self, keys: &mut Keyspace, now: u64) -> Result<Lock<Token>, String> {
        for words in &self.writes {
            if words[0] == "PEXPIRE" && words[1] == self.key && !keys.has(&self.key) {
                return Err("it lengthened a lock that was not there".into());
            }
            keys.executes(&words[0].to_ascii_uppercase(), words, now)?;
        }
        if let Some(name) = COMPANIONS.iter().find(|name| keys.lasts(&companion(&self.key, name))) {
            return Err(format!("{name} never expires"));
        }
        lock::read(keys, &self.key).ok_or_else(|| "what it left in the keys is no lock".into())
    }

    /// Returns the grant, if it is one.
    ///
    /// # Errors
    /// How what it did differs from what the rules say, for each choice of who listens.
    fn is_a_step(
        &self,
        before: &Lock<Token>,
        found: &Found<'_>,
        after: &Lock<Token>,
    ) -> Result<Option<Granted>, Vec<String>> {
        let mut given: Vec<bool> = Vec::new();
        let mut why = Vec::new();
        loop {
            let choices = RefCell::new(Choices { given: given.clone(), made: Vec::new() });
            let mut around = Around { us: found.us, choices, said: Vec::new(), calls_back: false };
            let mut lock = before.clone();
            let verdict = self.stepped(&mut lock, &mut around);
            match self.same(&lock, after, found, &around) {
                Ok(()) => return Ok(verdict),
                Err(what) => why.push(what),
            }
            // The next choices: the last that was "listens" becomes "does not".
            given = around.choices.into_inner().made.into_iter().map(|(_, listens)| listens).collect();
            while given.last() == Some(&false) {
                given.pop();
            }
            let Some(last) = given.last_mut() else { return Err(why) };
            *last = false;
        }
    }

    /// Executes the request by the rules; returns the grant, if it is one.
    fn stepped(&self, lock: &mut Lock<Token>, around: &mut Around) -> Option<Granted> {
        let token = Token(self.field("token").to_owned());
        let ttl = self.number("ttl");
        let record = (!self.field("who").is_empty()).then(|| Record {
            most: usize::try_from(self.number("most")).unwrap_or(usize::MAX),
            begun: Begun {
                granted: self.number("granted"),
                waited: self.number("waited"),
                fence: self.number("fence"),
            },
            end: End::read(self.field("how")),
        });
        let enclosing: Vec<Token> = self.field("enclosing").split_whitespace().map(|it| Token(it.to_owned())).collect();
        let by = Token(self.field("by").to_owned());
        let op = match self.operation.as_str() {
            "acquire" => Op::Acquire(Request {
                token: &token,
                ttl,
                mode: match self.field("mode") {
                    "once" => Mode::Once,
                    "plain" => Mode::Plain,
                    _ => Mode::Queue,
                },
                lease: self.number("lease"),
                grace: self.number("grace"),
                channel: !self.field("channel").is_empty(),
                ticket: self.number("ticket"),
                last: self.field("last").parse().ok(),
                enclosing: &enclosing,
                record: record.as_ref().map(|record| Recording {
                    most: record.most,
                    waited: record.begun.waited,
                    unless_done: self.field("unless").parse().ok(),
                }),
                margin: None,
            }),
            "renew" => {
                let prolongs = self.field("how") == "prolong";
                Op::Renew(Renewal { token: &token, ttl, prolongs, beside_setnx: false })
            }
            "release" => {
                let (by, keeps) = (Some(&by).filter(|by| !by.0.is_empty()), self.field("keeps").parse().ok());
                Op::Release { token: &token, by, keeps, record }
            }
            "ask" => Op::Ask { of: self.field("id").to_owned(), by: &by, back: !self.field("back").is_empty() },
            _ => Op::Record { token: &token, record: record? },
        };
        match lock.step(&op, around).verdict {
            Verdict::Granted(grant) => {
                Some(Granted { key: self.key.clone(), token: token.clone(), fence: grant.fence, slot: grant.slot })
            }
            _ => None,
        }
    }

    fn same(
        &self,
        rules: &Lock<Token>,
        server: &Lock<Token>,
        found: &Found<'_>,
        around: &Around,
    ) -> Result<(), String> {
        let same = |what: &str, server: &dyn Debug, rules: &dyn Debug| {
            let (server, rules) = (format!("{server:?}"), format!("{rules:?}"));
            if server == rules { Ok(()) } else { Err(format!("{what}: the server has {server}, the rules {rules}")) }
        };
        same("the holders", &holders(server), &holders(rules))?;
        same("the generation", &server.generation, &rules.generation)?;
        same("the fence", &server.fence, &rules.fence)?;
        same("the queue", &server.queue, &rules.queue)?;
        same("who asks", &server.asked, &rules.asked)?;
        same("those that supersede", &server.superseding, &rules.superseding)?;
        same("the runs", &server.runs, &rules.runs)?;
        let caller = self.field("token");
        let channel = |token: &Token| match token.0 == caller {
            true => self.field("channel").to_owned(),
            false => lock::channel(found.keys, &self.key, token),
        };
        let to_all = (format!("{}:wake", self.key), "l".to_owned());
        same("whether all are called back", &self.said.contains(&to_all), &around.calls_back)?;
        let server: Vec<&(String, String)> = self.said.iter().filter(|said| **said != to_all).collect();
        let rules: Vec<(String, String)> = around.said.iter().map(|(token, it)| (channel(token), word(*it))).collect();
        let alike = |(server, rules): (&&(String, String), &(String, String))| {
            let ends = [server, rules].map(|(_, it)| it.strip_prefix('e').and_then(|end| end.parse::<u64>().ok()));
            let [Some(one), Some(other)] = ends else { return *server == rules };
            server.0 == rules.0 && one.abs_diff(other) <= found.blur
        };
        if server.len() == rules.len() && server.iter().zip(&rules).all(alike) {
            return Ok(());
        }
        let now = found.us / 1000;
        Err(format!("messages at {now}: the server sent {server:?}, the rules {rules:?}"))
    }
}

/// Returns the fences of the reservations.
fn reserved(lock: &Lock<Token>) -> Vec<u64> {
    lock.holders.values().filter(|holder| holder.reserved.is_some()).map(|holder| holder.fence).collect()
}

/// Returns what the keys say of the holders: of one that has the lock alone, not since when, and of none which ticket it had.
fn holders(lock: &Lock<Token>) -> BTreeMap<&Token, Holder> {
    let since = |holder: &Holder| if lock.generation.is_some() { holder.since } else { 0 };
    let said = |holder: &Holder| Holder { since: since(holder), reserved: holder.reserved.map(|_| 0), ..*holder };
    lock.holders.iter().map(|(token, holder)| (token, said(holder))).collect()
}
