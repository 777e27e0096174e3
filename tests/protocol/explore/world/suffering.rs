//! What each fault does to a world, and whose belief it makes void.

use super::STALE;
use super::{Client, FOREIGN, Fault, NEVER, Phase, Reply, Request, Setting, TTL, World};
use crate::machine::{Op, Renewal};

impl World {
    pub(super) fn suffer(&mut self, fault: Fault, i: usize, setting: &Setting) {
        self.faults += 1;
        let now = self.server.now();
        let c = &mut self.clients[i];
        match fault {
            Fault::Crash | Fault::HolderCrashes => {
                self.server.around.listening.remove(&c.token);
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
                let renewal = Renewal { token: &c.token, ttl, prolongs: false, beside_setnx: setting.beside_setnx };
                (setting.scripts)(&mut self.server, &Op::Renew(renewal));
                self.deliver();
            }
            Fault::RenewByVerb => {
                let beside_setnx = setting.beside_setnx;
                let renewal = Renewal { token: &c.token, ttl: 1, prolongs: true, beside_setnx };
                (setting.scripts)(&mut self.server, &Op::Renew(renewal));
                self.deliver();
            }
            Fault::ForeignSet => self.server.set(FOREIGN, Some(now + TTL)),
            Fault::WriteOver => self.server.set(STALE, None),
            Fault::LoseShares => self.server.lose_shares(),
            Fault::LoseTerms => self.server.lose_terms(),
            Fault::ForeignDel => {
                self.server.lose_lock();
                self.void();
            }
            Fault::Flush => {
                self.server.flush();
                self.void();
            }
        }
        self.server.expire();
    }

    /// An outsider takes the lock from whoever has it, knows it or is about to hear it. With the queue
    /// gone too, nobody can be overtaken before being in line again.
    fn void(&mut self) {
        let flushed = self.server.lock.fence == 0;
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
