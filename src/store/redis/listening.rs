//! Has a server tell unasked, on the connection of the requests (`pushes`), what concerns a holder's lock, and when a
//! waiter is to ask again, where the server can.
//!
//! A proxy may not know the request, cut the connection because of it, or keep silent; an access control list may forbid
//! a part of it. A holder then finds out when it next renews, and a waiter listens on a second connection (`queue`):
//! nothing is reported, and nothing is tried again and again.

use std::time::Duration;

use redis::Value;

use super::Server;
use super::pushes::{Accepted, Wanted};
use super::reply;
use crate::clock::Moment;
use crate::lock::{Claim, HolderId};
use crate::log;
use crate::wait::Limit;

/// Whether servers tell things unasked.
#[derive(Clone, Copy)]
pub enum Listening {
    Untried,
    /// One has agreed to, on the connection of this number, and may not have answered a request there yet: a proxy may cut
    /// the connection only then. `works` if one has before.
    Agreed {
        on: u64,
        works: bool,
    },
    /// One has.
    Works,
    /// Not to be tried before that moment.
    Off(Moment),
}

/// How long not to try again after an attempt that cost the connection, where one has succeeded before: the server may
/// have gone away at that moment.
const PAUSE: Duration = Duration::from_secs(60);

/// The outcome of a subscription for a waiter.
pub enum Subscribed {
    Yes,
    /// The server refuses, with this error.
    Refused(Value),
    /// The server does not tell things unasked on the connection of the requests, or is not to be asked to.
    NotHere,
}

impl Listening {
    pub fn may_be_tried(self) -> bool {
        match self {
            Listening::Untried | Listening::Agreed { .. } | Listening::Works => true,
            Listening::Off(until) => until.passed(),
        }
    }

    /// Returns what follows if a server agrees, on the connection of this number.
    pub fn agreed(self, on: u64) -> Listening {
        let works = !matches!(self, Listening::Untried | Listening::Agreed { works: false, .. });
        Listening::Agreed { on, works }
    }

    /// Returns what follows from an attempt that cost the connection.
    pub fn failed(self) -> Listening {
        Listening::Off(match self {
            Listening::Untried | Listening::Agreed { works: false, .. } => Moment::NEVER,
            Listening::Agreed { works: true, .. } | Listening::Works | Listening::Off(_) => Moment::now() + PAUSE,
        })
    }
}

impl Server {
    /// Asks the server that replied last to tell this holder things unasked, unless it does. Returns whether to renew now:
    /// something may have happened before, or the connection was lost.
    pub fn listen_for(&mut self, claim: &Claim, limit: Limit<'_>) -> bool {
        let key = self.options.prefix.key(&claim.name);
        let channel = match claim.token.id() {
            Some(id) if claim.token.is_share() || self.hears_askers(claim) => holder_channel(&key, &id),
            _ => String::new(),
        };
        match self.client.ask_for(Wanted { key, channel, is_shared: claim.token.is_share() }, limit) {
            Ok(None) => false,
            Ok(Some(accepted)) => {
                log::trace(format_args!("{} {}", self.client, in_words(accepted)));
                accepted != Accepted::default()
            }
            Err(fault) => {
                let (_, cause, _) = reply::described(fault, self.client.timeout);
                log::trace(format_args!("{} does not tell us of changes: {cause}", self.client));
                true
            }
        }
    }
}

/// Returns the channel of a holder: whoever asks it to give up, or breaks its lock, knows its ID alone.
pub fn holder_channel(key: &str, id: &HolderId) -> String {
    format!("{key}:holder:{id}")
}

fn in_words(accepted: Accepted) -> &'static str {
    match (accepted.changes, accepted.messages) {
        (true, true) => "tells us at once of changes of the lock, and of requests",
        (true, false) => "tells us at once of changes of the lock",
        (false, true) => "tells us at once of requests, and not of changes of the lock",
        (false, false) => "does not tell us of changes of the lock: noticing them at the next renewal",
    }
}
