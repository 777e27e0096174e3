//! Shows who holds which lock, once or live.

use super::{Wants, open, options};
use crate::cli::{GlobalArgs, Status};
use crate::list::Subject;
use crate::lock::Prefix;
use crate::output::progress::Listing;
use crate::report::{Named, Report, StatusRows};
use crate::top;

pub fn status(global: &GlobalArgs, asked: &Status) -> anyhow::Result<Report> {
    let by_key = asked.key.as_ref();
    let prefix = by_key.map_or_else(|| global.prefix.clone(), |_| Prefix::none());
    let mut store = open(global, prefix.clone(), Wants::default())?;
    let names = asked.names.iter().map(|name| Named::new(name, &prefix));
    let given = names.chain(by_key.map(Named::by_key)).collect::<Vec<_>>();
    let subject =
        Subject { named: Some(given).filter(|given| !given.is_empty()), prefix, timeout: global.server_timeout };
    // All named locks have the same options.
    let options = subject.named.iter().flatten().next().map(|lock| options(global, lock)).unwrap_or_default();
    if let Some(every) = asked.watch {
        return top::watch(store, subject, every, global.json);
    }
    let mut listing = Listing::begin();
    let rows = subject.look(store.as_mut(), &mut |found| listing.found(found))?;
    Ok(Report::Status(StatusRows { rows, named: subject.named.is_some(), options }))
}
