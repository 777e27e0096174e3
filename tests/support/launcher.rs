//! Starts programs without a copy of the test process. Owns the launcher, a program of its own.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use super::compiler::compiled;
use super::lasting::Swept;

/// The status of the launcher if there is no such program.
pub const NOT_FOUND: i32 = 127;

/// Returns a command that executes a program in a session of its own, with no signal ignored, until the thread that starts
/// it ends.
pub fn launched(program: impl AsRef<OsStr>) -> Command {
    static LAUNCHER: LazyLock<(PathBuf, Swept)> = LazyLock::new(|| {
        let place = Swept::make("nxl");
        let program = compiled(place.path(), "launcher", include_str!("launcher.c"), &["-static"]);
        (program, place)
    });
    let mut command = Command::new(&LAUNCHER.0);
    command.arg(program);
    command
}
