//! Every order of events that a few clients and a server can go through, searched exhaustively.
//!
//! Owns the search and the promises about what follows a state; `world` owns those that a single step can break. The
//! claims, in every reachable state:
//! * at most one client, an outsider included, believes that it holds the lock, counting its lease from before the
//!   request; of shares, no more than the least of their limits, and no two with one slot. Not claimed for a lock that
//!   an outsider's DEL or FLUSHALL took from a holder, which learns of it at its next renewal;
//! * no waiter that is queued, running and subscribed, with a running lease, is overtaken, but by one that goes first if it
//!   does not (`plain` barges);
//! * fences rise whenever the lock changes hands; between shares, whenever a slot does;
//! * no client takes a free lock for a held one;
//! * a refusal says how many share the lock, and the least of their limits;
//! * of waiters that supersede, only the newest waits, and none that was dismissed comes in;
//! * without further faults, every running waiter is served, and the lock is never free for longer than a heartbeat
//!   while a client waits, nor has it room for so long for a share that is first in line;
//! * then nothing stays behind that does not expire, and without any fault nothing at all.

mod first;
mod sharing;
mod superseding;
mod world;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};

use foldhash::quality::FixedState;

use crate::keys::Server;
use crate::machine::Mode::{Once, Plain, Queue};
use crate::machine::{Mode, Op, Renewal, Reply, Request, Verdict, Word};
use crate::token::Token;
use world::{ENDLESS, Fault, GRACE, Phase, STALE, Scripts, Setting, Step, TTL, World};

/// How much longer than its leases the queue's key lives.
const QUEUE_KEPT: u64 = 4;

const ALL: &[Fault] = &[
    Fault::Crash,
    Fault::Freeze,
    Fault::LoseReply,
    Fault::LoseMail,
    Fault::ForeignSet,
    Fault::ForeignDel,
    Fault::Flush,
    Fault::RenewByVerb,
];
const BESIDE: &[Fault] = &[Fault::Crash, Fault::Freeze, Fault::LoseReply, Fault::ForeignDel, Fault::WriteOver];

fn setting(modes: &[Mode], faults: &'static [Fault], at_most: u8) -> Setting {
    Setting {
        modes: modes.to_vec(),
        tokens: vec![Token::exclusive(0); modes.len()],
        beside_setnx: false,
        sessions: 1,
        lease: 4,
        heartbeat: Some(2),
        watchers: 3,
        faults,
        at_most,
        prompt: false,
        drops: None,
        batch: None,
        gives_up: None,
        scripts: Server::step,
    }
}

fn key(world: &World) -> u64 {
    FixedState::default().hash_one(world)
}

/// Passes a key on: it is a hash already.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers");
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type ByKey = BuildHasherDefault<Hashed>;
type Origin = HashMap<u64, Option<(u64, Step)>, ByKey>;
type Settled = HashSet<u64, ByKey>;

fn story(came: &Origin, mut at: u64, last: Option<Step>) -> String {
    let mut steps: Vec<Step> = last.into_iter().collect();
    while let Some((from, step)) = came[&at] {
        steps.push(step);
        at = from;
    }
    steps.reverse();
    format!("\n  after {steps:?}")
}

/// Searches all states; fails with the steps by which a promise was broken.
fn explore(setting: &Setting) -> Result<usize, String> {
    let start = World::new(setting);
    let mut came = Origin::from_iter([(key(&start), None)]);
    let mut settled = Settled::default();

    let mut next = VecDeque::from([(key(&start), start)]);
    while let Some((here, world)) = next.pop_front() {
        settle(&world, here, setting, &mut settled).map_err(|why| why + &story(&came, here, None))?;
        for step in world.steps(setting) {
            let then = world.after(step, setting).map_err(|why| why + &story(&came, here, Some(step)))?;
            let there = key(&then);
            if let Entry::Vacant(entry) = came.entry(there) {
                entry.insert(Some((here, step)));
                next.push_back((there, then));
            }
        }
    }
    Ok(came.len())
}

