//! How a holder is asked to give up: a field of the waiters' key, or of the terms of a share, names its ID and the asker. Its
//! renewals return it. The field decides nothing.
//!
//! Where the server runs no scripts, or the lock's keys are moving from one server to another, the field of the waiters'
//! key is read and written by plain commands: that of an exclusive holder.

use std::time::Duration;

use redis::{Cmd, Value, cmd};

use super::Server;
use super::listening::holder_channel;
use super::reply::{self, Operation};
use super::request::{Request, WAITERS, call_of_one};
use crate::clock::Moment;
use crate::duration::millis;
use crate::error::Error;
use crate::lock::{Asker, Claim, LockName, StateKind, Token, Told, companion_key};
use crate::log;
use crate::store::Asking;
use crate::wait::Limit;

/// How long a request lives, at most, that a script did not make: a holder that is not found by then is asked again, if
/// anybody waits.
const LIVES: Duration = Duration::from_secs(80);
/// How long to wait for a reply that decides nothing: the server has what was sent.
pub const REPLY: Duration = Duration::from_millis(250);
/// The field of the waiters' key.
pub const ASKED: &str = "asked";

impl Server {
    /// Returns whether a renewal of this claim is to say who asks its holder to give up.
    pub(super) fn hears_askers(&self, claim: &Claim) -> bool {
        claim.owner_pid.is_some() && claim.may_be_asked() && !self.client.is_one_of_several()
    }

    pub(super) fn ask_to_give_up(&mut self, name: &LockName, asker: &Asker, limit: Limit<'_>) -> Result<(), Error> {
        let operation = Operation::to("ask for", name);
        let request = Request::ask(asker, Asking::ToGiveUp);
        self.by_means(
            &operation,
            None,
            |server| match server.script_unless_moving(&operation, &request, limit)? {
                Some(_) => Ok(()),
                None => Ok(server.ask_moving(&operation, asker, limit)?),
            },
            |server| server.plainly(&operation, limit, |lock| lock.ask(asker)),
        )
    }

    /// Asks a holder of a lock whose keys are moving, if it holds the lock alone.
    fn ask_moving(&mut self, operation: &Operation<'_>, asker: &Asker, limit: Limit<'_>) -> Result<(), Error> {
        if self.look_moving(operation, limit)?.0.state.kind == StateKind::Shared {
            return Err(self.on_its_way(operation));
        }
        self.plainly(operation, limit, |lock| lock.ask(asker))
    }

    /// Takes a request back in one step: a later one, of another asker, is not its own. What is sent is executed whether
    /// or not the line brings the reply in time; and behind each request that was given up, since that may be the one to
    /// take back, and be executed only then.
    pub(super) fn ask_no_more(&mut self, name: &LockName, asker: &Asker, limit: Limit<'_>) -> Result<(), Error> {
        let operation = Operation::to("ask no more for", name);
        let (key, request) = (self.key(&operation), Request::ask(asker, Asking::NoMore));
        let fields = [("field", ASKED), ("value", &asked(asker)[..])];
        let withdrawal = call_of_one("withdraw", &companion_key(&key, WAITERS), &fields);
        if self.client.is_in_doubt() {
            let mut requests = vec![request.command(&key, self.means.verb())];
            if self.client.is_of_a_cluster() {
                requests.extend([cmd("ASKING"), withdrawal.clone()]);
            }
            self.client.follow(&requests, limit, limit.until);
        }
        // To connect may take longer than the reply is worth waiting for.
        self.turn_to(&operation);
        self.client.reach(limit).map_err(|fault| self.unanswered(&operation, fault))?;
        let soon = limit.no_later_than(Moment::now() + REPLY);
        self.by_means(
            &operation,
            None,
            |server| match server.script_unless_moving(&operation, &request, soon)? {
                Some(_) => Ok(()),
                None => server.script_of_one(&operation, &withdrawal, soon).map(drop),
            },
            |server| server.plainly(&operation, limit, |lock| lock.ask_no_more(asker)),
        )
    }

    /// Returns who asks the holder of a claim to give up, where no script says so with the renewal. That nobody can find out
    /// is no reason to give up, nor to report the renewal late.
    pub(super) fn asker(&mut self, claim: &Claim, limit: Limit<'_>) -> Option<Box<Told>> {
        if !self.hears_askers(claim) {
            return None;
        }
        let operation = Operation::to("see who asks for", &claim.name);
        let soon = limit.no_later_than(Moment::now() + REPLY);
        let error = match self.client.ask(&question(&self.key(&operation)), soon) {
            Ok(refusal @ Value::ServerError(_)) => operation.misunderstood(&self.client, reply::unexpected(&refusal)),
            Ok(reply) => {
                let asked = reply::text(&reply)?.into_raw();
                let (id, by) = asked.split_once(' ')?;
                let is_ours = claim.token.id().is_some_and(|own| own.as_str() == id);
                return Token::read(by.as_bytes()).filter(|_| is_ours).map(Box::new);
            }
            Err(no_reply) => self.unanswered(&operation, no_reply),
        };
        log::trace(format_args!("{error}"));
        None
    }
}

/// Returns what the field says.
pub fn asked(asker: &Asker) -> String {
    format!("{} {}", asker.of, asker.by.as_str())
}

/// Returns the command that reads the field.
pub fn question(key: &str) -> Cmd {
    let mut get = cmd("HGET");
    get.arg(companion_key(key, WAITERS)).arg(ASKED);
    get
}

/// Returns the commands that write the field, and one that tells the holder, which the user need not be permitted.
pub fn request(key: &str, asker: &Asker) -> [Cmd; 3] {
    let waiters = companion_key(key, WAITERS);
    let (mut set, mut expire, mut tell) = (cmd("HSET"), cmd("PEXPIRE"), cmd("PUBLISH"));
    set.arg(&waiters).arg(ASKED).arg(asked(asker));
    expire.arg(&waiters).arg(millis(LIVES));
    tell.arg(holder_channel(key, &asker.of)).arg("a");
    [set, expire, tell]
}
