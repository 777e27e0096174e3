//! How a holder is asked to give up: the key `{K}:asker:ID` has the token of the one that asks the holder known as ID.
//!
//! The key decides nothing, and is written and read by plain commands: it may be on another server than the lock while
//! a cluster moves both, and neither a script nor a subscription is needed.

use std::time::Duration;

use redis::{Cmd, Value, cmd};

use super::Server;
use super::reply::{self, Operation};
use crate::error::Error;
use crate::lock::{Claim, HolderId, LockName, Token, Told, companion_key};
use crate::wait::Limit;

/// How much longer than the lease the key lives: a waiter may be about to claim the lock, and renews it 10 s later.
const LONGER: Duration = Duration::from_secs(20);

impl Server {
    pub(super) fn put_asker(
        &mut self,
        name: &LockName,
        id: &HolderId,
        by: &Token,
        rest: Duration,
        limit: Limit<'_>,
    ) -> Result<(), Error> {
        let lives = (rest + LONGER).as_millis().to_string();
        let mut set = cmd("SET");
        set.arg(self.asker_key(name, id)).arg(by.as_str()).arg("PX").arg(lives);
        self.done(&Operation::to("ask for", name), &set, limit).map(drop)
    }

    pub(super) fn take_asker(&mut self, claim: &Claim, limit: Limit<'_>) -> Result<Option<Told>, Error> {
        let Some(id) = claim.token.id() else { return Ok(None) };
        let operation = Operation::to("see who asks for", &claim.name);
        let key = self.asker_key(&claim.name, &id);
        let asker = self.done(&operation, cmd("GET").arg(&key), limit)?;
        if matches!(asker, Value::Nil) {
            return Ok(None);
        }
        // If this fails, the key expires.
        let _ = self.delete_asker(&claim.name, &id, limit);
        Ok(reply::bytes(&asker).and_then(Token::read))
    }

    pub(super) fn delete_asker(&mut self, name: &LockName, id: &HolderId, limit: Limit<'_>) -> Result<(), Error> {
        let operation = Operation::to("forget who asks for", name);
        self.done(&operation, cmd("DEL").arg(self.asker_key(name, id)), limit).map(drop)
    }

    fn asker_key(&self, name: &LockName, id: &HolderId) -> String {
        companion_key(&self.prefix.key(name), &format!("asker:{id}"))
    }

    /// Sends one command; returns its reply unless that is an error.
    fn done(&mut self, operation: &Operation<'_>, command: &Cmd, limit: Limit<'_>) -> Result<Value, Error> {
        self.turn_to(operation);
        match self.client.ask(command, limit) {
            Ok(refused @ Value::ServerError(_)) => {
                Err(operation.misunderstood(&self.client, reply::unexpected(&refused)))
            }
            Ok(reply) => Ok(reply),
            Err(no_reply) => Err(self.unanswered(operation, no_reply)),
        }
    }
}
