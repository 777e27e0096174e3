//! After a reboot no lock is held and no waiter is queued.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::record::{field, with, without_texts};
use crate::support::turns::{Turn, acquire, break_it, is_free, lock_status, queue, release, turn};
use crate::support::{Authority, Local, Nxlock, eventually, may_unshare, we_are_root};

/// The id of another boot.
const ANOTHER: &str = "01234567-89ab-4cde-8f01-23456789abcd";

/// Leaves the files of a lock as another boot left them, with a holder and two waiters. Returns the holder's token.
fn left_by_another_boot(local: &Local, values: &[(&str, &str, &str)]) -> String {
    let token = acquire(local, "1h");
    let waiters = [Turn::queued(local, &[]), Turn::queued(local, &[])];
    let record = fs::read(local.file("lock")).unwrap();
    for mut waiter in waiters {
        waiter.running.signal(Signal::SIGKILL);
        eventually("it is dead", || waiter.running.has_ended());
    }
    release(local, &token);
    let values: Vec<_> = values.iter().copied().chain([("lock", "boot", ANOTHER)]).collect();
    fs::write(local.file("lock"), with(&record, &values)).unwrap();
    token
}

#[test]
fn what_was_held_is_free_and_who_waited_is_forgotten() {
    let local = Local::start();
    let token = left_by_another_boot(&local, &[]);
    assert!(is_free(&local) && queue(&local).is_empty());
    assert_eq!(local.nxlock(["--json", "status", "job"]).run().exits(1).json()[0]["state"], "free");
    for verb in [&["renew", "job", &token, "--ttl", "1h"][..], &["release", "job", &token]] {
        local.nxlock(verb.iter().copied()).run().exits(76);
    }
    local.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
    assert_ne!(field(&fs::read(local.file("lock")).unwrap(), "lock", "boot"), ANOTHER);
}

#[test]
fn a_lock_whose_file_was_lost_in_a_power_failure_is_free_and_whoever_uses_it_is_told() {
    let local = Local::start();
    local.nxlock(["run", "job", "--record", "--", "true"]).run().exits(0);
    let token = acquire(&local, "1h");
    let fence = lock_status(&local)["fence"].as_u64().unwrap();
    let good = fs::read(local.file("lock")).unwrap();
    let left = without_texts(&good, ANOTHER);
    fs::write(local.file("lock"), &left).unwrap();
    assert!(is_free(&local));
    for listed in [&["status", "--json"][..], &["status", "--history", "--json"]] {
        assert_eq!(local.nxlock(listed.iter().copied()).run().exits(0).json(), json!([]));
    }
    assert!(fs::read(local.file("lock")).unwrap() == left, "nobody has written to it");
    local.nxlock(["renew", "job", &token, "--ttl", "1h"]).run().exits(76);
    fs::write(local.file("lock"), &left).unwrap();
    let done = local.nxlock(["--json", "acquire", "job", "--ttl", "1h", "-n"]).run().exits(0);
    assert!(done.json()["fence"].as_u64().unwrap() > fence);
    done.says("was only partly written when the machine went down").says("job.lock");
    local.nxlock(["run", "job", "-n", "--", "true"]).run().exits(75).never_says("partly written");
    // What was written in this boot is not lost by a power failure: something else has damaged it.
    let this = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    fs::write(local.file("lock"), without_texts(&good, this.trim_end())).unwrap();
    local.nxlock(["run", "job", "-n", "--", "true"]).run().exits(78).says("is damaged");
    fs::remove_file(local.file("lock")).unwrap();
}

#[test]
fn who_comes_to_wait_does_not_wait_for_those_of_another_boot() {
    let local = Local::start();
    left_by_another_boot(&local, &[]);
    let holder = Turn::had(&local, &[]);
    let waiter = Turn::queued(&local, &[]);
    assert_eq!(queue(&local), [waiter.pid()]);
    holder.leaves();
    waiter.leaves();
}

