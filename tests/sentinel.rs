//! Masters that sentinels name: asking the sentinels, and following a failover.
//!
//! `contract` tests that locks work there as anywhere else.

mod deposed;
mod doubted;
mod failover;
mod lookup;
mod scripted;
