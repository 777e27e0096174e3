//! A holder that is asked to give up.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::turns::{
    Turn, acquire, holder_id, is_free, lease_left, lock_status, process, queue_is, release, turn,
};
use crate::support::{Authority, Done, eventually, is_alive, now};

/// Renewed every four seconds, when a holder finds a request that it has not heard; it may be held up for as long.
const SHORT: [&str; 2] = ["-t", "12s"];

const NEWEST: [&str; 4] = ["--supersede=running", "--reason", "release 4.3", "--ttl=12s"];

/// Asks the holder with this ID, with these options.
#[track_caller]
fn ask(authority: &impl Authority, id: &str, options: &[&str]) -> Done {
    authority.nxlock([&["release", "job", "--ask", id], options].concat()).run()
}

pub fn who_is_asked_stops_its_command_and_gives_the_lock_to_the_next(authority: &impl Authority) {
    let holder = Turn::had(authority, &SHORT);
    let mut next = Turn::queued(authority, &SHORT);
    let id = holder_id(authority);
    let asked = ask(authority, &id, &["--reason", "the fix for #77", "--wait", "20s"]).exits(0).prints("");
    asked.says(&format!("pid {}, no longer holds \"job\"", holder.pid()));
    holder.finish().exits(143).says("asked to give up \"job\" by ").says(": the fix for #77; stopping the command");
    next.up();
    // Asked again, it is not the holder any more.
    ask(authority, &id, &[]).exits(76).says("the holder has changed");
    next.leaves();
    ask(authority, &id, &[]).exits(76).says("it is free");
}

pub fn an_asked_command_may_clean_up_and_its_status_counts(authority: &impl Authority) {
    let script = "trap 'echo cleaned up; exit 7' TERM; echo up; while :; do sleep 0.05; done";
    let mut holder = authority.nxlock(["run", "job", "-t", "12s", "-c", script]).start();
    holder.line("up");
    ask(authority, &holder_id(authority), &[]).exits(0).says("asked ").never_says("no longer");
    holder.finish().exits(7).prints("up\ncleaned up\n");
    eventually("it is free", || is_free(authority));
}

pub fn nobody_gets_the_lock_while_an_asked_command_is_deaf_to_term(authority: &impl Authority) {
    let script = "trap '' TERM; echo pid $$; while :; do sleep 0.05; done";
    let mut holder = authority.nxlock(["run", "job", "-t", "12s", "--kill-after", "1s", "-c", script]).start();
    let pid: i32 = holder.line("pid ").parse().unwrap();
    let mut next = Turn::queued(authority, &SHORT);
    let began = now();
    ask(authority, &holder_id(authority), &[]).exits(0);
    next.up();
    assert!(!is_alive(pid), "the command is gone by then");
    assert!(began.elapsed() >= Duration::from_secs(1), "it was killed before its time: {:?}", began.elapsed());
    holder.finish().exits(137);
    next.leaves();
}

pub fn a_holder_that_ends_by_itself_meanwhile_has_given_up(authority: &impl Authority) {
    // It goes on as if it were not asked.
    let script = "trap '' TERM; echo up; read x; exit 0";
    let (reader, writer) = std::io::pipe().unwrap();
    let call = authority.nxlock(["run", "job", "-t", "1h", "--kill-after", "1m", "-c", script]).stdin_from(reader);
    let mut holder = call.start();
    holder.line("up");
    let id = holder_id(authority);
    ask(authority, &id, &["--wait", "300ms"]).exits(75).says("still holds \"job\" after ");
    let mut asker = authority.nxlock(["release", "job", "--ask", &id, "--wait", "20s", "-v"]).start();
    asker.says("waiting");
    let pid = holder.pid();
    drop(writer);
    holder.finish().exits(0);
    asker.finish().exits(0).says(&format!("pid {pid}, no longer holds \"job\""));
}

pub fn a_holder_may_refuse_to_be_asked(authority: &impl Authority) {
    let holder = Turn::had(authority, &["--no-ask"]);
    let seen = lock_status(authority);
    assert_eq!(seen["holder"]["may_be_asked"], false, "{seen}");
    let id = holder_id(authority);
    ask(authority, &id, &["--wait", "20s"]).exits(75).says("it refuses (--no-ask");
    authority.nxlock(["run", "job", "-n", "--", "true"]).run().exits(75).says("cannot be asked").says("--break");
    holder.leaves();
    let token = acquire(authority, "1m");
    ask(authority, &token[4..12], &[]).exits(75).says("no process renews that lock");
    release(authority, &token);
    ask(authority, "aaaaaaaa", &[]).exits(76).says("it is free");
}

pub fn a_refusal_says_how_to_ask_for_the_lock(authority: &impl Authority) {
    let holder = Turn::had(authority, &SHORT);
    let refused = authority.nxlock(["run", "job", "-n", "--", "true"]).run().exits(75);
    let told = refused.stderr.lines().find_map(|line| line.trim_start().strip_prefix("ask "));
    let told = told.unwrap_or_else(|| panic!("it does not say how to ask:\n{}", refused.both())).trim().to_owned();
    // The command works.
    authority.sh(&told, &[]).run().exits(0);
    holder.finish().exits(143);
}

