//! Polls the keys, or the files, all the time: the holder of each lock, and its queue.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use redis::{Connection, ConnectionAddr, IntoConnectionInfo, RedisResult};

use crate::arena::Shared;
use crate::record::{Look, Sight, Who, Whose, boot_clock};
use crate::support::{lasts, record as file};

/// Poll interval.
const EVERY: Duration = Duration::from_millis(4);

pub fn connected(socket: &Path) -> RedisResult<Connection> {
    redis::Client::open(ConnectionAddr::Unix(socket.to_owned()).into_connection_info()?)?.get_connection()
}

/// The holder of a lock, and its queue.
type LockView = (Whose, Vec<Who>);

/// The state of all locks of an arena at one moment; `None` if the poll failed.
type Seen = Option<(Look, Vec<LockView>)>;

/// Polls until `enough`.
pub fn watch(shared: &Shared<'_>, mut look: impl FnMut() -> Seen, enough: impl Fn() -> bool) -> Vec<Sight> {
    let mut past = Vec::new();
    let mut now: Vec<Option<Sight>> = shared.names.iter().map(|_| None).collect();
    while !enough() {
        let seen = look();
        for (name, current) in now.iter_mut().enumerate() {
            let Some((look, all)) = &seen else {
                // The observer did not look in between.
                past.extend(current.take());
                continue;
            };
            let (whose, line) = &all[name];
            match current {
                Some(sight) if sight.whose == *whose && sight.line == *line => sight.last = *look,
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
    past
}

/// Polls the keys of a server.
pub fn at_server<'a>(shared: &'a Shared<'_>, socket: &'a Path) -> impl FnMut() -> Seen + 'a {
    let mut connection = None;
    move || {
        let mut open = connection.take().map_or_else(|| connected(socket), Ok).ok()?;
        let seen = ask(shared, &mut open).ok()?;
        connection = Some(open);
        Some(seen)
    }
}

fn ask(shared: &Shared<'_>, connection: &mut Connection) -> RedisResult<(Look, Vec<LockView>)> {
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
                let shares: Vec<(String, u64)> = redis::from_redis_value(keys[2].clone())?;
                let running = shares.iter().filter(|(_, end)| *end > now);
                of_several(running.map(|(token, _)| token.as_str()))
            }
            Some(value) => who(&value).map_or(Whose::Strange, Whose::Of),
        };
        Ok((whose, line.iter().filter_map(|token| who(token)).collect()))
    };
    Ok((look, locks.chunks(3).map(view).collect::<RedisResult<Vec<LockView>>>()?))
}

/// Polls the files of a directory.
pub fn at_directory<'a>(shared: &'a Shared<'_>, directory: &'a Path) -> impl FnMut() -> Seen + 'a {
    move || {
        let before = boot_clock();
        let view = |name: &String| {
            let path = directory.join(format!("lock:{name}.lock"));
            // The first request creates the file.
            let Ok(mut record) = File::open(path) else { return Some((Whose::Nobodys, Vec::new())) };
            record.lock_shared().ok()?;
            let mut bytes = Vec::new();
            record.read_to_end(&mut bytes).ok()?;
            let state = file::text(&bytes);
            Some((whose(&state), file::lines(&state, "waiter").filter_map(owner_of).collect()))
        };
        let all = shared.names.iter().map(view).collect::<Option<Vec<LockView>>>()?;
        Some((Look { before, after: boot_clock() }, all))
    }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.split_ascii_whitespace().find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

/// Returns who holds a lock: those whose leases run, though their processes may have ended.
fn whose(state: &str) -> Whose {
    let now = boot_clock();
    let runs = |holder: &&str| {
        let until = field(holder, "until_ms").and_then(|until| until.parse::<u64>().ok()).unwrap_or(0);
        until * 1_000_000 >= now
    };
    let mut tokens = file::lines(state, "holder").filter(runs).filter_map(|holder| field(holder, "token"));
    match field(state, "generation") {
        Some("-") | None => tokens.next().map_or(Whose::Nobodys, |token| who(token).map_or(Whose::Strange, Whose::Of)),
        Some(_) => of_several(tokens),
    }
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
