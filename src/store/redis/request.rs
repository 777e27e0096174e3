//! The requests that lock.lua carries out: its keys, and its arguments as fields and values.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use redis::Cmd;

use super::queue::Place;
use super::scripts::{LOCK, MOVING, Script};
use crate::lock::{Asker, Claim, Fence, HolderId, RunCount, Token, Ttl, companion_key};
use crate::store::{AcquireMode, Asking};

/// An operation on one lock.
pub struct Request<'a> {
    operation: &'static str,
    fields: Vec<(&'static str, Cow<'a, str>)>,
    companions: Vec<&'static str>,
}

/// One attempt to get a lock.
pub struct Attempt<'a> {
    pub ttl: Ttl,
    pub mode: AcquireMode,
    /// How long the lock stays reserved for the claimant.
    pub grace: Duration,
    /// Its place in the queue.
    pub place: &'a Place,
    /// The server is a node of a cluster: a lock's slot may move to another.
    pub in_cluster: bool,
}

/// The companion keys of every lock; the first are those that a holder needs.
const COMPANIONS: [&str; 5] = ["fence", "shares", "terms", QUEUE, WAITERS];
const OF_HOLDERS: usize = 3;
pub const QUEUE: &str = "queue";
pub const WAITERS: &str = "waiters";
/// The companion key of claims that supersede.
const NEWEST: &str = "newest";
/// The companion key with the recorded runs.
pub const RUNS: &str = "runs";

impl<'a> Request<'a> {
    fn new(operation: &'static str) -> Request<'a> {
        Request { operation, fields: Vec::new(), companions: COMPANIONS.to_vec() }
    }

    pub fn acquire(claim: &'a Claim, attempt: &Attempt<'a>) -> Request<'a> {
        let mode = match attempt.mode {
            AcquireMode::Once => "once",
            AcquireMode::Queue => "queue",
            AcquireMode::Plain => "plain",
        };
        let mut request = Request::of_claim("acquire", claim)
            .with("ttl", attempt.ttl.millis().to_string())
            .with("mode", mode)
            .with("lease", millis(attempt.place.lease))
            .with("grace", millis(attempt.grace))
            .with_any("channel", &attempt.place.channel)
            .with_any("ticket", &attempt.place.ticket)
            .with_any("cluster", if attempt.in_cluster { "1" } else { "" });
        if let Some(last) = attempt.place.last.and_then(|last| last.duration_since(SystemTime::UNIX_EPOCH).ok()) {
            request = request.with("last", last.as_micros().to_string());
        }
        if !claim.enclosing.is_empty() {
            let tokens: Vec<&str> = claim.enclosing.iter().map(Token::as_str).collect();
            request = request.with("enclosing", tokens.join(" "));
        }
        if let Some(beside) = &claim.beside_setnx {
            request = request.with("margin", millis(beside.margin)).with("identity", &beside.identity);
        }
        if let Some(done) = claim.recording.as_ref().and_then(|recording| recording.unless_done) {
            request = request.with("unless", done.as_micros().to_string());
        }
        request
    }

    /// A release; the end of the run under the claim is recorded with it. A holder that is not the one who releases is
    /// told, and who breaks its claim is noted for it.
    pub fn release(claim: &'a Claim) -> Request<'a> {
        let is_told = claim.owner_pid.is_none();
        let by = claim.broken_by.as_ref().map_or("", Token::as_str);
        let request = Request::of_claim("release", claim).with_any("tell", if is_told { "1" } else { "" });
        request.with_any("by", by).with_end(claim)
    }

    /// The same, but the grant with this fence stays.
    pub fn keeping(self, fence: Fence) -> Request<'a> {
        self.with("keeps", fence.0.to_string())
    }

    /// The end of the run under a claim, without a release.
    pub fn record(claim: &'a Claim) -> Request<'a> {
        Request { companions: [&COMPANIONS[..], &[RUNS]].concat(), ..Request::new("record") }
            .with("token", claim.token.as_str())
            .with_run(claim)
            .with_end(claim)
    }

    /// A renewal; beside `SETNX` clients with the identity of the holder.
    pub fn renew(claim: &'a Claim, ttl: Ttl, may_shorten: bool) -> Request<'a> {
        let request = Request::new("renew")
            .with("token", claim.token.as_str())
            .with("ttl", ttl.millis().to_string())
            .with("how", how(may_shorten));
        match &claim.beside_setnx {
            Some(beside) => request.with("identity", &beside.identity),
            None if claim.token.is_beside_setnx() => request.with("identity", claim.token.identity_begin()),
            None => request,
        }
    }

    pub fn ask(asker: &'a Asker, asking: Asking) -> Request<'a> {
        let request = Request::new("ask").with("id", asker.of.as_str()).with("by", asker.by.as_str());
        match asking {
            Asking::ToGiveUp => request,
            Asking::NoMore => request.with("back", "1"),
        }
    }

    pub fn raise(token: &'a Token, fence: Fence, ttl: Ttl) -> Request<'a> {
        Request { companions: COMPANIONS[..1].to_vec(), ..Request::new("raise") }
            .with("token", token.as_str())
            .with("fence", fence.0.to_string())
            .with("ttl", ttl.millis().to_string())
    }

    /// A look at a lock, at its first waiters and its last recorded runs.
    pub fn status(waiters: usize) -> Request<'a> {
        let mut request = Request::inspect(None, waiters).with("who", "").with("runs", RunCount::USUAL.to_string());
        request.companions.push(RUNS);
        request
    }

    /// A look at a lock and at the first waiters, at `most` so many; the holder known as `id` is among those that are
    /// returned.
    pub fn inspect(id: Option<&'a HolderId>, most: usize) -> Request<'a> {
        Request::new("inspect").with_any("id", id.map_or("", HolderId::as_str)).with("most", most.to_string())
    }

    pub fn history() -> Request<'a> {
        Request { companions: [&COMPANIONS[..], &[RUNS]].concat(), ..Request::new("history") }.with("who", "")
    }

    /// Returns the same request for the keys of the holders alone. While a slot is moving, a server refuses one for keys of
    /// which only some exist.
    pub fn of_holders(self) -> Request<'a> {
        Request { companions: COMPANIONS[..OF_HOLDERS].to_vec(), ..self }
    }

    /// Returns the request about the runs alone.
    pub fn of_runs(self) -> Request<'a> {
        Request { companions: Vec::new(), ..self }
    }

    fn of_claim(operation: &'static str, claim: &'a Claim) -> Request<'a> {
        let mut request = Request::new(operation).with("token", claim.token.as_str());
        if claim.token.supersedes() {
            request.companions.push(NEWEST);
        }
        if claim.recording.is_some() {
            request.companions.push(RUNS);
        }
        request.with_run(claim)
    }

