//! The lock goes while the command runs: deleted, taken, or the server is gone.
//!
//! The commands here are trees that do not want to go. Each of their processes that is deaf to TERM
//! leaves a pulse in a file: its last beat tells, by the clock of the file system and not by when
//! somebody looked, until when something of the tree was alive.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;

use crate::support::{Nxlock, Redis, Running, eventually, state_of, text_of, wall};

/// A child, and a daemon of a session of its own, forked twice and deaf to TERM, HUP and INT.
const TREE: &str = r#"
    sleep 300 &
    ( setsid sh -c 'trap "" TERM HUP INT; echo up; while :; do echo beat >> "$PULSE"; sleep 0.02; done' & )
    wait"#;

/// A tree under a lock, and what has to be known of it.
struct Job {
    running: Running,
    pulse: PathBuf,
}

impl Job {
    fn start(redis: &Redis, options: &[&str]) -> Job {
        let pulse = redis.directory().join("pulse");
        let args = ["run", "job"].iter().chain(options).chain(&["-c", TREE]).copied();
        let mut running = redis.nxlock(args).env("PULSE", &pulse).start();
        running.line("up");
        Job { running, pulse }
    }

    fn last_beat(&self) -> SystemTime {
        std::fs::metadata(&self.pulse).unwrap().modified().unwrap()
    }

    #[track_caller]
    fn is_gone_before(&self, end: SystemTime) {
        assert_eq!(self.running.descendants(), [0; 0], "all of it is gone when nxlock has ended");
        let beat = self.last_beat();
        let late = beat.duration_since(end).unwrap_or_default();
        assert!(late.is_zero(), "something of it was alive {late:?} after the lease could have ended");
    }
}

/// Waits for a renewal, and tells when the lease that it got will end, by the server.
fn end_of_fresh_lease(redis: &Redis, ttl: i64) -> SystemTime {
    let mut end = wall();
    eventually("the lease is renewed", || {
        end = wall();
        let left = redis.pttl("lock:job");
        end += Duration::from_millis(u64::try_from(left).unwrap_or(0));
        left > ttl * 9 / 10
    });
    end
}

#[test]
fn a_deleted_lock_stops_the_whole_tree_before_the_lease_could_have_ended() {
    let redis = Redis::start();
    let mut job = Job::start(&redis, &["-t", "3s"]);
    let end = end_of_fresh_lease(&redis, 3_000);
    redis.delete("lock:job");
    eventually("it ends", || job.running.has_ended());
    job.is_gone_before(end);
    job.running.finish().exits(76).says("lost").says("deleted");
    assert!(!redis.exists("lock:job"));
}

#[test]
fn an_overwritten_lock_stops_the_whole_tree_and_stays_its_new_owners() {
    let redis = Redis::start();
    let mut job = Job::start(&redis, &["-t", "3s"]);
    let end = end_of_fresh_lease(&redis, 3_000);
    redis.put("lock:job", b"the new owner's", Some(600_000));
    eventually("it ends", || job.running.has_ended());
    job.is_gone_before(end);
    job.running.finish().exits(76).says("lost").says("another program").never_says("new owner");
    assert_eq!(redis.value("lock:job").as_deref(), Some("the new owner's"));
    assert!(redis.pttl("lock:job") > 500_000, "its expiry is untouched too");
    redis.delete("lock:job");
}

#[test]
fn a_key_of_another_type_in_its_place_is_a_loss_too() {
    let redis = Redis::start();
    let mut job = Job::start(&redis, &["-t", "3s", "--kill-after", "100ms"]);
    redis.delete("lock:job");
    redis.ask::<()>(&["LPUSH", "lock:job", "x"]);
    eventually("it ends", || job.running.has_ended());
    job.running.finish().exits(76).says("lost");
    redis.delete("lock:job");
}

