//! A store in Redis: one server, the master that Sentinel names, or a cluster.
//!
//! Owns the keys of a lock, and the requests and replies of each operation. Must not know which server has a key, nor
//! how it is reached: `client` and `topology` do.

mod acl;
mod asking;
mod check;
mod claim;
mod client;
pub mod connection;
mod credential_file;
pub mod credentials;
mod dial;
pub mod distinct;
mod elements;
pub mod endpoint;
mod fault;
mod info;
mod list;
mod moving;
mod queue;
mod recording;
mod replicas;
pub mod reply;
mod scriptless;
mod scripts;
mod setnx;
mod shares;
pub mod tls;
pub mod topology;
mod voting;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use redis::{Cmd, Value};

use super::{AcquireMode, Acquired, LockStatus, Page, Probed, Released, Renewed, ScanCursor, Store, poll_pause};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::lock::{
    Asker, Claim, HolderId, LockName, LockState, Prefix, Run, StateKind, Token, Told, Ttl, companion_key,
};
use crate::log;
use crate::wait::{Limit, Woken};
use asking::AskerRead;
use client::Client;
use fault::NoReply;
use list::Listed;
use queue::QueueEntry;
use reply::{Operation, Unexpected};
use scriptless::ScriptlessError;
use scripts::{Base, Form, Script};
use setnx::LastRecord;
use shares::SharedLock;
use topology::Topology;

pub struct Server {
    client: Client,
    prefix: Prefix,
    /// The server refused the last script: it runs none, or none for this user.
    denies_scripts: bool,
    /// It has run a script before: then a refusal may be temporary.
    runs_scripts: bool,
    /// The user may run scripts that only read, and no others (Redis command EVAL_RO).
    may_only_read: bool,
    /// The place in the queue, while nxlock waits for a lock.
    entry: Option<QueueEntry>,
    /// A request was to join the queue.
    has_queued: bool,
    /// The ticket that the last reply gave.
    first_ticket: String,
    /// When to ask again without a place in the queue.
    look_at: Moment,
    /// Duration of the last request for a lock: how long nxlock needs to claim one.
    round_trip: Duration,
    /// Number of replicas that must have a grant.
    min_replicas: u32,
    told: LastRecord,
    /// The token whose grant may have no fence yet.
    unfenced: Option<Token>,
    /// The last reply about a lock came from a node that is only importing its slot.
    is_imported: bool,
    asker: AskerRead,
    /// When the server granted the lock to a run that is recorded, in µs of its clock, if the last reply says so.
    noted: Option<u64>,
    /// The record of the last run that was to be recorded says that it had lost the lock.
    was_lost: bool,
}

impl Server {
    pub fn new(topology: impl Into<Topology>, prefix: Prefix, timeout: Duration, min_replicas: u32) -> Server {
        let client = Client::new(topology.into(), timeout);
        Server {
            client,
            prefix,
            denies_scripts: false,
            runs_scripts: false,
            may_only_read: false,
            entry: None,
            has_queued: false,
            first_ticket: String::new(),
            look_at: Moment::now(),
            round_trip: Duration::ZERO,
            min_replicas,
            told: LastRecord::default(),
            unfenced: None,
            is_imported: false,
            asker: AskerRead::default(),
            noted: None,
            was_lost: false,
        }
    }

    /// Runs a script and returns its reply. Always sends the whole text: one round trip even if the server's cache has
    /// lost the script, and no permission needed to load scripts.
    fn script(
        &mut self,
        operation: &Operation<'_>,
        script: Script,
        args: &[&str],
        limit: Limit<'_>,
    ) -> Result<Vec<Value>, Error> {
        let answer = self.answer(operation, script, args, limit)?;
        answer.map_err(|unexpected| operation.misunderstood(&self.client, unexpected))
    }

