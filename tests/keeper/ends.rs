//! What happens when the watched process, the keeper or a waiting `acquire` is killed, stopped or signalled.

use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::telling::ends_as;
use super::{Asked, Bystander, LONG, Script};
use crate::support::turns::{Turn, is_free, lock_status, queue};
use crate::support::{
    Authority, Local, MainThread, Redis, Running, Terminal, eventually, is_alive, now, send, state_of,
};

fn is_free_at_once_when_the_script_is_killed(authority: &impl Authority) {
    let script = Script::holding(authority, LONG);
    let mut next = Turn::waiting(authority, &[]);
    script.running.signal(Signal::SIGKILL);
    next.up();
    script.keeper_ends();
    next.leaves();
}

#[test]
fn a_server_s_lock_is_free_at_once_when_the_script_is_killed() {
    is_free_at_once_when_the_script_is_killed(&Redis::start());
}

#[test]
fn a_local_lock_is_free_at_once_when_the_script_is_killed() {
    is_free_at_once_when_the_script_is_killed(&Local::start());
}

#[test]
fn a_keeper_that_is_told_to_end_tells_the_script_and_gives_the_lock_back() {
    let redis = Redis::start();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut script = Script::holding(&redis, LONG);
        script.signal_keeper(signal);
        script.is_told("lost");
        script.keeper_ends();
        assert!(is_free(&redis));
    }
}

#[test]
fn a_keeper_that_is_killed_before_it_reports_a_grant_may_have_had_one() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let pid = std::process::id().to_string();
    let waits = redis.nxlock(["acquire", "job", "--while-pid", &pid, "--ttl", "1h"]).start();
    eventually("its keeper is in the queue", || queue(&redis).len() == 1);
    send(queue(&redis)[0], Signal::SIGKILL);
    waits.finish().exits(70).prints("").says("killed by SIGKILL").says("ends by itself within 1h");
    // Until then the holder would leave it the lock.
    eventually("the server has noticed that it is gone", || redis.others_connected() == 1);
    holder.leaves();
}

/// Without the keeper nobody can report a loss to the script: the lock stays held while the script may rely on it.
fn is_held_on_when_the_keeper_is_killed(authority: &impl Authority) {
    let script = Script::holding(authority, LONG);
    script.signal_keeper(Signal::SIGKILL);
    script.keeper_ends();
    authority.nxlock(["run", "job", "-n", "--", "true"]).run().exits(75);
    script.goes_on_to("nxlock release job");
    script.ends_untold();
    assert!(is_free(authority));
}

#[test]
fn a_server_s_lock_ends_with_its_lease_when_the_keeper_is_killed() {
    is_held_on_when_the_keeper_is_killed(&Redis::start());
}

#[test]
fn a_local_lock_ends_with_its_lease_when_the_keeper_is_killed() {
    is_held_on_when_the_keeper_is_killed(&Local::start());
}

#[test]
fn a_local_lock_is_free_at_once_when_script_and_keeper_are_killed() {
    let local = Local::start();
    let script = Script::holding(&local, LONG);
    script.signal_keeper(Signal::SIGKILL);
    script.keeper_ends();
    let mut next = Turn::waiting(&local, &[]);
    script.running.signal(Signal::SIGKILL);
    next.up();
    next.leaves();
}

#[test]
fn a_server_s_lock_ends_with_its_lease_when_script_and_keeper_are_killed() {
    let redis = Redis::start();
    let script = Script::holding(&redis, LONG);
    script.signal_keeper(Signal::SIGKILL);
    script.running.signal(Signal::SIGKILL);
    script.keeper_ends();
    assert!(redis.pttl("lock:job") > 0);
    // Nobody renews it.
    redis.ask::<()>(&["PEXPIRE", "lock:job", "1000"]);
    eventually("it ends", || !redis.exists("lock:job"));
}

#[test]
fn a_keeper_that_was_stopped_for_longer_than_its_lease_tells_the_script_first() {
    let redis = Redis::start();
    let mut script = Script::holding(&redis, "--ttl 2s");
    script.signal_keeper(Signal::SIGSTOP);
    eventually("it is stopped", || state_of(script.keeper) == Some('T'));
    let next = Turn::had(&redis, &[]);
    script.signal_keeper(Signal::SIGCONT);
    script.is_told("lost");
    script.keeper_ends();
    assert_eq!(lock_status(&redis)["holder"]["pid"], next.pid());
    next.leaves();
}

/// Asserts that a keeper gives the lock back, and tells of no loss or request, if its process ends while its main thread has
/// no processor. `meanwhile` runs before the process ends.
fn is_given_back_by_a_keeper_without_a_processor(ttl: &str, meanwhile: impl FnOnce(&Redis, &MainThread)) {
    let redis = Redis::start();
    let bystander = Bystander::of(&redis);
    let events = redis.directory().join("events").display().to_string();
    let options = ["--while-pid", &bystander.pid(), "-t", ttl, "--json", "--events", &events];
    let asked = Asked::of(redis.nxlock(["acquire", "job"].into_iter().chain(options)));
    let keeper = asked.keeper();
    let Some(main) = MainThread::stopped(keeper) else { return };
    meanwhile(&redis, &main);
    drop(bystander);
    main.goes_on();
    eventually("the keeper has ended", || !is_alive(keeper));
    ends_as(&redis, &["granted", "released"]);
}

#[test]
fn a_lock_that_was_renewed_while_the_keeper_had_no_processor_is_given_back_when_its_process_ends() {
    is_given_back_by_a_keeper_without_a_processor("12s", |_, _| {
        let stopped = now();
        eventually("the lease that the main thread knows of has ended", || stopped.elapsed() > Duration::from_secs(12));
    });
}

