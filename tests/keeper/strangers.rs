//! Other users who connect to a keeper's control socket again and again.

use std::fs;
use std::io::{PipeWriter, Read};
use std::os::fd::AsRawFd;

use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept, bind, connect, listen, socket};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Gid, Pid, fork, getpid, setgid, setgroups, setuid};

use super::{LONG, Script, hands_over};
use crate::support::turns::{Turn, is_free};
use crate::support::{Redis, eventually, now, we_are_root};

/// What a stranger does with its connections.
#[derive(Clone, Copy, Debug)]
enum Habit {
    /// Closes each connection before it opens the next.
    HangsUp,
    /// Keeps as many connections as it may have, and sends nothing.
    Holds,
    /// Does not wait for room in the backlog.
    Spins,
}

/// Processes of an otherwise unused user. Only root can start them.
struct Strangers(Vec<Pid>);

/// A user id that no system assigns.
const STRANGER: u32 = 61_183;

impl Strangers {
    /// Starts strangers, and returns when each has connected once.
    fn calling(keeper: i32, habit: Habit) -> Strangers {
        let address = UnixAddr::new_abstract(control_socket(keeper).as_bytes()).unwrap();
        let kind = kind_of(keeper);
        let (mut reader, writer) = std::io::pipe().unwrap();
        let strangers = (0..4).map(|_| stranger(&address, kind, habit, &writer)).collect();
        drop(writer);
        let strangers = Strangers(strangers);
        // Each writes a byte after its first connection.
        reader.read_exact(&mut [0; 4]).expect("all of them call");
        strangers
    }

    /// Returns the CPU time that they have used, in clock ticks.
    fn ticks(&self) -> u64 {
        self.0.iter().map(|pid| ticks(pid.as_raw())).sum()
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        for pid in &self.0 {
            let _ = kill(*pid, Signal::SIGKILL);
            let _ = waitpid(*pid, None);
        }
    }
}

fn stranger(address: &UnixAddr, kind: SockType, habit: Habit, writer: &PipeWriter) -> Pid {
    as_a_stranger(writer, || call(address, kind, habit, writer))
}

/// Starts a process of another user that has this pipe and no other descriptor, and only makes system calls.
fn as_a_stranger(writer: &PipeWriter, acts: impl FnOnce()) -> Pid {
    let parent = getpid();
    // SAFETY: the child only makes system calls, and never returns.
    match unsafe { fork() }.expect("a process") {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            // The child must not keep the descriptors of other tests open.
            close_from_to(3, writer.as_raw_fd() - 1);
            close_from_to(writer.as_raw_fd() + 1, i32::MAX);
            // SAFETY: prctl(2) and _exit(2) touch no memory of this process.
            unsafe {
                let is_another = setgroups(&[]).is_ok()
                    && setgid(Gid::from_raw(STRANGER)).is_ok()
                    && setuid(STRANGER.into()).is_ok()
                    && libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0
                    && nix::unistd::getppid() == parent;
                if is_another {
                    acts();
                }
                libc::_exit(1)
            }
        }
    }
}

/// Connects for ever.
fn call(address: &UnixAddr, kind: SockType, habit: Habit, writer: &PipeWriter) {
    let waits = if matches!(habit, Habit::Spins) { SockFlag::SOCK_NONBLOCK } else { SockFlag::empty() };
    let mut has_called = false;
    loop {
        let Ok(caller) = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC | waits, None) else {
            // It has reached its descriptor limit.
            close_from_to(writer.as_raw_fd() + 1, i32::MAX);
            continue;
        };
        if connect(caller.as_raw_fd(), address).is_ok() && !has_called {
            let _ = nix::unistd::write(writer, b"c");
            has_called = true;
        }
        if matches!(habit, Habit::Holds) {
            std::mem::forget(caller);
        }
    }
}

fn close_from_to(first: i32, last: i32) {
    // SAFETY: nothing in this process uses these descriptors.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
}

/// Returns the line of /proc/net/unix about the control socket, which every user may read.
fn line_about(keeper: i32) -> String {
    let links = fs::read_dir(format!("/proc/{keeper}/fd")).unwrap().flatten();
    let links: Vec<_> = links.filter_map(|link| fs::read_link(link.path()).ok()).collect();
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    let is_keepers = |line: &&str| {
        let inode = line.split_whitespace().nth(6).unwrap_or_default();
        line.contains("@nxlock-keeper:") && links.iter().any(|link| link.as_os_str() == &*format!("socket:[{inode}]"))
    };
    sockets.lines().find(is_keepers).expect("it has a control socket").to_owned()
}

