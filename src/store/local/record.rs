//! The contents of a lock's files: the record with the holder, and the waiters. No I/O.

use std::fmt;
use std::str::FromStr;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use super::fault::Flaw;
use super::format::{self, or_dash};
use super::pid_view::Process;
use crate::lock::Token;

/// Sizes of a record and of a waiter, in bytes. A page is a multiple of both, so neither crosses a page boundary.
pub const RECORD: usize = 2048;
pub const WAITER: usize = 512;

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
    pub grant: Option<Grant>,
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

impl Record {
    pub fn new(key: &str, boot: Option<&str>) -> Record {
        Record { key: key.to_owned(), fence: 0, boot: boot.map(str::to_owned), grant: None }
    }

    /// Formats the record; `None` if the key is too long.
    pub fn written(&self) -> Option<Vec<u8>> {
        let key = utf8_percent_encode(&self.key, ESCAPED).to_string();
        let mut fields = vec![("key", key), ("fence", self.fence.to_string()), ("boot", or_dash(self.boot.as_ref()))];
        match &self.grant {
            None => fields.push(("state", "free".into())),
            Some(grant) => fields.extend([
                ("state", "held".into()),
                ("reserved_for", or_dash(grant.reserved.as_ref())),
                ("granted_us", grant.granted.to_string()),
                ("until_us", grant.until.to_string()),
                ("since_ms", grant.since.to_string()),
                ("life", grant.life.to_string()),
                ("token", grant.token.as_str().to_owned()),
            ]),
        }
        format::write("nxlock-lock", &fields, RECORD)
    }

    pub fn read(bytes: &[u8]) -> Result<Record, Flaw> {
        let entry = format::read("nxlock-lock", bytes)?;
        let key = percent_decode_str(entry.text("key")?).decode_utf8().map_err(|_| Flaw::Damaged)?.into_owned();
        let grant = match entry.text("state")? {
            "free" => None,
            "held" => Some(Grant {
                token: entry.parsed("token")?,
                granted: entry.parsed("granted_us")?,
                until: entry.parsed("until_us")?,
                since: entry.parsed("since_ms")?,
                reserved: entry.optional("reserved_for")?,
                // Version 1 describes processes differently; its claims end with their leases.
                life: entry.text("life").map_or(Ok(Life::Lease), |_| entry.parsed("life"))?,
            }),
            _ => return Err(Flaw::Damaged),
        };
        Ok(Record { key, fence: entry.parsed("fence")?, boot: entry.optional("boot")?, grant })
    }
}

impl Waiter {
    /// Formats the waiter; `None` if the token is longer than any that nxlock makes.
    pub fn written(&self) -> Option<Vec<u8>> {
        let fields = [("ticket", self.ticket.to_string()), ("token", self.token.as_str().to_owned())];
        format::write("nxlock-waiter", &fields, WAITER)
    }

    pub fn read(bytes: &[u8]) -> Result<Waiter, Flaw> {
        let entry = format::read("nxlock-waiter", bytes)?;
        Ok(Waiter { ticket: entry.parsed("ticket")?, token: entry.parsed("token")? })
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::lock::Owner;

    fn longest_token() -> Token {
        let owner = Owner { user: "ü".repeat(40).into(), host: "h".repeat(80).into(), pid: 4_194_304 };
        Token::mint(&owner, Some(&"?".repeat(256)), SystemTime::UNIX_EPOCH).unwrap()
    }

    #[test]
    fn the_longest_that_there_can_be_fit_and_are_read_back() {
        let process = format!("4194304.{0}.{0}", u64::MAX).parse().unwrap();
        let grant = |reserved, life| {
            Some(Grant { token: longest_token(), granted: u64::MAX, until: u64::MAX, since: u64::MAX, reserved, life })
        };
        for (grant, key) in [
            (None, "a b=c%"),
            (grant(Some(u64::MAX), Life::Lease), "short"),
            (grant(None, Life::Holder), "short"),
            (grant(None, Life::HolderAnd(process)), &"日".repeat(100)),
        ] {
            for boot in [None, Some("b".repeat(36))] {
                let record = Record { key: key.to_owned(), fence: u64::MAX, boot, grant: grant.clone() };
                let written = record.written().unwrap();
                assert_eq!(written.len(), RECORD);
                assert_eq!(Record::read(&written).unwrap_or_else(|flaw| panic!("{flaw:?}")), record);
            }
        }
        let waiter = Waiter { ticket: u64::MAX, token: longest_token() };
        let written = waiter.written().unwrap();
        assert_eq!(written.len(), WAITER);
        assert_eq!(Waiter::read(&written).unwrap_or_else(|flaw| panic!("{flaw:?}")), waiter);
        assert!(Waiter::read(&Record::new("a", None).written().unwrap()).is_err());
        assert!(Record::new(&"日".repeat(1000), None).written().is_none());
    }

    #[test]
    fn a_claim_of_the_first_version_ends_with_its_lease() {
        let text = "nxlock-lock 1 key=lock:job fence=7 boot=b state=held reserved_for=- granted_us=1 until_us=2 \
                    since_ms=3 process=4.5.6.7.8 token=t";
        let line = format!("{text} sum={:016x}\n", format::sum(text.as_bytes()));
        let record = Record::read(line.as_bytes()).unwrap_or_else(|flaw| panic!("{flaw:?}"));
        assert_eq!((record.fence, record.grant.unwrap().life), (7, Life::Lease));
    }
}
