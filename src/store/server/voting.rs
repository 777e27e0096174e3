//! What a server is asked beyond a store's contract when it is one of several that vote.

use super::{Limit, LockName, Script, Server, Standing, Trouble, What, reply};
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

    /// Raises the fence to what a majority was given; how it stood before.
    pub fn raise(&mut self, name: &LockName, fence: Fence, ttl: Ttl, limit: Limit<'_>) -> Result<Fence, Trouble> {
        let what = What::to("acquire", name);
        let args = [fence.0.to_string(), ttl.millis().to_string()];
        let answer = self.script(&what, Script::Raise, &[&args[0], &args[1]], limit)?;
        Ok(answer.first().and_then(reply::fence).unwrap_or(Fence(0)))
    }

    /// How a name stands, and the key's value where it is text.
    pub fn sight(&mut self, name: &LockName, limit: Limit<'_>) -> Result<(Standing, Option<String>), Trouble> {
        self.look(&What::to("inspect", name), limit)
    }
}
