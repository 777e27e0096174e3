//! Locks that several hold together in a directory: their file, and what the kernel reports of those who hold them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{granted_after, is_killed, refused_to_run, takes_less_than};
use crate::support::record::{field, lines, state, with};
use crate::support::turns::{Turn, is_free, lock_status, next_holder, queue, queue_is, release};
use crate::support::{Authority, Local, Running, eventually, freeze, is_alive, send, state_of, text_of, wall};

const LONG: [&str; 2] = ["--ttl", "1h"];
/// The reason of a share that no process keeps.
const TOKEN: &str = "a token";
/// The id of another boot.
const ANOTHER: &str = "01234567-89ab-4cde-8f01-23456789abcd";

/// Returns options for a share in one of so many slots, with a long lease.
fn slots(count: &str) -> [&str; 4] {
    ["--slots", count, LONG[0], LONG[1]]
}

#[track_caller]
fn share(local: &Local, options: &[&str]) -> String {
    let words = ["acquire", "job", "--ttl", "1h", "-n", "--reason", TOKEN].iter().chain(options).copied();
    local.nxlock(words).run().exits(0).token()
}

fn holders(local: &Local) -> Vec<Value> {
    lock_status(local)["holders"].as_array().expect("holders").clone()
}

/// Kills a run and all it has started at once, so that nobody gives its share back.
#[track_caller]
fn is_killed_with_all(running: &mut Running) {
    let all: Vec<i32> = running.descendants().into_iter().chain([running.pid()]).collect();
    let each = |signal| all.iter().for_each(|pid| _ = kill(Pid::from_raw(*pid), signal));
    eventually("they are stopped", || {
        // nxlock continues a stopped guard with each instruction, and may have one for it now.
        each(Signal::SIGSTOP);
        all.iter().all(|pid| matches!(state_of(*pid), None | Some('T')))
    });
    each(Signal::SIGKILL);
    eventually("they are dead", || running.has_ended() && !all.iter().any(|pid| is_alive(*pid)));
}

fn has_holders(local: &Local) -> bool {
    lines(&state(&local.file("lock")), "holder").next().is_some()
}

#[test]
fn the_kernel_tells_the_end_of_a_share() {
    let local = Local::start();
    for alone in [false, true] {
        takes_less_than(Duration::from_secs(1), "the next one has it", || {
            let mut held: Vec<Turn> = (0..3).map(|_| Turn::had(&local, &slots("3"))).collect();
            let mut next = Turn::queued(&local, if alone { &LONG } else { &["--slots", "3", LONG[0], LONG[1]] });
            let gone = if alone { 0..3 } else { 1..2 };
            held.drain(gone).for_each(|mut turn| is_killed_with_all(&mut turn.running));
            // It may have the lock by now: the test needs a while to see that all are dead.
            let since = wall();
            let took = granted_after(since, &mut next);
            next.leaves();
            held.into_iter().for_each(Turn::leaves);
            took
        });
    }
}

#[test]
fn the_kernel_tells_the_end_of_a_waiter() {
    let local = Local::start();
    takes_less_than(Duration::from_secs(1), "those behind it have it", || {
        // Each has a fence of its own, as readers have not.
        let sharer = Turn::had(&local, &slots("5"));
        let mut alone = Turn::queued(&local, &LONG);
        let mut behind: Vec<Turn> = (0..4).map(|_| Turn::queued(&local, &slots("5"))).collect();
        let since = wall();
        is_killed(&mut alone.running);
        let took = behind.iter_mut().map(|turn| granted_after(since, turn)).max();
        behind.into_iter().for_each(Turn::leaves);
        sharer.leaves();
        took.expect("some are behind it")
    });
}

