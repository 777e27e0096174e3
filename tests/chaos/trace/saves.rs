//! Each save of a lock's file, as a step of the rules: what it changed must be what a request changes.
//!
//! A file has the number of its save, which grows by one, and keeps the state before the last one: whoever looks after each
//! write sees all of them. It does not say who made a save, nor by which request. Every request of every token that either
//! state names is therefore tried, in the world that the states show: who is gone has ended, and who waits is alive. If
//! none explains a save, it did what the rules do not allow.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::SystemTime;

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::Trace;
use super::replay::Granted;
use super::token::{End, Token};
use crate::arena::runs_before_others;
use crate::machine::{
    Begun, Bounds, Broken, Claimant as _, Heard, Holder, Lock, Mode, Op, Record, Recording, Renewal, Request, Run,
    Verdict, Waiter, Word, World,
};
use crate::record::boot_clock;
use crate::support::{record, wall};

/// How long a reservation lasts at most, in ms.
const GRACE: u64 = 1000;
/// How long it is noted who broke a lock, at most, in ms.
const NOTED_FOR: u64 = 30_000;
/// How much later than its ticket a waiter may be saved, and a holder than its fence, in µs.
const LATE: u64 = 1_000_000;
/// Tokens that neither hold the lock nor wait for it: a request of theirs drops those who are gone, and changes no more.
const NOBODY: [&str; 2] = ["nx1:nobodynobodynobodynobodyno:u@h:1:1:", "nx1:nobodynobodynobodynobodyno:u@h:1:1::0"];

/// Follows the locks of a directory until `enough`. To judge a save takes longer than to make one: another thread reads.
pub fn follow(directory: &Path, enough: impl Fn() -> bool + Send) -> Trace {
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || reads(directory, enough, |seen| drop(tell.send(seen))));
        let mut files = Files::default();
        told.into_iter().for_each(|seen| files.takes(seen));
        files.trace
    })
}

/// Reads the files of a directory whenever one changes, until `enough`.
fn reads(directory: &Path, enough: impl Fn() -> bool, mut tell: impl FnMut(Seen)) {
    let events = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).expect("inotify");
    let changes = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
    let (mut reader, mut is_watched) = (Reader::default(), false);
    runs_before_others();
    loop {
        // nxlock makes the directory.
        is_watched = is_watched || events.add_watch(directory, changes).is_ok();
        // It knows when it ends: what was written by then is seen.
        let is_last = enough();
        reader.looks(directory, &mut tell);
        if is_last {
            return;
        }
        let _ = poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLIN)], if is_watched { 50_u16 } else { 1 });
        // Which it was does not matter.
        let _ = events.read_events();
    }
}

/// A time by each of the clocks of nxlock, in µs.
#[derive(Clone, Copy, Default)]
struct Moment {
    /// That of tickets and leases.
    boot: u64,
    /// That of fences and records.
    wall: u64,
}

impl Moment {
    fn now() -> Moment {
        let since = wall().duration_since(SystemTime::UNIX_EPOCH).expect("the clock is set");
        Moment { boot: boot_clock() / 1000, wall: u64::try_from(since.as_micros()).expect("it fits") }
    }
}

/// A file, as it was read.
struct Seen {
    path: PathBuf,
    file: FileId,
    bytes: Vec<u8>,
    /// When the look before this one began, and when it was read. The first was long ago for the first look.
    looks: (Moment, Moment),
}

/// A file that was deleted and made again is another.
type FileId = (u64, Option<SystemTime>);

#[derive(Default)]
struct Reader {
    /// When the last look began; before the first, long ago.
    seen: Moment,
    /// The files as they were read last.
    last: BTreeMap<PathBuf, (FileId, Vec<u8>)>,
}

impl Reader {
    /// Tells of each file that is another than at the last look.
    fn looks(&mut self, directory: &Path, mut tell: impl FnMut(Seen)) {
        let since = std::mem::replace(&mut self.seen, Moment::now());
        let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
        for path in entries.filter(|path| path.extension().is_some_and(|extension| extension == "lock")) {
            let Ok(mut file) = File::open(&path) else { continue };
            let Ok(about) = file.metadata() else { continue };
            let mut bytes = Vec::new();
            if file.read_to_end(&mut bytes).is_err() {
                continue;
            }
            // The read shows each save of before. On a busy machine this thread may have waited since the look began.
            let looks = (since, Moment::now());
            let read = ((about.ino(), about.created().ok()), bytes);
            if self.last.get(&path) != Some(&read) {
                let (file, bytes) = read.clone();
                self.last.insert(path.clone(), read);
                tell(Seen { path, file, bytes, looks });
            }
        }
    }
}

