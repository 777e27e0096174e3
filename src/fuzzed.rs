//! What the fuzz targets call (`fuzz/`): they are crates of their own, for which this one is a library.

pub use crate::cli::{Cli, duration};
pub use crate::clock::{Moment, ahead, wall};
pub use crate::limit::Limit;
pub use crate::lock::{Fence, Hold, HolderId, LockName, Occupancy, Owner, Prefix, State, Token, Ttl};
pub use crate::proc::{Stat, number_is};
pub use crate::render::{harmless, shown};
pub use crate::report::{Busy, Named, NotYours, Report, Row, StatusRows, Wanted};
pub use crate::say::{Tainted, Waiting, begin, heard, lost_how};
pub use crate::store::files;
pub use crate::store::{
    Access, Acquired, Manner, Place, Released, Renewed, Standing, Store, Target, Trouble, Waiter, open,
};
pub use crate::supervise::Lost;
pub use crate::wait::Refused;
