//! The command line as domain types: what the user typed, and nothing about what it does.
//!
//! Help, completions and manual pages are generated from this one definition (`cli/docs.rs`), so each text below is
//! written for all three. Parsing touches neither the network nor a file.

mod alarm;
mod also;
mod brief;
pub mod config;
#[cfg(test)]
pub mod docs;
mod event_args;
mod global;
mod hints;
mod lost;
mod parse;
mod recording;
mod setnx;
mod sharing;
pub mod text;

use std::ffi::OsString;
use std::time::Duration;

use clap::{ArgAction, ArgGroup, Args, Command, Parser, Subcommand, ValueHint};

use crate::calendar::Instant;
use crate::duration::{self, positive};
use crate::lock::{HolderId, Key, KnownAs, LockName, Supersedes, Ttl};
use crate::store::Durability;
use crate::supervise::{Descendants, OnLost};

pub use alarm::AlarmArgs;
pub use also::AlsoArgs;
pub use event_args::EventArgs;
pub use global::{DEFAULT_PREFIX, GlobalArgs, SETTINGS, Setting, given};
pub use lost::LostSignal;
pub use parse::LockArg;
use parse::reason;
pub use recording::RecordingArgs;
pub use setnx::SetnxArgs;
pub use sharing::SharingArgs;

/// flock(1) for a fleet: run a command under a lock kept in Redis.
///
/// nxlock runs a command, or guards part of a shell script, under a lock shared by all machines
/// that can reach your Redis. The lock is one plain key, set as by `SET key token NX PX`. nxlock
/// renews it while the command runs and releases it when the command ends. If nxlock cannot renew
/// the lease, it stops the command before the lease can expire.
#[derive(Debug, Parser)]
#[command(name = "nxlock", version, max_term_width = 100, propagate_version = true)]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true)]
#[command(subcommand_value_name = "VERB", subcommand_help_heading = "Verbs")]
#[command(after_long_help = text::AFTER_HELP)]
pub struct CommandLine<V: Subcommand> {
    #[command(flatten)]
    pub global: GlobalArgs,
    #[command(subcommand)]
    pub verb: V,
}

pub type Cli = CommandLine<Verb>;

#[derive(Debug, Subcommand)]
pub enum Verb {
    // The structs of these verbs have the help texts: a text here would override them.
    Run(Run),
    Acquire(Acquire),
    Renew(Renew),
    Release(Release),
    Status(Status),
    Check(Check),
}

/// A verb's name, and the function that adds its arguments to a command.
type Definition = (&'static str, fn(Command) -> Command);

const VERBS: [Definition; 6] = [
    ("run", Run::augment_args),
    ("acquire", Acquire::augment_args),
    ("renew", Renew::augment_args),
    ("release", Release::augment_args),
    ("status", Status::augment_args),
    ("check", Check::augment_args),
];

/// Hold a lock around a command.
///
/// Acquires the lock NAME, waits for it if necessary, runs COMMAND, renews the lock while COMMAND
/// runs, and releases it when COMMAND ends. The exit status is that of COMMAND. If nxlock cannot
/// renew the lock in time, or finds that somebody else holds it, it stops COMMAND and everything
/// COMMAND started before the lease can expire, and exits with 76.
///
/// The first word after NAME that is not an option of nxlock begins the command; `--` always ends
/// the options of nxlock.
#[derive(Debug, Args)]
#[command(after_long_help = text::RUN_HELP)]
#[command(group(ArgGroup::new("what").required(true).args(["shell", "command"])))]
#[command(
    override_usage = "nxlock run [OPTIONS] NAME [--] COMMAND [ARG]...\n       nxlock run [OPTIONS] NAME -c TEXT\n       nxlock run [OPTIONS] --key KEY [--] COMMAND [ARG]..."
)]
pub struct Run {
    #[command(flatten)]
    pub lock: LockArg,

    /// Lease, renewed while the command runs.
    ///
    /// It is how long the lock outlives a holder that cannot renew it. nxlock renews it every third of D, and at least
    /// every 10s. D is at least 100ms.
    #[arg(short, long, value_name = "D", default_value = "30s")]
    pub ttl: Ttl,

    #[command(flatten)]
    pub wait_args: WaitArgs,

    #[command(flatten)]
    pub sharing: SharingArgs,

    #[command(flatten)]
    pub also: AlsoArgs,

    #[command(flatten)]
    pub setnx: SetnxArgs,

    #[command(flatten)]
    pub event_args: EventArgs,

    #[command(flatten)]
    pub recording: RecordingArgs,

    /// Run TEXT with `sh -c`; no further arguments are allowed.
    #[arg(short = 'c', long, value_name = "TEXT", help_heading = "The command")]
    pub shell: Option<OsString>,

