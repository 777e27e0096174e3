//! A server that runs no scripts for this user: exclusive locks by plain commands, without queue and fence.
//!
//! Uses the same key as scripts do, and compares as they do: by WATCH and MULTI, never by GET and then DEL.

use std::io;
use std::time::Duration;

use redis::{Cmd, Value, cmd};

use super::client::Client;
use super::endpoint::Endpoint;
use super::fault::{Fault, NoReply};
use super::reply::{self, Operation, Unexpected};
use super::request::WAITERS;
use super::{Server, asking, recording};
use crate::clock::{Moment, wall};
use crate::error::Error;
use crate::lock::{Asker, Claim, Lease, LockState, StateKind, Token, Ttl, companion_key};
use crate::store::{Acquired, Kept, LockStatus, QueuePlace, Released, Renewed};
use crate::wait::Limit;

impl Server {
    pub(super) fn acquire_plainly(
        &mut self,
        operation: &Operation<'_>,
        claim: &Claim,
        ttl: Ttl,
        limit: Limit<'_>,
    ) -> Result<Acquired, Error> {
        let acquired = self.plainly(operation, limit, |lock| lock.acquire(claim, ttl))?;
        match &acquired {
            // The lock's own key does not tell who shares it.
            Acquired::Held(state, _)
                if state.kind == StateKind::Shared && claim.enclosing.iter().any(Token::is_share) =>
            {
                let needs = "it is shared, perhaps with this very script: only they can tell";
                Err(self.without_scripts(operation, (needs, "--shared and --slots around it")))
            }
            _ => Ok(acquired),
        }
    }

    pub(super) fn renew_plainly(
        &mut self,
        operation: &Operation<'_>,
        claim: &Claim,
        ttl: Ttl,
        limit: Limit<'_>,
    ) -> Result<Renewed, Error> {
        Ok(match self.plainly(operation, limit, |lock| lock.renew(claim, ttl))? {
            Renewed::Kept(kept) => Renewed::Kept(Kept { asked_by: self.asker(claim, limit), ..kept }),
            renewed => renewed,
        })
    }

    pub(super) fn release_plainly(
        &mut self,
        operation: &Operation<'_>,
        claim: &Claim,
        limit: Limit<'_>,
    ) -> Result<Released, Error> {
        let whose = self.plainly(operation, limit, |lock| lock.release(claim))?;
        recording::not_recorded(claim, &"the server does not run scripts for us any more");
        Ok(whose.map_or(Released::Done, Released::NotYours))
    }

    /// Returns the status that the lock's own key shows, and its value if that is text.
    pub(super) fn look_plainly(
        &mut self,
        operation: &Operation<'_>,
        limit: Limit<'_>,
    ) -> Result<(LockStatus, Option<String>), Error> {
        let alone =
            |(state, value)| (LockStatus { state, queue: Vec::new(), knows_waiters: false, recorded: None }, value);
        self.plainly(operation, limit, |lock| lock.look().map(alone))
    }

    /// Runs plain commands on the key of a lock.
    pub(super) fn plainly<T>(
        &mut self,
        operation: &Operation<'_>,
        limit: Limit<'_>,
        run: impl FnOnce(&mut Lock<'_>) -> Result<T, PlainError>,
    ) -> Result<T, Error> {
        self.turn_to(operation);
        let key = self.key(operation);
        let done = run(&mut Lock { client: &mut self.client, key, limit });
        self.is_imported = self.client.sent_there().is_some();
        done.map_err(|failed| match failed {
            PlainError::NoReply(no_reply) => self.unanswered(operation, no_reply),
            PlainError::Unexpected(unexpected) => self.unexpected(operation, unexpected),
        })
    }
}

/// A lock as one operation uses it: by its own key.
pub struct Lock<'a> {
    client: &'a mut Client,
    key: String,
    limit: Limit<'a>,
}

/// The reason for a missing result.
pub enum PlainError {
    NoReply(NoReply),
    Unexpected(Unexpected),
}

impl From<NoReply> for PlainError {
    fn from(no_reply: NoReply) -> PlainError {
        PlainError::NoReply(no_reply)
    }
}

/// The change to a key whose value is the claim's token.
#[derive(Clone, Copy)]
enum Change {
    Renew(Ttl),
    /// Renew, but never move the expiry nearer.
    Prolong(Ttl),
    Release,
}

/// The result of a change.
enum Done {
    Ours,
    /// Ours, with an expiry later than requested: unchanged.
    Longer(Duration),
    NotOurs(Box<LockState>),
}

/// Maximum attempts at a transaction while other clients touch the key.
const ROUNDS: usize = 8;

