//! Compiles what the tests need in C.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a C source in this directory, with these options of cc(1); returns the path of the result.
pub fn compiled(directory: &Path, name: &str, source: &str, options: &[&str]) -> PathBuf {
    let (file, result) = (directory.join(format!("{name}.c")), directory.join(name));
    std::fs::write(&file, source).expect("written");
    let built = Command::new("cc").args(options).args(["-O1", "-o"]).args([&result, &file]).status();
    assert!(built.is_ok_and(|status| status.success()), "the tests need a C compiler, as Rust does: cc");
    result
}
