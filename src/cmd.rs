//! A verb becomes a report, one file a verb; none prints.

mod acquire;
mod check;
mod release;
mod renew;
mod run;
mod status;

use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;

use crate::cli::{Cli, DEFAULT_PREFIX, Everywhere, Patience as Asked, Setnx, Verb, Which, given};
use crate::clock::{Moment, wall};
use crate::config::Settings;
use crate::events;
use crate::limit::Limit;
use crate::lock::{BesideSetnx, HELD, Hold, Lease, LockName, Owner, Prefix, Token, Ttl, Upkeep};
use crate::report::{Busy, Named, Report};
use crate::say::{self, Waiting};
use crate::signals::Signals;
use crate::store::{self, Access, Kind, Store, Target, TlsFiles, Trouble};
use crate::supervise::Lost;
use crate::wait::{self, GivenBack, Patience, Queueing, Wait, Waited};

/// Does what was asked for.
pub fn perform(cli: &Cli, settings: Result<Settings, Trouble>) -> Report {
    let everywhere = &cli.everywhere;
    let settings = match settings {
        Ok(settings) => settings,
        Err(trouble) => return Report::Failed(trouble),
    };
    warn_of_a_password(everywhere);
    let report = match &cli.verb {
        Verb::Run(run) => run::run(everywhere, run),
        Verb::Acquire(acquire) => acquire::acquire(everywhere, acquire),
        Verb::Renew(renew) => renew::renew(everywhere, renew),
        Verb::Release(release) => release::release(everywhere, release),
        Verb::Status(status) => status::status(everywhere, status),
        Verb::Check(_) => Ok(check::check(everywhere, settings)),
    };
    let report = report.unwrap_or_else(|error| Report::Failed(trouble(error)));
    events::concluded(&report);
    say::urgent(false);
    report
}

/// Every user of this machine can read our arguments while we run. Told to a person alone: a log would have it with every
/// call.
fn warn_of_a_password(everywhere: &Everywhere) {
    let has_password = |url: &str| {
        let target = Target::choose([url], None, &Access::default());
        target.is_ok_and(|target| target.has_login())
    };
    let is_argument = |url: &str| std::env::args_os().any(|word| word.to_string_lossy().contains(url));
    if io::stderr().is_terminal() && everywhere.servers().any(|url| is_argument(url) && has_password(url)) {
        say::warn(format_args!(
            "while nxlock runs, every user of this machine can read the password in --server; give it by NXLOCK_SERVER, \
             REDISCLI_AUTH, --password-file or a configuration file"
        ));
    }
}

/// What is left to do now that a report has been shown, and to say if that fails.
pub fn shown(report: Report) -> Option<Report> {
    match report {
        Report::Acquired(acquired) => acquire::heard(acquired).err().map(Report::Failed),
        _ => None,
    }
}

/// What is left to do, and to say, if a report could not be shown.
pub fn unshown(report: Report, error: &io::Error, everywhere: &Everywhere) -> Option<Report> {
    Some(Report::Failed(match report {
        Report::Acquired(acquired) => acquire::unheard(acquired, error, everywhere.server_timeout),
        Report::Failed(trouble) => trouble,
        // A reader that has left knows enough.
        _ if error.kind() == io::ErrorKind::BrokenPipe => return None,
        _ => Trouble::of_ours("cannot write to stdout", error),
    }))
}

/// What is known of an error; whatever is not a store's trouble is our own failure.
fn trouble(error: anyhow::Error) -> Trouble {
    error.downcast().unwrap_or_else(|error: anyhow::Error| {
        let causes = error.chain().skip(1).map(ToString::to_string).collect::<Vec<_>>().join(": ");
        Trouble::of_ours(&error.to_string(), &causes)
    })
}

/// The lock that is meant, and what stands before its name in the key.
fn meant(everywhere: &Everywhere, which: &Which) -> Result<(Named, Prefix), Trouble> {
    match (&which.key, &which.name) {
        (Some(key), _) => Ok((Named::by_key(key), Prefix::none())),
        (None, Some(name)) => Ok((Named::new(name, &everywhere.prefix), everywhere.prefix.clone())),
        (None, None) => Err(Trouble {
            kind: Kind::Usage,
            tried: "no lock is named".into(),
            came: "there is neither NAME nor --key".into(),
            remedy: "name one".into(),
        }),
    }
}

/// What a claim wants of those who keep it, beyond that.
#[derive(Clone, Copy, Default)]
struct Wants {
    min_replicas: u32,
    /// To share its key with old SETNX clients.
    beside_setnx: bool,
}