impl Lock<'_> {
    /// Requests the lock, as any plain client does.
    fn acquire(&mut self, claim: &Claim, ttl: Ttl) -> Result<Acquired, PlainError> {
        let mut set = cmd("SET");
        set.arg(&self.key).arg(claim.token.as_str()).arg("NX").arg("PX").arg(ttl.millis());
        let asked = Moment::now();
        let granted = || {
            let until = ttl.believed_until(asked);
            Acquired::Granted(Lease { fence: None, asked, granted: Moment::now(), until, taken_over: None, slot: None })
        };
        let [set, get, pttl] = three(self.client.ask_all(&[set, self.on("GET"), self.on("PTTL")], self.limit)?)?;
        let new_node = self.client.sent_there().cloned();
        let is_set = matches!(refuse_error(set)?, Value::Okay);
        if is_set && new_node.is_none() {
            return Ok(granted());
        }
        let value = if is_set { Value::Nil } else { refuse_error(get)? };
        // Ours already, by a request whose reply was lost: the time of that grant is unknown, so the ttl starts anew. And a
        // grant of the new node counts only if the old one, asked afterwards, does not have the key: the slot may have come
        // back, and be on its way once more. If it has, the key at the new node is no lock.
        if is_set || is(&value, claim) {
            let unconfirmed = match self.transact(claim, Change::Renew(ttl)) {
                Ok(Done::Ours | Done::Longer(_)) => return Ok(granted()),
                Ok(Done::NotOurs(state)) => Ok(Acquired::Held(*state, QueuePlace { position: 0, length: 0 })),
                // It may be granted all the same.
                Err(PlainError::NoReply(no_reply)) => Err(PlainError::NoReply(NoReply { sent: true, ..no_reply })),
                Err(unexpected) => Err(unexpected),
            };
            if let Some(new_node) = new_node {
                let _ = self.undo_there(&new_node, claim);
            }
            return unconfirmed;
        }
        let (state, place) = (seen(&value, &refuse_error(pttl)?), QueuePlace { position: 0, length: 0 });
        Ok(match reply::bytes(&value).is_some_and(|value| claim.is_enclosed_by(value)) {
            true => Acquired::Nested(state, place),
            false => Acquired::Held(state, place),
        })
    }

    /// Sets the expiry to a full ttl from now, if the token holds the lock.
    fn renew(&mut self, claim: &Claim, ttl: Ttl) -> Result<Renewed, PlainError> {
        let asked = Moment::now();
        let change = if claim.may_shorten() { Change::Renew(ttl) } else { Change::Prolong(ttl) };
        Ok(match self.transact(claim, change)? {
            Done::Ours => Renewed::Kept(Kept::until(ttl.believed_until(asked))),
            Done::Longer(left) => Renewed::Longer(left),
            Done::NotOurs(state) => Renewed::NotYours(*state),
        })
    }

    /// Releases the lock. Returns its state if the token did not hold it.
    fn release(&mut self, claim: &Claim) -> Result<Option<LockState>, PlainError> {
        Ok(match self.transact(claim, Change::Release)? {
            Done::Ours | Done::Longer(_) => None,
            Done::NotOurs(state) => Some(*state),
        })
    }

    fn look(&mut self) -> Result<(LockState, Option<String>), PlainError> {
        let question = [self.on("TYPE"), self.on("GET"), self.on("PTTL")];
        let (mut rounds, mut was_there) = (0..ROUNDS, false);
        let [kind, get, pttl] = loop {
            let replies = three(self.client.ask_all(&question, self.limit).map_err(NoReply::of_read)?)?;
            // A cluster may move the key to another node between two of the requests, and the client follows a redirect in
            // the first reply only.
            let has_moved = self.client.is_of_a_cluster() && replies.iter().any(redirects);
            let is_none = reply::text(&replies[0]).is_some_and(|kind| kind.raw() == "none");
            let is_doubtful = is_none && self.asks_the_old_node_again(&mut was_there);
            if !(has_moved || is_doubtful) || rounds.next().is_none() {
                break replies;
            }
        };
        match reply::text(&refuse_error(kind)?) {
            Some(kind) if matches!(kind.raw(), "string" | "none") => {
                let value = refuse_error(get)?;
                Ok((seen(&value, &refuse_error(pttl)?), reply::text(&value).map(|value| value.raw().to_owned())))
            }
            Some(other) => Ok((reply::wrong_type(other.raw()), None)),
            None => Err(PlainError::Unexpected(Unexpected::Shape)),
        }
    }

    /// Asks the holder to give up, if it holds the lock alone.
    pub fn ask(&mut self, asker: &Asker) -> Result<(), PlainError> {
        let mut replies = self.client.ask_all(&asking::request(&self.key, asker), self.limit)?;
        // A holder that is not told finds the request when it renews.
        replies.pop();
        replies.into_iter().try_for_each(|reply| refuse_error(reply).map(drop))
    }

    /// Takes a request back, if no later one has replaced it.
    pub fn ask_no_more(&mut self, asker: &Asker) -> Result<(), PlainError> {
        let waiters = companion_key(&self.key, WAITERS);
        for _ in 0..ROUNDS {
            let (mut watch, mut delete) = (cmd("WATCH"), cmd("HDEL"));
            watch.arg(&waiters);
            delete.arg(&waiters).arg(asking::ASKED);
            let compare = [watch, asking::question(&self.key)];
            let mut replies = self.client.ask_all(&compare, self.limit)?.into_iter();
            refuse_error(replies.next().unwrap_or(Value::Nil))?;
            let found = refuse_error(replies.next().unwrap_or(Value::Nil))?;
            if reply::bytes(&found) != Some(asking::asked(asker).as_bytes()) {
                return Ok(());
            }
            if self.exec(&[delete])?.is_some() {
                return Ok(());
            }
        }
        Err(busy())
    }

    /// Compares and acts in one step: EXEC does nothing if another client touched the key since WATCH.
    fn transact(&mut self, claim: &Claim, change: Change) -> Result<Done, PlainError> {
        let mut was_there = false;
        for _ in 0..ROUNDS {
            let compare = [self.on("WATCH"), self.on("GET"), self.on("PTTL")];
            let [watched, get, pttl] = three(self.client.ask_all(&compare, self.limit).map_err(NoReply::of_read)?)?;
            refuse_error(watched)?;
            let value = refuse_error(get)?;
            let seen = seen(&value, &refuse_error(pttl)?);
            if !is(&value, claim) {
                if self.asks_the_old_node_again(&mut was_there) {
                    continue;
                }
                return Ok(Done::NotOurs(Box::new(seen)));
            }
            // The key is there: what was seen before tells nothing of where it is next.
            was_there = false;
            let act = match (change, seen.expiry.left()) {
                (Change::Prolong(ttl), Some(left)) if left > ttl.get() => return Ok(Done::Longer(left)),
                (Change::Renew(ttl) | Change::Prolong(ttl), _) => {
                    let mut expire = self.on("PEXPIRE");
                    expire.arg(ttl.millis());
                    expire
                }
                (Change::Release, _) => self.on("DEL"),
            };
            // What is read behind the change arms the tracking of the key again (`pushes`).
            let reads = (!matches!(change, Change::Release)).then(|| self.on("GET"));
            let acts: Vec<Cmd> = [act].into_iter().chain(reads).collect();
            if let Some(result) = self.exec(&acts)?
                && let Value::Int(1) = refuse_error(result)?
            {
                self.client.changes_are_known(&self.key);
                return Ok(Done::Ours);
            }
        }
        Err(busy())
    }

    /// Deletes the lock's key at a node that is only importing its slot, if its value is the claim's token.
    fn undo_there(&mut self, new_node: &Endpoint, claim: &Claim) -> Result<(), PlainError> {
        let compare = [self.on("WATCH"), self.on("GET")];
        let mut replies = self.client.ask_there_aside(new_node, &compare, self.limit)?.into_iter();
        refuse_error(replies.next().unwrap_or(Value::Nil))?;
        if replies.next().is_some_and(|value| is(&value, claim)) {
            self.exec(&[self.on("DEL")])?;
        }
        Ok(())
    }

    /// Returns whether to ask once more for a lock that a node does not have. That the new node of a slot lacks a key counts
    /// only if the old one sends us there again: the slot may have come back before the new node was asked. Notes in
    /// `was_there` that it has sent us there.
    fn asks_the_old_node_again(&self, was_there: &mut bool) -> bool {
        self.client.sent_there().is_some() && !std::mem::replace(was_there, true)
    }

    /// Executes commands, and returns the result of the first; none if nothing is done, because another client has touched
    /// the key since WATCH, or it has expired or moved to another server.
    fn exec(&mut self, acts: &[Cmd]) -> Result<Option<Value>, PlainError> {
        let mut replies = self.client.exec_on(acts, self.limit)?;
        if replies.iter().any(redirects) {
            return Ok(None);
        }
        let done = replies.pop().unwrap_or(Value::Nil);
        replies.into_iter().try_for_each(|begun_or_queued| refuse_error(begun_or_queued).map(drop))?;
        match refuse_error(done)? {
            Value::Array(results) => Ok(results.into_iter().next()),
            Value::Nil => Ok(None),
            _ => Err(PlainError::Unexpected(Unexpected::Shape)),
        }
    }

    /// Returns a command on the key.
    fn on(&self, name: &str) -> Cmd {
        let mut command = cmd(name);
        command.arg(&self.key);
        command
    }
}

fn is(value: &Value, claim: &Claim) -> bool {
    reply::bytes(value) == Some(claim.token.as_str().as_bytes())
}

fn redirects(reply: &Value) -> bool {
    reply::redirects(&reply::unexpected(reply))
}

fn busy() -> PlainError {
    let busy = "the key was changed again and again while it was compared";
    PlainError::NoReply(Fault::Ended(io::Error::other(busy)).into())
}

fn seen(value: &Value, pttl: &Value) -> LockState {
    match reply::bytes(value) {
        None => LockState::free(None),
        Some(value) => {
            let ttl = reply::integer(pttl).and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
            LockState::of_value(value, ttl, None, wall())
        }
    }
}

fn three(replies: Vec<Value>) -> Result<[Value; 3], PlainError> {
    replies.try_into().map_err(|_| PlainError::Unexpected(Unexpected::Shape))
}

fn refuse_error(reply: Value) -> Result<Value, PlainError> {
    match reply {
        Value::ServerError(_) => Err(PlainError::Unexpected(reply::unexpected(&reply))),
        other => Ok(other),
    }
}
