//! Users with restricted permissions: what the manual says is enough, no channels, no scripts.

use serde_json::Value;

use crate::support::turns::{Turn, holder_id, is_renewed, lock_status, next_holder, queue, queue_is, turn};
use crate::support::{Nxlock, Redis, answered, eventually};

const ENOUGH: &str = "~lock:* ~{lock:* resetchannels &lock:* +eval +evalsha +subscribe +unsubscribe +get +set +del \
                      +pexpire +pttl +time +zadd +zrem +zrange +zscore +zrank +zcard +zcount +hget +hmget +hset +hdel \
                      +hgetall +hlen +publish +pubsub|numsub +client|tracking +type +scan +info";
/// What the manual lists for a user without scripts.
const NO_SCRIPTS: &str = "~lock:* +get +set +del +pttl +pexpire +type +watch +multi +exec";

/// The rules that the manual lists for a user who only looks.
const READS: &str = "%R~lock:* %R~{lock:*}:* resetchannels &lock:* +eval_ro +evalsha_ro +get +time +pttl +type \
                     +zrange +zcount +hget +pubsub|numsub +scan +hgetall +zscore +info";

/// A user of the server with restricted permissions.
struct User<'a> {
    redis: &'a Redis,
    name: &'a str,
}

impl<'a> User<'a> {
    fn who_may(redis: &'a Redis, name: &'a str, rules: &str) -> User<'a> {
        let words = ["ACL", "SETUSER", name, "on", ">pw"].into_iter().chain(rules.split_whitespace());
        redis.ask::<()>(&words.collect::<Vec<_>>());
        User { redis, name }
    }

    fn nxlock(&self, args: impl IntoIterator<Item = &'a str>) -> Nxlock {
        Nxlock::new(args).env("NXLOCK_SERVER", self.url())
    }

    fn url(&self) -> String {
        format!("{}?user={}&pass=pw", self.redis.url(), self.name)
    }

    /// Starts a run that waits for the lock, and holds it until told to end.
    fn turn(&self, options: &[&'a str]) -> Turn {
        Turn::of(self.nxlock(turn(options)))
    }

    fn had(&self, options: &[&'a str]) -> Turn {
        let mut turn = self.turn(options);
        turn.up();
        turn
    }

    #[track_caller]
    fn was_denied_nothing(&self) {
        let denied = self.redis.ask::<Vec<redis::Value>>(&["ACL", "LOG"]);
        assert!(denied.is_empty(), "{denied:?}");
    }
}

#[test]
fn what_the_manual_lists_is_enough_for_everything() {
    let redis = Redis::start();
    let listed = "~lock:* ~{lock:*}:* resetchannels &lock:* +eval +evalsha +get +set +del +time +pttl +pexpire +type \
                  +scan +zadd +zrem +zrange +zrank +zscore +zcard +zcount +hget +hmget +hset +hdel +hgetall +hlen \
                  +publish +pubsub|numsub +subscribe +client|tracking +info";
    for (name, rules) in [("enough", ENOUGH), ("listed", listed)] {
        let user = User::who_may(&redis, name, rules);
        let token = user.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0).token();
        user.nxlock(["renew", "job", "--ttl", "2m"]).env("NXLOCK_TOKEN", &token).run().exits(0);
        user.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(75).prints("");
        assert!(user.nxlock(["status"]).run().exits(0).text().contains("job "));
        user.nxlock(["release", "job"]).env("NXLOCK_TOKEN", &token).run().exits(0);
        user.nxlock(["status", "job"]).run().exits(1);
        let holder = user.had(&[]);
        let mut line = [user.turn(&[]).once_queued(&redis), user.turn(&[]).once_queued(&redis)];
        redis.renews_soon("lock:job");
        let seen = user.nxlock(["--json", "status", "job"]).run().exits(0).json();
        assert_eq!(seen[0]["queue"].as_array().unwrap().len(), 2, "{seen}");
        // One waiter gives up, the other is woken: it listens.
        line[0].running.signal(nix::sys::signal::Signal::SIGTERM);
        eventually("it has left", || line[0].running.has_ended());
        queue_is(&redis, &[line[1].pid()]);
        eventually("the server can wake it", || {
            redis.ask::<Vec<String>>(&["PUBSUB", "CHANNELS", "*:wake:*"]).len() == 1
        });
        holder.leaves();
        line[1].up();
        let id = lock_status(&redis)["holder"]["id"].as_str().unwrap().to_owned();
        let [_, broken] = line;
        redis.nxlock(["release", "job", "--break", &id]).run().exits(0);
        broken.finish().exits(76);
        let asked = user.had(&[]);
        let id = lock_status(&redis)["holder"]["id"].as_str().unwrap().to_owned();
        Nxlock::new(["release", "job", "--ask", &id]).env("NXLOCK_SERVER", user.url()).run().exits(0);
        asked.finish().exits(143);
        for options in [&["--record"][..], &["--record", "--slots", "2"], &["--unless-done", "1ms"]] {
            user.had(options).leaves();
        }
        assert!(user.nxlock(["status", "--history"]).run().exits(0).text().contains("done"));
        user.was_denied_nothing();
    }
}

