//! Turns a verb into a report, one file per verb. No verb prints its report.

mod acquire;
mod check;
mod release;
mod renew;
mod request;
mod run;
mod status;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;

use crate::cli::config::Settings;
use crate::cli::{Cli, DEFAULT_PREFIX, GlobalArgs, LockArg, SETTINGS, Setting, Verb, given};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::lock::{Also, Claim, HolderId, Key, LockName, LockState, Lost, Prefix, Recording, Sharing, Token};
use crate::report::alarm::Alarm;
use crate::report::{CommandOptions, Named, Report};
use crate::retry::ReleaseAnswer;
use crate::signals::Signals;
use crate::store::{
    self, Credentials, Durability, Feature, Listed, Look, PasswordSource, Several, Store, StoreOptions, Target,
    TlsFiles,
};
use crate::wait::Limit;
use crate::{log, notify, text};

/// A report, and the custody of the granted lock while the report is printed.
pub struct Outcome {
    pub report: Report,
    custody: Option<acquire::Custody>,
}

impl From<Report> for Outcome {
    fn from(report: Report) -> Outcome {
        Outcome { report, custody: None }
    }
}

impl Outcome {
    /// Finishes after the report was printed. Returns a report if that fails.
    pub fn printed(self) -> Option<Report> {
        match (self.report, self.custody) {
            (Report::Acquired(acquired), Some(custody)) => custody.hand_over(&acquired).err().map(Report::Failed),
            _ => None,
        }
    }

    /// Cleans up after the report could not be printed. Returns the report of that failure.
    pub fn not_printed(self, error: &io::Error, server_timeout: Duration) -> Option<Report> {
        Some(Report::Failed(match (self.report, self.custody) {
            (Report::Acquired(acquired), Some(custody)) => custody.take_back(&acquired, error, server_timeout),
            (Report::Failed(failed), _) => failed,
            // A reader that has left is no failure.
            _ if error.kind() == io::ErrorKind::BrokenPipe => return None,
            (Report::Alarm(_), _) => {
                return Some(Report::Alarm(Alarm::unknown(&Error::internal("cannot write to stdout", error))));
            }
            _ => Error::internal("cannot write to stdout", error),
        }))
    }
}

/// Performs a verb.
pub fn perform(cli: &Cli, settings: Result<Settings, Error>) -> Outcome {
    let global = &cli.global;
    let settings = match settings {
        Ok(settings) => settings,
        Err(error) => return as_alarm(cli, Report::Failed(error)).into(),
    };
    warn_of_a_password(global);
    let outcome = match &cli.verb {
        Verb::Acquire(acquire) => acquire::acquire(global, acquire),
        Verb::Run(run) => run::run(global, run).map(Outcome::from),
        Verb::Renew(renew) => renew::renew(global, renew).map(Outcome::from),
        Verb::Release(release) => release::release(global, release).map(Outcome::from),
        Verb::Status(status) => status::status(global, status).map(Outcome::from),
        Verb::Check(_) => Ok(check::check(global, settings).into()),
    };
    let outcome = outcome.unwrap_or_else(|error| Report::Failed(explain(error)).into());
    let outcome = Outcome { report: as_alarm(cli, outcome.report), ..outcome };
    notify::concluded(&outcome.report);
    log::urgent(false);
    outcome
}

/// Returns a report; a failure, unless it is one of usage, as what it means to who asked for an alarm: that nothing is
/// known.
fn as_alarm(cli: &Cli, report: Report) -> Report {
    match (&cli.verb, report) {
        (Verb::Status(status), Report::Failed(error))
            if status.alarm.limits().are_given() && error.kind != ErrorKind::Usage =>
        {
            Report::Alarm(Alarm::unknown(&error))
        }
        (_, report) => report,
    }
}

/// Warns of a password in argv, which every user of this machine can read while nxlock runs. Only on a terminal: a log
/// would repeat it with every call.
fn warn_of_a_password(global: &GlobalArgs) {
    let has_password = |url: &str| {
        let target = Target::choose([url], None, &Credentials::default());
        target.is_ok_and(|target| target.has_login())
    };
    let is_argument = |url: &str| std::env::args_os().any(|word| word.to_string_lossy().contains(url));
    if io::stderr().is_terminal() && global.servers().any(|url| is_argument(url) && has_password(url)) {
        log::warn(format_args!(
            "while nxlock runs, every user of this machine can read the password in --server; give it by NXLOCK_SERVER, \
             REDISCLI_AUTH, --password-file or a configuration file"
        ));
    }
}

