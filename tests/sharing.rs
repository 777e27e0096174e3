//! Shared locks and slots in a Redis server: the keys, and what faults do to the shares.

use std::time::Duration;

use nix::sys::signal::Signal;
use redis::Value;
use serde_json::Value as Json;

use crate::support::turns::{Turn, lock_status, queue, queue_is, turn};
use crate::support::{
    Authority, Cluster, Done, Fate, Five, Nxlock, Proxy, Redis, eventually, eventually_some, is_alive, now, parent_of,
};

const KEY: &str = "lock:job";
const SHARES: &str = "{lock:job}:shares";
const TERMS: &str = "{lock:job}:terms";
const PAIR: [&str; 2] = ["--slots", "2"];
const TRIO: [&str; 2] = ["--slots", "3"];

fn holders(redis: &Redis) -> Vec<Json> {
    lock_status(redis)["holders"].as_array().expect("an array").clone()
}

fn slots(redis: &Redis) -> Vec<u64> {
    holders(redis).iter().filter_map(|holder| holder["slot"].as_u64()).collect()
}

/// Ends every turn, and waits until each has said how it ended.
fn all_leave<const N: usize>(turns: [Turn; N]) {
    turns.into_iter().for_each(Turn::leaves);
}

/// Returns the channels of all who have a share.
fn channels(redis: &Redis) -> Vec<String> {
    let shares: Vec<String> = redis.ask(&["ZRANGE", SHARES, "0", "-1"]);
    shares.iter().map(|token| format!("{KEY}:holder:{}", &token[4..12])).collect()
}

/// Has holders renew their shares at once, as any message on their channels does.
fn call(redis: &Redis, channels: &[String]) {
    channels.iter().for_each(|channel| _ = redis.ask::<i64>(&["PUBLISH", channel, "a"]));
}

/// Waits until a share has been renewed, for which its holder is called.
#[track_caller]
fn a_share_is_renewed(redis: &Redis) {
    let shares = || redis.ask::<Vec<String>>(&["ZRANGE", SHARES, "0", "-1", "WITHSCORES"]);
    let before = shares();
    eventually("a share is renewed", || {
        call(redis, &channels(redis));
        shares() != before
    });
}

/// Asserts that `status` prints or says these texts, and returns all.
#[track_caller]
fn shows(redis: &Redis, texts: &[&str]) -> String {
    let shown = redis.nxlock(["status", "job"]).run().exits(0).both();
    texts.iter().for_each(|text| assert!(shown.contains(text), "{text}: {shown}"));
    shown
}

/// Returns what `status` warns of.
fn warning(redis: &Redis) -> String {
    lock_status(redis)["warnings"].to_string()
}

#[test]
fn the_plain_key_keeps_other_programs_out_while_a_lock_is_shared() {
    let redis = Redis::start();
    let readers = [Turn::had(&redis, &["--shared"]), Turn::had(&redis, &["--shared", "-t", "1h"])];
    let value = redis.value(KEY).unwrap();
    assert!(value.starts_with("nx1:shared:") && value.matches(':').count() == 2, "{value}");
    let refused: Value = redis.ask(&["SET", KEY, "plain", "NX", "PX", "60000"]);
    assert_eq!(refused, Value::Nil);
    assert!(redis.pttl(KEY) > 3_590_000, "it lasts as long as the longest share: {}", redis.pttl(KEY));
    let [short, long] = readers;
    long.leaves();
    assert!((1..=30_000).contains(&redis.pttl(KEY)), "{}", redis.pttl(KEY));
    short.leaves();
    redis.has_only_a_fence();
}

#[test]
fn a_deleted_key_ends_every_share_and_no_other_holder_goes_unseen() {
    let redis = Redis::start();
    let shared = [&["--shared"][..], &["--slots", "5"]];
    let shared = shared.map(|options| Turn::listening(&redis, &[options, &["-t", "1h"]].concat()));
    let waiter = Turn::queued(&redis, &[]);
    let channels = channels(&redis);
    // A holder that renewed its lease in between would have the lock reserved for the waiter.
    shared.iter().chain([&waiter]).for_each(Turn::freeze);
    redis.delete(KEY);
    // A generation of another's begins in between.
    redis.nxlock(["run", "job", "--no-queue", "--shared", "-n", "true"]).run().exits(0);
    shared.iter().chain([&waiter]).for_each(Turn::goes_on);
    call(&redis, &channels);
    for lost in shared {
        lost.finish().exits(76).says("is lost");
    }
    let mut waiter = waiter;
    waiter.up();
    waiter.leaves();
    redis.has_only_a_fence();
}