#[test]
fn the_fence_rises_above_that_of_another_boot() {
    let local = Local::start();
    // Ahead of the clock, as after the clock was set back.
    left_by_another_boot(&local, &[("lock", "fence", "9000000000000000")]);
    let fence = local.nxlock(["run", "job", "-c", "echo $NXLOCK_FENCE"]).run().exits(0).text();
    assert_eq!(fence, "9000000000000001\n");
}

#[test]
fn neither_a_process_nor_a_promise_of_another_boot_is_found_again() {
    // A process of another boot may have had the pid of a running one, and have started as long after boot.
    let local = Local::start();
    let own = std::process::id().to_string();
    // The keeper is killed with the call; the claim lasts as long as its lease.
    let kept = ["--prefix", "other:", "acquire", "job", "--while-pid", &own, "--ttl", "1h"];
    let token = local.nxlock(kept).run().exits(0).token();
    let process = field(&fs::read(local.locks().join("other:job.lock")).unwrap(), "holder", "life");
    assert!(process.starts_with(&format!("holder+{own}.")), "{process}");
    for life in ["lease", "holder", &process] {
        left_by_another_boot(&local, &[("holder", "life", life)]);
        assert!(is_free(&local), "{life}");
        left_by_another_boot(&local, &[("holder", "life", life), ("holder", "until_ms", "18000000000000000")]);
        assert!(is_free(&local), "{life}");
    }
    left_by_another_boot(&local, &[("holder", "life", "holder"), ("holder", "not_before_us", "18000000000000000000")]);
    assert!(is_free(&local));
    // Reserved for a waiter of that boot.
    left_by_another_boot(&local, &[("holder", "reserved_for", "1")]);
    assert_eq!(lock_status(&local)["state"], "free");
    local.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
    local.nxlock(["--prefix", "other:", "release", "job", &token]).run().exits(0);
}

/// Runs a command with a boot id of its own, as in a container under LXC or systemd-nspawn.
const CONTAINER: &str = r#"
    id=$(mktemp); echo $ANOTHER > "$id"
    mount --bind "$id" /proc/sys/kernel/random/boot_id && rm "$id" && exec "$@""#;

fn in_a_container(call: Nxlock) -> Nxlock {
    call.env("ANOTHER", ANOTHER).under(["unshare", "--mount", "sh", "-c", CONTAINER, "sh"])
}

#[test]
fn a_container_with_a_boot_of_its_own_shares_locks_with_its_host() {
    if !we_are_root() || !may_unshare(&["--mount"]) {
        return;
    }
    let local = Local::start();
    let refused = || local.nxlock(["run", "job", "-n", "--", "echo", "ran"]);
    // Both a claim held by a process and one held by its lease alone.
    let holder = Turn::had(&local, &["-t", "1h"]);
    in_a_container(refused()).run().exits(75).prints("");
    holder.leaves();
    let token = acquire(&local, "1h");
    in_a_container(refused()).run().exits(75).prints("");
    in_a_container(local.nxlock(["renew", "job", &token, "--ttl", "1h"])).run().exits(0);
    release(&local, &token);

    let mut holder = Turn::of(in_a_container(local.nxlock(turn(&["-t", "1h"]))));
    holder.up();
    refused().run().exits(75).prints("");
    let waiter = Turn::queued(&local, &[]);
    holder.leaves();
    waiter.leaves();
    let token = in_a_container(local.nxlock(["acquire", "job", "--ttl", "1h"])).run().exits(0).token();
    refused().run().exits(75).prints("");
    release(&local, &token);
}

#[test]
fn a_lease_that_began_later_than_now_is_another_boots() {
    // The record does not name its boot.
    let local = Local::start();
    left_by_another_boot(&local, &[("lock", "boot", "-"), ("holder", "life", "lease")]);
    assert!(!is_free(&local));
    break_it(&local);
    let [granted, until] = ["18000000000000000000", "18000000000000000"];
    let far = [("holder", "granted_us", granted), ("holder", "until_ms", until)];
    left_by_another_boot(&local, &[&[("lock", "boot", "-"), ("holder", "life", "lease")], &far[..]].concat());
    assert!(is_free(&local) && queue(&local).is_empty());
    local.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
}
