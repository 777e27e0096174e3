//! The contents of a lock's files: the record with the holder, the waiters, and the shares. No I/O.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use super::fault::Flaw;
use super::format::{self, Entry, or_dash};
use super::lines::Line;
use super::pid_view::Process;
use crate::lock::{Asker, RunEnd, Sharing, Token};

/// Bytes of a record. A page is a multiple, so it does not cross a page boundary.
pub const RECORD: usize = 2048;

/// Version 1 has claims without `life`.
const VERSION: u32 = 2;
/// The version of a record while its lock is shared: an nxlock that cannot share reads no other state from it.
const SHARED: u32 = 3;
/// The version of a share.
const SHARE: u32 = 1;
/// The version of a recorded run.
const RUN: u32 = 1;

/// Characters that could be taken for the end of a field.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'=');

/// The state of a lock, without its waiters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Prefix and name: the file name may be a shortened one.
    pub key: String,
    pub fence: u64,
    /// The boot in which the claim was made, if known: no claim outlives it.
    pub boot: Option<String>,
    pub state: State,
}

/// The holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Free,
    /// One claim has it for itself, or it is reserved for one.
    Held(Grant),
    /// The shares of this generation have it: those that joined while there was another one. A generation has the fence
    /// of its first share for a name; shares of any other count for nothing.
    Shared(u64),
}

/// A claim. Times are in microseconds since boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub token: Token,
    pub granted: u64,
    pub until: u64,
    /// Wall-clock time of the grant, for people: milliseconds since 1970.
    pub since: u64,
    /// Ticket of the waiter that the lock is reserved for, until that waiter claims it.
    pub reserved: Option<u64>,
    pub life: Life,
    /// When a claim may end that the kernel ends; its holder may release it before.
    pub not_before: Option<u64>,
}

/// What ends a claim before its lease expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Nothing: no process keeps it.
    Lease,
    /// The end of the last process that has the claim open: until then, the byte of its fence in the record file is
    /// locked.
    Holder,
    /// The end of those processes and of the watched process.
    HolderAnd(Process),
}

/// Text forms of [`Life`].
const LEASE: &str = "lease";
const HOLDER: &str = "holder";

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Life::Lease => f.write_str(LEASE),
            Life::Holder => f.write_str(HOLDER),
            Life::HolderAnd(process) => write!(f, "{HOLDER}+{process}"),
        }
    }
}

impl FromStr for Life {
    type Err = ();

    fn from_str(text: &str) -> Result<Life, ()> {
        match (text, text.strip_prefix(HOLDER)) {
            (LEASE, _) => Ok(Life::Lease),
            (_, Some("")) => Ok(Life::Holder),
            (_, Some(rest)) => rest.strip_prefix('+').ok_or(())?.parse().map(Life::HolderAnd),
            (_, None) => Err(()),
        }
    }
}

/// A waiter in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Orders the queue: the time of arrival, in microseconds since boot, or a little more.
    pub ticket: u64,
    pub token: Token,
}

/// A waiter that supersedes, until it has learned its fate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superseder {
    pub ticket: u64,
    pub token: Token,
    /// The token that has dismissed it.
    pub by: Option<Token>,
}

/// A run that is recorded. Times are in microseconds since 1970, by the wall clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRun {
    pub token: Token,
    pub granted: u64,
    pub waited: Duration,
    pub fence: u64,
    pub ended: Option<u64>,
    /// None while it is under way.
    pub end: Option<RunEnd>,
    pub kept_until: u64,
    /// False if it is kept only because it is the last that succeeded.
    pub is_listed: bool,
}

/// A claim that lets others hold the lock too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    pub generation: u64,
    /// While a process has the claim open, the byte of this number in the shares file is locked.
    pub number: u64,
    pub fence: u64,
    pub slot: Option<u16>,
    pub grant: Grant,
}

impl Record {
    pub fn new(key: &str, boot: Option<&str>) -> Record {
        Record { key: key.to_owned(), fence: 0, boot: boot.map(str::to_owned), state: State::Free }
    }

    /// Returns the claim of the one that has the lock for itself.
    pub fn grant(&self) -> Option<&Grant> {
        match &self.state {
            State::Held(grant) => Some(grant),
            State::Free | State::Shared(_) => None,
        }
    }