#[test]
fn a_share_of_an_earlier_generation_does_not_come_back_to_life() {
    let redis = Redis::start();
    let old = redis.nxlock(["acquire", "job", "--slots", "2", "--ttl", "1h"]).run().exits(0).token();
    redis.delete(KEY);
    let new = Turn::had(&redis, &PAIR);
    redis.nxlock(["renew", "job", &old, "--ttl", "1h"]).run().exits(76);
    redis.nxlock(["release", "job", &old]).run().exits(76);
    assert_eq!(slots(&redis), [0], "the new one has the lowest slot");
    new.leaves();
    redis.has_only_a_fence();
}

#[test]
fn an_expiry_that_somebody_changed_is_put_right_by_the_next_renewal() {
    let redis = Redis::start();
    let shares = [Turn::had(&redis, &["-t", "10m", "--shared"]), Turn::had(&redis, &["-t", "1h", "--shared"])];
    let is_put_right = || {
        call(&redis, &channels(&redis));
        redis.pttl(KEY) > 3_590_000
    };
    redis.ask::<()>(&["PERSIST", KEY]);
    eventually("it expires again", is_put_right);
    redis.ask::<()>(&["PEXPIRE", KEY, "20000"]);
    eventually("it lasts as long as the longest share", is_put_right);
    all_leave(shares);
    redis.has_only_a_fence();
}

#[test]
fn without_its_terms_holders_go_on_and_nobody_joins() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &PAIR);
    redis.delete(TERMS);
    redis.nxlock(["run", "job", "--slots", "2", "-n", "true"]).run().exits(75);
    redis.nxlock(["run", "job", "-n", "true"]).run().exits(75);
    a_share_is_renewed(&redis);
    holder.leaves();
    redis.nxlock(["run", "job", "--slots", "2", "-n", "true"]).run().exits(0);
    redis.has_only_a_fence();
}

#[test]
fn a_terms_key_of_another_type_keeps_newcomers_out_and_every_share_is_given_back() {
    let redis = Redis::start();
    let pair = [Turn::had(&redis, &PAIR), Turn::had(&redis, &PAIR)];
    redis.put(TERMS, b"another's", None);
    let refused = redis.nxlock(["run", "job", "--slots", "2", "-n", "true"]).run().exits(78);
    refused.says("{lock:job}:terms is a key of another type").says("delete it");
    redis.nxlock(["run", "job", "-n", "true"]).run().exits(75);
    assert_eq!(lock_status(&redis)["taken"], 2);
    a_share_is_renewed(&redis);
    all_leave(pair);
    redis.nxlock(["run", "job", "-n", "true"]).run().exits(0);
    redis.nxlock(["run", "job", "--shared", "-n", "true"]).run().exits(78);
    assert_eq!(redis.value(TERMS).as_deref(), Some("another's"));
    redis.delete(TERMS);
    redis.nxlock(["run", "job", "--shared", "-n", "true"]).run().exits(0);
    redis.has_only_a_fence();
}

#[test]
fn a_shares_key_of_another_type_is_named_wherever_it_is_in_the_way() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &PAIR);
    redis.put(SHARES, b"another's", None);
    let named = "{lock:job}:shares is a key of another type";
    redis.nxlock(["run", "job", "--slots", "2", "-n", "true"]).run().exits(78).says(named);
    let seen = lock_status(&redis);
    assert_eq!((&seen["state"], &seen["holder"]), (&"unknown".into(), &Json::Null));
    redis.nxlock(["status", "job"]).run().exits(69);
    assert!(warning(&redis).contains("delete that key"));
    let mut holder = holder;
    holder.is_told();
    holder.finish().says(named).never_says("is lost");
    redis.nxlock(["run", "job", "-n", "true"]).run().exits(75).says("shared by others").never_says("redis-cli DEL");
    redis.delete(SHARES);
    redis.delete(KEY);
    redis.nxlock(["run", "job", "--shared", "-n", "true"]).run().exits(0);
    redis.has_only_a_fence();
}

