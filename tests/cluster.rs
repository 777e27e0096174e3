//! A cluster: who has a slot, who has it next, and what becomes of those who hold and wait in between.
//!
//! That locks are kept there as anywhere else is told in `authority`.

mod failover;
mod moves;
mod seeds;

use crate::support::line::{Turn, fences_rise, grants, turn};
use crate::support::{Authority, Cluster, Pool, eventually};

/// For tests that leave it whole.
static MASTERS: Pool<Cluster> = Pool::of(Cluster::of_masters);

/// Somebody who logs the turn, with number and fence, and stays.
fn numbered(authority: &impl Authority, who: usize, options: &[&str]) -> Turn {
    let call = authority.nxlock(turn(options)).env("LOG", authority.directory().join("log"));
    Turn::of(call.env("WHO", who.to_string()))
}

/// A holder, and so many behind it.
fn line(authority: &impl Authority, n: usize, options: &[&str]) -> Vec<Turn> {
    let mut holder = numbered(authority, 0, options);
    holder.up();
    let mut line = vec![holder];
    line.extend((1..=n).map(|who| numbered(authority, who, options).in_line(authority)));
    line
}

/// Each has its turn and goes; all of it is in the log, in order.
#[track_caller]
fn are_served(authority: &impl Authority, line: Vec<Turn>) {
    let n = line.len();
    for mut turn in line {
        turn.up();
        turn.leaves();
    }
    let log = authority.directory().join("log");
    assert_eq!(grants(&log).iter().map(|grant| grant.0).collect::<Vec<_>>(), (0..n).collect::<Vec<_>>());
    fences_rise(&log);
}

/// Those who wait are heard where the lock is: only there a release hears whether they live.
#[track_caller]
fn listen_where_the_lock_is(cluster: &Cluster, n: usize) {
    eventually("all who wait listen where the lock is", || {
        cluster.master_of("lock:job").ask::<Vec<String>>(&["PUBSUB", "CHANNELS", "lock:job:wake:*"]).len() == n
    });
}
