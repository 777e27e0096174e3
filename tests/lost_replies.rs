//! Replies that are lost after the server has carried out the request.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use crate::support::turns::{Turn, is_free, lease_left};
use crate::support::{Fate, Nxlock, Proxy, Redis, eventually, eventually_some, lasts};

/// Loses the reply to request `n` in this way; delivers all others.
fn nth(n: usize, fate: Fate) -> impl Fn(usize) -> Fate + Send + Sync {
    move |number| if number == n { fate } else { Fate::Delivered }
}

/// Loses the reply to the `n`th request that begins with these words in this way; delivers all others.
fn nth_of(words: &'static str, n: usize, fate: Fate) -> impl Fn(usize, &str) -> Fate + Send + Sync {
    let seen = AtomicUsize::new(0);
    move |_, request| match request.starts_with(words) && seen.fetch_add(1, Ordering::SeqCst) + 1 == n {
        true => fate,
        false => Fate::Delivered,
    }
}

/// Returns how many requests that begin with these words have arrived.
fn arrived(proxy: &Proxy, words: &str) -> usize {
    proxy.commands().iter().filter(|request| request.starts_with(words)).count()
}

const ACQUIRES: &str = "EVALSHA acquire ";
const RELEASES: &str = "EVALSHA release ";

#[test]
fn a_lock_granted_by_a_lost_reply_is_granted_again_with_the_same_fence() {
    for fate in [Fate::Cut, Fate::ReplySwallowed] {
        for refusal in [&["-n"][..], &["-w", "10s"], &[]] {
            let redis = Redis::start();
            let proxy = Proxy::to(&redis, nth(1, fate));
            let args = ["acquire", "job", "--ttl", "1m", "--json"].iter().chain(refusal).copied();
            // The server timeout also bounds the wait for the reply that does not come.
            let timeout = if fate == Fate::Cut { "20s" } else { "2s" };
            let granted = proxy.nxlock(args).env("NXLOCK_SERVER_TIMEOUT", timeout).run();
            if fate == Fate::ReplySwallowed {
                // The server timeout also bounds the first contact: it may run out, but then no lock is left.
                if granted.status.code() == Some(69) {
                    eventually("what may have been granted is given back", || !redis.exists("lock:job"));
                    continue;
                }
            }
            let granted = granted.exits(0).json();
            let first = redis.value("{lock:job}:fence").unwrap();
            assert_eq!(granted["fence"].to_string(), first, "{fate:?}: no second grant has raised it");
            assert_eq!(granted["token"].as_str().map(str::to_owned), redis.value("lock:job"));
            assert!(proxy.requests() >= 2);
            redis.delete("lock:job");
        }
    }
}

#[test]
fn the_fence_that_the_command_gets_is_that_of_the_first_grant() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis, nth(1, Fate::Cut));
    let done = proxy.nxlock(["run", "job", "-c", "echo $NXLOCK_FENCE"]).run().exits(0);
    assert_eq!(done.text().trim_end(), redis.value("{lock:job}:fence").unwrap());
    assert_eq!(arrived(&proxy, ACQUIRES), 2, "granted, and granted again: {:#?}", proxy.commands());
}

#[test]
fn giving_up_leaves_no_lock_behind() {
    let plans: [fn(usize) -> Fate; 3] = [
        // Granted, and no reply ever arrives, not even to the release.
        |_| Fate::ReplySwallowed,
        |_| Fate::Blackholed,
        // Granted twice with lost replies, then silence. Later requests get their replies.
        |n| match n {
            1 | 2 => Fate::Cut,
            3 => Fate::Blackholed,
            _ => Fate::Delivered,
        },
    ];
    let options = ["run", "job", "-w", "1m", "--server-timeout", "400ms", "--", "echo", "ran"];
    for (number, plan) in plans.into_iter().enumerate() {
        let redis = eventually_some("both lost replies come to the third plan before the time is up", || {
            let redis = Redis::start();
            let proxy = Proxy::to(&redis, plan);
            proxy.nxlock(options).run().exits(69).prints("").within(Duration::from_millis(1500));
            if number < 2 || arrived(&proxy, ACQUIRES) > 2 {
                return Some(redis);
            }
            // The proxy was too slow, and has cut a connection with what nxlock had sent behind its request.
            redis.leave_as_it_is();
            None
        });
        eventually(&format!("nothing is left of plan {number}"), || {
            redis.others_connected() == 0 && !redis.exists("lock:job")
        });
    }
}