    /// Formats the record; `None` if the key is too long.
    pub fn written(&self) -> Option<Vec<u8>> {
        let key = utf8_percent_encode(&self.key, ESCAPED).to_string();
        let mut fields = vec![("key", key), ("fence", self.fence.to_string()), ("boot", or_dash(self.boot.as_ref()))];
        let mut version = VERSION;
        match &self.state {
            State::Free => fields.push(("state", "free".into())),
            State::Held(grant) => {
                fields.push(("state", "held".into()));
                fields.extend(grant.fields());
            }
            State::Shared(generation) => {
                version = SHARED;
                fields.extend([("state", "shared".into()), ("generation", generation.to_string())]);
            }
        }
        format::write(("nxlock-lock", version), &fields, RECORD)
    }

    pub fn read(bytes: &[u8]) -> Result<Record, Flaw> {
        let entry = format::read(("nxlock-lock", SHARED), bytes)?;
        let key = percent_decode_str(entry.text("key")?).decode_utf8().map_err(|_| Flaw::Damaged)?.into_owned();
        let state = match entry.text("state")? {
            "free" => State::Free,
            "held" => State::Held(Grant::read(&entry)?),
            "shared" => State::Shared(entry.parsed("generation")?),
            _ => return Err(Flaw::Damaged),
        };
        Ok(Record { key, fence: entry.parsed("fence")?, boot: entry.optional("boot")?, state })
    }
}

impl Grant {
    /// Takes over what a repeated request, or the claim of a reservation, says.
    pub fn is_claimed(&mut self, claimed: &Grant) {
        if self.reserved.take().is_some() {
            (self.granted, self.since) = (claimed.granted, claimed.since);
        }
        (self.until, self.life, self.not_before) = (claimed.until, claimed.life, claimed.not_before);
    }

    /// Returns when it ends if nobody renews it, at the earliest.
    pub fn lasts_until(&self) -> u64 {
        self.until.max(self.not_before.unwrap_or(0))
    }

    /// Turns it into a lease that nobody renews.
    pub fn becomes_lease(&mut self, until: u64) {
        (self.until, self.life, self.not_before) = (until, Life::Lease, None);
    }

    fn fields(&self) -> [(&'static str, String); 7] {
        [
            ("reserved_for", or_dash(self.reserved.as_ref())),
            ("granted_us", self.granted.to_string()),
            ("until_us", self.until.to_string()),
            ("since_ms", self.since.to_string()),
            ("life", self.life.to_string()),
            ("not_before_us", or_dash(self.not_before.as_ref())),
            ("token", self.token.as_str().to_owned()),
        ]
    }

    fn read(entry: &Entry<'_>) -> Result<Grant, Flaw> {
        Ok(Grant {
            token: entry.parsed("token")?,
            granted: entry.parsed("granted_us")?,
            until: entry.parsed("until_us")?,
            since: entry.parsed("since_ms")?,
            reserved: entry.optional("reserved_for")?,
            // Version 1 describes processes differently; its claims end with their leases.
            life: entry.text("life").map_or(Ok(Life::Lease), |_| entry.parsed("life"))?,
            // Not every record of version 2 has it.
            not_before: entry.text("not_before_us").map_or(Ok(None), |_| entry.optional("not_before_us"))?,
        })
    }
}

impl Line for Waiter {
    const SIZE: usize = 512;

    fn token(&self) -> &Token {
        &self.token
    }

    fn written(&self) -> Option<Vec<u8>> {
        let fields = [("ticket", self.ticket.to_string()), ("token", self.token.as_str().to_owned())];
        format::write(("nxlock-waiter", VERSION), &fields, Waiter::SIZE)
    }

    fn read(bytes: &[u8]) -> Result<Waiter, Flaw> {
        let entry = format::read(("nxlock-waiter", VERSION), bytes)?;
        Ok(Waiter { ticket: entry.parsed("ticket")?, token: entry.parsed("token")? })
    }
}

impl Line for Superseder {
    const SIZE: usize = 1024;

    fn token(&self) -> &Token {
        &self.token
    }

