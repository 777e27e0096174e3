//! Polls the keys, or the files, all the time: the holder of each lock, and its queue.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::{Connection, ConnectionAddr, IntoConnectionInfo, RedisResult};

use crate::arena::Shared;
use crate::checker::{HAS_TIME, UNSEEN};
use crate::record::{Look, Nanos, Sight, Who, Whose, boot_clock};
use crate::support::{lasts, record as file};

/// Poll interval.
const EVERY: Duration = Duration::from_millis(4);

pub fn connected(socket: &Path) -> RedisResult<Connection> {
    redis::Client::open(ConnectionAddr::Unix(socket.to_owned()).into_connection_info()?)?.get_connection()
}

/// The holder of a lock, and its queue.
type LockView = (Whose, Vec<Who>);

/// The state of each lock of an arena at one moment, as far as it was seen; `None` if the poll failed.
type Seen = Option<(Look, Vec<Option<LockView>>)>;

/// Looks at all locks once.
pub type Poll<'a> = Box<dyn FnMut() -> Seen + 'a>;

/// The sights of all locks, and the intervals in which the observer saw none for as long as a reservation may last.
pub type Watched = (Vec<Sight>, Vec<(Nanos, Nanos)>);

/// Polls so many locks until `enough`.
pub fn watch(locks: usize, mut poll: impl FnMut() -> Seen, enough: impl Fn() -> bool) -> Watched {
    let mut past = Vec::new();
    let mut gaps = Vec::new();
    let mut last = boot_clock();
    let mut now: Vec<Option<Sight>> = vec![None; locks];
    while !enough() {
        let seen = poll();
        if let Some((look, _)) = &seen {
            gaps.push((last, look.after));
            last = look.before;
        }
        for (name, current) in now.iter_mut().enumerate() {
            let seen = seen.as_ref().and_then(|(look, all)| Some((look, all[name].as_ref()?)));
            let Some((look, (whose, line))) = seen else {
                // The observer did not look in between.
                past.extend(current.take());
                continue;
            };
            match current {
                // If the observer did not look for a while, nobody knows what was in between.
                Some(sight)
                    if sight.whose == *whose && sight.line == *line && look.after <= sight.last.before + UNSEEN =>
                {
                    sight.last = *look;
                }
                _ => {
                    let sight = Sight { name, whose: whose.clone(), line: line.clone(), first: *look, last: *look };
                    past.extend(current.replace(sight));
                }
            }
        }
        lasts(EVERY);
    }
    past.extend(now.into_iter().flatten());
    past.sort_by_key(|sight| (sight.name, sight.first.before));
    gaps.push((last, boot_clock()));
    gaps.retain(|(from, to)| to.saturating_sub(*from) >= HAS_TIME);
    (past, gaps)
}

/// Polls the keys of a server.
pub fn at_server<'a>(shared: &'a Shared<'_>, socket: &'a Path) -> Poll<'a> {
    let mut connection = None;
    Box::new(move || {
        let mut open = connection.take().map_or_else(|| connected(socket), Ok).ok()?;
        let seen = ask(shared, &mut open).ok()?;
        connection = Some(open);
        Some(seen)
    })
}

fn ask(shared: &Shared<'_>, connection: &mut Connection) -> RedisResult<(Look, Vec<Option<LockView>>)> {
    let mut ask = redis::pipe();
    // One transaction, for one moment.
    ask.atomic();
    ask.cmd("TIME");
    for name in &shared.names {
        ask.cmd("GET").arg(format!("lock:{name}"));
        ask.cmd("ZRANGE").arg(format!("{{lock:{name}}}:queue")).arg(0).arg(-1);
        ask.cmd("ZRANGE").arg(format!("{{lock:{name}}}:shares")).arg(0).arg(-1).arg("WITHSCORES");
    }
    let before = boot_clock();
    let replies: Vec<redis::Value> = ask.query(connection)?;
    let look = Look { before, after: boot_clock() };
    let (time, locks) = replies.split_first().expect("as many replies as commands");
    let (seconds, micros): (u64, u64) = redis::from_redis_value(time.clone())?;
    let now = (seconds * 1_000_000 + micros) / 1000;
    let view = |keys: &[redis::Value]| {
        let value: Option<String> = redis::from_redis_value(keys[0].clone())?;
        let line: Vec<String> = redis::from_redis_value(keys[1].clone())?;
        let whose = match value {
            None => Whose::Nobodys,
            // The shares of a key that is gone, or of another value, count for nothing.
            Some(value) if value.starts_with("nx1:shared:") => {
                of_shares(&redis::from_redis_value::<Vec<_>>(keys[2].clone())?, now)
            }
            Some(value) => who(&value).map_or(Whose::Strange, Whose::Of),
        };
        Ok(Some((whose, line.iter().filter_map(|token| who(token)).collect())))
    };
    Ok((look, locks.chunks(3).map(view).collect::<RedisResult<_>>()?))
}

/// Returns who has a share whose lease runs.
fn of_shares(shares: &[(String, u64)], now: u64) -> Whose {
    of_several(shares.iter().filter(|(_, end)| *end > now).map(|(token, _)| token.as_str()))
}

/// Returns the time, and of each lock what this node has: its value, or an empty one, and its shares.
const PART: &str = "local all = {} \
    for i, name in ipairs(ARGV) do \
      local value = redis.pcall('GET', 'lock:' .. name) \
      local shares = redis.pcall('ZRANGE', '{lock:' .. name .. '}:shares', 0, -1, 'WITHSCORES') \
      all[i] = { type(value) == 'string' and value or '', shares.err and {} or shares } \
    end return { redis.call('TIME'), all }";

