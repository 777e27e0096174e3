//! The text format of records: lines of `field=value`. People can read it. A line that decides what counts is padded to a
//! fixed size, and has a checksum.

use std::fmt::{Display, Write};
use std::str::FromStr;

use super::fault::Flaw;

/// The fields of a line, by name.
pub struct Entry<'a>(&'a str);

/// Formats a line of this `kind` and version; `None` if it does not fit into `size` bytes.
pub fn write((kind, version): (&str, u32), fields: &[(&str, &dyn Display)], size: usize) -> Option<Vec<u8>> {
    let mut text = format!("{kind} {version}");
    write_fields(&mut text, fields);
    text += &format!(" sum={:016x}", sum(text.as_bytes()));
    let room = size.checked_sub(text.len() + 1)?;
    text += &" ".repeat(room);
    text.push('\n');
    Some(text.into_bytes())
}

/// Appends fields to a line.
pub fn write_fields(text: &mut String, fields: &[(&str, &dyn Display)]) {
    for (name, value) in fields {
        // Writing to a string cannot fail.
        let _ = write!(text, " {name}={value}");
    }
}

/// Parses what [`write`] wrote, in this version.
///
/// # Errors
/// If any byte differs.
pub fn read<'a>((kind, known): (&str, u32), line: &'a [u8]) -> Result<Entry<'a>, Flaw> {
    // A power failure can leave a file of zeros.
    if line.iter().all(|byte| *byte == 0) {
        return Err(Flaw::Damaged);
    }
    let rest = line.strip_prefix(kind.as_bytes()).and_then(|rest| rest.strip_prefix(b" ")).ok_or(Flaw::Foreign)?;
    let version = rest.split(|byte| *byte == b' ').next().unwrap_or_default();
    match std::str::from_utf8(version).ok().and_then(|version| version.parse::<u32>().ok()) {
        Some(version) if version == known => {}
        Some(version) if version > known => return Err(Flaw::Newer),
        Some(_) => return Err(Flaw::Older),
        None => return Err(Flaw::Damaged),
    }
    let line = line.strip_suffix(b"\n").ok_or(Flaw::Damaged)?;
    let length = line.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
    let text = std::str::from_utf8(&line[..length]).map_err(|_| Flaw::Damaged)?;
    let (summed, told) = text.rsplit_once(" sum=").ok_or(Flaw::Damaged)?;
    if told != format!("{:016x}", sum(summed.as_bytes())) {
        return Err(Flaw::Damaged);
    }
    Ok(Entry(summed))
}

impl<'a> Entry<'a> {
    /// Returns the fields of a line without a checksum of its own.
    pub fn of(line: &'a str) -> Entry<'a> {
        Entry(line)
    }

    pub fn text(&self, name: &str) -> Result<&'a str, Flaw> {
        let value = |field: &'a str| field.strip_prefix(name)?.strip_prefix('=');
        self.0.split(' ').find_map(value).ok_or(Flaw::Damaged)
    }

    pub fn parsed<T: FromStr>(&self, name: &str) -> Result<T, Flaw> {
        self.text(name)?.parse().map_err(|_| Flaw::Damaged)
    }

    /// Parses a field that may be absent, written as `-`.
    pub fn optional<T: FromStr>(&self, name: &str) -> Result<Option<T>, Flaw> {
        match self.text(name)? {
            "-" => Ok(None),
            value => value.parse().map(Some).map_err(|_| Flaw::Damaged),
        }
    }
}

pub fn or_dash<T: ToString>(value: Option<&T>) -> String {
    value.map_or_else(|| "-".to_owned(), T::to_string)
}

/// FNV-1a, 64 bits: detects accidental damage, and tells long names apart.
pub fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(BASIS, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(PRIME))
}

/// The same by words of eight bytes, rotated in between: a long text takes an eighth of the time.
pub fn sum_of_words(bytes: &[u8]) -> u64 {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let add = |sum: u64, word: u64| (sum ^ word).wrapping_mul(PRIME).rotate_left(23);
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(BASIS, |sum, bytes| add(sum, u64::from_le_bytes(*bytes)));
    add(sum, word(rest))
}

const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Vec<u8> {
        write(("kind", 2), &[("a", &1), ("b", &"-"), ("c", &"x=y")], 128).unwrap()
    }

    #[test]
    fn what_was_written_is_read_back() {
        let line = line();
        assert_eq!(line.len(), 128);
        let entry = read(("kind", 2), &line).unwrap_or_else(|flaw| panic!("{flaw:?}"));
        assert_eq!(entry.parsed("a"), Ok(1));
        assert_eq!(entry.optional::<u64>("b"), Ok(None));
        assert_eq!(entry.text("c"), Ok("x=y"));
        assert_eq!(entry.text("d"), Err(Flaw::Damaged));
        assert!(write(("kind", 2), &[("a", &"x".repeat(128))], 128).is_none());
    }

    #[test]
    fn no_byte_can_change_unseen() {
        for at in 0..128 {
            let mut changed = line();
            changed[at] ^= 1 << (at % 8);
            assert!(read(("kind", 2), &changed).is_err(), "byte {at}");
            assert_ne!(sum_of_words(&changed), sum_of_words(&line()), "byte {at}");
        }
        for length in 0..128 {
            assert!(read(("kind", 2), &line()[..length]).is_err(), "{length} bytes of it");
        }
    }

    #[test]
    fn what_is_not_ours_is_told_from_what_is_damaged() {
        let flaw = |line: &[u8]| read(("kind", 2), line).err();
        assert_eq!(flaw(b""), Some(Flaw::Damaged));
        assert_eq!(flaw(&[0; 128]), Some(Flaw::Damaged));
        assert_eq!(flaw(b"127.0.0.1 localhost\n"), Some(Flaw::Foreign));
        assert_eq!(flaw(b"kind 3 {\"other\": 1}\n"), Some(Flaw::Newer));
        assert_eq!(flaw(b"kind 2 a=1 sum=0\n"), Some(Flaw::Damaged));
        assert_eq!(flaw(&write(("kind", 1), &[], 64).unwrap()), Some(Flaw::Older));
    }
}