#[test]
fn being_told_to_leave_after_a_grant_that_was_not_heard_leaves_no_lock_behind() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis, nth(1, Fate::ReplySwallowed));
    let mut waiter = proxy.nxlock(["run", "job", "--server-timeout", "30s", "--", "echo", "ran"]).start();
    eventually("it has been granted", || redis.exists("lock:job") && !waiter.has_ended());
    waiter.signal(Signal::SIGTERM);
    waiter.finish().dies_of(Signal::SIGTERM).prints("");
    eventually("nothing is left", || redis.others_connected() == 0 && !redis.exists("lock:job"));
}

#[test]
fn a_lost_reply_to_a_release_is_a_success() {
    for fate in [Fate::Cut, Fate::ReplySwallowed] {
        let redis = Redis::start();
        let token = redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().token();
        let proxy = Proxy::to(&redis, nth(1, fate));
        let timeout = if fate == Fate::Cut { "20s" } else { "1s" };
        let call = proxy.nxlock(["release", "job", &token]).env("NXLOCK_SERVER_TIMEOUT", timeout).run();
        match fate {
            Fate::Cut => drop(call.exits(0)),
            // Waiting for the reply may use up the server timeout: nxlock then does not know the outcome.
            _ => {
                assert!(matches!(call.status.code(), Some(0 | 69)), "{}", call.both());
                eventually("the request has arrived", || arrived(&proxy, RELEASES) > 0 && !redis.exists("lock:job"));
            }
        }
        assert!(!redis.exists("lock:job"));
    }
}

#[test]
fn a_lost_reply_to_the_release_of_a_run_leaves_its_status() {
    let redis = Redis::start();
    let proxy = Proxy::of_first(&redis, RELEASES, Fate::Cut);
    proxy.nxlock(["run", "job", "-c", "exit 3"]).run().exits(3).says_nothing();
    assert_eq!(arrived(&proxy, RELEASES), 2, "{:#?}", proxy.commands());
}

