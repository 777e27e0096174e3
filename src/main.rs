//! nxlock: flock(1) for a fleet.
//!
//! # Architecture
//!
//! **Nouns** (`lock`, `error`). A *claim* is a lock's name and the *token* that proves it; a grant of it is a *lease*,
//! which may be believed until a moment on the boot clock, with a *fence* that rises with every grant of the name. A
//! *lock state* says who holds a name, a *lock status* also who waits. An *error* says what was tried, what came back
//! and what to do.
//!
//! **A store keeps locks** (`store`): a Redis server however it is reached (`store/redis`), several of which a majority
//! decides (`store/quorum`), or a directory of this machine (`store/local`). The trait says what each answers. An answer
//! is a value; an error means that the truth is unknown, and nothing may turn it into "free", "held" or success.
//!
//! **The way of a `run`.** `main` reads the command line, the environment and the configuration (`cli`). The verb
//! (`cmd/run`) makes a claim and opens the store that the URL names. `acquire` asks the store until the lock is granted,
//! refused, or not wanted any more. `supervise` forks the guard, which forks the command: should nxlock die, the guard
//! kills the command with all that it started, and releases the lock. `renewer` extends the lease on a timer and reports
//! a loss; `supervise` decides what that means, and stops the command before the lease can have expired. When the
//! command has ended, the renewer releases the lock, and the verb returns a `report`, which `output` prints and `exit`
//! turns into a status. `acquire --while-pid` leaves a `keeper` in the background in place of the supervisor.
//!
//! **Who tells what.** `report` and `output` tell the end, on stdout; `notify` tells what happens to a claim meanwhile,
//! to the log and to `--events`; `log` alone writes to stderr. `top` is the live view of `status --watch`.
//!
//! **Who may know what.** Only `clock` asks for the time, only `wait` and `mailbox` block, only `signals` handles
//! signals. `store` knows no command line, `supervise` no store, `output` neither. Text, durations, logging, threads and
//! errors are leaves. No two modules import each other but a parent and its children: `tests/architecture.rs` sees to it.

#[cfg(not(target_os = "linux"))]
compile_error!("nxlock stops a command by what only Linux has: CLOCK_BOOTTIME, subreapers, parent-death signals");

mod acquire;
mod cli;
mod clock;
mod cmd;
mod complete;
mod descriptors;
mod duration;
mod error;
mod exit;
#[cfg(fuzzing)]
pub mod fuzzed;
mod inherited;
mod keeper;
mod list;
mod lock;
mod log;
mod mailbox;
mod notify;
mod output;
mod proc;
mod renewer;
mod report;
mod retry;
mod signals;
mod store;
mod supervise;
mod text;
mod thread;
mod top;
mod trusted;
mod wait;

use std::process::ExitCode;

use crate::cli::Verb;
use crate::cli::config::Asked;
use crate::exit::Exit;

fn main() -> ExitCode {
    if let Some(offered) = complete::asked() {
        return output::offer(&offered).code();
    }
    let Asked { cli, settings } = match cli::config::asked() {
        Ok(asked) => asked,
        Err(usage) => return output::usage(usage).code(),
    };
    log::begin(cli.global.log_options(matches!(cli.verb, Verb::Run(_))), cli.global.color.into());
    let outcome = cmd::perform(&cli, settings);
    let mut exit = Exit::from(&outcome.report);
    let failure = match output::show(&outcome.report, cli.global.json) {
        Ok(()) => outcome.printed(),
        Err(error) => outcome.not_printed(&error, cli.global.server_timeout),
    };
    if let Some(failure) = failure {
        exit = Exit::from(&failure);
        output::complain(&failure, cli.global.json);
    }
    notify::end();
    exit.code()
}
