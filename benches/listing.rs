//! The cost of listing ten thousand locks: the time, the memory, and for how long the server serves no other client.
//!
//! `cargo bench -- listing` (with `--quick` for fewer rounds). Some locks have waiters. The server's SLOWLOG records
//! what took longer than 5 ms by its wall clock: on a busy machine the server may not have been scheduled meanwhile.

use std::process::Stdio;

use crate::rig::{Figures, Server, Table, circumstances, command, measured, now, quick};
use nix::sys::resource::{UsageWho, getrusage};

const LOCKS: usize = 10_000;
/// Number of waiters of every hundredth lock.
const WAITERS: usize = 20;
const BOUND_US: &str = "5000";

pub fn measure() {
    let server = Server::start();
    fill(&server);
    println!("listing: {}", circumstances(&server));
    server.ask::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", BOUND_US]);
    let mut table = Table::new(&["ms", "p10", "p50", "p90", "MiB at most", "requests", "slower than 5 ms"]);
    for (name, url, options) in [
        ("table, Unix socket", server.unix(), &["status"][..]),
        ("table, TCP", server.tcp(), &["status"]),
        ("JSON, Unix socket", server.unix(), &["--json", "status"]),
    ] {
        let count: u64 = if quick() { 3 } else { 20 };
        server.ask::<()>(&["SLOWLOG", "RESET"]);
        server.forget_stats();
        let mut taken = Figures::default();
        for _ in 0..count {
            let began = now();
            listed(&url, options);
            taken.add(now() - began);
        }
        let stats = server.stats();
        let requests = (stats.scripts() + stats.of("scan")) / count;
        let mut cells: Vec<String> = [10, 50, 90].map(|p| format!("{:.0}", taken.percentile(p))).to_vec();
        cells.push(format!("{:.1}", peak() as f64 / 1024.0));
        cells.push(requests.to_string());
        cells.push(format!("{} of {}", server.ask::<u64>(&["SLOWLOG", "LEN"]), requests * count));
        table.row(name, &cells);
    }
    println!("\n{LOCKS} locks\n{}", table.text());
}

/// Runs one listing.
fn listed(url: &str, options: &[&str]) {
    let mut call = command(measured());
    call.args(["-s", url]).args(options).stdin(Stdio::null()).stdout(Stdio::null());
    let status = call.status().expect("it starts");
    assert!(status.success(), "{status}");
}

/// Returns the peak memory of the listings so far, in KiB: getrusage(2) of the children.
fn peak() -> i64 {
    getrusage(UsageWho::RUSAGE_CHILDREN).expect("the kernel tells").max_rss()
}

/// Sets locks as nxlock does, each with its fence, and some with waiters that poll.
fn fill(server: &Server) {
    let mut connection = server.connect().expect("the server answers");
    let token = |n: usize, who: usize| {
        let digits = format!("{:026}", n * 1000 + who);
        // The alphabet of a token has no 0, 1, 8 or 9.
        let random: String = digits.bytes().map(|digit| char::from(digit - b'0' + b'a')).collect();
        format!("nx1:{random}:deploy@host-{}.example:{n}:1795268515007:release%204.{n}", n % 97)
    };
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut connection).expect("the time");
    for n in 0..LOCKS {
        let key = format!("lock:job-{n:05}");
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg(&key).arg(token(n, 0)).arg("EX").arg(3600).ignore();
        pipe.cmd("SET").arg(format!("{{{key}}}:fence")).arg(seconds * 1_000_000 + micros).arg("EX").arg(3600).ignore();
        for who in (1..=WAITERS).filter(|_| n % 100 == 0) {
            let token = token(n, who);
            pipe.cmd("ZADD").arg(format!("{{{key}}}:queue")).arg(seconds * 1_000_000).arg(&token).ignore();
            let record = format!("1|{}|1000|", (seconds + 60) * 1000);
            pipe.cmd("HSET").arg(format!("{{{key}}}:waiters")).arg(&token).arg(record).ignore();
        }
        pipe.exec(&mut connection).expect("filled");
    }
}
