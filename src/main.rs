//! nxlock: flock(1) for a fleet.
//!
//! # Architecture
//!
//! **Nouns** (`lock`, `error`). A *claim* is a lock's name and the *token* that proves it. A grant of it is a *lease*,
//! which its holder may trust until a moment on the boot clock, with a *fence* that rises with every grant of the name
//! unless the server runs no scripts. A *lock state* says who holds a name, a *lock status* (`store`) also who waits.
//! An *error* says what nxlock tried, what came back and what to do.
//!
//! **A store keeps locks** (`store`): in Redis, whether one server, a master named by Sentinel or a cluster
//! (`store/redis`); on several servers of which a majority decides (`store/quorum`); or in a directory of this machine
//! (`store/local`). The trait defines what each answers. An answer is a value; an error means that the truth is
//! unknown, and nothing may turn it into "free", "held" or success. By which rules a lock changes hands is written in
//! `lock/machine`, which `store/local` executes and the script of `store/redis` translates.
//!
//! **The course of a `run`.** `main` reads the command line, the environment and the configuration (`cli`). The verb
//! (`cmd/run`) makes a claim and opens the store that the URL names. `acquire` requests the lock until it is granted or
//! refused, the user gives up, or time runs out. While the store decides, `supervise` forks the guard, and through it
//! the process that becomes the command if the lock is granted. If nxlock dies, the guard kills the command with
//! everything it started, and releases the lock. `renewer` extends the lease on a
//! timer and reports a loss; `supervise` decides what that means, and stops the command before the lease can expire.
//! When the command has ended, the renewer releases the lock, and the verb returns a `report`, which `output` prints
//! and `exit` turns into a status. `acquire --while-pid` leaves a `keeper` in the background in place of the
//! supervisor.
//!
//! **Reports.** `report` and `output` report the result, on stdout, or through `log` where stdout belongs to a
//! command; `notify` reports what happens to a claim meanwhile, to the log and to `--events`. Only `log` writes to
//! stderr, except for clap's usage errors and the last words of a guard (`cmd/run/orphaned`). `top` is the live view of
//! `status --watch`. `complete` answers the shell completions.
//!
//! **Layers.** Only `clock` reads the time, only `wait` polls, only `signals` and the guard
//! read signals. `store` does not import `cli`, nor `supervise` the store; `output` takes from both only the values
//! that it prints. `text`, `duration`, `calendar`, `error`, `thread` and `proc` import no other module; `log` imports only such
//! leaves, `clock` and `wait`. No two modules import each other but a parent and its children: `tests/architecture.rs`
//! enforces it.

#[cfg(not(target_os = "linux"))]
compile_error!("nxlock stops a command by what only Linux has: CLOCK_BOOTTIME, subreapers, parent-death signals");

mod acquire;
mod asking;
mod calendar;
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
mod handover;
mod heap;
mod inherited;
mod keeper;
mod list;
mod lock;
mod log;
mod mailbox;
mod notify;
mod output;
mod pace;
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
use crate::heap::Heap;

#[global_allocator]
static HEAP: Heap = Heap::new();

fn main() -> ExitCode {
    if let Some(offered) = complete::asked() {
        return output::offer(&offered).code();
    }
    let Asked { cli, settings } = match cli::config::asked() {
        Ok(asked) => asked,
        Err(usage) => return output::usage(usage).code(),
    };
    signals::end_like_any_other();
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