/// Returns the error; any but a store's is an internal failure of nxlock.
fn explain(error: anyhow::Error) -> Error {
    error.downcast().unwrap_or_else(|error: anyhow::Error| {
        let causes = error.chain().skip(1).map(ToString::to_string).collect::<Vec<_>>().join(": ");
        Error::internal(&error.to_string(), &causes)
    })
}

/// Returns the lock asked for, and its prefix.
fn named(global: &GlobalArgs, lock: &LockArg) -> Result<(Named, Prefix), Error> {
    match (&lock.key, &lock.name) {
        (Some(key), _) => Ok((Named::by_key(key), Prefix::none())),
        (None, Some(name)) => Ok((Named::new(name, &global.prefix), global.prefix.clone())),
        (None, None) => Err(Error {
            kind: ErrorKind::Usage,
            action: "no lock is named".into(),
            cause: "there is neither NAME nor --key".into(),
            hint: "name one".into(),
        }),
    }
}

/// The further requirements of a claim on the server.
#[derive(Clone, Copy, Default)]
struct Wants {
    durability: Durability,
    /// The key is shared with old SETNX clients.
    beside_setnx: bool,
    sharing: Sharing,
    supersedes: bool,
    goes_first: bool,
    /// To ask a holder to give up.
    asks: bool,
    /// To know who waits.
    counts_waiters: bool,
    /// To share a further lock.
    also_shares: bool,
    /// The option that asks for a record of runs, or for what was recorded.
    records: Option<&'static str>,
}

impl Wants {
    /// Returns what the store has to be able to do, each with the option that asks for it.
    fn features(&self) -> Vec<(Feature, &'static str)> {
        let sharing = if self.sharing == Sharing::Shared { "--shared" } else { "--slots" };
        let wanted = [
            (self.durability.replicas > 0, Feature::Replicas, "--min-replicas"),
            (self.durability.on_disk, Feature::Disk, "--durable"),
            (self.beside_setnx, Feature::Setnx, "--setnx-compat"),
            (self.sharing != Sharing::Exclusive, Feature::Sharing, sharing),
            (self.also_shares, Feature::Sharing, "--also-shared"),
            (self.supersedes, Feature::Superseding, "--supersede"),
            (self.goes_first, Feature::Order, "--first"),
            (self.asks, Feature::Asking, "--ask"),
            (self.counts_waiters, Feature::Queue, "--max-waiting"),
            (self.records.is_some(), Feature::Recording, self.records.unwrap_or_default()),
        ];
        wanted.into_iter().filter(|(is_wanted, ..)| *is_wanted).map(|(_, feature, option)| (feature, option)).collect()
    }
}

/// Returns REDIS_URL. Unset, empty, or not UTF-8, it names no server.
fn redis_url() -> Option<String> {
    std::env::var("REDIS_URL").ok().filter(|url| !url.trim().is_empty())
}

fn open(global: &GlobalArgs, prefix: Prefix, wants: Wants) -> Result<Box<dyn Store>, Error> {
    open_with_credentials(global, prefix, wants).map(|(store, _)| store)
}

/// Does the same, and returns the credentials too.
fn open_with_credentials(
    global: &GlobalArgs,
    prefix: Prefix,
    wants: Wants,
) -> Result<(Box<dyn Store>, Credentials), Error> {
    let redis_url = redis_url();
    let servers: Vec<&str> = global.servers().collect();
    let wants_login = urls(global).iter().any(|url| store::here(url).is_none());
    let password = given(global.password_file.as_ref())
        .map(|path| PasswordSource::File(path.as_path()))
        .or_else(|| global.password_command().map(|command| PasswordSource::Command(command, global.server_timeout)));
    let file = |file: &Option<PathBuf>| given(file.as_ref()).cloned();
    let tls = TlsFiles { ca: file(&global.tls_ca), cert: file(&global.tls_cert), key: file(&global.tls_key) };
    let credentials = Credentials::gather(password.filter(|_| wants_login), &tls)?;
    let target = Target::choose(servers, redis_url.as_deref(), &credentials)?;
    let server = target.to_string();
    let options = StoreOptions { prefix, timeout: global.server_timeout, durability: wants.durability };
    let store = store::open(target, options);
    match wants.features().into_iter().find(|(feature, _)| !store.can(*feature)) {
        None => Ok((store, credentials)),
        Some((feature, option)) => {
            let (cause, hint) = lacking(feature);
            let action = format!("cannot use {server} with {option}");
            Err(Error { kind: ErrorKind::Usage, action, cause: cause.into(), hint: hint.into() })
        }
    }
}

