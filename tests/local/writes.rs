//! Processes that are killed at a system call by which they change the files of a lock, or have no room for what they
//! write: the lock works, nobody holds it who should not, and nothing is damaged.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::Value;

use super::refused_to_run;
use crate::support::turns::{Turn, is_free, lock_status, queue, release, turn};
use crate::support::{Authority, Local, eventually, program};

const LONG: [&str; 2] = ["--ttl", "1h"];
/// The reason of a claim that no process keeps.
const TOKEN: &str = "a token";

/// The calls that change a file, its times or its names.
const WRITES: [libc::c_long; 8] = [
    libc::SYS_pwrite64,
    libc::SYS_write,
    libc::SYS_ftruncate,
    libc::SYS_utimensat,
    libc::SYS_linkat,
    libc::SYS_unlinkat,
    libc::SYS_fchmod,
    libc::SYS_fsync,
];

/// Runs nxlock, and kills it right before this call of those that write. Returns whether it came so far.
fn is_killed_before_write(local: &Local, number: usize, args: &[&str]) -> bool {
    let mut command = Command::new(program());
    command.args(args).env_clear().env("NXLOCK_SERVER", local.url()).env("PATH", std::env::var_os("PATH").unwrap());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: ptrace(2) is async-signal-safe.
    unsafe { command.pre_exec(|| Ok(ptrace::traceme()?)) };
    let pid = Pid::from_raw(command.spawn().expect("it starts").id().cast_signed());
    let mut seen = 0;
    let mut status = waitpid(pid, Some(WaitPidFlag::__WALL)).expect("it stops");
    ptrace::setoptions(pid, Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL).expect("it is traced");
    loop {
        let pass_on = match status {
            WaitStatus::Exited(..) => return false,
            WaitStatus::Signaled(_, Signal::SIGKILL, _) => return true,
            WaitStatus::PtraceSyscall(_) => {
                let call = ptrace::syscall_info(pid).expect("a system call");
                // SAFETY: `op` says which member of the union is valid.
                let is_write = call.op == libc::PTRACE_SYSCALL_INFO_ENTRY
                    && WRITES.iter().any(|write| unsafe { call.u.entry.nr } == *write as u64);
                if is_write {
                    seen += 1;
                    if seen == number {
                        kill(pid, Signal::SIGKILL).expect("it runs");
                    }
                }
                None
            }
            WaitStatus::Stopped(_, Signal::SIGTRAP) => None,
            WaitStatus::Stopped(_, signal) => Some(signal),
            _ => None,
        };
        let _ = ptrace::syscall(pid, pass_on);
        status = waitpid(pid, Some(WaitPidFlag::__WALL)).expect("it goes on");
    }
}

#[track_caller]
fn token(local: &Local, options: &[&str]) -> String {
    let words = ["acquire", "job", "--ttl", "1h", "-n", "--reason", TOKEN].iter().chain(options).copied();
    local.nxlock(words).run().exits(0).token()
}

fn holders(local: &Local) -> Vec<Value> {
    lock_status(local)["holders"].as_array().cloned().unwrap_or_default()
}

/// Asserts that no more hold the lock than may, and no slot twice.
#[track_caller]
fn are_at_most(local: &Local, most: usize, of: &str) {
    let all = holders(local);
    assert!(all.len() <= most, "{of}: {all:?}");
    let slots: Vec<_> = all.iter().map(|holder| &holder["slot"]).filter(|slot| !slot.is_null()).collect();
    assert!(slots.iter().enumerate().all(|(at, slot)| !slots[..at].contains(slot)), "{of}: {all:?}");
}

/// Breaks the claims of tokens that nobody gives back.
fn are_broken(local: &Local, reason: &str) {
    for holder in holders(local).iter().filter(|holder| holder["reason"] == reason) {
        local.nxlock(["release", "job", "--break", holder["id"].as_str().unwrap()]).run().exits(0);
    }
}