pub fn asking_is_a_document(authority: &impl Authority) {
    let holder = Turn::had(authority, &["--json", "-t", "12s"]);
    let pid = holder.pid();
    let (id, refused) = (holder_id(authority), authority.nxlock(["--json", "release", "job", "--ask", "aaaaaaaa"]));
    let refused = refused.run().exits(76).json();
    assert_eq!((&refused["outcome"], &refused["wanted"]), (&"not_yours".into(), &"ask".into()), "{refused}");
    let told = authority.nxlock(["--json", "release", "job", "--ask", &id, "--reason", "why", "--wait", "20s"]);
    let told = told.run().exits(0).json();
    assert_eq!((&told["outcome"], &told["holder"]["id"]), (&"no_longer_held".into(), &id.as_str().into()), "{told}");
    assert!(told["waited_ms"].is_u64() && told["holder"]["pid"] == pid, "{told}");
    let done = holder.finish().exits(143);
    let documents: Vec<Value> = done.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [asked, ended] = documents.as_slice() else { panic!("{documents:?}") };
    assert_eq!((&asked["event"], &asked["by"]["reason"]), (&"asked".into(), &"why".into()), "{asked}");
    assert_eq!((&ended["signal"], &ended["asked_by"]["id"]), (&15.into(), &asked["by"]["id"]), "{ended}");
}

pub fn one_of_several_holders_is_asked(authority: &impl Authority) {
    let slots = ["--slots", "2", "-t", "12s"];
    let (first, second) = (Turn::had(authority, &slots), Turn::had(authority, &slots));
    let mut next = Turn::queued(authority, &slots);
    let seen = lock_status(authority);
    let of_first = seen["holders"].as_array().unwrap().iter().find(|holder| holder["pid"] == first.pid());
    let id = of_first.unwrap()["id"].as_str().unwrap();
    ask(authority, id, &["--wait", "20s"]).exits(0);
    first.finish().exits(143);
    next.up();
    second.leaves();
    next.leaves();
}

pub fn who_asks_for_a_share_that_is_gone_has_lost_nothing(authority: &impl Authority) {
    let holder = Turn::had(authority, &["--slots", "2"]);
    let gone = ask(authority, "aaaaaaaa", &[]).exits(76).says("nobody to ask for \"job\": the holder has changed");
    gone.says("it is now shared: 1 of 2 slots is taken").never_says("without us");
    let broken = authority.nxlock(["release", "job", "--break", "aaaaaaaa"]).run().exits(76);
    broken.says("it is now shared: 1 of 2 slots is taken").never_says("without us");
    // The token's own claim is lost, if it ever was one.
    let token = "nx1:aaaaaaaaaaaaaaaaaaaaaaaaaa:u@h:1:1::2";
    authority.nxlock(["release", "job", token]).run().exits(76).says("it is now shared").says("without us");
    holder.leaves();
}

pub fn a_newer_run_asks_an_older_one_of_its_kind(authority: &impl Authority) {
    let older = Turn::had(authority, &NEWEST);
    let mut newest = Turn::of(authority.nxlock(turn(&NEWEST)));
    let by = format!("\"job\": superseded by {}", process(newest.pid()));
    older.finish().exits(143).says(&by).says(": release 4.3; stopping the command");
    newest.up();
    newest.leaves();
    assert!(is_free(authority), "{}", lock_status(authority));
}

pub fn a_newer_run_leaves_a_holder_of_another_kind_alone(authority: &impl Authority) {
    for options in [&["-t", "9s"][..], &["-t", "9s", "--supersede"]] {
        let mut holder = Turn::had(authority, options);
        let mut newest = Turn::queued(authority, &NEWEST);
        // It says that when it would have asked, and a renewal would find the request.
        newest.running.says("waiting for \"job\"");
        crate::support::turns::is_renewed(authority);
        queue_is(authority, &[newest.pid()]);
        holder.is_told();
        holder.finish().exits(0).never_says("superseded");
        newest.up();
        newest.leaves();
    }
}

pub fn a_newer_run_that_gives_up_leaves_the_holder_alone(authority: &impl Authority) {
    let older = Turn::had(authority, &["--supersede=running", "-t", "1m"]);
    // It does not hear of the request before it is taken back.
    older.freeze();
    let mut newest = Turn::queued(authority, &NEWEST);
    newest.running.says("to give up");
    newest.running.signal(Signal::SIGTERM);
    newest.finish().dies_of(Signal::SIGTERM);
    let left = lease_left(authority);
    older.goes_on();
    eventually("the lease is renewed", || lease_left(authority) > left);
    older.leaves();
    assert!(is_free(authority), "{}", lock_status(authority));
}

pub fn of_many_newer_runs_only_the_newest_follows(authority: &impl Authority) {
    let mut holder = Turn::had(authority, &NEWEST);
    for _ in 0..3 {
        let mut newest = Turn::of(authority.nxlock(turn(&NEWEST)));
        newest.up();
        holder.finish().exits(143).says(&format!("superseded by {}", process(newest.pid())));
        holder = newest;
    }
    holder.running.signal(Signal::SIGTERM);
    holder.finish().exits(143);
}
