//! What the tests are written with: servers, calls of nxlock, terminals, faults.

pub mod ailing;
mod authority;
pub mod certificates;
pub mod clock;
mod cluster;
mod compiler;
mod job;
pub mod lasting;
mod launcher;
mod main_thread;
mod network;
mod nxlock;
mod ports;
mod proxy;
mod pty;
pub mod record;
mod redis;
mod replication;
mod root;
mod secure;
mod sentinels;
mod storm;
pub mod turns;

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub use authority::{Authority, Five, Local, OverTcp};
pub use cluster::Cluster;
pub use job::Job;
pub use lasting::Pool;
pub use main_thread::MainThread;
pub use network::{Condition, Network, Way};
pub use nxlock::{Done, Nxlock, Running, answered, program};
pub use proxy::{Fate, Proxy};
pub use pty::Terminal;
pub use redis::{Redis, unused_port};
pub use root::{Mounted, User, may_trace, may_unshare, we_are_root};
pub use secure::Secure;
pub use sentinels::{MASTER, Sentinels};
pub use storm::Storm;

/// How long a condition may take to become true on a loaded machine.
pub const LIMIT: Duration = Duration::from_secs(20);

#[expect(clippy::disallowed_methods, reason = "the one place where tests ask for the time")]
pub fn now() -> Instant {
    Instant::now()
}

/// Returns the time of the clock that timestamps files.
#[expect(clippy::disallowed_methods, reason = "the one place where tests ask for the date")]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// Sleeps between two looks at a fact. What has taken long is looked at less often: a look may be a call of nxlock.
#[expect(clippy::disallowed_methods, reason = "the one pause, between two looks at a fact")]
fn pause(waited: Duration) {
    std::thread::sleep((waited / 10).clamp(Duration::from_millis(3), Duration::from_millis(50)));
}

/// Sleeps while a fault lasts. Tests wait by time for nothing else.
#[expect(clippy::disallowed_methods, reason = "a fault that lasts")]
pub fn lasts(duration: Duration) {
    std::thread::sleep(duration);
}

/// Waits until `look` returns something, and returns that.
#[track_caller]
pub fn eventually_some<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(LIMIT, what, look)
}

/// Waits until `look` returns something, for at most so long, and returns that.
#[track_caller]
fn within<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < limit, "still not so after {limit:?}: {what}");
        pause(began.elapsed());
    }
}

/// Waits until a condition is true.
#[track_caller]
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    eventually_some(what, || is_so().then_some(()));
}

/// Returns the content of a file; empty if the file does not exist yet.
pub fn text_of(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// Replaces a file in one step; only its owner may read the new one.
pub fn replace_file(path: &Path, text: impl AsRef<[u8]>) {
    let new = path.with_extension("new");
    fs::write(&new, text).expect("a new file");
    fs::set_permissions(&new, Permissions::from_mode(0o600)).expect("its permissions");
    fs::rename(new, path).expect("in place of the old one");
}

/// Returns the state of a process, proc_pid_status(5): `R`, `S`, `T` for stopped. `None` if it is gone; a zombie counts
/// as gone. A process whose main thread has ended or is stopped goes on in its other threads, if they have not yet: they
/// have its files open, and may write to them.
pub fn state_of(pid: i32) -> Option<char> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let state = |thread: PathBuf| {
        let status = fs::read_to_string(thread.join("status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("State:"))?.trim_start().chars().next()
    };
    let states = threads.filter_map(|thread| state(thread.ok()?.path()));
    // The main thread is the first.
    let states: Vec<char> = states.filter(|state| !matches!(state, 'Z' | 'X')).collect();
    states.iter().find(|state| **state != 'T').or(states.first()).copied()
}

/// Sends a signal to a process, or to the group of a negative number.
#[track_caller]
pub fn send(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).expect("it is there");
}

/// Stops a process by SIGSTOP, but not in the middle of a request to a directory: nobody else could use the record that
/// it has locked.
#[track_caller]
pub fn freeze(pid: i32) {
    eventually("it is frozen between two requests", || {
        // Each time: nxlock continues its guard whenever it has something to tell.
        send(pid, Signal::SIGSTOP);
        let is_frozen = state_of(pid) == Some('T');
        let has_locked = is_frozen && has_flock(pid);
        if has_locked {
            send(pid, Signal::SIGCONT);
        }
        is_frozen && !has_locked
    });
}

/// Returns whether a process has a lock by flock(2), proc_locks(5).
fn has_flock(pid: i32) -> bool {
    let is_its = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        // One that it waits for has an arrow as its second word.
        words.get(1) == Some(&"FLOCK") && words.get(4) == Some(&pid.to_string().as_str())
    };
    fs::read_to_string("/proc/locks").is_ok_and(|locks| locks.lines().any(is_its))
}

/// Returns the name of a process, proc_pid_comm(5); nothing if it is gone.
pub fn name_of(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Returns the children of a process of one thread, zombies included, proc_tid_children(5).
pub fn children_of(pid: i32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_ascii_whitespace().map(|pid| pid.parse().expect("a pid")).collect()
}

pub fn parent_of(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process is there");
    let fields = stat.rsplit_once(')').expect("a name").1;
    fields.split_ascii_whitespace().nth(1).and_then(|parent| parent.parse().ok()).expect("a parent")
}

pub fn is_alive(pid: i32) -> bool {
    state_of(pid).is_some()
}

/// Writes a program. Another process writes it: a process that this one forks meanwhile, for another test, could have
/// the file open for writing, and execve(2) would fail with ETXTBSY.
pub fn write_program(path: &Path, text: &str) {
    let mut writer = Command::new("sh")
        .args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("there is a shell");
    writer.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
    assert!(writer.wait().expect("it is ours to wait for").success(), "{path:?} is not written");
}

/// Compiles a C program for one test, to do what no tool does.
pub fn built(directory: &Path, source: &str) -> PathBuf {
    let (from, to) = (directory.join("odd.c"), directory.join("odd"));
    fs::write(&from, source).expect("a source");
    let made = Command::new("cc").args(["-pthread", "-o"]).args([&to, &from]).status();
    assert!(made.is_ok_and(|status| status.success()), "an odd program needs a C compiler, as Rust does: cc");
    to
}
