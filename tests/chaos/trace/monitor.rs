//! What a server executes, in its order, as MONITOR tells it: each command of a client, and those of its script.
//!
//! Owns the connections and the form of the lines. Must not know what a command does.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::{Connection, RedisResult, Value, cmd};

use super::keyspace::Keyspace;
use crate::observer::connected;
use crate::support::{Redis, lasts};

/// A command, as the server executed it.
#[derive(Clone, Debug)]
pub struct Command {
    /// By the server's clock, in µs.
    pub at: u64,
    /// A script sent it.
    pub is_in_script: bool,
    /// From which port it came, if it came over TCP.
    pub port: Option<u16>,
    pub words: Vec<String>,
}

/// A master, as one look sees it.
#[derive(Default)]
pub struct Snapshot {
    pub keys: Keyspace,
    /// Whether the server is full, and so refuses what scripts write. A test bounds a server's memory only to fill it, and
    /// MONITOR does not report that.
    pub is_full: bool,
}

/// What comes next in the server's order.
pub enum Next {
    Command(Command),
    /// What a look at the master saw at this place in its order, at that time. The monitor has not seen all that came before.
    Snapshot(Snapshot, u64),
    /// At that time it was the replica of another server.
    Replica(u64),
    /// The connection is gone: what the server executes next is not seen.
    CutOff,
    /// Nothing yet.
    Nothing,
}

/// Returns whether the server is full, and all keys with their types, contents and when they expire, in ms; nothing at a
/// replica. The argument only marks the place. A key that is no longer of this node of a cluster counts for nothing.
const SNAPSHOT: &str = "local all = {} \
    if string.find(redis.call('INFO', 'replication'), 'role:slave', 1, true) then return false end \
    for _, key in ipairs(redis.call('KEYS', '*')) do \
      local kind = redis.pcall('TYPE', key).ok \
      local content = kind == 'string' and { redis.call('GET', key) } \
        or kind == 'hash' and redis.call('HGETALL', key) \
        or kind == 'zset' and redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') or {} \
      if kind then all[#all + 1] = { key, kind, content, expires(key) } end \
    end \
    local memory = redis.call('INFO', 'memory') \
    return { string.find(memory, 'maxmemory:0\\r', 1, true) and 0 or 1, all }";

/// How long to wait for a line before the caller may look whether it is time to stop.
const PATIENCE: Duration = Duration::from_millis(50);
/// How soon to look whether a replica still is one.
const AGAIN: Duration = Duration::from_millis(10);

pub struct Monitor {
    socket: PathBuf,
    lines: Option<BufReader<UnixStream>>,
    /// A line of which the end has not arrived.
    begun: Vec<u8>,
    /// For snapshots.
    asks: Option<Connection>,
    snapshots: u64,
    snapshot: State,
}

/// How far the last snapshot has come.
enum State {
    Wanted,
    /// Its place in the order is to come: this mark. None: of a replica.
    Taken(String, Option<Snapshot>),
    Passed,
}

impl Monitor {
    pub fn of(socket: &Path) -> Monitor {
        let (socket, snapshot) = (socket.to_owned(), State::Wanted);
        Monitor { socket, lines: None, begun: Vec::new(), asks: None, snapshots: 0, snapshot }
    }

    /// Takes a snapshot, which comes at its place in the order, unless one is to come.
    pub fn looks(&mut self) {
        if matches!(self.snapshot, State::Passed) {
            self.snapshot = State::Wanted;
        }
    }

