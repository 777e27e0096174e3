//! The report of each verb if its request does not reach the server, or if the reply is lost.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::support::turns::{Turn, holder_id, turn};
use crate::support::{Authority, Done, Fate, Five, Local, Nxlock, Proxy, Redis, Running, eventually};

/// A symlink to a server's socket. While it is removed, connections fail and no request is sent.
struct Way {
    redis: Redis,
    path: PathBuf,
}

impl Way {
    fn closed_to(redis: Redis) -> Way {
        let path = redis.directory().join("way");
        Way { redis, path }
    }

    fn open_to(redis: Redis) -> Way {
        let way = Way::closed_to(redis);
        way.opens();
        way
    }

    fn opens(&self) {
        symlink(self.redis.socket(), &self.path).unwrap();
    }

    /// Removes the symlink and ends the open connections.
    fn closes(&self) {
        std::fs::remove_file(&self.path).unwrap();
        // That of a holder is of the second type once it listens.
        for kind in ["normal", "pubsub"] {
            self.redis.ask::<()>(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
        }
    }

    fn nxlock(&self, args: &[&str]) -> Nxlock {
        let call = Nxlock::new(args).env("NXLOCK_SERVER", self.url());
        call.env("NXLOCK_SERVER_TIMEOUT", "15s")
    }

    fn url(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    /// Starts a call whose first attempts to connect fail.
    fn refused_at_first(&self, args: &[&str]) -> Running {
        let mut call = self.nxlock(&[&["-v"], args].concat()).start();
        call.says("no such file");
        self.opens();
        call
    }
}

const NOBODYS: &str = "nx1:aaaaaaaaaaaaaaaaaaaaaaaaaa:a@b:1:1:";

#[test]
fn a_break_by_an_id_that_nobody_has_is_refused_though_it_was_not_let_through_at_once() {
    let way = Way::closed_to(Redis::start());
    way.redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0);
    way.refused_at_first(&["release", "job", "--break", "aaaaaaaa"]).finish().exits(76).never_says("broke");
    way.redis.delete("lock:job");
}

#[test]
fn a_release_with_a_token_that_nobody_has_is_refused_though_it_was_not_let_through_at_once() {
    let way = Way::closed_to(Redis::start());
    way.redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0);
    way.refused_at_first(&["release", "job", NOBODYS]).finish().exits(76).never_says("an answer was lost");
    way.redis.delete("lock:job");
}

#[test]
fn a_greeting_without_an_answer_is_no_request() {
    for fate in [Fate::Cut, Fate::ReplySwallowed] {
        let redis = Redis::start();
        // Request 1 selects the database and gets no reply; request 2 selects it again; the release is request 3.
        let proxy = Proxy::to(&redis, move |n| if n == 1 { fate } else { Fate::Delivered });
        let timeout = if matches!(fate, Fate::Cut) { "10s" } else { "300ms" };
        let call = proxy.nxlock(["release", "job", NOBODYS, "--server-timeout", timeout]);
        let done = call.env("NXLOCK_SERVER", format!("{}?db=3", proxy.url())).run();
        match fate {
            Fate::Cut => drop(done.exits(76)),
            // Waiting for the reply may have used up the server timeout.
            _ => assert!(matches!(done.status.code(), Some(69 | 76)), "{}", done.both()),
        }
    }
}

#[test]
fn a_look_without_an_answer_leaves_no_doubt_about_a_break() {
    let redis = Redis::start();
    redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0);
    let proxy = Proxy::to(&redis, |n| if n == 1 { Fate::Cut } else { Fate::Delivered });
    proxy.nxlock(["release", "job", "--break", "aaaaaaaa"]).run().exits(76).never_says("broke");
    redis.delete("lock:job");
}

#[test]
fn a_lost_reply_to_a_release_that_was_sent_is_told_as_doubt() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis, |n| if n == 1 { Fate::Cut } else { Fate::Delivered });
    proxy.nxlock(["release", "job", NOBODYS]).run().exits(0).says("an answer was lost");
}

/// Starts a verbose holder of `job` that connects through this way.
fn holder(way: &Way, options: &[&str]) -> Turn {
    let mut holder = Turn::of(way.nxlock(&[&["-v"], &turn(options)[..]].concat()));
    holder.up();
    holder
}

