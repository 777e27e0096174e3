//! Put a lock's expiry a full ttl from now.

use super::{open, token};
use crate::cli::{Everywhere, Renew};
use crate::lock::Hold;
use crate::report::{Named, NotYours, Renewed, Report, Wanted};
use crate::store::Renewed as Answer;
use crate::wait;

pub fn renew(everywhere: &Everywhere, asked: &Renew) -> anyhow::Result<Report> {
    let mut store = open(everywhere, 0)?;
    let hold = Hold { name: asked.name.clone(), token: token(&asked.token)?, lives_with: None };
    let lock = Named::new(&asked.name, &everywhere.prefix);
    let answer = wait::insist(everywhere.server_timeout, |limit| store.renew(&hold, asked.ttl, limit)).answer?;
    Ok(match answer {
        Answer::Until(_) => Report::Renewed(Renewed { lock, ttl: asked.ttl }),
        Answer::NotYours(occupancy) => Report::NotYours(NotYours { lock, wanted: Wanted::Renew, occupancy }),
    })
}
