//! Refusals while another holder has the lock: which callers get one, when, and what it says.

use std::time::Duration;

use serde_json::Value;

use crate::support::turns::{Turn, each_is_served, lock_status, queue, release};
use crate::support::{Authority, answered};

pub fn who_does_not_wait_is_refused_at_once(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    for refusal in [&["-n"][..], &["--no-wait"], &["-w", "0"], &["-w", "0s"], &["--wait=0ms"], &["-n", "--no-queue"]] {
        // Neither the holder's end nor that of such a time-out comes before this test has waited for too long.
        let words = ["run", "job", "--server-timeout", "1m"];
        let args = words.iter().chain(refusal).chain(&["--", "echo", "ran"]).copied();
        let done = authority.nxlock(args).run().exits(75).prints("").says("held by somebody else");
        done.never_says("waiting for");
        let args = ["acquire", "job", "--ttl", "1m"].iter().chain(refusal).copied();
        authority.nxlock(args).run().exits(75).prints("");
    }
    assert!(queue(authority).is_empty(), "none of them stands in line");
    holder.leaves();
}

pub fn who_waits_for_so_long_is_refused_then(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    for options in [&["-w", "700ms"][..], &["-w", "700ms", "--no-queue"]] {
        let args = ["--json", "run", "job"].iter().chain(options).chain(&["--", "echo", "ran"]).copied();
        let done = answered(|| authority.nxlock(args.clone())).exits(75).prints("");
        assert!(done.took >= Duration::from_millis(700), "gave up after {:?}", done.took);
        // By its own account, as a busy machine may take long to start it; up to three times what the contract allows.
        let document: Value = serde_json::from_str(&done.stderr).unwrap();
        assert!((700..3600).contains(&document["waited_ms"].as_u64().unwrap()), "{document}");
    }
    holder.leaves();
}

pub fn the_status_for_busy_can_be_chosen(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    for status in [0, 1, 75, 255] {
        let number = status.to_string();
        authority.nxlock(["run", "job", "-n", "-E", &number, "--", "echo", "ran"]).run().exits(status).prints("");
        let long = format!("--conflict-exit-code={number}");
        authority.nxlock(["acquire", "job", "--ttl", "1m", "-n", &long]).run().exits(status).prints("");
    }
    let in_vain = answered(|| authority.nxlock(["run", "job", "-w", "700ms", "-E", "3", "--", "echo", "ran"]));
    in_vain.exits(3).prints("").says("waited");
    holder.leaves();
    authority.nxlock(["run", "job", "-n", "-E", "3", "--", "true"]).run().exits(0);
}

fn host() -> String {
    nix::unistd::gethostname().unwrap().into_string().unwrap()
}

pub fn a_refusal_names_the_holder(authority: &impl Authority) {
    let holder = Turn::had(authority, &["--reason", "the monthly report"]);
    let refused = authority.nxlock(["run", "job", "-n", "--", "true"]).run().exits(75).says("lease").says("since");
    refused.says("the monthly report").says(&format!("@{}, pid {}", host(), holder.pid()));
    holder.leaves();
}

pub fn a_refusal_is_a_document_too(authority: &impl Authority) {
    let holder = Turn::had(authority, &["--reason", "the monthly report"]);
    let seen = lock_status(authority);
    let to_acquire = authority.nxlock(["--json", "acquire", "job", "--ttl", "1m", "-n"]).run().exits(75);
    // The stdout of `run` belongs to its command.
    let to_run = answered(|| authority.nxlock(["--json", "run", "job", "-w", "700ms", "--", "true"]));
    let to_run = to_run.exits(75).prints("");
    for document in [to_acquire.json(), serde_json::from_str(&to_run.stderr).unwrap()] {
        let told = &document["holder"];
        assert_eq!((&document["outcome"], &document["state"]), (&"held".into(), &"held".into()), "{document}");
        assert_eq!((&told["id"], &told["pid"]), (&seen["holder"]["id"], &Value::from(holder.pid())), "{document}");
        assert_eq!((&told["reason"], &told["host"]), (&"the monthly report".into(), &host().into()), "{document}");
        // Of several servers, too few may have shown the same one in time.
        let is_unknown = document["fence"].is_null() && authority.url().contains(' ');
        assert!(is_unknown || document["fence"] == seen["fence"], "{document}");
        assert_eq!(document["nested"], false, "{document}");
        assert!((1..=30_000).contains(&document["ttl_ms"].as_u64().unwrap()), "{document}");
    }
    holder.leaves();
}

pub fn a_refusal_tells_how_many_wait(authority: &impl Authority) {
    let holder = Turn::had(authority, &[]);
    let line = [Turn::queued(authority, &[]), Turn::queued(authority, &[])];
    authority.nxlock(["run", "job", "-n", "true"]).run().exits(75).says("2 others wait");
    let acquire = ["--json", "acquire", "job", "--ttl", "1m"];
    // The caller does not count itself, even if it is in the queue.
    for options in [&["-n"][..], &["-w", "700ms"]] {
        let refused = answered(|| authority.nxlock(acquire.iter().chain(options).copied())).exits(75).json();
        assert_eq!(refused["queue_length"], 2, "{refused}");
    }
    holder.leaves();
    each_is_served(line);
}

pub fn a_refusal_after_a_wait_names_the_holder_of_the_end(authority: &impl Authority) {
    let first = authority.nxlock(["acquire", "job", "--ttl", "1m", "--reason", "the first"]).run().exits(0).token();
    let mut second = Turn::queued(authority, &["--reason", "the second"]);
    let waiter = Turn::queued(authority, &["-w", "4s"]);
    release(authority, &first);
    second.up();
    let refused = waiter.running.finish().exits(75).prints("");
    let block = refused.stderr.split_once("held by somebody else").expect("a refusal").1;
    assert!(block.contains("the second") && !block.contains("the first"), "{}", refused.stderr);
    second.leaves();
}
