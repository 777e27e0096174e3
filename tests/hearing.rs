//! A holder hears at once what happens to its lock, where the server tells it (RESP3, CLIENT TRACKING). Without that it
//! would find out when it next renews: every ten seconds, for a lease as long as here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::turns::{Turn, break_it, holder_id, is_free, lock_status, turn};
use crate::support::{
    Authority, Cluster, Fate, Five, Local, OverTcp, Pool, Proxy, Redis, Secure, Sentinels, Storm, eventually,
    eventually_some, now,
};

const KEY: &str = "lock:job";
/// A server that does not agree in time to tell is not asked again.
const LONG: [&str; 5] = ["-t", "10m", "-v", "--server-timeout", "20s"];
/// Less than until the next renewal.
const AT_ONCE: Duration = Duration::from_secs(8);

static CLUSTERS: Pool<Cluster> = Pool::of(Cluster::of_masters);

/// Starts a holder, and waits until it hears, and has renewed once more.
#[track_caller]
fn hearing(authority: &impl Authority, options: &[&str]) -> Turn {
    let mut holder = Turn::had(authority, &[&LONG, options].concat());
    hears(&mut holder);
    holder
}

#[track_caller]
fn hears(holder: &mut Turn) {
    holder.running.says("tells us at once of changes of the lock");
    holder.running.says("renewed for");
}

/// Waits for the end of a holder to whom something happens.
#[track_caller]
fn ends_at_once(holder: Turn, status: i32, happens: impl FnOnce()) {
    let began = now();
    happens();
    holder.finish().exits(status);
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
}

#[test]
fn whatever_takes_the_key_away_is_heard() {
    let redis = Redis::start();
    for words in [
        &["DEL", KEY][..],
        &["UNLINK", KEY],
        &["SET", KEY, "another's", "PX", "60000"],
        &["GETSET", KEY, "another's"],
        &["RENAME", KEY, "elsewhere"],
        &["MOVE", KEY, "1"],
        &["PEXPIRE", KEY, "0"],
        &["FLUSHALL"],
        &["FLUSHDB"],
    ] {
        let holder = hearing(&redis, &[]);
        ends_at_once(holder, 76, || redis.ask::<()>(words));
        redis.ask::<()>(&["FLUSHALL"]);
    }
}

#[test]
fn a_key_that_is_evicted_is_heard_of() {
    let redis = Redis::start();
    let holder = hearing(&redis, &[]);
    ends_at_once(holder, 76, || {
        redis.ask::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
        // A write makes room for itself.
        redis.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        let _ = redis.try_ask::<()>(&["SET", "another", "x"]);
        redis.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        assert!(!redis.exists(KEY));
    });
    redis.ask::<()>(&["FLUSHALL"]);
}

#[test]
fn what_leaves_the_lock_as_it_was_disturbs_nobody_and_is_heard_of_again() {
    let redis = Redis::start();
    let holder = hearing(&redis, &[]);
    for _ in 0..3 {
        let scripts = redis.scripts_run();
        redis.ask::<()>(&["PEXPIRE", KEY, "600000"]);
        eventually("it asks", || redis.scripts_run() > scripts);
    }
    ends_at_once(holder, 76, || redis.delete(KEY));
}

fn is_heard_of_at(authority: &impl Authority) {
    let holder = hearing(authority, &[]);
    ends_at_once(holder, 76, || break_it(authority));
    let holder = hearing(authority, &[]);
    let id = holder_id(authority);
    ends_at_once(holder, 143, || _ = authority.nxlock(["release", "job", "--ask", &id]).run().exits(0));
    let holder = hearing(authority, &["--supersede=running"]);
    let newer = Turn::of(authority.nxlock(turn(&["--supersede=running"])));
    ends_at_once(holder, 143, || {});
    newer.leaves();
    let shares = [hearing(authority, &["--shared"]), hearing(authority, &["--shared"])];
    let [first, second] = shares;
    let id = lock_status(authority)["holders"]
        .as_array()
        .unwrap()
        .iter()
        .find_map(|holder| (holder["pid"] == first.pid()).then(|| holder["id"].as_str().unwrap().to_owned()));
    let id = id.unwrap();
    ends_at_once(first, 76, || _ = authority.nxlock(["release", "job", "--break", &id]).run().exits(0));
    second.leaves();
    assert!(is_free(authority));
}

#[test]
fn over_a_socket_a_break_and_a_request_are_heard() {
    is_heard_of_at(&Redis::start());
}

#[test]
fn over_tcp_a_break_and_a_request_are_heard() {
    is_heard_of_at(&OverTcp::start());
}

#[test]
fn over_tls_a_break_and_a_request_are_heard() {
    is_heard_of_at(&Secure::start());
}

#[test]
fn at_the_master_that_sentinels_name_a_break_and_a_request_are_heard() {
    is_heard_of_at(&Sentinels::of_one());
}

#[test]
fn in_a_cluster_a_break_and_a_request_are_heard() {
    is_heard_of_at(&*CLUSTERS.lend());
}

