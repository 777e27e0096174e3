//! What `status` reports: the holder, since when it holds the lock, and the waiters.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::turns::{Turn, lock_status, process, queue, turn};
use crate::support::{Authority, eventually, now};

fn field<'a>(waiters: &'a Value, name: &str) -> Vec<&'a Value> {
    waiters.as_array().expect("an array").iter().map(|waiter| &waiter[name]).collect()
}

pub fn each_waiter_is_shown_with_its_place_and_who_it_is(authority: &impl Authority) {
    let holder = Turn::had(authority, &["--reason", "the first"]);
    let began = now();
    let reasons = ["monthly", "two words", ""];
    let line: Vec<Turn> = reasons
        .iter()
        .map(|reason| {
            let options = ["--reason", reason];
            Turn::queued(authority, if reason.is_empty() { &[] } else { &options })
        })
        .collect();
    let seen = lock_status(authority);
    let since_began = u64::try_from(began.elapsed().as_millis()).unwrap();
    let holds = &seen["holder"];
    assert_eq!((&seen["state"], &holds["pid"]), (&"held".into(), &holder.pid().into()), "{seen}");
    assert_eq!(holds["reason"], "the first", "{seen}");
    let waiters = &seen["queue"];
    assert_eq!(field(waiters, "position"), [1, 2, 3]);
    assert_eq!(field(waiters, "pid"), line.iter().map(Turn::pid).collect::<Vec<_>>());
    assert_eq!(field(waiters, "reason"), [&"monthly".into(), &"two words".into(), &Value::Null]);
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    for waiter in waiters.as_array().unwrap() {
        assert_eq!((waiter["host"].as_str(), &waiter["user"]), (Some(host.as_str()), &holds["user"]));
    }
    // The first to come has waited longest.
    let waited: Vec<u64> = field(waiters, "waiting_ms").iter().map(|ms| ms.as_u64().unwrap()).collect();
    assert!(waited.is_sorted_by(|a, b| a >= b) && waited[0] <= since_began, "{waited:?} in {since_began}");
    let id = |value: &Value| value.as_str().filter(|id| id.len() == 8).map(str::to_owned).expect("an id");
    let ids: Vec<String> = field(waiters, "id").into_iter().map(id).collect();
    let table = authority.nxlock(["status", "job"]).run().exits(0).text();
    for (place, (turn, id)) in line.iter().zip(&ids).enumerate() {
        let row = table.lines().find(|row| row.contains(id.as_str())).expect("it is in the table").to_owned();
        assert!(row.trim_start().starts_with(&format!("{}.", place + 1)), "{table}");
        assert!(row.contains(&format!("@{host}:{}", turn.pid())) && row.contains(reasons[place]), "{table}");
    }
    // A waiter keeps its id when it becomes the holder.
    let mut held = holder;
    for (mut turn, id) in line.into_iter().zip(&ids) {
        held.leaves();
        turn.up();
        assert_eq!(lock_status(authority)["holder"]["id"], **id);
        held = turn;
    }
    assert!(queue(authority).is_empty());
    held.leaves();
}

pub fn a_holder_and_a_waiter_are_known_as_they_say(authority: &impl Authority) {
    let holder = Turn::had(authority, &["--as", "release 17: web", "--reason", "why"]);
    let waiter = Turn::of(authority.nxlock(turn(&[])).env("NXLOCK_AS", "agent 4")).once_queued(authority);
    let nameless = Turn::of(authority.nxlock(turn(&[])).env("NXLOCK_AS", "")).once_queued(authority);
    let seen = lock_status(authority);
    assert_eq!(
        (&seen["holder"]["as"], &seen["holder"]["reason"]),
        (&"release 17: web".into(), &"why".into()),
        "{seen}"
    );
    assert_eq!(seen["holders"][0]["as"], "release 17: web", "{seen}");
    assert_eq!(field(&seen["queue"], "as"), [&"agent 4".into(), &Value::Null], "{seen}");
    let table = authority.nxlock(["status", "job"]).run().exits(0).text();
    let shown = |turn: &Turn| process(turn.pid()).replace(", pid ", ":");
    assert!(table.contains(&format!("release 17: web ({})", shown(&holder))), "{table}");
    assert!(table.contains(&format!("agent 4 ({})", shown(&waiter))), "{table}");
    assert!(table.contains(&format!("waiting  {}", shown(&nameless))), "{table}");
    let refused = authority.nxlock(["run", "job", "-n", "--", "true"]).run().exits(75);
    refused.says(&format!("release 17: web ({})", process(holder.pid())));
    nameless.running.signal(Signal::SIGTERM);
    nameless.finish();
    holder.leaves();
    let mut waiter = waiter;
    waiter.up();
    waiter.leaves();
}

pub fn since_when_a_lock_is_held_is_counted_from_its_grant(authority: &impl Authority) {
    let first = Turn::had(authority, &[]);
    let mut second = Turn::queued(authority, &["-t", "12s", "-v"]);
    // Its wait must not count.
    eventually("it has waited for a while", || {
        lock_status(authority)["queue"][0]["waiting_ms"].as_u64().is_some_and(|waiting| waiting > 500)
    });
    let told = now();
    first.leaves();
    second.up();
    let seen = lock_status(authority);
    let held = Duration::from_millis(seen["holder"]["held_ms"].as_u64().unwrap());
    // The store may use another clock than this test.
    assert!(held <= told.elapsed() + Duration::from_millis(20), "{held:?}: {seen}");
    let renewals = || second.running.stderr().matches("renewed for").count();
    let before = renewals();
    eventually("the lease is renewed", || renewals() > before);
    let renewed = lock_status(authority);
    assert_eq!((&renewed["holder"]["since"], &renewed["fence"]), (&seen["holder"]["since"], &seen["fence"]));
    assert!(renewed["holder"]["held_ms"].as_u64() > seen["holder"]["held_ms"].as_u64(), "{renewed}");
    second.leaves();
}
