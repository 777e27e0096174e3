//! Supervision of odd commands, for odd callers, at odd moments.

mod beginnings;
mod callers;
mod commands;
mod moments;
mod terminals;
