//! nxlock: flock(1) for a fleet. Parse, do what was asked, say the report, leave.

#[cfg(not(target_os = "linux"))]
compile_error!("nxlock stops a command by what only Linux has: CLOCK_BOOTTIME, subreapers, parent-death signals");

mod cli;
mod clock;
mod cmd;
mod complete;
mod config;
mod descriptors;
mod events;
mod exit;
#[cfg(fuzzing)]
pub mod fuzzed;
mod inbox;
mod inherited;
mod keeper;
mod limit;
mod lock;
mod look;
mod pen;
mod proc;
mod render;
mod report;
mod say;
mod signals;
mod store;
mod supervise;
mod trusted;
mod vigil;
mod wait;
mod watch;

use std::process::ExitCode;

use crate::cli::Verb;
use crate::config::Asked;
use crate::exit::Exit;

fn main() -> ExitCode {
    if let Some(offered) = complete::asked() {
        return render::offer(&offered).code();
    }
    let Asked { cli, settings } = match config::asked() {
        Ok(asked) => asked,
        Err(usage) => return render::usage(usage).code(),
    };
    say::begin(&cli.everywhere, matches!(cli.verb, Verb::Run(_)));
    let report = cmd::perform(&cli, settings);
    let mut exit = Exit::from(&report);
    let failure = match render::show(&report, cli.everywhere.json) {
        Ok(()) => cmd::shown(report),
        Err(error) => cmd::unshown(report, &error, &cli.everywhere),
    };
    if let Some(failure) = failure {
        exit = Exit::from(&failure);
        render::complain(&failure, cli.everywhere.json);
    }
    events::end();
    exit.code()
}
