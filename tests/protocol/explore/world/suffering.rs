//! What each fault does to a world, and whose belief it makes void.

use super::{Client, FOREIGN, Fault, Phase, Reply, Request, Setting, TTL, World};
use crate::model::{Expiring, Model};
use crate::setnx::STALE;

impl World {
    pub(super) fn suffer(&mut self, fault: Fault, i: usize, setting: &Setting) {
        self.faults += 1;
        let now = self.model.now();
        let c = &mut self.clients[i];
        match fault {
            Fault::Crash => {
                self.model.listening.remove(&c.token);
                let flight = c.flight.filter(|flight| flight.reply.is_none());
                *c = Client { phase: Phase::Crashed, frozen: false, mail: false, deadline: 0, flight, ..*c };
            }
            Fault::Freeze => c.frozen = true,
            Fault::LoseReply => (c.flight, c.look_at) = (None, now + 1),
            Fault::LoseMail => c.mail = false,
            Fault::Lengthen | Fault::Shorten => {
                let ttl = if fault == Fault::Lengthen { 4 * TTL } else { 1 };
                c.deadline = now + ttl;
                (setting.server.renew)(&mut self.model, c.token, ttl, false);
                self.deliver();
            }
            Fault::RenewByVerb => {
                (setting.server.renew)(&mut self.model, c.token, 1, true);
                self.deliver();
            }
            Fault::ForeignSet => self.model.lock = Some(Expiring { is: FOREIGN, until: Some(now + TTL) }),
            Fault::WriteOver => self.model.lock = Some(Expiring { is: STALE, until: None }),
            Fault::ForeignDel => {
                self.model.lock = None;
                self.void();
            }
            Fault::Flush => {
                let listening = std::mem::take(&mut self.model.listening);
                self.model = Model { now_us: self.model.now_us, listening, drops: setting.drops, ..Model::default() };
                self.void();
            }
        }
    }

    /// An outsider takes the lock from whoever has it, knows it or is about to hear it. With the queue
    /// gone too, nobody can be overtaken before being in line again.
    fn void(&mut self) {
        let flushed = self.model.fence.is_none();
        for c in &mut self.clients {
            let granted = c.flight.is_some_and(|f| f.reply == Some(Reply::Yes) && f.request != Request::Release);
            c.voided |= granted || c.phase == Phase::Holding;
            if flushed {
                c.owed = 0;
            }
        }
    }
}
