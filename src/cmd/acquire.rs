//! Wait for a lock and hand over its token.

use std::io;
use std::time::Duration;

use super::{Wants, claim, give_up_if_asked, hand_back, meant, open, wait_for};
use crate::cli::{Acquire, Everywhere};
use crate::events;
use crate::report::{Acquired, Report, TokenForm};
use crate::say::span;
use crate::signals::Signals;
use crate::store::Trouble;

pub fn acquire(everywhere: &Everywhere, asked: &Acquire) -> anyhow::Result<Report> {
    let (lock, prefix) = meant(everywhere, &asked.which)?;
    let hold = claim(&lock, &asked.patience, &asked.setnx, None)?;
    events::begin(asked.telling.events.as_ref(), &lock, &hold)?;
    let mut store = open(everywhere, prefix, Wants::of(&asked.patience, &asked.setnx))?;
    let mut signals = Signals::listen()?;
    let lease = match wait_for(&mut *store, (&lock, &hold), asked.ttl, &asked.patience, everywhere, &mut signals)? {
        Ok(lease) => lease,
        Err(report) => return Ok(report),
    };
    if let Some(interrupted) = give_up_if_asked(&mut *store, &hold, everywhere.server_timeout, &mut signals) {
        return Ok(interrupted);
    }
    Ok(Report::Acquired(Acquired {
        lock,
        hold,
        store,
        fence: lease.fence,
        ttl: asked.ttl,
        form: if asked.export { TokenForm::Export } else { TokenForm::Plain },
    }))
}

/// Gives back a lock whose token could not be printed: nobody could release it.
pub fn unheard(mut acquired: Acquired, error: &io::Error, server_timeout: Duration) -> Trouble {
    let came = match hand_back(&mut *acquired.store, &acquired.hold, server_timeout) {
        Ok(()) => "the lock was given back".to_owned(),
        Err(trouble) => format!("{trouble}; the lock ends by itself within {}", span(acquired.ttl.get())),
    };
    Trouble::of_ours(&format!("cannot write the token to stdout ({error})"), &came)
}
