//! What a server is asked beyond a store's contract when it is one of several that vote.

use super::{Hold, Limit, LockName, Script, Server, Standing, Trouble, What, reply};
use crate::lock::{Fence, Ttl};
use crate::store::distinct::Distinct;

impl Server {
    /// One that is to be another than the other servers.
    pub fn among(mut self, distinct: &Distinct) -> Server {
        self.wire.among(distinct);
        self
    }

    /// Sees to it that there is a connection, for what is to be asked next.
    pub fn connect(&mut self, what: &What<'_>, limit: Limit<'_>) -> Result<(), Trouble> {
        self.wire.reach(limit).map(drop).map_err(|fault| self.unanswered(what, fault))
    }

    /// Raises the fence to what a majority was given, if this vote still stands. Whether it does.
    pub fn raise(&mut self, hold: &Hold, fence: Fence, ttl: Ttl, limit: Limit<'_>) -> Result<bool, Trouble> {
        let what = What::to("acquire", &hold.name);
        let args = [fence.0.to_string(), ttl.millis().to_string()];
        let answer = self.script(&what, Script::Raise, &[hold.token.as_str(), &args[0], &args[1]], limit)?;
        match answer.first().and_then(reply::integer) {
            Some(raised @ (0 | 1)) => Ok(raised == 1),
            _ => Err(self.senseless(&what)),
        }
    }

    /// How a name stands, and the key's value where it is text.
    pub fn sight(&mut self, name: &LockName, limit: Limit<'_>) -> Result<(Standing, Option<String>), Trouble> {
        self.look(&What::to("inspect", name), limit)
    }
}