/// Returns why a store may lack a feature, and what to do about that.
fn lacking(feature: Feature) -> (&'static str, &'static str) {
    let one_server = "leave it out, or name one server";
    match feature {
        Feature::Replicas => (
            "there is no one master whose replicas could have a lock",
            "leave it out, or name one server that has replicas",
        ),
        Feature::Disk => ("there is no one disk that could have a lock", "leave it out, or name one server"),
        Feature::Setnx => ("no SETNX client keeps a lock there", "leave it out, or name the server of those clients"),
        Feature::Sharing => ("a majority of several servers cannot agree on who shares a lock", one_server),
        Feature::Queue | Feature::Superseding | Feature::Order => ("several servers have no queue", one_server),
        Feature::Asking => {
            ("several servers have no place where a holder could be asked", "ask its user, or use --break")
        }
        Feature::Recording => ("several servers have no place for a record of runs", one_server),
    }
}

/// The variable with which the guard of a killed `run` says how that ended, to be recorded.
const RECORDING: &str = "NXLOCK_RECORDING";

/// Returns the recording that the guard of a killed `run` left to this process.
fn left_recording() -> Option<Recording> {
    let text = std::env::var(RECORDING).ok()?;
    text.parse()
        .inspect_err(|()| log::warn(format_args!("{RECORDING} is not what nxlock writes: {}", text::clean(&text))))
        .ok()
}

/// The variable with which the guard of a killed `run` leaves further locks: for each a line, its token and its name.
const LEFT: &str = "NXLOCK_LEFT";

/// Returns the claim with this token, and with what the guard of a killed `run` left to this process.
fn left_claim(lock: &Named, token: Token) -> Claim {
    let left = std::env::var(LEFT).unwrap_or_default();
    let also = left.lines().filter_map(|line| {
        let (token, name) = line.split_once(' ')?;
        let claim = Claim::of(name.parse().map(|key: Key| key.name()).ok()?, token.parse().ok()?);
        Some(Also { claim, fence: None })
    });
    Claim { recording: left_recording(), also: also.collect(), ..Claim::of(lock.name.clone(), token) }
}

/// Opens the store of a claim that a process has left.
fn open_for(global: &GlobalArgs, prefix: &Prefix, claim: &Claim) -> Result<Box<dyn Store>, Error> {
    let store = open(global, prefix.clone(), Wants::default())?;
    if claim.also.is_empty() {
        return Ok(store);
    }
    let keys: Vec<String> = claim.parts().map(|part| prefix.key(&part.name)).collect();
    Ok(Box::new(Several::new(store, &keys).taken_over()))
}

/// Returns the lock that a state is of, which is this one unless there are several.
fn lock_of(state: &LockState, lock: Named, prefix: &Prefix) -> Named {
    state.name.as_ref().map_or(lock, |name| Named::new(name, prefix))
}

/// Returns the names of all locks that exist.
///
/// # Errors
/// If the store cannot list them.
pub fn names(global: &GlobalArgs, listed: Listed, limit: Limit<'_>) -> Result<Vec<LockName>, Error> {
    open(global, global.prefix.clone(), Wants::default())?.names(listed, limit)
}

/// Returns the IDs of those who hold a lock.
///
/// # Errors
/// If the store cannot tell.
pub fn holder_ids(global: &GlobalArgs, lock: &LockArg, limit: Limit<'_>) -> anyhow::Result<Vec<HolderId>> {
    let (lock, prefix) = named(global, lock)?;
    let status = open(global, prefix, Wants::default())?.look(&lock.name, Look::Holders, limit)?;
    Ok(status.state.holders().map(|holder| holder.id.clone()).collect())
}

/// Returns the servers in use, without a password.
fn servers(global: &GlobalArgs) -> Vec<String> {
    targets(global).iter().map(ToString::to_string).collect()
}

fn targets(global: &GlobalArgs) -> Vec<Target> {
    // They were understood, or there would be no store.
    Target::to_show(urls(global).iter().map(String::as_str), true).unwrap_or_default()
}

/// Returns the texts that name the servers in use, each one or several.
fn urls(global: &GlobalArgs) -> Vec<String> {
    let named: Vec<String> = global.servers().map(str::to_owned).collect();
    if named.is_empty() { redis_url().into_iter().collect() } else { named }
}