    fn with(mut self, field: &'static str, value: impl Into<Cow<'a, str>>) -> Request<'a> {
        self.fields.push((field, value.into()));
        self
    }

    /// Adds a field unless it is empty.
    fn with_any(self, field: &'static str, value: &'a str) -> Request<'a> {
        if value.is_empty() { self } else { self.with(field, value) }
    }

    fn with_run(self, claim: &'a Claim) -> Request<'a> {
        let Some(recording) = &claim.recording else { return self };
        self.with("who", &recording.who)
            .with("kept", millis(recording.kept_for()))
            .with("most", recording.kept.get().to_string())
            .with("waited", millis(recording.waited()))
    }

    fn with_end(mut self, claim: &'a Claim) -> Request<'a> {
        let Some(recording) = &claim.recording else { return self };
        for (field, value) in [
            ("granted", recording.noted.map(|micros| micros.to_string())),
            ("fence", recording.fence.map(|fence| fence.0.to_string())),
            ("how", recording.end.map(|end| end.to_string())),
        ] {
            if let Some(value) = value {
                self = self.with(field, value);
            }
        }
        self
    }

    pub fn is_renewal(&self) -> bool {
        self.operation == "renew"
    }

    /// Returns whether a holder sends it, for a lock that it has.
    pub fn is_of_holder(&self) -> bool {
        matches!(self.operation, "renew" | "record" | "release")
    }

    /// Returns whether it changes nothing.
    pub fn only_reads(&self) -> bool {
        matches!(self.operation, "inspect" | "history")
    }

    /// Returns whether it may be repeated whatever the first attempt has done.
    pub fn is_repeatable(&self) -> bool {
        self.only_reads() || self.operation == "acquire"
    }

    /// Returns the command that has a server carry it out on the lock under `key`.
    pub fn command(&self, key: &str, verb: Verb) -> Cmd {
        let companions = self.companions.iter().map(|companion| companion_key(key, companion));
        let keys: Vec<String> = match self.companions.is_empty() {
            true => vec![companion_key(key, RUNS)],
            false => [key.to_owned()].into_iter().chain(companions).collect(),
        };
        call(verb, &LOCK, &keys, self.operation, &self.fields)
    }
}

/// The command by which a server runs a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verb {
    /// By the whole text, not by its hash.
    pub by_text: bool,
    /// With the right to read alone.
    pub reads: bool,
}

impl Verb {
    pub const TEXT: Verb = Verb { by_text: true, reads: false };

    pub fn name(self) -> &'static str {
        match (self.by_text, self.reads) {
            (true, false) => "EVAL",
            (true, true) => "EVAL_RO",
            (false, false) => "EVALSHA",
            (false, true) => "EVALSHA_RO",
        }
    }
}

/// Returns the request that has a server run a script.
fn call<'a>(
    verb: Verb,
    script: &Script,
    keys: &[String],
    operation: &str,
    fields: &[(&'static str, Cow<'a, str>)],
) -> Cmd {
    let (text, number) = (if verb.by_text { script.text } else { script.sha.as_bytes() }, keys.len().to_string());
    let values = fields.iter().map(|(field, value)| field.len() + value.len()).sum::<usize>();
    let data = text.len() + keys.iter().map(String::len).sum::<usize>() + values + operation.len() + number.len();
    // With room for everything, nothing moves while it grows.
    let mut call = Cmd::with_capacity(4 + keys.len() + 2 * fields.len(), verb.name().len() + data);
    call.arg(verb.name()).arg(text).arg(number).arg(keys).arg(operation);
    for (field, value) in fields {
        call.arg(*field).arg(value.as_ref());
    }
    call
}

/// Returns the request that has a server run an operation of moving.lua on one key. With the text: it is short, and seldom
/// used.
pub fn call_of_one(operation: &str, key: &str, fields: &[(&'static str, &str)]) -> Cmd {
    let fields: Vec<_> = fields.iter().map(|&(field, value)| (field, value.into())).collect();
    call(Verb::TEXT, &MOVING, &[key.to_owned()], operation, &fields)
}

/// Returns the request that loads lock.lua, and changes nothing.
pub fn load(verb: Verb) -> Cmd {
    let mut load = redis::cmd(Verb { by_text: true, ..verb }.name());
    load.arg(LOCK.text).arg("0");
    load
}

/// Returns how a renewal may move the expiry.
pub fn how(may_shorten: bool) -> &'static str {
    if may_shorten { "set" } else { "prolong" }
}

fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}
