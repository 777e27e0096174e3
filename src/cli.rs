//! The whole command line as domain types: what the user typed. Must not know what it does.
//!
//! Help, completions and manual pages are generated from this one definition (`cli/docs.rs`), so each text below is
//! written for all three. Parsing touches neither the network nor a file.

pub mod config;
#[cfg(test)]
pub mod docs;
mod event_args;
mod global;
mod lost;
mod parse;
mod servers;
mod setnx;
pub mod text;

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgAction, ArgGroup, Args, Parser, Subcommand, ValueHint};

use crate::duration::{self, positive};
use crate::lock::{HolderId, Key, LockName, Ttl};
use crate::supervise::{Descendants, OnLost};

pub use event_args::EventArgs;
pub use global::DEFAULT_PREFIX;
pub use global::GlobalArgs;
pub use global::given;
pub use lost::LostSignal;
pub use parse::LockArg;
pub use setnx::SetnxArgs;

/// flock(1) for a fleet: run a command under a lock kept in Redis.
///
/// nxlock runs a command, or guards a stretch of a shell script, under a lock that every machine
/// which can reach your Redis agrees on. The lock is one plain key, set by `SET key token NX PX`,
/// renewed while the command runs and given back when it ends; a command is stopped before a lease
/// that could not be renewed can have ended.
#[derive(Debug, Parser)]
#[command(name = "nxlock", version, max_term_width = 100, propagate_version = true)]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true)]
#[command(subcommand_value_name = "VERB", subcommand_help_heading = "Verbs")]
#[command(after_long_help = text::AFTER_HELP)]
pub struct Cli {
    #[command(flatten)]
    pub global: GlobalArgs,
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    // The structs of these verbs have the help texts: a text here would hide them.
    Run(Run),
    Acquire(Acquire),
    Renew(Renew),
    Release(Release),
    Status(Status),
    Check(Check),
}

/// Hold a lock around a command.
///
/// Takes the lock NAME, waiting for it if need be, runs COMMAND, renews the lock while it runs and
/// gives it back when it ends. The exit status is the command's own. If the lock cannot be renewed
/// in time, or turns out to be somebody else's, COMMAND and everything it started is stopped before
/// the lease can have ended, and the exit status is 76.
///
/// Everything after NAME that is not an option of nxlock begins the command, and `--` always ends
/// nxlock's options.
#[derive(Debug, Args)]
#[command(after_long_help = text::RUN_HELP)]
#[command(group(ArgGroup::new("what").required(true).args(["shell", "command"])))]
#[command(
    override_usage = "nxlock run [OPTIONS] NAME [--] COMMAND [ARG]...\n       nxlock run [OPTIONS] NAME -c TEXT\n       nxlock run [OPTIONS] --key KEY [--] COMMAND [ARG]..."
)]
pub struct Run {
    #[command(flatten)]
    pub lock: LockArg,

    /// The lease: how long the lock outlives a holder that cannot renew it.
    ///
    /// It is renewed every third of this, at least every 10s. Not less than 100ms.
    #[arg(short, long, value_name = "D", default_value = "30s")]
    pub ttl: Ttl,

    #[command(flatten)]
    pub wait_args: WaitArgs,

    #[command(flatten)]
    pub setnx: SetnxArgs,

    #[command(flatten)]
    pub event_args: EventArgs,

    /// Run TEXT by `sh -c`; no further arguments.
    #[arg(short = 'c', long, value_name = "TEXT", help_heading = "The command")]
    pub shell: Option<OsString>,

    /// Keep the name locked until D after it was granted, even if the command ends sooner.
    ///
    /// For short cron jobs: a host whose clock is behind must not run the job again.
    #[arg(long, value_name = "D", value_parser = positive, help_heading = "The command")]
    pub at_least: Option<Duration>,

    /// Stop the command after D, and exit with 124.
    #[arg(long, value_name = "D", value_parser = positive, help_heading = "The command")]
    pub time_limit: Option<Duration>,

