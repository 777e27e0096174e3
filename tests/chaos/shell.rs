//! A shell at a terminal, with job control for one job, which it continues in the foreground after a stop.

use std::convert::Infallible;
use std::ffi::{CString, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, SigSet, Signal, killpg, signal};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{ForkResult, Pid, execve, fork, getpid, setpgid, tcsetpgrp};

use crate::section::SHELL;
use crate::support::lasts;

/// For how many microseconds a job is left stopped.
const LEFT_STOPPED: &str = "CHAOS_LEFT_STOPPED";
/// The file for the job's schedstat at its end.
const TOLD: &str = "CHAOS_TOLD";

/// Returns the environment that describes a job to the shell, one word a line.
pub fn environment(job: &[String], left_stopped: Duration, told: &str) -> [(&'static str, String); 3] {
    let micros = left_stopped.as_micros().to_string();
    [(SHELL, job.join("\n")), (LEFT_STOPPED, micros), (TOLD, told.to_owned())]
}

/// Runs the job, and exits as it does.
pub fn run(job: &str) {
    let left_stopped = std::env::var(LEFT_STOPPED).unwrap().parse().map(Duration::from_micros).unwrap();
    let told = std::env::var(TOLD).unwrap();
    let words: Vec<CString> = job.lines().map(|word| CString::new(word).unwrap()).collect();
    let of_ours = |name: &OsString| [SHELL, LEFT_STOPPED, TOLD].iter().any(|other| name == other);
    let variables: Vec<CString> = std::env::vars_os()
        .filter(|(name, _)| !of_ours(name))
        .map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).unwrap())
        .collect();
    let begin = || -> nix::Result<Infallible> {
        setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
        let background = SigSet::from(Signal::SIGTTOU);
        background.thread_block()?;
        tcsetpgrp(std::io::stdin(), getpid())?;
        background.thread_unblock()?;
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        execve(&words[0], &words, &variables)
    };
    // Unlike std's Command, this does not wait for execve(2): a Ctrl-Z may stop the child before that.
    // SAFETY: the child makes only system calls.
    let pid = match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            let _ = begin();
            // SAFETY: ends this process, and runs nothing else.
            unsafe { libc::_exit(127) }
        }
    };
    // SAFETY: SIG_IGN installs no handler.
    unsafe { signal(Signal::SIGTTOU, SigHandler::SigIgn) }.unwrap();
    let any = WaitPidFlag::WEXITED | WaitPidFlag::WSTOPPED;
    let status = loop {
        match waitid(Id::Pid(pid), any | WaitPidFlag::WNOWAIT).unwrap() {
            WaitStatus::Stopped(..) => {
                waitid(Id::Pid(pid), WaitPidFlag::WSTOPPED).unwrap();
                lasts(left_stopped);
                tcsetpgrp(std::io::stdin(), pid).unwrap();
                killpg(pid, Signal::SIGCONT).unwrap();
            }
            // schedstat is readable until the process is waited for.
            _ => {
                let _ = fs::copy(format!("/proc/{pid}/schedstat"), &told);
                break waitpid(pid, None).unwrap();
            }
        }
    };
    let code = match status {
        WaitStatus::Exited(_, code) => code,
        WaitStatus::Signaled(_, signal, _) => 128 + signal as i32,
        other => panic!("{other:?}"),
    };
    // SAFETY: nothing is left to do at an exit.
    unsafe { libc::_exit(code) }
}
