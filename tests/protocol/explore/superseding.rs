//! The search with waiters of which only the newest stays, among others, and rules with a fault.

use super::world::{Fault, Scripts, Setting};
use super::{fails, passes, prompt, setting};
use crate::keys::Server;
use crate::machine::Mode::Queue;
use crate::machine::{Op, Reply, Request, Word};
use crate::token::Token;

const PLAIN: Token = Token::exclusive(0);
const NEWEST: Token = Token { is_newest: true, ..PLAIN };
const NEWEST_OF_TWO: Token = Token { is_newest: true, ..Token::sharing(0, 2) };

const ALL: &[Fault] = &[Fault::Crash, Fault::Freeze, Fault::LoseReply, Fault::LoseMail, Fault::ForeignDel];

fn superseding(tokens: &[Token], faults: &'static [Fault], at_most: u8) -> Setting {
    let modes = vec![Queue; tokens.len()];
    Setting { tokens: tokens.to_vec(), ..prompt(&modes, faults, at_most) }
}

#[test]
fn only_the_newest_waits_through_any_delay_and_any_fault() {
    let any_delay = setting(&[Queue, Queue], ALL, 1);
    passes("two that supersede, any delay", &Setting { tokens: vec![NEWEST, NEWEST], ..any_delay });
}

#[test]
fn only_the_newest_waits_through_any_fault() {
    passes("three that supersede", &superseding(&[NEWEST, NEWEST, NEWEST], ALL, 1));
    passes("two that supersede, and another", &superseding(&[NEWEST, NEWEST, PLAIN], ALL, 1));
    passes("three that supersede for two slots", &superseding(&[NEWEST_OF_TWO; 3], ALL, 1));
    passes("two twice, one crash", &Setting { sessions: 2, ..superseding(&[NEWEST, NEWEST], &[Fault::Crash], 1) });
}

fn three(scripts: Scripts) -> Setting {
    Setting { scripts, ..superseding(&[NEWEST, NEWEST, NEWEST], &[Fault::LoseMail], 1) }
}

#[test]
fn one_that_was_dismissed_and_is_let_in_is_noticed() {
    fn acquire(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        if let Op::Acquire(Request { token, .. }) = op
            && server.lock.superseding.noted.remove(token).is_some()
        {
            server.lock.superseding.dismissed = None;
        }
        server.step(op)
    }
    fails(&three(acquire), "was dismissed, and is there again");
}

#[test]
fn one_that_is_dismissed_and_keeps_its_place_is_noticed() {
    fn acquire(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        let before = server.lock.queue.clone();
        let reply = server.step(op);
        if let Op::Acquire(_) = op {
            let lock = &mut server.lock;
            let gone = before.into_iter().filter(|w| lock.superseding.noted.contains_key(&w.token));
            lock.queue.extend(gone);
            lock.queue.sort_by_key(|waiter| (waiter.ticket, waiter.token));
            lock.queue.dedup();
        }
        reply
    }
    fails(&three(acquire), "two that supersede wait");
}

#[test]
fn one_that_is_not_told_of_its_dismissal_is_noticed() {
    fn acquire(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        let reply = server.step(op);
        server.around.said.retain(|(_, word)| *word != Word::Superseded);
        reply
    }
    let silent = Setting { heartbeat: None, lease: super::ENDLESS, ..three(acquire) };
    fails(&silent, "stays free while somebody waits");
    passes(
        "three that supersede, by words alone",
        &Setting { scripts: Server::step, faults: &[], at_most: 0, ..silent },
    );
}
