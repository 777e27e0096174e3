//! Which locks a server has and how they stand, page by page: their names by the Redis command SCAN, and who has
//! them by a hundred INSPECTs in one go. Each of those is short, so nobody else waits long for the server.

use redis::{Cmd, Value, cmd};

use super::Server;
use super::endpoint::Endpoint;
use super::reply::{self, Operation};
use super::scripts::Script;
use crate::error::Error;
use crate::lock::LockName;
use crate::store::scan::{Page, ScanCursor};
use crate::wait::Limit;

const LIST: Operation<'_> = Operation { verb: "list the locks", name: None };
/// So many keys a SCAN looks at: half a millisecond's work.
const SCANNED: usize = 500;
/// So many locks are looked at in one go.
const TOGETHER: usize = 100;

impl Server {
    pub fn listed(&mut self, limit: Limit<'_>) -> Result<Vec<LockName>, Error> {
        let mut scan = self.begun(limit)?;
        let mut names = Vec::new();
        while !scan.shards.is_empty() {
            self.name_more(&mut scan, limit)?;
            names.append(&mut scan.names);
        }
        // SCAN may give a key twice, and so may two servers of which one hands its keys to the other.
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// The next locks, and how each stands: one question, or one go of them.
    pub fn next_page(&mut self, scan: &mut ScanCursor, limit: Limit<'_>) -> Result<Option<Page>, Error> {
        if !scan.has_begun {
            *scan = self.begun(limit)?;
        }
        // Without scripts each is asked about by several questions that belong together.
        if self.denies_scripts {
            scan.strays.append(&mut scan.names);
        }
        if let Some(name) = scan.strays.last() {
            let status = self.look(&Operation::to("inspect", name), limit)?.0;
            return Ok(Some(scan.strays.pop().map(|name| (name, status)).into_iter().collect()));
        }
        if !scan.names.is_empty() {
            return self.look_at_several(scan, limit).map(Some);
        }
        if scan.shards.is_empty() {
            return Ok(None);
        }
        self.name_more(scan, limit)?;
        Ok(Some(Page::new()))
    }

    /// At the beginning, knowing whom to ask.
    fn begun(&mut self, limit: Limit<'_>) -> Result<ScanCursor, Error> {
        let shards = self.client.shards(limit).map_err(|fault| self.unanswered(&LIST, fault))?;
        // Without shards there is one server to ask.
        let shards = if shards.is_empty() { vec![None] } else { shards.into_iter().map(Some).collect() };
        Ok(ScanCursor { has_begun: true, shards, cursor: Some("0".into()), ..ScanCursor::default() })
    }

    /// The next names of the server whose turn it is; the next one's turn, if it has no more.
    fn name_more(&mut self, scan: &mut ScanCursor, limit: Limit<'_>) -> Result<(), Error> {
        let Some(cursor) = &scan.cursor else {
            scan.shards.pop();
            scan.cursor = Some("0".into());
            return Ok(());
        };
        let mut request = cmd("SCAN");
        let pattern = format!("{}*", glob_escaped(self.prefix.as_str()));
        request.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCANNED);
        self.turn_to_shard(scan.shards.last());
        let reply = self.client.ask(&request, limit).map_err(|fault| self.unanswered(&LIST, fault))?;
        let page = reply::array(reply).map_err(|unexpected| LIST.misunderstood(&self.client, unexpected))?;
        let [next, Value::Array(keys)] = page.as_slice() else { return Err(self.senseless(&LIST)) };
        let next = reply::text(next).ok_or_else(|| self.senseless(&LIST))?.raw().to_owned();
        let prefix = self.prefix.as_str();
        let keys = keys.iter().filter_map(reply::text).filter_map(|key| key.into_raw().strip_prefix(prefix));
        // A key whose rest is no name is no lock: our own fences, for one, begin with a brace.
        scan.names.extend(keys.filter_map(|name| name.parse::<LockName>().ok()));
        scan.cursor = Some(next).filter(|next| next != "0");
        Ok(())
    }

    fn look_at_several(&mut self, scan: &mut ScanCursor, limit: Limit<'_>) -> Result<Page, Error> {
        let first = scan.names.len().saturating_sub(TOGETHER);
        let asked = scan.names[first..].iter().map(|name| self.packed(Script::Inspect, Some(name), &[]));
        let asked: Vec<Cmd> = asked.collect();
        self.turn_to_shard(scan.shards.last());
        let replies = self.client.ask_here(&asked, limit).map_err(|fault| self.unanswered(&LIST, fault))?;
        let mut page = Page::with_capacity(asked.len());
        for (name, reply) in scan.names.split_off(first).into_iter().zip(replies) {
            match reply {
                Value::Array(answer) => {
                    let status = self.understood(&Operation::to("inspect", &name), answer, limit)?.0;
                    page.push((name, status));
                }
                // Somebody else has it by now, or it is a no: asked alone, it will be found out.
                _ => scan.strays.push(name),
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

/// A text that a glob-style pattern of SCAN takes for itself.
pub fn glob_escaped(text: &str) -> String {
    let special = |c: char| matches!(c, '*' | '?' | '[' | ']' | '\\' | '^' | '-');
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}
