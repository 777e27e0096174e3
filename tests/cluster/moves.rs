//! A slot moves from one master to another while a lock in it is held and waited for.

use std::io::{self, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::seeds::seed;
use super::{MASTERS, are_served, line, listen_where_the_lock_is};
use crate::support::turns::{
    Turn, acquire, break_it, counted, fences_rise, grants, holder_id, is_free, is_renewed, lock_status, next_holder,
    release, turn,
};
use crate::support::{
    Authority, Cluster, LIMIT, Nxlock, Redis, Running, answered, eventually, eventually_some, now, text_of,
};

const LOCK: &str = "lock:job";
const QUEUE: &str = "{lock:job}:queue";
const WAITERS: &str = "{lock:job}:waiters";
const FENCE: &str = "{lock:job}:fence";

/// The keys of a lock to move to the importing node while the rest stay on the migrating node.
const PARTS: [&[&str]; 5] = [&[], &[LOCK], &[FENCE], &[LOCK, QUEUE, WAITERS], &[LOCK, QUEUE, WAITERS, FENCE]];

#[test]
fn a_slot_that_moves_disturbs_neither_who_holds_nor_who_waits() {
    let cluster = MASTERS.lend();
    let line = line(&cluster, 3, &["-t", "8s"]);
    let token: Option<String> = cluster.ask(&["GET", "lock:job"]);
    for _ in 0..2 {
        listen_where_the_lock_is(&cluster, 3);
        let before = cluster.at("lock:job");
        cluster.moves("lock:job");
        assert_ne!(cluster.at("lock:job"), before);
        is_renewed(&cluster);
        assert_eq!(cluster.ask::<Option<String>>(&["GET", "lock:job"]), token);
    }
    listen_where_the_lock_is(&cluster, 3);
    are_served(&cluster, line);
}

#[test]
fn a_run_within_a_run_whose_slot_moves_finds_itself_in_it() {
    let cluster = MASTERS.lend();
    let shares = "{lock:job}:shares";
    let parts: [&[&str]; 4] = [&[], &[LOCK], &[shares], &[LOCK, shares, "{lock:job}:terms", FENCE]];
    for options in [&[][..], &["--shared"], &["-j3"]] {
        for part in parts {
            let script = "echo up; read x; nxlock run job -w 1h -- echo ran; echo is $?; read x; exit 0";
            let (stdin, mut told) = std::io::pipe().unwrap();
            let words = [&["run", "job", "-t", "10m"], options, &["-c", script]].concat();
            let mut outer = cluster.nxlock(words).stdin_from(stdin).start();
            outer.line("up");
            let slot = cluster.begins_to_move(LOCK);
            slot.carries(part);
            told.write_all(b"\n").unwrap();
            outer.line("is 75");
            slot.ends();
            drop(told);
            outer.finish().exits(0).says("\"job\" is already held by this script");
        }
    }
}

#[test]
fn a_lock_that_is_given_back_after_its_slot_has_moved_is_handed_on() {
    let cluster = MASTERS.lend();
    // The holder has not renewed in between, and no waiter has noticed the move: none subscribes at the new node.
    let line = line(&cluster, 3, &["-t", "10m"]);
    cluster.moves("lock:job");
    are_served(&cluster, line);
    let token = acquire(&cluster, "10m");
    cluster.moves("lock:job");
    release(&cluster, &token);
    assert!(is_free(&cluster));
}

#[test]
fn nobody_overtakes_those_who_waited_before_the_slot_moved() {
    let cluster = MASTERS.lend();
    let token = acquire(&cluster, "5m");
    let waiting: Vec<Turn> = (0..3).map(|_| Turn::queued(&cluster, &["-t", "5m"])).collect();
    listen_where_the_lock_is(&cluster, 3);
    cluster.moves(LOCK);
    release(&cluster, &token);
    cluster.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(75).prints("");
    for mut turn in waiting {
        turn.up();
        cluster.nxlock(["run", "job", "-n", "--", "echo", "ran"]).run().exits(75).prints("");
        turn.leaves();
    }
}

#[test]
fn a_waiter_that_is_killed_after_its_slot_has_moved_costs_only_its_reservation() {
    let cluster = MASTERS.lend();
    let token = acquire(&cluster, "5m");
    let killed = Turn::queued(&cluster, &[]);
    let mut next = Turn::queued(&cluster, &[]);
    listen_where_the_lock_is(&cluster, 2);
    cluster.moves(LOCK);
    drop(killed);
    release(&cluster, &token);
    next.up();
    next.leaves();
}

#[test]
fn a_lone_waiter_whose_time_ends_as_its_slot_begins_to_move_is_told_that_the_lock_is_held() {
    let cluster = MASTERS.lend();
    let token = acquire(&cluster, "5m");
    let is_in_line = || {
        let listening = cluster.master_of(LOCK).ask::<Vec<String>>(&["PUBSUB", "CHANNELS", "lock:job:wake:*"]);
        cluster.ask::<i64>(&["ZCARD", QUEUE]) == 1 && listening.len() == 1
    };
    // On a busy machine its time may have ended by then, and another one comes.
    let waiter = eventually_some("a waiter is in line and listens", || {
        let mut waiter = cluster.nxlock(["run", "job", "-w", "1500ms", "--", "true"]).start();
        eventually("it does, or its time has ended", || waiter.has_ended() || is_in_line());
        (!waiter.has_ended()).then_some(waiter)
    });
    // All keys are still on the migrating node, until the only waiter leaves the queue.
    let slot = cluster.begins_to_move(LOCK);
    waiter.finish().exits(75);
    slot.ends();
    release(&cluster, &token);
}

#[test]
fn a_holder_whose_lock_was_granted_while_its_slot_moves_is_no_waiter_and_has_no_reservation() {
    let cluster = MASTERS.lend();
    let seen = || cluster.nxlock(["--json", "status", "job"]).run().exits(0).json()[0].take();
    for is_reserved in [true, false] {
        let token = acquire(&cluster, "5m");
        let first = Turn::queued(&cluster, &["-t", "5m"]);
        let second = Turn::queued(&cluster, &["-t", "5m"]);
        listen_where_the_lock_is(&cluster, 2);
        let slot;
        if is_reserved {
            first.freeze();
            release(&cluster, &token);
            slot = cluster.begins_to_move(LOCK);
            slot.carries(&[FENCE]);
            first.goes_on();
        } else {
            slot = cluster.begins_to_move(LOCK);
            slot.carries(&[FENCE]);
            release(&cluster, &token);
        }
        let mut both = vec![first, second];
        let holder = next_holder(&mut both);
        slot.ends();
        let now = seen();
        assert_eq!(now["state"], "held", "{now}");
        let queue = now["queue"].as_array().unwrap();
        assert!(!queue.iter().any(|waiter| waiter["id"] == now["holder"]["id"]), "{now}");
        holder.leaves();
        for mut turn in both {
            turn.up();
            turn.leaves();
        }
    }
}

#[test]
fn a_holder_learns_within_seconds_that_the_move_in_which_it_was_granted_the_lock_was_called_off() {
    let cluster = MASTERS.lend();
    cluster.nxlock(["run", "job", "--", "true"]).run().exits(0);
    let slot = cluster.begins_to_move(LOCK);
    let holder = Turn::had(&cluster, &["-t", "5m"]);
    slot.is_called_off_at(slot.from());
    slot.is_called_off_at(slot.to());
    let called_off = now();
    holder.finish().exits(76);
    assert!(called_off.elapsed() < Duration::from_secs(6), "{:?}", called_off.elapsed());
    // A node that does not serve the slot may keep the key until it expires.
    slot.to().ask::<()>(&["FLUSHALL"]);
}

#[test]
fn a_lock_is_renewed_and_given_back_where_it_is_while_its_slot_is_on_its_way() {
    let cluster = MASTERS.lend();
    let holder = Turn::had(&cluster, &["-t", "9s"]);
    let slot = cluster.begins_to_move("lock:job");
    // The key is still on the migrating node.
    slot.from().sees_a_renewal("lock:job");
    slot.carries_its_keys();
    // The importing node answers only after ASKING.
    let ttl = || {
        let mut connection = slot.to().connection().unwrap();
        let mut ask = redis::pipe();
        let (ttl,): (i64,) = ask.cmd("ASKING").ignore().cmd("PTTL").arg("lock:job").query(&mut connection).unwrap();
        ttl
    };
    eventually("its lease runs down", || ttl() < 8_500);
    eventually("it is renewed at the new place", || ttl() > 8_500);
    slot.ends();
    holder.leaves();
    eventually("it is free", || is_free(&cluster));
}

#[test]
fn a_lock_is_renewed_in_time_though_the_node_that_is_about_to_have_it_hangs() {
    let cluster = MASTERS.lend();
    let holder = Turn::had(&cluster, &["-t", "3s"]);
    let slot = cluster.begins_to_move(LOCK);
    slot.carries(&[FENCE]);
    slot.to().hang();
    for _ in 0..4 {
        slot.from().sees_a_renewal(LOCK);
    }
    slot.to().resume();
    slot.ends();
    holder.leaves();
}

#[test]
fn those_who_share_a_lock_renew_it_in_time_though_the_node_that_is_about_to_have_it_hangs() {
    let cluster = MASTERS.lend();
    let holders = [0, 1].map(|_| Turn::had(&cluster, &["--slots", "2", "-t", "3s"]));
    let slot = cluster.begins_to_move(LOCK);
    slot.to().hang();
    for _ in 0..4 {
        let seen = leases(slot.from());
        eventually("each of them renews it", || {
            let later = leases(slot.from());
            later.len() == 2 && seen.iter().zip(&later).all(|(before, after)| before < after)
        });
    }
    slot.to().resume();
    slot.ends();
    holders.into_iter().for_each(Turn::leaves);
}

/// Returns the ends of the leases of those who share the lock, in an order that stays.
fn leases(node: &Redis) -> Vec<f64> {
    let mut shares: Vec<(String, f64)> = node.ask(&["ZRANGE", SHARES, "0", "-1", "WITHSCORES"]);
    shares.sort_by(|one, other| one.0.cmp(&other.0));
    shares.into_iter().map(|(_, end)| end).collect()
}

#[test]
fn a_lock_is_given_back_at_once_though_the_node_that_is_about_to_have_it_hangs() {
    let cluster = MASTERS.lend();
    let token = acquire(&cluster, "5m");
    let slot = cluster.begins_to_move(LOCK);
    slot.carries(&[FENCE]);
    slot.to().hang();
    let call = cluster.nxlock(["release", "job", "--server-timeout", "30s", &token]).start();
    // The old node redirects who asks for a key that it does not have any more.
    eventually("it is free", || slot.from().try_ask::<Option<String>>(&["GET", LOCK]).is_err());
    slot.to().resume();
    call.finish().exits(0);
    slot.ends();
}

#[test]
fn a_holder_is_asked_to_give_up_wherever_the_keys_of_its_lock_are() {
    let cluster = MASTERS.lend();
    for has_waiter in [false, true] {
        for carried in PARTS {
            let holder = Turn::had(&cluster, &["-t", "6s"]);
            let waiter = has_waiter.then(|| Turn::queued(&cluster, &[]));
            let id = holder_id(&cluster);
            let slot = cluster.begins_to_move(LOCK);
            slot.carries(carried);
            cluster.nxlock(["release", "job", "--ask", &id]).run().exits(0);
            holder.finish().exits(143);
            if let Some(mut waiter) = waiter {
                waiter.up();
                waiter.leaves();
            }
            slot.ends();
            // What the holder has found expires by itself.
            cluster.ask::<()>(&["DEL", WAITERS]);
        }
    }
}

const SHARES: &str = "{lock:job}:shares";
const TERMS: &str = "{lock:job}:terms";
const PAIR: [&str; 4] = ["--slots", "2", "-t", "8s"];

#[test]
fn those_who_share_a_lock_and_those_who_wait_go_on_where_its_slot_has_moved() {
    let cluster = MASTERS.lend();
    let [first, second] = [0, 1].map(|_| Turn::had(&cluster, &PAIR));
    let mut third = Turn::queued(&cluster, &PAIR);
    let before = lock_status(&cluster)["holders"].clone();
    cluster.moves(LOCK);
    is_renewed(&cluster);
    listen_where_the_lock_is(&cluster, 1);
    let after = lock_status(&cluster)["holders"].clone();
    for at in 0..2 {
        assert_eq!((&after[at]["pid"], &after[at]["slot"]), (&before[at]["pid"], &before[at]["slot"]));
    }
    first.leaves();
    third.up();
    second.leaves();
    third.leaves();
    assert!(is_free(&cluster));
}

#[test]
fn no_more_than_may_share_a_lock_while_its_keys_are_carried_one_by_one() {
    let cluster = MASTERS.lend();
    let [first, second] = [0, 1].map(|_| Turn::had(&cluster, &["--slots", "2", "-t", "5m"]));
    let mut third = Turn::queued(&cluster, &["--slots", "2", "-t", "5m"]);
    let slot = cluster.begins_to_move(LOCK);
    for key in [SHARES, LOCK, QUEUE, TERMS] {
        slot.carries(&[key]);
        let refused = cluster.nxlock(["run", "job", "--slots", "2", "-n", "true"]).run();
        assert!([69, 75].contains(&refused.status.code().unwrap()), "{}", refused.both());
        assert!(!third.is_up());
    }
    slot.ends();
    first.leaves();
    third.up();
    second.leaves();
    third.leaves();
    eventually("it is free", || is_free(&cluster));
}

#[test]
fn a_lock_is_given_back_at_once_while_its_slot_is_on_its_way() {
    let cluster = MASTERS.lend();
    for carried in PARTS {
        let token = acquire(&cluster, "5m");
        let slot = cluster.begins_to_move(LOCK);
        slot.carries(carried);
        release(&cluster, &token);
        assert_eq!(slot.ask::<Option<String>>(&["GET", LOCK]), None, "{carried:?} carried");
        // A second release fails: nobody holds the lock.
        cluster.nxlock(["release", "job", &token]).run().exits(76);
        slot.ends();
        assert!(is_free(&cluster));
    }
}

#[test]
fn a_command_that_ends_while_its_slot_is_on_its_way_leaves_no_lock_behind() {
    let cluster = MASTERS.lend();
    for carried in PARTS {
        let holder = Turn::had(&cluster, &["-t", "5m"]);
        let slot = cluster.begins_to_move(LOCK);
        slot.carries(carried);
        holder.leaves();
        assert_eq!(slot.ask::<Option<String>>(&["GET", LOCK]), None, "{carried:?} carried");
        slot.ends();
    }
}

#[test]
fn a_lock_is_taken_while_its_slot_is_on_its_way_and_its_fences_rise() {
    let cluster = MASTERS.lend();
    let fence = || {
        let done = cluster.nxlock(["run", "job", "-n", "-c", "echo $NXLOCK_FENCE"]).run().exits(0).says_nothing();
        done.text().trim().parse::<u64>().expect("a fence")
    };
    let mut fences = vec![fence()];
    // Ahead of every clock: only a grant that reads this fence issues a higher one.
    let ahead = (fences[0] + 3_600_000_000).to_string();
    cluster.ask::<()>(&["SET", FENCE, &ahead, "PX", "90000000"]);
    for carried in PARTS {
        let slot = cluster.begins_to_move(LOCK);
        slot.carries(carried);
        fences.extend([fence(), fence()]);
        slot.ends();
        fences.push(fence());
    }
    assert!(fences.is_sorted_by(|before, after| before < after), "{fences:?}");
    assert!(fences[1] > ahead.parse().unwrap(), "{fences:?}");
}

#[test]
fn who_comes_while_a_slot_is_on_its_way_is_told_who_has_the_lock_and_gets_it_next() {
    let cluster = MASTERS.lend();
    for carried in PARTS {
        let token = acquire(&cluster, "5m");
        let slot = cluster.begins_to_move(LOCK);
        slot.carries(carried);
        let call = cluster.nxlock(["run", "job", "-n", "--", "echo", "ran"]);
        call.run().exits(75).prints("").says("is held by somebody else");
        let mut waiter = Turn::waiting(&cluster, &["-t", "5m"]);
        release(&cluster, &token);
        waiter.up();
        waiter.leaves();
        assert_eq!(slot.ask::<Option<String>>(&["GET", LOCK]), None, "{carried:?} carried");
        slot.ends();
    }
}

#[test]
fn a_lock_that_is_handed_on_as_its_slot_begins_to_move_is_given_back_without_a_doubt() {
    let cluster = MASTERS.lend();
    let token = acquire(&cluster, "5m");
    let mut waiter = Turn::queued(&cluster, &[]);
    listen_where_the_lock_is(&cluster, 1);
    // All keys are still on the migrating node, until the only waiter leaves the queue.
    let slot = cluster.begins_to_move(LOCK);
    cluster.nxlock(["release", "job", &token]).run().exits(0).says_nothing();
    waiter.up();
    waiter.leaves();
    slot.ends();
}

#[test]
fn a_line_is_served_while_its_slot_is_on_its_way() {
    for carried in PARTS {
        let cluster = MASTERS.lend();
        let log = cluster.directory().join("log");
        let line = line(&cluster, 2, &["-t", "8s"]);
        listen_where_the_lock_is(&cluster, 2);
        let slot = cluster.begins_to_move(LOCK);
        slot.carries(carried);
        are_served_in_any_order(&cluster, line);
        slot.ends();
        std::fs::remove_file(log).unwrap();
    }
}

#[test]
fn no_two_have_a_lock_while_its_keys_are_carried_one_by_one() {
    let cluster = MASTERS.lend();
    let counter = cluster.directory().join("counter");
    std::fs::write(&counter, "0\n").unwrap();
    let script = r#"for i in 1 2 3 4 5 6 7 8; do nxlock -q run job -c "$INCREMENT" || exit; done"#;
    let increment =
        r#"n=$(cat "$COUNTER"); echo "$WHO $NXLOCK_FENCE" >> "$LOG"; sleep 0.01; echo $((n + 1)) > "$COUNTER""#;
    let log = cluster.directory().join("log");
    let start = |who: usize| {
        let call = cluster.sh(script, &[]).env("COUNTER", &counter).env("INCREMENT", increment);
        call.env("LOG", &log).env("WHO", who.to_string()).start()
    };
    let mut callers: Vec<Running> = (0..6).map(start).collect();
    let (mut order, mut seen) = ([LOCK, QUEUE, WAITERS, FENCE], 0);
    while !callers.iter_mut().all(Running::has_ended) {
        eventually("another one has had its turn", || {
            let slot = cluster.begins_to_move(LOCK);
            order.iter().for_each(|key| slot.carries(&[key]));
            slot.ends();
            order.rotate_left(1);
            order.swap(1, 2);
            let before = seen;
            // The file is empty while it is written.
            seen = seen.max(text_of(&counter).trim().parse::<usize>().unwrap_or(0));
            seen > before || callers.iter_mut().all(Running::has_ended)
        });
    }
    counted(&counter, callers, 6 * 8);
    fences_rise(&log);
    std::fs::remove_file(log).unwrap();
}

#[test]
fn a_lock_is_kept_for_as_long_as_asked_while_its_slot_is_on_its_way() {
    let cluster = MASTERS.lend();
    for carried in PARTS {
        let mut holder = Turn::of(cluster.nxlock(turn(&["-t", "5m", "--at-least", "1m"])));
        holder.up();
        let slot = cluster.begins_to_move(LOCK);
        slot.carries(carried);
        holder.leaves();
        let left: i64 = slot.ask(&["PTTL", LOCK]);
        assert!((1..=60_000).contains(&left), "{left} with {carried:?} carried");
        slot.ends();
        break_it(&cluster);
    }
}

#[test]
fn a_lock_is_seen_renewed_and_broken_while_its_slot_is_on_its_way() {
    let cluster = MASTERS.lend();
    let seen = || {
        let done = cluster.nxlock(["--json", "status", "job"]).run();
        done.json()[0].take()
    };
    for carried in PARTS {
        let slot = cluster.begins_to_move(LOCK);
        assert_eq!(seen()["state"], "free");
        slot.ends();
        let token = acquire(&cluster, "5m");
        let slot = cluster.begins_to_move(LOCK);
        slot.carries(carried);
        let held = seen();
        assert_eq!(held["state"], "held", "{held}");
        assert!(token.contains(held["holder"]["id"].as_str().unwrap()));
        cluster.nxlock(["renew", "job", &token, "--ttl", "9m"]).run().exits(0);
        let left: i64 = slot.ask(&["PTTL", LOCK]);
        assert!(left > 500_000, "{left}");
        break_it(&cluster);
        cluster.nxlock(["renew", "job", &token, "--ttl", "9m"]).run().exits(76);
        assert_eq!(seen()["state"], "free");
        slot.ends();
    }
}

#[test]
fn a_grant_that_nobody_waits_for_any_more_is_undone_at_the_node_that_is_about_to_have_the_lock() {
    let cluster = MASTERS.lend();
    // The fence remains: some of the lock's keys are on the migrating node, the others do not exist.
    cluster.nxlock(["run", "job", "--", "true"]).run().exits(0);
    let slot = cluster.begins_to_move(LOCK);
    slot.to().hang();
    cluster.nxlock(["run", "job", "-n", "--server-timeout", "500ms", "--", "true"]).run().exits(69);
    slot.to().resume();
    eventually("it is free", || slot.ask::<Option<String>>(&["GET", LOCK]).is_none());
    slot.ends();
    assert!(is_free(&cluster));
}

/// Carries bytes both ways between a client and a port of this machine, until either side ends.
fn carry(mut client: TcpStream, port: u16) -> io::Result<()> {
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    let (mut back, mut to) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || io::copy(&mut back, &mut to).and_then(|_| to.shutdown(Shutdown::Both)));
    thread::spawn(move || io::copy(&mut client, &mut server).and_then(|_| server.shutdown(Shutdown::Both)));
    Ok(())
}