fn control_socket(keeper: i32) -> String {
    let line = line_about(keeper);
    line.split_once('@').expect("it is abstract").1.to_owned()
}

/// Returns how many connections to the control socket there are that the keeper has not accepted yet, or has not closed:
/// each has the socket's name.
pub fn connections_to(keeper: i32) -> usize {
    let name = control_socket(keeper);
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    sockets.lines().filter(|line| line.ends_with(&format!("@{name}"))).count() - 1
}

fn kind_of(keeper: i32) -> SockType {
    match line_about(keeper).split_whitespace().nth(4) {
        Some("0001") => SockType::Stream,
        Some("0005") => SockType::SeqPacket,
        other => panic!("{other:?}"),
    }
}

/// Returns the CPU time that a process has used, proc_pid_stat(5).
fn ticks(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn strangers_do_not_keep_the_lock_from_being_given_back_when_the_process_ends() {
    if !we_are_root() {
        return;
    }
    let redis = Redis::start();
    for habit in [Habit::HangsUp, Habit::Holds, Habit::Spins] {
        let script = Script::holding(&redis, LONG);
        let next = Turn::waiting(&redis, &[]);
        let _strangers = Strangers::calling(script.keeper, habit);
        hands_over(script, next);
    }
}

#[test]
fn strangers_do_not_keep_the_owner_from_being_heard() {
    if !we_are_root() {
        return;
    }
    let redis = Redis::start();
    for habit in [Habit::HangsUp, Habit::Holds, Habit::Spins] {
        for _ in 0..5 {
            let script = Script::holding(&redis, LONG);
            let _strangers = Strangers::calling(script.keeper, habit);
            script.goes_on_to("nxlock -v release job");
            script.keeper_ends();
            eventually("it is free", || is_free(&redis));
            let said = script.running.stderr();
            assert!(said.contains("leaves \"job\" to us"), "{habit:?}: {said}");
            script.ends_untold();
        }
    }
}

/// Starts a stranger that listens where a keeper would, and writes down what one caller sends.
fn impostor(name: &str, writer: &PipeWriter) -> Pid {
    let address = UnixAddr::new_abstract(name.as_bytes()).unwrap();
    as_a_stranger(writer, || {
        if let Ok(listener) = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::empty(), None)
            && bind(listener.as_raw_fd(), &address).is_ok()
            && listen(&listener, Backlog::MAXCONN).is_ok()
            && nix::unistd::write(writer, b".").is_ok()
            && let Ok(caller) = accept(listener.as_raw_fd())
        {
            let mut said = [0; 2048];
            // SAFETY: read(2) writes into the buffer, no more than it has room for.
            let length = unsafe { libc::read(caller, said.as_mut_ptr().cast(), said.len()) };
            let _ = nix::unistd::write(writer, &said[..usize::try_from(length).unwrap_or(0)]);
        }
    })
}

#[test]
fn a_stranger_that_listens_in_the_place_of_a_keeper_does_not_get_the_token() {
    if !we_are_root() {
        return;
    }
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "job", "--ttl", "1h"]).run().exits(0).token();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let name = format!("nxlock-keeper:{}:lock:job", &token[4..12]);
    let stranger = Strangers(vec![impostor(&name, &writer)]);
    drop(writer);
    reader.read_exact(&mut [0]).expect("it listens");
    redis.nxlock(["release", "job", &token]).run().exits(0);
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
    drop(stranger);
}

#[test]
fn strangers_cost_a_keeper_next_to_nothing() {
    if !we_are_root() {
        return;
    }
    let redis = Redis::start();
    let script = Script::holding(&redis, LONG);
    let strangers = Strangers::calling(script.keeper, Habit::Spins);
    let (began, mine, theirs) = (now(), ticks(script.keeper), strangers.ticks());
    eventually("they have called for long enough", || strangers.ticks() - theirs >= 100);
    let used = ticks(script.keeper) - mine;
    let theirs = strangers.ticks() - theirs;
    // In ticks of 10 ms. The keeper pauses by the clock, which goes on while the strangers have no processor.
    let went_by = u64::try_from(began.elapsed().as_millis()).expect("it is short") / 10;
    assert!(used * 4 <= theirs.max(went_by), "{used} ticks against {theirs} in {went_by}");
    script.goes_on_to("");
    script.keeper_ends();
    script.ends_untold();
}
