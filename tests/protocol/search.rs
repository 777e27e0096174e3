//! A search for a random history that breaks a rule, with the scripts as they are or with a fault in them.
//!
//! Owns the number of histories and their seeds. Must not know the rules.

use std::fmt::Debug;

use proptest::prelude::{Strategy, prop};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use crate::scripts::Script;
use crate::server::Server;

/// A fault in a script: each text is replaced by the one after it.
pub type Fault = (&'static str, &'static str);

/// Tries this many histories: others in every run, or with a fault in the scripts always the same.
///
/// # Errors
///
/// The shortest history found that breaks a rule, and how.
pub fn search<E: Clone + Debug>(
    fault: Option<Fault>,
    cases: u32,
    event: impl Strategy<Value = E>,
    keeps_the_rules: impl Fn(&Server, &[E]) -> Result<(), String>,
) -> Result<(), String> {
    let server = Server::start();
    let max_shrink_iters = if fault.is_some() { 0 } else { 1000 };
    let config = Config { cases, max_shrink_iters, failure_persistence: None, ..Config::default() };
    let mut runner = match fault {
        Some(_) => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
        None => TestRunner::new(config),
    };
    let histories = prop::collection::vec(event, 1..60);
    let outcome = runner.run(&histories, |history| keeps_the_rules(&server, &history).map_err(TestCaseError::fail));
    outcome.map_err(|error| error.to_string())
}

/// Asserts that a search with each fault in these scripts finds a history that breaks a rule.
pub fn all_are_noticed(faults: &[(&str, Fault)], scripts: &[Script], search: impl Fn(Fault) -> Result<(), String>) {
    for (what, (from, to)) in faults {
        // The scripts are sent without their indentation.
        let from: String = from.split('\n').map(str::trim_start).collect::<Vec<_>>().join("\n");
        let is_there = |script: &Script| std::str::from_utf8(script.text()).unwrap().contains(&from);
        assert!(scripts.iter().any(is_there), "no script says {from}");
        assert!(search((from.leak(), to)).is_err(), "{what}, and nothing is noticed");
    }
}
