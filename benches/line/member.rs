//! One that waits for a lock, or holds it: a connection, and what the server has said on it.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use redis::{Cmd, PushKind, Value, cmd};

use crate::rig::{Server, now};

/// As `src/store/redis/queue.rs`.
const HEARTBEAT: Duration = Duration::from_secs(2);
const LONGER: Duration = Duration::from_secs(4);
const LONGEST: Duration = Duration::from_secs(30);
const SPARE: Duration = Duration::from_secs(4);
const WATCHERS: u32 = 3;
/// Longer than any measurement.
const TTL_MS: u64 = 3_600_000;

pub struct Member {
    stream: UnixStream,
    received: Vec<u8>,
    key: String,
    token: String,
    channel: String,
    ticket: String,
    /// The server's time as of the last answer, unless it was called back since.
    last: String,
    place: u32,
    pub asks_at: Duration,
    pub holds: bool,
    /// By what its heartbeats differ from those of others, from 0 to 1.
    jitter: f64,
    called: Called,
}

/// What a message says, the least first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Called {
    No,
    ToAskSoon,
    ToAskInTurn,
    ToAsk,
}

impl Member {
    pub fn new(server: &Server, name: usize, number: usize) -> Member {
        let stream = UnixStream::connect(server.socket()).expect("the server accepts");
        let (key, random) = (format!("lock:bench{name}"), format!("{number:026}"));
        let mut member = Member {
            stream,
            received: Vec::new(),
            token: format!("nx1:{random}:root@bench:{number}:1800000000000:"),
            channel: format!("{key}:wake:{random}"),
            key,
            ticket: "0".into(),
            last: String::new(),
            place: 0,
            asks_at: Duration::ZERO,
            holds: false,
            jitter: f64::from(u32::try_from(number * 7919 % 1000).expect("small")) / 1000.0,
            called: Called::No,
        };
        member.converses(cmd("HELLO").arg("3"));
        let channels = [member.channel.clone(), format!("{}:wake", member.key)];
        let subscribe = cmd("SUBSCRIBE").arg(&channels).get_packed_command();
        member.stream.write_all(&subscribe).expect("it is sent");
        for _ in channels {
            while !matches!(member.value(), Value::Push { kind: PushKind::Subscribe, .. }) {}
        }
        member
    }

    /// Asks for the lock.
    pub fn asks(&mut self, script: &str) {
        let lease = (self.heartbeat() + SPARE).as_millis().to_string();
        let fields =
            [("ttl", TTL_MS.to_string()), ("mode", "queue".into()), ("lease", lease), ("grace", "1000".into())];
        let fields = fields.into_iter().chain([("channel", self.channel.clone()), ("ticket", self.ticket.clone())]);
        let fields = fields.chain((!self.last.is_empty()).then(|| ("last", self.last.clone())));
        let answer = self.calls(script, "acquire", &fields.collect::<Vec<_>>());
        let of = |field: &str| answer.iter().find(|(name, _)| name == field).map(|(_, value)| value.as_str());
        self.holds = of("verdict") == Some("granted");
        if !self.holds {
            assert_eq!((of("verdict"), of("heard")), (Some("waiting"), Some("1")), "{answer:?}");
            let before = self.heartbeat();
            self.ticket = of("ticket").expect("a ticket").to_owned();
            self.last = of("now").expect("the server's time").to_owned();
            self.place = of("place").and_then(|place| place.parse().ok()).expect("a place");
            let pause = before.min(self.heartbeat()).mul_f64(0.8 + 0.2 * self.jitter);
            let ends_in = of("look_in").and_then(|ms| ms.parse().ok()).map(Duration::from_millis);
            let pause = ends_in.filter(|_| self.place <= WATCHERS).map_or(pause, |ends_in| pause.min(ends_in));
            self.asks_at = now() + pause;
        }
    }

