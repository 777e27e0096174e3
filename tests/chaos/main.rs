//! A lock that works without faults is not yet trustworthy. Hence contenders, with every fault of theirs, of their
//! network and of their server, for as long as the user likes; and a checker that reads afterwards what all of them
//! wrote down.
//!
//! `NXLOCK_CHAOS_SECONDS` sets the length of a run, `NXLOCK_CHAOS_ARENA` selects one arena, and `NXLOCK_CHAOS_SEED`
//! repeats a run's decisions. `NXLOCK_CHAOS_HISTORY` names a file to which the grants and releases are added (`history`).
//! The scheduling of the processes does not repeat.

#![expect(clippy::unwrap_used, reason = "in a test, what should be there and is not is the failure")]

/// One place where locks live, its contenders, and its faults, all at once.
mod arena;
/// A thread that asks holders to give up, or breaks their locks.
mod asker;
/// The violations that a record may not show.
mod checker;
/// A thread that acquires locks, again and again.
mod contender;
/// The place where the locks of an arena live, and its faults.
mod ground;
/// The grants and releases in a form that other checkers read.
mod history;
/// The fault kit of the other tests.
#[path = ".."]
#[expect(dead_code, unused_imports, reason = "terminals and the like are the other tests'")]
mod kit {
    pub mod support;
}
/// The rules as nxlock has them, not a copy.
#[path = "../../src/lock/machine.rs"]
#[expect(dead_code, reason = "the trace needs less of it than the local store does")]
mod machine;
/// Polls the keys all the time.
mod observer;
/// Plain `SET NX` clients.
mod outsider;
/// A process that can be frozen, killed and waited for.
mod process;
/// The events of a run: attempts, stamps, faults, sights.
mod record;
/// lock.lua as the tests call it.
mod script;
/// The work under a lock, and its trace in the log.
mod section;
/// Random decisions that a seed repeats.
mod seed;
/// Job control for one job.
mod shell;
/// The report of a violation.
mod story;
/// Whether each thing that a server did is a step of the rules.
mod trace;

use std::any::Any;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kit::support;

use arena::{Arena, Spec};
use record::{Ailment, Record};
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
    let wanted = std::env::var("NXLOCK_CHAOS_ARENA").ok();
    let specs: [fn() -> Spec; 10] = [
        Spec::bare,
        Spec::lasting,
        Spec::forgetful,
        Spec::drifting,
        Spec::serverless,
        Spec::killed,
        Spec::several,
        Spec::sharing,
        Spec::deposed,
        Spec::moving,
    ];
    let arenas = specs.into_iter().enumerate().map(|(n, spec)| Arena::open(spec(), Seed::of(seed).branch(n as u64)));
    let arenas: Vec<Arena> =
        arenas.filter(|arena| wanted.as_ref().is_none_or(|wanted| arena.name() == wanted)).collect();
    assert!(!arenas.is_empty(), "there is no arena {wanted:?}");
    let mut failed = Vec::new();
    for (name, verdict) in verdicts(arenas, lasts) {
        match verdict {
            Ok(Verdict { text, violations }) => {
                println!("{text}");
                failed.extend((violations > 0).then(|| format!("{violations} violations in {name}")));
            }
            Err(panic) => {
                println!("arena {name}: no verdict");
                failed.push(format!("{name} has no verdict: {}", message(&*panic)));
            }
        }
    }
    assert!(failed.is_empty(), "{}; NXLOCK_CHAOS_SEED={seed} repeats the run's decisions", failed.join("; "));
}

/// Returns the verdict of each arena, independent of the others, or its panic.
fn verdicts(arenas: Vec<Arena>, lasts: Duration) -> Vec<(&'static str, std::thread::Result<Verdict>)> {
    std::thread::scope(|scope| {
        let runs: Vec<_> =
            arenas.into_iter().map(|arena| (arena.name(), scope.spawn(move || verdict(&arena.run(lasts))))).collect();
        runs.into_iter().map(|(name, run)| (name, run.join())).collect()
    })
}

/// The report on a record.
struct Verdict {
    text: String,
    violations: usize,
}

fn verdict(record: &Record) -> Verdict {
    let history = history::of(record);
    if let Some(path) = std::env::var_os("NXLOCK_CHAOS_HISTORY") {
        let file = File::options().create(true).append(true).open(path);
        file.and_then(|mut file| file.write_all(history.as_bytes())).expect("the history is written");
    }
    let mut text = story::summary(record);
    let served = !checker::sections(record).is_empty();
    let moved = record.arena != "moving" || record.faults.iter().any(|fault| fault.ailment == Ailment::Moved);
    let followed = record.traces.is_empty() || checker::granted(record, &checker::sections(record)).0 > 0;
    assert!(served && moved && followed && !record.faults.is_empty(), "nothing went on: that proves nothing\n{text}");
    let found = checker::check(record);
    let is_of_locks = !found.is_empty() || checker::excused(record).0 > 0 || history::refuted(&history).is_none();
    assert!(is_of_locks, "nothing is wrong, and the history is not one of locks: {:?}", history::refuted(&history));
    for violation in found.iter().take(5) {
        text += &format!("\n{}", story::tell(record, violation));
    }
    if found.len() > 5 {
        text += &format!("\n... and {} more in {}", found.len() - 5, record.arena);
    }
    Verdict { text, violations: found.len() }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked")
}

#[test]
fn an_arena_that_fails_ends_and_does_not_take_the_verdict_of_another() {
    let specs = [Spec::failing("the server does not start again"), Spec::serverless()];
    let arenas = specs.map(|spec| Arena::open(spec, Seed::of(1)));
    let verdicts = verdicts(arenas.into(), Duration::from_secs(2));
    let [("failing", Err(panic)), ("serverless", Ok(Verdict { text, .. }))] = verdicts.as_slice() else {
        panic!("{:?}", verdicts.iter().map(|(name, verdict)| (name, verdict.is_ok())).collect::<Vec<_>>());
    };
    assert_eq!(message(&**panic), "the server does not start again");
    assert!(text.starts_with("arena serverless"), "{text}");
}

#[test]
fn every_mutant_applies() {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mutants = fs::read_dir(tree.join("tests/chaos/mutants")).unwrap().map(|entry| entry.unwrap().path());
    let stale: Vec<PathBuf> = mutants
        .filter(|patch| {
            let git = Command::new("git").args(["apply", "--check"]).arg(patch).current_dir(tree).status();
            !git.unwrap().success()
        })
        .collect();
    assert!(stale.is_empty(), "{stale:?} do not apply");
}
