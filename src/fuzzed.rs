//! The interface for the fuzz targets (`tests/fuzz`), which are crates of their own and use this one as a library.

pub use crate::cli::Cli;
pub use crate::clock::{Moment, ahead, wall};
pub use crate::duration::parse as parse_duration;
pub use crate::error::Error;
pub use crate::lock::{
    Asker, Claim, Fence, HolderId, LockName, LockState, Lost, Owner, Prefix, Recording, RunEnd, Sharing, StateKind,
    Supersedes, Terms, Token, Ttl, Upkeep,
};
pub use crate::log::{Level, Options as LogOptions, begin as begin_log, captured};
pub use crate::output::progress::Waiting;
pub use crate::output::{harmless, shown};
pub use crate::proc::{Stat, number_is};
pub use crate::report::{
    Busy, CommandOptions, History, Named, NotYours, Refusal, Refused, Report, Row, StatusRows, Wanted,
};
pub use crate::store::{
    AcquireMode, Acquired, Asking, Credentials, Durability, Listed, LockStatus, Look, QueuePlace, Released, Renewed,
    Store, StoreOptions, Target, Waiter, files, open,
};
pub use crate::text::Tainted;
pub use crate::wait::Limit;
