//! The command that prints the password. Each connection runs it anew, by `sh -c`, with no input. Knows nothing of what it
//! prints.
//!
//! An attempt to connect may have less time than the command needs: then the command runs on, as long as a server may
//! take for an answer, and the next attempt takes its output.
//!
//! It leads a process group, so that a Ctrl-C for the command under the lock does not reach it, and that all of it can be
//! killed, also when nxlock gives up meanwhile. Like everything that nxlock starts, it is a process of the tree that nxlock
//! stops with the command: that fails an attempt to connect, and the next one runs it again.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::poll::PollFlags;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rustix::io::ioctl_fionbio;
use rustix::process::{PidfdFlags, pidfd_open};

use super::fault::Fault;
use crate::clock::Moment;
use crate::duration::span;
use crate::error::ErrorKind;
use crate::text;
use crate::wait::{Limit, Woken, is_ready};

pub struct CredentialCommand {
    text: String,
    /// Where the caller was: a keeper leaves that.
    directory: Option<PathBuf>,
    /// Limit of one execution.
    within: Duration,
    /// Executions that no attempt waits for now.
    unfinished: Mutex<Vec<Execution>>,
}

/// One process, while it runs.
struct Execution {
    child: Child,
    /// Readable when it has ended, pidfd_open(2).
    ended: OwnedFd,
    stdout: Capture,
    stderr: Capture,
    began: Moment,
    ends: Moment,
}

/// What comes from a pipe: its beginning, up to a limit.
struct Capture {
    /// `None` after its end.
    pipe: Option<File>,
    bytes: Vec<u8>,
    most: usize,
}

/// Maximum bytes of the output: more than any password has.
const LONGEST: usize = 64 * 1024;
/// Maximum bytes of what it says about a failure.
const LONGEST_COMPLAINT: usize = 4096;
/// How long a killed process has to end before nxlock leaves it to itself.
const DYING: Duration = Duration::from_millis(100);

impl CredentialCommand {
    /// `within` is the limit of one execution.
    pub fn new(text: String, within: Duration) -> CredentialCommand {
        CredentialCommand { text, directory: std::env::current_dir().ok(), within, unfinished: Mutex::default() }
    }

    /// Returns what the command prints, or the beginning of that if it is long.
    ///
    /// # Errors
    /// If the command fails, or prints nothing within its limit; if the limit of this attempt comes before that, it
    /// runs on for the next attempt.
    pub fn output(&self, limit: Limit<'_>) -> Result<Vec<u8>, Fault> {
        let before = self.unfinished().pop();
        let mut execution = match before {
            Some(execution) => execution,
            None => self.begin().map_err(|error| failed(&format!("it cannot be run: {}", text::plain(&error))))?,
        };
        // An attempt that began just before the command did waits until the end.
        let is_last = limit.until + self.within / 20 >= execution.ends;
        let until = if is_last { execution.ends } else { limit.until };
        match execution.wait(Limit { until, ..limit }) {
            Ok(Woken::Ready) => execution.concluded(),
            Ok(Woken::TimeUp) if is_last => {
                let within = span(execution.began.elapsed().min(self.within));
                execution.kill();
                Err(failed(&format!("it did not end within {within}{}", execution.complaint())))
            }
            Ok(woken) => {
                self.unfinished().push(execution);
                Err(if woken == Woken::TimeUp { Fault::TimeUp } else { Fault::Cancelled })
            }
            Err(error) => {
                execution.kill();
                Err(error.into())
            }
        }
    }

    fn begin(&self) -> io::Result<Execution> {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(&self.text).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(directory) = self.directory.as_ref().filter(|directory| directory.is_dir()) {
            command.current_dir(directory);
        }
        let mut child = command.process_group(0).spawn()?;
        let pipes = child.stdout.take().map(OwnedFd::from).zip(child.stderr.take().map(OwnedFd::from));
        let (stdout, stderr) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        let began = Moment::now();
        Ok(Execution {
            ended: pidfd_open(rustix::process::Pid::from_child(&child), PidfdFlags::empty())?,
            stdout: Capture::of(stdout, LONGEST)?,
            stderr: Capture::of(stderr, LONGEST_COMPLAINT)?,
            child,
            began,
            ends: began + self.within,
        })
    }

