//! A waiter's place in the queue: how it is kept, and how the server wakes the waiter.
//!
//! The waiter subscribes to a channel of its own, on the connection of its requests where the server speaks RESP3, and else
//! on one more. A message there means to ask again, at once or soon; only a test of
//! the subscription means nothing. Messages may be lost, so the waiter also polls, which also keeps its place: at the end
//! of the lease if it is near the front, and otherwise every two seconds if it is among the first two, and the more
//! seldom the further back it is. A script tells the one that becomes the second (lock.lua).
//!
//! A server that loses the queue knows nobody whom it could wake. So all who wait also subscribe to one channel, and each
//! says in its requests when it was last in the queue: the first that comes back, mostly one of the first two, shows the
//! script that the queue was lost, and the script calls all others back. They come in their order, and not all at once.

use std::time::{Duration, SystemTime};

use nix::poll::PollFlags;

use super::client::Client;
use super::connection::Connection;
use super::endpoint::Endpoint;
use super::fault::Fault;
use super::listening::Subscribed;
use super::reply::{self, Queued};
use super::wake::Channels;
use crate::clock::Moment;
use crate::duration::jittered;
use crate::lock::{LockState, StateKind};
use crate::log;
use crate::pace::Pace;
use crate::store::poll_pause;
use crate::wait::{Limit, Woken};

/// How long the first two of the queue may be silent, and all whom no message reaches.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// How much longer each place further back may be: on many names, most waiters are among the first ten.
const LONGER: Duration = Duration::from_secs(4);
/// How long anybody may be.
const LONGEST: Duration = Duration::from_secs(30);
/// How much longer than that the queue keeps the place: a heartbeat may be late by two attempts of a
/// `--server-timeout` as usual. One whose host has failed is in the way until then, if its turn comes.
const SPARE: Duration = Duration::from_secs(4);
/// Waiters at the front that ask when the holder's lease ends: the second and the third replace a first that died with
/// the holder, each a little later so that they do not come at once.
const WATCHERS: usize = 3;
const STAGGER: Duration = Duration::from_millis(25);
/// When the first in line asks again after the one before it was served: not at once, since that one claims the lock at
/// this moment; but soon, so that what the waiter shows of the lock is true.
const SOON: Duration = Duration::from_millis(100);
/// How much later than its end a waiter asks for a lock: the server counts whole milliseconds.
const LATER: Duration = Duration::from_millis(1);
/// How much later each comes back than the one ahead of it when the queue was lost: ten thousand take a fifth of a server's
/// time for ten seconds.
const APART: Duration = Duration::from_millis(1);

/// How often a waiter asks because of messages: at once more often than the fastest queue wakes it, and then in intervals
/// that are shorter than a reservation.
const QUESTIONS: Pace = Pace::of(16, Duration::from_millis(250));

/// Bounds of the pause between attempts to subscribe, which grows each time one fails or does not last.
const AT_LEAST_APART: Duration = Duration::from_secs(1);
const AT_MOST_APART: Duration = Duration::from_secs(30);
/// A subscription that lasted this long was a good one.
const LASTING: Duration = Duration::from_secs(10);

/// What a request of a waiter says of its place.
#[derive(Default)]
pub struct Place {
    /// The channel that wakes the waiter; empty if none does.
    pub channel: String,
    /// Empty if it has none yet.
    pub ticket: String,
    /// How long the queue is to keep the place of this waiter, after which it counts as dead.
    pub lease: Duration,
    /// When it was last in the queue, by the server's clock; none if it never was, was called back since, or could not be.
    pub last: Option<SystemTime>,
}