/// A port that the other nodes announce in place of a node's own. The first connection is held back until the test lets
/// it go on.
struct Announced<'a> {
    node: &'a Redis,
    came: mpsc::Receiver<()>,
    goes_on: mpsc::Sender<()>,
}

impl<'a> Announced<'a> {
    fn by(teller: &Redis, node: &'a Redis) -> Announced<'a> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let (real, (comes, came), (goes_on, waits)) = (node.port(), mpsc::channel(), mpsc::channel());
        thread::spawn(move || {
            for (number, client) in listener.incoming().flatten().enumerate() {
                if number == 0 {
                    let _ = comes.send(());
                    let _ = waits.recv();
                }
                let _ = carry(client, real);
            }
        });
        node.ask::<()>(&["CONFIG", "SET", "cluster-announce-port", &port]);
        let address = format!("127.0.0.1:{port}@");
        eventually("it is announced", || teller.ask::<String>(&["CLUSTER", "NODES"]).contains(&address));
        Announced { node, came, goes_on }
    }

    fn is_connected_to(&self) {
        self.came.recv_timeout(LIMIT).expect("somebody connects");
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        let _ = self.node.try_ask::<()>(&["CONFIG", "SET", "cluster-announce-port", "0"]);
    }
}

#[test]
fn a_lock_that_is_not_where_it_was_when_the_request_was_sent_there_is_not_taken_for_lost() {
    let cluster = MASTERS.lend();
    for verb in ["renew", "status", "release"] {
        let token = acquire(&cluster, "10m");
        let words = match verb {
            "renew" => vec!["renew", "job", &token, "--ttl", "1h"],
            "status" => vec!["status", "job"],
            _ => vec!["release", "job", &token],
        };
        let old = cluster.at(LOCK);
        let (old, new) = (&cluster.nodes[old], &cluster.nodes[(old + 1) % 3]);
        let slot = cluster.begins_to_move(LOCK);
        slot.carries_its_keys();
        let announced = Announced::by(old, new);
        let call = cluster.nxlock([&words[..], &["--server-timeout", "1m"]].concat()).start();
        announced.is_connected_to();
        // The slot goes round, and is about to be moved once more when the request arrives.
        slot.ends();
        cluster.moves(LOCK);
        cluster.moves(LOCK);
        let slot = cluster.begins_to_move(LOCK);
        assert_eq!((slot.from().port(), slot.to().port()), (old.port(), new.port()));
        announced.goes_on.send(()).unwrap();
        call.finish().exits(0);
        slot.ends();
        if verb != "release" {
            release(&cluster, &token);
        }
        assert!(is_free(&cluster));
    }
}

