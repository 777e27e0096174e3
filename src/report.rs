//! The outcome of a command, as one value. `output` knows what it looks like, `exit` its status.

pub mod alarm;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;

use crate::error::{Error, ErrorKind};
use crate::lock::{
    Fence, Holder, Key, LockName, LockState, Lost, Prefix, Recorded, Run, RunEnd, Sharing, Slot, Token, Told, Ttl,
    words,
};
use crate::store::{Finding, LockStatus, QueuePlace, Verdict};
use crate::text;
use alarm::Alarm;

pub enum Report {
    Acquired(Acquired),
    Busy(Busy),
    Renewed(Renewed),
    Released(Released),
    Asked(Asked),
    NotYours(NotYours),
    Status(StatusRows),
    Histories(Vec<History>),
    /// The locks asked about, for a monitoring system that judges them itself.
    Metrics(Vec<Row>, Prefix),
    Alarm(Alarm),
    /// The user ended `status --watch`.
    Watched,
    Checked(Checked),
    Ran(Ran),
    NotRun(NotRun),
    /// The other half of this process has reported already, or there is nobody to report to.
    Said(Ending),
    /// A signal ended the wait; nothing was started and nothing is held.
    Interrupted(Signal),
    Failed(Error),
}

/// A lock's name and the key it lives under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub name: LockName,
    pub key: String,
    /// The user gave the key, which serves as the name.
    pub by_key: bool,
}

impl Named {
    pub fn new(name: &LockName, prefix: &Prefix) -> Named {
        Named { name: name.clone(), key: prefix.key(name), by_key: false }
    }

    pub fn by_key(key: &Key) -> Named {
        Named { by_key: true, ..Named::new(&key.name(), &Prefix::none()) }
    }
}

pub struct Acquired {
    pub lock: Named,
    pub token: Token,
    /// The process that keeps the lock, if one does.
    pub keeper: Option<i32>,
    pub fence: Option<Fence>,
    pub slot: Option<Slot>,
    pub ttl: Ttl,
    pub form: TokenForm,
    /// The tokens that the caller holds with this one, as its environment names them.
    pub held: String,
    /// The further locks.
    pub also: Vec<Also>,
    /// The numbered variables: their values, or none for one that is to be unset.
    pub numbered: Vec<(String, Option<String>)>,
}

/// A lock that was granted together with another.
pub struct Also {
    pub lock: Named,
    pub token: Token,
    pub fence: Option<Fence>,
}

/// How `acquire` prints its token.
#[derive(Clone, Copy)]
pub enum TokenForm {
    Plain,
    /// Assignments quoted for a shell's `eval`.
    Export,
}

/// Options with which another command means the same locks. Without a password.
#[derive(Default)]
pub struct CommandOptions {
    pub nxlock: String,
    /// redis-cli(1)
    pub redis_cli: String,
}

/// The lock is not granted: nxlock did not wait, or timed out.
pub struct Busy {
    pub lock: Named,
    pub refused: Refused,
    pub options: CommandOptions,
    pub conflict_exit_code: Option<u8>,
}

/// The lock is not granted, and nxlock waits no longer.
pub struct Refused {
    pub state: LockState,
    pub place: QueuePlace,
    pub waited: Duration,
    /// How many may hold the lock beside the one that was refused.
    pub sharing: Sharing,
    pub why: Refusal,
}

/// Why nxlock waits no longer.
pub enum Refusal {
    /// Another holder has the lock, after as long as nxlock was to wait.
    Held,
    /// Others have votes, but too few servers answer to tell whether anybody has the lock.
    Undecided(Error),
    /// The holder is a `run` that encloses this process.
    Nested,
    /// This newer waiter has dismissed this one.
    Superseded(Box<Told>),
    /// That run has done what was to be done, recently enough.
    Done(Box<Run>),
}

impl Refused {
    pub fn superseded_by(&self) -> Option<&Told> {
        if let Refusal::Superseded(by) = &self.why { Some(by) } else { None }
    }

    /// Returns why it is not known whether anybody has the lock, if it is not.
    pub fn undecided(&self) -> Option<&Error> {
        if let Refusal::Undecided(error) = &self.why { Some(error) } else { None }
    }

    pub fn done(&self) -> Option<&Run> {
        if let Refusal::Done(run) = &self.why { Some(run) } else { None }
    }
}

pub struct Renewed {
    pub lock: Named,
    pub ttl: Ttl,
}

pub struct Released {
    pub lock: Named,
    pub broken: bool,
}

/// The lock is not, or no longer, held with this token; nothing was changed.
pub struct NotYours {
    pub lock: Named,
    pub wanted: Wanted,
    pub state: LockState,
    /// When the recorded run ended that had this token, if there is one.
    pub ended: Option<SystemTime>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    Renew,
    Release,
    Break,
    Ask,
    /// To hold it while another lock is waited for.
    Hold,
}

