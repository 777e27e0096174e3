//! What stands in the files of a lock: who has it, and who waits for it.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use super::entry::{self, or_dash};
use super::fault::Flaw;
use super::process::Process;
use crate::lock::Token;

/// The sizes of a record and of a waiter's line. A page is a multiple of both, so that neither can
/// lie across two.
pub const RECORD: usize = 2048;
pub const WAITER: usize = 512;

/// What could be taken for the end of a field.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'=');

/// All that is known of a lock but its waiters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Prefix and name: the file's own name may be a shortened one.
    pub key: String,
    pub fence: u64,
    /// The boot in which the claim was made: no claim outlives that.
    pub boot: String,
    pub claim: Option<Claim>,
}

/// Moments are microseconds after boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub token: Token,
    pub granted: u64,
    pub until: u64,
    /// When it was granted by the wall clock, for people: milliseconds after 1970.
    pub since: u64,
    /// The ticket of the waiter that it is put aside for, until that comes for it.
    pub reserved: Option<u64>,
    /// The process that the claim lives with, if it is not for the lease alone to end it.
    pub process: Option<Process>,
}

/// One who stands in line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The order of the line, and the microsecond of the boot at which it came.
    pub ticket: u64,
    pub token: Token,
}

impl Record {
    pub fn new(key: &str, boot: &str) -> Record {
        Record { key: key.to_owned(), fence: 0, boot: boot.to_owned(), claim: None }
    }

    /// Nothing if the key is too long.
    pub fn written(&self) -> Option<Vec<u8>> {
        let key = utf8_percent_encode(&self.key, ESCAPED).to_string();
        let mut fields = vec![("key", key), ("fence", self.fence.to_string()), ("boot", self.boot.clone())];
        match &self.claim {
            None => fields.push(("state", "free".into())),
            Some(claim) => fields.extend([
                ("state", "held".into()),
                ("reserved_for", or_dash(claim.reserved.as_ref())),
                ("granted_us", claim.granted.to_string()),
                ("until_us", claim.until.to_string()),
                ("since_ms", claim.since.to_string()),
                ("process", or_dash(claim.process.as_ref())),
                ("token", claim.token.as_str().to_owned()),
            ]),
        }
        entry::write("nxlock-lock", &fields, RECORD)
    }

    pub fn read(bytes: &[u8]) -> Result<Record, Flaw> {
        let entry = entry::read("nxlock-lock", bytes)?;
        let key = percent_decode_str(entry.text("key")?).decode_utf8().map_err(|_| Flaw::Damaged)?.into_owned();
        let claim = match entry.text("state")? {
            "free" => None,
            "held" => Some(Claim {
                token: entry.parsed("token")?,
                granted: entry.parsed("granted_us")?,
                until: entry.parsed("until_us")?,
                since: entry.parsed("since_ms")?,
                reserved: entry.optional("reserved_for")?,
                process: entry.optional("process")?,
            }),
            _ => return Err(Flaw::Damaged),
        };
        Ok(Record { key, fence: entry.parsed("fence")?, boot: entry.parsed("boot")?, claim })
    }
}

impl Waiter {
    /// Nothing if the token is longer than any that we make.
    pub fn written(&self) -> Option<Vec<u8>> {
        let fields = [("ticket", self.ticket.to_string()), ("token", self.token.as_str().to_owned())];
        entry::write("nxlock-waiter", &fields, WAITER)
    }

    pub fn read(bytes: &[u8]) -> Result<Waiter, Flaw> {
        let entry = entry::read("nxlock-waiter", bytes)?;
        Ok(Waiter { ticket: entry.parsed("ticket")?, token: entry.parsed("token")? })
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::lock::Owner;

    fn longest_token() -> Token {
        let owner = Owner { user: "ü".repeat(40), host: "h".repeat(80), pid: 4_194_304 };
        Token::mint(&owner, Some(&"?".repeat(256)), SystemTime::UNIX_EPOCH).unwrap()
    }

    #[test]
    fn the_longest_that_there_can_be_fit_and_are_read_back() {
        let process = Some(format!("4194304.{0}.{0}.{0}.{1}", u64::MAX, u32::MAX).parse().unwrap());
        let claim = |reserved| {
            Some(Claim {
                token: longest_token(),
                granted: u64::MAX,
                until: u64::MAX,
                since: u64::MAX,
                reserved,
                process,
            })
        };
        for (claim, key) in [(None, "a b=c%"), (claim(Some(u64::MAX)), "short"), (claim(None), &"日".repeat(100))] {
            let record = Record { key: key.to_owned(), fence: u64::MAX, boot: "b".repeat(36), claim };
            let written = record.written().unwrap();
            assert_eq!(written.len(), RECORD);
            assert_eq!(Record::read(&written).unwrap_or_else(|flaw| panic!("{flaw:?}")), record);
        }
        let waiter = Waiter { ticket: u64::MAX, token: longest_token() };
        let written = waiter.written().unwrap();
        assert_eq!(written.len(), WAITER);
        assert_eq!(Waiter::read(&written).unwrap_or_else(|flaw| panic!("{flaw:?}")), waiter);
        assert!(Waiter::read(&Record::new("a", "b").written().unwrap()).is_err());
        assert!(Record::new(&"日".repeat(1000), "b").written().is_none());
    }
}
