//! What faults of the network and of the server do to a lock, one fault at a time.

mod calls;

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::turns::{Turn, holder_id, turn};
use crate::support::{Condition, Network, Redis, Way, eventually, is_alive, lasts, parent_of, send, state_of, text_of};

const WAYS: [Way; 2] = [Way::There, Way::Back];

#[test]
fn what_comes_late_is_waited_for() {
    let redis = Redis::start();
    let network = Network::to(&redis);
    let by = Duration::from_millis(200);
    for way in WAYS {
        network.clears();
        network.is(way, Condition::Delayed(by));
        let call = ["--server-timeout", "20s", "run", "job", "-n", "--", "echo", "ran"];
        let done = network.nxlock(call).run().exits(0).prints("ran\n");
        // One delay to acquire, and one to release.
        assert!(done.took >= by * 2, "{way:?}: {:?}", done.took);
    }
}

#[test]
fn what_comes_a_byte_at_a_time_is_understood() {
    let redis = Redis::start();
    let network = Network::to(&redis);
    for way in WAYS {
        network.clears();
        network.is(way, Condition::Trickling(Duration::from_micros(20)));
        let call = ["--server-timeout", "20s", "run", "job", "-n", "--", "echo", "ran"];
        network.nxlock(call).run().exits(0).prints("ran\n");
    }
}

#[test]
fn a_proxy_that_refuses_connections_for_a_while_is_asked_again() {
    let redis = Redis::start();
    let network = Network::to(&redis);
    network.refuses();
    let options = ["-v", "--server-timeout", "15s"];
    let mut job = Turn::of(network.nxlock(turn(&options)));
    job.running.says("connection refused, trying again");
    network.accepts();
    job.up();
    // The same while its command runs. From then on it hears of the end of its connection.
    job.running.says("renewed for");
    network.refuses();
    // A renewal that is under way then ends with its connection, and is not refused.
    job.running.says("; trying again for");
    network.accepts();
    job.running.says("the lock is renewed again");
    job.leaves();
}

#[test]
fn a_waiter_whose_listening_connection_ends_listens_again_and_is_woken() {
    let redis = Redis::start();
    let network = Network::to(&redis);
    let holder = Turn::had(&redis, &[]);
    let mut waiter = Turn::of(network.nxlock(turn(&[]))).once_queued(&redis);
    for _ in 0..3 {
        eventually("it listens", || network.ends_listening() == 1);
    }
    // The pauses between attempts grow.
    lasts(Duration::from_secs(8));
    eventually("the server has a listener", || {
        redis.ask::<Vec<String>>(&["PUBSUB", "CHANNELS", "*:wake:*"]).len() == 1
    });
    holder.leaves();
    waiter.up();
    waiter.leaves();
}

#[test]
fn a_request_that_is_cut_off_before_it_arrives_has_changed_nothing() {
    let redis = Redis::start();
    let network = Network::to(&redis);
    network.is(Way::There, Condition::Cut);
    network.nxlock(["run", "job", "--server-timeout", "500ms", "--", "echo", "ran"]).run().exits(69).prints("");
    assert_eq!(redis.ask::<i64>(&["DBSIZE"]), 0);
}

#[test]
fn a_request_whose_reply_is_cut_off_was_granted_and_is_granted_again() {
    let redis = Redis::start();
    let network = Network::to(&redis);
    network.is(Way::Back, Condition::Cut);
    let acquire = network.nxlock(["acquire", "job", "--ttl", "1m", "--server-timeout", "15s"]).start();
    eventually("it is granted, and nobody is told", || redis.exists("lock:job"));
    let (value, fence) = (redis.value("lock:job"), redis.value("{lock:job}:fence"));
    network.clears();
    assert_eq!(Some(acquire.finish().exits(0).token()), value);
    assert_eq!(redis.value("{lock:job}:fence"), fence, "it is the same grant");
    redis.delete("lock:job");
}

#[test]
fn requests_into_a_black_hole_are_no_answer_and_take_nothing() {
    let redis = Redis::start();
    let network = Network::to(&redis);
    network.is(Way::There, Condition::BlackHoled);
    network.nxlock(["run", "job", "--server-timeout", "500ms", "--", "echo", "ran"]).run().exits(69).prints("");
    assert_eq!(redis.ask::<i64>(&["DBSIZE"]), 0);
}

