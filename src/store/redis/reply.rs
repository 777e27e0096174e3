//! Interprets a server's replies, or their absence: the results of scripts, and errors, classified by what can be done
//! about them. No I/O.

use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};

use nix::libc;
use redis::{ServerError, Value};

use super::credentials::Login;
use super::fault::{Fault, NoReply};
use crate::duration;
use crate::error::{Error, ErrorKind};
use crate::lock::{
    Expiry, Fence, Holder, Legacy, LockName, LockState, Recorded, Run, RunEnd, RunUnderWay, Share, Shares, Sharing,
    Slot, SlotCount, StateKind, Token, Told,
};
use crate::store::{LockStatus, QueuePlace, Waiter};
use crate::text::{self, Tainted};

/// A reply that is not the expected result.
pub enum Unexpected {
    /// The server's own error: its code, and its whole text.
    Error { code: Tainted, text: Tainted },
    /// A reply of another shape: perhaps not from a Redis server.
    Shape,
}

/// The server of a request, as messages name it.
pub trait Peer: fmt::Display {
    /// Returns the login that the server was sent, which it may repeat.
    fn login(&self) -> Option<&Login>;
}

/// The operation in progress, for messages.
#[derive(Clone, Copy)]
pub struct Operation<'a> {
    pub verb: &'static str,
    pub name: Option<&'a LockName>,
}

impl<'a> Operation<'a> {
    pub fn to(verb: &'static str, name: &'a LockName) -> Operation<'a> {
        Operation { verb, name: Some(name) }
    }

    /// Converts a missing reply into an error.
    pub fn unanswered(&self, at: &dyn fmt::Display, waited: Duration, no_reply: NoReply) -> Error {
        let (kind, cause, hint) = described(no_reply.fault, waited);
        let kind = if no_reply.sent && kind == ErrorKind::Unreachable { ErrorKind::Unanswered } else { kind };
        Error { kind, action: self.action(at), cause, hint: hint.to_owned() }
    }

    /// Converts an unexpected reply into an error.
    pub fn misunderstood(&self, at: &dyn Peer, unexpected: Unexpected) -> Error {
        let (kind, cause, hint) = understood(unexpected, at.login());
        Error { kind, action: self.action(at), cause, hint: hint.to_owned() }
    }

    pub fn action(&self, at: &dyn fmt::Display) -> String {
        match self.name {
            Some(name) => format!("cannot {} \"{name}\" at {at}", self.verb),
            None => format!("cannot {} at {at}", self.verb),
        }
    }
}

/// Returns the kind of a fault, its cause, and a hint.
pub fn described(fault: Fault, waited: Duration) -> (ErrorKind, String, &'static str) {
    let (cause, hint) = match fault {
        Fault::Known { kind, cause, hint } => return (kind, cause, hint),
        Fault::TimeUp => (
            format!("no answer within {}", duration::span(waited)),
            "check whether the server hangs (redis-cli ping), or raise --server-timeout",
        ),
        Fault::Cancelled => ("interrupted".to_owned(), ""),
        // Not a failure of the server, and none that passes.
        Fault::Ended(error) if error.raw_os_error() == Some(libc::EMFILE) => {
            return (ErrorKind::Internal, text::plain(&error), "see how many files this process may open (ulimit -n)");
        }
        Fault::Ended(error) => (text::plain(&error), hint(&error)),
        Fault::Garbled(cause) => (cause, "check that this is a plaintext Redis port; use rediss:// for TLS"),
    };
    (ErrorKind::Unreachable, cause, hint)
}

/// Converts an error reply into a fault: the server refuses every request on this connection.
pub fn refusal(reply: &Value, login: Option<&Login>) -> Fault {
    let (kind, cause, hint) = understood(unexpected(reply), login);
    Fault::Known { kind, cause, hint }
}

fn understood(unexpected: Unexpected, login: Option<&Login>) -> (ErrorKind, String, &'static str) {
    match unexpected {
        Unexpected::Error { code, text } => {
            let (kind, hint) = meaning(code.raw());
            let clue = match text.raw().contains(code.raw()) {
                true => String::new(),
                false => format!("{}: ", without_password(code.raw(), login)),
            };
            (kind, format!("{clue}the server says \"{}\"", without_password(text.raw(), login)), hint)
        }
        Unexpected::Shape => (ErrorKind::Untrusted, "unexpected reply".to_owned(), "check that it is a Redis server"),
    }
}

