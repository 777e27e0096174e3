//! A verb becomes a report, one file a verb; none prints.

mod acquire;
mod release;
mod renew;
mod run;
mod status;

use std::io::{self, Read};
use std::time::Duration;

use anyhow::Context;

use crate::cli::{Cli, DEFAULT_PREFIX, Everywhere, Patience as Asked, Verb};
use crate::clock::{Moment, wall};
use crate::lock::{HELD, Hold, Lease, LockName, Owner, Token, Ttl};
use crate::report::{Busy, Named, Report};
use crate::say::{self, Waiting};
use crate::signals::Signals;
use crate::store::{self, Access, Kind, Store, Target, Trouble};
use crate::wait::{self, Patience, Queueing, Wait, Waited};

/// Does what was asked for.
pub fn perform(cli: &Cli) -> Report {
    let everywhere = &cli.everywhere;
    let report = match &cli.verb {
        Verb::Run(run) => run::run(everywhere, run),
        Verb::Acquire(acquire) => acquire::acquire(everywhere, acquire),
        Verb::Renew(renew) => renew::renew(everywhere, renew),
        Verb::Release(release) => release::release(everywhere, release),
        Verb::Status(status) => status::status(everywhere, status),
    };
    say::urgent(false);
    report.unwrap_or_else(|error| Report::Failed(trouble(error)))
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

fn open(everywhere: &Everywhere) -> Result<Box<dyn Store>, Trouble> {
    // An unset variable and one that is no UTF-8 both name no server.
    let redis_url = std::env::var("REDIS_URL").ok();
    let target = Target::choose(everywhere.server.as_deref(), redis_url.as_deref(), &access())?;
    Ok(store::open(target, everywhere.prefix.clone(), everywhere.server_timeout))
}

/// Who we are and whom we trust.
fn access() -> Access {
    Access::default()
}

/// What was said on the command line, and not in the environment, of where the locks are. Without a
/// password.
fn options(everywhere: &Everywhere) -> String {
    let said = |value: Option<String>, variable: &str| {
        value.filter(|value| std::env::var(variable).ok().as_ref() != Some(value))
    };
    let mut options = String::new();
    if let Some(server) = said(everywhere.server.clone(), "NXLOCK_SERVER")
        && let Ok(target) = Target::choose(Some(&server), None, &Access::default())
    {
        options += &format!(" -s {}", shlex::try_quote(&target.to_string()).unwrap_or_default());
    }
    let prefix = everywhere.prefix.as_str().to_owned();
    if let Some(prefix) = said(Some(prefix), "NXLOCK_PREFIX").filter(|prefix| prefix != DEFAULT_PREFIX) {
        options += &format!(" --prefix {}", shlex::try_quote(&prefix).unwrap_or_default());
    }
    options
}

/// A new claim by this process, that may live with one.
fn claim(name: &LockName, reason: Option<&str>, lives_with: Option<u32>) -> anyhow::Result<Hold> {
    let token = Token::mint(&Owner::this_process(), reason, wall())?;
    Ok(Hold { name: name.clone(), token, lives_with })
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
    hold: &Hold,
    ttl: Ttl,
    asked: &Asked,
    everywhere: &Everywhere,
    signals: &mut Signals,
) -> anyhow::Result<Result<Lease, Report>> {
    let mut waiting = Waiting::new(&hold.name);
    let waited = wait::for_grant(store, hold, ttl, patience(asked, everywhere), &enclosing(), signals, &mut waiting);
    let granted = matches!(waited, Ok(Waited::Granted(_)));
    waiting.end(granted);
    // From here on time runs against a lease.
    say::urgent(granted);
    Ok(match waited? {
        Waited::Granted(lease) => Ok(lease),
        Waited::Interrupted(signal) => Err(Report::Interrupted(signal)),
        Waited::Busy(refused) => Err(Report::Busy(Busy {
            lock: Named::new(&hold.name, &everywhere.prefix),
            refused,
            options: options(everywhere),
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

/// Nothing was started: whether the server heard it matters to nobody but the next, for one ttl.
fn give_back(store: &mut dyn Store, hold: &Hold, timeout: Duration) {
    let released = wait::insist(timeout, |limit| store.release(hold, limit));
    if let Err(trouble) = released.answer {
        say::warn(format_args!("{trouble}"));
    }
}