#[test]
fn what_was_granted_into_a_black_hole_is_given_back() {
    let redis = Redis::start();
    let network = Network::to(&redis);
    network.is(Way::Back, Condition::BlackHoled);
    network.nxlock(["run", "job", "--server-timeout", "500ms", "--", "echo", "ran"]).run().exits(69).prints("");
    eventually("nobody has it", || redis.exists("{lock:job}:fence") && !redis.exists("lock:job"));
}

#[test]
fn a_read_only_server_is_waited_for_and_grants_nothing() {
    let redis = Redis::start();
    redis.becomes_read_only();
    redis.nxlock(["run", "job", "-n", "--server-timeout", "300ms", "--", "echo", "ran"]).run().exits(69).prints("");
    let mut waiter = redis.nxlock(["run", "job", "--", "echo", "ran"]).start();
    waiter.says("READONLY");
    redis.is_writable_again();
    waiter.finish().exits(0).prints("ran\n");
}

#[test]
fn a_server_without_memory_keeps_its_locks_and_takes_them_back() {
    let redis = Redis::start();
    let holder = Turn::had(&redis, &[]);
    redis.runs_out_of_memory();
    redis.renews_soon("lock:job");
    holder.leaves();
    assert!(!redis.exists("lock:job"));
    let mut waiter = redis.nxlock(["run", "job", "--", "echo", "ran"]).start();
    waiter.says("OOM");
    redis.has_memory_again();
    waiter.finish().exits(0).prints("ran\n");
}

#[test]
fn a_server_that_is_loading_is_waited_for_by_holder_and_waiter() {
    let mut redis = Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let holder = Turn::had(&redis, &["-t", "1m"]);
    let mut waiter = Turn::queued(&redis, &[]);
    redis.restarts_loading(Duration::from_secs(20));
    waiter.running.says("LOADING");
    // The rest is loaded at once.
    redis.ask::<()>(&["CONFIG", "SET", "key-load-delay", "0"]);
    redis.has_loaded();
    assert!(!waiter.is_up());
    holder.leaves();
    waiter.up();
    waiter.leaves();
}

#[test]
fn a_server_that_these_tests_restart_has_loaded_its_data() {
    let slow = ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"];
    let mut redis = Redis::with(&[&["--save", "3600", "1", "--rdbcompression", "no"], &slow[..]].concat());
    let value = "x".repeat(512);
    for key in 0..300 {
        redis.put(&format!("other:{key}"), value.as_bytes(), None);
    }
    redis.ask::<()>(&["SAVE"]);
    redis.restart();
    assert_eq!(redis.value("other:299"), Some(value));
    redis.leave_as_it_is();
}

#[test]
fn when_a_server_is_told_that_it_is_later_the_holder_stops() {
    let redis = Redis::with_clock(0, &[]);
    let mut holder = Turn::had(&redis, &["-t", "3s"]);
    redis.clock().is_set_forward(Duration::from_secs(60));
    eventually("it ends", || holder.running.has_ended());
    holder.running.finish().exits(76);
    assert!(!redis.exists("lock:job"));
}

#[test]
fn when_a_server_is_told_that_it_is_earlier_the_next_renewal_sets_the_lease_right() {
    let redis = Redis::with_clock(0, &[]);
    // The next renewal is due in ten seconds.
    let holder = Turn::listening(&redis, &[]);
    let channel = format!("lock:job:holder:{}", holder_id(&redis));
    redis.clock().is_set_back(Duration::from_secs(60));
    assert!(redis.pttl("lock:job") > 50_000);
    // A message makes the holder renew at once.
    redis.ask::<()>(&["PUBLISH", &channel, "a"]);
    eventually("the lease is what it should be", || redis.pttl("lock:job") <= 30_000);
    holder.leaves();
}

#[test]
fn a_command_that_will_not_stop_is_gone_before_its_lease_ends_by_a_clock_one_percent_fast() {
    let redis = Redis::with_clock(10_000, &[]);
    let network = Network::to(&redis);
    let pid = redis.directory().join("pid");
    let script = "trap '' TERM; echo $$ > \"$PID\"; while :; do sleep 1; done";
    let job = network.nxlock(["run", "job", "-t", "10s", "-c", script]).env("PID", &pid).start();
    eventually("it runs", || text_of(&pid).ends_with('\n'));
    let command: i32 = text_of(&pid).trim().parse().unwrap();
    network.is(Way::There, Condition::BlackHoled);
    // Query the key after the command was seen alive: while the command lives, its lease must not expire.
    eventually("the command is gone", || {
        let lived = is_alive(command);
        assert!(!lived || redis.exists("lock:job") || !is_alive(command), "it has outlived its lease");
        !lived
    });
    job.finish().exits(76);
    eventually("the lease has ended", || !redis.exists("lock:job"));
}

