//! `--durable`: a grant counts only once the server has it on disk.
//!
//! WAITAOF came with Redis 7.2. With an older server these tests assert that it is refused; what a newer one answers, a
//! proxy answers in its place.

use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redis::Value;

use crate::support::turns::{Turn, is_free};
use crate::support::{Authority, Cluster, Done, Fate, Five, Local, Proxy, Redis, eventually};

const JOB: [&str; 5] = ["run", "job", "--durable", "-c", "echo ran"];

fn has_waitaof(redis: &Redis) -> bool {
    redis.try_ask::<Value>(&["WAITAOF", "0", "0", "0"]).is_ok()
}

/// Returns the file to which the server appends, since Redis 7.
fn append_only_file(redis: &Redis) -> PathBuf {
    let directory = redis.data().join("appendonlydir");
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    files.into_iter().find(|path| path.to_string_lossy().ends_with(".incr.aof")).unwrap()
}

#[track_caller]
fn is_refused(done: Done, cause: &str, remedy: &str) {
    done.exits(69).prints("").says(cause).says(remedy).says("it was released");
}

#[test]
fn what_is_on_disk_is_there_after_a_crash_that_tears_the_end_of_the_file() {
    for sync in ["everysec", "always"] {
        let mut redis = Redis::with(&["--appendonly", "yes", "--appendfsync", sync]);
        let done = redis.nxlock(["acquire", "job", "--ttl", "10m", "--durable"]).run();
        if !has_waitaof(&redis) {
            is_refused(done, "WAITAOF", "use Redis 7.2 or later");
            assert!(is_free(&redis));
            continue;
        }
        let token = done.exits(0).token();
        // As it is on disk now; all that follows is torn.
        let file = append_only_file(&redis);
        let length = fs::metadata(&file).unwrap().len();
        let later = redis.nxlock(["acquire", "later", "--ttl", "10m"]).run().exits(0).token();
        eventually("it is written", || fs::metadata(&file).unwrap().len() > length + 7);
        redis.kill();
        OpenOptions::new().write(true).open(&file).and_then(|file| file.set_len(length + 7)).unwrap();
        redis.restart();
        // It answers before it has read its file.
        eventually("it has loaded", || redis.ask::<String>(&["INFO", "persistence"]).contains("\nloading:0"));
        assert_eq!(redis.value("lock:job").as_deref(), Some(token.as_str()));
        assert_ne!(redis.value("lock:later"), Some(later));
        redis.nxlock(["run", "job", "-n", "--", "true"]).run().exits(75);
        redis.nxlock(["release", "job", &token]).run().exits(0);
    }
}

#[test]
fn a_server_without_an_append_only_file_is_refused_and_nothing_is_left_behind() {
    let redis = Redis::start();
    let cause = if has_waitaof(&redis) { "no append-only file" } else { "WAITAOF" };
    is_refused(redis.nxlock(JOB).run(), cause, "leave out --durable");
    assert!(is_free(&redis));
    redis.has_only_a_fence();
    let document = redis.nxlock(["acquire", "job", "--ttl", "1m", "--durable", "--json"]).run().exits(69).json();
    assert_eq!(document["outcome"], "unreachable", "{document}");
    let holder = Turn::had(&redis, &[]);
    let waits = Turn::queued(&redis, &["--durable"]);
    holder.leaves();
    waits.finish().exits(69).prints("");
    assert!(is_free(&redis));
    redis.nxlock(["run", "job", "--", "true"]).run().exits(0).says_nothing();
}

/// Returns a proxy that answers WAITAOF.
fn answering(redis: &Redis, answer: &'static str) -> Proxy {
    Proxy::by_command(redis, move |_, words| match words.starts_with("WAITAOF") {
        true => Fate::Answered(answer),
        false => Fate::Delivered,
    })
}

