//! What `status` reports: the holder, since when it holds the lock, and the waiters.

use std::time::Duration;

use serde_json::Value;

use crate::support::turns::{Turn, is_renewed, lock_status, queue};
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

pub fn since_when_a_lock_is_held_is_counted_from_its_grant(authority: &impl Authority) {
    let first = Turn::had(authority, &[]);
    let mut second = Turn::queued(authority, &["-t", "3s"]);
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
    is_renewed(authority);
    let renewed = lock_status(authority);
    assert_eq!((&renewed["holder"]["since"], &renewed["fence"]), (&seen["holder"]["since"], &seen["fence"]));
    assert!(renewed["holder"]["held_ms"].as_u64() > seen["holder"]["held_ms"].as_u64(), "{renewed}");
    second.leaves();
}