/// Returns what a server said, without the password that it was sent. Interpret the text before that: the password may
/// be any of its words.
pub fn without_password(said: &str, login: Option<&Login>) -> Tainted {
    Tainted::from(login.map_or_else(|| said.to_owned(), |login| login.blotted_out_of(said)))
}

/// Does the same for an error, without its code.
pub fn said(error: &ServerError, login: Option<&Login>) -> Tainted {
    let details = error.details().unwrap_or(error.code());
    without_password(without_arguments(details), login)
}

/// Returns the text before the arguments that an error repeats: a server without AUTH has the password among them, and
/// cuts it short.
fn without_arguments(details: &str) -> &str {
    details.split("with args beginning with").next().unwrap_or_default().trim_end_matches([',', ' '])
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
            "check that the server runs and the address is right"
        }
        io::ErrorKind::PermissionDenied => "see the permissions of the socket",
        io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => {
            "see the server's log; if this is a TLS port, use rediss://"
        }
        _ => "see the server's log",
    }
}

/// Returns the elements of an array reply.
pub fn array(reply: Value) -> Result<Vec<Value>, Unexpected> {
    match reply {
        Value::Array(values) => Ok(values),
        other => Err(unexpected(&other)),
    }
}

/// Returns what is unexpected about a reply: its error, if it is one.
pub fn unexpected(reply: &Value) -> Unexpected {
    let Value::ServerError(error) = reply else { return Unexpected::Shape };
    let details = without_arguments(error.details().unwrap_or_default());
    // A script's error may have the code of the command that failed only in its text: before Redis 7 that is "ERR Error
    // running script ...: -OOM command not allowed".
    let known = CODES.iter().find(|(code, ..)| details.contains(&format!("{code} ")));
    let code = match (error.code(), known) {
        // The second is for an error that a script returned, before Redis 7: "@user_script: 65: -READONLY You can't".
        ("ERR" | "@user_script:", Some((code, ..))) => code,
        ("ERR", None) if details.contains("can't run this command") => "NOPERM",
        // Valkey 8.
        ("ERR", None) if details.starts_with("ACL failure in script") => "NOPERM",
        ("ERR", None) if details.contains("max number of clients") => "MAXCLIENTS",
        // The error for a long request from a client that has not logged in.
        ("ERR", None) if details.contains("unauthenticated") => "NOAUTH",
        ("ERR", None) if details.contains("without any password configured") => "NOPASS",
        ("ERR", None) if details.contains("DB index is out of range") => "NODB",
        // From a script, which may have done a part of its work by then.
        ("ERR", None) if details.contains("non local key") => "NONLOCAL",
        (code, _) => code,
    };
    // The position in the script is of no use to the user.
    let said = match details.rsplit_once(" script: ") {
        Some((said, place)) if place.contains(", on @") || place.starts_with("on @") => said,
        _ => details,
    };
    let text = match said.split_once(": -") {
        Some((_, said)) if error.code() == "@user_script:" => said.to_owned(),
        _ => format!("{} {said}", error.code()).trim_end().to_owned(),
    };
    Unexpected::Error { code: code.into(), text: text.into() }
}

/// Returns whether an error is permanent: the command is not permitted, or unknown to the server.
pub fn denies(unexpected: &Unexpected) -> bool {
    let Unexpected::Error { code, text } = unexpected else { return false };
    code.raw() == "NOPERM" || text.raw().to_lowercase().contains("unknown command")
}

/// Returns whether an error says that nothing was done, because some of the keys are at another server now. ASK does if it
/// was not followed.
pub fn is_parted(unexpected: &Unexpected) -> bool {
    matches!(unexpected, Unexpected::Error { code, .. } if matches!(code.raw(), "ASK" | "TRYAGAIN"))
}

/// Returns whether an error says that a script was aborted in the middle, because this server does not serve one of its
/// keys any more.
pub fn is_cut_short(unexpected: &Unexpected) -> bool {
    matches!(unexpected, Unexpected::Error { code, .. } if code.raw() == "NONLOCAL")
}

/// Returns whether an error says that nothing was done, and which server to ask.
pub fn redirects(unexpected: &Unexpected) -> bool {
    matches!(unexpected, Unexpected::Error { code, .. } if matches!(code.raw(), "ASK" | "MOVED"))
}

/// Returns whether an error says that the server does not have the script with a hash: nothing was done.
pub fn lacks_script(unexpected: &Unexpected) -> bool {
    matches!(unexpected, Unexpected::Error { code, .. } if code.raw() == "NOSCRIPT")
}

