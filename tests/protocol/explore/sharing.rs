//! The search with shares: limits that differ, a writer among them, and scripts with a fault.

use super::world::{ENDLESS, Fault, Scripts, Setting};
use super::{fails, passes, prompt};
use crate::keys::Server;
use crate::machine::Mode::{Once, Plain, Queue};
use crate::machine::{Holder, Op, Renewal, Reply, Request, Verdict};
use crate::token::{Token, UNKNOWN};

const WRITER: Token = Token::exclusive(0);
const READER: Token = Token::sharing(0, 0);
const TWO: Token = Token::sharing(0, 2);
const THREE: Token = Token::sharing(0, 3);

const ALL: &[Fault] = &[
    Fault::Crash,
    Fault::Freeze,
    Fault::LoseReply,
    Fault::LoseMail,
    Fault::ForeignSet,
    Fault::ForeignDel,
    Fault::Flush,
    Fault::RenewByVerb,
    Fault::LoseShares,
    Fault::LoseTerms,
];

fn sharing(tokens: &[Token], faults: &'static [Fault], at_most: u8) -> Setting {
    let modes = vec![Queue; tokens.len()];
    Setting { tokens: tokens.to_vec(), ..prompt(&modes, faults, at_most) }
}

#[test]
fn a_writer_and_a_share_survive_any_delay_and_any_fault() {
    for share in [READER, TWO] {
        passes("a writer and a share, any delay", &Setting { prompt: false, ..sharing(&[WRITER, share], ALL, 1) });
    }
}

#[test]
fn readers_and_a_writer_survive_any_fault() {
    passes("writer and readers", &sharing(&[WRITER, READER, READER], ALL, 1));
}

#[test]
fn slots_and_a_writer_survive_any_fault() {
    passes("writer and slots", &sharing(&[WRITER, TWO, TWO], ALL, 1));
}

#[test]
fn slots_survive_any_fault() {
    passes("three for two slots", &sharing(&[TWO, TWO, TWO], ALL, 1));
}

#[test]
fn limits_that_differ_survive_any_fault() {
    passes("two, three and any number", &sharing(&[TWO, THREE, READER], ALL, 1));
}

#[test]
fn one_who_does_not_queue_disturbs_no_shares() {
    for mode in [Once, Plain] {
        let modes = vec![Queue, Queue, mode];
        passes("a writer, a slot and a slot out of line", &Setting { modes, ..sharing(&[WRITER, TWO, TWO], ALL, 1) });
    }
}

#[test]
fn calls_that_let_in_one_each_let_in_all() {
    let one_a_call = |tokens| Setting { batch: Some(1), ..sharing(tokens, &[Fault::Freeze], 1) };
    passes("writer and readers, one a call", &one_a_call(&[WRITER, READER, READER]));
    passes("three for two slots, one a call", &one_a_call(&[TWO, TWO, TWO]));
}

/// Only the first waiter watches an expiry, and none polls.
fn words_only(tokens: &[Token], faults: &'static [Fault], at_most: u8, scripts: Scripts) -> Setting {
    Setting { heartbeat: None, watchers: 1, lease: ENDLESS, scripts, ..sharing(tokens, faults, at_most) }
}

const DEATHS: &[Fault] = &[Fault::Crash, Fault::Freeze];
const NEARER: &[Fault] = &[Fault::Lengthen, Fault::Shorten, Fault::HolderCrashes];
const FAR: &[Fault] = &[Fault::Lengthen, Fault::HolderCrashes];

#[test]
fn no_word_about_shares_is_missing() {
    passes("three for two slots", &words_only(&[TWO, TWO, TWO], DEATHS, 1, Server::step));
    passes("three for two slots, for long", &words_only(&[TWO, TWO, TWO], FAR, 3, Server::step));
    passes("writer and readers", &words_only(&[WRITER, READER, READER], DEATHS, 1, Server::step));
    passes("writer and slots", &words_only(&[WRITER, TWO, TWO], DEATHS, 1, Server::step));
}

#[test]
fn an_end_of_all_shares_that_moves_nearer_keeps_nobody_waiting() {
    passes("a slot and a writer, a shorter ttl", &words_only(&[TWO, WRITER], NEARER, 3, Server::step));
    passes("slots and a writer, a longer ttl", &words_only(&[TWO, TWO, WRITER], FAR, 2, Server::step));
}

