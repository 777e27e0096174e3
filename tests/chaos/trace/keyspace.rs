//! The keys of a server, as the commands that it executed leave them.
//!
//! Owns what each command does to a key. Must not know what a key is for.

use std::collections::BTreeMap;

use redis::{RedisResult, Value};

#[derive(Clone, Debug, Default)]
pub struct Keyspace(BTreeMap<String, Key>);

#[derive(Clone, Debug)]
struct Key {
    content: Content,
    /// When it expires, in ms.
    end: Option<u64>,
}

#[derive(Clone, Debug)]
pub enum Content {
    Text(String),
    Hash(BTreeMap<String, String>),
    /// Each member and its score.
    Sorted(BTreeMap<String, i64>),
}

/// Commands that only read, or change no key.
const READS: [&str; 44] = [
    "TIME",
    "GET",
    "PTTL",
    "TTL",
    "PEXPIRETIME",
    "TYPE",
    "HGET",
    "HMGET",
    "HGETALL",
    "HLEN",
    "ZRANGE",
    "ZSCORE",
    "ZRANK",
    "ZCARD",
    "ZCOUNT",
    "EXISTS",
    "PUBLISH",
    "PUBSUB",
    "CLUSTER",
    "ASKING",
    "SCAN",
    "KEYS",
    "INFO",
    "PING",
    "SELECT",
    "CLIENT",
    "HELLO",
    "AUTH",
    "ROLE",
    "SUBSCRIBE",
    "UNSUBSCRIBE",
    "COMMAND",
    "MULTI",
    "EXEC",
    "WATCH",
    "UNWATCH",
    "SCRIPT",
    "EVAL",
    "EVALSHA",
    "EVAL_RO",
    "EVALSHA_RO",
    "RESET",
    "OBJECT",
    "DEBUG",
];

