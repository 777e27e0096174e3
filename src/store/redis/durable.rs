//! Grants that count only once replicas have them, or disks. Redis replicates, and syncs its append-only file, after it
//! has replied; WAIT and WAITAOF (Redis commands) return who has what this connection has written.

use std::time::Duration;

use redis::{Cmd, Value, cmd};

use super::Server;
use super::info::{NEWER, OFTEN, SAVE};
use super::reply::{self, Operation, Unexpected};
use crate::clock::Moment;
use crate::duration::{millis, span};
use crate::error::{Error, ErrorKind};
use crate::lock::{Claim, Ttl};
use crate::store::Durability;
use crate::wait::Limit;

/// How many have a grant.
struct Copies {
    /// None if that was not asked.
    disks: Option<i64>,
    replicas: i64,
}

impl Server {
    /// Waits until a lock that was just granted is as durable as was asked for, and releases it if it is not. The wait uses
    /// up the lease: a grant is of use only while half of it is left.
    pub fn make_durable(
        &mut self,
        operation: &Operation<'_>,
        claim: &Claim,
        ttl: Ttl,
        limit: Limit<'_>,
    ) -> Result<(), Error> {
        if self.options.durability == Durability::default() {
            return Ok(());
        }
        let asked = Moment::now();
        let limit = self.for_another_reply(limit);
        // The reply must come before its time-out.
        let patience = (self.client.timeout * 3 / 4).min(ttl.get() * 2 / 5).max(Duration::from_millis(1));
        // On the connection of the grant: each waits for the writes of its own connection.
        let command = question(self.options.durability, patience);
        let answer = self.client.ask_on(&[command], limit).map_err(|fault| self.unanswered(operation, fault))?;
        let copies = answer.first().ok_or(Unexpected::Shape).and_then(|reply| copies(self.options.durability, reply));
        let error = match copies {
            Err(unexpected) => self.not_durable(operation, unexpected),
            Ok(copies) => match lacking(self.options.durability, &copies, asked.elapsed()) {
                None => return Ok(()),
                Some((cause, hint)) => {
                    let action = operation.action(&self.client);
                    Error { kind: ErrorKind::Untrusted, action, cause, hint: hint.into() }
                }
            },
        };
        // If that fails, the lock expires; the caller that gives up the wait tries once more.
        let limit = self.for_another_reply(limit);
        let _ = self.release_as(operation, claim, limit);
        Err(error)
    }

    /// Returns the error for a server that cannot tell.
    fn not_durable(&self, operation: &Operation<'_>, unexpected: Unexpected) -> Error {
        let known = match &unexpected {
            Unexpected::Error { text, .. } if !self.options.durability.on_disk => Err(text),
            Unexpected::Error { text, .. } if text.raw().contains("unknown command") => {
                Ok(("the server cannot tell when a lock is on disk (WAITAOF)", NEWER))
            }
            Unexpected::Error { text, .. } if text.raw().contains("appendonly is disabled") => {
                Ok(("the server has no append-only file, so no lock is ever on its disk", SAVE))
            }
            Unexpected::Error { text, .. } => Err(text),
            Unexpected::Shape => return operation.misunderstood(&self.client, unexpected),
        };
        match known {
            Err(_) => operation.misunderstood(&self.client, unexpected),
            Ok((cause, remedy)) => Error {
                kind: ErrorKind::Untrusted,
                action: operation.action(&self.client),
                cause: format!("{cause}: it was released"),
                hint: format!("{remedy}; or leave out --durable"),
            },
        }
    }
}

fn question(durability: Durability, patience: Duration) -> Cmd {
    let mut command = cmd(if durability.on_disk { "WAITAOF" } else { "WAIT" });
    if durability.on_disk {
        command.arg(1);
    }
    command.arg(durability.replicas).arg(millis(patience).max(1));
    command
}

fn copies(durability: Durability, reply: &Value) -> Result<Copies, Unexpected> {
    let (disks, replicas) = match reply {
        Value::Array(both) if durability.on_disk && both.len() == 2 => (Some(&both[0]), &both[1]),
        other if durability.on_disk => return Err(reply::unexpected(other)),
        other => (None, other),
    };
    let number = |value: &Value| reply::integer(value).ok_or_else(|| reply::unexpected(value));
    Ok(Copies { disks: disks.map(number).transpose()?, replicas: number(replicas)? })
}

/// Returns who lacks the grant after so long, and what to do about that.
fn lacking(wanted: Durability, have: &Copies, waited: Duration) -> Option<(String, &'static str)> {
    let within = span(waited);
    if have.disks == Some(0) {
        return Some((
            format!("the server did not have it on disk within {within}, so it was released"),
            if waited < Duration::from_secs(1) { "use a longer --ttl, or a longer --server-timeout" } else { OFTEN },
        ));
    }
    if have.replicas < i64::from(wanted.replicas) {
        let (have, all) = (have.replicas, wanted.replicas);
        let on_disk = if wanted.on_disk { " on disk" } else { "" };
        return Some((
            format!(
                "{have} of the {all} replicas that --min-replicas asks for had it{on_disk} within {within}, so it was \
                 released"
            ),
            "see INFO replication there",
        ));
    }
    None
}
