//! Waits for a lock and hands over its token; with `--while-pid`, leaves a keeper behind.

mod front;
mod kept;

use std::io;
use std::time::Duration;

use super::{Outcome, Wants, give_up_if_asked, meant, new_claim, open, try_give_back, wait_for};
use crate::cli::{Acquire, GlobalArgs};
use crate::duration::span;
use crate::error::Error;
use crate::keeper::{Grant, KeeperEnd};
use crate::lock::Claim;
use crate::notify;
use crate::report::{Acquired, Named, Report, TokenForm};
use crate::signals::Signals;
use crate::store::Store;

pub fn acquire(global: &GlobalArgs, asked: &Acquire) -> anyhow::Result<Outcome> {
    let (lock, prefix) = meant(global, &asked.lock)?;
    if let Some(pid) = asked.while_pid {
        let store = open(global, prefix, Wants::of(&asked.wait_args, &asked.sharing, &asked.setnx))?;
        return kept::acquire(global, asked, lock, store, pid);
    }
    let mut claim = new_claim(&lock, &asked.wait_args, (&asked.sharing, &asked.setnx), None, false)?;
    notify::begin(asked.event_args.events.as_ref(), &lock, &claim)?;
    let mut store = open(global, prefix, Wants::of(&asked.wait_args, &asked.sharing, &asked.setnx))?;
    let mut signals = Signals::listen()?;
    let lease = match wait_for(
        &mut *store,
        (&lock, &mut claim),
        asked.ttl(),
        (&asked.wait_args, &asked.sharing),
        global,
        &mut signals,
    )? {
        Ok(lease) => lease,
        Err(report) => return Ok(report.into()),
    };
    if let Some(interrupted) = give_up_if_asked(&mut *store, &claim, global.server_timeout, &mut signals) {
        return Ok(interrupted.into());
    }
    let token = claim.token.clone();
    Ok(acquired(asked, lock, Grant { token, fence: lease.fence, slot: lease.slot }, Custody::Here { claim, store }))
}

fn acquired(asked: &Acquire, lock: Named, Grant { token, fence, slot }: Grant, custody: Custody) -> Outcome {
    let form = if asked.export { TokenForm::Export } else { TokenForm::Plain };
    let keeper = match &custody {
        Custody::Here { .. } => None,
        Custody::Keeper(keeper) => Some(keeper.pid().as_raw()),
    };
    let acquired = Acquired { lock, token, keeper, fence, slot, ttl: asked.ttl(), form };
    Outcome { report: Report::Acquired(acquired), custody: Some(custody) }
}

/// The holder of the lock while its token is printed.
pub enum Custody {
    Here {
        claim: Claim,
        store: Box<dyn Store>,
    },
    /// A keeper in the background.
    Keeper(KeeperEnd),
}

impl Custody {
    /// Leaves the lock to the caller, which has its token now.
    ///
    /// # Errors
    /// If its keeper has ended.
    pub fn hand_over(self, acquired: &Acquired) -> Result<(), Error> {
        match self {
            Custody::Here { .. } => Ok(()),
            Custody::Keeper(keeper) => keeper.printed().map_err(|_| {
                let action = format!("cannot keep the lock \"{}\"", acquired.lock.name);
                Error::internal(&action, &"its keeper has ended, and has given it back or lost it")
            }),
        }
    }

    /// Releases a lock whose token could not be printed: nobody else could.
    pub fn take_back(self, acquired: &Acquired, error: &io::Error, server_timeout: Duration) -> Error {
        let ends = |error: &str| format!("{error}; the lock ends by itself within {}", span(acquired.ttl.get()));
        let cause = match self {
            Custody::Here { claim, mut store } => {
                let handed_back = try_give_back(&mut *store, &claim, server_timeout);
                handed_back.map_or_else(|error| ends(&error.to_string()), |()| "the lock was given back".to_owned())
            }
            // The keeper may be renewing now, which has its own time limit.
            Custody::Keeper(keeper) => {
                let said = keeper.withdraw(server_timeout + Duration::from_secs(5));
                said.unwrap_or_else(|| ends("its keeper does not say whether it has given it back"))
            }
        };
        Error::internal(&format!("cannot write the token to stdout ({error})"), &cause)
    }
}
