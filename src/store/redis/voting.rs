//! What a quorum requests from each of its servers beyond the `Store` trait.

use super::distinct::Distinct;
use super::request::Request;
use super::{Claim, Limit, LockName, LockStatus, Means, Operation, Server};
use crate::error::Error;
use crate::lock::{Fence, Token, Ttl};

impl Server {
    /// Requires this server to be another than the others of the quorum.
    pub fn with_distinct(mut self, distinct: &Distinct) -> Server {
        self.client.require_distinct(distinct);
        self
    }

    /// Returns the key of the lock.
    pub fn key_of(&self, claim: &Claim) -> String {
        self.options.prefix.key(&claim.name)
    }

    /// Returns whether it gives each grant a fence, as far as it has answered.
    pub fn has_fences(&self) -> bool {
        matches!(self.means, Means::Scripts(_))
    }

    /// Connects in advance, for the next request.
    pub fn connect(&mut self, operation: &Operation<'_>, limit: Limit<'_>) -> Result<(), Error> {
        self.client.reach(limit).map(drop).map_err(|fault| self.unanswered(operation, fault))
    }

    /// Raises the fence to the one that a majority was given, if this server's vote is still valid. Returns whether it
    /// is.
    pub fn raise(&mut self, claim: &Claim, fence: Fence, ttl: Ttl, limit: Limit<'_>) -> Result<bool, Error> {
        let operation = Operation::to("acquire", &claim.name);
        let answer = self.script(&operation, &Request::raise(&claim.token, fence, ttl), limit)?;
        match answer.verdict() {
            "raised" => Ok(true),
            "not_yours" => Ok(false),
            _ => Err(self.senseless(&operation)),
        }
    }

    /// Returns the status of a lock without its waiters, and the token of its holder if it has one.
    pub fn inspect_holding(&mut self, name: &LockName, limit: Limit<'_>) -> Result<(LockStatus, Option<Token>), Error> {
        let (status, tokens) = self.look(&Operation::to("inspect", name), &Request::inspect(None, 0), limit)?;
        Ok((status, tokens.into_iter().next()))
    }
}