    fn written(&self) -> Option<Vec<u8>> {
        let fields = [
            ("ticket", self.ticket.to_string()),
            ("by", or_dash(self.by.as_ref().map(Token::as_str).as_ref())),
            ("token", self.token.as_str().to_owned()),
        ];
        format::write(("nxlock-superseder", VERSION), &fields, Superseder::SIZE)
    }

    fn read(bytes: &[u8]) -> Result<Superseder, Flaw> {
        let entry = format::read(("nxlock-superseder", VERSION), bytes)?;
        Ok(Superseder { ticket: entry.parsed("ticket")?, by: entry.optional("by")?, token: entry.parsed("token")? })
    }
}

impl Line for Asker {
    const SIZE: usize = 512;

    fn token(&self) -> &Token {
        &self.by
    }

    fn written(&self) -> Option<Vec<u8>> {
        let fields = [("of", self.of.to_string()), ("by", self.by.as_str().to_owned())];
        format::write(("nxlock-asker", VERSION), &fields, Asker::SIZE)
    }

    fn read(bytes: &[u8]) -> Result<Asker, Flaw> {
        let entry = format::read(("nxlock-asker", VERSION), bytes)?;
        Ok(Asker { of: entry.parsed("of")?, by: entry.parsed("by")? })
    }
}

impl Line for RecordedRun {
    const SIZE: usize = 512;

    fn token(&self) -> &Token {
        &self.token
    }

    fn written(&self) -> Option<Vec<u8>> {
        let fields = [
            ("granted_us", self.granted.to_string()),
            ("waited_ms", self.waited.as_millis().to_string()),
            ("fence", self.fence.to_string()),
            ("ended_us", or_dash(self.ended.as_ref())),
            ("end", or_dash(self.end.as_ref())),
            ("kept_until_us", self.kept_until.to_string()),
            ("listed", u8::from(self.is_listed).to_string()),
            ("token", self.token.as_str().to_owned()),
        ];
        format::write(("nxlock-run", RUN), &fields, RecordedRun::SIZE)
    }

    fn read(bytes: &[u8]) -> Result<RecordedRun, Flaw> {
        let entry = format::read(("nxlock-run", RUN), bytes)?;
        Ok(RecordedRun {
            token: entry.parsed("token")?,
            granted: entry.parsed("granted_us")?,
            waited: Duration::from_millis(entry.parsed("waited_ms")?),
            fence: entry.parsed("fence")?,
            ended: entry.optional("ended_us")?,
            end: entry.optional("end")?,
            kept_until: entry.parsed("kept_until_us")?,
            is_listed: entry.parsed::<u8>("listed")? == 1,
        })
    }
}

impl Share {
    pub fn sharing(&self) -> Sharing {
        self.grant.token.sharing()
    }
}

impl Line for Share {
    const SIZE: usize = 1024;

    fn token(&self) -> &Token {
        &self.grant.token
    }

    fn written(&self) -> Option<Vec<u8>> {
        let mut fields = vec![
            ("generation", self.generation.to_string()),
            ("number", self.number.to_string()),
            ("fence", self.fence.to_string()),
            ("slot", or_dash(self.slot.as_ref())),
        ];
        fields.extend(self.grant.fields());
        format::write(("nxlock-share", SHARE), &fields, Share::SIZE)
    }

