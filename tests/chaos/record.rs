//! The events of a run, as the participants recorded them. All times are of CLOCK_BOOTTIME, which also counts the time
//! in suspend.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::support::{Condition, Way, text_of};
use crate::trace::Trace;

/// Nanoseconds since the machine booted.
pub type Nanos = u64;
/// An attempt, by its index in the record.
pub type Who = usize;

pub fn boot_clock() -> Nanos {
    nanos(Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).expect("the kernel has CLOCK_BOOTTIME")))
}

pub fn nanos(duration: Duration) -> Nanos {
    Nanos::try_from(duration.as_nanos()).expect("it fits")
}

/// The way in which a lock is acquired and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// `nxlock run`.
    Run,
    /// `nxlock acquire`, `renew` and `release`, by a script that watches the lease itself.
    Script,
    /// `SET NX PX`, and a script that compares and deletes.
    Outsider,
}

/// How many may hold a lock while a holder does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Exclusive,
    /// `--slots N`.
    Slots(u64),
    /// `--shared`.
    Shared,
}

impl Mode {
    /// Returns how many, the holder included.
    pub fn limit(self) -> u64 {
        match self {
            Mode::Exclusive => 1,
            Mode::Slots(count) => count,
            Mode::Shared => u64::MAX,
        }
    }

    pub fn is_exclusive(self) -> bool {
        self.limit() == 1
    }
}

#[derive(Clone, Debug)]
pub struct Attempt {
    pub name: usize,
    pub client: Client,
    pub mode: Mode,
    /// The further locks, each exclusive or shared.
    pub also: Vec<(usize, Mode)>,
    pub ttl: Nanos,
    /// Waits in the queue.
    pub queued: bool,
    /// Waits ahead of those that do not say so, too.
    pub first: bool,
    /// Reaches the server without a network in between.
    pub near: bool,
    /// How long its command goes on after a signal to stop: 0 if it stops at once.
    pub dawdles: Nanos,
    /// Its lock may last longer than it, as with `--at-least`.
    pub outlasted: bool,
    /// It may be refused the lock: it does not wait for ever, or not whatever others do.
    pub may_be_refused: bool,
    /// It asks a holder to give up that would ask it.
    pub supersedes_holders: bool,
    /// Its command has a time limit.
    pub is_limited: bool,
    pub asked: Nanos,
    /// When and how it ended; `None` if it has not.
    pub ended: Option<(Nanos, String)>,
    /// That of nxlock, or of the script; and of its guard, if that had to end the command.
    pub starved: Starved,
}

/// How an attempt has ended that does not know what the server did.
pub const UNANSWERED: &str = "unanswered";

/// How long a process was runnable while others had the processors.
#[derive(Clone, Debug, Default)]
pub struct Starved(Vec<Reading>);

#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Nanos,
    in_all: Nanos,
}

impl Starved {
    /// Adds a reading: by this moment it was so for so long in all.
    pub fn reads(&mut self, at: Nanos, in_all: Nanos) {
        if in_all > self.in_all() {
            self.0.push(Reading { at, in_all });
        }
    }

    /// Returns how long it was so until the last reading.
    pub fn in_all(&self) -> Nanos {
        self.0.last().map_or(0, |reading| reading.in_all)
    }

    /// Returns how long it may have been so since a moment: since the last reading before.
    pub fn since(&self, moment: Nanos) -> Nanos {
        let before = self.0.iter().rev().find(|reading| reading.at <= moment);
        self.in_all() - before.map_or(0, |reading| reading.in_all)
    }
}

impl Attempt {
    /// Returns its locks, in the order of its command line.
    pub fn locks(&self) -> impl Iterator<Item = (usize, Mode)> {
        [(self.name, self.mode)].into_iter().chain(self.also.iter().copied())
    }

    /// Returns how it has, or wants, the lock of this name; exclusively if it does not.
    pub fn mode_of(&self, name: usize) -> Mode {
        self.locks().find(|(other, _)| *other == name).map_or(Mode::Exclusive, |(_, mode)| mode)
    }
}

/// An action under a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub at: Nanos,
    pub who: Who,
    pub word: Word,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    Enter(Terms),
    Beat,
    Leave,
}

/// The terms of a grant, as its environment tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    pub fence: Option<u64>,
    pub slot: Option<Slot>,
    /// The fences of the further locks.
    pub also: [Option<u64>; ALSO],
}