fn is_running(server: &Server, token: &Token) -> bool {
    let now = server.now();
    server.lock.holders.get(token).is_some_and(|holder| holder.end.is_none_or(|end| end > now))
}

/// Changes the grant that a reply contains.
fn in_reply(reply: &mut Reply<Token>, change: impl FnOnce(&mut u64, &mut Option<u16>)) {
    if let Verdict::Granted(grant) = &mut reply.verdict {
        change(&mut grant.fence, &mut grant.slot);
    }
}

#[test]
fn a_shorter_ttl_of_a_share_that_nobody_is_told_of_is_noticed() {
    fn renew(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        let reply = server.step(op);
        if let Op::Renew(_) = op {
            server.around.said.clear();
        }
        reply
    }
    fails(&words_only(&[TWO, WRITER], NEARER, 3, renew), "stays free while somebody waits");
}

#[test]
fn a_release_of_a_share_that_serves_nobody_is_noticed() {
    fn release(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        let Op::Release { token, .. } = op else { return server.step(op) };
        if server.lock.holders.len() < 2 || !is_running(server, token) {
            return server.step(op);
        }
        let (queue, until) = (std::mem::take(&mut server.lock.queue), server.queue_until);
        let reply = server.step(op);
        (server.lock.queue, server.queue_until) = (queue, until);
        reply
    }
    fails(&words_only(&[TWO, TWO, TWO], FAR, 3, release), "room is left while somebody waits");
}

#[test]
fn readers_that_pass_a_writer_are_noticed() {
    fn acquire(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        match op {
            Op::Acquire(request) if server.lock.generation.is_some() && request.token.limit == 0 => {
                server.step(&Op::Acquire(Request { mode: Plain, ..request.clone() }))
            }
            _ => server.step(op),
        }
    }
    fails(&Setting { scripts: acquire, ..sharing(&[WRITER, READER, READER], &[], 0) }, "was overtaken by");
}

#[test]
fn a_claim_that_keeps_the_end_of_the_grace_is_noticed() {
    fn acquire(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        let Op::Acquire(Request { token, .. }) = op else { return server.step(op) };
        let reserved = server.lock.holders.get(token).filter(|holder| holder.reserved.is_some() && holder.limit != 1);
        let end = reserved.map(|holder| holder.end).filter(|_| is_running(server, token));
        let reply = server.step(op);
        if let (Some(end), Some(holder)) = (end, server.lock.holders.get_mut(token)) {
            holder.end = end;
        }
        reply
    }
    let setting = sharing(&[TWO, READER, READER, READER], &[], 0);
    fails(&Setting { scripts: acquire, ..setting }, "3 hold the lock, which 2 may");
}

/// A share whose lease is over is remembered (in a field that is of no use here), and claimed.
#[test]
fn a_share_that_is_over_and_comes_in_without_room_is_noticed() {
    fn acquire(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        let over: Vec<Token> = server.lock.holders.keys().copied().filter(|token| !is_running(server, token)).collect();
        let (now, now_us) = (server.now(), server.around.now_us);
        if let Op::Acquire(Request { token, .. }) = op
            && server.lock.asked.contains_key(&token.who)
            && server.lock.generation.is_some()
            && !is_running(server, token)
        {
            let (fence, slot) = (now_us, (token.limit > 0).then_some(0));
            server.lock.fence = fence;
            let limit = token.limit;
            let again = Holder { end: Some(now + 1), limit, fence, slot, since: 0, reserved: None };
            server.lock.holders.insert(**token, again);
        }
        let reply = server.step(op);
        if server.lock.generation.is_some() {
            server.lock.asked.extend(over.into_iter().map(|token| (token.who, token)));
        }
        reply
    }
    let faults = &[Fault::LoseReply, Fault::Freeze];
    let setting = sharing(&[TWO, READER, READER], faults, 2);
    fails(&Setting { scripts: acquire, ..setting }, "3 hold the lock, which 2 may");
}

