//! Lists the locks of a server and their status, page by page: names by the Redis command SCAN, and states by a hundred
//! INSPECTs at once. Each of these is short, so other clients do not wait long for the server.

use redis::{Cmd, Value, cmd};

use super::endpoint::Endpoint;
use super::means::Means;
use super::reply::{self, Answer, Operation};
use super::request::{self, RUNS, Request};
use super::{Server, WAITERS};
use crate::error::{Error, ErrorKind};
use crate::lock::{LockName, companion_key};
use crate::store::Listed;
use crate::store::scan::{Page, Pages, ScanCursor};
use crate::text;
use crate::wait::Limit;

const LIST: Operation<'_> = Operation { verb: "list the locks", name: None };
/// Keys that one SCAN visits: half a millisecond's work.
const SCANNED: usize = 500;
/// Locks inspected at once.
const TOGETHER: usize = 100;

impl Listed {
    /// Returns the pattern of these keys, as SCAN matches it. It may match others.
    fn pattern(self, prefix: &str) -> String {
        let all = format!("{}*", glob_escaped(prefix));
        match self {
            // One scan finds the locks and the records beside them.
            Listed::Locks | Listed::Names => format!("*{all}"),
            Listed::Held => all,
            Listed::Histories => companion_key(&all, RUNS),
        }
    }

    /// Returns the name of the lock whose key this is.
    fn name(self, prefix: &str, key: &str) -> Option<LockName> {
        let of_runs = || key.strip_prefix('{')?.strip_suffix(&format!("}}:{RUNS}"));
        // A key whose rest is no name is no lock: companion keys, for example, begin with a brace.
        let lock = match self {
            Listed::Locks | Listed::Names => of_runs().unwrap_or(key),
            Listed::Held => key,
            Listed::Histories => of_runs()?,
        };
        lock.strip_prefix(prefix)?.parse().ok()
    }
}

impl Server {
    /// Returns the next names: the result of one request.
    pub fn next_names(
        &mut self,
        what: Listed,
        scan: &mut ScanCursor,
        limit: Limit<'_>,
    ) -> Result<Option<Vec<LockName>>, Error> {
        if !scan.has_begun {
            *scan = self.begun(limit)?;
        }
        if scan.shards.is_empty() {
            return Ok(None);
        }
        self.name_more(what, scan, limit)?;
        Ok(Some(std::mem::take(&mut scan.names)))
    }

    /// Returns the next locks and their status: the result of one request, or of one batch.
    pub fn next_page(&mut self, scan: &mut ScanCursor, limit: Limit<'_>) -> Result<Option<Page>, Error> {
        if !scan.has_begun {
            *scan = self.begun(limit)?;
        }
        // Without scripts, the status of a lock takes several requests that belong together.
        if matches!(self.means, Means::Plain) {
            scan.strays.append(&mut scan.names);
        }
        if let Some(name) = scan.strays.last() {
            let status = self.look(&Operation::to("inspect", name), &Request::status(WAITERS), limit)?.0;
            return Ok(Some(scan.strays.pop().map(|name| (name, Some(status))).into_iter().collect()));
        }
        if !scan.names.is_empty() {
            return self.look_at_several(scan, limit).map(Some);
        }
        if scan.shards.is_empty() {
            return Ok(None);
        }
        self.name_more(Listed::Locks, scan, limit)?;
        Ok(Some(Page::new()))
    }

    /// Returns a cursor at the beginning, with the servers to ask.
    fn begun(&mut self, limit: Limit<'_>) -> Result<ScanCursor, Error> {
        let shards = self.client.shards(limit).map_err(|fault| self.unanswered(&LIST, fault))?;
        // Without shards there is one server to ask.
        let shards = if shards.is_empty() { vec![None] } else { shards.into_iter().map(Some).collect() };
        Ok(ScanCursor { has_begun: true, shards, cursor: Some("0".into()), ..ScanCursor::default() })
    }

