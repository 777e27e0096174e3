//! What happened, as those who did it wrote it down. All times are of the one clock that counts
//! everything, CLOCK_BOOTTIME.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::support::{Condition, Way, text_of};

/// Nanoseconds since the machine booted.
pub type Nanos = u64;
/// An attempt, by its place in the record.
pub type Who = usize;

pub fn boot_clock() -> Nanos {
    nanos(Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).expect("the kernel has CLOCK_BOOTTIME")))
}

pub fn nanos(duration: Duration) -> Nanos {
    Nanos::try_from(duration.as_nanos()).expect("it fits")
}

/// How a lock is asked for and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// `nxlock run`.
    Run,
    /// `nxlock acquire`, `renew` and `release`, by a script that looks at the clock.
    Script,
    /// `SET NX PX`, and a script that compares and deletes.
    Outsider,
}

#[derive(Clone, Debug)]
pub struct Attempt {
    pub name: usize,
    pub manner: Manner,
    pub ttl: Nanos,
    /// Stands in line.
    pub queued: bool,
    /// Speaks to the server without a network between.
    pub near: bool,
    /// How long its command may go on once it is told to stop: nothing for one that obeys.
    pub dawdles: Nanos,
    pub asked: Nanos,
    /// How it ended; nothing of one that has not.
    pub ended: Option<(Nanos, String)>,
    /// For how long nxlock, or the script, was ready to run in all and others had the processors.
    pub starved: Nanos,
}

/// What somebody did under a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub at: Nanos,
    pub who: Who,
    pub word: Word,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    Enter(Option<u64>),
    Beat,
    Leave,
}

/// What befell somebody or something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ailment {
    Killed,
    CommandKilled,
    FrozenAlone,
    FrozenWithCommand,
    /// Ctrl-Z, by a process: nxlock stops its command, and itself.
    Suspended,
    /// Told to stop by a signal.
    Cancelled,
    /// Nothing that it sends arrives any more.
    Severed,
    /// The server is stopped, and continued.
    Hung,
    /// The server is killed; when it comes back it knows everything.
    Down,
    /// The same, and it comes back while it still loads.
    Loading,
    ReadOnly,
    OutOfMemory,
    ScriptsForgotten,
    /// The server's clock.
    SetForward,
    SetBack,
    /// Everything is deleted.
    Flushed,
    /// The server is killed, and comes back empty.
    Emptied,
    /// By somebody who does not ask whose it is.
    Deleted,
    Overwritten,
    /// The network.
    Network(Way, Condition),
    /// This machine did not let anybody run.
    Stalled,
}

impl Ailment {
    /// Leases end before their time.
    pub fn forgets(self) -> bool {
        use Ailment::{Deleted, Emptied, Flushed, Overwritten, SetForward};
        matches!(self, Flushed | Emptied | Deleted | Overwritten | SetForward)
    }

    /// While it lasts, the server does not do its work for anybody.
    pub fn disturbs_all(self) -> bool {
        use Ailment::{Down, Emptied, Hung, Loading, OutOfMemory, ReadOnly, Stalled};
        matches!(self, Hung | Down | Loading | ReadOnly | OutOfMemory | Emptied | Stalled)
    }
}

/// Whom it befell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    All,
    Name(usize),
    Attempt(Who),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    pub ailment: Ailment,
    pub on: On,
    pub from: Nanos,
    pub to: Nanos,
}

/// When something was looked at: it was so at some moment in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    pub before: Nanos,
    pub after: Nanos,
}

/// Whose a lock was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    Nobodys,
    Of(Who),
    /// Of no attempt: overwritten by somebody.
    Strange,
}

/// A lock as it was seen from one look to another, and every time in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sight {
    pub name: usize,
    pub whose: Whose,
    pub line: Vec<Who>,
    pub first: Look,
    pub last: Look,
}

/// All of it, of one arena.
pub struct Record {
    pub arena: &'static str,
    pub names: Vec<String>,
    pub began: Nanos,
    pub ended: Nanos,
    pub attempts: Vec<Attempt>,
    /// In order of time.
    pub stamps: Vec<Stamp>,
    pub faults: Vec<Fault>,
    /// Of each name in order of time.
    pub sights: Vec<Sight>,
    /// What was still there when everybody had gone.
    pub left: Vec<String>,
}

/// A record that is being written. What is done under a lock is written to a file, by many processes.
pub struct Journal {
    pub log: PathBuf,
    attempts: Mutex<Vec<Attempt>>,
    faults: Mutex<Vec<Fault>>,
}

impl Journal {
    pub fn at(log: &Path) -> Journal {
        Journal { log: log.to_owned(), attempts: Mutex::default(), faults: Mutex::default() }
    }

    pub fn attempts(&self) -> MutexGuard<'_, Vec<Attempt>> {
        self.attempts.lock().expect("nobody has panicked in it")
    }

    pub fn asks(&self, attempt: Attempt) -> Who {
        let mut attempts = self.attempts();
        attempts.push(attempt);
        attempts.len() - 1
    }

    pub fn ended(&self, who: Who, how: String, starved: Nanos) {
        let attempt = &mut self.attempts()[who];
        attempt.ended = Some((boot_clock(), how));
        attempt.starved = starved;
    }

    pub fn befell(&self, ailment: Ailment, on: On, from: Nanos) {
        let fault = Fault { ailment, on, from, to: boot_clock() };
        self.faults.lock().expect("nobody has panicked in it").push(fault);
    }

    pub fn close(self) -> (Vec<Attempt>, Vec<Stamp>, Vec<Fault>) {
        let mut stamps: Vec<Stamp> = text_of(&self.log)
            .lines()
            .map(|line| Stamp::read(line).unwrap_or_else(|| panic!("not a line of ours: `{line}`")))
            .collect();
        stamps.sort_by_key(|stamp| stamp.at);
        let mut faults = self.faults.into_inner().expect("nobody has panicked in it");
        faults.sort_by_key(|fault| fault.from);
        (self.attempts.into_inner().expect("nobody has panicked in it"), stamps, faults)
    }
}

/// `enter 12 1795268515026344 81245023456789`, `beat 12 - 81245023456789`, `leave ...`: whom, the fence,
/// when.
impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, fence) = match self.word {
            Word::Enter(fence) => ("enter", fence.map_or("-".to_owned(), |fence| fence.to_string())),
            Word::Beat => ("beat", "-".to_owned()),
            Word::Leave => ("leave", "-".to_owned()),
        };
        write!(f, "{word} {} {fence} {}", self.who, self.at)
    }
}

impl Stamp {
    fn read(line: &str) -> Option<Stamp> {
        let words: Vec<&str> = line.split(' ').collect();
        let [word, who, fence, at] = words.as_slice() else { return None };
        let word = match *word {
            "enter" => Word::Enter(fence.parse().ok()),
            "beat" => Word::Beat,
            "leave" => Word::Leave,
            _ => return None,
        };
        Some(Stamp { at: at.parse().ok()?, who: who.parse().ok()?, word })
    }
}