#[test]
fn a_lock_is_not_granted_at_the_node_that_was_about_to_have_it_once_its_move_is_called_off() {
    let cluster = MASTERS.lend();
    cluster.nxlock(["run", "job", "--", "true"]).run().exits(0);
    let slot = cluster.begins_to_move(LOCK);
    slot.from().ask::<()>(&["CONFIG", "RESETSTAT"]);
    slot.to().hang();
    let mut late = Turn::of(cluster.nxlock(turn(&["--server-timeout", "15s"])));
    eventually("it is sent to the new node", || {
        slot.from().ask::<String>(&["INFO", "errorstats"]).contains("errorstat_ASK:")
    });
    slot.is_called_off_at(slot.from());
    let call = Nxlock::new(["acquire", "job", "--ttl", "5m"]);
    let token = call.env("NXLOCK_SERVER", seed(slot.from())).run().exits(0).token();
    slot.to().resume();
    late.running.says("waiting for \"job\"");
    assert_eq!(cluster.ask::<Option<String>>(&["GET", LOCK]), Some(token.clone()));
    slot.is_called_off_at(slot.to());
    assert!(!late.is_up(), "two at once");
    release(&cluster, &token);
    late.up();
    late.leaves();
}

#[test]
fn a_grant_without_a_fence_is_none_and_gets_one_of_its_own_when_the_slot_has_arrived() {
    let cluster = MASTERS.lend();
    let fence = |turn: &mut Turn| turn.up().trim_start_matches("up ").trim().parse::<u64>().expect("a fence");
    let mut first = Turn::of(cluster.nxlock(turn(&[])));
    let before = fence(&mut first);
    first.leaves();
    let slot = cluster.begins_to_move(LOCK);
    // The migrating node still has the fence, but cannot raise it.
    slot.from().ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let call = || cluster.nxlock(["run", "job", "-n", "--server-timeout", "500ms", "--", "echo", "ran"]);
    answered(call).exits(69).prints("").says("OOM");
    assert_eq!(slot.ask::<Option<String>>(&["GET", LOCK]), None, "what is given up is given back");
    let mut second = Turn::of(cluster.nxlock(turn(&[])));
    eventually("it has the lock", || slot.ask::<Option<String>>(&["GET", LOCK]).is_some());
    assert!(!second.is_up(), "without a fence");
    let from = slot.from().port();
    slot.ends();
    let fence = fence(&mut second);
    assert!(fence > before, "{fence} after {before}");
    second.leaves();
    let full = cluster.nodes.iter().find(|node| node.port() == from).expect("it is one of them");
    full.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
}