    fn read(bytes: &[u8]) -> Result<Share, Flaw> {
        let entry = format::read(("nxlock-share", SHARE), bytes)?;
        Ok(Share {
            generation: entry.parsed("generation")?,
            number: entry.parsed("number")?,
            fence: entry.parsed("fence")?,
            slot: entry.optional("slot")?,
            grant: Grant::read(&entry)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::lock::{Owner, RunOutcome, SlotCount, Supersedes, Terms, Upkeep};

    fn longest_token() -> Token {
        let owner = Owner { user: "ü".repeat(40).into(), host: "h".repeat(80).into(), pid: 4_194_304 };
        let sharing = SlotCount::of(10_000).map_or(Sharing::Shared, Sharing::Slots);
        let terms = Terms { upkeep: Upkeep::LeaseOnly, sharing, supersedes: Supersedes::Running, no_ask: true };
        Token::mint_for(terms, &owner, Some(&"?".repeat(256)), SystemTime::UNIX_EPOCH).unwrap()
    }

    fn grant(reserved: Option<u64>, life: Life) -> Grant {
        let (token, granted, until, since) = (longest_token(), u64::MAX, u64::MAX, u64::MAX);
        Grant { token, granted, until, since, reserved, life, not_before: reserved.or(Some(u64::MAX)) }
    }

    fn longest_process() -> Process {
        format!("4194304.{0}.{0}", u64::MAX).parse().unwrap()
    }

    #[track_caller]
    fn is_read_back<L: Line + PartialEq + fmt::Debug>(entry: &L) {
        let written = entry.written().unwrap();
        assert_eq!((written.len(), 4096 % written.len()), (L::SIZE, 0));
        assert_eq!(L::read(&written).unwrap_or_else(|flaw| panic!("{flaw:?}")), *entry);
        assert!(L::read(&Record::new("a", None).written().unwrap()).is_err());
    }

    #[test]
    fn the_longest_that_there_can_be_fit_and_are_read_back() {
        for (state, key) in [
            (State::Free, "a b=c%"),
            (State::Held(grant(Some(u64::MAX), Life::Lease)), "short"),
            (State::Held(grant(None, Life::Holder)), "short"),
            (State::Held(grant(None, Life::HolderAnd(longest_process()))), &"日".repeat(100)),
            (State::Shared(u64::MAX), &"日".repeat(100)),
        ] {
            for boot in [None, Some("b".repeat(36))] {
                let record = Record { key: key.to_owned(), fence: u64::MAX, boot, state: state.clone() };
                let written = record.written().unwrap();
                assert_eq!(written.len(), RECORD);
                assert_eq!(Record::read(&written).unwrap_or_else(|flaw| panic!("{flaw:?}")), record);
            }
        }
        is_read_back(&Waiter { ticket: u64::MAX, token: longest_token() });
        for by in [None, Some(longest_token())] {
            is_read_back(&Superseder { ticket: u64::MAX, token: longest_token(), by });
        }
        is_read_back(&Asker { of: "aaaaaaaa".parse().unwrap(), by: longest_token() });
        let waited = Duration::from_millis(u64::MAX);
        for end in [None, Some(RunEnd { outcome: RunOutcome::TimeLimit, status: Some(255), signal: Some(-1) })] {
            let (granted, fence, ended, kept_until) = (u64::MAX, u64::MAX, end.map(|_| u64::MAX), u64::MAX);
            let (token, is_listed) = (longest_token(), end.is_none());
            is_read_back(&RecordedRun { token, granted, waited, fence, ended, end, kept_until, is_listed });
        }
        for (slot, reserved, life) in [
            (None, Some(u64::MAX), Life::Lease),
            (Some(9999), None, Life::Holder),
            (Some(u16::MAX), Some(u64::MAX), Life::HolderAnd(longest_process())),
        ] {
            let grant = grant(reserved, life);
            is_read_back(&Share { generation: u64::MAX, number: u64::MAX, fence: u64::MAX, slot, grant });
        }
        assert!(Record::new(&"日".repeat(1000), None).written().is_none());
    }

    #[test]
    fn only_a_shared_record_is_of_a_version_that_an_older_nxlock_does_not_know() {
        let version = |state| {
            let record = Record { state, ..Record::new("k", None) };
            let written = String::from_utf8(record.written().unwrap()).unwrap();
            written.split(' ').nth(1).unwrap().to_owned()
        };
        assert_eq!(version(State::Free), "2");
        assert_eq!(version(State::Held(grant(None, Life::Lease))), "2");
        assert_eq!(version(State::Held(grant(Some(1), Life::Lease))), "2");
        assert_eq!(version(State::Shared(1)), "3");
    }

    #[test]
    fn a_claim_of_the_first_version_ends_with_its_lease() {
        let text = "nxlock-lock 1 key=lock:job fence=7 boot=b state=held reserved_for=- granted_us=1 until_us=2 \
                    since_ms=3 process=4.5.6.7.8 token=t";
        let line = format!("{text} sum={:016x}\n", format::sum(text.as_bytes()));
        let record = Record::read(line.as_bytes()).unwrap_or_else(|flaw| panic!("{flaw:?}"));
        assert_eq!((record.fence, record.grant().unwrap().life), (7, Life::Lease));
    }
}
