//! The keeper tells the script about a loss, but not about the script's own release.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::strangers::connections_to;
use super::{Asked, Bystander, LONG, Script};
use crate::support::turns::{Turn, break_it, holder_id, is_free, release};
use crate::support::{
    Authority, Fate, Five, Local, MainThread, Nxlock, Proxy, Redis, eventually, eventually_some, is_alive, lasts,
    may_unshare, now, program, state_of, text_of, wall,
};

#[test]
fn a_script_is_told_by_the_signal_of_its_choice() {
    let redis = Redis::start();
    for (options, word) in [("", "lost"), ("--lost-signal USR1", "lost by USR1"), ("--lost-signal sigterm", "lost")] {
        let mut script = Script::holding(&redis, &format!("{LONG} {options}"));
        redis.delete("lock:job");
        script.is_told(word);
        script.keeper_ends();
    }
}

#[test]
fn a_script_that_does_not_trap_it_ends_by_the_signal() {
    let redis = Redis::start();
    let script = r#"eval "$(nxlock acquire job --while-pid $$ --ttl 1h --export || echo exit $?)"; echo up; sleep 600"#;
    let mut running = redis.sh(script, &[]).start();
    running.line("up");
    redis.put("lock:job", b"another's", Some(600_000));
    running.finish().dies_of(Signal::SIGTERM);
    redis.delete("lock:job");
}

#[test]
fn a_script_that_wants_no_signal_gets_none() {
    let redis = Redis::start();
    let script = Script::holding(&redis, &format!("{LONG} --lost-signal none"));
    redis.delete("lock:job");
    script.keeper_ends();
    script.goes_on_to("");
    script.ends_untold();
}

/// Asks the keeper for its lock, and waits until it is free.
#[track_caller]
fn is_asked(authority: &impl Authority) {
    let id = holder_id(authority);
    let asked = authority.nxlock(["release", "job", "--ask", &id, "--wait", "20s"]).run();
    asked.exits(0).says("no longer holds \"job\"");
}

fn has_its_lock_until_it_ends(authority: &impl Authority) {
    let script = r#"trap 'echo told; while ! [ -e "$GO" ]; do sleep 0.02; done; exit 3' TERM
        eval "$(nxlock acquire job --while-pid $$ --ttl 1h --export || echo exit $?)"; echo up; while :; do sleep 0.05; done"#;
    let go = authority.directory().join("go");
    let mut running = authority.sh(script, &[]).env("GO", &go).start();
    running.line("up");
    let next = Turn::waiting(authority, &[]);
    let id = holder_id(authority);
    authority.nxlock(["release", "job", "--ask", &id]).run().exits(0);
    running.line("told");
    assert_eq!(holder_id(authority), id, "the script still runs");
    std::fs::write(&go, "").unwrap();
    running.finish().exits(3);
    let mut next = next;
    next.up();
    next.leaves();
}

#[test]
fn a_script_that_is_asked_for_its_lock_is_told_and_has_it_until_it_ends() {
    has_its_lock_until_it_ends(&Redis::start());
    has_its_lock_until_it_ends(&Local::start());
}

#[test]
fn a_script_that_goes_on_after_it_was_asked_has_its_lock_for_ten_seconds() {
    let redis = Redis::start();
    let mut script = Script::holding(&redis, LONG);
    let began = now();
    is_asked(&redis);
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(9), "{took:?}");
    script.is_told("lost");
    script.keeper_ends();
}

#[test]
fn a_script_that_gives_its_lock_back_when_it_is_asked_is_told_once() {
    let redis = Redis::start();
    let script = r#"trap 'echo told; nxlock release job || echo "not released"' USR1
        eval "$(nxlock acquire job --while-pid $$ --ttl 1h --lost-signal USR1 --export || echo exit $?)"
        echo up; while [ -z "$NO" ]; do sleep 0.05; [ -e "$GO" ] && exit; done"#;
    let go = redis.directory().join("go");
    let mut running = redis.sh(script, &[]).env("GO", &go).start();
    running.line("up");
    is_asked(&redis);
    running.line("told");
    std::fs::write(&go, "").unwrap();
    running.finish().exits(0).prints("up\ntold\n");
}

