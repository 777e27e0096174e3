//! `check` finds each danger to locks on a server that has it, and leaves nothing behind.

mod arranged;
mod rights;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::support::{Done, Fate, Nxlock, Proxy, Redis, eventually};

/// Server options that cause no warning.
const SAFE: [&str; 2] = ["--appendonly", "yes"];

#[track_caller]
fn finding(done: &Done, topic: &str) -> Value {
    let document = done.json();
    let servers = document["servers"].as_array().unwrap_or_else(|| panic!("{}", done.both()));
    let mut findings = servers.iter().flat_map(|server| server["findings"].as_array().unwrap());
    findings.find(|finding| finding["topic"] == topic).cloned().unwrap_or(Value::Null)
}

/// Asserts the verdict, the text and the remedy of a finding in the JSON document.
#[track_caller]
fn finds(done: &Done, topic: &str, verdict: &str, found: &str, remedy: &str) {
    let finding = finding(done, topic);
    assert_eq!(finding["verdict"], verdict, "{topic}:\n{}", done.both());
    assert!(finding["found"].as_str().unwrap().contains(found), "{finding}");
    match verdict {
        "fine" => assert!(finding["remedy"].is_null(), "{finding}"),
        _ => assert!(finding["remedy"].as_str().unwrap().contains(remedy), "{finding}"),
    }
}

fn check(redis: &Redis) -> Done {
    redis.nxlock(["--json", "check"]).run()
}

fn what_it_is(redis: &Redis) -> &'static str {
    if redis.ask::<String>(&["INFO", "server"]).contains("valkey_version:") { "Valkey " } else { "Redis " }
}

fn keys(redis: &Redis) -> Vec<String> {
    redis.ask(&["KEYS", "*"])
}

#[test]
fn a_good_server_is_fit_and_nothing_is_left_there() {
    let redis = Redis::with(&SAFE);
    let done = check(&redis).exits(0).says_nothing();
    assert_eq!(done.json()["outcome"], "fit");
    assert_eq!(done.json()["servers"][0]["url"], redis.url());
    finds(&done, "server", "fine", what_it_is(&redis), "");
    finds(&done, "round trip", "fine", "the median of 5", "");
    finds(&done, "role", "fine", "master, without replicas", "");
    finds(&done, "persistence", "fine", "everysec", "");
    finds(&done, "memory", "fine", "nothing is evicted", "");
    finds(&done, "clock", "fine", "within 1s", "");
    finds(&done, "permissions", "fine", "every verb", "");
    finds(&done, "holders", "fine", "told at once", "");
    finds(&done, "locks", "fine", "taken with a fence, renewed, handed over", "");
    finds(&done, "waiters", "fine", "are woken", "");
    assert_eq!(keys(&redis), Vec::<String>::new());
    eventually("nobody listens any more", || redis.ask::<Vec<String>>(&["PUBSUB", "CHANNELS"]).is_empty());
    let told = redis.nxlock(["check"]).run().exits(0).says_nothing().text();
    assert!(told.contains(&format!("\n{}\n  fine  ", redis.url())), "{told}");
    assert!(told.ends_with("\n\nfit to keep locks\n"), "{told}");
    // check does not touch other locks.
    let token = redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0).token();
    check(&redis).exits(0);
    assert_eq!(redis.value("lock:job"), Some(token));
    redis.delete("lock:job");
}

#[test]
fn its_document_has_its_fields() {
    let redis = Redis::with(&SAFE);
    let document = check(&redis).json();
    let names = |value: &Value| {
        let mut names: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
        names.sort();
        names.join(" ")
    };
    assert_eq!(names(&document), "outcome servers settings");
    for setting in document["settings"].as_array().unwrap() {
        assert_eq!(names(setting), "file line name origin value variable");
    }
    assert_eq!(names(&document["servers"][0]), "findings url");
    for finding in document["servers"][0]["findings"].as_array().unwrap() {
        assert_eq!(names(finding), "found remedy topic verdict");
    }
}

