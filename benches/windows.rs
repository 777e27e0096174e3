//! How long two commands may run at once: from the moment that a holder's key is gone, or that somebody asks the holder to
//! give up, until its command has been stopped and nxlock has ended.
//!
//! `cargo bench -- windows` (with `--quick` for fewer rounds). Over each kind of server, where the server tells the holder
//! (CLIENT TRACKING, a subscription), and where its access control list forbids both. Also what an idle holder and an idle
//! waiter cost the server.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::handoff::{new_name, start};
use crate::rig::{Figures, Kind, Kinds, Server, Table, at, circumstances, command, measured, now, pause, quick, until};

/// What happens to a holder.
type Event = (&'static str, fn(&Holder<'_>));

/// One at a time, though several hold locks.
const EACH: [Event; 5] = [
    ("DEL", |holder| holder.server().ask(&["DEL", &holder.key()])),
    ("UNLINK", |holder| holder.server().ask(&["UNLINK", &holder.key()])),
    ("SET", |holder| holder.server().ask(&["SET", &holder.key(), "another", "PX", "1000"])),
    ("RENAME", |holder| holder.server().ask(&["RENAME", &holder.key(), &format!("{{{}}}", holder.key())])),
    ("release --ask", is_asked),
];
/// What happens to all at once.
const ALL: [Event; 2] = [("FLUSHALL", |holder| holder.server().ask(&["FLUSHALL"])), ("eviction", is_evicted)];

/// How many hold locks at a time.
const BATCH: usize = 10;

pub fn measure() {
    let kinds = Kinds::start();
    println!("windows: {}", circumstances(kinds.plain()));
    let rounds = if quick() { 20 } else { 200 };
    for kind in kinds.each() {
        let mut table = Table::new(&["ms", "p50", "p99", "max"]);
        for (name, event) in EACH {
            table.row(name, &cells(&told(&kind, event, rounds, BATCH)));
        }
        for (name, event) in ALL {
            table.row(name, &cells(&told(&kind, event, rounds, 1)));
        }
        for (name, event) in [EACH[0], EACH[4]] {
            table.row(&format!("{name}, not told"), &cells(&not_told(&kind, event, rounds)));
        }
        println!("\n{}, {rounds} rounds\n{}", kind.name, table.text());
    }
    traffic(Duration::from_secs(if quick() { 10 } else { 60 }));
}

fn cells(figures: &Figures) -> [String; 3] {
    [50, 99, 100].map(|p| format!("{:.2}", figures.percentile(p)))
}

struct Holder<'a> {
    kind: &'a Kind<'a>,
    name: String,
    process: Child,
}

impl<'a> Holder<'a> {
    fn start(kind: &'a Kind<'a>) -> Holder<'a> {
        let name = new_name();
        let mut call = nxlock(kind);
        call.args(["-q", "run", &name, "--", "sleep", "1000"]).stderr(Stdio::null());
        Holder { kind, name, process: start(call, Stdio::null()) }
    }

    fn server(&self) -> &Server {
        server_of(self.kind)
    }

    fn key(&self) -> String {
        format!("lock:{}", self.name)
    }

    fn holds(&self) -> bool {
        self.server().ask::<i64>(&["EXISTS", &self.key()]) == 1
    }
}

fn is_asked(holder: &Holder<'_>) {
    let token: String = holder.server().ask(&["GET", &holder.key()]);
    let asked = nxlock(holder.kind).args(["-q", "release", &holder.name, "--ask", &token[4..12]]).status();
    assert!(asked.expect("it starts").success());
}

fn is_evicted(holder: &Holder<'_>) {
    let set = |name: &str, value: &str| holder.server().ask::<()>(&["CONFIG", "SET", name, value]);
    set("maxmemory-policy", "allkeys-random");
    set("maxmemory", "1");
    // A write makes room for itself.
    let mut connection = holder.server().connect().expect("it answers");
    let written = redis::cmd("SET").arg("another").arg("x").query::<()>(&mut connection);
    set("maxmemory", "0");
    assert!(written.is_err() && !holder.holds(), "{written:?}");
}

fn nxlock(kind: &Kind<'_>) -> Command {
    let mut call = command(measured());
    call.args(&kind.options);
    call
}

/// Returns the server that has the keys.
fn server_of<'a>(kind: &Kind<'a>) -> &'a Server {
    kind.servers.last().expect("there is one")
}

