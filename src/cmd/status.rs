//! Shows who holds which lock, once or live.

use super::{Wants, open, options};
use crate::cli::{GlobalArgs, Status};
use crate::list::{Seen, Subject};
use crate::lock::Prefix;
use crate::output::progress::Listing;
use crate::report::{Named, Report, StatusRows};
use crate::{log, output, top};

pub fn status(global: &GlobalArgs, asked: &Status) -> anyhow::Result<Report> {
    let by_key = asked.key.as_ref();
    let prefix = by_key.map_or_else(|| global.prefix.clone(), |_| Prefix::none());
    let records = asked.history.then_some("--history");
    let mut store = open(global, prefix.clone(), Wants { records, ..Wants::default() })?;
    let names = asked.names.iter().map(|name| Named::new(name, &prefix));
    let given = names.chain(by_key.map(Named::by_key)).collect::<Vec<_>>();
    let subject =
        Subject { named: Some(given).filter(|given| !given.is_empty()), prefix, timeout: global.server_timeout };
    if asked.history {
        let (histories, doubts) = subject.histories(store.as_mut())?;
        for doubt in doubts {
            log::warn(format_args!("{doubt}"));
        }
        return Ok(Report::Histories(histories));
    }
    // All named locks have the same options.
    let options = subject.named.iter().flatten().next().map(|lock| options(global, lock)).unwrap_or_default();
    if let Some(every) = asked.watch {
        return top::watch(store, subject, every, global.json);
    }
    let mut listing = Listing::begin();
    let Seen { rows, doubts } = subject.look(store.as_mut(), &mut |found| listing.found(found))?;
    let alone = subject.named.as_deref().unwrap_or_default();
    let last = match alone {
        // A history that cannot be read does not hide the rest.
        [lock] if !global.json && output::is_for_a_terminal() => {
            let history =
                subject.history(store.as_mut(), lock).inspect_err(|error| log::trace(format_args!("{error}")));
            history.ok().and_then(|history| history.runs.into_iter().next())
        }
        _ => None,
    };
    Ok(Report::Status(StatusRows { rows, named: subject.named.is_some(), options, last, doubts }))
}
