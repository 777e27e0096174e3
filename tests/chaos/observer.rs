//! Looks at the keys all the time: whose each lock is, and who stands in line.

use std::path::Path;
use std::time::Duration;

use redis::{Connection, ConnectionAddr, IntoConnectionInfo, RedisResult};

use crate::arena::Shared;
use crate::record::{Look, Sight, Who, Whose, boot_clock};
use crate::support::lasts;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(4);

pub fn connected(socket: &Path) -> RedisResult<Connection> {
    redis::Client::open(ConnectionAddr::Unix(socket.to_owned()).into_connection_info()?)?.get_connection()
}

/// Until `enough`.
pub fn watch(shared: &Shared<'_>, socket: &Path, enough: impl Fn() -> bool) -> Vec<Sight> {
    let mut past = Vec::new();
    let mut now: Vec<Option<Sight>> = shared.names.iter().map(|_| None).collect();
    let mut connection = None;
    while !enough() {
        let seen = match connection.take().map_or_else(|| connected(socket), Ok) {
            Ok(mut open) => {
                let seen = look(shared, &mut open);
                connection = seen.is_ok().then_some(open);
                seen.ok()
            }
            Err(_) => None,
        };
        for (name, current) in now.iter_mut().enumerate() {
            let Some((look, all)) = &seen else {
                // Nobody knows what was between.
                past.extend(current.take());
                continue;
            };
            let (whose, line) = &all[name];
            match current {
                Some(sight) if sight.whose == *whose && sight.line == *line => sight.last = *look,
                _ => {
                    let sight = Sight { name, whose: *whose, line: line.clone(), first: *look, last: *look };
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

type Standing = (Whose, Vec<Who>);

fn look(shared: &Shared<'_>, connection: &mut Connection) -> RedisResult<(Look, Vec<Standing>)> {
    let mut ask = redis::pipe();
    // All at the same moment.
    ask.atomic();
    for name in &shared.names {
        ask.cmd("GET").arg(format!("lock:{name}"));
        ask.cmd("ZRANGE").arg(format!("{{lock:{name}}}:queue")).arg(0).arg(-1);
    }
    let before = boot_clock();
    let replies: Vec<redis::Value> = ask.query(connection)?;
    let look = Look { before, after: boot_clock() };
    let standing = |pair: &[redis::Value]| {
        let value: Option<String> = redis::from_redis_value(pair[0].clone())?;
        let line: Vec<String> = redis::from_redis_value(pair[1].clone())?;
        let whose = value.map_or(Whose::Nobodys, |value| who(&value).map_or(Whose::Strange, Whose::Of));
        Ok((whose, line.iter().filter_map(|token| who(token)).collect()))
    };
    Ok((look, replies.chunks(2).map(standing).collect::<RedisResult<Vec<Standing>>>()?))
}

/// Everybody says it in their reason, which is the end of a token.
fn who(token: &str) -> Option<Who> {
    token.rsplit(':').next()?.strip_prefix('c')?.parse().ok()
}
