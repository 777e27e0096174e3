//! Everything that we ever have to say at the end, as one value. How it looks is `render`'s to
//! know, its number `exit`'s.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::cli::config::Setting;
use crate::error::{Error, ErrorKind};
use crate::lock::{Fence, Key, LockName, LockState, Lost, Prefix, Token, Ttl};
use crate::store::{Finding, LockStatus, QueuePlace, Verdict};

pub enum Report {
    Acquired(Acquired),
    Busy(Busy),
    Renewed(Renewed),
    Released(Released),
    NotYours(NotYours),
    Status(StatusRows),
    /// It was watched for as long as somebody wanted to see it.
    Watched,
    Checked(Checked),
    Ran(Ran),
    NotRun(NotRun),
    /// All has been said, by the other half of this process, or there is nobody to say it to.
    Said(Ending),
    /// A wait ended by a signal; nothing was started and nothing is held.
    Interrupted(Signal),
    Failed(Error),
}

/// A lock's name and the key it lives under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub name: LockName,
    pub key: String,
    /// The key was given, and is all the name there is.
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
    pub ttl: Ttl,
    pub form: TokenForm,
}

/// How `acquire` prints what it got.
#[derive(Clone, Copy)]
pub enum TokenForm {
    Plain,
    /// Assignments quoted for a shell's `eval`.
    Export,
}

/// Somebody else has it: not waited for, or not granted in time.
pub struct Busy {
    pub lock: Named,
    pub refused: Refused,
    /// What has to stand on another command line to mean the same lock.
    pub options: String,
    pub conflict_exit_code: Option<u8>,
}

/// Somebody else has the lock, and we do not wait any longer.
pub struct Refused {
    pub state: LockState,
    pub place: QueuePlace,
    pub waited: Duration,
    /// The holder is a run that we are a part of.
    pub nested: bool,
}

pub struct Renewed {
    pub lock: Named,
    pub ttl: Ttl,
}

pub struct Released {
    pub lock: Named,
    pub broken: bool,
}

/// Not, or no longer, held with this token; nothing was touched.
pub struct NotYours {
    pub lock: Named,
    pub wanted: Wanted,
    pub state: LockState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    Renew,
    Release,
    Break,
}

pub struct StatusRows {
    pub rows: Vec<Row>,
    /// Whether names were asked for: only then does the exit status tell.
    pub named: bool,
    /// What has to stand on another command line to mean the same locks.
    pub options: String,
}

pub struct Row {
    pub lock: Named,
    pub status: LockStatus,
}

/// What is set, and what was found of it.
pub struct Checked {
    pub settings: Vec<Setting>,
    pub servers: Vec<CheckedServer>,
}

pub struct CheckedServer {
    /// None where no server is named.
    pub url: Option<String>,
    pub findings: Vec<Finding>,
}

impl Checked {
    fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.servers.iter().flat_map(|server| &server.findings)
    }

    /// What the first obstacle comes to, if there is one.
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

/// A command that came to its end.
pub struct Ran {
    pub lock: Named,
    pub ending: Ending,
    /// We stopped it for `--time-limit`.
    pub time_limit: bool,
    pub lost: Option<Lost>,
    /// The lock could not be given back: it ends by itself.
    pub unreleased: Option<Unreleased>,
}

#[derive(Clone, Copy)]
pub enum Ending {
    Status(u8),
    Killed {
        signal: i32,
        /// The signal was typed at the terminal: our caller should see us die of it too.
        from_terminal: bool,
    },
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Status(status) => write!(f, "it exited with {status}"),
            Ending::Killed { signal, .. } => write!(f, "it died of signal {signal}"),
        }
    }
}

pub struct Unreleased {
    pub error: Error,
    pub ends_in: Duration,
}

/// A command that could not be started.
pub struct NotRun {
    /// Why the lock is still there has been said, if it is.
    pub given_back: bool,
    pub lock: Named,
    pub command: OsString,
    pub missing: bool,
    pub error: io::Error,
}
