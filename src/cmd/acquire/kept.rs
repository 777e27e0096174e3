//! Acquires a lock that a keeper holds in the background while a process runs.

use std::os::fd::{AsFd, AsRawFd};

use anyhow::Context;

use super::{Custody, acquired, front};
use crate::cli::{Acquire, GlobalArgs};
use crate::cmd::{Outcome, give_back, give_up_if_asked, new_claim, wait_for};
use crate::descriptors::close_all_but;
use crate::keeper::{self, Assignment, FrontEnd, Grant, Half, Keeper, KeeperEnd, Resources, Watched};
use crate::log;
use crate::notify::{self, Destination};
use crate::report::{Ending, Named, Report};
use crate::signals::Signals;
use crate::store::Store;

/// Forks the keeper and waits for it. `store` must not have a connection yet, so that the keeper can take it over.
pub fn acquire(
    global: &GlobalArgs,
    asked: &Acquire,
    lock: Named,
    store: Box<dyn Store>,
    pid: u32,
) -> anyhow::Result<Outcome> {
    let watched = Watched::find(pid)?;
    if asked.lost_signal.0.is_some() && !watched.may_signal() {
        log::warn(format_args!("process {pid} is another user's: it will not be told if \"{}\" is lost", lock.name));
    }
    let started = || "cannot start a keeper";
    let (ours, keepers) = keeper::socket_pair().with_context(started)?;
    match keeper::fork().with_context(started)? {
        Half::Front(keeper) => {
            drop(keepers);
            let front =
                front::wait(&lock, &watched, KeeperEnd::new(keeper, ours), (global.server_timeout, asked.ttl()))?;
            Ok(match front {
                front::KeeperAnswer::Granted(grant, keeper) => {
                    log::trace(format_args!("\"{}\" is kept by process {}", lock.name, keeper.pid()));
                    acquired(asked, lock, grant, Custody::Keeper(keeper))
                }
                front::KeeperAnswer::Ended(report) => (*report).into(),
            })
        }
        Half::Keeper => {
            drop(ours);
            keep(global, asked, &lock, store, watched, FrontEnd::new(keepers)).map(Outcome::from)
        }
    }
}

/// Runs the keeper: until the grant, it asks and reports as any `acquire` would.
fn keep(
    global: &GlobalArgs,
    asked: &Acquire,
    lock: &Named,
    mut store: Box<dyn Store>,
    watched: Watched,
    mut front: FrontEnd,
) -> anyhow::Result<Report> {
    let events = asked.event_args.events.as_ref();
    let told = events.and_then(Destination::inherited);
    let tied = [watched.as_fd().as_raw_fd(), front.as_fd().as_raw_fd()];
    // No other descriptors are open yet but those of the caller.
    close_all_but(&tied.into_iter().chain(told).collect::<Vec<_>>());
    // A process that is not told cannot give up.
    let no_ask = asked.lost_signal.0.is_none();
    // A claim in a directory lives with the watched process: if the keeper is killed, nobody gets the lock before the
    // watched process has ended or the lease has expired.
    let mut claim = new_claim(lock, &asked.wait_args, (&asked.sharing, &asked.setnx), Some(watched.pid()), no_ask)?;
    notify::begin(events, lock, &claim)?;
    let server_timeout = global.server_timeout;
    let mut signals = Signals::listen()?;
    let resources = Resources::gather().context("cannot keep a lock in the background")?;
    let lease = match wait_for(
        &mut *store,
        (lock, &mut claim),
        asked.ttl(),
        (&asked.wait_args, &asked.sharing),
        global,
        &mut signals,
    )? {
        Ok(lease) => lease,
        Err(report) => return Ok(report),
    };
    if let Some(interrupted) = give_up_if_asked(&mut *store, &claim, server_timeout, &mut signals) {
        return Ok(interrupted);
    }
    // Flush the log while the caller still reads it.
    log::urgent(false);
    let grant = Grant { token: claim.token.clone(), fence: lease.fence, slot: lease.slot };
    let ready = match resources.leave(&lock.key, &grant, &mut front) {
        Ok(ready) => ready,
        Err(error) => {
            give_back(&mut *store, &claim, server_timeout);
            return Err(error).context("cannot keep a lock in the background");
        }
    };
    let assignment =
        Assignment { store, claim, ttl: asked.ttl(), lease, server_timeout, lost_signal: asked.lost_signal.0 };
    Keeper::begin(ready, assignment, watched, signals, front).keep();
    Ok(Report::Said(Ending::Status(0)))
}
