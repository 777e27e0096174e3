//! What is saved is what is loaded, wherever a process is killed in between: also through a random history, which takes
//! the same course as by the rules alone.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::SystemTime;

use tempfile::NamedTempFile;

use super::super::state::{Binding, Life};
use super::*;
use crate::lock::machine::{
    Begun, Bounds, Heard, Holder, Lock, Mode, Op, Record, Recording, Renewal, Request, Verdict, Waiter, Word, World,
};
use crate::lock::{Owner, RunEnd, Sharing, SlotCount, Supersedes, Terms, Token, Upkeep};

const ANOTHER: Option<&str> = Some("01234567-89ab-4cde-8f01-23456789abcd");

fn token(limit: u16, supersedes: Supersedes, reason: &str) -> Token {
    let owner = Owner { user: "u".into(), host: "h".into(), pid: 1, known_as: None };
    let sharing = match limit {
        0 => Sharing::Shared,
        1 => Sharing::Exclusive,
        count => Sharing::Slots(SlotCount::of(count).unwrap()),
    };
    let terms = Terms { sharing, supersedes, ..Terms::exclusive(Upkeep::Renewed) };
    Token::mint_for(terms, &owner, Some(reason), SystemTime::UNIX_EPOCH).unwrap()
}

fn waiter(ticket: u64) -> Waiter<Token> {
    let token = token(1, Supersedes::Nobody, "waits");
    Waiter { ticket, token, lease: 0, grace: 1000, hears: true, beside_setnx: false }
}

/// The file of a lock.
struct Ground {
    file: NamedTempFile,
    boot: Boot,
}

impl Ground {
    fn new(state: &State) -> Ground {
        Ground::by(state, Boot::this().unwrap().id())
    }

    /// Returns a file that was created in this boot.
    fn by(state: &State, boot: Option<&str>) -> Ground {
        let ground = Ground { file: NamedTempFile::new().unwrap(), boot: Boot::this().unwrap() };
        let bytes = created(state, boot).unwrap_or_else(|fault| panic!("{}", fault.cause));
        ground.set(&bytes);
        ground
    }

    fn set(&self, bytes: &[u8]) {
        std::fs::write(self.file.path(), bytes).unwrap();
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.file.path()).unwrap()
    }

    fn opened(&self) -> File {
        File::options().read(true).write(true).open(self.file.path()).unwrap()
    }

    fn loaded(&self) -> Result<(Saved, Option<State>), Flaw> {
        load(&self.opened(), self.file.path(), &self.boot, 0).unwrap_or_else(|fault| panic!("{}", fault.cause))
    }

    fn state(&self) -> State {
        self.loaded().unwrap_or_else(|flaw| panic!("{flaw:?}")).1.expect("it is not lost")
    }

    /// Saves a state, as another boot would if `boot` says so.
    fn saves(&self, state: &State, boot: Option<&str>, commits: impl FnOnce()) {
        let (mut saved, _) = self.loaded().unwrap_or_else(|flaw| panic!("{flaw:?}"));
        let to = (boot, Saver::Newcomer);
        let done = saved.save(&self.opened(), self.file.path(), state, to, commits);
        done.unwrap_or_else(|fault| panic!("{}", fault.cause));
    }
}

/// Returns a state with so many waiters.
fn crowded(waiters: u64) -> State {
    let mut state = State::new("lock:a b=%", Some("b"));
    state.lock.queue = (1..=waiters).map(waiter).collect();
    state
}

#[test]
fn what_is_saved_is_loaded_whatever_its_size() {
    let ground = Ground::new(&crowded(0));
    let least = ground.bytes().len();
    assert_eq!(least, HEADERS + 2 * ROOM);
    for waiters in [1, 2, 10, 100, 1000, 1000, 999, 100, 300, 5, 5, 0, 0, 1] {
        let state = crowded(waiters);
        ground.saves(&state, ground.boot.id(), || {});
        assert!(ground.state() == state, "{waiters} waiters");
        // There is room for the next one, wherever that goes.
        let (saved, _) = ground.loaded().unwrap_or_else(|flaw| panic!("{flaw:?}"));
        let room = saved.header.room;
        assert!(ground.bytes().len() >= saved.header.next(room) + room, "{waiters} waiters");
    }
    assert_eq!(ground.bytes().len(), least, "it is short again");
}