#[test]
fn what_is_not_known_of_the_holders_is_not_made_up() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "job", "--shared", "--ttl", "1h"]).run().exits(0).token();
    let holder = Turn::had(&redis, &["--shared"]);
    redis.nxlock(["release", "job", &token]).run().exits(0);
    for verb in [&["release", "job", &token][..], &["renew", "job", &token, "--ttl", "1m"]] {
        let done = redis.nxlock(["--json"].iter().chain(verb).copied()).run().exits(76);
        let told: Json = serde_json::from_str(&done.text()).unwrap();
        assert_eq!((&told["state"], &told["taken"], &told["holders"]), (&"shared".into(), &Json::Null, &Json::Null));
    }
    holder.leaves();
    redis.has_only_a_fence();
}

#[test]
fn any_one_of_hundreds_of_holders_is_broken_by_its_id() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "job", "--shared", "--ttl", "1h"]).run().exits(0).token();
    let (seconds, _): (u64, u64) = redis.ask(&["TIME"]);
    let end = ((seconds + 600) * 1000).to_string();
    let letters = || 'a'..='z';
    let pairs = letters().flat_map(|one| letters().map(move |two| format!("{:a>24}{one}{two}", "")));
    let others: Vec<String> = pairs.take(519).map(|random| format!("nx1:{random}:u@h:1:1::0")).collect();
    let ends = others.iter().flat_map(|other| [&end[..], &other[..]]);
    redis.ask::<()>(&["ZADD", SHARES].into_iter().chain(ends).collect::<Vec<_>>());
    let seen = lock_status(&redis);
    assert_eq!((&seen["taken"], seen["holders"].as_array().map(Vec::len)), (&520.into(), Some(500)));
    shows(&redis, &["and 20 more"]);
    redis.nxlock(["release", "job", "--break", &token[4..12]]).run().exits(0).says("broke \"job\"");
    assert_eq!(lock_status(&redis)["taken"], 519);
    redis.nxlock(["renew", "job", &token, "--ttl", "1m"]).run().exits(76);
    redis.ask::<()>(&["FLUSHALL"]);
}

#[test]
fn without_an_expiry_its_holders_are_shown_all_the_same() {
    let redis = Redis::start();
    let holder = Turn::listening(&redis, &["--slots", "2", "-t", "10m"]);
    // It renews nothing meanwhile.
    holder.freeze();
    redis.ask::<()>(&["PERSIST", KEY]);
    let seen = lock_status(&redis);
    assert_eq!((&seen["state"], &seen["taken"], &seen["ttl_ms"]), (&"shared".into(), &1.into(), &Json::Null));
    shows(&redis, &["1 of 2", "no end"]);
    assert!(warning(&redis).contains("no expiry"));
    // It does not wait for the names of the holders as long as for its answer.
    let refused = || Some(redis.nxlock(["run", "job", "-n", "true"]).run().exits(75));
    let names = |done: &Done| done.stderr.contains("slot 0");
    let refused = eventually_some("the holder is named", || refused().filter(names));
    refused.says("release job --break ID").never_says("DEL");
    holder.goes_on();
    holder.leaves();
    redis.has_only_a_fence();
}

#[test]
fn without_their_terms_slots_are_shown_as_slots() {
    let redis = Redis::start();
    let pair = [Turn::had(&redis, &PAIR), Turn::had(&redis, &PAIR)];
    redis.delete(TERMS);
    let shown = shows(&redis, &["2 of 2"]);
    assert_eq!(shown.matches(" slot ").count(), 2, "{shown}");
    redis.delete(SHARES);
    assert!(warning(&redis).contains("its shares were lost"));
    drop(pair);
    redis.ask::<()>(&["FLUSHALL"]);
}

#[test]
fn terms_that_were_lost_and_written_anew_expire() {
    let redis = Redis::start();
    let kept = redis.nxlock(["acquire", "job", "--shared", "--ttl", "1h"]).run().exits(0).token();
    let url = redis.url();
    // A grant whose reply is lost is asked for again, and finds its terms gone.
    let proxy = Proxy::to(&redis, move |request| {
        if request == 2 {
            let mut connection = redis::Client::open(&url[..]).unwrap().get_connection().unwrap();
            redis::cmd("DEL").arg(TERMS).exec(&mut connection).unwrap();
        }
        if request == 1 { Fate::Cut } else { Fate::Delivered }
    });
    let mut reader = Turn::of(proxy.nxlock(turn(&["--shared"])));
    reader.up();
    assert!(redis.ask::<i64>(&["PTTL", TERMS]) > 0, "{}", redis.ask::<i64>(&["PTTL", TERMS]));
    reader.leaves();
    redis.nxlock(["release", "job", &kept]).run().exits(0);
    redis.has_only_a_fence();
}

