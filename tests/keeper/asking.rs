//! The options of `acquire --while-pid`, its output, and its errors.

use std::fs::File;

use serde_json::Value;

use super::{Asked, Bystander};
use crate::support::turns::{Turn, is_free};
use crate::support::{Authority, Redis, User, answered, eventually, is_alive, we_are_root};

#[test]
fn who_cannot_be_watched_is_a_usage_error() {
    let redis = Redis::start();
    let gone = redis.sh("exit 0", &[]).start();
    let pid = gone.pid().to_string();
    gone.finish();
    for (pid, word) in
        [(pid.as_str(), "no such process"), ("0", "--while-pid"), ("-1", "--while-pid"), ("x", "--while-pid")]
    {
        redis.nxlock(["acquire", "job", &format!("--while-pid={pid}")]).run().exits(64).says(word).prints("");
    }
    // Some shells execute their last command in their own process.
    redis.sh("exec nxlock acquire job --while-pid $$", &[]).run().exits(64).says("nxlock itself").prints("");
    let (told, number) = std::sync::mpsc::channel();
    let (ends, until) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        told.send(nix::unistd::gettid()).unwrap();
        let _ = until.recv();
    });
    let thread_id = number.recv().unwrap().to_string();
    redis.nxlock(["acquire", "job", "--while-pid", &thread_id]).run().exits(64).says("thread").prints("");
    drop(ends);
    thread.join().unwrap();
    assert!(is_free(&redis));
}

#[test]
fn a_signal_that_is_none_is_a_usage_error() {
    let redis = Redis::start();
    let bystander = Bystander::of(&redis);
    redis
        .nxlock(["acquire", "job", "--while-pid", &bystander.pid(), "--lost-signal", "TREM"])
        .run()
        .exits(64)
        .says("TREM");
    redis.nxlock(["acquire", "job", "--ttl", "1m", "--lost-signal", "TERM"]).run().exits(64).says("--while-pid");
    redis.nxlock(["acquire", "job"]).run().exits(64).says("--ttl");
}

#[test]
fn its_document_tells_the_keeper() {
    let redis = Redis::start();
    let bystander = Bystander::of(&redis);
    let asked = Asked::of(redis.nxlock(["--json", "acquire", "job", "--while-pid", &bystander.pid()]));
    let acquired = asked.document();
    assert!(is_alive(asked.keeper()));
    assert_eq!(acquired["ttl_ms"], 30_000);
    let held = redis.nxlock(["--json", "acquire", "job", "--while-pid", &bystander.pid(), "-n"]).run().exits(75).json();
    assert_eq!((&held["outcome"], &held["holder"]["pid"]), (&Value::from("held"), &acquired["keeper"]));
    redis.nxlock(["release", "job", &asked.token()]).run().exits(0);
    let without = redis.nxlock(["--json", "acquire", "job", "--ttl", "1m"]).run().exits(0).json();
    assert_eq!(without["keeper"], Value::Null);
    redis.nxlock(["release", "job", without["token"].as_str().unwrap()]).run().exits(0);
}

#[test]
fn what_is_said_when_it_is_not_granted_is_what_is_always_said() {
    let redis = Redis::start();
    let bystander = Bystander::of(&redis);
    let holder = Turn::had(&redis, &[]);
    let asks = |more: &[&str]| {
        let words = ["acquire", "job", "--while-pid"].into_iter().map(str::to_owned).chain([bystander.pid()]);
        redis.nxlock(words.chain(more.iter().map(ToString::to_string)))
    };
    asks(&["-n"]).run().prints("").exits(75).says("is held by");
    answered(|| asks(&["--wait", "100ms", "-E", "3"])).prints("").exits(3).says("waited");
    let unreachable = asks(&["-s", "unix:///no/such/socket", "--server-timeout", "100ms"]).run().prints("");
    unreachable.exits(69).says("/no/such/socket");
    asks(&["-s", "nonsense"]).run().prints("").exits(78);
    holder.leaves();
}

#[test]
fn a_token_that_cannot_be_printed_is_given_back_by_the_keeper() {
    let redis = Redis::start();
    let bystander = Bystander::of(&redis);
    let asks = || redis.nxlock(["acquire", "job", "--while-pid", &bystander.pid(), "--ttl", "1h"]);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let asked = asks().stdout_to(full).start();
    asked.finish().exits(70).says("cannot write the token").says("the lock was released");
    assert!(is_free(&redis));
    let asked = asks().stdout_to(File::open("/dev/null").unwrap()).start();
    asked.finish().exits(70).says("cannot write the token").says("the lock was released");
    assert!(is_free(&redis));
    redis
        .sh(&format!("nxlock acquire job --while-pid {} --ttl 1h >&-", bystander.pid()), &[])
        .run()
        .exits(70)
        .says("released");
    assert!(is_free(&redis));
}

#[test]
fn a_reader_that_hangs_does_not_cost_the_lease_and_its_end_gives_the_lock_back() {
    let redis = Redis::start();
    let bystander = Bystander::of(&redis);
    let (reader, writer) = std::io::pipe().unwrap();
    // Full, so that the token cannot be written.
    let filler = writer.try_clone().unwrap();
    nix::fcntl::fcntl(&filler, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
    while nix::unistd::write(&filler, &[0; 4096]).is_ok() {}
    nix::fcntl::fcntl(&filler, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty())).unwrap();
    let asks =
        redis.nxlock(["acquire", "job", "--while-pid", &bystander.pid(), "--ttl", "1h"]).stdout_to(writer).start();
    eventually("it is granted", || redis.exists("lock:job"));
    redis.renews_soon("lock:job");
    asks.signal(nix::sys::signal::Signal::SIGTERM);
    asks.finish().dies_of(nix::sys::signal::Signal::SIGTERM);
    eventually("it is given back", || is_free(&redis));
    drop(reader);
}

#[test]
fn another_user_s_process_can_be_waited_for_and_not_be_told() {
    if !we_are_root() {
        return;
    }
    let redis = Redis::with(&["--unixsocketperm", "777"]);
    let user = User::visiting(&redis);
    let (reader, until_dropped) = std::io::pipe().unwrap();
    let ward = redis.sh("read x", &[]).stdin_from(reader).start();
    let pid = ward.pid().to_string();
    let asked = Asked::of(user.nxlock(&redis, ["acquire", "job", "--while-pid", &pid, "--ttl", "1h"]));
    assert!(asked.0.stdout().starts_with("nx1:") && asked.0.stderr().contains("another user's"));
    user.nxlock(&redis, ["acquire", "job", "--while-pid", &pid, "-n", "--lost-signal=none"])
        .run()
        .exits(75)
        .never_says("another user's");
    // The keeper accepts a release from its own user and from the superuser only.
    redis.nxlock(["-v", "release", "job", asked.0.stdout().trim()]).run().exits(0).says("leaves \"job\" to us");
    let _asked = Asked::of(user.nxlock(&redis, ["acquire", "job", "--while-pid", &pid, "--ttl", "1h"]));
    drop(until_dropped);
    ward.finish();
    eventually("it is free", || is_free(&redis));
}
