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
mod durable;
pub mod endpoint;
mod fault;
mod framing;
mod info;
mod list;
mod listening;
mod means;
mod moving;
mod plain;
mod pushes;
mod queue;
mod recording;
mod replicas;
pub mod reply;
mod request;
mod scripts;
pub mod tls;
pub mod topology;
mod value;
mod voting;
mod wake;

use std::time::Duration;

use super::{
    AcquireMode, Acquired, Asking, Feature, Kept, Listed, LockStatus, Look, News, Op, Page, Probed, Released, Renewed,
    Reply, ScanCursor, Store, StoreOptions, Watch, poll_pause,
};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::lock::{Asker, Claim, Fence, LockName, LockState, StateKind, Token, Ttl, Upkeep};
use crate::wait::{Limit, Woken};
use client::Client;
use fault::NoReply;
use means::{Means, ScriptError, needs_scripts};
use queue::QueueEntry;
use reply::{Answer, Operation, Unexpected};
use request::Request;
use topology::Topology;

pub struct Server {
    client: Client,
    options: StoreOptions,
    means: Means,
    /// The place in the queue, while nxlock waits for a lock.
    entry: Option<QueueEntry>,
    /// The ticket that the last reply gave.
    first_ticket: String,
    /// When to ask again without a place in the queue.
    look_at: Moment,
    /// Duration of the last request for a lock: how long nxlock needs to claim one.
    round_trip: Duration,
    /// The token whose grant may have no fence yet.
    unfenced: Option<Token>,
    /// The last reply about a lock came from a node that is only importing its slot.
    is_imported: bool,
}

impl Server {
    pub fn new(topology: impl Into<Topology>, options: StoreOptions) -> Server {
        let client = Client::new(topology.into(), options.timeout);
        Server {
            client,
            options,
            means: Means::Unknown,
            entry: None,
            first_ticket: String::new(),
            look_at: Moment::now(),
            round_trip: Duration::ZERO,
            unfenced: None,
            is_imported: false,
        }
    }

    fn turn_to(&mut self, operation: &Operation<'_>) {
        if let Some(name) = operation.name {
            self.client.turn_to(&self.options.prefix.key(name));
        }
    }

    fn unanswered(&self, operation: &Operation<'_>, no_reply: impl Into<NoReply>) -> Error {
        operation.unanswered(&self.client, self.client.began.elapsed().min(self.client.timeout), no_reply.into())
    }

    fn key(&self, operation: &Operation<'_>) -> String {
        operation.name.map(|name| self.options.prefix.key(name)).unwrap_or_default()
    }

    /// Returns the state in an answer.
    fn state(&self, operation: &Operation<'_>, answer: &Answer) -> Result<LockState, Error> {
        answer.state().ok_or_else(|| self.senseless(operation))
    }

    fn senseless(&self, operation: &Operation<'_>) -> Error {
        operation.misunderstood(&self.client, Unexpected::Shape)
    }

    /// Returns the status of a lock that a request is to inspect, and the tokens of its holders.
    fn look(
        &mut self,
        operation: &Operation<'_>,
        request: &Request<'_>,
        limit: Limit<'_>,
    ) -> Result<(LockStatus, Vec<Token>), Error> {
        let seen = self.by_means(
            operation,
            None,
            |server| match server.script_unless_moving(operation, request, limit)? {
                Some(answer) => answer.status().ok_or_else(|| server.senseless(operation).into()),
                None => Ok(server.look_moving(operation, limit)?),
            },
            |server| server.look_plainly(operation, limit).map(with_tokens),
        );
        match seen {
            // A companion key is of another type, or the lock's own is: that one shows what there is.
            Err(error) if matches!(error.kind, ErrorKind::WrongType | ErrorKind::Damaged) => {
                let (mut status, value) = self.look_plainly(operation, self.for_another_reply(limit))?;
                if !matches!(status.state.kind, StateKind::WrongType(_)) {
                    status.state.kind = StateKind::Damaged;
                }
                Ok(with_tokens((status, value)))
            }
            seen => seen,
        }
    }

