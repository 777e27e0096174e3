//! How a waiter subscribes for its wake-up, and what it does where it cannot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::turns::{Turn, turn};
use crate::support::{Fate, Proxy, Redis, eventually, lasts, now};

fn listeners(redis: &Redis) -> usize {
    redis.ask::<Vec<String>>(&["PUBSUB", "CHANNELS", "lock:job:wake:*"]).len()
}

fn subscriptions(proxy: &Proxy) -> usize {
    proxy.commands().iter().filter(|command| command.starts_with("SUBSCRIBE")).count()
}

#[test]
fn waiters_listen_again_after_a_stall_and_a_restart() {
    let mut redis = Redis::start();
    redis.put("lock:job", b"another's", Some(600_000));
    let options = ["--server-timeout", "500ms"];
    let mut line: Vec<Turn> = (0..5).map(|_| Turn::queued(&redis, &options)).collect();
    eventually("all listen", || listeners(&redis) == 5);
    redis.hang();
    for turn in &mut line {
        turn.running.says("trying again");
    }
    redis.kill();
    redis.restart();
    // Some waiters may have the lock by now. Keep it from the others: only a waiter subscribes.
    redis.ask::<()>(&["SET", "lock:job", "another's", "PX", "600000"]);
    let waiting = || line.iter().filter(|turn| !turn.is_up()).count();
    eventually("all who wait listen again", || listeners(&redis) == waiting() && waiting() >= 3);
    redis.leave_as_it_is();
}

#[test]
fn a_passing_refusal_to_subscribe_is_tried_again_and_a_lasting_one_is_not() {
    let refusals = [
        ("-ERR max number of clients reached\r\n", true),
        ("-LOADING Redis is loading the dataset in memory\r\n", true),
        ("-NOPERM this user has no permissions to run the 'subscribe' command\r\n", false),
        ("-ERR unknown command 'SUBSCRIBE', with args beginning with: \r\n", false),
    ];
    for (refusal, passes) in refusals {
        let redis = Redis::start();
        let proxy = Proxy::by_command(&redis, move |_, command| match command.starts_with("SUBSCRIBE") {
            true => Fate::Answered(refusal),
            false => Fate::Delivered,
        });
        let holder = Turn::had(&redis, &[]);
        let mut waiter = Turn::of(proxy.nxlock(turn(&[]))).once_queued(&redis);
        if passes {
            eventually("it is tried again", || subscriptions(&proxy) >= 3);
        }
        holder.leaves();
        waiter.up();
        waiter.leaves();
        assert!(passes || subscriptions(&proxy) == 1, "{refusal}");
    }
}

#[test]
fn where_a_second_connection_is_impossible_a_waiter_polls_and_is_served() {
    for fate in [Fate::Cut, Fate::Blackholed, Fate::ReplySwallowed] {
        let redis = Redis::start();
        let proxy = Proxy::by_command(&redis, move |_, command| match command.starts_with("SUBSCRIBE") {
            true => fate,
            false => Fate::Delivered,
        });
        let holder = Turn::had(&redis, &[]);
        let mut waiter = Turn::of(proxy.nxlock(turn(&[]))).once_queued(&redis);
        holder.leaves();
        waiter.up();
        waiter.leaves();
        // And when the lock is free at once.
        proxy.nxlock(["run", "job", "--", "true"]).run().exits(0);
    }
}

#[test]
fn a_subscription_that_is_cut_again_and_again_is_not_tried_without_a_pause() {
    let redis = Redis::start();
    redis.put("lock:job", b"another's", Some(600_000));
    let mut waiter = Turn::queued(&redis, &[]);
    let (began, mut cut) = (now(), 0);
    while began.elapsed() < Duration::from_millis(1500) {
        cut += redis.ask::<u32>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        lasts(Duration::from_millis(5));
    }
    assert!((1..=4).contains(&cut), "{cut} subscriptions");
    redis.delete("lock:job");
    waiter.up();
    waiter.leaves();
}

#[test]
fn messages_without_end_hold_up_no_waiter() {
    let redis = Redis::start();
    redis.put("lock:job", b"another's", Some(600_000));
    // Otherwise the server closes the connection of whoever does not read fast enough.
    redis.ask::<()>(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 0 0 0"]);
    let waiter = Turn::queued(&redis, &[]);
    let channel = redis.ask::<Vec<String>>(&["PUBSUB", "CHANNELS", "lock:job:wake:*"]).remove(0);
    let (goes_on, published) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU32::new(0)));
    let storm = thread::spawn({
        let (goes_on, published) = (Arc::clone(&goes_on), Arc::clone(&published));
        let mut connection = redis.connection().unwrap();
        let mut messages = redis::pipe();
        (0..1000).for_each(|_| _ = messages.cmd("PUBLISH").arg(&channel).arg("t").ignore());
        move || {
            while goes_on.load(Ordering::Relaxed) {
                messages.exec(&mut connection).unwrap();
                published.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    eventually("there are many messages", || published.load(Ordering::Relaxed) >= 20);
    waiter.running.signal(Signal::SIGTERM);
    waiter.finish().dies_of(Signal::SIGTERM);
    goes_on.store(false, Ordering::Relaxed);
    storm.join().unwrap();
    redis.delete("lock:job");
}

#[test]
fn a_connection_that_ends_behind_each_reply_brings_no_storm_of_renewals() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis, |_| Fate::Last);
    let mut holder = Turn::of(proxy.nxlock(turn(&["-t", "40s"])));
    holder.up();
    lasts(Duration::from_millis(1500));
    assert!(proxy.requests() <= 5, "{:?}", proxy.commands().len());
    holder.leaves();
}

#[test]
fn the_kernel_finds_out_about_a_dead_connection_that_only_listens() {
    let redis = Redis::on_tcp(&[]);
    let holder = Turn::had(&redis, &[]);
    let url = format!("redis://127.0.0.1:{}", redis.port());
    let waiter = Turn::of(redis.nxlock(turn(&[])).env("NXLOCK_SERVER", url)).once_queued(&redis);
    let server = format!("0100007F:{:04X}", redis.port());
    // proc_pid_net(5): word 4 is the state, 01 is established; word 6 is the timer, 02 is keepalive.
    let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", waiter.pid())).unwrap();
    let to_server: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    let timers: Vec<&str> = to_server.iter().filter(|w| w[2] == server && w[3] == "01").map(|w| &w[5][..2]).collect();
    assert_eq!(timers, ["02", "02"], "{table}");
    holder.leaves();
    waiter.leaves();
}
