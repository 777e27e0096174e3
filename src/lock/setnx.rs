//! Beside old `SETNX` clients, whose lock is a key without expiry that holds the time at which it ends.
//!
//! What such a value says, and what a claim needs that shares their key. No I/O.

use std::time::{Duration, SystemTime};

/// When an old `SETNX` lock ends, as its value has it. Only its own kind of client goes by that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Legacy {
    pub valid_until: SystemTime,
    /// Past, by the server's clock.
    pub stale: bool,
}

impl Legacy {
    /// A bare number: seconds since 1970, perhaps with decimals, or milliseconds.
    pub fn read(value: &[u8], now: SystemTime) -> Option<Legacy> {
        let text = std::str::from_utf8(value).ok()?;
        if !text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return None;
        }
        let number: f64 = text.parse().ok()?;
        // Seconds will have so many digits in thirty thousand years; milliseconds have had them since 2001.
        let seconds = if number < 1e12 { number } else { number / 1000.0 };
        let since = Duration::try_from_secs_f64(seconds).ok()?;
        let valid_until = SystemTime::UNIX_EPOCH.checked_add(since)?;
        Some(Legacy { valid_until, stale: valid_until < now })
    }
}

/// What a claim needs on a key that it shares with such clients, beside a token that they cannot
/// take for a time that has passed.
#[derive(Clone, Debug)]
pub struct BesideSetnx {
    /// By how much a lock of theirs must be stale to be taken over.
    pub margin: Duration,
    /// Who claims it, for people: the token has no room for it.
    pub record: String,
}