    /// Releases the lock. Returns how many requests that takes.
    pub fn releases(&mut self, script: &str) -> usize {
        (1..).find(|_| !self.calls(script, "release", &[]).contains(&("again".into(), "1".into()))).expect("it ends")
    }

    /// Returns how long it takes at least from a message that calls all back.
    pub fn turn(&self) -> Duration {
        Duration::from_millis(self.place.into())
    }

    fn heartbeat(&self) -> Duration {
        (LONGER * self.place.saturating_sub(2) + HEARTBEAT).min(LONGEST)
    }

    /// Reads the messages that have come.
    pub fn hears(&mut self) -> Called {
        self.stream.set_nonblocking(true).expect("a socket");
        let mut piece = [0; 4096];
        while let Ok(n @ 1..) = self.stream.read(&mut piece) {
            self.received.extend_from_slice(&piece[..n]);
        }
        self.stream.set_nonblocking(false).expect("a socket");
        while let Some(value) = self.parsed() {
            self.is_told(&value);
        }
        std::mem::replace(&mut self.called, Called::No)
    }

    fn is_told(&mut self, value: &Value) {
        let Value::Push { kind: PushKind::Message, data } = value else { return };
        let word = data.get(1).map(text).unwrap_or_default();
        self.called = self.called.max(match word.as_bytes() {
            b"t" => Called::No,
            b"l" => Called::ToAskInTurn,
            [b'e', ..] => Called::ToAskSoon,
            _ => Called::ToAsk,
        });
        if word == "l" {
            self.last.clear();
        }
    }

    /// Calls the script. Returns the fields of its answer.
    fn calls(&mut self, script: &str, operation: &str, fields: &[(&str, String)]) -> Vec<(String, String)> {
        let mut call = cmd("EVALSHA");
        let companions = ["fence", "shares", "terms", "queue", "waiters"];
        call.arg(script).arg(1 + companions.len()).arg(&self.key);
        companions.iter().for_each(|name| _ = call.arg(format!("{{{}}}:{name}", self.key)));
        call.arg(operation).arg("token").arg(&self.token);
        fields.iter().for_each(|(field, value)| _ = call.arg(*field).arg(value));
        let Value::Array(answer) = self.converses(&call) else { panic!("no answer to {operation}") };
        answer.chunks(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect()
    }

    /// Sends a request, and waits for its reply.
    fn converses(&mut self, request: &Cmd) -> Value {
        self.stream.write_all(&request.get_packed_command()).expect("it is sent");
        loop {
            match self.value() {
                push @ Value::Push { .. } => self.is_told(&push),
                Value::ServerError(error) => panic!("{error:?}"),
                reply => return reply,
            }
        }
    }

    fn value(&mut self) -> Value {
        let mut piece = [0; 4096];
        loop {
            if let Some(value) = self.parsed() {
                return value;
            }
            let n = self.stream.read(&mut piece).expect("the server answers");
            assert!(n > 0, "the server has closed the connection");
            self.received.extend_from_slice(&piece[..n]);
        }
    }

    /// Takes the first value out of what has come, if all of it has.
    fn parsed(&mut self) -> Option<Value> {
        let end = end_of(&self.received)?;
        let value = redis::parse_redis_value(&self.received[..end]).expect("it speaks the protocol");
        self.received.drain(..end);
        Some(value)
    }
}

impl AsFd for Member {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Returns where the first value ends, if it does.
fn end_of(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|two| two == b"\r\n")?;
    let count: usize = std::str::from_utf8(&bytes[1..line]).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let elements = match bytes[0] {
        b'$' | b'=' if bytes[1] != b'-' => return Some(line + count + 4).filter(|end| *end <= bytes.len()),
        b'*' | b'>' | b'~' => count,
        b'%' => 2 * count,
        _ => 0,
    };
    (0..elements).try_fold(line + 2, |end, _| Some(end + end_of(&bytes[end..])?))
}

fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Int(number) => number.to_string(),
        _ => String::new(),
    }
}
