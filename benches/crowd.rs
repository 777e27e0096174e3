//! How a crowd gets its turns on five servers that vote: its members wait without a queue.
//!
//! `cargo bench -- crowd` (with `--quick` for fewer racers). All racers start at once and have one turn of 20 ms each.
//! "to the turns" is the total time relative to that of the turns alone, one after the other.

use std::process::{Child, Stdio};
use std::time::Duration;

use crate::rig::{Server, Table, circumstances, command, measured, now, quick};

const TURN: Duration = Duration::from_millis(20);

pub fn measure() {
    let five = || -> Vec<Server> { (0..5).map(|_| Server::start()).collect() };
    println!("crowd: {}", circumstances(&Server::start()));
    let mut table = Table::new(&["racers", "seconds", "to the turns", "not served"]);
    let crowds: &[u32] = if quick() { &[10, 50] } else { &[10, 100, 300] };
    for &racers in crowds {
        let all = five();
        table.row("all five live", &race(&all, racers));
        let mut ailing = five();
        ailing[4].kill();
        ailing[3].hang();
        table.row("one is dead, and one hangs", &race(&ailing, racers));
    }
    println!("\n{}", table.text());
}

fn race(five: &[Server], racers: u32) -> Vec<String> {
    let servers = five.iter().map(Server::unix).collect::<Vec<_>>().join(" ");
    let turn = format!("sleep {}", TURN.as_secs_f64());
    let start = |_| -> Child {
        let mut call = command(measured());
        call.env("NXLOCK_SERVER", &servers).args(["-q", "run", "bench", "-c", &turn]);
        call.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts")
    };
    let began = now();
    let crowd: Vec<Child> = (0..racers).map(start).collect();
    let ends = crowd.into_iter().map(|mut racer| racer.wait().expect("it is ours"));
    let unserved = ends.filter(|status| !status.success()).count();
    let seconds = (now() - began).as_secs_f64();
    let turns = (TURN * racers).as_secs_f64();
    vec![racers.to_string(), format!("{seconds:.1}"), format!("{:.1}", seconds / turns), unserved.to_string()]
}
