//! Information about this machine and its processes from /proc, proc(5).

use std::fs::{self, File};
use std::io::{self, Read};

use rustix::fs::{PROC_SUPER_MAGIC, fstatfs};

/// Reads the first page of a short file that the kernel generates on read.
///
/// # Errors
/// As open(2) and read(2).
pub fn short(path: &str) -> io::Result<Vec<u8>> {
    // Its length is not known in advance, and many small reads cost more than the answer.
    let mut page = vec![0; 4096];
    let length = File::open(path)?.read(&mut page)?;
    page.truncate(length);
    Ok(page)
}

/// Returns the kernel's id of this boot, random(4). A container may have a file of its own in its place, which says
/// nothing of the machine; that file is not on procfs.
pub fn boot_id() -> Option<String> {
    let mut file = File::open("/proc/sys/kernel/random/boot_id").ok()?;
    let is_the_kernels = fstatfs(&file).is_ok_and(|found| found.f_type == PROC_SUPER_MAGIC);
    let mut id = String::new();
    file.read_to_string(&mut id).ok().filter(|_| is_the_kernels)?;
    Some(id.trim_end().to_owned())
}

/// A process at the time it was read, proc_pid_stat(5).
pub struct Stat {
    pub parent: i32,
    /// Device number of the controlling terminal, or 0.
    terminal: i64,
    /// Start time in clock ticks after boot: with the pid, unique within one boot.
    pub started: u64,
}

