//! Which locks a server has and how they stand, page by page: their names by the Redis command SCAN, and who has
//! them by a hundred INSPECTs in one go. Each of those is short, so nobody else waits long for the server.

use redis::{Cmd, Value, cmd};

use super::super::reply::{self, What};
use super::super::script::Script;
use super::super::survey::{Page, Survey};
use super::{Server, Trouble};
use crate::limit::Limit;
use crate::lock::LockName;
use crate::store::endpoint::Endpoint;

const LIST: What<'_> = What { verb: "list the locks", name: None };
/// So many keys a SCAN looks at: half a millisecond's work.
const SCANNED: usize = 500;
/// So many locks are looked at in one go.
const TOGETHER: usize = 100;

impl Server {
    pub fn listed(&mut self, limit: Limit<'_>) -> Result<Vec<LockName>, Trouble> {
        let mut survey = self.begun(limit)?;
        let mut names = Vec::new();
        while !survey.shards.is_empty() {
            self.name_more(&mut survey, limit)?;
            names.append(&mut survey.names);
        }
        // SCAN may give a key twice, and so may two servers of which one hands its keys to the other.
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// The next locks, and how each stands: one question, or one go of them.
    pub fn surveyed(&mut self, survey: &mut Survey, limit: Limit<'_>) -> Result<Option<Page>, Trouble> {
        if !survey.has_begun {
            *survey = self.begun(limit)?;
        }
        // Without scripts each is asked about by several questions that belong together.
        if self.denies_scripts {
            survey.strays.append(&mut survey.names);
        }
        if let Some(name) = survey.strays.last() {
            let standing = self.look(&What::to("inspect", name), limit)?.0;
            return Ok(Some(survey.strays.pop().map(|name| (name, standing)).into_iter().collect()));
        }
        if !survey.names.is_empty() {
            return self.look_at_several(survey, limit).map(Some);
        }
        if survey.shards.is_empty() {
            return Ok(None);
        }
        self.name_more(survey, limit)?;
        Ok(Some(Page::new()))
    }

    /// At the beginning, knowing whom to ask.
    fn begun(&mut self, limit: Limit<'_>) -> Result<Survey, Trouble> {
        let shards = self.wire.shards(limit).map_err(|fault| self.unanswered(&LIST, fault))?;
        // Without shards there is one server to ask.
        let shards = if shards.is_empty() { vec![None] } else { shards.into_iter().map(Some).collect() };
        Ok(Survey { has_begun: true, shards, cursor: Some("0".into()), ..Survey::default() })
    }

    /// The next names of the server whose turn it is; the next one's turn, if it has no more.
    fn name_more(&mut self, survey: &mut Survey, limit: Limit<'_>) -> Result<(), Trouble> {
        let Some(cursor) = &survey.cursor else {
            survey.shards.pop();
            survey.cursor = Some("0".into());
            return Ok(());
        };
        let mut scan = cmd("SCAN");
        let pattern = format!("{}*", glob_escaped(self.prefix.as_str()));
        scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCANNED);
        self.turn_to_shard(survey.shards.last());
        let reply = self.wire.ask(&scan, limit).map_err(|fault| self.unanswered(&LIST, fault))?;
        let page = reply::array(reply).map_err(|unexpected| LIST.misunderstood(&self.wire, unexpected))?;
        let [next, Value::Array(keys)] = page.as_slice() else { return Err(self.senseless(&LIST)) };
        let next = reply::text(next).ok_or_else(|| self.senseless(&LIST))?.raw().to_owned();
        let prefix = self.prefix.as_str();
        let keys = keys.iter().filter_map(reply::text).filter_map(|key| key.into_raw().strip_prefix(prefix));
        // A key whose rest is no name is no lock: our own fences, for one, begin with a brace.
        survey.names.extend(keys.filter_map(|name| name.parse::<LockName>().ok()));
        survey.cursor = Some(next).filter(|next| next != "0");
        Ok(())
    }

    fn look_at_several(&mut self, survey: &mut Survey, limit: Limit<'_>) -> Result<Page, Trouble> {
        let first = survey.names.len().saturating_sub(TOGETHER);
        let asked = survey.names[first..].iter().map(|name| self.packed(Script::Inspect, Some(name), &[]));
        let asked: Vec<Cmd> = asked.collect();
        self.turn_to_shard(survey.shards.last());
        let replies = self.wire.ask_here(&asked, limit).map_err(|fault| self.unanswered(&LIST, fault))?;
        let mut page = Page::with_capacity(asked.len());
        for (name, reply) in survey.names.split_off(first).into_iter().zip(replies) {
            match reply {
                Value::Array(answer) => {
                    let standing = self.understood(&What::to("inspect", &name), answer, limit)?.0;
                    page.push((name, standing));
                }
                // Somebody else has it by now, or it is a no: asked alone, it will be found out.
                _ => survey.strays.push(name),
            }
        }
        Ok(page)
    }

    fn turn_to_shard(&mut self, shard: Option<&Option<Endpoint>>) {
        if let Some(Some(shard)) = shard {
            self.wire.turn_to_shard(shard);
        }
    }
}

/// A text that a glob-style pattern of SCAN takes for itself.
pub fn glob_escaped(text: &str) -> String {
    let special = |c: char| matches!(c, '*' | '?' | '[' | ']' | '\\' | '^' | '-');
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}