#[test]
fn a_grant_counts_if_the_disk_and_as_many_replicas_as_asked_for_have_it() {
    let redis = Redis::start();
    let with_replica = ["run", "job", "--durable", "--min-replicas", "1", "-c", "echo ran"];
    let answer = |answer, words: &[&str]| answering(&redis, answer).nxlock(words.iter().copied()).run();
    answer("*2\r\n:1\r\n:0\r\n", &JOB).exits(0).prints("ran\n").says_nothing();
    answer("*2\r\n:1\r\n:1\r\n", &with_replica).exits(0).prints("ran\n").says_nothing();
    is_refused(answer("*2\r\n:0\r\n:0\r\n", &JOB), "did not have it on disk within", "");
    is_refused(answer("*2\r\n:1\r\n:0\r\n", &with_replica), "0 of the 1 replicas", "INFO replication");
    is_refused(answer("*2\r\n:0\r\n:1\r\n", &with_replica), "did not have it on disk within", "");
    let disabled = "-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.\r\n";
    is_refused(answer(disabled, &JOB), "no append-only file", "appendonly yes");
    is_refused(answer("-ERR unknown command 'WAITAOF', with args\r\n", &JOB), "WAITAOF", "Redis 7.2");
    answer("-NOPERM User x has no permissions to run the 'waitaof' command\r\n", &JOB)
        .exits(77)
        .prints("")
        .says("waitaof");
    for senseless in ["*1\r\n:1\r\n", ":1\r\n", "+OK\r\n", "*2\r\n$1\r\nx\r\n:1\r\n"] {
        let done = answer(senseless, &JOB).prints("");
        assert_ne!(done.status.code(), Some(0), "{}", done.both());
    }
    assert!(is_free(&redis));
    redis.has_only_a_fence();
}

#[test]
fn it_is_asked_on_the_connection_of_the_grant_and_only_if_it_is_wanted() {
    let redis = Redis::start();
    let proxy = answering(&redis, "*2\r\n:1\r\n:0\r\n");
    proxy.nxlock(JOB).run().exits(0);
    assert_eq!(proxy.commands().iter().filter(|words| words.starts_with("WAITAOF 1")).count(), 1);
    assert_eq!(proxy.connections(), 1);
    let proxy = answering(&redis, "*2\r\n:1\r\n:0\r\n");
    proxy.nxlock(["run", "job", "--", "true"]).run().exits(0);
    assert!(!proxy.commands().iter().any(|words| words.starts_with("WAIT")), "{:?}", proxy.commands());
}

#[test]
fn a_reply_that_is_lost_is_asked_for_again() {
    let redis = Redis::start();
    let asked = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&asked);
    let proxy = Proxy::by_command(&redis, move |_, words| match words.starts_with("WAITAOF") {
        true if seen.fetch_add(1, Ordering::SeqCst) == 0 => Fate::CutBefore,
        true => Fate::Answered("*2\r\n:1\r\n:0\r\n"),
        false => Fate::Delivered,
    });
    proxy.nxlock(JOB).run().exits(0).prints("ran\n");
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

#[test]
fn where_there_is_no_one_disk_it_makes_no_sense() {
    Five::start().nxlock(JOB).run().exits(64).prints("").says("with --durable: there is no one disk");
}

#[test]
fn in_a_directory_a_grant_is_written_to_the_disk() {
    let local = Local::start();
    let holder = Turn::had(&local, &["--durable"]);
    let waits = Turn::queued(&local, &["--durable"]);
    holder.leaves();
    let mut waits = waits;
    waits.up();
    waits.leaves();
    local.nxlock(["run", "job", "--durable", "--slots", "2", "-c", "echo ran"]).run().exits(0).prints("ran\n");
}

#[test]
fn in_a_cluster_the_keys_node_is_asked() {
    let cluster = Cluster::of_masters();
    cluster.nxlock(JOB).run().exits(69).prints("").says("it was released");
    assert!(is_free(&cluster));
}

#[test]
fn check_says_whether_it_is_possible() {
    let redis = Redis::start();
    let checked = |redis: &Redis| redis.nxlock(["check"]).run().text();
    assert!(checked(&redis).contains("not possible (--durable)"), "{}", checked(&redis));
    let redis = Redis::with(&["--appendonly", "yes"]);
    let possible =
        if has_waitaof(&redis) { "possible (--durable), within a second" } else { "not possible (--durable)" };
    assert!(checked(&redis).contains(possible), "{}", checked(&redis));
    let file = redis.directory().join("nxlock.toml");
    fs::write(&file, "durable = true\n").unwrap();
    let redis = Redis::start();
    let done = redis.nxlock(["check", "--config", &file.display().to_string()]).run().exits(69);
    assert!(done.text().contains("with --durable no grant counts"), "{}", done.both());
}