/// Lets a state settle without further faults: no client arrives, every client that can act does so when due, and
/// holders are quick.
fn settle(from: &World, mut here: u64, setting: &Setting, settled: &mut Settled) -> Result<(), String> {
    // Most states were settled on the way from another.
    if settled.contains(&here) {
        return Ok(());
    }
    let mut world = from.clone();
    let mut path = Vec::new();
    let mut free = 0;
    for _ in 0..500 {
        if free == 0 && settled.contains(&here) {
            settled.extend(path);
            return Ok(());
        }
        path.push(here);
        let Some(step) = urgent(&world) else {
            tidy(&world, setting)?;
            settled.extend(path);
            return Ok(());
        };
        free = if step == Step::Tick && world.keeps_waiting(setting) {
            free + 1
        } else if step == Step::Tick {
            0
        } else {
            free
        };
        if free > setting.heartbeat.unwrap_or(0) + 3 {
            let room = if world.server.lock.holders.is_empty() { "the lock stays free" } else { "room is left" };
            return Err(format!("{room} while somebody waits: {world:?}"));
        }
        world = world.after(step, setting)?;
        here = key(&world);
    }
    Err(format!("somebody is never served: {world:?}"))
}

fn urgent(world: &World) -> Option<Step> {
    let clients = || world.clients.iter().enumerate();
    let step = clients().find_map(|(i, c)| match (world.in_flight(i), c.phase) {
        (Some(false), _) => Some(Step::Serve(i)),
        (Some(true), _) if !c.frozen => Some(Step::Receive(i)),
        (None, Phase::Waiting) if !c.frozen && world.due(i) => Some(Step::Ask(i)),
        (None, Phase::Holding | Phase::Leaving) if !c.frozen => Some(Step::Release(i)),
        _ => None,
    });
    let waits = clients().any(|(_, c)| c.phase == Phase::Waiting && !c.frozen);
    step.or(waits.then_some(Step::Tick))
}

fn tidy(world: &World, setting: &Setting) -> Result<(), String> {
    let left = |server: &Server| {
        let lock = &server.lock;
        let superseding = &lock.superseding;
        let is_known = superseding.newest.is_some() || !superseding.noted.is_empty() || superseding.dismissed.is_some();
        let is_held = lock.holders.keys().any(|token| *token != STALE);
        is_held || lock.generation.is_some() || lock.owner.is_some() || !lock.queue.is_empty() || is_known
    };
    // A client that learns late that its lease is over does not give it back.
    let is_late = !setting.prompt && setting.tokens.iter().any(|token| token.limit != 1 || token.is_newest);
    let mut later = world.server.clone();
    let frozen = world.clients.iter().any(|c| c.frozen);
    if world.faults > 0 || frozen || is_late {
        later.around.now_us += 1000 * (1 + (QUEUE_KEPT * setting.lease).max(TTL).max(GRACE));
        later.expire();
        // What is known of superseding expires by itself, and so does the owner.
        later.lock.superseding = Default::default();
        later.lock.owner = None;
    }
    if left(&later) { Err(format!("something stays behind: {later:?}")) } else { Ok(()) }
}

#[expect(clippy::print_stdout, reason = "shown with --nocapture")]
fn passes(name: &str, setting: &Setting) {
    match explore(setting) {
        Err(why) => panic!("{name}: {why}"),
        Ok(states) => println!("{name}: {states} states"),
    }
}

fn fails(setting: &Setting, because: &str) {
    let why = explore(setting).expect_err("the explorer does not see it");
    assert!(why.contains(because), "{why}");
}

fn prompt(modes: &[Mode], faults: &'static [Fault], at_most: u8) -> Setting {
    Setting { prompt: true, ..setting(modes, faults, at_most) }
}

#[test]
fn two_waiters_survive_any_delay_and_any_fault() {
    passes("two waiters, any delay, one fault", &setting(&[Queue, Queue], ALL, 1));
}

#[test]
fn a_poller_and_a_passer_by_disturb_nobody() {
    passes("waiter and poller, any delay, one fault", &setting(&[Queue, Plain], ALL, 1));
    passes("waiter and passer-by, any delay, one fault", &setting(&[Queue, Once], ALL, 1));
}

