//! Exact keys given by a user, and the companion keys of a lock. Owns the placement of hash tag braces.

use std::str::FromStr;

use super::LockName;

/// An exact key, without a prefix, that other programs fixed long ago.
///
/// In a cluster all keys of a lock have to be in one slot. The slot is that of the text in the first braces if there is
/// any, and else of the whole key (Redis cluster specification, hash tags). A companion key in that slot exists for
/// every key but those with a closing brace and no tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(String);

impl FromStr for Key {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.len() {
            0 => return Err("it is empty".into()),
            1..=1000 => {}
            n => return Err(format!("{n} bytes is too long: 1000 at most")),
        }
        if text.chars().any(char::is_control) {
            return Err("control characters are not allowed".into());
        }
        if tag(text).is_none() && text.contains('}') {
            return Err(
                "no other key is sure to share its slot in a cluster, so it could have no queue and no fence: \
                        it has a closing brace, but nothing between its first braces"
                    .into(),
            );
        }
        Ok(Key(text.to_owned()))
    }
}

impl Key {
    /// Returns the key as the lock's name: it has no other.
    pub fn name(&self) -> LockName {
        LockName(self.0.clone())
    }
}

/// Returns the hash tag, which picks the slot in a cluster, if the key has one.
fn tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    rest.split_once('}').map(|(tag, _)| tag).filter(|tag| !tag.is_empty())
}

/// Returns a companion key of the lock under `key`, in the same slot of a cluster.
pub fn companion_key(key: &str, what: &str) -> String {
    match tag(key) {
        None => format!("{{{key}}}:{what}"),
        // Longer than `:what`, so that it differs from the companion key of a lock whose key is that tag.
        Some(_) => format!("{key}:nxlock:{what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what the specification hashes for the slot.
    fn hashed(key: &str) -> &str {
        let Some(open) = key.find('{') else { return key };
        match key[open + 1..].find('}') {
            None | Some(0) => key,
            Some(length) => &key[open + 1..=open + length],
        }
    }

    #[test]
    fn what_belongs_to_a_lock_shares_its_slot() {
        for key in ["lock.foo", "{user}.lock", "a{b}c{d}", "a{b", "{{a}", "{", "a{b}c}", "{lock.foo}", "a b", "{}a{b}"]
        {
            match key.parse::<Key>() {
                Ok(_) => assert_eq!(hashed(&companion_key(key, "queue")), hashed(key), "{key}"),
                Err(why) => assert!(key == "{}a{b}" && why.contains("slot"), "{key}: {why}"),
            }
        }
        for bad in ["", "a}b", "{}", "{}x", "x{}y", "}{", "a\nb", &"x".repeat(1001)] {
            assert!(bad.parse::<Key>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_belongs_to_one_lock_belongs_to_no_other() {
        assert_ne!(companion_key("lock.foo", "queue"), companion_key("{lock.foo}", "queue"));
    }
}
