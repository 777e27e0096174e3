//! Acquires a lock that a keeper holds in the background while a process runs.

use std::os::fd::{AsFd, AsRawFd};

use anyhow::Context;

use super::{Custody, acquired, front};
use crate::acquire::Unprepared;
use crate::cli::Acquire;
use crate::cmd::request::{Answer, Request};
use crate::cmd::{Outcome, give_back, give_up_if_asked};
use crate::descriptors::close_all_but;
use crate::keeper::{self, Assignment, FrontEnd, Grant, Half, Keeper, KeeperEnd, Resources, Watched};
use crate::log;
use crate::notify::Destination;
use crate::report::{Ending, Report};
use crate::signals::Signals;
use crate::store::Store;

/// Forks the keeper and waits for it.
pub fn acquire(mut request: Request<'_>, asked: &Acquire, pid: u32) -> anyhow::Result<Outcome> {
    // Without a connection yet, so that the keeper can take it over.
    let (store, _) = request.open()?;
    let name = &request.lock.name;
    let watched = Watched::find(pid)?;
    if asked.lost_signal.0.is_some() && !watched.may_signal() {
        log::warn(format_args!("process {pid} is another user's: it will not be told if \"{name}\" is lost"));
    }
    let started = || "cannot start a keeper";
    let (ours, keepers) = keeper::socket_pair().with_context(started)?;
    match keeper::fork().with_context(started)? {
        Half::Front(keeper) => {
            drop(keepers);
            Ok(match front::wait(&request, &watched, KeeperEnd::new(keeper, ours))? {
                front::KeeperAnswer::Granted(grant, keeper) => {
                    log::trace(format_args!("\"{name}\" is kept by process {}", keeper.pid()));
                    acquired(request, asked, grant, Custody::Keeper(keeper))
                }
                front::KeeperAnswer::Ended(report) => (*report).into(),
            })
        }
        Half::Keeper => {
            drop(ours);
            keep(&mut request, asked, store, watched, FrontEnd::new(keepers)).map(Outcome::from)
        }
    }
}

/// Runs the keeper: until the grant, it asks and reports as any `acquire` would.
fn keep(
    request: &mut Request<'_>,
    asked: &Acquire,
    mut store: Box<dyn Store>,
    watched: Watched,
    mut front: FrontEnd,
) -> anyhow::Result<Report> {
    let for_events = asked.event_args.events.as_ref().and_then(Destination::inherited);
    let tied = [watched.as_fd().as_raw_fd(), front.as_fd().as_raw_fd()];
    // No other descriptors are open yet but those of the caller.
    close_all_but(&tied.into_iter().chain(for_events).collect::<Vec<_>>());
    let mut claim = request.claim()?;
    let server_timeout = request.global.server_timeout;
    let mut signals = Signals::listen()?;
    let resources = Resources::gather().context("cannot keep a lock in the background")?;
    let lease = match request.wait_for(&mut *store, &mut claim, &mut signals, &Unprepared)? {
        Answer::Granted(lease) => lease,
        Answer::Refused(report) => return Ok(*report),
    };
    if let Some(interrupted) = give_up_if_asked(&mut *store, &claim, server_timeout, &mut signals) {
        return Ok(interrupted);
    }
    // Flush the log while the caller still reads it.
    log::urgent(false);
    let also = claim.also.iter().map(|also| (also.claim.token.clone(), also.fence)).collect();
    let grant = Grant { token: claim.token.clone(), fence: lease.fence, slot: lease.slot, also };
    let ready = match resources.leave(&request.keys(), &grant, &mut front) {
        Ok(ready) => ready,
        Err(error) => {
            give_back(&mut *store, &claim, server_timeout);
            return Err(error).context("cannot keep a lock in the background");
        }
    };
    let lost_signal = asked.lost_signal.0;
    let assignment = Assignment { store, claim, ttl: request.ttl, lease, server_timeout, lost_signal };
    Keeper::begin(ready, assignment, watched, signals, front).keep();
    Ok(Report::Said(Ending::Status(0)))
}