#[derive(Default)]
struct Files {
    /// The last save of each file that was seen.
    last: BTreeMap<PathBuf, Save>,
    /// The ticket of each that has waited: one that was dropped comes back with it.
    tickets: BTreeMap<Token, u64>,
    /// Between which moments a save was missed: a ticket of that time may have been given by it.
    missed: Vec<(Moment, Moment)>,
    trace: Trace,
}

struct Save {
    file: FileId,
    number: u64,
    state: State,
}

impl Files {
    fn takes(&mut self, Seen { path, file, bytes, looks }: Seen) {
        for (number, text) in record::saves(&bytes) {
            self.sees(&path, Save { file, number, state: State::read(text) }, looks);
        }
    }

    fn sees(&mut self, path: &Path, save: Save, looks: (Moment, Moment)) {
        for Waiter { token, ticket, .. } in &save.state.lock.queue {
            let may_be_missed =
                |(since, seen): &(Moment, Moment)| (since.boot.saturating_sub(LATE)..=seen.boot).contains(ticket);
            if self.missed.iter().any(may_be_missed) {
                self.tickets.entry(token.clone()).or_insert(*ticket);
            }
        }
        let before = self.last.remove(path).filter(|last| last.file == save.file);
        let fails = |trace: &mut Trace, what: String| trace.faults.push((boot_clock(), what));
        match &before {
            Some(last) if last.number > save.number => {
                self.last.extend(before.map(|last| (path.to_owned(), last)));
                return;
            }
            Some(last) if last.number == save.number => {
                if last.state.text != save.state.text {
                    let (one, other) = (&last.state.text, &save.state.text);
                    fails(
                        &mut self.trace,
                        format!("two saves of {path:?} are number {}:\n{one}\n{other}", save.number),
                    );
                }
            }
            Some(last) if last.number + 1 == save.number => {
                match last.state.leads_to(&save.state, &self.tickets, looks.1) {
                    Ok(granted) => {
                        self.trace.steps += 1;
                        self.trace.grants.extend(granted);
                    }
                    Err(why) => fails(&mut self.trace, format!("{why}, save {} of {path:?}", save.number)),
                }
            }
            // A new file has nothing.
            None if save.number == 1 => {}
            _ => {
                self.trace.unjudged += 1;
                let from = looks.0.wall.saturating_sub(LATE);
                self.trace.missed.push((save.state.key().to_owned(), (from, looks.1.wall)));
                // A reader may have been granted a share: its fence is the generation, which may be as old as the lock. A
                // reservation may have been claimed: its fence is as old as that.
                for State { lock, .. } in before.iter().map(|last| &last.state).chain([&save.state]) {
                    self.trace.fences.extend(lock.generation);
                    self.trace.fences.extend(lock.holders.values().map(|holder| holder.fence));
                }
                self.missed.push(looks);
            }
        }
        self.tickets.extend(save.state.tickets().map(|(token, ticket)| (token.clone(), ticket)));
        self.last.insert(path.to_owned(), save);
    }
}

/// What a file says of a lock.
struct State {
    text: String,
    lock: Lock<Token>,
    /// When claims were granted, in µs since boot.
    granted: BTreeSet<u64>,
    /// When claims may end that their processes keep, in ms since boot.
    lasts: BTreeMap<Token, u64>,
}

fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let field = line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    field.unwrap_or_else(|| panic!("no {name} in {line}"))
}

fn number(line: &str, name: &str) -> u64 {
    field(line, name).parse().unwrap_or_else(|_| panic!("no number {name} in {line}"))
}

fn optional(line: &str, name: &str) -> Option<u64> {
    (field(line, name) != "-").then(|| number(line, name))
}

fn token(line: &str, name: &str) -> Token {
    Token(field(line, name).to_owned())
}