/// Waits until nxlock reports, after its command ended, that this request failed.
#[track_caller]
fn refused_at_its_end(holder: &Turn, request: &str) {
    eventually("it has tried", || {
        holder.running.stderr().split_once("the command has ended").is_some_and(|(_, since)| since.contains(request))
    });
}

#[test]
fn a_run_whose_lock_was_taken_while_the_network_was_down_at_its_end_says_so() {
    let way = Way::open_to(Redis::start());
    let mut holder = holder(&way, &["-t", "1m"]);
    way.closes();
    way.redis.delete("lock:job");
    let next = way.redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0).token();
    holder.is_told();
    refused_at_its_end(&holder, "cannot release");
    way.opens();
    holder.running.finish().exits(76).says("lost");
    assert_eq!(way.redis.value("lock:job"), Some(next));
    way.redis.delete("lock:job");
}

#[test]
fn the_same_over_a_majority_of_servers() {
    let ways = [(); 3].map(|()| Way::open_to(Redis::start()));
    let urls = ways.each_ref().map(Way::url).join(" ");
    let call = Nxlock::new([&["-v"], &turn(&["-t", "1m"])[..]].concat()).env("NXLOCK_SERVER", urls);
    let mut holder = Turn::of(call.env("NXLOCK_SERVER_TIMEOUT", "15s"));
    holder.up();
    for way in &ways {
        eventually("each has it", || way.redis.exists("lock:job"));
        way.closes();
        way.redis.put("lock:job", b"another's", Some(60_000));
    }
    holder.is_told();
    refused_at_its_end(&holder, "cannot release");
    ways.iter().for_each(Way::opens);
    holder.running.finish().exits(76).says("lost");
    for way in &ways {
        assert_eq!(way.redis.value("lock:job").as_deref(), Some("another's"));
        way.redis.delete("lock:job");
    }
}

#[test]
fn at_least_over_a_server_that_came_back_empty_is_a_loss() {
    for fate in [None, Some(Fate::Cut)] {
        // A server that tells its holders of nothing: this one hears only at its end that the lock is gone.
        let redis = Redis::with(&["--rename-command", "HELLO", ""]);
        let is_told = Arc::new(AtomicBool::new(false));
        let was_told = Arc::clone(&is_told);
        // The request that lets the lock expire after --at-least: its reply is lost, or it is never sent.
        let proxy = Proxy::by_command(&redis, move |_, words| {
            let is_first = words.starts_with("EVALSHA renew ") && was_told.swap(false, Ordering::SeqCst);
            fate.filter(|_| is_first).unwrap_or(Fate::Delivered)
        });
        let way = Way::closed_to(redis);
        let server = |path: &Path| symlink(path, &way.path).unwrap();
        server(&proxy.socket());
        let mut holder = holder(&way, &["-t", "1m", "--at-least", "1h"]);
        if fate.is_none() {
            way.closes();
        }
        way.redis.ask::<()>(&["FLUSHALL"]);
        is_told.store(true, Ordering::SeqCst);
        holder.is_told();
        if fate.is_none() {
            refused_at_its_end(&holder, "cannot renew");
            server(&proxy.socket());
        }
        holder.running.finish().exits(76).says("lost");
        assert!(!way.redis.exists("lock:job"));
    }
}

#[test]
fn a_break_that_was_sent_and_not_answered_has_broken_it() {
    let redis = Redis::start();
    redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0);
    let id = holder_id(&redis);
    let proxy = Proxy::to(&redis, |n| if n == 2 { Fate::Cut } else { Fate::Delivered });
    proxy.nxlock(["release", "job", "--break", &id]).run().exits(0).says("an answer was lost");
}

#[test]
fn a_renewal_does_not_shorten_a_lock_that_may_be_renewed_by_an_earlier_version() {
    let redis = Redis::start();
    redis.put("lock:job", NOBODYS.as_bytes(), Some(60_000));
    redis.nxlock(["renew", "job", NOBODYS, "--ttl", "1s"]).run().exits(0).says("not sooner");
    assert!(redis.pttl("lock:job") > 10_000);
    redis.nxlock(["renew", "job", NOBODYS, "--ttl", "1h"]).run().exits(0).says_nothing();
    assert!(redis.pttl("lock:job") > 60_000);
    redis.delete("lock:job");
}

