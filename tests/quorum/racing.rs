use std::path::Path;

use crate::quorum::nothing_is_left;
use crate::support::turns::counted;
use crate::support::{Authority, Five, Running, eventually, text_of};

/// Increments a counter that only the lock protects, and logs the fence.
const TURN: &str = r#"read n < "$COUNTER"; echo $((n + 1)) > "$COUNTER"; echo "$NXLOCK_FENCE" >> "$LOG""#;

fn race(five: &Five, directory: &Path, callers: usize, turns: usize) -> Vec<Running> {
    std::fs::write(directory.join("counter"), "0\n").unwrap();
    let script =
        r#"i=0; while [ $i -lt "$1" ]; do nxlock -q --server-timeout 20s run job -c "$2" || exit; i=$((i + 1)); done"#;
    let start = |_| {
        let call = five.sh(script, &[&turns.to_string(), TURN]).env("LOG", directory.join("log"));
        call.env("COUNTER", directory.join("counter")).start()
    };
    (0..callers).map(start).collect()
}

/// Asserts that all callers had all their turns, no two at the same time.
#[track_caller]
fn were_apart(directory: &Path, callers: Vec<Running>, total: usize) {
    counted(&directory.join("counter"), callers, total);
    let log = text_of(&directory.join("log"));
    let fences: Vec<u64> = log.lines().map(|line| line.parse().expect("a fence")).collect();
    assert_eq!(fences.len(), total);
    assert!(fences.is_sorted_by(|before, after| before < after), "{fences:?}");
}

#[test]
fn of_two_and_of_ten_who_race_never_two_have_it() {
    for (callers, turns) in [(2, 12), (10, 4)] {
        let five = Five::start();
        let racing = race(&five, &five.directory(), callers, turns);
        were_apart(&five.directory(), racing, callers * turns);
        nothing_is_left(&five);
    }
}

#[test]
fn they_race_on_while_a_minority_fails() {
    let mut five = Five::start();
    let racing = race(&five, &five.directory(), 4, 6);
    five.each_mut()[4].kill();
    five.each()[3].hang();
    were_apart(&five.directory(), racing, 24);
    five.each()[3].resume();
    // It may have stopped between a vote and the reply to it, and be unable to reply now: such a vote ends with its lease,
    // and is all that may be left there.
    if five.each()[3].pttl("lock:job") > 0 {
        five.each()[3].ask::<()>(&["DEL", "lock:job"]);
    }
}

#[test]
fn a_crowd_gets_on_while_one_is_dead_and_one_hangs() {
    let mut five = Five::start();
    five.each_mut()[4].kill();
    five.each()[3].hang();
    let racing = race(&five, &five.directory(), 30, 2);
    were_apart(&five.directory(), racing, 60);
    five.each()[3].resume();
    five.each_mut()[4].restart();
    nothing_is_left(&five);
}

#[test]
fn of_those_who_come_at_once_and_do_not_wait_one_has_it() {
    let five = Five::start();
    for _ in 0..5 {
        // If the votes are split, they are cast again for so long.
        let words = ["-q", "--server-timeout", "20s", "run", "job", "-n", "-c", "echo won; read x; exit 0"];
        let start = |_| five.nxlock(words);
        let (reader, writer) = std::io::pipe().unwrap();
        let racing = (0..4).map(|_| start(()).stdin_from(reader.try_clone().unwrap()).start());
        let mut racing: Vec<Running> = racing.collect();
        let has_won = |running: &Running| running.stdout() == "won\n";
        eventually("all but one are refused", || {
            racing.iter_mut().filter_map(|running| running.has_ended().then_some(())).count() == 3
        });
        eventually("the last has it", || racing.iter().filter(|running| has_won(running)).count() == 1);
        drop(writer);
        for running in racing {
            let status = if has_won(&running) { 0 } else { 75 };
            running.finish().exits(status);
        }
    }
}

#[test]
fn votes_that_are_split_are_cast_again_when_they_end() {
    let five = Five::start();
    for (at, value) in ["one", "one", "", "nx1:other", "nx1:other"].iter().enumerate() {
        if !value.is_empty() {
            five.each()[at].put("lock:job", value.as_bytes(), Some(2_000));
        }
    }
    five.nxlock(["run", "job", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
    nothing_is_left(&five);
}

#[test]
fn a_fence_is_higher_than_any_before_it_whichever_majority_gives_it() {
    let mut five = Five::start();
    let fence = |five: &Five| -> u64 {
        five.nxlock(["run", "job", "-c", "echo $NXLOCK_FENCE"]).run().exits(0).text().trim().parse().unwrap()
    };
    five.each_mut()[3].kill();
    five.each_mut()[4].kill();
    // As if one server's clock had been ahead: the others would not issue such a fence for years.
    let ahead = 4_000_000_000_000_000_u64;
    five.each()[0].put("{lock:job}:fence", ahead.to_string().as_bytes(), Some(600_000));
    let first = fence(&five);
    assert!(first > ahead, "{first}");
    five.each_mut()[3].restart();
    five.each_mut()[4].restart();
    five.each_mut()[0].kill();
    let second = fence(&five);
    assert!(second > first, "{first}, {second}");
    // And a server that knows none of these fences does not hide them.
    five.each_mut()[1].kill();
    assert!(fence(&five) > second);
}
