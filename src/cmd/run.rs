//! Hold a lock around a command: the only verb that composes.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use anyhow::Context;

use super::{claim, open, wait_for};
use crate::cli::{Everywhere, Run};
use crate::clock::Moment;
use crate::inbox::{Arrival, Inbox};
use crate::keeper::{GivenBack, Keeper, Kept};
use crate::limit::Limit;
use crate::lock::{Hold, Lease, Ttl};
use crate::report::{Named, NotRun, Ran, Report, Unreleased};
use crate::say;
use crate::signals::Signals;
use crate::store::Store;
use crate::supervise::{self, Lost, Outcome, Rules, Supervisor};
use crate::wait;

pub fn run(everywhere: &Everywhere, asked: &Run) -> anyhow::Result<Report> {
    let mut store = open(everywhere)?;
    let hold = claim(&asked.name, asked.patience.reason.as_deref())?;
    let lock = Named::new(&asked.name, &everywhere.prefix);
    let timeout = everywhere.server_timeout;
    let mut signals = Signals::listen()?;
    let lease = match wait_for(&mut *store, &hold, asked.ttl, &asked.patience, everywhere, &mut signals)? {
        Ok(lease) => lease,
        Err(report) => return Ok(report),
    };
    say::trace(format_args!("got \"{}\"", lock.name));
    signals.attend_a_command()?;
    if let Some(signal) = signals.stop_requested() {
        give_back(&mut *store, &hold, timeout);
        return Ok(Report::Interrupted(signal));
    }
    let (program, args) = command(asked);
    let (child, terminal) = match supervise::spawn(&program, &args, &environment(&lock, &hold, lease, asked.ttl)) {
        Ok(born) => born,
        Err(error) => {
            give_back(&mut *store, &hold, timeout);
            let missing = error.kind() == io::ErrorKind::NotFound;
            return Ok(Report::NotRun(NotRun { lock, command: program, missing, error }));
        }
    };
    say::trace(format_args!("started the command, pid {}", child.id()));
    let (mut reports, post) = Inbox::open().context("cannot keep the lock")?;
    let keeper = Keeper::start(store, hold, asked.ttl, lease, timeout, post).context("cannot keep the lock")?;
    let rules =
        Rules { ttl: asked.ttl, kill_after: asked.kill_after, time_limit: asked.time_limit, on_lost: asked.on_lost };
    let supervisor = Supervisor::new(&child, terminal, lease, rules, &mut signals, &mut reports);
    let outcome = supervisor.run().context("cannot watch the command")?;
    say::trace(format_args!("the command has ended: {}", say::ending(&outcome.ending)));
    let rest = asked.at_least.map_or(Duration::ZERO, |least| (lease.granted + least).remaining());
    Ok(Report::Ran(end(lock, outcome, &keeper, &mut reports, rest, timeout)))
}

/// The program and its arguments, byte for byte.
fn command(asked: &Run) -> (OsString, Vec<OsString>) {
    match (&asked.shell, asked.command.split_first()) {
        (Some(text), _) => ("sh".into(), vec!["-c".into(), text.clone()]),
        (None, Some((program, args))) => (program.clone(), args.to_vec()),
        // The command line asks for one of the two.
        (None, None) => (OsString::new(), Vec::new()),
    }
}

fn environment(lock: &Named, hold: &Hold, lease: Lease, ttl: Ttl) -> [(&'static str, Option<String>); 5] {
    [
        ("NXLOCK_NAME", Some(lock.name.to_string())),
        ("NXLOCK_KEY", Some(lock.key.clone())),
        ("NXLOCK_TOKEN", Some(hold.token.as_str().to_owned())),
        ("NXLOCK_FENCE", lease.fence.map(|fence| fence.0.to_string())),
        ("NXLOCK_TTL_MS", Some(ttl.millis().to_string())),
    ]
}

/// Nothing was started: whether the server heard it matters to nobody but the next, for one ttl.
fn give_back(store: &mut dyn Store, hold: &Hold, timeout: Duration) {
    let released = wait::insist(timeout, |limit: Limit<'_>| store.release(hold, limit));
    if let Err(trouble) = released.answer {
        say::warn(format_args!("{trouble}"));
    }
}

/// Gives the lock back, or lets it stand for the `rest` that `--at-least` asks for.
fn end(
    lock: Named,
    outcome: Outcome,
    keeper: &Keeper,
    reports: &mut Inbox<Kept>,
    rest: Duration,
    timeout: Duration,
) -> Ran {
    let Outcome { ending, time_limit, mut lost, until } = outcome;
    if rest.is_zero() || lost.is_some() {
        keeper.give_back();
    } else {
        keeper.let_end(Ttl::at_least(rest));
    }
    // The keeper may be in the middle of a renewal; it bounds both itself.
    let patience = Moment::now() + timeout * 2 + Duration::from_secs(1);
    let mut unreleased = None;
    while let Ok(Arrival::Letter(kept)) = reports.next(patience, None) {
        match kept {
            Kept::GivenBack(GivenBack::Done) => break,
            Kept::GivenBack(GivenBack::NotYours(occupancy)) => {
                lost = lost.or(Some(Lost::Taken(occupancy)));
                break;
            }
            Kept::GivenBack(GivenBack::Unconfirmed(trouble)) => {
                unreleased = Some(Unreleased { trouble, ends_in: until.remaining() });
                break;
            }
            Kept::Until(_) | Kept::Uncertain(_) | Kept::Lost(_) => {}
        }
    }
    Ran { lock, ending, time_limit, lost, unreleased }
}