    /// Keep the name locked until D after the grant.
    ///
    /// The name stays locked even if the command ends sooner. For short cron jobs: a host whose clock is behind must
    /// not run the job again. Once the command has ended, nobody hears a request to give the lock up (`release --ask`);
    /// it can still be broken.
    #[arg(long, value_name = "D", value_parser = positive, help_heading = "The command")]
    pub at_least: Option<Duration>,

    /// Stop the command after D and exit with 124.
    #[arg(long, value_name = "D", value_parser = positive, help_heading = "The command")]
    pub time_limit: Option<Duration>,

    /// When stopping the command, send KILL D after TERM.
    ///
    /// nxlock always shortens D to what the lease leaves: the command is gone before the lease can expire.
    #[arg(long, value_name = "D", default_value = "5s", value_parser = duration::parse, help_heading = "The command")]
    #[arg(hide_short_help = true)]
    pub kill_after: Duration,

    /// What to do if the lock is lost while the command runs.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnLost::Stop, help_heading = "The command")]
    #[arg(hide_short_help = true)]
    pub on_lost: OnLost,

    /// What to do with processes that outlive a command that ended by itself.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Descendants::Leave, help_heading = "The command")]
    #[arg(hide_short_help = true)]
    pub descendants: Descendants,

    /// Do not let others ask this holder to give up: neither by `release --ask` nor by --supersede=running.
    ///
    /// They can still break the lock.
    #[arg(long, help_heading = "The command", hide_short_help = true)]
    pub no_ask: bool,

    /// The command and its arguments, passed through byte for byte.
    #[arg(value_name = "COMMAND", trailing_var_arg = true, help_heading = "The command", hide_short_help = true)]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// Acquire a lock and print its token.
///
/// The token proves the claim: `release` and `renew` require it. With --while-pid, a keeper in the
/// background renews the lock until the process PID ends, and then releases it. Without --while-pid,
/// nxlock does not renew the lock: it expires after --ttl unless you call `renew`. If nxlock cannot
/// print the token, it releases the lock.
#[derive(Debug, Args)]
#[command(after_long_help = text::ACQUIRE_HELP)]
#[command(
    override_usage = "nxlock acquire [OPTIONS] --while-pid PID NAME\n       nxlock acquire [OPTIONS] {--ttl D | --until TIME} NAME\n       nxlock acquire [OPTIONS] {--while-pid PID | --ttl D} --key KEY"
)]
pub struct Acquire {
    #[command(flatten)]
    pub lock: LockArg,

    /// Hold the lock until process PID ends.
    ///
    /// A keeper in the background renews it. `$$` is the calling shell. The lock is free as soon as PID ends, whatever
    /// ends it, or as soon as `release` releases it.
    #[arg(long, value_name = "PID", value_hint = ValueHint::Other)]
    #[arg(value_parser = lost::process)]
    pub while_pid: Option<u32>,

    /// Send SIG to PID if the lock is lost.
    ///
    /// SIG is a signal's name or number, or `none`.
    #[arg(long, value_name = "SIG", default_value = "TERM", requires = "while_pid", value_hint = ValueHint::Other)]
    pub lost_signal: LostSignal,

    /// How long you need the lock; it expires after D.
    ///
    /// D is at least 100ms. With --while-pid, --ttl is optional and defaults to 30s: it is how long the lock outlives a
    /// keeper that cannot renew it.
    #[arg(short, long, value_name = "D", required_unless_present_any = ["while_pid", "until"])]
    pub ttl: Option<Ttl>,

    /// Hold the lock until TIME, in place of --ttl.
    ///
    /// TIME is 2026-11-30T08:00Z or, in local time, '2026-11-30 08:00' or 08:00, which is the next one; seconds may
    /// follow. For a freeze: everybody who is refused sees the --reason. If the clocks change, a time that is skipped is
    /// as late as it would be without the change, and of one that comes twice the first counts. A wait that lasts until
    /// TIME ends with 75.
    #[arg(long, value_name = "TIME", conflicts_with_all = ["ttl", "while_pid"], value_hint = ValueHint::Other)]
    pub until: Option<Instant>,

    /// Print shell variables for `eval` instead of the token.
    ///
    /// nxlock prints `export NXLOCK_NAME=... NXLOCK_TOKEN=... NXLOCK_FENCE=... NXLOCK_HELD=...`, quoted. A `run` of the
    /// same name in that script is refused, as within a `run`: it would wait for itself.
    #[arg(long, conflicts_with = "json")]
    pub export: bool,

    // Last, because their headings would also apply to the options that follow.
    #[command(flatten)]
    pub wait_args: WaitArgs,

    #[command(flatten)]
    pub sharing: SharingArgs,