#[test]
fn without_its_shares_holders_are_told_and_nobody_joins_until_the_key_has_expired() {
    let redis = Redis::start();
    let holder = Turn::listening(&redis, &["-t", "1m", "--slots", "2"]);
    let channels = channels(&redis);
    redis.delete(SHARES);
    redis.nxlock(["run", "job", "--slots", "2", "-n", "true"]).run().exits(75);
    call(&redis, &channels);
    holder.finish().exits(76).says("is lost");
    redis.ask::<()>(&["PEXPIRE", KEY, "1000"]);
    redis.nxlock(["run", "job", "--slots", "2", "-w", "20s", "true"]).run().exits(0);
    redis.has_only_a_fence();
}

#[test]
fn whatever_companion_key_is_deleted_the_rule_holds_and_the_lock_comes_free() {
    for companion in ["queue", "waiters", "fence"] {
        let redis = Redis::start();
        let pair = [Turn::had(&redis, &PAIR), Turn::had(&redis, &PAIR)];
        let mut third = Turn::queued(&redis, &PAIR);
        let before: u64 = redis.value("{lock:job}:fence").unwrap().parse().unwrap();
        redis.delete(&format!("{{lock:job}}:{companion}"));
        assert!(!third.is_up());
        all_leave(pair);
        assert!(third.up().parse::<u64>().unwrap() > before, "{companion}");
        third.leaves();
        redis.has_only_a_fence();
    }
}

#[test]
fn after_flushall_every_share_is_lost_and_everybody_is_served() {
    let redis = Redis::start();
    // The server tells them that it was flushed.
    let held = [0, 1].map(|_| Turn::listening(&redis, &["-t", "1m", "--slots", "2"]));
    let mut waiting = [Turn::queued(&redis, &PAIR), Turn::queued(&redis, &PAIR)];
    redis.ask::<()>(&["FLUSHALL"]);
    for lost in held {
        lost.finish().exits(76).says("is lost");
    }
    for next in &mut waiting {
        next.up();
    }
    assert_eq!(slots(&redis), [0, 1]);
    all_leave(waiting);
    redis.has_only_a_fence();
}

#[test]
fn after_a_restart_with_memory_shares_and_queue_are_as_they_were() {
    let mut redis = Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let held = [Turn::had(&redis, &PAIR), Turn::had(&redis, &PAIR)];
    let mut third = Turn::queued(&redis, &PAIR);
    let before = redis.ask::<Vec<String>>(&["ZRANGE", SHARES, "0", "-1"]);
    redis.restart();
    queue_is(&redis, &[third.pid()]);
    assert_eq!(redis.ask::<Vec<String>>(&["ZRANGE", SHARES, "0", "-1"]).len(), before.len());
    let [first, second] = held;
    first.leaves();
    third.up();
    all_leave([second, third]);
    redis.has_only_a_fence();
}

#[test]
fn a_lost_reply_is_answered_again_with_the_same_slot() {
    let redis = Redis::start();
    let other = Turn::had(&redis, &PAIR);
    let proxy = Proxy::to(&redis, |request| if request == 1 { Fate::Cut } else { Fate::Delivered });
    let words = ["--server-timeout", "20s", "run", "job", "--slots", "2", "-c", "echo $NXLOCK_SLOT $NXLOCK_FENCE"];
    let done = proxy.nxlock(words).run().exits(0);
    let fence = redis.value("{lock:job}:fence").unwrap();
    assert_eq!(done.text().trim_end(), format!("1 {fence}"), "no second grant has raised it");
    // On a busy machine, the holder has begun to listen, and has renewed its share.
    let asked = proxy.commands();
    let count = |operation: &str| asked.iter().filter(|words| words.split(' ').nth(1) == Some(operation)).count();
    assert_eq!((count("acquire"), count("release")), (2, 1), "granted, granted again, given back: {asked:#?}");
    other.leaves();
    redis.has_only_a_fence();
}

