//! The command line options for sharing a key with old `SETNX` clients.

use std::time::Duration;

use clap::Args;

use crate::duration;

/// How to coexist with old `SETNX` clients.
#[derive(Debug, Args)]
#[command(next_help_heading = "Compatibility with old clients")]
pub struct SetnxArgs {
    /// Share the key with clients that store in it the time at which their lock ends (`SETNX`, `GETSET`).
    ///
    /// nxlock takes over a lock of theirs whose time has passed, and uses as its token a number that they read as
    /// a time far in the future. See nxlock-setnx(7).
    #[arg(long, hide_short_help = true)]
    pub setnx_compat: bool,

    /// With --setnx-compat, how far past such a time must be by the server's clock.
    #[arg(long, value_name = "D", default_value = "5s", value_parser = duration::parse, hide_short_help = true)]
    pub setnx_margin: Duration,
}
