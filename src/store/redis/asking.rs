//! How a holder is asked to give up: the key `{K}:asker:ID` has the token of the one that asks the holder known as ID.
//!
//! The key decides nothing. It is read and written by itself, so that it may be on another server than the lock while a
//! cluster moves both; and where the server runs no scripts, by plain commands.

use std::time::Duration;

use redis::{Cmd, Value, cmd};

use super::Server;
use super::client::Client;
use super::fault::{Fault, NoReply};
use super::moving::call_of_one;
use super::reply::{self, Operation};
use super::scriptless;
use super::scripts::Script;
use crate::clock::Moment;
use crate::error::Error;
use crate::lock::{Asker, Claim, HolderId, LockName, Token, Told, companion_key};
use crate::wait::Limit;

/// How much longer than the lease the key lives: a waiter may be about to claim the lock, and renews it 10 s later.
const LONGER: Duration = Duration::from_secs(20);
/// How long to wait for the reply when a request is taken back: the server has what was sent.
const REPLY: Duration = Duration::from_millis(250);
/// How much of a longer lease counts: a holder that is not found by then is asked again, if anybody waits.
const AT_MOST: Duration = Duration::from_secs(60);

/// The read of a holder's key, sent together with the renewal: it costs no round trip, and on a slow connection no
/// time-out of its own, after which the next renewal would need another connection.
#[derive(Default)]
pub enum AskerRead {
    #[default]
    No,
    /// To be sent with the next renewal.
    Wanted(Cmd),
    /// The reply.
    Done(Value),
    /// The renewal sent with it was not answered: the next one is sent without it.
    Failed,
}

impl AskerRead {
    /// Returns the request to send with this script, if there is one.
    pub fn beside(&mut self, script: Script) -> Option<Cmd> {
        let renews = matches!(script, Script::Renew(_));
        match std::mem::take(self) {
            AskerRead::Wanted(read) if renews => Some(read),
            other => {
                *self = other;
                None
            }
        }
    }

    /// Sends both, and returns the reply to the first.
    pub fn read_with(
        &mut self,
        client: &mut Client,
        command: &Cmd,
        read: Cmd,
        limit: Limit<'_>,
    ) -> Result<Value, NoReply> {
        *self = AskerRead::Failed;
        let mut replies = client.ask_all(&[command.clone(), read], limit)?;
        *self = replies.pop().map_or(AskerRead::No, AskerRead::Done);
        replies.pop().ok_or_else(|| Fault::Garbled("it does not reply".into()).into())
    }
}

impl Server {
    /// Has the next renewal of a claim read who asks for it, if that is of use.
    pub(super) fn begin_to_read_asker(&mut self, claim: &Claim) {
        let is_asked = claim.owner_pid.is_some() && claim.may_be_asked() && !self.client.is_one_of_several();
        self.asker = match (std::mem::take(&mut self.asker), claim.token.id()) {
            (AskerRead::Failed, _) => AskerRead::Done(Value::Nil),
            (_, Some(id)) if is_asked => {
                let mut read = cmd("GET");
                read.arg(self.asker_key(&claim.name, &id));
                AskerRead::Wanted(read)
            }
            _ => AskerRead::No,
        };
    }

    pub(super) fn put_asker(
        &mut self,
        name: &LockName,
        asker: &Asker,
        rest: Duration,
        limit: Limit<'_>,
    ) -> Result<(), Error> {
        let lives = (rest.min(AT_MOST) + LONGER).as_millis().to_string();
        let mut set = cmd("SET");
        set.arg(self.asker_key(name, &asker.of)).arg(asker.by.as_str()).arg("PX").arg(lives);
        self.done(&Operation::to("ask for", name), &set, limit).map(drop)
    }

    pub(super) fn take_asker(&mut self, claim: &Claim, limit: Limit<'_>) -> Result<Option<Told>, Error> {
        let Some(id) = claim.token.id() else { return Ok(None) };
        let operation = Operation::to("see who asks for", &claim.name);
        let key = self.asker_key(&claim.name, &id);
        let asker = match std::mem::take(&mut self.asker) {
            AskerRead::Done(asker) => self.accepted(&operation, asker)?,
            AskerRead::Failed => {
                self.asker = AskerRead::Failed;
                return Ok(None);
            }
            // The lock was not renewed by a script.
            AskerRead::No | AskerRead::Wanted(_) => self.done(&operation, cmd("GET").arg(&key), limit)?,
        };
        if matches!(asker, Value::Nil) {
            return Ok(None);
        }
        // If this fails, the key expires.
        let _ = self.done(&operation, cmd("DEL").arg(&key), limit);
        Ok(reply::bytes(&asker).and_then(Token::read))
    }

    /// Takes a request back in one step: a later one, of another asker, is not its own. What is sent is executed whether
    /// or not the line brings the reply in time; and behind each request that was given up, since that may be the one to
    /// take back, and be executed only then.
    pub(super) fn take_asker_back(&mut self, name: &LockName, asker: &Asker, limit: Limit<'_>) -> Result<(), Error> {
        let operation = Operation::to("ask no more for", name);
        let (key, by) = (self.asker_key(name, &asker.of), [asker.by.as_str()]);
        if self.client.is_in_doubt() {
            let mut requests = vec![call_of_one(Script::ReleaseMoving, &key, &by)];
            if self.client.is_of_a_cluster() {
                requests.extend([cmd("ASKING"), call_of_one(Script::ReleaseMoving, &key, &by)]);
            }
            self.client.follow(&requests, limit, limit.until);
        }
        // To connect may take longer than the reply is worth waiting for.
        self.turn_to(&operation);
        self.client.reach(limit).map_err(|fault| self.unanswered(&operation, fault))?;
        let soon = limit.no_later_than(Moment::now() + REPLY);
        self.either(
            &operation,
            |server| server.script_of_one(&operation, Script::ReleaseMoving, &key, &by, soon).map(drop),
            |client, _| scriptless::release(client, &key, &Claim::of(name.clone(), asker.by.clone()), limit).map(drop),
        )
    }

    fn asker_key(&self, name: &LockName, id: &HolderId) -> String {
        companion_key(&self.prefix.key(name), &format!("asker:{id}"))
    }

    /// Sends one command; returns its reply unless that is an error.
    fn done(&mut self, operation: &Operation<'_>, command: &Cmd, limit: Limit<'_>) -> Result<Value, Error> {
        self.turn_to(operation);
        match self.client.ask(command, limit) {
            Ok(reply) => self.accepted(operation, reply),
            Err(no_reply) => Err(self.unanswered(operation, no_reply)),
        }
    }

    /// Returns a reply unless it is an error.
    fn accepted(&self, operation: &Operation<'_>, reply: Value) -> Result<Value, Error> {
        match reply {
            Value::ServerError(_) => Err(operation.misunderstood(&self.client, reply::unexpected(&reply))),
            reply => Ok(reply),
        }
    }
}