#[test]
fn two_waiters_survive_two_faults_and_coming_back() {
    passes("two waiters, two faults", &prompt(&[Queue, Queue], ALL, 2));
    passes("two waiters, twice, one fault", &Setting { sessions: 2, ..prompt(&[Queue, Queue], ALL, 1) });
}

#[test]
fn three_waiters_keep_their_order_through_any_fault() {
    passes("three waiters, one fault", &prompt(&[Queue; 3], ALL, 1));
    passes("three waiters, two crashes", &prompt(&[Queue; 3], &[Fault::Crash], 2));
    passes("two waiters and a passer-by, one fault", &prompt(&[Queue, Queue, Once], ALL, 1));
    passes("two waiters and a poller, one fault", &prompt(&[Queue, Queue, Plain], ALL, 1));
}

/// Only the first waiter watches the expiry, and none polls: only messages wake the others.
fn words_only(scripts: Scripts) -> Setting {
    Setting {
        heartbeat: None,
        watchers: 1,
        lease: ENDLESS,
        scripts,
        ..prompt(&[Queue; 3], &[Fault::Crash, Fault::Freeze], 1)
    }
}

#[test]
fn no_word_is_missing() {
    passes("three waiters without heartbeat, one crash or freeze", &words_only(Server::step));
}

/// A holder lengthens its lease, shortens it and crashes: the next waiter has only its timer, and messages.
fn held_for_less(scripts: Scripts) -> Setting {
    Setting {
        faults: &[Fault::Lengthen, Fault::Shorten, Fault::Crash],
        at_most: 3,
        ..Setting { modes: vec![Queue; 2], ..words_only(scripts) }
    }
}

#[test]
fn an_expiry_that_moves_nearer_keeps_nobody_waiting() {
    passes("two waiters without heartbeat, a shorter ttl", &held_for_less(Server::step));
}

#[test]
fn an_expiry_that_moves_nearer_untold_is_noticed() {
    fn untold(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        let reply = server.step(op);
        if let Op::Renew(_) = op {
            server.around.said.clear();
        }
        reply
    }
    fails(&held_for_less(untold), "stays free while somebody waits");
}

#[test]
fn a_next_in_line_who_is_not_told_is_noticed() {
    fn untold(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        let reply = server.step(op);
        if let Op::Release { .. } = op {
            server.around.said.retain(|(_, word)| *word == Word::Granted);
        }
        reply
    }
    fails(&words_only(untold), "stays free while somebody waits");
}

#[test]
fn a_release_that_reserves_nothing_is_noticed() {
    fn release(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        let reply = server.step(op);
        if let Verdict::Released(Some(_)) = reply.verdict {
            server.lose_lock();
        }
        reply
    }
    fails(&Setting { scripts: release, ..prompt(&[Queue; 3], &[], 0) }, "was overtaken by");
}

#[test]
fn an_acquire_that_ignores_the_queue_is_noticed() {
    fn acquire(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        match op {
            Op::Acquire(request) if server.lock.holders.is_empty() => {
                server.step(&Op::Acquire(Request { mode: Plain, ..request.clone() }))
            }
            _ => server.step(op),
        }
    }
    fails(&Setting { scripts: acquire, ..prompt(&[Queue; 3], &[Fault::Crash], 1) }, "was overtaken by");
}

#[test]
fn a_release_that_does_not_compare_is_noticed() {
    fn release(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        if let Op::Release { .. } = op {
            server.lose_lock();
        }
        server.step(op)
    }
    fails(&Setting { scripts: release, ..prompt(&[Queue; 3], &[], 0) }, "two hold");
}

#[test]
fn a_renewal_that_does_not_compare_is_noticed() {
    fn renew(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        if let Op::Renew(Renewal { token, .. }) = op
            && let Some((_, holder)) = server.lock.holders.pop_first()
        {
            let fence = server.around.now_us;
            server.lock.fence = fence;
            server.lock.holders.insert(**token, crate::machine::Holder { fence, ..holder });
        }
        server.step(op)
    }
    fails(&Setting { scripts: renew, ..setting(&[Queue, Queue], &[], 0) }, "two hold");
}