#[test]
fn nobody_is_said_to_be_told_of_a_request_when_the_process_has_ended() {
    is_given_back_by_a_keeper_without_a_processor("1h", |redis, main| main.is_asked_meanwhile(redis));
}

#[test]
fn whoever_waits_leaves_the_line_when_the_process_to_keep_it_for_ends() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let (reader, until_dropped) = std::io::pipe().unwrap();
    let ward = redis.sh("read x", &[]).stdin_from(reader).start();
    let pid = ward.pid().to_string();
    let mut waits = redis.nxlock(["acquire", "job", "--while-pid", &pid]).start();
    waits.says("waiting for \"job\"");
    let keepers = waits.descendants();
    drop(until_dropped);
    ward.finish();
    waits.finish().exits(64).says("has ended").prints("");
    eventually("nothing is left", || !keepers.iter().any(|pid| is_alive(*pid)));
    assert_eq!(lock_status(&redis)["queue"].as_array().unwrap().len(), 0);
    holder.leaves();
}

/// A waiting `acquire` that was sent a signal.
struct Told {
    redis: Redis,
    waits: Running,
    keepers: Vec<i32>,
    holder: Turn,
    bystander: Bystander,
}

/// Waits until `acquire` is stopped, and lets its keeper be granted the lock meanwhile.
fn is_granted_unheard(told: Told) -> (Redis, Running, i32, Bystander) {
    let Told { redis, waits, keepers, holder, bystander } = told;
    eventually("it is stopped", || state_of(waits.pid()) == Some('T'));
    holder.leaves();
    eventually("its keeper has it", || lock_status(&redis)["holder"]["pid"] == keepers[0]);
    (redis, waits, keepers[0], bystander)
}

#[test]
fn a_request_to_stop_that_comes_before_the_token_is_printed_gives_the_lock_back() {
    let told = Told::by(|waits| waits.signal(Signal::SIGSTOP));
    let (redis, waits, keeper, mut bystander) = is_granted_unheard(told);
    waits.signal(Signal::SIGTERM);
    waits.signal(Signal::SIGCONT);
    waits.finish().dies_of(Signal::SIGTERM).prints("");
    assert!(is_free(&redis) && !bystander.0.has_ended());
    eventually("its keeper has ended", || !is_alive(keeper));
}

#[test]
fn nobody_is_told_of_the_loss_of_a_lock_whose_token_was_not_printed() {
    let told = Told::by(|waits| waits.signal(Signal::SIGSTOP));
    let (redis, waits, keeper, mut bystander) = is_granted_unheard(told);
    send(keeper, Signal::SIGTERM);
    eventually("it is free", || is_free(&redis));
    waits.signal(Signal::SIGCONT);
    waits.finish().exits(70).says("its keeper has ended");
    assert!(!bystander.0.has_ended());
}

impl Told {
    fn by(send: impl Fn(&Running)) -> Told {
        let redis = Redis::start();
        let holder = Turn::had(&redis, &[]);
        let bystander = Bystander::of(&redis);
        let mut waits = redis.nxlock(["-v", "acquire", "job", "--while-pid", &bystander.pid()]).start();
        waits.says("waiting for \"job\"");
        eventually("it is in the queue", || lock_status(&redis)["queue"].as_array().unwrap().len() == 1);
        let keepers = waits.descendants();
        send(&waits);
        Told { redis, waits, keepers, holder, bystander }
    }

    /// Asserts that `acquire` died of the signal and left the queue itself.
    #[track_caller]
    fn dies_of(self, signal: Signal) {
        let bystander = self.bystander;
        self.waits.finish().dies_of(signal).prints("");
        assert!(!self.keepers.iter().any(|pid| is_alive(*pid)));
        assert!(!self.redis.exists("{lock:job}:queue"));
        self.holder.leaves();
        drop(bystander);
    }
}

#[test]
fn a_signal_ends_the_wait_and_us_as_it_does_without_a_keeper() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        Told::by(|waits| waits.signal(signal)).dies_of(signal);
    }
}

#[test]
fn a_typed_ctrl_c_ends_the_wait() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    let mut terminal = Terminal::start(redis.sh("nxlock acquire job --while-pid $$; echo not reached", &[]));
    terminal.shows("waiting for");
    eventually("it is in the queue", || lock_status(&redis)["queue"].as_array().unwrap().len() == 1);
    terminal.types("\u{3}");
    terminal.dies_of(Signal::SIGINT);
    assert!(!terminal.screen().contains("not reached"));
    assert_eq!(lock_status(&redis)["queue"].as_array().unwrap().len(), 0);
    holder.leaves();
}

#[test]
fn no_keeper_goes_on_waiting_for_who_was_killed() {
    let Told { redis, waits, keepers, holder, bystander } = Told::by(|waits| waits.signal(Signal::SIGKILL));
    eventually("nobody waits", || !keepers.iter().any(|pid| is_alive(*pid)));
    // The keeper sends this before it ends, and does not wait long for a busy server.
    let what = format!("{keepers:?} have left the queue:\n{}", waits.stderr());
    eventually(&what, || !redis.exists("{lock:job}:queue"));
    waits.finish().dies_of(Signal::SIGKILL);
    holder.leaves();
    drop(bystander);
}

#[test]
fn a_signal_to_the_whole_group_leaves_the_line_in_order() {
    let told = Told::by(|waits| killpg(Pid::from_raw(waits.pid()), Signal::SIGTERM).expect("it leads a group"));
    told.dies_of(Signal::SIGTERM);
}