pub struct QueueEntry {
    channels: Channels,
    subscription: Subscription,
    /// When the last attempt to subscribe began.
    tried_at: Option<Moment>,
    /// The pause from then to the next attempt.
    apart: Duration,
    /// Remembered, so that a queue that the server lost is rebuilt in its order.
    ticket: String,
    look_at: Moment,
    /// As of the last reply.
    clock: Option<ServerClock>,
    /// From 1, by the last reply; 0 before that.
    position: usize,
    /// A message since the last reply makes the waiter ask.
    is_told: bool,
    /// Woken since the last reply.
    was_called: bool,
    /// Called back since the last reply: another waiter has found that the queue was lost.
    is_called_back: bool,
    /// The requests that messages have caused.
    questions: Pace,
}

/// The server's clock as of one reply; it may differ from this machine's.
#[derive(Clone, Copy)]
pub struct ServerClock {
    /// When nxlock sent the request.
    pub asked: Moment,
    /// The server's time when it replied.
    pub time: SystemTime,
}

impl ServerClock {
    /// Returns the earliest moment at which it may be this time at the server.
    fn moment(self, time: SystemTime) -> Moment {
        self.asked + time.duration_since(self.time).unwrap_or_default()
    }
}

enum Subscription {
    /// On the connection of the requests with this number.
    Shared(u64),
    /// On one of its own.
    Own(Box<Connection>),
    /// No wake-ups for now: the waiter polls, and tries to subscribe again.
    Off,
    /// The server does not permit a subscription: the waiter polls.
    NotPermitted,
}

impl QueueEntry {
    /// Creates an entry with the ticket that a call without the queue was given, empty if there is none.
    pub fn new(channels: Channels, ticket: String) -> QueueEntry {
        QueueEntry {
            channels,
            subscription: Subscription::Off,
            tried_at: None,
            apart: AT_LEAST_APART,
            ticket: if ticket.is_empty() { "0".into() } else { ticket },
            look_at: Moment::now(),
            clock: None,
            position: 0,
            is_told: false,
            was_called: false,
            is_called_back: false,
            questions: QUESTIONS,
        }
    }

    /// Subscribes at the server that the client has just reached, before the waiter joins the queue: a wake-up before that
    /// would be lost. Without a subscription, the waiter polls. Takes no longer than `patience`.
    ///
    /// # Errors
    /// If the wait is cancelled.
    pub fn listen(
        &mut self,
        client: &mut Client,
        reached: &Endpoint,
        patience: Duration,
        limit: Limit<'_>,
    ) -> Result<(), Fault> {
        let ear = self.ear(client).map(|connection| connection.peer.address == reached.address);
        if self.hears() && ear != Some(true) {
            // The queue has moved, or a request has cost the connection; and the subscription was a good one: the next attempt
            // need not wait.
            self.hang_up(client);
            self.tried_at = None;
        }
        let is_due = self.tried_at.is_none_or(|tried_at| (tried_at + self.apart).passed());
        if let Subscription::Off = self.subscription
            && is_due
        {
            self.tried_at = Some(Moment::now());
            match self.subscribe(client, reached, patience, limit) {
                Ok(subscription) => self.subscription = subscription,
                Err(Fault::Cancelled) => return Err(Fault::Cancelled),
                Err(_) => self.close(client, "cannot subscribe to a channel: polling"),
            }
        }
        Ok(())
    }

    fn subscribe(
        &self,
        client: &mut Client,
        reached: &Endpoint,
        patience: Duration,
        limit: Limit<'_>,
    ) -> Result<Subscription, Fault> {
        // A server that is silent on the one connection leaves as much time for the other.
        let limit = limit.no_later_than(Moment::now() + patience);
        let shared = client.subscribe(&self.channels, limit.no_later_than(Moment::now() + patience / 2));
        let (subscription, subscribed) = match shared {
            Err(Fault::Cancelled) => return Err(Fault::Cancelled),
            Err(_) | Ok(Subscribed::NotHere) => {
                let mut connection = Connection::open(reached, client.within(limit))?;
                let subscribed = connection.only_subscribe(&self.channels, client.within(limit))?;
                (Subscription::Own(Box::new(connection)), subscribed)
            }
            Ok(subscribed) => (client.answered_by().map_or(Subscription::Off, Subscription::Shared), subscribed),
        };
        match subscribed {
            Subscribed::Yes | Subscribed::NotHere => Ok(subscription),
            Subscribed::Refused(refusal) if reply::denies(&reply::unexpected(&refusal)) => {
                // The log must not show the channel: its name contains most of the token.
                log::trace(format_args!("may not subscribe to a channel: polling"));
                Ok(Subscription::NotPermitted)
            }
            Subscribed::Refused(refusal) => Err(reply::refusal(&refusal, reached.session.login.as_ref())),
        }
    }