/// Maximum number of further locks of an attempt.
pub const ALSO: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub number: u64,
    pub of: u64,
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ailment {
    /// nxlock alone is killed.
    Killed,
    /// The process between nxlock and its command is killed.
    GuardKilled,
    /// The process group of nxlock is killed.
    GroupKilled,
    CommandKilled,
    /// Ctrl-C at the terminal.
    TypedInterrupt,
    /// Ctrl-Z at the terminal, and `fg` later.
    TypedStop,
    FrozenAlone,
    FrozenWithCommand,
    /// SIGTSTP from a process: nxlock stops its command, and itself.
    Suspended,
    /// nxlock gets TERM, INT or HUP.
    Cancelled,
    /// Its requests are lost.
    Severed,
    /// The server is stopped, and continued.
    Hung,
    /// The server is killed, and restarts with all its data.
    Down,
    /// The same, and the server listens while it still loads.
    Loading,
    ReadOnly,
    OutOfMemory,
    ScriptsForgotten,
    /// The server's clock is set.
    SetForward,
    SetBack,
    /// Everything is deleted.
    Flushed,
    /// The server is killed, and restarts empty.
    Emptied,
    /// A holder is asked to give up.
    Asked,
    /// A lock is taken from its holder, as by `release --break`.
    Broken,
    /// The password of the server is another, and connections end.
    Rotated,
    /// By a client that does not compare the token.
    Deleted,
    Overwritten,
    /// Sentinels name another master, which may lack what the old one granted and released at the end. The old one goes
    /// on.
    Deposed,
    /// The hash slot of a lock moves to another node of its cluster, key by key.
    Moved,
    /// A condition of the network.
    Network(Way, Condition),
    /// The network closes all connections, and refuses others.
    Refusing,
    /// The network closes the connections subscribed to a wake-up channel, and no other.
    Unheard,
    /// This machine ran no process.
    Stalled,
}

impl Ailment {
    /// Returns whether leases end early.
    pub fn forgets(self) -> bool {
        use Ailment::{Broken, Deleted, Deposed, Emptied, Flushed, Overwritten, SetForward};
        matches!(self, Flushed | Emptied | Deleted | Broken | Deposed | Overwritten | SetForward)
    }

    /// Returns whether the server serves nobody meanwhile.
    pub fn disturbs_all(self) -> bool {
        use Ailment::{Down, Emptied, Hung, Loading, OutOfMemory, ReadOnly, Stalled};
        matches!(self, Hung | Down | Loading | ReadOnly | OutOfMemory | Emptied | Stalled)
    }
}

/// The target of a fault.
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

/// The time of a poll: what it saw was true at some moment in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    pub before: Nanos,
    pub after: Nanos,
}

/// The holder of a lock, or its holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    Nobodys,
    /// It has the lock, or a reservation, for itself.
    Of(Who),
    /// They have shares of it, claimed or reserved, whose leases run.
    Shared(Vec<Who>),
    /// No attempt: another client has overwritten the lock.
    Strange,
}

impl Whose {
    /// Returns whether an attempt has the lock, or a share of it.
    pub fn includes(&self, who: Who) -> bool {
        match self {
            Whose::Of(holder) => *holder == who,
            Whose::Shared(holders) => holders.contains(&who),
            Whose::Nobodys | Whose::Strange => false,
        }
    }
}

/// A state of a lock that every poll saw, from the first to the last, none of them long after the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sight {
    pub name: usize,
    pub whose: Whose,
    pub line: Vec<Who>,
    pub first: Look,
    pub last: Look,
}

/// Something that was still there when everybody had gone.
pub struct Left {
    pub what: String,
    /// The attempt that left it, if that is known.
    pub of: Option<Who>,
}

impl Left {
    pub fn of_nobody(what: String) -> Left {
        Left { what, of: None }
    }
}

/// The complete record of one arena.
pub struct Record {
    pub arena: &'static str,
    pub names: Vec<String>,
    pub began: Nanos,
    pub ended: Nanos,
    pub attempts: Vec<Attempt>,
    /// In order of time.
    pub stamps: Vec<Stamp>,
    pub faults: Vec<Fault>,
    /// In order of name, then of time.
    pub sights: Vec<Sight>,
    /// From when to when the observer saw no lock, where that is as long as a reservation may last.
    pub unwatched: Vec<(Nanos, Nanos)>,
    /// What each server was seen to do.
    pub traces: Vec<Trace>,
    /// A majority of the servers grants a lock, and none of them alone.
    pub voted: bool,
    /// What was still there when everybody had gone.
    pub left: Vec<Left>,
    /// Lines of the log whose process was killed while it wrote them.
    pub torn: usize,
}

