//! The search with waiters that go first, among others, and rules with a fault.

use super::world::{Fault, Scripts, Setting};
use super::{fails, passes, prompt, setting};
use crate::keys::Server;
use crate::machine::Mode::{Once, Queue};
use crate::machine::{Mode, Op, Reply};
use crate::token::Token;

const PLAIN: Token = Token::exclusive(0);
const FIRST: Token = Token { is_first: true, ..PLAIN };
const READER: Token = Token::sharing(0, 0);
const FIRST_READER: Token = Token { is_first: true, ..READER };
const FIRST_OF_TWO: Token = Token { is_first: true, ..Token::sharing(0, 2) };
const FIRST_AND_NEWEST: Token = Token { is_newest: true, ..FIRST };
const NEWEST: Token = Token { is_newest: true, ..PLAIN };

const ALL: &[Fault] =
    &[Fault::Crash, Fault::Freeze, Fault::LoseReply, Fault::LoseMail, Fault::ForeignDel, Fault::Flush];

/// A server that is emptied forgets who was dismissed.
const SUPERSEDING: &[Fault] = &[Fault::Crash, Fault::Freeze, Fault::LoseReply, Fault::LoseMail, Fault::ForeignDel];

fn of(modes: &[Mode], tokens: &[Token], at_most: u8) -> Setting {
    Setting { tokens: tokens.to_vec(), ..prompt(modes, ALL, at_most) }
}

#[test]
fn one_that_goes_first_is_before_the_others_through_any_delay_and_any_fault() {
    let any_delay = setting(&[Queue, Queue], ALL, 1);
    passes(
        "one that goes first and one that does not, any delay",
        &Setting { tokens: vec![FIRST, PLAIN], ..any_delay },
    );
}

#[test]
fn those_that_go_first_keep_their_order_and_the_others_theirs() {
    passes("two that go first, and another", &of(&[Queue; 3], &[FIRST, FIRST, PLAIN], 1));
    passes("one that goes first, and two others", &of(&[Queue; 3], &[FIRST, PLAIN, PLAIN], 1));
    passes("one that does not wait goes first", &of(&[Queue, Queue, Once], &[PLAIN, PLAIN, FIRST], 1));
}

#[test]
fn one_that_supersedes_may_go_first() {
    let tokens = &[FIRST_AND_NEWEST, NEWEST, PLAIN];
    passes("one that supersedes goes first", &Setting { faults: SUPERSEDING, ..of(&[Queue; 3], tokens, 1) });
}

#[test]
fn one_that_goes_first_shares_a_lock_as_any_other() {
    passes("readers, of which one goes first, and a writer", &of(&[Queue; 3], &[FIRST_READER, READER, PLAIN], 1));
    passes("two slots, one for the first", &of(&[Queue; 3], &[FIRST_OF_TWO, Token::sharing(0, 2), PLAIN], 1));
    passes("a reader that does not wait goes first", &of(&[Queue, Queue, Once], &[READER, PLAIN, FIRST_READER], 1));
}

fn broken(scripts: Scripts) -> Setting {
    Setting { scripts, faults: &[], ..of(&[Queue; 3], &[FIRST, PLAIN, PLAIN], 0) }
}

#[test]
fn a_class_that_does_not_count_is_noticed() {
    fn acquire(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        let reply = server.step(op);
        server.lock.queue.sort_by_key(|waiter| waiter.ticket);
        reply
    }
    fails(&broken(acquire), "was overtaken by");
}

#[test]
fn one_that_goes_first_and_is_last_of_its_kind_is_noticed() {
    fn acquire(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        let reply = server.step(op);
        server.lock.queue.sort_by_key(|waiter| (!waiter.token.is_first, u64::MAX - waiter.ticket));
        reply
    }
    fails(&broken(acquire), "was overtaken by");
}
