//! Parses the bytes that a terminal sends into keys (XTerm Control Sequences). Must not know what a key does.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Backspace,
    /// With Ctrl held down.
    Ctrl(char),
    /// A key that nxlock does not know.
    Other,
}

/// Bytes of an incomplete key.
#[derive(Default)]
pub struct Keys(Vec<u8>);

/// Maximum length of an escape sequence.
const LONGEST: usize = 16;

impl Keys {
    /// Returns the keys that these bytes complete.
    pub fn of(&mut self, typed: &[u8]) -> Vec<Key> {
        self.0.extend(typed);
        let mut keys = Vec::new();
        let mut rest = self.0.as_slice();
        while let Some((key, length)) = first(rest) {
            keys.push(key);
            rest = &rest[length..];
        }
        self.0 = rest.to_vec();
        keys
    }

    pub fn are_whole(&self) -> bool {
        self.0.is_empty()
    }

    /// Gives up waiting for more bytes. Incomplete input that begins with ESC was the Escape key.
    pub fn give_up(&mut self) -> Option<Key> {
        let begun = std::mem::take(&mut self.0);
        begun.starts_with(b"\x1b").then_some(Key::Escape)
    }
}

/// Returns the first key and its length in bytes; none while it is incomplete.
fn first(bytes: &[u8]) -> Option<(Key, usize)> {
    match *bytes.first()? {
        0x1b => escaped(bytes),
        b'\r' | b'\n' => Some((Key::Enter, 1)),
        0x7f | 0x08 => Some((Key::Backspace, 1)),
        control @ 0x01..=0x1a => Some((Key::Ctrl(char::from(control + 0x60)), 1)),
        0x00..=0x1f => Some((Key::Other, 1)),
        _ => character(bytes),
    }
}

fn character(bytes: &[u8]) -> Option<(Key, usize)> {
    let valid = match std::str::from_utf8(&bytes[..bytes.len().min(4)]) {
        Ok(text) => text,
        Err(error) => match (error.valid_up_to(), error.error_len()) {
            (0, None) => return None,
            (0, Some(length)) => return Some((Key::Other, length)),
            (valid, _) => std::str::from_utf8(&bytes[..valid]).unwrap_or_default(),
        },
    };
    valid.chars().next().map(|c| (Key::Char(c), c.len_utf8()))
}

/// Parses `ESC [ numbers letter` or `ESC O letter`.
fn escaped(bytes: &[u8]) -> Option<(Key, usize)> {
    let second = bytes.get(1)?;
    if !matches!(second, b'[' | b'O') {
        return Some((Key::Escape, 1));
    }
    let Some(length) = bytes[2..].iter().position(|byte| (0x40..=0x7e).contains(byte)) else {
        return (bytes.len() > LONGEST).then_some((Key::Other, bytes.len()));
    };
    let key = match (&bytes[2..2 + length], bytes[2 + length]) {
        (_, b'A') => Key::Up,
        (_, b'B') => Key::Down,
        (_, b'H') | (b"1" | b"7", b'~') => Key::Home,
        (_, b'F') | (b"4" | b"8", b'~') => Key::End,
        (b"5", b'~') => Key::PageUp,
        (b"6", b'~') => Key::PageDown,
        _ => Key::Other,
    };
    Some((key, length + 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart_however_their_bytes_come() {
        let typed = b"j\x1b[A\x1bOB\r\x7f\xc3\xa9\x1b[5~\x03\x1b[1;5C\x1b[H".as_slice();
        let expected = [
            Key::Char('j'),
            Key::Up,
            Key::Down,
            Key::Enter,
            Key::Backspace,
            Key::Char('é'),
            Key::PageUp,
            Key::Ctrl('c'),
            Key::Other,
            Key::Home,
        ];
        assert_eq!(Keys::default().of(typed), expected);
        let mut keys = Keys::default();
        let one_by_one: Vec<Key> = typed.iter().flat_map(|byte| keys.of(&[*byte])).collect();
        assert_eq!(one_by_one, expected);
        assert!(keys.are_whole());
    }

    #[test]
    fn an_escape_is_one_if_nothing_follows() {
        let mut keys = Keys::default();
        assert_eq!(keys.of(b"\x1b"), []);
        assert!(!keys.are_whole());
        assert_eq!(keys.give_up(), Some(Key::Escape));
        assert_eq!(keys.of(b"\x1bq"), [Key::Escape, Key::Char('q')]);
    }

    #[test]
    fn what_is_no_key_is_passed_over() {
        let mut keys = Keys::default();
        assert_eq!(keys.of(b"\xffq"), [Key::Other, Key::Char('q')]);
        assert_eq!(keys.of(&[b"\x1b[".as_slice(), &[b'1'; 100]].concat()), [Key::Other]);
        assert!(keys.are_whole());
    }
}