fn run(line: &str) -> Run<Token> {
    let begun =
        Begun { granted: number(line, "granted_us"), waited: number(line, "waited_ms"), fence: number(line, "fence") };
    let end = End::read(field(line, "end")).unwrap_or_else(|| panic!("no end in {line}"));
    Run { who: token(line, "token"), begun, ended: optional(line, "ended_us"), end }
}

impl State {
    fn read(text: String) -> State {
        let mut state = State { text, lock: Lock::default(), granted: BTreeSet::new(), lasts: BTreeMap::new() };
        let State { text, lock, granted, lasts } = &mut state;
        for line in text.lines() {
            match line.split(' ').next().unwrap_or_default() {
                "lock" => (lock.fence, lock.generation) = (number(line, "fence"), optional(line, "generation")),
                "holder" => {
                    let token = token(line, "token");
                    granted.insert(number(line, "granted_us"));
                    lasts.extend(optional(line, "not_before_us").map(|until| (token.clone(), until.div_ceil(1000))));
                    let holder = Holder {
                        end: optional(line, "until_ms"),
                        limit: token.limit(),
                        fence: number(line, "fence"),
                        slot: field(line, "slot").parse().ok(),
                        since: number(line, "since_us"),
                        reserved: optional(line, "reserved_for"),
                    };
                    lock.holders.insert(token, holder);
                }
                "waiter" => {
                    let (ticket, grace) = (number(line, "ticket"), number(line, "grace_ms"));
                    lock.queue.push(Waiter {
                        ticket,
                        token: token(line, "token"),
                        lease: 0,
                        grace,
                        hears: true,
                        beside_setnx: false,
                    });
                }
                "newest" => lock.superseding.newest = Some((number(line, "ticket"), token(line, "token"))),
                "dismissed" => lock.superseding.dismissed = Some((number(line, "ticket"), token(line, "by"))),
                "noted" => _ = lock.superseding.noted.insert(token(line, "token"), token(line, "by")),
                "more" => lock.superseding.more = true,
                "asked" => _ = lock.asked.insert(field(line, "of").to_owned(), token(line, "by")),
                "broken" => {
                    let (of, by) = (field(line, "of").to_owned(), token(line, "by"));
                    lock.broken = Some(Broken { of, by, until: number(line, "until_ms") });
                }
                "runs" => lock.runs.since = optional(line, "since_us"),
                "begun" => {
                    let Run { who, begun, .. } = run(&format!("{line} ended_us=- end=|"));
                    lock.runs.begun.insert(who, begun);
                }
                "ended" => lock.runs.ended.push(run(line)),
                "done" => lock.runs.done = Some(run(line)),
                _ => panic!("it is not known here what {line} says"),
            }
        }
        lock.queue.sort_by(|one, other| one.order().cmp(&other.order()));
        state
    }

    /// Returns the grant by which a state leads to the next one, if it is one. `tickets` are those that were given before;
    /// `seen` is when the next one was seen.
    ///
    /// # Errors
    /// If no request does.
    fn leads_to(&self, after: &State, tickets: &BTreeMap<Token, u64>, seen: Moment) -> Result<Option<Granted>, String> {
        let tokens = self.tokens().chain(after.tokens()).cloned().chain(NOBODY.map(|nobody| Token(nobody.into())));
        let tokens: BTreeSet<Token> = tokens.collect();
        for before in self.as_it_may_be_found(after) {
            for world in worlds(&before, after, seen) {
                for token in &tokens {
                    let ticket = tickets.get(token).copied();
                    for holder in [None, before.holders.get(token)] {
                        if let Some(granted) = leads(&before, (token, ticket), after, &world.if_over(token, holder)) {
                            return Ok(granted);
                        }
                    }
                }
            }
        }
        Err(format!("no request leads from\n{}    to\n{}", indented(&self.text), indented(&after.text)))
    }

    /// Returns the key of the lock.
    fn key(&self) -> &str {
        field(self.text.lines().next().unwrap_or_default(), "key")
    }

    fn tokens(&self) -> impl Iterator<Item = &Token> {
        let Lock { holders, queue, superseding, asked, runs, .. } = &self.lock;
        let waiting = queue.iter().map(|waiter| &waiter.token);
        let newest = superseding.newest.iter().map(|(_, token)| token);
        let ended = runs.ended.iter().map(|run| &run.who);
        let others = superseding.noted.keys().chain(asked.values()).chain(runs.begun.keys());
        holders.keys().chain(waiting).chain(newest).chain(ended).chain(others)
    }