#[test]
fn a_release_whose_reply_is_lost_gives_the_share_back_once() {
    let redis = Redis::start();
    let other = Turn::had(&redis, &PAIR);
    let proxy = Proxy::of_first(&redis, "EVALSHA release ", Fate::Cut);
    proxy.nxlock(["run", "job", "--slots", "2", "true"]).run().exits(0);
    assert_eq!(slots(&redis), [0], "the other has its own still");
    other.leaves();
    redis.has_only_a_fence();
}

#[test]
fn a_killed_holder_among_many_frees_its_slot_when_its_lease_ends() {
    let redis = Redis::start();
    let kept = [Turn::had(&redis, &TRIO), Turn::had(&redis, &TRIO)];
    let since = now();
    let token = redis.nxlock(["acquire", "job", "--slots", "3", "--ttl", "2s"]).run().exits(0).token();
    // On a busy machine, the lease may end before it is in the queue.
    let mut next = Turn::of(redis.nxlock(turn(&TRIO)));
    next.up();
    assert!(since.elapsed() > Duration::from_millis(1900), "{:?}", since.elapsed());
    assert_eq!(slots(&redis), [0, 1, 2]);
    redis.nxlock(["release", "job", &token]).run().exits(76);
    all_leave(kept);
    next.leaves();
    redis.has_only_a_fence();
}

#[test]
fn forty_shares_that_expire_at_once_make_room_for_a_writer() {
    let redis = Redis::start();
    for _ in 0..40 {
        redis.nxlock(["acquire", "job", "--shared", "--ttl", "1h"]).run().exits(0);
    }
    assert_eq!(lock_status(&redis)["taken"], 40);
    let shares: Vec<String> = redis.ask(&["ZRANGE", "{lock:job}:shares", "0", "-1"]);
    let (seconds, _): (u64, u64) = redis.ask(&["TIME"]);
    let end = format!("{}", (seconds + 2) * 1000);
    let ends = shares.iter().flat_map(|share| [&end[..], &share[..]]);
    redis.ask::<()>(&["ZADD", "{lock:job}:shares"].into_iter().chain(ends).collect::<Vec<_>>());
    redis.ask::<()>(&["PEXPIREAT", "lock:job", &end]);
    redis.nxlock(["run", "job", "-w", "20s", "true"]).run().exits(0);
    // The leftovers of the shares have no effect, and expire within ten seconds.
    redis.nxlock(["run", "job", "--slots", "2", "-n", "-c", "echo $NXLOCK_SLOT"]).run().exits(0).prints("0\n");
    eventually("nothing else is left", || redis.ask::<Vec<String>>(&["KEYS", "*"]) == ["{lock:job}:fence"]);
}

/// Puts waiters into the queue of the lock, each with this limit and this channel.
fn wait_in_line(redis: &Redis, waiters: usize, limit: &str, channel: &str) {
    let script = "local time = redis.call('TIME') \
                  for i = 1, tonumber(ARGV[1]) do \
                    local random = string.gsub(string.format('%026d', i), '%d', function(d) return string.char(97 + d) end) \
                    local token = 'nx1:' .. random .. ':u@h:1:1:' .. ARGV[2] \
                    redis.call('ZADD', KEYS[1], i, token) \
                    redis.call('HSET', KEYS[2], token, '1|' .. (time[1] + 100) .. '000|1000|' .. ARGV[3]) \
                  end \
                  return 1";
    let keys = ["{lock:job}:queue", "{lock:job}:waiters"];
    redis.ask::<()>(&["EVAL", script, "2", keys[0], keys[1], &waiters.to_string(), limit, channel]);
    keys.iter().for_each(|key| redis.ask(&["PEXPIRE", key, "100000"]));
}

