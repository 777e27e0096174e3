//! By what means a server carries out operations for this user: by scripts or, if it runs none, by plain commands
//! (`plain`). Its answers show which.

use redis::{Cmd, Value};

use super::Server;
use super::client::OnAsk;
use super::reply::{self, Answer, Operation, Unexpected};
use super::request::{self, Request, Verb};
use crate::error::{Error, ErrorKind};
use crate::lock::Claim;
use crate::log;
use crate::wait::Limit;

/// By what means a server carries out operations for this user.
#[derive(Clone, Copy)]
pub enum Means {
    /// It has not answered yet: scripts are tried, by their hashes.
    Unknown,
    /// It has run a script. If it refuses one later, that may be temporary.
    Scripts(Verbs),
    /// It has run no script, and refuses them: plain commands.
    Plain,
}

/// How a script is named to the server.
#[derive(Clone, Copy, Default)]
pub struct Verbs {
    /// It does not know scripts by their hashes, or not for this user.
    by_text: bool,
    /// For scripts that only read, if not as for all the others: the user may run no others (EVAL_RO).
    reads: Option<Verb>,
}

impl Means {
    /// Returns how to have a script run.
    pub fn verb(self) -> Verb {
        Verb { by_text: self.verbs().by_text, reads: false }
    }

    /// Returns how to have a script run that only reads.
    pub fn verb_of_reads(self) -> Verb {
        self.verbs().reads.unwrap_or(self.verb())
    }

    fn verbs(self) -> Verbs {
        match self {
            Means::Scripts(verbs) => verbs,
            Means::Unknown | Means::Plain => Verbs::default(),
        }
    }

    /// Returns the means of a server that has run a script by this verb.
    fn by(self, verb: Verb) -> Means {
        Means::Scripts(match verb.reads {
            true => Verbs { reads: Some(verb), ..self.verbs() },
            false => Verbs { by_text: verb.by_text, ..self.verbs() },
        })
    }
}

/// Why there is no answer of a script.
pub enum ScriptError {
    /// The server runs no scripts for this user.
    Denied(Error),
    /// The cluster is moving the lock's keys, and some are at another node: nothing was done, or nothing that may not be
    /// repeated.
    Parted(Error),
    Failed(Error),
}

impl From<Error> for ScriptError {
    fn from(error: Error) -> ScriptError {
        ScriptError::Failed(error)
    }
}

impl From<ScriptError> for Error {
    fn from(error: ScriptError) -> Error {
        let (ScriptError::Denied(error) | ScriptError::Parted(error) | ScriptError::Failed(error)) = error;
        error
    }
}

/// What needs scripts, and the options that asked for it.
pub type Needs = (&'static str, &'static str);

/// Returns what of a claim nothing but scripts can grant.
pub fn needs_scripts(claim: &Claim) -> Option<Needs> {
    match &claim.token {
        token if token.is_beside_setnx() => Some(("beside SETNX clients nothing else is safe", "--setnx-compat")),
        token if token.is_share() => Some(("sharing needs them", "--shared and --slots")),
        token if token.supersedes() => Some(("the queue needs them", "--supersede")),
        _ => claim.recording.as_ref().map(|_| ("a record of runs needs them", "--record and --unless-done")),
    }
}

impl Server {
    /// Carries out an operation by script or, if the server runs none for this user, by plain commands. Chooses these
    /// for good if no script has ever run, unless they are refused too. With `needs`, nothing but scripts will do: no
    /// commands are safe beside SETNX clients, nor for a share, and they have no queue, and record no run.
    pub(super) fn by_means<T>(
        &mut self,
        operation: &Operation<'_>,
        needs: Option<Needs>,
        by_script: impl FnOnce(&mut Server) -> Result<T, ScriptError>,
        plainly: impl FnOnce(&mut Server) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if needs.is_some() || !matches!(self.means, Means::Plain) {
            match (by_script(self), needs) {
                (Err(ScriptError::Denied(_)), Some(needs)) => return Err(self.without_scripts(operation, needs)),
                (Err(ScriptError::Denied(_)), None) => {
                    log::trace(format_args!("{} does not run scripts for us: no queue, no fence", self.client));
                }
                (done, _) => return Ok(done?),
            }
        }
        let done = plainly(self);
        self.means = match (self.means, &done) {
            (Means::Scripts(verbs), _) => Means::Scripts(verbs),
            (_, Err(error)) if error.kind == ErrorKind::Refused => Means::Unknown,
            (Means::Unknown | Means::Plain, _) => Means::Plain,
        };
        done
    }

    /// Returns the error for a server that runs no scripts for this user; it says what needs them, and by which options.
    pub(super) fn without_scripts(&self, operation: &Operation<'_>, (needs, options): Needs) -> Error {
        Error {
            kind: ErrorKind::Misconfigured,
            cause: format!("the server does not run scripts for us, and {needs}"),
            hint: format!("let it run them (PERMISSIONS in nxlock(1)), or do without {options}"),
            ..operation.misunderstood(&self.client, Unexpected::Shape)
        }
    }

