//! Gives the lock back in place of an nxlock that died: once the command's tree is gone, the guard executes nxlock anew.
//!
//! By execve(2): a process forked while nxlock had threads may do little else, and `nxlock release` stays the only way
//! to give a lock back.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, RawFd};

use nix::libc;
use nix::poll::PollFlags;
use nix::sys::signal::SigSet;
use nix::unistd::{dup2_stdout, write};

use crate::cli::{GlobalArgs, SETTINGS};
use crate::clock::Moment;
use crate::cmd::renew::LAST_RENEWAL;
use crate::cmd::{LEFT, RECORDING};
use crate::lock::{Also, Claim, Ttl};
use crate::report::Named;
use crate::supervise::{Program, Variable};
use crate::wait::is_ready;
use crate::{descriptors, handover};

/// This program, even if its file was replaced or deleted, proc_pid_exe(5).
const SELF: &str = "/proc/self/exe";

/// The values with which a guard takes the place of its nxlock.
pub struct Orphan<'a> {
    pub global: &'a GlobalArgs,
    /// The files that nxlock has read, packed.
    pub files: &'a [u8],
    pub lock: &'a Named,
    pub mask: SigSet,
    /// The descriptors with which the claim lives, if there are any.
    pub claim_fds: &'a [RawFd],
}

impl Orphan<'_> {
    /// Reports what happened, and gives the lock back or leaves it for the rest of `--at-least`; if that fails, the lock
    /// expires. The lock stays locked until `at_least`. `was_over` says that the command had ended, and nxlock was giving
    /// the lock back. Must be called in a process that does nothing else any more.
    pub fn give_back(&self, claim: &Claim, at_least: Option<Moment>, was_over: bool) {
        let Orphan { global, files, lock, mask, claim_fds } = *self;
        let rest = at_least.map(Moment::remaining).filter(|rest| !rest.is_zero());
        report(lock, was_over);
        // stdout belongs to the command.
        let _ = descriptors::nowhere().map(|nowhere| dup2_stdout(nowhere.as_fd()));
        let mut words: Vec<OsString> = vec![SELF.into(), "--quiet".into()];
        words.extend(global.json.then(|| "--json".into()));
        match rest {
            Some(rest) => {
                let rest = Ttl::at_least(rest).millis();
                words.extend(["renew".into(), "--ttl".into(), format!("{rest}ms").into()]);
            }
            // The claim ends with this process; but processes that the command has left would keep it.
            None if !claim_fds.is_empty() && claim.recording.is_none() && !was_over => return,
            None => words.push("release".into()),
        }
        // The claim lives with them until the other nxlock is done.
        claim_fds.iter().for_each(|fd| keep_open(*fd));
        if lock.by_key {
            // In one word: a key may begin with a hyphen.
            words.push(format!("--key={}", lock.key).into());
        } else {
            words.extend(["--".into(), lock.name.as_str().into()]);
        }
        // The tree is gone: nobody else inherits the descriptor. Without it, the files are read again.
        let handover = handover::send(files).ok();
        if let Ok(program) = Program::new(&words, &environment(global, claim, handover), mask, &[]) {
            program.exec();
        }
    }
}

/// Returns all settings that are handed on, as variables: a password must not be visible in argv. They are those of the
/// command line and of the configuration files, which are not read again. What nxlock has read from other files is behind
/// the descriptor.
fn environment(global: &GlobalArgs, claim: &Claim, handover: Option<RawFd>) -> Vec<Variable> {
    let of_this_run = [
        ("NXLOCK_TOKEN", Some(claim.token.as_str().into())),
        (handover::VARIABLE, handover.map(|number| number.to_string().into())),
        (LAST_RENEWAL, Some("1".into())),
        (RECORDING, claim.recording.as_ref().map(|recording| recording.to_string().into())),
        (LEFT, (!claim.also.is_empty()).then(|| left(claim).into())),
    ];
    let settings = SETTINGS.iter().map(|setting| (setting.variable, (setting.value)(global)));
    settings.chain(of_this_run).map(|(name, value)| (name.into(), value)).collect()
}

/// Returns the further locks of a claim as [`LEFT`] has them.
fn left(claim: &Claim) -> String {
    let lines =
        claim.also.iter().map(|Also { claim, .. }| format!("{} {}\n", claim.token.as_str(), claim.name.as_str()));
    lines.collect()
}

/// Leaves a descriptor open across execve(2).
fn keep_open(fd: RawFd) {
    // SAFETY: F_SETFD only changes a flag of a descriptor, and fails if there is none.
    unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
}

/// Reports on stderr what happened, if stderr accepts it at once.
fn report(lock: &Named, was_over: bool) {
    let stderr = io::stderr();
    if is_ready(stderr.as_fd(), PollFlags::POLLOUT) {
        let name = &lock.name;
        let said = match was_over {
            true => format!("nxlock: nxlock was killed when the command under \"{name}\" had ended\n"),
            false => format!(
                "nxlock: nxlock was killed, and so were the command under \"{name}\" and everything it had started\n"
            ),
        };
        let _ = write(stderr.as_fd(), said.as_bytes());
    }
}