/// Returns calls by a user of a cluster who may not run scripts.
fn without_scripts(cluster: &Cluster) -> impl Fn(&[&str]) -> Nxlock {
    for node in &cluster.nodes {
        let rules = "~lock:* +get +set +del +pttl +pexpire +type +watch +multi +exec +cluster|slots +asking";
        let words = ["ACL", "SETUSER", "plain", "on", ">pw"].into_iter().chain(rules.split_whitespace());
        node.ask::<()>(&words.collect::<Vec<_>>());
    }
    let url = format!("redis+cluster://plain:pw@{}", cluster.hosts());
    move |words| cluster.nxlock(words.iter().copied()).env("NXLOCK_SERVER", &url)
}

#[test]
fn a_lock_is_not_granted_at_a_node_that_was_about_to_have_it_when_the_request_was_sent_there() {
    let cluster = Cluster::of_masters();
    let without = without_scripts(&cluster);
    let with = |words: &[&str]| cluster.nxlock(words.iter().copied());
    for call in [&with as &dyn Fn(&[&str]) -> Nxlock, &without] {
        let old = cluster.at(LOCK);
        let (old, new) = (&cluster.nodes[old], &cluster.nodes[(old + 1) % 3]);
        let slot = cluster.begins_to_move(LOCK);
        slot.carries_its_keys();
        let announced = Announced::by(old, new);
        let newcomer = call(&["run", "job", "-n", "--server-timeout", "1m", "--", "echo", "ran"]).start();
        announced.is_connected_to();
        // The slot goes round, and is about to be moved once more when the request arrives.
        slot.ends();
        cluster.moves(LOCK);
        cluster.moves(LOCK);
        let token = acquire(&cluster, "10m");
        let slot = cluster.begins_to_move(LOCK);
        announced.goes_on.send(()).unwrap();
        newcomer.finish().exits(75).prints("");
        assert!(!new.ask::<Vec<String>>(&["KEYS", "*"]).contains(&LOCK.to_owned()));
        slot.ends();
        release(&cluster, &token);
    }
}

