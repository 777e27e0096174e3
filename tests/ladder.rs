//! Without scripts, on servers that compare by commands of their own: a small imitation of them.

use std::time::Duration;

use crate::support::line::{Turn, turn};
use crate::support::{Fake, eventually};

const KINDS: [&str; 2] = ["DELIFEQ", "DELEX"];

/// By what it has itself, and not by transactions.
#[track_caller]
fn compared_by_its_own_commands(fake: &Fake, kind: &str) {
    assert!(fake.was_asked("SET IFEQ PX"));
    assert!(fake.was_asked(if kind == "DELEX" { "DELEX IFEQ" } else { kind }));
    for other in ["WATCH", "MULTI", "DEL", "PEXPIRE"] {
        assert!(!fake.was_asked(other), "{other}");
    }
}

#[test]
fn a_token_is_acquired_renewed_and_released() {
    for kind in KINDS {
        let fake = Fake::that_deletes_by(kind);
        let acquired = fake.nxlock(["--json", "acquire", "job", "--ttl", "1m"]).run().exits(0).json();
        assert!(acquired["fence"].is_null(), "{acquired}");
        let token = acquired["token"].as_str().unwrap();
        assert_eq!(fake.value("lock:job").as_deref(), Some(token));
        fake.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(75).prints("").says("held by somebody else");
        fake.nxlock(["status", "job"]).run().exits(0);
        fake.nxlock(["renew", "job", token, "--ttl", "10m"]).run().exits(0);
        assert!(fake.pttl("lock:job") > 500_000);
        assert!(fake.was_asked("SET IFEQ PX"));
        fake.nxlock(["release", "job", token]).run().exits(0);
        assert_eq!(fake.value("lock:job"), None);
        fake.nxlock(["release", "job", token]).run().exits(76);
        fake.nxlock(["renew", "job", token, "--ttl", "10m"]).run().exits(76);
        assert_eq!(fake.value("lock:job"), None);
        compared_by_its_own_commands(&fake, kind);
    }
}

#[test]
fn a_run_is_renewed_and_given_back_and_the_next_one_gets_it() {
    for kind in KINDS {
        let fake = Fake::that_deletes_by(kind);
        let mut holder = Turn::of(fake.nxlock(turn(&["-t", "3s"])));
        assert_eq!(holder.up(), "none", "it has no fence");
        let mut before = fake.pttl("lock:job");
        eventually("the lease is renewed", || {
            let now = fake.pttl("lock:job");
            let longer = now > before;
            before = now;
            longer
        });
        let mut waiter = Turn::of(fake.nxlock(turn(&[])));
        waiter.running.says("waiting for \"job\": held by ");
        assert!(!waiter.is_up());
        holder.leaves();
        waiter.up();
        waiter.leaves();
        assert_eq!(fake.value("lock:job"), None);
        compared_by_its_own_commands(&fake, kind);
    }
}

#[test]
fn what_is_somebody_elses_is_not_touched() {
    for kind in KINDS {
        let fake = Fake::that_deletes_by(kind);
        let token = fake.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0).token();
        let take = || fake.put("lock:job", "another's", Duration::from_secs(60));
        let untouched = || {
            assert_eq!(fake.value("lock:job").as_deref(), Some("another's"));
            assert!(fake.pttl("lock:job") <= 60_000);
        };
        take();
        fake.nxlock(["renew", "job", &token, "--ttl", "1h"]).run().exits(76).says("another program");
        fake.nxlock(["release", "job", &token]).run().exits(76).says("another program");
        fake.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(75).prints("");
        untouched();
        fake.delete("lock:job");
        // Found out when it is renewed.
        let mut holder = Turn::of(fake.nxlock(turn(&["-t", "3s"])));
        holder.up();
        take();
        holder.running.finish().exits(76);
        untouched();
        fake.delete("lock:job");
        // And when it is given back.
        let mut holder = Turn::of(fake.nxlock(turn(&["-t", "1h"])));
        holder.up();
        take();
        holder.is_told();
        holder.running.finish().exits(76);
        untouched();
        compared_by_its_own_commands(&fake, kind);
    }
}

#[test]
fn a_lease_that_nobody_gave_back_ends_by_itself() {
    for kind in KINDS {
        let fake = Fake::that_deletes_by(kind);
        fake.nxlock(["acquire", "job", "--ttl", "700ms"]).run().exits(0);
        fake.nxlock(["run", "job", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
        assert_eq!(fake.value("lock:job"), None);
    }
}
