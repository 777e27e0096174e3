//! A server of another kind than the one at hand: no scripts, but commands that compare, as Redis 8.4
//! and Valkey 9.0 have them. As much of it as locking without scripts asks for.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Nxlock, now};

pub struct Fake {
    directory: TempDir,
    memory: Arc<Mutex<Memory>>,
}

struct Memory {
    /// `DELIFEQ` (Valkey) or `DELEX` (Redis): how it deletes what is equal. It knows one of them.
    delete: &'static str,
    keys: HashMap<String, (String, Option<Instant>)>,
    /// What was asked, without keys and values.
    asked: Vec<String>,
}

impl Fake {
    pub fn that_deletes_by(delete: &'static str) -> Fake {
        let directory = tempfile::Builder::new().prefix("nxf").tempdir().expect("a directory for the server");
        let listener = UnixListener::bind(directory.path().join("s")).expect("a socket");
        let memory = Arc::new(Mutex::new(Memory { delete, keys: HashMap::new(), asked: Vec::new() }));
        let shared = Arc::clone(&memory);
        // Both kinds of threads end with the test process at the latest.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let memory = Arc::clone(&shared);
                thread::spawn(move || serve(&client, &memory));
            }
        });
        Fake { directory, memory }
    }

    pub fn nxlock<I: IntoIterator<Item: Into<std::ffi::OsString>>>(&self, args: I) -> Nxlock {
        let socket = self.directory.path().join("s");
        Nxlock::new(args).env("NXLOCK_SERVER", format!("unix://{}", socket.display()))
    }

    pub fn value(&self, key: &str) -> Option<String> {
        self.memory().value(key).map(str::to_owned)
    }

    pub fn pttl(&self, key: &str) -> i64 {
        self.memory().pttl(key)
    }

    /// A plain client has it now, whoever had it before.
    pub fn put(&self, key: &str, value: &str, ttl: Duration) {
        self.memory().keys.insert(key.to_owned(), (value.to_owned(), Some(now() + ttl)));
    }

    pub fn delete(&self, key: &str) {
        self.memory().keys.remove(key);
    }

    pub fn was_asked(&self, what: &str) -> bool {
        self.memory().asked.iter().any(|asked| asked == what)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().expect("no test has panicked in it")
    }
}

fn serve(client: &UnixStream, memory: &Mutex<Memory>) -> Option<()> {
    let mut requests = BufReader::new(client);
    loop {
        let request = request(&mut requests)?;
        let words: Vec<&str> = request.iter().map(String::as_str).collect();
        let reply = memory.lock().ok()?.answer(&words);
        (&mut &*client).write_all(reply.as_bytes()).ok()?;
    }
}

/// An array of bulk strings, which is what every client sends.
fn request(from: &mut impl BufRead) -> Option<Vec<String>> {
    let count = number(from)?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let mut word = vec![0; number(from)? + 2];
        from.read_exact(&mut word).ok()?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8(word).ok()?);
    }
    Some(words)
}

/// `*3` or `$5`.
fn number(from: &mut impl BufRead) -> Option<usize> {
    let mut line = String::new();
    from.read_line(&mut line).ok()?;
    line.trim_end().get(1..)?.parse().ok()
}

impl Memory {
    fn value(&self, key: &str) -> Option<&str> {
        let (value, ends) = self.keys.get(key)?;
        ends.is_none_or(|ends| ends > now()).then_some(value)
    }

    fn pttl(&self, key: &str) -> i64 {
        match (self.value(key), self.keys.get(key)) {
            (Some(_), Some((_, Some(ends)))) => {
                i64::try_from(ends.saturating_duration_since(now()).as_millis()).expect("it fits")
            }
            (Some(_), _) => -1,
            (None, _) => -2,
        }
    }

    fn answer(&mut self, words: &[&str]) -> String {
        let known = ["NX", "PX", "IFEQ"];
        let shape: Vec<&str> = words.iter().skip(1).copied().filter(|word| known.contains(word)).collect();
        self.asked.push([&words[..1], &shape].concat().join(" "));
        match *words {
            ["GET", key] => bulk(self.value(key)),
            ["PTTL", key] => format!(":{}\r\n", self.pttl(key)),
            ["TYPE", key] => format!("+{}\r\n", if self.value(key).is_some() { "string" } else { "none" }),
            ["SET", key, value, "NX", "PX", ttl] => self.set(key, value, ttl, None),
            ["SET", key, value, "IFEQ", other, "PX", ttl] => self.set(key, value, ttl, Some(other)),
            ["DELIFEQ", key, value] if self.delete == "DELIFEQ" => self.remove(key, value),
            ["DELEX", key, "IFEQ", value] if self.delete == "DELEX" => self.remove(key, value),
            [name, ..] => format!("-ERR unknown command '{name}', with args beginning with: \r\n"),
            [] => "-ERR Protocol error\r\n".to_owned(),
        }
    }

    fn set(&mut self, key: &str, value: &str, ttl: &str, only_over: Option<&str>) -> String {
        let Ok(ttl) = ttl.parse() else { return "-ERR value is not an integer or out of range\r\n".to_owned() };
        if self.value(key) != only_over {
            return bulk(None);
        }
        self.keys.insert(key.to_owned(), (value.to_owned(), Some(now() + Duration::from_millis(ttl))));
        "+OK\r\n".to_owned()
    }

    fn remove(&mut self, key: &str, value: &str) -> String {
        let equal = self.value(key) == Some(value);
        if equal {
            self.keys.remove(key);
        }
        format!(":{}\r\n", i32::from(equal))
    }
}

fn bulk(text: Option<&str>) -> String {
    text.map_or("$-1\r\n".to_owned(), |text| format!("${}\r\n{text}\r\n", text.len()))
}