#[test]
fn whichever_of_many_holders_ends_is_noticed_at_once() {
    let local = Local::start();
    let script = r#"
        n=0
        while [ $n -lt 80 ]; do
            nxlock -q run job --slots 80 --ttl 1h -c 'echo "$NXLOCK_SLOT $PPID" >> "$LOG"; exec sleep 600' &
            n=$((n + 1))
        done
        wait"#;
    let log = local.directory().join("log");
    let crowd = local.sh(script, &[]).env("LOG", &log).start();
    let count = || text_of(&log).lines().count();
    let mut seen = 0;
    while seen < 80 {
        eventually("another one has come", || count() > seen);
        seen = count();
    }
    let text = text_of(&log);
    let mut taken: Vec<u32> = text.lines().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect();
    taken.sort_unstable();
    assert_eq!(taken, (0..80).collect::<Vec<_>>());
    let mut slots = [79, 0, 40, 66, 5, 77, 12, 30].into_iter();
    takes_less_than(Duration::from_secs(1), "the next one has it", || {
        let slot = slots.next().unwrap();
        let all = holders(&local);
        let victim = all.iter().find(|holder| holder["slot"] == slot).expect("somebody has it");
        let script = "echo \"up $NXLOCK_SLOT $NXLOCK_FENCE\"; read x; exit 0";
        let words = ["run", "job", "--slots", "80", "--ttl", "1h", "-c", script];
        let mut next = Turn::of(local.nxlock(words)).once_queued(&local);
        let since = wall();
        let pid = Pid::from_raw(i32::try_from(victim["pid"].as_i64().unwrap()).unwrap());
        kill(pid, Signal::SIGKILL).unwrap();
        let up = next.up();
        let (taken, fence) = up.split_once(' ').unwrap();
        assert_eq!(taken, slot.to_string());
        // The time of the grant.
        let granted = UNIX_EPOCH + Duration::from_micros(fence.parse().unwrap());
        let took = granted.duration_since(since).unwrap_or_default();
        next.leaves();
        let kept = share(&local, &["--slots", "80"]);
        drop(kept);
        took
    });
    drop(crowd);
    for holder in holders(&local) {
        // The shares of the crowd end with it; those of tokens have to be broken.
        local.nxlock(["release", "job", "--break", holder["id"].as_str().unwrap()]).run();
    }
    eventually("it is free", || is_free(&local));
}

#[test]
fn a_frozen_waiter_keeps_those_behind_it_for_a_moment_only() {
    let local = Local::start();
    let mut held: Vec<Turn> = (0..2).map(|_| Turn::had(&local, &slots("2"))).collect();
    let mut frozen = Turn::queued(&local, &slots("2"));
    let mut next = Turn::queued(&local, &slots("2"));
    let last = Turn::queued(&local, &LONG);
    frozen.freeze();
    // Nobody gives the share back, and only the frozen one watches it.
    is_killed_with_all(&mut held.remove(0).running);
    let since = wall();
    let took = granted_after(since, &mut next);
    // A poll of the second waiter, and the grace.
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert!(!frozen.is_up());
    frozen.goes_on();
    queue_is(&local, &[frozen.pid(), last.pid()]);
    next.leaves();
    frozen.up();
    assert_eq!(queue(&local), [last.pid()]);
    frozen.leaves();
    held.into_iter().for_each(Turn::leaves);
    last.leaves();
}

#[test]
fn a_run_that_has_lost_its_share_leaves_no_line_of_it() {
    let each = |has_visitor| {
        let local = Local::start();
        let mut run = local.nxlock(["run", "job", "--shared", "--ttl", "2s", "-c", "echo up; exec sleep 1000"]).start();
        run.line("up");
        assert!(has_holders(&local));
        freeze(run.pid());
        eventually("the lease is over", || lock_status(&local)["state"] == "free");
        // One that does not share has no use for the shares.
        if has_visitor {
            local.nxlock(["run", "job", "--", "true"]).run().exits(0);
        }
        send(run.pid(), Signal::SIGCONT);
        run.finish().exits(76);
        assert!(!has_holders(&local));
    };
    // At the same time: each takes as long as a lease.
    std::thread::scope(|scope| [false, true].iter().for_each(|visitor| _ = scope.spawn(|| each(*visitor))));
}

#[test]
fn a_share_that_is_put_aside_is_shown_and_kept_from_others() {
    let local = Local::start();
    let held = [Turn::had(&local, &slots("2")), Turn::had(&local, &slots("2"))];
    let mut frozen: Vec<Turn> = (0..8).map(|_| Turn::queued(&local, &slots("2"))).collect();
    frozen.iter().for_each(Turn::freeze);
    let [first, second] = held;
    first.leaves();
    eventually("it is shown as put aside", || {
        local.nxlock(["run", "job", "-n", "--no-queue", "--slots", "2", "--", "echo", "ran"]).run();
        let seen = holders(&local);
        seen.iter().any(|holder| holder["claimed"] == false && holder["slot"] == 0)
    });
    frozen.iter().for_each(Turn::goes_on);
    second.leaves();
    // One whose reservation has ended, and that comes late, has its turn after others.
    while !frozen.is_empty() {
        next_holder(&mut frozen).leaves();
    }
}

#[test]
fn a_lock_that_nobody_shares_does_without_a_file_of_shares() {
    let local = Local::start();
    Turn::had(&local, &[]).leaves();
    Turn::had(&local, &["--slots", "1"]).leaves();
    assert!(!local.file("shares").exists());
    Turn::had(&local, &["--slots", "2"]).leaves();
    assert_eq!(text_of(&local.file("shares")), "");
}

