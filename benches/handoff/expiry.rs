//! How long after the lease of a holder whose host has failed the next one starts, and how long after nxlock was killed.

use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use super::guard::Guard;
use super::scene::{new_name, read, start};
use super::within::stamping;
use crate::rig::{Figures, Server, now, pause, until};

/// Somebody who waits for a lock, and the file of its command's stamps.
struct Waiter {
    process: Child,
    stamps: PathBuf,
}

impl Waiter {
    fn join(server: &Server, guard: Guard, name: &str) -> Waiter {
        let stamps = server.directory().join(format!("{name}.stamps"));
        let process = start(guard.call(server, name, &stamping(&stamps, 1, false)), Stdio::null());
        until("somebody waits", || guard.waiting(server, name) == Some(1));
        Waiter { process, stamps }
    }

    /// Returns when its command began.
    fn began(mut self) -> Duration {
        assert!(self.process.wait().expect("it is our child").success());
        read(&self.stamps).last().expect("the waiter's command ran").0
    }
}

fn milliseconds(from: Duration, to: Duration) -> f64 {
    (to.as_secs_f64() - from.as_secs_f64()) * 1000.0
}

/// Measures so many locks at once, each with a lease that nobody renews, as if its holder's host had failed. They were
/// acquired one after the other, so that no two leases expire together.
pub fn lateness(server: &Server, guard: Guard, locks: usize) -> Figures {
    let waits = |_| {
        let name = new_name();
        (1..guard.slots()).for_each(|_| guard.acquire(server, &name, "1h"));
        guard.acquire(server, &name, "2s");
        let waiter = Waiter::join(server, guard, &name);
        let end = first_end(server, guard, &name);
        pause(Duration::from_millis(37));
        (waiter, end)
    };
    let mut late = Figures::default();
    for (waiter, end) in (0..locks).map(waits).collect::<Vec<_>>() {
        late.add_ms(milliseconds(end, waiter.began()));
    }
    late
}

/// Returns when the first lease ends.
fn first_end(server: &Server, guard: Guard, name: &str) -> Duration {
    let asked = now();
    let left: i64 = match guard.slots() {
        1 => server.ask(&["PTTL", &format!("lock:{name}")]),
        _ => {
            let ends: Vec<(String, i64)> =
                server.ask(&["ZRANGE", &format!("{{lock:{name}}}:shares"), "0", "0", "WITHSCORES"]);
            let (seconds, micros): (i64, i64) = server.ask(&["TIME"]);
            ends.first().expect("somebody holds it").1 - seconds * 1000 - micros / 1000
        }
    };
    // The server counts whole milliseconds: assume the middle of that one.
    let left = Duration::from_millis(left.try_into().expect("a lease that ends")) + Duration::from_micros(500);
    (asked + now()) / 2 + left
}

/// Kills so many holders one after the other, each of which a waiter follows.
pub fn after_a_kill(server: &Server, guard: Guard, times: usize) -> Figures {
    let mut late = Figures::default();
    for _ in 0..times {
        let name = new_name();
        (1..guard.slots()).for_each(|_| guard.acquire(server, &name, "1h"));
        let stamps = server.directory().join(format!("{name}.holder"));
        let mut call = guard.call(server, &name, &stamping(&stamps, 0, true));
        // The guard says whom it has killed.
        call.stderr(Stdio::null());
        let mut holder = start(call, Stdio::piped());
        until("the holder's command runs", || stamps.exists());
        let waiter = Waiter::join(server, guard, &name);
        pause(Duration::from_millis(5));
        let killed = now();
        holder.kill().expect("it runs");
        holder.wait().expect("it is our child");
        late.add_ms(milliseconds(killed, waiter.began()));
    }
    late
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