/// Kills a verb at each of its writes in turn: of one that holds the lock as `how` says, beside `others` that do so too,
/// while one waits who wants it for itself.
fn is_killed_at_each_write(verb: &str, how: &[&str], others: usize, waits: bool) {
    for number in 1.. {
        let local = Local::start();
        let of = format!("{verb} {how:?} beside {others}, waited for: {waits}, before write {number}");
        // The fence of what was given back counts as well.
        release(&local, &token(&local, how));
        (0..others).for_each(|_| drop(token(&local, how)));
        let own = if ["release", "renew"].contains(&verb) { token(&local, how) } else { String::new() };
        let fence = lock_status(&local)["fence"].as_u64().unwrap();
        let waiter = waits.then(|| Turn::queued(&local, &LONG));
        let words: Vec<&str> = match verb {
            "acquire" => vec!["acquire", "job", "--ttl", "1h", "-n", "--reason", TOKEN],
            "run" => vec!["run", "job", "--no-queue", "-w", "1s", "--ttl", "1h", "--record", "--", "true"],
            "join" => vec!["run", "job", "-w", "300ms", "--supersede", "--ttl", "1h", "--", "true"],
            "release" => vec!["release", "job", &own],
            _ => vec!["renew", "job", &own, "--ttl", "2h"],
        };
        let with_how = if own.is_empty() { how } else { &[] };
        let (first, rest) = words.split_at(2);
        let killed = is_killed_before_write(&local, number, &[first, with_how, rest].concat());
        are_at_most(&local, others + 1, &of);
        assert!(holders(&local).len() >= others, "{of}");
        // What is free can be had, with a fence above all before.
        let next = ["--json", "acquire", "job", "--ttl", "1h", "-n", "--no-queue", "--reason", TOKEN];
        let next = local.nxlock(next.iter().chain(how).copied()).run();
        if next.status.success() && how != ["--shared"] {
            assert!(next.json()["fence"].as_u64().unwrap() > fence, "{of}");
        }
        are_broken(&local, TOKEN);
        if let Some(mut waiter) = waiter {
            waiter.up();
            waiter.leaves();
        }
        eventually("nobody waits", || queue(&local).is_empty());
        // The guard of a run that was killed may still have to end.
        eventually(&format!("it is free: {of}"), || is_free(&local));
        local.nxlock(refused_to_run(&["-n"])).run().exits(0).prints("ran\n");
        if !killed {
            assert!(number > 1, "{of}: it has written nothing");
            break;
        }
    }
}

#[test]
fn one_that_is_killed_between_two_writes_leaves_an_exclusive_lock_that_works() {
    for (verb, waits) in [("acquire", false), ("run", false), ("release", false), ("release", true), ("renew", true)] {
        is_killed_at_each_write(verb, &[], 0, waits);
    }
    is_killed_at_each_write("join", &[], 1, false);
    is_killed_at_each_write("join", &[], 1, true);
}

#[test]
fn one_that_is_killed_between_two_writes_leaves_slots_that_work() {
    let two = ["--slots", "2"];
    for (verb, others, waits) in [
        ("acquire", 0, false),
        ("acquire", 1, false),
        ("run", 1, true),
        ("release", 0, true),
        ("release", 1, false),
        ("release", 1, true),
        ("renew", 1, true),
    ] {
        is_killed_at_each_write(verb, &two, others, waits);
    }
}

#[test]
fn one_that_is_killed_between_two_writes_leaves_a_shared_lock_that_works() {
    for (verb, others, waits) in [("acquire", 0, false), ("run", 1, true), ("release", 1, true), ("renew", 0, true)] {
        is_killed_at_each_write(verb, &["--shared"], others, waits);
    }
}

#[test]
fn one_that_dies_in_the_middle_of_a_write_leaves_a_lock_that_works() {
    let local = Local::start();
    let own = token(&local, &[]);
    let size = || std::fs::metadata(local.file("lock")).unwrap().len();
    let before = size();
    let reason = "w".repeat(200);
    let options = ["--reason", &reason, LONG[0], LONG[1]];
    // The first one for which the file has to grow writes a part of that, and dies of SIGXFSZ, or ends.
    let limit = format!("--fsize={}", before + 1500);
    let mut waiters = Vec::new();
    loop {
        let mut limited = Turn::of(local.nxlock(turn(&options)).under(["prlimit", &limit]));
        let pid = limited.pid();
        eventually("it waits or has died", || limited.running.has_ended() || queue(&local).contains(&pid));
        if limited.running.has_ended() {
            let done = limited.finish().never_says("damaged");
            // Whether it may ignore the signal is up to its caller.
            if done.status.signal() != Some(Signal::SIGXFSZ as i32) {
                done.exits(70).says("file too large").says("ulimit -f");
            }
            break;
        }
        limited.running.signal(Signal::SIGTERM);
        limited.finish().dies_of(Signal::SIGTERM);
        assert_eq!(size(), before);
        waiters.push(Turn::queued(&local, &options));
        assert!(waiters.len() < 20, "none has died");
    }
    assert_eq!(size(), before + 1500);
    assert_eq!(queue(&local), waiters.iter().map(Turn::pid).collect::<Vec<_>>());
    assert_eq!(holders(&local).len(), 1);
    // One without a limit has the room.
    waiters.push(Turn::queued(&local, &options));
    release(&local, &own);
    for mut waiter in waiters {
        waiter.up();
        waiter.leaves();
    }
    assert!(is_free(&local));
}