#[test]
fn where_each_setting_comes_from_is_told_and_no_secret() {
    let redis = Redis::with_password("s3cret");
    let told = Nxlock::new(["check", "--server-timeout", "9s", "--color=never"])
        .env("REDIS_URL", format!("{}?pass=s3cret", redis.url()))
        .env("NXLOCK_PREFIX", "p:")
        .run()
        .exits(1)
        .never_says("s3cret");
    let words: Vec<String> =
        told.text().lines().take(6).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(words[0], "SETTING VALUE FROM");
    assert_eq!(words[1], format!("server {} environment REDIS_URL", redis.url()));
    assert_eq!(words[2], "password (set) environment REDIS_URL");
    assert_eq!(words[3], "prefix p: environment NXLOCK_PREFIX");
    assert_eq!(words[4], "server-timeout 9s flag");
    assert_eq!(words[5], "color never flag");
    assert_eq!(keys(&redis), Vec::<String>::new());
}

#[test]
fn what_a_restart_forgets_is_a_warning() {
    let redis = Redis::start();
    let done = check(&redis).exits(1);
    assert_eq!(done.json()["outcome"], "fit_with_warnings");
    finds(&done, "persistence", "warning", "a restart forgets all locks", "CONFIG SET appendonly yes");
    let told = redis.nxlock(["check"]).run().exits(1).text();
    assert!(
        told.contains("  warning   persistence  ") && told.ends_with("fit to keep locks, with 1 warning\n"),
        "{told}"
    );
    let redis = Redis::with(&["--save", "3600", "1"]);
    finds(&check(&redis).exits(0), "persistence", "fine", "snapshots", "");
    let redis = Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    finds(&check(&redis).exits(0), "persistence", "fine", "always", "");
    let redis = Redis::with(&["--appendonly", "yes", "--appendfsync", "no"]);
    finds(&check(&redis).exits(1), "persistence", "warning", "half a minute", "appendfsync everysec");
}

#[test]
fn eviction_is_a_warning() {
    let redis = Redis::with(&SAFE);
    redis.ask::<()>(&["CONFIG", "SET", "maxmemory", "100mb"]);
    finds(&check(&redis).exits(0), "memory", "fine", "noeviction", "");
    for policy in ["allkeys-lru", "volatile-ttl"] {
        redis.ask::<()>(&["CONFIG", "SET", "maxmemory-policy", policy]);
        finds(&check(&redis).exits(1), "memory", "warning", policy, "maxmemory-policy noeviction");
    }
}

