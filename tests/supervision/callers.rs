//! Callers that leave nxlock without streams, processes, descriptors, room in a file, or a /proc with the right pids.

use std::fs;

use nix::sys::signal::Signal;
use nix::unistd::getuid;

use crate::support::turns::is_free;
use crate::support::{Authority, Local, Nxlock, Redis, Running, eventually, text_of};

#[test]
fn a_stream_that_is_closed_is_closed_for_the_command_too() {
    let local = Local::start();
    let to = local.directory().join("open");
    // A builtin tests this: a file opened for its output would take the free descriptor.
    let look = r#"for n in 0 1 2; do [ ! -e /proc/$$/fd/$n ] || open="$open$n"; done; echo "$open" > "$TO""#;
    for (closed, open) in
        [("", "012"), ("<&-", "12"), (">&-", "02"), ("2>&-", "01"), ("<&- 2>&-", "1"), ("<&- >&- 2>&-", "")]
    {
        let script = format!("exec nxlock run job -c \"$1\" {closed}");
        local.sh(&script, &[look]).env("TO", &to).run().exits(0);
        assert_eq!(text_of(&to), format!("{open}\n"), "{closed}");
    }
}

#[test]
fn a_stream_that_is_closed_does_no_harm_where_there_is_no_dev_null() {
    let local = Local::start();
    // Where a namespace is not permitted, there is a /dev/null.
    let script = r#"hide() { unshare "$how" sh -c 'mount -t tmpfs none /dev && exec "$@" <&- >&- 2>&-' sh "$@"; }
        for how in -m -rm; do
            if hide true 2>/dev/null; then hide nxlock run job -c 'exit 6'; exit; fi
        done
        exec nxlock run job -c 'exit 6' <&- >&- 2>&-"#;
    local.sh(script, &[]).run().exits(6);
    assert!(is_free(&local));
}

#[test]
fn who_may_start_no_process_is_told_and_holds_nothing() {
    let redis = Redis::start();
    let script = "ulimit -u 0; exec nxlock run job -- true";
    few_processes(&redis, 0, script).run().exits(126).says("cannot run \"true\"").says("released");
    assert!(!redis.exists("lock:job"));
}

#[test]
fn where_there_is_no_thread_to_be_had_the_lock_is_renewed_all_the_same() {
    let redis = Redis::start();
    // Four processes and threads: the command, its guard, nxlock and its background writer. Only root can run as a user
    // that has no others. Other users get too few descriptors to communicate with a thread.
    let limit = if getuid().is_root() { "ulimit -u 4" } else { "ulimit -n 10" };
    let script = format!("{limit}; exec nxlock -v run job -t 6s -- cat");
    let (reader, writer) = std::io::pipe().unwrap();
    let mut running = few_processes(&redis, 1, &script).stdin_from(reader).start();
    running.says("renewing without a thread");
    eventually("it is renewed, twice", || running.stderr().matches("renewed for").count() > 1 || running.has_ended());
    assert!(redis.exists("lock:job"));
    drop(writer);
    running.finish().exits(0);
    assert!(!redis.exists("lock:job"));
}

/// Runs a script as a user to whom process limits apply. They do not apply to root, so root switches to a user that has
/// no other processes and may open root's files.
fn few_processes(redis: &Redis, which: u32, script: &str) -> Nxlock {
    let uid = (1_000_000_000 + 2 * std::process::id() + which).to_string();
    let may = "+dac_override";
    let user = ["--reuid", &uid, "--clear-groups", "--inh-caps", may, "--ambient-caps", may];
    let through = match getuid().is_root() {
        true => format!("exec setpriv {} bash -c \"$1\"", user.join(" ")),
        false => "eval \"$1\"".to_owned(),
    };
    redis.lead(Nxlock::by("bash", ["-c", &through, "bash", script]))
}

/// A process tree that only a scan of /proc finds completely.
const TREE: &str = r#"( setsid sh -c 'echo up; exec sleep 300' & ); exec sleep 300"#;

#[test]
fn however_few_descriptors_there_are_nothing_is_left_running_or_held() {
    let redis = Redis::start();
    let script = r#"ulimit -n "$1"; exec nxlock -v run "job $1" -t 9s -c "$2""#;
    let start = |limit: u32| redis.sh(script, &[&limit.to_string(), TREE]).start();
    let mut all: Vec<Running> = (4..24).map(start).collect();
    let mut without_a_thread = 0;
    // None has to keep its lock until the others before it have ended.
    for running in &mut all {
        eventually("it is refused, or renewed", || {
            running.has_ended() || running.stderr().contains("renewed for") && running.stdout().contains("up")
        });
        without_a_thread += usize::from(running.stderr().contains("without a thread"));
        if !running.has_ended() {
            running.signal(Signal::SIGTERM);
        }
    }
    for running in &mut all {
        eventually("it ends", || running.has_ended());
        assert_eq!(running.descendants(), [0; 0], "{}", running.stderr());
    }
    for (limit, running) in (4..).zip(all) {
        let started = running.stdout().contains("up");
        let done = running.finish();
        let status = done.status.code().unwrap_or(0);
        // The command is a shell, which may itself lack descriptors.
        let allowed: &[i32] = if started { &[143] } else { &[2, 69, 70, 126, 143] };
        assert!(allowed.contains(&status), "{limit} descriptors: {status}\n{}", done.both());
        assert!(!redis.exists(&format!("lock:job {limit}")), "{limit} descriptors");
    }
    assert!(without_a_thread > 0, "the edge was not met");
}

#[test]
fn a_log_that_may_not_grow_does_not_end_us() {
    let redis = Redis::start();
    let log = redis.directory().join("log");
    fs::write(&log, [b'.'; 4096]).unwrap();
    // Each message would raise SIGXFSZ.
    let script = "exec 2>>\"$LOG\"; ulimit -f 1; exec nxlock -v run job -c 'echo up; exit 7'";
    redis.sh(script, &[]).env("LOG", &log).run().exits(7).prints("up\n");
    assert!(!redis.exists("lock:job"));
    assert_eq!(fs::metadata(&log).unwrap().len(), 4096);
}

#[test]
fn where_proc_has_other_numbers_the_command_is_stopped_and_nobody_else() {
    let local = Local::start();
    // In a pid namespace with the /proc of its parent; where that is not permitted, with the right /proc.
    let script = r#"for how in -pf -rpf; do ! unshare "$how" true 2>/dev/null || exec unshare "$how" sh -c "$1"; done
        exec sh -c "$1""#;
    let inside = r#"sleep 300 & bystander=$!
        nxlock run job --kill-after 1s -c 'kill -TERM $PPID; exec sleep 300'; echo "status $?"
        kill -0 $bystander && echo alive; kill $bystander"#;
    local.sh(script, &[inside]).run().prints("status 143\nalive\n");
    assert!(is_free(&local));
}
