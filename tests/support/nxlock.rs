//! The binary under test: its calls and their results.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::launcher::launched;
use super::{eventually_some, now, send};

/// Returns the path of the binary under test.
pub fn program() -> &'static str {
    env!("CARGO_BIN_EXE_nxlock")
}

/// A call without a terminal, with nothing in the environment but PATH and what the test sets.
pub struct Nxlock {
    pub(super) command: Command,
    mark: String,
    stdout: Option<Stdio>,
    stderr: Option<Stdio>,
}

impl Nxlock {
    pub fn new<I: IntoIterator<Item: Into<OsString>>>(args: I) -> Nxlock {
        Nxlock::by(program(), args)
    }

    /// Returns a call of another program that calls nxlock, such as a shell. nxlock is in its PATH.
    pub fn by<I: IntoIterator<Item: Into<OsString>>>(program: &str, args: I) -> Nxlock {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        let mark = format!("{}-{}", std::process::id(), CALLS.fetch_add(1, Ordering::Relaxed));
        let mut command = launched(program);
        command.args(args.into_iter().map(Into::into)).env_clear().env("PATH", path()).env(MARK, &mark);
        command.stdin(Stdio::null());
        Nxlock { command, mark, stdout: None, stderr: None }
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Nxlock {
        self.command.env(name, value);
        self
    }

    /// Wraps the call in a program that executes it, as nice(1) does. To be called before stdin is set.
    pub fn under<I: IntoIterator<Item: Into<OsString>>>(self, words: I) -> Nxlock {
        let mut words = words.into_iter().map(Into::into);
        let mut command = launched(words.next().expect("a program"));
        command.args(words).args(self.command.get_args());
        let named = self.command.get_envs().filter_map(|(name, value)| Some((name, value?)));
        command.env_clear().envs(named).stdin(Stdio::null());
        Nxlock { command, ..self }
    }

    pub fn in_directory(mut self, directory: &std::path::Path) -> Nxlock {
        self.command.current_dir(directory);
        self
    }

    pub fn stdin(mut self, bytes: &[u8]) -> Nxlock {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(bytes).and_then(|()| file.seek(SeekFrom::Start(0))).expect("written");
        self.command.stdin(file);
        self
    }

    pub fn stdin_from(mut self, stdin: impl Into<Stdio>) -> Nxlock {
        self.command.stdin(stdin);
        self
    }

    pub fn stdout_to(mut self, stdout: impl Into<Stdio>) -> Nxlock {
        self.stdout = Some(stdout.into());
        self
    }

    pub fn stderr_to(mut self, stderr: impl Into<Stdio>) -> Nxlock {
        self.stderr = Some(stderr.into());
        self
    }

    /// Starts it in a session of its own, so that it has no access to the terminal of the tests.
    pub fn start(mut self) -> Running {
        // Files, not pipes: a process that is left behind would keep a pipe from its end. Not in memory: of two processes
        // that write to such a file at once, one writes over the other (memfd_create(2)).
        let stdout = tempfile::tempfile().expect("a temporary file");
        let stderr = tempfile::tempfile().expect("a temporary file");
        let copy = |file: &File| Stdio::from(file.try_clone().expect("another descriptor"));
        self.command.stdout(self.stdout.take().unwrap_or_else(|| copy(&stdout)));
        self.command.stderr(self.stderr.take().unwrap_or_else(|| copy(&stderr)));
        let began = now();
        let child = self.command.spawn().expect("it starts");
        Running { child, mark: self.mark, stdout, stderr, began, status: None }
    }

    /// Runs the call to its end.
    #[track_caller]
    pub fn run(self) -> Done {
        self.start().finish()
    }

    pub(super) fn mark(&self) -> String {
        self.mark.clone()
    }
}

/// Returns the result of a call that gets an answer within its `--server-timeout`: on a busy machine, a short one may end
/// before the server has answered, and nxlock then says that. The call is made again until it has its answer.
#[track_caller]
pub fn answered(call: impl Fn() -> Nxlock) -> Done {
    eventually_some("the server answers in time", || {
        // Of one server it says "no answer within 2s", of several "no answer in time".
        Some(call().run()).filter(|done| !done.both().contains("no answer "))
    })
}

/// A mark on everything that a call starts: processes inherit the environment.
const MARK: &str = "CALLED_BY_TEST";

/// Returns a PATH with nxlock first, then shells and their tools.
fn path() -> String {
    let directory = std::path::Path::new(program()).parent().expect("it is in a directory");
    format!("{}:{}", directory.display(), std::env::var("PATH").expect("there is a PATH"))
}

/// A running call. Dropped before its end, it is killed with all it has started. What it leaves at its end goes on until
/// the test ends: whether it goes away by itself is for the test to see.
pub struct Running {
    child: Child,
    mark: String,
    stdout: File,
    stderr: File,
    began: Instant,
    status: Option<ExitStatus>,
}

impl Running {
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    pub fn stdout(&self) -> String {
        whole(&self.stdout)
    }

    pub fn stderr(&self) -> String {
        whole(&self.stderr)
    }

