//! Late messages: those of a ballot that is over must not affect the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::quorum::{OTHERS, nothing_is_left, told_by_all, unreachable_for};
use crate::support::turns::{Turn, acquire, turn};
use crate::support::{
    Authority, Done, Fate, Five, Network, Nxlock, Proxy, Redis, eventually, eventually_some, lasts, may_trace, now,
};

/// Returns a function that tells whether a request is the first script of all.
fn first_script() -> impl Fn(&str) -> bool + Send + Sync {
    let is_over = AtomicBool::new(false);
    move |words: &str| words.starts_with("EVAL") && !is_over.swap(true, Ordering::Relaxed)
}

#[test]
fn what_undoes_a_lost_ballot_takes_no_vote_of_the_one_that_was_won() {
    let three = [Redis::start(), Redis::start(), Redis::start()];
    // The first ballot is lost: one vote of three is another candidate's, and one request is on its way.
    three[2].put("lock:job", OTHERS, Some(600_000));
    // On a busy machine, the other two may not answer that ballot in time either.
    let (slow, holder) = eventually_some("it is up", || {
        let first = first_script();
        let held = move |_: usize, words: &str| if first(words) { Fate::Held } else { Fate::Delivered };
        let slow = Proxy::by_command(&three[0], held);
        let servers = format!("{} {} {}", slow.url(), three[1].url(), three[2].url());
        let call = Nxlock::new(turn(&["-t", "30s", "--server-timeout", "500ms"])).env("NXLOCK_SERVER", &servers);
        let mut holder = Turn::of(call);
        eventually("it is up, or has ended", || holder.is_up() || holder.running.has_ended());
        if holder.running.has_ended() {
            holder.finish().exits(69);
            return None;
        }
        Some((slow, holder))
    });
    let won = three[1].value("lock:job");
    assert_eq!(three[0].value("lock:job"), won);
    let before = three[0].scripts_run();
    slow.lets_go();
    eventually("the late request is carried out, and what undoes it", || three[0].scripts_run() >= before + 2);
    assert_eq!(three[0].value("lock:job"), won, "a vote of the ballot that was won is gone");
    // With this vote and the server that is free now, another candidate would have a majority.
    three[2].delete("lock:job");
    let other = Nxlock::new(["run", "job", "-n", "--", "echo", "ran"]);
    other.env("NXLOCK_SERVER", three.each_ref().map(Redis::url).join(" ")).run().exits(75).prints("");
    holder.leaves();
    // nxlock sends the undo of a lost ballot without waiting for the reply.
    eventually("nothing is left", || three.iter().all(|redis| !redis.exists("lock:job")));
}

#[test]
fn what_is_still_to_be_sent_when_a_run_ends_is_sent_before_nxlock_exits() {
    if !may_trace() {
        return;
    }
    let three = [Redis::start(), Redis::start(), Redis::start()];
    // This server does not answer the request to tell of changes: nxlock sends the release over a new connection.
    let silent = Proxy::by_command(&three[0], |_, words| match words.starts_with("CLIENT") {
        true => Fate::ReplySwallowed,
        false => Fate::Delivered,
    });
    let servers = format!("{} {} {}", silent.url(), three[1].url(), three[2].url());
    let slow_to_connect = ["-e", "trace=connect", "-e", "inject=connect:delay_enter=500000"];
    let strace = ["strace", "-f", "-b", "execve", "-o", "/dev/null"].into_iter().chain(slow_to_connect);
    let call = Nxlock::new(turn(&["-t", "10m", "--server-timeout", "20s"])).env("NXLOCK_SERVER", &servers);
    let mut holder = Turn::of(call.under(strace));
    holder.up();
    eventually("it is asked to", || silent.commands().iter().any(|command| command.starts_with("CLIENT")));
    // The other two are a majority: it may vote later.
    eventually("it has voted", || three[0].exists("lock:job"));
    holder.leaves();
    eventually("nothing is left", || three.iter().all(|redis| !redis.exists("lock:job")));
}

#[test]
fn a_vote_that_decides_is_waited_for_though_its_server_is_far_slower_than_the_others() {
    let three = [Redis::start(), Redis::start(), Redis::start()];
    three[2].put("lock:job", OTHERS, Some(600_000));
    let slow = Proxy::to(&three[0], |_| Fate::Slow(Duration::from_millis(150)));
    let servers = format!("{} {} {}", slow.url(), three[1].url(), three[2].url());
    for waits in [&["-w", "15s"][..], &["-n", "--server-timeout", "15s"]] {
        let call = Nxlock::new([&["run", "job"], waits, &["--", "echo", "ran"]].concat());
        call.env("NXLOCK_SERVER", &servers).run().exits(0).prints("ran\n");
        eventually("its votes are given back", || three[..2].iter().all(|redis| !redis.exists("lock:job")));
    }
    three[2].delete("lock:job");
}

