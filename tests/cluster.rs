//! Clusters: slots that move or fail over while their locks are held and waited for.
//!
//! `contract` tests that locks work in a cluster as anywhere else.

mod failover;
mod moves;
mod seeds;

use crate::support::turns::{Turn, each_is_served, fences_rise, grants, turn};
use crate::support::{Authority, Cluster, Pool, eventually};

/// Clusters for tests that leave them whole.
static MASTERS: Pool<Cluster> = Pool::of(Cluster::of_masters);

/// Starts a run that logs its number and its fence, and holds the lock until told to end.
fn numbered(authority: &impl Authority, who: usize, options: &[&str]) -> Turn {
    let call = authority.nxlock(turn(options)).env("LOG", authority.directory().join("log"));
    Turn::of(call.env("WHO", who.to_string()))
}

/// Starts a holder and `n` waiters in the queue behind it.
fn line(authority: &impl Authority, n: usize, options: &[&str]) -> Vec<Turn> {
    let mut holder = numbered(authority, 0, options);
    holder.up();
    let mut line = vec![holder];
    line.extend((1..=n).map(|who| numbered(authority, who, options).once_queued(authority)));
    line
}

/// Asserts that each run gets the lock and ends, and that the log shows them in order.
#[track_caller]
fn are_served(authority: &impl Authority, line: Vec<Turn>) {
    let n = line.len();
    each_is_served(line);
    let log = authority.directory().join("log");
    assert_eq!(grants(&log).iter().map(|grant| grant.0).collect::<Vec<_>>(), (0..n).collect::<Vec<_>>());
    fences_rise(&log);
}

/// Waits until all waiters subscribe at the lock's master: only there can a release see whether they are alive.
#[track_caller]
fn listen_where_the_lock_is(cluster: &Cluster, n: usize) {
    eventually("all who wait listen where the lock is", || {
        cluster.master_of("lock:job").ask::<Vec<String>>(&["PUBSUB", "CHANNELS", "lock:job:wake:*"]).len() == n
    });
}
