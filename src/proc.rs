//! What /proc tells of this machine and its processes, proc(5).

use std::fs::{self, File};
use std::io::{self, Read};

/// A file that the kernel writes as it is read, and that is short: the first page of it.
///
/// # Errors
/// As open(2) and read(2).
pub fn short(path: &str) -> io::Result<Vec<u8>> {
    // Its length is not known before, and asking in small pieces costs more than the answer.
    let mut page = vec![0; 4096];
    let length = File::open(path)?.read(&mut page)?;
    page.truncate(length);
    Ok(page)
}

/// A process as it was when it was looked at, proc_pid_stat(5).
pub struct Stat {
    pub state: char,
    pub parent: i32,
    /// In clock ticks after boot: with the pid, what no two processes of one boot share.
    pub started: u64,
    /// Nothing for a kernel thread, and for a process that has given up its memory since it ends.
    pub memory: u64,
    /// Where the environment begins and ends; both nothing in the middle of an execve(2), and to who may
    /// not look.
    pub environment: (u64, u64),
}

impl Stat {
    /// Nothing for a process that is not there, or not to be seen.
    pub fn of(pid: i32) -> Option<Stat> {
        Stat::read(&short(&format!("/proc/{pid}/stat")).ok()?)
    }

    /// The name stands in parentheses and may hold anything; the fields after it are counted from 3.
    pub fn read(stat: &[u8]) -> Option<Stat> {
        let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
        let fields: Vec<&str> = std::str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3);
        Some(Stat {
            state: field(3)?.chars().next()?,
            parent: field(4)?.parse().ok()?,
            started: field(22)?.parse().ok()?,
            memory: field(23)?.parse().ok()?,
            environment: (field(50)?.parse().ok()?, field(51)?.parse().ok()?),
        })
    }

    /// It has ended, and nobody has asked how.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// Whether this process sees those that /proc shows under the same numbers as it knows them: not if it
/// is in a pid namespace below that of /proc.
pub fn is_ours() -> bool {
    let status = short("/proc/self/status").unwrap_or_default();
    number_is(std::process::id(), &String::from_utf8_lossy(&status))
}

/// Whether a process has this number and no other, by its `/proc/PID/status`.
pub fn number_is(pid: u32, status: &str) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    numbers.split_ascii_whitespace().eq([pid.to_string()])
}

/// Whether /proc keeps processes from us that are there: the mount option `hidepid`, proc(5).
pub fn hides() -> bool {
    hidden_by(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

/// Whether the mount of /proc among these has the option.
pub fn hidden_by(mounts: &str) -> bool {
    let own = mounts.lines().filter(|line| line.split(' ').nth(4) == Some("/proc"));
    own.filter_map(|line| line.split_once("hidepid=")).any(|(_, how)| !how.starts_with('0') && !how.starts_with("off"))
}

/// Whether /proc shows processes and nothing else: the mount option `subset=pid`, proc(5).
pub fn has_processes_only() -> bool {
    is_subset(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

/// Whether the visible mount of /proc, the last one, has the option.
fn is_subset(mounts: &str) -> bool {
    let visible = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/proc"));
    visible.is_some_and(|line| line.split([' ', ',']).any(|option| option == "subset=pid"))
}

/// Every process that is to be seen.
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
        assert_eq!((stat.state, stat.parent, stat.started), ('S', 7, 123_456));
        assert_eq!((stat.memory, stat.environment), (99, (600, 601)));
        let odd = [b"12 (\xff\n) Z ".as_slice(), rest.as_bytes()].concat();
        assert!(Stat::read(&odd).unwrap().has_ended());
        assert!(Stat::read(b"").is_none());
    }

    #[test]
    fn the_subset_is_that_of_the_visible_mount_of_proc() {
        let whole = "22 28 0:21 / /proc rw,nosuid - proc proc rw\n";
        let subset = "63 45 0:39 / /proc rw,relatime - proc proc rw,hidepid=2,subset=pid\n";
        let elsewhere = "63 45 0:39 / /mnt/proc rw,relatime - proc proc rw,subset=pid\n";
        assert!(is_subset(subset) && is_subset(&format!("{whole}{subset}{elsewhere}")));
        assert!(!is_subset(whole) && !is_subset(&format!("{subset}{whole}{elsewhere}")) && !is_subset(""));
    }

    #[test]
    fn a_process_is_told_from_a_later_one_by_when_it_started() {
        let own = Stat::of(std::process::id().cast_signed()).unwrap();
        assert!(own.started > Stat::of(1).unwrap().started);
        assert!(pids().unwrap().any(|pid| pid == 1));
    }
}
