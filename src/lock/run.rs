//! Runs of commands that are recorded beside a lock. No I/O. Of the clocks, only a recording asks: how long it has waited,
//! and had the lock.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use super::machine::{Claimant, Ending};
use super::{Fence, HolderId, Token, Told};
use crate::clock::Moment;

/// How many of the runs of a name that have ended are kept, 1 to 1000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunCount(u16);

/// How a claim's run is recorded.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Tells whose run it is: the claim's token, or the record beside a bare number.
    pub who: String,
    pub kept: RunCount,
    /// Nothing is granted if the last run that succeeded began less than this ago.
    pub unless_done: Option<Duration>,
    /// When nxlock began to ask for the lock.
    pub asked: Moment,
    /// When nxlock had the lock.
    pub granted: Option<Moment>,
    /// The same as the store noted it, in µs of its clock.
    pub noted: Option<u64>,
    pub fence: Option<Fence>,
    /// How the run ended, to be recorded with the release; none if nothing ran.
    pub end: Option<RunEnd>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunEnd {
    pub outcome: RunOutcome,
    /// The command's exit status, if it exited.
    pub status: Option<u8>,
    /// The signal that the command died of.
    pub signal: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RunOutcome {
    /// The command exited with 0.
    Done,
    Failed,
    /// The command died of a signal.
    Signal,
    /// The lock was lost while the command ran.
    Lost,
    /// nxlock stopped the command for `--time-limit`.
    TimeLimit,
    /// Nobody has recorded an end, and the run no longer holds the lock.
    Vanished,
}

/// A run that was recorded, for people to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub by: Told,
    pub fence: Option<Fence>,
    pub waited: Duration,
    /// By the store's clock.
    pub granted: SystemTime,
    /// The same; none if nobody has recorded it.
    pub ended: Option<SystemTime>,
    pub end: RunEnd,
}

/// A recorded run that has not ended, for people to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunUnderWay {
    pub by: Told,
    pub fence: Option<Fence>,
    pub waited: Duration,
    /// By the store's clock.
    pub granted: SystemTime,
}

impl From<Run> for RunUnderWay {
    fn from(Run { by, fence, waited, granted, .. }: Run) -> RunUnderWay {
        RunUnderWay { by, fence, waited, granted }
    }
}

/// What is recorded of a lock's runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Those that have ended, or vanished; the last that was granted the lock first. They may be the last ones only.
    pub over: Vec<Run>,
    /// The one that was granted the lock last first.
    pub under_way: Vec<RunUnderWay>,
    /// The last to begin of those that succeeded, however many have ended since.
    pub last_success: Option<Run>,
    /// The last to end of those that are listed and did not succeed.
    pub last_failure: Option<Run>,
    /// When this was so, by the store's clock.
    pub read: SystemTime,
}

impl Recorded {
    /// Returns what is recorded; `known` are the last success and the last failure that the store knows, which `over`
    /// may lack.
    pub fn of(
        mut over: Vec<Run>,
        mut under_way: Vec<RunUnderWay>,
        [success, failure]: [Option<Run>; 2],
        read: SystemTime,
    ) -> Recorded {
        over.sort_by_key(|run| Reverse(run.granted));
        under_way.sort_by_key(|run| Reverse(run.granted));
        let last_success = success.or_else(|| over.iter().find(|run| run.is_success()).cloned());
        let failures = over.iter().filter(|run| !run.is_success()).chain(&failure);
        let last_failure = failures.max_by_key(|run| run.ended.unwrap_or(run.granted)).cloned();
        Recorded { over, under_way, last_success, last_failure, read }
    }

    /// Returns that there is no record, as read at this time.
    pub fn none(read: SystemTime) -> Recorded {
        Recorded { over: Vec::new(), under_way: Vec::new(), last_success: None, last_failure: None, read }
    }

    /// Returns whether there is no record at all.
    pub fn is_empty(&self) -> bool {
        self.over.is_empty() && self.under_way.is_empty() && self.last_success.is_none()
    }

    /// Returns how long ago a time was: nothing if the clock has been set back since.
    pub fn age(&self, time: SystemTime) -> Duration {
        self.read.duration_since(time).unwrap_or_default()
    }

    /// Returns when a run ended or, if nobody knows that, was granted the lock; how long ago.
    pub fn age_of(&self, run: &Run) -> Duration {
        self.age(run.ended.unwrap_or(run.granted))
    }
}

/// How long records stay after the last: 30 days, unless `--unless-done` looks further back.
const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 3600);

impl RunCount {
    /// The number, if none is given.
    pub const USUAL: RunCount = RunCount(20);
    const MAX: u16 = 1000;

    pub fn get(self) -> u16 {
        self.0
    }
}

impl FromStr for RunCount {
    type Err = String;

    fn from_str(text: &str) -> Result<RunCount, String> {
        match text.parse() {
            Ok(count @ 1..=RunCount::MAX) => Ok(RunCount(count)),
            _ => Err(format!("write a number from 1 to {}", RunCount::MAX)),
        }
    }
}