/// Returns whether an error says that the server does not know this command, or not for this user.
pub fn denies_command(unexpected: &Unexpected, command: &str) -> bool {
    let Unexpected::Error { code, text } = unexpected else { return false };
    let (text, command) = (text.raw().to_lowercase(), command.to_lowercase());
    (code.raw() == "NOPERM" && text.contains(&format!("'{command}'")))
        || (text.contains("unknown command") && text.contains(&command))
}

const READ_URL: &str = "check the user and password: in the URL, --password-file, --password-command or REDISCLI_AUTH";
const READ_ACL: &str = "grant the user what PERMISSIONS in nxlock(1) lists (ACL SETUSER)";

/// Error codes, and what can be done about each.
const CODES: [(&str, ErrorKind, &str); 23] = [
    (
        "NOAUTH",
        ErrorKind::Refused,
        "put the password in the URL: redis://:PASSWORD@host or redis://USER:PASSWORD@host; or use --password-file, --password-command or REDISCLI_AUTH",
    ),
    ("WRONGPASS", ErrorKind::Refused, READ_URL),
    ("NOPERM", ErrorKind::Refused, READ_ACL),
    ("NOPASS", ErrorKind::Refused, "it wants no password: take it out of the URL, --password-file or REDISCLI_AUTH"),
    (
        "NODB",
        ErrorKind::Misconfigured,
        "it has fewer databases than the URL names: see `databases` in its configuration",
    ),
    ("READONLY", ErrorKind::Unavailable, "this is a replica: name the master"),
    ("LOADING", ErrorKind::Unavailable, "it is reading its data set after a start: try again soon"),
    ("MASTERDOWN", ErrorKind::Unavailable, "this is a replica that lost its master: name the master"),
    ("MOVED", ErrorKind::Misconfigured, "this is one node of a cluster: write redis+cluster:// instead of redis://"),
    ("ASK", ErrorKind::Misconfigured, "this is one node of a cluster: write redis+cluster:// instead of redis://"),
    ("CROSSSLOT", ErrorKind::Misconfigured, "this key's companion keys hash to another slot: choose another key"),
    ("EXECABORT", ErrorKind::Unavailable, "try again soon"),
    ("CLUSTERDOWN", ErrorKind::Unavailable, "see CLUSTER INFO there"),
    ("TRYAGAIN", ErrorKind::Unavailable, "the cluster is moving the key: try again soon"),
    ("NONLOCAL", ErrorKind::Unanswered, "the cluster is moving the key: try again soon"),
    ("MISCONF", ErrorKind::Unavailable, "it refuses writes because it cannot save them: see its log and its disk"),
    ("OOM", ErrorKind::Unavailable, "it is out of memory: see `maxmemory` and INFO memory there"),
    ("NOREPLICAS", ErrorKind::Unavailable, "it has too few replicas to accept writes: see INFO replication there"),
    ("BUSY", ErrorKind::Unavailable, "it is busy with a script of somebody's: see SCRIPT KILL"),
    ("MAXCLIENTS", ErrorKind::Unavailable, "it has too many clients: see `maxclients` there"),
    ("NOSCRIPT", ErrorKind::Unavailable, "it has forgotten its scripts: try again soon"),
    ("WRONGTYPE", ErrorKind::WrongType, "something else uses this key: choose another NAME or --prefix"),
    // From the scripts of shared locks.
    ("DAMAGED", ErrorKind::Damaged, "that key belongs to the lock: delete it, or choose another NAME or --prefix"),
];

/// Returns the kind of an error code, and a hint.
fn meaning(code: &str) -> (ErrorKind, &'static str) {
    let known = CODES.iter().find(|(known, ..)| *known == code);
    known.map_or(
        (ErrorKind::Refused, "nxlock needs Redis 6.2 or later, Valkey, KeyDB or Dragonfly"),
        |&(_, kind, hint)| (kind, hint),
    )
}

pub fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

pub fn text(value: &Value) -> Option<Tainted<&str>> {
    std::str::from_utf8(bytes(value)?).ok().map(Tainted::new)
}

pub fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Int(n) => Some(*n),
        other => text(other)?.raw().parse().ok(),
    }
}

/// Parses a fence as scripts return it; 0 if there is none. Another program may have written what no fence is.
pub fn fence(value: &Value) -> Option<Fence> {
    integer(value)
        .and_then(|n| u64::try_from(n).ok())
        .map(Fence)
        .filter(|fence| (Fence(1)..=Fence::MAX).contains(fence))
}