/// A record that is being written. Work under a lock is written to a file, by many processes.
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

    pub fn ended(&self, who: Who, at: Nanos, how: String, starved: Starved) {
        let attempt = &mut self.attempts()[who];
        attempt.ended = Some((at, how));
        attempt.starved = starved;
    }

    pub fn befell(&self, ailment: Ailment, on: On, from: Nanos) {
        let fault = Fault { ailment, on, from, to: boot_clock() };
        self.faults.lock().expect("nobody has panicked in it").push(fault);
    }

    /// Returns the complete record, and the number of torn lines.
    pub fn close(self) -> (Vec<Attempt>, Vec<Stamp>, Vec<Fault>, usize) {
        let (mut stamps, torn) =
            read(&text_of(&self.log)).unwrap_or_else(|line| panic!("not a line of ours: `{line}`"));
        stamps.sort_by_key(|stamp| stamp.at);
        let mut faults = self.faults.into_inner().expect("nobody has panicked in it");
        faults.sort_by_key(|fault| fault.from);
        (self.attempts.into_inner().expect("nobody has panicked in it"), stamps, faults, torn)
    }
}

/// Returns the stamps of a log, and the number of torn lines.
///
/// A line is one write(2), but a write that crosses from one page of the file to the next ends between them if its
/// process is killed. The line then has no newline, and the next line, of another process, follows immediately.
///
/// # Errors
/// The line that is neither whole nor torn.
pub fn read(log: &str) -> Result<(Vec<Stamp>, usize), &str> {
    let mut stamps = Vec::new();
    let mut torn = 0;
    for line in log.split_inclusive('\n') {
        let begin = match line.strip_suffix('\n') {
            Some(whole) => {
                let end = |at: &usize| whole.get(*at..).and_then(Stamp::read);
                let (at, stamp) = (0..whole.len()).find_map(|at| Some((at, end(&at)?))).ok_or(line)?;
                stamps.push(stamp);
                &whole[..at]
            }
            // Its last number may be incomplete.
            None => line,
        };
        torn += pieces(begin).ok_or(line)?;
    }
    Ok((stamps, torn))
}

/// Returns of how many torn lines a text consists.
fn pieces(text: &str) -> Option<usize> {
    if text.is_empty() {
        return Some(0);
    }
    let splits = (1..=text.len()).rev().filter_map(|at| text.split_at_checked(at));
    splits.filter(|(piece, _)| may_be_torn(piece)).find_map(|(_, rest)| Some(pieces(rest)? + 1))
}

/// Returns whether a line may begin so.
fn may_be_torn(piece: &str) -> bool {
    let fields: Vec<&str> = piece.split(' ').collect();
    let digits = |field: &&str| field.bytes().all(|byte| byte.is_ascii_digit());
    let fits = |at: usize, is_so: &dyn Fn(&&str) -> bool| fields.get(at).is_none_or(is_so);
    let is_word = |word: &&str| {
        let words = ["enter", "beat", "leave"];
        if fields.len() > 1 { words.contains(word) } else { words.iter().any(|whole| whole.starts_with(*word)) }
    };
    fields.len() <= 4
        && fits(0, &is_word)
        && fits(1, &digits)
        && fits(2, &|terms| may_begin_terms(terms))
        && fits(3, &digits)
}

/// Returns whether the third field of a line may begin so.
fn may_begin_terms(text: &str) -> bool {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let mut fences = text.split('+');
    let own = fences.next().unwrap_or("");
    let (fence, slot) = own.split_once('#').unwrap_or((own, ""));
    let (number, of) = slot.split_once('/').unwrap_or((slot, ""));
    (fence == "-" || digits(fence)) && digits(number) && digits(of) && fences.all(digits)
}

/// `-` without a fence; `1795268515026344`; with slot 2 of 4, `1795268515026344#2/4`; with further locks, their fences behind
/// it, each after a `+`.
impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fence {
            Some(fence) => write!(f, "{fence}")?,
            None => write!(f, "-")?,
        }
        if let Some(Slot { number, of }) = self.slot {
            write!(f, "#{number}/{of}")?;
        }
        self.also.iter().flatten().try_for_each(|fence| write!(f, "+{fence}"))
    }
}

