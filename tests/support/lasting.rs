//! Resources that live as long as the test process: directories, and servers that tests reuse one after the other
//! because they take seconds to start.

use std::ffi::OsStr;
use std::io::PipeWriter;
use std::ops::Deref;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, mpsc};
use std::thread;

use nix::unistd::setsid;
use tempfile::TempDir;

use super::{Authority, Nxlock};

/// A directory that is removed when this process has ended, however it ends.
pub struct Swept {
    path: PathBuf,
    _sweeper: Sweeper,
}

/// A shell that outlives this process, and executes a script when it is dropped or this process ends, however it ends.
pub struct Sweeper {
    /// Its closing tells the shell.
    _until_then: PipeWriter,
    _shell: Child,
}

impl Sweeper {
    /// The script has `what` as `$0`.
    pub fn of(what: impl AsRef<OsStr>, script: &str) -> Sweeper {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("read gone; {script}")]).arg(what);
        shell.stdin(reader).stdout(Stdio::null()).stderr(Stdio::null());
        // In a session of its own, to not get the Ctrl-C for the tests.
        // SAFETY: setsid(2) is async-signal-safe.
        unsafe { shell.pre_exec(|| Ok(setsid().map(drop)?)) };
        Sweeper { _until_then: writer, _shell: shell.spawn().expect("a shell") }
    }
}

impl Swept {
    pub fn make(prefix: &str) -> Swept {
        let directory = tempfile::Builder::new().prefix(prefix).tempdir().expect("a directory");
        let sweeper = Sweeper::of(directory.path(), "rm -rf \"$0\"");
        Swept { path: directory.keep(), _sweeper: sweeper }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Calls `make` in a thread that never ends: a server has that thread as its parent, and would be killed with it.
fn in_a_thread_that_stays<T: Send + 'static>(make: impl FnOnce() -> T + Send + 'static) -> T {
    let (made, taken) = mpsc::channel();
    thread::spawn(move || {
        let _ = made.send(make());
        loop {
            thread::park();
        }
    });
    taken.recv().expect("it can be made")
}

/// Resources lent to one test after the other, and never to two at once.
pub struct Pool<T> {
    idle: Mutex<Vec<T>>,
    make: fn() -> T,
}

/// A server that the next test can use as if it were new.
pub trait Reusable: Send + 'static {
    /// Discards everything that a test did, and reports what it should not have left.
    fn is_as_new(&self) -> Result<(), String>;
}

impl<T: Reusable> Pool<T> {
    pub const fn of(make: fn() -> T) -> Pool<T> {
        Pool { idle: Mutex::new(Vec::new()), make }
    }

    pub fn lend(&'static self) -> Lent<T> {
        let idle = self.idle.lock().expect("nobody has panicked with it").pop();
        let lent = idle.unwrap_or_else(|| in_a_thread_that_stays(self.make));
        let directory = tempfile::Builder::new().prefix("nx").tempdir().expect("a directory for the test");
        Lent { lent: Some(lent), directory, pool: self }
    }
}

/// Returns the resource to the pool when dropped, unless the test has failed: its state is unknown then.
pub struct Lent<T: Reusable> {
    lent: Option<T>,
    directory: TempDir,
    pool: &'static Pool<T>,
}

impl<T: Reusable> Deref for Lent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.lent.as_ref().expect("it is taken away only when this is dropped")
    }
}

impl<T: Reusable> Drop for Lent<T> {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        let lent = self.lent.take().expect("it is there");
        match lent.is_as_new() {
            Ok(()) => self.pool.idle.lock().expect("nobody has panicked with it").push(lent),
            Err(complaint) => panic!("{complaint}"),
        }
    }
}

impl<T: Reusable + Authority> Authority for Lent<T> {
    fn buries(&self, key: &str) {
        (**self).buries(key);
    }

    fn url(&self) -> String {
        (**self).url()
    }

    /// Returns the one resource that each test has for itself.
    fn directory(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    fn lead(&self, call: Nxlock) -> Nxlock {
        (**self).lead(call)
    }
}