/// The locks of which a node of a cluster has keys: each its value and its shares; and the time, in ms.
type Part = (u64, Vec<(String, Vec<(String, u64)>)>);

/// Polls the nodes of a cluster, whose keys move from one to another: sees who holds a lock where that is at one node, and
/// neither that nobody does nor who waits.
pub fn at_nodes<'a>(shared: &'a Shared<'_>, nodes: &'a [PathBuf]) -> Poll<'a> {
    let mut connections: Vec<Option<Connection>> = nodes.iter().map(|_| None).collect();
    Box::new(move || {
        let before = boot_clock();
        let mut parts = Vec::new();
        for (node, connection) in nodes.iter().zip(&mut connections) {
            let mut open = connection.take().map_or_else(|| connected(node), Ok).ok()?;
            parts.push(part(shared, &mut open).ok()?);
            *connection = Some(open);
        }
        let look = Look { before, after: boot_clock() };
        let view = |name: usize| {
            let mut values =
                parts.iter().map(|(now, locks)| (now, &locks[name])).filter(|(_, lock)| !lock.0.is_empty());
            let (now, (value, shares)) = values.next()?;
            let whose = match value.starts_with("nx1:shared:") {
                true if shares.is_empty() => return None,
                true => of_shares(shares, *now),
                false => who(value).map_or(Whose::Strange, Whose::Of),
            };
            // It may have moved in between.
            values.next().is_none().then_some((whose, Vec::new()))
        };
        Some((look, (0..shared.names.len()).map(view).collect()))
    })
}

fn part(shared: &Shared<'_>, connection: &mut Connection) -> RedisResult<Part> {
    // What is arriving is seen only so.
    redis::cmd("ASKING").exec(connection)?;
    let ((seconds, micros), locks): ((u64, u64), _) =
        redis::cmd("EVAL").arg(PART).arg(0).arg(&shared.names).query(connection)?;
    Ok((seconds * 1000 + micros / 1000, locks))
}

/// Polls the files of a directory.
pub fn at_directory<'a>(shared: &'a Shared<'_>, directory: &'a Path) -> Poll<'a> {
    Box::new(move || {
        let before = boot_clock();
        let view = |name: &String| {
            let path = directory.join(format!("lock:{name}.lock"));
            // The first request creates the file.
            let Ok(mut record) = File::open(path) else { return Some((Whose::Nobodys, Vec::new())) };
            record.lock_shared().ok()?;
            let mut bytes = Vec::new();
            record.read_to_end(&mut bytes).ok()?;
            let state = file::text(&bytes);
            Some((whose(&state)?, file::lines(&state, "waiter").filter_map(owner_of).collect()))
        };
        let all = shared.names.iter().map(view).collect();
        Some((Look { before, after: boot_clock() }, all))
    })
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.split_ascii_whitespace().find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

/// Returns who holds a lock: those whose leases run, though their processes may have ended. `None` if a lease that processes
/// keep is over: their command may have the lock until it is gone, and only the kernel knows.
fn whose(state: &str) -> Option<Whose> {
    let now = boot_clock();
    let runs = |holder: &&str| {
        let until = field(holder, "until_ms").and_then(|until| until.parse::<u64>().ok()).unwrap_or(0);
        until * 1_000_000 >= now
    };
    if file::lines(state, "holder").any(|holder| !runs(&holder) && field(holder, "life") == Some("holder")) {
        return None;
    }
    let mut tokens = file::lines(state, "holder").filter(runs).filter_map(|holder| field(holder, "token"));
    Some(match field(state, "generation") {
        Some("-") | None => tokens.next().map_or(Whose::Nobodys, |token| who(token).map_or(Whose::Strange, Whose::Of)),
        Some(_) => of_several(tokens),
    })
}

fn of_several<'a>(tokens: impl Iterator<Item = &'a str>) -> Whose {
    let mut holders: Vec<Who> = tokens.filter_map(who).collect();
    holders.sort_unstable();
    if holders.is_empty() { Whose::Nobodys } else { Whose::Shared(holders) }
}

/// Returns the attempt of a line about a holder or a waiter.
pub fn owner_of(line: &str) -> Option<Who> {
    who(field(line, "token")?)
}

/// Finds the attempt in a field of the token. nxlock has it in its reason, which other fields may follow.
pub fn who(token: &str) -> Option<Who> {
    token.split(':').rev().find_map(|field| field.strip_prefix('c')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_looks_that_are_far_apart_nobody_knows_what_was_between_them() {
        let ms = |n: u64| n * 1_000_000;
        let looks = [(0, 1), (90, 95), (140, 201), (202, 203), (210, 311)];
        let mut seen = looks.map(|(before, after)| Look { before: ms(before), after: ms(after) }).into_iter();
        let left = seen.len();
        let looked = std::cell::Cell::new(0);
        let look = || {
            looked.set(looked.get() + 1);
            seen.next().map(|look| (look, vec![Some((Whose::Nobodys, Vec::new()))]))
        };
        let (sights, _) = watch(1, look, || looked.get() == left);
        let times: Vec<(Nanos, Nanos)> = sights.iter().map(|it| (it.first.before, it.last.after)).collect();
        assert_eq!(times, [(ms(0), ms(95)), (ms(140), ms(203)), (ms(210), ms(311))]);
    }
}