    /// Returns the tickets of those who wait, have a reservation, or have superseded the others.
    fn tickets(&self) -> impl Iterator<Item = (&Token, u64)> {
        let Lock { holders, queue, superseding, .. } = &self.lock;
        let waiting = queue.iter().map(|waiter| (&waiter.token, waiter.ticket));
        let reserved = holders.iter().filter_map(|(token, holder)| Some((token, holder.reserved?)));
        waiting.chain(reserved).chain(superseding.newest.iter().map(|(ticket, token)| (token, *ticket)))
    }

    /// Returns the lock as a request may find it: with what the kernel says of processes that are gone.
    fn as_it_may_be_found(&self, after: &State) -> Vec<Lock<Token>> {
        let mut lasting = self.lock.clone();
        for (token, until) in self.lasts.iter().filter(|(token, _)| !after.lasts.contains_key(*token)) {
            lasting.holders.entry(token.clone()).and_modify(|holder| holder.end = Some(*until));
        }
        let mut found = vec![self.lock.clone(), lasting];
        for at in 0..found.len() {
            let mut without_the_newest = found[at].clone();
            without_the_newest.superseding.newest = None;
            let mut without_any = found[at].clone();
            without_any.superseding = Default::default();
            found.extend([without_the_newest, without_any]);
        }
        found.dedup();
        found
    }
}

/// Returns a waiter as it is read from a file, which says neither when its lease ends nor whether messages reach it.
fn as_it_is_read(waiter: Waiter<Token>) -> Waiter<Token> {
    Waiter { lease: 0, hears: true, ..waiter }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("        {line}\n")).collect()
}

/// What is around a lock.
#[derive(Clone)]
struct Present {
    /// By the clock of leases, in µs.
    us: u64,
    /// By the clock of fences, in µs.
    wall: u64,
    /// The holders whose claims have ended, as they were found.
    over: BTreeMap<Token, Holder>,
    dead: BTreeSet<Token>,
}

impl Present {
    /// Returns the same if a claim has ended, or has not.
    fn if_over(&self, token: &Token, holder: Option<&Holder>) -> Present {
        let mut over = self.over.clone();
        over.remove(token);
        over.extend(holder.map(|holder| (token.clone(), *holder)));
        Present { over, ..self.clone() }
    }
}

impl World<Token> for Present {
    fn now_us(&self) -> u64 {
        self.us
    }

    fn wall_us(&self) -> u64 {
        self.wall
    }

    fn listens(&self, _: &Token) -> bool {
        true
    }

    fn lives(&self, waiter: &Waiter<Token>) -> bool {
        !self.dead.contains(&waiter.token)
    }

    fn is_over(&self, token: &Token, holder: &Holder) -> bool {
        self.over.get(token) == Some(holder)
    }

    fn tell(&mut self, _: &Token, _: Word) -> Heard {
        Heard::Yes
    }

    fn bounds(&self) -> Bounds {
        Bounds { batch: usize::MAX, dead: usize::MAX, reservations: 1 }
    }
}