/// Returns the state of a key that cannot be a lock.
pub fn wrong_type(kind: &str) -> LockState {
    LockState { kind: StateKind::WrongType(kind.into()), ..LockState::free(None) }
}

/// An answer of a script: fields and their values.
#[derive(Debug)]
pub struct Answer(Vec<Value>);

/// What an answer says of a waiter's place.
pub struct Queued {
    pub place: QueuePlace,
    /// To be sent with every further request.
    pub ticket: String,
    /// Wake-ups reach the waiter.
    pub heard: bool,
}

impl Answer {
    pub fn of(reply: Value) -> Result<Answer, Unexpected> {
        array(reply).map(Answer)
    }

    pub fn get(&self, field: &str) -> Option<&Value> {
        self.0.chunks_exact(2).find(|pair| bytes(&pair[0]) == Some(field.as_bytes())).map(|pair| &pair[1])
    }

    /// Returns a text; empty if there is none.
    pub fn text(&self, field: &str) -> &str {
        self.get(field).and_then(text).map(Tainted::into_raw).unwrap_or_default()
    }

    pub fn number<T: TryFrom<i64>>(&self, field: &str) -> Option<T> {
        self.get(field).and_then(integer)?.try_into().ok()
    }

    pub fn says(&self, field: &str) -> bool {
        self.number(field) == Some(1)
    }

    pub fn list(&self, field: &str) -> Option<&[Value]> {
        match self.get(field)? {
            Value::Array(values) => Some(values),
            _ => None,
        }
    }

    pub fn verdict(&self) -> &str {
        self.text("verdict")
    }

    pub fn fence(&self) -> Option<Fence> {
        self.get("fence").and_then(fence)
    }

    /// Returns the run that has done what was to be done.
    pub fn run(&self) -> Option<Run> {
        self.get("run").and_then(bytes).and_then(Run::read)
    }

    /// Returns the server's time.
    pub fn now(&self) -> Option<SystemTime> {
        self.get("now").and_then(instant)
    }

    /// Returns the recorded runs; none if the answer does not have them.
    pub fn recorded(&self) -> Option<Recorded> {
        let lines = self.get("ended").and_then(bytes)?.split(|byte| *byte == b'\n').filter_map(Run::read);
        let noted = |field: &str| {
            // Until there is an end, a note is as that of a run which vanished.
            let run = |pair: &[Value]| {
                let (note, who) = (text(&pair[0])?, text(&pair[1])?);
                Run::read(format!("{}||{}|{}", note.raw(), RunEnd::VANISHED, who.raw()).as_bytes())
            };
            Some(self.list(field)?.chunks_exact(2).filter_map(run))
        };
        let one = |field: &str| self.get(field).and_then(bytes).and_then(Run::read);
        let under_way = noted("running")?.map(RunUnderWay::from).collect();
        let over = noted("vanished")?.chain(lines).collect();
        Some(Recorded::of(over, under_way, [one("succeeded"), one("failed")], self.now()?))
    }

    /// Returns a token or a record as it is shown.
    pub fn who(&self, field: &str) -> Option<Told> {
        self.get(field).and_then(bytes).and_then(Token::read)
    }

    /// Returns the state of the lock. If its value is a bare number of nxlock's, that number's identity says who holds it.
    pub fn state(&self) -> Option<LockState> {
        let (fence, broken_by) = (self.fence(), self.who("broken_by").map(Box::new));
        let pttl: i64 = self.number("pttl")?;
        if pttl == -2 {
            let since_grant = fence.zip(self.now()).map(|(fence, now)| fence.age(now));
            return Some(LockState { since_grant, broken_by, ..LockState::free(fence) });
        }
        let ttl = u64::try_from(pttl).ok().map(Duration::from_millis);
        let value = bytes(self.get("value")?)?;
        let owner = self.get("owner").and_then(bytes).filter(|owner| is_identity(owner, value));
        Some(LockState { broken_by, ..LockState::of_value(owner.unwrap_or(value), ttl, fence, self.now()?) })
    }

    /// Returns the same, with how many share the lock.
    pub fn state_of_shares(&self) -> Option<LockState> {
        let (state, slots) = (self.state()?, self.least()?);
        let taken = self.number("count")?;
        let shares = (state.kind == StateKind::Shared).then(|| Shares { held: Vec::new(), taken, slots });
        Some(LockState { shares, ..state })
    }

