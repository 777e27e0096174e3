//! Supervision's edges: odd callers, odd commands, odd moments.

mod beginnings;
mod callers;
mod commands;
mod moments;
mod terminals;

use std::path::{Path, PathBuf};
use std::process::Command;

/// A program made for one test, of what no tool does.
fn built(directory: &Path, source: &str) -> PathBuf {
    let (from, to) = (directory.join("odd.c"), directory.join("odd"));
    std::fs::write(&from, source).unwrap();
    let made = Command::new("cc").arg("-o").args([&to, &from]).status();
    assert!(made.is_ok_and(|status| status.success()), "an odd program needs a C compiler, as Rust does: cc");
    to
}
