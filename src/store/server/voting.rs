//! What a server is asked beyond a store's contract when it is one of several that vote.

use super::{Hold, Limit, LockName, Script, Server, Standing, Trouble, What, reply};
use crate::lock::{Fence, Ttl};

impl Server {
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

    /// Sends a release behind a request that nobody waits for any more, if there is one: a server that
    /// hangs and comes back is not to carry that out alone.
    pub fn undo_outstanding(&mut self, hold: &Hold, limit: Limit<'_>) -> bool {
        let is_in_doubt = self.wire.is_in_doubt();
        if is_in_doubt {
            let release = self.packed(Script::Release, Some(&hold.name), &[hold.token.as_str()]);
            self.wire.send_behind(&release, limit);
        }
        is_in_doubt
    }

    /// How a name stands, and the key's value where it is text.
    pub fn sight(&mut self, name: &LockName, limit: Limit<'_>) -> Result<(Standing, Option<String>), Trouble> {
        self.look(&What::to("inspect", name), limit)
    }
}
