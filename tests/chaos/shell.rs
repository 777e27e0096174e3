//! A shell at a terminal, with job control for one job, which it continues in the foreground after a stop.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, SigSet, Signal, killpg, signal};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, getpid, setpgid, tcsetpgrp};

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
    let mut words = job.lines();
    let mut command = Command::new(words.next().unwrap());
    command.args(words);
    for name in [SHELL, LEFT_STOPPED, TOLD] {
        command.env_remove(name);
    }
    // SAFETY: the closure makes only system calls.
    unsafe {
        command.pre_exec(|| {
            setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
            let background = SigSet::from(Signal::SIGTTOU);
            background.thread_block()?;
            tcsetpgrp(std::io::stdin(), getpid())?;
            background.thread_unblock()?;
            Ok(prctl::set_pdeathsig(Signal::SIGKILL)?)
        });
    }
    let pid = Pid::from_raw(command.spawn().unwrap().id().cast_signed());
    // SAFETY: SIG_IGN runs no code of ours.
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