/// A warning about every server of these tests.
const FORGETS: &str = "a restart forgets all locks";
const NOT_SEEN: &str = "permit +config|get, to see";

/// The commands that services keep from those who rent a server of them, by their documents, and the warnings of a check.
const HOSTED: [(&str, &str, &[&str]); 4] = [
    // https://docs.aws.amazon.com/AmazonElastiCache/latest/dg/ClientConfig.RestrictedCommands.html
    (
        "elasticache",
        "-bgrewriteaof -bgsave -config -debug -migrate -replicaof -save -slaveof -shutdown -sync",
        &[NOT_SEEN],
    ),
    // https://docs.oracle.com/iaas/Content/ocicache/restrictedcommands.htm
    (
        "oci",
        "-acl -bgrewriteaof -bgsave -cluster -config|set -debug -migrate -module -psync -replicaof -save -shutdown -sync",
        &[FORGETS],
    ),
    // https://aiven.io/docs/products/valkey/reference/restricted-commands
    (
        "aiven",
        "-acl -bgrewriteaof -bgsave -cluster -command -config -debug -failover -lastsave -migrate -monitor -replicaof \
         -save -shutdown -slaveof",
        &[NOT_SEEN],
    ),
    // https://www.tencentcloud.com/document/product/239/77219: RESP2 only, no tracking, no ACL
    ("tencent", "-acl -hello -client|tracking", &[FORGETS, "a deleted lock is noticed at the next renewal"]),
];

#[test]
fn what_hosted_services_forbid_keeps_nobody_from_anything() {
    // At the same time: a holder that is not told at once takes as long as a renewal to hear a request.
    std::thread::scope(|scope| {
        for (name, forbidden, warnings) in HOSTED {
            scope.spawn(move || is_kept_from_nothing(name, forbidden, warnings));
        }
    });
}

#[track_caller]
fn is_kept_from_nothing(name: &str, forbidden: &str, warnings: &[&str]) {
    let redis = Redis::start();
    let user = User::who_may(&redis, name, &format!("~* &* +@all {forbidden}"));
    let holder = user.had(&["-t", "9s", "--record"]);
    let mut next = user.turn(&["--first"]).once_queued(&redis);
    is_renewed(&redis);
    user.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(75).prints("");
    let seen = user.nxlock(["--json", "status", "job"]).run().exits(0).json();
    assert_eq!(seen[0]["queue"].as_array().unwrap().len(), 1);
    holder.leaves();
    next.up();
    user.nxlock(["release", "job", "--ask", &holder_id(&redis)]).run().exits(0);
    next.finish().exits(143);
    let both = [user.had(&["--slots", "2"]), user.had(&["--slots", "2"])];
    both.into_iter().for_each(Turn::leaves);
    assert!(user.nxlock(["status", "--history"]).run().exits(0).text().contains("done"));
    // Only a check asks for more, and says what it could not see, and what is lost.
    let text = user.nxlock(["check"]).run().exits(1).text().to_owned();
    warnings.iter().for_each(|warning| assert!(text.contains(warning), "{text}"));
    assert!(text.contains(&format!("fit to keep locks, with {} warning", warnings.len())), "{text}");
    redis.delete("{lock:job}:runs");
}

/// Returns the rules that the manual lists for run, acquire and release.
fn listed_for_run() -> String {
    let manual = include_str!("../man/nxlock.1.in");
    let (_, rules) = manual.split_once("\\fBrun, acquire, release\\fR\n\\fB").expect("the manual lists them");
    rules.split_once("\\fR").expect("it ends").0.replace('\n', " ")
}

const WAITS_FOR_ITSELF: &str = "\"job\" is already held by this script";

