//! The search with shares: limits that differ, a writer among them, and scripts with a fault.

use super::world::{ENDLESS, Fault, SHARING, Server, Setting};
use super::{fails, passes, prompt};
use crate::model::Mode::{Once, Plain, Queue};
use crate::model::{Acquired, Ask, FENCE_MS, Model, Released, Renewed, Token, Word};
use crate::shares::{SHARED, Terms, limit};

type Limit = Option<usize>;

const WRITER: Limit = None;
const READER: Limit = Some(0);
const TWO: Limit = Some(2);
const THREE: Limit = Some(3);

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

fn sharing(limits: &[Limit], faults: &'static [Fault], at_most: u8) -> Setting {
    let modes = vec![Queue; limits.len()];
    Setting { limits: limits.to_vec(), server: SHARING, ..prompt(&modes, faults, at_most) }
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
    let one_a_call = |limits| Setting { batch: Some(1), ..sharing(limits, &[Fault::Freeze], 1) };
    passes("writer and readers, one a call", &one_a_call(&[WRITER, READER, READER]));
    passes("three for two slots, one a call", &one_a_call(&[TWO, TWO, TWO]));
}

/// Only the first waiter watches an expiry, and none polls.
fn words_only(limits: &[Limit], faults: &'static [Fault], at_most: u8, server: Server) -> Setting {
    Setting { heartbeat: None, watchers: 1, lease: ENDLESS, server, ..sharing(limits, faults, at_most) }
}

const DEATHS: &[Fault] = &[Fault::Crash, Fault::Freeze];
const NEARER: &[Fault] = &[Fault::Lengthen, Fault::Shorten, Fault::HolderCrashes];
const FAR: &[Fault] = &[Fault::Lengthen, Fault::HolderCrashes];

#[test]
fn no_word_about_shares_is_missing() {
    passes("three for two slots", &words_only(&[TWO, TWO, TWO], DEATHS, 1, SHARING));
    passes("three for two slots, for long", &words_only(&[TWO, TWO, TWO], FAR, 3, SHARING));
    passes("writer and readers", &words_only(&[WRITER, READER, READER], DEATHS, 1, SHARING));
    passes("writer and slots", &words_only(&[WRITER, TWO, TWO], DEATHS, 1, SHARING));
}

#[test]
fn an_end_of_all_shares_that_moves_nearer_keeps_nobody_waiting() {
    passes("a slot and a writer, a shorter ttl", &words_only(&[TWO, WRITER], NEARER, 3, SHARING));
    passes("slots and a writer, a longer ttl", &words_only(&[TWO, TWO, WRITER], FAR, 2, SHARING));
}

fn is_running(model: &Model, token: Token) -> bool {
    model.shares.ends.is.get(&token).is_some_and(|end| *end > model.now())
}

#[test]
fn an_end_of_all_shares_that_moves_nearer_untold_is_noticed() {
    fn release(model: &mut Model, token: Token) -> Released {
        let is_share = is_running(model, token);
        let answer = (SHARING.release)(model, token);
        if is_share && model.value() == Some(SHARED) {
            model.said.retain(|(_, word)| *word != Word::Look);
        }
        answer
    }
    let server = Server { release, ..SHARING };
    fails(&words_only(&[TWO, TWO, WRITER], FAR, 2, server), "stays free while somebody waits");
}

#[test]
fn a_shorter_ttl_of_a_share_that_nobody_is_told_of_is_noticed() {
    fn renew(model: &mut Model, token: Token, ttl: u64, prolong: bool) -> Renewed {
        let answer = (SHARING.renew)(model, token, ttl, prolong);
        model.said.clear();
        answer
    }
    fails(&words_only(&[TWO, WRITER], NEARER, 3, Server { renew, ..SHARING }), "stays free while somebody waits");
}