#[test]
fn a_process_that_is_killed_while_it_saves_changes_nothing() {
    for (from, to) in [(0, 1), (3, 2), (5, 60), (60, 61), (200, 0)] {
        let (before, after) = (crowded(from), crowded(to));
        let ground = Ground::new(&before);
        // So that both headers are in use.
        ground.saves(&crowded(from + 1), ground.boot.id(), || {});
        ground.saves(&before, ground.boot.id(), || {});
        let old = ground.bytes();
        let killed = || ground.saves(&after, ground.boot.id(), || panic!("killed"));
        assert!(catch_unwind(AssertUnwindSafe(killed)).is_err());
        assert!(ground.state() == before);
        let new = ground.bytes();
        for length in (0..new.len()).step_by(97) {
            let torn = [&new[..length], old.get(length..).unwrap_or_default()].concat();
            ground.set(&torn);
            assert!(ground.state() == before, "{length} bytes, from {from} to {to}");
        }
        ground.set(&new);
        ground.saves(&after, ground.boot.id(), || {});
        assert!(ground.state() == after);
    }
}

#[test]
fn after_a_power_failure_the_older_state_counts_where_the_newer_was_not_written() {
    let [first, second, third] = [1, 2, 3].map(crowded);
    for boot in [ANOTHER, Boot::this().unwrap().id()] {
        let ground = Ground::new(&first);
        ground.saves(&second, boot, || {});
        let old = ground.bytes();
        ground.saves(&third, boot, || {});
        let (Saved { header: Header { at, length, .. }, .. }, _) = ground.loaded().ok().unwrap();
        let mut bytes = ground.bytes();
        bytes[at..at + length].copy_from_slice(&old[at..at + length]);
        ground.set(&bytes);
        match boot == ANOTHER {
            true => assert!(ground.state() == second),
            // The kernel has both of what a process of this boot wrote.
            false => assert!(matches!(ground.loaded(), Err(Flaw::Damaged))),
        }
    }
}

/// Bytes that the kernel writes to the disk together.
const PAGE: usize = 4096;

/// Returns a file as a power failure may leave it: each page as it was at one of the last saves, and the length too.
fn torn(versions: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let mut one = || &versions[dice.below(versions.len())];
    let mut torn = vec![0; one().len()];
    for (at, page) in torn.chunks_mut(PAGE).enumerate() {
        let written = one().chunks(PAGE).nth(at).unwrap_or_default();
        let length = written.len().min(page.len());
        page[..length].copy_from_slice(&written[..length]);
    }
    torn
}

#[test]
fn whatever_of_the_pages_a_power_failure_leaves_the_lock_can_be_had_after_it() {
    let seed = getrandom::u64().unwrap() | 1;
    let mut dice = Dice(seed);
    let mut lost = 0;
    for number in 0..300 {
        let first = crowded(0);
        let ground = Ground::by(&first, ANOTHER);
        let mut states = vec![first];
        // What was there before is on the disk.
        let mut versions = vec![ground.bytes()];
        let most = [5, 20, 100][dice.below(3)];
        for _ in 0..1 + dice.below(6) {
            let state = crowded(dice.below(most).try_into().unwrap());
            ground.saves(&state, ANOTHER, || {});
            versions.push(ground.bytes());
            states.push(state);
        }
        ground.set(&torn(&versions, &mut dice));
        let found = || match ground.loaded() {
            Ok((_, found)) => found,
            Err(flaw) => panic!("failure {number} of {seed}: {flaw:?}"),
        };
        match found() {
            Some(found) => assert!(states.contains(&found), "failure {number} of {seed}"),
            None => lost += 1,
        }
        // Killed before it counts, a save leaves what another boot has saved, or nothing. The one after that counts.
        let next = crowded(dice.below(most).try_into().unwrap());
        states.push(next.clone());
        let killed = || ground.saves(&next, ground.boot.id(), || panic!("killed"));
        let _ = catch_unwind(AssertUnwindSafe(killed));
        assert!(found().is_none_or(|found| states.contains(&found)), "failure {number} of {seed}");
        ground.saves(&next, ground.boot.id(), || {});
        assert!(ground.state() == next, "failure {number} of {seed}");
    }
    assert!((1..300).contains(&lost), "{lost} of {seed}");
}