/// Returns the worlds in which a save may have been made: at each moment that is new in it, and with those gone whom it has
/// no more.
fn worlds(before: &Lock<Token>, after: &State, seen: Moment) -> Vec<Present> {
    let (known, lock) = (before, &after.lock);
    let stays = |token: &Token| lock.holders.contains_key(token) || lock.waiter(token).is_some();
    let over = known.holders.iter().filter(|(token, _)| !lock.holders.contains_key(*token));
    let over: BTreeMap<Token, Holder> = over.map(|(token, holder)| (token.clone(), *holder)).collect();
    let gone = known.queue.iter().map(|waiter| &waiter.token).filter(|token| !stays(token)).cloned().collect();
    let tickets = |lock: &Lock<Token>| lock.queue.iter().map(|waiter| waiter.ticket).collect::<BTreeSet<u64>>();
    let mut moments: Vec<u64> = after.granted.iter().rev().copied().collect();
    moments.extend(tickets(lock).difference(&tickets(known)));
    moments.extend(lock.broken.iter().map(|broken| broken.until.saturating_sub(NOTED_FOR) * 1000));
    moments.extend(known.broken.iter().map(|broken| (broken.until + 1) * 1000));
    moments.push(seen.boot);
    let times = |lock: &Lock<Token>| -> BTreeSet<u64> {
        let holders = lock.holders.values().map(|holder| holder.since);
        let runs = lock.runs.ended.iter().flat_map(|run| [Some(run.begun.granted), run.ended]).flatten();
        let begun = lock.runs.begun.values().map(|begun| begun.granted);
        holders.chain(runs).chain(begun).chain([lock.fence]).collect()
    };
    let walls: Vec<u64> = times(lock).difference(&times(known)).copied().chain([seen.wall]).collect();
    let present = |us: u64, wall: u64| Present { us, wall, over: over.clone(), dead: BTreeSet::clone(&gone) };
    let at = |us: u64| walls.iter().map(move |wall| present(us, *wall)).collect::<Vec<_>>();
    moments.into_iter().flat_map(at).collect()
}