#[test]
fn in_a_directory_a_break_and_a_request_are_heard() {
    is_heard_of_at(&Local::start());
}

#[test]
fn a_record_that_is_removed_is_heard_of() {
    let directory = Local::start();
    let holder = hearing(&directory, &[]);
    ends_at_once(holder, 76, || std::fs::remove_file(directory.file("lock")).unwrap());
}

#[test]
fn at_several_servers_a_break_is_heard() {
    let five = Five::start();
    let holder = hearing(&five, &[]);
    ends_at_once(holder, 76, || break_it(&five));
    assert!(is_free(&five));
}

#[test]
fn one_of_several_servers_that_forgets_has_the_lock_again_at_once() {
    let five = Five::start();
    let holder = hearing(&five, &[]);
    let tracks = |server: &Redis| !server.ask::<String>(&["INFO", "stats"]).contains("tracking_total_keys:0");
    for server in five.each() {
        eventually("it tells", || tracks(server));
        let began = now();
        server.ask::<()>(&["FLUSHALL"]);
        eventually("it has the lock again", || server.exists(KEY));
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    }
    holder.leaves();
}

#[test]
fn a_slot_that_has_moved_is_heard_of_at_its_new_node() {
    let cluster = CLUSTERS.lend();
    let holder = hearing(&*cluster, &[]);
    cluster.moves(KEY);
    let listens = || cluster.master_of(KEY).ask::<Vec<String>>(&["PUBSUB", "CHANNELS", "lock:job:holder:*"]).len() == 1;
    eventually("it listens at the new node", listens);
    let renewed = || cluster.master_of(KEY).ask::<String>(&["INFO", "stats"]).contains("tracking_total_keys:0");
    eventually("it tracks its key there", || !renewed());
    ends_at_once(holder, 76, || cluster.ask::<()>(&["DEL", KEY]));
}

#[test]
fn a_keeper_hears_too() {
    let redis = Redis::start();
    let script = "trap 'echo lost; exit 0' USR1
        nxlock acquire job --while-pid $$ --lost-signal USR1 --ttl 10m --server-timeout 20s > /dev/null
        echo up; while :; do sleep 0.05; done";
    let mut running = redis.sh(script, &[]).start();
    running.line("up");
    let listens = || redis.ask::<String>(&["INFO", "stats"]).contains("tracking_total_keys:0");
    eventually("it listens", || !listens());
    let began = now();
    redis.delete(KEY);
    running.line("lost");
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
}

