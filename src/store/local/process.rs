//! Processes of this machine: which one a claim lives with, whether it still runs, and what it has
//! left behind.
//!
//! To say wrongly that a process has ended would let two have a lock. So whatever cannot be seen for
//! certain is [`Life::Unseen`], and then the lease decides.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::{Pid, geteuid};

use crate::clock::Boot;
use crate::lock::{HELD, Token};
use crate::proc::{self, Stat};

/// A process, told from every other of this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    started: u64,
    space: Space,
    uid: u32,
}

/// The namespaces in which a pid and a uid mean what they say: pid_namespaces(7), user_namespaces(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Space {
    pids: u64,
    users: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Runs,
    Ended,
    Unseen,
}

/// What this process can see of others: those of its namespaces, where /proc is that of its pids, and
/// where it counts time as they do. Of processes outside its user namespace not even the superuser of it
/// may read the environment, and it sees other users than they are.
#[derive(Clone, Copy)]
pub struct Sight {
    space: Option<Space>,
}

/// What a claim's process has left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    Nothing,
    /// This process, and perhaps others.
    Process(i32),
    /// There may be something that we cannot see.
    Unknown,
}

impl Sight {
    pub fn new(boot: &Boot) -> Sight {
        let number = |namespace: &str| Some(fs::metadata(format!("/proc/self/ns/{namespace}")).ok()?.ino());
        let space = || Some(Space { pids: number("pid")?, users: number("user")? });
        Sight { space: space().filter(|_| proc::is_ours() && boot.is_told_by_our_clock()) }
    }

    /// Nothing for a process that has ended, or that we cannot see.
    pub fn process(&self, pid: u32) -> Option<Process> {
        let (pid, space) = (pid.cast_signed(), self.space?);
        let started = Stat::of(pid)?.started;
        let uid = fs::metadata(format!("/proc/{pid}")).map_or(geteuid().as_raw(), |process| process.uid());
        Some(Process { pid, started, space, uid })
    }

    pub fn life(&self, process: &Process) -> Life {
        if self.space != Some(process.space) {
            return Life::Unseen;
        }
        // Asked first: it also tells of processes that /proc hides from us.
        if kill(Pid::from_raw(process.pid), None) == Err(Errno::ESRCH) {
            return Life::Ended;
        }
        match Stat::of(process.pid) {
            Some(stat) if stat.started != process.started || stat.has_ended() => Life::Ended,
            Some(_) => Life::Runs,
            None => Life::Unseen,
        }
    }

    /// What a claim's own process, which has ended, has left behind: whatever carries the claim's token
    /// in its environment, or may do so, as far as we are let to see. One that has changed its user, or
    /// has cleared or overwritten its environment, is not known.
    pub fn left_behind(&self, claims: &Process, token: &Token) -> Left {
        if !geteuid().is_root() && proc::hides() {
            return Left::Unknown;
        }
        // Twice: one may be born where the first look has been, of one that is gone when it comes there.
        let seen = (0..2).find_map(|_| proc::pids().into_iter().flatten().find(|pid| may_carry(*pid, claims, token)));
        seen.map_or(Left::Nothing, Left::Process)
    }
}

fn may_carry(pid: i32, claims: &Process, token: &Token) -> bool {
    if pid == std::process::id().cast_signed() {
        return false;
    }
    // In the middle of an execve(2) there is no environment to be read. That does not last; where it
    // does, we do not know.
    for _ in 0..AGAIN {
        let Some(stat) = Stat::of(pid) else { return false };
        // What has started before cannot have been left behind. Most processes end here.
        if stat.started < claims.started || stat.has_ended() || stat.memory == 0 {
            return false;
        }
        match fs::read(format!("/proc/{pid}/environ")) {
            Ok(environment) if !environment.is_empty() => {
                return environment.split(|byte| *byte == 0).any(|variable| holds(variable, token));
            }
            Ok(_) if is_empty(stat.environment) => return false,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return fs::metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() == claims.uid);
            }
            Err(_) => return false,
        }
    }
    true
}

/// How often a process is looked at that has no environment just now.
const AGAIN: u32 = 50;

/// There is one, with nothing in it.
fn is_empty((begin, end): (u64, u64)) -> bool {
    begin == end && begin != 0
}

/// Whether a variable is the one that carries the tokens of all runs around a process, this among them.
fn holds(variable: &[u8], token: &Token) -> bool {
    let Some(tokens) = variable.strip_prefix(HELD.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")) else {
        return false;
    };
    tokens.split(|byte| *byte == b' ').any(|held| held == token.as_str().as_bytes())
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}.{}.{}", self.pid, self.started, self.space.pids, self.space.users, self.uid)
    }
}

impl FromStr for Process {
    type Err = ();

    fn from_str(text: &str) -> Result<Process, ()> {
        let mut numbers = text.split('.');
        let mut next = || numbers.next().ok_or(());
        let process = Process {
            pid: next()?.parse().map_err(|_| ())?,
            started: next()?.parse().map_err(|_| ())?,
            space: Space { pids: next()?.parse().map_err(|_| ())?, users: next()?.parse().map_err(|_| ())? },
            uid: next()?.parse().map_err(|_| ())?,
        };
        // 0 and below mean groups to kill(2).
        if process.pid > 0 && next().is_err() { Ok(process) } else { Err(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::SystemTime;

    use super::*;
    use crate::lock::Owner;

    #[test]
    fn a_process_is_known_until_it_ends() {
        let sight = Sight::new(&Boot::this().unwrap());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = sight.process(child.id()).unwrap();
        assert_eq!(process.to_string().parse(), Ok(process));
        assert_eq!(sight.life(&process), Life::Runs);
        assert_eq!(sight.life(&Process { started: process.started - 1, ..process }), Life::Ended, "a later one");
        child.kill().unwrap();
        // Not yet waited for, it is there and has ended.
        while sight.life(&process) == Life::Runs {
            std::thread::yield_now();
        }
        assert_eq!(sight.life(&process), Life::Ended);
        child.wait().unwrap();
        assert_eq!(sight.life(&process), Life::Ended);
    }

    #[test]
    fn a_process_of_another_namespace_is_not_seen() {
        let sight = Sight::new(&Boot::this().unwrap());
        let process = sight.process(std::process::id()).unwrap();
        let Space { pids, users } = process.space;
        for space in [Space { pids: pids + 1, users }, Space { pids, users: users + 1 }] {
            assert_eq!(sight.life(&Process { space, ..process }), Life::Unseen);
        }
        assert_eq!(Sight { space: None }.life(&process), Life::Unseen);
    }

    #[test]
    fn what_was_left_behind_is_known_by_its_environment() {
        let mint = || {
            let owner = Owner { user: "u".into(), host: "h".into(), pid: 1 };
            Token::mint(&owner, None, SystemTime::UNIX_EPOCH).unwrap()
        };
        let (ours, outer) = (mint(), mint());
        let sight = Sight::new(&Boot::this().unwrap());
        let claims = sight.process(std::process::id()).unwrap();
        // What is in the middle of an execve(2), whosever it is, cannot be told yet.
        let nothing = |token| (0..100).any(|_| sight.left_behind(&claims, token) == Left::Nothing);
        assert!(nothing(&ours));
        let held = format!("{} {}", outer.as_str(), ours.as_str());
        let mut child = Command::new("sleep").arg("60").env(HELD, held).spawn().unwrap();
        assert!(!nothing(&ours) && !nothing(&outer));
        let nobodys = mint();
        assert!(nothing(&nobodys));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(nothing(&ours));
    }
}