/// A waiter asks one of the servers that voted for the holder before it asks the others, and waits for it only a moment.
#[test]
fn the_vote_of_the_server_that_is_asked_first_counts_though_it_comes_after_the_others() {
    let is_judged = (0..3).any(|_| {
        let three = [Redis::start(), Redis::start(), Redis::start()];
        three[..2].iter().for_each(|redis| redis.put("lock:job", OTHERS, Some(600_000)));
        let are_held = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let held_at = |server: &Redis, is_held: &Arc<AtomicBool>| {
            let is_held = Arc::clone(is_held);
            let is_asked = move |words: &str| words.contains("acquire") && is_held.load(Ordering::Relaxed);
            Proxy::by_command(server, move |_, words| if is_asked(words) { Fate::Held } else { Fate::Delivered })
        };
        let [first, last] = [held_at(&three[0], &are_held[0]), held_at(&three[2], &are_held[1])];
        let servers = format!("{} {} {}", first.url(), three[1].url(), last.url());
        // It outlasts the test.
        let call = Nxlock::new(turn(&["-t", "1h", "--server-timeout", "1h"])).env("NXLOCK_SERVER", &servers);
        let mut waiter = Turn::of(call);
        waiter.running.says("waiting for \"job\"");
        // On a busy machine, a server may not answer the first ballot in time. While it is silent, it is asked for no vote.
        let is_well = waiter.running.stderr().contains("held by");
        are_held.iter().for_each(|is_held| is_held.store(true, Ordering::Relaxed));
        three[..2].iter().for_each(|redis| redis.delete("lock:job"));
        // If it has asked them before they were free, it asks them no more: it waits for the servers that are silent now.
        let freed = now();
        let is_asked = || three[1].exists("lock:job");
        eventually("it asks the others too", || is_asked() || freed.elapsed() > Duration::from_secs(5));
        let is_judged = is_well && is_asked();
        let goes_on = |is_held: &AtomicBool, proxy: &Proxy| {
            is_held.store(false, Ordering::Relaxed);
            proxy.lets_go();
        };
        goes_on(&are_held[0], &first);
        if !is_judged {
            goes_on(&are_held[1], &last);
        }
        waiter.up();
        goes_on(&are_held[1], &last);
        waiter.leaves();
        eventually("nothing is left", || three.iter().all(|redis| !redis.exists("lock:job")));
        is_judged
    });
    assert!(is_judged, "the servers never answered in time, or the others were never asked when they were free");
}

#[test]
fn a_vote_that_would_decide_is_waited_for_no_longer_than_the_server_timeout() {
    let three = [Redis::start(), Redis::start(), Redis::start()];
    three[2].put("lock:job", OTHERS, Some(600_000));
    let hangs = Proxy::to(&three[0], |_| Fate::Blackholed);
    let servers = format!("{} {} {}", hangs.url(), three[1].url(), three[2].url());
    let call = || {
        let call = Nxlock::new(["run", "job", "-n", "--server-timeout", "1s", "--", "echo", "ran"]);
        call.env("NXLOCK_SERVER", &servers)
    };
    let done = unreachable_for("2 of 3 servers answered", call).prints("").within(Duration::from_secs(2));
    done.says("too few servers answer");
    eventually("nothing is left", || !three[1].exists("lock:job"));
    three[2].delete("lock:job");
}

#[test]
fn a_vote_that_came_too_late_is_undone_by_way_of_a_proxy_that_ends_with_its_client() {
    let three = [Redis::start(), Redis::start(), Redis::start()];
    three[2].put("lock:job", OTHERS, Some(600_000));
    let run = || {
        let first = first_script();
        // The server votes at once; its reply comes after nxlock has given it up.
        let slow = Proxy::by_command(&three[0], move |_, words| match first(words) {
            true => Fate::Slow(Duration::from_secs(1)),
            false => Fate::Delivered,
        });
        let servers = format!("{} {} {}", slow.url(), three[1].url(), three[2].url());
        let words = ["run", "job", "-t", "1h", "-w", "15s", "--server-timeout", "500ms", "--", "echo", "ran"];
        let done = Nxlock::new(words).env("NXLOCK_SERVER", &servers).run();
        eventually("the late vote is undone", || !three[0].exists("lock:job"));
        done
    };
    // On a busy machine, the other two may not answer the first ballot in time: then too few have.
    let is_met = |done: &Done| done.status.code() != Some(69) || done.stderr.contains("2 of 3 servers answered");
    eventually_some("the other two answer in time", || Some(run()).filter(is_met)).exits(0).prints("ran\n");
    three[2].delete("lock:job");
}

#[test]
fn a_lock_is_given_back_though_most_servers_refuse_connections_at_first() {
    let five = Five::start();
    let networks: Vec<Network> = five.each().iter().map(Network::to).collect();
    let urls: Vec<String> = networks.iter().map(|network| format!("unix://{}", network.socket().display())).collect();
    let call = Nxlock::new(turn(&["-v", "-t", "30s", "--server-timeout", "15s"]));
    let mut holder = Turn::of(call.env("NXLOCK_SERVER", urls.join(" ")));
    holder.up();
    networks[..3].iter().for_each(Network::refuses);
    holder.is_told();
    holder.running.says("cannot release");
    networks[..3].iter().for_each(Network::accepts);
    holder.finish().exits(0);
    // A majority has released it. A server that stayed unreachable keeps its vote until the lease expires.
    five.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(0).prints("ran\n");
    five.each().iter().for_each(|redis| _ = redis.ask::<i64>(&["DEL", "lock:job"]));
}

