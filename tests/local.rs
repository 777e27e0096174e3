//! What nxlock promises of a directory only: its files, its users, and what the kernel reports of processes.
//!
//! `contract` has what holds for every kind of authority. Some tests need root, to become other users and to make
//! namespaces and file systems; without root, they check what they can.

mod boot;
mod crowd;
mod idle;
mod kernel;
mod killed;
mod namespaces;
mod orphans;
mod place;
mod records;
mod removed;
mod room;
mod shared;
mod sharing;
mod stuck;
mod superseding;
mod sweep;
mod writes;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;

use crate::support::record::field;
use crate::support::turns::Turn;
use crate::support::{
    Authority, Local, Nxlock, Running, built, eventually, eventually_some, is_alive, name_of, send, text_of, wall,
};

/// A directory with a long timeout: hundreds of callers at once take a while on a busy machine.
struct Patient(Local);

impl Authority for Patient {
    fn url(&self) -> String {
        self.0.url()
    }

    fn directory(&self) -> PathBuf {
        self.0.directory()
    }

    fn lead(&self, call: Nxlock) -> Nxlock {
        self.0.lead(call).env("NXLOCK_SERVER_TIMEOUT", "1m")
    }
}

/// Returns the arguments of a run that nxlock has to refuse.
fn refused_to_run<'a>(options: &[&'a str]) -> Vec<&'a str> {
    ["run", "job"].iter().chain(options).chain(&["--", "echo", "ran"]).copied().collect()
}

#[track_caller]
fn is_killed(running: &mut Running) {
    running.signal(Signal::SIGKILL);
    eventually("it is dead", || running.has_ended());
}

#[track_caller]
fn pid_is_killed(pid: i32) {
    send(pid, Signal::SIGKILL);
    eventually("it is dead", || !is_alive(pid));
}

/// Waits until the holder of a record renews its lease, which it does at once when the record rings.
#[track_caller]
fn is_renewed_when_called(record: &Path) {
    let end = || field(&fs::read(record).unwrap(), "holder", "until_ms").parse::<u64>().unwrap();
    let before = end();
    File::open(record).unwrap().set_modified(wall()).unwrap();
    eventually("the lease is renewed", || end() > before);
}

/// Waits until a turn has the lock, and returns how long after a moment it was granted. Its fence tells: its command
/// may start much later.
#[track_caller]
fn granted_after(since: SystemTime, turn: &mut Turn) -> Duration {
    let granted = UNIX_EPOCH + Duration::from_micros(turn.up().parse().unwrap());
    granted.duration_since(since).unwrap_or_default()
}

/// Returns the pid of the nxlock that a call started through another program.
#[track_caller]
fn nxlock_of(running: &Running) -> i32 {
    eventually_some("nxlock is there", || running.descendants().into_iter().find(|pid| name_of(*pid) == "nxlock"))
}

/// Repeats an operation until it takes less than `bound` once: one that is slow every time is not slow by accident.
#[track_caller]
fn takes_less_than(bound: Duration, what: &str, mut once: impl FnMut() -> Duration) {
    let mut took = Vec::new();
    for _ in 0..8 {
        took.push(once());
        if took.last().is_some_and(|took| *took < bound) {
            return;
        }
    }
    panic!("never in less than {bound:?}: {what}: {took:?}");
}

/// Waits for a crowd as long as its log grows: the machine may be slow.
#[track_caller]
fn as_long_as_it_goes_on(log: &Path, mut is_over: impl FnMut() -> bool) {
    while !is_over() {
        let seen = text_of(log).len();
        eventually("another one has had its turn", || is_over() || text_of(log).len() > seen);
    }
}

/// Builds a program that runs another one under these rules for its system calls, as statements of a filter of
/// seccomp(2). What they let pass is allowed.
fn with_rules(local: &Local, rules: &str) -> PathBuf {
    let source = format!(
        r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int c, char **v) {{
    (void)c;
    struct sock_filter filter[] = {{
{rules}        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    }};
    struct sock_fprog program = {{ sizeof filter / sizeof *filter, filter }};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {{
        perror("seccomp");
        return 1;
    }}
    return execvp(v[1], v + 1);
}}
"#
    );
    built(&local.directory(), &source)
}