    pub fn has_ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("it is ours to wait for");
        }
        self.status.is_some()
    }

    /// Asserts that it has not ended with another status than 0.
    #[track_caller]
    pub fn has_not_failed(&mut self) {
        let has_failed = self.has_ended() && self.status.is_some_and(|status| !status.success());
        assert!(!has_failed, "{:?}:\n{}", self.status, self.both());
    }

    /// Waits for a line on stdout that begins so, and returns its rest.
    #[track_caller]
    pub fn line(&mut self, begin: &str) -> String {
        let found = eventually_some_or(self, |running| {
            let text = running.stdout();
            let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
            whole.filter_map(|line| line.strip_prefix(begin)).next().map(str::to_owned)
        });
        found.unwrap_or_else(|| panic!("no line `{begin}...`:\n{}", self.both()))
    }

    /// Waits until stderr contains the text.
    #[track_caller]
    pub fn says(&mut self, text: &str) {
        let found = eventually_some_or(self, |running| running.stderr().contains(text).then_some(()));
        assert!(found.is_some(), "stderr does not say `{text}`:\n{}", self.both());
    }

    fn both(&self) -> String {
        format!("--- stdout\n{}\n--- stderr\n{}", self.stdout(), self.stderr())
    }

    /// Waits for its end.
    #[track_caller]
    pub fn finish(mut self) -> Done {
        let ended = eventually_some_or(&mut self, |running| running.has_ended().then_some(()));
        assert!(ended.is_some(), "it does not end:\n{}", self.both());
        Done {
            status: self.status.expect("it has ended"),
            took: self.began.elapsed(),
            stdout: bytes(&self.stdout),
            stderr: whole(&self.stderr),
        }
    }

    /// Returns the processes that it has started and that still run, without itself.
    pub fn descendants(&self) -> Vec<i32> {
        started_by(std::slice::from_ref(&self.mark)).into_iter().filter(|pid| *pid != self.pid()).collect()
    }
}

/// Waits as `eventually_some` does, but returns `None` at the limit, or if the call ends first.
fn eventually_some_or<T>(running: &mut Running, mut look: impl FnMut(&mut Running) -> Option<T>) -> Option<T> {
    let began = now();
    eventually_some("a call's next step", || {
        let over = running.has_ended() || began.elapsed() > super::LIMIT - Duration::from_secs(1);
        match look(running) {
            Some(found) => Some(Some(found)),
            None if over => Some(None),
            None => None,
        }
    })
}

/// Returns every live process that one of these calls has started.
fn started_by(marks: &[String]) -> Vec<i32> {
    let prefix = format!("{MARK}=");
    let is_theirs = |variable: &[u8]| {
        variable.strip_prefix(prefix.as_bytes()).is_some_and(|mark| marks.iter().any(|one| one.as_bytes() == mark))
    };
    let processes = std::fs::read_dir("/proc").expect("there is a /proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(is_theirs)
    })
    .collect()
}

/// Kills the processes that calls have left, whatever signals they ignore.
pub(super) fn clear_away(marks: &[String]) {
    for pid in started_by(marks) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

/// The marks of a test's calls that have ended.
struct Ended(Vec<String>);

thread_local! {
    /// Each test has a thread of its own.
    static ENDED: RefCell<Ended> = const { RefCell::new(Ended(Vec::new())) };
}

impl Drop for Ended {
    fn drop(&mut self) {
        clear_away(&self.0);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mark = std::mem::take(&mut self.mark);
        if self.status.is_some() {
            ENDED.with_borrow_mut(|ended| ended.0.push(mark));
            return;
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        clear_away(&[mark]);
    }
}

fn bytes(file: &File) -> Vec<u8> {
    let length = usize::try_from(file.metadata().expect("its length").len()).expect("it fits");
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0).expect("readable");
    bytes
}

fn whole(file: &File) -> String {
    String::from_utf8_lossy(&bytes(file)).into_owned()
}

/// The result of a call.
pub struct Done {
    pub status: ExitStatus,
    pub took: Duration,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Done {
    #[track_caller]
    pub fn exits(self, status: i32) -> Done {
        assert_eq!(self.status.code(), Some(status), "{:?}, not {status}:\n{}", self.status, self.both());
        self
    }

    #[track_caller]
    pub fn dies_of(self, signal: Signal) -> Done {
        assert_eq!(self.status.signal(), Some(signal as i32), "{:?}, not {signal}:\n{}", self.status, self.both());
        self
    }

    /// Asserts that stderr contains the text.
    #[track_caller]
    pub fn says(self, text: &str) -> Done {
        assert!(self.stderr.contains(text), "stderr does not say `{text}`:\n{}", self.both());
        self
    }

    /// Asserts that neither stream contains the text.
    #[track_caller]
    pub fn never_says(self, text: &str) -> Done {
        assert!(!self.both().contains(text), "it says `{text}`:\n{}", self.both());
        self
    }

    #[track_caller]
    pub fn says_nothing(self) -> Done {
        assert!(self.stderr.is_empty(), "it says something:\n{}", self.both());
        self
    }

    #[track_caller]
    pub fn prints(self, text: &str) -> Done {
        assert_eq!(self.text(), text, "stdout is something else:\n{}", self.both());
        self
    }

    /// Asserts that it took less than three times what the contract allows: the machine may be busy.
    #[track_caller]
    pub fn within(self, bound: Duration) -> Done {
        assert!(self.took < bound * 3, "took {:?}, and {bound:?} would be right:\n{}", self.took, self.both());
        self
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Returns the token that `acquire` printed.
    #[track_caller]
    pub fn token(&self) -> String {
        let token = self.text();
        assert!(token.starts_with("nx1:") && token.ends_with('\n'), "no token:\n{}", self.both());
        token.trim_end().to_owned()
    }

    /// Returns the one JSON document on stdout.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|e| panic!("no document ({e}):\n{}", self.both()))
    }

    pub fn both(&self) -> String {
        format!("--- stdout\n{}\n--- stderr\n{}", self.text(), self.stderr)
    }
}
