//! What the benches stand on: a server, a clock, figures, and rounds that let noise hit all alike.
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

/// The program that is measured: the release build.
pub const NXLOCK: &str = env!("CARGO_BIN_EXE_nxlock");

/// A call that nothing in the environment bends.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"NXLOCK_") || name == "REDIS_URL" {
            command.env_remove(name);
        }
    }
    command
}

/// Fewer rounds: asked for by `cargo bench -- --quick`, or by NXLOCK_BENCH_QUICK in the environment.
pub fn quick() -> bool {
    env::args().any(|arg| arg == "--quick") || env::var_os("NXLOCK_BENCH_QUICK").is_some()
}

/// One line about the machine and how busy it is just now.
pub fn circumstances(server: &Server) -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').take(3).collect::<Vec<_>>().join(" ");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("load average {load}, {cores} cores, {}", server.version())
}
