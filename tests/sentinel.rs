//! Masters that sentinels name: asking them, and going on when they name another.
//!
//! That locks are kept there as anywhere else is told in `authority`.

mod failover;
mod lookup;