#[test]
fn a_release_of_a_share_that_serves_nobody_is_noticed() {
    fn release(model: &mut Model, token: Token) -> Released {
        let others = model.shares.ends.is.len() > 1 && is_running(model, token);
        if !others {
            return (SHARING.release)(model, token);
        }
        let (queue, waiters) = (model.queue.clone(), model.waiters.clone());
        (model.queue.is, model.waiters.is) = Default::default();
        let answer = (SHARING.release)(model, token);
        (model.queue, model.waiters) = (queue, waiters);
        answer
    }
    fails(&words_only(&[TWO, TWO, TWO], FAR, 3, Server { release, ..SHARING }), "room is left while somebody waits");
}

#[test]
fn readers_that_pass_a_writer_are_noticed() {
    fn acquire(model: &mut Model, ask: &Ask) -> Acquired {
        let joins = model.value() == Some(SHARED) && limit(ask.token) == Some(0);
        (SHARING.acquire)(model, &Ask { mode: if joins { Plain } else { ask.mode }, ..ask.clone() })
    }
    let server = Server { acquire, ..SHARING };
    fails(&Setting { server, ..sharing(&[WRITER, READER, READER], &[], 0) }, "was overtaken by");
}

#[test]
fn a_claim_that_keeps_the_end_of_the_grace_is_noticed() {
    fn acquire(model: &mut Model, ask: &Ask) -> Acquired {
        let is_reserved = model.shares.terms.is.get(&ask.token).is_some_and(|terms| terms.reserved);
        let end = model.shares.ends.is.get(&ask.token).copied().filter(|_| is_reserved && is_running(model, ask.token));
        let answer = (SHARING.acquire)(model, ask);
        if let Some(end) = end {
            model.shares.ends.is.insert(ask.token, end);
        }
        answer
    }
    let server = Server { acquire, ..SHARING };
    fails(&Setting { server, ..sharing(&[TWO, READER, READER, READER], &[], 0) }, "3 hold the lock, which 2 may");
}

/// A share whose lease is over keeps its terms, and is claimed by them.
#[test]
fn a_share_that_is_over_and_comes_in_without_room_is_noticed() {
    fn acquire(model: &mut Model, ask: &Ask) -> Acquired {
        let known = model.shares.terms.is.clone();
        let is_shared = model.value() == Some(SHARED);
        if is_shared && known.contains_key(&ask.token) && !is_running(model, ask.token) {
            model.shares.ends.is.insert(ask.token, model.now() + 1);
            model.bump(FENCE_MS);
            let fence = model.fence();
            model.shares.terms.is.get_mut(&ask.token).unwrap().fence = fence;
        }
        let answer = (SHARING.acquire)(model, ask);
        if is_shared && model.value() == Some(SHARED) {
            for (token, terms) in known {
                model.shares.terms.is.entry(token).or_insert(terms);
            }
        }
        answer
    }
    let server = Server { acquire, ..SHARING };
    let faults = &[Fault::LoseReply, Fault::Freeze];
    fails(&Setting { server, ..sharing(&[TWO, READER, READER], faults, 2) }, "3 hold the lock, which 2 may");
}

#[test]
fn a_renewal_of_a_share_whatever_the_lock_holds_is_noticed() {
    fn renew(model: &mut Model, token: Token, ttl: u64, prolong: bool) -> Renewed {
        if is_running(model, token) {
            model.shares.ends.is.insert(token, model.now() + ttl);
            return Renewed::Yes;
        }
        (SHARING.renew)(model, token, ttl, prolong)
    }
    let server = Server { renew, ..SHARING };
    fails(&Setting { server, ..sharing(&[WRITER, TWO, TWO], &[Fault::ForeignDel], 1) }, "two hold the lock");
}

#[test]
fn a_late_release_that_drops_the_share_of_another_is_noticed() {
    fn release(model: &mut Model, token: Token) -> Released {
        let other = model.shares.ends.is.keys().copied().find(|other| is_running(model, *other));
        let is_late = limit(token).is_some() && model.value() == Some(SHARED) && !is_running(model, token);
        (SHARING.release)(model, other.filter(|_| is_late).unwrap_or(token))
    }
    let server = Server { release, ..SHARING };
    fails(&Setting { server, ..sharing(&[WRITER, TWO, TWO], &[Fault::Freeze], 1) }, "two hold the lock");
}

