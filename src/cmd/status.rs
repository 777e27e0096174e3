//! Who holds which lock.

use super::{Wants, open};
use crate::cli::{Everywhere, Status};
use crate::lock::{Key, Prefix};
use crate::report::{Named, Report, Row, StatusRows};
use crate::wait;

pub fn status(everywhere: &Everywhere, asked: &Status) -> anyhow::Result<Report> {
    let by_key = asked.key.as_ref();
    let prefix = by_key.map_or_else(|| everywhere.prefix.clone(), |_| Prefix::none());
    let mut store = open(everywhere, prefix.clone(), Wants::default())?;
    let timeout = everywhere.server_timeout;
    let given = asked.names.iter().cloned().chain(by_key.map(Key::name)).collect::<Vec<_>>();
    let named = !given.is_empty();
    let names = if named { given } else { wait::insist(timeout, |limit| store.names(limit)).answer? };
    let mut rows = Vec::with_capacity(names.len());
    for name in &names {
        let standing = wait::insist(timeout, |limit| store.inspect(name, limit)).answer?;
        // One that went free since it was listed is no longer of the list.
        if named || !standing.is_free() {
            let lock = by_key.map_or_else(|| Named::new(name, &prefix), Named::by_key);
            rows.push(Row { lock, standing });
        }
    }
    Ok(Report::Status(StatusRows { rows, named }))
}
