//! Has a server tell a holder at once what concerns its lock (`pushes`), where the server can.
//!
//! A proxy may not know the request, cut the connection because of it, or keep silent; an access control list may forbid
//! a part of it. The holder then finds out when it next renews, as without all this: nothing is reported, and nothing is
//! tried again and again.

use std::time::Duration;

use super::Server;
use super::pushes::{Accepted, Wanted};
use super::reply;
use crate::clock::Moment;
use crate::lock::{Claim, HolderId};
use crate::log;
use crate::wait::Limit;

/// Whether servers tell a holder things unasked.
#[derive(Clone, Copy)]
pub enum Listening {
    Untried,
    /// One has agreed to, on the connection of this number, and may not have answered a renewal there yet: a proxy may cut
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

impl Listening {
    pub fn may_be_tried(self) -> bool {
        match self {
            Listening::Untried | Listening::Agreed { .. } | Listening::Works => true,
            Listening::Off(until) => until.passed(),
        }
    }

    /// Returns what follows from an attempt that cost the connection.
    fn failed(self) -> Listening {
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
        if !self.listening.may_be_tried() {
            return false;
        }
        let key = self.options.prefix.key(&claim.name);
        let channel = match claim.token.id() {
            Some(id) if claim.token.is_share() || self.hears_askers(claim) => holder_channel(&key, &id),
            _ => String::new(),
        };
        match self.client.ask_for(Wanted { key, channel, is_shared: claim.token.is_share() }, limit) {
            Ok(None) => false,
            Ok(Some(accepted)) => {
                let tells = accepted != Accepted::default();
                let on = self.client.answered_by().filter(|_| tells);
                let works = !matches!(self.listening, Listening::Untried | Listening::Agreed { works: false, .. });
                self.listening = on.map_or(Listening::Off(Moment::NEVER), |on| Listening::Agreed { on, works });
                log::trace(format_args!("{} {}", self.client, in_words(accepted)));
                tells
            }
            Err(fault) => {
                let (_, cause, _) = reply::described(fault, self.client.timeout);
                log::trace(format_args!("{} does not tell us of changes: {cause}", self.client));
                self.listening = self.listening.failed();
                true
            }
        }
    }

    /// Takes notice of a renewal that was answered: on the connection of [`Server::listen_for`], unless that was lost.
    pub fn was_renewed(&mut self) {
        if let Listening::Agreed { on, .. } = self.listening {
            self.listening = if self.client.has(on) { Listening::Works } else { self.listening.failed() };
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