    /// Returns the least limit of those who hold the lock: 0 is none.
    #[expect(clippy::option_option, reason = "no limit is not the same as no number")]
    pub fn least(&self) -> Option<Option<SlotCount>> {
        match self.number("least")? {
            0u16 => Some(None),
            count => SlotCount::of(count).map(Some),
        }
    }

    /// Returns the slot of a grant. A token without a limit has none.
    #[expect(clippy::option_option, reason = "no slot is not the same as no answer")]
    pub fn slot(&self, sharing: Sharing) -> Option<Option<Slot>> {
        match sharing {
            Sharing::Slots(of) if of.get() > 1 => {
                let number = self.number("slot").filter(|number| *number < of.get());
                number.map(|number| Some(Slot { number, of }))
            }
            Sharing::Slots(_) | Sharing::Shared | Sharing::Exclusive => Some(None),
        }
    }

    /// Returns the time in the value of an old lock that was taken over.
    pub fn stale(&self) -> Option<Legacy> {
        let legacy = Legacy::read(bytes(self.get("stale")?)?, SystemTime::UNIX_EPOCH);
        legacy.map(|legacy| Legacy { stale: true, ..legacy })
    }

    /// Returns when something of the lock ends; none if nothing does by itself.
    pub fn look_in(&self) -> Option<Duration> {
        self.number("look_in").map(Duration::from_millis)
    }

    pub fn queued(&self) -> Option<Queued> {
        let place = QueuePlace { position: self.number("place")?, length: self.number("length")? };
        // No position is behind the end of a queue.
        if place.position > place.length {
            return None;
        }
        Some(Queued { place, ticket: self.text("ticket").to_owned(), heard: self.says("heard") })
    }

    /// Returns the status of a lock that was inspected, and the tokens of its holders as far as they are known.
    pub fn status(&self) -> Option<(LockStatus, Vec<Token>)> {
        let mut state = match self.text("type") {
            "string" | "none" => self.state()?,
            "" => return None,
            other => wrong_type(other),
        };
        // A bare number may have lost its identity.
        if self.says("reserved") && matches!(state.kind, StateKind::Held | StateKind::Foreign) {
            state.kind = StateKind::Reserved;
        }
        let mut tokens: Vec<Token> = Vec::new();
        if state.kind == StateKind::Shared {
            let (shares, their_tokens) = self.shares()?;
            state.shares = Some(shares);
            tokens = their_tokens;
        } else if state.holder.is_some() {
            tokens.extend(self.text("value").parse());
        }
        Some((LockStatus { state, queue: self.waiters()?, knows_waiters: true, recorded: self.recorded() }, tokens))
    }

    /// Parses `token, ticket, token, ticket ...`: a ticket is the server's microsecond at which the waiter joined the
    /// queue.
    fn waiters(&self) -> Option<Vec<Waiter>> {
        let now = self.now()?;
        let waiter = |(place, pair): (usize, &[Value])| {
            let [token, ticket] = pair else { return None };
            let who = Token::read(bytes(token)?)?;
            let waiting = now.duration_since(instant(ticket)?).unwrap_or_default();
            let Told { id, owner, reason, terms, .. } = who;
            Some(Waiter { position: place + 1, id, owner, waiting, reason, terms })
        };
        Some(self.list("queue")?.chunks(2).enumerate().filter_map(waiter).collect())
    }

    /// Parses those who share the lock: `token, end, terms, token, end, terms ...`.
    fn shares(&self) -> Option<(Shares, Vec<Token>)> {
        let now = self.now()?;
        let shares = self.list("shares")?.chunks_exact(3).filter_map(|share| share_of(share, now));
        let mut all: Vec<(Share, Token)> = shares.collect();
        all.sort_by_key(|(share, _)| (share.slot, share.holder.since));
        let (held, tokens): (Vec<Share>, _) = all.into_iter().unzip();
        let taken = self.number("count")?;
        // Where the server has lost the least limit, the tokens show it.
        let of_tokens = || held.iter().filter_map(|share| share.sharing().slots()).min();
        let slots = self.least()?.or_else(of_tokens);
        Some((Shares { held, taken, slots }, tokens))
    }
}

/// Returns whether a value is the identity of the bare number.
fn is_identity(value: &[u8], number: &[u8]) -> bool {
    let token = std::str::from_utf8(number).ok().and_then(|number| number.parse::<Token>().ok());
    token.is_some_and(|token| value.starts_with(token.identity_begin().as_bytes())) && Token::read(value).is_some()
}

