//! Waits for a lock and hands over its token; with `--while-pid`, leaves a keeper behind.

mod front;
mod kept;

use std::io;
use std::time::Duration;

use super::request::{self, Answer, Request};
use super::{Outcome, give_up_if_asked, try_give_back};
use crate::acquire::Unprepared;
use crate::cli::{Acquire, GlobalArgs};
use crate::duration::span;
use crate::error::Error;
use crate::keeper::{Grant, KeeperEnd};
use crate::lock::Claim;
use crate::report::{Acquired, Report, TokenForm};
use crate::signals::Signals;
use crate::store::Store;

pub fn acquire(global: &GlobalArgs, asked: &Acquire) -> anyhow::Result<Outcome> {
    let mut request = Request::of_acquire(global, asked)?;
    if let Some(pid) = asked.while_pid {
        return kept::acquire(request, asked, pid);
    }
    let mut claim = request.claim()?;
    let (mut store, _) = request.open()?;
    let mut signals = Signals::listen()?;
    let lease = match request.wait_for(&mut *store, &mut claim, &mut signals, &Unprepared)? {
        Answer::Granted(lease) => lease,
        Answer::Refused(report) => return Ok((*report).into()),
    };
    if let Some(interrupted) = give_up_if_asked(&mut *store, &claim, global.server_timeout, &mut signals) {
        return Ok(interrupted.into());
    }
    let token = claim.token.clone();
    let grant = Grant { token, fence: lease.fence, slot: lease.slot, also: Vec::new() };
    Ok(acquired(request, asked, grant, Custody::Here { claim, store }))
}

fn acquired(request: Request<'_>, asked: &Acquire, grant: Grant, custody: Custody) -> Outcome {
    let Grant { token, fence, slot, also } = grant;
    let form = if asked.export { TokenForm::Export } else { TokenForm::Plain };
    let keeper = match &custody {
        Custody::Here { .. } => None,
        Custody::Keeper(keeper) => Some(keeper.pid().as_raw()),
    };
    let held = request::held_with([&token].into_iter().chain(also.iter().map(|(token, _)| token)));
    let also = request.also(also);
    let numbered = request::numbered(&also);
    let Request { lock, ttl, .. } = request;
    let acquired = Acquired { lock, token, keeper, fence, slot, ttl, form, held, also, numbered };
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
            Custody::Here { claim, mut store } => {
                store.leave(&claim, None, acquired.fence);
                Ok(())
            }
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
                handed_back.map_or_else(|error| ends(&error.to_string()), |()| "the lock was released".to_owned())
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