#[test]
fn shares_of_another_boot_count_for_nothing() {
    let local = Local::start();
    let tokens = [share(&local, &["--slots", "2"]), share(&local, &["--slots", "2"])];
    let path = local.file("lock");
    let old = with(&fs::read(&path).unwrap(), &[("lock", "boot", ANOTHER)]);
    tokens.iter().for_each(|token| release(&local, token));
    fs::write(&path, &old).unwrap();
    assert!(is_free(&local));
    local.nxlock(["renew", "job", &tokens[0], "--ttl", "1h"]).run().exits(76);
    local.nxlock(["release", "job", &tokens[0]]).run().exits(76);
    // Neither exclusive nor shared.
    for options in [&["-n"][..], &["-n", "--slots", "2"], &["-n", "--shared"]] {
        fs::write(&path, &old).unwrap();
        local.nxlock(refused_to_run(options)).run().exits(0).prints("ran\n");
    }
}

#[test]
fn old_files_of_a_shared_lock_are_removed_unless_somebody_has_it() {
    let local = Local::start();
    let words = ["acquire", "job", "--shared", "--ttl", "7d"];
    let token = local.nxlock(words).run().exits(0).token();
    let files = ["lock", "shares", "line", "commands"].map(|part| local.file(part));
    let grow_old = || {
        for path in &files {
            let file = File::options().write(true).create(true).truncate(false).open(path).unwrap();
            file.set_modified(wall() - Duration::from_secs(2 * 24 * 3600)).unwrap();
        }
    };
    grow_old();
    local.nxlock(["run", "new", "-n", "--", "true"]).run().exits(0);
    assert!(files.iter().all(|path| path.exists()));
    local.nxlock(refused_to_run(&["-n"])).run().exits(75);
    release(&local, &token);
    grow_old();
    local.nxlock(["run", "newer", "-n", "--", "true"]).run().exits(0);
    assert!(!files.iter().any(|path| path.exists()));
}

#[test]
fn a_check_leaves_nothing_behind() {
    let local = Local::start();
    local.nxlock(["check"]).run().exits(0);
    assert_eq!(fs::read_dir(local.locks()).unwrap().count(), 0);
}

#[test]
fn a_share_lives_with_the_process_that_it_was_taken_for() {
    let local = Local::start();
    let mut process = Command::new("sleep").arg("600").spawn().unwrap();
    let pid = process.id().to_string();
    let words = ["--json", "acquire", "job", "--slots", "2", "--ttl", "1h", "--while-pid", &pid];
    let kept = local.nxlock(words).run().exits(0).json();
    assert_eq!(kept["slot"], 0);
    let keeper = Pid::from_raw(i32::try_from(kept["keeper"].as_i64().expect("a keeper")).unwrap());
    let other = Turn::had(&local, &slots("2"));
    let mut next = Turn::queued(&local, &slots("2"));
    // Held by the keeper first, and then by the process alone.
    let _ = kill(keeper, Signal::SIGKILL);
    eventually("the keeper is dead", || !is_alive(keeper.as_raw()));
    local.nxlock(refused_to_run(&["-n", "--no-queue", "--slots", "2"])).run().exits(75).prints("");
    assert!(!next.is_up());
    process.kill().unwrap();
    process.wait().unwrap();
    next.up();
    next.leaves();
    other.leaves();
}

#[test]
fn a_share_stays_for_at_least_as_long_as_asked_for_if_its_run_is_killed() {
    let local = Local::start();
    let mut turn = Turn::had(&local, &["--slots", "2", "--at-least", "1h", "--reason", TOKEN]);
    is_killed(&mut turn.running);
    eventually("all of it is gone", || turn.running.descendants().is_empty());
    assert_eq!(holders(&local).len(), 1);
    let other = share(&local, &["--slots", "2"]);
    local.nxlock(refused_to_run(&["-n", "--slots", "2"])).run().exits(75).prints("");
    release(&local, &other);
    are_broken(&local, TOKEN);
    assert!(is_free(&local));
}

/// Breaks the shares of tokens that nobody gives back.
fn are_broken(local: &Local, reason: &str) {
    for holder in holders(local).iter().filter(|holder| holder["reason"] == reason) {
        local.nxlock(["release", "job", "--break", holder["id"].as_str().unwrap()]).run().exits(0);
    }
}

#[test]
fn a_reader_of_the_shares_that_locks_all_of_them_keeps_nobody_busy() {
    let local = Local::start();
    Turn::had(&local, &["--shared"]).leaves();
    let file = File::open(local.file("shares")).unwrap();
    let all = libc::flock {
        l_type: libc::c_short::try_from(libc::F_RDLCK).unwrap(),
        l_whence: 0,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_OFD_SETLK(&all)).unwrap();
    local.nxlock(refused_to_run(&["-n", "--shared"])).run().exits(69).prints("").says("lslocks");
    // Nobody has the record locked meanwhile.
    local.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
    drop(file);
    Turn::had(&local, &["--shared"]).leaves();
}