/// Returns how long it takes after an event, if the server tells of it.
fn told(kind: &Kind<'_>, event: fn(&Holder<'_>), rounds: usize, batch: usize) -> Figures {
    let server = server_of(kind);
    let mut figures = Figures::default();
    // From now on the server has the script.
    assert!(nxlock(kind).args(["-q", "run", "first", "--", "true"]).status().expect("it starts").success());
    for _ in 0..rounds.div_ceil(batch) {
        server.ask::<()>(&["FLUSHALL"]);
        server.forget_stats();
        let holders: Vec<Holder<'_>> = (0..batch).map(|_| Holder::start(kind)).collect();
        // Each renews its lock once more as soon as it is told.
        until("all are told", || server.stats().scripts() >= 2 * batch as u64);
        // It asks again after a quarter of a second at the earliest.
        pause(Duration::from_millis(300));
        for mut holder in holders {
            let began = now();
            event(&holder);
            holder.process.wait().expect("it is ours");
            figures.add(now() - began);
        }
    }
    figures
}

/// Returns the same, if the server does not tell. All hold locks at once, and it happens to one after the other over the
/// time between two renewals.
fn not_told(kind: &Kind<'_>, event: fn(&Holder<'_>), rounds: usize) -> Figures {
    let server = server_of(kind);
    server.ask::<()>(&["ACL", "SETUSER", "default", "-client|tracking", "-subscribe"]);
    let holders: Vec<Holder<'_>> = (0..rounds).map(|_| Holder::start(kind)).collect();
    until("all hold", || holders.iter().all(Holder::holds));
    let mut ends = Vec::new();
    for holder in holders {
        pause(Duration::from_secs(10) / u32::try_from(rounds).expect("few"));
        let began = now();
        event(&holder);
        let mut process = holder.process;
        ends.push(thread::spawn(move || {
            process.wait().expect("it is ours");
            now() - began
        }));
    }
    let mut figures = Figures::default();
    ends.into_iter().for_each(|end| figures.add(end.join().expect("it ends")));
    server.ask::<()>(&["ACL", "SETUSER", "default", "+@all"]);
    figures
}

/// Prints what one idle holder and one idle waiter cost a server.
fn traffic(time: Duration) {
    // No sentinel asks this one.
    let server = Server::start();
    let kind = Kind { name: "TCP", options: at(server.tcp()), servers: vec![&server], round_trips: 3 };
    let mut table = Table::new(&["a minute", "requests", "bytes to the server", "bytes from it"]);
    for (how, rules) in [("told", &["+@all"][..]), ("not told", &["-client|tracking", "-subscribe"])] {
        server.ask::<()>(&[&["ACL", "SETUSER", "default"], rules].concat());
        server.ask::<()>(&["FLUSHALL"]);
        let mut holder = Holder::start(&kind);
        until("it holds", || holder.holds());
        let mut row = |who: &str, before: [f64; 3]| {
            pause(Duration::from_secs(3));
            server.forget_stats();
            pause(time);
            let minutes = time.as_secs_f64() / 60.0;
            let used = traffic_of(&server).map(|used| used / minutes);
            let cells = [0, 1, 2].map(|part| format!("{:.1}", used[part] - before[part]));
            table.row(&format!("{who}, {how}"), &cells);
            used
        };
        let of_holder = row("a holder", [0.0; 3]);
        let mut call = nxlock(&kind);
        call.args(["-q", "run", &holder.name, "--", "true"]).stderr(Stdio::null());
        let mut waiter = start(call, Stdio::null());
        row("a waiter", of_holder);
        waiter.kill().and_then(|()| waiter.wait()).expect("it is ours");
        server.ask::<()>(&["DEL", &holder.key()]);
        holder.process.wait().expect("it is ours");
    }
    server.ask::<()>(&["ACL", "SETUSER", "default", "+@all"]);
    println!("{}", table.text());
}

/// Returns the scripts, and the bytes to and from a server, since its statistics were reset.
fn traffic_of(server: &Server) -> [f64; 3] {
    let info: String = server.ask(&["INFO", "stats"]);
    let of = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    let bytes = ["total_net_input_bytes:", "total_net_output_bytes:"].map(|name| of(name).expect("a number"));
    [server.stats().scripts() as f64, bytes[0], bytes[1]]
}
