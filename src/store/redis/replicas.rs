//! Replicas: grants that count only once replicas have them, and answers that come from a replica. Redis replicates
//! after it has replied, and WAIT (Redis command) returns how many replicas have acknowledged.

use std::time::Duration;

use redis::cmd;

use super::Server;
use super::info::{Info, SILENT};
use super::reply::{self, Operation};
use super::topology::Topology;
use crate::clock::Moment;
use crate::duration::span;
use crate::error::{Error, ErrorKind};
use crate::lock::{Claim, Ttl};
use crate::wait::Limit;

const LOOK: Operation<'_> = Operation { verb: "look at locks", name: None };

impl Server {
    /// Returns what to know of answers of this server if it is a replica, or does not tell whether it is. Sentinel and
    /// Cluster name masters only.
    ///
    /// # Errors
    /// If it does not hear from its master: what it shows may be of any age.
    pub fn doubtful_origin(&mut self, limit: Limit<'_>) -> Result<Option<String>, Error> {
        let Topology::Single(server) = self.client.topology() else { return Ok(None) };
        let server = server.to_string();
        let mut request = cmd("INFO");
        request.arg("replication");
        let reply = self.client.ask(&request, limit).map_err(|no_reply| self.unanswered(&LOOK, no_reply).of_read())?;
        let Some(info) = reply::text(&reply).map(|text| Info::new(&text)) else {
            return Ok(Some(format!(
                "{server} does not tell whether it is a replica (INFO): if it is one, what it shows may be old"
            )));
        };
        let Some(master) = info.master() else { return Ok(None) };
        if info.is_linked() {
            let age = span(SILENT);
            return Ok(Some(format!("{server} is a replica of {master}: what it shows may be up to {age} old")));
        }
        Err(Error {
            kind: ErrorKind::Unavailable,
            action: LOOK.action(&self.client),
            cause: format!("it is a replica of {master}, and does not hear from it: what it would show may be old"),
            hint: format!("name the master: redis://{master}"),
        })
    }

    /// Waits until the requested number of replicas have a lock that was just granted, and releases it if they do not.
    /// The wait uses up the lease, so it takes at most a quarter of that.
    pub fn replicated(
        &mut self,
        operation: &Operation<'_>,
        claim: &Claim,
        ttl: Ttl,
        limit: Limit<'_>,
    ) -> Result<(), Error> {
        let wanted = self.min_replicas;
        if wanted == 0 {
            return Ok(());
        }
        let asked = Moment::now();
        // WAIT must return before the time-out of its reply.
        let patience = (self.client.timeout / 2).min(ttl.get() / 4).min(limit.until.remaining() / 2);
        let patience = patience.max(Duration::from_millis(1));
        let mut wait = cmd("WAIT");
        wait.arg(wanted).arg(u64::try_from(patience.as_millis()).unwrap_or(u64::MAX).max(1));
        // On the connection of the grant: WAIT waits for the writes of its own connection.
        let answer = self.client.ask_on(&[wait], limit).map_err(|fault| self.unanswered(operation, fault))?;
        let error = match answer.first().map(|reply| (reply::integer(reply), reply)) {
            Some((Some(have), _)) if have >= i64::from(wanted) => return Ok(()),
            Some((Some(have), _)) => Error {
                kind: ErrorKind::Untrusted,
                action: operation.action(&self.client),
                cause: format!(
                    "{have} of the {wanted} replicas that --min-replicas asks for had it within {}, so it was given back",
                    span(asked.elapsed())
                ),
                hint: "see INFO replication there".into(),
            },
            Some((None, refusal)) => operation.misunderstood(&self.client, reply::unexpected(refusal)),
            None => self.senseless(operation),
        };
        // If that fails, the lock expires; the caller that gives up the wait tries once more.
        let _ = self.release_as(operation, claim, limit);
        Err(error)
    }
}