#[test]
fn a_run_whose_release_is_sent_again_is_recorded_once_though_its_line_has_gone_meanwhile() {
    let redis = Redis::start();
    let (go, waits) = mpsc::channel();
    let waits = Mutex::new(waits);
    let releases = AtomicUsize::new(0);
    let proxy = Proxy::by_command(&redis, move |_, words| {
        match words.starts_with(RELEASES).then(|| releases.fetch_add(1, Ordering::SeqCst)) {
            Some(0) => return Fate::Cut,
            Some(1) => waits.lock().unwrap().recv().unwrap(),
            _ => {}
        }
        Fate::Delivered
    });
    let outcomes = || {
        let history = redis.nxlock(["status", "--history", "--json", "job"]).run().json();
        let runs = history[0]["history"].as_array().unwrap().clone();
        runs.iter().map(|run| run["outcome"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let options = ["run", "job", "--record=1", "--server-timeout", "30s", "-c", "exit 3"];
    let first = proxy.nxlock(options).start();
    eventually("the first is recorded", || outcomes() == ["failed"]);
    redis.nxlock(["run", "job", "--record=1", "--", "true"]).run().exits(0);
    assert_eq!(outcomes(), ["done"]);
    go.send(()).unwrap();
    first.finish().exits(3);
    assert!(arrived(&proxy, RELEASES) >= 2, "{:#?}", proxy.commands());
    assert_eq!(outcomes(), ["done"]);
}

/// Returns the outcomes of the recorded runs of `job`.
fn outcomes(redis: &Redis) -> Vec<String> {
    let history = redis.nxlock(["status", "--history", "--json", "job"]).run().json();
    let runs = history[0]["history"].as_array().unwrap().clone();
    runs.iter().map(|run| run["outcome"].as_str().unwrap().to_owned()).collect()
}

/// Waits until a lock has ended, and deletes what of a shared one lasts a little longer.
fn ends_by_itself(redis: &Redis) {
    eventually("it ends by itself", || is_free(redis));
    redis.ask::<i64>(&["DEL", "{lock:job}:terms", "{lock:job}:shares"]);
}

/// How a lock may be held: options of a run.
const MANNERS: [&[&str]; 3] = [&[], &["--shared"], &["--slots", "2"]];

fn renews(words: &str) -> bool {
    words.starts_with("EVALSHA renew ")
}

fn releases(words: &str) -> bool {
    words.starts_with(RELEASES)
}

/// Returns whether a request records the end of a run, without a release.
fn records(words: &str) -> bool {
    words.starts_with("EVALSHA record ")
}

#[test]
fn a_name_that_was_to_stay_locked_for_a_while_has_ended_as_it_was_to_though_the_reply_was_lost() {
    for manner in MANNERS {
        let redis = Redis::start();
        let (has_ended, renewals, server) = (AtomicBool::new(false), AtomicUsize::new(0), redis.url());
        let proxy = Proxy::by_command(&redis, move |_, words| {
            // A holder also renews the lock when it begins to listen. Its run is recorded before the last renewal.
            has_ended.fetch_or(records(words), Ordering::SeqCst);
            if !renews(words) || !has_ended.load(Ordering::SeqCst) {
                return Fate::Delivered;
            }
            if renewals.fetch_add(1, Ordering::SeqCst) == 0 {
                return Fate::Cut;
            }
            let status = || Nxlock::new(["status", "job"]).env("NXLOCK_SERVER", &server).run();
            eventually("it has ended", || status().status.code() == Some(1));
            Fate::Delivered
        });
        let options = ["run", "job", "--record", "--at-least", "300ms", "-t", "1m", "--server-timeout", "30s"];
        let run = proxy.nxlock([&options[..], manner, &["-c", "exit 3"]].concat()).run();
        run.exits(3).never_says("lost");
        assert_eq!(outcomes(&redis), ["failed"]);
        ends_by_itself(&redis);
    }
}

#[test]
fn a_lock_that_was_held_when_its_command_ended_is_not_lost_by_a_reply_that_comes_after_its_lease() {
    let each = |manner: &[&str], record: &[&str]| {
        let redis = Redis::start();
        let releasing = AtomicUsize::new(0);
        let proxy = Proxy::by_command(&redis, move |_, words| {
            match releases(words).then(|| releasing.fetch_add(1, Ordering::SeqCst)) {
                Some(0) => return Fate::Cut,
                Some(_) => lasts(Duration::from_millis(4100)),
                None => {}
            }
            Fate::Delivered
        });
        let options = ["run", "job", "-t", "4s", "--server-timeout", "30s"];
        let run = proxy.nxlock([&options[..], manner, record, &["-c", "exit 3"]].concat()).run();
        run.exits(3).never_says("lost");
        assert!(arrived(&proxy, RELEASES) >= 2, "{:#?}", proxy.commands());
    };
    // At the same time: each takes longer than a lease.
    thread::scope(|scope| {
        for manner in MANNERS {
            for record in [&[][..], &["--record"]] {
                scope.spawn(move || each(manner, record));
            }
        }
    });
}

#[test]
fn a_run_whose_record_did_not_arrive_is_recorded_before_the_name_ends() {
    for manner in MANNERS {
        let redis = Redis::start();
        let recordings = AtomicUsize::new(0);
        let proxy = Proxy::by_command(&redis, move |_, words| {
            match (records(words) && !releases(words)).then(|| recordings.fetch_add(1, Ordering::SeqCst)) {
                Some(0) => return Fate::CutBefore,
                // Longer than the name is to stay locked.
                Some(_) => lasts(Duration::from_millis(500)),
                None => {}
            }
            Fate::Delivered
        });
        let options = ["run", "job", "--record", "--at-least", "200ms", "-t", "1m", "--server-timeout", "30s"];
        let run = proxy.nxlock([&options[..], manner, &["-c", "exit 3"]].concat()).run();
        run.exits(3).says_nothing();
        assert_eq!(outcomes(&redis), ["failed"]);
        assert!(lease_left(&redis) < Duration::from_secs(2), "it stays locked for longer than asked for");
        ends_by_itself(&redis);
    }
}

#[test]
fn a_lost_reply_to_a_renewal_does_not_disturb_the_command() {
    let each = |fate: Fate| {
        let redis = Redis::start();
        // Three lost replies in a row would be one too many.
        let scripts = AtomicUsize::new(0);
        let proxy = Proxy::by_command(&redis, move |_, words| {
            let is_script = words.starts_with("EVAL");
            match is_script.then(|| scripts.fetch_add(1, Ordering::Relaxed) + 1) {
                Some(2 | 4) => fate,
                _ => Fate::Delivered,
            }
        });
        let (reader, writer) = std::io::pipe().unwrap();
        let script = "trap 'echo disturbed' TERM HUP INT CONT; echo up; read x; exit 5";
        // An attempt has a sixth of it, and after a lost reply there is time for another that is late.
        let call = proxy.nxlock(["run", "job", "-t", "9s", "-c", script]).stdin_from(reader);
        let mut running = call.start();
        running.line("up");
        let renewals = || arrived(&proxy, "EVAL");
        eventually("it has been renewed a few times", || renewals() >= 7 || running.has_ended());
        drop(writer);
        running.finish().exits(5).prints("up\n");
        eventually("nothing is left", || !redis.exists("lock:job"));
    };
    // At the same time: each takes longer than a lease.
    let fates = [Fate::Cut, Fate::ReplySwallowed, Fate::Blackholed];
    thread::scope(|scope| fates.iter().for_each(|fate| _ = scope.spawn(|| each(*fate))));
}

#[test]
fn a_break_whose_reply_is_lost_is_not_done_to_the_next_holder() {
    let redis = Redis::start();
    redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0);
    let rows = redis.nxlock(["status", "job", "--json"]).run().json();
    let id = rows[0]["holder"]["id"].as_str().unwrap().to_owned();
    let proxy = Proxy::to(&redis, nth(2, Fate::Cut));
    proxy.nxlock(["release", "job", "--break", &id]).run().exits(0);
    assert!(!redis.exists("lock:job"));
}

#[test]
fn a_connection_that_was_cut_between_two_renewals_is_made_again() {
    let redis = Redis::start();
    let (reader, writer) = std::io::pipe().unwrap();
    let call = redis.nxlock(["run", "job", "-t", "6s", "-c", "echo up; read x; exit 5"]).stdin_from(reader);
    let mut running = call.start();
    running.line("up");
    for _ in 0..3 {
        redis.ask::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        eventually("it is connected again", || redis.others_connected() == 1);
    }
    drop(writer);
    running.finish().exits(5).never_says("lost");
}

#[test]
fn who_gives_up_without_the_queue_undoes_a_request_that_arrives_late() {
    let redis = Redis::start();
    redis.put("lock:job", b"another's", Some(60_000));
    for options in [&["--no-queue", "-w", "1200ms"][..], &["--no-queue", "-w", "300ms"], &["-n"]] {
        // With 1200ms the first request is refused and the second is late; otherwise the first is late, and the last.
        let late = if options.contains(&"1200ms") { 2 } else { 1 };
        let args = [&["acquire", "job", "--ttl", "1h", "--server-timeout", "400ms"], options].concat();
        let proxy = eventually_some("the first request is refused in time, if it is to be", || {
            let proxy = Proxy::by_command(&redis, nth_of(ACQUIRES, late, Fate::Held));
            let done = proxy.nxlock(args.iter().copied()).run();
            assert!(matches!(done.status.code(), Some(69 | 75)), "{}", done.both());
            (arrived(&proxy, ACQUIRES) >= late).then_some(proxy)
        });
        redis.delete("lock:job");
        proxy.lets_go();
        eventually("it was granted", || redis.exists("{lock:job}:fence"));
        eventually("and undone", || !redis.exists("lock:job"));
        redis.delete("{lock:job}:fence");
        redis.put("lock:job", b"another's", Some(60_000));
    }
    redis.delete("lock:job");
}

#[test]
fn who_gives_up_undoes_the_first_of_several_requests_too() {
    let redis = Redis::start();
    redis.put("lock:job", b"another's", Some(60_000));
    let args = ["acquire", "job", "--ttl", "1h", "--no-queue", "-w", "4s", "--server-timeout", "1s"];
    let (proxy, leaves) = eventually_some("its first request is refused in time, and it asks again and again", || {
        // Request 2 is late. Later ones are lost until nxlock has ended, but for those behind it on its connection.
        let has_left = Arc::new(AtomicBool::new(false));
        let (leaves, acquires) = (Arc::clone(&has_left), AtomicUsize::new(0));
        let proxy = Proxy::by_command(&redis, move |_, words| {
            match words.starts_with(ACQUIRES).then(|| acquires.fetch_add(1, Ordering::SeqCst) + 1) {
                Some(1) => Fate::Delivered,
                Some(2) => Fate::Held,
                _ if has_left.load(Ordering::SeqCst) => Fate::Delivered,
                _ => Fate::Blackholed,
            }
        });
        let done = proxy.nxlock(args).run();
        if arrived(&proxy, ACQUIRES) > 2 {
            done.exits(69);
            return Some((proxy, leaves));
        }
        // The server refuses the request that was held, and all others are lost: no connection of this call stays.
        proxy.lets_go();
        None
    });
    redis.delete("lock:job");
    eventually("what was lost has been read", || redis.others_connected() == 1);
    leaves.store(true, Ordering::SeqCst);
    proxy.lets_go();
    eventually("it was granted", || redis.exists("{lock:job}:fence"));
    eventually("and undone", || !redis.exists("lock:job"));
}

/// Acquires a lock for an hour by way of a proxy, which holds one of its requests. Returns the token.
fn acquired_with_a_late_request(redis: &Redis, more: &[&str]) -> (Proxy, String) {
    redis.put("lock:job", b"another's", Some(60_000));
    let proxy = Proxy::by_command(redis, nth_of(ACQUIRES, 2, Fate::Held));
    let args = [&["acquire", "job", "--ttl", "1h", "--server-timeout", "1s"], more].concat();
    let waiter = proxy.nxlock(args.iter().copied()).start();
    eventually("it asks again behind the one that is late", || arrived(&proxy, ACQUIRES) > 2);
    redis.delete("lock:job");
    let token = waiter.finish().exits(0).text().trim().to_owned();
    (proxy, token)
}

#[test]
fn a_request_that_arrives_when_its_lock_was_handed_over_and_released_leaves_no_lock() {
    for more in [&[][..], &["--slots", "2"], &["--no-queue"], &["--while-pid", &std::process::id().to_string()]] {
        let redis = Redis::start();
        let (proxy, token) = acquired_with_a_late_request(&redis, more);
        redis.nxlock(["release", "job", &token]).run().exits(0);
        let fence = redis.value("{lock:job}:fence").unwrap();
        proxy.lets_go();
        eventually("it was granted", || redis.value("{lock:job}:fence").is_some_and(|last| last != fence));
        eventually("and undone", || !redis.exists("lock:job"));
    }
}

#[test]
fn a_request_that_arrives_when_its_lock_was_handed_over_does_not_shorten_its_lease() {
    let redis = Redis::start();
    for more in [&[][..], &["--slots", "2"]] {
        let (proxy, token) = acquired_with_a_late_request(&redis, more);
        redis.nxlock(["renew", "job", &token, "--ttl", "2h"]).run().exits(0);
        proxy.lets_go();
        proxy.has_carried_all();
        assert!(redis.pttl("lock:job") > 3_700_000, "{}", redis.pttl("lock:job"));
        redis.nxlock(["release", "job", &token]).run().exits(0);
    }
}

#[test]
fn a_renewal_that_arrives_after_the_end_does_not_shorten_what_at_least_keeps() {
    let redis = Redis::start();
    let proxy = Proxy::by_command(&redis, nth_of("EVALSHA renew ", 1, Fate::Held));
    let (reader, writer) = std::io::pipe().unwrap();
    let words = ["run", "job", "-t", "6s", "--at-least", "10m", "--server-timeout", "1s", "-c", "read x"];
    let holder = proxy.nxlock(words).stdin_from(reader).start();
    eventually("it renews the lock behind the renewal that is late", || arrived(&proxy, "EVALSHA renew ") > 1);
    drop(writer);
    holder.finish().exits(1);
    proxy.lets_go();
    proxy.has_carried_all();
    assert!(redis.pttl("lock:job") > 60_000, "{}", redis.pttl("lock:job"));
    redis.delete("lock:job");
}

#[test]
fn a_release_that_the_server_refuses_each_time_is_known_to_have_done_nothing() {
    let redis = Redis::start();
    for refusal in ["-BUSY it is busy\r\n", "-READONLY it is a replica\r\n", "-OOM it is full\r\n"] {
        // One that is refused for ever ends with its time, and on a busy machine the last reply may come after that.
        let releases = AtomicUsize::new(0);
        let proxy = Proxy::by_command(&redis, move |_, words| match words.contains(" release ") {
            true if releases.fetch_add(1, Ordering::Relaxed) < 3 => Fate::Answered(refusal),
            true => Fate::Answered("-ERR it is broken\r\n"),
            false => Fate::Delivered,
        });
        let done = proxy.nxlock(["run", "job", "--server-timeout", "10s", "true"]).run();
        done.says("cannot release").never_says("may have been released");
        assert!(redis.exists("lock:job"));
        redis.delete("lock:job");
    }
}

/// Passes requests on to a server, and replies to the client: each only after the client has sent more or has left, and
/// then none to one that has left, of which it reads nothing more either. Redis does so if it is slow between the
/// execution of a request and its reply.
fn replies_late(mut client: UnixStream, mut server: UnixStream) -> io::Result<()> {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let length = client.read(&mut bytes)?;
        if length == 0 {
            return Ok(());
        }
        server.write_all(&bytes[..length])?;
        let length = server.read(&mut bytes)?;
        poll(&mut [PollFd::new(client.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
        // Time for the client to leave, if it does not wait for this reply.
        let mut left = [PollFd::new(client.as_fd(), PollFlags::empty())];
        poll(&mut left, 200_u8)?;
        client.write_all(&bytes[..length])?;
    }
}

#[test]
fn who_gives_up_at_a_unix_socket_does_not_leave_before_the_undo_will_be_read() {
    let servers = [Redis::start(), Redis::start(), Redis::start()];
    let [late, others @ ..] = &servers;
    let socket = late.directory().join("late");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = late.socket();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), UnixStream::connect(&server).unwrap());
            thread::spawn(|| replies_late(client, server));
        }
    });
    servers.iter().for_each(Redis::knows_the_script);
    // Two of three servers refuse: nobody waits for the third.
    others.iter().for_each(|redis| redis.put("lock:job", b"another's", Some(60_000)));
    let urls = format!("unix://{} {} {}", socket.display(), others[0].url(), others[1].url());
    // If the two refuse soon enough, the third is not asked.
    eventually("the third has granted it", || {
        let call = ["acquire", "job", "-n", "--ttl", "1h", "--server-timeout", "20s"];
        Nxlock::new(call).env("NXLOCK_SERVER", &urls).run().exits(75);
        late.exists("{lock:job}:fence")
    });
    eventually("that is undone", || !late.exists("lock:job"));
    others.iter().for_each(|redis| redis.delete("lock:job"));
}

