//! Sharing a key with old `SETNX` clients, whose lock is a key without expiry that holds the time at which it ends.
//!
//! Owns the meaning of such a value, and what a claim on a shared key needs. No I/O.

use std::time::{Duration, SystemTime};

/// When an old `SETNX` lock ends, according to its value. Only clients of that kind obey it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Legacy {
    pub valid_until: SystemTime,
    /// In the past, by the server's clock.
    pub stale: bool,
}

impl Legacy {
    /// Parses a bare number: seconds since 1970, perhaps with decimals, or milliseconds.
    pub fn read(value: &[u8], now: SystemTime) -> Option<Legacy> {
        let text = std::str::from_utf8(value).ok()?;
        if !text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return None;
        }
        let number: f64 = text.parse().ok()?;
        // Seconds reach 13 digits in thirty thousand years; milliseconds have had them since 2001.
        let seconds = if number < 1e12 { number } else { number / 1000.0 };
        let since = Duration::try_from_secs_f64(seconds).ok()?;
        let valid_until = SystemTime::UNIX_EPOCH.checked_add(since)?;
        Some(Legacy { valid_until, stale: valid_until < now })
    }
}

/// What a claim on a key shared with such clients needs, besides a token that they cannot take for a past time.
#[derive(Clone, Debug)]
pub struct BesideSetnx {
    /// How long a lock of theirs must have been stale to be taken over.
    pub margin: Duration,
    /// A token that says what the number cannot.
    pub identity: String,
}
