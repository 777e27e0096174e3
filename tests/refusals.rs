//! Servers that refuse, are not ready, or do not reply: each case has its own status and message, none of them "busy".

use std::time::Duration;

use crate::support::{Done, Nxlock, Redis, answered, eventually};

/// Requests the lock without waiting; the command must not run.
fn attempt(redis: &Redis) -> Done {
    is_refused(answered(|| redis.nxlock(["run", "job", "-n", "--server-timeout", "500ms", "--", "echo", "ran"])))
}

fn refused(call: Nxlock) -> Done {
    is_refused(call.run())
}

fn is_refused(done: Done) -> Done {
    done.never_says("ran\n").never_says("held by").never_says("panicked")
}

#[test]
fn a_wrong_password_is_refused() {
    let redis = Redis::with_password("right");
    let call = redis.nxlock(["run", "job", "-w", "1m", "--", "echo", "ran"]);
    let done = refused(call.env("NXLOCK_SERVER", format!("{}?pass=wrong", redis.url())));
    done.exits(77).says("WRONGPASS").says("check the user and password");
}

#[test]
fn a_missing_password_is_asked_for() {
    let redis = Redis::with_password("right");
    for verb in [&["run", "job", "echo", "ran"][..], &["status"], &["release", "job", "x"]] {
        let call = Nxlock::new(verb.to_vec()).env("NXLOCK_SERVER", redis.url());
        refused(call).exits(77).says("NOAUTH").says("put the password in the URL");
    }
}

#[test]
fn a_permission_that_is_missing_is_named() {
    let redis = Redis::start();
    let permissions = [
        // Redis 7.0 has no error code for it: "ERR The user executing the script can't run this command". Other
        // versions word it differently.
        ("no-set", &["~*", "&*", "+@all", "-set"][..], "NOPERM"),
        ("no-keys", &["~other:*", "&*", "+@all"], "key"),
        ("nothing", &["-@all"], "permissions"),
    ];
    for (user, rules, named) in permissions {
        let mut words = vec!["ACL", "SETUSER", user, "on", ">pw"];
        words.extend(rules);
        redis.ask::<()>(&words);
        let url = format!("{}?user={user}&pass=pw", redis.url());
        let call = redis.nxlock(["run", "job", "-w", "1m", "--", "echo", "ran"]).env("NXLOCK_SERVER", url);
        refused(call).exits(77).says(named).says("ACL SETUSER");
    }
}

#[test]
fn who_may_not_run_scripts_is_served_without_them_and_without_a_fence() {
    let redis = Redis::start();
    redis.ask::<()>(&["ACL", "SETUSER", "plain", "on", ">pw", "~*", "&*", "+@all", "-eval"]);
    let url = format!("{}?user=plain&pass=pw", redis.url());
    let call = |verb: &[&'static str]| redis.nxlock(verb.iter().copied()).env("NXLOCK_SERVER", &url);
    call(&["run", "job", "-c", "echo ${NXLOCK_FENCE-none}"]).run().exits(0).prints("none\n");
    assert!(!redis.exists("lock:job"));
    let token = call(&["acquire", "job", "--ttl", "1m"]).run().exits(0).token();
    redis.nxlock(["run", "job", "-n", "true"]).run().exits(75);
    call(&["run", "job", "-n", "true"]).run().exits(75);
    call(&["release", "job", "x"]).run().exits(76);
    redis.nxlock(["release", "job", &token]).run().exits(0);
}

#[test]
fn a_replica_is_no_place_to_lock_even_if_it_shows_the_lock_as_held() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "job", "--ttl", "5m"]).run().token();
    // A replica whose master is away; it serves the data that it has.
    redis.becomes_read_only();
    attempt(&redis).exits(69).says("READONLY").says("name the master");
    let soon = |words: &[&str]| answered(|| redis.nxlock(["--server-timeout", "500ms"].iter().chain(words).copied()));
    soon(&["renew", "job", &token, "--ttl", "1m"]).exits(69).says("READONLY");
    soon(&["release", "job", &token]).exits(69).says("READONLY");
    soon(&["release", "job", "x"]).exits(69).says("READONLY");
    soon(&["acquire", "free", "--ttl", "1m", "-n"]).exits(69);
    // A replica may show a state of any age.
    soon(&["status", "job"]).exits(69).says("does not hear from it");
    redis.ask::<()>(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    attempt(&redis).exits(69).says("MASTERDOWN");
    soon(&["status", "job"]).exits(69).says("MASTERDOWN");
    redis.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
    redis.nxlock(["release", "job", &token]).run().exits(0);
}

