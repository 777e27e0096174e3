//! What a lock's keys say, in the terms of the rules.
//!
//! Owns the form of each value. Must not know how a value changes.

use std::collections::BTreeMap;

use super::keyspace::Keyspace;
use super::token::{End, Token};
use crate::machine::{Begun, Claimant, Holder, Lock, Run, Runs, Superseding, Waiter};
use crate::script::{AHEAD, companion};

const SHARED: &str = "nx1:shared:";

/// Returns the channel of a waiter; empty if it has none.
pub fn channel(keys: &Keyspace, key: &str, token: &Token) -> String {
    let record = keys.field(&companion(key, "waiters"), &token.0).unwrap_or_default();
    record.split('\n').next().unwrap_or_default().splitn(4, '|').nth(3).unwrap_or_default().to_owned()
}

/// Returns the generations of the shared locks in the keys: the generation is the fence of each reader, however late the
/// reader joins.
pub fn generations(keys: &Keyspace) -> impl Iterator<Item = u64> {
    keys.texts().filter_map(|text| text.strip_prefix(SHARED)?.parse().ok())
}

/// Returns the lock in the keys; none if one of them is lost, and the others do not say how it was.
pub fn read(keys: &Keyspace, key: &str) -> Option<Lock<Token>> {
    let of = |name: &str| companion(key, name);
    let (fence, terms, waiters) = (of("fence"), of("terms"), of("waiters"));
    let fence = keys.text(&fence).map_or(Some(0), |text| text.parse().ok())?;
    let mut lock = Lock { fence, ..Lock::default() };
    let value = keys.text(key);
    if let Some(generation) = value.and_then(|value| value.strip_prefix(SHARED)) {
        lock.generation = Some(generation.parse().ok()?);
        keys.field(&terms, "all")?;
        let shares = keys.sorted(&of("shares"));
        if shares.is_empty() || fence == 0 {
            return None;
        }
        for (token, end) in shares {
            let line: Vec<&str> = keys.field(&terms, &token)?.split('|').collect();
            let [slot, fence, since, mark] = line.as_slice() else { return None };
            let token = Token(token);
            let holder = Holder {
                end: Some(end.unsigned_abs()),
                limit: token.limit(),
                fence: fence.parse().ok()?,
                slot: slot.parse().ok(),
                since: since.parse().ok()?,
                reserved: (*mark == "r").then_some(0),
            };
            lock.holders.insert(token, holder);
        }
        for (field, by) in keys.hash(&terms) {
            if let Some(id) = field.strip_prefix("asked:") {
                lock.asked.insert(id.to_owned(), Token(by.clone()));
            }
        }
    } else if let Some(value) = value {
        let token = Token(value.to_owned());
        let is_ours = value.starts_with("nx1:");
        if is_ours && fence == 0 {
            return None;
        }
        let reserved = (keys.field(&waiters, "reserved") == Some(value)).then_some(0);
        let asked = keys.field(&waiters, "asked").and_then(|asked| asked.split_once(' '));
        if let Some((id, by)) = asked.filter(|(id, _)| *id == token.id()) {
            lock.asked.insert(id.to_owned(), Token(by.to_owned()));
        }
        let slot = is_ours.then_some(0);
        lock.holders.insert(token, Holder { end: keys.end(key), limit: 1, fence, slot, since: 0, reserved });
    }
    for (token, score) in keys.sorted(&of("queue")) {
        lock.queue.push(waiter(keys.field(&waiters, &token)?, Token(token), score)?);
    }
    lock.superseding = superseding(keys, &of("newest"))?;
    lock.runs = runs(keys, &of("runs"))?;
    Some(lock)
}

/// Reads `1|lease|grace|channel`; in a cluster, `@` and a node follow the grace.
fn waiter(record: &str, token: Token, score: i64) -> Option<Waiter<Token>> {
    let mut fields = record.split('\n').next()?.splitn(4, '|').skip(1);
    let (lease, grace, channel) = (fields.next()?, fields.next()?, fields.next()?);
    let ticket = (if score < 0 { score + AHEAD } else { score }).unsigned_abs();
    Some(Waiter {
        ticket,
        token,
        lease: lease.parse().ok()?,
        grace: grace.split('@').next()?.parse().ok()?,
        hears: !channel.is_empty(),
        beside_setnx: false,
    })
}

fn superseding(keys: &Keyspace, key: &str) -> Option<Superseding<Token>> {
    let mut superseding = Superseding::default();
    let mark = |text: &str| {
        let (ticket, token) = text.split_once('|')?;
        Some((ticket.parse::<u64>().ok()?, Token(token.to_owned())))
    };
    for (field, value) in keys.hash(key) {
        match field.as_str() {
            "newest" => superseding.newest = Some(mark(value)?),
            "dismissed" => superseding.dismissed = Some(mark(value)?),
            "more" => superseding.more = true,
            token => _ = superseding.noted.insert(Token(token.to_owned()), Token(value.clone())),
        }
    }
    Some(superseding)
}

fn runs(keys: &Keyspace, key: &str) -> Option<Runs<Token>> {
    let mut runs = Runs::default();
    let mut lines: BTreeMap<u64, Run<Token>> = BTreeMap::new();
    for (field, value) in keys.hash(key) {
        match field.split_once(':') {
            Some(("run", who)) => _ = runs.begun.insert(Token(who.to_owned()), begun(value)?),
            Some(("line", at)) => _ = lines.insert(at.parse().ok()?, run(value)?),
            _ if field == "done" => runs.done = Some(run(value)?),
            _ if field == "since" => runs.since = Some(value.parse().ok()?),
            _ => {}
        }
    }
    runs.ended = lines.into_values().collect();
    Some(runs)
}

/// Reads `granted|waited|fence`.
pub fn begun(text: &str) -> Option<Begun> {
    let numbers: Vec<u64> = text.split('|').map(|text| text.parse().unwrap_or(0)).collect();
    let [granted, waited, fence] = numbers.as_slice() else { return None };
    Some(Begun { granted: *granted, waited: *waited, fence: *fence })
}

/// Reads `granted|waited|fence|ended|outcome|status|signal|who`.
fn run(line: &str) -> Option<Run<Token>> {
    let parts: Vec<&str> = line.splitn(8, '|').collect();
    let [granted, waited, fence, ended, outcome, status, signal, who] = parts.as_slice() else { return None };
    Some(Run {
        who: Token((*who).to_owned()),
        begun: begun(&format!("{granted}|{waited}|{fence}"))?,
        ended: ended.parse().ok(),
        end: End::read(&format!("{outcome}|{status}|{signal}"))?,
    })
}