/// A holder that was to be asked to give up.
pub struct Asked {
    pub lock: Named,
    pub holder: Holder,
    pub answer: Answer,
    pub waited: Duration,
}

/// The outcome of a request to give up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is asked; nxlock did not wait.
    Asked,
    /// It does not hold the lock any more.
    NoLongerHolds,
    /// It still holds the lock, after as long as nxlock was to wait.
    StillHeld,
    /// It cannot be asked, and was not.
    Refuses,
}

pub struct StatusRows {
    pub rows: Vec<Row>,
    /// The user named locks: only then does the exit status depend on them.
    pub named: bool,
    pub options: CommandOptions,
    /// Warnings about all rows.
    pub doubts: Vec<String>,
}

pub struct Row {
    pub lock: Named,
    pub status: LockStatus,
}

/// The recorded runs of a lock.
pub struct History {
    pub lock: Named,
    pub recorded: Recorded,
}

impl History {
    /// Returns what a reader who expects runs should know.
    pub fn warning(&self) -> Option<&'static str> {
        match (self.recorded.is_empty(), self.recorded.over.is_empty()) {
            (true, _) => Some("no run is recorded: the name is misspelt, or no run was started with --record"),
            (false, true) => Some("no run that is recorded has ended"),
            (false, false) => None,
        }
    }
}

/// A setting that differs from its built-in default, or that `check` always shows.
pub struct Setting {
    pub name: String,
    /// None if it is unset or secret.
    pub value: Option<String>,
    pub origin: Origin,
}

#[derive(Clone)]
pub enum Origin {
    Flag,
    /// The variable's name.
    Environment(String),
    File(Location),
    Default,
}

#[derive(Clone)]
pub struct Location {
    pub path: PathBuf,
    /// Counted from 1.
    pub line: usize,
}

impl Location {
    /// Returns an error at this location, about this key.
    pub fn error(&self, key: &str, cause: String) -> Error {
        let key = if key.is_empty() { String::new() } else { format!(": {}", text::clean(key)) };
        let action = format!("{}:{}{key}", text::path(&self.path), self.line);
        Error { kind: ErrorKind::Misconfigured, action, cause, hint: String::new() }
    }
}

/// The settings, and the findings about the servers.
pub struct Checked {
    pub settings: Vec<Setting>,
    pub servers: Vec<CheckedServer>,
}

pub struct CheckedServer {
    /// None if no server is configured.
    pub url: Option<String>,
    pub findings: Vec<Finding>,
}

impl Checked {
    fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.servers.iter().flat_map(|server| &server.findings)
    }

    /// Returns the kind of the first obstacle, if there is one.
    pub fn obstacle(&self) -> Option<ErrorKind> {
        self.findings().find_map(|finding| match finding.verdict {
            Verdict::Obstacle(kind, _) => Some(kind),
            Verdict::Fine | Verdict::Warning(_) => None,
        })
    }

    pub fn warnings(&self) -> usize {
        self.findings().filter(|finding| matches!(finding.verdict, Verdict::Warning(_))).count()
    }
}

/// A command that ended.
pub struct Ran {
    pub lock: Named,
    pub ending: Ending,
    /// nxlock stopped it for `--time-limit`.
    pub time_limit: bool,
    pub lost: Option<Lost>,
    /// The process that asked for the lock.
    pub asked_by: Option<Box<Told>>,
    /// The release failed: the lock stays until it expires.
    pub unreleased: Option<Unreleased>,
}

#[derive(Clone, Copy)]
pub enum Ending {
    Status(u8),
    Killed {
        signal: i32,
        /// The user typed the signal at the terminal: nxlock's caller should see it die of that signal too.
        from_terminal: bool,
    },
}

impl Ending {
    /// Returns it as it is recorded.
    pub fn end(self) -> RunEnd {
        match self {
            Ending::Status(status) => RunEnd::exited(status),
            Ending::Killed { signal, .. } => RunEnd::killed(signal),
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Status(status) => write!(f, "it exited with {status}"),
            Ending::Killed { signal, .. } => write!(f, "it died of {}", words::signal(*signal)),
        }
    }
}

pub struct Unreleased {
    pub error: Error,
    pub ends_in: Duration,
    /// The end of the run was to be recorded.
    pub is_unrecorded: bool,
}

/// A command that could not be started.
pub struct NotRun {
    /// If false, the reason was logged.
    pub given_back: bool,
    pub lock: Named,
    pub command: OsString,
    /// The word after it is `--`: it may be meant for a second name.
    pub before_dashes: bool,
    pub missing: bool,
    pub error: io::Error,
}