impl Stat {
    /// Returns `None` for a process that does not exist or is not visible.
    pub fn of(pid: i32) -> Option<Stat> {
        Stat::read(&short(&format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses a line. The name is in parentheses and may hold any byte; the fields after it are counted from 3.
    pub fn read(stat: &[u8]) -> Option<Stat> {
        let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
        let fields: Vec<&str> = std::str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3);
        Some(Stat {
            parent: field(4)?.parse().ok()?,
            terminal: field(7)?.parse().ok()?,
            started: field(22)?.parse().ok()?,
        })
    }
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    Runs,
    /// By a signal, or for a tracer.
    Stopped,
    /// The main thread has ended, and others may run.
    WithoutMainThread,
    Ended,
}

/// A process as job control sees it, proc_pid_status(5).
#[derive(Debug, PartialEq, Eq)]
pub struct Job {
    pub state: JobState,
    blocked: u64,
    caught: u64,
    pending: u64,
}

impl Job {
    /// Returns `None` for a process that does not exist or is not visible.
    pub fn of(pid: i32) -> Option<Job> {
        Job::read(&String::from_utf8_lossy(&short(&format!("/proc/{pid}/status")).ok()?))
    }

    fn read(status: &str) -> Option<Job> {
        let field = |name: &str| Some(status.lines().find_map(|line| line.strip_prefix(name))?.trim());
        let signals = |name: &str| u64::from_str_radix(field(name)?, 16).ok();
        let state = match field("State:")?.chars().next()? {
            'T' | 't' => JobState::Stopped,
            'Z' | 'X' if field("Threads:").is_some_and(|threads| threads != "1") => JobState::WithoutMainThread,
            'Z' | 'X' => JobState::Ended,
            _ => JobState::Runs,
        };
        Some(Job { state, blocked: signals("SigBlk:")?, caught: signals("SigCgt:")?, pending: signals("ShdPnd:")? })
    }

    /// Returns whether the process itself decides what this signal does: it has a handler, or blocks the signal to read
    /// it elsewhere.
    pub fn catches(&self, number: i32) -> bool {
        is_in(number, self.caught | self.blocked)
    }

    /// Returns whether this signal was sent to the process, and not taken by it yet.
    pub fn has_pending(&self, number: i32) -> bool {
        is_in(number, self.pending)
    }

    /// Returns whether the process only has to run to take this signal by a handler.
    pub fn is_to_take(&self, number: i32) -> bool {
        is_in(number, self.pending & self.caught & !self.blocked)
    }
}

/// Returns whether a signal is in a set as /proc shows it.
fn is_in(number: i32, set: u64) -> bool {
    set >> (number - 1) & 1 == 1
}

/// Returns the pid under which /proc shows this process; `None` if there is no /proc, or if it does not show the
/// process.
pub fn own_number() -> Option<i32> {
    fs::read_link("/proc/self").ok()?.to_str()?.parse().ok()
}

/// Returns whether /proc shows processes under the pids that this process knows: not if it is in a pid namespace below
/// that of /proc.
pub fn is_ours() -> bool {
    is_known_to_be_ours().unwrap_or(false)
}

/// Does the same.
///
/// # Errors
/// As open(2) and read(2): it is not known, unless there is no /proc.
pub fn is_known_to_be_ours() -> io::Result<bool> {
    match short("/proc/self/status") {
        Ok(status) => Ok(number_is(std::process::id(), &String::from_utf8_lossy(&status))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns a process's pid in its own pid namespace, given the pid that /proc shows.
pub fn inner_number(shown: i32) -> Option<i32> {
    let status = short(&format!("/proc/{shown}/status")).ok()?;
    numbers(&String::from_utf8_lossy(&status)).split_ascii_whitespace().next_back()?.parse().ok()
}

/// Returns a process's name, as prctl(2) sets it.
pub fn name(shown: i32) -> String {
    String::from_utf8_lossy(&short(&format!("/proc/{shown}/comm")).unwrap_or_default()).trim_end().to_owned()
}

/// Returns whether a process has a pipe open, which its inode tells from all others, proc_pid_fd(5).
pub fn has_pipe(shown: i32, inode: u64) -> bool {
    let pipe = format!("pipe:[{inode}]");
    let open = fs::read_dir(format!("/proc/{shown}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|file| file.as_os_str() == pipe.as_str())
}

fn numbers(status: &str) -> &str {
    status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default()
}

/// Returns whether a process has this pid and no other, by its `/proc/PID/status`.
pub fn number_is(pid: u32, status: &str) -> bool {
    numbers(status).split_ascii_whitespace().eq([pid.to_string()])
}

/// Returns whether this process has no controlling terminal: the field `tty_nr` in proc_pid_stat(5).
pub fn has_no_terminal() -> bool {
    short("/proc/self/stat").ok().and_then(|stat| Stat::read(&stat)).is_some_and(|stat| stat.terminal == 0)
}

/// Returns the pids of all visible processes.
pub fn pids() -> Option<impl Iterator<Item = i32>> {
    Some(fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_found_behind_any_name() {
        let rest = "7 12 12 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 1 0 123456 99 0 1 \
                    0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 1 2 3 4 5 600 601 0";
        let stat = Stat::read(format!("12 (a) b) (c) S {rest}").as_bytes()).unwrap();
        assert_eq!((stat.parent, stat.started), (7, 123_456));
        assert_eq!(stat.terminal, 0);
        let odd = [b"12 (\xff\n) Z ".as_slice(), rest.as_bytes()].concat();
        assert_eq!(Stat::read(&odd).unwrap().parent, 7);
        assert!(Stat::read(b"").is_none());
    }

    #[test]
    fn a_job_is_stopped_or_catches_a_signal() {
        let job = |state: &str, blocked: &str, caught: &str| {
            let signals = format!("ShdPnd:\t400\nSigBlk:\t{blocked}\nSigIgn:\t0\nSigCgt:\t{caught}");
            Job::read(&format!("Name:\tx\nState:\t{state}\n{signals}\n")).unwrap()
        };
        assert_eq!(job("T (stopped)", "0", "0").state, JobState::Stopped);
        assert_eq!(job("t (tracing stop)", "0", "0").state, JobState::Stopped);
        assert_eq!(job("Z (zombie)\nThreads:\t1", "0", "0").state, JobState::Ended);
        assert_eq!(job("Z (zombie)\nThreads:\t2", "0", "0").state, JobState::WithoutMainThread);
        let tstp = format!("{:016x}", 1u64 << 19);
        assert!(job("S (sleeping)", "0", &tstp).catches(20) && !job("S (sleeping)", "0", &tstp).catches(19));
        assert!(job("S (sleeping)", &tstp, "0").catches(20), "as signalfd(2) wants it");
        assert!(job("S (sleeping)", "0", "0").has_pending(11) && !job("S (sleeping)", "0", "0").has_pending(12));
        let pending = format!("{:016x}", 1u64 << 10);
        assert!(job("S (sleeping)", "0", &pending).is_to_take(11));
        assert!(!job("S (sleeping)", "0", "0").is_to_take(11), "it has no handler");
        assert!(!job("S (sleeping)", &pending, &pending).is_to_take(11), "it blocks the signal");
        assert_eq!(Job::of(std::process::id().cast_signed()).unwrap().state, JobState::Runs);
    }

    #[test]
    fn a_process_is_told_from_a_later_one_by_when_it_started() {
        let own = Stat::of(std::process::id().cast_signed()).unwrap();
        assert!(own.started > Stat::of(1).unwrap().started);
        assert!(pids().unwrap().any(|pid| pid == 1));
    }
}