#[test]
fn a_user_without_scripts_locks_while_the_slot_is_on_its_way() {
    let cluster = Cluster::of_masters();
    let call = without_scripts(&cluster);
    let slot = cluster.begins_to_move(LOCK);
    let token = call(&["acquire", "job", "-t", "5m"]).run().exits(0).token();
    call(&["renew", "job", &token, "--ttl", "9m"]).run().exits(0);
    call(&["run", "job", "-n", "--", "true"]).run().exits(75);
    call(&["release", "job", &token]).run().exits(0);
    assert_eq!(slot.ask::<Option<String>>(&["GET", LOCK]), None);
    slot.ends();
}

#[test]
fn a_key_shared_with_old_clients_is_renewed_and_given_back_while_its_slot_is_on_its_way() {
    let cluster = MASTERS.lend();
    for carried in PARTS {
        let script = r#"echo "up"; read x; exit 0"#;
        let words = ["run", "--setnx-compat", "--key", LOCK, "-t", "9s", "-c", script];
        let mut holder = Turn::of(cluster.nxlock(words));
        holder.running.line("up");
        let slot = cluster.begins_to_move(LOCK);
        slot.carries(carried);
        eventually("it is renewed", || slot.ask::<i64>(&["PTTL", LOCK]) < 8_900);
        eventually("it is renewed", || slot.ask::<i64>(&["PTTL", LOCK]) > 8_900);
        holder.leaves();
        assert_eq!(slot.ask::<Option<String>>(&["GET", LOCK]), None, "{carried:?} carried");
        assert_eq!(slot.ask::<Option<String>>(&["HGET", WAITERS, "owner"]), None, "{carried:?} carried");
        slot.ends();
    }
}

