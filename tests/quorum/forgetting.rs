use crate::quorum::nothing_is_left;
use crate::support::line::Turn;
use crate::support::{Authority, Five, eventually, is_alive};

#[test]
fn servers_that_forget_one_after_the_other_are_told_again() {
    let mut five = Five::start();
    let mut holder = Turn::had(&five, &["-t", "6s"]);
    eventually("all have granted it", || five.values().iter().all(Option::is_some));
    for at in [0, 3, 4] {
        five.each_mut()[at].restart();
        assert_eq!(five.values()[at], None);
        eventually("it is told at the next renewal", || five.values()[at].is_some());
    }
    assert!(!holder.running.has_ended());
    holder.leaves();
    nothing_is_left(&five);
}

#[test]
fn one_that_forgot_has_no_vote_in_the_round_that_finds_it() {
    let mut five = Five::start();
    let holder = Turn::had(&five, &["-t", "4s"]);
    five.each_mut()[0].kill();
    five.each_mut()[1].kill();
    five.each_mut()[2].restart();
    // With its vote they would be three.
    holder.finish().exits(76).says("could not be renewed in time");
    assert_eq!(five.each()[2].value("lock:job"), None);
}

#[test]
fn a_majority_that_forgets_at_once_loses_the_lock() {
    let mut five = Five::start();
    let script = "echo pid $$; exec sleep 300";
    let mut running = five.nxlock(["run", "job", "-t", "6s", "-c", script]).start();
    let pid: i32 = running.line("pid ").parse().unwrap();
    eventually("all have granted it", || five.values().iter().all(Option::is_some));
    for at in [1, 2, 3] {
        five.each_mut()[at].restart();
    }
    running.finish().exits(76).says("lost").says("expired or was deleted");
    assert!(!is_alive(pid));
    nothing_is_left(&five);
}
