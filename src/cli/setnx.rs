//! The command line options for sharing a key with old `SETNX` clients.

use std::time::Duration;

use clap::Args;

use crate::duration;

/// How to live with `SETNX` clients of old.
#[derive(Debug, Args)]
#[command(next_help_heading = "Beside old SETNX clients")]
pub struct SetnxArgs {
    /// Share the key with clients that keep the time at which their lock ends in it (`SETNX`, `GETSET`).
    ///
    /// A lock of theirs whose time has passed is taken over, and the token is a number that they take for
    /// a time far in the future. See OLD LOCKS in nxlock(1).
    #[arg(long)]
    pub setnx_compat: bool,

    /// By how much such a time must have passed, by the server's clock, for --setnx-compat.
    #[arg(long, value_name = "D", default_value = "5s", value_parser = duration::parse)]
    pub setnx_margin: Duration,
}
