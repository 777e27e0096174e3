//! The command line option for events.

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueHint};

use crate::notify::Destination;

/// Where events go.
#[derive(Debug, Args)]
#[command(next_help_heading = "What happened")]
pub struct EventArgs {
    /// Tell FD, or append to FILE, what happens: one JSON object a line.
    ///
    /// Waiting, granted, renewed, trouble, lost and released, and the command's start and end: see EVENTS in
    /// nxlock-run(1). A number is a descriptor that is open for writing; the command does not get it.
    #[arg(long, value_name = "FD|FILE", value_hint = ValueHint::FilePath)]
    #[arg(value_parser = OsStringValueParser::new().try_map(Destination::read))]
    pub events: Option<Destination>,
}