#[test]
fn a_renewal_of_a_share_whatever_the_lock_holds_is_noticed() {
    fn renew(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        let mut reply = server.step(op);
        if let Op::Renew(Renewal { token, .. }) = op
            && token.limit != 1
        {
            reply.verdict = Verdict::Kept { asked_by: None, put_back: false };
        }
        reply
    }
    let setting = sharing(&[WRITER, TWO, TWO], &[Fault::ForeignDel], 1);
    fails(&Setting { scripts: renew, ..setting }, "two hold the lock");
}

#[test]
fn a_late_release_that_drops_the_share_of_another_is_noticed() {
    fn release(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        let Op::Release { token, .. } = op else { return server.step(op) };
        let other = server.lock.holders.keys().copied().find(|other| is_running(server, other));
        let is_late = token.limit != 1 && server.lock.generation.is_some() && !is_running(server, token);
        let token = other.filter(|_| is_late).unwrap_or(**token);
        server.step(&Op::Release { token: &token, by: None, keeps: None, record: None })
    }
    let setting = sharing(&[WRITER, TWO, TWO], &[Fault::Freeze], 1);
    fails(&Setting { scripts: release, ..setting }, "two hold the lock");
}

#[test]
fn a_slot_that_stays_counted_after_its_lease_is_noticed() {
    fn acquire(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        let before = server.lock.holders.clone();
        let mut reply = server.step(op);
        let taken: Vec<u16> = before.values().filter_map(|holder| holder.slot).collect();
        if let Op::Acquire(Request { token, .. }) = op
            && !before.contains_key(token)
            && let Some(holder) = server.lock.holders.get_mut(token)
            && holder.slot.is_some_and(|slot| taken.contains(&slot))
        {
            let free = (0..).find(|slot| !taken.contains(slot));
            holder.slot = free;
            in_reply(&mut reply, |_, slot| *slot = free);
        }
        reply
    }
    let setting = sharing(&[TWO; 3], &[Fault::Crash], 1);
    fails(&Setting { scripts: acquire, ..setting }, "was granted the slot");
}

#[test]
fn a_least_limit_that_stays_counted_after_its_lease_is_noticed() {
    fn acquire(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        let limits = server.lock.holders.values().map(|holder| holder.limit).filter(|limit| *limit > 0);
        let before = limits.min();
        let mut reply = server.step(op);
        if let (Some(before), Verdict::Waiting(_)) = (before, &reply.verdict) {
            reply.state.least = before;
        }
        reply
    }
    let faults = &[Fault::LoseReply, Fault::Freeze];
    let setting = sharing(&[TWO, THREE, READER], faults, 2);
    fails(&Setting { scripts: acquire, ..setting }, "was told of");
}

#[test]
fn shares_that_are_lost_and_taken_for_nobodys_are_noticed() {
    fn acquire(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        if server.lock.holders.contains_key(&UNKNOWN) {
            server.lose_lock();
        }
        server.step(op)
    }
    let setting = sharing(&[TWO, READER, READER], &[Fault::LoseShares], 1);
    fails(&Setting { scripts: acquire, ..setting }, "3 hold the lock, which 2 may");
}

#[test]
fn terms_that_are_lost_and_taken_for_those_of_slot_0_are_noticed() {
    fn acquire(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        if let Op::Acquire(Request { token, .. }) = op
            && server.unknown.remove(token)
            && let Some(holder) = server.lock.holders.get_mut(token)
        {
            let fence = server.around.now_us;
            server.lock.fence = fence;
            (holder.slot, holder.fence) = (Some(0), fence);
        }
        server.step(op)
    }
    let faults = &[Fault::LoseReply, Fault::LoseTerms];
    let setting = sharing(&[TWO; 3], faults, 2);
    fails(&Setting { scripts: acquire, ..setting }, "two have slot 0");
}

#[test]
fn slots_that_have_the_fence_of_their_generation_are_noticed() {
    fn acquire(server: &mut Server, op: &Op<'_, Token>) -> Reply<Token> {
        let (last, generation) = (server.lock.fence, server.lock.generation);
        let mut reply = server.step(op);
        if let Some(generation) = generation.filter(|_| server.lock.generation == generation) {
            server.lock.holders.values_mut().for_each(|holder| holder.fence = generation);
            server.lock.fence = last;
            in_reply(&mut reply, |fence, _| *fence = generation);
        }
        reply
    }
    fails(&Setting { scripts: acquire, ..sharing(&[TWO; 3], &[], 0) }, "did not rise");
}
