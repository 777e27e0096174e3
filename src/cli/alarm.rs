//! The command line options for alarms.

use std::time::Duration;

use clap::Args;

use crate::duration::positive;
use crate::report::alarm::Limits;

/// What is wrong with a lock, for monitoring.
#[derive(Debug, Args)]
#[command(next_help_heading = "Alarms")]
#[group(id = "alarms", multiple = true, conflicts_with_all = ["watch", "history", "metrics", "key"])]
pub struct AlarmArgs {
    /// Alarm if the last success is older than D.
    ///
    /// That is, if the last recorded run that succeeded ended more than D ago, or none has succeeded. Instead of the status, nxlock prints one line, as plug-ins of Nagios do, and
    /// exits with 0 if all is fine, 2 if not, and 3 if that is not known: as if a name has no record of runs. See ALARMS
    /// in nxlock-status(1).
    #[arg(long, value_name = "D", value_parser = positive)]
    pub max_age: Option<Duration>,

    /// Alarm if a lock is held for more than D.
    #[arg(long, value_name = "D", value_parser = positive)]
    pub max_held: Option<Duration>,

    /// Alarm if more than N wait for a lock.
    ///
    /// N is 0 to 499.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..500))]
    pub max_waiting: Option<u16>,
}

impl AlarmArgs {
    pub fn limits(&self) -> Limits {
        Limits { age: self.max_age, held: self.max_held, waiting: self.max_waiting.map(usize::from) }
    }
}
