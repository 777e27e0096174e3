//! The lock is lost while the command runs: its key is deleted or overwritten, or the server is gone.

use std::time::{Duration, SystemTime};

use crate::support::turns::Turn;
use crate::support::{Done, Job, Nxlock, Redis, eventually, eventually_some, state_of, text_of, wall};

/// Waits for a renewal, and returns when its lease expires at the server.
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
    let mut job = Job::start(&redis, &["-t", "12s"]);
    let end = end_of_fresh_lease(&redis, 12_000);
    redis.delete("lock:job");
    eventually("it ends", || job.running.has_ended());
    job.is_gone_before(end);
    job.running.finish().exits(76).says("lost").says("deleted");
    assert!(!redis.exists("lock:job"));
}

#[test]
fn an_overwritten_lock_stops_the_whole_tree_and_stays_its_new_owners() {
    let redis = Redis::start();
    let mut job = Job::start(&redis, &["-t", "12s"]);
    let end = end_of_fresh_lease(&redis, 12_000);
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
    let mut job = Job::start(&redis, &["-t", "30s", "--kill-after", "100ms"]);
    redis.delete("lock:job");
    redis.ask::<()>(&["LPUSH", "lock:job", "x"]);
    eventually("it ends", || job.running.has_ended());
    job.running.finish().exits(76).says("lost");
    redis.delete("lock:job");
}

/// Runs a job that loses its server after a renewal, and asserts that it is gone before that lease ends at the server. On
/// a busy machine, the lease may have ended before, or be renewed once more: then another job is run.
#[track_caller]
fn is_gone_in_time(redis: &mut Redis, options: &[&str], goes: fn(&mut Redis), comes_back: fn(&mut Redis)) -> Done {
    let renewals = |job: &Job| job.running.stderr().matches("renewed for").count();
    eventually_some("its server goes between two renewals", || {
        let mut job = Job::try_start(redis, &[&["-v"], options].concat())?;
        let before = renewals(&job);
        eventually("its lease is renewed, or has ended", || renewals(&job) > before || job.running.has_ended());
        let heard = renewals(&job);
        let asked = wall();
        let end = asked + Duration::from_millis(redis.pttl("lock:job").try_into().ok()?);
        if job.running.has_ended() {
            return None;
        }
        goes(redis);
        eventually("it ends", || job.running.has_ended());
        let is_last = renewals(&job) == heard;
        if is_last {
            job.is_gone_before(end);
        }
        comes_back(redis);
        is_last.then(|| job.running.finish().exits(76))
    })
}

fn hangs(redis: &mut Redis) {
    redis.hang();
}

fn goes_on(redis: &mut Redis) {
    redis.resume();
    eventually("the server has heard all that was said", || redis.others_connected() == 0);
    eventually("the lease has ended", || !redis.exists("lock:job"));
}

#[test]
fn a_server_that_hangs_for_longer_than_the_lease_stops_the_tree_before_its_end() {
    let options = ["-t", "3s", "--server-timeout", "1s"];
    let done = is_gone_in_time(&mut Redis::start(), &options, hangs, goes_on);
    done.says("could not be renewed in time").says("no answer");
}

#[test]
fn a_stderr_that_nobody_reads_does_not_keep_a_command_from_being_stopped() {
    let redis = Redis::start();
    let pid = redis.directory().join("pid");
    // The command fills the pipe, so nxlock cannot write to it either.
    let job = format!("yes >&2 & echo $$ > '{}'; sleep 600", pid.display());
    let script = "{ nxlock run job -c \"$1\"; } 2>&1 | sleep 600";
    let _running = Nxlock::by("sh", ["-c", script, "sh", &job]).env("NXLOCK_SERVER", redis.url()).start();
    eventually("it runs", || !text_of(&pid).is_empty());
    let command: i32 = text_of(&pid).trim().parse().unwrap();
    let end = end_of_fresh_lease(&redis, 30_000);
    redis.delete("lock:job");
    eventually("the command is gone", || state_of(command).is_none());
    assert!(wall() < end, "it was gone only after the lease could have ended");
}

#[test]
fn a_server_that_hangs_for_less_than_the_lease_disturbs_nobody() {
    let redis = Redis::start();
    let (reader, writer) = std::io::pipe().unwrap();
    let script = "trap 'echo disturbed' TERM HUP INT CONT; echo up; read x; exit 5";
    let mut running = redis.nxlock(["run", "job", "-t", "9s", "-v", "-c", script]).stdin_from(reader).start();
    running.line("up");
    running.says("renewed for");
    // It renews the lock soon after it has lost the connection, and has most of a lease left then.
    for kind in ["normal", "pubsub"] {
        redis.ask::<()>(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
    }
    redis.hang();
    // nxlock has noticed, so at least one renewal got no reply.
    running.says("; trying again for");
    assert!(running.stderr().contains("no answer within"), "{}", running.stderr());
    redis.resume();
    end_of_fresh_lease(&redis, 9_000);
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
    let options = ["-t", "2s", "--server-timeout", "1s"];
    let done = is_gone_in_time(&mut Redis::start(), &options, Redis::kill, Redis::restart);
    done.says("could not be renewed in time");
}

#[test]
fn the_shortest_lease_is_kept_as_well() {
    let options = ["-t", "500ms", "--server-timeout", "300ms"];
    is_gone_in_time(&mut Redis::start(), &options, hangs, goes_on);
}

#[test]
fn a_server_that_is_gone_at_the_end_costs_a_warning_and_not_the_status() {
    let mut redis = Redis::start();
    for hang in [true, false] {
        let options = ["run", "job", "-t", "1m", "--server-timeout", "500ms", "-c", "echo up; read x; exit 3"];
        let mut turn = Turn::once("it is up", || redis.nxlock(options), |turn| turn.running.stdout() == "up\n");
        if hang {
            redis.hang();
        } else {
            redis.kill();
        }
        let asked_to_end = crate::support::now();
        turn.is_told();
        turn.finish().exits(3).says("ends by itself within");
        assert!(asked_to_end.elapsed() < Duration::from_secs(2) * 3, "held up for {:?}", asked_to_end.elapsed());
        if hang {
            redis.resume();
            eventually("the server has heard all that was said", || redis.others_connected() == 0);
            assert!(!redis.exists("lock:job"), "the release was only late");
        }
    }
}
