//! Parses the process that a lock is kept for, and the signal that reports a loss to it.

use std::str::FromStr;

use nix::sys::signal::Signal;

/// Parses a pid.
///
/// # Errors
/// If it is no pid.
pub fn process(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=i32::MAX.cast_unsigned()).contains(number));
    number.ok_or_else(|| "not a process ID: give one such as $$, the shell's own".into())
}

/// The signal that reports the loss of a lock; none to send no signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostSignal(pub Option<Signal>);

impl LostSignal {
    /// Returns the names that it is parsed from, without `SIG`.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let names = Signal::iterator().map(Signal::as_str);
        names.map(|name| name.strip_prefix("SIG").unwrap_or(name)).chain(["none"])
    }
}

impl FromStr for LostSignal {
    type Err = String;

    /// Parses a name as kill(1) lists them, with or without `SIG`, or a number; 0 and `none` are none.
    fn from_str(text: &str) -> Result<LostSignal, String> {
        let name = text.to_ascii_uppercase();
        if name == "NONE" {
            return Ok(LostSignal(None));
        }
        let signal = match name.parse::<i32>() {
            Ok(0) => return Ok(LostSignal(None)),
            Ok(number) => Signal::try_from(number),
            Err(_) => Signal::from_str(&format!("SIG{}", name.strip_prefix("SIG").unwrap_or(&name))),
        };
        let known = "a name such as TERM, a number, or `none`";
        signal.map(|signal| LostSignal(Some(signal))).map_err(|_| format!("unknown signal: give {known}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_number() {
        assert_eq!(process("4711"), Ok(4711));
        for text in ["", "0", "-1", "abc", "$$", "1.5", "4294967295"] {
            assert!(process(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_signal_is_known_by_name_and_number() {
        for text in ["TERM", "SIGTERM", "term", "sigterm", "15"] {
            assert_eq!(text.parse(), Ok(LostSignal(Some(Signal::SIGTERM))), "{text}");
        }
        assert!(LostSignal::names().all(|name| name.parse::<LostSignal>().is_ok()));
        for text in ["none", "NONE", "0"] {
            assert_eq!(text.parse(), Ok(LostSignal(None)), "{text}");
        }
        for text in ["", "SIG", "SIGSIGTERM", "-15", "99", "SIGNONE", "RTMIN", "SIG15", "TERM "] {
            assert!(text.parse::<LostSignal>().is_err(), "{text}");
        }
    }
}