    /// Returns a script's reply, or the server's error instead. A script that only reads, but that the user may not run
    /// by EVAL, which asks for the right to write its keys, is run by EVAL_RO (since Redis 7).
    fn answer(
        &mut self,
        operation: &Operation<'_>,
        script: Script,
        args: &[&str],
        limit: Limit<'_>,
    ) -> Result<Result<Vec<Value>, Unexpected>, Error> {
        let answer = self.answer_to(operation, script, &self.call(script, operation.name, args), limit)?;
        if self.may_only_read || !only_reads(script) || !answer.as_ref().is_err_and(reply::denies) {
            return Ok(answer);
        }
        let denies_scripts = self.denies_scripts;
        self.may_only_read = true;
        let read = self.answer_to(operation, script, &self.call(script, operation.name, args), limit)?;
        self.may_only_read = !read.as_ref().is_err_and(reply::denies);
        self.denies_scripts = denies_scripts && !self.may_only_read;
        Ok(if self.may_only_read { read } else { answer })
    }

    /// Sends a script, and returns its reply or the server's error.
    fn answer_to(
        &mut self,
        operation: &Operation<'_>,
        script: Script,
        command: &Cmd,
        limit: Limit<'_>,
    ) -> Result<Result<Vec<Value>, Unexpected>, Error> {
        self.turn_to(operation);
        let reply = match self.asker.beside(script) {
            None => self.client.ask(command, limit),
            Some(read) => self.asker.read_with(&mut self.client, command, read, limit),
        };
        let reply = reply.map_err(|no_reply| match only_reads(script) {
            true => self.unanswered(operation, no_reply).of_read(),
            false => self.unanswered(operation, no_reply),
        })?;
        self.is_imported = self.client.sent_there().is_some();
        let answer = reply::array(reply);
        self.runs_scripts |= answer.is_ok();
        if answer.as_ref().is_err_and(reply::denies_scripts) {
            log::trace(format_args!("{} does not run scripts for us: no queue, no fence", self.client));
            self.denies_scripts = true;
        }
        Ok(answer)
    }

    /// Runs an operation by script or, if the server runs no scripts for this user, by commands. Remembers a refusal
    /// only if no script ever ran, and if the server permits the commands.
    fn either<T>(
        &mut self,
        operation: &Operation<'_>,
        by_script: impl FnOnce(&mut Server) -> Result<T, Error>,
        by_commands: impl FnOnce(&mut Client, &str) -> Result<T, ScriptlessError>,
    ) -> Result<T, Error> {
        if self.runs_scripts || !self.denies_scripts {
            self.denies_scripts = false;
            let answer = by_script(self);
            if !self.denies_scripts {
                return answer;
            }
        }
        self.turn_to(operation);
        let key = operation.name.map(|name| self.prefix.key(name)).unwrap_or_default();
        let answer = by_commands(&mut self.client, &key);
        self.is_imported = self.client.sent_there().is_some();
        answer.map_err(|failed| {
            let error = self.obstructed(operation, failed);
            self.denies_scripts &= error.kind != ErrorKind::Refused;
            error
        })
    }

    /// Runs an operation by script, or not at all: without a script, nothing is safe beside SETNX clients, nor for a
    /// share, there is no queue, and no run is recorded.
    fn only_by_script<T>(
        &mut self,
        operation: &Operation<'_>,
        claim: &Claim,
        by_script: impl FnOnce(&mut Server) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.denies_scripts = false;
        let answer = by_script(self);
        if self.denies_scripts { Err(self.without_scripts(operation, needs(claim))) } else { answer }
    }

    /// Returns the error for a server that runs no scripts for this user; it says what needs them, and by which options.
    fn without_scripts(&self, operation: &Operation<'_>, (needs, options): (&str, &str)) -> Error {
        Error {
            kind: ErrorKind::Misconfigured,
            cause: format!("the server does not run scripts for us, and {needs}"),
            hint: format!("let it run them (PERMISSIONS in nxlock(1)), or do without {options}"),
            ..operation.misunderstood(&self.client, Unexpected::Shape)
        }
    }

    fn turn_to(&mut self, operation: &Operation<'_>) {
        if let Some(name) = operation.name {
            self.client.turn_to(&self.prefix.key(name));
        }
    }

    fn unanswered(&self, operation: &Operation<'_>, no_reply: impl Into<NoReply>) -> Error {
        operation.unanswered(&self.client, self.client.began.elapsed().min(self.client.timeout), no_reply.into())
    }

