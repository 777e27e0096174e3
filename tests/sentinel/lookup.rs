//! Which sentinels nxlock asks, what they reply, and whether it is true.

use std::time::Duration;

use crate::support::turns::{Turn, is_renewed};
use crate::support::{Authority, Done, MASTER, Nxlock, Redis, Sentinels, answered, eventually, unused_port};

/// Runs a command through this URL, without waiting.
fn attempt(group: &Sentinels, url: &str, timeout: &str) -> Done {
    let args = ["run", "job", "-n", "--server-timeout", timeout, "--", "echo", "ran"];
    answered(|| group.nxlock(args).env("NXLOCK_SERVER", url)).never_says("held by").never_says("panicked")
}

fn url(hosts: &str) -> String {
    format!("redis+sentinel://{hosts}/{MASTER}")
}

#[test]
fn the_lock_lies_on_the_master_that_they_name_in_the_database_of_the_url() {
    let group = Sentinels::of_one();
    let token = group.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0).token();
    assert_eq!(group.master().value("lock:job"), Some(token.clone()));
    let elsewhere = format!("{}/3", group.url());
    group.nxlock(["status", "job"]).env("NXLOCK_SERVER", &elsewhere).run().exits(1);
    group.nxlock(["release", "job", &token]).run().exits(0);
    let call = group.nxlock(["run", "job", "-c", "nxlock status job"]).env("NXLOCK_SERVER", &elsewhere);
    call.run().exits(0).says_nothing();
    for scheme in ["valkey+sentinel", "REDIS+SENTINEL"] {
        attempt(&group, &format!("{scheme}://{}/{MASTER}", group.hosts()), "2s").exits(0).prints("ran\n");
    }
}

#[test]
fn one_sentinel_that_answers_is_enough() {
    let mut group = Sentinels::of_three();
    // One is gone. One hangs, and may not use up the whole server timeout.
    group.sentinels[0].kill();
    group.sentinels[1].hang();
    let done = attempt(&group, &group.url(), "15s").exits(0).prints("ran\n");
    assert!(done.took < Duration::from_secs(15), "{:?}", done.took);
    for args in [&["status", "job"][..], &["status"]] {
        let done = group.nxlock(args.iter().chain(&["--server-timeout", "15s"]).copied()).run();
        assert!(matches!(done.status.code(), Some(0 | 1)), "{}", done.both());
        assert!(done.took < Duration::from_secs(15), "{args:?}: {:?}", done.took);
    }
    group.sentinels[1].resume();
}

#[test]
fn one_sentinel_whose_name_is_unknown_is_passed_over() {
    let group = Sentinels::of_one();
    let hosts = format!("no-such-host.invalid:26379,{}", group.hosts());
    attempt(&group, &url(&hosts), "10s").exits(0).prints("ran\n");
}

#[test]
fn without_any_sentinel_nobody_knows() {
    let mut group = Sentinels::of_one();
    // It hangs: nxlock waits no longer than for a server that hangs.
    group.sentinels[0].hang();
    for wait in [&["-n"][..], &["-w", "1m"], &[]] {
        let args = ["run", "job", "--server-timeout", "500ms"].iter().chain(wait).chain(&["--", "echo", "ran"]);
        group.nxlock(args.copied()).run().exits(69).prints("").within(Duration::from_secs(1));
    }
    // The wait that an error tells is that of all tries, of which the first takes half of the time.
    let done = group.nxlock(["status", "--server-timeout", "2s"]).run().exits(69);
    let (_, waited) = done.stderr.split_once("no answer within ").expect("how long it has waited");
    let waited = waited.split([';', ',', '\n', ' ']).next().unwrap();
    assert!(!waited.ends_with("ms"), "{}", done.both());
    group.sentinels[0].resume();
    group.sentinels[0].kill();
    let hosts = format!("{},127.0.0.1:{}", group.hosts(), unused_port());
    let done = attempt(&group, &url(&hosts), "500ms").exits(69).prints("").says("sentinel");
    done.within(Duration::from_secs(1));
    group.nxlock(["status", "--server-timeout", "500ms"]).run().exits(69).says("sentinel");
}

#[test]
fn a_master_that_they_do_not_know_is_a_mistake_in_the_url() {
    let group = Sentinels::of_three();
    let other = format!("redis+sentinel://{}/other", group.hosts());
    for wait in [&["-n"][..], &["-w", "1m"], &[]] {
        let args = ["run", "job", "--server-timeout", "20s"].iter().chain(wait).chain(&["--", "echo", "ran"]);
        let call = group.nxlock(args.copied()).env("NXLOCK_SERVER", &other);
        call.run().exits(78).prints("").says("other").says("entinel").within(Duration::from_secs(3));
    }
    for verb in [&["status"][..], &["status", "job"], &["release", "job", "x"], &["renew", "job", "x", "--ttl", "1s"]] {
        group.nxlock(verb.iter().copied()).env("NXLOCK_SERVER", &other).run().exits(78);
    }
    // Some sentinels do not know the master, but another one does.
    let one = Sentinels::of_one();
    group.sentinels.iter().for_each(|sentinel| sentinel.ask::<()>(&["SENTINEL", "REMOVE", MASTER]));
    let hosts = format!("{},{}", group.hosts(), one.hosts());
    attempt(&one, &url(&hosts), "6s").exits(0).prints("ran\n");
}

