//! A process that can be frozen, killed and waited for. Only its parent signals it, so that no signal goes to another
//! process that has got its pid.

use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::libc;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, ttyname};

use crate::record::{Nanos, Starved, boot_clock, nanos};
use crate::support::lasting::Sweeper;
use crate::support::lasts;

pub struct Process {
    pid: Pid,
    status: Option<ExitStatus>,
    watched: Watched,
    starved: Starved,
    /// The guard that is to end the command.
    guard: Option<Watched>,
}

/// The descriptors of a process: unlike its pid, they never mean another one.
struct Watched {
    /// Readable when the process has ended, pidfd_open(2).
    end: OwnedFd,
    /// Readable until it is waited for.
    schedstat: File,
}

impl Process {
    /// Starts a command in a session of its own, whose terminal this is, with no variables but its own.
    ///
    /// By posix_spawn(3), which shares the memory of this process until the command executes. std would call fork(2) for
    /// a new session and copy the memory map of hundreds of threads: of four grants in the same time, three were left.
    pub fn start(command: &Command, terminal: Option<&File>, stderr: &File) -> Process {
        let spawned = || -> nix::Result<Pid> {
            let mut attributes = PosixSpawnAttr::init()?;
            let flags = PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK;
            let session = PosixSpawnFlags::from_bits_retain(libc::POSIX_SPAWN_SETSID.into());
            attributes.set_flags(flags | session)?;
            attributes.set_sigdefault(&SigSet::all())?;
            attributes.set_sigmask(&SigSet::empty())?;
            let mut files = PosixSpawnFileActions::init()?;
            // The terminal that a session's leader opens becomes the session's, ioctl_tty(2).
            let stdin = terminal.map_or(Ok("/dev/null".into()), ttyname)?;
            files.add_open(0, &stdin, OFlag::O_RDWR, Mode::empty())?;
            files.add_open(1, Path::new("/dev/null"), OFlag::O_WRONLY, Mode::empty())?;
            files.add_dup2(stderr.as_raw_fd(), 2)?;
            let text = |parts: &[&OsStr]| CString::new(parts.join(OsStr::new("=")).as_bytes()).expect("no NUL");
            let words: Vec<CString> =
                [command.get_program()].into_iter().chain(command.get_args()).map(|word| text(&[word])).collect();
            let variables: Vec<CString> =
                command.get_envs().filter_map(|(name, value)| Some(text(&[name, value?]))).collect();
            posix_spawn(Path::new(command.get_program()), &files, &attributes, &words, &variables)
        };
        let pid = spawned().expect("it starts");
        let watched = Watched::of(pid.as_raw()).expect("it is ours and not waited for");
        Process { pid, status: None, watched, starved: Starved::default(), guard: None }
    }

    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    pub fn ends_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let over = boot_clock() + nanos(limit);
        loop {
            let rest = Duration::from_nanos(over.saturating_sub(boot_clock()));
            let has_ended = self.watched.ends_within(rest.min(READ_EVERY));
            if let Some(in_all) = self.watched.starved() {
                self.starved.reads(boot_clock(), in_all);
            }
            if has_ended || rest <= READ_EVERY {
                break;
            }
        }
        if self.status.is_none() {
            let mut status = 0;
            // SAFETY: the process is ours and not waited for; waitpid(2) writes one number.
            let pid = unsafe { libc::waitpid(self.pid(), &raw mut status, libc::WNOHANG) };
            assert!(pid >= 0, "{}", io::Error::last_os_error());
            self.status = (pid > 0).then(|| ExitStatus::from_raw(status));
        }
        self.status
    }

    /// Leaves it to this guard to end the command: nxlock is about to be killed.
    pub fn leaves_to(&mut self, guard: Option<i32>) {
        self.guard = guard.and_then(|guard| Watched::of(guard).ok());
    }

    /// Returns how long it was runnable while others ran.
    pub fn starved(&self) -> Starved {
        self.starved.clone()
    }

    /// Returns the same, in all, of the guard, once that is gone, if it had to end the command.
    pub fn starved_guard(&self) -> Nanos {
        self.guard.as_ref().map_or(0, Watched::starved_to_its_end)
    }

    pub fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.pid()), signal);
    }

    /// Stops it and its descendants, and returns the descendants.
    pub fn freezes_with_its_command(&self) -> Vec<i32> {
        self.signal(Signal::SIGSTOP);
        let stopped = || descendants(self.pid()).into_iter().inspect(|pid| signal(*pid, Signal::SIGSTOP)).collect();
        // Twice, for a process that was being started meanwhile.
        let _: Vec<i32> = stopped();
        stopped()
    }
}

/// How often a process is asked how long it has waited for a processor.
const READ_EVERY: Duration = Duration::from_millis(50);

/// How long the guard of a killed nxlock may take to end, whatever the lease was.
const GUARD_IS_GONE: Duration = Duration::from_secs(20);