    fn call(&self, script: Script, name: Option<&LockName>, args: &[&str]) -> Cmd {
        let lock = name.map(|name| self.prefix.key(name)).unwrap_or_default();
        let command = if self.may_only_read && only_reads(script) { "EVAL_RO" } else { "EVAL" };
        let companions = script.companions().into_iter().map(|companion| companion_key(&lock, companion));
        let keys: Vec<String> = [lock.clone()].into_iter().chain(companions).collect();
        call(command, script, &keys, args)
    }

    fn senseless(&self, operation: &Operation<'_>) -> Error {
        operation.misunderstood(&self.client, Unexpected::Shape)
    }

    /// Returns the status of a lock, and the tokens of its holders, `among` them this one if there are too many.
    fn look(
        &mut self,
        operation: &Operation<'_>,
        among: Option<&HolderId>,
        limit: Limit<'_>,
    ) -> Result<(LockStatus, Vec<Token>), Error> {
        let (seen, value) = self.look_at_key(operation, limit)?;
        if seen.state.kind == StateKind::Shared && !self.denies_scripts {
            let limit = self.for_another_reply(limit);
            let SharedLock { status, tokens } = self.look_at_shares(operation, seen, among, limit)?;
            return Ok((status, tokens));
        }
        let is_held = seen.state.holder.is_some();
        Ok((seen, value.filter(|_| is_held).and_then(|value| value.parse().ok()).into_iter().collect()))
    }