#[test]
fn what_the_manual_lists_for_run_is_enough_to_find_its_own_share_and_to_name_the_others() {
    let redis = Redis::start();
    let rules = listed_for_run();
    assert!(
        rules.starts_with("~lock:* ") && rules.ends_with("+client|tracking") && !rules.contains("+type"),
        "{rules}"
    );
    let user = User::who_may(&redis, "doc", &rules);
    for options in ["--shared", "--slots 2"] {
        for alone in ["run job -- echo ran", "run job -w 1h -- echo ran", "acquire job --ttl 1m -w 1h"] {
            let script = format!("nxlock {alone}");
            let words = ["run", "job"].into_iter().chain(options.split(' ')).chain(["-c", &script]);
            user.nxlock(words.collect::<Vec<_>>()).run().exits(75).prints("").says(WAITS_FOR_ITSELF);
        }
    }
    let full = ["run", "job", "-j2", "-c", "nxlock run job -j2 -c 'nxlock run job -j2 -- echo ran'"];
    user.nxlock(full).run().exits(75).prints("").says(WAITS_FOR_ITSELF);
    let both = [user.had(&["-j2"]), user.had(&["-j2"])];
    let refused = user.nxlock(["run", "job", "-n", "-j2", "--", "true"]).run().exits(75);
    both.iter().for_each(|turn| assert!(refused.stderr.contains(&turn.pid().to_string()), "{}", refused.stderr));
    both.into_iter().for_each(Turn::leaves);
    user.was_denied_nothing();
}

#[test]
fn without_scripts_a_run_does_not_wait_for_its_own_script() {
    let redis = Redis::start();
    let user = User::who_may(&redis, "scriptless", NO_SCRIPTS);
    let within = |outer: &[&str], inner: &str| {
        let script = format!("NXLOCK_SERVER='{}' nxlock {inner}", user.url());
        redis.nxlock([&["run"], outer, &["-c", &script]].concat()).run().prints("")
    };
    within(&["job"], "run job -- echo ran").exits(75).says(WAITS_FOR_ITSELF);
    within(&["job", "--setnx-compat"], "run job -- echo ran").exits(75).says(WAITS_FOR_ITSELF);
    for options in [&["--shared"][..], &["-j2"]] {
        let unknown = within(&[&["job"], options].concat(), "run job -w 1h -- echo ran");
        unknown.exits(78).says("perhaps with this very script").never_says("waiting for");
    }
    // A lock that another has alone is another's.
    let holder = Turn::had(&redis, &[]);
    within(&["other", "--shared"], "run job -n -- echo ran").exits(75).says("held by somebody else");
    holder.leaves();
    // No exclusive lock is a share.
    let reader = Turn::had(&redis, &["--shared"]);
    within(&["other"], "run job -n -- echo ran").exits(75).says("shared by others");
    reader.leaves();
}

#[test]
fn without_channels_one_is_served_in_order_by_asking() {
    let redis = Redis::start();
    let user = User::who_may(&redis, "mute", &ENOUGH.replace("&lock:*", "resetchannels"));
    let mut holder = user.had(&[]);
    let line: Vec<Turn> = (0..4).map(|_| user.turn(&[]).once_queued(&redis)).collect();
    redis.renews_soon("lock:job");
    queue_is(&redis, &line.iter().map(Turn::pid).collect::<Vec<_>>());
    for mut next in line {
        let before = lock_status(&redis)["fence"].as_u64().unwrap();
        holder.leaves();
        assert!(next.up().parse::<u64>().unwrap() > before);
        holder = next;
    }
    holder.leaves();
}

#[test]
fn those_with_channels_and_those_without_stand_in_one_line() {
    let redis = Redis::start();
    let mute = User::who_may(&redis, "mute", &ENOUGH.replace("&lock:*", "resetchannels"));
    let user = User::who_may(&redis, "enough", ENOUGH);
    let mut holder = user.had(&[]);
    let line = [&mute, &user, &mute, &mute, &user, &user].map(|who| who.turn(&[]).once_queued(&redis));
    for mut next in line {
        holder.leaves();
        // A user without channels wakes nobody: the next waiter polls, before its place in the queue expires.
        next.up();
        holder = next;
    }
    holder.leaves();
}