    pub fn next(&mut self) -> Next {
        if self.lines.is_none() && !self.connects() {
            lasts(Duration::from_millis(2));
            return Next::Nothing;
        }
        if matches!(self.snapshot, State::Wanted) && !self.snaps() {
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
        let line = String::from_utf8_lossy(line);
        let Some(command) = Command::read(&line) else {
            // The reply to MONITOR; what else is not understood counts as not seen.
            return if line.starts_with("+OK") { Next::Nothing } else { self.lost() };
        };
        match &mut self.snapshot {
            State::Taken(mark, seen) if command.words.last() == Some(mark) => match seen.take() {
                Some(seen) => {
                    self.snapshot = State::Passed;
                    Next::Snapshot(seen, command.at)
                }
                None => {
                    self.snapshot = State::Wanted;
                    lasts(AGAIN);
                    Next::Replica(command.at)
                }
            },
            _ => Next::Command(command),
        }
    }

    /// Returns whether the server tells what it executes from now on.
    fn connects(&mut self) -> bool {
        let Ok(mut stream) = UnixStream::connect(&self.socket) else { return false };
        if stream.set_read_timeout(Some(PATIENCE)).is_err() || stream.write_all(b"MONITOR\r\n").is_err() {
            return false;
        }
        self.begun.clear();
        self.snapshot = State::Wanted;
        self.lines = Some(BufReader::with_capacity(1 << 16, stream));
        true
    }

    fn lost(&mut self) -> Next {
        (self.lines, self.asks, self.snapshot) = (None, None, State::Wanted);
        self.begun.clear();
        Next::CutOff
    }

    fn snaps(&mut self) -> bool {
        self.snapshots += 1;
        let mark = format!("snapshot-{}", self.snapshots);
        let seen = self.asks.take().map_or_else(|| connected(&self.socket), Ok).and_then(|mut connection| {
            // A node of a cluster shows keys that are arriving only then. Others refuse it.
            let _ = cmd("ASKING").exec(&mut connection);
            let seen = look(&mut connection, &mark)?;
            self.asks = Some(connection);
            Ok(seen)
        });
        // It may be hung, or loading, or gone.
        let is_taken = seen.is_ok();
        match seen {
            Ok(seen) => self.snapshot = State::Taken(mark, seen),
            Err(_) => lasts(Duration::from_millis(2)),
        }
        is_taken
    }
}

/// Looks at a server; none is seen of a replica.
fn look(connection: &mut Connection, mark: &str) -> RedisResult<Option<Snapshot>> {
    let script = format!("{} {SNAPSHOT}", Redis::EXPIRES);
    let seen: Option<(bool, Vec<Value>)> = cmd("EVAL").arg(script).arg(0).arg(mark).query(connection)?;
    seen.map(|(is_full, all)| Ok(Snapshot { keys: Keyspace::read(all)?, is_full })).transpose()
}

/// Returns whether a server has sent, to all who are told what it executes, what it has executed so far: it may answer a
/// request before that. One that cannot be asked tells nothing more.
pub fn has_told(socket: &Path) -> bool {
    let clients = connected(socket).and_then(|mut connection| cmd("CLIENT").arg("LIST").query(&mut connection));
    let has_told = |client: &str| {
        let has = |field: &str| client.split(' ').any(|one| one == field);
        !has("cmd=monitor") || has("obl=0") && has("oll=0")
    };
    clients.map_or(true, |clients: String| clients.lines().all(has_told))
}

impl Command {
    /// Reads `1764000000.123456 [0 127.0.0.1:50000] "GET" "lock:job"`; none if it is another reply.
    fn read(line: &str) -> Option<Command> {
        let line = line.strip_prefix('+').unwrap_or(line);
        let (time, rest) = line.split_once(" [")?;
        let (seconds, micros) = time.split_once('.')?;
        let at = seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?;
        let (from, quoted) = rest.split_once("] ")?;
        let port = from.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        Some(Command { at, is_in_script: from.ends_with(" lua"), port, words: unquoted(quoted)? })
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
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_line_of_the_server_is_read_as_it_was_executed() {
        let line = "+1764000000.000123 [0 lua] \"HSET\" \"{lock:a}:waiters\" \"a\\\"b\\\\\" \"1|2\\n\\x00z\"\r\n";
        let command = Command::read(line).unwrap();
        assert_eq!((command.at, command.is_in_script), (1_764_000_000_000_123, true));
        assert_eq!(command.words, ["HSET", "{lock:a}:waiters", "a\"b\\", "1|2\n\0z"]);
        let command = Command::read("+1764000000.000123 [0 unix:/tmp/a b/s] \"GET\" \"\"\r\n").unwrap();
        assert!(!command.is_in_script && command.port.is_none() && command.words == ["GET", ""]);
        let command = Command::read("+1764000000.000123 [0 127.0.0.1:50000] \"GET\" \"\"\r\n").unwrap();
        assert_eq!(command.port, Some(50_000));
        assert!(Command::read("+OK\r\n").is_none());
    }

    #[test]
    fn a_snapshot_says_when_each_key_expires_though_the_server_is_held_up_in_the_middle_of_it() {
        let redis = Redis::start();
        redis.leave_as_it_is();
        let mut connection = connected(&redis.socket()).unwrap();
        let (seconds, _): (u64, u64) = cmd("TIME").query(&mut connection).unwrap();
        let end = (seconds + 3600) * 1000;
        let mut sets = redis::pipe();
        (0..500).for_each(|n| _ = sets.cmd("SET").arg(n).arg("").arg("PXAT").arg(end).ignore());
        sets.exec(&mut connection).unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..60 {
                    redis.hang();
                    lasts(Duration::from_millis(15));
                    redis.resume();
                    lasts(Duration::from_millis(7));
                }
                is_over.store(true, Ordering::Relaxed);
            });
            while !is_over.load(Ordering::Relaxed) {
                let Snapshot { keys, .. } = look(&mut connection, "").unwrap().unwrap();
                let ends: BTreeSet<u64> = (0..500).filter_map(|n| keys.end(&n.to_string())).collect();
                assert!(ends.iter().all(|said| said.abs_diff(end) <= 1), "{ends:?}, not {end}");
            }
        });
    }
}
