//! One lock, one holder, its waiters, and what the stamps of their commands show afterwards.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::sys::prctl;
use nix::sys::signal::Signal;

use super::guard::Guard;
use super::within::stamping;
use crate::rig::{Server, now, pause, until};

pub struct Scene {
    pub latencies: Vec<Duration>,
    /// Pairs in which the later waiter was served before the earlier.
    pub inversions: usize,
    /// Scripts called, and all commands, from the end of the holder's command to that of the last.
    pub asked: u64,
    pub commands: u64,
    /// The processor time of the server's main thread in that time.
    pub server: Duration,
}

/// A holder whose command runs until the crowd is dispersed, and its waiters.
pub struct Crowd {
    leash: ChildStdin,
    members: Vec<Child>,
    stamps: PathBuf,
}

/// How a waiter is called: [`Guard::call`] or [`Guard::read`].
pub type Call = fn(Guard, &Server, &str, &[OsString]) -> Command;

/// Starts the waiters one after the other, and returns when all are queued.
pub fn gather(server: &Server, guard: Guard, waits: Call, waiters: usize, apart: Duration) -> Crowd {
    let name = new_name();
    let stamps = server.directory().join(format!("{name}.stamps"));
    // The other slots are held all the time: all waiters get the one of this holder, one after the other.
    (1..guard.slots()).for_each(|_| guard.acquire(server, &name, "1h"));
    let mut holder = start(guard.call(server, &name, &stamping(&stamps, 0, true)), Stdio::piped());
    let leash = holder.stdin.take().expect("a pipe");
    // The holder's command creates the file.
    until("the holder's command runs", || stamps.exists());
    let mut members = vec![holder];
    for waiter in 1..=waiters {
        let began = now();
        members.push(start(waits(guard, server, &name, &stamping(&stamps, waiter, false)), Stdio::null()));
        pause(apart.saturating_sub(now() - began));
    }
    match guard.waiting(server, &name) {
        Some(_) => until("all are in line", || guard.waiting(server, &name) == Some(waiters)),
        // Pollers are not visible; when in their interval the lock becomes free is left to chance.
        None => pause(Duration::from_micros(30_000 + u64::from(now().subsec_micros()) % 100_000)),
    }
    // Let the arrivals settle: the machine is quiet when the lock is released.
    pause(Duration::from_millis(5));
    Crowd { leash, members, stamps }
}

impl Crowd {
    /// Releases the holder, waits until all were served, and returns the file of their stamps.
    pub fn disperse(self) -> PathBuf {
        drop(self.leash);
        for mut member in self.members {
            let status = member.wait().expect("it is our child");
            assert!(status.success(), "{status}");
        }
        self.stamps
    }
}

pub fn scene(server: &Server, guard: Guard, waiters: usize, apart: Duration) -> Scene {
    let crowd = gather(server, guard, Guard::call, waiters, apart);
    server.forget_stats();
    let before = server.cpu();
    let stamps = crowd.disperse();
    let cpu = server.cpu().saturating_sub(before);
    let stats = server.stats();
    let mut served: Vec<(Duration, Duration, usize)> = read(&stamps);
    served.sort_unstable();
    assert_eq!(served.len(), waiters + 1, "everybody was served once");
    assert!(served.is_sorted_by(|earlier, later| earlier.1 <= later.0), "two at once: {served:?}");
    let order: Vec<usize> = served.iter().map(|command| command.2).collect();
    let overtaken = |at: usize| order[..at].iter().filter(|&&earlier| earlier > order[at]).count();
    Scene {
        latencies: served.windows(2).map(|pair| pair[1].0 - pair[0].1).collect(),
        inversions: (0..order.len()).map(overtaken).sum(),
        asked: stats.scripts(),
        commands: stats.all(),
        server: cpu,
    }
}

pub fn new_name() -> String {
    static NAMES: AtomicU32 = AtomicU32::new(0);
    format!("bench{}", NAMES.fetch_add(1, Ordering::Relaxed))
}

/// Starts a process that is killed when the bench dies.
pub fn start(mut call: Command, stdin: Stdio) -> Child {
    call.stdin(stdin).stdout(Stdio::null());
    // SAFETY: prctl(2) is async-signal-safe.
    unsafe { call.pre_exec(|| Ok(prctl::set_pdeathsig(Signal::SIGKILL)?)) };
    call.spawn().expect("it starts")
}

/// Returns when each command began and ended, and whose it was.
pub fn read(stamps: &PathBuf) -> Vec<(Duration, Duration, usize)> {
    let text = fs::read_to_string(stamps).expect("stamps");
    let line = |line: &str| {
        let mut words = line.split(' ').map(|word| word.parse::<u64>().expect("a number"));
        let mut next = || words.next().expect("three numbers");
        let (who, began, ended) = (next(), next(), next());
        (Duration::from_nanos(began), Duration::from_nanos(ended), usize::try_from(who).expect("small"))
    };
    text.lines().map(line).collect()
}