#[test]
fn a_slot_that_stays_counted_after_its_lease_is_noticed() {
    fn acquire(model: &mut Model, ask: &Ask) -> Acquired {
        let over: Vec<Token> = model.shares.ends.is.keys().copied().filter(|t| !is_running(model, *t)).collect();
        for token in over {
            if let Some(terms) = model.shares.terms.is.get_mut(&token) {
                terms.slot = None;
            }
        }
        (SHARING.acquire)(model, ask)
    }
    let server = Server { acquire, ..SHARING };
    fails(&Setting { server, ..sharing(&[TWO; 3], &[Fault::Crash], 1) }, "was granted the slot");
}

fn with_a_least_limit_that_stays(model: &mut Model, ask: &Ask) -> Acquired {
    let over = model.shares.ends.is.keys().filter(|token| !is_running(model, **token));
    let limits: Vec<Limit> = over.map(|token| limit(*token)).collect();
    if let Some(state) = &mut model.shares.state {
        state.many += limits.iter().filter(|limit| **limit == Some(state.least)).count();
    }
    (SHARING.acquire)(model, ask)
}

#[test]
fn a_least_limit_that_stays_counted_after_its_lease_is_noticed() {
    let server = Server { acquire: with_a_least_limit_that_stays, ..SHARING };
    let faults = &[Fault::LoseReply, Fault::Freeze];
    fails(&Setting { server, ..sharing(&[TWO, THREE, READER], faults, 2) }, "was told of");
}

#[test]
fn shares_that_are_lost_and_taken_for_nobodys_are_noticed() {
    fn acquire(model: &mut Model, ask: &Ask) -> Acquired {
        if model.value() == Some(SHARED) && model.shares.ends.is.is_empty() {
            model.lock = None;
        }
        (SHARING.acquire)(model, ask)
    }
    let server = Server { acquire, ..SHARING };
    fails(
        &Setting { server, ..sharing(&[TWO, READER, READER], &[Fault::LoseShares], 1) },
        "3 hold the lock, which 2 may",
    );
}

#[test]
fn terms_that_are_lost_and_taken_for_those_of_slot_0_are_noticed() {
    fn acquire(model: &mut Model, ask: &Ask) -> Acquired {
        let shares = &model.shares;
        if shares.ends.is.contains_key(&ask.token) && !shares.terms.is.contains_key(&ask.token) {
            model.bump(FENCE_MS);
            let terms = Terms { slot: Some(0), fence: model.fence(), since: 0, reserved: false };
            model.shares.terms.is.insert(ask.token, terms);
        }
        (SHARING.acquire)(model, ask)
    }
    let server = Server { acquire, ..SHARING };
    let faults = &[Fault::LoseReply, Fault::LoseTerms];
    fails(&Setting { server, ..sharing(&[TWO; 3], faults, 2) }, "two have slot 0");
}

#[test]
fn slots_that_have_the_fence_of_their_generation_are_noticed() {
    fn acquire(model: &mut Model, ask: &Ask) -> Acquired {
        let fence = model.fence.clone();
        let was_shared = model.value() == Some(SHARED);
        let answer = (SHARING.acquire)(model, ask);
        if let Acquired::Granted { entered: entered @ Some(_), .. } = answer
            && was_shared
        {
            let fence = model.shares.generation;
            model.shares.terms.is.values_mut().for_each(|terms| terms.fence = fence);
            return Acquired::Granted { fence, entered };
        }
        if was_shared {
            model.fence = fence;
        }
        answer
    }
    let server = Server { acquire, ..SHARING };
    fails(&Setting { server, ..sharing(&[TWO; 3], &[], 0) }, "did not rise");
}