#[test]
fn after_a_reconnection_it_hears_again() {
    let redis = Redis::start();
    let holder = hearing(&redis, &[]);
    for kind in ["normal", "pubsub"] {
        redis.ask::<()>(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
    }
    let listens = || redis.ask::<Vec<String>>(&["PUBSUB", "CHANNELS", "lock:job:holder:*"]).len() == 1;
    eventually("it listens", listens);
    eventually("it tracks", || !redis.ask::<String>(&["INFO", "stats"]).contains("tracking_total_keys:0"));
    ends_at_once(holder, 76, || redis.delete(KEY));
}

#[test]
fn a_storm_on_the_key_is_no_storm_of_questions() {
    let redis = Redis::start();
    for others in [0, 4] {
        let others: Vec<String> = (0..others).map(|n| format!("--also=other-{n}")).collect();
        let holder = hearing(&redis, &others.iter().map(String::as_str).collect::<Vec<_>>());
        let token = redis.value(KEY).unwrap();
        let (before, began) = (redis.scripts_run(), now());
        let storm = Storm::of(&redis, &["SET", KEY, &token, "PX", "600000"]);
        eventually("it has asked twenty times", || redis.scripts_run() >= before + 20);
        let (asked, took) = (redis.scripts_run() - before, began.elapsed());
        drop(storm);
        // Four at once, and then four a second.
        let most = 4 + took.as_millis() / 250;
        assert!(u128::from(asked) <= most, "{asked} questions in {took:?} beside {} more", others.len());
        holder.leaves();
    }
}

#[test]
fn holders_of_one_lock_do_not_wake_each_other_by_their_renewals() {
    let redis = Redis::start();
    let slow = Proxy::to(&redis, |_| Fate::Delivered);
    let mut quiet = Turn::of(slow.nxlock(turn(&[&LONG[..], &["--shared"]].concat())));
    quiet.up();
    hears(&mut quiet);
    let scripts = || slow.commands().iter().filter(|command| command.starts_with("EVAL")).count();
    let (before, began) = (scripts(), now());
    // A machine that is busy with what forks without end may not run it for two seconds.
    let busy = Turn::listening(&redis, &["--shared", "-t", "6s"]);
    let run = redis.scripts_run();
    eventually("the other one has renewed", || redis.scripts_run() >= run + 4);
    let (asked, took) = (scripts() - before, began.elapsed());
    // It renews every ten seconds.
    assert!(asked as u64 <= 1 + took.as_secs() / 10, "{asked} renewals in {took:?}");
    busy.leaves();
    quiet.leaves();
}

#[test]
fn a_command_that_is_over_soon_costs_no_more_requests() {
    let redis = Redis::start();
    let names = eventually_some("it is over before the holder begins to listen", || {
        let times = Arc::new(Mutex::new(Vec::new()));
        let arrivals = Arc::clone(&times);
        let proxy = Proxy::to(&redis, move |_| {
            arrivals.lock().unwrap().push(now());
            Fate::Delivered
        });
        proxy.nxlock(["run", "job", "--", "true"]).run().exits(0).says_nothing();
        let names = proxy.commands().iter().filter_map(|command| Some(command.split_once(' ')?.0.to_owned())).collect();
        // From the request for the lock to its release.
        let times = times.lock().unwrap();
        let took = *times.last()? - *times.first()?;
        (took < Duration::from_millis(100)).then_some::<Vec<String>>(names)
    });
    assert_eq!(names, ["EVALSHA", "EVALSHA"]);
}

/// Servers that do not tell, each with how often they are asked to.
#[test]
fn where_a_server_does_not_tell_the_next_renewal_finds_out_and_nothing_is_said() {
    let fates = [
        Fate::Answered("-ERR unknown command 'HELLO', with args beginning with: '3' \r\n"),
        Fate::Answered("-NOPROTO unsupported protocol version\r\n"),
        Fate::Answered(
            "*14\r\n+server\r\n+redis\r\n+version\r\n+6.0.0\r\n+proto\r\n:2\r\n+id\r\n:1\r\n+mode\r\n+a\r\n+role\r\n+b\r\n+modules\r\n*0\r\n",
        ),
        Fate::Answered("+OK\r\n"),
        Fate::Answered(":3\r\n"),
        Fate::Cut,
        Fate::CutBefore,
        Fate::Blackholed,
        Fate::ReplySwallowed,
    ];
    let each = |fate| {
        let redis = Redis::start();
        let proxy = Proxy::of_hello(&redis, fate);
        let said = is_asked_once(&redis, &proxy, 3);
        assert!(said.is_empty(), "{fate:?}: {said}");
    };
    // At the same time: each takes as long as a lease.
    std::thread::scope(|scope| fates.iter().for_each(|fate| _ = scope.spawn(|| each(*fate))));
}

#[test]
fn a_proxy_that_cuts_the_connection_only_behind_the_request_to_be_told_is_asked_once() {
    let redis = Redis::start();
    let has_agreed = AtomicBool::new(false);
    let proxy = Proxy::by_command(&redis, move |_, command| {
        if command.starts_with("SUBSCRIBE") {
            has_agreed.store(true, Ordering::SeqCst);
        }
        match command.starts_with("EVALSHA") && has_agreed.swap(false, Ordering::SeqCst) {
            true => Fate::CutBefore,
            false => Fate::Delivered,
        }
    });
    is_asked_once(&redis, &proxy, 4);
}

/// Runs a holder, which asks once to be told, goes on through so many renewals, and finds that its key is gone. Returns what
/// it had said before that.
#[track_caller]
fn is_asked_once(redis: &Redis, proxy: &Proxy, renewals: u64) -> String {
    let asked = || proxy.commands().iter().filter(|command| command.starts_with("HELLO")).count();
    let mut holder = Turn::of(proxy.nxlock(turn(&["-t", "12s"])));
    holder.up();
    eventually("it is asked to tell", || asked() == 1);
    let scripts = redis.scripts_run();
    eventually("it is renewed", || redis.scripts_run() >= scripts + renewals);
    assert_eq!(asked(), 1);
    let said = holder.running.stderr();
    redis.delete(KEY);
    holder.finish().exits(76).says("lost");
    said
}

#[test]
fn without_the_right_to_be_told_of_changes_requests_are_heard_and_the_other_way_round() {
    let redis = Redis::start();
    let all = "~lock:* ~{lock:*}:* resetchannels &lock:* +@all";
    // A holder that hears nothing finds out when it renews the lock.
    for (less, says, ttl) in [
        ("-client", "tells us at once of requests, and not of changes", "10m"),
        ("-subscribe", "tells us at once of changes of the lock\n", "10m"),
        ("-subscribe -client", "does not tell us of changes", "6s"),
        ("resetchannels", "tells us at once of changes of the lock\n", "10m"),
    ] {
        let rules = format!("reset on >pw {all} {less}");
        redis.ask::<()>(&["ACL", "SETUSER", "bob"].into_iter().chain(rules.split_whitespace()).collect::<Vec<_>>());
        let call = redis.nxlock(turn(&["-t", ttl, "-v", "--server-timeout", "20s"]));
        let mut holder = Turn::of(call.env("NXLOCK_SERVER", format!("{}?user=bob&pass=pw", redis.url())));
        holder.up();
        holder.running.says(says);
        if less == "-client" {
            let id = holder_id(&redis);
            redis.nxlock(["release", "job", "--ask", &id]).run().exits(0);
            holder.finish().exits(143);
        } else {
            redis.delete(KEY);
            holder.finish().exits(76);
        }
    }
}
