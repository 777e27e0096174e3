//! The basis of the benches: a server, a clock, figures, and rounds that let noise affect all contestants alike.
//!
//! Nothing here asserts on time: the benches print, and people judge.

mod clock;
mod figures;
mod kinds;
mod rounds;
mod server;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

pub use clock::{now, pause, until};
pub use figures::{Figures, Table};
pub use kinds::{Kind, Kinds, at};
pub use rounds::{Contestant, rounds};
pub use server::Server;

/// Whether calls go to the earlier build.
static FORMER: AtomicBool = AtomicBool::new(false);

/// Returns the measured program: the release build, or within [`as_former`] the earlier one. Each is copied, as it is when
/// it is installed: the pages of a file that a linker has written are scattered, and to start from it takes longer, by a
/// tenth of what flock(1) costs.
pub fn measured() -> OsString {
    static COPIES: LazyLock<Copies> = LazyLock::new(Copies::new);
    let former = COPIES.former.as_ref().filter(|_| is_former());
    former.unwrap_or(&COPIES.this).clone().into_os_string()
}

struct Copies {
    this: PathBuf,
    former: Option<PathBuf>,
}

impl Copies {
    fn new() -> Copies {
        let copied = |name: &str, program: &OsStr| {
            let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
            fs::copy(program, &copy).unwrap_or_else(|error| panic!("{}: {error}", program.display()));
            copy
        };
        let this = copied("nxlock", OsStr::new(env!("CARGO_BIN_EXE_nxlock")));
        Copies { this, former: former().map(|program| copied("former", &program)) }
    }
}

/// Returns whether the earlier build is the measured one now.
pub fn is_former() -> bool {
    FORMER.load(Ordering::Relaxed)
}

/// Returns the path of an earlier build to compare with, from NXLOCK_BENCH_FORMER.
pub fn former() -> Option<OsString> {
    env::var_os("NXLOCK_BENCH_FORMER")
}

/// Does something with the earlier build in place of this one.
pub fn as_former<T>(act: impl FnOnce() -> T) -> T {
    FORMER.store(true, Ordering::Relaxed);
    let done = act();
    FORMER.store(false, Ordering::Relaxed);
    done
}

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
