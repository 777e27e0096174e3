//! An earlier build beside this one, in the same rounds: what a change costs or gains.
//!
//! `NXLOCK_BENCH_FORMER=FILE cargo bench -- former` (with `--quick` for fewer rounds). "to former" is this build's time
//! relative to that of the other one. The server's time is that of its main thread, by INFO: the statistics of commands
//! leave out what a request costs before it is a command.

use std::cell::RefCell;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::handoff::{Guard, scene};
use crate::rig::{
    Contestant, Figures, Server, Table, as_former, circumstances, command, former, measured, now, quick, rounds,
};

const TRUE: &str = "/bin/true";

/// Kinds of claims, each with its options.
const KINDS: [(&str, &[&str]); 5] = [
    ("exclusive", &[]),
    ("one of five slots", &["--slots=5"]),
    ("shared", &["--shared"]),
    ("superseding", &["--supersede"]),
    ("recorded", &["--record"]),
];

pub fn measure() {
    if former().is_none() {
        println!("former: NXLOCK_BENCH_FORMER names no earlier build to compare with");
        return;
    }
    let server = Server::start();
    println!("former: {}", circumstances(&server));
    runs(&server, if quick() { 30 } else { 300 });
    hand_offs(&server, &[Guard::NxlockTcp, Guard::Slots(5), Guard::NxlockLocal], 1, if quick() { 5 } else { 50 });
    hand_offs(&server, &[Guard::NxlockTcp, Guard::Slots(5)], 10, if quick() { 1 } else { 10 });
    hand_offs(&server, &[Guard::NxlockTcp, Guard::Slots(5), Guard::NxlockLocal], 100, if quick() { 1 } else { 4 });
    if !quick() {
        hand_offs(&server, &[Guard::NxlockLocal], 1000, 1);
    }
}

/// Times of this build and the former one.
#[derive(Default)]
struct Pair {
    this: Sum,
    former: Sum,
    former_is_next: bool,
}

#[derive(Default)]
struct Sum {
    times: Figures,
    server: Duration,
}

impl Sum {
    /// In µs.
    fn server_each(&self) -> f64 {
        self.server.as_secs_f64() * 1e6 / self.times.count().max(1) as f64
    }
}

impl Pair {
    /// Lets both do something; each time another one is first, as the second finds warm caches.
    fn both(&mut self, act: impl Fn(&mut Sum)) {
        if self.former_is_next {
            as_former(|| act(&mut self.former));
            act(&mut self.this);
        } else {
            act(&mut self.this);
            as_former(|| act(&mut self.former));
        }
        self.former_is_next = !self.former_is_next;
    }

    /// Adds a row, less what the scene costs without nxlock.
    fn row(&self, table: &mut Table, name: &str, alone: &Sum) {
        let less = if alone.times.count() > 0 { alone.times.percentile(50) } else { 0.0 };
        let [this, former] = [&self.this, &self.former].map(|sum| sum.times.percentile(50) - less);
        let [ours, theirs] = [&self.this, &self.former].map(|sum| sum.server_each() - alone.server_each());
        let ratio = |one: f64, other: f64| if other > 0.0 { format!("{:.3}", one / other) } else { String::new() };
        let cells = [format!("{former:.2}"), format!("{this:.2}"), ratio(this, former)];
        let server = [format!("{theirs:.0}"), format!("{ours:.0}"), ratio(ours, theirs)];
        table.row(name, &[cells, server].concat());
    }
}

const HEADING: [&str; 7] = ["p50", "former ms", "this ms", "to former", "server: former µs", "this µs", "to former"];

type Url = fn(&Server) -> String;

/// Whole processes, as in the bench `overhead`: less the time of the command alone.
fn runs(server: &Server, count: usize) {
    let places: [(&str, Url); 2] = [("TCP", Server::tcp), ("local", Server::local)];
    let calls =
        places.iter().flat_map(|(place, url)| KINDS.map(|(name, options)| (format!("{name}, {place}"), url, options)));
    let calls: Vec<_> = calls.collect();
    let pairs: Vec<RefCell<Pair>> = calls.iter().map(|_| RefCell::default()).collect();
    let alone = RefCell::new(Sum::default());
    let mut contestants: Vec<Contestant<'_>> =
        vec![Box::new(|| timed(server, &mut alone.borrow_mut(), || command(TRUE)))];
    for ((name, url, options), pair) in calls.iter().zip(&pairs) {
        let call = move || {
            let mut call = command(measured());
            // The builds need not understand each other's keys and files.
            let name = format!("{name}, {}", measured().display());
            call.env("NXLOCK_SERVER", url(server))
                .args(["run", &name.replace('/', "-")])
                .args(*options)
                .args(["--", TRUE]);
            call
        };
        contestants.push(Box::new(move || pair.borrow_mut().both(|sum| timed(server, sum, call))));
    }
    rounds(count, &mut contestants);
    let mut table = Table::new(&HEADING);
    for ((name, ..), pair) in calls.iter().zip(&pairs) {
        pair.borrow().row(&mut table, name, &alone.borrow());
    }
    println!("\nuncontended, over true, {count} rounds\n{}", table.text());
}

fn timed(server: &Server, sum: &mut Sum, call: impl Fn() -> Command) {
    let mut call = call();
    call.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let before = server.cpu();
    let began = now();
    let status = call.status().expect("it starts");
    sum.times.add(now() - began);
    sum.server += server.cpu().saturating_sub(before);
    assert!(status.success(), "{call:?}: {status}");
}

fn hand_offs(server: &Server, guards: &[Guard], waiters: usize, count: usize) {
    let pairs: Vec<RefCell<Pair>> = guards.iter().map(|_| RefCell::default()).collect();
    let apart = Duration::from_millis(if waiters == 1 { 0 } else { 20 });
    let mut contestants: Vec<Contestant<'_>> = Vec::new();
    for (&guard, pair) in guards.iter().zip(&pairs) {
        let add = move |sum: &mut Sum| {
            let seen = scene(server, guard, waiters, apart);
            seen.latencies.into_iter().for_each(|latency| sum.times.add(latency));
            sum.server += seen.server;
        };
        contestants.push(Box::new(move || pair.borrow_mut().both(add)));
    }
    rounds(count, &mut contestants);
    let mut table = Table::new(&HEADING);
    for (guard, pair) in guards.iter().zip(&pairs) {
        pair.borrow().row(&mut table, &guard.name(), &Sum::default());
    }
    println!("\nhand-off, {waiters} waiting, {count} rounds\n{}", table.text());
}