    /// Returns the connection with the subscription. None if there is none, or if the client has lost it.
    fn ear<'a>(&'a mut self, client: &'a mut Client) -> Option<&'a mut Connection> {
        match &mut self.subscription {
            Subscription::Shared(number) => client.idle_one(*number),
            Subscription::Own(connection) => Some(connection),
            Subscription::Off | Subscription::NotPermitted => None,
        }
    }

    /// Closes the connection with the subscription.
    fn hang_up(&mut self, client: &mut Client) {
        if let Subscription::Shared(number) = self.subscription {
            client.hang_up(number);
        }
        self.subscription = Subscription::Off;
    }

    /// Ends the subscription: the waiter polls from now on, and tries to subscribe again later.
    fn close(&mut self, client: &mut Client, why: &str) {
        log::trace(format_args!("{why}"));
        self.hang_up(client);
        let has_lasted = self.tried_at.is_some_and(|tried_at| tried_at.elapsed() >= LASTING);
        self.apart = if has_lasted { AT_LEAST_APART } else { (self.apart * 2).min(AT_MOST_APART) };
    }

    /// Returns whether the server that replied last can wake this waiter, if any can.
    pub fn hears_of(&self, client: &Client) -> bool {
        match &self.subscription {
            Subscription::Shared(number) => client.answered_by() == Some(*number),
            Subscription::Own(connection) => {
                client.answered().is_none_or(|answered| answered.address == connection.peer.address)
            }
            Subscription::Off | Subscription::NotPermitted => true,
        }
    }

    /// Returns what the next request says of the place.
    pub fn place(&self) -> Place {
        let hears = self.hears();
        Place {
            channel: if hears { self.channels.own.clone() } else { String::new() },
            ticket: self.ticket.clone(),
            lease: self.heartbeat(self.position) + SPARE,
            last: self.clock.filter(|_| hears && !self.is_called_back).map(|clock| clock.time),
        }
    }

    /// Returns whether the server can wake this waiter.
    pub fn hears(&self) -> bool {
        matches!(self.subscription, Subscription::Shared(_) | Subscription::Own(_))
    }

    /// Returns whether the server has woken this waiter since it last replied to it.
    pub fn was_called(&self) -> bool {
        self.was_called
    }

    /// Returns how long a waiter at this position may be silent.
    fn heartbeat(&self, position: usize) -> Duration {
        match u32::try_from(position.saturating_sub(2)) {
            Ok(behind) if self.hears() => LONGER.saturating_mul(behind).saturating_add(HEARTBEAT).min(LONGEST),
            _ => HEARTBEAT,
        }
    }