    #[command(flatten)]
    pub also: AlsoArgs,

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

/// How long to wait for a lock that somebody else holds.
#[derive(Debug, Args)]
#[command(next_help_heading = "Waiting")]
pub struct WaitArgs {
    /// Wait at most D, instead of for ever.
    ///
    /// 0 is the same as -n.
    #[arg(short, long, value_name = "D", value_parser = duration::parse, conflicts_with = "no_wait")]
    pub wait: Option<Duration>,

    /// Fail instead of waiting.
    #[arg(short, long)]
    pub no_wait: bool,

    /// Do not queue: poll like a plain `SET NX` client, on an equal footing with such clients.
    #[arg(long, hide_short_help = true)]
    pub no_queue: bool,

    /// The newest wins: others who wait so give up.
    ///
    /// Those who wait with --supersede too exit with 75. They give up as soon as this one joins the queue, and this one
    /// does as soon as a newer one does. Those who wait without --supersede are left alone, and so is the holder; with
    /// --supersede=running, a holder that runs with --supersede=running is asked to give up. See SUPERSEDING in
    /// nxlock(1).
    #[arg(long, value_name = "WHOM", value_enum, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "waiting", conflicts_with_all = ["no_queue", "setnx_compat"])]
    pub supersede: Option<Supersedes>,

    /// Wait ahead of all who wait without --first.
    ///
    /// Those who wait with it keep their order among themselves. The holder is not disturbed: see `release --ask`. With
    /// --shared, it passes a writer that waits: a stream of such readers would keep it waiting for ever.
    #[arg(long, conflicts_with = "no_queue", hide_short_help = true)]
    pub first: bool,

    /// Exit with N instead of 75 if the lock is held.
    ///
    /// N is 0 to 255. It applies wherever nxlock would exit with 75: with 0, a wait in vain (--wait) is a success too,
    /// although nothing was run.
    #[arg(short = 'E', long, value_name = "N", allow_negative_numbers = true)]
    pub conflict_exit_code: Option<u8>,

    /// Show TEXT in `status` and to those who wait.
    ///
    /// Line breaks become spaces. An empty TEXT is none.
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub reason: Option<String>,

    /// Show TEXT as the holder, before user, host and process.
    ///
    /// For what people call it: the run of a pipeline, an agent. TEXT is 1 to 64 bytes without control characters. An
    /// nxlock that the command starts is known so too if you set NXLOCK_AS instead.
    #[arg(id = "as", long = "as", value_name = "TEXT", env = "NXLOCK_AS", hide_env_values = true)]
    #[arg(hide_short_help = true)]
    pub known_as: Option<KnownAs>,

    /// Accept the lock only once N replicas of the server have it.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, hide_short_help = true)]
    pub min_replicas: u32,

    /// Accept the lock only once the server has it on disk.
    ///
    /// A server that is killed, or loses its power, has it again when it comes back. The server needs an append-only
    /// file, and tells after its next sync: at once with `appendfsync always`, within a second or two with `everysec`.
    /// With --min-replicas N, N replicas have it on disk too.
    #[arg(long, hide_short_help = true)]
    pub durable: bool,
}

impl WaitArgs {
    pub fn durability(&self) -> Durability {
        Durability { replicas: self.min_replicas, on_disk: self.durable }
    }
}

/// Set a lock's expiry to a full ttl from now.
///
/// nxlock renews the lock only if TOKEN still holds it; otherwise it changes nothing and exits with
/// 76. It never moves the expiry of a lock that `run` or a keeper renews to an earlier time, because
/// they rely on it.
#[derive(Debug, Args)]
#[command(after_long_help = text::RENEW_HELP)]
#[command(
    override_usage = "nxlock renew [OPTIONS] --ttl D NAME [TOKEN]\n       nxlock renew [OPTIONS] --ttl D --key KEY [TOKEN]"
)]
pub struct Renew {
    #[command(flatten)]
    pub lock: LockArg,

    /// Token that `acquire` printed, or - for stdin.
    #[arg(value_name = "TOKEN", env = "NXLOCK_TOKEN", hide_env_values = true, value_hint = ValueHint::Other)]
    pub token: Option<String>,

    /// How long you need the lock from now on, at least 100ms.
    #[arg(short, long, value_name = "D")]
    pub ttl: Ttl,
}

/// Release a lock, or ask somebody else to, or break it.
///
/// nxlock releases the lock only if TOKEN still holds it; otherwise it changes nothing and exits with
/// 76. If `acquire --while-pid` left a keeper on this machine, `release` stops the keeper first, so that
/// it does not report a loss.
#[derive(Debug, Args)]
#[command(after_long_help = text::RELEASE_HELP)]
#[command(group = ArgGroup::new("holder").args(["ask", "break_id"]))]
#[command(
    override_usage = "nxlock release [OPTIONS] NAME [TOKEN]\n       nxlock release [OPTIONS] NAME --ask ID\n       \
                      nxlock release [OPTIONS] NAME --break ID\n       \
                      nxlock release [OPTIONS] --key KEY [TOKEN]"
)]
pub struct Release {
    #[command(flatten)]
    pub lock: LockArg,