    /// Returns the limit for the second request of an operation: each reply has the server's time-out.
    fn for_another_reply<'a>(&self, limit: Limit<'a>) -> Limit<'a> {
        Limit { until: limit.until.max(Moment::now() + self.client.timeout), ..limit }
    }

    /// Returns the status of a lock without its shares, and the key's value if that is text.
    fn look_at_key(
        &mut self,
        operation: &Operation<'_>,
        limit: Limit<'_>,
    ) -> Result<(LockStatus, Option<String>), Error> {
        let seen = self.either(
            operation,
            |server| match server.script_unless_moving(operation, Script::Inspect, &[], limit)? {
                Some(answer) => server.understood(operation, answer, limit),
                None => server.look_moving(operation, limit),
            },
            |client, key| scriptless::look(client, key, limit),
        );
        match seen {
            Err(error) if error.kind == ErrorKind::WrongType => self.look_at_damaged(operation, limit),
            seen => seen,
        }
    }

    /// Does the same for a lock with a companion key of another type, from the lock's own key alone.
    fn look_at_damaged(
        &mut self,
        operation: &Operation<'_>,
        limit: Limit<'_>,
    ) -> Result<(LockStatus, Option<String>), Error> {
        let key = operation.name.map(|name| self.prefix.key(name)).unwrap_or_default();
        self.turn_to(operation);
        let (mut status, value) =
            scriptless::look(&mut self.client, &key, limit).map_err(|failed| self.obstructed(operation, failed))?;
        if !matches!(status.state.kind, StateKind::WrongType(_)) {
            status.state.kind = StateKind::Damaged;
        }
        Ok((status, value))
    }

    fn obstructed(&self, operation: &Operation<'_>, failed: ScriptlessError) -> Error {
        match failed {
            ScriptlessError::NoReply(no_reply) => self.unanswered(operation, no_reply),
            // The client follows redirects of the first reply; the key has moved after that.
            ScriptlessError::Unexpected(unexpected)
                if self.client.is_of_a_cluster() && reply::redirects(&unexpected) =>
            {
                let error = operation.misunderstood(&self.client, unexpected);
                Error { kind: ErrorKind::Unavailable, hint: "try again soon".into(), ..error }
            }
            ScriptlessError::Unexpected(unexpected) => operation.misunderstood(&self.client, unexpected),
        }
    }

    /// Interprets a reply of INSPECT.
    fn understood(
        &mut self,
        operation: &Operation<'_>,
        mut answer: Vec<Value>,
        limit: Limit<'_>,
    ) -> Result<(LockStatus, Option<String>), Error> {
        let value = answer.get(1).cloned().unwrap_or(Value::Nil);
        if let Some(shown) = answer.get_mut(1) {
            *shown = self.told(operation, &value, limit);
        }
        let status = status(&answer).ok_or_else(|| self.senseless(operation))?;
        Ok((status, reply::text(&value).map(|value| value.raw().to_owned())))
    }

    /// Runs RELEASE. Returns nothing if the token held the lock, and else the lock's state.
    fn ours(&mut self, operation: &Operation<'_>, claim: &Claim, limit: Limit<'_>) -> Result<Option<LockState>, Error> {
        let (script, args) = (Script::Release(Form::of(claim)), recording::release_args(claim));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut answer = match claim.token.is_share() {
            true => self.script(operation, script, &args, limit)?,
            false => match self.script_unless_moving(operation, script, &args, limit)? {
                Some(answer) => answer,
                None => {
                    // Before somebody else can ask whether it was done.
                    self.record(operation, claim, limit)?;
                    return self.release_moving(operation, &claim.token, limit);
                }
            },
        };
        if claim.recording.is_some() {
            answer = self.recorded(operation, claim, answer)?;
        }
        match answer.split_first().map(|(done, rest)| (reply::integer(done), rest)) {
            // 2: reserved for the next waiter.
            Some((Some(1 | 2), _)) => Ok(None),
            Some((Some(0), rest)) => self.state(operation, rest, limit).map(Some),
            _ => Err(self.senseless(operation)),
        }
    }

    /// Interprets a reply of RENEW.
    fn renewed(
        &mut self,
        operation: &Operation<'_>,
        answer: &[Value],
        until: Moment,
        limit: Limit<'_>,
    ) -> Result<Renewed, Error> {
        if let [Value::Int(1), moved, ..] = answer
            && reply::integer(moved) == Some(-1)
        {
            // The first waiter has set its timer by the earlier expiry. If the nudge does not reach it, it notices by
            // itself.
            let _ = self.script(operation, Script::Nudge, &[""], limit);
        }
        match answer {
            [Value::Int(1), ..] if matches!(answer.get(2), Some(Value::Int(1))) => Ok(Renewed::PutBack(until)),
            [Value::Int(1), left, ..] => match (reply::integer(left), reply::integer(left).map(u64::try_from)) {
                (Some(-1 | 0), _) => Ok(Renewed::Until(until)),
                (_, Some(Ok(left))) => Ok(Renewed::Longer(Duration::from_millis(left))),
                _ => Err(self.senseless(operation)),
            },
            [Value::Int(0), seen @ ..] => Ok(Renewed::NotYours(self.state(operation, seen, limit)?)),
            _ => Err(self.senseless(operation)),
        }
    }

    fn release_as(&mut self, operation: &Operation<'_>, claim: &Claim, limit: Limit<'_>) -> Result<Released, Error> {
        self.was_lost = false;
        let by_script = |server: &mut Server| server.ours(operation, claim, limit);
        let whose = match claim.token.is_share() {
            true => self.only_by_script(operation, claim, by_script),
            false => self.either(operation, by_script, |client, key| scriptless::release(client, key, claim, limit)),
        };
        if self.denies_scripts && whose.is_ok() {
            recording::not_recorded(claim, &"the server does not run scripts for us any more");
        }
        Ok(match not_a_lock(whose)? {
            None => Released::Done,
            Some(state) if self.was_lost => Released::Lost(state),
            Some(state) => Released::NotYours(state),
        })
    }

    /// Sends a release behind each request that was given up: if the server executes that only now, it executes the
    /// release after it. Returns whether there was such a request.
    pub fn undo_outstanding(&mut self, claim: &Claim, limit: Limit<'_>) -> bool {
        let is_in_doubt = self.client.is_in_doubt();
        if is_in_doubt {
            let mut undo = Vec::new();
            // A server that hangs reads some 16 KB at once when it goes on, and no more from a Unix socket at whose other
            // end there is nobody to take the reply. So much has room for a request and for this one, but not for the
            // next one, which takes a waiter out of the queue. An end that is to be recorded goes with the release.
            if !self.has_queued && !recording::has_ended(claim) {
                let key = self.prefix.key(&claim.name);
                undo.push(moving::call_of_one(Script::ReleaseMoving, &key, &[claim.token.as_str()]));
            }
            undo.push(self.release_request(claim));
            if self.client.is_of_a_cluster() {
                undo.extend(self.release_moving_there(claim));
            }
            self.client.send_behind(&undo, limit);
        }
        is_in_doubt
    }
}