#[test]
fn a_server_that_hangs_for_longer_than_the_lease_stops_the_tree_before_its_end() {
    let redis = Redis::start();
    let mut job = Job::start(&redis, &["-t", "3s", "--server-timeout", "1s"]);
    let end = end_of_fresh_lease(&redis, 3_000);
    redis.hang();
    eventually("it ends", || job.running.has_ended());
    job.is_gone_before(end);
    job.running.finish().exits(76).says("could not be renewed in time").says("no answer");
    redis.resume();
    eventually("the server has heard all that was said", || redis.others_connected() == 0);
    eventually("the lease has ended", || !redis.exists("lock:job"));
}

#[test]
fn a_stderr_that_nobody_reads_does_not_keep_a_command_from_being_stopped() {
    let redis = Redis::start();
    let pid = redis.directory().join("pid");
    // The command fills the pipe, and has no more to say than we.
    let job = format!("yes >&2 & echo $$ > '{}'; sleep 600", pid.display());
    let script = "{ nxlock run job -t 3s -c \"$1\"; } 2>&1 | sleep 600";
    let _running = Nxlock::by("sh", ["-c", script, "sh", &job]).env("NXLOCK_SERVER", redis.url()).start();
    eventually("it runs", || !text_of(&pid).is_empty());
    let command: i32 = text_of(&pid).trim().parse().unwrap();
    let end = end_of_fresh_lease(&redis, 3_000);
    redis.delete("lock:job");
    eventually("the command is gone", || state_of(command).is_none());
    assert!(wall() < end, "it was gone only after the lease could have ended");
}

#[test]
fn a_server_that_hangs_for_less_than_the_lease_disturbs_nobody() {
    let redis = Redis::start();
    let (reader, writer) = std::io::pipe().unwrap();
    let script = "trap 'echo disturbed' TERM HUP INT CONT; echo up; read x; exit 5";
    let mut running = redis.nxlock(["run", "job", "-t", "3s", "-c", script]).stdin_from(reader).start();
    running.line("up");
    end_of_fresh_lease(&redis, 3_000);
    redis.hang();
    // It has noticed, so at least one renewal has gone unanswered.
    running.says("no answer");
    redis.resume();
    end_of_fresh_lease(&redis, 3_000);
    running.says("renewed again");
    drop(writer);
    running.finish().exits(5).prints("up\n");
}

#[test]
fn a_server_that_comes_back_empty_is_a_loss() {
    let mut redis = Redis::start();
    let mut job = Job::start(&redis, &["-t", "10s", "--kill-after", "100ms"]);
    redis.restart();
    let restarted = wall();
    eventually("it ends", || job.running.has_ended());
    job.is_gone_before(restarted + Duration::from_secs(9));
    job.running.finish().exits(76).says("lost");
}

#[test]
fn a_server_that_dies_for_good_stops_the_tree_before_the_lease_ends() {
    let mut redis = Redis::start();
    let mut job = Job::start(&redis, &["-t", "2s", "--server-timeout", "500ms"]);
    let end = end_of_fresh_lease(&redis, 2_000);
    redis.kill();
    eventually("it ends", || job.running.has_ended());
    job.is_gone_before(end);
    job.running.finish().exits(76).says("could not be renewed in time");
}

#[test]
fn the_shortest_lease_is_kept_as_well() {
    let redis = Redis::start();
    let mut job = Job::start(&redis, &["-t", "500ms", "--server-timeout", "300ms"]);
    let end = end_of_fresh_lease(&redis, 500);
    redis.hang();
    eventually("it ends", || job.running.has_ended());
    job.is_gone_before(end);
    job.running.finish().exits(76);
    redis.resume();
    eventually("the server has heard all that was said", || redis.others_connected() == 0);
    eventually("the lease has ended", || !redis.exists("lock:job"));
}

#[test]
fn a_command_told_to_stop_may_clean_up_and_still_it_is_76() {
    let redis = Redis::start();
    let script = "trap 'echo cleaned; exit 0' TERM; echo up; while :; do sleep 300 & wait; done";
    let mut running = redis.nxlock(["run", "job", "-t", "3s", "-c", script]).start();
    running.line("up");
    redis.delete("lock:job");
    running.finish().exits(76).prints("up\ncleaned\n");
}