    /// Token that `acquire` printed, or - for stdin.
    #[arg(value_name = "TOKEN", env = "NXLOCK_TOKEN", hide_env_values = true, value_hint = ValueHint::Other)]
    pub token: Option<String>,

    /// Ask the holder that `status` shows as ID to give up.
    ///
    /// Its command is stopped as by TERM, and then the lock is free. The holder learns of it at once, or
    /// when it renews the lock, within 10s. It may refuse (`run --no-ask`), and a lock that no process renews has nobody to ask: 75. If ID does
    /// not hold the lock, nxlock exits with 76.
    #[arg(long, value_name = "ID")]
    pub ask: Option<HolderId>,

    /// Tell the holder TEXT.
    #[arg(long, value_name = "TEXT", requires = "holder", value_parser = reason)]
    pub reason: Option<String>,

    /// With --ask and --break, tell the holder that it was TEXT, before user, host and process.
    #[arg(id = "as", long = "as", value_name = "TEXT", env = "NXLOCK_AS", hide_env_values = true)]
    #[arg(hide_short_help = true)]
    pub known_as: Option<KnownAs>,

    /// Wait until the holder has given up, at most D.
    ///
    /// If it has not given up by then, nxlock exits with 75.
    #[arg(short, long, value_name = "D", requires = "ask", value_parser = positive)]
    pub wait: Option<Duration>,

    /// Take the lock from the holder that `status` shows as ID.
    ///
    /// This is the last resort: the holder's command goes on until its nxlock finds out, which says who has broken the
    /// lock and why, and stops the command. nxlock refuses this and exits with 76 if the holder has changed since.
    #[arg(long = "break", value_name = "ID")]
    pub break_id: Option<HolderId>,
}

/// Show who holds which lock.
///
/// With names, nxlock also shows each lock's queue, and exits with 0 if all the locks are held and with 1 if any is
/// free. Without names, it lists every lock under the prefix.
#[derive(Debug, Args)]
#[command(after_long_help = text::STATUS_HELP)]
#[command(
    override_usage = "nxlock status [OPTIONS] [NAME]...\n       nxlock status [OPTIONS] --history [NAME]...\n       \
                      nxlock status [OPTIONS] --max-age D [NAME]...\n       \
                      nxlock status [OPTIONS] --metrics [NAME]...\n       \
                      nxlock status [OPTIONS] --key KEY"
)]
pub struct Status {
    /// Keep the view live: refresh it every D.
    ///
    /// On a terminal, the view fills the screen, with keys to select a lock and show its queue. Elsewhere, and with
    /// --json, nxlock prints the whole status again after each change. D is at least 100ms.
    #[arg(long, value_name = "D", num_args = 0..=1, require_equals = true, default_missing_value = "1s")]
    #[arg(value_parser = duration::interval)]
    pub watch: Option<Duration>,

    /// Show recorded runs: who, when, how long, how they ended.
    ///
    /// The last run comes first. Without names, nxlock shows the runs of every lock under the prefix that has any.
    /// `run --record` records them. See HISTORY in nxlock(1).
    #[arg(long, conflicts_with = "watch")]
    pub history: bool,

    /// Show at most N runs of each lock.
    #[arg(long, value_name = "N", requires = "history", value_parser = clap::value_parser!(u16).range(1..))]
    pub limit: Option<u16>,

    /// Print OpenMetrics text, for Prometheus.
    ///
    /// It has holders, waiters, leases and recorded runs. See METRICS in nxlock-status(1).
    #[arg(long, conflicts_with_all = ["watch", "history", "json", "key"])]
    pub metrics: bool,

    /// Locks to show.
    #[arg(value_name = "NAME", action = ArgAction::Append, value_hint = ValueHint::Other)]
    pub names: Vec<LockName>,

    /// Use KEY, without prefix, in place of NAME.
    #[arg(long, value_name = "KEY", value_hint = ValueHint::Other, conflicts_with = "names")]
    pub key: Option<Key>,

    #[command(flatten)]
    pub alarm: AlarmArgs,
}

/// Check whether the server is fit to keep locks.
///
/// nxlock shows the settings in force and where they come from. Then it tries a lock of its own at the server, with
/// a waiter, and looks for what endangers locks there. It cleans up after itself; without permission to delete it,
/// a fence stays until it expires.
#[derive(Debug, Args)]
#[command(after_long_help = text::CHECK_HELP)]
#[command(override_usage = "nxlock check [OPTIONS]")]
pub struct Check {}