/// Returns the request that has a server run a script: EVAL or EVAL_RO.
fn call(command: &str, script: Script, keys: &[String], args: &[&str]) -> Cmd {
    let (text, number) = (script.text(), keys.len().to_string());
    let data = keys.iter().map(String::len).chain(args.iter().map(|arg| arg.len())).sum::<usize>();
    // With room for everything, nothing moves while it grows.
    let mut call = Cmd::with_capacity(3 + keys.len() + args.len(), command.len() + text.len() + number.len() + data);
    call.arg(command).arg(text).arg(number).arg(keys).arg(args);
    call
}

impl Base {
    fn of(token: &Token) -> Base {
        match () {
            () if token.is_beside_setnx() => Base::BesideSetnx,
            () if token.is_share() => Base::Share,
            () => Base::Exclusive,
        }
    }
}

impl Form {
    fn of(claim: &Claim) -> Form {
        let Claim { token, recording, .. } = claim;
        Form { base: Base::of(token), newest: token.supersedes(), recorded: recording.is_some(), enclosed: false }
    }
}

/// Returns whether a script changes nothing.
fn only_reads(script: Script) -> bool {
    matches!(script, Script::Inspect | Script::InspectShares | Script::History)
}

/// Returns whether a run that the claimant is part of may hold a share of a lock.
fn may_share(claim: &Claim) -> bool {
    claim.enclosing.iter().any(Token::is_share)
}

/// Returns whether nothing but scripts can grant a lock to this claim.
fn needs_scripts(claim: &Claim) -> bool {
    Form::of(claim) != Form::default()
}

/// Returns what of such a claim needs scripts, and the options that asked for it.
fn needs(claim: &Claim) -> (&'static str, &'static str) {
    match Form::of(claim) {
        Form { base: Base::BesideSetnx, .. } => ("beside SETNX clients nothing else is safe", "--setnx-compat"),
        Form { base: Base::Share, .. } => ("sharing needs them", "--shared and --slots"),
        Form { newest: true, .. } => ("the queue needs them", "--supersede"),
        Form { base: Base::Exclusive, .. } => ("a record of runs needs them", "--record and --unless-done"),
    }
}

/// Returns the argument of RENEW that says how it may move the expiry.
fn how(may_shorten: bool) -> &'static str {
    if may_shorten { "set" } else { "prolong" }
}

/// Turns a WRONGTYPE error into a state: a key of another type is nobody's lock.
fn not_a_lock(whose: Result<Option<LockState>, Error>) -> Result<Option<LockState>, Error> {
    match whose {
        Err(error) if error.kind == ErrorKind::WrongType => Ok(Some(reply::wrong_type("another type"))),
        whose => whose,
    }
}

impl Store for Server {
    fn acquire(&mut self, claim: &mut Claim, ttl: Ttl, mode: AcquireMode, limit: Limit<'_>) -> Result<Acquired, Error> {
        let operation = Operation::to("acquire", &claim.name);
        let by_script = |server: &mut Server| server.acquire_by_script(&operation, claim, ttl, mode, limit);
        let acquired = match needs_scripts(claim) {
            true => self.only_by_script(&operation, claim, by_script),
            false => {
                self.either(&operation, by_script, |client, key| scriptless::acquire(client, key, claim, ttl, limit))
            }
        }?;
        match &acquired {
            Acquired::Granted(_) => {
                if let Some(recording) = &mut claim.recording {
                    recording.noted = self.noted;
                }
                self.replicated(&operation, claim, ttl, limit)?;
            }
            // Commands show the lock's own key, which does not tell who shares it.
            Acquired::Held(state, _) if self.denies_scripts && state.kind == StateKind::Shared && may_share(claim) => {
                let needs = "it is shared, perhaps with this very script: only they can tell";
                return Err(self.without_scripts(&operation, (needs, "--shared and --slots around it")));
            }
            Acquired::Held(state, _) => self.look_at = Moment::now() + poll_pause(state),
            // The first two are of several servers only.
            Acquired::Undecided(..)
            | Acquired::TooLate
            | Acquired::Nested(..)
            | Acquired::Superseded(..)
            | Acquired::Done(..) => {}
        }
        Ok(acquired)
    }