#[test]
fn a_kill_9_of_nxlock_and_its_guard_at_once_leaves_what_the_command_had_started_and_the_next_one_a_higher_fence() {
    let redis = Redis::start();
    let script = "sleep 300 & echo \"pids $$ $! $NXLOCK_FENCE\"; wait";
    let mut job = redis.nxlock(["run", "job", "-c", script]).start();
    let told = job.line("pids ");
    let told: Vec<u64> = told.split(' ').map(|number| number.parse().unwrap()).collect();
    let [command, started] = [told[0], told[1]].map(|pid| i32::try_from(pid).unwrap());
    let guard = Pid::from_raw(parent_of(command));
    // Neither can notice the other's end.
    job.signal(Signal::SIGSTOP);
    eventually("nxlock is stopped", || state_of(job.pid()) == Some('T'));
    kill(guard, Signal::SIGKILL).unwrap();
    job.signal(Signal::SIGKILL);
    eventually("the command is gone", || !is_alive(command));
    // Nobody has given the lock back: its lease ends, here at once.
    assert!(redis.ask::<bool>(&["PEXPIRE", "lock:job", "1"]), "it is still locked");
    let next = redis.nxlock(["run", "job", "-c", "echo $NXLOCK_FENCE"]).run().exits(0).text();
    // As documented: no process is left to stop it, and only a resource that checks the fence is safe from it.
    assert!(is_alive(started));
    assert!(next.trim().parse::<u64>().unwrap() > told[2]);
}

#[test]
fn a_command_frozen_with_us_beyond_its_lease_does_nothing_more() {
    let redis = Redis::start();
    let log = redis.directory().join("log");
    // The command ignores TERM and is busy: it uses every moment that it gets.
    let script = "trap '' TERM; echo up; while :; do echo beat >> \"$LOG\"; done";
    let mut job = redis.nxlock(["run", "job", "-t", "4s", "-c", script]).env("LOG", &log).start();
    job.line("up");
    job.signal(Signal::SIGSTOP);
    eventually("it is stopped", || state_of(job.pid()) == Some('T'));
    for pid in job.descendants() {
        send(pid, Signal::SIGSTOP);
        eventually("its command is stopped too", || state_of(pid) == Some('T'));
    }
    eventually("the lease has ended", || !redis.exists("lock:job"));
    let beats = std::fs::metadata(&log).unwrap().len();
    job.signal(Signal::SIGCONT);
    job.finish().exits(76);
    assert_eq!(std::fs::metadata(&log).unwrap().len(), beats, "it went on after its lease had ended");
}

#[test]
fn a_log_that_nobody_reads_does_not_hold_up_a_command_whose_lease_runs() {
    let redis = Redis::start();
    // nxlock must drop what the full pipe does not take: the end of the wait, and the messages of -v.
    for options in [&[][..], &["-v"]] {
        let holder = Turn::had(&redis, &[]);
        let (reader, writer) = std::io::pipe().unwrap();
        let words = options.iter().chain(&["run", "job", "-t", "6s", "--", "echo", "up"]).copied();
        let waiter = Turn::of(redis.nxlock(words).stderr_to(writer.try_clone().unwrap())).once_queued(&redis);
        // Until it has the lock, it waits for its reader.
        hears(&reader, "waiting for \"job\"");
        fill(&writer);
        holder.leaves();
        waiter.running.finish().exits(0).prints("up\n");
        drop(reader);
    }
}

/// Reads until this was said.
#[track_caller]
fn hears(pipe: &PipeReader, text: &str) {
    fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let mut said = Vec::new();
    eventually("it is said", || {
        let _ = (&mut &*pipe).read_to_end(&mut said);
        String::from_utf8_lossy(&said).contains(text)
    });
}

/// Writes until the pipe is full.
fn fill(pipe: &PipeWriter) {
    let flags = OFlag::from_bits_truncate(fcntl(pipe, FcntlArg::F_GETFL).unwrap());
    fcntl(pipe, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).unwrap();
    while (&mut &*pipe).write(&[b'.'; 4096]).is_ok() {}
    while (&mut &*pipe).write(b".").is_ok() {}
    fcntl(pipe, FcntlArg::F_SETFL(flags)).unwrap();
}