    /// Reads the next names of the current shard; at its end, goes on to the next shard.
    fn name_more(&mut self, what: Listed, scan: &mut ScanCursor, limit: Limit<'_>) -> Result<(), Error> {
        let Some(cursor) = &scan.cursor else {
            scan.shards.pop();
            scan.cursor = Some("0".into());
            scan.pages = Pages::default();
            return Ok(());
        };
        let mut request = cmd("SCAN");
        request.arg(cursor).arg("MATCH").arg(what.pattern(self.options.prefix.as_str())).arg("COUNT").arg(SCANNED);
        self.turn_to_shard(scan.shards.last());
        let is_first = cursor == "0";
        let reply = self.client.ask(&request, limit).map_err(|fault| self.unanswered(&LIST, fault))?;
        let connection = self.client.answered_by();
        // Only a connection says for certain that this is the server as before, and it asks for no permission.
        if !is_first && connection != scan.connection {
            scan.cursor = Some("0".into());
            return match scan.pages.begin_anew() {
                true => Ok(()),
                false => Err(Error {
                    kind: ErrorKind::Unreachable,
                    action: LIST.action(&self.client),
                    cause: "the connection ended between two pages, again and again".into(),
                    hint: "name the server itself, not a proxy that closes connections".into(),
                }),
            };
        }
        scan.connection = connection;
        let page = reply::array(reply).map_err(|unexpected| LIST.misunderstood(&self.client, unexpected))?;
        let [next, Value::Array(keys)] = page.as_slice() else { return Err(self.senseless(&LIST)) };
        let next = reply::text(next).ok_or_else(|| self.senseless(&LIST))?.raw().to_owned();
        if next != "0" && !scan.pages.go_on(&next) {
            return Err(Error {
                kind: ErrorKind::Untrusted,
                action: LIST.action(&self.client),
                cause: format!(
                    "its SCAN does not come to an end: after {} pages it returned the cursor {}",
                    scan.pages.seen(),
                    text::clean(&next)
                ),
                hint: "check that it is a Redis server".into(),
            });
        }
        let prefix = self.options.prefix.as_str();
        scan.names.extend(keys.iter().filter_map(reply::text).filter_map(|key| what.name(prefix, key.into_raw())));
        scan.cursor = Some(next).filter(|next| next != "0");
        Ok(())
    }

    fn look_at_several(&mut self, scan: &mut ScanCursor, limit: Limit<'_>) -> Result<Page, Error> {
        let first = scan.names.len().saturating_sub(TOGETHER);
        let (verb, request) = (self.means.verb_of_reads(), Request::status(WAITERS));
        let asked = scan.names[first..].iter().map(|name| request.command(&self.options.prefix.key(name), verb));
        let asked: Vec<Cmd> = asked.collect();
        self.turn_to_shard(scan.shards.last());
        let mut replies = self.client.ask_here(&asked, limit).map_err(|fault| self.unanswered(&LIST, fault))?;
        if replies.iter().any(|reply| reply::lacks_script(&reply::unexpected(reply))) {
            // If it is refused, single requests will tell.
            let again: Vec<Cmd> = [request::load(verb)].into_iter().chain(asked).collect();
            let limit = self.for_another_reply(limit);
            replies = self.client.ask_here(&again, limit).map_err(|fault| self.unanswered(&LIST, fault))?;
            replies.remove(0);
        }
        let mut page = Page::with_capacity(replies.len());
        for (name, reply) in scan.names.split_off(first).into_iter().zip(replies) {
            match Answer::of(reply).ok().map(|answer| answer.status()) {
                Some(Some((status, _))) => page.push((name, Some(status))),
                Some(None) => return Err(self.senseless(&Operation::to("inspect", &name))),
                // Another server has it by now, or this one refused: a single request will tell.
                None => scan.strays.push(name),
            }
        }
        Ok(page)
    }

    fn turn_to_shard(&mut self, shard: Option<&Option<Endpoint>>) {
        if let Some(Some(shard)) = shard {
            self.client.turn_to_shard(shard);
        }
    }
}

/// Escapes a text so that a glob-style pattern of SCAN matches it literally.
pub fn glob_escaped(text: &str) -> String {
    let special = |c: char| matches!(c, '*' | '?' | '[' | ']' | '\\' | '^' | '-');
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}