#[test]
fn a_failover_is_waited_for() {
    let redis = Redis::start();
    redis.becomes_read_only();
    let mut waiter = redis.nxlock(["run", "job", "-w", "1m", "--", "echo", "ran"]).start();
    waiter.says("READONLY");
    redis.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
    waiter.finish().exits(0).prints("ran\n");
}

#[test]
fn a_server_that_is_still_loading_is_not_busy() {
    let mut redis = Redis::with(&["--save", "3600", "1", "--rdbcompression", "no"]);
    let value = "x".repeat(4096);
    for i in 0..600 {
        redis.put(&format!("other:{i}"), value.as_bytes(), None);
    }
    redis.ask::<()>(&["SAVE"]);
    // A tenth of a second per key: a minute, more than this test takes.
    redis.restart_slowly_with(&["--key-load-delay", "100000", "--loading-process-events-interval-bytes", "1024"]);
    redis.leave_as_it_is();
    let call = |verb: &[&str]| answered(|| redis.nxlock(verb.iter().chain(&["--server-timeout", "1s"]).copied()));
    is_refused(call(&["acquire", "job", "--ttl", "1m", "-n"])).exits(69).says("LOADING").says("try again soon");
    call(&["status", "job"]).exits(69).says("LOADING");
    call(&["release", "job", "x"]).exits(69).says("LOADING");
}

#[test]
fn a_server_without_memory_grants_nothing_and_keeps_what_it_granted() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().token();
    let mut running = redis.nxlock(["run", "long", "--", "sh", "-c", "echo on; read x"]);
    let (reader, writer) = std::io::pipe().unwrap();
    running = running.stdin_from(reader);
    let mut running = running.start();
    running.line("on");
    redis.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let other = answered(|| redis.nxlock(["run", "other", "-n", "--server-timeout", "500ms", "--", "echo", "ran"]));
    is_refused(other).exits(69).says("OOM").says("maxmemory");
    for _ in 0..3 {
        redis.renews_soon("lock:long");
    }
    redis.nxlock(["renew", "job", &token, "--ttl", "10m"]).run().exits(0);
    // The server can still report that the lock is held.
    redis.nxlock(["acquire", "job", "--ttl", "1m", "-n"]).run().exits(75).says("held by");
    redis.nxlock(["release", "job", &token]).run().exits(0);
    drop(writer);
    running.finish().exits(1).says_nothing();
}

#[test]
fn a_server_that_cannot_save_is_waited_for_and_then_said_to_be_that() {
    let redis = Redis::with(&["--save", "3600", "1", "--stop-writes-on-bgsave-error", "yes"]);
    std::fs::remove_dir_all(redis.data()).unwrap();
    redis.ask::<()>(&["BGSAVE"]);
    eventually("the save has failed", || {
        redis.ask::<String>(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:err")
    });
    attempt(&redis).exits(69).says("MISCONF").says("cannot save");
    let mut waiter = redis.nxlock(["run", "job", "-w", "1m", "--", "echo", "ran"]).start();
    waiter.says("MISCONF");
    redis.ask::<()>(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    waiter.finish().exits(0).prints("ran\n");
}

#[test]
fn a_key_of_another_type_is_no_lock() {
    let redis = Redis::start();
    redis.ask::<()>(&["LPUSH", "lock:job", "x"]);
    for wait in [&["-n"][..], &["-w", "1m"], &[]] {
        let args = ["run", "job"].iter().chain(wait).chain(&["--", "echo", "ran"]).copied();
        refused(redis.nxlock(args)).exits(78).says("WRONGTYPE").says("--prefix");
    }
    redis.nxlock(["release", "job", "x"]).run().exits(76);
    redis.nxlock(["renew", "job", "x", "--ttl", "1m"]).run().exits(76);
    redis.nxlock(["release", "job", "--break", "aaaaaaaa"]).run().exits(76);
    redis.nxlock(["status", "job"]).run().exits(0);
    assert_eq!(redis.ask::<String>(&["TYPE", "lock:job"]), "list", "it is not touched");
    redis.delete("lock:job");
}

#[test]
fn a_key_that_turns_into_another_type_ends_the_wait_at_once() {
    let redis = Redis::start();
    redis.put("lock:job", b"somebody", None);
    let mut waiter = redis.nxlock(["run", "job", "-w", "10m", "--", "echo", "ran"]).start();
    waiter.says("waiting");
    redis.ask::<()>(&["LPUSH", "list", "x"]);
    // In one step, so that the name is never free: the list replaces it.
    redis.ask::<()>(&["RENAME", "list", "lock:job"]);
    waiter.finish().exits(78).says("WRONGTYPE").prints("");
    redis.delete("lock:job");
}

#[test]
fn a_port_that_nobody_listens_on_is_not_found_to_be_busy() {
    let url = "redis://127.0.0.1:1";
    let verbs = [
        &["run", "job", "--", "echo", "ran"][..],
        &["run", "job", "-n", "--", "echo", "ran"],
        &["run", "job", "-w", "1m", "--", "echo", "ran"],
        &["acquire", "job", "--ttl", "1m"],
        &["release", "job", "x"],
        &["renew", "job", "x", "--ttl", "1m"],
        &["status", "job"],
    ];
    let is_unreachable = |verb: &[&str]| {
        let call = || Nxlock::new(verb.to_vec()).env("NXLOCK_SERVER", url).env("NXLOCK_SERVER_TIMEOUT", "2s");
        is_refused(answered(call)).exits(69).says("refused").says(url).within(Duration::from_secs(3));
    };
    // At the same time: each takes as long as the server timeout.
    std::thread::scope(|scope| verbs.iter().for_each(|&verb| _ = scope.spawn(move || is_unreachable(verb))));
}

#[test]
fn a_socket_that_is_not_there_or_dead_is_unreachable() {
    let directory = tempfile::tempdir().unwrap();
    // A server that died left it behind.
    drop(std::os::unix::net::UnixListener::bind(directory.path().join("dead")).unwrap());
    let is_unreachable = |socket: &str, why: &str| {
        let url = format!("unix://{}", directory.path().join(socket).display());
        let words = ["run", "job", "-n", "--server-timeout", "1200ms", "--", "echo", "ran"];
        let done = answered(|| Nxlock::new(words).env("NXLOCK_SERVER", &url));
        is_refused(done).exits(69).says(why).within(Duration::from_secs(2));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| is_unreachable("none", "no such file"));
        scope.spawn(|| is_unreachable("dead", "refused"));
    });
}

