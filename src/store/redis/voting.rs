//! What a quorum requests from each of its servers beyond the `Store` trait.

use super::distinct::Distinct;
use super::{Claim, Limit, LockName, LockStatus, Operation, Script, Server, reply};
use crate::error::Error;
use crate::lock::{Fence, Ttl};

impl Server {
    /// Requires this server to be another than the others of the quorum.
    pub fn among(mut self, distinct: &Distinct) -> Server {
        self.client.among(distinct);
        self
    }

    /// Connects in advance, for the next request.
    pub fn connect(&mut self, operation: &Operation<'_>, limit: Limit<'_>) -> Result<(), Error> {
        self.client.reach(limit).map(drop).map_err(|fault| self.unanswered(operation, fault))
    }

    /// Raises the fence to the one that a majority was given, if this server's vote is still valid. Returns whether it
    /// is.
    pub fn raise(&mut self, claim: &Claim, fence: Fence, ttl: Ttl, limit: Limit<'_>) -> Result<bool, Error> {
        let operation = Operation::to("acquire", &claim.name);
        let args = [fence.0.to_string(), ttl.millis().to_string()];
        let answer = self.script(&operation, Script::Raise, &[claim.token.as_str(), &args[0], &args[1]], limit)?;
        match answer.first().and_then(reply::integer) {
            Some(raised @ (0 | 1)) => Ok(raised == 1),
            _ => Err(self.senseless(&operation)),
        }
    }

    /// Returns the status of a lock, and the key's value if that is text.
    pub fn inspect_value(&mut self, name: &LockName, limit: Limit<'_>) -> Result<(LockStatus, Option<String>), Error> {
        self.look_at_key(&Operation::to("inspect", name), limit)
    }
}
