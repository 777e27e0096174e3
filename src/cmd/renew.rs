//! Put a lock's expiry a full ttl from now.

use super::{Wants, meant, open, token};
use crate::cli::{Everywhere, Renew};
use crate::lock::{Hold, Ttl};
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
        Answer::Longer(left) => {
            say::note(format_args!(
                "\"{}\" still ends in {}, not sooner: its holder renews it",
                lock.name,
                say::span(left)
            ));
            Report::Renewed(Renewed { lock, ttl: Ttl::at_least(left) })
        }
        Answer::NotYours(occupancy) => Report::NotYours(NotYours { lock, wanted: Wanted::Renew, occupancy }),
    })
}