impl Wants {
    fn of(asked: &Asked, setnx: &Setnx) -> Wants {
        Wants { min_replicas: asked.min_replicas, beside_setnx: setnx.setnx_compat }
    }
}

/// What REDIS_URL names. Unset, empty, or no UTF-8, it names no server.
fn redis_url() -> Option<String> {
    std::env::var("REDIS_URL").ok().filter(|url| !url.trim().is_empty())
}

fn open(everywhere: &Everywhere, prefix: Prefix, wants: Wants) -> Result<Box<dyn Store>, Trouble> {
    let redis_url = redis_url();
    let servers: Vec<&str> = everywhere.servers().collect();
    let asked = servers.iter().copied().chain(redis_url.as_deref().filter(|_| servers.is_empty()));
    let wants_login = asked.map(store::here).any(|here| here.is_none());
    let password_file = given(everywhere.password_file.as_ref()).filter(|_| wants_login);
    let file = |file: &Option<PathBuf>| given(file.as_ref()).cloned();
    let tls =
        TlsFiles { ca: file(&everywhere.tls_ca), cert: file(&everywhere.tls_cert), key: file(&everywhere.tls_key) };
    let access = Access::gather(password_file.map(PathBuf::as_path), tls)?;
    let target = Target::choose(servers, redis_url.as_deref(), &access)?;
    let senseless = |option: &str, came: &str, remedy: &str| Trouble {
        kind: Kind::Usage,
        tried: format!("{option} makes no sense with {target}"),
        came: came.into(),
        remedy: remedy.into(),
    };
    if wants.min_replicas > 0 && !target.is_one_master() {
        let came = "there is no one master whose replicas could have a lock";
        return Err(senseless("--min-replicas", came, "leave it out, or name one server that has replicas"));
    }
    if wants.beside_setnx && !target.is_one_master() {
        let came = "no SETNX client keeps a lock there";
        return Err(senseless("--setnx-compat", came, "leave it out, or name the server of those clients"));
    }
    Ok(store::open(target, prefix, everywhere.server_timeout, wants.min_replicas))
}

/// The names of all locks that exist.
///
/// # Errors
/// If they cannot be found out.
pub fn names(everywhere: &Everywhere, limit: Limit<'_>) -> Result<Vec<LockName>, Trouble> {
    open(everywhere, everywhere.prefix.clone(), Wants::default())?.names(limit)
}

/// What was said on the command line, and not in the environment, of where the locks are. Without a
/// password.
fn options(everywhere: &Everywhere, lock: &Named) -> String {
    let said = |value: Option<String>, variable: &str| {
        value.filter(|value| std::env::var(variable).ok().as_ref() != Some(value))
    };
    let mut options = String::new();
    // The variable is one value, whatever number of servers it names.
    let by_variable =
        everywhere.server.len() == 1 && said(everywhere.server.first().cloned(), "NXLOCK_SERVER").is_none();
    for server in Target::shown(everywhere.servers()).filter(|_| !by_variable).into_iter().flatten() {
        options += &format!(" -s {}", shlex::try_quote(&server).unwrap_or_default());
    }
    let prefix = everywhere.prefix.as_str().to_owned();
    if let Some(prefix) = said(Some(prefix), "NXLOCK_PREFIX").filter(|prefix| prefix != DEFAULT_PREFIX && !lock.by_key)
    {
        options += &format!(" --prefix {}", shlex::try_quote(&prefix).unwrap_or_default());
    }
    let files = [
        ("password-file", "NXLOCK_PASSWORD_FILE", &everywhere.password_file),
        ("tls-ca", "NXLOCK_TLS_CA", &everywhere.tls_ca),
        ("tls-cert", "NXLOCK_TLS_CERT", &everywhere.tls_cert),
        ("tls-key", "NXLOCK_TLS_KEY", &everywhere.tls_key),
    ];
    for (option, variable, file) in files {
        let file = given(file.as_ref()).map(|file| file.to_string_lossy().into_owned());
        if let Some(file) = said(file, variable) {
            options += &format!(" --{option} {}", shlex::try_quote(&say::clean(&file)).unwrap_or_default());
        }
    }
    options
}

