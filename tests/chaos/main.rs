//! Nobody trusts a lock because its happy path works: contenders, and everything that can befall them,
//! their network and their server, for as long as one likes; and a checker that reads afterwards what
//! all of them wrote down.
//!
//! `NXLOCK_CHAOS_SECONDS` lengthens a run, `NXLOCK_CHAOS_SEED` repeats its decisions. The moments at
//! which processes are scheduled do not repeat.

#![expect(clippy::unwrap_used, reason = "in a test, what should be there and is not is the failure")]

/// One place where locks live, who contends for them, and what happens to it, all at once.
mod arena;
/// What no record may show.
mod checker;
/// One who wants a lock, again and again.
mod contender;
/// Where the locks of an arena live, and what can befall it.
mod ground;
/// The kit of faults that the other tests use.
#[path = ".."]
#[expect(dead_code, unused_imports, reason = "terminals and the like are the other tests'")]
mod kit {
    pub mod support;
}
/// Who looks at the keys all the time.
mod observer;
/// Plain `SET NX` clients.
mod outsider;
/// A process that can be frozen, killed and waited for.
mod process;
/// What happened: attempts, stamps, faults, sights.
mod record;
/// What is done under a lock, and what is left of it in the log.
mod section;
/// Random decisions that a seed repeats.
mod seed;
/// A violation, told so that it can be understood.
mod story;

use std::time::Duration;

use kit::support;

use arena::{Arena, Spec};
use seed::Seed;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is to be a number: {text}")))
}

#[test]
#[expect(clippy::print_stdout, reason = "the seed, and what was done")]
fn nothing_overlaps_whatever_befalls_it() {
    let seed = from_environment("NXLOCK_CHAOS_SEED").unwrap_or_else(seed::fresh);
    let lasts = Duration::from_secs(from_environment("NXLOCK_CHAOS_SECONDS").unwrap_or(10));
    println!("NXLOCK_CHAOS_SEED={seed} NXLOCK_CHAOS_SECONDS={}", lasts.as_secs());
    let specs = [Spec::bare(), Spec::lasting(), Spec::forgetful(), Spec::drifting(), Spec::serverless()];
    let arenas: Vec<Arena> =
        specs.into_iter().enumerate().map(|(n, spec)| Arena::open(spec, Seed::of(seed).branch(n as u64))).collect();
    let records: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> = arenas.into_iter().map(|arena| scope.spawn(move || arena.run(lasts))).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    let mut violations = 0;
    for record in &records {
        println!("{}", story::summary(record));
        let served = !checker::sections(record).is_empty();
        assert!(served && !record.faults.is_empty(), "nothing went on in {}: that proves nothing", record.arena);
        let found = checker::check(record);
        violations += found.len();
        for violation in found.iter().take(5) {
            println!("{}", story::tell(record, violation));
        }
        if found.len() > 5 {
            println!("... and {} more in {}", found.len() - 5, record.arena);
        }
    }
    assert_eq!(violations, 0, "violations; NXLOCK_CHAOS_SEED={seed} repeats the run's decisions");
}
