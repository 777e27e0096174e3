//! The cost of reaching a lock: the same run over each kind of server, and the requests that each gets.
//!
//! `cargo bench -- topology` (with `--quick` for fewer rounds). "over true" is how much longer a call takes than the
//! command alone, spawned in the same round. All servers are on this machine: over a network, each round trip adds its
//! time.

use std::cell::RefCell;
use std::process::{Command, Stdio};

use crate::rig::{
    Contestant, Figures, Kind, Kinds, Server, Table, at, circumstances, command, measured, now, quick, rounds,
};

const TRUE: &str = "/bin/true";

pub fn measure() {
    let kinds = Kinds::start();
    println!("topology: {}", circumstances(kinds.plain()));
    let five: Vec<Server> = (0..5).map(|_| Server::start()).collect();
    let several = Kind {
        name: "Redlock of 5",
        options: five.iter().flat_map(|one| at(one.tcp())).collect(),
        servers: five.iter().collect(),
        round_trips: 4,
    };
    let kinds: Vec<Kind<'_>> = kinds.each().into_iter().chain([several]).collect();
    times(&kinds, if quick() { 60 } else { 500 });
    requests(&kinds, 20);
}

fn run(kind: &Kind<'_>) -> Command {
    let mut command = command(measured());
    command.args(&kind.options).args(["run", "bench", "--", TRUE]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn succeeds(command: &mut Command) {
    let status = command.status().expect("it starts");
    assert!(status.success(), "{command:?}: {status}");
}

fn times(kinds: &[Kind<'_>], count: usize) {
    let mut commands: Vec<(&str, Command)> = vec![("true", command(TRUE))];
    commands.extend(kinds.iter().map(|kind| (kind.name, run(kind))));
    let taken: Vec<RefCell<Figures>> = commands.iter().map(|_| RefCell::default()).collect();
    let timed = commands.iter_mut().zip(&taken).map(|((_, command), taken)| {
        Box::new(move || {
            let began = now();
            succeeds(command);
            taken.borrow_mut().add(now() - began);
        }) as Contestant<'_>
    });
    rounds(count, &mut timed.collect::<Vec<_>>());
    let figures: Vec<Figures> = taken.into_iter().map(RefCell::into_inner).collect();
    let over = |which: usize, percent| figures[which].percentile(percent) - figures[0].percentile(percent);
    let mut table = Table::new(&["ms", "round trips", "over true p10", "p50", "p90", "to TCP p10", "p50"]);
    for (which, kind) in kinds.iter().enumerate().map(|(which, kind)| (which + 1, kind)) {
        let mut cells = vec![kind.round_trips.to_string()];
        cells.extend([10, 50, 90].map(|p| format!("{:.2}", over(which, p))));
        cells.extend([10, 50].map(|p| format!("{:.2}", over(which, p) / over(1, p))));
        table.row(kind.name, &cells);
    }
    println!("\nuncontended, {count} rounds\n{}", table.text());
}

/// Prints the requests of clients to each kind of server, without the commands within scripts.
fn requests(kinds: &[Kind<'_>], count: u64) {
    const ASKED: [&str; 7] =
        ["auth", "role", "eval", "evalsha", "sentinel|get-master-addr-by-name", "cluster|slots", "select"];
    println!("at the servers, for one run:");
    for kind in kinds {
        // A sentinel cannot reset its statistics.
        let told = || {
            let stats = kind.servers.iter().map(|server| server.stats());
            let each =
                stats.map(|stats| (stats.connections, ASKED.iter().map(|command| stats.of(command)).sum::<u64>()));
            each.reduce(|one, other| (one.0 + other.0, one.1 + other.1)).unwrap_or_default()
        };
        let before = told();
        (0..count).for_each(|_| succeeds(&mut run(kind)));
        let after = told();
        // The division drops the connections of these queries, and the few of sentinels.
        let (connections, asked) = ((after.0 - before.0) / count, (after.1 - before.1) / count);
        println!("  {}: {connections} connections, {asked} requests", kind.name);
    }
}
