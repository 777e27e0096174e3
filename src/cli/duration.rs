//! Lengths of time as they are typed.

use std::time::Duration;

use crate::lock::Ttl;

/// A length of time as humantime writes it.
///
/// # Errors
/// A bare number, a unit that could be mistaken for another, or more than [`Ttl::MAX`].
pub fn duration(text: &str) -> Result<Duration, String> {
    let bare = text.trim();
    if bare != "0" && !bare.is_empty() && bare.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(format!("a bare number has no unit: write {bare}s, {bare}ms or {bare}m"));
    }
    if bare.split(|c: char| !c.is_ascii_alphabetic()).any(|unit| unit == "M") {
        return Err(format!("`M` would be months: write {} for minutes", bare.replace('M', "m").escape_debug()));
    }
    let duration = humantime::parse_duration(bare).map_err(|e| format!("{e}: write 90s, 1m30s, 500ms or 2h"))?;
    if duration > Ttl::MAX {
        return Err("more than ten years".to_owned());
    }
    Ok(duration)
}

/// The same, and not none at all.
///
/// # Errors
/// As [`duration`], and for nothing.
pub fn positive(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be more than nothing".to_owned()),
        duration => Ok(duration),
    }
}

/// The same, and not so short that nobody could follow.
///
/// # Errors
/// As [`duration`], and for less than a tenth of a second.
pub fn interval(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        short if short < Duration::from_millis(100) => Err("too short: 100ms at least".to_owned()),
        duration => Ok(duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_number_is_refused_with_a_hint() {
        assert_eq!(duration("300"), Err("a bare number has no unit: write 300s, 300ms or 300m".into()));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
    }

    #[test]
    fn durations_are_humantime_without_the_trap_of_months() {
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert!(duration("5M").unwrap_err().contains("5m"));
        assert!(!duration("5M\u{1b}[31m").unwrap_err().contains('\u{1b}'));
        for bad in ["", "-5s", "1m30", "forever", "99999y"] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }
}
