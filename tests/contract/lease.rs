//! A lock acquired, renewed and released by its token.

use std::time::Duration;

use serde_json::Value;

use crate::support::turns::{acquire, ends_by_itself, is_free, lease_left, lock_status, release};
use crate::support::{Authority, now};

pub fn a_lock_is_taken_renewed_shown_and_given_back(authority: &impl Authority) {
    let token = authority.nxlock(["acquire", "job", "--ttl", "20s"]).run().exits(0).says_nothing().token();
    let seen = lock_status(authority);
    assert_eq!((&seen["name"], &seen["key"], &seen["state"]), (&"job".into(), &"lock:job".into(), &"held".into()));
    assert!((1..=20_000).contains(&seen["ttl_ms"].as_u64().unwrap()), "{seen}");
    authority.nxlock(["status", "job"]).run().exits(0).says_nothing();
    authority.nxlock(["renew", "job", &token, "--ttl", "10m"]).run().exits(0).says_nothing().prints("");
    let left = lease_left(authority);
    let fresh = Duration::from_secs(20)..=Duration::from_secs(600);
    assert!(fresh.contains(&left), "a renewal puts the expiry a full ttl from now: {left:?}");
    authority.nxlock(["release", "job", &token]).run().exits(0).says_nothing().prints("");
    authority.nxlock(["status", "job"]).run().exits(1).says_nothing();
    let seen = lock_status(authority);
    assert_eq!((&seen["state"], &seen["holder"], &seen["ttl_ms"]), (&"free".into(), &Value::Null, &Value::Null));
    assert_eq!(authority.nxlock(["--json", "status"]).run().exits(0).json(), Value::Array(vec![]));
}

pub fn a_renewal_may_also_shorten_what_is_left(authority: &impl Authority) {
    let token = acquire(authority, "10m");
    authority.nxlock(["renew", "job", &token, "--ttl", "1m"]).run().exits(0);
    assert!(lease_left(authority) <= Duration::from_secs(60));
    authority.nxlock(["renew", "job", &token, "--ttl", "100ms"]).run().exits(0);
    ends_by_itself(authority);
}

pub fn a_renewal_from_within_does_not_shorten_what_a_run_counts_on(authority: &impl Authority) {
    let script = "nxlock --json renew job --ttl 100ms; nxlock --json status job";
    let done = authority.nxlock(["run", "job", "-t", "1m", "-c", script]).run().exits(0).says("not sooner");
    let (renewed, seen) = done.text().split_once('\n').map(|(a, b)| (json(a), json(b))).expect("two documents");
    let left = 10_000..=60_000;
    assert_eq!((&renewed["outcome"], &seen[0]["state"]), (&"renewed".into(), &"held".into()));
    assert!(left.contains(&renewed["ttl_ms"].as_u64().unwrap()), "{renewed}");
    assert!(left.contains(&seen[0]["ttl_ms"].as_u64().unwrap()), "{seen}");
}

pub fn a_renewal_from_within_may_lengthen_what_a_run_counts_on(authority: &impl Authority) {
    // Until the run renews it itself, which may be at once: the server tells it of the change.
    let script = "nxlock --json renew job --ttl 1h";
    let done = authority.nxlock(["run", "job", "-t", "1m", "-c", script]).run().exits(0).says_nothing();
    assert!(json(&done.text())["ttl_ms"].as_u64().unwrap() > 60_000, "{}", done.text());
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("no document ({error}): {text}"))
}

pub fn a_token_is_an_argument_or_in_the_environment_or_on_stdin(authority: &impl Authority) {
    let token = acquire(authority, "1m");
    authority.nxlock(["renew", "job", "--ttl", "1m"]).env("NXLOCK_TOKEN", &token).run().exits(0);
    authority.nxlock(["release", "job"]).env("NXLOCK_TOKEN", &token).run().exits(0);
    let token = acquire(authority, "1m");
    authority.nxlock(["renew", "job", "-", "--ttl", "1m"]).stdin(token.as_bytes()).run().exits(0);
    authority.nxlock(["release", "job", "-"]).stdin(format!("{token}\n").as_bytes()).run().exits(0);
    let token = acquire(authority, "1m");
    // The argument takes precedence over the environment.
    authority.nxlock(["release", "job", &token]).env("NXLOCK_TOKEN", "nx1:somebody:elses").run().exits(0);
}

pub fn a_lock_of_somebody_else_is_not_touched(authority: &impl Authority) {
    let mine = acquire(authority, "1m");
    release(authority, &mine);
    let theirs = acquire(authority, "1m");
    let before = lock_status(authority);
    authority.nxlock(["renew", "job", &mine, "--ttl", "1h"]).run().exits(76).says("with this token").says("pid");
    authority.nxlock(["release", "job", &mine]).run().exits(76).says("with this token").never_says(&theirs);
    authority.nxlock(["release", "job", "no token of ours"]).run().exits(76);
    let after = lock_status(authority);
    assert_eq!((&after["holder"]["id"], &after["fence"]), (&before["holder"]["id"], &before["fence"]), "{after}");
    assert!(lease_left(authority) <= Duration::from_secs(60));
    release(authority, &theirs);
}

pub fn a_lock_that_has_expired_is_said_to_have(authority: &impl Authority) {
    // A grant that is answered after half of such a short lease is asked for again.
    let words = ["acquire", "job", "--ttl", "100ms", "--server-timeout", "20s"];
    let token = authority.nxlock(words).run().exits(0).token();
    ends_by_itself(authority);
    authority.nxlock(["renew", "job", &token, "--ttl", "1m"]).run().exits(76).says("expired");
    authority.nxlock(["release", "job", &token]).run().exits(76).says("expired");
    assert!(is_free(authority), "a renewal does not bring a lock back");
    // Nor does a renewal take the lock from its next holder.
    let next = acquire(authority, "1m");
    authority.nxlock(["renew", "job", &token, "--ttl", "1m"]).run().exits(76);
    release(authority, &next);
}

pub fn releasing_twice_is_not_success_twice(authority: &impl Authority) {
    let token = acquire(authority, "1m");
    release(authority, &token);
    authority.nxlock(["release", "job", &token]).run().exits(76);
}

pub fn a_lock_that_nobody_gave_back_ends_by_itself_and_not_before(authority: &impl Authority) {
    let began = now();
    // Each waits until the previous lease expires.
    for _ in 0..2 {
        acquire(authority, "1s");
        let left = lease_left(authority);
        assert!(left <= Duration::from_secs(1), "{left:?}");
    }
    authority.nxlock(["run", "job", "--", "true"]).run().exits(0);
    let took = began.elapsed();
    // Less one per cent: no clock is exact.
    assert!(took >= Duration::from_millis(1980), "{took:?}");
    ends_by_itself(authority);
}

pub fn a_lock_whose_token_cannot_be_printed_is_given_back(authority: &impl Authority) {
    for options in [&[][..], &["--json"], &["--export"]] {
        let call = || authority.nxlock(["acquire", "job", "--ttl", "1m"].iter().chain(options).copied());
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        call().stdout_to(full).run().exits(70).says("released");
        assert!(is_free(authority), "{options:?}: /dev/full");

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        call().stdout_to(writer).run().exits(70).says("released");
        assert!(is_free(authority), "{options:?}: a closed pipe");

        let read_only = std::fs::File::open("/dev/null").unwrap();
        call().stdout_to(read_only).run().exits(70).says("released").prints("");
        assert!(is_free(authority), "{options:?}: open for reading only");
    }
    authority.sh("exec nxlock acquire job --ttl 1m >&-", &[]).run().exits(70);
    assert!(is_free(authority), "no stdout at all");
}
