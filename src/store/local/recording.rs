//! Runs that are recorded: a file of those under way and of those that ended last, by the wall clock, which outlives a
//! boot.
//!
//! A run is noted when its lock is granted, in a line that its end overwrites: on a full disk, that needs no room.

use std::cmp::Reverse;
use std::time::{Duration, SystemTime};

use super::directory::{OpenDirectory, Part};
use super::fault::LocalError;
use super::lines::Lines;
use super::record::RecordedRun;
use super::transaction::{Transaction, micros_of_wall};
use crate::lock::{Fence, Recording, Run, RunEnd, RunOutcome, Token};

pub type Runs = Lines<RecordedRun>;

/// Returns the recorded runs of a key; none once it is time to forget them.
pub fn recorded(directory: &OpenDirectory, key: &str) -> Result<Runs, LocalError> {
    let mut runs = Runs::read(directory, directory.file(key, Part::Runs))?;
    let now = micros_of_wall();
    if runs.all().all(|run| run.kept_until <= now) {
        runs.forget(|_| true);
    }
    Ok(runs)
}

impl Transaction<'_> {
    /// Returns the last run that succeeded, if the requester is not to run so soon after its beginning. A requester that
    /// has the lock keeps it: its run may be under way.
    pub fn already_done(&self, token: &Token, recording: &Recording) -> Result<Option<Run>, LocalError> {
        let Some(unless_done) = recording.unless_done else { return Ok(None) };
        let mut runs = self.runs()?;
        if runs.find(token).is_some_and(|run| run.end.is_none()) {
            return Ok(None);
        }
        let now = micros_of_wall();
        let last = runs.all().filter(|run| run.is_success()).max_by_key(|run| run.granted.min(now)).cloned();
        let Some(mut last) = last else { return Ok(None) };
        // The clock has been set back since: counts as if it had just ended, or nothing would be granted until the clock
        // has caught up.
        if last.granted > now {
            let held = last.ended.unwrap_or(last.granted).saturating_sub(last.granted);
            (last.granted, last.ended) = (now.saturating_sub(held), Some(now));
            runs.put(self.directory, last.clone())?;
        }
        let age = Duration::from_micros(now - last.granted);
        Ok(last.told().filter(|_| age < unless_done))
    }

    /// Notes a run that begins, unless it is noted already.
    pub fn note_run(&self, token: &Token, recording: &Recording, fence: Fence) -> Result<(), LocalError> {
        let mut runs = self.runs()?;
        if runs.find(token).is_some_and(|run| run.end.is_none()) {
            return Ok(());
        }
        runs.blank_forgotten()?;
        self.trim(&mut runs, recording)?;
        runs.put(self.directory, RecordedRun::begun(token, recording, fence.0, micros_of_wall()))
    }

    /// Records how a run ended, once; `is_held` says whether it had its lock until then. Forgets it if nothing ran.
    pub fn record_end(&self, token: &Token, recording: &Recording, is_held: bool) -> Result<(), LocalError> {
        let mut runs = self.runs()?;
        let noted = runs.find(token).cloned();
        runs.blank_forgotten()?;
        match recording.end {
            _ if noted.as_ref().is_some_and(|run| run.end.is_some()) => return Ok(()),
            None => return runs.remove(token),
            Some(end) => {
                let end = if is_held { end } else { end.without_the_lock() };
                let now = micros_of_wall();
                // Somebody may have deleted the file.
                let noted = noted.unwrap_or_else(|| {
                    let granted = now.saturating_sub(u64::try_from(recording.held().as_micros()).unwrap_or(0));
                    RecordedRun::begun(token, recording, recording.fence.map_or(0, |fence| fence.0), granted)
                });
                let kept_until = kept_until(recording);
                runs.put(self.directory, RecordedRun { ended: Some(now), end: Some(end), kept_until, ..noted })?;
            }
        }
        self.trim(&mut runs, recording)
    }

    /// Removes what is not to be kept, and lists no more what is kept only because it succeeded last.
    fn trim(&self, runs: &mut Runs, recording: &Recording) -> Result<(), LocalError> {
        let now = micros_of_wall();
        let is_over = |run: &&RecordedRun| run.end.is_some() || self.has_vanished(run);
        let mut over: Vec<RecordedRun> = runs.all().filter(is_over).cloned().collect();
        over.sort_by_key(|run| Reverse(run.ended.unwrap_or(run.granted)));
        let done = over
            .iter()
            .filter(|run| run.is_success())
            .max_by_key(|run| run.granted.min(now))
            .map(|run| run.token.clone());
        let listed = over.iter().filter(|run| run.is_listed).take(recording.kept.get().into());
        let listed: Vec<Token> = listed.map(|run| run.token.clone()).collect();
        for run in over.into_iter().filter(|run| !listed.contains(&run.token)) {
            match Some(&run.token) == done.as_ref() {
                true if run.is_listed => runs.put(self.directory, RecordedRun { is_listed: false, ..run })?,
                true => {}
                false => runs.remove(&run.token)?,
            }
        }
        Ok(())
    }

    /// Returns the runs that have ended, or vanished, in any order.
    pub fn history(&self) -> Result<Vec<Run>, LocalError> {
        let runs = self.runs()?;
        let over = runs.all().filter(|run| run.is_listed).filter_map(|run| match run.end {
            Some(_) => run.told(),
            None if self.has_vanished(run) => RecordedRun { end: Some(RunEnd::VANISHED), ..run.clone() }.told(),
            None => None,
        });
        Ok(over.collect())
    }

    fn has_vanished(&self, run: &RecordedRun) -> bool {
        run.end.is_none() && !self.held_with(&run.token)
    }

    fn runs(&self) -> Result<Runs, LocalError> {
        recorded(self.directory, &self.record.key)
    }
}

impl RecordedRun {
    /// Returns the line of a run that was granted the lock at this time, and has not ended.
    fn begun(token: &Token, recording: &Recording, fence: u64, granted: u64) -> RecordedRun {
        RecordedRun {
            token: token.clone(),
            granted,
            waited: recording.waited(),
            fence,
            ended: None,
            end: None,
            kept_until: kept_until(recording),
            is_listed: true,
        }
    }

    fn is_success(&self) -> bool {
        self.end.is_some_and(|end| end.outcome == RunOutcome::Done)
    }

    /// Returns the run for people to read, if its end is known.
    fn told(&self) -> Option<Run> {
        let instant = |micros| SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(micros));
        Some(Run {
            by: self.token.told()?,
            fence: Some(Fence(self.fence)).filter(|fence| fence.0 > 0),
            waited: self.waited,
            granted: instant(self.granted)?,
            ended: self.ended.and_then(instant),
            end: self.end?,
        })
    }
}

fn kept_until(recording: &Recording) -> u64 {
    micros_of_wall().saturating_add(u64::try_from(recording.kept_for().as_micros()).unwrap_or(u64::MAX))
}
