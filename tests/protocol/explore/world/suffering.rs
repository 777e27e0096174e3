//! What each fault does to a world, and whose belief it makes void.

use super::{Client, FOREIGN, Fault, NEVER, Phase, Reply, Request, Setting, TTL, World};
use crate::model::{Expiring, Model};
use crate::setnx::STALE;

impl World {
    pub(super) fn suffer(&mut self, fault: Fault, i: usize, setting: &Setting) {
        self.faults += 1;
        let now = self.model.now();
        let c = &mut self.clients[i];
        match fault {
            Fault::Crash | Fault::HolderCrashes => {
                self.model.listening.remove(&c.token);
                let flight = c.flight.filter(|flight| flight.reply.is_none());
                *c = Client {
                    phase: Phase::Crashed,
                    frozen: false,
                    mail: false,
                    told_to_look: NEVER,
                    deadline: 0,
                    slot: None,
                    flight,
                    ..*c
                };
            }
            Fault::Freeze => c.frozen = true,
            Fault::LoseReply => (c.flight, c.look_at) = (None, now + 1),
            Fault::LoseMail => (c.mail, c.told_to_look) = (false, NEVER),
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
            Fault::LoseShares => self.model.shares.ends = Expiring::default(),
            Fault::LoseTerms => self.model.shares.forget_terms(),
            Fault::ForeignDel => {
                self.model.lock = None;
                self.void();
            }
            Fault::Flush => {
                let listening = std::mem::take(&mut self.model.listening);
                let (now_us, shares) = (self.model.now_us, setting.shares());
                self.model = Model { now_us, listening, drops: setting.drops, shares, ..Model::default() };
                self.void();
            }
        }
    }

    /// An outsider takes the lock from whoever has it, knows it or is about to hear it. With the queue
    /// gone too, nobody can be overtaken before being in line again.
    fn void(&mut self) {
        let flushed = self.model.fence.is_none();
        for c in &mut self.clients {
            let granted =
                c.flight.is_some_and(|f| matches!(f.reply, Some(Reply::Yes(_))) && f.request != Request::Release);
            c.voided |= granted || c.phase == Phase::Holding;
            if flushed {
                c.owed = 0;
            }
        }
    }
}
