//! Runs that are recorded beside a lock: what requests say of them, and the runs that the server knows of.

use std::fmt;

use redis::{Cmd, Value};

use super::reply::{self, Operation};
use super::scripts::{Form, Script};
use super::{Server, moving};
use crate::error::{Error, ErrorKind};
use crate::lock::{Claim, LockName, LockState, Run, RunEnd, companion_key};
use crate::log;
use crate::store::QueuePlace;
use crate::text::clean;
use crate::wait::Limit;

/// The companion key with the runs.
pub const RUNS: &str = "runs";

impl Server {
    /// Returns a RELEASE of a claim.
    pub(super) fn release_request(&self, claim: &Claim) -> Cmd {
        let args = release_args(claim);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.call(Script::Release(Form::of(claim)), Some(&claim.name), &args)
    }

    /// Records how the run of a claim ended, before the lock is kept or released without a script that does so. Warns if
    /// that cannot be done: an error that no retry mends is no reason to keep the lock, nor to let it go.
    ///
    /// # Errors
    /// If a retry may succeed.
    pub(super) fn record(&mut self, operation: &Operation<'_>, claim: &Claim, limit: Limit<'_>) -> Result<(), Error> {
        if !has_ended(claim) {
            return Ok(());
        }
        let recorded = match self.record_at_once(operation, claim, limit) {
            Ok(None) => self.record_moving(operation, claim, limit),
            recorded => recorded.map(drop),
        };
        match recorded {
            Err(error) if !error.is_retryable() => {
                unrecorded(claim, &error);
                Ok(())
            }
            recorded => recorded,
        }
    }

    /// Records the end by script; returns nothing if some of the lock's keys are moving.
    fn record_at_once(
        &mut self,
        operation: &Operation<'_>,
        claim: &Claim,
        limit: Limit<'_>,
    ) -> Result<Option<()>, Error> {
        let args = release_args(claim);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let answer = self.script_unless_moving(operation, Script::Record, &args, limit)?;
        answer.map(|answer| self.recorded(operation, claim, answer).map(drop)).transpose()
    }

    /// Does the same one key at a time, while the keys of the lock are moving from one server to another.
    fn record_moving(&mut self, operation: &Operation<'_>, claim: &Claim, limit: Limit<'_>) -> Result<(), Error> {
        let mut claim = claim.clone();
        let value = self.look_moving(operation, limit)?.1;
        if let Some(recording) = &mut claim.recording
            && value.is_none_or(|value| value != claim.token.as_str())
        {
            recording.end = recording.end.map(RunEnd::without_the_lock);
        }
        let args = release_args(&claim);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let key = companion_key(&self.prefix.key(&claim.name), RUNS);
        let request = moving::call_of_one(Script::RecordMoving, &key, &args);
        let answer = self.answer_to(operation, Script::RecordMoving, &request, limit)?;
        let answer = answer.map_err(|unexpected| operation.misunderstood(&self.client, unexpected))?;
        self.recorded(operation, &claim, answer).map(drop)
    }

    /// Takes the time of the grant out of the reply of an ACQUIRE whose run is recorded, and returns the rest.
    pub(super) fn noted(&mut self, operation: &Operation<'_>, answer: Vec<Value>) -> Result<Vec<Value>, Error> {
        let Ok([Value::Array(rest), noted]) = <[Value; 2]>::try_from(answer) else {
            return Err(self.senseless(operation));
        };
        self.noted = reply::integer(&noted).and_then(|micros| u64::try_from(micros).ok());
        Ok(rest)
    }

    /// Takes the record out of the reply of a script that records, and returns the rest. Warns if there is no record:
    /// that is no reason to keep a lock.
    pub(super) fn recorded(
        &mut self,
        operation: &Operation<'_>,
        claim: &Claim,
        answer: Vec<Value>,
    ) -> Result<Vec<Value>, Error> {
        let Ok([Value::Array(rest), lost, why]) = <[Value; 3]>::try_from(answer) else {
            return Err(self.senseless(operation));
        };
        self.was_lost = reply::integer(&lost) == Some(1);
        let why = reply::text(&why).ok_or_else(|| self.senseless(operation))?;
        if !why.raw().is_empty() {
            not_recorded(claim, &format_args!("{} says \"{why}\"", self.client));
        }
        Ok(rest)
    }

    /// Interprets the reply that the run has been done already.
    pub(super) fn already_done(
        &mut self,
        operation: &Operation<'_>,
        (line, length, seen): (&Value, &Value, &[Value]),
        limit: Limit<'_>,
    ) -> Result<(Box<Run>, LockState, QueuePlace), Error> {
        let run = reply::bytes(line).and_then(Run::read);
        let length = reply::integer(length).and_then(|length| usize::try_from(length).ok());
        let Some(length) = length else { return Err(self.senseless(operation)) };
        let Some(run) = run else { return Err(self.unreadable(operation)) };
        Ok((Box::new(run), self.state(operation, seen, limit)?, QueuePlace { position: 0, length }))
    }

    /// Returns the error for a record that this version cannot read, which may be a newer one's.
    fn unreadable(&self, operation: &Operation<'_>) -> Error {
        let key = operation.name.map(|name| companion_key(&self.prefix.key(name), RUNS)).unwrap_or_default();
        Error {
            kind: ErrorKind::Damaged,
            action: operation.action(&self.client),
            cause: format!("{} has a run that this nxlock cannot read", clean(&key)),
            hint: "update nxlock, or delete that key".into(),
        }
    }

    pub(super) fn recorded_runs(&mut self, name: &LockName, limit: Limit<'_>) -> Result<Vec<Run>, Error> {
        let operation = Operation::to("read the history of", name);
        self.denies_scripts = false;
        let answer = self.script(&operation, Script::History, &[], limit);
        if self.denies_scripts {
            return Err(self.without_scripts(&operation, ("the history needs them", "--history")));
        }
        let answer = answer?;
        let [lines, Value::Array(vanished)] = answer.as_slice() else { return Err(self.senseless(&operation)) };
        let lines = reply::bytes(lines).unwrap_or_default().split(|byte| *byte == b'\n').filter_map(Run::read);
        let noted = vanished.chunks_exact(2).filter_map(|pair| {
            let (note, who) = (reply::text(&pair[0])?, reply::text(&pair[1])?);
            Run::read(format!("{}||{}|{}", note.raw(), RunEnd::VANISHED, who.raw()).as_bytes())
        });
        Ok(noted.chain(lines).collect())
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

/// Returns the arguments of RELEASE.
pub(super) fn release_args(claim: &Claim) -> Vec<String> {
    let mut args = vec![claim.token.as_str().to_owned()];
    if let Some(recording) = &claim.recording {
        args.extend([
            recording.who.clone(),
            recording.kept_for().as_millis().to_string(),
            recording.kept.get().to_string(),
            recording.waited().as_millis().to_string(),
            recording.noted.map(|micros| micros.to_string()).unwrap_or_default(),
            recording.fence.map(|fence| fence.0.to_string()).unwrap_or_default(),
            recording.end.map(|end| end.to_string()).unwrap_or_default(),
        ]);
    }
    args
}

/// Returns the last arguments of ACQUIRE.
pub(super) fn acquire_args(claim: &Claim) -> Vec<String> {
    let args = claim.recording.as_ref().map(|recording| {
        [
            recording.who.clone(),
            recording.kept_for().as_millis().to_string(),
            recording.kept.get().to_string(),
            recording.waited().as_millis().to_string(),
            recording.unless_done.map(|done| done.as_micros().to_string()).unwrap_or_default(),
        ]
    });
    args.into_iter().flatten().collect()
}