#[test]
fn thousands_who_died_in_line_keep_nobody_out_of_a_free_slot() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &PAIR);
    // Nobody subscribes to the channel: they are dead.
    for limit in [":2", ":0", ""] {
        wait_in_line(&redis, 4_500, limit, "lock:job:wake:dead");
        redis.nxlock(["run", "job", "-n", "--slots", "2", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
    }
    holder.leaves();
    redis.has_only_a_fence();
}

#[test]
fn shares_that_all_ended_at_once_keep_nobody_out() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &["--shared", "-t", "1h"]);
    for reader in 0..100 {
        let random: String = format!("{reader:026}").bytes().map(|digit| char::from(digit - b'0' + b'a')).collect();
        redis.ask::<()>(&["ZADD", SHARES, "1", &format!("nx1:{random}:u@h:1:1::0")]);
    }
    for options in [&["-n"][..], &["--no-queue", "-n"]] {
        let call = [&["run", "job"], options, &["--slots", "2", "--", "echo", "ran"]].concat();
        redis.nxlock(call).run().exits(0).prints("ran\n");
    }
    holder.leaves();
    redis.has_only_a_fence();
}

/// Returns how many commands the server has executed.
fn commands(redis: &Redis) -> u64 {
    let info: String = redis.ask(&["INFO", "commandstats"]);
    let calls = info.lines().filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok());
    calls.sum()
}

#[test]
fn a_refused_share_names_the_holders_whatever_the_number_of_waiters() {
    let redis = Redis::start();
    let holders = [Turn::listening(&redis, &PAIR), Turn::listening(&redis, &PAIR)];
    // They poll: nobody can say that they are dead.
    wait_in_line(&redis, 1000, ":2", "");
    // They renew nothing meanwhile.
    holders.iter().for_each(Turn::freeze);
    // It does not wait for the names of the holders as long as for its answer.
    let (refused, scripts, commands) = eventually_some("the holders are named", || {
        let before = (redis.scripts_run(), commands(&redis));
        let refused = redis.nxlock(["run", "job", "-n", "--slots", "2", "--", "true"]).run().exits(75);
        let (scripts, commands) = (redis.scripts_run() - before.0, commands(&redis) - before.1);
        let are_named = holders.iter().all(|turn| refused.stderr.contains(&turn.pid().to_string()));
        are_named.then_some((refused, scripts, commands))
    });
    holders.iter().for_each(Turn::goes_on);
    assert_eq!(scripts, 2, "one answers, one names the holders");
    assert!(commands < 60, "{commands} commands");
    refused.says("1000 others wait");
    ["{lock:job}:queue", "{lock:job}:waiters"].iter().for_each(|key| redis.delete(key));
    all_leave(holders);
    redis.has_only_a_fence();
}

#[test]
fn forty_readers_behind_a_writer_all_come_in_at_its_end() {
    let redis = Redis::start();
    let writer = Turn::had(&redis, &[]);
    let mut readers: Vec<Turn> = (0..40).map(|_| Turn::of(redis.nxlock(turn(&["--shared"])))).collect();
    eventually("all of them wait", || queue(&redis).len() == 40);
    writer.leaves();
    for reader in &mut readers {
        reader.up();
    }
    assert_eq!(lock_status(&redis)["taken"], 40);
    readers.into_iter().for_each(Turn::leaves);
    redis.has_only_a_fence();
}

#[test]
fn a_waiter_that_is_frozen_when_its_slot_is_reserved_loses_it_to_the_next_and_is_served_later() {
    let redis = Redis::start();
    let pair = [Turn::had(&redis, &PAIR), Turn::had(&redis, &PAIR)];
    let mut frozen = Turn::queued(&redis, &PAIR);
    let mut behind = Turn::queued(&redis, &PAIR);
    frozen.freeze();
    let [first, second] = pair;
    first.leaves();
    behind.up();
    assert!(!frozen.is_up());
    frozen.goes_on();
    second.leaves();
    frozen.up();
    all_leave([frozen, behind]);
    redis.has_only_a_fence();
}

#[test]
fn a_waiter_that_is_told_to_leave_passes_its_reserved_slot_on() {
    let redis = Redis::start();
    let pair = [Turn::had(&redis, &PAIR), Turn::had(&redis, &PAIR)];
    let told = Turn::queued(&redis, &PAIR);
    let mut behind = Turn::queued(&redis, &PAIR);
    let [first, second] = pair;
    // Nobody asks for a reservation that is over after a second.
    [&told, &behind, &second].into_iter().for_each(Turn::freeze);
    told.running.signal(Signal::SIGTERM);
    first.leaves();
    let terms: Vec<String> = redis.ask(&["HVALS", TERMS]);
    assert!(terms.iter().any(|terms| terms.ends_with("|r")), "its slot is reserved: {terms:?}");
    told.goes_on();
    told.running.finish().dies_of(Signal::SIGTERM);
    [&behind, &second].into_iter().for_each(Turn::goes_on);
    behind.up();
    all_leave([second, behind]);
    redis.has_only_a_fence();
}

