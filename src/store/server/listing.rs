//! Which locks a server has, page by page (Redis command SCAN).

use redis::{Value, cmd};

use super::super::reply::{self, What};
use super::{Server, Trouble};
use crate::limit::Limit;
use crate::lock::LockName;

impl Server {
    pub fn listed(&mut self, limit: Limit<'_>) -> Result<Vec<LockName>, Trouble> {
        let what = What { verb: "list the locks", name: None };
        let prefix = self.prefix.as_str().to_owned();
        let pattern = format!("{}*", glob_escaped(&prefix));
        let mut names = Vec::new();
        let shards = self.wire.shards(limit).map_err(|fault| self.unanswered(&what, fault))?;
        // Without shards there is one server to ask.
        for shard in shards.iter().map(Some).chain(shards.is_empty().then_some(None)) {
            shard.into_iter().for_each(|shard| self.wire.turn_to_shard(shard));
            let mut cursor = "0".to_owned();
            loop {
                let mut scan = cmd("SCAN");
                scan.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(1000);
                let reply = self.wire.ask(&scan, limit).map_err(|fault| self.unanswered(&what, fault))?;
                let page = reply::array(reply).map_err(|unexpected| what.misunderstood(&self.wire, unexpected))?;
                let [next, Value::Array(keys)] = page.as_slice() else { return Err(self.senseless(&what)) };
                let keys = keys.iter().filter_map(reply::text).filter_map(|key| key.strip_prefix(&prefix));
                // A key whose rest is no name is no lock: our own fences, for one, begin with a brace.
                names.extend(keys.filter_map(|name| name.parse::<LockName>().ok()));
                cursor = reply::text(next).ok_or_else(|| self.senseless(&what))?.to_owned();
                if cursor == "0" {
                    break;
                }
            }
        }
        // SCAN may give a key twice, and so may two servers of which one hands its keys to the other.
        names.sort();
        names.dedup();
        Ok(names)
    }
}

/// A text that a glob-style pattern of SCAN takes for itself.
pub fn glob_escaped(text: &str) -> String {
    let special = |c: char| matches!(c, '*' | '?' | '[' | ']' | '\\' | '^' | '-');
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}