    /// How long a stopped command has between TERM and KILL.
    ///
    /// Always cut to what the lease leaves: the command is gone before the lease can have ended.
    #[arg(long, value_name = "D", default_value = "5s", value_parser = duration::parse, help_heading = "The command")]
    pub kill_after: Duration,

    /// What to do when the lock is lost while the command runs.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnLost::Stop, help_heading = "The command")]
    pub on_lost: OnLost,

    /// What to do about processes that outlive a command which ended by itself.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Descendants::Leave, help_heading = "The command")]
    pub descendants: Descendants,

    /// The command and its arguments, passed on byte for byte.
    #[arg(value_name = "COMMAND", trailing_var_arg = true, help_heading = "The command")]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// Take a lock and print its token.
///
/// The token proves the claim: `release` and `renew` want it back. With --while-pid a keeper in the
/// background renews the lock until the process PID ends, and then gives it back. Otherwise nothing
/// renews it: it ends by itself after --ttl unless `renew` is called. If the token cannot be printed,
/// the lock is given back.
#[derive(Debug, Args)]
#[command(after_long_help = text::ACQUIRE_HELP)]
#[command(
    override_usage = "nxlock acquire [OPTIONS] --while-pid PID NAME\n       nxlock acquire [OPTIONS] --ttl D NAME\n       nxlock acquire [OPTIONS] {--while-pid PID | --ttl D} --key KEY"
)]
pub struct Acquire {
    #[command(flatten)]
    pub lock: LockArg,

    /// Keep the lock until process PID ends, by a keeper in the background.
    ///
    /// `$$` is the shell that calls. The lock is free at once when PID is gone, whatever ended it, or
    /// when it is given back by `release`.
    #[arg(long, value_name = "PID", value_hint = ValueHint::Other)]
    #[arg(value_parser = lost::process)]
    pub while_pid: Option<u32>,

    /// What PID is sent if the lock is lost: a signal by name or number, or `none`.
    #[arg(long, value_name = "SIG", default_value = "TERM", requires = "while_pid", value_hint = ValueHint::Other)]
    pub lost_signal: LostSignal,

    /// How long the lock is needed; it ends by itself then. Not less than 100ms.
    ///
    /// With --while-pid it may be left out, and is 30s: how long the lock outlives a keeper that cannot
    /// renew it.
    #[arg(short, long, value_name = "D", required_unless_present = "while_pid")]
    pub ttl: Option<Ttl>,

    /// Print `export NXLOCK_NAME=... NXLOCK_TOKEN=... NXLOCK_FENCE=...`, quoted for `eval`.
    #[arg(long, conflicts_with = "json")]
    pub export: bool,

    // Last, since their headings would apply to the options that follow.
    #[command(flatten)]
    pub wait_args: WaitArgs,

    #[command(flatten)]
    pub setnx: SetnxArgs,

    #[command(flatten)]
    pub event_args: EventArgs,
}

impl Acquire {
    pub fn ttl(&self) -> Ttl {
        self.ttl.unwrap_or(Ttl::at_least(Duration::from_secs(30)))
    }
}

/// How long to wait for a lock that somebody else has.
#[derive(Debug, Args)]
#[command(next_help_heading = "Waiting")]
pub struct WaitArgs {
    /// Give up after D; 0 is the same as -n. Without either, wait for ever.
    #[arg(short, long, value_name = "D", value_parser = duration::parse, conflicts_with = "no_wait")]
    pub wait: Option<Duration>,

    /// Do not wait.
    #[arg(short, long)]
    pub no_wait: bool,

    /// Do not queue: poll as a plain `SET NX` client does, on an equal footing with such clients.
    #[arg(long)]
    pub no_queue: bool,

    /// Exit with N, 0 to 255, instead of 75 when somebody else has the lock.
    #[arg(short = 'E', long, value_name = "N")]
    pub conflict_exit_code: Option<u8>,