/// Returns the grant, if it is one, if a request of this token leads to a state. The ticket is the one that it has, if any.
fn leads(
    before: &Lock<Token>,
    (token, ticket): (&Token, Option<u64>),
    after: &State,
    world: &Present,
) -> Option<Option<Granted>> {
    let to = &after.lock;
    let end = to.holders.get(token).and_then(|holder| holder.end);
    let ttl = match (end, to.waiter(token)) {
        (Some(end), _) => end.checked_sub(world.us / 1000).filter(|ttl| *ttl > 0)?,
        (None, Some(waiter)) => waiter.grace,
        (None, None) => GRACE,
    };
    let most = to.runs.ended.len();
    let line = to.runs.ended.iter().find(|run| run.who == *token);
    let begun = to.runs.begun.get(token).or(before.runs.begun.get(token)).copied();
    // Its line may say that it has vanished, until it tells that nothing ran.
    let listed = before.runs.ended.iter().find(|run| run.who == *token).map(|run| run.begun);
    let recording = begun.map(|begun| Recording { most: most.max(1), waited: begun.waited, unless_done: None });
    let ended = line.map(|line| Record { most, begun: line.begun, end: Some(line.end.clone()) });
    let nothing_ran = begun.or(listed).map(|begun| Record { most, begun, end: None });
    let records = [None, ended, nothing_ran];
    let by = to.broken.as_ref().filter(|broken| broken.of == token.id()).map(|broken| &broken.by);
    let mut requests: Vec<Vec<Op<'_, Token>>> = Vec::new();
    for mode in [Mode::Queue, Mode::Once, Mode::Plain] {
        for record in [None, recording] {
            for ticket in [0, ticket.unwrap_or(0)] {
                requests.push(vec![Op::Acquire(Request {
                    token,
                    ttl,
                    mode,
                    lease: 0,
                    grace: GRACE,
                    channel: true,
                    ticket,
                    last: None,
                    enclosing: &[],
                    record,
                    margin: None,
                })]);
            }
        }
    }
    for prolongs in [false, true] {
        let renew = Op::Renew(Renewal { token, ttl, prolongs, beside_setnx: false });
        let recorded = records.iter().flatten().map(|record| Op::Record { token, record: record.clone() });
        requests.extend(recorded.map(|record| vec![renew.clone(), record]));
        requests.push(vec![renew]);
    }
    for record in records {
        requests.push(vec![Op::Release { token, by: None, keeps: None, record }]);
    }
    requests.extend(by.map(|by| vec![Op::Release { token, by: Some(by), keeps: None, record: None }]));
    for (lock, back) in [(to, false), (before, true)] {
        requests.extend(lock.asked.iter().map(|(of, by)| vec![Op::Ask { of: of.clone(), by, back }]));
    }
    requests.iter().find_map(|request| {
        let (mut lock, mut world, mut granted) = (before.clone(), world.clone(), None);
        for op in request {
            match lock.step(op, &mut world).verdict {
                Verdict::Granted(grant) => {
                    let key = after.key().to_owned();
                    granted = Some(Granted { key, token: token.clone(), fence: grant.fence, slot: grant.slot });
                }
                // It knows now, and leaves.
                Verdict::Superseded(_) => {
                    lock.step(&Op::Release { token, by: None, keeps: None, record: None }, &mut world);
                }
                _ => {}
            }
        }
        lock.queue = lock.queue.into_iter().map(as_it_is_read).collect();
        (lock == *to).then_some(granted)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::support::{Authority as _, Local};

    const NOW: u64 = 1000;
    const SEEN: Moment = Moment { boot: 8_000_000, wall: 9_000_000 };

    fn token(who: u16, terms: &str) -> String {
        format!("nx1:{who:08}aaaaaaaaaaaaaaaaaa:u@h:1:1:c{who}{terms}")
    }

    fn holder(who: &str, fence: u64, slot: &str, reserved: &str, until: u64) -> String {
        let since = if fence > NOW { fence } else { NOW };
        format!(
            "holder fence={fence} slot={slot} reserved_for={reserved} granted_us={}000 until_ms={until} \
             since_us={since} life=lease not_before_us=- number=- token={who}",
            NOW + fence % 10
        )
    }

    fn waiter(who: &str, ticket: u64) -> String {
        format!("waiter ticket={ticket} grace_ms=1000 token={who}")
    }

    fn state(fence: u64, generation: &str, lines: &[String]) -> State {
        State::read(format!("lock key=lock:job fence={fence} generation={generation} boot=b\n{}", lines.join("\n")))
    }

    /// Asserts that one state follows another, and a third does not.
    #[track_caller]
    fn follows(before: &State, after: &State, wrong: &State) {
        let leads = |to: &State| before.leads_to(to, &BTreeMap::new(), SEEN);
        leads(after).unwrap();
        leads(wrong).unwrap_err();
    }

    #[test]
    fn a_fence_that_is_given_twice_is_found() {
        let granted = |fence| state(fence, "-", &[holder(&token(1, ""), fence, "0", "-", 9000)]);
        follows(&state(2001, "-", &[]), &granted(2002), &granted(2001));
    }

    #[test]
    fn a_slot_that_is_given_twice_is_found() {
        let [first, second] = [1, 2].map(|who| token(who, ":3"));
        let first = holder(&first, 2001, "0", "-", 9000);
        let both = |slot| state(2002, "2001", &[first.clone(), holder(&second, 2002, slot, "-", 9000)]);
        follows(&state(2001, "2001", std::slice::from_ref(&first)), &both("1"), &both("0"));
    }

    #[test]
    fn a_limit_that_is_passed_is_found() {
        let shares = |terms: &str, many: u64| {
            let holder =
                |n: u64| holder(&token(u16::try_from(n).unwrap(), terms), 2000 + n, &(n - 1).to_string(), "-", 9000);
            state(2000 + many, "2001", &(1..=many).map(holder).collect::<Vec<_>>())
        };
        shares(":3", 2).leads_to(&shares(":3", 3), &BTreeMap::new(), SEEN).unwrap();
        shares(":2", 2).leads_to(&shares(":2", 3), &BTreeMap::new(), SEEN).unwrap_err();
    }

    #[test]
    fn a_reservation_past_the_first_waiter_is_found() {
        let [first, second] = [2, 3].map(|who| token(who, ""));
        let held =
            state(2001, "-", &[holder(&token(1, ""), 2001, "0", "-", 9000), waiter(&first, 10), waiter(&second, 20)]);
        let reserved =
            |to: &str, ticket: &str, until, rest| state(2002, "-", &[holder(to, 2002, "0", ticket, until), rest]);
        let right = reserved(&first, "10", 2002, waiter(&second, 20));
        follows(&held, &right, &reserved(&second, "20", 2002, waiter(&first, 10)));
        // It lasts for the grace.
        follows(&held, &right, &reserved(&first, "10", 3002, waiter(&second, 20)));
    }

    #[test]
    fn a_place_that_is_not_behind_the_others_is_found() {
        let held = [holder(&token(1, ""), 2001, "0", "-", 9000), waiter(&token(2, ""), 5000)];
        let joined = |ticket| state(2001, "-", &[&held[..], &[waiter(&token(3, ""), ticket)]].concat());
        follows(&state(2001, "-", &held), &joined(5001), &joined(4999));
        // Unless it had that place before.
        let tickets = BTreeMap::from([(Token(token(3, "")), 4999)]);
        state(2001, "-", &held).leads_to(&joined(4999), &tickets, SEEN).unwrap();
    }

    #[test]
    fn a_waiter_that_comes_back_after_its_dismissal_is_found() {
        let [older, newer] = [2, 3].map(|who| token(who, ":newest"));
        let held = holder(&token(1, ""), 2001, "0", "-", 9000);
        let marks =
            [format!("newest ticket=20 token={newer}"), format!("dismissed ticket=10 by={newer}"), waiter(&newer, 20)];
        let noted = format!("noted token={older} by={newer}");
        let with = |more: &[String]| state(2001, "-", &[std::slice::from_ref(&held), &marks[..], more].concat());
        follows(&with(std::slice::from_ref(&noted)), &with(&[]), &with(&[noted.clone(), waiter(&older, 10)]));
    }

    #[test]
    fn a_run_that_is_recorded_twice_is_found() {
        let run =
            format!("ended granted_us=1000 waited_ms=0 fence=2001 ended_us=8000 end=done|0| token={}", token(1, ""));
        let begun = format!("begun granted_us=1000 waited_ms=0 fence=2001 token={}", token(1, ""));
        let kept = "runs since_us=1000 kept_until_us=90000".to_owned();
        let held = holder(&token(1, ""), 2001, "0", "-", 9000);
        let ended = |times: usize| {
            let lines = [vec![kept.clone()], vec![run.clone(); times], vec![run.replacen("ended", "done", 1)]].concat();
            state(2001, "-", &lines)
        };
        follows(&state(2001, "-", &[held, kept.clone(), begun]), &ended(1), &ended(2));
    }

    #[test]
    fn a_line_of_who_seemed_to_have_vanished_goes_if_nothing_ran() {
        let kept = "runs since_us=1000 kept_until_us=90000".to_owned();
        let line = |who: u16, end: &str| {
            format!("ended granted_us=1000 waited_ms=0 fence=200{who} {end} token={}", token(who, ""))
        };
        let [vanished, done] = [line(1, "ended_us=- end=vanished||"), line(2, "ended_us=8000 end=done|0|")];
        let lines = |lines: &[&String]| state(2003, "-", &lines.iter().map(|&line| line.clone()).collect::<Vec<_>>());
        follows(&lines(&[&kept, &vanished, &done]), &lines(&[&kept, &done]), &lines(&[&kept, &vanished]));
    }

    #[test]
    fn who_shares_a_lock_by_a_save_that_was_missed_may_have_the_fence_of_those_who_shared_it_before() {
        let mut files = Files::default();
        let mut sees = |number, generation: u64| {
            let one = holder(&token(1, ":0"), generation, "-", "-", 9000);
            let state = state(2003, &generation.to_string(), &[one]);
            files.sees(Path::new("job.lock"), Save { file: (1, None), number, state }, (SEEN, SEEN));
        };
        sees(1, 2001);
        sees(3, 2002);
        sees(5, 2003);
        assert_eq!(files.trace.unjudged, 2);
        assert_eq!(files.trace.fences, HashSet::from([2001, 2002, 2003]));
    }

    #[test]
    fn what_nxlock_saves_are_steps_of_the_rules_and_a_save_that_is_lost_is_found() {
        let local = Local::start();
        let directory = local.directory().join("locks");
        let (mut files, mut reader) = (Files::default(), Reader::default());
        let mut look = |files: &mut Files| reader.looks(&directory, |seen| files.takes(seen));
        for _ in 0..3 {
            let token = local.nxlock(["acquire", "job", "--ttl", "1h"]).run().exits(0).token();
            look(&mut files);
            local.nxlock(["release", "job", &token]).run().exits(0);
            look(&mut files);
        }
        assert!(files.trace.faults.is_empty(), "{:?}", files.trace.faults);
        assert_eq!(files.trace.grants.len(), 3);
        let (path, last) = files.last.pop_first().unwrap();
        let other = State::read(last.state.text.replacen("fence=", "fence=1", 1));
        files.last.insert(path, Save { state: other, ..last });
        Reader::default().looks(&directory, |seen| files.takes(seen));
        assert_eq!(files.trace.faults.len(), 1, "{:?}", files.trace.faults);
    }
}