#[test]
fn a_script_that_wants_no_signal_cannot_be_asked() {
    let redis = Redis::start();
    let script = Script::holding(&redis, &format!("{LONG} --lost-signal none"));
    redis.nxlock(["release", "job", "--ask", &holder_id(&redis)]).run().exits(75).says("cannot be asked");
    script.goes_on_to("");
    script.keeper_ends();
    script.ends_untold();
}

fn is_told_of_a_lock_that_was_broken(authority: &impl Authority) {
    let mut script = Script::holding(authority, LONG);
    break_it(authority);
    script.is_told("lost");
    script.keeper_ends();
}

#[test]
fn a_script_is_told_that_its_lock_was_broken() {
    is_told_of_a_lock_that_was_broken(&Redis::start());
    is_told_of_a_lock_that_was_broken(&Local::start());
    is_told_of_a_lock_that_was_broken(&Five::start());
}

#[test]
fn a_script_is_told_before_its_lease_can_have_ended_when_the_server_is_away() {
    let mut redis = Redis::start();
    let mut script = Script::holding(&redis, "--ttl 10s");
    redis.sees_a_renewal("lock:job");
    let end = wall() + Duration::from_millis(u64::try_from(redis.pttl("lock:job")).unwrap());
    redis.kill();
    script.running.line("lost");
    assert!(wall() < end - Duration::from_millis(500), "there is no time left to do anything about it");
    script.is_told("lost");
    script.keeper_ends();
}

#[test]
fn a_lock_that_is_renewed_after_all_is_kept_on() {
    let redis = Redis::start();
    let mut script = Script::holding(&redis, "--ttl 12s");
    redis.hang();
    script.running.line("lost");
    redis.resume();
    eventually("the lease is renewed", || redis.pttl("lock:job") > 10_000);
    assert!(is_alive(script.keeper));
    script.is_told("lost");
    script.keeper_ends();
    assert!(is_free(&redis));
}

#[test]
fn a_server_that_hangs_for_a_while_costs_nothing() {
    let redis = Redis::start();
    let script = Script::holding(&redis, "--ttl 10s");
    redis.renews_soon("lock:job");
    redis.hang();
    lasts(Duration::from_millis(4_500));
    redis.resume();
    eventually("the lease is renewed", || redis.pttl("lock:job") > 9_000);
    script.goes_on_to("nxlock release job");
    script.keeper_ends();
    script.ends_untold();
}

#[test]
fn a_script_is_told_that_a_server_has_forgotten_its_lock() {
    let mut redis = Redis::start();
    let mut script = Script::holding(&redis, "");
    redis.restart();
    script.is_told("lost");
    script.keeper_ends();
}

/// The scheduling of two processes alone decides what the keeper sees, so the test is repeated.
fn is_not_told_of_its_own_release(authority: &impl Authority, times: u32) {
    for _ in 0..times {
        let events = authority.directory().join("events");
        let _ = std::fs::remove_file(&events);
        let script = Script::holding(authority, &format!("--ttl 7s --events {}", events.display()));
        eventually("it has renewed", || text_of(&events).contains("\"renewed\""));
        let mut next = Turn::waiting(authority, &[]);
        // The script continues for longer than one renewal interval.
        script.goes_on_to("nxlock release job; sleep 2.5");
        next.up();
        script.keeper_ends();
        script.ends_untold();
        next.leaves();
    }
}

#[test]
fn a_script_is_not_told_of_its_own_release() {
    is_not_told_of_its_own_release(&Redis::start(), 5);
    is_not_told_of_its_own_release(&Local::start(), 5);
    is_not_told_of_its_own_release(&Five::start(), 3);
}

#[test]
fn anybody_with_the_token_may_release_it_here() {
    let redis = Redis::start();
    let mut bystander = Bystander::of(&redis);
    for _ in 0..2 {
        let asked = Asked::of(redis.nxlock(["--json", "acquire", "job", "--while-pid", &bystander.pid()]));
        let keeper = asked.keeper();
        redis.nxlock(["release", "job", "nx1:wrong"]).run().exits(76);
        assert!(is_alive(keeper));
        release(&redis, &asked.token());
        eventually("the keeper ends", || !is_alive(keeper));
        assert!(is_free(&redis) && !bystander.0.has_ended());
    }
}