#[test]
fn a_line_that_moves_at_every_turn_loses_nobody() {
    let cluster = MASTERS.lend();
    let mut waiting = line(&cluster, 5, &["-t", "10s"]);
    while !waiting.is_empty() {
        let next = next_holder(&mut waiting);
        cluster.moves("lock:job");
        assert!(!waiting.iter().any(Turn::is_up), "two at once");
        next.leaves();
    }
    assert_eq!(grants(&cluster.directory().join("log")).len(), 6);
    fences_rise(&cluster.directory().join("log"));
}

/// Asserts that each run gets the lock and ends, one at a time.
#[track_caller]
fn are_served_in_any_order(authority: &impl Authority, mut waiting: Vec<Turn>) {
    let n = waiting.len();
    while !waiting.is_empty() {
        let next = next_holder(&mut waiting);
        assert!(!waiting.iter().any(Turn::is_up), "two at once");
        next.leaves();
    }
    let log = authority.directory().join("log");
    assert_eq!(grants(&log).len(), n);
    fences_rise(&log);
}

#[test]
fn a_list_has_every_lock_while_a_slot_is_on_its_way() {
    let cluster = MASTERS.lend();
    let names: Vec<String> = (0..40).map(|n| format!("job-{n:02}")).collect();
    let tokens: Vec<String> =
        names.iter().map(|name| cluster.nxlock(["acquire", name, "-t", "10m"]).run().exits(0).token()).collect();
    let listed = || {
        let rows = cluster.nxlock(["--json", "status"]).run().exits(0).json();
        let names = rows.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(listed(), names);
    let slot = cluster.begins_to_move("lock:job-07");
    // Some of the lock's keys are on the migrating node, the others do not exist.
    assert_eq!(listed(), names);
    slot.carries(&["lock:job-07"]);
    assert_eq!(listed(), names);
    slot.carries_its_keys();
    assert_eq!(listed(), names);
    slot.ends();
    assert_eq!(listed(), names);
    for (name, token) in names.iter().zip(&tokens) {
        cluster.nxlock(["release", name, token]).run().exits(0);
    }
    assert_eq!(listed(), [""; 0]);
}
