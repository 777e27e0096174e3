//! Locks that several hold together: who may come in, which slot each has, and what ends with one of them.

use std::time::Duration;

use serde_json::Value;

use crate::support::turns::{Turn, is_free, lock_status, queue, queue_is, release};
use crate::support::{Authority, Done, Running, eventually, now};
use nix::sys::signal::Signal;

/// Longer than a wake-up takes on a loaded machine, and no longer than the place of a waiter is kept that was killed.
const SOON: Duration = Duration::from_secs(6);

/// The ways to ask for a lock, and how many may hold it then.
const WAYS: [(&[&str], usize); 4] = [(&[], 1), (&["--slots", "5"], 5), (&["-j", "3"], 3), (&["--shared"], usize::MAX)];

/// The grant to a caller.
struct Grant {
    token: String,
    slot: Option<u64>,
    fence: u64,
}

/// Asks without waiting; returns `None` if the lock is refused.
#[track_caller]
fn asks(authority: &impl Authority, options: &[&str]) -> Option<Grant> {
    let words = ["--json", "acquire", "job", "--ttl", "1m", "-n"].iter().chain(options).copied();
    let done = authority.nxlock(words).run();
    if done.status.code() == Some(75) {
        return None;
    }
    let granted = done.exits(0).json();
    let token = granted["token"].as_str().expect("a token").to_owned();
    Some(Grant { token, slot: granted["slot"].as_u64(), fence: granted["fence"].as_u64().expect("a fence") })
}

#[track_caller]
fn has(authority: &impl Authority, options: &[&str]) -> Grant {
    asks(authority, options).unwrap_or_else(|| panic!("it is refused with {options:?}: {}", lock_status(authority)))
}

#[track_caller]
fn refused(authority: &impl Authority, options: &[&str]) -> Done {
    let words = ["run", "job", "-n"].iter().chain(options).chain(&["--", "echo", "ran"]).copied();
    authority.nxlock(words).run().exits(75).prints("")
}

#[track_caller]
fn give_back(authority: &impl Authority, grants: impl IntoIterator<Item = Grant>) {
    grants.into_iter().for_each(|grant| release(authority, &grant.token));
}

fn id(token: &str) -> String {
    token.split(':').nth(1).expect("a random part")[..8].to_owned()
}

/// Returns a field of each holder, in the order of `status`.
fn holders(authority: &impl Authority, field: &str) -> Vec<Value> {
    let seen = lock_status(authority);
    seen["holders"].as_array().expect("holders").iter().map(|holder| holder[field].clone()).collect()
}

fn taken(authority: &impl Authority) -> u64 {
    lock_status(authority)["taken"].as_u64().expect("a number")
}

/// Starts a run that prints its slot and its fence, and waits until it holds the lock.
#[track_caller]
fn in_slot(authority: &impl Authority, options: &[&str]) -> (Turn, String) {
    let script = "echo \"up ${NXLOCK_SLOT-none}\"; read x; exit 0";
    let mut turn = Turn::of(authority.nxlock([&["run", "job"], options, &["-c", script]].concat()));
    let slot = turn.up();
    (turn, slot)
}

fn is_killed(running: &mut Running) {
    running.signal(Signal::SIGKILL);
    eventually("it is dead", || running.has_ended());
}

pub fn one_more_comes_in_only_if_that_fits_everybody(authority: &impl Authority) {
    for (held_with, limit) in WAYS {
        for (asked_with, own_limit) in WAYS {
            let mut holders: Vec<Grant> = Vec::new();
            while holders.len() < limit.min(5) {
                holders.push(has(authority, held_with));
                let fits = holders.len() < limit.min(own_limit);
                let granted = asks(authority, asked_with);
                let there = holders.len();
                assert_eq!(granted.is_some(), fits, "{asked_with:?} beside {there} with {held_with:?}");
                // While the one that asks for less is there, the smaller number counts for the others too.
                if granted.is_some() {
                    let full = there + 1 >= limit.min(own_limit);
                    let next = asks(authority, held_with);
                    assert_eq!(next.is_none(), full, "{held_with:?} with {asked_with:?} among {}", there + 1);
                    give_back(authority, next);
                }
                give_back(authority, granted);
            }
            give_back(authority, holders);
            assert!(is_free(authority), "{held_with:?}, {asked_with:?}: {}", lock_status(authority));
        }
    }
}