    fn unfinished(&self) -> MutexGuard<'_, Vec<Execution>> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Execution {
    /// Waits until the process has ended. What it has started may run on, and keep the pipes open.
    fn wait(&mut self, limit: Limit<'_>) -> io::Result<Woken> {
        loop {
            let has_ended = is_ready(self.ended.as_fd(), PollFlags::POLLIN);
            self.stdout.take_in();
            self.stderr.take_in();
            if has_ended {
                return Ok(Woken::Ready);
            }
            let pipes = [self.stdout.fd(), self.stderr.fd()];
            let wanted = [Some(self.ended.as_fd())].into_iter().chain(pipes).flatten();
            let wanted: Vec<_> = wanted.map(|fd| (fd, PollFlags::POLLIN)).collect();
            let woken = limit.wait_for(&wanted)?;
            if woken != Woken::Ready || limit.until.passed() {
                return Ok(if woken == Woken::Ready { Woken::TimeUp } else { woken });
            }
        }
    }

    /// Returns what it has printed.
    fn concluded(mut self) -> Result<Vec<u8>, Fault> {
        let status = self.child.wait()?;
        match status.success() {
            true if self.stdout.bytes.is_empty() => Err(failed(&format!("it printed nothing{}", self.complaint()))),
            true => Ok(std::mem::take(&mut self.stdout.bytes)),
            false => Err(failed(&format!("{}{}", in_words(status), self.complaint()))),
        }
    }

    /// Kills it with everything that it has started and that has not left its process group.
    fn kill(&mut self) {
        let _ = killpg(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGKILL);
        let _ = Limit::until(Moment::now() + DYING).wait_for(&[(self.ended.as_fd(), PollFlags::POLLIN)]);
        let _ = self.child.try_wait();
    }

    /// Returns what it has said on stderr, as the end of a sentence: without what may be the password, which a shell that
    /// traces its commands (`set -x`) repeats there.
    fn complaint(&self) -> String {
        let (said, printed) =
            (String::from_utf8_lossy(&self.stderr.bytes), String::from_utf8_lossy(&self.stdout.bytes));
        let password = printed.lines().next().unwrap_or_default().trim_end_matches('\r');
        let said = if password.is_empty() { said } else { said.replace(password, "***").into() };
        let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if lines.is_empty() { String::new() } else { format!(": {}", text::clean(&lines.join("; "))) }
    }
}

/// Nobody takes the output any more.
impl Drop for Execution {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.kill();
        }
    }
}

impl Capture {
    fn of(pipe: OwnedFd, most: usize) -> io::Result<Capture> {
        ioctl_fionbio(&pipe, true)?;
        Ok(Capture { pipe: Some(pipe.into()), bytes: Vec::new(), most })
    }

    /// Reads what has come, up to what a pipe holds. Drops what is too much, so that a writer is not held up.
    fn take_in(&mut self) {
        let mut buffer = [0; 4096];
        for _ in 0..LONGEST / buffer.len() {
            let Some(pipe) = &mut self.pipe else { return };
            match pipe.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) | Ok(0) => self.pipe = None,
                Ok(n) => {
                    let room = self.most - self.bytes.len();
                    self.bytes.extend(&buffer[..n.min(room)]);
                }
            }
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(File::as_fd)
    }
}

/// Returns the fault of a password that cannot be had.
fn failed(cause: &str) -> Fault {
    Fault::Known {
        kind: ErrorKind::Misconfigured,
        cause: format!("cannot take the password from --password-command: {cause}"),
        hint: "see --password-command, NXLOCK_PASSWORD_COMMAND",
    }
}

fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it exited with status {code}"),
        (None, Some(signal)) => format!("signal {signal} killed it"),
        (None, None) => "it failed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Limit<'static> {
        Limit::until(Moment::now())
    }

    /// Returns the output, or the cause of its lack.
    fn output(command: &CredentialCommand, limit: Limit<'_>) -> Result<String, String> {
        match command.output(limit) {
            Ok(bytes) => Ok(String::from_utf8(bytes).unwrap()),
            Err(Fault::Known { cause, .. }) => Err(cause),
            Err(fault) => Err(format!("{fault:?}")),
        }
    }

    #[test]
    fn an_execution_that_outlasts_an_attempt_serves_the_next_one() {
        let directory = tempfile::tempdir().unwrap();
        let gate = directory.path().join("gate");
        nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        let text = format!("echo $$; read x < {}; echo $x", gate.display());
        let command = CredentialCommand::new(text, Duration::from_secs(60));
        assert_eq!(output(&command, soon()), Err("TimeUp".into()));
        assert_eq!(output(&command, soon()), Err("TimeUp".into()));
        assert_eq!(command.unfinished().len(), 1);
        std::fs::write(&gate, "opened\n").unwrap();
        let pid = command.unfinished()[0].child.id();
        assert_eq!(output(&command, Limit::NONE), Ok(format!("{pid}\nopened\n")));
        assert!(command.unfinished().is_empty());
    }

    #[test]
    fn one_that_does_not_end_is_killed_with_what_it_has_started() {
        let command = CredentialCommand::new("echo pw; sleep 600 & sleep 600".into(), Duration::from_millis(50));
        let cause = output(&command, Limit::NONE).unwrap_err();
        assert!(cause.contains("did not end within"), "{cause}");
    }

    #[test]
    fn one_whose_output_nobody_takes_any_more_is_killed() {
        let command = CredentialCommand::new("sleep 600; :".into(), Duration::from_secs(600));
        assert_eq!(output(&command, soon()), Err("TimeUp".into()));
        let ended = command.unfinished()[0].ended.try_clone().unwrap();
        drop(command);
        let limit = Limit::until(Moment::now() + Duration::from_secs(60));
        assert_eq!(limit.wait_for(&[(ended.as_fd(), PollFlags::POLLIN)]).unwrap(), Woken::Ready);
    }

    #[test]
    fn what_it_leaves_in_the_background_is_not_waited_for() {
        let command = CredentialCommand::new("sleep 5 & echo pw".into(), Duration::from_secs(3));
        assert_eq!(output(&command, Limit::NONE), Ok("pw\n".into()));
    }

    #[test]
    fn a_failure_says_what_the_command_said() {
        let fails = |text: &str| {
            let command = CredentialCommand::new(text.into(), Duration::from_secs(60));
            output(&command, Limit::NONE).unwrap_err()
        };
        let cause = fails("echo s3cret; echo no vault >&2; echo ' try later' >&2; exit 3");
        assert!(cause.ends_with("it exited with status 3: no vault; try later"), "{cause}");
        let cause = fails("set -x; echo s3cret; exit 3");
        assert!(!cause.contains("s3cret") && cause.ends_with("+ echo ***; + exit 3"), "{cause}");
        assert!(fails("kill -9 $$").ends_with("signal 9 killed it"));
        assert!(fails("read x && echo got").ends_with("it exited with status 1"), "it has no input");
        assert!(fails(":").ends_with("it printed nothing"));
    }

    #[test]
    fn much_output_holds_nothing_up() {
        let text = "head -c 300000 /dev/zero | tr '\\0' x; head -c 300000 /dev/zero >&2";
        let command = CredentialCommand::new(text.into(), Duration::from_secs(60));
        assert_eq!(output(&command, Limit::NONE).unwrap().len(), LONGEST);
    }
}