#[test]
fn who_is_not_answered_is_told_that_it_may_have_been_done() {
    let redis = Redis::start();
    let is_lost = |words: &str| words.contains(" release ");
    let proxy = Proxy::by_command(&redis, move |_, words| match is_lost(words) {
        true => Fate::ReplySwallowed,
        false => Fate::Delivered,
    });
    let timeout = ["--server-timeout", "300ms"];
    // On a busy machine the request before the one that is lost may take longer, which is said otherwise.
    let run = eventually_some("it is granted in time", || {
        let run = proxy.nxlock([&timeout[..], &["run", "job", "--record", "-c", "exit 3"]].concat()).run();
        Some(run).filter(|run| run.status.code() != Some(69))
    });
    let run = run.exits(3);
    run.says("may have been released").says("may not be recorded").never_says("is not recorded");
    eventually("it was released", || !redis.exists("lock:job"));
    let token = redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0).token();
    let released = proxy.nxlock([&timeout[..], &["release", "job", &token]].concat()).run().exits(69);
    released.says("it may have been released all the same");
    let token = redis.nxlock(["acquire", "job", "--ttl", "1m"]).run().exits(0).token();
    let id = token[4..12].to_owned();
    let broken = eventually_some("the lock is seen in time", || {
        let broken = proxy.nxlock([&timeout[..], &["release", "job", "--break", &id]].concat()).run().exits(69);
        Some(broken).filter(|broken| broken.stderr.contains("may have been broken"))
    });
    broken.says("it may have been broken all the same");
    eventually("it was broken", || !redis.exists("lock:job"));
}

