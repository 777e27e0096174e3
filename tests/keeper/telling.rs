use serde_json::Value;

use super::{Asked, Bystander, LONG, Script};
use crate::support::turns::Turn;
use crate::support::{Authority, Redis, eventually, text_of};

/// Returns the names of the events in the file `events` of the authority's directory.
fn told(authority: &impl Authority) -> Vec<String> {
    let text = text_of(&authority.directory().join("events"));
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a document"));
    events.map(|event| event["event"].as_str().expect("a name").to_owned()).collect()
}

/// Asserts the events, without the renewals, whose number varies.
pub fn ends_as(authority: &impl Authority, expected: &[&str]) {
    let told = told(authority);
    let rest: Vec<_> = told.iter().filter(|event| *event != "renewed").collect();
    assert_eq!(rest, expected, "{told:?}");
}

#[test]
fn the_keeper_tells_what_becomes_of_the_lock_into_a_file_or_a_descriptor_of_its_callers() {
    let file = |redis: &Redis| redis.directory().join("events").display().to_string();
    for options in ["--events FILE", "--events 7 7>>FILE", "--events 2 2>>FILE"] {
        let redis = Redis::start();
        let script = Script::holding(&redis, &format!("{LONG} {}", options.replace("FILE", &file(&redis))));
        eventually("it tells that it has renewed", || told(&redis).contains(&"renewed".to_owned()));
        script.goes_on_to("");
        script.keeper_ends();
        script.ends_untold();
        ends_as(&redis, &["granted", "released"]);
    }
}

#[test]
fn a_loss_is_an_event_and_a_release_by_the_owner_is_a_release() {
    let redis = Redis::start();
    let options = format!("--events {} {LONG}", redis.directory().join("events").display());
    let script = Script::holding(&redis, &options);
    script.goes_on_to("nxlock release job");
    script.keeper_ends();
    script.ends_untold();
    ends_as(&redis, &["granted", "released"]);
    let mut script = Script::holding(&redis, &options);
    redis.delete("lock:job");
    script.keeper_ends();
    script.is_told("lost");
    ends_as(&redis, &["granted", "released", "granted", "lost"]);
}

#[test]
fn an_acquire_that_is_refused_is_told_once() {
    let redis = Redis::start();
    let events = redis.directory().join("events").display().to_string();
    let holder = Turn::had(&redis, &[]);
    let bystander = Bystander::of(&redis);
    let words = ["acquire", "job", "-n", "--while-pid", &bystander.pid(), "--events", &events];
    drop(Asked::of(redis.nxlock(words)));
    ends_as(&redis, &["refused"]);
    holder.leaves();
}