pub fn each_has_the_lowest_slot_that_is_free(authority: &impl Authority) {
    let mut held: Vec<Grant> = (0..3).map(|_| has(authority, &["--slots", "4"])).collect();
    assert_eq!(held.iter().map(|grant| grant.slot).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
    release(authority, &held.remove(1).token);
    for slot in [1, 3] {
        held.push(has(authority, &["--slots", "4"]));
        assert_eq!(held.last().unwrap().slot, Some(slot));
    }
    assert!(asks(authority, &["--slots", "4"]).is_none());
    assert_eq!(holders(authority, "slot"), [0, 1, 2, 3]);
    release(authority, &held.remove(0).token);
    // A reader has no slot, and takes none from others.
    let reader = has(authority, &["--shared"]);
    assert_eq!(reader.slot, None);
    assert!(asks(authority, &["--slots", "4"]).is_none());
    release(authority, &reader.token);
    held.push(has(authority, &["--slots", "4"]));
    assert_eq!(held.last().unwrap().slot, Some(0));
    give_back(authority, held);
}

pub fn a_slot_stays_the_same_for_the_whole_hold(authority: &impl Authority) {
    let first = has(authority, &["--slots", "3"]);
    let (turn, slot) = in_slot(authority, &["--slots", "3", "-t", "12s", "-v"]);
    assert_eq!(slot, "1");
    // The lower slot is free now, and not its own.
    release(authority, &first.token);
    let renewals = || turn.running.stderr().matches("renewed for").count();
    let before = renewals();
    eventually("its lease is renewed", || renewals() > before);
    assert_eq!(holders(authority, "slot"), [1]);
    let token = has(authority, &["--slots", "3"]).token;
    let before = lock_status(authority)["holders"][0].clone();
    assert_eq!(before["slot"], 0);
    authority.nxlock(["renew", "job", &token, "--ttl", "2m"]).run().exits(0);
    let after = lock_status(authority)["holders"][0].clone();
    assert_eq!(
        (&after["slot"], &after["fence"], &after["since"]),
        (&before["slot"], &before["fence"], &before["since"])
    );
    assert!(after["ttl_ms"].as_u64() > Some(60_000), "{after}");
    release(authority, &token);
    turn.leaves();
}

pub fn when_the_least_limit_leaves_the_next_fits_at_once(authority: &impl Authority) {
    let least = has(authority, &["--slots", "2"]);
    let other = has(authority, &["--slots", "5"]);
    let mut next = Turn::queued(authority, &["--slots", "5"]);
    let mut last = Turn::queued(authority, &["--slots", "5"]);
    let seen = lock_status(authority);
    assert_eq!((&seen["taken"], &seen["slots"]), (&2.into(), &2.into()), "{seen}");
    // The end of a lease would let them in too, and later than this test waits.
    release(authority, &least.token);
    next.up();
    last.up();
    let seen = lock_status(authority);
    assert_eq!((&seen["taken"], &seen["slots"]), (&3.into(), &5.into()), "{seen}");
    next.leaves();
    last.leaves();
    release(authority, &other.token);
}

pub fn whoever_asks_for_another_number_is_told_that_the_least_counts(authority: &impl Authority) {
    let least = has(authority, &["--slots", "2"]);
    let other = has(authority, &["--slots", "2"]);
    let mut waiting = Turn::queued(authority, &["--slots", "5"]);
    waiting.running.says("\"job\" is held with 2 slots by others, and 5 were asked for: the least counts");
    release(authority, &least.token);
    waiting.up();
    let seen = authority.nxlock(["--json", "status", "job"]).run().exits(0).json()[0].take();
    assert_eq!(seen["slots"], 2, "{seen}");
    release(authority, &other.token);
    waiting.leaves();
}

pub fn nobody_passes_the_one_who_waits(authority: &impl Authority) {
    let reader = Turn::had(authority, &["--shared"]);
    let mut writer = Turn::queued(authority, &[]);
    let mut behind = Turn::queued(authority, &["--shared"]);
    assert_eq!(queue(authority), [writer.pid(), behind.pid()]);
    refused(authority, &["--shared"]).says("somebody waits for it before you").says("2 others wait");
    refused(authority, &["--slots", "9"]);
    assert!(!behind.is_up() && !writer.is_up());
    // It says that it does not care for the queue.
    let words = ["run", "job", "--shared", "--no-queue", "-n", "--", "echo", "ran"];
    authority.nxlock(words).run().exits(0).prints("ran\n");
    reader.leaves();
    let before: u64 = writer.up().parse().unwrap();
    assert!(!behind.is_up());
    refused(authority, &["--shared", "--no-queue"]);
    writer.leaves();
    let after: u64 = behind.up().parse().unwrap();
    assert!(before < after, "{before}, {after}");
    behind.leaves();
}

pub fn one_that_wants_less_is_waited_for_by_those_behind_it(authority: &impl Authority) {
    let held: Vec<Grant> = (0..3).map(|_| has(authority, &["--slots", "5"])).collect();
    let mut few = Turn::queued(authority, &["--slots", "3"]);
    let mut many = Turn::queued(authority, &["--slots", "5"]);
    // It would fit, and does not pass.
    assert!(!many.is_up());
    let mut held = held.into_iter();
    release(authority, &held.next().unwrap().token);
    few.up();
    queue_is(authority, &[many.pid()]);
    few.leaves();
    many.up();
    many.leaves();
    give_back(authority, held);
}

pub fn all_readers_behind_a_writer_come_in_together(authority: &impl Authority) {
    let mut writer = Turn::had(authority, &[]);
    // A server may take long to reply to so many first connections at once.
    let options = ["--shared", "--server-timeout", "20s"];
    let mut readers: Vec<Turn> =
        (0..40).map(|_| Turn::of(authority.nxlock(crate::support::turns::turn(&options)))).collect();
    eventually("they are in the queue", || queue(authority).len() == 40);
    let last = Turn::queued(authority, &[]);
    writer.is_told();
    readers.iter_mut().for_each(|reader| drop(reader.up()));
    assert_eq!(taken(authority), 40);
    let fences = holders(authority, "fence");
    assert!(fences.iter().all(|fence| *fence == fences[0]), "{fences:?}");
    writer.leaves();
    assert_eq!(queue(authority), [last.pid()]);
    assert!(!last.is_up());
    readers.into_iter().for_each(Turn::leaves);
    last.leaves();
}

pub fn readers_behind_a_writer_come_in_when_it_is_gone(authority: &impl Authority) {
    for end in [Signal::SIGKILL, Signal::SIGTERM] {
        let reader = Turn::had(authority, &["--shared"]);
        let mut writer = Turn::queued(authority, &[]);
        let mut behind = [Turn::queued(authority, &["--shared"]), Turn::queued(authority, &["--shared"])];
        let told = now();
        writer.running.signal(end);
        eventually("it is gone", || writer.running.has_ended());
        behind.iter_mut().for_each(|turn| drop(turn.up()));
        assert!(told.elapsed() < SOON, "{end}: {:?}", told.elapsed());
        assert_eq!(taken(authority), 3);
        behind.into_iter().for_each(Turn::leaves);
        reader.leaves();
    }
}

pub fn the_slot_of_one_that_is_killed_goes_to_the_next(authority: &impl Authority) {
    // The end of its lease would free the slot too, and later than this test waits.
    let mut held: Vec<Turn> = (0..3).map(|_| in_slot(authority, &["--slots", "3", "-t", "10m"]).0).collect();
    let script = "echo \"up $NXLOCK_SLOT\"; read x; exit 0";
    let mut next = Turn::of(authority.nxlock(["run", "job", "--slots", "3", "-c", script])).once_queued(authority);
    let mut killed = held.remove(1);
    is_killed(&mut killed.running);
    assert_eq!(next.up(), "1");
    assert_eq!(holders(authority, "slot"), [0, 1, 2]);
    next.leaves();
    held.into_iter().for_each(Turn::leaves);
}

pub fn breaking_one_share_leaves_the_others_alone(authority: &impl Authority) {
    // The end of the lease would free the slot too, and later than this test waits.
    let mut held: Vec<Turn> = (0..3).map(|_| in_slot(authority, &["--slots", "3", "-t", "10m"]).0).collect();
    let mut next = Turn::queued(authority, &["--slots", "3"]);
    let ids = holders(authority, "id");
    let pids = holders(authority, "pid");
    assert_eq!(pids, held.iter().map(Turn::pid).collect::<Vec<_>>());
    let broken = ids[1].as_str().unwrap();
    authority.nxlock(["release", "job", "--break", broken]).run().exits(0).says("broke \"job\"");
    next.up();
    authority.nxlock(["release", "job", "--break", broken]).run().exits(76);
    held.remove(1).finish().exits(76).says("lost");
    let left = holders(authority, "pid");
    assert_eq!(left, [held[0].pid(), next.pid(), held[1].pid()]);
    assert!(held.iter_mut().all(|turn| !turn.running.has_ended()));
    held.into_iter().for_each(Turn::leaves);
    next.leaves();
}

pub fn a_share_is_renewed_and_given_back_by_its_own_token(authority: &impl Authority) {
    for options in [&["--shared"][..], &["--slots", "3"]] {
        let [first, second] = [has(authority, options), has(authority, options)];
        let lease = |grant: &Grant| {
            let seen = lock_status(authority);
            let all = seen["holders"].as_array().unwrap();
            let own = all.iter().find(|holder| holder["id"] == id(&grant.token)).cloned();
            own.map(|holder| holder["ttl_ms"].as_u64().unwrap())
        };
        authority.nxlock(["renew", "job", &first.token, "--ttl", "10m"]).run().exits(0);
        assert!(lease(&first) > Some(500_000) && lease(&second) <= Some(60_000));
        assert!(lock_status(authority)["ttl_ms"].as_u64() > Some(500_000));
        authority.nxlock(["renew", "job", &first.token, "--ttl", "30s"]).run().exits(0);
        assert!(lease(&first) <= Some(30_000) && lease(&second) > Some(30_000));
        release(authority, &first.token);
        for verb in [&["release", "job", &first.token][..], &["renew", "job", &first.token, "--ttl", "1m"]] {
            authority.nxlock(verb.iter().copied()).run().exits(76);
        }
        assert_eq!((lease(&first), taken(authority)), (None, 1));
        authority.nxlock(["renew", "job", &second.token, "--ttl", "1m"]).run().exits(0);
        release(authority, &second.token);
        assert!(is_free(authority));
    }
}

pub fn each_share_ends_with_its_own_lease(authority: &impl Authority) {
    let long = has(authority, &["--slots", "2"]);
    let words = ["acquire", "job", "--slots", "2", "--ttl", "5s"];
    let short = authority.nxlock(words).run().exits(0).token();
    // The other lease ends later than this test waits.
    let mut next = Turn::of(authority.nxlock(crate::support::turns::turn(&["--slots", "2"])));
    next.up();
    assert_eq!(holders(authority, "slot"), [0, 1]);
    authority.nxlock(["renew", "job", &short, "--ttl", "1m"]).run().exits(76);
    next.leaves();
    release(authority, &long.token);
    // A writer waits for the longest.
    let began = now();
    for ttl in ["5s", "300ms"] {
        authority.nxlock(["acquire", "job", "--shared", "--ttl", ttl]).run().exits(0);
    }
    let mut writer = Turn::of(authority.nxlock(crate::support::turns::turn(&[])));
    writer.up();
    // Less one per cent: no clock is exact.
    assert!(began.elapsed() >= Duration::from_millis(4950), "{:?}", began.elapsed());
    writer.leaves();
    // At a server, the next share removes what is left of those that nobody gave back.
    let next = has(authority, &["--shared"]);
    release(authority, &next.token);
}

pub fn a_slot_stays_taken_for_at_least_as_long_as_asked_for(authority: &impl Authority) {
    let words = ["run", "job", "--slots", "2", "--at-least", "1m", "--", "true"];
    authority.nxlock(words).run().exits(0);
    let other = has(authority, &["--slots", "2"]);
    assert_eq!(other.slot, Some(1));
    assert!(asks(authority, &["--slots", "2"]).is_none());
    let ids = holders(authority, "id");
    authority.nxlock(["release", "job", "--break", ids[0].as_str().unwrap()]).run().exits(0);
    assert_eq!(taken(authority), 1);
    release(authority, &other.token);
}

pub fn fences_rise_for_each_slot_and_from_one_generation_to_the_next(authority: &impl Authority) {
    let before = has(authority, &[]);
    release(authority, &before.token);
    let slots = ["--slots", "2"];
    let [a, b] = [has(authority, &slots), has(authority, &slots)];
    assert!(before.fence < a.fence && a.fence < b.fence);
    release(authority, &a.token);
    let c = has(authority, &slots);
    assert!(c.slot == a.slot && c.fence > a.fence);
    let highest = b.fence.max(c.fence);
    give_back(authority, [b, c]);
    let writer = has(authority, &[]);
    assert!(writer.fence > highest);
    release(authority, &writer.token);
    let [first, second] = [has(authority, &["--shared"]), has(authority, &["--shared"])];
    assert!(first.fence > writer.fence && first.fence == second.fence);
    // Without a break, it is the same generation.
    release(authority, &first.token);
    let third = has(authority, &["--shared"]);
    assert_eq!(third.fence, second.fence);
    let fence = third.fence;
    give_back(authority, [second, third]);
    let writer = has(authority, &[]);
    assert!(writer.fence > fence);
    release(authority, &writer.token);
    let reader = has(authority, &["--shared"]);
    assert!(reader.fence > writer.fence);
    release(authority, &reader.token);
}

const WAITS_FOR_ITSELF: &str = "\"job\" is already held by this script";

pub fn within_a_share_a_further_one_is_granted_at_once_or_not_at_all(authority: &impl Authority) {
    let within =
        |options: &[&str], script: &str| authority.nxlock([&["run", "job"], options, &["-c", script]].concat()).run();
    let shared = &["--shared"][..];
    within(shared, "nxlock run job --shared -- echo ran").exits(0).prints("ran\n");
    let slot = "nxlock run job --slots 2 -c 'echo $NXLOCK_SLOT'";
    within(&["--slots", "2"], slot).exits(0).prints("1\n");
    // Two slots, and both are taken by this script itself.
    let full = "nxlock run job --slots 2 -c 'nxlock run job --slots 2 -- echo ran'";
    within(&["--slots", "2"], full).exits(75).prints("").says(WAITS_FOR_ITSELF).says("release that share first");
    for alone in ["nxlock run job -- echo ran", "nxlock acquire job --ttl 1m -w 1h"] {
        within(shared, alone).exits(75).prints("").says(WAITS_FOR_ITSELF).says("release that share first");
    }
    within(shared, "nxlock run job -E 9 -- echo ran").exits(9).prints("").says(WAITS_FOR_ITSELF);
    within(&[], "nxlock run job --shared -- echo ran").exits(75).prints("").says(WAITS_FOR_ITSELF);
    // A writer that waits comes first, and would wait for this script.
    let mut reader =
        authority.nxlock(["run", "job", "--shared", "-c", "echo up; read x; nxlock run job --shared true"]);
    let (stdin, told) = std::io::pipe().unwrap();
    reader = reader.stdin_from(stdin);
    let mut reader = reader.start();
    reader.line("up");
    let writer = Turn::queued(authority, &[]);
    drop(told);
    reader.finish().exits(75).says(WAITS_FOR_ITSELF);
    writer.leaves();
}

pub fn a_command_knows_its_slot(authority: &impl Authority) {
    let told = "echo ${NXLOCK_SLOT-none} of ${NXLOCK_SLOTS-none}";
    let cases: [(&[&str], &str); 5] = [
        (&["--slots", "4"], "0 of 4\n"),
        (&["-j2"], "0 of 2\n"),
        (&["--slots", "1"], "0 of 1\n"),
        (&["--shared"], "none of none\n"),
        (&[], "none of none\n"),
    ];
    for (options, prints) in cases {
        let call = authority
            .nxlock([&["run", "job"], options, &["-c", told]].concat())
            .env("NXLOCK_SLOT", "7")
            .env("NXLOCK_SLOTS", "9");
        call.run().exits(0).prints(prints);
    }
    // They speak of the innermost run.
    let within = format!("nxlock run other -c '{told}'; {told}");
    authority.nxlock(["run", "job", "--slots", "4", "-c", &within]).run().exits(0).prints("none of none\n0 of 4\n");
}

pub fn a_token_comes_with_its_slot(authority: &impl Authority) {
    let exported = |options: &[&str]| {
        let words = ["acquire", "job", "--ttl", "1m", "--export"].iter().chain(options);
        let script = format!(
            "vars=$(nxlock {}) && eval \"$vars\" && nxlock release job; \
                              echo ${{NXLOCK_SLOT-none}} ${{NXLOCK_SLOTS-none}}",
            words.copied().collect::<Vec<_>>().join(" ")
        );
        authority.sh(&script, &[]).env("NXLOCK_SLOT", "7").env("NXLOCK_SLOTS", "9").run().exits(0).text()
    };
    assert_eq!(exported(&["--slots", "3"]), "0 3\n");
    assert_eq!(exported(&["--slots", "1"]), "0 1\n");
    assert_eq!(exported(&["--shared"]), "none none\n");
    assert_eq!(exported(&[]), "none none\n");
    let cases: [(&[&str], [Value; 3]); 3] = [
        (&["--slots", "3"], [0.into(), 3.into(), false.into()]),
        (&["--shared"], [Value::Null, Value::Null, true.into()]),
        (&[], [Value::Null, Value::Null, false.into()]),
    ];
    for (options, wanted) in cases {
        let words = ["--json", "acquire", "job", "--ttl", "1m"].iter().chain(options).copied();
        let granted = authority.nxlock(words).run().exits(0).json();
        assert_eq!([&granted["slot"], &granted["slots"], &granted["shared"]], wanted.each_ref(), "{granted}");
        release(authority, granted["token"].as_str().unwrap());
    }
}

pub fn status_shows_everybody_who_shares_a_lock(authority: &impl Authority) {
    let held = [
        Turn::had(authority, &["--slots", "3", "--reason", "train a"]),
        Turn::had(authority, &["--slots", "4", "--reason", "train b"]),
    ];
    let waiting = Turn::queued(authority, &["--reason", "alone"]);
    let behind = Turn::queued(authority, &["--shared"]);
    let seen = lock_status(authority);
    assert_eq!((&seen["state"], &seen["holder"]), (&"shared".into(), &Value::Null), "{seen}");
    assert_eq!((&seen["taken"], &seen["slots"]), (&2.into(), &3.into()), "{seen}");
    for (at, (turn, slots)) in held.iter().zip([3, 4]).enumerate() {
        let holder = &seen["holders"][at];
        assert_eq!((&holder["pid"], &holder["slot"]), (&turn.pid().into(), &at.into()), "{seen}");
        assert_eq!((&holder["slots"], &holder["claimed"]), (&slots.into(), &true.into()), "{seen}");
        assert!((1..=30_000).contains(&holder["ttl_ms"].as_u64().unwrap()) && holder["fence"].is_u64(), "{seen}");
    }
    assert_eq!(holders(authority, "reason"), ["train a", "train b"]);
    let line = &seen["queue"];
    assert_eq!((&line[0]["shared"], &line[0]["slots"]), (&false.into(), &1.into()), "{seen}");
    assert_eq!((&line[1]["shared"], &line[1]["slots"]), (&true.into(), &Value::Null), "{seen}");
    let table = authority.nxlock(["status", "job"]).run().exits(0).text();
    let has_row = |words: &[&str]| table.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(has_row(&["2 of 3"]), "{table}");
    assert!(has_row(&["#0", "train a"]) && has_row(&["#1", "train b"]), "{table}");
    assert!(has_row(&["1.", "(exclusive)", "alone"]) && has_row(&["2.", "(shared)"]), "{table}");
    let all = authority.nxlock(["--json", "status"]).run().exits(0).json();
    assert_eq!((&all[0]["name"], &all[0]["state"], &all[0]["taken"]), (&"job".into(), &"shared".into(), &2.into()));
    drop(behind);
    drop(waiting);
    queue_is(authority, &[]);
    held.into_iter().for_each(Turn::leaves);
    let alone = has(authority, &[]);
    let seen = lock_status(authority);
    assert_eq!((&seen["state"], &seen["taken"], &seen["slots"]), (&"held".into(), &1.into(), &1.into()), "{seen}");
    assert_eq!(seen["holders"][0]["id"], id(&alone.token), "{seen}");
    release(authority, &alone.token);
    let seen = lock_status(authority);
    assert_eq!((&seen["taken"], &seen["holders"]), (&0.into(), &serde_json::json!([])), "{seen}");
}

pub fn a_refusal_tells_how_many_hold_it(authority: &impl Authority) {
    let slots: Vec<Grant> = (0..4).map(|_| has(authority, &["--slots", "4"])).collect();
    refused(authority, &["--slots", "4"]).says("is full: 4 of 4 slots are taken").says(&id(&slots[3].token));
    refused(authority, &["--shared"]).says("is full: 4 of 4 slots are taken");
    let words = ["--json", "acquire", "job", "--ttl", "1m", "-n", "--slots", "4"];
    let document = authority.nxlock(words).run().exits(75).json();
    assert_eq!((&document["state"], &document["taken"]), (&"shared".into(), &4.into()), "{document}");
    assert_eq!((&document["slots"], &document["holder"]), (&4.into(), &Value::Null), "{document}");
    assert_eq!(document["holders"].as_array().map(Vec::len), Some(4), "{document}");
    give_back(authority, slots);
    let readers: Vec<Grant> = (0..3).map(|_| has(authority, &["--shared"])).collect();
    let told = refused(authority, &[]).says("is shared by 3 holders");
    readers.iter().for_each(|reader| assert!(told.stderr.contains(&id(&reader.token)), "{}", told.stderr));
    refused(authority, &["--slots", "3"]).says("is shared by 3 holders");
    give_back(authority, readers);
}
