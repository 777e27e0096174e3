//! Who holds which lock.

use super::open;
use crate::cli::{Everywhere, Status};
use crate::report::{Named, Report, Row, StatusRows};
use crate::wait;

pub fn status(everywhere: &Everywhere, asked: &Status) -> anyhow::Result<Report> {
    let mut store = open(everywhere, 0)?;
    let timeout = everywhere.server_timeout;
    let named = !asked.names.is_empty();
    let names = if named { asked.names.clone() } else { wait::insist(timeout, |limit| store.names(limit)).answer? };
    let mut rows = Vec::with_capacity(names.len());
    for name in &names {
        let standing = wait::insist(timeout, |limit| store.inspect(name, limit)).answer?;
        // One that went free since it was listed is no longer of the list.
        if named || !standing.is_free() {
            rows.push(Row { lock: Named::new(name, &everywhere.prefix), standing });
        }
    }
    Ok(Report::Status(StatusRows { rows, named }))
}
