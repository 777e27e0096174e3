//! What a server executes, in its order, as MONITOR tells it: each command of a client, and those of its script.
//!
//! Owns the connections and the form of the lines. Must not know what a command does.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::{Connection, Value, cmd};

use super::keyspace::Keyspace;
use crate::observer::connected;
use crate::support::lasts;

/// A command, as the server executed it.
#[derive(Clone, Debug)]
pub struct Command {
    /// By the server's clock, in µs.
    pub at: u64,
    /// A script sent it.
    pub is_in_script: bool,
    pub words: Vec<String>,
}

/// What comes next in the server's order.
pub enum Next {
    Command(Command),
    /// All keys, as they were at this place. What came before that time was not seen whole.
    Snapshot(Keyspace, u64),
    /// The connection is gone: what the server executes next is not seen.
    CutOff,
    /// Nothing yet.
    Nothing,
}

/// Returns all keys with their types, contents and remaining lives, each at what time; the second argument only marks the
/// place.
const SNAPSHOT: &str = "local all = {} \
    for _, key in ipairs(redis.call('KEYS', '*')) do \
      local kind = redis.call('TYPE', key).ok \
      local content = kind == 'string' and { redis.call('GET', key) } \
        or kind == 'hash' and redis.call('HGETALL', key) \
        or kind == 'zset' and redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') or {} \
      all[#all + 1] = { key, kind, content, redis.call('PTTL', key), redis.call('TIME') } \
    end return all";

/// How long to wait for a line before the caller may look whether it is time to stop.
const PATIENCE: Duration = Duration::from_millis(50);

pub struct Monitor {
    socket: PathBuf,
    lines: Option<BufReader<UnixStream>>,
    /// A line of which the end has not arrived.
    begun: Vec<u8>,
    /// For snapshots.
    asks: Option<Connection>,
    snapshots: u64,
    /// A snapshot that was taken, until its place in the order comes.
    awaited: Option<(String, Keyspace)>,
}

impl Monitor {
    pub fn of(socket: &Path) -> Monitor {
        Monitor { socket: socket.to_owned(), lines: None, begun: Vec::new(), asks: None, snapshots: 0, awaited: None }
    }

    /// Takes a snapshot, which comes at its place in the order.
    pub fn looks(&mut self) {
        self.awaited = None;
    }

    pub fn next(&mut self) -> Next {
        if self.lines.is_none() && !self.connects() {
            lasts(Duration::from_millis(2));
            return Next::Nothing;
        }
        if self.awaited.is_none() && !self.snaps() {
            return Next::Nothing;
        }
        let Some(lines) = &mut self.lines else { return Next::Nothing };
        match lines.read_until(b'\n', &mut self.begun) {
            Ok(0) => self.lost(),
            Ok(_) if self.begun.last() != Some(&b'\n') => Next::Nothing,
            Ok(_) => {
                let line = std::mem::take(&mut self.begun);
                self.understands(&line)
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) =>
            {
                Next::Nothing
            }
            Err(_) => self.lost(),
        }
    }

    fn understands(&mut self, line: &[u8]) -> Next {
        let Some(command) = Command::read(&String::from_utf8_lossy(line)) else { return Next::Nothing };
        match self.awaited.take() {
            Some((mark, keys)) if !mark.is_empty() => {
                if command.words.last() == Some(&mark) {
                    self.awaited = Some((String::new(), Keyspace::default()));
                    return Next::Snapshot(keys, command.at);
                }
                self.awaited = Some((mark, keys));
                Next::Nothing
            }
            seen => {
                self.awaited = seen;
                Next::Command(command)
            }
        }
    }

    /// Returns whether the server tells what it executes from now on.
    fn connects(&mut self) -> bool {
        let Ok(mut stream) = UnixStream::connect(&self.socket) else { return false };
        if stream.set_read_timeout(Some(PATIENCE)).is_err() || stream.write_all(b"MONITOR\r\n").is_err() {
            return false;
        }
        self.begun.clear();
        self.awaited = None;
        self.lines = Some(BufReader::with_capacity(1 << 16, stream));
        true
    }

    fn lost(&mut self) -> Next {
        (self.lines, self.asks, self.awaited) = (None, None, None);
        self.begun.clear();
        Next::CutOff
    }

    fn snaps(&mut self) -> bool {
        self.snapshots += 1;
        let mark = format!("snapshot-{}", self.snapshots);
        let keys = self.asks.take().map_or_else(|| connected(&self.socket), Ok).and_then(|mut connection| {
            let all: Vec<Value> = cmd("EVAL").arg(SNAPSHOT).arg(0).arg(&mark).query(&mut connection)?;
            self.asks = Some(connection);
            Keyspace::read(all)
        });
        match keys {
            Ok(keys) => self.awaited = Some((mark, keys)),
            // It is hung, or loading, or gone.
            Err(_) => lasts(Duration::from_millis(2)),
        }
        self.awaited.is_some()
    }
}

impl Command {
    /// Reads `1764000000.123456 [0 unix:/run/s] "GET" "lock:job"`; none if it is another reply.
    fn read(line: &str) -> Option<Command> {
        let line = line.strip_prefix('+').unwrap_or(line);
        let (time, rest) = line.split_once(" [")?;
        let (seconds, micros) = time.split_once('.')?;
        let at = seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?;
        let (from, quoted) = rest.split_once("] ")?;
        Some(Command { at, is_in_script: from.ends_with(" lua"), words: unquoted(quoted)? })
    }

    pub fn verb(&self) -> String {
        self.words.first().map(|verb| verb.to_ascii_uppercase()).unwrap_or_default()
    }
}

/// Reads words in the quotes of `sdscatrepr`.
fn unquoted(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut bytes = text.trim_end().bytes();
    while let Some(byte) = bytes.next() {
        if byte == b' ' {
            continue;
        }
        let mut word = Vec::new();
        loop {
            match bytes.next()? {
                b'"' => break,
                b'\\' => word.push(match bytes.next()? {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'a' => 7,
                    b'b' => 8,
                    b'x' => {
                        let digits = [bytes.next()?, bytes.next()?];
                        u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                    }
                    other => other,
                }),
                other => word.push(other),
            }
        }
        words.push(String::from_utf8_lossy(&word).into_owned());
    }
    (!words.is_empty()).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_server_is_read_as_it_was_executed() {
        let line = "+1764000000.000123 [0 lua] \"HSET\" \"{lock:a}:waiters\" \"a\\\"b\\\\\" \"1|2\\n\\x00z\"\r\n";
        let command = Command::read(line).unwrap();
        assert_eq!((command.at, command.is_in_script), (1_764_000_000_000_123, true));
        assert_eq!(command.words, ["HSET", "{lock:a}:waiters", "a\"b\\", "1|2\n\0z"]);
        let command = Command::read("+1764000000.000123 [0 unix:/tmp/a b/s] \"GET\" \"\"\r\n").unwrap();
        assert!(!command.is_in_script && command.words == ["GET", ""]);
        assert!(Command::read("+OK\r\n").is_none());
    }
}