    /// Returns the limit for the second request of an operation: each reply has the server's time-out.
    fn for_another_reply<'a>(&self, limit: Limit<'a>) -> Limit<'a> {
        Limit { until: limit.until.max(Moment::now() + self.client.timeout), ..limit }
    }

    /// Returns the error for a refusal by the server, or for what is no reply to a plain command.
    fn unexpected(&self, operation: &Operation<'_>, unexpected: Unexpected) -> Error {
        // The client follows redirects of the first reply; the key has moved after that.
        let has_moved = self.client.is_of_a_cluster() && reply::redirects(&unexpected);
        let error = operation.misunderstood(&self.client, unexpected);
        match has_moved {
            true => Error { kind: ErrorKind::Unavailable, hint: "try again soon".into(), ..error },
            false => error,
        }
    }

    /// Runs RELEASE.
    fn release_by_script(
        &mut self,
        operation: &Operation<'_>,
        claim: &Claim,
        limit: Limit<'_>,
    ) -> Result<Released, ScriptError> {
        let request = Request::release(claim);
        let answer = match claim.token.is_share() {
            true => Some(self.script(operation, &request, limit)?),
            false => self.script_unless_moving(operation, &request, limit)?,
        };
        let (whose, was_lost) = match answer {
            Some(answer) => {
                let was_lost = self.recorded(claim, &answer);
                self.serve_on(operation, &request, answer.says("again"), limit);
                let whose = match answer.verdict() {
                    "released" => None,
                    "not_yours" => Some(self.state(operation, &answer)?),
                    _ => return Err(self.senseless(operation).into()),
                };
                (whose, was_lost)
            }
            None => {
                // Before somebody else can ask whether it was done.
                let was_lost = self.record(operation, claim, limit)?;
                (self.release_moving(operation, &claim.token, limit)?, was_lost)
            }
        };
        Ok(match whose {
            None => Released::Done,
            Some(state) if was_lost => Released::Lost(state),
            Some(state) => Released::NotYours(state),
        })
    }

    /// Repeats a release that has dropped as many dead waiters as one script may, and found none alive: nobody knows yet
    /// that the lock is free.
    fn serve_on(&mut self, operation: &Operation<'_>, release: &Request<'_>, mut again: bool, limit: Limit<'_>) {
        // If this fails, a waiter finds out at its next heartbeat.
        while again && !limit.until.passed() {
            let answer = self.script_unless_moving(operation, release, limit);
            again = matches!(answer, Ok(Some(answer)) if answer.says("again"));
        }
    }

    /// Runs RENEW.
    fn renew_by_script(
        &mut self,
        operation: &Operation<'_>,
        claim: &Claim,
        ttl: Ttl,
        limit: Limit<'_>,
    ) -> Result<Renewed, ScriptError> {
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
            let owner = answer.who("owner");
            if !may_shorten && owner.is_some_and(|owner| owner.terms.upkeep == Upkeep::LeaseOnly) {
                may_shorten = true;
                continue;
            }
            return Ok(self.renewed(operation, claim, &answer, ttl.believed_until(asked))?);
        }
    }

    /// Interprets an answer of RENEW, which has just come.
    fn renewed(
        &mut self,
        operation: &Operation<'_>,
        claim: &Claim,
        answer: &Answer,
        until: Moment,
    ) -> Result<Renewed, Error> {
        match answer.verdict() {
            "kept" => {
                self.client.changes_are_known(&self.options.prefix.key(&claim.name));
                let asked_by = answer.who("asked_by").filter(|_| self.hears_askers(claim)).map(Box::new);
                Ok(Renewed::Kept(Kept { put_back: answer.says("put_back"), asked_by, ..Kept::until(until) }))
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
        let by_script = |server: &mut Server| server.release_by_script(operation, claim, limit);
        let plainly = |server: &mut Server| server.release_plainly(operation, claim, limit);
        let needs = needs_scripts(claim).filter(|_| claim.token.is_share());
        match self.by_means(operation, needs, by_script, plainly) {
            Err(error) if error.kind == ErrorKind::WrongType => {
                Ok(Released::NotYours(reply::wrong_type("another type")))
            }
            released => released,
        }
    }

    /// Sends a release behind each request that was given up: if the server executes that only now, it executes the
    /// release after it. Returns whether there was such a request. A server that hangs reads some 16 KB at once when it
    /// goes on, and no more from a Unix socket at whose other end there is nobody to take the reply: so much has room for a
    /// request and for this one, unless the server wants whole scripts.
    pub fn undo_outstanding(&mut self, claim: &Claim, limit: Limit<'_>) -> bool {
        let is_in_doubt = self.client.is_in_doubt();
        // One that was undone for another lock may have been for this one.
        let key = self.options.prefix.key(&claim.name);
        if self.client.may_be_late(&key) {
            let mut undo = vec![Request::release(claim).command(&key, self.means.verb())];
            if self.client.is_of_a_cluster() {
                undo.extend(moving::release_there(&key, &claim.token));
            }
            self.client.send_behind(&key, &undo, limit);
        }
        is_in_doubt
    }

    /// Leaves the grant with this fence to another process. If the server executes a request that was given up only when that
    /// one has released the lock, it executes a release behind it. Readers who hold a lock together have one fence, and
    /// without scripts there is none: there, such a request may lock the name for a ttl.
    fn leave(&mut self, claim: &Claim, fence: Option<Fence>, limit: Limit<'_>) {
        let key = self.options.prefix.key(&claim.name);
        if let Some(fence) = fence.filter(|_| self.client.may_be_late(&key)) {
            let undo = Request::release(claim).keeping(fence).command(&key, self.means.verb());
            self.client.send_behind(&key, &[undo], limit);
        }
    }
}

/// How many waiters are looked at, at most, unless fewer are of use.
const WAITERS: usize = 500;

/// Adds the token in the value of a lock that is held alone.
fn with_tokens((status, value): (LockStatus, Option<String>)) -> (LockStatus, Vec<Token>) {
    let is_held = status.state.holder.is_some();
    (status, value.filter(|_| is_held).and_then(|value| value.parse().ok()).into_iter().collect())
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
        let plainly = |server: &mut Server| Ok((server.acquire_plainly(&operation, claim, ttl, limit)?, None));
        let (acquired, noted) = self.by_means(&operation, needs_scripts(claim), by_script, plainly)?;
        match &acquired {
            Acquired::Granted(_) => {
                if let Some(recording) = &mut claim.recording {
                    recording.noted = noted;
                }
                self.make_durable(&operation, claim, ttl, limit)?;
            }
            Acquired::Held(state, _) => self.look_at = Moment::now() + poll_pause(state),
            // The first two are of several servers only.
            Acquired::Undecided(..)
            | Acquired::TooLate
            | Acquired::Nested(..)
            | Acquired::Superseded(..)
            | Acquired::Done(..)
            | Acquired::Lost(_)
            | Acquired::Asked(..) => {}
        }
        Ok(acquired)
    }

    pub fn renew(&mut self, claim: &Claim, ttl: Ttl, limit: Limit<'_>) -> Result<Renewed, Error> {
        let operation = Operation::to("renew", &claim.name);
        let by_script = |server: &mut Server| server.renew_by_script(&operation, claim, ttl, limit);
        let only_by_script = claim.token.is_share() || claim.token.is_beside_setnx();
        let needs = needs_scripts(claim).filter(|_| only_by_script);
        let plainly = |server: &mut Server| server.renew_plainly(&operation, claim, ttl, limit);
        match self.by_means(&operation, needs, by_script, plainly) {
            Err(error) if error.kind == ErrorKind::WrongType => {
                Ok(Renewed::NotYours(reply::wrong_type("another type")))
            }
            renewed => renewed,
        }
    }

    pub fn let_end(&mut self, claim: &Claim, rest: Ttl, limit: Limit<'_>) -> Result<Renewed, Error> {
        let renewed = self.renew_to_end(claim, rest, limit);
        // Behind each request that was given up, which would bring the end nearer if the server executes it only now.
        let key = self.options.prefix.key(&claim.name);
        if self.client.may_be_late(&key) {
            let again = Request::renew(claim, rest, false).command(&key, self.means.verb());
            self.client.send_behind(&key, &[again], limit);
        }
        renewed
    }

    fn renew_to_end(&mut self, claim: &Claim, rest: Ttl, limit: Limit<'_>) -> Result<Renewed, Error> {
        // Before the lock may end. That it fails is no reason to let the lock end.
        let operation = Operation::to("record the run under", &claim.name);
        let soon = limit.no_later_than(Moment::now() + self.client.timeout / 4);
        let recorded = self.record(&operation, claim, soon);
        let may_be_recorded = recorded.as_ref().map_or_else(|error| error.kind == ErrorKind::Unanswered, |_| true);
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

    pub fn break_lock(&mut self, name: &LockName, breaker: &Asker, limit: Limit<'_>) -> Result<Released, Error> {
        let operation = Operation::to("break", name);
        let (LockStatus { state, .. }, tokens) =
            self.look(&operation, &Request::inspect(Some(&breaker.of), 0), limit)?;
        let Some(token) = tokens.into_iter().find(|token| token.id().as_ref() == Some(&breaker.of)) else {
            return Ok(Released::NotYours(state));
        };
        // The release compares the whole value again, so the holder that was seen is the one that loses the lock.
        let limit = self.for_another_reply(limit);
        self.release_as(&operation, &Claim::broken(name.clone(), token, &breaker.by), limit)
    }

    fn look_at(&mut self, name: &LockName, what: Look<'_>, limit: Limit<'_>) -> Result<LockStatus, Error> {
        let request = match what {
            Look::All => Request::status(WAITERS),
            Look::Holder(id) => Request::inspect(Some(id), WAITERS),
            Look::Holders => Request::inspect(None, 0),
        };
        Ok(self.look(&Operation::to("inspect", name), &request, limit)?.0)
    }

    pub fn doubts(&mut self, limit: Limit<'_>) -> Result<Vec<String>, Error> {
        let no_scripts = matches!(self.means, Means::Plain)
            .then(|| format!("{} does not run scripts for us: who waits, and the fence, are not known", self.client));
        Ok(self.doubtful_origin(limit)?.into_iter().chain(no_scripts).collect())
    }
}

impl Store for Server {
    fn step(&mut self, op: Op<'_>, limit: Limit<'_>) -> Result<Reply, Error> {
        Ok(match op {
            Op::Acquire(claim, ttl, mode) => Reply::Acquired(self.acquire(claim, ttl, mode, limit)?),
            Op::Renew(claim, ttl, _) => Reply::Renewed(self.renew(claim, ttl, limit)?),
            Op::LetEnd(claim, rest) => Reply::Renewed(self.let_end(claim, rest, limit)?),
            Op::Release(claim) => Reply::Released(self.release(claim, limit)?),
            Op::Leave(claim, _, fence) => {
                self.leave(claim, fence, limit);
                Reply::Left(())
            }
            Op::Listen(claim) => Reply::Listening(self.listen_for(claim, limit)),
            Op::Break(name, breaker) => Reply::Released(self.break_lock(name, breaker, limit)?),
            Op::Ask(name, asker, Asking::ToGiveUp) => Reply::Asked(self.ask_to_give_up(name, asker, limit)?),
            Op::Ask(name, asker, Asking::NoMore) => Reply::Asked(self.ask_no_more(name, asker, limit)?),
            Op::Look(name, what) => Reply::Seen(Box::new(self.look_at(name, what, limit)?)),
            Op::History(name) => Reply::History(self.history(name, limit)?),
            Op::Doubts => Reply::Doubts(self.doubts(limit)?),
        })
    }

    fn pause(&mut self, limit: Limit<'_>) -> Woken {
        if let Some(entry) = &mut self.entry {
            return entry.wait(&mut self.client, limit);
        }
        limit.rest(self.look_at, &[])
    }

    fn page(&mut self, listed: Listed, cursor: &mut ScanCursor, limit: Limit<'_>) -> Result<Option<Page>, Error> {
        match listed {
            Listed::Locks => self.next_page(cursor, limit),
            Listed::Held | Listed::Names | Listed::Histories => {
                let names = self.next_names(listed, cursor, limit)?;
                Ok(names.map(|names| names.into_iter().map(|name| (name, None)).collect()))
            }
        }
    }

    fn probe(&mut self, limit: Limit<'_>) -> Result<Probed, Error> {
        check::probe(self, limit)
    }

    fn news(&mut self) -> News {
        self.client.news()
    }

    fn watch(&self) -> Watch<'_> {
        let news_fds = self.client.news_fds();
        let hears = self.entry.as_ref().is_some_and(QueueEntry::hears);
        let was_called = self.entry.as_ref().is_some_and(QueueEntry::was_called);
        let may_listen = self.client.may_listen();
        Watch { news_fds, may_listen, is_at_risk: self.is_imported, hears, was_called, ..Watch::default() }
    }

    fn can(&self, _: Feature) -> bool {
        true
    }
}
