//! Whether each thing that was done is a step of the rules (`machine`): not only what came of it.
//!
//! A thread reads what a server executes, as MONITOR tells it, and follows it with the rules (`replay`). Without a server,
//! it reads each save of a lock's file (`saves`). An overlap is not needed for a fault to be found: a fence that repeats, a
//! slot given twice, a waiter that is passed, a message that is not sent is one.

mod keyspace;
mod lock;
mod monitor;
mod replay;
pub mod saves;
#[cfg(test)]
mod tests;
mod token;

use std::collections::HashSet;
use std::path::Path;

use monitor::{Monitor, Next, has_told};
use replay::Replay;

use crate::record::Nanos;

pub use replay::{ARRIVES, Granted, LEAVES};
pub use token::Token;

/// What the test saw of a server, or of a directory.
#[derive(Default)]
pub struct Trace {
    /// How many calls were steps of the rules.
    pub steps: usize,
    /// How many could not be judged, as keys were lost or not seen, or the server may have refused or aborted it.
    pub unjudged: usize,
    /// Each thing that the rules do not allow, and when that was found.
    pub faults: Vec<(Nanos, String)>,
    /// The grants, each with its attempt's token.
    pub grants: Vec<Granted>,
    /// Intervals of the server's clock, in µs, of which not everything was seen.
    pub gaps: Vec<(u64, u64)>,
    /// The keys of locks of which saves were not seen, each with the interval of the clock of fences, in µs, in which they
    /// were made.
    pub missed: Vec<(String, (u64, u64))>,
    /// The fences that calls may have granted, to whomever, that were not seen or not judged, and those given for a lock that
    /// was moving.
    pub fences: HashSet<u64>,
}

/// Follows a server until `enough`, while it is a master. What comes from one of the masters' ports is what it is fed as
/// their replica.
pub fn follow(socket: &Path, masters: &[u16], enough: impl Fn() -> bool) -> Trace {
    let mut monitor = Monitor::of(socket);
    let mut replay = Replay::of(!masters.is_empty());
    let mut has_told_all = false;
    loop {
        match monitor.next() {
            Next::Command(command) => {
                match command.port.is_some_and(|port| masters.contains(&port)) {
                    true => replay.is_cut_off(),
                    false => replay.sees(&command),
                }
                if replay.is_lost() {
                    monitor.looks();
                }
            }
            Next::Snapshot(snapshot, at) => replay.begins(snapshot, at),
            Next::Replica(at) => {
                replay.is_fed(at);
                // The next look at it is a line.
                if enough() {
                    break;
                }
            }
            Next::CutOff => replay.is_cut_off(),
            Next::Nothing if has_told_all => break,
            Next::Nothing => has_told_all = enough() && has_told(socket),
        }
    }
    replay.ends();
    replay.into_trace()
}