impl Watched {
    fn of(pid: i32) -> io::Result<Watched> {
        // SAFETY: what comes back is a new descriptor, or -1.
        let end = unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(i32::try_from(fd).expect("a descriptor"))
        };
        Ok(Watched { end, schedstat: File::open(format!("/proc/{pid}/schedstat"))? })
    }

    /// Waits until it has ended, or the limit has passed; returns whether it has ended.
    fn ends_within(&self, limit: Duration) -> bool {
        let mut poll = libc::pollfd { fd: self.end.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let millis = i32::try_from(limit.as_micros().div_ceil(1000)).expect("it fits");
        // SAFETY: poll(2) is passed one pollfd.
        unsafe { libc::poll(&mut poll, 1, millis) > 0 }
    }

    /// Returns for how many nanoseconds it was runnable while others ran, unless it has been waited for.
    fn starved(&self) -> Option<Nanos> {
        let mut text = [0; 128];
        let length = self.schedstat.read_at(&mut text, 0).ok()?;
        wait_in(str::from_utf8(&text[..length]).ok()?)
    }

    /// Returns the same as of just before its end. Another process may wait for it. The search for processes
    /// that are left behind finds a guard that does not end in time.
    fn starved_to_its_end(&self) -> Nanos {
        let over = boot_clock() + nanos(GUARD_IS_GONE);
        let mut last = self.starved().unwrap_or(0);
        while !self.ends_within(Duration::from_millis(1)) && boot_clock() < over {
            last = self.starved().unwrap_or(last);
        }
        self.starved().unwrap_or(last)
    }
}

/// Returns the guard of an nxlock, the process between it and its command, if there is one.
pub fn guard_of(nxlock: i32) -> Option<i32> {
    children(nxlock).into_iter().find(|pid| is_guard(*pid))
}

/// Returns the command of an nxlock, if it runs.
pub fn command_of(nxlock: i32) -> Option<i32> {
    children(guard_of(nxlock)?).first().copied()
}

/// Returns whether the command of an nxlock has been executed: until then its process executes nxlock.
pub fn has_started(nxlock: i32) -> bool {
    let program = |pid: i32| fs::read_link(format!("/proc/{pid}/exe")).ok();
    command_of(nxlock).and_then(program).is_some_and(|command| Some(command) != program(nxlock))
}

pub fn is_guard(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "nx-guard")
}

/// Returns for how many nanoseconds a process was runnable while others ran, by a copy of its schedstat.
pub fn starved_by(path: &str) -> Option<Nanos> {
    wait_in(&fs::read_to_string(path).ok()?)
}

/// Returns the second field, proc_pid_schedstat(5).
fn wait_in(schedstat: &str) -> Option<Nanos> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

pub fn signal(pid: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid), signal);
}

pub fn told(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => code.to_string(),
        (None, signal) => format!("signal {}", signal.unwrap_or_default()),
    }
}

fn descendants(pid: i32) -> Vec<i32> {
    let mut found = children(pid);
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        found.extend(children(*pid));
        next += 1;
    }
    found
}

/// Returns the children of all threads of a process.
pub fn children(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Returns every process with this mark in its environment.
pub fn marked(mark: &str) -> Vec<i32> {
    let processes = fs::read_dir("/proc").expect("there is a /proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let carries = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    pids.filter(carries).collect()
}

/// Returns what a process is, and for what it waits: its parent, its state, its system call and its command line.
fn described(pid: i32) -> String {
    let read = |what: &str| fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
    let text = |what: &str| String::from_utf8_lossy(&read(what)).replace('\0', " ");
    let status = text("status");
    let about: Vec<&str> = status
        .lines()
        .filter(|line| ["State:", "PPid:", "SigPnd:"].iter().any(|name| line.starts_with(name)))
        .collect();
    format!("process {pid}, {}, syscall {}, {}", about.join(", "), text("syscall").trim(), text("cmdline"))
}

/// Returns a sweeper that kills all with a mark.
pub fn swept(mark: &str) -> Sweeper {
    // Once more, if one was found: it may have started another meanwhile.
    let script = "found=yes
        while [ $found ]; do
            found=
            for at in /proc/[0-9]*; do
                tr '\\0' '\\n' < $at/environ | grep -qxF \"$0\" && kill -9 ${at#/proc/} && found=yes
            done
        done";
    Sweeper::of(mark, script)
}

/// Waits until no process has the mark; kills those that still do after the limit, and returns what each of them was.
pub fn gone_within(mark: &str, limit: Duration) -> Vec<String> {
    let pause = Duration::from_millis(20);
    let mut waited = Duration::ZERO;
    loop {
        let left = marked(mark);
        if left.is_empty() || waited > limit {
            let were = left.iter().map(|pid| described(*pid)).collect();
            left.iter().for_each(|pid| signal(*pid, Signal::SIGKILL));
            return were;
        }
        lasts(pause);
        waited += pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::processors;

    #[test]
    fn how_long_a_guard_starved_is_known_when_it_has_ended() {
        let null = File::open("/dev/null").unwrap();
        let mut process = Process::start(&Command::new("/bin/true"), None, &null);
        assert_eq!(process.starved_guard(), 0, "none is to end a command");
        // Two that never rest share a processor.
        let processor = processors()[0].to_string();
        let busy = "n=0; while [ $n -lt 200000 ]; do n=$((n+1)); done";
        let start = || Command::new("taskset").args(["-c", &processor, "sh", "-c", busy]).spawn().unwrap();
        let (mut guard, mut other) = (start(), start());
        process.leaves_to(i32::try_from(guard.id()).ok());
        let waiter = std::thread::spawn(move || [guard.wait().unwrap(), other.wait().unwrap()]);
        assert!(process.starved_guard() > 10_000_000);
        waiter.join().unwrap();
    }
}
