//! The prose around the options: shown by `--help`, and made sections of the manual pages.

pub const AFTER_HELP: &str = "See nxlock(1) for exit statuses, environment and examples.";
pub const RUN_HELP: &str = "x";
pub const ACQUIRE_HELP: &str = "x";
pub const RENEW_HELP: &str = "x";
pub const RELEASE_HELP: &str = "x";
pub const STATUS_HELP: &str = "x";