#[test]
fn a_renewal_does_not_shorten_what_a_keeper_in_the_background_counts_on() {
    for authority in [&Redis::start() as &dyn Shell, &Local::start(), &Five::start()] {
        let script = r#"export NXLOCK_TOKEN=$(nxlock acquire job --while-pid $$ --ttl 1m)
                        nxlock renew job --ttl 100ms; nxlock --json status job; nxlock release job"#;
        let done = authority.script(script).exits(0).says("not sooner");
        let left = serde_json::from_str::<Value>(&done.text()).unwrap()[0]["ttl_ms"].as_u64().unwrap();
        assert!(left > 10_000, "{left}");
    }
}

#[test]
fn beside_setnx_clients_a_renewal_shortens_only_what_nobody_keeps() {
    let redis = Redis::start();
    let script = "nxlock renew job --ttl 1s; nxlock --json status job";
    let run = ["run", "job", "--setnx-compat", "-t", "1m", "-c", script];
    let seen = redis.nxlock(run).run().exits(0).says("not sooner").json();
    assert!(seen[0]["ttl_ms"].as_u64().unwrap() > 10_000, "{seen}");
    let acquired = redis.nxlock(["acquire", "job", "--setnx-compat", "--ttl", "1m"]).run().exits(0).text();
    let token = acquired.trim_end();
    redis.nxlock(["renew", "job", token, "--ttl", "30s"]).run().exits(0).says_nothing();
    assert!(redis.pttl("lock:job") <= 30_000);
    redis.nxlock(["release", "job", token]).run().exits(0);
}

#[test]
fn without_scripts_a_renewal_shortens_only_what_nobody_keeps() {
    let redis = Redis::start();
    let rules = "~lock:* +get +set +del +pttl +pexpire +type +watch +multi +exec";
    let words = ["ACL", "SETUSER", "plain", "on", ">pw"].into_iter().chain(rules.split(' '));
    redis.ask::<()>(&words.collect::<Vec<_>>());
    let call = |args: &[&str]| Nxlock::new(args).env("NXLOCK_SERVER", format!("{}?user=plain&pass=pw", redis.url()));
    let script = "nxlock renew job --ttl 1s; nxlock --json status job";
    let seen = call(&["run", "job", "-t", "1m", "-c", script]).run().exits(0).says("not sooner").json();
    assert!(seen[0]["ttl_ms"].as_u64().unwrap() > 10_000, "{seen}");
    let token = call(&["acquire", "job", "--ttl", "1m"]).run().exits(0).token();
    call(&["renew", "job", &token, "--ttl", "30s"]).run().exits(0).says_nothing();
    assert!(redis.pttl("lock:job") <= 30_000);
    call(&["release", "job", &token]).run().exits(0);
}

#[test]
fn a_damaged_queue_takes_no_lock_from_its_holder_and_hides_no_other() {
    for part in ["queue", "waiters"] {
        let redis = Redis::start();
        redis.nxlock(["acquire", "another", "--ttl", "1m"]).run().exits(0);
        let side = format!("{{lock:job}}:{part}");
        let holder = Turn::had(&redis, &["-t", "1m"]);
        redis.put(&side, b"something else's", None);
        let rows = redis.nxlock(["--json", "status"]).run().exits(0).json();
        let row = |name: &str| rows.as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
        assert_eq!(row("another")["state"], "held");
        assert_eq!(row("job")["state"], "unknown");
        assert!(row("job")["warnings"][0].as_str().unwrap().contains("another type"), "{rows}");
        redis.nxlock(["status"]).run().exits(0).says("");
        redis.nxlock(["status", "job", "another"]).run().exits(69);
        holder.leaves();
        assert!(!redis.exists("lock:job"), "it was given back");
        redis.delete(&side);
        redis.delete("lock:another");
    }
}

#[test]
fn a_lock_with_a_damaged_queue_can_be_broken() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0).token();
    redis.put("{lock:job}:queue", b"something else's", None);
    redis.nxlock(["release", "job", "--break", &token[4..12]]).run().exits(0);
    assert!(!redis.exists("lock:job"));
    redis.delete("{lock:job}:queue");
}

/// The dyn-compatible part of [`Authority`].
trait Shell {
    fn script(&self, script: &str) -> Done;
}

impl<A: Authority> Shell for A {
    fn script(&self, script: &str) -> Done {
        self.sh(script, &[]).run()
    }
}