    fn pause(&mut self, limit: Limit<'_>) -> Woken {
        if let Some(entry) = &mut self.entry {
            return entry.wait(limit);
        }
        limit.rest(self.look_at, &[])
    }

    fn renew(&mut self, claim: &Claim, ttl: Ttl, limit: Limit<'_>) -> Result<Renewed, Error> {
        let operation = Operation::to("renew", &claim.name);
        self.begin_to_read_asker(claim);
        if claim.token.is_beside_setnx() {
            return self.renew_beside_setnx(&operation, claim, ttl, limit);
        }
        let ttl_ms = ttl.millis().to_string();
        let args = [claim.token.as_str(), &ttl_ms, how(claim.may_shorten())];
        let by_script = |server: &mut Server| {
            let asked = Moment::now();
            let script = Script::Renew(Base::of(&claim.token));
            let answer = match claim.token.is_share() {
                true => Some(server.script(&operation, script, &args, limit)?),
                false => server.script_unless_moving(&operation, script, &args, limit)?,
            };
            match answer {
                Some(answer) => server.renewed(&operation, &answer, ttl.believed_until(asked), limit),
                None => server.renew_moving(&operation, &claim.token, ttl, how(claim.may_shorten()), limit),
            }
        };
        let renewed = match claim.token.is_share() {
            true => self.only_by_script(&operation, claim, by_script),
            false => {
                self.either(&operation, by_script, |client, key| scriptless::renew(client, key, claim, ttl, limit))
            }
        };
        match renewed {
            Err(error) if error.kind == ErrorKind::WrongType => {
                Ok(Renewed::NotYours(reply::wrong_type("another type")))
            }
            renewed => renewed,
        }
    }

    fn let_end(&mut self, claim: &Claim, rest: Ttl, limit: Limit<'_>) -> Result<Renewed, Error> {
        // Before the lock may end. That it fails is no reason to let the lock end.
        let operation = Operation::to("record the run under", &claim.name);
        let soon = limit.no_later_than(Moment::now() + self.client.timeout / 4);
        let recorded = self.record(&operation, claim, soon);
        let may_be_recorded = recorded.as_ref().map_or_else(|error| error.kind == ErrorKind::Unanswered, |()| true);
        let in_doubt = |error: Error| match may_be_recorded && recording::has_ended(claim) {
            true => Error { kind: ErrorKind::Unanswered, ..error },
            false => error,
        };
        if recorded.is_ok() {
            return self.renew(claim, rest, self.for_another_reply(limit)).map_err(in_doubt);
        }
        // The lock lasts until the end is recorded, or given up: the record would say that it was lost.
        let meanwhile = rest.max(Ttl::at_least(self.client.timeout * 2));
        let began = Moment::now();
        let renewed = self.renew(claim, meanwhile, self.for_another_reply(limit)).map_err(in_doubt)?;
        if let Err(error) = self.record(&operation, claim, self.for_another_reply(limit)).map_err(in_doubt) {
            recording::unrecorded(claim, &error);
        }
        match renewed {
            Renewed::Until(_) if rest < meanwhile => {
                let rest = Ttl::at_least(rest.get().saturating_sub(began.elapsed()));
                // If that fails, the lock ends by itself, later.
                Ok(self.renew(claim, rest, self.for_another_reply(limit)).unwrap_or(renewed))
            }
            renewed => Ok(renewed),
        }
    }

    fn release(&mut self, claim: &Claim, limit: Limit<'_>) -> Result<Released, Error> {
        self.entry = None;
        let released = self.release_as(&Operation::to("release", &claim.name), claim, limit);
        self.undo_outstanding(claim, limit);
        released
    }

