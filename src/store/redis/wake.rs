//! What wakes a waiter: its channels, and the words of the script there (lock.lua).

use std::time::SystemTime;

use redis::Value;

use super::reply;

/// The channels that a waiter subscribes to.
#[derive(Clone)]
pub struct Channels {
    /// No other client subscribes to it.
    pub own: String,
    /// That of all who wait for the lock.
    pub of_all: String,
}

/// What was said to a waiter since it last looked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// To ask again: by every word but those below, which later versions may add to.
    pub at_once: bool,
    /// To ask again soon, and no later than at this time, by the server's clock: the lock that it waits for may end.
    pub soon: Option<SystemTime>,
    /// To ask again, those ahead first: the queue was lost.
    pub in_turn: bool,
}

impl Channels {
    /// Returns both, as a request names them.
    pub fn names(&self) -> [&str; 2] {
        [&self.own, &self.of_all]
    }
}

impl Calls {
    /// Takes notice of a word. A test of the subscription says nothing.
    pub fn hear(&mut self, word: Option<&Value>) {
        let word = word.and_then(reply::text);
        match word.as_ref().and_then(|word| word.raw().split_at_checked(1)) {
            Some(("t", "")) => {}
            Some(("l", "")) => self.in_turn = true,
            Some(("e", ms)) => match ms.parse().ok().and_then(reply::instant_of_millis) {
                Some(ends) => self.soon = Some(self.soon.map_or(ends, |soon| soon.min(ends))),
                None => self.at_once = true,
            },
            _ => self.at_once = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn calls(words: &[&str]) -> Calls {
        let mut calls = Calls::default();
        words.iter().for_each(|word| calls.hear(Some(&Value::BulkString((*word).into()))));
        calls
    }

    #[test]
    fn a_message_says_to_ask_at_once_unless_it_says_when() {
        let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        let at_once = Calls { at_once: true, ..Calls::default() };
        assert_eq!(calls(&["t"]), Calls::default());
        assert_eq!(calls(&["l", "t"]), Calls { in_turn: true, ..Calls::default() });
        assert_eq!(calls(&["e2000", "e1000", "e3000"]), Calls { soon: at(1), ..Calls::default() });
        for word in ["g", "n", "s", "", "late", "e", "e-1", "e1s", "e99999999999999999999", "test", "\u{e9}1"] {
            assert_eq!(calls(&[word, "t"]), at_once, "{word:?}");
        }
        let mut calls = Calls::default();
        calls.hear(None);
        assert_eq!(calls, at_once);
    }
}
