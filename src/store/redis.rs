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
mod credential_command;
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
mod request;
mod scriptless;
mod scripts;
pub mod tls;
pub mod topology;
mod voting;

use std::time::Duration;

use redis::{Cmd, Value};

use super::{
    AcquireMode, Acquired, Asking, Feature, Kept, Listed, LockStatus, Look, Op, Page, Probed, Released, Renewed, Reply,
    ScanCursor, Store, Watch, poll_pause,
};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::lock::{Asker, Claim, HolderId, LockName, LockState, Prefix, Run, StateKind, Token, Ttl, Upkeep};
use crate::log;
use crate::wait::{Limit, Woken};
use client::Client;
use fault::NoReply;
use queue::QueueEntry;
use reply::{Answer, Operation, Unexpected};
use request::{Request, Verb};
use scriptless::ScriptlessError;
use topology::Topology;

pub struct Server {
    client: Client,
    prefix: Prefix,
    /// The server refused the last script: it runs none, or none for this user.
    denies_scripts: bool,
    /// It has run a script before: then a refusal may be temporary.
    runs_scripts: bool,
    /// The server does not know scripts by their hashes, or not for this user.
    by_text: bool,
    /// How scripts that only read are run, if not as all the others: the user may run no others (EVAL_RO).
    reads: Option<Verb>,
    /// The place in the queue, while nxlock waits for a lock.
    entry: Option<QueueEntry>,
    /// The ticket that the last reply gave.
    first_ticket: String,
    /// When to ask again without a place in the queue.
    look_at: Moment,
    /// Duration of the last request for a lock: how long nxlock needs to claim one.
    round_trip: Duration,
    /// Number of replicas that must have a grant.
    min_replicas: u32,
    /// The token whose grant may have no fence yet.
    unfenced: Option<Token>,
    /// The last reply about a lock came from a node that is only importing its slot.
    is_imported: bool,
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
            by_text: false,
            reads: None,
            entry: None,
            first_ticket: String::new(),
            look_at: Moment::now(),
            round_trip: Duration::ZERO,
            min_replicas,
            unfenced: None,
            is_imported: false,
            noted: None,
            was_lost: false,
        }
    }

    /// Has the server carry out a request by script, and returns its answer.
    fn script(&mut self, operation: &Operation<'_>, request: &Request<'_>, limit: Limit<'_>) -> Result<Answer, Error> {
        let answer = self.answer(operation, request, limit)?;
        answer.map_err(|unexpected| operation.misunderstood(&self.client, unexpected))
    }

    /// Returns the answer to a request, or the server's error instead. Finds out how the server lets this user run
    /// scripts: by hash (EVALSHA), which a server that does not have the script refuses before anything is done; by text
    /// (EVAL); and requests that only read also with the right to read alone (EVALSHA_RO and EVAL_RO, since Redis 7).
    fn answer(
        &mut self,
        operation: &Operation<'_>,
        request: &Request<'_>,
        mut limit: Limit<'_>,
    ) -> Result<Result<Answer, Unexpected>, Error> {
        let key = self.key(operation);
        let mut verb = if request.only_reads() { self.verb_of_reads() } else { self.verb() };
        let (mut has_loaded, mut forgets, mut refusal) = (false, false, None);
        let unexpected = loop {
            let unexpected =
                match self.answer_to(operation, request.only_reads(), &request.command(&key, verb), limit)? {
                    Ok(answer) if forgets => return Ok(Ok(answer)),
                    Ok(answer) if verb.reads => {
                        self.reads = Some(verb);
                        return Ok(Ok(answer));
                    }
                    Ok(answer) => {
                        self.by_text = verb.by_text;
                        return Ok(Ok(answer));
                    }
                    Err(unexpected) => unexpected,
                };
            if reply::lacks_script(&unexpected) && has_loaded && !forgets {
                // It has lost the script again, or another server has replied: the text comes with this request.
                (forgets, verb.by_text) = (true, true);
            } else if reply::lacks_script(&unexpected) && !has_loaded {
                // Nothing to undo if there is no reply; the request itself is short, so that a server reads what undoes
                // it together with it.
                if let Err(unexpected) = self.load(operation, verb, limit)? {
                    break refusal.filter(|_| reply::denies(&unexpected)).unwrap_or(unexpected);
                }
                has_loaded = true;
                if !request.is_renewal() {
                    limit = self.for_another_reply(limit);
                }
            } else if !verb.by_text && reply::denies_command(&unexpected, verb.name()) {
                verb.by_text = true;
            } else if request.only_reads() && !verb.reads && reply::denies(&unexpected) {
                verb = Verb { by_text: false, reads: true };
                refusal = Some(unexpected);
            } else if reply::denies(&unexpected) {
                break refusal.unwrap_or(unexpected);
            } else {
                break unexpected;
            }
        };
        self.judge(&unexpected);
        Ok(Err(unexpected))
    }

    fn verb(&self) -> Verb {
        Verb { by_text: self.by_text, reads: false }
    }

    fn verb_of_reads(&self) -> Verb {
        self.reads.unwrap_or(self.verb())
    }

    /// Loads the script at the server that replied last.
    fn load(
        &mut self,
        operation: &Operation<'_>,
        verb: Verb,
        limit: Limit<'_>,
    ) -> Result<Result<(), Unexpected>, Error> {
        let load = [request::load(verb)];
        let replies = match self.client.sent_there().cloned() {
            Some(there) => self.client.ask_there(&there, &load, limit),
            None => self.client.ask_all(&load, limit),
        };
        let replies = replies.map_err(|no_reply| self.unanswered(operation, no_reply).of_read())?;
        Ok(match replies.first() {
            Some(refused @ Value::ServerError(_)) => Err(reply::unexpected(refused)),
            _ => Ok(()),
        })
    }

    /// Remembers a refusal to run scripts.
    fn judge(&mut self, unexpected: &Unexpected) {
        if reply::denies_command(unexpected, Verb::TEXT.name()) {
            log::trace(format_args!("{} does not run scripts for us: no queue, no fence", self.client));
            self.denies_scripts = true;
        }
    }

    /// Sends a script, and returns its answer or the server's error.
    fn answer_to(
        &mut self,
        operation: &Operation<'_>,
        only_reads: bool,
        command: &Cmd,
        limit: Limit<'_>,
    ) -> Result<Result<Answer, Unexpected>, Error> {
        self.turn_to(operation);
        let reply = self.client.ask(command, limit).map_err(|no_reply| match only_reads {
            true => self.unanswered(operation, no_reply).of_read(),
            false => self.unanswered(operation, no_reply),
        })?;
        self.is_imported = self.client.sent_there().is_some();
        let answer = Answer::of(reply);
        self.runs_scripts |= answer.is_ok();
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
        let key = self.key(operation);
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

    fn key(&self, operation: &Operation<'_>) -> String {
        operation.name.map(|name| self.prefix.key(name)).unwrap_or_default()
    }

    /// Returns the state in an answer.
    fn state(&self, operation: &Operation<'_>, answer: &Answer) -> Result<LockState, Error> {
        answer.state().ok_or_else(|| self.senseless(operation))
    }

    fn senseless(&self, operation: &Operation<'_>) -> Error {
        operation.misunderstood(&self.client, Unexpected::Shape)
    }

    /// Returns the status of a lock with at most so many waiters, and the tokens of its holders, `among` them this one if
    /// there are too many.
    fn look(
        &mut self,
        operation: &Operation<'_>,
        among: Option<&HolderId>,
        waiters: usize,
        limit: Limit<'_>,
    ) -> Result<(LockStatus, Vec<Token>), Error> {
        let seen = self.either(
            operation,
            |server| match server.script_unless_moving(operation, &Request::inspect(among, waiters), limit)? {
                Some(answer) => answer.status().ok_or_else(|| server.senseless(operation)),
                None => server.look_moving(operation, limit),
            },
            |client, key| scriptless::look(client, key, limit).map(with_tokens),
        );
        match seen {
            Err(error) if matches!(error.kind, ErrorKind::WrongType | ErrorKind::Damaged) => {
                let limit = self.for_another_reply(limit);
                self.look_at_damaged(operation, limit)
            }
            seen => seen,
        }
    }

    /// Returns the limit for the second request of an operation: each reply has the server's time-out.
    fn for_another_reply<'a>(&self, limit: Limit<'a>) -> Limit<'a> {
        Limit { until: limit.until.max(Moment::now() + self.client.timeout), ..limit }
    }

    /// Does the same for a lock with a companion key of another type, from the lock's own key alone.
    fn look_at_damaged(
        &mut self,
        operation: &Operation<'_>,
        limit: Limit<'_>,
    ) -> Result<(LockStatus, Vec<Token>), Error> {
        let key = self.key(operation);
        self.turn_to(operation);
        let seen = scriptless::look(&mut self.client, &key, limit);
        let (mut status, value) = seen.map_err(|failed| self.obstructed(operation, failed))?;
        if !matches!(status.state.kind, StateKind::WrongType(_)) {
            status.state.kind = StateKind::Damaged;
        }
        Ok(with_tokens((status, value)))
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

    /// Runs RELEASE. Returns nothing if the token held the lock, and else the lock's state.
    fn ours(&mut self, operation: &Operation<'_>, claim: &Claim, limit: Limit<'_>) -> Result<Option<LockState>, Error> {
        let request = Request::release(claim);
        let answer = match claim.token.is_share() {
            true => self.script(operation, &request, limit)?,
            false => match self.script_unless_moving(operation, &request, limit)? {
                Some(answer) => answer,
                None => {
                    // Before somebody else can ask whether it was done.
                    self.record(operation, claim, limit)?;
                    return self.release_moving(operation, &claim.token, limit);
                }
            },
        };
        self.recorded(claim, &answer);
        match answer.verdict() {
            "released" => Ok(None),
            "not_yours" => self.state(operation, &answer).map(Some),
            _ => Err(self.senseless(operation)),
        }
    }

    /// Runs RENEW.
    fn renew_by_script(
        &mut self,
        operation: &Operation<'_>,
        claim: &Claim,
        ttl: Ttl,
        limit: Limit<'_>,
    ) -> Result<Renewed, Error> {
        let mut may_shorten = claim.may_shorten();
        loop {
            let asked = Moment::now();
            let request = Request::renew(claim, ttl, may_shorten);
            let answer = match self.script_unless_moving(operation, &request, limit)? {
                Some(answer) => answer,
                None if claim.token.is_share() => self.script(operation, &request.of_holders(), limit)?,
                None => return self.renew_moving(operation, claim, ttl, may_shorten, limit),
            };
            // A bare number does not say whether a process renews the lock, but its record does.
            let owner = answer.told("owner");
            if !may_shorten && owner.is_some_and(|owner| owner.terms.upkeep == Upkeep::LeaseOnly) {
                may_shorten = true;
                continue;
            }
            return self.renewed(operation, claim, &answer, ttl.believed_until(asked));
        }
    }

    /// Interprets an answer of RENEW.
    fn renewed(
        &self,
        operation: &Operation<'_>,
        claim: &Claim,
        answer: &Answer,
        until: Moment,
    ) -> Result<Renewed, Error> {
        match answer.verdict() {
            "kept" => {
                let asked_by = answer.told("asked_by").filter(|_| self.hears_askers(claim)).map(Box::new);
                Ok(Renewed::Kept(Kept { until, put_back: answer.says("put_back"), asked_by }))
            }
            "longer" => {
                let left = answer.number("left").map(Duration::from_millis);
                left.map(Renewed::Longer).ok_or_else(|| self.senseless(operation))
            }
            "not_yours" => self.state(operation, answer).map(Renewed::NotYours),
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
    /// release after it. Returns whether there was such a request. A server that hangs reads some 16 KB at once when it
    /// goes on, and no more from a Unix socket at whose other end there is nobody to take the reply: so much has room for a
    /// request and for this one, unless the server wants whole scripts.
    pub fn undo_outstanding(&mut self, claim: &Claim, limit: Limit<'_>) -> bool {
        let is_in_doubt = self.client.is_in_doubt();
        if is_in_doubt {
            let key = self.prefix.key(&claim.name);
            let mut undo = vec![Request::release(claim).command(&key, self.verb())];
            if self.client.is_of_a_cluster() {
                undo.extend(self.release_moving_there(claim));
            }
            self.client.send_behind(&undo, limit);
        }
        is_in_doubt
    }
}

/// How many waiters are looked at, at most, unless fewer are of use.
const WAITERS: usize = 500;

/// Adds the token in the value of a lock that is held alone.
fn with_tokens((status, value): (LockStatus, Option<String>)) -> (LockStatus, Vec<Token>) {
    let is_held = status.state.holder.is_some();
    (status, value.filter(|_| is_held).and_then(|value| value.parse().ok()).into_iter().collect())
}

/// Returns whether a run that the claimant is part of may hold a share of a lock.
fn may_share(claim: &Claim) -> bool {
    claim.enclosing.iter().any(Token::is_share)
}

/// Returns whether nothing but scripts can grant a lock to this claim.
fn needs_scripts(claim: &Claim) -> bool {
    let Claim { token, recording, .. } = claim;
    token.is_beside_setnx() || token.is_share() || token.supersedes() || recording.is_some()
}

/// Returns what of such a claim needs scripts, and the options that asked for it.
fn needs(claim: &Claim) -> (&'static str, &'static str) {
    match &claim.token {
        token if token.is_beside_setnx() => ("beside SETNX clients nothing else is safe", "--setnx-compat"),
        token if token.is_share() => ("sharing needs them", "--shared and --slots"),
        token if token.supersedes() => ("the queue needs them", "--supersede"),
        _ => ("a record of runs needs them", "--record and --unless-done"),
    }
}

/// Turns a WRONGTYPE error into a state: a key of another type is nobody's lock.
fn not_a_lock(whose: Result<Option<LockState>, Error>) -> Result<Option<LockState>, Error> {
    match whose {
        Err(error) if error.kind == ErrorKind::WrongType => Ok(Some(reply::wrong_type("another type"))),
        whose => whose,
    }
}

impl Server {
    pub fn acquire(
        &mut self,
        claim: &mut Claim,
        ttl: Ttl,
        mode: AcquireMode,
        limit: Limit<'_>,
    ) -> Result<Acquired, Error> {
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

    pub fn renew(&mut self, claim: &Claim, ttl: Ttl, limit: Limit<'_>) -> Result<Renewed, Error> {
        let operation = Operation::to("renew", &claim.name);
        let by_script = |server: &mut Server| server.renew_by_script(&operation, claim, ttl, limit);
        let renewed = match claim.token.is_share() || claim.token.is_beside_setnx() {
            true => self.only_by_script(&operation, claim, by_script),
            false => {
                self.either(&operation, by_script, |client, key| scriptless::renew(client, key, claim, ttl, limit))
            }
        };
        match renewed {
            Err(error) if error.kind == ErrorKind::WrongType => {
                Ok(Renewed::NotYours(reply::wrong_type("another type")))
            }
            Ok(Renewed::Kept(kept)) if self.denies_scripts => {
                Ok(Renewed::Kept(Kept { asked_by: self.asker_by_command(claim, limit), ..kept }))
            }
            renewed => renewed,
        }
    }

    pub fn let_end(&mut self, claim: &Claim, rest: Ttl, limit: Limit<'_>) -> Result<Renewed, Error> {
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
            Renewed::Kept(_) if rest < meanwhile => {
                let rest = Ttl::at_least(rest.get().saturating_sub(began.elapsed()));
                // If that fails, the lock ends by itself, later.
                Ok(self.renew(claim, rest, self.for_another_reply(limit)).unwrap_or(renewed))
            }
            renewed => Ok(renewed),
        }
    }

    pub fn release(&mut self, claim: &Claim, limit: Limit<'_>) -> Result<Released, Error> {
        self.entry = None;
        let released = self.release_as(&Operation::to("release", &claim.name), claim, limit);
        self.undo_outstanding(claim, limit);
        released
    }

    pub fn break_lock(&mut self, name: &LockName, id: &HolderId, limit: Limit<'_>) -> Result<Released, Error> {
        let operation = Operation::to("break", name);
        let (LockStatus { state, .. }, tokens) = self.look(&operation, Some(id), 0, limit)?;
        let Some(token) = tokens.into_iter().find(|token| token.id().as_ref() == Some(id)) else {
            return Ok(Released::NotYours(state));
        };
        // The release compares the whole value again, so the holder that was seen is the one that loses the lock.
        let limit = self.for_another_reply(limit);
        self.release_as(&operation, &Claim::of(name.clone(), token), limit)
    }

    fn ask(&mut self, name: &LockName, asker: &Asker, asking: Asking, limit: Limit<'_>) -> Result<(), Error> {
        match asking {
            Asking::ToGiveUp => self.ask_to_give_up(name, asker, limit),
            Asking::NoMore => self.ask_no_more(name, asker, limit),
        }
    }

    fn look_at(&mut self, name: &LockName, what: Look<'_>, limit: Limit<'_>) -> Result<LockStatus, Error> {
        let (among, waiters) = match what {
            Look::All => (None, WAITERS),
            Look::Holder(id) => (Some(id), WAITERS),
            Look::Holders => (None, 0),
        };
        Ok(self.look(&Operation::to("inspect", name), among, waiters, limit)?.0)
    }

    pub fn doubts(&mut self, limit: Limit<'_>) -> Result<Vec<String>, Error> {
        let no_scripts = (self.denies_scripts && !self.runs_scripts)
            .then(|| format!("{} does not run scripts for us: who waits, and the fence, are not known", self.client));
        Ok(self.doubtful_origin(limit)?.into_iter().chain(no_scripts).collect())
    }

    fn history(&mut self, name: &LockName, limit: Limit<'_>) -> Result<Vec<Run>, Error> {
        self.recorded_runs(name, limit)
    }
}

impl Store for Server {
    fn step(&mut self, op: Op<'_>, limit: Limit<'_>) -> Result<Reply, Error> {
        Ok(match op {
            Op::Acquire(claim, ttl, mode) => Reply::Acquired(self.acquire(claim, ttl, mode, limit)?),
            Op::Renew(claim, ttl) => Reply::Renewed(self.renew(claim, ttl, limit)?),
            Op::LetEnd(claim, rest) => Reply::Renewed(self.let_end(claim, rest, limit)?),
            Op::Release(claim) => Reply::Released(self.release(claim, limit)?),
            Op::Break(name, id) => Reply::Released(self.break_lock(name, id, limit)?),
            Op::Ask(name, asker, asking) => Reply::Asked(self.ask(name, asker, asking, limit)?),
            Op::Look(name, what) => Reply::Seen(self.look_at(name, what, limit)?),
            Op::History(name) => Reply::History(self.history(name, limit)?),
            Op::Doubts => Reply::Doubts(self.doubts(limit)?),
        })
    }

    fn pause(&mut self, limit: Limit<'_>) -> Woken {
        if let Some(entry) = &mut self.entry {
            return entry.wait(limit);
        }
        limit.rest(self.look_at, &[])
    }

    fn page(&mut self, listed: Listed, cursor: &mut ScanCursor, limit: Limit<'_>) -> Result<Option<Page>, Error> {
        match listed {
            Listed::Locks => self.next_page(cursor, limit),
            Listed::Names | Listed::Histories => {
                let names = self.next_names(listed, cursor, limit)?;
                Ok(names.map(|names| names.into_iter().map(|name| (name, None)).collect()))
            }
        }
    }

    fn probe(&mut self, limit: Limit<'_>) -> Result<Probed, Error> {
        check::probe(self, limit)
    }

    fn watch(&self) -> Watch<'_> {
        let disconnect_fd = self.client.disconnect_fd();
        let hears = self.entry.as_ref().is_some_and(QueueEntry::hears);
        Watch { claim_fd: None, disconnect_fd, may_be_called_off: self.is_imported, hears }
    }

    fn can(&self, _: Feature) -> bool {
        true
    }
}