    /// Records a reply that was not a grant: when to ask again without a wake-up. `ends_in` is when the lock, or a
    /// share of it, may be free.
    pub fn not_granted(
        &mut self,
        client: &mut Client,
        queued: &Queued,
        state: &LockState,
        (ends_in, clock): (Option<Duration>, Option<ServerClock>),
        grace: Duration,
    ) {
        if std::mem::take(&mut self.is_told) {
            self.questions.done(1, Moment::now());
        }
        (self.clock, self.was_called, self.is_called_back) = (clock, false, false);
        self.ticket.clone_from(&queued.ticket);
        if !queued.heard && self.hears() {
            self.close(client, "published messages do not arrive: polling");
        }
        let position = queued.place.position;
        let first = position == 1;
        // The lease that the request asked for is that of the position before.
        let heartbeat = self.heartbeat(position).min(self.heartbeat(self.position));
        self.position = position;
        let mut pause = heartbeat * 4 / 5 + jittered(heartbeat / 5);
        if let (1..=WATCHERS, Some(ends_in)) = (position, ends_in) {
            let stagger = STAGGER * u32::try_from(position - 1).unwrap_or(0);
            pause = pause.min(ends_in + LATER + stagger);
        }
        let ours = matches!(state.kind, StateKind::Held | StateKind::Reserved | StateKind::Shared);
        pause = match (&self.subscription, first) {
            // Other programs wake nobody when they release the key.
            _ if first && !ours => pause.min(jittered(Duration::from_millis(75))),
            (Subscription::Off | Subscription::NotPermitted, true) => pause.min(jittered(Duration::from_millis(50))),
            // A reservation must not expire unseen.
            (Subscription::Off | Subscription::NotPermitted, false) => pause.min(grace / 2),
            (Subscription::Shared(_) | Subscription::Own(_), _) => pause,
        };
        if state.kind == StateKind::Free {
            pause = Duration::from_millis(5);
        }
        self.look_at = Moment::now() + pause;
    }

    /// Records that the queue does not serve this waiter for now: nobody may wake it.
    pub fn polls(&mut self, state: &LockState) {
        self.look_at = Moment::now() + poll_pause(state);
    }

    /// Waits for a wake-up, or until it is time to ask.
    pub fn wait(&mut self, client: &mut Client, limit: Limit<'_>) -> Woken {
        loop {
            // First: a message may have come before the last reply.
            if self.is_called(client) {
                return Woken::Ready;
            }
            let look_at = self.look_at;
            let ear = self.ear(client).map(|connection| (connection.fd(), PollFlags::POLLIN));
            let woken = limit.rest(look_at, ear.as_slice());
            if woken != Woken::Ready || ear.is_none() || look_at.passed() {
                return woken;
            }
            // Whoever publishes without end does not hold up the end of the wait.
            if limit.until.passed() {
                return Woken::TimeUp;
            }
        }
    }

    /// Reads the messages. Returns whether one was a wake-up, or the connection has ended.
    fn is_called(&mut self, client: &mut Client) -> bool {
        let calls = match self.ear(client).map(Connection::calls) {
            Some(Ok(calls)) => calls,
            Some(Err(_)) => {
                self.close(client, "the subscription has ended: polling");
                return true;
            }
            // Where a request has cost the connection, the next one subscribes on another.
            None => return self.hears(),
        };
        let now = Moment::now();
        // The message may be old: the network delayed it, or this process was stopped. If the server's clock was set since
        // the last reply, the waiter asks too early, or at its next heartbeat.
        let ends = |ends| self.clock.map_or(now, |clock| clock.moment(ends) + LATER);
        let soon = calls.soon.map(|at| ends(at).min(now + SOON));
        let ahead = u32::try_from(self.position).unwrap_or(u32::MAX);
        let in_turn = calls.in_turn.then(|| now + APART.saturating_mul(ahead));
        let at_once = calls.at_once.then_some(now);
        let Some(asks_at) = [soon, in_turn, at_once].into_iter().flatten().min() else { return false };
        self.look_at = self.look_at.min(self.questions.next().map_or(asks_at, |next| next.max(asks_at)));
        self.is_told = true;
        self.is_called_back |= calls.in_turn;
        self.was_called |= calls.at_once;
        calls.at_once && self.look_at.passed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_the_server_comes_when_it_may_be_there_at_the_earliest() {
        let (asked, time) = (Moment::now(), SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000));
        let clock = ServerClock { asked, time };
        assert_eq!(clock.moment(time + Duration::from_secs(3)), asked + Duration::from_secs(3));
        assert_eq!(clock.moment(time - Duration::from_secs(3)), asked);
        let long_ago = ServerClock { asked: asked - Duration::from_secs(5), time };
        assert!(long_ago.moment(time + Duration::from_secs(1)).passed(), "it was read late");
    }
}
