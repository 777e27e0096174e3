//! The command line options for a record of runs.

use std::time::Duration;

use clap::Args;

use crate::duration::positive;
use crate::lock::{Claim, Recording, RunCount};

/// How a run is recorded beside its lock.
#[derive(Debug, Args)]
#[command(next_help_heading = "History")]
pub struct RecordingArgs {
    /// Record how this run ends, for `status --history`.
    ///
    /// The record is kept beside the lock. The last N runs, 20 unless you say so and at most 1000, stay readable for 30
    /// days. See HISTORY in nxlock(1).
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = RunCount::USUAL.to_string())]
    pub record: Option<RunCount>,

    /// Run nothing, exit 75, if it was done less than D ago.
    ///
    /// It counts as done if the last recorded run that succeeded began less than D ago. For a job that several hosts
    /// try, and one of them is to do: when it fails on one, it is done by the next. Implies --record.
    #[arg(long, value_name = "D", value_parser = positive)]
    pub unless_done: Option<Duration>,
}

impl RecordingArgs {
    /// Returns the option that asks for a record, if one does.
    pub fn option(&self) -> Option<&'static str> {
        let record = self.record.map(|_| "--record");
        self.unless_done.map(|_| "--unless-done").or(record)
    }

    /// Returns the recording that was asked for, of a claim for which nxlock begins to ask now.
    pub fn recording(&self, claim: &Claim) -> Option<Recording> {
        self.record
            .or(self.unless_done.map(|_| RunCount::USUAL))
            .map(|kept| Recording::new(claim.identity(), kept, self.unless_done))
    }
}
