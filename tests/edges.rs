//! Supervision's edges: odd callers, odd commands, odd moments.

mod beginnings;
mod callers;
mod commands;
mod moments;
mod terminals;
