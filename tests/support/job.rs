//! A command under a lock that refuses to end.
//!
//! It is a process tree. The processes that ignore TERM write a pulse to a file: the time of the last write, by the
//! clock of the file system and independent of the reader, tells until when a process of the tree was alive.

use std::path::PathBuf;
use std::time::SystemTime;

use super::{Authority, Running, eventually};

/// A child, and a daemon in a session of its own, forked twice, that ignores TERM, HUP and INT.
const TREE: &str = r#"
    sleep 300 &
    ( setsid sh -c 'trap "" TERM HUP INT; echo up; while :; do echo beat >> "$PULSE"; sleep 0.02; done' & )
    wait"#;

/// A process tree under a lock, and its pulse.
pub struct Job {
    pub running: Running,
    pulse: PathBuf,
}

impl Job {
    #[track_caller]
    pub fn start(authority: &impl Authority, options: &[&str]) -> Job {
        Job::try_start(authority, options).expect("it comes up")
    }

    /// Returns `None` if it ends before all of it has come up: on a busy machine, a short lease may end first.
    #[track_caller]
    pub fn try_start(authority: &impl Authority, options: &[&str]) -> Option<Job> {
        let pulse = authority.directory().join("pulse");
        let args = ["run", "job"].iter().chain(options).chain(&["-c", TREE]).copied();
        let mut running = authority.nxlock(args).env("PULSE", &pulse).start();
        eventually("it is up, or has ended", || running.stdout() == "up\n" || running.has_ended());
        (!running.has_ended()).then_some(Job { running, pulse })
    }

    fn last_beat(&self) -> SystemTime {
        std::fs::metadata(&self.pulse).and_then(|file| file.modified()).expect("it has a pulse")
    }

    #[track_caller]
    pub fn is_gone_before(&self, end: SystemTime) {
        assert_eq!(self.running.descendants(), [0; 0], "all of it is gone when nxlock has ended");
        let beat = self.last_beat();
        let late = beat.duration_since(end).unwrap_or_default();
        assert!(late.is_zero(), "something of it was alive {late:?} after the lease could have ended");
    }
}