impl fmt::Display for RunCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Recording {
    /// Returns a recording of a run that nxlock begins to ask for now.
    pub fn new(who: &str, kept: RunCount, unless_done: Option<Duration>) -> Recording {
        let who = who.to_owned();
        Recording { who, kept, unless_done, asked: Moment::now(), granted: None, noted: None, fence: None, end: None }
    }

    /// Returns how long a record has to stay.
    pub fn kept_for(&self) -> Duration {
        KEPT_FOR.max(self.unless_done.unwrap_or_default())
    }

    /// Returns how long nxlock has waited for the lock, or did.
    pub fn waited(&self) -> Duration {
        self.asked.elapsed().saturating_sub(self.held())
    }

    /// Returns how long nxlock has had the lock.
    pub fn held(&self) -> Duration {
        self.granted.map_or(Duration::ZERO, Moment::elapsed)
    }
}

/// The form in which the guard of a killed nxlock hands a recording to the nxlock that gives the lock back.
impl fmt::Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = |moment: Moment| moment.since_boot().unwrap_or_default().as_nanos();
        let (asked, granted) = (nanos(self.asked), nanos(self.granted.unwrap_or(self.asked)));
        let (fence, unless_done) =
            (self.fence.map_or(0, |fence| fence.0), self.unless_done.unwrap_or_default().as_millis());
        let noted = self.noted.unwrap_or_default();
        write!(f, "{} {} {unless_done} {asked} {granted} {noted} {fence}", self.who, self.kept.0)?;
        self.end.map_or(Ok(()), |end| write!(f, " {end}"))
    }
}

impl FromStr for Recording {
    type Err = ();

    fn from_str(text: &str) -> Result<Recording, ()> {
        let mut words = text.split(' ');
        let who = words.next().unwrap_or_default().to_owned();
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).ok_or(());
        let kept = u16::try_from(number()?).map(RunCount).map_err(|_| ())?;
        let unless_done = Some(Duration::from_millis(number()?)).filter(|done| !done.is_zero());
        let asked = Moment::after_boot(Duration::from_nanos(number()?));
        let granted = Some(Moment::after_boot(Duration::from_nanos(number()?)));
        let noted = Some(number()?).filter(|noted| *noted > 0);
        let fence = Some(number()?).filter(|fence| *fence > 0).map(Fence);
        let end = words.next().map(str::parse).transpose()?;
        Ok(Recording { who, kept, unless_done, asked, granted, noted, fence, end })
    }
}

impl Claimant for Token {
    type Id = Option<HolderId>;
    type End = RunEnd;

    fn id(&self) -> Option<HolderId> {
        Token::id(self)
    }

    fn limit(&self) -> u16 {
        self.sharing().number().unwrap_or(1)
    }

    fn supersedes(&self) -> bool {
        Token::supersedes(self)
    }

    fn goes_first(&self) -> bool {
        Token::goes_first(self)
    }

    fn setnx_end(&self) -> Option<u64> {
        None
    }
}

impl Ending for RunEnd {
    const VANISHED: RunEnd = RunEnd::VANISHED;

    fn is_success(&self) -> bool {
        self.outcome == RunOutcome::Done
    }

    fn without_the_lock(self) -> RunEnd {
        RunEnd::without_the_lock(self)
    }
}

impl RunEnd {
    pub const VANISHED: RunEnd = RunEnd { outcome: RunOutcome::Vanished, status: None, signal: None };

    /// Returns the end of a command that exited.
    pub fn exited(status: u8) -> RunEnd {
        let outcome = if status == 0 { RunOutcome::Done } else { RunOutcome::Failed };
        RunEnd { outcome, status: Some(status), signal: None }
    }

    /// Returns the same end of a run that had lost its lock by then.
    pub fn without_the_lock(self) -> RunEnd {
        RunEnd { outcome: RunOutcome::Lost, ..self }
    }

    /// Returns the same end of a run that was stopped for its time limit.
    pub fn at_the_time_limit(self) -> RunEnd {
        RunEnd { outcome: RunOutcome::TimeLimit, ..self }
    }

    /// Returns the end of a command that died of a signal.
    pub fn killed(signal: i32) -> RunEnd {
        RunEnd { outcome: RunOutcome::Signal, status: None, signal: Some(signal) }
    }
}

/// `OUTCOME|STATUS|SIGNAL`, as stores keep it; a number is empty if there is none.
impl fmt::Display for RunEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_empty = |number: Option<i32>| number.map(|number| number.to_string()).unwrap_or_default();
        let (status, signal) = (or_empty(self.status.map(i32::from)), or_empty(self.signal));
        write!(f, "{}|{status}|{signal}", self.outcome.name())
    }
}

impl FromStr for RunEnd {
    type Err = ();

    fn from_str(text: &str) -> Result<RunEnd, ()> {
        let fields: Vec<&str> = text.split('|').collect();
        let [outcome, status, signal] = fields[..] else { return Err(()) };
        let outcome = RunOutcome::ALL.into_iter().find(|known| known.name() == outcome).ok_or(())?;
        Ok(RunEnd { outcome, status: optional(status)?, signal: optional(signal)? })
    }
}

