//! Put a lock's expiry a full ttl from now.

use super::{Wants, meant, open, token};
use crate::cli::{Everywhere, Renew};
use crate::lock::{Hold, Ttl};
use crate::report::{NotYours, Renewed, Report, Wanted};
use crate::say;
use crate::store::Renewed as Answer;
use crate::wait;

/// The variable by which the guard of a `run` that was killed renews its lock for the last time: the expiry may come
/// nearer, and nothing else ends the lock.
pub const LAST_RENEWAL: &str = "NXLOCK_LAST_RENEWAL";

pub fn renew(everywhere: &Everywhere, asked: &Renew) -> anyhow::Result<Report> {
    let (lock, prefix) = meant(everywhere, &asked.which)?;
    let mut store = open(everywhere, prefix, Wants::default())?;
    let is_last = std::env::var_os(LAST_RENEWAL).is_some();
    let lives_with = is_last.then(std::process::id);
    let hold = Hold { name: lock.name.clone(), token: token(&asked.token)?, lives_with, beside_setnx: None };
    let answer = wait::insist(everywhere.server_timeout, |limit| match is_last {
        true => store.let_end(&hold, asked.ttl, limit),
        false => store.renew(&hold, asked.ttl, limit),
    })?;
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