/// Parses a share; none if the token is not nxlock's.
fn share_of(share: &[Value], now: SystemTime) -> Option<(Share, Token)> {
    let [token, end, terms] = share else { return None };
    let token = text(token)?.into_raw();
    let who = Token::read(token.as_bytes())?;
    let end = instant_of_millis(u64::try_from(integer(end)?).ok()?)?;
    let mut terms = text(terms).map(Tainted::into_raw).unwrap_or_default().split('|');
    let mut number = || terms.next().and_then(|field| field.parse::<u64>().ok());
    let (slot, fence, since) = (number(), number(), number());
    let since = since.map_or(who.born, |us| SystemTime::UNIX_EPOCH + Duration::from_micros(us)).min(now);
    let held = now.duration_since(since).unwrap_or_default();
    let share = Share {
        holder: Holder::of(who, since, held),
        expiry: Expiry::In(end.duration_since(now).unwrap_or_default()),
        fence: fence.map(Fence),
        slot: slot.and_then(|slot| u16::try_from(slot).ok()),
        is_claimed: terms.next() != Some("r"),
    };
    Some((share, token.parse().ok()?))
}

/// Parses microseconds since 1970, by the server's clock.
pub fn instant(value: &Value) -> Option<SystemTime> {
    Some(SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(integer(value)?).ok()?))
}

/// Returns the time so many milliseconds since 1970.
pub fn instant_of_millis(ms: u64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::credentials::{Credentials, Secret};

    /// A server that was sent a password, if any.
    struct Told(Option<Login>);

    impl Peer for Told {
        fn login(&self) -> Option<&Login> {
            self.0.as_ref()
        }
    }

    impl fmt::Display for Told {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("redis://h")
        }
    }

    fn misunderstood(password: &str, error: &str) -> Error {
        let operation = Operation { verb: "look", name: None };
        let login = Credentials::of_fallback(Secret::of(password.into())).login(None, None);
        operation.misunderstood(&Told(login), unexpected(&redis::parse_redis_value(error.as_bytes()).unwrap()))
    }

    #[test]
    fn the_password_is_blotted_out_of_what_a_server_says_and_does_not_change_what_it_means() {
        let said = |password: &str, error: &str| misunderstood(password, error).cause;
        assert_eq!(said("s3cret", "-ERR no 's3cret' here\r\n"), "the server says \"ERR no '***' here\"");
        assert_eq!(said("", "-ERR no 's3cret' here\r\n"), "the server says \"ERR no 's3cret' here\"");
        assert!(!said("s3cret", "-S3CRET s3cret s3cret\r\n").contains("s3cret"));
        assert!(!said("s\x1bcret", "-ERR no 's\x1bcret' here\r\n").contains("cret"), "before it is made harmless");
        assert_eq!(
            said("s3cret", "-ERR unknown command 'AUTH', with args beginning with: 'bob' 's3c\r\n"),
            "the server says \"ERR unknown command 'AUTH'\""
        );
        for password in ["NOAUTH", "Authentication", "A"] {
            let error = misunderstood(password, "-NOAUTH Authentication required.\r\n");
            assert!(error.hint.contains("--password-file") && !error.cause.contains(password), "{error:?}");
        }
        assert_eq!(misunderstood("OOM", "-OOM no more\r\n").kind, ErrorKind::Unavailable);
    }

    #[test]
    fn a_servers_error_code_is_shown_without_what_could_fool_a_terminal() {
        let error = misunderstood("", "-\x1b[31mE\x0b\r\n");
        assert!(!error.to_string().contains(char::is_control), "{error:?}");
    }

    #[test]
    fn an_error_that_a_script_has_returned_is_understood() {
        let error = misunderstood("", "-@user_script: 65: -READONLY You can't write against a read only replica.\r\n");
        assert_eq!(error.kind, ErrorKind::Unavailable);
        assert!(error.cause.ends_with("\"READONLY You can't write against a read only replica.\""), "{error:?}");
    }

    #[test]
    fn a_place_behind_the_end_of_a_queue_makes_no_sense() {
        let place = |position: &str, length: &str| {
            let words = ["place", position, "length", length, "ticket", "1", "heard", "1"];
            let answer = Answer(words.iter().map(|word| Value::BulkString(word.as_bytes().to_vec())).collect());
            answer.queued().map(|queued| queued.place)
        };
        assert_eq!(place("2", "3"), Some(QueuePlace { position: 2, length: 3 }));
        assert_eq!(place("0", "0"), Some(QueuePlace { position: 0, length: 0 }));
        assert_eq!(place("1", "0"), None);
        assert_eq!(place("1", "-1"), None);
    }
}
