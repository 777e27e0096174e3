//! The command line options for holding a lock together with others.

use clap::Args;

use crate::lock::{Sharing, SlotCount};

/// How many may hold the lock at a time.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sharing")]
pub struct SharingArgs {
    /// Hold the lock together with all who ask with --shared too.
    ///
    /// Without it, a lock is exclusive: readers say --shared, and the writer does not. See SHARING in nxlock(1).
    #[arg(long, conflicts_with_all = ["slots", "setnx_compat"])]
    pub shared: bool,

    /// Let at most N hold the lock at a time, each in its own slot.
    ///
    /// N is 1 to 10000. NXLOCK_SLOT is the number of the slot, 0 to N-1. See SHARING in nxlock(1).
    #[arg(short = 'j', long, value_name = "N", conflicts_with = "setnx_compat", allow_negative_numbers = true)]
    pub slots: Option<SlotCount>,
}

impl SharingArgs {
    pub fn sharing(&self) -> Sharing {
        match self.slots {
            Some(count) => Sharing::Slots(count),
            None if self.shared => Sharing::Shared,
            None => Sharing::Exclusive,
        }
    }
}
