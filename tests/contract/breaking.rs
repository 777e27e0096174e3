//! Breaking a lock by the id of its holder, as `status` and refusals show it.

use crate::support::turns::{Turn, acquire, holder_id, is_free, lock_status, queue_is, release};
use crate::support::{Authority, Nxlock, eventually};

pub fn a_lock_is_broken_by_the_id_that_status_shows(authority: &impl Authority) {
    let token = acquire(authority, "1m");
    let id = holder_id(authority);
    authority.nxlock(["release", "job", "--break", &id]).run().exits(0);
    assert!(is_free(authority));
    authority.nxlock(["release", "job", "--break", &id]).run().exits(76).says("free");
    authority.nxlock(["release", "job", &token]).run().exits(76);
    authority.nxlock(["renew", "job", &token, "--ttl", "1m"]).run().exits(76);
}

pub fn nobody_breaks_a_lock_whose_holder_has_changed(authority: &impl Authority) {
    let before = acquire(authority, "1m");
    let seen = holder_id(authority);
    release(authority, &before);
    let token = acquire(authority, "1m");
    authority.nxlock(["release", "job", "--break", &seen]).run().exits(76).says("has changed");
    authority.nxlock(["release", "job", "--break", "aaaaaaaa"]).run().exits(76);
    release(authority, &token);
}

pub fn breaking_the_holders_lock_hands_it_to_the_next(authority: &impl Authority) {
    // The end of the lease would serve the next one too, and later than this test waits.
    let mut holder = Turn::had(authority, &["-t", "10m"]);
    let mut first = Turn::queued(authority, &[]);
    let mut second = Turn::queued(authority, &[]);
    let id = holder_id(authority);
    // A waiter's id is not the holder's.
    let waiters = lock_status(authority)["queue"][0]["id"].as_str().unwrap().to_owned();
    authority.nxlock(["release", "job", "--break", &waiters]).run().exits(76);
    authority.nxlock(["release", "job", "--break", &id]).run().exits(0).says("broke \"job\"");
    first.up();
    queue_is(authority, &[second.pid()]);
    // A second break with this id finds another holder.
    authority.nxlock(["release", "job", "--break", &id]).run().exits(76).says("the holder has changed");
    eventually("the holder notices", || holder.running.has_ended());
    holder.running.finish().exits(76);
    first.leaves();
    second.up();
    second.leaves();
}

/// Returns the command that a refusal gives for breaking the lock.
#[track_caller]
fn told_by_the_refused(call: Nxlock) -> String {
    let refused = call.run().exits(75);
    let told = refused.stderr.lines().find_map(|line| line.trim_start().strip_prefix("break "));
    told.unwrap_or_else(|| panic!("it does not say how to break it:\n{}", refused.both())).trim().to_owned()
}

pub fn a_refusal_says_how_to_break_the_lock(authority: &impl Authority) {
    let holder = Turn::had(authority, &["-t", "12s"]);
    let told = told_by_the_refused(authority.nxlock(["run", "job", "-n", "--", "true"]));
    assert!(told.contains("release job --break"), "{told}");
    // The command works.
    authority.sh(&told, &[]).run().exits(0);
    assert!(is_free(authority));
    holder.running.finish().exits(76);
}

pub fn the_command_that_breaks_a_lock_is_right_for_an_odd_name(authority: &impl Authority) {
    for name in ["two words", "it's", "$(false) `false`", "a;b", "*", "-x", "--help"] {
        authority.nxlock(["acquire", "--ttl", "1m", "--", name]).run().exits(0);
        let told = told_by_the_refused(authority.nxlock(["run", "-n", "--", name, "true"]));
        authority.sh(&told, &[]).run().exits(0);
        authority.nxlock(["status", "--", name]).run().exits(1);
    }
}

pub fn the_command_that_breaks_a_lock_is_right_for_a_prefix_given_as_an_option(authority: &impl Authority) {
    authority.nxlock(["acquire", "job", "--ttl", "1m", "--prefix", "team:"]).run().exits(0);
    // A lock of the same name under another prefix must not be broken instead.
    let other = acquire(authority, "1m");
    let told = told_by_the_refused(authority.nxlock(["run", "job", "-n", "--prefix", "team:", "true"]));
    authority.sh(&told, &[]).run().exits(0);
    authority.nxlock(["status", "job", "--prefix", "team:"]).run().exits(1);
    release(authority, &other);
}

pub fn a_holder_says_who_has_broken_its_lock_and_why(authority: &impl Authority) {
    let holder = Turn::listening(authority, &["-t", "12s"]);
    let id = holder_id(authority);
    let words = ["release", "job", "--break", &id, "--reason", "the outage"];
    authority.nxlock(words).run().exits(0).says("broke \"job\"");
    let done = holder.running.finish().exits(76);
    done.says("\"job\" is lost: it was broken by ").says(": the outage; stopping the command");
}

pub fn a_holder_whose_lock_another_has_is_told_who_broke_it(authority: &impl Authority) {
    let holder = Turn::listening(authority, &["-t", "12s"]);
    let mut next = Turn::queued(authority, &[]);
    let id = holder_id(authority);
    authority.nxlock(["release", "job", "--break", &id, "--reason", "the outage"]).run().exits(0);
    next.up();
    let done = holder.running.finish().exits(76);
    done.says("\"job\" is lost: it is now held by ").says(", after it was broken by ").says(": the outage; stopping");
    next.leaves();
}