impl Terms {
    /// Takes them from the variables that nxlock gives to a command, or prints for a script.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Terms {
        let number = |name: &str| variable(name)?.parse().ok();
        let slot = number("NXLOCK_SLOT").zip(number("NXLOCK_SLOTS")).map(|(number, of)| Slot { number, of });
        Terms { fence: number("NXLOCK_FENCE"), slot, also: ["NXLOCK_FENCE_2", "NXLOCK_FENCE_3"].map(number) }
    }

    fn read(text: &str) -> Option<Terms> {
        let mut fences = text.split('+');
        let own = fences.next()?;
        let mut also = [None; ALSO];
        for (at, fence) in fences.enumerate() {
            *also.get_mut(at)? = Some(fence.parse().ok()?);
        }
        let (fence, slot) = own.split_once('#').map_or((own, None), |(fence, slot)| (fence, Some(slot)));
        let fence = if fence == "-" { None } else { Some(fence.parse().ok()?) };
        let slot = match slot {
            None => None,
            Some(slot) => {
                let (number, of) = slot.split_once('/')?;
                Some(Slot { number: number.parse().ok()?, of: of.parse().ok()? })
            }
        };
        Some(Terms { fence, slot, also })
    }
}

/// `enter 12 1795268515026344 81245023456789`, `beat 12 - 81245023456789`, `leave ...`: attempt, terms, time.
impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, terms) = match self.word {
            Word::Enter(terms) => ("enter", terms),
            Word::Beat => ("beat", Terms::default()),
            Word::Leave => ("leave", Terms::default()),
        };
        write!(f, "{word} {} {terms} {}", self.who, self.at)
    }
}

impl Stamp {
    fn read(line: &str) -> Option<Stamp> {
        let words: Vec<&str> = line.split(' ').collect();
        let [word, who, terms, at] = words.as_slice() else { return None };
        let word = match (*word, *terms) {
            ("enter", terms) => Word::Enter(Terms::read(terms)?),
            ("beat", "-") => Word::Beat,
            ("leave", "-") => Word::Leave,
            _ => return None,
        };
        Some(Stamp { at: at.parse().ok()?, who: who.parse().ok()?, word })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "enter 12 1795268515026344#12/40+1795268515026345+1795268515026346 81245023456789\nbeat 12 - 81245023456800\nleave 12 - 81245023456900\n";
    const ENTRY: Stamp =
        Stamp { at: 5, who: 336, word: Word::Enter(Terms { fence: None, slot: None, also: [None; ALSO] }) };

    #[test]
    fn whole_lines_are_read_as_they_were_written() {
        let (stamps, torn) = read(WHOLE).unwrap();
        assert_eq!(stamps.iter().map(|stamp| format!("{stamp}\n")).collect::<String>(), WHOLE);
        assert_eq!(torn, 0);
        assert_eq!(read("").unwrap(), (Vec::new(), 0));
    }

    #[test]
    fn wherever_a_line_is_torn_the_next_one_is_read() {
        for line in WHOLE.lines() {
            for at in 1..=line.len() {
                let log = format!("{}{ENTRY}\n{WHOLE}", &line[..at]);
                let (stamps, torn) = read(&log).unwrap_or_else(|line| panic!("{line}"));
                assert_eq!((stamps[0], stamps.len(), torn), (ENTRY, 4, 1), "{log}");
            }
        }
        assert_eq!(read("beat 330 - 9enter 336 - 5\n").unwrap(), (vec![ENTRY], 1));
    }

    #[test]
    fn two_torn_lines_in_a_row_are_two() {
        for (first, second) in [("beat 33", "enter 7 17952"), ("enter 3 5#1", "be"), ("l", "l"), ("e", "enter 4 ")] {
            assert_eq!(read(&format!("{first}{second}{ENTRY}\n")).unwrap(), (vec![ENTRY], 2), "{first} {second}");
        }
    }

    #[test]
    fn a_last_line_without_an_end_is_torn_though_it_looks_whole() {
        for (last, torn) in [("beat 330 - 9", 1), ("b", 1), ("enter 1 2 3", 1), ("beat 1 - 2enter 1 2 3", 2)] {
            assert_eq!(read(&format!("{ENTRY}\n{last}")).unwrap(), (vec![ENTRY], torn), "{last}");
        }
    }

    #[test]
    fn what_nobody_of_ours_has_begun_is_no_torn_line() {
        for line in [
            "bead 1 - 2",
            "beat x - 2",
            "enter 1 5#x/2 2",
            "enter 1 5/2 2",
            "enter 1 5+x 2",
            "beat 1 - 2 3",
            "",
            "xenter 336 - 5",
            "beat - - 5",
            "bea 3 enter 336 - 5",
        ] {
            assert_eq!(read(&format!("{line}\n")), Err(format!("{line}\n").as_str()));
        }
    }
}