#[test]
fn nothing_that_this_boot_has_written_is_taken_for_lost() {
    let seed = getrandom::u64().unwrap() | 1;
    let mut dice = Dice(seed);
    for number in 0..200 {
        let ground = Ground::new(&crowded(0));
        let mut versions = vec![ground.bytes()];
        for waiters in [40, 60, 50, 70] {
            ground.saves(&crowded(waiters), ground.boot.id(), || {});
            versions.push(ground.bytes());
        }
        ground.set(&torn(&versions, &mut dice));
        assert!(!matches!(ground.loaded(), Ok((_, None))), "{number} of {seed}");
    }
}

#[test]
fn the_longest_header_fits() {
    let boot = Some("b".repeat(36));
    let header = Header { sequence: u64::MAX, at: AT_MOST, room: AT_MOST, length: AT_MOST, sum: u64::MAX, boot };
    let written = header.written().unwrap();
    assert_eq!((written.len(), 4096 % written.len()), (HEADER, 0));
    assert_eq!(Header::read(&written), Ok(Some(header)));
}

#[test]
fn all_that_a_state_has_is_read_back() {
    let [one, other] = ["one", "other"].map(|reason| token(3, Supersedes::Running, reason));
    let mut state = crowded(2);
    let begun = Begun { granted: 1, waited: 2, fence: 3 };
    let run = |who: &Token, end| crate::lock::machine::Run { who: who.clone(), begun, ended: Some(4), end };
    let lock = &mut state.lock;
    (lock.generation, lock.fence) = (Some(5), u64::MAX);
    let holder = Holder { end: Some(6), limit: 3, fence: 7, slot: Some(2), since: 8, reserved: Some(9) };
    lock.holders.insert(one.clone(), holder);
    lock.holders.insert(other.clone(), Holder { end: None, slot: None, reserved: None, ..holder });
    lock.asked.insert(one.id(), other.clone());
    lock.superseding.newest = Some((10, one.clone()));
    lock.superseding.dismissed = Some((11, other.clone()));
    lock.superseding.noted.insert(one.clone(), other.clone());
    lock.superseding.more = true;
    lock.runs.begun.insert(one.clone(), begun);
    lock.runs.ended = vec![run(&one, RunEnd::exited(3)), run(&other, RunEnd::killed(9)), run(&other, RunEnd::VANISHED)];
    lock.runs.done = Some(run(&one, RunEnd::exited(0)));
    state.runs_until = 12;
    let process = "4194304.18446744073709551615.18446744073709551615".parse().unwrap();
    let binding = Binding { granted: 13, life: Life::HolderAnd(process), not_before: Some(14), number: Some(15) };
    state.bindings.insert(one, binding);
    state.bindings.insert(other, Binding { life: Life::Holder, not_before: None, number: None, ..binding });
    let text = state.written();
    assert!(State::read(&text, 0) == Ok(state));
    for at in 0..text.len() {
        // Whatever it makes of it, it does not panic.
        let _ = State::read(&text[..at], 0);
    }
}

#[test]
fn a_value_that_ends_with_a_carriage_return_is_read_back() {
    let text = "lock key=lock:a fence=7 generation=- boot=b\r\n";
    let state = State::read(text, 0).unwrap_or_else(|_| panic!("it is read"));
    assert_eq!(state.written(), text);
}

/// A world of its own time, in which anybody may die.
#[derive(Clone)]
struct Around {
    now: u64,
    dead: BTreeSet<Token>,
    said: Vec<(Token, Word)>,
}

impl World<Token> for Around {
    fn now_us(&self) -> u64 {
        self.now
    }

    fn listens(&self, _: &Token) -> bool {
        true
    }

