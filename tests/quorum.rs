//! Several servers: a majority of them decides, whatever the others do. `contract` has what holds for every kind of
//! authority.

/// A minority is down, or a majority.
mod down;
/// Servers that come back empty while the lock is held.
mod forgetting;
/// Servers that neither answer nor close the connection.
mod hanging;
/// Requests and replies that arrive late.
mod late;
/// How several servers are named, and which combinations nxlock rejects.
mod naming;
/// Many callers that want the lock at the same moment.
mod racing;
/// Servers that take long to answer each request, and answer all of them.
mod slow;
/// The tally: who holds the lock, from what each server reports.
mod verdicts;

use crate::support::turns::{Turn, turn};
use crate::support::{Done, Five, Nxlock, Redis, eventually, eventually_some};

/// A vote for another candidate.
const OTHERS: &[u8] = b"nx1:bbbbbbbbbbbbbbbbbbbbbbbbbb:u@h:1:1800000000000:";

/// Waits until no server has a vote left, long before a lease would have expired.
#[track_caller]
fn nothing_is_left(five: &Five) {
    eventually("nothing is left in any of them", || five.values().iter().all(Option::is_none));
}

/// Returns the result of a call that fails with 69 and for this reason, which takes answers: on a busy machine, a short
/// time-out may end before the servers have answered. The call is made again until they have.
#[track_caller]
fn unreachable_for(reason: &str, call: impl Fn() -> Nxlock) -> Done {
    let is_told = |done: &Done| done.both().contains(reason);
    eventually_some(reason, || Some(call().run().exits(69)).filter(is_told))
}

/// Starts a holder at three servers, and waits until each tells it what happens.
fn told_by_all(three: &[Redis; 3], options: &[&str]) -> Turn {
    let servers = three.each_ref().map(Redis::url).join(" ");
    let mut holder = Turn::of(Nxlock::new(turn(&[&["-t", "10m"], options].concat())).env("NXLOCK_SERVER", servers));
    holder.up();
    eventually("all tell it", || three.iter().all(|redis| redis.tells() > 0));
    holder
}
