//! What a server tells unasked, on the connection of the requests (RESP3): a holder what concerns its lock, and a waiter
//! when to ask again (`wake`).
//!
//! A holder is told of any change of the lock's key since this connection last read it (CLIENT TRACKING), and of messages
//! on the holder's channel: somebody asks it to give up, or has broken its share (lock.lua). Either only means that the
//! holder should ask; what a renewal answers decides. So a message that is lost, or that anybody invents, does no harm.
//!
//! A renewal reads an exclusive lock's key last, behind its own writes: that arms the tracking again. What the server told
//! before the reply to a renewal, the reply knows.
//!
//! Holders of one shared lock do not track its key. Each of their renewals may move its expiry, and Redis tells of that as
//! of any other change: each would wake all others. They hear that the server was flushed, which is told to all, and by
//! message that their own share was broken; that somebody deleted the key, they find when they next renew.

use redis::{Cmd, PushKind, Value, cmd};

use super::reply;
use super::wake::{Calls, Channels};

/// What a holder wants to be told of one lock.
pub struct Wanted {
    pub key: String,
    /// Empty if no message concerns it.
    pub channel: String,
    pub is_shared: bool,
}

/// What is to be told on one connection, and what was told since the last look.
#[derive(Default)]
pub struct Pushes {
    locks: Vec<Heard>,
    tracking: Tracking,
    /// The server tells of changes.
    pub tells_changes: bool,
    /// The channels of a waiter, and what was said there.
    waits: Option<(Channels, Calls)>,
}

/// A lock, and what was told of it.
struct Heard {
    wanted: Wanted,
    /// The key has changed, or may have.
    has_changed: bool,
    /// A message has come.
    is_called: bool,
}

/// Of which keys the server is asked to tell changes, the fewest first.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Tracking {
    #[default]
    Off,
    /// Of those that are asked for, and none is: that all keys are gone is told all the same.
    None,
    /// Of those that are read.
    Read,
}

/// What a server agrees to tell, of what a holder wants to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// Changes of the key, or of a shared lock that the server is flushed.
    pub changes: bool,
    /// Messages.
    pub messages: bool,
}

impl Pushes {
    /// Adds a lock. Returns the requests for changes, and the request for messages, if there are any.
    pub fn add(&mut self, wanted: Wanted) -> (Vec<Cmd>, Option<Cmd>) {
        let tracking = self.tracking.max(if wanted.is_shared { Tracking::None } else { Tracking::Read });
        let mut changes = Vec::new();
        if tracking != self.tracking {
            if self.tracking != Tracking::Off {
                // The server does not change the mode of what is on.
                changes.push(client_tracking(&["OFF"]));
            }
            let none = if tracking == Tracking::None { &["ON", "NOLOOP", "OPTIN"][..] } else { &["ON", "NOLOOP"] };
            changes.push(client_tracking(none));
        }
        self.tracking = tracking;
        let mut subscribe = cmd("SUBSCRIBE");
        subscribe.arg(&wanted.channel);
        let messages = (!wanted.channel.is_empty()).then_some(subscribe);
        self.locks.push(Heard { wanted, has_changed: false, is_called: false });
        (changes, messages)
    }

    /// Begins to listen for a waiter, and for no former one any more.
    pub fn wait(&mut self, channels: &Channels) {
        self.waits = Some((channels.clone(), Calls::default()));
    }

    /// Returns what was said to the waiter, and forgets it.
    pub fn take_calls(&mut self) -> Calls {
        self.waits.as_mut().map(|(_, calls)| std::mem::take(calls)).unwrap_or_default()
    }

    /// Returns whether a lock was added.
    pub fn has(&self, key: &str) -> bool {
        self.locks.iter().any(|heard| heard.wanted.key == key)
    }

    /// Takes notice of a push.
    pub fn hear(&mut self, kind: &PushKind, data: &[Value]) {
        let is_ours = |value: &Value, own: &str| reply::bytes(value) == Some(own.as_bytes());
        if let (PushKind::Message, [channel, said @ ..], Some((channels, calls))) = (kind, data, &mut self.waits)
            && channels.names().iter().any(|own| is_ours(channel, own))
        {
            calls.hear(said.first());
        }
        for Heard { wanted, has_changed, is_called } in &mut self.locks {
            match (kind, data) {
                (PushKind::Invalidate, [Value::Array(keys)]) => {
                    // The key of a shared lock is tracked only because another lock's is.
                    *has_changed |= !wanted.is_shared && keys.iter().any(|key| is_ours(key, &wanted.key));
                }
                // All keys are gone.
                (PushKind::Invalidate, _) => *has_changed = true,
                (PushKind::Message, [channel, ..]) => *is_called |= is_ours(channel, &wanted.channel),
                _ => {}
            }
        }
    }

