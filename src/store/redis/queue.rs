//! Our place in a queue: how we keep it, and how we hear that it is our turn.
//!
//! A channel of our own tells us to ask again; what is said on it does not matter. It may be lost,
//! so we look by ourselves too: at the end of the lease if we are near the front, and otherwise every
//! two seconds, which is also what keeps our place.

use std::time::Duration;

use nix::poll::PollFlags;
use redis::{Value, cmd};

use super::connection::Connection;
use super::endpoint::Endpoint;
use super::fault::Fault;
use super::reply::{self, Queued};
use crate::clock::Moment;
use crate::duration::jittered;
use crate::lock::{LockState, StateKind};
use crate::log;
use crate::store::poll_pause;
use crate::wait::{Limit, Woken};

/// How long a place is kept for a waiter that is not heard of.
pub const LEASE: Duration = Duration::from_secs(6);
/// Three heartbeats a lease, so that one may be lost.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// So many at the front look when the holder's lease ends: the second and third stand in for a first
/// that died with the holder, each a little later so that they do not come at once.
const WATCHERS: usize = 3;
const STAGGER: Duration = Duration::from_millis(25);

/// Subscriptions are tried this far apart, and further each time one fails or does not last.
const AT_LEAST_APART: Duration = Duration::from_secs(1);
const AT_MOST_APART: Duration = Duration::from_secs(30);
/// A subscription that is lost after this was a good one.
const LASTING: Duration = Duration::from_secs(10);

pub struct QueueEntry {
    channel: String,
    subscription: Subscription,
    /// When a subscription was last tried.
    tried_at: Option<Moment>,
    /// How long after that the next one may be.
    apart: Duration,
    /// Remembered, so that a queue that the server lost is rebuilt in its order.
    ticket: String,
    look_at: Moment,
}

enum Subscription {
    Open(Connection),
    /// Wake-ups do not reach us, for now: we poll, and try to subscribe again.
    Off,
    /// The server does not let us subscribe: we poll.
    NotPermitted,
}

impl QueueEntry {
    pub fn new(channel: String) -> QueueEntry {
        QueueEntry {
            channel,
            subscription: Subscription::Off,
            tried_at: None,
            apart: AT_LEAST_APART,
            ticket: "0".into(),
            look_at: Moment::now(),
        }
    }

    /// Sees to it that we can be called, before we stand in line: a call before that would be lost. Where that
    /// cannot be, we poll.
    ///
    /// # Errors
    /// If nobody wants the lock any more.
    pub fn listen(&mut self, endpoint: &Endpoint, limit: Limit<'_>) -> Result<(), Fault> {
        if self.listens_to().is_some_and(|ear| ear.address != endpoint.address) {
            // The queue has moved, and the subscription was good: the next one need not wait.
            (self.subscription, self.tried_at) = (Subscription::Off, None);
        }
        let is_due = self.tried_at.is_none_or(|tried_at| (tried_at + self.apart).passed());
        if let Subscription::Off = self.subscription
            && is_due
        {
            self.tried_at = Some(Moment::now());
            match subscribe(endpoint, &self.channel, limit) {
                Ok(subscription) => self.subscription = subscription,
                Err(Fault::Cancelled) => return Err(Fault::Cancelled),
                Err(_) => self.close("cannot subscribe to a channel: polling"),
            }
        }
        Ok(())
    }

    /// Polls from now on, and tries to subscribe again later.
    fn close(&mut self, why: &str) {
        log::trace(format_args!("{why}"));
        self.subscription = Subscription::Off;
        let has_lasted = self.tried_at.is_some_and(|tried_at| tried_at.elapsed() >= LASTING);
        self.apart = if has_lasted { AT_LEAST_APART } else { (self.apart * 2).min(AT_MOST_APART) };
    }

    /// The server that can call us, if one can.
    pub fn listens_to(&self) -> Option<&Endpoint> {
        match &self.subscription {
            Subscription::Open(connection) => Some(&connection.peer),
            Subscription::Off | Subscription::NotPermitted => None,
        }
    }

