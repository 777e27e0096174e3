//! What a server is asked beyond a store's contract when it is one of several that vote.

use super::distinct::Distinct;
use super::{Claim, Limit, LockName, LockStatus, Operation, Script, Server, reply};
use crate::error::Error;
use crate::lock::{Fence, Ttl};

impl Server {
    /// One that is to be another than the other servers.
    pub fn among(mut self, distinct: &Distinct) -> Server {
        self.client.among(distinct);
        self
    }

    /// Sees to it that there is a connection, for what is to be asked next.
    pub fn connect(&mut self, operation: &Operation<'_>, limit: Limit<'_>) -> Result<(), Error> {
        self.client.reach(limit).map(drop).map_err(|fault| self.unanswered(operation, fault))
    }

    /// Raises the fence to what a majority was given, if this vote still stands. Whether it does.
    pub fn raise(&mut self, claim: &Claim, fence: Fence, ttl: Ttl, limit: Limit<'_>) -> Result<bool, Error> {
        let operation = Operation::to("acquire", &claim.name);
        let args = [fence.0.to_string(), ttl.millis().to_string()];
        let answer = self.script(&operation, Script::Raise, &[claim.token.as_str(), &args[0], &args[1]], limit)?;
        match answer.first().and_then(reply::integer) {
            Some(raised @ (0 | 1)) => Ok(raised == 1),
            _ => Err(self.senseless(&operation)),
        }
    }

    /// How a name stands, and the key's value where it is text.
    pub fn sight(&mut self, name: &LockName, limit: Limit<'_>) -> Result<(LockStatus, Option<String>), Error> {
        self.look(&Operation::to("inspect", name), limit)
    }
}
