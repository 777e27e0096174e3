//! Put a lock's expiry a full ttl from now.

use super::{Wants, meant, open, token};
use crate::cli::{Everywhere, Renew};
use crate::lock::Hold;
use crate::report::{NotYours, Renewed, Report, Wanted};
use crate::say;
use crate::store::Renewed as Answer;
use crate::wait;

pub fn renew(everywhere: &Everywhere, asked: &Renew) -> anyhow::Result<Report> {
    let (lock, prefix) = meant(everywhere, &asked.which)?;
    let mut store = open(everywhere, prefix, Wants::default())?;
    let hold = Hold { name: lock.name.clone(), token: token(&asked.token)?, lives_with: None, beside_setnx: None };
    let answer = wait::insist(everywhere.server_timeout, |limit| store.renew(&hold, asked.ttl, limit))?;
    Ok(match answer {
        Answer::Until(_) => Report::Renewed(Renewed { lock, ttl: asked.ttl }),
        Answer::PutBack(_) => {
            say::put_back(&lock.name, 1);
            Report::Renewed(Renewed { lock, ttl: asked.ttl })
        }
        Answer::NotYours(occupancy) => Report::NotYours(NotYours { lock, wanted: Wanted::Renew, occupancy }),
    })
}