#[test]
fn a_keeper_that_is_stopped_does_not_hold_up_a_release_nor_take_it_for_a_loss() {
    let redis = Redis::start();
    let mut script = Script::holding(&redis, "--ttl 3s");
    script.signal_keeper(Signal::SIGSTOP);
    eventually("it is stopped", || state_of(script.keeper) == Some('T'));
    script.goes_on_to(
        "nxlock release job || echo failed; echo released; while ! [ -e \"$GO.end\" ]; do sleep 0.02; done",
    );
    script.running.line("released");
    assert!(is_free(&redis));
    let next = Turn::had(&redis, &[]);
    // With the second for which a release waits for a keeper, longer than the keeper's lease.
    lasts(Duration::from_secs(2));
    script.signal_keeper(Signal::SIGCONT);
    script.keeper_ends();
    std::fs::write(format!("{}.end", script.go.display()), "").unwrap();
    assert!(!script.running.stdout().contains("failed"));
    script.ends_untold();
    next.leaves();
}

#[test]
fn a_script_that_is_about_to_release_is_not_told_that_somebody_asks() {
    let redis = Redis::start();
    let script = Script::holding(&redis, LONG);
    let Some(main) = MainThread::stopped(script.keeper) else { return };
    main.is_asked_meanwhile(&redis);
    script.goes_on_to("nxlock release job & echo $! > \"$GO.pid\"; wait $!");
    let pid = || text_of(&script.go.with_extension("pid")).trim().parse::<i32>().ok();
    let releases = eventually_some("it releases", pid);
    // It has sent the token before it waits for the reply, or has waited too long.
    let waits = || state_of(releases).is_none_or(|state| state == 'S');
    eventually("it waits for the keeper", || connections_to(script.keeper) == 1 && waits());
    main.goes_on();
    script.keeper_ends();
    script.ends_untold();
    assert!(is_free(&redis));
}

/// A renewal that is in flight may put back a lock that was released meanwhile.
#[test]
fn a_release_waits_for_a_renewal_that_takes_longer_than_a_second() {
    let redis = Redis::start();
    let proxy = Proxy::by_command(&redis, |_, command| match command.contains("renew") {
        true => Fate::Held,
        false => Fate::Delivered,
    });
    let pid = std::process::id().to_string();
    // It is renewed at once, as it is heard from then on, and a renewal is tried for two seconds.
    let token = proxy.nxlock(["acquire", "job", "--while-pid", &pid, "--ttl", "12s"]).run().exits(0).token();
    eventually("it is being renewed", || proxy.commands().iter().any(|command| command.contains("renew")));
    proxy.nxlock(["-v", "release", "job", &token]).run().exits(0).says("its keeper leaves \"job\" to us");
    let before = redis.scripts_run();
    proxy.lets_go();
    eventually("the renewal has arrived", || redis.scripts_run() > before);
    assert!(is_free(&redis));
}

#[test]
fn a_release_from_where_the_keeper_cannot_be_found_is_a_loss() {
    if !may_unshare(&["--net"]) {
        return;
    }
    let redis = Redis::start();
    let mut script = Script::holding(&redis, LONG);
    let token = redis.value("lock:job").unwrap();
    let call = Nxlock::by("unshare", ["--net", program(), "release", "job", &token]);
    redis.lead(call).run().exits(0);
    script.is_told("lost");
    script.keeper_ends();
}

#[test]
fn a_lock_with_a_number_for_its_token_is_kept_and_released_too() {
    let redis = Redis::start();
    let script = Script::holding(&redis, &format!("--setnx-compat {LONG}"));
    redis.sees_a_renewal("lock:job");
    script.goes_on_to("nxlock release job");
    script.keeper_ends();
    script.ends_untold();
    assert!(is_free(&redis));
}

#[test]
fn a_renewal_by_hand_does_no_harm() {
    let redis = Redis::start();
    let script = Script::holding(&redis, LONG);
    script.goes_on_to("nxlock renew job --ttl 2h && nxlock release job");
    script.keeper_ends();
    script.ends_untold();
}