#[test]
fn a_loss_may_be_put_up_with() {
    let redis = Redis::start();
    let (reader, writer) = std::io::pipe().unwrap();
    let script = "trap 'echo disturbed' TERM; echo up; read x; exit 5";
    let options = ["run", "job", "-t", "1s", "--on-lost", "continue", "-c", script];
    let mut running = redis.nxlock(options).stdin_from(reader).start();
    running.line("up");
    redis.put("lock:job", b"the new owner's", Some(600_000));
    running.says("runs on");
    let told = running.stderr().matches("runs on").count();
    assert_eq!(told, 1);
    drop(writer);
    // Whatever the command returned: it did not run under the lock.
    running.finish().exits(76).prints("up\n");
    redis.delete("lock:job");
}

#[test]
fn a_loss_found_only_at_the_end_is_a_loss() {
    let redis = Redis::start();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut running = redis.nxlock(["run", "job", "-t", "10m", "-c", "echo up; read x; exit 0"]);
    running = running.stdin_from(reader);
    let mut running = running.start();
    running.line("up");
    redis.put("lock:job", b"the new owner's", Some(600_000));
    drop(writer);
    running.finish().exits(76).says("lost").says("another program");
    assert_eq!(redis.value("lock:job").as_deref(), Some("the new owner's"));
    redis.delete("lock:job");
}

#[test]
fn a_server_that_is_gone_at_the_end_costs_a_warning_and_not_the_status() {
    let mut redis = Redis::start();
    for hang in [true, false] {
        let (reader, writer) = std::io::pipe().unwrap();
        let options = ["run", "job", "-t", "1m", "--server-timeout", "500ms", "-c", "echo up; read x; exit 3"];
        let mut running = redis.nxlock(options).stdin_from(reader).start();
        running.line("up");
        if hang {
            redis.hang();
        } else {
            redis.kill();
        }
        let asked_to_end = crate::support::now();
        drop(writer);
        running.finish().exits(3).says("ends by itself within");
        assert!(asked_to_end.elapsed() < Duration::from_secs(2) * 3, "held up for {:?}", asked_to_end.elapsed());
        if hang {
            redis.resume();
            eventually("the server has heard all that was said", || redis.others_connected() == 0);
            assert!(!redis.exists("lock:job"), "the release was only late");
        }
    }
}

#[test]
fn the_lock_of_the_next_one_survives_our_late_release() {
    // A holds, its lease ends while it is stopped, B takes over; A wakes up and ends.
    let redis = Redis::start();
    let mut a = redis.nxlock(["run", "job", "-t", "500ms", "-c", "echo up; exec sleep 300"]).start();
    a.line("up");
    a.signal(Signal::SIGSTOP);
    eventually("it is stopped", || state_of(a.pid()) == Some('T'));
    let b = redis.nxlock(["acquire", "job", "--ttl", "10m"]).run().exits(0).token();
    a.signal(Signal::SIGCONT);
    a.finish().exits(76).says("lost");
    assert_eq!(redis.value("lock:job"), Some(b));
    redis.delete("lock:job");
}

#[test]
fn nothing_of_the_tree_runs_on_when_we_wake_up_after_the_lease() {
    // Ctrl-Z and a long lunch: the whole tree is stopped with us, and continued only to end.
    let redis = Redis::start();
    let mut job = Job::start(&redis, &["-t", "1s", "--kill-after", "50ms"]);
    job.running.signal(Signal::SIGTSTP);
    eventually("nxlock is stopped", || state_of(job.running.pid()) == Some('T'));
    eventually("the lease has ended", || !redis.exists("lock:job"));
    job.running.signal(Signal::SIGCONT);
    eventually("it ends", || job.running.has_ended());
    assert_eq!(job.running.descendants(), [0; 0]);
    job.running.finish().exits(76);
}