#[test]
fn a_server_that_is_no_sentinel_is_said_to_be_that() {
    let redis = Redis::on_tcp(&[]);
    let url = url(&format!("127.0.0.1:{}", redis.port()));
    let call = || Nxlock::new(["status", "--server-timeout", "500ms"]).env("NXLOCK_SERVER", &url);
    answered(call).exits(69).prints("").says("it is not a sentinel");
}

#[test]
fn a_server_that_they_name_and_that_is_no_master_keeps_no_locks() {
    let group = Sentinels::of_one();
    let server = &group.servers[0];
    // As during a failover: the sentinels still name the old master, or the new one does not know its role yet.
    server.becomes_read_only();
    attempt(&group, &group.url(), "500ms").exits(69).prints("").within(Duration::from_secs(1));
    let mut waiter = Turn::of(group.nxlock(crate::support::turns::turn(&["-w", "1m"])));
    waiter.running.says("waiting");
    server.is_writable_again();
    waiter.up();
    waiter.leaves();
}

#[test]
fn sentinels_that_are_gone_disturb_neither_who_holds_nor_who_waits() {
    let mut group = Sentinels::of_three();
    let holder = Turn::had(&group, &["-t", "6s"]);
    let mut waiter = Turn::queued(&group, &[]);
    let url = format!("redis://127.0.0.1:{}", group.servers[0].port());
    for sentinel in &mut group.sentinels {
        sentinel.kill();
    }
    let direct = Direct { url, group: &group };
    is_renewed(&direct);
    holder.leaves();
    waiter.up();
    waiter.leaves();
}

/// The master itself, without sentinels.
struct Direct<'a> {
    url: String,
    group: &'a Sentinels,
}

impl Authority for Direct<'_> {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn directory(&self) -> std::path::PathBuf {
        self.group.directory()
    }
}

#[test]
fn the_password_of_the_url_is_that_of_the_master() {
    let group = Sentinels::of_one();
    let listed = "~lock:* ~{lock:*}:* resetchannels &lock:* +eval +evalsha +get +set +del +time +pttl +pexpire +type \
                  +scan +zadd +zrem +zrange +zrank +zscore +zcard +zcount +hget +hmget +hset +hdel +hlen +publish \
                  +pubsub|numsub +subscribe +client|tracking +role";
    let words = ["ACL", "SETUSER", "deploy", "on", ">s3cret"].into_iter().chain(listed.split_whitespace());
    group.servers[0].ask::<()>(&words.collect::<Vec<_>>());
    group.servers[0].ask::<()>(&["ACL", "SETUSER", "default", "off"]);
    let url = format!("redis+sentinel://deploy:s3cret@{}/{MASTER}", group.hosts());
    let with_login = |args: &[&'static str]| group.nxlock(args.iter().copied()).env("NXLOCK_SERVER", &url);
    let mut holder = Turn::of(with_login(&crate::support::turns::turn(&["-t", "60s"])));
    holder.up();
    let mut waiter = Turn::of(with_login(&crate::support::turns::turn(&[])));
    eventually("it is in the queue", || {
        let seen = with_login(&["--json", "status", "job"]).run().exits(0).json();
        seen[0]["queue"].as_array().is_some_and(|queue| queue.len() == 1)
    });
    holder.leaves();
    waiter.up();
    waiter.leaves();
    for args in [&["status"][..], &["-v", "run", "job", "-n", "--", "true"]] {
        with_login(args).run().exits(0).never_says("s3cret");
    }
    attempt(&group, &group.url(), "500ms").exits(77).says("NOAUTH");
    attempt(&group, &url.replace("s3cret", "wr0ng"), "500ms").exits(77).never_says("wr0ng");
    // Sentinels may require a login as well: nxlock uses the same.
    group.sentinels[0].ask::<()>(&["ACL", "SETUSER", "deploy", "on", ">s3cret", "+@all"]);
    group.sentinels[0].ask::<()>(&["ACL", "SETUSER", "watcher", "on", "nopass", "+@all"]);
    attempt(&group, &url, "2s").exits(0).prints("ran\n");
}

/// Starts a server that gives every client this reply; returns its address.
fn says_to_all(reply: Vec<u8>) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    // Ends with the test process.
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = std::io::Read::read(&mut client, &mut [0; 1024]);
            let _ = std::io::Write::write_all(&mut client, &reply);
        }
    });
    host
}

#[test]
fn nothing_that_a_sentinel_says_can_fool_a_terminal() {
    let hostile = "h\u{1b}]0;owned\u{7}\u{1b}[2J\u{202e}evil";
    let answer = |host: &str| format!("*2\r\n${}\r\n{host}\r\n$1\r\n1\r\n", host.len()).into_bytes();
    let named = says_to_all(answer(hostile));
    let told = says_to_all(format!("-ERR {hostile}\r\n").into_bytes());
    for host in [named, told] {
        for verb in
            [&["-v", "status"][..], &["check"], &["--json", "check"], &["-v", "run", "job", "-n", "--", "echo", "ran"]]
        {
            let args = ["--server-timeout", "500ms", "--color", "never"].iter().chain(verb).copied();
            let done = Nxlock::new(args).env("NXLOCK_SERVER", url(&host)).run();
            assert!(!done.status.success(), "{}", done.both());
            done.never_says("\u{1b}").never_says("\u{7}").never_says("\u{202e}").never_says("ran\n");
        }
    }
}
