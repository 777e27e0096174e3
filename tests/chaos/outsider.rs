//! A plain client of the same keys: `SET NX PX`, and a script that compares and deletes. It watches its lease itself,
//! since no program does it for it.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use redis::{Connection, RedisResult, cmd};

use crate::arena::Shared;
use crate::observer::connected;
use crate::record::{Attempt, Client, Mode, Stamp, Starved, Terms, UNANSWERED, Who, Word, boot_clock, nanos};
use crate::seed::Seed;
use crate::support::lasts;

const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

pub fn contend(shared: &Shared<'_>, socket: &Path, mut seed: Seed) {
    let mut connection: Option<Connection> = None;
    while !shared.is_over() {
        connection = match connection.take().map_or_else(|| connected(socket), Ok) {
            Ok(mut connection) => attempt(shared, &mut connection, &mut seed).is_ok().then_some(connection),
            Err(_) => None,
        };
        lasts(seed.millis(5, 60));
    }
}

fn attempt(shared: &Shared<'_>, connection: &mut Connection, seed: &mut Seed) -> RedisResult<()> {
    let name = usize::try_from(seed.between(0, shared.names.len() as u64)).expect("it fits");
    let key = format!("lock:{}", shared.names[name]);
    let (ttl, length) = (seed.millis(60, 300), seed.millis(0, 15));
    let asked = boot_clock();
    let attempt = Attempt {
        name,
        client: Client::Outsider,
        mode: Mode::Exclusive,
        also: Vec::new(),
        ttl: nanos(ttl),
        queued: false,
        first: false,
        near: true,
        dawdles: 0,
        outlasted: false,
        may_be_refused: false,
        supersedes_holders: false,
        is_limited: false,
        asked,
        ended: None,
        starved: Starved::default(),
    };
    let who = shared.journal.asks(attempt);
    let value = format!("plain:c{who}");
    let done = hold(shared, connection, (who, &key, &value), (asked + nanos(ttl) * 98 / 100, nanos(length)), ttl);
    let how = if done.is_ok() { "plain" } else { UNANSWERED };
    shared.journal.ended(who, boot_clock(), how.into(), Starved::default());
    done
}

fn hold(
    shared: &Shared<'_>,
    connection: &mut Connection,
    (who, key, value): (Who, &str, &str),
    (until, length): (u64, u64),
    ttl: std::time::Duration,
) -> RedisResult<()> {
    let mut set = cmd("SET");
    set.arg(key).arg(value).arg("NX").arg("PX").arg(u64::try_from(ttl.as_millis()).expect("it fits"));
    if set.query::<Option<String>>(connection)?.is_none() {
        return Ok(());
    }
    let mut log = File::options().append(true).open(&shared.journal.log).expect("the log");
    let mut stamp = |word| {
        let at = boot_clock();
        let line = format!("{}\n", Stamp { at, who, word });
        let covered = at < until;
        if covered {
            assert_eq!(log.write(line.as_bytes()).expect("written"), line.len());
        }
        covered
    };
    if stamp(Word::Enter(Terms::default())) {
        lasts(std::time::Duration::from_nanos(length));
        stamp(Word::Leave);
    }
    cmd("EVAL").arg(COMPARE_AND_DELETE).arg(1).arg(key).arg(value).query::<i64>(connection)?;
    Ok(())
}
