//! Wait for a lock and hand over its token; with `--while-pid`, leave a keeper behind.

mod front;
mod kept;

use std::io;
use std::time::Duration;

use super::{Wants, claim, give_up_if_asked, hand_back, meant, open, wait_for};
use crate::cli::{Acquire, Everywhere};
use crate::events;
use crate::lock::{Fence, Token};
use crate::report::{Acquired, Custody, Named, Report, TokenForm};
use crate::say::span;
use crate::signals::Signals;
use crate::store::Trouble;

pub fn acquire(everywhere: &Everywhere, asked: &Acquire) -> anyhow::Result<Report> {
    let (lock, prefix) = meant(everywhere, &asked.which)?;
    if let Some(pid) = asked.while_pid {
        let store = open(everywhere, prefix, Wants::of(&asked.patience, &asked.setnx))?;
        return kept::acquire(everywhere, asked, lock, store, pid);
    }
    let mut hold = claim(&lock, &asked.patience, &asked.setnx, None)?;
    events::begin(asked.telling.events.as_ref(), &lock, &hold)?;
    let mut store = open(everywhere, prefix, Wants::of(&asked.patience, &asked.setnx))?;
    let mut signals = Signals::listen()?;
    let lease = match wait_for(&mut *store, (&lock, &mut hold), asked.ttl(), &asked.patience, everywhere, &mut signals)?
    {
        Ok(lease) => lease,
        Err(report) => return Ok(report),
    };
    if let Some(interrupted) = give_up_if_asked(&mut *store, &hold, everywhere.server_timeout, &mut signals) {
        return Ok(interrupted);
    }
    let token = hold.token.clone();
    Ok(Report::Acquired(acquired(asked, lock, (token, lease.fence), Custody::Ours { hold, store })))
}

fn acquired(asked: &Acquire, lock: Named, (token, fence): (Token, Option<Fence>), custody: Custody) -> Acquired {
    let form = if asked.export { TokenForm::Export } else { TokenForm::Plain };
    Acquired { lock, token, custody, fence, ttl: asked.ttl(), form }
}

/// The token was printed.
///
/// # Errors
/// If there is no keeper any more who has the lock.
pub fn heard(acquired: Acquired) -> Result<(), Trouble> {
    match acquired.custody {
        Custody::Ours { .. } => Ok(()),
        Custody::Keeper(keeper) => keeper.printed().map_err(|_| {
            let tried = format!("cannot keep the lock \"{}\"", acquired.lock.name);
            Trouble::of_ours(&tried, &"its keeper has ended, and has given it back or lost it")
        }),
    }
}

/// Gives back a lock whose token could not be printed: nobody could release it.
pub fn unheard(acquired: Acquired, error: &io::Error, server_timeout: Duration) -> Trouble {
    let ends = |trouble: &str| format!("{trouble}; the lock ends by itself within {}", span(acquired.ttl.get()));
    let came = match acquired.custody {
        Custody::Ours { hold, mut store } => {
            let handed_back = hand_back(&mut *store, &hold, server_timeout);
            handed_back.map_or_else(|trouble| ends(&trouble.to_string()), |()| GIVEN_BACK.to_owned())
        }
        // It may be renewing just now, which has its own bound.
        Custody::Keeper(keeper) => {
            let said = keeper.withdraw(server_timeout + Duration::from_secs(5));
            said.unwrap_or_else(|| ends("its keeper does not say whether it has given it back"))
        }
    };
    Trouble::of_ours(&format!("cannot write the token to stdout ({error})"), &came)
}

const GIVEN_BACK: &str = "the lock was given back";
