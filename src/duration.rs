//! Durations: as a user types them, as a message shows them, as numbers, and with jitter.

use std::time::Duration;

/// Maximum value of an option: ten years, far below where the arithmetic of `PX` overflows.
pub const MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Parses a duration in humantime's format.
///
/// # Errors
/// A bare number, a unit that could be mistaken for another, or more than [`MAX`].
pub fn parse(text: &str) -> Result<Duration, String> {
    let bare = text.trim();
    if bare != "0" && !bare.is_empty() && bare.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(format!("a bare number has no unit: write {bare}s, {bare}ms or {bare}m"));
    }
    if bare.split(|c: char| !c.is_ascii_alphabetic()).any(|unit| unit == "M") {
        return Err(format!("`M` would be months: write {} for minutes", bare.replace('M', "m").escape_debug()));
    }
    let duration = humantime::parse_duration(bare).map_err(|e| format!("{e}: write 90s, 1m30s, 500ms or 2h"))?;
    if duration > MAX {
        return Err("more than ten years".to_owned());
    }
    Ok(duration)
}

/// Parses a duration that must not be zero.
///
/// # Errors
/// Those of [`parse`], and zero.
pub fn positive(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err("must be more than 0".to_owned()),
        duration => Ok(duration),
    }
}

/// Parses an interval that must not be too short for a person to follow.
///
/// # Errors
/// Those of [`parse`], and less than a tenth of a second.
pub fn interval(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        short if short < Duration::from_millis(100) => Err("too short: 100ms at least".to_owned()),
        duration => Ok(duration),
    }
}

/// Formats a duration as precisely as a person needs it: `4m 12s`, `24s`, `1.5s`, `80ms`.
pub fn span(duration: Duration) -> String {
    let precise = match duration {
        days if days >= Duration::from_secs(86400) => Duration::from_secs(days.as_secs() / 3600 * 3600),
        long if long >= Duration::from_secs(3600) => Duration::from_secs(long.as_secs() / 60 * 60),
        middling if middling >= Duration::from_secs(10) => Duration::from_secs(middling.as_secs()),
        short if short >= Duration::from_secs(1) => {
            let tenths = short.as_millis() / 100;
            return if tenths % 10 == 0 {
                format!("{}s", tenths / 10)
            } else {
                format!("{}.{}s", tenths / 10, tenths % 10)
            };
        }
        tiny => Duration::from_millis(millis(tiny)),
    };
    humantime::format_duration(precise).to_string()
}

/// Formats a duration by its largest unit, as for how long ago something was: `45s`, `12m`, `31h`, `5d`.
pub fn coarse(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m", seconds / 60),
        seconds @ 7200..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86400),
    }
}

/// Returns the whole milliseconds of a duration, as many as fit.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the whole microseconds of a duration, as many as fit.
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Returns a random duration between half and one and a half of `about`.
pub fn jittered(about: Duration) -> Duration {
    // Without random bits there is no jitter, which does no harm.
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    about / 2 + about.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_number_is_refused_with_a_hint() {
        assert_eq!(parse("300"), Err("a bare number has no unit: write 300s, 300ms or 300m".into()));
        assert_eq!(parse("0"), Ok(Duration::ZERO));
    }

    #[test]
    fn durations_are_humantime_without_the_trap_of_months() {
        assert_eq!(parse("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("1.5s"), Ok(Duration::from_millis(1500)));
        assert!(parse("5M").unwrap_err().contains("5m"));
        assert!(!parse("5M\u{1b}[31m").unwrap_err().contains('\u{1b}'));
        for bad in ["", "-5s", "1m30", "forever", "99999y"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_age_has_one_unit() {
        for (seconds, text) in
            [(0, "0s"), (119, "119s"), (120, "2m"), (111_600, "31h"), (172_800, "2d"), (864_000, "10d")]
        {
            assert_eq!(coarse(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn spans_are_as_precise_as_a_person_wants() {
        for (millis, text) in [
            (0, "0s"),
            (80, "80ms"),
            (1_000, "1s"),
            (1_560, "1.5s"),
            (24_900, "24s"),
            (252_000, "4m 12s"),
            (7_322_000, "2h 2m"),
        ] {
            assert_eq!(span(Duration::from_millis(millis)), text);
        }
    }
}
