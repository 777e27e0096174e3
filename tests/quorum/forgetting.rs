use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::quorum::{nothing_is_left, told_by_all};
use crate::support::turns::{Turn, acquire, release};
use crate::support::{Authority, Fate, Five, Nxlock, Proxy, Redis, eventually, eventually_some, is_alive, now};

#[test]
fn servers_that_forget_one_after_the_other_are_told_again() {
    let mut five = Five::start();
    let mut holder = Turn::had(&five, &["-t", "6s"]);
    eventually("all have granted it", || five.values().iter().all(Option::is_some));
    for at in [0, 3, 4] {
        five.each_mut()[at].restart();
        eventually("the holder has set the key there again", || five.values()[at].is_some());
    }
    assert!(!holder.running.has_ended());
    holder.leaves();
    nothing_is_left(&five);
}

#[test]
fn one_that_forgot_has_no_vote_in_the_round_that_finds_it() {
    let mut five = Five::start();
    let holder = Turn::had(&five, &["-t", "4s"]);
    eventually("all have granted it", || five.values().iter().all(Option::is_some));
    five.each_mut()[0].kill();
    five.each_mut()[1].kill();
    five.each_mut()[2].restart();
    // With its vote there would be three.
    holder.finish().exits(76).says("could not be renewed in time");
    assert_eq!(five.each()[2].value("lock:job"), None);
}

#[test]
fn a_majority_that_forgets_at_once_loses_the_lock() {
    let mut five = Five::start();
    let script = "echo pid $$; exec sleep 300";
    // Long enough for three servers to start one after the other.
    let mut running = five.nxlock(["run", "job", "-t", "15s", "-c", script]).start();
    let pid: i32 = running.line("pid ").parse().unwrap();
    eventually("all have granted it", || five.values().iter().all(Option::is_some));
    // One after the other would each have it again before the next.
    for at in [1, 2, 3] {
        five.each_mut()[at].kill();
    }
    for at in [1, 2, 3] {
        five.each_mut()[at].restart();
    }
    running.finish().exits(76).says("lost").says("expired or was deleted");
    assert!(!is_alive(pid));
    nothing_is_left(&five);
}

#[test]
fn a_renewal_by_hand_does_not_set_a_key_again() {
    let five = Five::start();
    // A majority suffices, and nobody keeps the lock, so a server that was late does not get it any more.
    let token = eventually_some("all have granted it", || {
        let token = acquire(&five, "10m");
        let all = now();
        while all.elapsed() < Duration::from_secs(2) {
            if five.values().iter().all(Option::is_some) {
                return Some(token);
            }
        }
        release(&five, &token);
        None
    });
    five.each()[0].delete("lock:job");
    // The owner of the token may be releasing the lock at this moment.
    five.nxlock(["renew", "job", &token, "--ttl", "10m"]).run().exits(0);
    assert_eq!(five.values()[0], None);
    release(&five, &token);
    nothing_is_left(&five);
}

#[test]
fn a_keeper_that_sets_a_key_again_leaves_nothing_behind_when_its_lock_is_released() {
    let five = Five::start();
    let (is_late, scripts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (late, seen) = (Arc::clone(&is_late), Arc::clone(&scripts));
    let slow = Proxy::by_command(&five.each()[2], move |_, words| {
        if !words.contains(" acquire ") || !late.load(Ordering::SeqCst) {
            return Fate::Delivered;
        }
        seen.fetch_add(1, Ordering::SeqCst);
        Fate::Held
    });
    let mut servers: Vec<String> = five.each().iter().map(Redis::url).collect();
    servers[2] = slow.url();
    let script = "nxlock acquire job --while-pid $$ --ttl 12s || exit; read x";
    let (reader, until_dropped) = std::io::pipe().unwrap();
    let shell = five.sh(script, &[]).env("NXLOCK_SERVER", servers.join(" ")).stdin_from(reader);
    let mut running = shell.start();
    let token = running.line("nx1:");
    eventually("all have granted it", || five.values().iter().all(Option::is_some));
    is_late.store(true, Ordering::SeqCst);
    five.each()[2].delete("lock:job");
    eventually("it is to be set again", || scripts.load(Ordering::SeqCst) > 0);
    five.nxlock(["release", "job", &format!("nx1:{token}")]).run().exits(0);
    slow.lets_go();
    nothing_is_left(&five);
    drop(until_dropped);
    running.finish();
    nothing_is_left(&five);
}

#[test]
fn a_vote_that_was_deleted_is_taken_back_though_others_want_the_lock() {
    let three = [Redis::start(), Redis::start(), Redis::start()];
    let holder = told_by_all(&three, &[]);
    let token = three[0].value("lock:job");
    let servers = three.each_ref().map(Redis::url).join(" ");
    let waiter = || Nxlock::new(["run", "job", "--", "true"]).env("NXLOCK_SERVER", &servers).start();
    let waiters = [waiter(), waiter(), waiter()];
    three[0].delete("lock:job");
    // They have it there for moments, when they try.
    eventually("it is there again", || three[0].value("lock:job") == token);
    holder.leaves();
    waiters.into_iter().for_each(|waiter| _ = waiter.finish().exits(0));
}
