//! Starts programs without a copy of the test process. Owns the launcher, a program of its own.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use super::lasting::Swept;

/// The status of the launcher if there is no such program.
pub const NOT_FOUND: i32 = 127;

/// Returns a command that executes a program in a session of its own, with no signal ignored, until the thread that starts
/// it ends.
pub fn launched(program: impl AsRef<OsStr>) -> Command {
    static LAUNCHER: LazyLock<(PathBuf, Swept)> = LazyLock::new(|| {
        let place = Swept::make("nxl");
        let (source, program) = (place.path().join("launcher.c"), place.path().join("launcher"));
        std::fs::write(&source, include_str!("launcher.c")).expect("written");
        let built = Command::new("cc").args(["-static", "-O1", "-o"]).args([&program, &source]).status();
        assert!(built.is_ok_and(|status| status.success()), "the tests need a C compiler, as Rust does: cc");
        (program, place)
    });
    let mut command = Command::new(&LAUNCHER.0);
    command.arg(program);
    command
}
