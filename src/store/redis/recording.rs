//! Runs that are recorded beside a lock: what requests say of them, and the runs that the server knows of.

use std::fmt;

use super::Server;
use super::means::ScriptError;
use super::reply::{self, Answer, Operation};
use super::request::{RUNS, Request, Verb};
use crate::error::{Error, ErrorKind};
use crate::lock::{Claim, LockName, Recorded, RunEnd, companion_key};
use crate::log;
use crate::text::clean;
use crate::wait::Limit;

impl Server {
    /// Records how the run of a claim ended, before the lock is kept or released without a script that does so. Warns if
    /// that cannot be done: an error that no retry mends is no reason to keep the lock, nor to let it go. Returns whether
    /// the record says that it had lost the lock.
    ///
    /// # Errors
    /// If a retry may succeed.
    pub(super) fn record(&mut self, operation: &Operation<'_>, claim: &Claim, limit: Limit<'_>) -> Result<bool, Error> {
        if !has_ended(claim) {
            return Ok(false);
        }
        let recorded = match self.script_unless_moving(operation, &Request::record(claim), limit) {
            Ok(Some(answer)) => Ok(self.recorded(claim, &answer)),
            Ok(None) => self.record_moving(operation, claim, limit),
            Err(failed) => Err(failed.into()),
        };
        match recorded {
            Err(error) if !error.is_retryable() => {
                unrecorded(claim, &error);
                Ok(false)
            }
            recorded => recorded,
        }
    }

    /// Does the same one key at a time, while the keys of the lock are moving from one server to another.
    fn record_moving(&mut self, operation: &Operation<'_>, claim: &Claim, limit: Limit<'_>) -> Result<bool, Error> {
        let mut claim = claim.clone();
        let holder = self.look_moving(operation, limit)?.1;
        if let Some(recording) = &mut claim.recording
            && !holder.contains(&claim.token)
        {
            recording.end = recording.end.map(RunEnd::without_the_lock);
        }
        let (key, request) = (self.key(operation), Request::record(&claim).of_runs());
        let answer = self.script_of_one(operation, &request.command(&key, Verb::TEXT), limit)?;
        Ok(self.recorded(&claim, &answer))
    }

    /// Returns whether the record of a run says that it had lost the lock, from a reply of a script that was to record its
    /// end. Warns if that has no record: that is no reason to keep a lock.
    pub(super) fn recorded(&self, claim: &Claim, answer: &Answer) -> bool {
        if let Some(why) = answer.get("unrecorded").and_then(reply::text).filter(|why| !why.raw().is_empty()) {
            not_recorded(claim, &format_args!("{} says \"{why}\"", self.client));
        }
        answer.text("outcome") == "lost"
    }

    /// Returns the error for a record that this version cannot read, which may be a newer one's.
    pub(super) fn unreadable(&self, operation: &Operation<'_>) -> Error {
        let key = operation.name.map(|name| companion_key(&self.options.prefix.key(name), RUNS)).unwrap_or_default();
        Error {
            kind: ErrorKind::Damaged,
            action: operation.action(&self.client),
            cause: format!("{} has a run that this nxlock cannot read", clean(&key)),
            hint: "update nxlock, or delete that key".into(),
        }
    }

    pub(super) fn history(&mut self, name: &LockName, limit: Limit<'_>) -> Result<Recorded, Error> {
        let operation = Operation::to("read the history of", name);
        let needs = ("the history needs them", "--history");
        let answer = match self.script(&operation, &Request::history(), limit) {
            Err(ScriptError::Denied(_)) => return Err(self.without_scripts(&operation, needs)),
            answer => answer?,
        };
        answer.recorded().ok_or_else(|| self.senseless(&operation))
    }
}

pub(super) fn has_ended(claim: &Claim) -> bool {
    claim.recording.as_ref().is_some_and(|recording| recording.end.is_some())
}

/// Warns that the end of a run is not recorded, or may not be, if there is one to record.
pub(super) fn unrecorded(claim: &Claim, error: &Error) {
    match error.kind {
        ErrorKind::Unanswered => warn(claim, "may not be", error),
        _ => not_recorded(claim, error),
    }
}

/// Warns that the end of a run is not recorded, if there is one to record.
pub(super) fn not_recorded(claim: &Claim, why: &dyn fmt::Display) {
    warn(claim, "is not", why);
}

fn warn(claim: &Claim, is: &str, why: &dyn fmt::Display) {
    if has_ended(claim) {
        log::warn(format_args!("the end of the run under \"{}\" {is} recorded: {why}", claim.name));
    }
}