    /// Shown to others in `status` and in their "held by" message.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub reason: Option<String>,

    /// Take the lock only once N replicas of the server have it.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub min_replicas: u32,
}

/// Put a lock's expiry a full ttl from now.
///
/// Only if the lock is still held with this token; otherwise nothing is touched and the exit status
/// is 76. The expiry of a lock that `run` or a keeper renews is never moved nearer: they count on it.
#[derive(Debug, Args)]
#[command(after_long_help = text::RENEW_HELP)]
#[command(
    override_usage = "nxlock renew [OPTIONS] --ttl D NAME [TOKEN]\n       nxlock renew [OPTIONS] --ttl D --key KEY [TOKEN]"
)]
pub struct Renew {
    #[command(flatten)]
    pub lock: LockArg,

    /// The token that `acquire` printed; `-` reads it from stdin.
    #[arg(value_name = "TOKEN", env = "NXLOCK_TOKEN", hide_env_values = true, value_hint = ValueHint::Other)]
    pub token: String,

    /// How long the lock is needed from now. Not less than 100ms.
    #[arg(short, long, value_name = "D")]
    pub ttl: Ttl,
}

/// Give a lock back, or break somebody else's.
///
/// Only if the lock is still held with this token; otherwise nothing is touched and the exit status
/// is 76. A keeper that `acquire --while-pid` left on this machine ends first, and takes it for no loss.
#[derive(Debug, Args)]
#[command(after_long_help = text::RELEASE_HELP)]
#[command(
    override_usage = "nxlock release [OPTIONS] NAME [TOKEN]\n       nxlock release [OPTIONS] NAME --break ID\n       \
                            nxlock release [OPTIONS] --key KEY [TOKEN]"
)]
pub struct Release {
    #[command(flatten)]
    pub lock: LockArg,

    /// The token that `acquire` printed; `-` reads it from stdin.
    #[arg(value_name = "TOKEN", env = "NXLOCK_TOKEN", hide_env_values = true, value_hint = ValueHint::Other)]
    pub token: Option<String>,

    /// Take the lock from the holder that `status` shows as ID.
    ///
    /// Refused, with exit status 76, if the holder has changed since.
    #[arg(long = "break", value_name = "ID")]
    pub break_id: Option<HolderId>,
}

/// Show who holds which lock.
///
/// With names, the exit status is 0 if all are held and 1 if any is free, and the queue is shown with them. Without,
/// every lock under the prefix is listed.
#[derive(Debug, Args)]
#[command(after_long_help = text::STATUS_HELP)]
#[command(override_usage = "nxlock status [OPTIONS] [NAME]...\n       nxlock status [OPTIONS] --key KEY")]
pub struct Status {
    /// Keep the view live: look every D.
    ///
    /// On a terminal it fills the screen, and there are keys to choose a lock and see its queue. Elsewhere, and with
    /// --json, all is shown again whenever it has changed. Not less than 100ms.
    #[arg(long, value_name = "D", num_args = 0..=1, require_equals = true, default_missing_value = "1s")]
    #[arg(value_parser = duration::interval)]
    pub watch: Option<Duration>,

    /// The locks to show.
    #[arg(value_name = "NAME", action = ArgAction::Append, value_hint = ValueHint::Other)]
    pub names: Vec<LockName>,

    /// The exact key, without prefix, in place of NAME.
    #[arg(long, value_name = "KEY", value_hint = ValueHint::Other, conflicts_with = "names")]
    pub key: Option<Key>,
}

/// Find out whether the server is fit to keep locks.
///
/// Shows which settings are in force and where they come from; then tries a lock of its own at the server, with a
/// waiter, and looks at what endangers locks there. Nothing is left behind but a fence that ends by itself, and
/// that only where it may not be deleted.
#[derive(Debug, Args)]
#[command(after_long_help = text::CHECK_HELP)]
#[command(override_usage = "nxlock check [OPTIONS]")]
pub struct Check {}
