//! An asker: a thread that asks holders to give up, as a person on call does. Where a lock may be lost, it also breaks locks.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::arena::Shared;
use crate::record::{Ailment, On, boot_clock};
use crate::seed::Seed;
use crate::support::{lasts, program};

pub fn goes_on(shared: &Shared<'_>, mut seed: Seed) {
    while !shared.is_over() {
        lasts(seed.millis(20, 500));
        asks(shared, &mut seed);
    }
}

fn asks(shared: &Shared<'_>, seed: &mut Seed) {
    let at = usize::try_from(seed.between(0, shared.names.len() as u64)).expect("it fits");
    let name = shared.names[at].as_str();
    let Some(id) = holder(shared, name, seed) else { return };
    let from = boot_clock();
    let breaks = shared.breaks && seed.percent(30);
    let verb = if breaks { "--break" } else { "--ask" };
    let mut words = vec!["release", name, verb, &id, "--reason", "it is urgent"];
    let patience = format!("{}ms", seed.between(1, 400));
    if !breaks && seed.percent(50) {
        words.extend(["-w", &patience]);
    }
    let output = called(shared, &words);
    shared.journal.befell(if breaks { Ailment::Broken } else { Ailment::Asked }, On::Name(at), from);
    // Done; a server that cannot be reached, or refuses; nobody can be asked, or has given up in time; another holds it.
    let explained = [0, 69, 75, 76];
    let status = output.status.code();
    assert!(status.is_some_and(|status| explained.contains(&status)), "{words:?}: {output:?}");
}

/// Returns the ID of one of those who hold a lock, and may be asked.
fn holder(shared: &Shared<'_>, name: &str, seed: &mut Seed) -> Option<String> {
    let output = called(shared, &["--json", "status", name]);
    let status: Value = serde_json::from_slice(&output.stdout).ok()?;
    let lock = &status[0];
    let shares = lock["holders"].as_array().into_iter().flatten();
    let all = shares.chain([&lock["holder"]]).filter(|holder| holder["may_be_asked"] == true);
    let ids: Vec<&str> = all.filter_map(|holder| holder["id"].as_str()).collect();
    let at = usize::try_from(seed.between(0, (ids.len() as u64).max(1))).expect("it fits");
    ids.get(at).map(|&id| id.to_owned())
}

fn called(shared: &Shared<'_>, words: &[&str]) -> Output {
    let mut command = Command::new(program());
    shared.lead(&mut command);
    command.args(words).stdin(Stdio::null()).env("NXLOCK_SERVER", &shared.near);
    command.output().expect("it starts")
}