#[test]
fn a_replica_is_an_obstacle_that_names_the_master() {
    let master = Redis::on_tcp(&SAFE);
    let replica = Redis::with(&SAFE);
    replica.ask::<()>(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    eventually("the replica is in step", || {
        master.ask::<String>(&["INFO", "replication"]).contains("state=online")
            && replica.ask::<String>(&["INFO", "replication"]).contains("master_link_status:up")
    });
    let done = check(&replica).exits(69);
    let named = format!("redis://127.0.0.1:{}", master.port());
    finds(&done, "role", "obstacle", "a replica of 127.0.0.1", &named);
    finds(&done, "permissions", "fine", "", "");
    assert_eq!((done.json()["outcome"].as_str(), finding(&done, "locks")), (Some("unfit"), Value::Null));
    finds(&check(&master).exits(0), "role", "fine", "with 1 replica", "");
    // At least min-replicas replicas must be connected.
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("c");
    for (wanted, status) in [(1, 0), (2, 69)] {
        fs::write(&config, format!("min-replicas = {wanted}\n")).unwrap();
        let done = master.nxlock(["--json", "check"]).env("NXLOCK_CONFIG", &config).run().exits(status);
        if wanted == 2 {
            finds(&done, "role", "obstacle", "with min-replicas 2 no grant counts", "--min-replicas");
        }
    }
    // check warns of a replica that hangs: no grant counts on it.
    replica.hang();
    eventually("the replica is late", || {
        master.ask::<String>(&["INFO", "replication"]).lines().any(|line| {
            line.rsplit_once("lag=")
                .and_then(|(_, lag)| lag.split(',').next()?.trim().parse().ok())
                .is_some_and(|lag: u64| lag > 10)
        })
    });
    finds(&check(&master).exits(1), "role", "warning", "was last heard of", "INFO replication");
    replica.resume();
    replica.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
}

#[test]
fn a_clock_that_is_apart_is_a_warning_and_no_more() {
    let redis = Redis::with_clock(0, &SAFE);
    finds(&check(&redis).exits(0), "clock", "fine", "", "");
    redis.clock().is_set_forward(std::time::Duration::from_secs(3600));
    let done = check(&redis).exits(1);
    finds(&done, "clock", "warning", "leases are not affected", "timedatectl");
    assert!(finding(&done, "clock")["found"].as_str().unwrap().contains("ahead of"), "{}", done.both());
}

#[test]
fn each_obstacle_has_its_status_and_settings_are_told_all_the_same() {
    let told = |call: Nxlock, status: i32, outcome: &str| {
        let done = call.run().exits(status).says_nothing();
        assert_eq!(done.json()["outcome"], "unfit");
        let finding = finding(&done, "server");
        assert_eq!(finding["verdict"], "obstacle", "{}", done.both());
        assert!(finding["found"].as_str().unwrap().contains(outcome), "{finding}");
        assert!(done.json()["settings"].as_array().unwrap().len() >= 3);
    };
    let within = |timeout: &str, url: &str| {
        Nxlock::new(["--json", "check", "--server-timeout", timeout]).env("NXLOCK_SERVER", url)
    };
    told(within("200ms", "redis://127.0.0.1:1"), 69, "refused");
    told(within("200ms", "unix:///no/such/socket"), 69, "no such file");
    // nxlock knows these results at once, and does not try again.
    let call = |url: &str| within("20s", url);
    told(call(""), 78, "no lock server is named");
    told(call("http://h"), 78, "cannot be used");
    let secured = Redis::with_password("s3cret");
    told(call(&secured.url()), 77, "NOAUTH");
    told(call(&format!("{}?pass=wrong", secured.url())), 77, "WRONGPASS");
    told(call(&format!("{}?pass=s3cret&db=99", secured.url())), 78, "out of range");
    let hanging = Redis::start();
    hanging.hang();
    told(within("200ms", &hanging.url()), 69, "no answer within");
    hanging.resume();
}

#[test]
fn a_server_that_goes_away_meanwhile_is_told_with_what_was_found_before() {
    let redis = Redis::with(&SAFE);
    // nxlock asks for the time when it has asked the server about itself. From then on the server is away.
    let is_away = AtomicBool::new(false);
    let proxy = Proxy::by_command(&redis, move |_, words| match words.starts_with("TIME") {
        true => {
            is_away.store(true, Ordering::SeqCst);
            Fate::Blackholed
        }
        false if is_away.load(Ordering::SeqCst) => Fate::Blackholed,
        false => Fate::Delivered,
    });
    let done = proxy.nxlock(["--json", "check", "--server-timeout", "4s"]).run().exits(69);
    assert_eq!(done.json()["outcome"], "unfit");
    finds(&done, "server", "fine", what_it_is(&redis), "");
    finds(&done, "answers", "obstacle", "no answer within", "");
    redis.leave_as_it_is();
}

#[test]
fn a_full_server_is_an_obstacle() {
    let redis = Redis::with(&SAFE);
    redis.runs_out_of_memory();
    let done = check(&redis).exits(69);
    finds(&done, "locks", "obstacle", "OOM", "out of memory");
    redis.has_memory_again();
}

#[test]
fn a_directory_is_looked_at_and_left_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
    let url = format!("local:{}", path.display());
    let call = || Nxlock::new(["--json", "check", "-s", &url]).run();
    let done = call().exits(0);
    finds(&done, "directory", "fine", "mode 0700", "");
    finds(&done, "file system", "fine", "", "");
    finds(&done, "boot", "fine", fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim(), "");
    finds(&done, "locks", "fine", "handed over", "");
    assert_eq!(fs::read_dir(path).unwrap().count(), 0);
    fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
    finds(&call().exits(1), "directory", "warning", "everybody may remove", "chmod +t");
    fs::set_permissions(path, Permissions::from_mode(0o1777)).unwrap();
    finds(&call().exits(0), "directory", "fine", "mode 1777", "");
    fs::set_permissions(path, Permissions::from_mode(0o500)).unwrap();
    let done = Nxlock::new(["--json", "check", "-s", &url]).minding_permissions().run().exits(77);
    finds(&done, "locks", "obstacle", "permission denied", "who may write");
    let file = path.join("file");
    fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
    fs::write(&file, "").unwrap();
    let done = Nxlock::new(["--json", "check", "-s", &format!("local:{}", file.display())]).run().exits(78);
    finds(&done, "server", "obstacle", "is not a directory", "local:/path");
}

#[test]
fn it_takes_no_names() {
    Nxlock::new(["check", "job"]).run().exits(64).says("job");
}
