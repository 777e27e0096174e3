//! A lock that is kept in the background while a process runs.

use std::os::fd::{AsFd, AsRawFd};

use anyhow::Context;

use super::super::{claim, give_back, give_up_if_asked, wait_for};
use super::{acquired, front};
use crate::cli::{Acquire, Everywhere};
use crate::descriptors::close_all_but;
use crate::events::{self, Destination};
use crate::report::{Custody, Ending, Named, Report};
use crate::say;
use crate::signals::Signals;
use crate::store::Store;
use crate::vigil::{self, Charge, Half, Outfit, ToFront, ToKeeper, Vigil, Ward};

/// `store` has not been asked anything yet, so that the keeper can have it.
pub fn acquire(
    everywhere: &Everywhere,
    asked: &Acquire,
    lock: Named,
    store: Box<dyn Store>,
    pid: u32,
) -> anyhow::Result<Report> {
    let ward = Ward::find(pid)?;
    if asked.lost_signal.0.is_some() && !ward.may_be_told() {
        say::warn(format_args!("process {pid} is another user's: it will not be told if \"{}\" is lost", lock.name));
    }
    let started = || "cannot start a keeper";
    let (ours, keepers) = vigil::tie().with_context(started)?;
    match vigil::fork().with_context(started)? {
        Half::Front(keeper) => {
            drop(keepers);
            let front = front::wait(&lock, &ward, ToKeeper::new(keeper, ours), everywhere.server_timeout)?;
            Ok(match front {
                front::Heard::Granted(grant, keeper) => {
                    say::trace(format_args!("\"{}\" is kept by process {}", lock.name, keeper.pid()));
                    Report::Acquired(acquired(asked, lock, grant, Custody::Keeper(keeper)))
                }
                front::Heard::Ended(report) => report,
            })
        }
        Half::Keeper => {
            drop(ours);
            keep(everywhere, asked, &lock, store, ward, ToFront::new(keepers))
        }
    }
}

/// What the keeper does: it asks, and says what comes of it as any `acquire` would, until the lock is granted.
fn keep(
    everywhere: &Everywhere,
    asked: &Acquire,
    lock: &Named,
    mut store: Box<dyn Store>,
    ward: Ward,
    mut front: ToFront,
) -> anyhow::Result<Report> {
    let events = asked.telling.events.as_ref();
    let told = events.and_then(Destination::inherited);
    let tied = [ward.as_fd().as_raw_fd(), front.as_fd().as_raw_fd()];
    // Nothing else is open yet but what the caller had open.
    close_all_but(&tied.into_iter().chain(told).collect::<Vec<_>>());
    // A claim in a directory lives with the ward: should the keeper be killed, nobody has the lock before the
    // ward has ended or the lease has.
    let mut hold = claim(lock, &asked.patience, &asked.setnx, Some(ward.pid()))?;
    events::begin(events, lock, &hold)?;
    let server_timeout = everywhere.server_timeout;
    let mut signals = Signals::listen()?;
    let outfit = Outfit::gather().context("cannot keep a lock in the background")?;
    let lease = match wait_for(&mut *store, (lock, &mut hold), asked.ttl(), &asked.patience, everywhere, &mut signals)?
    {
        Ok(lease) => lease,
        Err(report) => return Ok(report),
    };
    if let Some(interrupted) = give_up_if_asked(&mut *store, &hold, server_timeout, &mut signals) {
        return Ok(interrupted);
    }
    // What there is to say is said before there is nobody to hear it.
    say::urgent(false);
    let granted = (&hold.token, lease.fence);
    let post = match outfit.leave(&lock.key, granted, &ward, &signals, &mut front) {
        Ok(post) => post,
        Err(error) => {
            give_back(&mut *store, &hold, server_timeout);
            return Err(error).context("cannot keep a lock in the background");
        }
    };
    let charge = Charge { store, hold, ttl: asked.ttl(), lease, server_timeout, lost_signal: asked.lost_signal.0 };
    Vigil::begin(post, charge, ward, signals, front).keep();
    Ok(Report::Said(Ending::Status(0)))
}