/// Sets a flag when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_server_that_hangs_once_it_has_voted_makes_nobody_call_the_others_unreachable() {
    let mut five = Five::start();
    five.each_mut()[4].kill();
    let hangs_once_it_has_voted = || {
        let (first, has_voted) = (first_script(), AtomicBool::new(false));
        Proxy::by_command(&five.each()[2], move |_, words| {
            let votes = first(words);
            if has_voted.fetch_or(votes, Ordering::Relaxed) { Fate::Blackholed } else { Fate::Delivered }
        })
    };
    five.each()[3].put("lock:job", OTHERS, Some(60_000));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        // The rival ends even if an assertion fails.
        let ended = Ends(&over);
        // On the fourth server that is up, others vote again and again, each time with a higher fence.
        let rival = scope.spawn(|| {
            let redis = &five.each()[3];
            let mut fence = 4_000_000_000_000_000_u64;
            while !over.load(Ordering::Relaxed) {
                redis.put("lock:job", OTHERS, Some(60_000));
                fence += 1_000_000;
                redis.put("{lock:job}:fence", fence.to_string().as_bytes(), Some(600_000));
                lasts(Duration::from_millis(1));
            }
            redis.delete("lock:job");
        });
        // On a busy machine, too few may answer the first ballot in time: it has met no majority then.
        let (_hangs, mut waiter) = eventually_some("a majority answers in time", || {
            let hangs = hangs_once_it_has_voted();
            let mut servers: Vec<String> = five.each().iter().map(Redis::url).collect();
            servers[2] = hangs.url();
            let call = Nxlock::new(turn(&["-t", "30s", "--server-timeout", "500ms"]));
            let mut waiter = Turn::of(call.env("NXLOCK_SERVER", servers.join(" ")));
            eventually("it has said what it waits for, or has ended", || {
                waiter.running.stderr().contains("waiting for") || waiter.running.has_ended()
            });
            let said = waiter.running.stderr();
            let few = ["0 of 5", "1 of 5", "2 of 5"].map(|few| format!("job\": {few} servers answered"));
            if waiter.running.has_ended() && few.iter().any(|few| said.contains(few)) {
                waiter.finish().exits(69);
                five.each()[2].ask::<()>(&["DEL", "lock:job"]);
                return None;
            }
            Some((hangs, waiter))
        });
        // Longer than nxlock waits for servers that it has never reached.
        lasts(Duration::from_secs(2));
        drop(ended);
        rival.join().unwrap();
        waiter.up();
        waiter.leaves();
    });
    // Its vote expires with the lease: no undo reaches the server.
    five.each()[2].delete("lock:job");
    five.each_mut()[4].restart();
    nothing_is_left(&five);
}

#[test]
fn a_claim_at_one_far_slower_server_can_be_broken() {
    let three = [Redis::start(), Redis::start(), Redis::start()];
    let token = acquire(&three[0], "1h");
    let slow = Proxy::to(&three[0], |_| Fate::Slow(Duration::from_millis(150)));
    let servers = format!("{} {} {}", slow.url(), three[1].url(), three[2].url());
    let call = Nxlock::new(["release", "job", "--break", &token[4..12]]).env("NXLOCK_SERVER", &servers);
    call.run().exits(0).says("broke \"job\"");
    assert!(!three[0].exists("lock:job"));
}

#[test]
fn a_holder_that_hears_of_a_break_at_one_server_after_the_other_does_not_undo_it() {
    let three = [Redis::start(), Redis::start(), Redis::start()];
    for breaks in [true, false] {
        let holder = told_by_all(&three, &[]);
        let late = [1, 2].map(|at: usize| {
            Proxy::by_command(&three[at], |_, words| match words.starts_with("EVALSHA release") {
                true => Fate::Held,
                false => Fate::Delivered,
            })
        });
        let servers = format!("{} {} {}", three[0].url(), late[0].url(), late[1].url());
        let call = |words: &[&str]| Nxlock::new(words.iter().copied()).env("NXLOCK_SERVER", &servers);
        let status = call(&["status", "--json", "job"]).run().json();
        let id = status[0]["holder"]["id"].as_str().unwrap().to_owned();
        let token = three[0].value("lock:job").unwrap();
        let words = if breaks { ["release", "job", "--break", &id] } else { ["release", "job", &token, "-v"] };
        let before = three[0].scripts_run();
        let ends = call(&[&words[..], &["--server-timeout", "60s"]].concat()).start();
        eventually("the holder has heard of the first", || three[0].scripts_run() >= before + 2);
        late[0].lets_go();
        holder.finish().exits(76).says("\"job\" is lost: it had expired or was deleted");
        late[1].lets_go();
        ends.finish().exits(0);
        eventually("nothing is left", || three.iter().all(|redis| !redis.exists("lock:job")));
    }
}
