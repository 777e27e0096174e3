//! How long a lock is idle between two commands: from the end of the holder's to the start of the next one's.
//!
//! `cargo bench -- handoff` (with `--quick` for fewer rounds). Compared with flock(1), and with a loop that tries
//! SET NX every 100 ms. Every command is this program, started again to record when it began and when it ended.

#[path = "handoff/expiry.rs"]
mod expiry;
#[path = "handoff/guard.rs"]
mod guard;
#[path = "handoff/readers.rs"]
mod readers;
#[path = "handoff/scene.rs"]
mod scene;
#[path = "handoff/within.rs"]
mod within;

use std::cell::RefCell;
use std::time::Duration;

use crate::rig::{Contestant, Figures, Server, Table, circumstances, pause, quick, rounds};
pub use guard::Guard;
pub use scene::{Scene, new_name, scene, start};

/// Returns whether this program was started in another role: as the command under a lock, or as a poller. Returns when
/// that has ended.
pub fn ran_another_role() -> bool {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some(within::STAMP) => within::stamp(args),
        Some(within::POLL) => within::poll(args),
        _ => return false,
    }
    true
}

/// One holder at a time.
const ALONE: [Guard; 5] = [Guard::Flock, Guard::NxlockTcp, Guard::NxlockUnix, Guard::NxlockLocal, Guard::Poller];

pub fn measure() {
    let server = Server::start();
    println!("handoff: {}", circumstances(&server));
    hand_offs(&server, &ALONE, 1, if quick() { 10 } else { 50 }, Duration::ZERO);
    hand_offs(&server, &ALONE, 10, if quick() { 1 } else { 5 }, Duration::from_millis(20));
    hand_offs(&server, &ALONE, 100, if quick() { 1 } else { 2 }, Duration::from_millis(20));
    println!("expiry: the holder's host fails; from the end of the lease to the next command's start");
    lateness(&server, Guard::NxlockTcp, "alone in the server");
    lateness(&server, Guard::Slots(5), "one of five slots");
    expiry::strew(&server, 10_000);
    lateness(&server, Guard::NxlockTcp, "with 10000 other keys that expire");
    println!("a kill: nxlock is killed; from then to the next command's start");
    for guard in [Guard::NxlockTcp, Guard::NxlockLocal, Guard::Slots(5), Guard::LocalSlots(5)] {
        let late = expiry::after_a_kill(&server, guard, if quick() { 5 } else { 25 });
        print_figures(&guard.name(), &late);
    }
    idle(&server, 100, Duration::from_secs(if quick() { 3 } else { 10 }));
}

/// The results of one guard over all rounds.
#[derive(Default)]
struct Sum {
    latencies: Figures,
    inversions: usize,
    asked: u64,
    commands: u64,
}

impl Sum {
    /// Adds a scene, less the requests of one without waiters: those of the release after the last hand-off.
    fn add(&mut self, seen: Scene, alone: &Scene) {
        seen.latencies.into_iter().for_each(|latency| self.latencies.add(latency));
        self.inversions += seen.inversions;
        self.asked += seen.asked - alone.asked;
        self.commands += seen.commands - alone.commands;
    }
}

/// Prints the hand-offs of some guards, relative to those of the first.
fn hand_offs(server: &Server, guards: &[Guard], waiters: usize, count: usize, apart: Duration) {
    let sums: Vec<RefCell<Sum>> = guards.iter().map(|_| RefCell::default()).collect();
    let contestants = guards.iter().zip(&sums).map(|(&guard, sum)| {
        let alone = scene(server, guard, 0, Duration::ZERO);
        Box::new(move || sum.borrow_mut().add(scene(server, guard, waiters, apart), &alone)) as Contestant<'_>
    });
    rounds(count, &mut contestants.collect::<Vec<_>>());

    let first = sums[0].borrow().latencies.clone();
    let heading = ["ms", "p10", "p50", "p90", "to the first p10", "p50", "p90", "inversions", "EVAL", "commands"];
    let mut table = Table::new(&heading);
    for (guard, sum) in guards.iter().zip(&sums) {
        let sum = sum.borrow();
        let each = |calls: u64| match guard.asks() {
            true => format!("{:.2}", calls as f64 / sum.latencies.count() as f64),
            false => String::new(),
        };
        let mut cells: Vec<String> = [10, 50, 90].map(|p| format!("{:.2}", sum.latencies.percentile(p))).into();
        cells.extend([10, 50, 90].map(|p| format!("{:.2}", sum.latencies.percentile(p) / first.percentile(p))));
        cells.extend([sum.inversions.to_string(), each(sum.asked), each(sum.commands)]);
        table.row(&guard.name(), &cells);
    }
    let load = circumstances(server);
    println!("\n{waiters} waiting, {count} rounds ({load})\n{}", table.text());
}

/// Measures slots beside an exclusive lock, and readers behind a writer.
pub fn measure_sharing() {
    let server = Server::start();
    println!("sharing: {}", circumstances(&server));
    let guards = [
        Guard::NxlockTcp,
        Guard::Slots(5),
        Guard::Slots(500),
        Guard::NxlockLocal,
        Guard::LocalSlots(5),
        Guard::LocalSlots(500),
    ];
    hand_offs(&server, &guards, 1, if quick() { 3 } else { 25 }, Duration::ZERO);
    hand_offs(&server, &guards, 100, if quick() { 1 } else { 2 }, Duration::from_millis(20));
    if !quick() {
        hand_offs(&server, &guards, 1000, 1, Duration::from_millis(20));
    }
    let heading = ["ms", "first p50", "last p50", "to flock first", "last"];
    for (waiting, count) in [(1, 25), (10, 10), (100, 3)] {
        let mut table = Table::new(&heading);
        let load = circumstances(&server);
        let count = if quick() { 1 } else { count };
        for (name, cells) in readers::compare(&server, waiting, count) {
            table.row(&name, &cells);
        }
        println!("{waiting} readers behind a writer, {count} rounds ({load})\n{}", table.text());
    }
}

fn lateness(server: &Server, guard: Guard, how: &str) {
    print_figures(how, &expiry::lateness(server, guard, 15));
}

fn print_figures(how: &str, late: &Figures) {
    let [best, half, most] = [10, 50, 90].map(|p| late.percentile(p));
    println!("  {how}: p10 {best:.1} ms, p50 {half:.1} ms, p90 {most:.1} ms ({} times)", late.count());
}

/// Measures what waiters cost the server while nothing happens.
fn idle(server: &Server, waiters: usize, time: Duration) {
    let crowd = scene::gather(server, Guard::NxlockTcp, Guard::call, waiters, Duration::from_millis(5));
    server.forget_stats();
    pause(time);
    let stats = server.stats();
    crowd.disperse();
    let each = |calls: u64| calls as f64 / waiters as f64 / time.as_secs_f64();
    println!("\nidle: {waiters} waiting on a held lock for {time:?}, each a second");
    println!(
        "  {:.2} EVAL, {:.2} commands, those within the scripts included",
        each(stats.scripts()),
        each(stats.all())
    );
}
