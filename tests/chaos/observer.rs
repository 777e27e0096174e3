//! Polls the keys, or the files, all the time: the holder of each lock, and its queue.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use redis::{Connection, ConnectionAddr, IntoConnectionInfo, RedisResult};

use crate::arena::Shared;
use crate::record::{Look, Sight, Who, Whose, boot_clock};
use crate::support::{is_alive, lasts};

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
            let Ok(record) = File::open(path) else { return Some((Whose::Nobodys, Vec::new())) };
            record.lock_shared().ok()?;
            let text = std::io::read_to_string(&record).ok()?;
            let list =
                |kind| std::fs::read_to_string(directory.join(format!("lock:{name}.{kind}"))).unwrap_or_default();
            let whose = match field(&text, "generation") {
                Some(generation) => shared_by(&list("shares"), generation),
                None => whose(&text),
            };
            Some((whose, in_order(&list("line"))))
        };
        let all = shared.names.iter().map(view).collect::<Option<Vec<LockView>>>()?;
        Some((Look { before, after: boot_clock() }, all))
    }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.split_ascii_whitespace().find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

/// Returns the holder. A claim that has expired, or whose process has ended, has none.
fn whose(record: &str) -> Whose {
    let Some(token) = field(record, "token") else { return Whose::Nobodys };
    let until = field(record, "until_us").and_then(|until| until.parse::<u64>().ok()).unwrap_or(0);
    let process = field(record, "process").and_then(|process| process.split('.').next()?.parse().ok());
    match process {
        _ if until * 1000 < boot_clock() => Whose::Nobodys,
        Some(process) if !is_alive(process) => Whose::Nobodys,
        _ => who(token).map_or(Whose::Strange, Whose::Of),
    }
}

/// Returns the holders of a lock that is shared. Those whose processes have ended are among them as long as their
/// leases run.
fn shared_by(shares: &str, generation: &str) -> Whose {
    let now = boot_clock();
    let runs = |share: &&str| {
        let until = field(share, "until_us").and_then(|until| until.parse::<u64>().ok()).unwrap_or(0);
        field(share, "generation") == Some(generation) && until * 1000 >= now
    };
    of_several(shares.lines().filter(runs).filter_map(|share| field(share, "token")))
}

fn of_several<'a>(tokens: impl Iterator<Item = &'a str>) -> Whose {
    let mut holders: Vec<Who> = tokens.filter_map(who).collect();
    holders.sort_unstable();
    if holders.is_empty() { Whose::Nobodys } else { Whose::Shared(holders) }
}

fn in_order(line: &str) -> Vec<Who> {
    let ticket = |waiter: &&str| field(waiter, "ticket").and_then(|ticket| ticket.parse::<u64>().ok());
    let mut waiters: Vec<&str> = line.lines().filter(|waiter| ticket(waiter).is_some()).collect();
    waiters.sort_by_key(ticket);
    waiters.into_iter().filter_map(owner_of).collect()
}

/// Returns the attempt of an entry in the file of a queue, or of shares.
pub fn owner_of(line: &str) -> Option<Who> {
    who(field(line, "token")?)
}

/// Finds the attempt in a field of the token. nxlock has it in its reason, which other fields may follow.
fn who(token: &str) -> Option<Who> {
    token.split(':').rev().find_map(|field| field.strip_prefix('c')?.parse().ok())
}
