//! nxlock: flock(1) for a fleet. Parses the command line, performs it, prints the report, exits.

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
