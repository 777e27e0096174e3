//! The wall clock of a server, controlled by a test: fast, or set forward or back while the server runs. The server's
//! other clocks are unaffected.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use super::compiler::compiled;
use super::wall;

pub struct Clock {
    library: PathBuf,
    page: PathBuf,
    file: File,
    ahead: AtomicI64,
}

impl Clock {
    /// Creates a clock that is fast by so many parts per million.
    pub fn in_directory(directory: &Path, fast: i64) -> Clock {
        let library = compiled(directory, "clock.so", include_str!("clock.c"), &["-shared", "-fPIC"]);
        let page = directory.join("clock");
        let origin = wall().duration_since(UNIX_EPOCH).expect("after 1970").as_micros();
        let origin = i64::try_from(origin).expect("it fits");
        let numbers: Vec<u8> = [origin, fast, 0].into_iter().flat_map(i64::to_ne_bytes).collect();
        fs::write(&page, numbers).expect("written");
        let file = File::options().write(true).open(&page).expect("it was written");
        Clock { library, page, file, ahead: AtomicI64::new(0) }
    }

    /// Returns the environment that makes a program use this clock.
    pub fn environment(&self) -> [(&'static str, &Path); 2] {
        [("LD_PRELOAD", &self.library), ("TEST_CLOCK", &self.page)]
    }

    pub fn is_set_forward(&self, by: Duration) {
        self.jumps(i64::try_from(by.as_micros()).expect("it fits"));
    }

    pub fn is_set_back(&self, by: Duration) {
        self.jumps(-i64::try_from(by.as_micros()).expect("it fits"));
    }

    fn jumps(&self, us: i64) {
        let ahead = self.ahead.fetch_add(us, Ordering::SeqCst) + us;
        self.file.write_all_at(&ahead.to_ne_bytes(), 16).expect("written");
    }
}