#[test]
fn without_scripts_the_lock_is_acquired_renewed_and_released() {
    let redis = Redis::start();
    let user = User::who_may(&redis, "scriptless", NO_SCRIPTS);
    let acquired = user.nxlock(["--json", "acquire", "job", "--ttl", "1m"]).run().exits(0).json();
    assert_eq!(acquired["fence"], Value::Null, "{acquired}");
    assert!((1..=60_000).contains(&redis.pttl("lock:job")));
    let token = acquired["token"].as_str().unwrap();
    user.nxlock(["renew", "job", "--ttl", "10m"]).env("NXLOCK_TOKEN", token).run().exits(0);
    assert!(redis.pttl("lock:job") > 500_000);
    user.nxlock(["status", "job"]).run().exits(0);
    user.nxlock(["release", "job", "nx1:aaaaaaaaaaaaaaaaaaaaaaaaaa:a@b:1:1:"]).run().exits(76);
    assert!(redis.exists("lock:job"));
    user.nxlock(["release", "job"]).env("NXLOCK_TOKEN", token).run().exits(0);
    assert!(!redis.exists("lock:job"));
    let script = "echo ${NXLOCK_FENCE-unset} $NXLOCK_KEY";
    user.nxlock(["run", "job", "-c", script]).env("NXLOCK_FENCE", "7").run().exits(0).prints("unset lock:job\n");
    let holder = user.had(&["-t", "3s"]);
    is_renewed(&redis);
    is_renewed(&redis);
    holder.leaves();
    assert_eq!(redis.ask::<i64>(&["DBSIZE"]), 0, "no queue, no fence");
}

#[test]
fn a_holder_that_may_not_run_scripts_for_a_moment_goes_on_with_them() {
    let redis = Redis::start();
    let user = User::who_may(&redis, "user", ENOUGH);
    let mut holder = user.had(&["-v"]);
    holder.running.says("renewed for");
    redis.ask::<()>(&["ACL", "SETUSER", "user", "-eval", "-evalsha"]);
    // The server tells the holder that its lease was changed, and it renews at once.
    redis.ask::<()>(&["PEXPIRE", "lock:job", "20000"]);
    // The user lacks WATCH too, which nxlock needs without scripts.
    holder.running.says("'watch' command");
    redis.ask::<()>(&["ACL", "SETUSER", "user", "+eval", "+evalsha"]);
    eventually("it is renewed", || redis.pttl("lock:job") > 20_000);
    let mut next = Turn::queued(&redis, &[]);
    let fence: u64 = redis.value("{lock:job}:fence").unwrap().parse().unwrap();
    holder.leaves();
    // By script: the release hands the lock to the next waiter.
    assert!(next.up().parse::<u64>().unwrap() > fence);
    next.leaves();
}

#[test]
fn a_server_that_knows_no_scripts_keeps_locks_too() {
    let redis = Redis::with(&["--rename-command", "EVAL", ""]);
    let acquired = redis.nxlock(["--json", "acquire", "job", "--ttl", "1m"]).run().exits(0).json();
    assert!(acquired["fence"].is_null(), "{acquired}");
    let token = acquired["token"].as_str().unwrap();
    redis.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(75).prints("");
    redis.nxlock(["renew", "job", token, "--ttl", "10m"]).run().exits(0);
    assert!(redis.pttl("lock:job") > 60_000);
    let mut waiter = redis.nxlock(["run", "job", "--", "echo", "ran"]).start();
    waiter.says("waiting for \"job\": held by ");
    redis.nxlock(["release", "job", token]).run().exits(0);
    waiter.finish().exits(0).prints("ran\n");
    redis.nxlock(["release", "job", token]).run().exits(76);
}

