//! What a server tells a holder unasked, on the connection of its requests (RESP3).
//!
//! The server tells of any change of the lock's key since this connection last read it (CLIENT TRACKING), and of messages
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

/// What a holder wants to be told, and what it was told since it last looked.
pub struct Pushes {
    key: String,
    /// Empty if no message concerns it.
    channel: String,
    is_shared: bool,
    /// The key has changed, or may have.
    has_changed: bool,
    /// A message has come.
    is_called: bool,
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
    pub fn new(key: String, channel: String, is_shared: bool) -> Pushes {
        Pushes { key, channel, is_shared, has_changed: false, is_called: false }
    }

    /// Returns the request for changes.
    pub fn tracking(&self) -> Cmd {
        let mut tracking = cmd("CLIENT");
        tracking.arg("TRACKING").arg("ON").arg("NOLOOP");
        if self.is_shared {
            // No key is tracked but those that are asked for, and none is.
            tracking.arg("OPTIN");
        }
        tracking
    }

    /// Returns the request for messages, if there are any.
    pub fn subscription(&self) -> Option<Cmd> {
        let mut subscribe = cmd("SUBSCRIBE");
        subscribe.arg(&self.channel);
        (!self.channel.is_empty()).then_some(subscribe)
    }

    /// Takes notice of a push.
    pub fn hear(&mut self, kind: &PushKind, data: &[Value]) {
        let is_ours = |value: &Value, own: &str| reply::bytes(value) == Some(own.as_bytes());
        match (kind, data) {
            (PushKind::Invalidate, [Value::Array(keys)]) => {
                self.has_changed |= keys.iter().any(|key| is_ours(key, &self.key));
            }
            // All keys are gone.
            (PushKind::Invalidate, _) => self.has_changed = true,
            (PushKind::Message, [channel, ..]) => self.is_called |= is_ours(channel, &self.channel),
            _ => {}
        }
    }

    /// Forgets changes: the reply to a renewal has come, which knows of them.
    pub fn are_known(&mut self) {
        self.has_changed = false;
    }

    /// Returns whether there is reason to ask, and forgets it.
    pub fn take(&mut self) -> bool {
        std::mem::take(&mut self.has_changed) | std::mem::take(&mut self.is_called)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn what_concerns_the_lock_is_heard_and_nothing_else() {
        let mut pushes = Pushes::new("lock:a".into(), "lock:a:holder:x".into(), false);
        let keys = |keys: &[&str]| vec![Value::Array(keys.iter().copied().map(text).collect())];
        let mut hears = |kind: PushKind, data: Vec<Value>| {
            pushes.hear(&kind, &data);
            pushes.take()
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
        let mut pushes = Pushes::new("k".into(), "c".into(), false);
        pushes.hear(&PushKind::Invalidate, &[Value::Nil]);
        pushes.are_known();
        assert!(!pushes.take());
        pushes.hear(&PushKind::Message, &[text("c"), text("a")]);
        pushes.are_known();
        assert!(pushes.take() && !pushes.take());
    }
}
