//! Supervision of unusual commands, for unusual callers, at unusual moments.

mod beginnings;
mod callers;
mod commands;
mod moments;
mod readiness;
mod terminals;