#[test]
fn over_a_slow_line_each_reply_has_the_server_timeout_also_for_a_share() {
    let redis = Redis::start();
    let reader = Turn::had(&redis, &["--shared", "-t", "1m"]);
    let proxy = Proxy::to(&redis, |_| Fate::Slow(Duration::from_secs(2)));
    // Longer than one reply takes, and shorter than two.
    let timeout = ["--server-timeout", "3900ms"];
    let seen = proxy.nxlock([&timeout[..], &["--json", "status", "job"]].concat()).run().exits(0).json();
    let id = seen[0]["holders"][0]["id"].as_str().expect("it is seen").to_owned();
    proxy.nxlock([&timeout[..], &["release", "job", "--break", &id]].concat()).run().exits(0);
    reader.finish().exits(76);
}

#[test]
fn one_that_has_been_refused_once_is_refused_though_the_end_of_its_wait_cuts_the_next_reply_off() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &["-t", "1m"]);
    // The first request only asks, the second one joins the queue.
    let proxy = Proxy::by_command(&redis, nth_of(ACQUIRES, 2, Fate::Held));
    let options = ["run", "job", "-w", "3s", "--server-timeout", "20s", "--", "true"];
    proxy.nxlock(options).run().exits(75).says("held by");
    proxy.lets_go();
    holder.leaves();
    eventually("nothing of it is left", || redis.ask::<Vec<String>>(&["KEYS", "*"]) == ["{lock:job}:fence"]);
}
