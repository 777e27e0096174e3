use std::time::Duration;

use crate::quorum::{nothing_is_left, unreachable_for};
use crate::support::turns::{Turn, acquire, lock_status, release};
use crate::support::{Authority, Five, eventually};

#[test]
fn whichever_minority_is_down_the_lock_works() {
    let mut five = Five::start();
    for down in [&[0][..], &[1], &[2], &[3], &[4], &[0, 1], &[1, 3], &[3, 4]] {
        for at in down {
            five.each_mut()[*at].kill();
        }
        let token = acquire(&five, "1m");
        five.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(75).prints("");
        assert_eq!(lock_status(&five)["state"], "held", "{down:?}");
        five.nxlock(["renew", "job", &token, "--ttl", "2m"]).run().exits(0);
        release(&five, &token);
        five.nxlock(["run", "job", "--", "echo", "ran"]).run().exits(0).prints("ran\n").says_nothing();
        five.nxlock(["status", "job"]).run().exits(1);
        for at in down {
            five.each_mut()[*at].restart();
        }
        nothing_is_left(&five);
    }
}

#[test]
fn with_a_majority_down_nothing_can_be_said_and_nothing_is_left() {
    let mut five = Five::start();
    for at in [0, 2, 4] {
        five.each_mut()[at].kill();
    }
    let within = ["--server-timeout", "500ms"];
    let call =
        |args: &[&str]| unreachable_for("2 of 5 servers answered", || five.nxlock(within.iter().chain(args).copied()));
    for refusal in [&["-n"][..], &["-w", "300ms"], &[]] {
        let done = call(&[&["run", "job"], refusal, &["--", "echo", "ran"]].concat()).prints("");
        let done = done.says("cannot acquire \"job\": 2 of 5 servers answered");
        // The message names each server that failed, once.
        let last = done.stderr.lines().last().unwrap();
        assert_eq!(last.matches("unix://").count(), 3, "{last}");
        done.within(Duration::from_secs(1));
        for up in [1, 3] {
            assert!(!five.each()[up].exists("lock:job"));
        }
    }
    call(&["status", "job"]).says("2 of 5 servers answered");
    call(&["status"]);
    call(&["release", "job", "--break", "aaaaaaaa"]);
}

#[test]
fn a_holder_whose_majority_goes_away_is_stopped_in_time() {
    let mut five = Five::start();
    // On a busy machine, one of the two that are left may not answer the last renewal in time.
    eventually("two have answered the last renewal", || {
        let holder = Turn::had(&five, &["-t", "3s"]);
        for at in [0, 1, 2] {
            five.each_mut()[at].kill();
        }
        let done = holder.finish().exits(76).says("could not be renewed in time");
        for at in [0, 1, 2] {
            five.each_mut()[at].restart();
        }
        done.stderr.contains("2 of 5 servers answered")
    });
}

#[test]
fn too_few_descriptors_are_a_failure_of_our_own() {
    let five = Five::start();
    for descriptors in 8..=32 {
        let limited = format!("ulimit -n {descriptors}; exec \"$0\" \"$@\"");
        let call = five.nxlock(["run", "job", "-n", "--", "true"]).under(["sh", "-c", &limited]);
        let done = call.run();
        // Too few may be left for the command alone.
        assert!(matches!(done.status.code(), Some(0 | 70 | 126)), "{descriptors}: {:?}\n{}", done.status, done.both());
        nothing_is_left(&five);
    }
}
