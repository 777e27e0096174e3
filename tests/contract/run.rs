//! A lock around a command: held while the command runs, and released when it has ended.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::turns::{Turn, break_it, ends_by_itself, is_free, lease_left};
use crate::support::{Authority, Running, eventually, is_alive, now, text_of};

pub fn a_job_longer_than_its_lease_keeps_its_lock(authority: &impl Authority) {
    let log = authority.directory().join("log");
    let script = "echo in >> \"$LOG\"; sleep 6.5; echo out >> \"$LOG\"";
    let start = |_| authority.nxlock(["-q", "run", "job", "-t", "6s", "-c", script]).env("LOG", &log).start();
    let contenders: Vec<Running> = (0..2).map(start).collect();
    for contender in contenders {
        contender.finish().exits(0).says_nothing();
    }
    assert_eq!(text_of(&log), "in\nout\n".repeat(2));
}

pub fn the_shortest_lease_is_kept_as_well(authority: &impl Authority) {
    // If the machine delays nxlock for most of such a lease, nxlock stops the command, or does not start it, and rightly
    // so.
    eventually("it is kept for three times as long", || {
        let done = authority.nxlock(["-q", "run", "job", "-t", "100ms", "-c", "sleep 0.3; echo through"]).run();
        match done.status.code() {
            Some(76) => return false,
            Some(69) => {
                done.says("before the command could be started");
                return false;
            }
            _ => {}
        }
        done.exits(0).prints("through\n");
        true
    });
}

pub fn a_command_told_to_stop_gives_its_lock_to_the_next(authority: &impl Authority) {
    let mut holder = authority.nxlock(["run", "job", "-t", "10m", "-c", "echo pid $$; exec sleep 300"]).start();
    let pid: i32 = holder.line("pid ").parse().unwrap();
    let mut next = Turn::waiting(authority, &[]);
    holder.signal(Signal::SIGTERM);
    next.up();
    assert!(!is_alive(pid), "the command is gone by then");
    holder.finish().exits(143);
    next.leaves();
}

pub fn a_command_that_cannot_be_started_does_not_keep_the_name(authority: &impl Authority) {
    authority.nxlock(["run", "job", "--at-least", "1m", "--", "/no/such/command"]).run().exits(127);
    assert!(is_free(authority));
}

pub fn a_run_that_is_killed_gives_its_lock_back_once_its_command_is_gone(authority: &impl Authority) {
    let mut holder = authority.nxlock(["run", "job", "-t", "1h", "-c", "echo pid $$; exec sleep 300"]).start();
    let pid: i32 = holder.line("pid ").parse().unwrap();
    let mut next = Turn::waiting(authority, &[]);
    holder.signal(Signal::SIGKILL);
    next.up();
    assert!(!is_alive(pid), "the next one runs beside its command");
    next.leaves();
}

pub fn a_name_stays_locked_for_at_least_as_long_as_asked_for(authority: &impl Authority) {
    let began = now();
    authority.nxlock(["run", "job", "--at-least", "1s", "-c", "exit 3"]).run().exits(3).says_nothing();
    let refused = authority.nxlock(["run", "job", "-n", "--", "true"]).run().status.code() == Some(75);
    assert!(refused || began.elapsed() >= Duration::from_secs(1), "given back at once");
    authority.nxlock(["run", "job", "--", "true"]).run().exits(0);
    assert!(began.elapsed() >= Duration::from_millis(990), "free after {:?}", began.elapsed());
    ends_by_itself(authority);
}

pub fn at_least_may_be_longer_than_the_lease(authority: &impl Authority) {
    authority.nxlock(["run", "job", "-t", "10s", "--at-least", "1h", "--", "true"]).run().exits(0);
    let left = lease_left(authority);
    assert!(left > Duration::from_secs(3000), "{left:?}");
    authority.nxlock(["run", "job", "-n", "--", "true"]).run().exits(75);
    break_it(authority);
}

pub fn a_command_that_took_longer_than_at_least_frees_the_name_at_once(authority: &impl Authority) {
    authority.nxlock(["run", "job", "--at-least", "100ms", "--", "sleep", "0.2"]).run().exits(0);
    assert!(is_free(authority));
}