/// A new claim by this process, that may live with one.
fn claim(lock: &Named, asked: &Asked, setnx: &Setnx, lives_with: Option<u32>) -> anyhow::Result<Hold> {
    let (owner, reason, now) = (Owner::this_process(), asked.reason.as_deref(), wall());
    let name = lock.name.clone();
    // A claim that lives with a process is renewed for as long as that runs.
    let upkeep = if lives_with.is_some() { Upkeep::Renewed } else { Upkeep::LeaseOnly };
    if !setnx.setnx_compat {
        let token = Token::mint_for(upkeep, &owner, reason, now)?;
        return Ok(Hold { name, token, lives_with, beside_setnx: None });
    }
    let token = Token::mint_number()?;
    let record = token.record(upkeep, &owner, reason, now);
    let beside_setnx = Some(BesideSetnx { margin: setnx.setnx_margin, record });
    Ok(Hold { name, token, lives_with, beside_setnx })
}

fn patience(asked: &Asked, everywhere: &Everywhere) -> Patience {
    let wait = match asked.wait {
        _ if asked.no_wait => Wait::Not,
        None => Wait::ForEver,
        Some(wait) if wait.is_zero() => Wait::Not,
        Some(wait) => Wait::Until(Moment::now() + wait),
    };
    let queue = if asked.no_queue { Queueing::Not } else { Queueing::InLine };
    Patience { wait, queue, server_timeout: everywhere.server_timeout }
}

/// Waits for a lock; where there is no lease to go on with, the report.
fn wait_for(
    store: &mut dyn Store,
    (lock, hold): (&Named, &mut Hold),
    ttl: Ttl,
    asked: &Asked,
    everywhere: &Everywhere,
    signals: &mut Signals,
) -> anyhow::Result<Result<Lease, Report>> {
    let mut waiting = Waiting::new(&lock.name);
    let waited = wait::for_grant(store, hold, ttl, patience(asked, everywhere), &enclosing(), signals, &mut waiting);
    let granted = matches!(waited, Ok(Waited::Granted(_)));
    waiting.end(granted);
    // From here on time runs against a lease.
    say::urgent(granted);
    Ok(match waited? {
        Waited::Granted(lease) => {
            events::granted(hold, &lease, ttl);
            if let Some(stale) = &lease.taken_over {
                let since = say::validity(stale);
                say::note(format_args!("took over \"{}\" from an old SETNX client: {since}", lock.name));
            }
            Ok(lease)
        }
        Waited::Interrupted(signal) => Err(Report::Interrupted(signal)),
        Waited::Busy(refused) => Err(Report::Busy(Busy {
            lock: lock.clone(),
            refused,
            options: options(everywhere, lock),
            conflict_exit_code: asked.conflict_exit_code,
        })),
    })
}

/// The claims of the runs that we are a part of, innermost last.
fn enclosing() -> Vec<Token> {
    let held = std::env::var(HELD).unwrap_or_default();
    held.split(' ').filter_map(|token| token.parse().ok()).collect()
}

/// The token as it was given: itself, or `-` for stdin.
fn token(given: &str) -> anyhow::Result<Token> {
    let text = if given == "-" {
        let mut text = String::new();
        io::stdin().take(64 * 1024).read_to_string(&mut text).context("cannot read a token from stdin")?;
        text
    } else {
        given.to_owned()
    };
    let parsed = text.trim_end_matches(['\n', '\r']).parse();
    Ok(parsed.map_err(|came| Trouble { kind: Kind::Usage, tried: "TOKEN".into(), came, remedy: String::new() })?)
}

/// Told to stop when the lock had just been granted: it is given back, and nothing is started.
fn give_up_if_asked(store: &mut dyn Store, hold: &Hold, timeout: Duration, signals: &mut Signals) -> Option<Report> {
    let signal = signals.stop_requested()?;
    give_back(store, hold, timeout);
    Some(Report::Interrupted(signal))
}

/// Nothing was started: whether the server heard it matters to nobody but the next, for one ttl. Whether it did.
fn give_back(store: &mut dyn Store, hold: &Hold, timeout: Duration) -> bool {
    hand_back(store, hold, timeout).inspect_err(|trouble| say::warn(format_args!("{trouble}"))).is_ok()
}

/// Gives back a lock that is of no use, and tells that it did.
fn hand_back(store: &mut dyn Store, hold: &Hold, timeout: Duration) -> Result<(), Trouble> {
    match wait::give_back(timeout, Moment::NEVER, |limit| store.release(hold, limit)) {
        Ok(GivenBack::NotYours(occupancy)) => {
            events::lost(&Lost::Taken(occupancy), "found when it was to be given back");
        }
        Ok(GivenBack::Done | GivenBack::InDoubt) => {
            say::trace(format_args!("gave back \"{}\"", hold.name));
            events::released(None);
        }
        Err(trouble) => {
            events::unreleased(&trouble);
            return Err(trouble);
        }
    }
    Ok(())
}