#[test]
fn a_name_that_does_not_resolve_is_unreachable() {
    let call = Nxlock::new(["status", "-s", "redis://no-such-host.invalid", "--server-timeout", "500ms"]);
    refused(call).exits(69).says("no-such-host.invalid");
}

#[test]
fn a_hanging_server_holds_nobody_longer_than_the_server_timeout() {
    let redis = Redis::start();
    redis.hang();
    let verbs = [
        &["run", "job", "--", "echo", "ran"][..],
        &["run", "job", "-n", "--", "echo", "ran"],
        &["run", "job", "-w", "1m", "--", "echo", "ran"],
        &["acquire", "job", "--ttl", "1m"],
        &["release", "job", "x"],
        &["release", "job", "--break", "aaaaaaaa"],
        &["renew", "job", "x", "--ttl", "1m"],
        &["status", "job"],
        &["status"],
    ];
    let gives_up = |verb: &[&str]| {
        let call = redis.nxlock(verb.to_vec()).env("NXLOCK_SERVER_TIMEOUT", "4s");
        let done = refused(call).exits(69).says("no answer within");
        assert!(done.took >= Duration::from_millis(3990), "{verb:?} gave up after {:?}", done.took);
        done.within(Duration::from_secs(4));
    };
    // At the same time: each takes as long as the server timeout.
    std::thread::scope(|scope| verbs.iter().for_each(|&verb| _ = scope.spawn(move || gives_up(verb))));
    // --wait may be shorter than the server timeout, here than any call of a test may take.
    let call = redis.nxlock(["run", "job", "-w", "300ms", "--server-timeout", "1h", "--", "echo", "ran"]);
    refused(call).exits(69);
    redis.resume();
    eventually("the server has heard all that was said", || redis.others_connected() == 0);
}

#[test]
fn something_that_is_no_redis_is_said_to_be_that() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    // Ends with the test process.
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = std::io::Read::read(&mut client, &mut [0; 64]);
            let _ = std::io::Write::write_all(&mut client, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let call = || Nxlock::new(["status", "job", "-s", &url, "--server-timeout", "300ms"]);
    is_refused(answered(call)).exits(69).says("does not speak the Redis protocol");
}

#[test]
fn too_many_clients_are_weather() {
    let redis = Redis::start();
    let mut kept = redis.connection().unwrap();
    redis::cmd("CONFIG").arg(&["SET", "maxclients", "1"]).exec(&mut kept).unwrap();
    attempt(&redis).exits(69).says("max number of clients");
    redis::cmd("CONFIG").arg(&["SET", "maxclients", "100"]).exec(&mut kept).unwrap();
}