    /// Has the server carry out a request by script, and returns its answer. Finds out how the server lets this user run
    /// scripts: by hash (EVALSHA), which a server that does not have the script refuses before anything is done; by text
    /// (EVAL); and requests that only read also with the right to read alone (EVALSHA_RO and EVAL_RO, since Redis 7).
    pub(super) fn script(
        &mut self,
        operation: &Operation<'_>,
        request: &Request<'_>,
        limit: Limit<'_>,
    ) -> Result<Answer, ScriptError> {
        self.script_redirected(operation, request, OnAsk::Follow, limit)
    }

    fn script_redirected(
        &mut self,
        operation: &Operation<'_>,
        request: &Request<'_>,
        on_ask: OnAsk,
        mut limit: Limit<'_>,
    ) -> Result<Answer, ScriptError> {
        let key = self.key(operation);
        let only_reads = request.only_reads();
        let mut verb = if only_reads { self.means.verb_of_reads() } else { self.means.verb() };
        let (mut has_loaded, mut forgets, mut refusal) = (false, false, None);
        let unexpected = loop {
            let unexpected =
                match self.answer_to(operation, (only_reads, on_ask), &request.command(&key, verb), limit)? {
                    Ok(answer) => {
                        if !forgets {
                            self.means = self.means.by(verb);
                        }
                        return Ok(answer);
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
            } else if only_reads && !verb.reads && reply::denies(&unexpected) {
                verb = Verb { by_text: false, reads: true };
                refusal = Some(unexpected);
            } else if reply::denies(&unexpected) {
                break refusal.unwrap_or(unexpected);
            } else {
                break unexpected;
            }
        };
        Err(self.not_run(operation, unexpected, request.is_repeatable()))
    }

    /// Returns the answer to a script; none if it did not run because some of its keys are moving.
    ///
    /// A holder does not try the node that the slot is moving to: the old node may still have the lock's key while the new one
    /// hangs, and a renewal that waits for it comes too late. Redis 6.2 redirects a script there even if just one of its
    /// keys has moved, or never existed; later servers say TRYAGAIN. Nothing is lost by that, since of an exclusive lock
    /// some keys never exist, and the new node refuses scripts of keys that it does not have.
    pub(super) fn script_unless_moving(
        &mut self,
        operation: &Operation<'_>,
        request: &Request<'_>,
        limit: Limit<'_>,
    ) -> Result<Option<Answer>, ScriptError> {
        let on_ask = if request.is_of_holder() { OnAsk::Return } else { OnAsk::Follow };
        match self.script_redirected(operation, request, on_ask, limit) {
            Err(ScriptError::Parted(_)) => {
                log::trace(format_args!("{} is moving the lock: asking for one key at a time", self.client));
                Ok(None)
            }
            answer => answer.map(Some),
        }
    }

    /// Runs a script of one key.
    pub(super) fn script_of_one(
        &mut self,
        operation: &Operation<'_>,
        request: &Cmd,
        limit: Limit<'_>,
    ) -> Result<Answer, ScriptError> {
        let answer = self.answer_to(operation, (false, OnAsk::Follow), request, limit)?;
        answer.map_err(|unexpected| self.not_run(operation, unexpected, false))
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

    /// Sends a script, and returns its answer or the server's error.
    fn answer_to(
        &mut self,
        operation: &Operation<'_>,
        (only_reads, on_ask): (bool, OnAsk),
        request: &Cmd,
        limit: Limit<'_>,
    ) -> Result<Result<Answer, Unexpected>, Error> {
        self.turn_to(operation);
        let reply = self.client.ask_once(request, on_ask, limit).map_err(|no_reply| match only_reads {
            true => self.unanswered(operation, no_reply).of_read(),
            false => self.unanswered(operation, no_reply),
        })?;
        self.is_imported = self.client.sent_there().is_some();
        let answer = Answer::of(reply);
        if answer.is_ok() {
            self.means = Means::Scripts(self.means.verbs());
        }
        Ok(answer)
    }

    /// Returns the reason why a script did not run. One that may be repeated whatever it has done may have been aborted in
    /// the middle because its keys are moving.
    fn not_run(&self, operation: &Operation<'_>, unexpected: Unexpected, is_repeatable: bool) -> ScriptError {
        let is_denied = reply::denies_command(&unexpected, Verb::TEXT.name());
        let is_parted = reply::is_parted(&unexpected) || (is_repeatable && reply::is_cut_short(&unexpected));
        let error = operation.misunderstood(&self.client, unexpected);
        match (is_denied, is_parted) {
            (true, _) => ScriptError::Denied(error),
            (false, true) => ScriptError::Parted(error),
            (false, false) => ScriptError::Failed(error),
        }
    }
}