/// Returns the options that say where the locks are, whatever has set them: the command that has them is pasted into
/// another shell, or on another machine.
fn options(global: &GlobalArgs, lock: &Named) -> CommandOptions {
    let targets = targets(global);
    let urls = urls(global);
    let has_password = Target::have_password(urls.iter().map(String::as_str));
    let is_typed = urls.iter().all(|url| std::env::args_os().any(|word| word.to_string_lossy().ends_with(url)));
    let mut options = String::new();
    for setting in SETTINGS.iter().filter(|setting| setting.locates) {
        let values = match (setting.name, (setting.value)(global)) {
            // Without the password in it, it would take the place of a URL of the reader's own that has one.
            ("server", _) if has_password && !is_typed => Vec::new(),
            ("server", _) => targets.iter().map(ToString::to_string).collect(),
            (_, None) => Vec::new(),
            ("prefix", Some(value)) if lock.by_key || (value == DEFAULT_PREFIX && !is_given(setting)) => Vec::new(),
            (_, Some(value)) if setting.is_file => {
                let path = std::path::absolute(&value).unwrap_or_else(|_| PathBuf::from(&value));
                vec![text::path(&path)]
            }
            (_, Some(value)) => vec![value.to_string_lossy().into_owned()],
        };
        let option = if setting.name == "server" { "-s".to_owned() } else { format!("--{}", setting.name) };
        for value in values {
            options += &format!(" {option} {}", text::quoted(&value));
        }
    }
    let redis_cli = if let [target] = targets.as_slice() { target.redis_cli() } else { String::new() };
    CommandOptions { nxlock: options, redis_cli }
}

/// Returns whether the command line or the environment has a setting.
fn is_given(setting: &Setting) -> bool {
    let is_option = |word: OsString| word.to_string_lossy().starts_with(&format!("--{}", setting.name));
    std::env::var_os(setting.variable).is_some() || std::env::args_os().any(is_option)
}

/// Returns the error of a verb that was given no token; `otherwise` is what its user may do without one.
fn no_token(verb: &str, otherwise: &str) -> Error {
    Error {
        kind: ErrorKind::Usage,
        action: format!("cannot {verb} a lock without its token"),
        cause: "none was given".into(),
        hint: format!("give TOKEN, set NXLOCK_TOKEN, or write `-` to read it from stdin{otherwise}"),
    }
}

/// Reads a token: given as a word, or `-` for stdin.
fn token(given: &str) -> anyhow::Result<Token> {
    let text = if given == "-" {
        let mut text = String::new();
        io::stdin().take(64 * 1024).read_to_string(&mut text).context("cannot read a token from stdin")?;
        text
    } else {
        given.to_owned()
    };
    let parsed = text.trim_end_matches(['\n', '\r']).parse();
    Ok(parsed.map_err(|cause| Error { kind: ErrorKind::Usage, action: "TOKEN".into(), cause, hint: String::new() })?)
}

/// Gives the lock back and returns a report if a signal arrived with the grant: nothing is started then.
fn give_up_if_asked(store: &mut dyn Store, claim: &Claim, timeout: Duration, signals: &mut Signals) -> Option<Report> {
    let signal = signals.stop_requested()?;
    give_back(store, claim, timeout);
    Some(Report::Interrupted(signal))
}

/// Gives back a lock under which nothing was started, and returns whether the server confirmed it. A failure only
/// delays the next holder, for at most one ttl.
fn give_back(store: &mut dyn Store, claim: &Claim, timeout: Duration) -> bool {
    try_give_back(store, claim, timeout).inspect_err(|explain| log::warn(format_args!("{explain}"))).is_ok()
}

/// Gives back an unused lock, and reports the event.
fn try_give_back(store: &mut dyn Store, claim: &Claim, timeout: Duration) -> Result<(), Error> {
    match crate::retry::release(timeout, Moment::NEVER, None, |limit| store.release(claim, limit)) {
        Ok(ReleaseAnswer::NotYours(state)) => {
            notify::lost(&Lost::Taken(*state), "found when it was to be released");
        }
        Ok(ReleaseAnswer::Done | ReleaseAnswer::InDoubt) => {
            notify::released(None);
        }
        Err(explain) => {
            notify::unreleased(&explain);
            return Err(explain);
        }
    }
    Ok(())
}
