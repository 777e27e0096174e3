//! The command line option for events.

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueHint};

use crate::notify::Destination;

/// Destination of events.
#[derive(Debug, Args)]
#[command(next_help_heading = "Events")]
pub struct EventArgs {
    /// Write events to FD, or append them to FILE, one JSON object per line.
    ///
    /// Events include waiting, granted, renewed, trouble, lost and released, and the command's start and end: see
    /// EVENTS in nxlock-run(1). A number is a descriptor, which must be open for writing; the command does not
    /// inherit it.
    #[arg(long, value_name = "FD|FILE", value_hint = ValueHint::FilePath, hide_short_help = true)]
    #[arg(value_parser = OsStringValueParser::new().try_map(Destination::read))]
    pub events: Option<Destination>,
}
