//! Shows who holds which lock, once or live; or judges that.

use std::collections::BTreeMap;

use super::{Wants, open, options, servers};
use crate::cli::{GlobalArgs, Status};
use crate::error::Error;
use crate::list::{Seen, Subject};
use crate::lock::{LockName, Prefix, StateKind};
use crate::output::progress::Listing;
use crate::report::alarm::{Alarm, Limits};
use crate::report::{Named, Report, Row, StatusRows};
use crate::store::Store;
use crate::{log, top};

pub fn status(global: &GlobalArgs, asked: &Status) -> anyhow::Result<Report> {
    let by_key = asked.key.as_ref();
    let prefix = by_key.map_or_else(|| global.prefix.clone(), |_| Prefix::none());
    let limits = asked.alarm.limits();
    let records = [("--history", asked.history), ("--metrics", asked.metrics), ("--max-age", limits.age.is_some())];
    let records = records.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option);
    let wants = Wants { records, counts_waiters: limits.waiting.is_some(), ..Wants::default() };
    let mut store = open(global, prefix.clone(), wants)?;
    let names = asked.names.iter().map(|name| Named::new(name, &prefix));
    let given = names.chain(by_key.map(Named::by_key)).collect::<Vec<_>>();
    let subject =
        Subject { named: Some(given).filter(|given| !given.is_empty()), prefix, timeout: global.server_timeout };
    if asked.history {
        let (mut histories, doubts) = subject.histories(store.as_mut())?;
        warn_of(&doubts);
        let most = asked.limit.map_or(usize::MAX, usize::from);
        histories.iter_mut().for_each(|history| history.recorded.over.truncate(most));
        return Ok(Report::Histories(histories));
    }
    // All named locks have the same options.
    let options = subject.named.iter().flatten().next().map(|lock| options(global, lock)).unwrap_or_default();
    if let Some(every) = asked.watch {
        let place = format!("{} {}", servers(global).join(" "), subject.prefix.as_str());
        return top::watch(store, subject, place.trim_end(), every, global.json);
    }
    let mut listing = Listing::begin();
    let Seen { rows, doubts } = subject.look(store.as_mut(), &mut |found| listing.found(found))?;
    if limits.are_given() {
        let mut alarm = alarm(&subject, store.as_mut(), rows, &limits);
        // It may be that nobody can tell.
        alarm.unknown = alarm.unknown.map(|why| if doubts.is_empty() { why } else { doubts.join("; ") });
        return Ok(Report::Alarm(alarm));
    }
    if subject.named.is_some() {
        note_of_patterns(&rows);
    }
    if asked.metrics {
        warn_of(&doubts);
        return Ok(Report::Metrics(rows, subject.prefix));
    }
    Ok(Report::Status(StatusRows { rows, named: subject.named.is_some(), options, doubts }))
}

/// Says of a free name that looks like a pattern that it is none.
fn note_of_patterns(rows: &[Row]) {
    let is_pattern = |row: &&Row| row.lock.name.as_str().contains('*') && row.status.state.kind == StateKind::Free;
    if let Some(Row { lock, .. }) = rows.iter().find(is_pattern) {
        log::note(format_args!(
            "\"{}\" is the name of one lock, not a pattern: `nxlock status` without names lists all locks",
            lock.name
        ));
    }
}

/// Warns of what may be wrong with an answer that has no place for it.
fn warn_of(doubts: &[String]) {
    doubts.iter().for_each(|doubt| log::warn(format_args!("{doubt}")));
}

/// How many records may come too late, or not at all, before no more are asked for: a server that has gone answers none of
/// thousands.
const UNANSWERED: usize = 3;

/// Judges locks. Of those whose records came without their status, it reads them, or finds out why it cannot.
fn alarm(subject: &Subject, store: &mut dyn Store, mut rows: Vec<Row>, limits: &Limits) -> Alarm {
    let mut unread: BTreeMap<LockName, String> = BTreeMap::new();
    let mut unanswered = Vec::new();
    for row in rows.iter_mut().filter(|row| limits.age.is_some() && row.status.recorded.is_none()) {
        if let Some(Error { cause, .. }) = unanswered.get(UNANSWERED - 1) {
            unread.insert(row.lock.name.clone(), format!("it is not read, like the ones before it: {cause}"));
            continue;
        }
        match subject.history(store, &row.lock) {
            Ok(history) => row.status.recorded = Some(history.recorded),
            Err(error) => {
                unread.insert(row.lock.name.clone(), error.to_string());
                unanswered.extend(Some(error).filter(Error::is_retryable));
            }
        }
    }
    Alarm::of(&rows, limits, subject.named.is_some(), |lock| unread.remove(&lock.name))
}
