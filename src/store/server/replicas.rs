//! A grant that counts only once others have it too: Redis replicates after it has answered, and WAIT (Redis
//! command) tells how many replicas have heard.

use std::time::Duration;

use redis::cmd;

use super::super::reply::{self, What};
use super::{Kind, Server, Trouble};
use crate::clock::Moment;
use crate::limit::Limit;
use crate::lock::{Hold, Ttl};

impl Server {
    /// Sees to it that as many replicas as were asked for have a lock that was just granted. If not, it is given
    /// back. What it takes is taken from the lease, so it is given no more than a quarter of that.
    pub fn replicated(&mut self, what: &What<'_>, hold: &Hold, ttl: Ttl, limit: Limit<'_>) -> Result<(), Trouble> {
        let wanted = self.min_replicas;
        if wanted == 0 {
            return Ok(());
        }
        let asked = Moment::now();
        // An answer that takes longer than a reply may take is none.
        let patience = (self.wire.timeout / 2).min(ttl.get() / 4).min(limit.until.remaining() / 2);
        let patience = patience.max(Duration::from_millis(1));
        let mut wait = cmd("WAIT");
        wait.arg(wanted).arg(u64::try_from(patience.as_millis()).unwrap_or(u64::MAX).max(1));
        // On the connection that the grant came by: it is its writes that are waited for.
        let answer = self.wire.ask_on(&[wait], limit).map_err(|fault| self.unanswered(what, fault))?;
        let trouble = match answer.first().map(|reply| (reply::integer(reply), reply)) {
            Some((Some(have), _)) if have >= i64::from(wanted) => return Ok(()),
            Some((Some(have), _)) => Trouble {
                kind: Kind::Untrusted,
                tried: what.tried(&self.wire),
                came: format!(
                    "{have} of the {wanted} replicas that --min-replicas asks for had it within {}, so it was given back",
                    crate::say::span(asked.elapsed())
                ),
                remedy: "see INFO replication there".into(),
            },
            Some((None, refusal)) => what.misunderstood(&self.wire, reply::unexpected(refusal)),
            None => self.senseless(what),
        };
        // If it cannot be, it ends by itself; whoever gives up the wait tries once more.
        let _ = self.release_as(what, hold, limit);
        Err(trouble)
    }
}