    /// Where we want to be called; empty where we cannot be.
    pub fn channel(&self) -> &str {
        if self.hears() { &self.channel } else { "" }
    }

    /// Whether we are told when to look again.
    pub fn hears(&self) -> bool {
        matches!(self.subscription, Subscription::Open(_))
    }

    pub fn ticket(&self) -> &str {
        &self.ticket
    }

    /// Takes note of an answer that was not a grant: when to look again without being called.
    pub fn stands(&mut self, queued: &Queued, state: &LockState, grace: Duration) {
        self.ticket.clone_from(&queued.ticket);
        if !queued.channel_used && self.hears() {
            self.close("what is published does not reach us: polling");
        }
        let position = queued.place.position;
        let first = position == 1;
        let mut pause = HEARTBEAT * 4 / 5 + jittered(HEARTBEAT / 5);
        if let (1..=WATCHERS, Some(ttl)) = (position, state.ttl) {
            let stagger = STAGGER * u32::try_from(position - 1).unwrap_or(0);
            pause = pause.min(ttl + Duration::from_millis(1) + stagger);
        }
        let ours = matches!(state.kind, StateKind::Held | StateKind::Reserved);
        pause = match (&self.subscription, first) {
            // Other programs tell nobody when they are done.
            _ if first && !ours => pause.min(jittered(Duration::from_millis(75))),
            (Subscription::Off | Subscription::NotPermitted, true) => pause.min(jittered(Duration::from_millis(50))),
            // A reservation must not lapse unseen.
            (Subscription::Off | Subscription::NotPermitted, false) => pause.min(grace / 2),
            (Subscription::Open(_), _) => pause,
        };
        if state.kind == StateKind::Free {
            pause = Duration::from_millis(5);
        }
        self.look_at = Moment::now() + pause;
    }

    /// Takes note that our place is not kept for now: nobody may call us.
    pub fn polls(&mut self, state: &LockState) {
        self.look_at = Moment::now() + poll_pause(state);
    }

    /// Waits until we are called, or it is time to look.
    pub fn wait(&mut self, limit: Limit<'_>) -> Woken {
        loop {
            let woken = match &self.subscription {
                Subscription::Open(connection) => limit.rest(self.look_at, &[(connection.fd(), PollFlags::POLLIN)]),
                Subscription::Off | Subscription::NotPermitted => limit.rest(self.look_at, &[]),
            };
            if woken != Woken::Ready || self.called() || self.look_at.passed() {
                return woken;
            }
        }
    }

    /// Takes in all that was said to us; whether any of it was a call, or the connection has ended.
    fn called(&mut self) -> bool {
        let Subscription::Open(connection) = &mut self.subscription else { return true };
        let mut called = false;
        loop {
            match connection.receive(Limit::until(Moment::now())) {
                Ok(said) => called |= !is_test(&said),
                Err(Fault::TimeUp) => return called,
                Err(_) => {
                    self.close("the subscription has ended: polling");
                    return true;
                }
            }
        }
    }
}

fn subscribe(endpoint: &Endpoint, channel: &str, limit: Limit<'_>) -> Result<Subscription, Fault> {
    let mut connection = Connection::open(endpoint, limit)?;
    connection.send(&cmd("SUBSCRIBE").arg(channel).get_packed_command(), limit)?;
    let reply = connection.receive(limit)?;
    match &reply {
        Value::ServerError(_) if reply::denies(&reply::unexpected(&reply)) => {
            // The channel's name holds most of our token.
            log::trace(format_args!("may not subscribe to a channel: polling"));
            Ok(Subscription::NotPermitted)
        }
        Value::ServerError(_) => Err(reply::refusal(&reply, endpoint.session.login.as_ref())),
        _ => Ok(Subscription::Open(connection)),
    }
}

/// The script's question whether we hear it, which wants no answer.
fn is_test(said: &Value) -> bool {
    match said {
        Value::Array(fields) => fields.get(2).and_then(reply::text).is_some_and(|said| said.raw() == "t"),
        _ => false,
    }
}