#[test]
fn a_renewal_by_the_verb_takes_nothing_from_who_keeps_the_lock() {
    passes("a verb renews for a tick", &setting(&[Queue, Queue], &[Fault::RenewByVerb, Fault::Freeze], 2));
}

#[test]
fn a_renewal_by_the_verb_that_shortens_what_is_kept_is_noticed() {
    fn renew(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        match op {
            Op::Renew(renewal) => server.step(&Op::Renew(Renewal { prolongs: false, ..renewal.clone() })),
            _ => server.step(op),
        }
    }
    let verb = setting(&[Queue, Queue], &[Fault::RenewByVerb], 1);
    fails(&Setting { scripts: renew, ..verb }, "two hold");
}

#[test]
fn a_hand_over_without_a_new_fence_is_noticed() {
    fn release(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        let fence = server.lock.fence;
        let reply = server.step(op);
        if let Op::Release { .. } = op {
            server.lock.fence = fence;
            server.lock.holders.values_mut().for_each(|holder| holder.fence = fence);
        }
        reply
    }
    fails(&Setting { scripts: release, ..prompt(&[Queue, Queue], &[], 0) }, "did not rise");
}

#[test]
fn a_cancelled_wait_that_stays_in_line_is_noticed() {
    fn release(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        let (queue, until) = (server.lock.queue.clone(), server.queue_until);
        let reply = server.step(op);
        if let (Op::Release { .. }, Verdict::NotYours) = (op, &reply.verdict) {
            (server.lock.queue, server.queue_until) = (queue, until);
        }
        reply
    }
    fails(&Setting { scripts: release, ..prompt(&[Queue, Queue], &[], 0) }, "stays behind");
}

#[test]
fn a_queue_without_expiry_is_noticed() {
    fn acquire(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        let reply = server.step(op);
        server.queue_until = None;
        reply
    }
    fails(&Setting { scripts: acquire, ..prompt(&[Queue, Queue], &[Fault::Crash], 2) }, "stays behind");
}

/// Some waiters die in the queue, more than one call drops, and a client comes that does not wait.
fn a_crowd_of_the_dead(modes: &[Mode], gives_up: fn(bool) -> bool) -> Setting {
    let faults = &[Fault::ForeignSet, Fault::Crash];
    Setting { drops: Some(1), gives_up: Some(gives_up), ..prompt(modes, faults, 3) }
}

#[test]
fn more_dead_in_line_than_one_call_drops_keep_nobody_from_a_free_lock() {
    let held = |free: bool| !free;
    passes("one who does not wait behind the dead", &a_crowd_of_the_dead(&[Queue, Queue, Once], held));
    passes("waiters behind the dead", &a_crowd_of_the_dead(&[Queue; 3], held));
}

#[test]
fn one_who_takes_a_free_lock_for_a_held_one_is_noticed() {
    fails(&a_crowd_of_the_dead(&[Queue, Queue, Once], |_| true), "told that a free lock is busy");
}

fn beside_setnx(setting: Setting) -> Setting {
    Setting { beside_setnx: true, ..setting }
}

#[test]
fn what_a_setnx_client_writes_over_a_lock_lets_nobody_else_have_it() {
    passes("two beside SETNX, any delay, one fault", &beside_setnx(setting(&[Queue, Queue], BESIDE, 1)));
    passes("waiter and poller beside SETNX, any delay", &beside_setnx(setting(&[Queue, Plain], BESIDE, 1)));
    passes("two beside SETNX, two faults", &beside_setnx(prompt(&[Queue, Queue], BESIDE, 2)));
}

#[test]
fn a_take_over_that_asks_for_no_holder_is_noticed() {
    fn acquire(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        let Op::Acquire(_) = op else { return server.step(op) };
        let owner = server.lock.owner.take();
        let reply = server.step(op);
        server.lock.owner = server.lock.owner.take().or(owner);
        reply
    }
    let over = beside_setnx(setting(&[Queue, Queue], &[Fault::WriteOver], 1));
    fails(&Setting { scripts: acquire, ..over }, "two hold");
}