    /// Forgets changes of a key: the reply to a renewal has come, which knows of them.
    pub fn are_known(&mut self, key: &str) {
        self.locks.iter_mut().filter(|heard| heard.wanted.key == key).for_each(|heard| heard.has_changed = false);
    }

    /// Returns the keys of the locks about which there is reason to ask, and forgets that.
    pub fn take(&mut self) -> Vec<String> {
        let take = |heard: &mut Heard| std::mem::take(&mut heard.has_changed) | std::mem::take(&mut heard.is_called);
        self.locks.iter_mut().filter_map(|heard| take(heard).then(|| heard.wanted.key.clone())).collect()
    }
}

fn client_tracking(how: &[&str]) -> Cmd {
    let mut tracking = cmd("CLIENT");
    tracking.arg("TRACKING").arg(how);
    tracking
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    /// Returns what a holder of these locks hears: of each, the key, the channel, and whether it is shared.
    fn hearing(locks: &[(&str, &str, bool)]) -> Pushes {
        let mut pushes = Pushes::default();
        for (key, channel, is_shared) in locks.iter().copied() {
            pushes.add(Wanted { key: key.into(), channel: channel.into(), is_shared });
        }
        pushes
    }

    fn written(requests: &[Cmd]) -> Vec<String> {
        let words = |request: &Cmd| {
            let words = request.args_iter().map(|arg| match arg {
                redis::Arg::Simple(word) => String::from_utf8_lossy(word).into_owned(),
                _ => "?".to_owned(),
            });
            words.collect::<Vec<_>>().join(" ")
        };
        requests.iter().map(words).collect()
    }

    #[test]
    fn the_keys_of_exclusive_locks_are_tracked_also_if_a_shared_one_came_first() {
        let mut pushes = Pushes::default();
        let mut add = |key: &str, is_shared| {
            let (tracking, _) = pushes.add(Wanted { key: key.into(), channel: String::new(), is_shared });
            written(&tracking)
        };
        assert_eq!(add("a", true), ["CLIENT TRACKING ON NOLOOP OPTIN"]);
        assert!(add("b", true).is_empty());
        assert_eq!(add("c", false), ["CLIENT TRACKING OFF", "CLIENT TRACKING ON NOLOOP"]);
        assert!(add("d", false).is_empty() && add("e", true).is_empty());
    }

    #[test]
    fn of_several_locks_each_is_heard_and_known_for_itself() {
        let mut pushes = hearing(&[("a", "a:c", false), ("b", "b:c", false), ("s", "s:c", true)]);
        let invalidate =
            |pushes: &mut Pushes, key| pushes.hear(&PushKind::Invalidate, &[Value::Array(vec![text(key)])]);
        invalidate(&mut pushes, "b");
        pushes.are_known("a");
        assert!(pushes.take() == ["b"] && pushes.take().is_empty());
        invalidate(&mut pushes, "a");
        pushes.are_known("a");
        invalidate(&mut pushes, "s");
        assert!(pushes.take().is_empty());
        pushes.hear(&PushKind::Message, &[text("s:c"), text("a")]);
        assert_eq!(pushes.take(), ["s"]);
        pushes.hear(&PushKind::Invalidate, &[Value::Nil]);
        assert_eq!(pushes.take(), ["a", "b", "s"]);
    }

    #[test]
    fn what_concerns_the_lock_is_heard_and_nothing_else() {
        let mut pushes = hearing(&[("lock:a", "lock:a:holder:x", false)]);
        let keys = |keys: &[&str]| vec![Value::Array(keys.iter().copied().map(text).collect())];
        let mut hears = |kind: PushKind, data: Vec<Value>| {
            pushes.hear(&kind, &data);
            !pushes.take().is_empty()
        };
        assert!(hears(PushKind::Invalidate, keys(&["lock:a"])));
        assert!(hears(PushKind::Invalidate, keys(&["b", "lock:a"])));
        assert!(hears(PushKind::Invalidate, vec![Value::Nil]));
        assert!(hears(PushKind::Message, vec![text("lock:a:holder:x"), text("a")]));
        assert!(!hears(PushKind::Invalidate, keys(&["{lock:a}:waiters"])));
        assert!(!hears(PushKind::Message, vec![text("lock:a:holder:y"), text("a")]));
        assert!(!hears(PushKind::Message, vec![]));
        assert!(!hears(PushKind::Other("server-cpu-usage".into()), vec![Value::Int(1)]));
    }

    #[test]
    fn a_reply_knows_of_changes_before_it_but_a_message_may_come_from_elsewhere() {
        let mut pushes = hearing(&[("k", "c", false)]);
        pushes.hear(&PushKind::Invalidate, &[Value::Nil]);
        pushes.are_known("k");
        assert!(pushes.take().is_empty());
        pushes.hear(&PushKind::Message, &[text("c"), text("a")]);
        pushes.are_known("k");
        assert!(pushes.take() == ["k"] && pushes.take().is_empty());
    }
}