#[test]
fn each_holder_has_a_line_of_its_own() {
    let local = Local::start();
    let token = share(&local, &["--slots", "3"]);
    let file = fs::read(local.file("lock")).unwrap();
    assert_eq!((field(&file, "holder", "token"), field(&file, "holder", "slot")), (token.clone(), "0".to_owned()));
    assert_eq!(field(&file, "holder", "fence"), field(&file, "lock", "generation"));
    release(&local, &token);
}

/// Starts all callers. Each asks in its own way, $TIMES times, and every fifth of its runs is killed after a moment. Any
/// status but success is printed.
const CROWD: &str = r#"
    caller() {
        case $(($1 % 4)) in 0) how=;; 1) how="--slots 3";; 2) how="--slots 2";; 3) how=--shared;; esac
        i=0
        while [ $i -lt $TIMES ]; do
            i=$((i + 1))
            nxlock -q run job $how -c "$2" &
            run=$!
            if [ $(((i + $1) % 5)) = 0 ]; then
                sleep 0.0$(($1 % 10))
                echo "killed $run" >> "$LOG"
                kill -9 $run 2> /dev/null
            fi
            wait $run; s=$?
            case $s in 0) ;; 137) ;; *) echo "a run has ended with $s";; esac
        done
    }
    n=0; while [ $n -lt $CALLERS ]; do caller $n "$1" & n=$((n + 1)); done; wait"#;

const AT_WORK: &str = r#"
    p=${NXLOCK_TOKEN#*:*:*:}; p=${p%%:*}; n=${NXLOCK_TOKEN#*:*:*:*:*:*}
    case $NXLOCK_TOKEN in *:*:*:*:*:*:*) n=${NXLOCK_TOKEN##*:};; *) n=1;; esac
    echo "begin $p $n ${NXLOCK_SLOT--} $NXLOCK_FENCE" >> "$LOG"
    sleep 0.01
    echo "end $p" >> "$LOG""#;

/// One at work: how many may hold the lock beside it, itself included, and its slot.
struct AtWork {
    pid: u32,
    limit: usize,
    slot: Option<u16>,
}

#[test]
fn a_crowd_that_shares_a_lock_in_all_ways_keeps_the_rule_whoever_is_killed() {
    let local = super::Patient(Local::start());
    let log = local.directory().join("log");
    let crowd = local.sh(CROWD, &[AT_WORK]).env("LOG", &log);
    let mut crowd = crowd.env("CALLERS", "32").env("TIMES", "20").start();
    super::as_long_as_it_goes_on(&log, || crowd.has_ended());
    crowd.finish().exits(0).prints("");
    let text = text_of(&log);
    let mut at_work: Vec<AtWork> = Vec::new();
    let (mut together, mut fences, mut killed) = (0, BTreeMap::new(), BTreeSet::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let pid: u32 = words[1].parse().unwrap();
        match words[0] {
            "begin" => {
                let limit = Some(words[2].parse().unwrap()).filter(|limit| *limit > 0).unwrap_or(usize::MAX);
                let slot = words[3].parse().ok();
                let least = at_work.iter().map(|other| other.limit).chain([limit]).min().unwrap();
                assert!(at_work.len() < least, "{line}: {} hold it, of {least}", at_work.len() + 1);
                assert!(slot.is_none_or(|slot| usize::from(slot) < limit), "{line}");
                assert!(slot.is_none() || at_work.iter().all(|other| other.slot != slot), "{line}: a slot twice");
                let fence: u64 = words[4].parse().unwrap();
                if let Some(slot) = slot {
                    let before = fences.insert(slot, fence);
                    assert!(before.is_none_or(|before| before < fence), "{line}: after {before:?}");
                }
                if !killed.contains(&pid) {
                    at_work.push(AtWork { pid, limit, slot });
                }
                together = together.max(at_work.len());
            }
            "end" => at_work.retain(|other| other.pid != pid),
            // From here on nobody knows whether it is still there.
            "killed" => {
                killed.insert(pid);
                at_work.retain(|other| other.pid != pid);
            }
            _ => panic!("`{line}` in the log"),
        }
    }
    assert!(text.lines().filter(|line| line.starts_with("end")).count() > 300);
    assert!(together >= 3, "only {together} at a time");
    eventually("it is free", || is_free(&local));
    let file = fs::metadata(local.0.file("lock")).unwrap();
    assert!(file.len() < 65536, "the file does not grow: {}", file.len());
}
