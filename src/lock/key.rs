//! Keys: an exact one that somebody gives, and those of what belongs to a lock. Owns where braces stand.

use std::str::FromStr;

use super::LockName;

/// An exact key, without a prefix, that other programs fixed long ago.
///
/// In a cluster all that belongs to a lock has to lie in the slot of its key. The slot is that of what
/// stands in the first braces if that is anything, and else of the whole key (Redis cluster
/// specification, hash tags): which other key shares it can be told for every key but those that have
/// a closing brace and no tag.
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
    /// The key is all the name that its lock has.
    pub fn name(&self) -> LockName {
        LockName(self.0.clone())
    }
}

/// The part that picks the slot in a cluster, where it is not the whole.
fn tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    rest.split_once('}').map(|(tag, _)| tag).filter(|tag| !tag.is_empty())
}

/// The key of something that belongs to the lock under `key`: in the same slot of a cluster.
pub fn companion_key(key: &str, what: &str) -> String {
    match tag(key) {
        None => format!("{{{key}}}:{what}"),
        // Longer, so that it is not what belongs to the lock whose key is that tag.
        Some(_) => format!("{key}:nxlock:{what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is hashed for the slot, by the specification.
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
