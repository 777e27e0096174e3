//! How long after the lease of a killed holder the next one starts.

use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use super::guard::Guard;
use super::scene::{new_name, read, start};
use super::within::stamping;
use crate::rig::{Figures, NXLOCK, Server, command, now, pause, until};

/// A holder, and its waiter.
struct Pair {
    name: String,
    stamps: PathBuf,
    holder: Child,
    waiter: Child,
}

/// Measures so many locks at once. Kills their holders one after the other, so that no two leases expire together.
pub fn lateness(server: &Server, pairs: usize) -> Figures {
    let mut pairs: Vec<Pair> = (0..pairs).map(|_| pair(server)).collect();
    let mut ends = Vec::new();
    for pair in &mut pairs {
        pair.holder.kill().expect("it runs");
        pair.holder.wait().expect("it is our child");
        let asked = now();
        let left: u64 =
            server.ask::<i64>(&["PTTL", &format!("lock:{}", pair.name)]).try_into().expect("a lock that expires");
        // PTTL counts whole milliseconds: assume the middle of that one.
        ends.push((asked + now()) / 2 + Duration::from_millis(left) + Duration::from_micros(500));
        pause(Duration::from_millis(37));
    }
    let mut late = Figures::default();
    for (mut pair, end) in pairs.into_iter().zip(ends) {
        assert!(pair.waiter.wait().expect("it is our child").success());
        let began = read(&pair.stamps).last().expect("the waiter's command ran").0;
        late.add_ms((began.as_secs_f64() - end.as_secs_f64()) * 1000.0);
    }
    late
}

fn pair(server: &Server) -> Pair {
    let name = new_name();
    let stamps = server.directory().join(format!("{name}.stamps"));
    let mut call = command(NXLOCK);
    call.args(["--server", &server.tcp(), "run", "--ttl", "1s", &name, "--", "sleep", "60"]);
    let holder = start(call, Stdio::null());
    let key = format!("lock:{name}");
    until("the lock is held", || server.ask(&["EXISTS", &key]));
    let waiter = start(Guard::NxlockTcp.call(server, &name, &stamping(&stamps, 1, false)), Stdio::null());
    until("somebody waits", || Guard::NxlockTcp.waiting(server, &name) == Some(1));
    Pair { name, stamps, holder, waiter }
}

/// Sets unrelated keys, which expire during the bench and after it.
pub fn strew(server: &Server, keys: usize) {
    let mut connection = server.connect().expect("the server answers");
    let mut pipe = redis::pipe();
    for key in 0..keys {
        pipe.cmd("SET").arg(format!("other:{key}")).arg("value").arg("PX").arg(1_000 + key * 10).ignore();
    }
    pipe.exec(&mut connection).expect("set");
}