#[test]
fn a_share_kept_for_a_process_ends_with_it_and_the_others_stay() {
    let redis = Redis::start();
    let other = Turn::had(&redis, &PAIR);
    let mut shell = Nxlock::by("sh", ["-c", r#"nxlock acquire job --slots 2 --while-pid $$ --json; read x"#])
        .env("NXLOCK_SERVER", redis.url())
        .stdin_from(std::io::pipe().unwrap().0)
        .start();
    eventually("it has ended", || shell.has_ended());
    let kept: Json = serde_json::from_str(&shell.stdout()).unwrap();
    assert_eq!((&kept["slot"], &kept["slots"], &kept["shared"]), (&1.into(), &2.into(), &false.into()), "{kept}");
    eventually("its keeper gives it back", || slots(&redis) == [0]);
    other.leaves();
    eventually("nothing is left", || redis.ask::<Vec<String>>(&["KEYS", "*"]).len() == 1);
}

#[test]
fn a_guard_gives_back_the_share_of_a_killed_run() {
    let redis = Redis::start();
    let other = Turn::had(&redis, &["--shared"]);
    let mut killed = redis.nxlock(["run", "job", "--shared", "-t", "1h", "-c", "echo pid $$; exec sleep 300"]).start();
    let command: i32 = killed.line("pid ").parse().unwrap();
    assert!(is_alive(parent_of(command)));
    killed.signal(Signal::SIGKILL);
    eventually("its share is gone", || lock_status(&redis)["taken"] == 1);
    assert!(!is_alive(command));
    other.leaves();
    redis.has_only_a_fence();
}

#[test]
fn without_channels_waiters_poll_for_their_shares() {
    let redis = Redis::start();
    let rules = "~lock:* ~{lock:* resetchannels +eval +evalsha +get +set +del +pexpire +pttl +time +zadd +zrem \
                 +zrange +zscore +zrank +zcard +zcount +hget +hmget +hset +hdel +hlen +type +scan";
    let words = ["ACL", "SETUSER", "deaf", "on", ">pw"].into_iter().chain(rules.split_whitespace());
    redis.ask::<()>(&words.collect::<Vec<_>>());
    let call = |options: &[&str]| {
        Nxlock::new(turn(options)).env("NXLOCK_SERVER", format!("{}?user=deaf&pass=pw", redis.url()))
    };
    let writer = Turn::had(&redis, &[]);
    let mut readers = [&["--shared"][..], &["--slots", "2"]].map(|options| Turn::of(call(options)).once_queued(&redis));
    writer.leaves();
    for reader in &mut readers {
        reader.up();
    }
    all_leave(readers);
    redis.has_only_a_fence();
}

#[test]
fn a_waiter_for_a_share_polls_a_key_without_an_expiry_as_others_do() {
    let redis = Redis::start();
    redis.put(KEY, b"plain", None);
    let mut waiter = Turn::queued(&redis, &["--shared"]);
    let (began, before) = (now(), redis.scripts_run());
    eventually("it has asked ten times", || redis.scripts_run() >= before + 10);
    // At least 37 ms lie between two requests.
    assert!(began.elapsed() > Duration::from_millis(300), "ten requests in {:?}", began.elapsed());
    redis.delete(KEY);
    waiter.up();
    waiter.leaves();
}

#[test]
fn what_the_manual_lists_is_enough_for_shares() {
    let redis = Redis::start();
    let user = |name: &str, rules: &str| {
        let words = ["ACL", "SETUSER", name, "on", ">pw"].into_iter().chain(rules.split_whitespace());
        redis.ask::<()>(&words.collect::<Vec<_>>());
        let url = format!("{}?user={name}&pass=pw", redis.url());
        move |words: &[&str]| Nxlock::new(words.iter().copied()).env("NXLOCK_SERVER", &url)
    };
    let all = user(
        "all",
        "~lock:* ~{lock:*}:* resetchannels &lock:* +eval +evalsha +get +set +del +time +pttl +pexpire +zadd +zrem \
         +zrange +zrank +zscore +zcard +zcount +hget +hmget +hset +hdel +hlen +publish +pubsub|numsub +subscribe \
         +client|tracking +type",
    );
    let renews = user(
        "renews",
        "~lock:* ~{lock:*}:* resetchannels &lock:* +eval +evalsha +get +time +pttl +pexpire +zrange +zrem +hget \
         +hmget +hset +hdel +publish +pubsub|numsub +zscore +zadd +zcard",
    );
    let looks = user(
        "looks",
        "~lock:* ~{lock:*}:* resetchannels &lock:* +eval +evalsha +get +time +pttl +type +zrange +zcount +zscore +hget +hgetall \
         +pubsub|numsub +scan +info",
    );
    let token = all(&["acquire", "job", "--slots", "2", "--ttl", "1m"]).run().exits(0).token();
    let mut first = Turn::of(all(&turn(&PAIR)));
    first.up();
    let mut second = Turn::of(all(&turn(&PAIR))).once_queued(&redis);
    renews(&["renew", "job", &token, "--ttl", "2m"]).run().exits(0);
    renews(&["renew", "job", &token, "--ttl", "1m"]).run().exits(0);
    assert!(looks(&["status"]).run().exits(0).text().contains("2 of 2"));
    assert!(looks(&["status", "job"]).run().exits(0).text().contains("#1"));
    all(&["release", "job", &token]).run().exits(0);
    second.up();
    let id = holders(&redis)[0]["id"].as_str().unwrap().to_owned();
    all(&["release", "job", "--break", &id]).run().exits(0);
    let denied = redis.ask::<Vec<Value>>(&["ACL", "LOG"]);
    assert!(denied.is_empty(), "{denied:?}");
    redis.delete(KEY);
    redis.delete(SHARES);
    redis.delete(TERMS);
}

#[test]
fn a_server_without_scripts_and_several_servers_refuse_to_share() {
    let redis = Redis::start();
    redis.ask::<()>(&["ACL", "SETUSER", "default", "-eval", "-evalsha"]);
    for options in [&["--shared"][..], &PAIR] {
        let words = ["run", "job"].iter().chain(options).chain(&["--", "echo", "ran"]).copied();
        redis.nxlock(words.clone()).run().exits(78).prints("").says("sharing needs them");
        Five::start().nxlock(words).run().exits(64).prints("").says("cannot agree on who shares");
    }
    redis.nxlock(["run", "job", "--slots", "1", "-c", "echo $NXLOCK_SLOT"]).run().exits(0).prints("0\n");
    assert_eq!(redis.ask::<i64>(&["DBSIZE"]), 0);
}

#[test]
fn a_full_server_refuses_newcomers_and_serves_who_has_or_waits_for_a_share() {
    let redis = Redis::start();
    let held = [Turn::had(&redis, &PAIR), Turn::had(&redis, &PAIR)];
    let mut third = Turn::queued(&redis, &PAIR);
    redis.ask::<()>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    redis.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    redis.nxlock(["run", "other", "--shared", "-n", "true"]).run().exits(69).says("out of memory");
    a_share_is_renewed(&redis);
    let [first, second] = held;
    first.leaves();
    third.up();
    all_leave([second, third]);
    redis.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    redis.has_only_a_fence();
}

#[test]
fn the_value_of_a_shared_lock_is_no_token() {
    let redis = Redis::start();
    let reader = Turn::had(&redis, &["--shared"]);
    let value = redis.value(KEY).unwrap();
    redis.nxlock(["release", "job", &value]).run().exits(64).says("the value of a shared lock");
    redis.nxlock(["renew", "job", &value, "--ttl", "1m"]).run().exits(64);
    assert_eq!(redis.value(KEY).unwrap(), value);
    reader.leaves();
}

#[test]
fn a_cluster_shares_by_both_forms_of_a_key() {
    let cluster = Cluster::of_masters();
    for key in ["plain", "{tag}.key"] {
        let script = "echo $NXLOCK_SLOT; nxlock run --key \"$NXLOCK_KEY\" --slots 2 -n -c 'echo $NXLOCK_SLOT'";
        cluster.nxlock(["run", "--key", key, "--slots", "2", "-c", script]).run().exits(0).prints("0\n1\n");
    }
    for node in &cluster.nodes {
        let _ = node.try_ask::<()>(&["DEL", "{tag}.key:nxlock:fence"]);
    }
}
