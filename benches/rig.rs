//! The basis of the benches: a server, a clock, figures, and rounds that let noise affect all contestants alike.
//!
//! Nothing here asserts on time: the benches print, and people judge.

mod clock;
mod figures;
mod rounds;
mod server;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::process::Command;

pub use clock::{now, pause, until};
pub use figures::{Figures, Table};
pub use rounds::{Contestant, rounds};
pub use server::Server;

/// The measured program: the release build.
pub const NXLOCK: &str = env!("CARGO_BIN_EXE_nxlock");

/// Returns a call without NXLOCK_* and REDIS_URL in its environment.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"NXLOCK_") || name == "REDIS_URL" {
            command.env_remove(name);
        }
    }
    command
}

/// Returns whether to run fewer rounds: `cargo bench -- --quick`, or NXLOCK_BENCH_QUICK in the environment.
pub fn quick() -> bool {
    env::args().any(|arg| arg == "--quick") || env::var_os("NXLOCK_BENCH_QUICK").is_some()
}

/// Returns one line about the machine and its current load.
pub fn circumstances(server: &Server) -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').take(3).collect::<Vec<_>>().join(" ");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("load average {load}, {cores} cores, {}", server.version())
}