#[test]
fn without_scripts_one_waits_and_gets_it() {
    let redis = Redis::start();
    let user = User::who_may(&redis, "scriptless", NO_SCRIPTS);
    let holder = user.had(&[]);
    let mut line = vec![user.turn(&[]), user.turn(&[])];
    for turn in &mut line {
        turn.running.says("waiting for \"job\": held by ");
    }
    assert!(queue(&redis).is_empty());
    holder.leaves();
    while !line.is_empty() {
        let next = next_holder(&mut line);
        assert!(!line.iter().any(Turn::is_up));
        next.leaves();
    }
    // The same when a lease expires without a release.
    user.nxlock(["acquire", "job", "--ttl", "500ms"]).run().exits(0);
    user.nxlock(["run", "job", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
}

#[test]
fn without_scripts_what_is_somebody_elses_is_not_touched() {
    let redis = Redis::start();
    let user = User::who_may(&redis, "scriptless", NO_SCRIPTS);
    let token = user.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0).token();
    redis.put("lock:job", b"another's", Some(60_000));
    let untouched = || {
        assert_eq!(redis.value("lock:job").as_deref(), Some("another's"));
        assert!((1..=60_000).contains(&redis.pttl("lock:job")));
    };
    user.nxlock(["renew", "job", "--ttl", "1h"]).env("NXLOCK_TOKEN", &token).run().exits(76);
    user.nxlock(["release", "job"]).env("NXLOCK_TOKEN", &token).run().exits(76);
    user.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(75).prints("");
    answered(|| user.nxlock(["run", "job", "-w", "1s", "--", "echo", "ran"])).exits(75).prints("");
    untouched();
    redis.delete("lock:job");
    // nxlock finds out when it renews the lock, and when it releases it.
    let holder = user.had(&["-t", "3s"]);
    redis.put("lock:job", b"another's", Some(60_000));
    holder.running.finish().exits(76);
    untouched();
    redis.delete("lock:job");
    let mut holder = user.had(&["-t", "1h"]);
    redis.put("lock:job", b"another's", Some(60_000));
    holder.is_told();
    holder.running.finish().exits(76);
    untouched();
    redis.delete("lock:job");
}

#[test]
fn without_scripts_and_transactions_nothing_is_changed() {
    let redis = Redis::start();
    let token = redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0).token();
    // The server calls the lack of EXEC an aborted transaction, which may pass.
    for (missing, status) in [(" +multi", 77), (" +exec", 69), (" +watch", 77)] {
        let user = User::who_may(&redis, missing.trim_start_matches(" +"), &NO_SCRIPTS.replace(missing, ""));
        for verb in [&["renew", "job", "--ttl", "1h"][..], &["release", "job"]] {
            let words = || verb.iter().copied().chain(["--server-timeout", "500ms"]);
            answered(|| user.nxlock(words()).env("NXLOCK_TOKEN", &token)).exits(status);
            assert_eq!(redis.value("lock:job").as_ref(), Some(&token), "{missing}");
            assert!(redis.pttl("lock:job") <= 60_000, "{missing}");
        }
    }
    redis.nxlock(["release", "job", &token]).run().exits(0);
}

#[test]
fn users_with_and_without_scripts_exclude_each_other() {
    let redis = Redis::start();
    let without = User::who_may(&redis, "scriptless", NO_SCRIPTS);
    let with = User::who_may(&redis, "enough", ENOUGH);
    for (holds, wants) in [(&without, &with), (&with, &without)] {
        let holder = holds.had(&[]);
        let refused = wants.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(75).prints("");
        refused.says(&format!("pid {}", holder.pid()));
        let mut waiter = wants.turn(&[]);
        waiter.running.says("waiting for \"job\": held by ");
        holder.leaves();
        waiter.up();
        waiter.leaves();
    }
}

/// Returns of each lock what does not change while it is looked at.
fn gist(rows: &Value) -> Vec<Value> {
    let ids = |list: &Value| list.as_array().unwrap().iter().map(|one| one["id"].clone()).collect::<Vec<_>>();
    let gist = |row: &Value| {
        serde_json::json!([
            row["name"],
            row["state"],
            row["taken"],
            row["fence"],
            ids(&row["holders"]),
            ids(&row["queue"])
        ])
    };
    rows.as_array().unwrap().iter().map(gist).collect()
}

#[test]
fn who_may_only_read_sees_everything_and_changes_nothing() {
    let redis = Redis::start();
    let reader = User::who_may(&redis, "reader", READS);
    redis.nxlock(["run", "job", "--record", "--", "true"]).run().exits(0);
    let holder = Turn::had(&redis, &["--record"]);
    let mut waits = Turn::queued(&redis, &[]);
    let tokens = [(); 2].map(|()| redis.nxlock(["acquire", "pool", "--ttl", "1m", "-j", "3"]).run().token());
    for words in [&["--json", "status"][..], &["--json", "status", "job", "pool"]] {
        let seen = reader.nxlock(words.iter().copied()).run().exits(0).says_nothing().json();
        assert_eq!(gist(&seen), gist(&redis.nxlock(words.iter().copied()).run().json()));
        assert_eq!(seen[0]["queue"].as_array().unwrap().len(), 1, "{seen}");
        assert_eq!(seen[1]["holders"].as_array().unwrap().len(), 2, "{seen}");
    }
    let mut history = reader.nxlock(["--json", "status", "--history"]).run().exits(0).says_nothing().json();
    let mut all = redis.nxlock(["--json", "status", "--history"]).run().json();
    // Time passes for the run under way.
    for history in [&mut history, &mut all] {
        assert!(history[0]["running"][0]["held_ms"].take().is_u64(), "{history}");
    }
    assert_eq!(history, all);
    let id = holder_id(&redis);
    for words in [&["run", "other", "-n", "--", "true"][..], &["release", "job", "--break", &id]] {
        reader.nxlock(words.iter().copied()).run().exits(77).says("PERMISSIONS");
    }
    holder.leaves();
    waits.up();
    waits.leaves();
    for token in tokens {
        redis.nxlock(["release", "pool", &token]).run().exits(0);
    }
}