impl Keyspace {
    /// Reads the reply to a snapshot.
    pub fn read(all: Vec<Value>) -> RedisResult<Keyspace> {
        let mut keys = BTreeMap::new();
        for part in all {
            let (key, kind, content, end): (String, String, Vec<String>, i64) = redis::from_redis_value(part)?;
            let pairs = content.chunks(2).map(|pair| (pair[0].clone(), pair.get(1).cloned().unwrap_or_default()));
            let content = match kind.as_str() {
                "hash" => Content::Hash(pairs.collect()),
                "zset" => Content::Sorted(pairs.map(|(member, score)| (member, number(&score))).collect()),
                _ => Content::Text(content.concat()),
            };
            // One that lasts is said to expire at -1.
            keys.insert(key, Key { content, end: u64::try_from(end).ok() });
        }
        Ok(Keyspace(keys))
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        match self.0.get(key).map(|key| &key.content) {
            Some(Content::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(|key| self.text(key))
    }

    /// Returns the greatest number in the keys of this kind.
    pub fn greatest(&self, kind: &str) -> Option<u64> {
        self.0.keys().filter(|key| key.ends_with(kind)).filter_map(|key| self.text(key)?.parse().ok()).max()
    }

    pub fn hash(&self, key: &str) -> impl Iterator<Item = (&String, &String)> {
        let hash = match self.0.get(key).map(|key| &key.content) {
            Some(Content::Hash(hash)) => Some(hash),
            _ => None,
        };
        hash.into_iter().flatten()
    }

    pub fn field(&self, key: &str, field: &str) -> Option<&str> {
        self.hash(key).find(|(name, _)| *name == field).map(|(_, value)| value.as_str())
    }

    /// Returns the members of a sorted set, in its order.
    pub fn sorted(&self, key: &str) -> Vec<(String, i64)> {
        let mut members: Vec<(String, i64)> = match self.0.get(key).map(|key| &key.content) {
            Some(Content::Sorted(members)) => members.iter().map(|(member, score)| (member.clone(), *score)).collect(),
            _ => Vec::new(),
        };
        members.sort_by(|(a, one), (b, other)| (one, a).cmp(&(other, b)));
        members
    }

    /// Lets a key expire at another time, in ms, if it expires.
    pub fn ends_at(&mut self, key: &str, time: u64) {
        if let Some(Key { end: Some(end), .. }) = self.0.get_mut(key) {
            *end = time;
        }
    }

    /// Returns when a key expires, in ms.
    pub fn end(&self, key: &str) -> Option<u64> {
        self.0.get(key)?.end
    }

    pub fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// Returns whether a key is there that never expires.
    pub fn lasts(&self, key: &str) -> bool {
        self.0.get(key).is_some_and(|key| key.end.is_none())
    }

    /// Removes the keys that have certainly expired by that time, given how far off the end of each may be; both in ms.
    pub fn expire(&mut self, now: u64, blur: impl Fn(&str) -> u64) {
        self.0.retain(|name, key| key.end.is_none_or(|end| end >= now.saturating_sub(blur(name))));
    }

    pub fn remove(&mut self, key: &str) {
        self.0.remove(key);
    }

    /// Does what a command does at that time, in ms.
    ///
    /// # Errors
    /// If what it does is not known here.
    pub fn executes(&mut self, verb: &str, words: &[String], now: u64) -> Result<(), String> {
        let word = |at: usize| words.get(at).map(String::as_str).unwrap_or_default();
        let key = word(1).to_owned();
        match verb {
            "SET" => {
                let option = |name: &str| words.iter().skip(3).position(|word| word.eq_ignore_ascii_case(name));
                if option("NX").is_some() && self.has(&key) {
                    return Ok(());
                }
                let end = option("PX").map(|at| now + number(word(at + 4)).unsigned_abs());
                self.0.insert(key, Key { content: Content::Text(word(2).to_owned()), end });
            }
            "MSET" => words[1..].chunks(2).for_each(|pair| {
                let content = Content::Text(pair.get(1).cloned().unwrap_or_default());
                self.0.insert(pair[0].clone(), Key { content, end: None });
            }),
            "DEL" | "UNLINK" => words.iter().skip(1).for_each(|key| self.remove(key)),
            "FLUSHALL" | "FLUSHDB" => self.0.clear(),
            "PEXPIRE" => {
                let ms = number(word(2));
                if ms <= 0 {
                    self.remove(&key);
                } else if let Some(key) = self.0.get_mut(&key) {
                    key.end = Some(now + ms.unsigned_abs());
                }
            }
            "HSET" => {
                let new = || Key { content: Content::Hash(BTreeMap::new()), end: None };
                if let Content::Hash(hash) = &mut self.0.entry(key).or_insert_with(new).content {
                    hash.extend(words[2..].chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())));
                }
            }
            "HDEL" => {
                if let Some(Key { content: Content::Hash(hash), .. }) = self.0.get_mut(&key) {
                    hash.retain(|field, _| !words[2..].contains(field));
                    if hash.is_empty() {
                        self.remove(&key);
                    }
                }
            }
            "ZADD" => {
                let new = || Key { content: Content::Sorted(BTreeMap::new()), end: None };
                if let Content::Sorted(members) = &mut self.0.entry(key).or_insert_with(new).content {
                    members.insert(word(3).to_owned(), number(word(2)));
                }
            }
            "ZREM" => {
                if let Some(Key { content: Content::Sorted(members), .. }) = self.0.get_mut(&key) {
                    members.retain(|member, _| !words[2..].contains(member));
                    if members.is_empty() {
                        self.remove(&key);
                    }
                }
            }
            verb if READS.contains(&verb) => {}
            verb => return Err(format!("it is not known here what {verb} does")),
        }
        Ok(())
    }

    /// Returns whether a command changes keys.
    pub fn writes(verb: &str) -> bool {
        !READS.contains(&verb)
    }
}

/// Returns a whole number; 0 if it is none, which no score of a lock is.
fn number(text: &str) -> i64 {
    text.parse().unwrap_or_default()
}