    fn break_lock(&mut self, name: &LockName, id: &HolderId, limit: Limit<'_>) -> Result<Released, Error> {
        let operation = Operation::to("break", name);
        let (LockStatus { state, .. }, tokens) = self.look(&operation, Some(id), limit)?;
        let Some(token) = tokens.into_iter().find(|token| token.id().as_ref() == Some(id)) else {
            return Ok(Released::NotYours(state));
        };
        // The release compares the whole value again, so the holder that was seen is the one that loses the lock.
        let limit = self.for_another_reply(limit);
        self.release_as(&operation, &Claim::of(name.clone(), token), limit)
    }

    fn ask_to_give_up(
        &mut self,
        name: &LockName,
        asker: &Asker,
        rest: Duration,
        limit: Limit<'_>,
    ) -> Result<(), Error> {
        self.put_asker(name, asker, rest, limit)
    }

    fn ask_no_more(&mut self, name: &LockName, asker: &Asker, limit: Limit<'_>) -> Result<(), Error> {
        self.take_asker_back(name, asker, limit)
    }

    fn asker(&mut self, claim: &Claim, limit: Limit<'_>) -> Result<Option<Told>, Error> {
        self.take_asker(claim, limit)
    }

    fn inspect(&mut self, name: &LockName, limit: Limit<'_>) -> Result<LockStatus, Error> {
        Ok(self.look(&Operation::to("inspect", name), None, limit)?.0)
    }

    fn inspect_holder(&mut self, name: &LockName, id: &HolderId, limit: Limit<'_>) -> Result<LockStatus, Error> {
        Ok(self.look(&Operation::to("inspect", name), Some(id), limit)?.0)
    }

    fn doubts(&mut self, limit: Limit<'_>) -> Result<Vec<String>, Error> {
        let no_scripts = (self.denies_scripts && !self.runs_scripts)
            .then(|| format!("{} does not run scripts for us: who waits, and the fence, are not known", self.client));
        Ok(self.doubtful_origin(limit)?.into_iter().chain(no_scripts).collect())
    }

    fn holders(&mut self, name: &LockName, limit: Limit<'_>) -> Result<LockState, Error> {
        self.look_at_holders(&Operation::to("inspect", name), limit)
    }

    fn history(&mut self, name: &LockName, limit: Limit<'_>) -> Result<Vec<Run>, Error> {
        self.recorded_runs(name, limit)
    }

    fn names(&mut self, limit: Limit<'_>) -> Result<Vec<LockName>, Error> {
        self.listed(limit)
    }

    fn recorded_page(&mut self, cursor: &mut ScanCursor, limit: Limit<'_>) -> Result<Option<Vec<LockName>>, Error> {
        self.next_names(Listed::Histories, cursor, limit)
    }

    fn list_page(&mut self, list_page: &mut ScanCursor, limit: Limit<'_>) -> Result<Option<Page>, Error> {
        self.next_page(list_page, limit)
    }

    fn probe(&mut self, limit: Limit<'_>) -> Result<Probed, Error> {
        check::probe(self, limit)
    }

    fn disconnect_fd(&self) -> Option<BorrowedFd<'_>> {
        self.client.disconnect_fd()
    }

    fn may_be_called_off(&self) -> bool {
        self.is_imported
    }
}

/// Parses a reply of INSPECT.
fn status(answer: &[Value]) -> Option<LockStatus> {
    let [kind, seen @ .., reserved, Value::Array(queue)] = answer else { return None };
    let kind = reply::text(kind)?;
    let mut state = match kind.raw() {
        "string" | "none" => reply::state(seen)?,
        other => reply::wrong_type(other),
    };
    // A bare number has no record beside it before it is claimed.
    if reply::integer(reserved)? == 1 && matches!(state.kind, StateKind::Held | StateKind::Foreign) {
        state.kind = StateKind::Reserved;
    }
    let queue = reply::waiters(queue, seen.last()?)?;
    Some(LockStatus { state, queue })
}