    fn lives(&self, waiter: &Waiter<Token>) -> bool {
        !self.dead.contains(&waiter.token)
    }

    fn is_over(&self, token: &Token, holder: &Holder) -> bool {
        holder.end.is_some_and(|end| end <= self.now / 1000) || self.dead.contains(token)
    }

    fn tell(&mut self, token: &Token, word: Word) -> Heard {
        self.said.push((token.clone(), word));
        Heard::Yes
    }

    fn bounds(&self) -> Bounds {
        Bounds { reservations: 1, ..Bounds::USUAL }
    }
}

/// Random numbers: xorshift64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % n
    }
}

#[test]
fn a_random_history_takes_the_course_that_the_rules_alone_take() {
    let seed = getrandom::u64().unwrap() | 1;
    let mut dice = Dice(seed);
    let ground = Ground::new(&State::new("k", None));
    let mut alone: Lock<Token> = Lock::default();
    let mut around = Around { now: 1_800_000_000_000_000, dead: BTreeSet::new(), said: Vec::new() };
    let new = |at: usize| {
        let supersedes = if at.is_multiple_of(3) { Supersedes::Waiting } else { Supersedes::Nobody };
        token([1, 1, 2, 3, 0][at % 5], supersedes, "why")
    };
    let mut clients: Vec<(Token, u64)> = (0..12).map(|at| (new(at), 0)).collect();
    for number in 0..3000 {
        around.now += u64::try_from(dice.below(400_000)).unwrap();
        let at = dice.below(clients.len());
        let (token, ticket) = clients[at].clone();
        let is_recorded = at.is_multiple_of(2);
        let record = Record { most: 3, begun: Begun { granted: 0, waited: 1, fence: 0 }, end: Some(RunEnd::exited(0)) };
        let op = match dice.below(20) {
            0..=10 => Op::Acquire(Request {
                token: &token,
                ttl: 3000,
                mode: [Mode::Queue, Mode::Queue, Mode::Queue, Mode::Once, Mode::Plain][dice.below(5)],
                lease: 0,
                grace: 1000,
                channel: true,
                ticket,
                last: None,
                enclosing: &[],
                record: is_recorded.then_some(Recording { most: 3, waited: 5, unless_done: Some(2_000_000) }),
                margin: None,
            }),
            11..=13 => Op::Renew(Renewal { token: &token, ttl: 2000, prolongs: at < 6, beside_setnx: false }),
            14..=16 => Op::Release { token: &token, by: None, keeps: None, record: is_recorded.then_some(record) },
            17 => Op::Ask { of: clients[dice.below(12)].0.id(), by: &token, back: dice.below(3) == 0 },
            18 => Op::Record { token: &token, record },
            _ => {
                around.dead.insert(token);
                clients[at] = (new(at), 0);
                continue;
            }
        };
        // The kernel tells who waits: no lease of a waiter ends.
        alone.queue.iter_mut().for_each(|waiter| waiter.lease = around.now / 1000);
        around.said.clear();
        let mut elsewhere = around.clone();
        let (mut saved, state) =
            load(&ground.opened(), ground.file.path(), &ground.boot, around.now / 1000).ok().unwrap().ok().unwrap();
        let mut state = state.unwrap();
        let replies = [alone.step(&op, &mut around), state.lock.step(&op, &mut elsewhere)];
        assert_eq!(replies[0], replies[1], "step {number} of {seed}: {op:?}");
        assert_eq!(around.said, elsewhere.said, "step {number} of {seed}: {op:?}");
        assert_eq!(alone, state.lock, "step {number} of {seed}: {op:?}");
        state.runs_until = u64::MAX;
        state.bindings = state.lock.holders.keys().map(|token| (token.clone(), Binding::none(1))).collect();
        let to = (ground.boot.id(), Saver::Newcomer);
        saved.save(&ground.opened(), ground.file.path(), &state, to, || {}).ok().unwrap();
        clients[at].1 = match &replies[0].verdict {
            Verdict::Waiting(waiting) if waiting.place > 0 => waiting.ticket,
            _ => 0,
        };
    }
}