/// Parses a number that may be absent.
fn optional<T: FromStr>(text: &str) -> Result<Option<T>, ()> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(|_| ()) }
}

impl RunOutcome {
    pub const ALL: [RunOutcome; 6] = [
        RunOutcome::Done,
        RunOutcome::Failed,
        RunOutcome::Signal,
        RunOutcome::Lost,
        RunOutcome::TimeLimit,
        RunOutcome::Vanished,
    ];

    /// Returns its name in JSON and in stores.
    pub fn name(self) -> &'static str {
        match self {
            RunOutcome::Done => "done",
            RunOutcome::Failed => "failed",
            RunOutcome::Signal => "signal",
            RunOutcome::Lost => "lost",
            RunOutcome::TimeLimit => "time_limit",
            RunOutcome::Vanished => "vanished",
        }
    }
}

impl Run {
    /// Parses `GRANTED_US|WAITED_MS|FENCE|ENDED_US|OUTCOME|STATUS|SIGNAL|TOKEN`, as stores keep it; none if it is not in
    /// this format. The fence and the end are empty if they are not known.
    pub fn read(line: &[u8]) -> Option<Run> {
        let mut fields = std::str::from_utf8(line).ok()?.splitn(5, '|');
        let mut number = || optional::<u64>(fields.next()?).ok();
        let (granted, waited, fence, ended) = (number()??, number()??, number()?, number()?);
        let (end, token) = fields.next()?.rsplit_once('|')?;
        let instant = |micros| SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(micros));
        Some(Run {
            by: Token::read(token.as_bytes())?,
            fence: fence.filter(|fence| *fence > 0).map(Fence),
            waited: Duration::from_millis(waited),
            granted: instant(granted)?,
            ended: ended.and_then(instant),
            end: end.parse().ok()?,
        })
    }

    /// Returns when it began to wait for the lock, by the store's clock.
    pub fn asked(&self) -> SystemTime {
        self.granted.checked_sub(self.waited).unwrap_or(self.granted)
    }

    pub fn is_success(&self) -> bool {
        self.end.outcome == RunOutcome::Done
    }

    /// Returns how long it had the lock, if its end was recorded.
    pub fn held(&self) -> Option<Duration> {
        self.ended.map(|ended| ended.duration_since(self.granted).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Owner;

    fn token() -> Token {
        let owner =
            Owner { user: "a|b".into(), host: "web\n3".into(), pid: 7, known_as: Some(Box::new("c|d e".into())) };
        Token::mint(&owner, Some("why | not"), SystemTime::UNIX_EPOCH).unwrap()
    }

    #[test]
    fn a_recorded_run_is_read_back() {
        let token = token();
        for (end, fence) in [
            (RunEnd::exited(0), Some(Fence(9))),
            (RunEnd::exited(3), None),
            (RunEnd::killed(15), Some(Fence(u64::MAX))),
            (RunEnd { outcome: RunOutcome::TimeLimit, ..RunEnd::killed(9) }, None),
            (RunEnd { outcome: RunOutcome::Lost, ..RunEnd::exited(0) }, None),
            (RunEnd::VANISHED, None),
        ] {
            assert_eq!(end.to_string().parse(), Ok(end));
            let ended = if end == RunEnd::VANISHED { "" } else { "1700000002000000" };
            let fence_text = fence.map(|fence| fence.0.to_string()).unwrap_or_default();
            let line = format!("1700000000500000|400|{fence_text}|{ended}|{end}|{}", token.as_str());
            let run = Run::read(line.as_bytes()).unwrap_or_else(|| panic!("{line}"));
            assert_eq!((run.fence, run.end, run.waited), (fence, end, Duration::from_millis(400)));
            assert_eq!(run.held(), (end != RunEnd::VANISHED).then_some(Duration::from_millis(1500)));
            assert_eq!(run.asked() + run.waited, run.granted);
            assert_eq!(run.by, token.told().unwrap());
        }
        for not_a_run in ["", "1|2|3|4|done|0||t", "a|2|3|4|done|0||", "|2|3|4|done|0||", "1|2|3"] {
            assert_eq!(Run::read(format!("{not_a_run}{}", token.as_str()).as_bytes()), None, "{not_a_run}");
        }
    }

    #[test]
    fn a_recording_is_handed_over_whole() {
        let begun = Recording::new(token().as_str(), "7".parse().unwrap(), Some(Duration::from_secs(72_000)));
        let granted = Some(Moment::now());
        let granted = Recording { granted, noted: Some(u64::MAX), fence: Some(Fence(u64::MAX)), ..begun };
        for end in [None, Some(RunEnd::exited(0)), Some(RunEnd::killed(9))] {
            let recording = Recording { end, ..granted.clone() };
            let read: Recording = recording.to_string().parse().unwrap();
            assert_eq!(format!("{read:?}"), format!("{recording:?}"));
        }
        assert!("nx1:a 7 1 2".parse::<Recording>().is_err());
        for count in ["0", "1001", "-1", "x", ""] {
            assert!(count.parse::<RunCount>().is_err(), "{count}");
        }
    }
}
